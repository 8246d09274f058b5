"""IAM-OnDB: its layout, what is made of it, and one line for everything that can be wrong with it."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import iam_ondb
from data.fetch import DataError
from data.handwriting import get, load_handwriting
from data.iam_ondb import divide, load_iam, locate
from data.strokes import LONGEST, PARTS, BadLine, Lines, decode, encode, fill, offsets, pack, statistics
from experiments.compose import compose_cells
from experiments.schema import ConfigError
from tests.iamfiles import TEXT, place, stroke_file, strokes, transcript, xml

REAL = Path(os.environ.get("LN_DATA", "")) / "handwriting" / "iam_ondb" / "lineStrokes"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight lines, found through $LN_DATA."""
    monkeypatch.setenv("LN_DATA", str(tmp_path / "here"))
    monkeypatch.setenv("LN_RAW", str(tmp_path / "raw"))
    monkeypatch.setenv("LN_CACHE", str(tmp_path / "cache"))
    return place(tmp_path / "here" / "handwriting")


def texts(lines: Lines) -> list[str]:
    ends = lines.text_starts_N1
    return [decode(lines.labels_C[a:b]) for a, b in zip(ends[:-1], ends[1:], strict=True)]


def test_lines_come_with_their_text_and_part(root: Path) -> None:
    lines = load_handwriting()
    assert texts(lines) == ["A quick brown fox.", "jumps over 00 dogs!"] * 4
    assert [PARTS[part] for part in lines.parts_N] == [
        "train", "train", "valid_small", "valid_small", "valid_large", "valid_large", "test", "test"
    ]  # fmt: skip
    first = slice(*lines.starts_N1[:2])
    points = np.array(sum(strokes(1), []))
    np.testing.assert_array_equal(lines.offsets_P2[first], np.diff(points[:, :2], axis=0) * (1, -1))
    assert lines.ends_P[first].tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 1], "the last offset of each stroke"
    assert "8 of the expected 12,179 lines" in lines.source.detail
    assert lines.source.kind == "stand-in" and lines.source.name == "IAM-OnDB, 8 of 12,179 lines"


def test_the_whole_data_set_is_called_original(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iam_ondb, "EXPECTED", 8)
    source = load_handwriting().source
    assert (source.kind, source.label, source.name) == ("original", "iam", "IAM-OnDB")
    for path in (root / "task1").iterdir():
        path.unlink()
    source = load_handwriting().source
    assert (source.kind, source.label) == ("stand-in", "iam-8-unlisted"), "divided in another way"
    assert source.name == "IAM-OnDB, 8 of 8 lines, divided without its lists"


def test_capitals_in_file_names_change_nothing(root: Path) -> None:
    before = load_handwriting().source
    for path in [stroke_file(root, "b02-010", 2), root / "task1" / "trainset.txt"]:
        path.rename(path.with_name(path.name.upper() if path.suffix == ".txt" else path.stem + ".XML"))
    assert load_handwriting().source == before


