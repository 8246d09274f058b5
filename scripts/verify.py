"""Trains published runs afresh, as far as an early evaluation, to see whether the present code gives their numbers.

    python -m scripts.verify --task draw --profile medium
    python -m scripts.verify --all --rows 2        # as far as the second evaluation of each

Looked at are runs whose code has changed since their commit. Each is trained with its own configuration, device, number
of threads and data in a temporary folder. If all it logs is equal to what is published, to the last bit (seconds
apart), ``verified.json`` in its folder says so for the present code, and for these steps only. If not, one line says
where they part, and the run stays as it was. Refused with uncommitted changes, which nobody else could look up.
Exit code: 0 all repeated or nothing to do, 1 a run was not, 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data.fetch import DataError
from experiments.analysis import changes, verified
from experiments.analysis.collect import FINISHED, Run, collect, results_dir
from experiments.analysis.output import short_path
from experiments.cell import describe, hardware, prepare
from experiments.cli import guarded
from experiments.loop import Trainer, initial_model
from experiments.metrics import read_metrics
from experiments.runs import Run as OpenRun
from experiments.runs import RunError, now, read_json, write_atomic
from experiments.schema import Config, ConfigError, config_sha, dump, load_saved, one_line
from experiments.tasks import TASKS
from experiments.tracker import Tracker
from scripts.checked import OptionError, choice, stems
from scripts.options import Parser, fail

MACHINE = ("system", "cpu", "gpu")  # of meta.json's hardware: sums are rounded differently on another
MARKS = f":(exclude,glob)**/{verified.FILE}"


class Refused(Exception):
    """A run that cannot be verified, or is not repeated; one line saying why."""


class Enough(Exception):
    """As many rows are logged as are to be compared."""


class Recorder(OpenRun):
    """A run folder that ends its training, by ``Enough``, once it holds ``wanted`` rows."""

    wanted: int

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        super().log(rows)
        if self.logged(sys.maxsize) >= self.wanted:
            raise Enough


def first_rows(folder: Path, evaluations: int) -> list[dict[str, Any]]:
    """The published rows up to that many evaluations (or all, if there are fewer)."""
    rows = read_metrics(folder / "metrics.jsonl")
    steps = sorted({row["step"] for row in rows})[:evaluations]
    if not steps:
        raise Refused("it logged nothing that could be repeated")
    return [row for row in rows if row["step"] <= steps[-1]]


def saved_config(folder: Path, meta: Mapping[str, Any]) -> Config:
    """The run's configuration, with the device and the threads it ran with."""
    try:
        cfg = load_saved(folder / "config.yaml")
        TASKS[cfg.task.name].check(cfg)
    except Exception as error:  # whatever a key or value that is no longer known makes of it
        raise Refused(f"config.yaml no longer composes: {one_line(str(error))}") from None
    if config_sha(cfg) != meta["config_sha"]:
        raise Refused("config.yaml is no longer the experiment that meta.json names: its hash differs")
    cfg.device, cfg.threads = str(meta["device"]), int(meta["threads"])
    return cfg


