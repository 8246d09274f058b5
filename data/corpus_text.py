"""Large text files read in blocks, plain or gzip, each block whole lines or whole paragraphs.

A block is a function of the file and of where it starts, so reading can be taken up after any of them. Lines end at a
line feed only; a carriage return before it is white space like any other.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from data.fetch import DataError, is_gzip

LONGEST_LINE = 1 << 20  # bytes; no sentence is longer
LINES_BLOCK = 4 << 20  # bytes of a block of sentences
RAW_BLOCK = 1 << 18  # and of running text, which takes a hundred times as long
BOM = b"\xef\xbb\xbf"
SAMPLE = 1 << 16  # bytes that tell whether a text is tokenised
CAPITALS = 0.2  # share of lines with capital letters from which on it is not
_CHUNK = 1 << 18
_PARAGRAPH = re.compile(rb"\n[ \t\r\f\v]*\n")
_SENTENCE = re.compile(rb"[.!?][\"')\]]*\s")


@dataclass(frozen=True)
class Block:
    """A part of a text.

    Attributes:
        data: its bytes.
        line: number of its first line, from 1.
        end: where the next one starts, in bytes of the unpacked text.
        read: bytes read of the file so far, packed as they are.
    """

    data: bytes
    line: int
    end: int
    read: int


class Stopped(DataError):
    """Reading stopped for a reason that may go away; what has been done so far is of use."""


class BadText(Exception):
    """Something in a block is no text.

    Attributes:
        at: where, in bytes from the start of the block.
        what: a few words that follow "line 7 ", with the remedy.
    """

    def __init__(self, at: int, what: str) -> None:
        super().__init__(at, what)  # both, so that it can be pickled
        self.at, self.what = at, what


def whole_lines(data: bytes) -> int:
    """Where the last whole line of ``data`` ends; 0 if none does."""
    return data.rfind(b"\n") + 1


def whole_paragraphs(data: bytes) -> int:
    """Where the last whole paragraph of ``data`` ends, or else its last sentence; 0 if none does."""
    for pattern in (_PARAGRAPH, _SENTENCE):
        end = 0
        for match in pattern.finditer(data):
            end = match.end()
        if end:
            return end
    return 0


def blocks(path: Path, size: int, cut: Callable[[bytes], int], offset: int = 0, line: int = 1) -> Iterator[Block]:
    """The blocks of a text, from byte ``offset`` of it on, where ``line`` begins.

    Args:
        path: plain or gzip, told by its first bytes.
        size: bytes of a block, at most.
        cut: where in so many bytes the block is to end.

    Raises:
        DataError: unreadable, truncated or damaged, or ``cut`` finds no end.
    """
    data = b""
    try:
        with _opened(path) as (file, raw):
            file.seek(offset)
            if offset == 0 and (data := _read(file, len(BOM), b"")) == BOM:
                data, offset = b"", len(BOM)
            while True:
                data = _filled(file, size, data, path, line)
                if len(data) < size:
                    break
                if not (end := cut(data)):
                    raise DataError(f"{path}: line {line} {_too_long(size, cut)}")
                offset += end
                yield Block(data[:end], line, offset, raw.tell())
                line += data.count(b"\n", 0, end)
                data = data[end:]
            if data:
                yield Block(data, line, offset + len(data), raw.tell())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:  # before the first line
        raise _damaged(path, line, error) from None
    except OSError as error:
        raise unreadable(path, error) from None


def _filled(file: IO[bytes], size: int, data: bytes, path: Path, line: int) -> bytes:
    """``data`` and what follows it, ``size`` bytes in all or less at the end of the file."""
    parts, count = [data], len(data)
    while count < size:
        try:
            part = file.read1(min(size - count, _CHUNK))  # type: ignore[attr-defined]
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise _damaged(path, line + sum(part.count(b"\n") for part in parts), error) from None
        if not part:
            break
        parts.append(part)
        count += len(part)
    return b"".join(parts)


def _read(file: IO[bytes], size: int, data: bytes) -> bytes:
    while len(data) < size and (part := file.read(size - len(data))):
        data += part
    return data


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The unpacked text, and the file itself."""
    with open(path, "rb") as raw:
        if is_gzip(path):
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield unpacked, raw  # type: ignore[misc]
        else:
            yield raw, raw


def _too_long(size: int, cut: Callable[[bytes], int]) -> str:
    if cut is whole_lines:
        return too_long_line()
    return f"starts {size >> 10} KiB without the end of a sentence; give running text"


def too_long_line() -> str:
    """What is said of a line that is no sentence."""
    return f"has more than {LONGEST_LINE >> 20} MiB; give one sentence a line, or task.text=raw for running text"


def _damaged(path: Path, line: int, error: Exception) -> DataError:
    return DataError(f"{path}: truncated or damaged gzip file ({error}), readable up to line {line}; replace it")


def unreadable(path: Path, error: OSError) -> Stopped:
    """What is said of a file that the system refuses."""
    return Stopped(f"{path}: cannot be read ({error.strerror or error}); check the file and its rights")


def checked(data: bytes) -> str:
    """A block as text. Raises ``BadText`` if it holds a NUL byte or is not UTF-8."""
    if (at := data.find(b"\0")) >= 0:
        raise BadText(at, "has a NUL byte, so the file is no text or UTF-16; convert it to UTF-8")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"is not UTF-8 (byte 0x{data[error.start]:02x}); convert the file to UTF-8"
        raise BadText(error.start, what) from None


def looks_raw(paths: Sequence[Path]) -> bool:
    """Whether the first lines of a text are no tokenised lower-case sentences: many have capital letters."""
    for path in paths:
        for block in blocks(path, SAMPLE, lambda data: len(data)):
            lines = [line for line in block.data.decode("utf-8", "replace").split("\n") if line.strip()]
            capitals = sum(line != line.lower() for line in lines)
            return capitals > CAPITALS * len(lines)
    return False
