"""Puts runs on the cells of an experiment, for each profile and data source, and says what is missing.

An experiment's cells are those its file lists and, beside them, those of any further norm, batch size or seed for
which there is a run with otherwise the same settings, unless another experiment of the task is about them. Only the
former can be missing.

Runs are compared on one and the same data only. The name of a data source does not tell that, for what lies in
``LN_DATA`` may differ from host to host; its fingerprint does.

The cells come from composing configurations, which is why this is apart from ``collect``: status needs runs
only, and composing takes a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.analysis.collect import FINISHED, Collection, Run

if TYPE_CHECKING:
    from experiments.grid import Cell

TODO_LINES = 12


@dataclass(frozen=True)
class Group:
    """The runs of one experiment that share profile and data source, put on the experiment's cells.

    Attributes:
        own: the cells the experiment's file lists.
        found: (cell, run) for every cell that has a run, its own cells first.
        missing: own cells without one.
        other: runs of this task, profile and label that fit no cell (other settings or older code), of this or of
            another of the task's experiments.
        warnings: one line for each second run found for a cell, and for runs on other data of the same name.
    """

    task: str
    profile: str
    label: str
    own: list[Cell]
    found: list[tuple[Cell, Run]]
    missing: list[Cell]
    other: list[Run]
    warnings: list[str]

    @property
    def runs(self) -> list[Run]:
        return [run for _, run in self.found]

    @property
    def batch_size(self) -> int | None:
        """The experiment's first batch size: the one meant where a figure or row names none."""
        return self.own[0].batch_size if self.own else None

    @property
    def stand_in(self) -> bool:
        return any(run.stand_in for run in self.runs or self.other)

    @property
    def marked_label(self) -> str:
        """The label; of a stand-in, ``STAND-IN`` before it."""
        return "STAND-IN " * self.stand_in + self.label

    @property
    def source(self) -> Mapping[str, str]:
        """The data source all runs of the group share."""
        return (self.runs or self.other)[0].data

    @property
    def commits(self) -> str:
        return commits(self.runs)

    def todo(self) -> list[str]:
        """One line for each cell that is missing or unfinished, with the command that makes it."""
        lines = [f"missing: {name(cell)}: {cell.command}" for cell in self.missing]
        for cell, run in self.found:
            if run.state not in FINISHED:
                lines.append(f"{run.state} at {progress(run)}: {name(cell)}: {cell.command}")
        return lines


Place = tuple[str, str]  # profile, data label
Several = list[tuple[str, Group]]  # experiments and their runs in one place


def commits(runs: Iterable[Run]) -> str:
    """Commits of runs, shortened, e.g. ``3f228603, 9ab12cd0+dirty``."""
    return ", ".join(sorted({run.commit[:8] + "+dirty" * run.dirty for run in runs}))


def name(cell: Cell | Run) -> str:
    """What tells a cell from the others of its experiment."""
    return f"norm={cell.norm} batch={cell.batch_size} seed={cell.seed}"


def summary(cells: Sequence[Cell]) -> str:
    """Cells in few words, e.g. ``bn, ln batch 4 seeds 1, 2``."""
    seeds: dict[tuple[int, str], list[int]] = {}
    for cell in cells:
        seeds.setdefault((cell.batch_size, cell.norm), []).append(cell.seed)
    norms: dict[tuple[int, str], list[str]] = {}
    for (batch, norm), several in seeds.items():
        words = f"seed{'s' * (len(several) > 1)} {', '.join(map(str, several))}"
        norms.setdefault((batch, words), []).append(norm)
    return "; ".join(f"{', '.join(alike)} batch {batch} {words}" for (batch, words), alike in norms.items())


def progress(run: Run) -> str:
    """How far a run is, e.g. ``45 %``."""
    step, total = run.status.get("step"), run.status.get("total_steps")
    return f"{100 * step / total:.0f} %" if step is not None and total else "an unknown step"


