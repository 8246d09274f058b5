"""The report's section of one task: what the paper says, what was run, figures, numbers side by side, deviations."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.analysis import compare, figures, report, style, tables, troubles, verified
from experiments.analysis.collect import FINISHED, REPO, Run
from experiments.analysis.document import Block, Bullets, Command, Heading, Picture, Table, Text, anchor
from experiments.analysis.groups import Group, Place, Several, commits
from experiments.analysis.measures import final, median
from experiments.analysis.names import name

CHOICES = REPO / "docs" / "choices"
FILES = "report_files"  # beside report.md: its pictures
PNG = b"\x89PNG\r\n\x1a\n"  # how such a file begins


@dataclass
class Section:
    """One task's blocks, its rows of the comparison by place, and what must be known first."""

    blocks: list[Block] = field(default_factory=list)
    rows: dict[Place, list[compare.Row]] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)


def choices(topic: str) -> list[str]:
    """The choices and deviations of a task (or ``norms``), one text each; the README shows the same files."""
    path = CHOICES / f"{topic}.md"
    items: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        if line.startswith("- "):
            items.append(line[2:])
        elif line.strip():
            items[-1] += " " + line.strip()
    return items


def task_section(task: str, there: Mapping[Place, Several], roots: Sequence[Path]) -> Section:
    """Everything about one task.

    Args:
        there: its runs, by profile and data source.
        roots: folders of figures, where runs may have left pictures (samples); the first that has one counts.
    """
    paper = compare.load_paper(task) if (compare.PAPER / f"{task}.yaml").is_file() else {}
    section = Section()
    add = section.blocks.append
    add(Heading(2, f"{paper.get('title', task)} (`{task}`)", f"task-{anchor(task)}"))
    add(Heading(3, "What the paper says", f"{anchor(task)}-paper"))
    add(Bullets(paper["says"]) if paper.get("says") else Text("Nothing is written down in `configs/paper/`."))
    add(Text(f"Source: {paper.get('source', '-')}."))
    if not there:
        add(Text(f"**No runs.** `make reproduce TASK={task}` makes them."))
    for (profile, label), several in there.items():
        _place(section, task, paper, several, f"{task}-{profile}-{label}", roots)
    for block in tables_of(task, paper, there):
        add(block)
    if paper.get("unchecked"):
        add(Heading(3, "What the paper prints or draws that no run is held against", f"{anchor(task)}-unchecked"))
        add(Bullets([f"{one['what']}: {one['why']}." for one in paper["unchecked"]]))
    if found := choices(task):
        add(Heading(3, "Choices and deviations", f"{anchor(task)}-choices"))
        add(Bullets(found))
    return section


def _place(
    section: Section, task: str, paper: Mapping[str, Any], several: Several, place: str, roots: Sequence[Path]
) -> None:
    """Adds the part on one profile and data source."""
    from experiments.grid import load_figure  # imports torch

    first = several[0][1]
    kind = "STAND-IN data" if first.stand_in else "data"
    add = section.blocks.append
    add(Heading(3, f"Profile {first.profile}, {kind}: {first.source['name']}", anchor(place)))
    drawings = [(experiment, load_figure(experiment), group) for experiment, group in several]
    series = [(d["split"], d["metric"]) for d in paper.get("rows", [])]
    warnings = []
    for experiment, figure, group in drawings:
        wanted = [(panel["split"], panel["metric"]) for panel in figure["panels"]] + series
        warnings += [f"{experiment}: {line}" for line in troubles.of_group(group, wanted)]
    if warnings:
        add(Bullets(warnings, warning=True))
        section.troubles += [f"[{task}, {first.profile}, {first.label}](#{anchor(place)}): {line}" for line in warnings]
    runs = list({run.identity: run for _, group in several for run in group.runs}.values())
    add(Bullets(what_ran(first, runs)))
    add(Command(f"make reproduce TASK={task} PROFILE={first.profile}"))
    for experiment, figure, group in drawings:
        if figures.has_data(figure, group):
            add(picture(figure, group))
        else:
            add(Text(f"{experiment}: nothing is logged that its figure shows."))
    section.blocks += samples(task, first, roots)
    rows = [row for experiment, group in several for row in compare.rows(paper, group, experiment)] if paper else []
    if rows:
        section.rows[first.profile, first.label] = rows
        where = f"[{task}, {first.profile}, {first.label}](#{anchor(place)})"
        section.troubles += [f"{where}: {line}" for line in troubles.of_rows(rows)]
        section.blocks += numbers(rows, f"{task}, profile {first.profile}, {first.label}: the paper's numbers and ours")
    else:
        add(Text("Nothing that the paper prints is compared with these runs."))


