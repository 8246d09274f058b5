"""The two file formats of IAM-OnDB: ``lineStrokes/**/*.xml`` and ``ascii/**/*.txt``.

Files are read with the standard library's expat. A document type is refused: these files have none, and with one
a small file can name others or unfold to gigabytes.

Shapes: M readings of one stroke.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np

from data.strokes import BadLine

MARK = "CSR:"  # the corrected transcript follows; what comes before it ("OCR:") is a recogniser's guess


def read_bytes(path: Path) -> bytes:
    """Content of a file. Raises ``BadLine`` if it is missing or cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise BadLine(f"{path}: missing; place it there") from None
    except OSError as error:
        raise BadLine(f"{path}: cannot be read ({error.strerror}); check the file") from None


def read_strokes(path: Path) -> list[np.ndarray]:
    """Strokes of one line.

    Returns:
        (M, 3) float64 arrays of x, y (down) and seconds; strokes without points are left out.

    Raises:
        BadLine: truncated or malformed XML, an encoding that cannot be read, a document type, no strokes, a Point
            outside of a Stroke, a Stroke in another, or an attribute that is missing or no number.
    """
    content = read_bytes(path)
    strokes: list[list[tuple[float, float, float]]] = []
    inside = False  # of a Stroke
    parser = expat.ParserCreate()

    def fail(why: str) -> BadLine:
        return BadLine(f"{path}, line {parser.CurrentLineNumber}: {why}; replace the file")

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal inside
        if tag == "Stroke":
            if inside:
                raise fail("a Stroke inside of a Stroke")
            inside = True
            strokes.append([])
        elif tag == "Point":
            if not inside:
                raise fail("a Point outside of a Stroke")
            x, y, seconds = (number(attributes, name) for name in ("x", "y", "time"))
            strokes[-1].append((x, y, seconds))

    def end(tag: str) -> None:
        nonlocal inside
        inside = inside and tag != "Stroke"

    def number(attributes: dict[str, str], name: str) -> float:
        if name not in attributes:
            raise fail(f"a Point without {name}")
        try:
            value = float(attributes[name])
        except ValueError:
            value = math.nan
        if not abs(value) < 1e12:  # also refuses "nan" and "inf"
            raise fail(f"{name}={attributes[name][:20]!r} is not a number")
        return value

    def doctype(*_: Any) -> None:
        raise fail("a DOCTYPE, which these files never have")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise BadLine(f"{path}: truncated or damaged XML ({error}); replace the file") from None
    except (LookupError, ValueError):  # what expat's look-up of a declared encoding raises
        raise fail("an encoding that cannot be read") from None
    found = [np.array(stroke) for stroke in strokes if stroke]
    if not found:
        raise BadLine(
            f"{path}: no strokes; expected WhiteboardCaptureSession > StrokeSet > Stroke > Point; replace the file"
        )
    return found


def read_transcript(path: Path) -> list[str]:
    """Lines of text of one form, in the order of its stroke files.

    After ``CSR:`` comes one blank line, then the text. Blank lines at the end belong to nothing; one between two
    lines of text is the (empty) text of its stroke file, so that none of the others is shifted.

    Raises:
        BadLine: missing, or without ``CSR:``.
    """
    # latin-1 takes any byte; whether a character is in the alphabet is asked later, line by line.
    lines = [line.strip() for line in read_bytes(path).decode("latin-1").split("\n")]
    if MARK not in lines:
        raise BadLine(f"{path}: no line '{MARK}', after which the text is expected; replace the file")
    text = lines[lines.index(MARK) + 1 :]
    while text and not text[-1]:
        text.pop()
    return text[1:] if text and not text[0] else text
