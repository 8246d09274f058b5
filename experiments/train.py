"""Trains one cell, or a sweep of them.

    python -m experiments.train task=draw norm=ln seed=0
    python -m experiments.train -m task=pi_mnist norm=none,bn,ln train.batch_size=128,4 seed=0,1,2 \\
        hydra/launcher=joblib hydra.launcher.n_jobs=2        # or slurm, ray_cluster: experiments/cluster.py

Every cell is checked before the first one starts. Exit code: 0 all done; 1 a cell failed; 2 bad input, nothing
started; 3 a cell diverged; 130 interrupted (start again to resume).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from data.fetch import data_roots
from experiments import cluster
from experiments.cell import Outcome, run_cell
from experiments.cli import guarded
from experiments.compose import GROUPS, check_task, choices, compose_cells, expand, translated
from experiments.progress import read_outcomes, shown
from experiments.runs import RunError
from experiments.schema import CONFIGS, ROOT, ConfigError, one_line, register, resolve


def job(raw: DictConfig) -> None:
    """What Hydra calls for each cell, in this process or a launcher's."""
    running = HydraConfig.get()
    several = running.mode == RunMode.MULTIRUN
    beside = cluster.cells_beside(running.launcher) if several else 1
    alone = several and cluster.elsewhere(running.runtime.choices["hydra/launcher"])
    run_cell(resolve(raw), Outcome(Path(running.runtime.output_dir), alone), list(running.overrides.task), beside)


def main() -> int:
    """Checks all cells, hands them to Hydra, and reports."""
    arguments = sys.argv[1:]
    flags = [a for a in arguments if a.startswith("-")]
    if {"-h", "--help"} & set(flags):
        print((__doc__ or "").strip(), *(f"{group}=  {', '.join(choices(group))}" for group in GROUPS), sep="\n")
        print("All other keys with their values: python -m experiments.train --cfg job task=draw")
        return 0
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come here instead of ending the process
    register()
    if set(flags) - {"-m", "--multirun"}:  # --cfg job and the like: Hydra's own business
        os.environ.setdefault("LN_SWEEP", str(ROOT / "results" / "sweeps" / "none"))
        with translated():
            hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="config")(job)()
        return 0
    launcher = cluster.launcher(arguments) if flags else "basic"
    cells = check(arguments, multirun=bool(flags))
    cluster.check(launcher)
    data_roots()  # a misspelt LN_DATA would fail every cell
    results = compose_cells(cells[:1], not cluster.elsewhere(launcher))[0].results
    sweep = results / "sweeps" / f"{time.strftime('%Y%m%d-%H%M%S')}-{socket.gethostname()}-{os.getpid()}"
    try:
        sweep.mkdir(parents=True)
    except OSError as error:
        raise RunError(f"cannot create {sweep}: {error.strerror}; choose another LN_RESULTS") from None
    os.environ["LN_SWEEP"] = str(sweep)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _ask_to_stop(sweep))
    broken = 0
    try:
        with shown(sweep, len(cells)):
            try:
                hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="config")(job)()
            except Exception as error:  # a worker that was killed, say: the other cells still have to be told of
                broken = 1
                _broke_off(error, sweep, launcher)
            if cluster.elsewhere(launcher) and not broken:
                cluster.settle(sweep, len(cells))
        code = report(read_outcomes(sweep), len(cells))
        return broken or code
    except KeyboardInterrupt:
        if launcher in cluster.QUEUED:
            cluster.cancel_queued(sweep)
        raise
    finally:
        if not (broken and launcher in cluster.QUEUED):  # whose logs are there
            shutil.rmtree(sweep, ignore_errors=True)


def _broke_off(error: Exception, sweep: Path, launcher: str) -> None:
    """Says why a launcher gave up, and waits for the cells that go on all the same."""
    queued = launcher in cluster.QUEUED
    text = str(error).partition("\n")[0] if queued else one_line(str(error))  # a job's whole log would follow
    where = f"; logs: {sweep / '.submitit'}" if queued else ""
    print(f"error: the sweep broke off: {type(error).__name__}: {text}{where}", file=sys.stderr, flush=True)
    if queued:
        cluster.wait_for_queued(sweep)


def check(arguments: Sequence[str], multirun: bool) -> list[list[str]]:
    """The cells' overrides. Raises ``ConfigError`` if any cell cannot work, before anything is written."""
    overrides = [a for a in arguments if not a.startswith("-")]
    cells = expand(overrides)
    for cell in cells:
        check_task(cell)
    if not multirun and len(cells) > 1:
        raise ConfigError("several values for one key, or an experiment of several cells: add -m to run them all")
    cells = cells if multirun else [overrides]
    compose_cells(cells, not (multirun and cluster.elsewhere(cluster.launcher(arguments))))
    return cells


def _ask_to_stop(sweep: Path) -> None:
    if (sweep / "stop").exists():
        raise KeyboardInterrupt
    (sweep / "stop").touch()
    print("stopping: running cells save their state (Ctrl-C again stops at once)", file=sys.stderr)


def report(outcomes: dict[int, dict[str, Any]], total: int) -> int:
    """Prints what went wrong, one line per cell (or per error that several share), and returns the exit code."""
    states = [outcome["state"] for outcome in outcomes.values()]
    errors: dict[str, list[str]] = {}
    for outcome in outcomes.values():
        if outcome["state"] in ("failed", "diverged"):
            errors.setdefault(f"{outcome['state']}: {outcome['error']}", []).append(outcome["name"])
        elif outcome["state"] == "running":
            print(f"error: {outcome['name']}: its process died; start again to resume", file=sys.stderr)
    for error, names in errors.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        print(f"error: {names[0]}{more} {error}", file=sys.stderr)
    if "failed" in states or "running" in states:
        return 1
    if "interrupted" in states or "skipped" in states or len(states) < total:
        print("interrupted: start the same command again to resume", file=sys.stderr)
        return 130
    return 3 if "diverged" in states else 0


if __name__ == "__main__":
    from experiments import train  # so that launchers find the job by its module's name

    guarded(train.main)