def check_machine(meta: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuses another machine or torch, whose numbers differ for reasons other than the code."""
    then = {**{key: meta["hardware"].get(key) for key in MACHINE}, "torch": meta["versions"].get("torch")}
    present = {**{key: here.get(key) for key in MACHINE}, "torch": version("torch")}
    for key, value in then.items():
        if present[key] != value:
            raise Refused(f"made with {key} {value}, here is {present[key]}: verify it where it was made")


def train(cfg: Config, meta: Mapping[str, Any], wanted: int) -> list[dict[str, Any]]:
    """What the present code logs first, in the form of ``metrics.jsonl``."""
    device = prepare(cfg, 1)
    check_machine(meta, hardware(device))
    task = TASKS[cfg.task.name]
    data = task.data(cfg, device)
    if data.source.fingerprint != meta["data"]["fingerprint"]:
        raise Refused(f"made with other data than {data.source.name} ({data.source.label}) found here")
    with tempfile.TemporaryDirectory(prefix="verify-") as place:
        folder = Path(place) / "run"
        run = Recorder(folder, dump(cfg), describe(cfg, data.source, folder.name, device, []))
        run.wanted = wanted
        with run:
            model = initial_model(task, cfg, device)
            try:
                Trainer(task, cfg, data, model, run, Tracker(), device, lambda: False).train()
            except Enough:
                pass
        return read_metrics(folder / "metrics.jsonl")


def difference(published: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> str | None:
    """Where two logs part, or None; seconds apart, everything must be equal."""
    for number, (then, present) in enumerate(zip(published, ours, strict=False), 1):
        for key in then:
            if key != "train_seconds" and repr(then[key]) != repr(present[key]):
                where = f"row {number} (step {then['step']}, {then['split']} {then['metric']})"
                return f"{where} differs: {key} {then[key]!r} published, {present[key]!r} with the present code"
    if len(published) != len(ours):
        return f"{len(published)} rows published up to that step, {len(ours)} with the present code"
    return None


def verify(run: Run, evaluations: int, code: str, git: Mapping[str, Any]) -> dict[str, Any]:
    """Repeats one run and writes its ``verified.json``. Returns the record; raises ``Refused``."""
    meta = read_json(run.folder / "meta.json")
    wanted = first_rows(run.folder, evaluations)
    try:
        ours = train(saved_config(run.folder, meta), meta, len(wanted))
    except (ConfigError, DataError, RunError, Refused) as error:
        raise Refused(str(error)) from None
    except Exception as error:  # the present code may fail in any way
        raise Refused(
            f"cannot be trained by the present code: {type(error).__name__}: {one_line(str(error))}"
        ) from None
    if where := difference(wanted, ours):
        raise Refused(where)
    record = {**git, "code": code, "through_step": wanted[-1]["step"], "rows": len(wanted), "when": now()}
    write_atomic(run.folder / verified.FILE, json.dumps(record, indent=1) + "\n")
    return record


def tree() -> dict[str, Any]:
    """Commit of the working tree; ``dirty`` when tracked files differ, other than the marks this command renews."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(changes.REPO), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()

    try:
        return {
            "commit": git("rev-parse", "HEAD"),
            "dirty": bool(git("status", "--porcelain", "-uno", "--", ".", MARKS)),
        }
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = Parser("verify", __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(TASKS), help="only this task's runs")
    parser.add_argument("--profile", help="only runs of this profile")
    parser.add_argument("--all", action="store_true", help="all runs whose code has changed")
    parser.add_argument("--rows", type=int, default=1, metavar="N", help="as far as the N-th evaluation (default 1)")
    parser.add_argument("--published", type=Path, default=results_dir() / "published", help="where the runs are")
    try:
        options = parser.parse_args(argv)
        if options.profile is not None:
            choice("--profile", options.profile, stems("profile"))
    except OptionError as error:
        fail(error)
    if options.all == bool(options.task or options.profile):
        raise ConfigError("choose what to verify: --task, --profile or both, or else --all")
    if options.rows < 1:
        raise ConfigError(f"--rows {options.rows} must be 1 or more")
    git = tree()
    if not git["commit"] or git["dirty"]:
        raise RunError("the working tree has uncommitted changes or is outside git: commit first")
    found = collect(options.published / ".none", options.published, options.task, options.profile)
    for line in found.warnings:
        print(line, file=sys.stderr)
    repeated, failed = 0, len(found.damaged)
    for run in (run for run in found.runs if run.state in FINISHED):
        try:
            changed = changes.code_changed(run.commit, run.task)
            code = changes.fingerprint(run.task)
            if changed is None or code is None:
                raise Refused(
                    f"git cannot tell whether its code has changed since {run.commit[:12]}: fetch that commit"
                )
            if not changed:
                continue
            known = verified.through_step(run.folder, run.task)
            if known is not None and known >= first_rows(run.folder, options.rows)[-1]["step"]:
                print(f"{short_path(run.folder)}: verified before, {verified.said(known)}")
                continue
            record = verify(run, options.rows, code, git)
        except Refused as refused:
            print(f"error: {short_path(run.folder)}: {refused}", file=sys.stderr)
            failed += 1
        else:
            print(f"{short_path(run.folder)}: {verified.said(record['through_step'])}", flush=True)
            repeated += 1
    print(f"{repeated} runs verified, {failed} not")
    return int(failed > 0)


if __name__ == "__main__":
    guarded(main)
