"""Cloze questions as arrays: packed a shard at a time, then merged under one vocabulary (section 6.2).

A shard numbers its own words, so that shards can be made in any order and by several processes; merging gives each word
its id, one shard at a time.

Shapes: N questions, P words of all their passages, Q words of all their queries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from data.cloze_files import Question, entity_number
from data.cloze_sentences import keep

PAD, UNKNOWN, FIRST_WORD = 0, 1, 2  # word n of the vocabulary has the id FIRST_WORD + n


@dataclass(frozen=True)
class Questions:
    """The questions of one split as word ids, one after the other.

    Attributes:
        passage_words: (P,) int32.
        passage_starts: (N + 1,) int64, where each passage begins.
        question_words: (Q,) int32.
        question_starts: (N + 1,) int64.
        answers: (N,) int32 ids.
    """

    passage_words: np.ndarray
    passage_starts: np.ndarray
    question_words: np.ndarray
    question_starts: np.ndarray
    answers: np.ndarray

    def __len__(self) -> int:
        return len(self.answers)

    def padded(
        self, numbers: Sequence[int] | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Some questions, time first, ``PAD`` after the end of each.

        Args:
            numbers: B of them, in this order.

        Returns:
            passages (T, B), their lengths (B,), queries (S, B), their lengths (B,) and answers (B,), all int64.
        """
        chosen = np.asarray(numbers, dtype=np.int64)
        passages = _padded(self.passage_words, self.passage_starts, chosen)
        queries = _padded(self.question_words, self.question_starts, chosen)
        return *passages, *queries, self.answers[chosen].astype(np.int64)


def _padded(words: np.ndarray, starts: np.ndarray, chosen_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    begin_B = starts[chosen_B]
    lengths_B = (starts[chosen_B + 1] - begin_B).astype(np.int64)
    time_T1 = np.arange(lengths_B.max(initial=0))[:, None]
    there_TB = time_T1 < lengths_B
    # Beyond the end of a text any place that exists will do.
    words_TB = words[np.where(there_TB, begin_B + time_T1, 0)].astype(np.int64) if len(words) else there_TB * 0
    return np.where(there_TB, words_TB, PAD), lengths_B


@dataclass(frozen=True)
class Shard:
    """Some questions under a vocabulary of their own.

    Attributes:
        words: word n has the number n here.
        counts: how often each occurs in the kept passages and the queries.
        passage_words, passage_lengths, question_words, question_lengths, answers: by these numbers, int32.
        lost: how many answers are in no kept sentence.
    """

    words: list[str]
    counts: np.ndarray
    passage_words: np.ndarray
    passage_lengths: np.ndarray
    question_words: np.ndarray
    question_lengths: np.ndarray
    answers: np.ndarray
    lost: int


def pack(questions: Iterable[Question], sentences: int | None) -> Shard:
    """Packs questions, keeping at most ``sentences`` sentences of each passage (None: all)."""
    ids: dict[str, int] = {}
    passages, queries, answers, lost = [], [], [], 0

    def numbered(words: Sequence[str]) -> np.ndarray:
        return np.array([ids.setdefault(word, len(ids)) for word in words], dtype=np.int32)

    for question in questions:
        kept = question.passage if sentences is None else keep(question.passage, question.query, sentences)
        lost += question.answer not in kept
        passages.append(numbered(kept))
        queries.append(numbered(question.query))
        answers.append(ids.setdefault(question.answer, len(ids)))
    none = np.zeros(0, dtype=np.int32)
    passage_words, question_words = np.concatenate([none, *passages]), np.concatenate([none, *queries])
    return Shard(
        words=list(ids),
        counts=np.bincount(np.concatenate([passage_words, question_words]), minlength=len(ids)),
        passage_words=passage_words,
        passage_lengths=np.array([len(words) for words in passages], dtype=np.int32),
        question_words=question_words,
        question_lengths=np.array([len(words) for words in queries], dtype=np.int32),
        answers=np.array(answers, dtype=np.int32),
        lost=lost,
    )


def build_vocabulary(training: Iterable[Shard], others: Iterable[Shard]) -> list[str]:
    """The words of the training questions by falling frequency, then by alphabet.

    Entity markers of the other splits are added, by number: a marker means nothing but "the same one again", and what
    a model knows of one it learns of all, since they change places in every minibatch.
    """
    counts: Counter[str] = Counter()
    for shard in training:
        counts.update(dict(zip(shard.words, shard.counts.tolist(), strict=True)))
    markers = {word for shard in others for word in shard.words if entity_number(word) is not None}
    vocabulary = sorted(counts, key=lambda word: (-counts[word], word))
    return vocabulary + sorted(markers - counts.keys(), key=lambda word: (entity_number(word), word))


def entities_of(vocabulary: Sequence[str]) -> np.ndarray:
    """Ids of all entity markers, int64, rising."""
    return np.array([n for n, word in enumerate(vocabulary, FIRST_WORD) if entity_number(word) is not None], np.int64)


def translate(shard: Shard, ids: Mapping[str, int]) -> dict[str, np.ndarray]:
    """A shard's words and answers under the vocabulary of all; a word outside it becomes ``UNKNOWN``."""
    table = np.array([ids.get(word, UNKNOWN) for word in shard.words] or [UNKNOWN], dtype=np.int32)
    return {name: table[getattr(shard, name)] for name in ("passage_words", "question_words", "answers")}


def merge(shards: Mapping[str, Sequence[Callable[[], Shard]]], vocabulary: Sequence[str]) -> dict[str, np.ndarray]:
    """All shards in memory, as arrays named ``<split>_<field>`` of ``Questions``.

    Args:
        shards: of each split, in order; each is read when it is needed.
        vocabulary: of all.
    """
    ids = {word: number for number, word in enumerate(vocabulary, FIRST_WORD)}
    arrays: dict[str, np.ndarray] = {}
    for split, several in shards.items():
        parts: dict[str, list[np.ndarray]] = {name: [] for name in Questions.__dataclass_fields__}
        for read in several:
            shard = read()
            for name, array in translate(shard, ids).items():
                parts[name].append(array)
            parts["passage_starts"].append(shard.passage_lengths)
            parts["question_starts"].append(shard.question_lengths)
        for name, each in parts.items():
            whole = np.concatenate(each)
            starts = name.endswith("starts")
            arrays[f"{split}_{name}"] = np.concatenate([[0], np.cumsum(whole, dtype=np.int64)]) if starts else whole
    return arrays
