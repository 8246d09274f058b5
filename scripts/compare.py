"""Compares the runs there are with the paper: ``python -m scripts.compare --task draw --profile small``.

``<task>.json`` always holds the rows of every profile and data source; the table printed, and the Markdown
page written, are those of the profile asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.analysis.collect import collect
from experiments.analysis.groups import nothing, places, todo
from experiments.analysis.output import write_whole
from scripts.selection import finish, run, say, select


def main(argv: Sequence[str] | None = None, tell_missing: bool = True) -> int:
    """Returns 0, or 1 when there was nothing to compare. Names missing cells unless told not to."""
    chosen = select("compare", __doc__, argv, out="compare")
    collection = collect(chosen.runs, chosen.published)
    say(collection.warnings)
    paths: list[Path] = []
    unprinted = False
    for task in chosen.tasks:
        here = [run for run in collection.runs if run.task == task and chosen.profile in (None, run.profile)]
        if not here:
            continue
        from experiments.analysis import compare, report

        try:
            paper = compare.load_paper(task)
        except FileNotFoundError:
            say([f"note: {task} is not compared: configs/paper/{task}.yaml does not exist"])
            unprinted = True
            continue
        there, notes = places(collection, task, compare.experiments(paper))
        say(notes)
        everything = []
        for (profile, label), several in there.items():
            rows = [row for experiment, group in several for row in compare.rows(paper, group, experiment)]
            everything += rows
            if chosen.profile in (None, profile):
                for experiment, group in several if tell_missing else ():
                    say(todo(group, experiment))
                page = chosen.out / f"{task}-{profile}-{label}.md"
                paths.append(write_whole(page, report.to_markdown(rows, task, paper["source"])))
                print(report.to_text(rows, task), end="\n\n")
        if everything:
            paths.append(write_whole(chosen.out / f"{task}.json", report.to_json(everything)))
    if not paths and not unprinted:
        say([f"error: nothing to compare: {nothing(chosen.tasks, chosen.profile, chosen.runs)}"])
        return 1
    finish(paths)
    return 0


if __name__ == "__main__":
    run(main)
