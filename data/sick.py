"""SICK (SemEval-2014 task 1): pairs of sentences with a human score of relatedness from 1 to 5 (section 6.3).

The columns are found by their names in the header. SICK cannot be fetched: place it by hand.

Shapes: N pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.fetch import DataError, Source, find_set, fingerprint, raw_dir
from data.plain_lines import read_lines
from data.sentence_sets import folders

NAME = "SICK"
FILES = {
    "train": ("SICK_train.txt", 4500),
    "trial": ("SICK_trial.txt", 500),
    "test": ("SICK_test_annotated.txt", 4927),
}
COLUMNS = ("sentence_A", "sentence_B", "relatedness_score")
LOWEST, HIGHEST = 1.0, 5.0


@dataclass(frozen=True)
class Pairs:
    """Sentences ``first[n]`` and ``second[n]``, as in the file, and their score, 1 … 5, float64."""

    first: list[str]
    second: list[str]
    score_N: np.ndarray

    def __len__(self) -> int:
        return len(self.score_N)


@dataclass(frozen=True)
class Sick:
    """The three parts, and where they came from."""

    train: Pairs
    trial: Pairs
    test: Pairs
    source: Source

    @property
    def parts(self) -> tuple[Pairs, Pairs, Pairs]:
        """Train, trial, test."""
        return self.train, self.trial, self.test

    def sentences(self) -> list[str]:
        """All of them: of each part the first sentences of its pairs, then the second ones."""
        return [sentence for part in self.parts for sentence in (*part.first, *part.second)]


def locate() -> list[Path] | None:
    """The files in the order of ``FILES``, or None. Raises ``DataError`` if only some are there."""
    return find_set([(name,) for name, _ in FILES.values()], folders(NAME))


def where_to_place() -> str:
    """Instruction for placing the files by hand."""
    names = ", ".join(name for name, _ in FILES.values())
    inner = f"skip_thoughts/downstream/{NAME}"
    return f"place {names} (SemEval-2014 task 1) in {raw_dir() / inner} or $LN_DATA/{inner}"


def load() -> Sick | None:
    """SICK, or None where it is absent.

    Raises:
        DataError: a file is damaged, lacks a column, has a bad score or another number of pairs.
    """
    paths = locate()
    if paths is None:
        return None
    parts = []
    for path, (_, count) in zip(paths, FILES.values(), strict=True):
        pairs = read_pairs(path)
        if len(pairs) != count:
            raise DataError(
                f"{path}: {len(pairs):,} pairs, SICK has {count:,} in this file; replace it by the original"
            )
        parts.append(pairs)
    arrays: dict[str, np.ndarray] = {}
    for part, pairs in zip(FILES, parts, strict=True):
        text = "\n".join(pairs.first + pairs.second).encode()
        arrays |= {f"{part}_text": np.frombuffer(text, dtype=np.uint8), f"{part}_score": pairs.score_N}
    sizes = "/".join(f"{len(pairs):,}" for pairs in parts)
    source = Source("original", "sick", "SICK", fingerprint(NAME, arrays), f"{sizes} pairs")
    return Sick(parts[0], parts[1], parts[2], source)


def read_pairs(path: Path) -> Pairs:
    """All pairs of one file.

    Raises:
        DataError: names the file, the line and what is wrong with it.
    """
    lines = read_lines(path)
    header = lines[0].split("\t") if lines else []
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        shown = ", ".join(name[:30] for name in header) or "nothing"
        raise DataError(
            f"{path}: line 1 names no column {', '.join(missing)}, it has {shown}; replace the file by the original"
        )
    if twice := [name for name in COLUMNS if header.count(name) > 1]:
        raise DataError(f"{path}: line 1 names {', '.join(twice)} more than once; replace the file by the original")
    places = [header.index(name) for name in COLUMNS]
    first: list[str] = []
    second: list[str] = []
    scores: list[float] = []
    for number, line in enumerate(lines[1:], 2):
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != len(header):
            raise DataError(
                f"{path}: line {number} has {len(cells)} column{'s' * (len(cells) != 1)}, the header {len(header)}; "
                "correct or replace it"
            )
        a, b, score = (cells[place] for place in places)
        if not a or not b:
            raise DataError(f"{path}: line {number} has an empty sentence; correct or replace it")
        try:
            value = float(score)
        except ValueError:
            value = math.nan
        if not LOWEST <= value <= HIGHEST:  # a NaN is not either
            raise DataError(
                f"{path}: line {number} has the relatedness_score '{score[:20]}', not a number from 1 to 5; "
                "correct or replace it"
            )
        first.append(a)
        second.append(b)
        scores.append(value)
    return Pairs(first, second, np.array(scores))
