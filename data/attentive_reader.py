"""Cloze questions for the attentive reader (section 6.2): CNN articles where they have been placed, else stories."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

import numpy as np

from data import stories
from data.cloze_files import parse_question, write_question
from data.cloze_pack import FIRST_WORD, PAD, UNKNOWN, Questions, build_vocabulary, entities_of, merge, pack
from data.fetch import DataError, Say, Source, raw_dir
from data.parsed_cache import Arrays, cached

__all__ = ["FIRST_WORD", "PAD", "UNKNOWN", "Questions", "ReaderData", "get", "load_attentive_reader"]
log = logging.getLogger(__name__)

STORIES = "stories"
NAMES = {"cnn": "CNN", "dailymail": "Daily Mail", "top4": "CNN, top 4 sentences"}


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
        dataset: ``stories``, ``cnn``, ``dailymail``, ``top4``, or the name of a folder of ``.question`` files.
        sentences: how many sentences of a passage are kept at most (``data.cloze_sentences``); None: the whole passage.
        skip_bad: leave out question files that cannot be used, and count them, instead of raising.

    Raises:
        DataError: a file is damaged, or files are missing; names the file and the remedy.
    """
    if dataset == STORIES:
        return _stories(sentences, "generated in place of news articles")
    if dataset in NAMES:
        log.warning("%s is not here; generated stories stand in (%s)", NAMES[dataset], where_to_place(dataset))
        return _stories(sentences, f"generated in place of {NAMES[dataset]}, which was not found")
    raise DataError(f"task.dataset={dataset}: no such data set; {where_to_place(dataset)}, or use {STORIES} or cnn")


def where_to_place(dataset: str = "cnn") -> str:
    """Instruction for placing files by hand."""
    return f"place its files in {raw_dir() / 'attentive_reader' / dataset} or $LN_DATA/attentive_reader/{dataset}"


def _stories(sentences: int | None, why: str) -> ReaderData:
    """The stand-in, from the cache or made anew (some seconds), through the text of its files."""

    def build() -> Arrays:
        shards = {}
        for split, size in stories.SIZES.items():
            texts = (write_question(stories.make_question(split, number)) for number in range(size))
            shards[split] = pack((parse_question(text.encode(), "a story") for text in texts), sentences)
        vocabulary = build_vocabulary([shards["train"]], [shards["valid"], shards["test"]])
        arrays = merge({split: [partial(shards.__getitem__, split)] for split in shards}, vocabulary)
        arrays["vocabulary"] = np.frombuffer("\n".join(vocabulary).encode(), dtype=np.uint8)
        return arrays | {f"{split}_lost": np.array(shard.lost) for split, shard in shards.items()}

    version = f"{stories.VERSION} {stories.SEED} {stories.SIZES} {sentences}"
    arrays, digest = cached(f"attentive_reader-stories-{sentences}", [], build, version=version)
    vocabulary = arrays["vocabulary"].tobytes().decode().split("\n")
    splits = {
        split: Questions(**{name: arrays[f"{split}_{name}"] for name in Questions.__dataclass_fields__})
        for split in stories.SIZES
    }
    lost = {split: int(arrays[f"{split}_lost"]) / len(splits[split]) for split in splits}
    sizes = "/".join(f"{len(part):,}" for part in splits.values())
    detail = f"{sizes} questions about generated stories of four to eight sentences; {why}"
    source = Source("stand-in", "stories", "generated stories (stand-in)", digest, detail)
    return ReaderData(splits, vocabulary, entities_of(vocabulary), source, lost)


def get(say: Say) -> Source:
    """Tells of the files; see ``scripts.get_data``. Raises ``DataError``."""
    say("stand-in", "CNN questions: generated stories")
    return _stories(4, "generated in place of CNN, which was not found").source
