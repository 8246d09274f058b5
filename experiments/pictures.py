"""Pictures of handwriting: lines of pen strokes, and where the window looked while they were written.

Shapes: T steps, U characters.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.analysis.output import write_whole

INK = "#1b2a49"
PLAIN: dict[str, Any] = {"parse_math": False}  # a text may have dollar signs, which are no formula
STEPS = "pen reading (step); dark: where the window looks"
SCALE = "Each line is drawn as large as its place allows, so sizes do not compare."


@dataclass(frozen=True)
class Penned:
    """A line that was written.

    Attributes:
        text: what it should say.
        bias: how neatly it was written.
        points_T2: places of the pen, y up, in sensor units.
        ends_T: whether a stroke ends there.
        weight_TU: the window's weight on each character.
    """

    text: str
    bias: float
    points_T2: np.ndarray
    ends_T: np.ndarray
    weight_TU: np.ndarray


def draw_strokes(axes: Axes, points_T2: np.ndarray, ends_T: np.ndarray, width: float = 1.1) -> None:
    """Draws the strokes of a line; the pen is up between them. Nothing else is on the axes afterwards."""
    after = np.flatnonzero(ends_T[:-1]) + 1
    for stroke in np.split(points_T2, after):
        dot: dict[str, Any] = {"marker": ".", "markersize": 1.5 * width} if len(stroke) == 1 else {}
        axes.plot(*stroke.T, color=INK, linewidth=width, solid_capstyle="round", solid_joinstyle="round", **dot)
    axes.set_aspect("equal", anchor="W")
    axes.set_axis_off()


def draw_window(axes: Axes, row: Penned) -> None:
    """The window's weights: characters upwards in the order they are written, pen readings to the right."""
    weight_UT = row.weight_TU.T
    steps = max(weight_UT.shape[1], 1)
    axes.imshow(
        weight_UT if weight_UT.size else np.zeros((len(row.text), 1)), aspect="auto", origin="lower", cmap="Greys",
        vmin=0, interpolation="nearest", extent=(0, steps, -0.5, len(row.text) - 0.5),
    )  # fmt: skip
    axes.set_yticks(range(len(row.text)), ["␣" if c == " " else c for c in row.text], fontsize=5.5, **PLAIN)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.tick_params(length=0, labelsize=6)
    axes.spines[:].set_color("0.7")


def sample_figure(row: Penned, title: str) -> Figure:
    """One line, with the window over its characters beneath it."""
    figure = Figure(figsize=(max(4.0, 0.36 * len(row.text)), 1.9 + 0.12 * len(row.text)), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, height_ratios=(1.4, 0.12 * len(row.text) + 0.5))
    draw_strokes(above, row.points_T2, row.ends_T, 1.6)
    above.set_title(title, fontsize=8, loc="left", **PLAIN)
    draw_window(below, row)
    below.set_xlabel(STEPS, fontsize=7)
    below.set_ylabel("window on", fontsize=7)
    return figure


def draw_samples(rows: Sequence[Penned], title: str, path: Path) -> Path:
    """Several lines on one page, the window of each beside it."""
    heights = [0.6 + 0.07 * len(row.text) for row in rows]
    figure = Figure(figsize=(9.5, sum(heights) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10, **PLAIN)
    grid = figure.subplots(len(rows), 2, squeeze=False, width_ratios=(3, 1.2), height_ratios=heights)
    for (left, right), row in zip(grid, rows, strict=True):
        draw_strokes(left, row.points_T2, row.ends_T)
        left.set_title(f"“{row.text}”, bias {row.bias:g}", fontsize=7, color="0.35", loc="left", **PLAIN)
        draw_window(right, row)
        right.set_ylabel("window on", fontsize=7)
    grid[-1, 1].set_xlabel(STEPS, fontsize=7)
    figure.supxlabel(SCALE, fontsize=7, x=0.005, ha="left", color="0.35")
    return write_whole(path, rendered(figure, "png"))


def rendered(figure: Figure, kind: str) -> bytes:
    """The figure as ``png`` or ``svg``, without dates, so that the same line gives the same file."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "line"}):
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()
