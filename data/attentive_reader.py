"""Cloze questions for the attentive reader (section 6.2): CNN articles where they have been placed, else stories.

The paper used the ``top4`` questions of Cooijmans et al., which nobody has published a valid copy of since; they are
read where they are (``data.top4``). The files of Hermann et al. that they were made from are read too
(``data.cloze_folder``), with a selection of sentences of our own (``data.cloze_sentences``).
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from data import cloze_folder, random_questions, stories, top4
from data.cloze_files import BadQuestion, parse_question, write_question
from data.cloze_pack import (
    FIRST_WORD,
    PAD,
    UNKNOWN,
    Questions,
    Shard,
    build_vocabulary,
    entities_of,
    merge,
    pack,
    split_lines,
)
from data.cloze_sentences import VERSION as SENTENCES_VERSION
from data.fetch import DataError, Say, Source, raw_dir
from data.handwriting import skip_bad_asked
from data.parsed_cache import Arrays, cached

__all__ = ["FIRST_WORD", "PAD", "UNKNOWN", "Questions", "ReaderData", "get", "load_attentive_reader"]
log = logging.getLogger(__name__)

SPLITS = ("train", "valid", "test")
STORIES, TOP4, RANDOM = "stories", "top4", "random"
NAMES = {"cnn": "CNN", "dailymail": "Daily Mail", TOP4: "CNN, top 4 sentences"}
CNN_QUESTIONS = {"train": 380_298, "valid": 3_924, "test": 3_198}


@dataclass(frozen=True)
class ReaderData:
    """A data set.

    Attributes:
        splits: train, valid and test; ``top4`` has no test set.
        vocabulary: word n has the id ``FIRST_WORD`` + n.
        entities: ids of all entity markers, int64.
        source: where it came from.
        lost: share of each split's questions whose answer is not in the kept sentences: no reader of them can have a
            lower error, except by luck.
    """

    splits: dict[str, Questions]
    vocabulary: list[str]
    entities: np.ndarray
    source: Source
    lost: dict[str, float]

    def word(self, number: int) -> str:
        """The word with an id."""
        known = {PAD: "<pad>", UNKNOWN: "<unknown>"}
        return known.get(number) or self.vocabulary[number - FIRST_WORD]


def load_attentive_reader(dataset: str = "cnn", sentences: int | None = 4, *, skip_bad: bool = False) -> ReaderData:
    """The data set ``dataset``, or the generated stories if it is a published one that is not here.

    Args:
        dataset: ``stories``, ``cnn``, ``dailymail``, ``top4``, ``random`` (for timing), or the name of a folder of
            ``.question`` files.
        sentences: how many sentences of a passage are kept at most (``data.cloze_sentences``); None: the whole
            passage. ``top4`` has been cut by its authors and stays as it is.
        skip_bad: leave out question files that cannot be used, and count them, instead of raising.

    Raises:
        DataError: a file is damaged, or files are missing; names the file and the remedy.
    """
    if sentences is not None and sentences < 1:
        raise DataError(f"task.sentences={sentences} must be 1 or more, or null for whole passages")
    if dataset == RANDOM:
        return _random()
    if dataset == STORIES:
        return _stories(sentences, "generated in place of news articles")
    if dataset == TOP4:
        if (files := top4.locate()) is not None:
            return _top4(files)
    elif (folder := cloze_folder.locate(dataset)) is not None:
        return _folder(dataset, folder, sentences, skip_bad)
    if dataset in NAMES:
        log.warning("%s is not here; generated stories stand in (%s)", NAMES[dataset], where_to_place(dataset))
        return _stories(sentences, f"generated in place of {NAMES[dataset]}, which was not found")
    raise DataError(f"task.dataset={dataset}: no such data set; {where_to_place(dataset)}, or use {STORIES} or cnn")


def where_to_place(dataset: str = "cnn") -> str:
    """Instruction for placing files by hand."""
    if dataset == TOP4:
        return top4.where_to_place()
    folders = ", ".join(f"{name}/" for name in cloze_folder.SPLITS.values())
    place = f"attentive_reader/{dataset}/questions"
    return f"place {folders} with their .question files in {raw_dir() / place} or $LN_DATA/{place}"


def _data(arrays: Arrays, source: Source) -> ReaderData:
    """Arrays as ``merge`` gives them, under their names."""
    splits = {
        split: Questions(**{name: arrays[f"{split}_{name}"] for name in Questions.__dataclass_fields__})
        for split in SPLITS
        if f"{split}_answers" in arrays
    }
    vocabulary = split_lines(arrays["vocabulary"])
    return ReaderData(splits, vocabulary, entities_of(vocabulary), source, _lost(arrays))


def _sizes(arrays: Arrays) -> dict[str, int]:
    return {split: len(arrays[f"{split}_answers"]) for split in SPLITS if f"{split}_answers" in arrays}


def _lost(arrays: Arrays) -> dict[str, float]:
    return {split: int(arrays[f"{split}_lost"]) / size for split, size in _sizes(arrays).items()}


def _kept(arrays: Arrays, sentences: int | None) -> str:
    """What was kept of the passages, and the error that this leaves to the best of readers."""
    if sentences is None:
        return "whole passages"
    lost = ", ".join(f"{100 * share:.1f} % of {split}" for split, share in _lost(arrays).items())
    return f"at most {sentences} sentence{'s' * (sentences != 1)} a passage, which lose the answer of {lost}"


def _folder(dataset: str, folder: Path, sentences: int | None, skip_bad: bool) -> ReaderData:
    """Question files, from the cache or parsed."""
    arrays, digest, bad = cloze_folder.load_folder(dataset, folder, sentences, skip_bad=skip_bad)
    sizes = _sizes(arrays)
    counts = "/".join(f"{size:,}" for size in sizes.values())
    expected = "/".join(f"{size:,}" for size in CNN_QUESTIONS.values())
    name = NAMES.get(dataset, dataset)
    detail = [f"{counts} questions", _kept(arrays, sentences)]
    # A copy that lacks a few questions is still the paper's data; a small part of it is not.
    whole = dataset == "cnn" and all(sizes[split] >= 0.95 * CNN_QUESTIONS[split] for split in SPLITS)
    if whole:
        detail.append("other sentences than the paper's, whose selection is lost, so its errors are not comparable")
    elif dataset == "cnn":
        detail[0] = f"{counts} of the expected {expected} questions"
    else:
        detail.append("not the paper's data (CNN)")
    if skipped := sum(bad.values()):
        detail.append(f"{skipped:,} bad file{'s' * (skipped > 1)} skipped")
    for sentence in detail[1:]:
        log.info("%s: %s", name, sentence)
    part = dataset == "cnn" and not whole
    source = Source(
        kind="original" if whole else "stand-in",
        label=f"cnn-{sum(sizes.values())}" if part else dataset,
        name=f"CNN, {sum(sizes.values()):,} of {sum(CNN_QUESTIONS.values()):,} questions" if part else name,
        fingerprint=digest,
        detail="; ".join(detail),
    )
    return _data(arrays, source)


def _top4(files: dict[str, Path]) -> ReaderData:
    """The authors' pickles, from the cache or parsed."""
    arrays, digest = top4.load_top4(files)
    sizes, words = _sizes(arrays), len(split_lines(arrays["vocabulary"]))
    whole = words == top4.WORDS and all(sizes[split] >= 0.95 * CNN_QUESTIONS[split] for split in sizes)
    lost = ", ".join(f"{100 * share:.1f} % of {split}" for split, share in _lost(arrays).items())
    counts = "/".join(f"{size:,}" for size in sizes.values())
    detail = f"{counts} questions, {words:,} words, no test set; without the answer: {lost}"
    if not whole:
        detail += f"; not the published files, which have {top4.WORDS:,} words"
    source = Source("original" if whole else "stand-in", TOP4, NAMES[TOP4], digest, detail)
    return _data(arrays, source)


