"""One cell of a sweep, from configuration to finished run folder. Never raises: its outcome is a small record."""

from __future__ import annotations

import json
import logging
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from data.fetch import DataError, Source
from data.processors import cores
from experiments.loop import Trainer, initial_model
from experiments.runs import FINISHED, Run, RunError, now, read_json, write_atomic
from experiments.schema import (
    ROOT,
    Config,
    ConfigError,
    config_sha,
    dump,
    identity,
    one_line,
    pick_device,
    pick_threads,
)
from experiments.tasks import TASKS
from experiments.tasks.base import Data, Task
from experiments.tracker import Tracker

log = logging.getLogger("suite")


class Outcome:
    """``<sweep>/<number>/outcome.json``: how the parent process learns what became of a cell.

    States: running, done, failed, diverged, interrupted, skipped (fail_fast or Ctrl-C came first),
    unchanged (was finished before).
    """

    def __init__(self, folder: Path, alone: bool = False) -> None:
        self.folder = folder
        self.sweep = folder.parent
        self.alone = alone  # a signal is meant for this cell, as an engine sends it, and not for the whole sweep

    def write(self, state: str, name: str, run: Path | None = None, error: str | None = None) -> None:
        """Writes the record; on a full disk, the error at least reaches the screen."""
        record = {"state": state, "name": name, "run": str(run) if run else None, "error": error}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self.folder / "outcome.json", json.dumps(record))
        except (OSError, RunError) as full:
            print(f"error: {name} {state}: {error or full}", file=sys.stderr)

    def ask_to_stop(self) -> None:
        """No further cell of the sweep starts, and running ones save and stop."""
        self.sweep.mkdir(parents=True, exist_ok=True)
        (self.sweep / "stop").touch()

    def stop_asked(self) -> bool:
        return (self.sweep / "stop").exists()


def run_folder(cfg: Config, source: Source) -> Path:
    """``results/runs/<task>/<norm>-b<batch>-<profile>-s<seed>-<hash8>``."""
    name = f"{cfg.norm.shown}-b{cfg.train.batch_size}-{cfg.profile}-s{cfg.seed}"
    return cfg.results / "runs" / cfg.task.name / f"{name}-{identity(cfg, source.fingerprint)[:8]}"


def run_cell(cfg: Config, outcome: Outcome, overrides: Sequence[str], jobs: int) -> str:
    """Runs one cell and returns its state; any error is in the outcome, the run's status and its log."""
    name = f"{cfg.task.name} {cfg.norm.shown} batch {cfg.train.batch_size} seed {cfg.seed}"
    if outcome.stop_asked():
        outcome.write("skipped", name)
        return "skipped"
    folder: Path | None = None
    error: str | None = None
    with _console():
        try:
            device = prepare(cfg, jobs)
            task = TASKS[cfg.task.name]
            data = task.data(cfg, device)
            folder = run_folder(cfg, data.source)
            with Run(folder, dump(cfg), describe(cfg, data.source, folder.name, device, overrides)) as run:
                state = run.state()
                if state in FINISHED:
                    # A run that diverged once would do so again: it is told of, and left alone.
                    error = read_json(folder / "status.json").get("error")
                    outcome.write("unchanged" if state == "done" else state, name, folder, error)
                    return "unchanged"
                outcome.write("running", name, folder)
                if not cfg.threads:  # another number of threads would round differently
                    torch.set_num_threads(run.meta["threads"])
                with _logged(folder / "train.log"):
                    state, error = _train(task, cfg, data, run, device, outcome)
        except (ConfigError, DataError, RunError) as known:
            state, error = "failed", str(known)
        except Exception as unknown:  # anything before the run folder exists
            state, error = "failed", f"{type(unknown).__name__}: {one_line(str(unknown))}"
    if state == "failed" and cfg.fail_fast:
        outcome.ask_to_stop()
    outcome.write(state, name, folder, error)
    return state


def _train(
    task: Task, cfg: Config, data: Data, run: Run, device: torch.device, outcome: Outcome
) -> tuple[str, str | None]:
    """The run proper, with the tracker and the status closed whatever happens."""
    tracker = Tracker()
    state, error = "failed", None
    try:
        with _signals(outcome) as stop:
            model = initial_model(task, cfg, device)
            session = {**git_state(), "threads": torch.get_num_threads(), "device": str(device), "started": now()}
            run.write_meta(
                parameters=sum(p.numel() for p in model.parameters()),
                sessions=[*run.meta.get("sessions", []), session],
            )
            tracker = Tracker.start(asdict(cfg), run.meta, run.folder, {**asdict(cfg.logger), "dir": str(cfg.results)})
            trainer = Trainer(task, cfg, data, model, run, tracker, device, lambda: stop() or outcome.stop_asked())
            state = trainer.train()
            if state != "interrupted":
                _pictures(task, cfg, data, model, run, tracker, state)
            error = trainer.close(state)
    except (ConfigError, DataError, RunError) as known:
        state, error = _failed(run, str(known))
    except Exception as unknown:
        log.exception("failed")
        where = run.folder / "train.log"
        state, error = _failed(run, f"{type(unknown).__name__}: {one_line(str(unknown))} (traceback: {where})")
    finally:
        tracker.finish(0 if state in ("done", "interrupted") else 1)
    return state, error


