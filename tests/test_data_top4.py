"""The top4 pickles: what Python 2 wrote is read, anything else is refused in one line that names the file."""

from __future__ import annotations

import collections
import gzip
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data import attentive_reader, top4
from data.attentive_reader import get, load_attentive_reader
from data.fetch import DataError
from tests.clozefiles import python2_pickle
from tests.test_data_cloze import decoded

WORDS = {b"the": 1, b"@entity0": 2, b"@entity12": 3, b"@placeholder": 4, b"saw": 5, b"caf\xc3\xa9": 6, b".": 8}
# The long ones are long in Python 2 too.
PARTS: dict[str, list[list[int]]] = {
    "train4_pass": [[2, 5, 3, 8], [1, 6, 8, 3]],
    "train4_qs": [[4, 5, 3], [1, 6, 4, 8]],
    "train4_ans": [[2], [2]],
    "valid4_pass": [[3]],
    "valid4_qs": [[4]],
    "valid4_ans": [[3]],
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three questions, found through $LN_DATA."""
    monkeypatch.setenv("LN_DATA", str(tmp_path / "here"))
    monkeypatch.setenv("LN_RAW", str(tmp_path / "raw"))
    monkeypatch.setenv("LN_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "here" / "attentive_reader" / "top4"
    folder.mkdir(parents=True)
    (folder / "dict.pkl").write_bytes(python2_pickle(WORDS))
    for name, lists in PARTS.items():
        (folder / f"{name}.pkl").write_bytes(python2_pickle(lists))
    return folder


def test_what_python_2_wrote_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_attentive_reader("top4")
    assert list(data.splits) == ["train", "valid"], "there is no test set"
    assert data.vocabulary == ["the", "@entity0", "@entity12", "@placeholder", "saw", "caf\u00e9", "."]
    assert [data.word(int(n)) for n in data.entities] == ["@entity0", "@entity12"]
    text = [decoded(data.splits["train"], data.vocabulary, n) for n in range(2)]
    assert text == [
        ("@entity0 saw @entity12 .", "@placeholder saw @entity12", "@entity0"),
        ("the caf\u00e9 . @entity12", "the caf\u00e9 @placeholder .", "@entity0"),
    ]
    assert decoded(data.splits["valid"], data.vocabulary, 0) == ("@entity12", "@placeholder", "@entity12")
    assert data.lost == {"train": 0.5, "valid": 0.0}
    assert (
        "2/1 questions, 7 words, no test set; without the answer: 50.0 % of train, 0.0 % of valid" in data.source.detail
    )
    assert (data.source.kind, data.source.label) == ("stand-in", "top4") and "not the published" in data.source.detail
    monkeypatch.setattr(top4, "WORDS", len(WORDS))
    monkeypatch.setattr(attentive_reader, "CNN_QUESTIONS", {"train": 2, "valid": 1})
    assert load_attentive_reader("top4").source.kind == "original"
    assert load_attentive_reader("top4", None).source.fingerprint == data.source.fingerprint


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_is_read(root: Path, protocol: int) -> None:
    before = load_attentive_reader("top4").source.fingerprint
    (root / "dict.pkl").write_bytes(pickle.dumps({word.decode(): n for word, n in WORDS.items()}, protocol))
    for name, lists in PARTS.items():
        (root / f"{name}.pkl").write_bytes(gzip.compress(pickle.dumps(lists, protocol)))
    assert load_attentive_reader("top4").source.fingerprint == before


def test_words_that_are_not_utf8_stay_apart(root: Path) -> None:
    (root / "dict.pkl").write_bytes(python2_pickle({**WORDS, b"caf\xe9": 9, b"caf\xea": 10}))
    assert load_attentive_reader("top4").vocabulary[-2:] == [r"caf\xe9", r"caf\xea"]


class Evil:
    """What a pickle can do to a reader that lets it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def write(name: str, content: Callable[[Path], Any] | Any) -> Callable[[Path], Path]:
    def apply(root: Path) -> Path:
        thing = content(root) if callable(content) else content
        (root / f"{name}.pkl").write_bytes(thing if isinstance(thing, bytes) else pickle.dumps(thing, 2))
        return root / f"{name}.pkl"

    return apply


PLAIN = "but only lists, dicts, ints and strings are accepted; replace the file by the original pickle"
BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "runs code": (write("train4_pass", lambda r: [[Evil(r / "evil")]]), f"names posix.mkdir, {PLAIN}"),
    "another class": (write("dict", collections.OrderedDict(a=1)), f"names collections.OrderedDict, {PLAIN}"),
    "numpy": (write("valid4_ans", b"cnumpy\nndarray\n."), f"names numpy.ndarray, {PLAIN}"),
    "old instance": (write("valid4_ans", b"(ios\nsystem\n."), f"names os.system, {PLAIN}"),
    "registered class": (write("valid4_ans", b"\x80\x02\x82\x01."), "truncated or damaged"),
    "reference": (write("valid4_ans", b"Pelsewhere\n."), f"refers to something outside the file, {PLAIN}"),
    "truncated": (write("train4_qs", lambda r: (r / "train4_qs.pkl").read_bytes()[:-9]), "truncated or damaged"),
    "empty": (write("train4_qs", b""), "truncated or damaged; replace it"),
    "text": (write("train4_qs", b"hello, world\n"), "truncated or damaged"),
    "zip": (write("dict", b"PK\x03\x04" + bytes(99)), "truncated or damaged"),
    "damaged gzip": (write("dict", b"\x1f\x8b" + bytes(99)), "truncated or damaged gzip file"),
    "dictionary is a list": (write("dict", [1, 2]), "a list of 2 instead of a dictionary of words"),
    "dictionary is empty": (write("dict", {}), "a dict of 0 instead of a dictionary of words"),
    "reversed dictionary": (write("dict", {1: "a"}), "1 has the id 'a', not a whole number"),
    "fraction": (write("dict", {"a": 1.5}), "'a' has the id a float, not a whole number"),
    "truth": (write("dict", {"a": True}), "'a' has the id True, not a whole number"),
    "negative": (write("dict", {"a": -1}), "'a' has the id -1, not a whole number"),
    "no marker": (write("dict", {"a": 1}), "holds no marker such as @entity7"),
    "markers without a number": (write("dict", {"@entity": 1, "the@entity7": 2}), "holds no marker such as @entity7"),
    "word of two lines": (write("dict", {"@entity0": 1, "a\nb": 2}), "'a\\nb' is no word (it holds a line end"),
    "half a character": (write("dict", {"@entity0": 1, "a\ud800": 2}), "'a\\ud800' is no word"),
    "same id": (write("dict", {"@entity0": 1, "b": 1}), "'b' and another word have the same id 1"),
    "huge id": (write("dict", {"@entity0": 10**40}), "'@entity0' has the id a number of many digits of 1 words"),
    "no list": (write("train4_pass", {}), "a dict of 0 instead of a list of lists of word ids"),
    "no questions": (write("train4_pass", []), "a list of 0 instead of a list of lists"),
    "flat": (write("train4_ans", [2, 2]), "entry 0 is 2, not a list of word ids"),
    "tuple": (write("train4_ans", [[2], (2,)]), "entry 1 is a tuple of 1, not a list"),
    "empty passage": (write("train4_pass", [[2], []]), "entry 1 is a list of 0, not a list of word ids"),
    "word": (write("train4_qs", [[4], ["saw"]]), "entry 1 holds 'saw', not a word id"),
    "nested": (write("train4_qs", [[4], [[4]]]), "entry 1 holds a list of 1, not a word id"),
    "beyond the vocabulary": (
        write("valid4_pass", [[9]]), "entry 0 holds the id 9, which is beyond the vocabulary of dict.pkl; replace both",
    ),
    "hole in the vocabulary": (write("valid4_pass", [[7]]), "entry 0 holds the id 7, which is beyond the vocabulary"),
    "padding": (write("valid4_pass", [[0]]), "entry 0 holds the id 0, which is beyond the vocabulary"),
    "far beyond": (write("valid4_pass", [[10**30]]), "holds the id a number of many digits, which is beyond"),
    "below": (write("valid4_pass", [[-1]]), "entry 0 holds the id -1, which is beyond the vocabulary"),
    "fewer queries": (write("train4_qs", [[4]]), "1 entries, but train4_pass.pkl has 2; replace both"),
    "more answers": (write("train4_ans", [[2]] * 3), "3 entries, but train4_pass.pkl has 2; replace both"),
    "two answers": (write("train4_ans", [[2], [2, 3]]), "entry 1 is not a list of one word; replace the file"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_pickle_is_refused_in_one_line_that_names_it(root: Path, name: str) -> None:
    damage, message = BAD[name]
    path = damage(root)
    with pytest.raises(DataError) as error:
        load_attentive_reader("top4")
    text = str(error.value)
    assert text.startswith(f"{path}: ") and message in text and "\n" not in text and len(text) < 300
    assert not (root / "evil").exists()
    assert not any((root.parents[2] / "cache").glob("*")), "nothing bad is kept"
    with pytest.raises(DataError):  # what make data calls
        get(lambda status, what: None)


def test_an_incomplete_set_is_told(root: Path) -> None:
    (root / "valid4_qs.pkl").unlink()
    with pytest.raises(DataError, match=r"top4: incomplete, missing valid4_qs.pkl\[.gz\]; place them next to the"):
        load_attentive_reader("top4")


def test_make_data_tells_of_them(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from data import stories

    monkeypatch.setattr(stories, "SIZES", {"train": 4, "valid": 2, "test": 2})
    told: list[tuple[str, str]] = []
    assert get(lambda status, what: told.append((status, str(what)))).label == "stories"
    assert told[0] == ("present", f"{root} (task.dataset=top4)")
