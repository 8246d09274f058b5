"""Sections 5.1 and 5.2, measured: ``make reproduce TASK=invariances``. Needs no data and no training runs.

- Table 1: each transformation of weights or data under BN, WN and LN, evaluated in random networks and held against
  the paper's entry. Printed, and written to ``results/tables/table1_invariances.{md,csv}``.
- Section 5.2: how growing weights shrink what a gradient step changes, drawn to
  ``results/figures/invariances/fisher_scaling.{png,pdf,csv}``.

``SEEDS=0,1`` chooses the seeds of both; nothing else does anything here. The work, some ten seconds, is done each
time; files that come out the same are left alone. Exit code: 0, 1 if any entry is not the paper's, 2 bad input.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from experiments.analysis import fisher, fisher_figure, invariances
from experiments.analysis.collect import results_dir
from experiments.analysis.compare import load_paper
from experiments.analysis.document import markdown_table
from experiments.analysis.invariances import Cell
from experiments.analysis.output import short_path, write_whole
from experiments.analysis.style import look
from experiments.cli import guarded
from scripts.checked import OptionError
from scripts.options import fail, parse

WORDS = {True: "yes", False: "no", None: "differs"}
HEAD = ["transformation", "norm", "paper", "ours", "deviation: median", "smallest", "largest", "values", "match"]


def rows(cells: Sequence[Cell], names: Mapping[str, str]) -> list[list[str]]:
    """The table's cells as text, in the order of ``HEAD``."""
    return [
        [
            names[cell.transformation], look(cell.norm).name, WORDS[cell.paper], WORDS[cell.ours],
            *(f"{value:.1e}" for value in (cell.median, min(cell.deviations), max(cell.deviations))),
            str(len(cell.deviations)), WORDS[cell.matches],
        ]
        for cell in cells
    ]  # fmt: skip


def summary(cells: Sequence[Cell], seeds: Sequence[int]) -> list[str]:
    """What the numbers are and how clearly they part: the table's caption, a paragraph each."""
    stayed, moved = invariances.gap(cells)
    networks = ", ".join(f"{'-'.join(map(str, sizes))} (batch {cases})" for sizes, cases in invariances.NETWORKS)
    return [
        "Does the prediction stay the same? Deviation: the largest change of any predicted number, relative to the "
        "root mean square of the predictions. Two predictions count, and both must agree: that of the layer whose "
        "weights W (w_i: those of unit i) or data x are transformed, its normalised summed inputs N(Wx), and the "
        "logits of the network behind it.",
        f"float64; relu networks {networks}, hidden layers normalised, gains and biases random; seeds "
        f"{', '.join(map(str, seeds))}; δ = {', '.join(f'{delta:g}' for delta in invariances.DELTAS)}; weights "
        "transformed in each hidden layer in turn. WN: W is v in w = g v/||v||, g fixed. BN: statistics of the batch. "
        f"Epsilon: LN {invariances.EPS['ln']:g}, BN {invariances.EPS['bn']:g} (its kernel takes no 0).",
        f"Largest deviation that counts as unchanged {stayed:.1e}, smallest that counts as changed {moved:.1e}, "
        f"threshold {invariances.THRESHOLD:.1e} (the square root of float64's epsilon). "
        f"{sum(cell.matches for cell in cells)} of {len(cells)} entries are the paper's.",
    ]


def to_text(table: Sequence[Sequence[str]]) -> str:
    """Aligned columns for the terminal."""
    lines = [HEAD, *table]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def to_markdown(table: Sequence[Sequence[str]], about: Sequence[str], paper: Mapping[str, Any]) -> str:
    """The page: table, caption, and what the paper's text says differently."""
    remarks = [f"- {claim['source']}, says that {claim['text']}: {claim['remark']}." for claim in paper["claims"]]
    parts = [
        "# Table 1: invariances",
        markdown_table(HEAD, table),
        *about,
        f"Paper: {paper['source']}.",
        "\n".join(remarks),
    ]
    return "\n\n".join(parts) + "\n"


def to_csv(cells: Sequence[Cell]) -> str:
    """One line per cell."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*HEAD[:4], "deviation_median", "deviation_smallest", "deviation_largest", *HEAD[7:]])
    identity = {name: name for name in invariances.TRANSFORMATIONS}
    for cell, row in zip(cells, rows(cells, identity), strict=True):
        writer.writerow([row[0], cell.norm, *row[2:]])
    return buffer.getvalue()


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in one order, whatever the machine: the same files every time. Small matrices gain nothing by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def reproduce(seeds: Sequence[int] | None = None) -> int:
    """Measures, writes and prints. Returns 1 if any entry is not the paper's."""
    seeds = seeds or invariances.SEEDS
    paper = load_paper("invariances")
    entries = invariances.paper_table(paper)
    print("== invariances, Table 1 and section 5.2", flush=True)
    with one_thread():
        cells = invariances.evaluate(entries, seeds)
        table, about = rows(cells, paper["transformations"]), summary(cells, seeds)
        print("\n".join([to_text(table), "", *about]), flush=True)
        frame = fisher.table(seeds)
    for claim in paper["claims"]:
        if "factor" in claim:
            names = {"weight": "weights", "bias": "biases", "gain": "gains"}
            factors = ", ".join(f"{name} x{fisher.on_doubling(frame, key)}" for key, name in names.items())
            print(f"Fisher blocks when the norm of the weights doubles, weights with {factors}; "
                  f"{claim['source']}: x{claim['factor']:g}")  # fmt: skip
    root = results_dir()
    paths = [
        write_whole(root / "tables" / "table1_invariances.md", to_markdown(table, about, paper)),
        write_whole(root / "tables" / "table1_invariances.csv", to_csv(cells)),
        *fisher_figure.save(frame, root / "figures" / "invariances"),
    ]
    print("\n".join(["", *map(short_path, paths)]))
    wrong = [row for row, cell in zip(table, cells, strict=True) if not cell.matches]
    for transformation, norm, printed, ours, *_ in wrong:
        print(f"error: {transformation} under {norm}: paper {printed}, ours {ours}", file=sys.stderr)
    return int(bool(wrong))


def main() -> int:
    """Entry point: ``python -m scripts.invariances SEEDS=0``."""
    try:
        options = parse("reproduce", ["TASK=invariances", *sys.argv[1:]], __doc__)
    except OptionError as error:
        fail(error)
    if options.tasks:
        fail(OptionError("this is TASK=invariances only; use make reproduce for others"))
    return reproduce(options.seeds)


if __name__ == "__main__":
    guarded(main)
