"""The ``top4`` pickles of Cooijmans et al. (section 6.2), four sentences of a CNN passage each, where you have them.

``dict.pkl`` gives each word its id; ``{train4,valid4}_{pass,qs,ans}.pkl`` hold passages, queries and answers: lists of
lists of ids, one id in each answer. There is no test set. They were written by Python 2, whose pickles can run any code
when they are read, so what builds anything but lists, dictionaries, whole numbers and strings is refused.

Shapes: N questions of a split.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.cloze_files import ENTITY, entity_number
from data.cloze_pack import FIRST_WORD, joined
from data.fetch import DataError, find_set, raw_dir, read_bytes
from data.parsed_cache import Arrays, cached

SPLITS = {"train": "train4", "valid": "valid4"}
PARTS = ("pass", "qs", "ans")
NAMES = ("dict.pkl", *(f"{split}_{part}.pkl" for split in SPLITS.values() for part in PARTS))
FOLDERS = ("attentive_reader/top4", "top4", "attentive_reader/cnn/top4", "attentive_reader", ".")
WORDS = 65_829  # of the published dictionary
VERSION = "1"


class PlainUnpickler(pickle.Unpickler):
    """Builds lists, dictionaries, whole numbers and strings, nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("refers to something outside the file")


def read_pickle(path: Path) -> Any:
    """What a pickle holds.

    Raises:
        DataError: unreadable, damaged, or it names a class or a function.
    """
    content = read_bytes(path)
    try:
        # Strings of Python 2 are bytes. What is not UTF-8 keeps its number, so that two words do not become one.
        return PlainUnpickler(io.BytesIO(content), encoding="utf-8", errors="backslashreplace").load()
    except pickle.UnpicklingError as error:
        refused = "names " in str(error) or "refers " in str(error)
        what = f"{error}, but only lists, dicts, ints and strings are accepted" if refused else "truncated or damaged"
        raise DataError(f"{path}: {what}; replace the file by the original pickle") from None
    except Exception:  # a damaged pickle can call on anything that is wrong
        raise DataError(f"{path}: no pickle, or truncated or damaged; replace it") from None


def locate() -> dict[str, Path] | None:
    """File name -> path, or None if none is here.

    Raises:
        DataError: some are missing.
    """
    found = find_set([[name] for name in NAMES], FOLDERS)
    return None if found is None else dict(zip(NAMES, found, strict=True))


def where_to_place() -> str:
    """Instruction for placing the files by hand."""
    return f"place {', '.join(NAMES)} in {raw_dir() / 'attentive_reader' / 'top4'} or $LN_DATA/attentive_reader/top4"


def load_top4(files: Mapping[str, Path]) -> tuple[Arrays, str]:
    """Arrays as ``data.cloze_pack.merge`` gives them, from the cache or the pickles, and their fingerprint.

    Raises:
        DataError: a file that is not as described above; names it and what is wrong.
    """

    def build() -> Arrays:
        vocabulary, ids = _dictionary(files["dict.pkl"])
        arrays: Arrays = {"vocabulary": joined(vocabulary)}
        for split, name in SPLITS.items():
            paths = [files[f"{name}_{part}.pkl"] for part in PARTS]
            passages, queries, answers = (_sequences(path, ids) for path in paths)
            for path, (_, starts) in zip(paths[1:], (queries, answers), strict=True):
                if len(starts) != len(passages[1]):
                    raise DataError(
                        f"{path}: {len(starts) - 1:,} entries, but {paths[0].name} has {len(passages[1]) - 1:,}; "
                        "replace both"
                    )
            if (np.diff(answers[1]) != 1).any():
                number = int((np.diff(answers[1]) != 1).argmax())
                raise DataError(f"{paths[2]}: entry {number} is not a list of one word; replace the file")
            arrays |= {
                f"{split}_passage_words": passages[0],
                f"{split}_passage_starts": passages[1],
                f"{split}_question_words": queries[0],
                f"{split}_question_starts": queries[1],
                f"{split}_answers": answers[0],
            }
            owner_P = np.repeat(np.arange(len(answers[0])), np.diff(passages[1]))
            holds_N = np.zeros(len(answers[0]), dtype=bool)
            holds_N[owner_P[passages[0] == answers[0][owner_P]]] = True
            arrays[f"{split}_lost"] = np.array((~holds_N).sum())
        return arrays

    return cached("attentive_reader-top4", [files[name] for name in NAMES], build, version=VERSION)


