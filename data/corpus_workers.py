"""Helper processes that count, encode and tokenise blocks of text; the same code runs in this process for small files.

Each is a Python process of its own that imports nothing but this, told what to do through its standard input, one
pickled (method, arguments) at a time, and answering through its standard output. It ends when its input does, however
this process ends.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from data.captions import UNKNOWN
from data.corpus_text import LONGEST_LINE, BadText, Block, Stopped, checked, too_long_line
from data.fetch import REPO, DataError
from data.sentences import split_text

_SPACE = np.zeros(256, dtype=bool)
_SPACE[list(b"\t\n\v\f\r ")] = True  # as bytes.split takes it


class Worker:
    """What is done to a block; what it counted stays here until it is spilt."""

    def __init__(self) -> None:
        self.counts: Counter[bytes] = Counter()
        self.ids: dict[bytes, int] = {}
        self.dtype = np.dtype(np.uint16)

    def count(self, data: bytes) -> tuple[int, int]:
        """Counts the words of a block. Returns the number of its sentences and of the words known so far."""
        checked(data)
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
        long = np.flatnonzero(np.diff(ends, prepend=-1, append=len(data)) > LONGEST_LINE + 1)
        if len(long):
            raise BadText(int(ends[long[0] - 1]) + 1 if long[0] else 0, too_long_line())
        self.counts.update(data.split())
        return int(np.count_nonzero(words_of_lines(data))), len(self.counts)

    def spill(self, path: Path) -> None:
        """Writes what has been counted, sorted by word, and forgets it."""
        with open(path, "wb") as out:
            out.writelines(b"%b\t%d\n" % item for item in sorted(self.counts.items()))
            out.flush()
            os.fsync(out.fileno())
        self.counts = Counter()

    def learn(self, words: Sequence[bytes], first: int, dtype: np.dtype[Any]) -> None:
        """Takes the vocabulary; its word n has the id ``first`` + n."""
        self.ids, self.dtype = _Ids(zip(words, range(first, first + len(words)), strict=True)), dtype

    def encode(self, data: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Word ids of a block, and how many words each sentence has; a line without words is none."""
        words = data.split()
        ids = np.fromiter(map(self.ids.__getitem__, words), self.dtype, len(words))
        lengths = words_of_lines(data)
        return ids, lengths[lengths > 0]

    def tokenise(self, data: bytes) -> tuple[bytes, int]:
        """Sentences of running text, one a line, and their number."""
        lines = [" ".join(words) for words in split_text(checked(data))]
        return "".join(f"{line}\n" for line in lines).encode(), len(lines)


class _Ids(dict[bytes, int]):
    def __missing__(self, word: bytes) -> int:
        return UNKNOWN


def words_of_lines(data: bytes) -> np.ndarray:
    """Number of words of each line, int64."""
    letters = np.frombuffer(data, np.uint8)
    blank = np.concatenate([[True], _SPACE[letters]])
    begins = np.flatnonzero(blank[:-1] & ~blank[1:])
    ends = np.append(np.flatnonzero(letters == ord("\n")), len(letters))
    return np.diff(np.searchsorted(begins, ends), prepend=0)


class _Place(Protocol):
    """Something that takes an order and answers it."""

    def tell(self, method: str, *arguments: Any) -> None: ...
    def answer(self) -> Any: ...
    def close(self) -> None: ...


class _Here:
    """A worker in this process."""

    def __init__(self) -> None:
        self._worker, self._order = Worker(), deque[tuple[str, tuple[Any, ...]]]()

    def tell(self, method: str, *arguments: Any) -> None:
        self._order.append((method, arguments))

    def answer(self) -> Any:
        method, arguments = self._order.popleft()
        try:
            return getattr(self._worker, method)(*arguments)
        except BadText as error:
            return error

    def close(self) -> None:
        pass


class _Process:
    """A worker in a process of its own."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "data.corpus_workers"]
        environment = {**os.environ, "PYTHONPATH": str(REPO)}
        # In a group of its own, because Ctrl-C is for this process to deal with.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, process_group=0
        )

    def tell(self, method: str, *arguments: Any) -> None:
        assert self._process.stdin is not None
        try:
            pickle.dump((method, arguments), self._process.stdin, protocol=5)
            self._process.stdin.flush()
        except OSError:
            self._lost()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        try:
            return pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            self._lost()

    def _lost(self) -> None:
        code = self._process.wait()
        raise Stopped(f"a process that helped reading text ended (exit code {code}); start again to go on") from None

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Workers:
    """Several workers; a context manager that ends them.

    Args:
        count: of processes; 0 works in this one.
    """

    def __init__(self, count: int) -> None:
        self._places: list[_Place] = [_Process() for _ in range(count)] if count else [_Here()]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for place in self._places:
            place.close()

    def __len__(self) -> int:
        return len(self._places)

    def everyone(self, method: str, *arguments: Sequence[Any]) -> None:
        """Has all workers do something; ``arguments`` holds, for each argument, its value for each worker."""
        for place, *own in zip(self._places, *arguments, strict=True):
            place.tell(method, *own)
        for place in self._places:
            place.answer()

    def map(self, method: str, blocks: Iterable[Block], path: Path) -> Iterator[tuple[Block, Any]]:
        """What becomes of each block, in order.

        Raises:
            DataError: a block is no text; names ``path`` and the line.
        """
        # No worker has more than one order: with two, it and this process could both wait for the other to read.
        busy: deque[tuple[_Place, Block]] = deque()
        free = deque(self._places)
        for block in blocks:
            done = None
            if not free:
                place, first = busy.popleft()
                done = first, _good(place.answer(), first, path)
                free.append(place)
            place = free.popleft()
            place.tell(method, block.data)
            busy.append((place, block))
            if done:  # dealt with while the worker works
                yield done
        for place, block in busy:
            yield block, _good(place.answer(), block, path)


def _good(answer: Any, block: Block, path: Path) -> Any:
    if isinstance(answer, BadText):
        line = block.line + block.data.count(b"\n", 0, answer.at)
        raise DataError(f"{path}: line {line} {answer.what}")
    return answer


def main() -> None:
    """Takes orders until there are no more."""
    orders, answers = sys.stdin.buffer, sys.stdout.buffer
    worker = _Here()
    while True:
        try:
            method, arguments = pickle.load(orders)
            worker.tell(method, *arguments)
            pickle.dump(worker.answer(), answers, protocol=5)
            answers.flush()
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            os._exit(0)  # nobody is there any more


if __name__ == "__main__":
    main()
