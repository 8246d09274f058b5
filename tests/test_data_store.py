"""The token store: the same as counting and encoding in memory, whatever the block, the file or the interruption."""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import corpus_workers, token_passes, word_counts
from data.books import FIRST_WORD, UNKNOWN
from data.corpus_workers import Worker, words_of_lines
from data.fetch import DataError
from data.token_store import Stored, open_store
from data.word_counts import most_frequent

RANDOM = np.random.RandomState(1)
TEXT = "\n".join(
    " ".join(
        f"w{min(int(word), 40)}{'é' if word == 3 else ''}" for word in RANDOM.geometric(0.15, RANDOM.randint(0, 12))
    )
    for _ in range(400)
)


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and blocks of some lines."""
    monkeypatch.setenv("LN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(token_passes, "LINES_BLOCK", 700)
    monkeypatch.setattr(token_passes, "RAW_BLOCK", 700)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def expected(text: str, vocabulary: int) -> tuple[list[list[int]], list[str]]:
    """Ids of the sentences, and the vocabulary."""
    sentences = [line.split() for line in text.split("\n") if line.split()]
    counts = Counter(word for sentence in sentences for word in sentence)
    words = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - FIRST_WORD]
    ids = {word: number for number, word in enumerate(words, FIRST_WORD)}
    return [[ids.get(word, UNKNOWN) for word in sentence] for sentence in sentences], words


def check(stored: Stored, text: str, vocabulary: int = 20) -> None:
    ids, words = expected(text, vocabulary)
    assert stored.vocabulary == words
    bounds = zip(stored.starts[:-1], stored.starts[1:], strict=True)
    assert [stored.words[a:b].tolist() for a, b in bounds] == ids
    assert stored.starts.dtype == np.int64


@pytest.mark.parametrize("vocabulary", [3, 20, 1000])
@pytest.mark.parametrize("block", [200, 700, 1 << 20])
def test_a_store_is_the_text(path: Path, monkeypatch: pytest.MonkeyPatch, vocabulary: int, block: int) -> None:
    monkeypatch.setattr(token_passes, "LINES_BLOCK", block)
    check(open_store("t", [path], vocabulary), TEXT, vocabulary)


def test_a_large_vocabulary_takes_wider_ids(path: Path) -> None:
    assert open_store("t", [path], 1 << 16).words.dtype == np.uint16
    stored = open_store("t", [path], (1 << 16) + 1)
    assert stored.words.dtype == np.int32
    check(stored, TEXT, 1000)


def test_processes_do_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = open_store("t", [path], 20)
    monkeypatch.setattr(token_passes, "ALONE", {"lines": 0, "raw": 0})
    monkeypatch.setattr(token_passes, "cores", lambda: 2)
    started = []
    monkeypatch.setattr(corpus_workers.Worker, "count", lambda *_: pytest.fail("counted in this process"))
    given = corpus_workers.subprocess.Popen
    monkeypatch.setattr(
        corpus_workers.subprocess, "Popen", lambda *a, **k: started.append(given(*a, **k)) or started[-1]
    )
    path.write_bytes(TEXT.encode())  # a new time, so it is read again
    os.utime(path, (1, 1))
    again = open_store("t", [path], 20)
    check(again, TEXT)
    assert again.fingerprint == alone.fingerprint
    assert len(started) == 2 and all(process.poll() is not None for process in started)

    bad = path.with_name("bad.txt")
    bad.write_bytes(TEXT.encode() + b"\na b\xff c\n")
    with pytest.raises(DataError, match=r"bad.txt: line 401 is not UTF-8 \(byte 0xff\)"):
        open_store("t", [bad], 20)
    assert all(process.poll() is not None for process in started)


def test_a_lost_process_is_one_line(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(token_passes, "ALONE", {"lines": 0, "raw": 0})
    monkeypatch.setattr(token_passes, "cores", lambda: 1)
    monkeypatch.setattr(corpus_workers.sys, "executable", "/bin/false")
    with pytest.raises(DataError, match=r"^a process that helped reading text ended \(exit code 1\); start again"):
        open_store("t", [path], 20)


def test_plain_packed_in_parts_and_with_other_line_ends_it_is_the_same(path: Path, tmp_path: Path) -> None:
    plain = open_store("t", [path], 20)
    half = TEXT.index("\n", len(TEXT) // 2) + 1
    ways: dict[str, list[bytes]] = {
        "packed": [gzip.compress(TEXT.encode())],
        "several members": [gzip.compress(TEXT[:half].encode()) + gzip.compress(TEXT[half:].encode())],
        "two files": [TEXT[:half].encode(), gzip.compress(TEXT[half:].encode())],
        "no line end between files": [TEXT[: half - 1].encode(), TEXT[half:].encode()],
        "CRLF": [TEXT.replace("\n", "\r\n").encode()],
        "BOM and blanks": [b"\xef\xbb\xbf\n \t" + TEXT.replace(" ", "  \t").encode() + b"\n\n\n"],
    }
    for way, contents in ways.items():
        paths = [tmp_path / f"{way}-{number}" for number in range(len(contents))]
        for file, content in zip(paths, contents, strict=True):
            file.write_bytes(content)
        stored = open_store("t", paths, 20)
        check(stored, TEXT)
        assert stored.fingerprint == plain.fingerprint, way


def test_a_store_is_made_once_and_anew_when_the_text_changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_store("t", [path], 20)
    other = open_store("t", [path], 10)
    assert other.fingerprint != first.fingerprint
    with monkeypatch.context() as patched:
        patched.setattr(token_passes.Maker, "make", lambda _: pytest.fail("made again"))
        assert open_store("t", [path], 20).fingerprint == first.fingerprint
    path.write_text(TEXT + "\na new sentence")
    check(open_store("t", [path], 20), TEXT + "\na new sentence")
    cache = Path(os.environ["LN_CACHE"])
    assert len([folder for folder in cache.iterdir() if folder.is_dir()]) == 2
    kept = {"words.raw", "starts.raw", "vocabulary.txt", "store.json"}
    assert all({file.name for file in folder.iterdir()} == kept for folder in cache.iterdir() if folder.is_dir())


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda f: flip(f / "words.raw"), "does not match its fingerprint"),
        (lambda f: flip(f / "starts.raw"), "does not match its fingerprint"),
        (lambda f: flip(f / "vocabulary.txt"), "does not match its fingerprint"),
        (lambda f: (f / "words.raw").write_bytes((f / "words.raw").read_bytes()[:-2]), "does not match"),
        (lambda f: (f / "starts.raw").write_bytes(b""), "ValueError"),
        (lambda f: (f / "words.raw").unlink(), "no words.raw"),
        (lambda f: (f / "store.json").write_text("{"), "JSONDecodeError"),
        (lambda f: (f / "store.json").write_text("[]"), "TypeError"),
        (lambda f: (f / "store.json").unlink(), "no store.json"),
    ],
)
def test_a_damaged_store_is_noticed(
    path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], object], why: str
) -> None:
    first = open_store("t", [path], 20)
    (folder,) = (f for f in Path(os.environ["LN_CACHE"]).iterdir() if f.is_dir())
    damage(folder)
    again = open_store("t", [path], 20)
    assert again.fingerprint == first.fingerprint and why in caplog.text and "reading the text again" in caplog.text
    check(again, TEXT)


def stopping(monkeypatch: pytest.MonkeyPatch, method: str, after: int) -> list[bytes]:
    """Stops at the ``after``-th call of a worker's method; the list holds what it has been called with."""
    given, calls, stops = getattr(Worker, method), list[bytes](), [after]

    def stop(self: Worker, data: bytes) -> Any:
        calls.append(data)
        if stops == [len(calls)]:
            stops.clear()
            raise KeyboardInterrupt
        return given(self, data)

    monkeypatch.setattr(Worker, method, stop)
    return calls


