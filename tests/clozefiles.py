"""Small folders of question files and small pickles, with made-up content, for the tests of section 6.2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data.attentive_reader import ReaderData
from data.cloze_files import Question, write_question
from data.cloze_folder import SPLITS
from data.stories import make_question

SIZES = {"train": 7, "valid": 3, "test": 2}


def question(
    passage: str = "@entity3 saw @entity0 . it rained .", query: str = "@placeholder was seen", answer: str = "@entity0"
) -> Question:
    """A question, with a name for every marker that it has."""
    words = dict.fromkeys(word for word in (*passage.split(), *query.split()) if word.startswith("@entity"))
    names = {word: f"Name {n}" for n, word in enumerate(words)}
    return Question(passage.split(), query.split(), answer, names, "http://example.invalid/1.html")


def question_file(root: Path, split: str, number: int) -> Path:
    return root / SPLITS[split] / f"{number:04d}.question"


def place(root: Path, sizes: dict[str, int] = SIZES) -> Path:
    """Writes generated stories as files. Returns the folder with the splits."""
    for split, size in sizes.items():
        (root / SPLITS[split]).mkdir(parents=True)
        for number in range(size):
            path = question_file(root, split, number)
            path.write_text(write_question(make_question(split, number)), encoding="utf-8")
    return root


def twelve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve questions, found through $LN_DATA; nothing else is."""
    monkeypatch.setenv("LN_DATA", str(tmp_path / "here"))
    monkeypatch.setenv("LN_RAW", str(tmp_path / "raw"))
    monkeypatch.setenv("LN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LN_SKIP_BAD", raising=False)
    return place(tmp_path / "here" / "attentive_reader" / "cnn" / "questions")


def same(one: ReaderData, other: ReaderData) -> bool:
    """Whether two loads gave the same."""
    return (one.source.fingerprint, one.vocabulary, one.lost) == (
        other.source.fingerprint, other.vocabulary, other.lost,
    )  # fmt: skip


def python2_pickle(thing: Any) -> bytes:
    """Lists, dictionaries, whole numbers and bytes as Python 2 pickles them with protocol 0: bytes are its strings."""

    def put(one: Any) -> bytes:
        if isinstance(one, bytes):
            return b"S" + repr(one)[1:].encode() + b"\n"
        if isinstance(one, int):
            return b"I%d\n" % one if abs(one) < 2**31 else b"L%dL\n" % one
        if isinstance(one, list):
            return b"(l" + b"".join(put(item) + b"a" for item in one)
        return b"(d" + b"".join(put(key) + put(value) + b"s" for key, value in one.items())

    return put(thing) + b"."