def what_ran(group: Group, runs: Sequence[Run]) -> list[str]:
    """Data, runs, code, machine and time, a text each."""
    metas = [json.loads((run.folder / "meta.json").read_text(encoding="utf-8")) for run in runs]
    source = group.source
    origin = {"runs": "own", "published": "published"}
    counts = ", ".join(
        f"{sum(run.origin == key for run in runs)} {word}"
        for key, word in origin.items()
        if any(run.origin == key for run in runs)
    )
    by_cell: dict[tuple[int, str], list[str]] = {}
    for run in runs:
        state = "" if run.state == "done" else f" ({run.state})"
        by_cell.setdefault((run.batch_size, run.norm), []).append(f"{run.seed}{state}")
    cells = [f"{name(norm)} batch {batch}: {', '.join(seeds)}" for (batch, norm), seeds in by_cell.items()]
    hours = [float(run.metrics["train_seconds"].max()) / 3600 for run in runs if not run.metrics.empty]
    steps = [verified.through_step(run.folder, run.task) for run in runs]
    repeated = [step for step in steps if step is not None]
    return [
        f"**Data:** {'STAND-IN, ' if group.stand_in else ''}{source['name']}, {source['kind']}: "
        f"{source['detail'].rstrip('.')}; fingerprint `{source['fingerprint'][:12]}`.",
        f"**Runs:** {counts}. Seeds of {'; '.join(cells)}.",
        f"**Commit:** {commits(runs)}"
        + (f"; with today's code, {verified.said(min(repeated))} for {len(repeated)} of them" if repeated else "")
        + ".",
        f"**Machine:** {'; '.join(sorted({machine(meta) for meta in metas}))}.",
        f"**Time:** {sum(hours):.2g} hours of training in all, a run {60 * min(hours, default=0):.2g} to "
        f"{60 * max(hours, default=0):.2g} minutes.",
    ]


def machine(meta: Mapping[str, Any]) -> str:
    """Processor, threads and device of a run."""
    hardware, threads = meta.get("hardware") or {}, meta.get("threads")
    chip = hardware.get("gpu") if meta.get("device") != "cpu" else hardware.get("cpu")
    return f"{chip or 'unknown processor'}, {threads} thread{'s' * (threads != 1)}, {meta.get('device')}"


def picture(figure: Mapping[str, Any], group: Group) -> Picture:
    """A figure, drawn, with its caption as text too and its ends in the words for those who cannot see it."""
    canvas, _ = figures.draw(figure, group)
    with style.suite_style():
        png = style.render(canvas, "png")
    path = f"{FILES}/{group.profile}-{group.label}-{figure['name']}.png"
    return Picture(path, png, alt(figure, group), f"**{figure['title']}.** {style.caption(canvas)}")


def alt(figure: Mapping[str, Any], group: Group) -> str:
    """Where each line of a figure ends: medians of the seeds at the last evaluation."""
    parts = []
    for panel in figure["panels"]:
        batch = panel.get("batch_size") or group.batch_size
        better = figures.better_of(group.task, panel["metric"])
        ends: dict[str, list[float]] = {}
        for run in group.runs:
            rows = run.series(panel["split"], panel["metric"])
            if run.batch_size == batch and run.state in FINISHED and not rows.empty:
                ends.setdefault(run.norm, []).append(final(rows, run.state, better))
        said = ", ".join(f"{name(norm)} {report.number(median(values))}" for norm, values in ends.items())
        parts.append(f"{panel['ylabel']}, batch {batch}: {said or 'no finished run'}")
    return f"Line chart. {figure['title']}, profile {group.profile}. At the end, {'; '.join(parts)}."


