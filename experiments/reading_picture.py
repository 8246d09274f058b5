"""Draws readings: a passage with its words shaded by attention, the query, the answer and the likeliest words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.analysis.output import write_whole
from experiments.pictures import PLAIN, rendered
from experiments.reading import COLUMNS, Reading

WIDTH, LINE = 6.9, 0.2  # inches
GREY = "0.6"
SIZE = 8.0  # points; a character of the fixed-width font is 0.602 of it wide
MARK, SHADE = "#D55E00", np.array([0.0, 0.447, 0.698])  # the answer's frame; the darkest shade
LEAST = 0.25  # a weight below this never has the darkest shade, or looking everywhere would seem like looking there


def draw_readings(readings: Sequence[Reading], title: str, path: Path) -> Path:
    """A page with one block per question."""
    blocks = [[_lines(reading.passage), _lines(_query(reading)), _lines(_said(reading), 3)] for reading in readings]
    heights = [LINE * (1.2 + sum(places[-1][0] + 1 for places in block)) for block in blocks]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.75))
    FigureCanvasAgg(figure)
    figure.text(0.012, 1 - 0.12 / figure.get_figheight(), title, fontsize=9.5, weight="bold", va="top", **PLAIN)
    top = figure.get_figheight() - 0.42
    for reading, block, height in zip(readings, blocks, heights, strict=True):
        bottom = (top - height) / figure.get_figheight()
        axes = figure.add_axes((0.012, bottom, 0.976, height / figure.get_figheight()))
        _draw(axes, reading, block, height)
        top -= height
    note = "Shade: attention; white is 0, the darkest is said above each passage. Framed: the answer. Grey: not read."
    figure.text(0.012, 0.1 / figure.get_figheight(), note, fontsize=7, color="0.35", va="bottom", **PLAIN)
    return write_whole(path, rendered(figure, "png"))


def _lines(words: Sequence[str], blanks: int = 1) -> list[tuple[int, int]]:
    """Line and column of each word, ``blanks`` between two of a line."""
    places, line, column = [], 0, 0
    for word in words:
        if column and column + len(word) > COLUMNS:
            line, column = line + 1, 0
        places.append((line, column))
        column += len(word) + blanks
    return places


def _query(reading: Reading) -> list[str]:
    return ["query:", *reading.query]


def _said(reading: Reading) -> list[str]:
    """The answer, if there is one, and the likeliest words."""
    best = [f"{word} {p:.2f}" for word, p in reading.best]
    return [f"answer: {reading.answer}"] * (reading.answer is not None) + [f"likeliest: {best[0]}", *best[1:]]


def _draw(axes: Axes, reading: Reading, block: Sequence[Sequence[tuple[int, int]]], height: float) -> None:
    """One block: heading, passage, query and candidates, and the places of their words. Units: inches, downwards."""
    axes.set(xlim=(0, WIDTH * 0.976), ylim=(height, 0))
    axes.set_axis_off()
    character = 0.602 * SIZE / 72
    darkest = max(float(reading.weights.max()), LEAST)
    text: dict[str, Any] = {"fontsize": SIZE, "va": "center", **PLAIN}
    heading = f"{reading.title}; largest weight {reading.weights.max():.2f}, darkest shade {darkest:.2f}"
    axes.text(0, 0.4 * LINE, heading, color="0.35", **text)
    y = 1.4 * LINE

    def write(word: str, place: tuple[int, int], **look: Any) -> None:
        line, column = place
        axes.text(column * character, y + line * LINE, word, family="monospace", **text, **look)

    for t, (word, place) in enumerate(zip(reading.passage, block[0], strict=True)):
        share = float(reading.weights[t]) / darkest if t < reading.read else 0.0
        box = {
            "facecolor": tuple(1 - share * (1 - SHADE)), "pad": 1.2, "linewidth": 0.9,
            "edgecolor": MARK if word == reading.answer else "none",
        }  # fmt: skip
        write(word, place, color=GREY if t >= reading.read else "white" if share > 0.55 else "black", bbox=box)
    y += (block[0][-1][0] + 1) * LINE
    for n, (word, place) in enumerate(zip(_query(reading), block[1], strict=True)):
        write(word, place, color=GREY if n > reading.query_read else "black")
    y += (block[1][-1][0] + 1) * LINE
    for words, place in zip(_said(reading), block[2], strict=True):
        write(words, place)
