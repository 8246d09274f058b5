"""The passes that make a token store (``data.token_store``), each of which can be taken up where it stopped."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from data.captions import FIRST_WORD
from data.corpus_text import LINES_BLOCK, RAW_BLOCK, Block, Stopped, blocks, unreadable, whole_lines, whole_paragraphs
from data.corpus_workers import Workers
from data.fetch import DataError, byte_bar, fingerprint
from data.processors import cores
from data.word_counts import most_frequent

log = logging.getLogger(__name__)

VERSION = "1"
FILES = ("words.raw", "starts.raw", "vocabulary.txt", "store.json")  # of a finished store
SAVE_S = 30.0  # at most this much work is lost
KNOWN_WORDS = 1_000_000  # that a process counts in memory, about 150 MB
ALONE = {"lines": 16 << 20, "raw": 1 << 20}  # bytes up to which other processes would not pay
MOST_WORKERS = 8
FEWEST = 3  # sentences that make a triple


@dataclass
class Note:
    """How far the making of a store has come.

    Attributes:
        stage: tokenise | count | encode.
        file, offset, line: where the next block starts.
        sentences, words: written so far.
        runs: files of counted words.
    """

    key: str
    stage: str
    file: int = 0
    offset: int = 0
    line: int = 1
    sentences: int = 0
    words: int = 0
    runs: list[str] = field(default_factory=list)


def state(sources: Sequence[Path]) -> str:
    """Changes whenever a source does."""
    try:
        stats = [path.stat() for path in sources]
    except OSError as error:
        raise unreadable(Path(error.filename), error) from None
    return "|".join([VERSION, *(f"{s.st_size}:{s.st_mtime_ns}" for s in stats)])


def text_fingerprint(arrays: dict[str, np.ndarray], vocabulary: bytes) -> str:
    return fingerprint("skip_thoughts", {**arrays, "vocabulary": np.frombuffer(vocabulary, dtype=np.uint8)})


class Maker:
    """Makes one store."""

    def __init__(
        self, target: Path, key: str, sources: Sequence[Path], vocabulary: int, raw: bool,
        extract: Callable[[], bytes] | None,
    ) -> None:  # fmt: skip
        self.target, self.sources, self.extract, self.raw = target, list(sources), extract, raw
        self.folder = target.with_name(f"{target.name}.building")
        self.known = vocabulary - FIRST_WORD
        self.dtype = np.dtype("<u2" if vocabulary <= 1 << 16 else "<i4")
        self.note = self._taken_up(key)
        self.full = False  # a worker has counted as many words as it may

    def _taken_up(self, key: str) -> Note:
        """Where an earlier attempt stopped, or the start."""
        try:
            note = Note(**json.loads((self.folder / "note.json").read_text()))
            if note.key == key:
                log.info("%s: going on with the pass that was stopped", self.sources[0])
                return note
        except (OSError, ValueError, TypeError):
            pass
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        return Note(key, "tokenise" if self.raw else "count")

    def _save(self) -> None:
        """Writes the note in one step; what it speaks of is on the disk already."""
        temporary = self.folder / "note.json.new"
        temporary.write_text(json.dumps(asdict(self.note)))
        os.replace(temporary, self.folder / "note.json")

    def _next_stage(self, stage: str) -> None:
        self.note = Note(self.note.key, stage, runs=self.note.runs)
        self._save()

    def make(self) -> None:
        """All passes, from where they stopped. What was done is kept unless the text itself is bad."""
        try:
            self._make()
        except Stopped:
            raise
        except DataError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _make(self) -> None:
        paths = self.sources
        if self.extract is not None:
            paths = [self.folder / "text.txt"]
            paths[0].write_bytes(self.extract())
        size = sum(path.stat().st_size for path in paths)
        log.info("%s: reading %.1f MB of text, once", self.sources[0], size / 1e6)
        alone = size <= ALONE["raw" if self.raw else "lines"]
        start = time.monotonic()
        with Workers(0 if alone else min(cores(), MOST_WORKERS)) as workers:
            if self.raw:
                if self.note.stage == "tokenise":
                    self._tokenise(workers, paths)
                paths = [self.folder / "sentences.txt"]
            if self.note.stage == "count":
                self._count(workers, paths)
            self._encode(workers, paths)
        if state(self.sources) != self.note.key:
            raise DataError(f"{self.sources[0]}: changed while it was read; start again")
        self._finish()
        log.info("%s: %d sentences in %.0f s", self.sources[0], self.note.sentences, time.monotonic() - start)

    def _pass(
        self, workers: Workers, paths: Sequence[Path], method: str, handle: Callable[[Any], None],
        save: Callable[[], None],
    ) -> None:  # fmt: skip
        """One pass over the files from where the note says.

        Args:
            method: of ``data.corpus_workers.Worker``.
            handle: takes its answers.
            save: brings what was handled to the disk.
        """
        note, name = self.note, f"{self.sources[0].name}: {self.note.stage}"
        size, cut = (RAW_BLOCK, whole_paragraphs) if method == "tokenise" else (LINES_BLOCK, whole_lines)
        sizes = [path.stat().st_size for path in paths]
        with byte_bar(name, sum(sizes), sum(sizes[: note.file])) as bar:
            while note.file < len(paths):
                path, done, more = paths[note.file], 0, True
                source = blocks(path, size, cut, note.offset, note.line)
                while more:
                    more = False
                    for block, answer in workers.map(method, self._for_a_while(source), path):
                        handle(answer)
                        bar.update(block.read - done)
                        note.offset, note.line = block.end, block.line + block.data.count(b"\n")
                        done, more = block.read, True
                    save()
                    self._save()
                note.file, note.offset, note.line = note.file + 1, 0, 1
                self._save()

    def _for_a_while(self, source: Iterator[Block]) -> Iterator[Block]:
        """Blocks until it is time to save."""
        end, self.full = time.monotonic() + SAVE_S, False
        for block in source:
            yield block
            if self.full or time.monotonic() > end:
                return

    def _tokenise(self, workers: Workers, paths: Sequence[Path]) -> None:
        with _appended(self.folder / "sentences.txt", self.note.words) as out:

            def handle(answer: tuple[bytes, int]) -> None:
                self.note.words += out.write(answer[0])  # bytes, in this pass
                self.note.sentences += answer[1]

            self._pass(workers, paths, "tokenise", handle, lambda: _to_disk(out))
        self._next_stage("count")

    def _count(self, workers: Workers, paths: Sequence[Path]) -> None:
        def handle(answer: tuple[int, int]) -> None:
            self.note.sentences += answer[0]
            self.full |= answer[1] > KNOWN_WORDS

        def save() -> None:
            names = [f"run-{len(self.note.runs) + number}.txt" for number in range(len(workers))]
            workers.everyone("spill", [self.folder / name for name in names])
            self.note.runs += names

        self._pass(workers, paths, "count", handle, save)
        if self.note.sentences < FEWEST:
            found = f"{self.note.sentences} sentence{'s' * (self.note.sentences != 1)}"
            how = "read as running text" if self.raw else "one a line; a line ends at a line feed"
            raise DataError(
                f"{self.sources[0]}: {found} in all; give at least {FEWEST}, a sentence and its neighbours ({how})"
            )
        words = most_frequent([self.folder / run for run in self.note.runs], self.known)
        (self.folder / "vocabulary.txt").write_bytes(b"\n".join(words))
        self._next_stage("encode")

    def _encode(self, workers: Workers, paths: Sequence[Path]) -> None:
        note = self.note
        words = (self.folder / "vocabulary.txt").read_bytes().split(b"\n")
        n = len(workers)
        workers.everyone("learn", [words] * n, [FIRST_WORD] * n, [self.dtype] * n)
        with (
            _appended(self.folder / "words.raw", self.dtype.itemsize * note.words) as words_file,
            _appended(self.folder / "starts.raw", 8 * (note.sentences + 1) if note.sentences else 0) as starts_file,
        ):
            if not note.sentences:
                starts_file.write(np.zeros(1, "<i8").tobytes())

            def handle(answer: tuple[np.ndarray, np.ndarray]) -> None:
                ids, lengths = answer
                words_file.write(ids.tobytes())
                starts_file.write((note.words + np.cumsum(lengths)).astype("<i8").tobytes())
                note.words += len(ids)
                note.sentences += len(lengths)

            def save() -> None:
                _to_disk(words_file)
                _to_disk(starts_file)

            self._pass(workers, paths, "encode", handle, save)

    def _finish(self) -> None:
        note = self.note
        arrays = {name: np.memmap(self.folder / f"{name}.raw", dtype, "r").view(np.ndarray)
                  for name, dtype in (("words", self.dtype), ("starts", "<i8"))}  # fmt: skip
        about = {"key": note.key, "dtype": self.dtype.str, "words": note.words, "sentences": note.sentences,
                 "fingerprint": text_fingerprint(arrays, (self.folder / "vocabulary.txt").read_bytes())}  # fmt: skip
        (self.folder / "store.json").write_text(json.dumps(about, indent=1) + "\n")
        for path in self.folder.iterdir():
            if path.name not in FILES:
                path.unlink()
        if self.target.exists():  # of other sources, or damaged
            shutil.rmtree(self.target)
        os.rename(self.folder, self.target)


@contextmanager
def _appended(path: Path, size: int) -> Iterator[IO[bytes]]:
    """A file to write to after its first ``size`` bytes; what was written beyond is not known to be whole."""
    with open(path, "ab") as out:
        if out.tell() < size:
            raise DataError(f"{path}: shorter than it was; start again")
        out.truncate(size)
        yield out


def _to_disk(out: IO[bytes]) -> None:
    out.flush()
    os.fsync(out.fileno())
