"""The short answer for each task: the claims its ``configs/paper`` file names as headline, and what the best runs say.

``headline:`` there is a list; each item has ``short``, what the claim is called in a table, and enough keys of a row of
that file to mean one row alone. Where a claim has several clocks, steps are meant: seconds depend on the machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from experiments.analysis import compare
from experiments.analysis.collect import Collection, Run
from experiments.analysis.groups import experiment_cells, places
from experiments.analysis.report import number

PROFILES = ("paper", "medium", "small")  # the first is the best evidence; smoke is for tests
MOST = 2  # places shown of a task
CORES = 2
DEFAULT = "small"  # the profile of a command without PROFILE


@dataclass(frozen=True)
class Answer:
    """What the runs of one profile and data source say to a task's headline.

    Attributes:
        claims: (short name, row of the comparison), in the file's order.
        minutes: what all its published runs take on two cores; None where that cannot be said.
        runs, cells: how many of the cells that the command makes have a run here.
    """

    task: str
    profile: str
    label: str
    stand_in: bool
    claims: list[tuple[str, compare.Row]]
    minutes: float | None
    runs: int
    cells: int


def answers(collection: Collection, task: str) -> list[Answer]:
    """The best evidence on a task, best first: real data before a stand-in, then the larger profile; ``MOST`` places.

    Raises:
        ValueError: an item of the headline means no row, or several.
    """
    from experiments.grid import experiment_names  # imports torch

    paper = compare.load_paper(task)
    there, _ = places(collection, task, experiment_names(task))
    found = []
    for (profile, label), several in there.items():
        main = next((group for experiment, group in several if experiment == paper["experiment"]), None)
        if main is None or profile not in PROFILES:
            continue
        every = compare.rows(paper, main)
        claims = [(str(item["short"]), _row(task, item, every)) for item in paper.get("headline", [])]
        cells = {cell.config_sha for name in experiment_names(task) for cell in experiment_cells(name, profile)}
        runs = [run for run in {r.identity: r for _, group in several for r in group.runs}.values()
                if run.config_sha in cells and run.state == "done"]  # fmt: skip
        found.append(Answer(task, profile, label, main.stand_in, claims, minutes(runs), len(runs), len(cells)))
    return sorted(found, key=lambda one: (one.stand_in, PROFILES.index(one.profile), one.label))[:MOST]


def _row(task: str, item: Mapping[str, Any], every: Sequence[compare.Row]) -> compare.Row:
    keys = {key: value for key, value in item.items() if key != "short"}
    meant = [row for row in every
             if row["clock"] in (None, "step") and all(row[key] == value for key, value in keys.items())]  # fmt: skip
    if len(meant) != 1:
        raise ValueError(
            f"configs/paper/{task}.yaml: headline {keys} means {len(meant)} rows: give keys that mean one alone"
        )
    return meant[0]


def minutes(runs: Sequence[Run]) -> float | None:
    """Minutes that runs take on ``CORES`` cores that have nothing else to do: their core time, shared out evenly.

    A run's time is from its start to its end by ``meta.json``: reading data, training, evaluating, drawing. None where
    there are no runs, or one is of a GPU, or was interrupted, so that its time has gaps.
    """
    total = 0.0
    for run in runs:
        meta = json.loads((run.folder / "meta.json").read_text(encoding="utf-8"))
        if meta["device"] != "cpu" or not meta.get("ended") or len(meta.get("sessions", [])) > 1:
            return None
        start, end = (datetime.fromisoformat(meta[key]) for key in ("started", "ended"))
        total += (end - start).total_seconds() * min(int(meta["threads"]), CORES)
    return total / 60 / CORES if runs else None


def printed(task: str, row: compare.Row) -> str:
    """The paper's number; of a claim without one, on which side of one or nothing it lies."""
    from experiments.tasks import TASKS  # imports torch

    if row["paper"] is not None:
        return number(row["paper"])
    if row["kind"] in ("speed", "order_speed"):
        return "> 1"
    if row["kind"] in ("robustness", "order"):
        return "< 0" if TASKS[task].metrics[row["metric"]].better == "lower" else "> 0"
    return "-"
