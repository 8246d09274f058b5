"""How figures look: one style file, and one fixed colour and line style for each norm and arm.

The colours are those of Okabe and Ito, told apart with every common colour blindness and, with the line
styles, in grey. Figures are drawn on matplotlib's objects with the Agg canvas: no window system, no global
state.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.analysis.names import NAMES

STYLE_FILE = Path(__file__).with_name("suite.mplstyle")
CHARS_PER_INCH = 17.5  # of the caption's font
LINE_INCHES = 0.148  # height of a caption line


@dataclass(frozen=True)
class Look:
    """Name, colour and line style of a norm, and its place in front of or behind the others."""

    name: str
    color: str
    line: Any
    order: int


LOOKS = {
    norm: Look(NAMES[norm], color, line, order)
    for norm, color, line, order in (
        ("none", "#000000", (0, (5, 1.6)), 3),
        ("bn", "#D55E00", (0, (6, 1.4, 1.2, 1.4)), 4),
        ("bn_lstm", "#E69F00", (0, (4, 1, 1.2, 1, 1.2, 1)), 4),
        ("bn_everywhere", "#CC79A7", (0, (8, 1.4, 3, 1.4)), 4),
        ("wn", "#009E73", (0, (1.2, 1.2)), 4),
        ("ln", "#0072B2", "solid", 5),
        ("ln_gain01", "#56B4E9", (0, (3, 1.2)), 4),
    )
}


def look(norm: str) -> Look:
    """The look of a norm; an unknown one is grey under its own name."""
    return LOOKS.get(norm, Look(norm, "#777777", "solid", 2))


@contextmanager
def suite_style() -> Iterator[None]:
    """Draws in the suite's style; the process' own settings come back afterwards."""
    with matplotlib.rc_context(fname=STYLE_FILE):
        yield


def canvas(panels: int, title: str, subtitle: str, caption: Sequence[str]) -> tuple[Figure, list[Axes]]:
    """A figure with title, subtitle, a grid of panels and wrapped caption paragraphs below them.

    Call within ``suite_style``.
    """
    columns = 1 if panels == 1 else 2 if panels in (2, 4) else 3
    rows = math.ceil(panels / columns)
    width = 6.6 if columns == 1 else 4.6 * columns
    lines = [line for text in caption for line in textwrap.wrap(text, int(width * CHARS_PER_INCH))]
    head = 0.62 if subtitle else 0.4
    foot = LINE_INCHES * len(lines) + 0.22
    height = head + rows * (3.9 if rows == 1 else 3.1) + foot
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    figure.set_layout_engine(
        "constrained", rect=(0, foot / height, 1, 1 - (head + foot) / height), w_pad=0.08, h_pad=0.08
    )
    left = 0.12 / width
    figure.text(left, 1 - 0.12 / height, title, fontsize=11, weight="bold", va="top")
    if subtitle:
        figure.text(left, 1 - 0.36 / height, subtitle, fontsize=8.5, color="0.3", va="top")
    figure.text(
        left,
        foot / height - 0.06 / height,
        "\n".join(lines),
        fontsize=7.2,
        color="0.25",
        va="top",
        linespacing=1.3,
    )
    axes = figure.subplots(rows, columns, squeeze=False)
    for spare in list(axes.flat)[panels:]:
        spare.remove()
    return figure, list(axes.flat)[:panels]


def legend_above(ax: Axes, title: str) -> None:
    """Puts the legend between the panel and its title, where it hides no curve.

    The layout makes room for it, so a row wider than the panel would squeeze the panel: then two columns.
    """
    texts = ax.get_legend_handles_labels()[1]
    inches = sum(0.058 * len(text) + 0.35 for text in texts)
    figure_inches = ax.figure.get_figwidth() / ax.get_subplotspec().get_gridspec().ncols  # type: ignore[union-attr]
    columns = len(texts) if inches < figure_inches - 0.75 else 2
    ax.legend(
        loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.4, borderpad=0, ncols=columns,
        title=title or None, alignment="left", columnspacing=1.1,
        title_fontproperties={"weight": "bold", "size": 9.5},
    )  # fmt: skip


def render(figure: Figure, kind: str) -> bytes:
    """The figure as ``png`` or ``pdf``, without dates, so that the same data give the same file."""
    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"CreationDate": None, "ModDate": None} if kind == "pdf" else {}
    figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()


def caption(figure: Figure) -> str:
    """The caption of a figure made by ``canvas``, on one line; words that were broken at a hyphen are whole again."""
    return " ".join(re.sub(r"(?<=\w)-\n(?=\w)", "-", figure.texts[-1].get_text()).split())
