"""A comparison in three forms: strict JSON, Markdown, and a table for the terminal.

JSON has no infinity and no NaN: an infinite number is the string ``"inf"`` or ``"-inf"``, an undefined null.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis import ordering
from experiments.analysis.document import markdown_table
from experiments.analysis.names import name

WIDTH = 118
LABEL = 56
CLOCKS = {"step": "steps", "train_seconds": "seconds"}


def strict(value: Any) -> Any:
    """``value`` with what JSON cannot say replaced: see the top of this file."""
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def to_json(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a JSON list, one key a line."""
    return json.dumps(strict(rows), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def number(value: float | None) -> str:
    """Four digits, ``inf``, or ``-`` for nothing."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.0f}" if math.isfinite(value) and abs(value) >= 1e4 else f"{value:.4g}"


def what(row: Mapping[str, Any]) -> str:
    """What a row measures, in a few words."""
    said = _measure(row, name(str(row["norm"])), name(str(row["baseline"])))
    said += f", {row['where']}" if row.get("where") else ""
    return said + (f" ({row['context']})" if row.get("context") else "")


def _measure(row: Mapping[str, Any], norm: str, base: str) -> str:
    """The same, without what only some rows say."""
    metric = f"{row['split']} {row['metric']}"
    pair = f"{norm} minus {base}" if row["kind"] in ("difference", "robustness") else norm
    if row["kind"] == "best":
        return f"best {metric}, {norm}, batch {row['batch_size']} [{row['unit']}]"
    if row["kind"] in ordering.KINDS:
        names = [name(norm) for norm in row["baselines"]]
        rivals = " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
        if row["kind"] == "order":
            best = "the best of " if len(names) > 1 else ""
            return f"final {metric}, {norm} minus {best}{rivals}, batch {row['batch_size']} [{row['unit']}]"
        least = "least " if len(names) > 1 else ""
        return (
            f"{least}speed-up of {norm} over {rivals}, {metric}, batch {row['batch_size']}, in {CLOCKS[row['clock']]}"
        )
    if row["kind"] in ("value", "difference"):
        return f"final {metric}, {pair}, batch {row['batch_size']} [{row['unit']}]"
    if row["kind"] in ("change", "robustness"):
        first, second = row["batch_size"]
        return f"final {metric}, batch {second} minus {first}, {pair} [{row['unit']}]"
    clock = CLOCKS[row["clock"]]
    if row["kind"] == "time_to_best":
        return f"{norm}'s time to its best {metric} as a share of the {base}'s, batch {row['batch_size']}, in {clock}"
    return f"speed-up of {norm} over {base}, {metric}, batch {row['batch_size']}, in {clock}"


def ours(row: Mapping[str, Any]) -> str:
    """Median and range, e.g. ``150.2 [149.9, 151]``."""
    values = row["ours"]
    if not values:
        return "-"
    if len(values) == 1 or any(math.isnan(value) for value in values):
        return number(row["median"])
    return f"{number(row['median'])} [{number(min(values))}, {number(max(values))}]"


def heading(rows: Sequence[Mapping[str, Any]], task: str) -> str:
    """Task, profile and data source of a group of rows."""
    row = rows[0]
    kind = "STAND-IN data" if row["data_kind"] == "stand-in" else "data"
    return f"{task}: profile {row['profile']}, {kind}: {row['data_source']}"


def commits(rows: Sequence[Mapping[str, Any]]) -> str:
    """All commits of the rows."""
    return ", ".join(sorted({commit for row in rows if row["commit"] for commit in row["commit"].split(", ")})) or "-"


def to_text(rows: Sequence[Mapping[str, Any]], task: str) -> str:
    """A table for the terminal, at most ``WIDTH`` columns wide.

    What all rows rest on stands in the heading, what several do in a numbered note, the rest below its row.
    """
    clauses = [row["reason"].split("; ") if row["reason"] else [] for row in rows]
    count = Counter(clause for several in clauses for clause in several)
    shared = [clause for clause in count if count[clause] == len(rows) > 1]
    notes = [clause for clause in count if 1 < count[clause] and clause not in shared]
    head = "; ".join([heading(rows, task), f"commit {commits(rows)}", *shared])
    lines = textwrap.wrap(head, WIDTH, subsequent_indent="  ")
    lines.append(f"{'':<{LABEL}} {'paper':>6}  {'ours: median [range]':<22} {'n':>2}  verdict")
    for row, several in zip(rows, clauses, strict=True):
        label = textwrap.wrap(what(row), LABEL, subsequent_indent="  ")
        marks = ",".join(str(i + 1) for i, note in enumerate(notes) if note in several)
        numbers = f"{number(row['paper']):>6}  {ours(row):<22} {row['n_seeds']:>2}"
        lines.append(f"{label[0]:<{LABEL}} {numbers}  {row['verdict']}" + (f" ({marks})" if marks else ""))
        lines += label[1:]
        own = "; ".join(clause for clause in several if clause not in shared and clause not in notes)
        lines += textwrap.wrap(own, WIDTH, initial_indent="    ", subsequent_indent="    ")
    for i, note in enumerate(notes):
        lines += textwrap.wrap(f"({i + 1}) {note}", WIDTH, subsequent_indent="    ")
    return "\n".join(lines)


def to_markdown(rows: Sequence[Mapping[str, Any]], task: str, source: str) -> str:
    """The same as a Markdown page, with every seed."""
    cells = [
        [
            what(row), number(row["paper"]), ", ".join(number(value) for value in row["ours"]) or "-",
            number(row["median"]), str(row["n_seeds"]), row["verdict"], row["reason"],
        ]
        for row in rows
    ]  # fmt: skip
    head = ["what", "paper", "ours, per seed", "median", "seeds", "verdict", "reason"]
    return (
        f"# {heading(rows, task)}\n\n"
        f"Paper: {source}. Commit of the runs: {commits(rows)}.\n\n{markdown_table(head, cells)}\n\n"
        "Speed-up of A over B: time until B has its best value, divided by the time until A first reaches "
        "that value, same seed; 0 when A never does. `inf`: diverged or never reached; it takes part in the "
        "median. A share of the baseline's time: both until each has its own best "
        "value. Only profile `paper` on real data can give `matches`.\n\n"
        f"Made by `python -m scripts.compare --task {task} --profile {rows[0]['profile']}`.\n"
    )