def groups(
    runs: Sequence[Run], cells: Sequence[Cell], task: str, profile: str, further: Sequence[Cell] = ()
) -> list[Group]:
    """Puts the runs of one task and profile on cells of the same profile, once for each data source.

    Args:
        cells: the experiment's own.
        further: cells of other norms, batch sizes or seeds, taken in where there is a run.
    """
    mine = [run for run in runs if run.task == task and run.profile == profile]
    result = []
    for label in sorted({run.label for run in mine}):
        by_sha: dict[str, Run] = {}
        warnings = []
        every = [*cells, *further]
        wanted = {cell.config_sha for cell in every}
        here, others = one_data([run for run in mine if run.label == label], wanted)
        for several in others:
            warnings.append(f"warning: {task}, profile {profile}: {_set_aside(several, here[0])}")
        # Same settings and data but another identity: one was made by an older version. The newest finished run counts.
        for run in sorted(here, key=lambda run: (run.state in FINISHED, run.origin == "runs", run.started)):
            if run.config_sha in by_sha:
                warnings.append(f"warning: {run.run} taken, not {by_sha[run.config_sha].run}: same settings")
            by_sha[run.config_sha] = run
        found = [(cell, by_sha[cell.config_sha]) for cell in every if cell.config_sha in by_sha]
        result.append(
            Group(
                task=task,
                profile=profile,
                label=label,
                own=list(cells),
                found=found,
                missing=[cell for cell in cells if cell.config_sha not in by_sha],
                other=[run for run in here if run.config_sha not in wanted],
                warnings=warnings,
            )
        )
    return result


def one_data(runs: Sequence[Run], wanted: set[str]) -> tuple[list[Run], list[list[Run]]]:
    """Of runs whose data have the same name, those on the same data, and what is on other data, set by set.

    Taken are the data of most of our own finished runs, then of most finished runs, then of the newest run; counted are
    runs of ``wanted`` configurations.
    """
    sets: dict[str, list[Run]] = {}
    for run in runs:
        sets.setdefault(run.data["fingerprint"], []).append(run)

    def weight(several: list[Run]) -> tuple[int, int, str]:
        done = [run for run in several if run.config_sha in wanted and run.state in FINISHED]
        return sum(run.origin == "runs" for run in done), len(done), max(run.started for run in several)

    first, *others = sorted(sets.values(), key=weight, reverse=True)
    return first, others


def _set_aside(runs: Sequence[Run], taken: Run) -> str:
    """Says which runs do not count, for they are on other data than ``taken``."""
    names = ", ".join(run.run for run in runs[:4]) + ", …" * (len(runs) > 4)
    one, other = (run.data["fingerprint"][:8] for run in (runs[0], taken))
    return (
        f"{len(runs)} run{'s' * (len(runs) > 1)} left out: made on other data that are named {taken.label} too "
        f"(fingerprint {one}, that of the others is {other}): {names}"
    )


@cache
def experiment_cells(experiment: str, profile: str) -> list[Cell]:
    """The cells of an experiment; composed once in a process, for figures and comparison alike."""
    from experiments.grid import cells  # imports torch

    return cells(experiment, profile)


@cache
def _cells_of(experiment: str, profile: str, norm: str, batch_size: int, seeds: tuple[int, ...]) -> list[Cell]:
    from experiments.grid import cells
    from experiments.schema import ConfigError

    try:
        return cells(experiment, profile, [norm], [batch_size], seeds)
    except ConfigError:  # a run of older code, of a norm or batch size that cannot be any more
        return []


def further_cells(runs: Sequence[Run], own: Sequence[Cell], experiment: str, profile: str) -> list[Cell]:
    """Cells of the experiment with a norm, batch size or seed that only ``runs`` (of its task and profile) have.

    That a run has one of these does not make it fit: ``groups`` compares the whole configuration.
    """
    known = {(cell.norm, cell.batch_size, cell.seed) for cell in own}
    others = {(run.norm, run.batch_size, run.seed) for run in runs} - known
    seeds: dict[tuple[str, int], list[int]] = {}
    for norm, batch_size, seed in sorted(others):
        seeds.setdefault((norm, batch_size), []).append(seed)
    return [
        cell
        for (norm, batch_size), several in seeds.items()
        for cell in _cells_of(experiment, profile, norm, batch_size, tuple(several))
    ]


