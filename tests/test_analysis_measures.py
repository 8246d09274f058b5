"""Every derived number against a value computed by hand."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.analysis.measures import (
    INF,
    agreement,
    best,
    final,
    median,
    minus,
    race,
    speedup,
    time_to,
    within,
)

NAN = math.nan


def series(*values: float, every: int = 10, seconds: float = 3.0) -> pd.DataFrame:
    """Values at steps 10, 20, …, 3 seconds apart."""
    steps = range(1, len(values) + 1)
    return pd.DataFrame(
        {"step": [every * i for i in steps], "train_seconds": [seconds * i for i in steps], "value": values},
        dtype=float,
    )


def test_final_is_the_last_evaluation_not_the_best() -> None:
    assert final(series(5, 3, 4), "done", "lower") == 4


def test_final_of_a_diverged_run_is_infinitely_bad() -> None:
    assert final(series(5, 3), "diverged", "lower") == INF
    assert final(series(5, 3), "diverged", "higher") == -INF
    assert final(series(5, NAN), "done", "lower") == INF
    assert math.isnan(final(series(), "done", "lower"))


def test_best_takes_the_first_of_equal_values() -> None:
    assert best(series(5, 3, 4, 3), "lower", "step") == (3, 20)
    assert best(series(5, 7, 7), "higher", "train_seconds") == (7, 6)
    assert best(series(NAN, 3), "lower", "step") == (3, 20)
    assert all(math.isnan(x) for x in best(series(NAN), "lower", "step"))


def test_time_to_is_the_first_evaluation_at_least_as_good() -> None:
    assert time_to(series(9, 6, 5, 7), 6, "lower", "step") == 20
    assert time_to(series(9, 6, 5, 7), 5.5, "lower", "train_seconds") == 9
    assert time_to(series(9, 6), 5.5, "lower", "step") == INF
    assert time_to(series(1, 2, 3), 2, "higher", "step") == 20


def test_race_twice_as_fast() -> None:
    # Baseline: best 4 at step 40 (12 s). Candidate: first at or below 4 at step 20 (6 s). 40 / 20 = 2.
    found = race(series(9, 7, 5, 4), "done", series(6, 3.9, 3.5, 3.4), "done", "lower", "step")
    assert (found.target, found.baseline, found.candidate, found.ratio) == (4, 40, 20, 2)
    found = race(series(9, 7, 5, 4), "done", series(6, 3.9), "done", "lower", "train_seconds")
    assert (found.baseline, found.candidate, found.ratio) == (12, 6, 2)


def test_race_a_miss_is_infinite() -> None:
    found = race(series(9, 4), "done", series(9, 5), "done", "lower", "step")
    assert (found.candidate, found.ratio) == (INF, 0)


def test_race_divergence_is_infinite_whatever_was_reached_before() -> None:
    assert race(series(9, 4), "done", series(3), "diverged", "lower", "step").ratio == 0
    assert race(series(9, 4), "diverged", series(3, 2), "done", "lower", "step").ratio == INF
    assert math.isnan(race(series(9, 4), "diverged", series(3), "diverged", "lower", "step").ratio)
    # A baseline that diverged before its first value leaves no target.
    assert math.isnan(race(series(), "diverged", series(3), "done", "lower", "step").ratio)


@pytest.mark.parametrize(
    ("baseline", "candidate", "expected"),
    [
        (40, 20, 2),
        (20, 40, 0.5),
        (40, INF, 0),
        (INF, 40, INF),
        (40, 0, INF),
        (INF, INF, NAN),
        (0, 10, NAN),
        (NAN, 1, NAN),
    ],
)
def test_speedup(baseline: float, candidate: float, expected: float) -> None:
    assert speedup(baseline, candidate) == pytest.approx(expected, nan_ok=True)


def test_infinities_take_part_in_the_median() -> None:
    assert median([1, INF, 3]) == 3
    assert median([1, INF, INF]) == INF
    assert median([1, 3]) == 2
    assert median([1, INF]) == INF
    assert median([0, 2, 2.5]) == 2
    assert math.isnan(median([]))
    assert math.isnan(median([1, NAN, 2]))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), st.integers(0, 9))
def test_a_minority_of_infinities_keeps_the_median_finite(values: list[float], misses: int) -> None:
    found = median([*values, *[INF] * misses])
    assert math.isfinite(found) == (misses < len(values))


def test_minus() -> None:
    assert minus(82.09, 82.36) == pytest.approx(-0.27)
    assert minus(INF, 3) == INF
    assert minus(3, INF) == -INF
    assert math.isnan(minus(INF, INF))


def test_agreement_needs_every_seed() -> None:
    assert agreement([1, 0.1]) == "same direction"
    assert agreement([-1, -INF]) == "opposite direction"
    for signs in ([1, -1], [1, 0], [1, NAN], []):
        assert agreement(signs) == "inconclusive"


def test_within() -> None:
    assert within(82.9, 82.09, 0.82)
    assert within(82.91, 82.09, 0.82)  # exactly at the edge, whatever floating point makes of it
    assert not within(82.92, 82.09, 0.82)
    assert not within(INF, 82.09, 0.82)
    assert not within(NAN, 82.09, 0.82)
