"""Words counted in parts, each a file sorted by word, and the most frequent of all of them: memory stays bounded."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from pathlib import Path

FILES = 64  # merged at a time


def most_frequent(runs: Sequence[Path], count: int) -> list[bytes]:
    """The ``count`` most frequent words of sorted files of words and counts; ties in the order of the alphabet."""
    runs = list(runs)
    while len(runs) > FILES:  # a system has a limit for open files
        merged = runs[0].with_name(f"{runs[0].name}.merged")
        with open(merged, "wb") as out:
            out.writelines(b"%b\t%d\n" % item for item in _merged(runs[:FILES]))
        runs = [*runs[FILES:], merged]
    best = heapq.nsmallest(count, ((-total, word) for word, total in _merged(runs)))
    return [word for _, word in best]


def _merged(runs: Sequence[Path]) -> Iterator[tuple[bytes, int]]:
    """Words and their counts in all files, sorted by word."""
    with ExitStack() as stack:
        rows = heapq.merge(*(map(_row, stack.enter_context(open(run, "rb"))) for run in runs))
        for word, same in groupby(rows, key=itemgetter(0)):
            yield word, sum(number for _, number in same)


def _row(line: bytes) -> tuple[bytes, int]:
    word, _, number = line.rpartition(b"\t")
    return word, int(number)
