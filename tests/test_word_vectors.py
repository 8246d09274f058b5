"""Word vectors in word2vec's formats, what is wrong with files of others, and the map that expands a vocabulary."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

import data.word_vectors as module
from data.fetch import DataError
from data.word_vectors import Wanted, read_word_vectors
from models.expansion import least_squares

WORDS = ["the", "naïve", "New_York", "cat", "."]
VECTORS = np.random.RandomState(0).randn(5, 7).astype(np.float32)


def binary(words: list[str] = WORDS, vectors: np.ndarray = VECTORS, feed: bytes = b"\n") -> bytes:
    body = b"".join(w.encode() + b" " + struct.pack("<7f", *v) + feed for w, v in zip(words, vectors, strict=True))
    return b"%d 7\n" % len(words) + body


def text(words: list[str] = WORDS, vectors: np.ndarray = VECTORS, end: str = "\n") -> bytes:
    lines = [f"{w} {' '.join(repr(float(x)) for x in v)}{end}" for w, v in zip(words, vectors, strict=True)]
    return (f"{len(words)} 7\n" + "".join(lines)).encode()


FORMS = {
    "binary": binary(),
    "binary without line feeds": binary(feed=b""),
    "text": text(),
    "text, blanks at the ends": text(end=" \n"),
    "text, CRLF": text(end="\r\n"),
    "text, no last line feed": text().rstrip(b"\n"),
    "gzip": gzip.compress(binary()),
}


@pytest.mark.parametrize("block", [1, 8, 1 << 22])
@pytest.mark.parametrize("form", FORMS)
def test_both_formats(form: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    (tmp_path / "v").write_bytes(FORMS[form])
    found = read_word_vectors(tmp_path / "v", Wanted(["cat", "naïve", "dog", "New_York", "."]))
    assert set(found.rows) == {"cat", "naïve", "."}, "no phrases, nothing that was not asked for"
    for word, row in found.rows.items():
        np.testing.assert_allclose(found.matrix_ND[row], VECTORS[WORDS.index(word)], rtol=1e-6)
    assert found.matrix_ND.dtype == np.float32 and len(found) == 3


def test_the_first_of_a_word_counts_and_none_is_none(tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(binary(["a", "b", "a", "c", "d"]))
    found = read_word_vectors(tmp_path / "v", Wanted(["a"]))
    np.testing.assert_array_equal(found.matrix_ND, VECTORS[:1])
    assert read_word_vectors(tmp_path / "v", Wanted(["x"])).matrix_ND.shape == (0, 7)


def damaged(row: int, value: float) -> np.ndarray:
    vectors = VECTORS.copy()
    vectors[row, 3] = value
    return vectors


BAD = {
    "the first line is not two numbers": b"the 0.1 0.2\n",
    "the first line says 0 words": b"0 7\n",
    "the first line says 5 words of 99999 dimensions": b"5 99999\nx",
    "ends after 4 of 5 words: cut off": binary()[:-9],
    "ends after 1 of 5 words: cut off": b"5 7\n" + b"\n".join(text().split(b"\n")[1:2]) + b"\n",
    "line 4 has 6 numbers, not 7": text().replace(text().split(b"\n")[3], text().split(b"\n")[3].rsplit(b" ", 1)[0]),
    "line 5 holds something that is no number": text().replace(b"cat ", b"cat x").replace(b"catx", b"cat"),
    "word 4 holds a number that is not finite": binary(vectors=damaged(3, np.nan)),
    "line 5 holds a number that is not finite": text(vectors=damaged(3, np.inf)),
    "truncated or damaged gzip": gzip.compress(binary())[:-12],
    "word 1 has no end": b"5 7\n" + b"x" * 9000,
    "line 2 has 7 numbers, not 8": text().replace(b"5 7", b"5 8", 1),
    "line 2 has 7 numbers, not 6": text().replace(b"5 7", b"5 6", 1),
    "line 2 has 0 numbers, not 7": text().replace(b" ", b"\t").replace(b"5\t7", b"5 7", 1),
    "line 2 holds something that is no number": text().replace(b".", b","),
    "goes on after the 5 words of 6 dimensions": binary().replace(b"5 7", b"5 6", 1),
    "goes on after the 4 words of 7 dimensions": text().replace(b"5 7", b"4 7", 1),
    "words: cut off": binary().replace(b"5 7", b"5 8", 1),
}


@pytest.mark.parametrize("message", BAD)
def test_what_is_wrong_is_said_in_one_line(message: str, tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(BAD[message])
    with pytest.raises(DataError) as error:
        read_word_vectors(tmp_path / "v", Wanted(WORDS))
    assert message in str(error.value) and str(tmp_path / "v") in str(error.value) and "\n" not in str(error.value)


def test_white_space_at_the_end_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 3)
    for content in (binary(), text()):
        (tmp_path / "v").write_bytes(content + b" \n\r\n" * 5)
        assert len(read_word_vectors(tmp_path / "v", Wanted(WORDS))) == 4


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_word_vectors(tmp_path / "none", Wanted(WORDS))


def test_too_few_words_to_fit_a_map_on_are_told_when_the_file_is_read(tmp_path: Path) -> None:
    """Seven dimensions and an intercept take eight words, with a vector here and no underscore."""
    words = [f"w{n}" for n in range(8)]
    vectors = np.random.RandomState(1).randn(10, 7).astype(np.float32)
    (tmp_path / "v").write_bytes(binary([*words, "a_b", "other"], vectors))
    own = {*words, "a_b", "absent"}
    assert len(read_word_vectors(tmp_path / "v", Wanted({*own, "other"}, own))) == 9
    with pytest.raises(DataError) as error:
        read_word_vectors(tmp_path / "v", Wanted({*own, "other"}, own - {"w3"}))
    assert str(error.value) == (
        f"{tmp_path / 'v'}: 7 words are in both vocabularies, too few for a map from 7 dimensions: it takes 8; give a "
        "file with more of the corpus' words"
    )


def test_least_squares_against_the_normal_equations() -> None:
    random = np.random.RandomState(1)
    x, y = random.randn(40, 6) + 3, random.randn(40, 4)
    found = least_squares(x, y)
    ones = np.hstack([x, np.ones((40, 1))])
    both = np.linalg.solve(ones.T @ ones, ones.T @ y)
    np.testing.assert_allclose(found.matrix_DW, both[:-1], atol=1e-10)
    np.testing.assert_allclose(found.intercept_W, both[-1], atol=1e-10)
    np.testing.assert_allclose(found(x[:3]), ones[:3] @ both, rtol=1e-6)
    assert found(x).dtype == np.float32


def test_an_exact_map_is_found_and_too_few_words_are_refused() -> None:
    random = np.random.RandomState(2)
    x, a, b = random.randn(7, 6), random.randn(6, 3), random.randn(3)
    found = least_squares(x.astype(np.float32), x @ a + b)
    np.testing.assert_allclose(found(x), x @ a + b, atol=1e-4)
    with pytest.raises(ValueError, match="6 words are in both vocabularies, too few for a map from 6 dimensions"):
        least_squares(x[:6], x[:6] @ a)