def _failed(run: Run, error: str) -> tuple[str, str]:
    log.error(error)
    try:
        run.write_status("failed", error=error)
    except RunError:
        pass  # a full disk: the outcome still says what happened
    return "failed", error


def _pictures(task: Task, cfg: Config, data: Data, model: nn.Module, run: Run, tracker: Tracker, state: str) -> None:
    """The task's pictures, if the run is done, and the learning curve. One that fails costs a warning, no result."""
    from experiments.analysis.figures import run_curve
    from experiments.rng import derive

    paths: list[Path] = []
    try:
        if state == "done":
            model.eval()
            with torch.no_grad():
                paths += task.plots(model, data, cfg, run.folder, derive(cfg.seed, "plots"))
        paths.append(run_curve(run.folder))
    except Exception as error:
        log.warning("no pictures: %s (traceback: %s)", one_line(str(error)), run.folder / "train.log")
        log.info("the traceback", exc_info=True)
    for path in paths:
        tracker.figure(path)


def prepare(cfg: Config, jobs: int) -> torch.device:
    """Sets torch up for one cell: threads, denormals, determinism. Returns the device."""
    device = pick_device(cfg.device)
    torch.set_num_threads(threads := pick_threads(cfg.threads, jobs))
    # Threads meet at the end of each of a step's thousands of operations, and wait there for the one without a core.
    if threads > 1 and (load := os.getloadavg()[0]) > 2 * cores():
        log.warning(
            "%d threads on a machine that is busy (load %.0f on %d cores): recurrent layers may take many times as "
            "long as with threads=1 (make: OMP_NUM_THREADS=1)", threads, load, cores(),
        )  # fmt: skip
    # Adam's moments of rarely used weights decay into denormals, which are many times slower.
    torch.set_flush_denormal(True)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    if device.type == "mps":
        log.warning("device=mps: recurrent layers are known to train badly there; check against device=cpu")
    return device


def describe(cfg: Config, source: Source, name: str, device: torch.device, overrides: Sequence[str]) -> dict[str, Any]:
    """``meta.json`` of a new run."""
    return {
        "run": name,
        "task": cfg.task.name,
        "norm": cfg.norm.shown,
        "batch_size": cfg.train.batch_size,
        "seed": cfg.seed,
        "profile": cfg.profile,
        "identity": identity(cfg, source.fingerprint),
        "config_sha": config_sha(cfg),
        "overrides": list(overrides),
        "data": asdict(source),
        "git": git_state(),
        "versions": {package: _version(package) for package in ("torch", "torchvision", "numpy", "hydra-core")}
        | {"python": platform.python_version()},
        "hardware": hardware(device),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "parameters": None,
        "started": now(),
        "ended": None,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_state() -> dict[str, Any]:
    """Commit and whether tracked files differ from it; nulls outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}


def hardware(device: torch.device) -> dict[str, Any]:
    """Processor, cores and accelerator."""
    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    except OSError:
        pass
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else None
    return {"cpu": cpu, "cores": cores(), "gpu": gpu, "system": platform.system()}


@contextmanager
def _signals(outcome: Outcome) -> Iterator[Any]:
    """Ctrl-C and SIGTERM ask the run to save and stop; a second one stops at once."""
    asked: list[int] = []

    def handle(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        if not outcome.alone:
            outcome.ask_to_stop()

    old = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


LOGGERS = ("suite", "data", "py.warnings")  # ours, the data sets', and what libraries warn of


@contextmanager
def _handled(handler: logging.Handler) -> Iterator[None]:
    """The handler on all of ``LOGGERS`` for a while."""
    logging.raiseExceptions = False  # a full disk is told of once, by the run store, without tracebacks
    for name in LOGGERS:
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).propagate = False
    try:
        yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(handler)
        handler.close()


@contextmanager
def _console() -> Iterator[None]:
    """Warnings on the screen, in one line each; errors are reported at the end of the sweep."""
    console = logging.StreamHandler(sys.stderr)
    console.setLevel(logging.WARNING)
    console.addFilter(lambda record: record.levelno < logging.ERROR and record.name != "py.warnings")
    console.setFormatter(logging.Formatter("warning: %(message)s"))
    with _handled(console):
        yield


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Everything the suite logs, and every library's warning, goes to the run's ``train.log``."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.captureWarnings(True)
    for name in LOGGERS[:2]:
        logging.getLogger(name).setLevel(logging.INFO)
    try:
        with _handled(handler):
            yield
    finally:
        logging.captureWarnings(False)
