"""Draws the published figures from the runs there are: ``python -m scripts.figures --task draw``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.analysis.collect import collect
from experiments.analysis.groups import experiment_groups, nothing, todo
from scripts.selection import finish, run, say, select


def main(argv: Sequence[str] | None = None, tell_missing: bool = True) -> int:
    """Returns 0, or 1 when there was nothing to draw. Names missing cells unless told not to."""
    chosen = select("figures", __doc__, argv, out="figures")
    collection = collect(chosen.runs, chosen.published, profile=chosen.profile)
    say(collection.warnings)
    paths: list[Path] = []
    for task in chosen.tasks:
        if not any(run.task == task for run in collection.runs):
            continue
        from experiments.analysis.figures import has_data, save
        from experiments.grid import experiment_names, load_figure

        for experiment in experiment_names(task):
            groups, notes = experiment_groups(collection, task, experiment, chosen.profile)
            say(notes)
            figure = load_figure(experiment)
            for group in groups:
                say(todo(group, experiment) if tell_missing else [])
                if has_data(figure, group):
                    paths += save(figure, group, chosen.out)
                else:
                    say([f"{experiment}, profile {group.profile} ({group.label}): nothing logged, not drawn"])
    if not paths:
        say([f"error: nothing to draw: {nothing(chosen.tasks, chosen.profile, chosen.runs)}"])
        return 1
    finish(paths)
    return 0


if __name__ == "__main__":
    run(main)
