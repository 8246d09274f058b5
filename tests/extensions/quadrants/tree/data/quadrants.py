"""Points of the plane and whether they lie in an even or an odd quadrant. Shapes: N points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data.fetch import Say, Source, fingerprint

SEED = 0


@dataclass(frozen=True)
class Quadrants:
    """Points ``(N, 2)`` float32, and 1 for the first and third quadrant, 0 for the others, ``(N,)`` int64."""

    points_N2: np.ndarray
    odd_N: np.ndarray
    source: Source


def load_quadrants(count: int = 2000) -> Quadrants:
    """``count`` points, normally distributed around the origin."""
    points_N2 = np.random.RandomState(SEED).standard_normal((count, 2)).astype(np.float32)
    odd_N = (points_N2.prod(1) > 0).astype(np.int64)
    digest = fingerprint("quadrants", {"points": points_N2, "odd": odd_N})
    return Quadrants(points_N2, odd_N, Source("original", "quadrants", "four quadrants", digest, f"seed {SEED}"))


def get(say: Say) -> Source:
    """Nothing is fetched: the points are drawn."""
    say("present", "drawn when needed")
    return load_quadrants().source
