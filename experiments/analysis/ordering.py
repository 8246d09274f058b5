"""Claims that one norm is better than several others, seed by seed.

``order``: by final values; ``order_speed``: by the time until each rival's best value is reached. A seed goes the
paper's way against a rival if the candidate is better than that rival; the claim has a direction only if all seeds
agree about all rivals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.analysis.collect import Run
from experiments.analysis.measures import final, minus, race
from experiments.analysis.names import name

KINDS = ("order", "order_speed")


@dataclass(frozen=True)
class Standing:
    """One seed's candidate among its rivals.

    Attributes:
        value: what the row shows: the candidate's distance from its best rival in the metric's unit, or its least
            speed-up over a rival.
        ahead: rival -> positive where the candidate is better, negative where it is worse.
        details: the numbers behind it.
    """

    value: float
    ahead: dict[str, float]
    details: dict[str, float]


def standing(d: Mapping[str, Any], clock: str, runs: Mapping[str, Run]) -> Standing:
    """Where the candidate of a row stands on one seed; ``runs`` has it and all its rivals."""
    better, mine, rivals = d["better"], runs[d["candidate"]], {norm: runs[norm] for norm in d["baselines"]}
    series = {norm: run.series(d["split"], d["metric"]) for norm, run in runs.items()}
    if d["kind"] == "order":
        ends = {norm: final(series[norm], run.state, better) for norm, run in runs.items()}
        sign = -1.0 if better == "lower" else 1.0
        apart = {norm: minus(ends[d["candidate"]], ends[norm]) for norm in rivals}
        ahead = {norm: sign * value for norm, value in apart.items()}
        return Standing(apart[_closest(ahead)], ahead, ends)
    races = {
        norm: race(series[norm], rival.state, series[d["candidate"]], mine.state, better, clock)
        for norm, rival in rivals.items()
    }
    ahead = {norm: one.ratio - 1 for norm, one in races.items()}
    details = {f"{norm}_best": one.target for norm, one in races.items()}
    details |= {f"{norm}_reached": one.candidate for norm, one in races.items()}
    details |= {norm: one.baseline for norm, one in races.items()}
    return Standing(races[_closest(ahead)].ratio, ahead, details)


def _closest(ahead: Mapping[str, float]) -> str:
    """The rival the candidate is least ahead of; one it cannot be compared with comes first."""
    return min(ahead, key=lambda norm: (ahead[norm] == ahead[norm], ahead[norm]))


def tally(d: Mapping[str, Any], standings: Sequence[Standing]) -> str:
    """In how many seeds the candidate is ahead of each rival."""
    counts = [
        f"{name(norm)} in {sum(one.ahead[norm] > 0 for one in standings)} of {len(standings)}"
        for norm in d["baselines"]
    ]
    word = "faster" if d["kind"] == "order_speed" else "better"
    return f"seeds in which {name(d['candidate'])} is {word} than {', than '.join(counts)}"
