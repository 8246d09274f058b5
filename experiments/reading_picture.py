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
    blocks = [_lines(reading.passage) for reading in readings]
    heights = [LINE * (max(line for line, _ in block) + 1 + 3.2) for block in blocks]
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


def _lines(words: Sequence[str]) -> list[tuple[int, int]]:
    """Line and column of each word."""
    places, line, column = [], 0, 0
    for word in words:
        if column and column + len(word) > COLUMNS:
            line, column = line + 1, 0
        places.append((line, column))
        column += len(word) + 1
    return places


def _draw(axes: Axes, reading: Reading, places: Sequence[tuple[int, int]], height: float) -> None:
    """One block: heading, passage, query and candidates. Units: inches, downwards."""
    axes.set(xlim=(0, WIDTH * 0.976), ylim=(height, 0))
    axes.set_axis_off()
    character = 0.602 * SIZE / 72
    darkest = max(float(reading.weights.max()), LEAST)
    text: dict[str, Any] = {"fontsize": SIZE, "va": "center", **PLAIN}
    heading = f"{reading.title}; largest weight {reading.weights.max():.2f}, darkest shade {darkest:.2f}"
    axes.text(0, 0.4 * LINE, heading, color="0.35", **text)
    y = 1.4 * LINE
    for t, (word, (line, column)) in enumerate(zip(reading.passage, places, strict=True)):
        share = float(reading.weights[t]) / darkest if t < reading.read else 0.0
        box = {
            "facecolor": tuple(1 - share * (1 - SHADE)), "pad": 1.2, "linewidth": 0.9,
            "edgecolor": MARK if word == reading.answer else "none",
        }  # fmt: skip
        color = GREY if t >= reading.read else "white" if share > 0.55 else "black"
        axes.text(column * character, y + line * LINE, word, family="monospace", color=color, bbox=box, **text)
    y += (places[-1][0] + 1) * LINE
    heads, column = ["query:"] + reading.query, 0
    for n, word in enumerate(heads):
        color = GREY if n > reading.query_read else "black"
        axes.text(column * character, y, word, family="monospace", color=color, **text)
        column += len(word) + 1
    said = "   ".join(f"{word} {p:.2f}" for word, p in reading.best)
    right = "" if reading.answer is None else f"answer: {reading.answer}   "
    axes.text(0, y + LINE, f"{right}likeliest: {said}", family="monospace", **text)
