"""What a reader of a report has to know about its runs before the numbers: one line each, with what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.analysis import seals
from experiments.analysis.collect import FINISHED, Run
from experiments.analysis.groups import Group, name, progress, summary

Series = tuple[str, str]  # split, metric


def of_group(group: Group, series: Iterable[Series]) -> list[str]:
    """Lines about the runs of one experiment at one profile and data source.

    Args:
        series: what figures and comparison read of them.
    """
    command = f"`make reproduce TASK={group.task} PROFILE={group.profile}`"
    return [
        *_one_norm(group, command),
        *_unfinished(group, command),
        *_lengths(group),
        *_silent(group, series),
    ]


def _one_norm(group: Group, command: str) -> list[str]:
    norms = {run.norm for run in group.runs}
    if len(norms) > 1:
        return []
    return [f"only {', '.join(norms)} has runs, so the figure shows one norm and nothing can be compared: {command}"]


def _unfinished(group: Group, command: str) -> list[str]:
    waiting = [run for run in group.runs if run.state not in FINISHED]
    if not group.missing and not waiting:
        return []
    parts = [f"missing: {summary(group.missing)}"] if group.missing else []
    parts += [f"{run.state} at {progress(run)}: {name(run)}" for run in waiting]
    count, total = len(group.missing) + len(waiting), len(group.found) + len(group.missing)
    return [f"{count} of {total} cells are not finished ({'; '.join(parts)}): {command}"]


def _lengths(group: Group) -> list[str]:
    """Runs of one batch size that end at different steps; seeds are drawn together only where all have a value."""
    lines = []
    for batch in dict.fromkeys(run.batch_size for run in group.runs):
        ends = [(name(run), int(run.metrics["step"].max())) for run in group.runs
                if run.batch_size == batch and run.state != "diverged" and not run.metrics.empty]  # fmt: skip
        longest = max((end for _, end in ends), default=0)
        short = [f"{which} ends at step {end:,}" for which, end in ends if end < longest]
        if not short:
            continue
        lines.append(
            f"runs of unequal length: {'; '.join(short)}, the others at {longest:,}; medians are drawn as far as all "
            "seeds of a norm go, and only finished runs are compared"
        )
    return lines


def _silent(group: Group, series: Iterable[Series]) -> list[str]:
    """Finished runs that lack a metric which others have."""
    lines = []
    for split, metric in dict.fromkeys(series):
        done = [run for run in group.runs if run.state == "done"]
        without = [run for run in done if run.series(split, metric).empty]
        if without and len(without) < len(done):
            lines.append(
                f"{split} {metric} was not logged by {'; '.join(map(name, without))}: left out of the figure, and rows "
                "that need it are inconclusive"
            )
    return lines


def of_rows(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines about rows of the comparison whose runs were made by other code, or by code that cannot be looked up."""
    lines = []
    if stale := [row for row in rows if row["code_changed"]]:
        commands = {str(row["renew"]) for row in stale}
        how = f"to renew them: {commands.pop()}" if len(commands) == 1 else "the reason of each says how to renew it"
        lines.append(f"{len(stale)} of {len(rows)} rows are stale, for model or task code has changed since; {how}")
    if untold := [row for row in rows if row["code_changed"] is None and row["commit"]]:
        commits = sorted({commit for row in untold for commit in row["commit"].split(", ")})
        lines.append(
            f"whether the code of {len(untold)} rows has changed since cannot be told: git cannot look up their "
            f"commits here ({', '.join(commits)}); in a whole clone it may (`git fetch --unshallow`)"
        )
    return lines


def unsealed(runs: Sequence[Run]) -> list[str]:
    """Published runs without checksums: an edit would not be seen."""
    open_ = [run.run for run in runs if run.origin == "published" and not seals.is_sealed(run.folder)]
    if not open_:
        return []
    return [
        f"{len(open_)} published runs have no checksums, so that an edit would not be seen ({', '.join(open_[:4])}"
        f"{', …' if len(open_) > 4 else ''}): `python -m scripts.publish --seal`"
    ]


def older(runs: Sequence[Run]) -> list[str]:
    """Of runs that fit no cell, those whose configuration today's schema cannot read."""
    from experiments.runs import saved_sha  # imports torch

    old = [run for run in runs if (run.folder / "config.yaml").exists() and not saved_sha(run.folder / "config.yaml")]
    return [
        f"{run.task}/{run.run} is of an older schema: its config.yaml no longer composes, so it is in no figure and no "
        "row; delete its folder, or check out its commit to use it"
        for run in old
    ]