def _stories(sentences: int | None, why: str) -> ReaderData:
    """The stand-in, from the cache or made anew (some seconds), through the text of its files."""

    def build() -> Arrays:
        shards = {split: _story_shard(split, size, sentences) for split, size in stories.SIZES.items()}
        vocabulary = build_vocabulary([shards["train"]], [shards["valid"], shards["test"]])
        return merge({split: [partial(shards.__getitem__, split)] for split in shards}, vocabulary)

    version = f"{stories.VERSION} {SENTENCES_VERSION} {stories.SEED} {stories.SIZES}"
    arrays, digest = cached(f"attentive_reader-stories-{sentences or 'all'}", [], build, version=version)
    counts = "/".join(f"{size:,}" for size in _sizes(arrays).values())
    detail = f"{counts} questions about generated stories of four to eight sentences; {_kept(arrays, sentences)}; {why}"
    return _data(arrays, Source("stand-in", STORIES, "generated stories (stand-in)", digest, detail))


def _random() -> ReaderData:
    """Words without a meaning in the published sizes, for ``make bench``."""
    splits, words = {split: random_questions.questions(split) for split in SPLITS}, random_questions.vocabulary()
    digest = hashlib.sha256(b"".join(part.passage_words.tobytes() for part in splits.values())).hexdigest()
    detail = f"{len(words):,} words, passages of {random_questions.PASSAGE} and one more; for timing only"
    source = Source("stand-in", RANDOM, "random words in the published sizes", digest, detail)
    return ReaderData(splits, words, entities_of(words), source, dict.fromkeys(SPLITS, 1.0))


def _story_shard(split: str, size: int, sentences: int | None) -> Shard:
    log.info("making %s stories for %s (once)", f"{size:,}", split)
    texts = (write_question(stories.make_question(split, number)) for number in range(size))
    try:
        return pack((parse_question(text.encode(), f"a story for {split}") for text in texts), sentences)
    except BadQuestion as error:
        raise AssertionError(f"the grammar of stories: {error}") from error


def get(say: Say) -> Source:
    """Tells of the files, and parses those of CNN; see ``scripts.get_data``. Raises ``DataError``."""
    skip_bad = skip_bad_asked()
    here = {name: cloze_folder.locate(name) for name in NAMES if name != TOP4}
    if (files := top4.locate()) is not None:
        say("present", f"{files['dict.pkl'].parent} (task.dataset={TOP4})")
        load_attentive_reader(TOP4)
    if (folder := here.pop("cnn")) is not None:
        source = load_attentive_reader(skip_bad=skip_bad).source
        for name in cloze_folder.SPLITS.values():
            say("present", folder / name)
    else:
        source = _stories(4, "generated in place of CNN, which was not found").source
        say("stand-in", "CNN questions: generated stories")
        say("optional", f"for the questions that the paper's were made from {where_to_place()}")
    for name, other in here.items():
        if other is not None:
            say("present", f"{other} (task.dataset={name})")
    return source