@pytest.mark.parametrize("save", [0.0, 1e9])
@pytest.mark.parametrize("method", ["tokenise", "count", "encode"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_pass_that_was_stopped_goes_on(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, packed: bool, save: float
) -> None:
    raw = method == "tokenise"
    monkeypatch.setattr(token_passes, "SAVE_S", save)
    # Full stops, so that running text has sentences; the store of the whole is what all must give.
    text = TEXT.replace("\n", " .\n\n") if raw else TEXT
    half = len(text) // 2
    paths = [tmp_path / "a", tmp_path / "b"]
    for file, part in zip(paths, (text[:half], text[half:]), strict=True):
        file.write_bytes(gzip.compress(part.encode()) if packed else part.encode())
    with monkeypatch.context() as patched:
        all_blocks = stopping(patched, method, 0)
        whole = open_store("whole", paths, 20, raw=raw)
    in_second = len(all_blocks) // 2
    calls = stopping(monkeypatch, method, in_second + 5)
    with pytest.raises(KeyboardInterrupt):
        open_store("t", paths, 20, raw=raw)
    (folder,) = (tmp_path / "cache").glob("t-*.building")
    for name in ("words.raw", "starts.raw", "sentences.txt"):
        if (folder / name).exists():  # what was written after the note is not to be trusted
            with open(folder / name, "ab") as out:
                out.write(b"rubbish")
    del calls[-1]  # the one that was stopped
    again = open_store("t", paths, 20, raw=raw)
    assert again.fingerprint == whole.fingerprint and not list((tmp_path / "cache").glob("*.building"))
    if save == 0:  # after each block
        assert calls == all_blocks
    else:  # after each file
        assert len(all_blocks) < len(calls) < len(all_blocks) + 10


def test_what_was_stopped_before_the_text_changed_is_not_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_passes, "SAVE_S", 0.0)
    with monkeypatch.context() as patched:
        stopping(patched, "encode", 5)
        with pytest.raises(KeyboardInterrupt):
            open_store("t", [path], 20)
    changed = TEXT.replace("w1", "v1")
    path.write_text(changed)
    os.utime(path, (1, 1))
    check(open_store("t", [path], 20), changed)


def test_a_text_that_changes_while_it_is_read_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Worker.encode

    def encode(self: Worker, data: bytes) -> Any:
        os.utime(path, (1, 1))
        return given(self, data)

    monkeypatch.setattr(Worker, "encode", encode)
    with pytest.raises(DataError, match="text.txt: changed while it was read; start again"):
        open_store("t", [path], 20)
    assert not list(Path(os.environ["LN_CACHE"]).glob("t*"))


def test_a_full_disk_is_told_and_costs_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(out: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(token_passes, "_to_disk", full)
        with pytest.raises(DataError, match=r"cache: cannot be written \(No space left on device\); free space or set"):
            open_store("t", [path], 20)
    monkeypatch.setattr(Worker, "count", lambda *_: pytest.fail("counted twice"))
    check(open_store("t", [path], 20), TEXT)


def test_a_cache_that_cannot_be_made_is_told(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LN_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(
        DataError, match=r"file/cache: cannot be written \(Not a directory\); free space or set LN_CACH"
    ):
        open_store("t", [path], 20)


def test_only_one_process_makes_a_store(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    open_store("t", [path], 20)
    cache = Path(os.environ["LN_CACHE"])
    (lock,) = cache.glob(".t-*.lock")
    os.utime(path, (1, 1))
    made: list[Stored] = []
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: made.append(open_store("t", [path], 20)))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and not made
    thread.join()
    assert len(made) == 1 and "another process is making it; waiting" in caplog.text


def test_many_words_are_counted_in_parts(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_passes, "KNOWN_WORDS", 5)
    monkeypatch.setattr(word_counts, "FILES", 3)
    runs = []
    given = token_passes.most_frequent
    monkeypatch.setattr(token_passes, "most_frequent", lambda paths, n: runs.extend(paths) or given(paths, n))
    check(open_store("t", [path], 20), TEXT)
    assert len(runs) > 5

    sizes = RANDOM.randint(1, 9, (7, 30))
    paths = [tmp_path / f"run{number}" for number in range(7)]
    for file, row in zip(paths, sizes, strict=True):
        file.write_text("".join(f"w{n:02}\t{size}\n" for n, size in enumerate(row) if size > 3))
    totals = np.where(sizes > 3, sizes, 0).sum(0)
    order = sorted(np.flatnonzero(totals), key=lambda n: (-totals[n], n))
    assert most_frequent(paths, 12) == [f"w{n:02}".encode() for n in order[:12]]


def test_words_of_lines_are_those_of_split() -> None:
    alphabet = np.frombuffer(b"ab \t\n\r\v\f\x1c\x00\xc3", np.uint8)
    for size in (0, 1, 2, 5, 3000):
        data = alphabet[RANDOM.randint(0, len(alphabet), size)].tobytes()
        assert words_of_lines(data).tolist() == [len(line.split()) for line in data.split(b"\n")]


def test_a_note_that_is_no_note_starts_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_passes, "SAVE_S", 0.0)
    for damage in ("{", "[]", json.dumps({"key": "x"}), json.dumps({"unknown": 1})):
        with monkeypatch.context() as patched:
            stopping(patched, "encode", 5)
            with pytest.raises(KeyboardInterrupt):
                open_store("t", [path], 20)
        (note,) = Path(os.environ["LN_CACHE"]).glob("t-*.building/note.json")
        note.write_text(damage)
    check(open_store("t", [path], 20), TEXT)