def samples(task: str, group: Group, roots: Sequence[Path]) -> list[Block]:
    """Pictures that finished runs made, such as samples."""
    blocks: list[Block] = []
    for root in roots:
        for path in sorted((root / f"{group.profile}-{group.label}").glob(f"{task}_*.png")):
            what, _, run = path.stem.removeprefix(f"{task}_").rpartition("_")
            png = path.read_bytes() if path.is_file() else b""
            if png[:8] != PNG or len(png) < 24:
                blocks.append(Text(f"{path.name} is no picture, and is not shown."))
                continue
            about = f"{what.replace('_', ' ')} by run {run}, profile {group.profile}"
            blocks.append(
                Picture(f"{FILES}/{group.profile}-{group.label}-{path.name}", png,
                        f"Picture of {about}", f"{task}: {about}.")
            )  # fmt: skip
        if blocks:
            break
    return blocks


def numbers(rows: Sequence[compare.Row], caption: str) -> list[Block]:
    """The comparison: a line for each number and claim; what all of them rest on stands above."""
    clauses = [row["reason"].split("; ") if row["reason"] else [] for row in rows]
    shared = [one for one in clauses[0] if len(rows) > 1 and all(one in several for several in clauses)]
    body = []
    for row, several in zip(rows, clauses, strict=True):
        verdict = row["verdict"] + (", stale" if row["code_changed"] else "")
        own = "; ".join(one for one in several if one not in shared)
        body.append([
            row["text"], report.what(row), report.number(row["paper"]), report.number(row["median"]), per_seed(row),
            verdict, own,
        ])  # fmt: skip
    head = ["number or claim", "measured as", "paper", "ours: median", "ours: every seed", "verdict", "reason"]
    above: list[Block] = [Text(f"All rows: {'; '.join(shared)}.")] if shared else []
    return [*above, Table(caption, head, body, verdicts=5)]


def per_seed(row: compare.Row) -> str:
    """Every seed's value; where it is a difference of two runs, those of the pair, the later norm first."""
    pairs = {detail["seed"]: detail for detail in row["details"]} if row["kind"] in ("difference", "robustness") else {}
    said = []
    for seed, value in zip(row["seeds"], row["ours"], strict=True):
        one = pairs.get(seed)
        both = f" ({report.number(one['candidate'])} − {report.number(one['baseline'])})" if one else ""
        said.append(f"seed {seed}: {report.number(value)}{both}")
    return ", ".join(said) or "-"


def tables_of(task: str, paper: Mapping[str, Any], there: Mapping[Place, Several]) -> list[Block]:
    """The published tables of a task, the paper's rows above ours."""
    from experiments.grid import experiment_names, load_table  # imports torch

    blocks: list[Block] = []
    for experiment in experiment_names(task):
        table = load_table(experiment)
        if table is None or "table" not in paper:
            continue
        mine = [group for several in there.values() for other, group in several if other == experiment]
        every = tables.printed_rows(paper, table["columns"])
        every += [row for group in mine for row in tables.our_rows(table, group)]
        blocks.append(Heading(3, table["title"], anchor(table["name"])))
        if without := tables.absent(table, mine):
            blocks.append(Bullets(without, warning=True))
        blocks.append(Table(f"{table['title']}: the paper's rows and ours, median of the seeds [range]",
                            tables.head(table), tables.texts(table, every)))  # fmt: skip
        blocks.append(Text(f"{table['note'][:1].upper()}{table['note'][1:].rstrip('.')}."))
    return blocks


def unreached(value: float) -> str:
    """A ratio of steps; a miss is infinite."""
    return "∞" if math.isinf(value) else report.number(value)
