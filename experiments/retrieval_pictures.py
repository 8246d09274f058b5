"""Pictures of what was found for sentences: a row for each, the closest images from left to right."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WIDTH = 110  # characters of a text on one line
OWN, OTHER = "#d55e00", "0.8"


@dataclass(frozen=True)
class Found:
    """What was found for one sentence.

    Attributes:
        text: the sentence.
        images: numbers of the closest images, the closest first.
        own: the sentence's own image, if it has one.
        rank: of that image, from 1.
        among: how many images were searched.
    """

    text: str
    images: Sequence[int]
    own: int | None = None
    rank: int | None = None
    among: int | None = None

    def heading(self) -> str:
        """The sentence, and where its own image came."""
        where = "" if self.own is None else f"  [own image: rank {self.rank:,} of {self.among:,}]"
        return textwrap.fill(f"{self.text}{where}", WIDTH)


def draw_found(rows: Sequence[Found], pixels: Sequence[Sequence[np.ndarray]], title: str, path: Path) -> Path:
    """Draws the rows; a sentence's own image is framed where it is among those shown.

    Args:
        rows: what was found.
        pixels: for each row its images, ``(S, S, 3)`` uint8 each.
        title: of the picture.
        path: of the PNG.
    """
    from matplotlib.figure import Figure

    headings = [row.heading() for row in rows]
    heights = [1.45 + 0.17 * heading.count("\n") for heading in headings]
    figure = Figure(figsize=(8, sum(heights) + 0.6), layout="constrained")
    figure.suptitle(title, fontsize=9)
    parts = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, row, heading, painted in zip(parts, rows, headings, pixels, strict=True):
        part.suptitle(heading, fontsize=8, x=0.01, ha="left", parse_math=False)  # a dollar sign begins no formula
        (all_axes,) = part.subplots(1, len(row.images), squeeze=False)
        for axes, image, content in zip(all_axes, row.images, painted, strict=True):
            axes.imshow(content)
            axes.set(xticks=[], yticks=[])
            axes.set_xlabel(f"image {image}", fontsize=6, labelpad=1)
            own = image == row.own
            for spine in axes.spines.values():
                spine.set(color=OWN if own else OTHER, linewidth=2.5 if own else 0.5)
    figure.savefig(path, dpi=150)
    return path
