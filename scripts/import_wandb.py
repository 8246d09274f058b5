"""Fills the run store from wandb, with runs that this suite made elsewhere with LOGGER=wandb.

    python -m scripts.import_wandb ENTITY/PROJECT

A run folder is made of each finished run: configuration, meta, status and all logged numbers, from the complete history
and checked against the digest that the run left. It has no checkpoint, pictures or log. What is here already stays as
it is. Figures, tables, comparison and ``make reproduce`` then take these runs for their own. A run that is damaged,
incomplete or not of this suite is named in one line and left out.

Exit code: 0 all finished runs of the suite are here, 1 some could not be taken over or there were none, 2 bad input.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import tracker
from experiments.analysis.collect import results_dir
from experiments.analysis.output import short_path
from experiments.cli import guarded
from experiments.mirror import Foreign, Unusable, rebuild
from experiments.runs import RunError
from scripts.checked import OptionError
from scripts.options import Parser, fail

TIMEOUT_SECONDS = 60
RUNS_A_PAGE, ROWS_A_PAGE = 50, 1000


def project_runs(path: str) -> list[Any]:
    """All runs of a project. Raises ``RunError`` if wandb does not give them."""
    os.environ["WANDB_SILENT"] = "true"  # read when it is imported
    try:
        import wandb
    except ImportError:
        raise RunError("the package wandb is not installed: make setup") from None
    if not tracker.has_key():
        raise RunError("no API key of wandb: run wandb login, or set WANDB_API_KEY")
    where = tracker.server().geturl()
    if not tracker.reachable():
        raise RunError(f"{where} is out of reach: check the network, or WANDB_BASE_URL")
    try:
        return list(wandb.Api(timeout=TIMEOUT_SECONDS).runs(path, per_page=RUNS_A_PAGE, lazy=False))
    except Exception as error:  # of wandb, of its service, or of the network
        raise RunError(f"{where} does not give the runs of {path} ({tracker.brief(error)})") from None


def take_over(run: Any, path: str, runs: Path) -> Path | None:
    """Makes the folder of one run, None if it is here. Raises ``Unusable``."""

    def history() -> Any:
        try:
            # Without keys: with some, rows that lack one of them are left out. Never ``history``, which samples.
            yield from run.scan_history(page_size=ROWS_A_PAGE, use_cache=False)
        except Exception as error:
            raise Unusable(f"its history cannot be read ({tracker.brief(error)})") from None

    return rebuild(dict(run.summary_metrics or {}), history(), f"wandb {path}/{run.id}", runs)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = Parser("import_wandb", __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", metavar="ENTITY/PROJECT", help="as in the address of the project's page")
    parser.add_argument("--runs", type=Path, default=results_dir() / "runs", help="run store to fill")
    try:
        given = parser.parse_args(argv)
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", given.project):
            raise OptionError(f"{given.project} must be ENTITY/PROJECT, such as lab/layer-normalization")
    except OptionError as error:
        fail(error)
    taken = here = foreign = failed = 0
    for run in project_runs(given.project):
        name = f"{given.project}/{run.id} ({run.name})"
        try:
            folder = take_over(run, given.project, given.runs)
        except Foreign as why:
            foreign += 1
            print(f"note: {name} left out: {why}", file=sys.stderr)
        except Unusable as why:
            failed += 1
            print(f"error: {name} left out: {why}", file=sys.stderr)
        else:
            taken, here = taken + (folder is not None), here + (folder is None)
            if folder:
                print(short_path(folder), flush=True)
    print(f"{taken} runs taken over, {here} here before, {failed} left out, {foreign} not of this suite or unfinished")
    return int(failed > 0 or not (taken or here))


if __name__ == "__main__":
    guarded(main)
