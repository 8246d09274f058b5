"""Neighbouring sentences in batches of one length, as the authors drew them (section 6.3).

The whole list of sentences is one text: a book's last sentence and the next book's first are neighbours, as in the
authors' code. Sentences in the middle are grouped by length. An epoch visits the lengths in turn, in an order drawn at
random, and takes from each the next ``batch_size`` of its sentences, shuffled, until all are used up; a length's last
batch may be smaller. A sentence of ``maxlen`` or more words drops each triple that it is in, but only after the batch
was drawn, so batches are often smaller than ``batch_size``; a batch that loses all is skipped.

Shapes: N sentences, B batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
from numpy.random import RandomState, SeedSequence

from data.books import Books, Padded, padded
from data.fetch import DataError

CHUNK = 1 << 22  # sentences looked at at a time


class Triples:
    """The triples (n - 1, n, n + 1) of ``books`` that are trained on.

    Attributes:
        usable_N: whether sentence n and both its neighbours have fewer than ``maxlen`` words.
        by_length: number of words -> the sentences in the middle that have as many, int32 or int64.
    """

    def __init__(self, books: Books, maxlen: int = 30) -> None:
        """Goes through the lengths of all sentences once.

        Raises:
            DataError: no triple is usable.
        """
        self.books, self.maxlen = books, maxlen
        count = len(books)
        words_N = np.empty(count, dtype=np.min_scalar_type(maxlen))  # cut at maxlen, which is as good as more
        for start in range(0, count, CHUNK):
            starts = books.starts[start : start + CHUNK + 1]
            words_N[start : start + CHUNK] = np.minimum(np.diff(starts), maxlen)
        short_N = words_N < maxlen
        self.usable_N = np.zeros(count, dtype=bool)
        self.usable_N[1:-1] = short_N[:-2] & short_N[1:-1] & short_N[2:]
        self._count = int(np.count_nonzero(self.usable_N))
        if not self._count:
            held_out = books.starts[0] > 0  # the end of a text, not all of it
            which, remedy = ("the last ", "raise task.held_out or") if held_out else ("", "give another text or raise")
            raise DataError(
                f"{books.source.name}: {which}{count:,} sentence{'s' * (count != 1)}, but no three neighbours of fewer "
                f"than {maxlen} words each; {remedy} task.maxlen"
            )
        words_N[[0, -1]] = maxlen  # no sentence in the middle
        dtype = np.int32 if count < 2**31 else np.int64
        found = {n: np.flatnonzero(words_N == n).astype(dtype) for n in range(1, maxlen)}
        self.by_length = {n: numbers for n, numbers in found.items() if len(numbers)}

    def __len__(self) -> int:
        return self._count

    def batches(self, epoch: int, seed: int, batch_size: int) -> Batches:
        """The batches of an epoch, a pure function of its arguments."""
        random = RandomState(SeedSequence([seed, epoch]).generate_state(8))
        shuffled = []
        for length in random.permutation(list(self.by_length)):
            numbers = self.by_length[length].copy()
            random.shuffle(numbers)
            shuffled.append(numbers)
        return Batches(shuffled, self.usable_N, batch_size)

    def padded(self, numbers_B: np.ndarray) -> tuple[Padded, Padded, Padded]:
        """The previous, the middle and the next sentence of each triple."""
        previous, middle, following = (padded(self.books, numbers_B + step) for step in (-1, 0, 1))
        return previous, middle, following


class Batches(Sequence[np.ndarray]):
    """Batches of an epoch, each made when it is asked for: sentences in the middle, (B,) int64."""

    def __init__(self, groups: list[np.ndarray], usable_N: np.ndarray, batch_size: int) -> None:
        """``groups``: the sentences of each length in the order of their turns."""
        self._groups, self._usable_N, self._size = groups, usable_N, batch_size
        counts = np.array([-(-len(group) // batch_size) for group in groups])
        # From round ends[j - 1] up to ends[j] the same lengths take part, those in active[j].
        self._ends = np.unique(counts)
        self._begins = np.concatenate([[0], self._ends[:-1]])
        self._active = [np.flatnonzero(counts >= end) for end in self._ends]
        sizes = np.array([len(active) for active in self._active])
        self._firsts = np.concatenate([[0], np.cumsum((self._ends - self._begins) * sizes)])
        self._skipped = self._empty()
        self._range = range(int(self._firsts[-1]) - len(self._skipped))

    def _empty(self) -> np.ndarray:
        """Turns whose batch loses all of its triples, in order."""
        found = []
        for place, group in enumerate(self._groups):
            kept = np.add.reduceat(self._usable_N[group], np.arange(0, len(group), self._size), dtype=np.int64)
            for turn in np.flatnonzero(kept == 0).tolist():
                stage = int(np.searchsorted(self._ends, turn, side="right"))
                rank = int(np.searchsorted(self._active[stage], place))
                into = (turn - self._begins[stage]) * len(self._active[stage]) + rank
                found.append(int(self._firsts[stage] + into))
        return np.array(sorted(found), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, which: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, which: slice) -> Batches: ...
    def __getitem__(self, which: int | slice) -> np.ndarray | Batches:
        if isinstance(which, slice):
            part = object.__new__(Batches)
            part.__dict__.update(self.__dict__, _range=self._range[which])
            return part
        return self._batch(self._range[which])

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self._batch(number) for number in self._range)

    def _batch(self, number: int) -> np.ndarray:
        """Batch ``number`` of those that are not skipped."""
        before = self._skipped - np.arange(len(self._skipped))
        turn = number + int(np.searchsorted(before, number, side="right"))
        stage = int(np.searchsorted(self._firsts, turn, side="right")) - 1
        round_, rank = divmod(turn - int(self._firsts[stage]), len(self._active[stage]))
        start = (int(self._begins[stage]) + round_) * self._size
        group = self._groups[self._active[stage][rank]][start : start + self._size]
        return group[self._usable_N[group]].astype(np.int64)
