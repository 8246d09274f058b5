"""Draws ten training lines of handwriting, as the model sees them: ``python -m scripts.handwriting_lines PATH.png``.

The picture of the stand-in in ``docs/`` is made this way, without LN_DATA.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from data.handwriting import load_handwriting
from data.strokes import Lines, decode
from experiments.analysis.output import short_path, write_whole
from experiments.cli import guarded
from experiments.pictures import draw_strokes, rendered
from experiments.schema import ConfigError

ROWS = 10


def draw_lines(lines: Lines, count: int) -> Figure:
    """``count`` lines, evenly spread over the data set, each under its labels (0: any character without its own)."""
    figure = Figure(figsize=(8, 0.72 * count), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(count, 1))
    for row, ax in enumerate(axes):
        n = row * len(lines.parts_N) // count
        start, end = lines.starts_N1[n : n + 2]
        draw_strokes(ax, np.cumsum(lines.offsets_P2[start:end], 0, dtype=np.int64), lines.ends_P[start:end], 0.9)
        text = decode(lines.labels_C[slice(*lines.text_starts_N1[n : n + 2])].tolist())
        ax.set_title(text, fontsize=6, color="0.45", loc="left", family="monospace")
    return figure


def main() -> int:
    """Entry point."""
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".png"):
        raise ConfigError("give one argument, the PNG to write: python -m scripts.handwriting_lines docs/lines.png")
    print(short_path(write_whole(Path(sys.argv[1]), rendered(draw_lines(load_handwriting(), ROWS), "png"))))
    return 0


if __name__ == "__main__":
    guarded(main)
