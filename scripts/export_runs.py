"""Writes all logged numbers of all runs as one tidy table, Parquet or CSV by its suffix, for plots of one's own.

    python -m scripts.export_runs results/export/runs.csv
    python -m scripts.export_runs results/export/draw.parquet --task draw --profile small --split test --metric bound

One row for each number: what was run (``run`` to ``started``), then ``step`` to ``value`` as in ``metrics.jsonl``; a
value that was not finite is missing. Our own runs go before published copies of the same ones, unless only the copy
has finished. A run folder that cannot be read is named and left out. Exit code: 0 written, 1 nothing to write, 2 bad
input.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.collect import COLUMNS, FINISHED, Run, collect, results_dir, tidy
from experiments.analysis.output import short_path, write_whole
from scripts.checked import OptionError, choice, stems
from scripts.options import Parser, fail
from scripts.selection import run, say

# Beside what the analysis itself needs: where the numbers come from. Column -> from a run and its meta.json.
PROVENANCE: Mapping[str, Callable[[Run, Mapping[str, Any]], Any]] = {
    "data_name": lambda run, meta: run.data["name"],
    "data_fingerprint": lambda run, meta: run.data["fingerprint"],
    "identity": lambda run, meta: run.identity,
    "commit": lambda run, meta: run.commit,
    "dirty": lambda run, meta: run.dirty,
    "device": lambda run, meta: str(meta.get("device", "")),
    "threads": lambda run, meta: int(meta.get("threads") or 0),
    "parameters": lambda run, meta: int(meta.get("parameters") or 0),
    "started": lambda run, meta: run.started,
}
ENGINES = ("pyarrow", "fastparquet")


def table(runs: Iterable[Run]) -> pd.DataFrame:
    """One row for each logged number: the analysis' own columns, with ``PROVENANCE`` before those of the log."""
    parts = []
    for one in runs:
        meta = json.loads((one.folder / "meta.json").read_text(encoding="utf-8"))  # it was read just now
        parts.append(tidy([one]).assign(**{name: value(one, meta) for name, value in PROVENANCE.items()}))
    at = COLUMNS.index("step")
    order = [*COLUMNS[:at], *PROVENANCE, *COLUMNS[at:]]
    return pd.concat(parts, ignore_index=True)[order] if parts else pd.DataFrame(columns=order)


def write(frame: pd.DataFrame, path: Path) -> None:
    """Writes the table whole or not at all."""
    if path.suffix == ".csv":
        write_whole(path, frame.to_csv(index=False))
        return
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / "table.parquet"
        frame.to_parquet(made, index=False)
        write_whole(path, made.read_bytes())


def check_out(path: Path) -> Path:
    """The output path. Raises ``OptionError`` if nothing can be written there."""
    if path.suffix not in (".csv", ".parquet"):
        raise OptionError(f"{path}: the suffix says the format; use .csv or .parquet")
    if path.is_dir():
        raise OptionError(f"{path} is a folder; name a file in it")
    if path.suffix == ".parquet" and not any(find_spec(engine) for engine in ENGINES):
        raise OptionError(
            f"{path}: Parquet needs one of {', '.join(ENGINES)}: make setup installs one; or write a .csv"
        )
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = Parser("export_runs", __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="file to write: .csv or .parquet")
    parser.add_argument("--task", help="only runs of this task")
    parser.add_argument("--profile", help="only runs at this profile")
    parser.add_argument("--split", help="only this split, such as test")
    parser.add_argument("--metric", help="only this metric, such as bound")
    parser.add_argument("--finished", action="store_true", help="only runs that are done or diverged")
    parser.add_argument("--runs", type=Path, default=results_dir() / "runs", help="folder of our own runs")
    published = results_dir() / "published"
    parser.add_argument("--published", type=Path, default=published, help="folder of published runs")
    try:
        given = parser.parse_args(argv)
        out = check_out(given.out)
        for name in ("task", "profile"):
            if getattr(given, name) is not None:
                choice(f"--{name}", getattr(given, name), stems(name))
    except OptionError as error:
        fail(error)
    found = collect(given.runs, given.published, given.task, given.profile)
    say(found.warnings)
    runs = [one for one in found.runs if not given.finished or one.state in FINISHED]
    frame = table(runs)
    for column in ("split", "metric"):
        wanted = getattr(given, column)
        if wanted is not None and not frame.empty:
            if wanted not in set(frame[column]):
                there = ", ".join(sorted(set(frame[column])))
                fail(OptionError(f"--{column} {wanted}: these runs have none; they have {there}"))
            frame = frame[frame[column] == wanted]
    if frame.empty:
        where = f"{short_path(given.runs)} and {short_path(given.published)}"
        say([f"error: nothing to export: no logged run of these in {where}; make reproduce TASK=draw makes some"])
        return 1
    write(frame, out)
    print(f"{len(frame)} rows of {frame['run'].nunique()} runs: {short_path(out)}")
    return 0


if __name__ == "__main__":
    run(main)
