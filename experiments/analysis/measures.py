"""The numbers a comparison is made of, as pure functions with hand-computed tests.

Infinity is a value here: a run that diverged ends infinitely badly, and a target never reached is reached
after an infinite time. Both take part in the median. NaN means undefined (nothing to compare) and makes a
verdict inconclusive.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

INF = math.inf
VERDICTS = ("matches", "same direction", "opposite direction", "inconclusive", "not comparable")


@dataclass(frozen=True)
class Race:
    """One seed's time to target.

    Attributes:
        target: best value of the baseline.
        baseline: time at which the baseline has it first.
        candidate: time at which the candidate is first at least as good.
        ratio: baseline / candidate, the speed-up: 2 means half the time, 0 that the candidate never got
            there, infinity that only the baseline failed, NaN that nothing can be said.
    """

    target: float
    baseline: float
    candidate: float
    ratio: float


def worst(better: str) -> float:
    """The infinity that a diverged run stands at: +inf where lower is better, else -inf."""
    return INF if better == "lower" else -INF


def final(series: pd.DataFrame, state: str, better: str) -> float:
    """Value at the last evaluation; infinitely bad for a diverged run or a value that is not finite.

    NaN when nothing was logged.
    """
    if state == "diverged":
        return worst(better)
    if series.empty:
        return math.nan
    value = float(series["value"].iloc[-1])
    return worst(better) if math.isnan(value) else value


def best(series: pd.DataFrame, better: str, clock: str) -> tuple[float, float]:
    """Best value and the time it is first reached; (NaN, NaN) when no value is finite.

    Args:
        series: rows of one metric, by step.
        clock: column that measures time, ``step`` or ``train_seconds``.
    """
    values = series["value"].dropna()
    if values.empty:
        return math.nan, math.nan
    where = values.idxmin() if better == "lower" else values.idxmax()  # the first of equal values
    return float(values[where]), float(series[clock][where])


def time_to(series: pd.DataFrame, target: float, better: str, clock: str) -> float:
    """Time of the first evaluation at least as good as ``target``; infinite when there is none."""
    reached = series["value"] <= target if better == "lower" else series["value"] >= target
    return float(series[clock][reached].iloc[0]) if reached.any() else INF


def race(
    baseline: pd.DataFrame,
    baseline_state: str,
    candidate: pd.DataFrame,
    candidate_state: str,
    better: str,
    clock: str,
) -> Race:
    """Time-to-target of ``candidate``: the target is the best value of ``baseline``.

    A diverged run counts as infinitely slow, whatever it reached before; one that did not log the metric leaves
    its time undefined. Times are read at evaluations, so
    they are exact up to one evaluation interval.
    """
    target, base_time = best(baseline, better, clock)
    cand_time = INF if math.isnan(target) else time_to(candidate, target, better, clock)
    if candidate.empty:  # never asked is not never reached
        cand_time = math.nan
    base_time = INF if baseline_state == "diverged" else base_time
    cand_time = INF if candidate_state == "diverged" else cand_time
    return Race(target, base_time, cand_time, speedup(base_time, cand_time))


def speedup(baseline: float, candidate: float) -> float:
    """baseline / candidate with infinities; NaN when undefined: both never, or a baseline best at step 0."""
    if math.isnan(baseline) or math.isnan(candidate) or (math.isinf(baseline) and math.isinf(candidate)):
        return math.nan
    if baseline == 0:  # never got better than before training: no race
        return math.nan
    if math.isinf(candidate):
        return 0.0
    return INF if candidate == 0 else baseline / candidate


def minus(a: float, b: float) -> float:
    """a - b where equal infinities leave NaN: two diverged runs say nothing about each other."""
    return math.nan if math.isinf(a) and a == b else a - b


def median(values: Sequence[float]) -> float:
    """Median with infinities; NaN when empty or when a value is undefined."""
    if not values or any(math.isnan(value) for value in values):
        return math.nan
    middle = statistics.median(values)
    return float(middle)


def agreement(signs: Sequence[float]) -> str:
    """Direction from one signed number per seed, positive meaning as in the paper.

    Seeds that disagree, a tie or an undefined number leave it inconclusive.
    """
    if signs and all(sign > 0 for sign in signs):
        return "same direction"
    if signs and all(sign < 0 for sign in signs):
        return "opposite direction"
    return "inconclusive"


def within(value: float, paper: float, tolerance: float) -> bool:
    """Whether ``value`` is at most ``tolerance`` from the printed number; never for NaN or infinity."""
    return abs(value - paper) <= tolerance * (1 + 1e-9)
