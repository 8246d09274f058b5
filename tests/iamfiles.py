"""A small data set in the layout of IAM-OnDB, with made-up content."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

Strokes = Sequence[Sequence[tuple[float, float, float]]]
LISTS = ("trainset.txt", "testset_v.txt", "testset_t.txt", "testset_f.txt")
FORMS = {"a01-000u": LISTS[0], "a01-000x": LISTS[1], "b02-010": LISTS[2], "c03-100z": LISTS[3]}
TEXT = ("A quick brown fox.", "jumps over 12 dogs!")


def strokes(line: int) -> list[list[tuple[float, float, float]]]:
    """Two strokes whose numbers depend on the line."""
    first = [(100 + 10 * i, 500 + (i * i * (line + 2)) % 7, 5 + 0.015 * i) for i in range(6)]
    second = [(200 + 12 * i, 480 - 3 * i + line, 6 + 0.015 * i) for i in range(4)]
    return [first, second]


def xml(strokes: Strokes) -> str:
    """Text of a stroke file."""
    body = "".join(
        '<Stroke colour="black" start_time="1" end_time="2">'
        + "".join(f'<Point x="{x:g}" y="{y:g}" time="{t:.3f}"/>' for x, y, t in points)
        + "</Stroke>\n"
        for points in strokes
    )
    return (
        '<?xml version="1.0" encoding="ISO-8859-1"?>\n<WhiteboardCaptureSession>\n<WhiteboardDescription>'
        f'<SensorLocation corner="top_left"/></WhiteboardDescription>\n<StrokeSet>\n{body}</StrokeSet>\n'
        "</WhiteboardCaptureSession>\n"
    )


def stroke_file(root: Path, form: str, line: int) -> Path:
    return root / "lineStrokes" / form[:3] / form[:7] / f"{form}-{line:02d}.xml"


def transcript(root: Path, form: str) -> Path:
    return root / "ascii" / form[:3] / form[:7] / f"{form}.txt"


def place(root: Path, *, lists: bool = True) -> Path:
    """Writes four forms of two lines, one form in each list. Returns the folder."""
    for form in FORMS:
        for line in range(1, len(TEXT) + 1):
            path = stroke_file(root, form, line)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(xml(strokes(line)))
        path = transcript(root, form)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("OCR:\n\nA qu1ck\n\nCSR:\n\n" + "\n".join(TEXT) + "\n\n")
    if lists:
        (root / "task1").mkdir(exist_ok=True)
        for name in LISTS:
            # One form of each list is absent, as in a part of the data set.
            forms = [form for form, where in FORMS.items() if where == name] + [f"z99-{LISTS.index(name):03d}"]
            (root / "task1" / name).write_text("".join(f" {form}\n" for form in forms))
    return root
