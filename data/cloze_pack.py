"""Cloze questions as arrays: packed a shard at a time, then merged under one vocabulary (section 6.2).

A shard numbers its own words, so that shards can be made in any order and by several processes; merging gives each word
its id, one shard at a time.

Shapes: N questions, P words of all their passages, Q words of all their queries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.cloze_files import Question, entity_number
from data.cloze_sentences import keep
from data.padding import padded
from data.parsed_cache import DAMAGE, save_npz

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
        passages = padded(self.passage_words, self.passage_starts, chosen, PAD)
        queries = padded(self.question_words, self.question_starts, chosen, PAD)
        return *passages, *queries, self.answers[chosen].astype(np.int64)


@dataclass(frozen=True)
class Shard:
    """Some questions under a vocabulary of their own.

    Attributes:
        words: word n has the number n here.
        counts: how often each occurs in the kept passages and the queries.
        passage_words, passage_lengths, question_words, question_lengths, answers: by these numbers, int32.
        lost: how many answers are in no kept sentence.
        bad: what was wrong with files that were left out.
    """

    words: list[str]
    counts: np.ndarray
    passage_words: np.ndarray
    passage_lengths: np.ndarray
    question_words: np.ndarray
    question_lengths: np.ndarray
    answers: np.ndarray
    lost: int
    bad: list[str]


def pack(questions: Iterable[Question], sentences: int | None, bad: list[str] | None = None) -> Shard:
    """Packs questions, keeping at most ``sentences`` sentences of each passage (None: all).

    Args:
        questions: read one at a time.
        sentences: see ``data.cloze_sentences``.
        bad: what the reading of ``questions`` has put here by its end goes into the shard.
    """
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
        bad=list(bad or ()),
    )


def save_shard(path: Path, shard: Shard) -> None:
    """Writes a shard in one step. Raises ``OSError``."""
    arrays = {name: value for name, value in vars(shard).items() if isinstance(value, np.ndarray)}
    arrays |= {"lost": np.array(shard.lost), "words": joined(shard.words), "bad": joined(shard.bad)}
    save_npz(path, arrays)


def load_shard(path: Path) -> Shard | None:
    """A shard from its file; None if it is damaged or not there."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        words, bad, lost = split_lines(arrays.pop("words")), split_lines(arrays.pop("bad")), int(arrays.pop("lost"))
        return Shard(words=words, bad=bad, lost=lost, **arrays)
    except (*DAMAGE, TypeError):
        return None


def joined(lines: Sequence[str]) -> np.ndarray:
    """Lines of text as an array of bytes. What cannot be encoded, such as in a file name, is written as it is read."""
    return np.frombuffer("\n".join(lines).encode("utf-8", "surrogateescape"), dtype=np.uint8)


def split_lines(array: np.ndarray) -> list[str]:
    """What ``joined`` was given."""
    return array.tobytes().decode("utf-8", "surrogateescape").split("\n") if len(array) else []


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
    """All shards as one set of arrays.

    Args:
        shards: of each split, in order; each is read when it is needed, twice.
        vocabulary: of all.

    Returns:
        ``<split>_<field>`` for each field of ``Questions``, ``<split>_lost``, how many answers are lost, and
        ``vocabulary`` (``split_lines`` reads it).
    """
    ids = {word: number for number, word in enumerate(vocabulary, FIRST_WORD)}
    arrays: dict[str, np.ndarray] = {}
    for split, several in shards.items():
        lengths: dict[str, list[np.ndarray]] = {"passage": [], "question": []}
        lost = 0
        for read in several:
            shard = read()
            lengths["passage"].append(shard.passage_lengths)
            lengths["question"].append(shard.question_lengths)
            lost += shard.lost
        starts = {
            f"{part}_starts": np.cumsum(np.concatenate([[0], *each]), dtype=np.int64) for part, each in lengths.items()
        }
        # Room for all first: putting finished pieces together would need it twice.
        whole = {f"{part}_words": np.empty(starts[f"{part}_starts"][-1], np.int32) for part in lengths}
        whole["answers"] = np.empty(len(starts["passage_starts"]) - 1, np.int32)
        filled = dict.fromkeys(whole, 0)
        for read in several:
            for name, piece in translate(read(), ids).items():
                whole[name][filled[name] : filled[name] + len(piece)] = piece
                filled[name] += len(piece)
        arrays |= {f"{split}_{name}": array for name, array in (whole | starts).items()}
        arrays[f"{split}_lost"] = np.array(lost)
    arrays["vocabulary"] = joined(vocabulary)
    return arrays
