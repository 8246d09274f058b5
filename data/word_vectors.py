"""Word vectors in word2vec's two formats, for vocabulary expansion (section 6.3): only the words that are asked for.

Both begin with a line of two numbers: words, dimensions. Then, word after word:

- text: a line with the word and its numbers, separated by blanks;
- binary: the word, one blank, its numbers as little-endian float32, and (most writers) a line feed.

A file may be gzip. The published one (GoogleNews, 3 million words, 3.6 GB) is gone through once, in blocks.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from data.fetch import DataError, is_gzip

BLOCK = 1 << 22  # bytes read at a time
LONGEST = 4096  # bytes of a word, and of the first line
WIDEST = 10_000  # dimensions
PRINTABLE = 16  # bytes that tell text from float32


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors.

    Attributes:
        rows: word -> its row.
        matrix_ND: float32.
        origin: the file, for messages.
    """

    rows: dict[str, int]
    matrix_ND: np.ndarray
    origin: str = "word vectors"

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Wanted:
    """Words that a file is searched for.

    Attributes:
        words: whose vectors are of use.
        own: those among them that a map is to be fitted on, for they have a vector elsewhere too.
    """

    words: Collection[str]
    own: Collection[str] = ()


def read_word_vectors(path: Path, wanted: Wanted) -> WordVectors:
    """The vectors of those of the ``wanted`` words that the file has; of a word that it has twice, the first.

    Words with an underscore, which word2vec joins phrases with, are left out.

    Raises:
        DataError: missing, damaged, cut off, or of another format; names the file, and the word or line. Or too few
            words are ``own`` to fit a map on, which is said here because a model is trained before it is fitted.
    """
    asked = {word.encode() for word in wanted.words if "_" not in word}
    found: dict[str, int] = {}
    vectors: list[np.ndarray] = []
    try:
        with gzip.open(path) if is_gzip(path) else open(path, "rb") as file:
            source = _Source(path, file)  # type: ignore[arg-type]  # gzip.open's class is no IO for mypy
            count, width = source.header()
            text = source.is_text(width)
            for word, place, numbers in (_text if text else _binary)(source, count, width):
                if word in asked and (name := word.decode()) not in found:
                    vector = _vector(path, place, numbers.split(b" ") if text else np.frombuffer(numbers, "<f4"))
                    found[name] = len(vectors)
                    vectors.append(vector)
            source.ends_here(count, width)
    except OSError as error:  # BadGzipFile is one too, without a strerror
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the file") from None
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: truncated or damaged gzip file ({error}); replace it") from None
    if wanted.own:
        enough(sum(word in found for word in set(wanted.own)), width, str(path))
    return WordVectors(found, np.array(vectors, dtype=np.float32).reshape(len(vectors), width), str(path))


def enough(shared: int, width: int, origin: str) -> None:
    """Raises ``DataError`` unless ``shared`` words determine a map from ``width`` dimensions, and its intercept."""
    if shared <= width:
        raise DataError(
            f"{origin}: {shared:,} word{'s are' if shared != 1 else ' is'} in both vocabularies, too few for a map "
            f"from {width} dimensions: it takes {width + 1}; give a file with more of the corpus' words"
        )


class _Source:
    """A file read in blocks; ``data[at:]`` is what has been read and not used."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file, self.data, self.at = path, file, b"", 0

    def have(self, size: int) -> bool:
        """Reads until ``size`` bytes are there; false if the file ends before."""
        while len(self.data) - self.at < size:
            block = self.file.read(BLOCK)
            if not block:
                return False
            self.data, self.at = self.data[self.at :] + block, 0
        return True

    def until(self, mark: bytes, most: int) -> bytes | None:
        """The bytes before the next ``mark``, which is passed over; None if the file ends, or after ``most`` bytes."""
        end = self.data.find(mark, self.at)
        if end < 0:
            self.have(most)
            end = self.data.find(mark, self.at)
        if end < 0 or end - self.at > most:
            return None
        found, self.at = self.data[self.at : end], end + len(mark)
        return found

    def header(self) -> tuple[int, int]:
        line = self.until(b"\n", LONGEST)
        numbers = [] if line is None else line.split()
        if len(numbers) != 2 or not all(number.isdigit() for number in numbers):
            raise DataError(
                f"{self.path}: the first line is not two numbers (words, dimensions), so this is no file of word2vec; "
                "give one in its text or binary format"
            )
        count, width = map(int, numbers)
        if not (count and 0 < width <= WIDEST):
            raise DataError(f"{self.path}: the first line says {count} words of {width} dimensions: not a usable file")
        return count, width

    def is_text(self, width: int) -> bool:
        """Whether the numbers of the first word are in text, be they ``width`` or not. Nothing is used up."""
        self.have(LONGEST + 32 * width)
        line, _, _ = self.data[self.at : self.at + LONGEST + 32 * width].partition(b"\n")
        numbers = b"".join(line.rstrip().split(None, 1)[1:])
        try:
            if len([float(number) for number in numbers.split()]) == width:
                return True
        except ValueError:
            pass
        # Of float32 so many bytes are all printable once in ten million times.
        return len(numbers) >= PRINTABLE and all(32 <= byte < 127 or byte == ord("\t") for byte in numbers)

    def ends_here(self, count: int, width: int) -> None:
        """Raises ``DataError`` if anything but white space is left."""
        while self.have(1):
            if self.data[self.at :].strip():
                raise DataError(
                    f"{self.path}: goes on after the {count:,} words of {width} dimensions that its first line "
                    "speaks of: correct the two numbers there, or replace the file"
                )
            self.at = len(self.data)


def _text(source: _Source, count: int, width: int) -> Iterator[tuple[bytes, str, bytes]]:
    """(word, where it stands, its numbers) for each line."""
    for number in range(2, count + 2):
        if not source.have(1):
            raise _cut_off(source, number - 2, count)
        line = source.until(b"\n", LONGEST + 64 * width)
        if line is None:  # the last line may lack its line feed
            line, source.at = source.data[source.at :], len(source.data)
        word, _, numbers = line.rstrip(b" \r").partition(b" ")
        if (there := numbers.count(b" ") + bool(numbers)) != width:
            raise DataError(f"{source.path}: line {number} has {there} numbers, not {width}; replace the file")
        yield word, f"line {number}", numbers


def _binary(source: _Source, count: int, width: int) -> Iterator[tuple[bytes, str, bytes]]:
    """The same for each entry of a binary file."""
    size = 4 * width
    for number in range(count):
        word = source.until(b" ", LONGEST)
        if word is None and source.have(LONGEST):
            raise DataError(f"{source.path}: word {number + 1} has no end: damaged or of another format; replace it")
        if word is None or not source.have(size):
            raise _cut_off(source, number, count)
        start, source.at = source.at, source.at + size
        yield word.lstrip(b"\n"), f"word {number + 1}", source.data[start : source.at]


def _vector(path: Path, place: str, numbers: list[bytes] | np.ndarray) -> np.ndarray:
    try:
        vector = np.array(numbers).astype(np.float32)
    except ValueError:
        raise DataError(f"{path}: {place} holds something that is no number; replace the file") from None
    if not np.isfinite(vector).all():
        raise DataError(f"{path}: {place} holds a number that is not finite; replace the file")
    return vector


def _cut_off(source: _Source, there: int, count: int) -> DataError:
    return DataError(f"{source.path}: ends after {there:,} of {count:,} words: cut off; replace it")
