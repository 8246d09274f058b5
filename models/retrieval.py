"""Ranks and recalls of retrieval between images and their five captions each (section 6.1, Table 2).

Image retrieval: a caption asks for its image. Caption retrieval: an image asks for any of its captions. A rank counts
what is strictly closer than the true match, so 0 is best and a tie does not count against it; the printed median and
mean ranks start at 1.

Shapes: C = 5 N captions, N images, H units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

PER_IMAGE = 5
RECALLS = (1, 5, 10)
STATISTICS = ("r1", "r5", "r10", "median_rank", "mean_rank")


class Ranks(NamedTuple):
    """Ranks from 0.

    Attributes:
        image_C: rank of the true image for each caption.
        caption_N: rank of the best of its five captions for each image.
        tied: share of the captions whose true image is no closer than another one: with many, ranks mean little.
    """

    image_C: np.ndarray
    caption_N: np.ndarray
    tied: float


def ranks(energy_CN: Tensor) -> Ranks:
    """Ranks from energies; captions 5n … 5n+4 belong to image n. Raises ``ValueError`` on another number of rows."""
    count, images = energy_CN.shape
    if count != PER_IMAGE * images:
        raise ValueError(f"{count} captions for {images} images: {PER_IMAGE} each are needed")
    own_C = torch.arange(count, device=energy_CN.device) // PER_IMAGE
    true_C1 = energy_CN.gather(1, own_C[:, None])
    best_N = true_C1.view(images, PER_IMAGE).amin(1)
    ties_C = (energy_CN == true_C1).sum(1) > 1
    return Ranks(
        (energy_CN < true_C1).sum(1).cpu().numpy(),
        (energy_CN < best_N).sum(0).cpu().numpy(),
        ties_C.float().mean().item(),
    )


def statistics(ranks_N: np.ndarray) -> dict[str, float]:
    """R@1, R@5, R@10 in percent, median and mean rank from 1; by the names of ``STATISTICS``."""
    recalls = [100 * float((ranks_N < k).mean()) for k in RECALLS]
    values = [*recalls, float(np.floor(np.median(ranks_N))) + 1, float(ranks_N.mean()) + 1]
    return dict(zip(STATISTICS, values, strict=True))


def fold_bounds(images: int, size: int, most: int) -> list[tuple[int, int]]:
    """First and last+1 image of each fold: ``most`` of ``size`` images, as far as they fit; else one of all."""
    count = min(most, images // size)
    return [(k * size, (k + 1) * size) for k in range(count)] or [(0, images)]


def mean_statistics(folds: Sequence[Ranks]) -> dict[str, float]:
    """The ten statistics, ``image_r1`` … ``caption_mean_rank``, each averaged over the folds."""
    each = [
        {f"image_{key}": value for key, value in statistics(fold.image_C).items()}
        | {f"caption_{key}": value for key, value in statistics(fold.caption_N).items()}
        for fold in folds
    ]
    return {key: float(np.mean([one[key] for one in each])) for key in each[0]}