def _about(experiment: str, profile: str, runs: Sequence[Run]) -> set[str]:
    """The configurations an experiment is about: its own cells, with any seed that ``runs`` have."""
    own = experiment_cells(experiment, profile)
    kinds = {(cell.norm, cell.batch_size) for cell in own}
    more = further_cells([run for run in runs if (run.norm, run.batch_size) in kinds], own, experiment, profile)
    return {cell.config_sha for cell in (*own, *more)}


def _other_experiments(task: str, experiment: str) -> list[str]:
    from experiments.grid import experiment_names

    return [other for other in experiment_names(task) if other != experiment]


def experiment_groups(
    collection: Collection, task: str, experiment: str, profile: str | None = None
) -> tuple[list[Group], list[str]]:
    """Groups of an experiment that have at least one run, by profile and data source.

    Returns:
        the groups, and one line for everything a user should know: runs that fit no cell, double runs.
    """
    found, notes = [], []
    for name in sorted({run.profile for run in collection.runs if run.task == task}):
        if profile not in (None, name):
            continue
        own = experiment_cells(experiment, name)
        here = [run for run in collection.runs if run.task == task and run.profile == name]
        others = _other_experiments(task, experiment)
        if others:
            theirs = set().union(*(_about(other, name, here) for other in others)) - _about(experiment, name, here)
            here = [run for run in here if run.config_sha not in theirs]
        for group in groups(here, own, task, name, further_cells(here, own, experiment, name)):
            notes += group.warnings
            if group.found:
                found.append(group)
            fit = {cell.config_sha for other in others
                   for cell in further_cells(group.other, experiment_cells(other, name), other, name)}  # fmt: skip
            if left := [run for run in group.other if run.config_sha not in fit]:
                notes.append(
                    f"note: {len(left)} runs of {task} at profile {name} ({group.label}) fit no cell "
                    f"of {experiment}: other settings, or made before its settings changed"
                )
    return found, notes


def places(collection: Collection, task: str, experiments: Sequence[str]) -> tuple[dict[Place, Several], list[str]]:
    """The experiments of a task by place, each with its runs there; and ``notes`` as above."""
    found: dict[Place, Several] = {}
    notes: list[str] = []
    for experiment in experiments:
        several, remarks = experiment_groups(collection, task, experiment)
        notes += remarks
        for group in several:
            found.setdefault((group.profile, group.label), []).append((experiment, group))
    return dict(sorted(found.items())), notes


def todo(group: Group, experiment: str) -> list[str]:
    """Lines that name the missing and unfinished cells of a group and the commands that make them."""
    lines = group.todo()
    if not lines:
        return []
    total = len(group.found) + len(group.missing)
    where = f"{experiment}, profile {group.profile} ({group.label})"
    head = f"{where}: {len(lines)} of {total} cells are not finished"
    shown = [f"  {line}" for line in lines[:TODO_LINES]]
    if len(lines) > TODO_LINES:
        shown.append(f"  and {len(lines) - TODO_LINES} more")
    own = {cell.config_sha for cell in group.own}
    further = any(run.state not in FINISHED and cell.config_sha not in own for cell, run in group.found)
    which = "those of the published result" if further else "all of them"
    return [f"{head}; {which}: make reproduce TASK={group.task} PROFILE={group.profile}", *shown]


def nothing(tasks: tuple[str, ...], profile: str | None, runs: Path) -> str:
    """The line for when there is no run to work on."""
    which = f"{tasks[0] if len(tasks) == 1 else 'any task'}" + (f" at profile {profile}" if profile else "")
    words = f"TASK={tasks[0]}" + (f" PROFILE={profile}" if profile else "")
    return f"no runs of {which} in {runs} or beside it in published; make them with: make reproduce {words}"
