"""The whole report: what to know first, verdicts at a glance, time to target, a section per task, how to read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.analysis import compare, sections, targets, troubles
from experiments.analysis.collect import Collection
from experiments.analysis.document import Block, Bullets, Heading, Table, Text, anchor
from experiments.analysis.groups import Place, Several, places
from experiments.analysis.measures import VERDICTS
from experiments.analysis.names import name
from experiments.analysis.report import number
from experiments.analysis.sections import Section

QUIET = "smoke"  # a profile for tests: shown only when asked for

READING = (
    "**matches**: the published setting (profile `paper`) on real data, and every seed within the tolerance of a "
    f"printed value; for a claim, at least {compare.CLAIM_SEEDS} seeds that all go the paper's way, with their median "
    "within the tolerance of the printed number if there is one.",
    "**same direction**, **opposite direction**: all seeds agree; the most that a smaller profile, a stand-in or a "
    "time in seconds can give. With one seed it is that seed's.",
    "**inconclusive**: seeds disagree or tie, or a number is missing.",
    "**not comparable**: there is nothing to hold the number against, such as a printed value at a smaller profile.",
    "**stale**: a definition that the task or its model is made of has changed since the run; the reason names the "
    "command that renews it.",
    "Norms are compared seed by seed, on the same seeds; what is shown for all seeds is their median.",
    "Speed-up: the baseline's time to its best value, divided by the time until the other norm first reaches that "
    "value; 0 when it never does. `inf`: diverged, or never; it takes part in the median.",
)


@dataclass
class Page:
    """The blocks of a report, how many runs it shows, how many had to be left out, and a line for each older one."""

    blocks: list[Block]
    shown: int
    left_out: int
    older: list[str]


def build(
    collection: Collection,
    tasks: Sequence[str],
    profile: str | None,
    roots: Sequence[Path],
    extra: Sequence[Block] = (),
) -> Page:
    """The report of some tasks, at one profile or at all but ``QUIET``.

    Args:
        roots: folders of figures that runs may have left pictures in.
        extra: blocks that stand after the tasks, such as Table 1.
    """
    from experiments.grid import experiment_names  # imports torch

    first: list[str] = [line.removeprefix("warning: ") for line in collection.warnings]
    wanted = [run for run in collection.runs if run.task in tasks and _shown(run.profile, profile)]
    quiet = sum(run.task in tasks and run.profile == QUIET for run in collection.runs) if profile is None else 0
    chosen = Collection(wanted)
    older: list[str] = []
    found: dict[str, Section] = {}
    everywhere: dict[str, dict[Place, Several]] = {}
    for task in tasks:
        there, notes = places(chosen, task, experiment_names(task))
        first += [note.partition(": ")[2] for note in notes]
        on_cells = {run.identity for several in there.values() for _, group in several for run in group.runs}
        older += troubles.older([run for run in wanted if run.task == task and run.identity not in on_cells])
        everywhere[task] = there
        found[task] = sections.task_section(task, there, roots)
        first += found[task].troubles
    first += [*older, *troubles.unsealed(wanted)]
    if not wanted:
        which = f"TASK={tasks[0] if len(tasks) == 1 else 'all'}" + (f" PROFILE={profile}" if profile else "")
        first.insert(0, f"there are no runs at all: `make reproduce {which}` makes them")
    if quiet:
        hidden = f"{quiet} runs at profile {QUIET} are" if quiet > 1 else f"1 run at profile {QUIET} is"
        first.append(f"{hidden} not shown, for it is for tests: `make report PROFILE={QUIET}`")

    own = sum(run.origin == "runs" for run in wanted)
    scope = "" if profile is None else f", profile {profile}"
    blocks: list[Block] = [
        Heading(1, f"Layer Normalization, section 6: the paper and our runs{scope}", "report"),
        Text(
            f"Ba, Kiros and Hinton, 2016, arXiv 1607.06450. Made from the files of {len(wanted)} runs, {own} made here "
            f"and {len(wanted) - own} published with the code, by `python -m scripts.report`. "
            "[How to read verdicts](#how-to-read)."
        ),
        Heading(2, "To know first", "first"),
        Bullets(list(dict.fromkeys(first)), warning=True) if first else Text("Nothing is missing, stale or damaged."),
        *_glance(found, everywhere),
        *_times(everywhere),
    ]
    for task in tasks:
        blocks += found[task].blocks
    blocks += extra
    blocks += [Heading(2, "Choices that all tasks share", "choices"), Bullets(sections.choices("norms"))]
    blocks += [Heading(2, "How to read this", "how-to-read"), Bullets(READING)]
    return Page(blocks, len(wanted), len(collection.damaged) + len(collection.doubles) + len(older), older)


def _shown(profile: str, wanted: str | None) -> bool:
    return profile == wanted if wanted else profile != QUIET


def _glance(found: Mapping[str, Section], everywhere: Mapping[str, Mapping[Place, Several]]) -> list[Block]:
    """How many rows of each task have which verdict."""
    body = []
    for task, section in found.items():
        if not everywhere[task]:
            body.append([f"[{task}](#task-{anchor(task)})", "no runs", *["-"] * (len(VERDICTS) + 2)])
        for (profile, label), several in everywhere[task].items():
            rows = section.rows.get((profile, label), [])
            count = Counter(row["verdict"] for row in rows)
            marked = several[0][1].marked_label
            runs = {run.identity for _, group in several for run in group.runs}
            stale = sum(bool(row["code_changed"]) for row in rows)
            body.append([
                f"[{task}](#task-{anchor(task)})",
                f"[{profile}, {marked}](#{anchor(f'{task}-{profile}-{label}')})",
                str(len(runs)), *(str(count[verdict]) for verdict in VERDICTS), str(stale),
            ])  # fmt: skip
    head = ["task", "profile, data", "runs", *VERDICTS, "of these stale"]
    return [
        Heading(2, "Verdicts at a glance", "glance"),
        Table("Rows of the comparison by verdict", head, body),
    ]


def _times(everywhere: Mapping[str, Mapping[Place, Several]]) -> list[Block]:
    """Time to target of every norm of every task."""
    body = []
    for task, there in everywhere.items():
        races = [(place, several, pace) for place, several in there.items() for pace in targets.paces(several)]
        if not races:
            body.append([f"`{task}`", "no finished pair of runs", *["-"] * 7])
        for (profile, _), several, pace in races:
            marked = several[0][1].marked_label
            runs = [one for _, one in sorted(pace.races.items())]
            body.append([
                f"`{task}`", f"{profile}, {marked}", pace.experiment,
                f"{name(pace.norm)}, batch {pace.batch_size}",
                f"{pace.split} {pace.metric}, {pace.better} is better: "
                + " / ".join(number(one.target) for one in runs),
                " / ".join(_steps(one.baseline) for one in runs), " / ".join(_steps(one.candidate) for one in runs),
                " / ".join(sections.unreached(ratio) for ratio in pace.ratios),
                f"{sections.unreached(pace.median)} ({len(runs)} seed{'s' * (len(runs) > 1)})",
            ])  # fmt: skip
    head = [
        "task", "profile, data", "experiment", "norm", "target: the baseline's best, by seed", "baseline's steps",
        "norm's steps", "ratio, by seed", "median ratio",
    ]  # fmt: skip
    return [
        Heading(2, "Time to target", "time-to-target"),
        Text(
            "Steps until each norm first has the baseline's best value of what selects its task's weights, as a ratio "
            "to the steps that the baseline took: 0.5 is half of them, ∞ never. Read at evaluations; seed by seed, in "
            "order."
        ),
        Table("Steps to the baseline's best value", head, body),
    ]


def _steps(value: float) -> str:
    return "never" if value == float("inf") else "-" if value != value else f"{value:,.0f}"
