"""Writes a published table with the paper's rows and ours side by side, from the runs there are.

An experiment's ``table:`` block names the columns; the printed rows stand in ``configs/paper/<task>.yaml``, also under
``table:``. Our rows are medians over the seeds, with the range in brackets: one row per norm, profile and data source.
Only finished runs count; one that diverged is infinitely bad.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.collect import FINISHED, Run
from experiments.analysis.document import markdown_table
from experiments.analysis.groups import Group
from experiments.analysis.measures import final, median
from experiments.analysis.names import name
from experiments.analysis.output import write_whole

HEAD = ["model", "source", "seeds"]


def printed_rows(paper: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The paper's rows: one value per column, NaN where none is printed."""
    return [
        {"model": row["model"], "source": row["source"], "norm": row["norm"], "seeds": None}
        | {c["metric"]: [row["values"].get(c["metric"], math.nan)] for c in columns}
        for row in paper["table"]
    ]


def our_rows(table: Mapping[str, Any], group: Group) -> list[dict[str, Any]]:
    """A row for each norm of one profile and data source: the values of all seeds in each column.

    A norm without any value has none: what the columns are measured on was not there.
    """
    from experiments.tasks import TASKS  # imports torch

    metrics = TASKS[group.task].metrics
    by_norm: dict[str, list[Run]] = {}
    for run in group.runs:
        if run.state in FINISHED and run.batch_size == group.batch_size:
            by_norm.setdefault(run.norm, []).append(run)
    rows = [
        {"model": f"ours, {name(norm)}", "norm": norm, "seeds": len(runs),
         "source": f"profile {group.profile}, {group.marked_label}"}
        | {
            c["metric"]: [
                final(r.series(table["split"], c["metric"]), r.state, metrics[c["metric"]].better) for r in runs
            ]
            for c in table["columns"]
        }
        for norm, runs in by_norm.items()
    ]  # fmt: skip
    return [row for row in rows if any(not math.isnan(v) for c in table["columns"] for v in row[c["metric"]])]


def absent(table: Mapping[str, Any], groups: Sequence[Group]) -> list[str]:
    """Why finished runs have no row, and what was measured on stand-ins instead: a line for each group without one."""
    lines = []
    for group in groups:
        if not any(run.state in FINISHED for run in group.runs) or our_rows(table, group):
            continue
        columns = ", ".join(column["head"] for column in table["columns"])
        place = f"profile {group.profile}, {group.marked_label}"
        line = f"No row of ours for {place}: nothing was there to measure {columns}"
        others = table.get("stand_ins", [])
        rows = our_rows({**table, "columns": others}, group) if others else []
        values = [
            f"{c['head']}: "
            + ", ".join(f"{name(row['norm'])} {cell(row[c['metric']], c.get('decimals', 1))}" for row in rows)
            for c in others
        ]
        if rows:
            line += f" on. Measured the same way on stand-ins, comparable with nothing printed: {'; '.join(values)}"
        lines.append(f"{line}." if rows else f"{line} on.")
    return lines


def cell(values: Sequence[float], decimals: int) -> str:
    """Median and range, such as ``38.9 [38.1, 39.4]``; a dash for nothing."""
    middle = median([value for value in values if not math.isnan(value)])
    if math.isnan(middle):
        return "–"
    text = f"{middle:.{decimals}f}"
    if len(values) > 1:
        text += f" [{min(values):.{decimals}f}, {max(values):.{decimals}f}]"
    return text


def head(table: Mapping[str, Any]) -> list[str]:
    """What stands above the columns."""
    return [*HEAD, *(c["head"] for c in table["columns"])]


def texts(table: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Rows as they are shown, below ``head``."""
    return [
        [row["model"], row["source"], "" if row["seeds"] is None else str(row["seeds"]),
         *(cell(row[c["metric"]], c.get("decimals", 1)) for c in table["columns"])]
        for row in rows
    ]  # fmt: skip


def notes(group: Group) -> str:
    """What a group's rows rest on, in one paragraph."""
    source = group.source
    kind = "a stand-in" if group.stand_in else source["kind"]
    lines = [f"Profile {group.profile}, {group.label}: {source['name']}, {kind}: {source['detail'].rstrip('.')}"]
    lines.append(f"commit {group.commits}")
    absent = [f"{c.norm} seed {c.seed}" for c in group.missing]
    absent += [f"{c.norm} seed {c.seed} ({run.state})" for c, run in group.found if run.state not in FINISHED]
    diverged = [f"{run.norm} seed {run.seed}" for run in group.runs if run.state == "diverged"]
    if absent:
        lines.append(f"not finished: {', '.join(absent)}")
    if diverged:
        lines.append(f"diverged, counted as infinitely bad: {', '.join(diverged)}")
    return "; ".join(lines) + "."


def to_markdown(
    table: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    groups: Sequence[Group],
    source: str,
    every: Sequence[Group] = (),
) -> str:
    """The table as a page. ``groups`` have rows in it; of ``every`` it is told why one has none."""
    lines = markdown_table(head(table), texts(table, rows))
    remarks = "\n\n".join([*absent(table, every), *(notes(group) for group in groups)])
    return (
        f"# {table['title']}\n\n{lines}\n\n"
        f"Printed rows: {source}. Our rows: median of the seeds [range]; {table['note'].rstrip('.')}. "
        "Only profile `paper` on the paper's own data can be held against a printed number.\n\n"
        f"{remarks}\n\nMade by `make tables`.\n"
    )


def to_frame(table: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The same as a flat table: for each column its median, lowest and highest value."""
    records = []
    for row in rows:
        record = {key: row[key] for key in ("model", "source", "norm", "seeds")}
        for c in table["columns"]:
            values = row[c["metric"]]
            good = [value for value in values if not math.isnan(value)]
            record[c["metric"]] = median(good)
            record[f"{c['metric']}_low"] = min(good, default=math.nan)
            record[f"{c['metric']}_high"] = max(good, default=math.nan)
        records.append(record)
    return pd.DataFrame(records).astype({"seeds": "Int64"})


def save(table: Mapping[str, Any], paper: Mapping[str, Any], groups: Sequence[Group], out: Path) -> list[Path]:
    """Writes ``<out>/<name>.{md,csv}``, with the rows of every profile and data source; returns the two paths."""
    ours = [(group, our_rows(table, group)) for group in groups]
    rows = printed_rows(paper, table["columns"]) + [row for _, own in ours for row in own]
    shown = [group for group, own in ours if own]
    return [
        write_whole(out / f"{table['name']}.md", to_markdown(table, rows, shown, paper["source"], groups)),
        write_whole(out / f"{table['name']}.csv", to_frame(table, rows).to_csv(index=False, lineterminator="\n")),
    ]
