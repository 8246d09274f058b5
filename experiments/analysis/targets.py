"""Time to target, for every task alike: steps until a norm first has the baseline's best validation value.

The target is, seed by seed, the best value that the run without a norm has of what selects its task's weights
(``Task.select``). Steps are read at evaluations. A ratio is the norm's steps over the baseline's: 0.5 is half of them,
infinite never.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.analysis.collect import FINISHED, Run
from experiments.analysis.groups import Group
from experiments.analysis.measures import Race, median, race

BASELINE = "none"


@dataclass(frozen=True)
class Pace:
    """One norm's race against the baseline, on all seeds that both have finished.

    Attributes:
        better: ``lower`` or ``higher``, of the metric on the split.
        races: by seed; see ``measures.Race``.
    """

    experiment: str
    batch_size: int
    norm: str
    split: str
    metric: str
    better: str
    races: dict[int, Race]

    @property
    def ratios(self) -> list[float]:
        """The norm's steps over the baseline's, by seed; infinite for a miss, NaN where nothing can be said."""
        return [_ratio(one) for _, one in sorted(self.races.items())]

    @property
    def median(self) -> float:
        return median(self.ratios)


def _ratio(one: Race) -> float:
    if math.isnan(one.ratio):
        return math.nan
    return math.inf if one.ratio == 0 else 1 / one.ratio


def paces(several: Sequence[tuple[str, Group]]) -> list[Pace]:
    """All races of the experiments of one task, profile and data source.

    An experiment without a baseline borrows that of one with which it shares a run: their settings are the same.
    """
    from experiments.tasks import TASKS  # imports torch

    found: list[Pace] = []
    told: set[tuple[tuple[str, str], ...]] = set()
    for experiment, group in several:
        task = TASKS[group.task]
        split, metric = task.select
        better = task.metrics[metric].better
        base = _by_seed(_lender(group, [other for _, other in several]), BASELINE)
        for norm, batch in dict.fromkeys((run.norm, run.batch_size) for run in group.runs):
            mine = {} if norm == BASELINE else _by_seed(group, norm)
            pairs = {
                seed: (base[batch, seed], run)
                for (size, seed), run in sorted(mine.items())
                if size == batch and (batch, seed) in base
            }
            key = tuple((one.identity, run.identity) for one, run in pairs.values())
            if not pairs or key in told:
                continue
            told.add(key)
            races = {
                seed: race(
                    one.series(split, metric), one.state, run.series(split, metric), run.state, better, "step"
                )
                for seed, (one, run) in pairs.items()
            }  # fmt: skip
            found.append(Pace(experiment, batch, norm, split, metric, better, races))
    return found


def _lender(group: Group, others: Sequence[Group]) -> Group:
    if any(run.norm == BASELINE for run in group.runs):
        return group
    mine = {run.identity for run in group.runs}
    kin = [other for other in others if mine & {run.identity for run in other.runs}]
    return next((other for other in kin if any(run.norm == BASELINE for run in other.runs)), group)


def _by_seed(group: Group, norm: str) -> dict[tuple[int, int], Run]:
    return {(run.batch_size, run.seed): run for run in group.runs if run.norm == norm and run.state in FINISHED}