def test_forms_in_no_list_are_left_out_and_counted(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    form = "d04-000"
    for line in (1, 2):
        stroke_file(root, form, line).parent.mkdir(parents=True, exist_ok=True)
        stroke_file(root, form, line).write_text(xml(strokes(line)))
    with caplog.at_level(logging.INFO):
        lines = load_handwriting()
    assert len(lines.parts_N) == 8 and "2 lines of forms in no list left out" in lines.source.detail
    assert "left out" in caplog.text


def test_without_lists_whole_forms_are_divided_in_their_proportions(root: Path) -> None:
    for path in (root / "task1").iterdir():
        path.unlink()
    lines = load_handwriting()
    assert len(lines.parts_N) == 8 and "no official lists" in lines.source.detail
    assert (lines.parts_N[::2] == lines.parts_N[1::2]).all(), "a form is in one part"
    parts = divide({f"form{i}": 7 for i in range(1000)})
    share = {part: sum(p == i for p in parts.values()) / 1000 for i, part in enumerate(PARTS)}
    for part, (_, count) in iam_ondb.LISTS.items():
        assert share[part] == pytest.approx(count / 12_179, abs=2e-3)


def damage_xml(change: Callable[[str], str]) -> Callable[[Path], Path]:
    def apply(root: Path) -> Path:
        path = stroke_file(root, "b02-010", 2)
        path.write_text(change(path.read_text()))
        return path

    return apply


def damage_text(change: Callable[[str], str | None]) -> Callable[[Path], Path]:
    def apply(root: Path) -> Path:
        path = transcript(root, "c03-100z")
        text = change(path.read_text())
        path.unlink() if text is None else path.write_text(text, encoding="latin-1")
        return path

    return apply


BAD: dict[str, tuple[Callable[[Path], Path], str, int]] = {
    "truncated": (damage_xml(lambda s: s[: len(s) // 2]), "truncated or damaged XML", 1),
    "empty": (damage_xml(lambda s: ""), "truncated or damaged XML (no element found", 1),
    "doctype": (
        damage_xml(lambda s: s.replace("?>\n", '?>\n<!DOCTYPE a [<!ENTITY b "c">]>\n', 1)),
        "line 2: a DOCTYPE, which",
        1,
    ),
    **{
        f"encoding {name}": (damage_xml(lambda s, name=name: s.replace("ISO-8859-1", name)), "line 1: an encoding", 1)  # type: ignore[misc]
        for name in ("KLINGON", "base64", "gb2312")
    },
    "no strokes": (damage_xml(lambda s: xml([])), "no strokes; expected", 1),
    "no points": (damage_xml(lambda s: xml([[]])), "no strokes; expected", 1),
    "one point": (damage_xml(lambda s: xml([[(1, 2, 3)]])), "1 point, a line needs at least 2; replace the file", 1),
    "not a number": (damage_xml(lambda s: s.replace('x="110"', 'x="1l0"')), "x='1l0' is not a number", 1),
    "nan": (damage_xml(lambda s: s.replace('x="110"', 'x="nan"')), "x='nan' is not a number", 1),
    "no attribute": (damage_xml(lambda s: s.replace('x="110"', "")), "a Point without x", 1),
    "no time": (damage_xml(lambda s: s.replace("time=", "when=")), "a Point without time", 1),
    "stray point": (
        damage_xml(lambda s: s.replace("<StrokeSet>", '<StrokeSet><Point x="1" y="1" time="1"/>')),
        "a Point outside of a Stroke",
        1,
    ),
    "point after a stroke": (
        damage_xml(lambda s: s.replace("</Stroke>\n", '</Stroke><Point x="1" y="1" time="1"/>', 1)),
        "a Point outside of a Stroke",
        1,
    ),
    "nested strokes": (
        damage_xml(lambda s: s.replace("</Stroke>\n", "", 1).replace("</StrokeSet>", "</Stroke></StrokeSet>")),
        "a Stroke inside of a Stroke",
        1,
    ),
    "no movement": (damage_xml(lambda s: xml([[(7, 8, 1), (7, 8, 2)], [(7, 8, 3)]])), "are in one place; replace", 1),
    "long steps": (damage_xml(lambda s: xml([[(0, 0, 1), (9999, 0, 1)]])), f"longer than {LONGEST} units", 1),
    "no transcript": (damage_text(lambda s: None), "missing; place it there", 2),
    "no CSR": (damage_text(lambda s: s.replace("CSR:", "")), "no line 'CSR:'", 2),
    "too few lines": (
        damage_text(lambda s: s.replace(TEXT[1] + "\n", "")),
        ": 1 line of text, but 2 stroke files; line 2 has none: add its text or remove its stroke file",
        1,
    ),
    "no lines": (damage_text(lambda s: "CSR:\n"), "0 lines of text, but 2 stroke files", 2),
    "empty line": (damage_text(lambda s: s.replace(TEXT[0], "")), "line 1 of the text: the line is empty", 1),
    "accent": (
        damage_text(lambda s: s.replace("quick", "qu\xefck")),
        r"character 5 is '\xef', outside the alphabet (printable ASCII); replace it",
        1,
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_stops_with_its_file_and_is_skipped_only_on_request(root: Path, name: str) -> None:
    damage, message, lost = BAD[name]
    path = damage(root)
    with pytest.raises(DataError) as error:
        load_handwriting()
    text = str(error.value)
    assert str(path) in text and message in text and "\n" not in text
    assert "set data.skip_bad=true (make: LN_SKIP_BAD=true)" in text and ("1 more bad line" in text) == (lost == 2)
    assert not any((root.parent.parent / "cache").glob("*")), "nothing bad is kept"
    lines = load_handwriting(skip_bad=True)
    assert len(lines.parts_N) == 8 - lost and f"{lost:,} bad lines skipped" in lines.source.detail
    assert load_handwriting(skip_bad=True).source == lines.source


def still(root: Path) -> list[Path]:
    """The lines that Graves trains on."""
    return [path for path in root.rglob("*.xml") if "a01-000x" not in path.name]


def test_nothing_usable(root: Path) -> None:
    for path in root.rglob("*.xml"):
        path.write_text("<a/>")
    with pytest.raises(DataError, match="no usable line in 8 stroke files; place lineStrokes"):
        load_handwriting(skip_bad=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: (r / "task1" / "testset_v.txt").unlink(), "incomplete lists, missing testset_v.txt"),
        (
            lambda r: (r / "task1" / "testset_v.txt").write_text("a01-000u"),
            "form a01-000u is in trainset.txt too|form a01-000u is in testset_v.txt too",
        ),
        (lambda r: (r / "ascii").rename(r / "text"), "incomplete IAM-OnDB, no folder ascii; place it"),
        (
            lambda r: ((r / "ascii").rename(r / "text"), (r / "ascii-all.tar.gz").touch()),
            "no folder ascii; unpack ascii-all.tar.gz there",
        ),
        (lambda r: stroke_file(r, "b02-010", 1).rename(r / "lineStrokes" / "b02.xml"), "not named <form>-<line>.xml"),
        *(
            (
                lambda r, name=name: (r / "lineStrokes" / name).write_text(xml(strokes(1))),
                f"b02-010-01.xml: the same line as .*/lineStrokes/{name}; remove one of them",
            )
            for name in ("b02-010-01.xml", "b02-010-1.XML")
        ),
        (lambda r: (r / "lineStrokes" / "c.xml").symlink_to("nowhere"), "lineStrokes/c.xml: a link that leads nowhere"),
        (lambda r: (r / "ascii" / "c.txt").symlink_to("c.txt"), "ascii/c.txt: a link that leads nowhere; remove"),
        (
            lambda r: (r / "lineStrokes" / "a01" / "up").symlink_to(".."),
            "a01/up: the same folder as .*/lineStrokes; remove the link",
        ),
        (
            lambda r: (r / "task1" / "trainset.txt").write_bytes(bytes(range(256))),
            r"trainset.txt: '.x00.*' is no name of a form; replace the list",
        ),
        (
            lambda r: (r / "task1" / "trainset.txt").write_text("a01-000u", encoding="utf-16"),
            "trainset.txt: '.*' is no name of a form; replace the list",
        ),
        *(
            (
                lambda r, text=text: (r / "task1" / "testset_t.txt").write_text(text),
                "testset_t.txt: names no form of .*lineStrokes; replace the list or place its forms",
            )
            for text in ("", "z99-999\n")
        ),
        (
            lambda r: [path.write_text(xml([[(3 * i, i * i, i) for i in range(4)]])) for path in still(r)],
            "lineStrokes: all x-offsets of the training lines are identical; replace the strokes",
        ),
    ],
)
def test_a_wrong_layout_is_told_and_never_replaced_by_the_stand_in(
    root: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(root)
    with pytest.raises(DataError, match=message) as error:
        load_handwriting()
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match=message):  # what make data calls
        get(lambda status, what: None)


@pytest.mark.parametrize(
    ("where", "name"),
    [("ascii/b02", "scandir"), ("task1/trainset.txt", "read_bytes"), ("task1", "iterdir"), ("lineStrokes", "is_dir")],
)
def test_what_the_system_refuses_is_told(root: Path, monkeypatch: pytest.MonkeyPatch, where: str, name: str) -> None:
    """Rights do not bind every user, so the refusal is played."""
    owner: Any = os if name == "scandir" else Path
    given = getattr(owner, name)

    def refuse(path: str | Path, *rest: Any) -> Any:
        if str(path).endswith(where):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return given(path, *rest)

    monkeypatch.setattr(owner, name, refuse)
    with pytest.raises(DataError, match=rf"{where}: cannot be read \(Permission denied\); check "):
        load_handwriting()


@pytest.mark.parametrize(("given", "kept"), [(None, None), ("", None), ("false", None), ("true", 7)])
def test_bad_lines_are_left_out_everywhere_if_the_environment_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, kept: int | None
) -> None:
    monkeypatch.delenv("LN_SKIP_BAD", raising=False)
    if given is not None:
        monkeypatch.setenv("LN_SKIP_BAD", given)
    stroke_file(root, "b02-010", 2).write_text("")
    (cfg,) = compose_cells([["task=handwriting", "profile=smoke"]])
    assert cfg.data.skip_bad == (kept is not None)
    if kept is None:
        with pytest.raises(DataError, match="truncated or damaged XML"):
            get(lambda status, what: None)
    else:
        assert f"{kept} of the expected" in get(lambda status, what: None).detail


@pytest.mark.parametrize("given", ["TRUE", "1", "yes", "null"])
def test_anything_else_in_the_environment_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("LN_SKIP_BAD", given)
    message = f"^LN_SKIP_BAD={given} must be true or false$"
    with pytest.raises(ConfigError, match=message):
        compose_cells([["task=handwriting", "profile=smoke"]])
    with pytest.raises(DataError, match=message):
        get(lambda status, what: None)
    (cfg,) = compose_cells([["task=handwriting", "profile=smoke", "data.skip_bad=true"]])
    assert cfg.data.skip_bad, "the command line has the last word"


def test_a_changed_file_is_noticed_and_an_unchanged_one_is_not_read_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_handwriting()
    monkeypatch.setattr(iam_ondb, "_read", lambda *_: pytest.fail("parsed again"))
    assert load_handwriting().source == before.source
    monkeypatch.undo()
    monkeypatch.setenv("LN_DATA", str(root.parent))
    monkeypatch.setenv("LN_CACHE", str(root.parent / "cache"))
    path = transcript(root, "a01-000u")
    path.write_text(path.read_text().replace("quick", "slow"))
    after = load_handwriting()
    assert texts(after)[0] == "A slow brown fox." and after.source.fingerprint != before.source.fingerprint


def test_missing_readings_are_interpolated() -> None:
    stroke = np.array([[0, 0, 1.0], [10, 4, 1.015], [40, 16, 1.06], [50, 20, 1.075], [60, 20, 9.0], [70, 20, 8.0]])
    np.testing.assert_array_equal(
        fill(stroke), [[0, 0], [10, 4], [20, 8], [30, 12], [40, 16], [50, 20], [60, 20], [70, 20]]
    )
    assert fill(stroke[:1]).tolist() == [[0, 0]]


def test_over_long_steps_are_removed_and_y_points_up() -> None:
    far = LONGEST + 1.0
    line = [np.array([[0, 0, 0], [1, 2, 0.0]]), np.array([[1 + far, 2, 1], [3 + far, 1, 1]])]
    steps, ends = offsets(line, "f")
    assert steps.tolist() == [[1, -2], [2, 1]] and ends.tolist() == [1, 1]
    assert steps.dtype == np.int16 and ends.dtype == np.uint8


def test_labels() -> None:
    assert decode(encode("Ab, 9?.!z", "f")) == "Ab0 0?.!z"
    for text, message in (("  ", "is empty"), ("a\tb", r"character 2 is '\\t'"), ("5 \u20ac", "character 3 is")):
        with pytest.raises(BadLine, match=message):
            encode(text, "f")


def test_identical_strokes_have_no_scale() -> None:
    with pytest.raises(DataError, match="here: all y-offsets of the training lines are identical; replace"):
        statistics(np.array([[1, 2], [2, 2]]), "here")
    mean, std = statistics(np.array([[1, 2], [3, 6]], np.int16), "here")
    assert mean.tolist() == [2, 4] and std.tolist() == [1, 2]


def test_packing_nothing() -> None:
    arrays = pack([])
    assert arrays["starts_N1"].tolist() == [0] and len(arrays["parts_N"]) == 0


@pytest.mark.skipif(not REAL.is_dir(), reason="needs IAM-OnDB: LN_DATA/handwriting/iam_ondb")
def test_the_real_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LN_CACHE", str(tmp_path))
    folder = locate()
    assert folder is not None
    start = time.perf_counter()
    lines = load_iam(folder)
    parsed = time.perf_counter() - start
    files = len(list(folder.rglob("*.xml")))
    assert len(lines.parts_N) == files == 657 or files > 12_000
    assert parsed < 120 * files / 12_195 + 2
    mean_2, std_2 = statistics(lines.offsets_P2, "all")
    # Public code for the same lines samples with x 8.19 +- 41.56 and y 0.12 +- 37.04 (raw units, y down).
    assert mean_2 == pytest.approx([8.2, -0.1], abs=0.5) and std_2 == pytest.approx([42, 37], abs=3)
    start = time.perf_counter()
    assert load_iam(folder).source == lines.source
    assert time.perf_counter() - start < 1
    assert set(lines.ends_P.tolist()) == {0, 1}