def _dictionary(path: Path) -> tuple[list[str], np.ndarray]:
    """Words in the order of the authors' ids; and the id here, by theirs, 0 for what is no word."""
    words = read_pickle(path)
    if not isinstance(words, dict) or not words:
        raise DataError(f"{path}: {_shown(words)} instead of a dictionary of words; replace it")
    for word, number in words.items():
        if not isinstance(word, str) or type(number) is not int or number < 0:
            raise DataError(f"{path}: {_shown(word)} has the id {_shown(number)}, not a whole number; replace it")
        # Words are kept as lines of UTF-8: one that is two lines would give all after it the ids of others.
        if "\n" in word or any("\ud800" <= character <= "\udfff" for character in word):
            raise DataError(f"{path}: {_shown(word)} is no word (it holds a line end or no text); replace it")
    if not any(entity_number(word) is not None for word in words):
        raise DataError(
            f"{path}: holds no marker such as {ENTITY}7; replace it by the dictionary of the top4 questions"
        )
    order = sorted(words, key=lambda word: (words[word], word))
    numbers = [words[word] for word in order]
    for word, number, after in zip(order[1:], numbers, numbers[1:], strict=False):
        if number == after:
            raise DataError(f"{path}: {_shown(word)} and another word have the same id {_shown(number)}; replace it")
    if numbers[-1] > 10 * len(numbers) + 1000:
        raise DataError(
            f"{path}: {_shown(order[-1])} has the id {_shown(numbers[-1])} of {len(numbers):,} words; replace it"
        )
    ids = np.zeros(numbers[-1] + 1, dtype=np.int32)
    ids[numbers] = np.arange(FIRST_WORD, FIRST_WORD + len(numbers))
    return order, ids


def _sequences(path: Path, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lists of a file as ids here, one after the other, and where each starts."""
    lists = read_pickle(path)
    if not isinstance(lists, list) or not lists:
        raise DataError(f"{path}: {_shown(lists)} instead of a list of lists of word ids; replace it")
    for number, one in enumerate(lists):
        if type(one) is not list or not one:
            raise DataError(f"{path}: entry {number} is {_shown(one)}, not a list of word ids; replace it")
    starts = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    words = np.empty(starts[-1], dtype=np.int32)
    for number, one in enumerate(lists):
        words[starts[number] : starts[number + 1]] = _translated(path, number, one, ids)
    return words, starts


def _translated(path: Path, number: int, one: Sequence[Any], ids: np.ndarray) -> np.ndarray:
    for word in one:
        if type(word) is not int:
            raise DataError(f"{path}: entry {number} holds {_shown(word)}, not a word id; replace it")
        if not 0 <= word < len(ids) or not ids[word]:
            raise DataError(
                f"{path}: entry {number} holds the id {_shown(word)}, which is beyond the vocabulary of dict.pkl; "
                "replace both"
            )
    return ids[np.array(one)]


def _shown(thing: Any) -> str:
    """A few words for anything a pickle may hold."""
    if isinstance(thing, int | str):
        text = repr(thing) if abs(thing if isinstance(thing, int) else 0) < 10**18 else "a number of many digits"
        return text if len(text) <= 40 else text[:40] + "…"
    return f"a {type(thing).__name__}" + (f" of {len(thing)}" if isinstance(thing, list | dict | tuple) else "")
