"""Writes the published tables from the runs there are: ``python -m scripts.tables --task order_embeddings``.

A table always holds the rows of every profile and data source.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.analysis.collect import collect
from experiments.analysis.groups import experiment_groups, nothing, todo
from scripts.selection import finish, run, say, select


def main(argv: Sequence[str] | None = None, tell_missing: bool = True) -> int:
    """Returns 0, or 1 when a task was asked for and there is nothing to tabulate. Names missing cells unless told not
    to."""
    chosen = select("tables", __doc__, argv, out="tables")
    collection = collect(chosen.runs, chosen.published)
    say(collection.warnings)
    paths: list[Path] = []
    without: list[str] = []
    for task in chosen.tasks:
        if not any(one.task == task for one in collection.runs):
            continue
        from experiments.analysis import compare, tables
        from experiments.grid import experiment_names, load_table

        found = [(name, table) for name in experiment_names(task) if (table := load_table(name)) is not None]
        if not found:
            without.append(task)
        for name, table in found:
            groups, notes = experiment_groups(collection, task, name)
            say(notes)
            for group in groups:
                if tell_missing and chosen.profile in (None, group.profile):
                    say(todo(group, name))
            paths += tables.save(table, compare.load_paper(task), groups, chosen.out)
    if not paths and not (without and len(chosen.tasks) > 1):
        reason = f"{without[0]} has no table" if without else nothing(chosen.tasks, chosen.profile, chosen.runs)
        say([f"error: nothing to tabulate: {reason}"])
        return 1
    finish(paths)
    return 0


if __name__ == "__main__":
    run(main)
