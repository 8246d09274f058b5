"""Writes the report, from run files alone: ``python -m scripts.report``.

``results/report.md``, and ``results/report.html``, which has its pictures inside: every figure and table of section 6
with what was run, the paper's numbers and ours side by side, verdicts with their reasons, and the time to target. One's
own runs go before published copies of them. Table 1 and the figure of section 5.2, which need no runs, are measured.
With a task or a profile given, the files are named after these.

Exit code: 0; 1 when there are no runs, or one had to be left out (the report is written, and says so); 2 bad input.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.analysis.collect import Collection, collect
from experiments.analysis.groups import nothing
from experiments.analysis.output import write_whole
from scripts.checked import stems
from scripts.selection import finish, run, say, select


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    chosen = select("report", __doc__, argv, out=".")
    collection, whole = collect(chosen.runs, chosen.published), list(chosen.tasks) == stems("task")
    if not whole:
        collection = only(collection, chosen.tasks)
    say(collection.warnings)
    from experiments.analysis import html, page  # these import torch
    from experiments.analysis.document import Picture, to_markdown

    roots = [chosen.runs.parent / "figures", chosen.published / "figures"]
    made = page.build(collection, in_order(chosen.tasks), chosen.profile, roots, section_5() if whole else ())
    name = "-".join(["report", *([] if whole else chosen.tasks), *filter(None, [chosen.profile])])
    pictures = [block for block in made.blocks if isinstance(block, Picture)]
    for picture in pictures:
        write_whole(chosen.out / picture.path, picture.png)
    finish([
        write_whole(chosen.out / f"{name}.md", to_markdown(made.blocks)),
        write_whole(chosen.out / f"{name}.html", html.to_html(made.blocks)),
    ])  # fmt: skip
    say([f"warning: {line}" for line in made.older])
    if not made.shown:
        say([f"error: the report has no results: {nothing(chosen.tasks, chosen.profile, chosen.runs)}"])
    return int(not made.shown or made.left_out > 0)


def only(collection: Collection, tasks: Sequence[str]) -> Collection:
    """What concerns these tasks. A folder that cannot be read is of the task that its place says."""
    return Collection(
        [one for one in collection.runs if one.task in tasks],
        [one for one in collection.damaged if one[0].parent.name in tasks],
        [one for one in collection.doubles if one[0].parent.name in tasks],
    )


def in_order(tasks: Sequence[str]) -> list[str]:
    """Tasks as the paper has them."""
    from experiments.tasks import TASKS

    return [task for task in TASKS if task in tasks]


def section_5() -> list:
    """Table 1, and what a step changes as weights grow: measured afresh, for it needs neither data nor runs."""
    from experiments.analysis import fisher, fisher_figure, invariances, style
    from experiments.analysis.compare import load_paper
    from experiments.analysis.document import Command, Heading, Picture, Table, Text
    from experiments.analysis.sections import FILES
    from scripts.invariances import HEAD, one_thread, rows, summary

    paper = load_paper("invariances")
    with one_thread():
        cells = invariances.evaluate(invariances.paper_table(paper), invariances.SEEDS)
        frame = fisher.table(invariances.SEEDS)
    figure = fisher_figure.draw(frame)
    with style.suite_style():
        png = style.render(figure, "png")
    return [
        Heading(2, "Table 1: invariances (sections 5.1 and 5.2)", "table-1"),
        Table("Table 1, evaluated", HEAD, rows(cells, paper["transformations"])),
        *(Text(text) for text in summary(cells, invariances.SEEDS)),
        *(Text(f"{claim['source'].capitalize()}: {claim['text']}; {claim['remark']}.") for claim in paper["claims"]),
        Picture(
            f"{FILES}/{fisher_figure.NAME}.png", png, fisher_figure.alt(frame),
            f"**{fisher_figure.TITLE} (section 5.2).** {style.caption(figure)}",
        ),
        Command("make reproduce TASK=invariances"),
    ]  # fmt: skip


if __name__ == "__main__":
    run(main)
