"""Ranks, recalls and folds: by hand, and against a search written as loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.retrieval import Ranks, fold_bounds, mean_statistics, ranks, statistics


def test_by_hand() -> None:
    """Two images, ten captions; captions 0-4 belong to image 0."""
    energy = torch.tensor(
        [[1.0, 2.0], [3.0, 2.0], [5.0, 5.0], [7.0, 1.0], [4.0, 9.0],
         [0.5, 3.0], [9.0, 2.5], [1.5, 8.0], [6.0, 6.0], [2.0, 4.0]]
    )  # fmt: skip
    found = ranks(energy)
    # Caption 2 ties, which does not count against it; of image 1's captions 5, 7 and 9 find image 0 closer.
    assert found.image_C.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    # Image 0's best caption (1.0): only caption 5 (0.5) is closer. Image 1's (2.5): captions 0, 1 and 3 are.
    assert found.caption_N.tolist() == [1, 3]
    assert found.tied == pytest.approx(0.2)
    assert statistics(found.image_C) == {"r1": 50, "r5": 100, "r10": 100, "median_rank": 1, "mean_rank": 1.5}
    assert statistics(found.caption_N) == {"r1": 0, "r5": 100, "r10": 100, "median_rank": 3, "mean_rank": 3}


def test_recalls_are_of_ranks_below_k() -> None:
    got = statistics(np.array([0, 4, 5, 9, 10]))
    assert (got["r1"], got["r5"], got["r10"]) == (20, 40, 80)
    assert (got["median_rank"], got["mean_rank"]) == (6, 6.6)
    assert statistics(np.array([0, 3]))["median_rank"] == 2, "floor of 1.5, then from 1"


@given(st.integers(1, 7), st.integers(0, 10_000), st.booleans())
def test_against_loops(images: int, seed: int, coarse: bool) -> None:
    random = np.random.default_rng(seed)
    energy = random.integers(0, 4, (5 * images, images)) if coarse else random.random((5 * images, images))
    found = ranks(torch.as_tensor(energy, dtype=torch.float64))
    for c in range(5 * images):
        assert found.image_C[c] == sum(energy[c][n] < energy[c][c // 5] for n in range(images))
    for n in range(images):
        best = [sum(energy[o][n] < energy[c][n] for o in range(5 * images)) for c in range(5 * n, 5 * n + 5)]
        assert found.caption_N[n] == min(best)


def test_another_number_of_captions_is_refused() -> None:
    with pytest.raises(ValueError, match="9 captions for 2 images: 5 each"):
        ranks(torch.zeros(9, 2))


def test_a_model_that_says_nothing_is_seen_by_its_ties() -> None:
    assert ranks(torch.zeros(10, 2)).tied == 1 and ranks(torch.eye(2).repeat_interleave(5, 0)).tied == 0


@pytest.mark.parametrize(
    ("images", "bounds"),
    [
        (5000, [(0, 1000), (1000, 2000), (2000, 3000), (3000, 4000), (4000, 5000)]),
        (25_000, [(0, 1000), (1000, 2000), (2000, 3000), (3000, 4000), (4000, 5000)]),
        (2999, [(0, 1000), (1000, 2000)]),
        (1000, [(0, 1000)]),
        (60, [(0, 60)]),
    ],
)
def test_folds(images: int, bounds: list[tuple[int, int]]) -> None:
    assert fold_bounds(images, 1000, 5) == bounds


def test_means_are_over_the_folds() -> None:
    one = Ranks(np.array([0, 0, 20, 2, 7]), np.array([0]), 0.0)
    other = Ranks(np.array([9, 9, 9, 9, 9]), np.array([10]), 0.0)
    got = mean_statistics([one, other])
    assert len(got) == 10
    assert got["image_r1"] == 20 and got["image_r10"] == 90 and got["image_mean_rank"] == pytest.approx(8.4)
    assert got["image_median_rank"] == (3 + 10) / 2
    assert (got["caption_r1"], got["caption_r10"], got["caption_mean_rank"]) == (50, 50, 6)
    assert not any(math.isnan(value) for value in got.values())
