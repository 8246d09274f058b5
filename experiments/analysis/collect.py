"""Reads run folders into records and one tidy table: a row for each logged number.

Two places hold runs: ``results/runs`` (made here) and ``results/published`` (small copies under version
control, with figures and timings beside them). The same run in both is counted once. A folder that cannot be read is
named in one warning and left out; metrics count up to the first damaged line, as they do when a run is resumed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from experiments.analysis import seals
from experiments.metrics import read_log, whole

REPO = Path(__file__).resolve().parents[2]

COLUMNS = [
    "run", "task", "norm", "batch_size", "seed", "profile", "data_label", "data_kind", "config_sha", "state",
    "origin", "step", "examples", "epoch", "train_seconds", "split", "metric", "unit", "value",
]  # fmt: skip
METRIC_COLUMNS = COLUMNS[COLUMNS.index("step") :]
FINISHED = ("done", "diverged")  # the two states in which a run has said its last word
STATES = (*FINISHED, "running", "failed", "interrupted")
RUN_FILES = ("meta.json", "status.json", "metrics.jsonl", "config.yaml", "lock", "train.log", "checkpoint.pt")
# What may stand under a key of ``status.json`` and ``meta.json``, where it is not checked otherwise.
NUMBERS = ("step", "total_steps", "seconds_left")
KINDS: Mapping[str, Any] = {"best": dict | None, "error": str | None}
META_KINDS: Mapping[str, Any] = {
    "data": dict, "git": dict | None, "hardware": dict | None, "threads": int | None, "parameters": int | None,
    "task": str, "norm": str, "profile": str, "identity": str, "config_sha": str,
}  # fmt: skip
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def results_dir() -> Path:
    """Where runs are and reports go: $LN_RESULTS, as in ``configs/config.yaml``, or ``results``."""
    return REPO / os.environ.get("LN_RESULTS", "results")


class Unreadable(ValueError):
    """A run folder that cannot be used; one line saying why."""


@dataclass(frozen=True)
class Run:
    """One run folder, metrics read on first use.

    Attributes:
        origin: ``runs`` or ``published``.
        state: effective state: done, diverged, running, interrupted or failed.
        commit: git commit it ran at, or ``unknown``; ``dirty`` when the tree had changes.
        data: kind, label, name, fingerprint and detail of the data source.
    """

    folder: Path
    run: str
    task: str
    norm: str
    batch_size: int
    seed: int
    profile: str
    identity: str
    config_sha: str
    data: Mapping[str, str]
    commit: str
    dirty: bool
    started: str
    state: str
    origin: str
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Short name of the data source, part of every output path."""
        return self.data["label"]

    @property
    def stand_in(self) -> bool:
        """Whether the data replace the original ones, so that only a direction can be read off."""
        return self.data["kind"] == "stand-in"

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Logged numbers, columns ``METRIC_COLUMNS``; a value that was not finite is NaN."""
        return read_metrics(self.folder / "metrics.jsonl")

    def series(self, split: str, metric: str) -> pd.DataFrame:
        """Rows of one metric on one split, by step."""
        rows = self.metrics
        return rows[(rows["split"] == split) & (rows["metric"] == metric)]


@dataclass(frozen=True)
class Collection:
    """All usable runs, and what was left out: its folder and why.

    ``doubles`` are folders of one place that claim to be the same run: the one taken, the one left out.
    """

    runs: list[Run]
    damaged: list[tuple[Path, str]] = field(default_factory=list)
    doubles: list[tuple[Path, Path]] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        """One line for each folder left out."""
        remedy = "restore it, or delete the folder to have the run made again"
        lines = [f"warning: {folder} left out: {why}; {remedy}" for folder, why in self.damaged]
        return lines + [
            f"warning: {other} left out: it claims to be the same run as {taken}; delete one of the two"
            for taken, other in self.doubles
        ]


def tidy(runs: Iterable[Run]) -> pd.DataFrame:
    """Tidy table of ``runs``, columns ``COLUMNS``."""
    parts = [
        run.metrics.assign(
            run=run.run, task=run.task, norm=run.norm, batch_size=run.batch_size, seed=run.seed,
            profile=run.profile, data_label=run.label, data_kind=run.data["kind"],
            config_sha=run.config_sha, state=run.state, origin=run.origin,
        )[COLUMNS]
        for run in runs
    ]  # fmt: skip
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS)


def read_metrics(path: Path) -> pd.DataFrame:
    """Reads ``metrics.jsonl`` up to the first line that is not a whole record (a crash can cut off the last).

    A step written twice, before and after a crash, counts with its last value.
    """
    frame = pd.DataFrame(read_log(path).rows, columns=METRIC_COLUMNS)
    frame["value"] = frame["value"].astype(float)  # None, not finite, becomes NaN
    frame = frame.drop_duplicates(["step", "split", "metric"], keep="last")
    # Kept as NaN, never as infinity: whether "not finite" is the worst low or high depends on the metric.
    frame["value"] = frame["value"].where(frame["value"].abs() < math.inf)
    return frame.sort_values("step", kind="stable", ignore_index=True)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Unreadable(f"{path.name} is missing") from None
    except OSError as error:
        raise Unreadable(f"{path.name} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path.name} cannot be read ({str(error).splitlines()[0]})") from None
    if not isinstance(content, dict):
        raise Unreadable(f"{path.name} is not a JSON object")
    return content


def _status(folder: Path) -> dict[str, Any]:
    """``status.json``, or nothing before it is first written."""
    if not (folder / "status.json").exists():
        return {}
    status = _json(folder / "status.json")
    garbled = [key for key, kind in KINDS.items() if not isinstance(status.get(key), kind)]
    garbled += [key for key in NUMBERS if not is_number(status.get(key))]
    if not garbled and not is_number((status.get("best") or {}).get("value")):
        garbled.append("best")
    if status.get("state") not in STATES or garbled:
        raise Unreadable(f"status.json garbles {garbled[0] if garbled else 'state'}")
    return status


def is_number(value: Any) -> bool:
    """Whether it is a number that can be calculated with, or None."""
    if isinstance(value, int):
        return abs(value) < 2**63
    return value is None or isinstance(value, float)


def _state(folder: Path, status: Mapping[str, Any], origin: str) -> str:
    state = str(status.get("state", "interrupted"))
    if state != "running":
        return state
    if origin == "published":
        return "interrupted"  # a copy has no live process
    from experiments.runs import RunError, effective_state  # only now: it needs more than reading does

    try:
        return effective_state(folder)
    except RunError as error:  # replaced by a damaged file since we read it
        raise Unreadable(str(error)) from None


def read_run(folder: Path, origin: str = "runs", configs: bool = True) -> Run:
    """Reads one run folder. Raises ``Unreadable`` if any of its files is damaged; without ``configs``, not for that.

    A published run's files are held against its checksums, if it has any.
    """
    meta = _json(folder / "meta.json")
    status = _status(folder)
    if wrong := [key for key, kind in META_KINDS.items() if not isinstance(meta.get(key), kind)]:
        raise Unreadable(f"meta.json lacks or garbles {wrong[0]!r}")
    try:
        data = {key: str(meta["data"][key]) for key in ("kind", "label", "name", "fingerprint", "detail")}
        git = meta.get("git") or {}
        run = Run(
            folder=folder, run=folder.name, task=meta["task"], norm=meta["norm"],
            batch_size=whole(meta["batch_size"]), seed=whole(meta["seed"]), profile=meta["profile"],
            identity=meta["identity"], config_sha=meta["config_sha"], data=data,
            commit=str(git.get("commit") or "unknown"), dirty=bool(git.get("dirty")),
            started=str(meta.get("started") or ""), state=_state(folder, status, origin), origin=origin,
            status=status,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"meta.json lacks or garbles {error}") from None
    for key, value in (("profile", run.profile), ("data label", run.label), ("task", run.task)):
        if not _SLUG.fullmatch(value):  # these become parts of output paths
            raise Unreadable(f"meta.json has the {key} {value!r}")
    if not (REPO / "configs" / "profile" / run.profile).is_dir():
        raise Unreadable(f"meta.json has the profile {run.profile!r}, which configs/profile does not")
    try:
        damage = seals.broken(folder) if origin == "published" else None
        damage = damage or log_damage(folder, run.state, status)
        damage = damage or (config_damage(folder, run.config_sha, meta) if configs else None)
    except OSError as error:  # a folder in a file's place, for example
        damage = f"{Path(error.filename or folder).name} cannot be read ({error.strerror})"
    if run.task != folder.parent.name:
        damage = damage or f"meta.json is of task {run.task}, the folder is not"
    if damage:
        raise Unreadable(damage)
    return run


def log_damage(folder: Path, state: str, status: Mapping[str, Any]) -> str | None:
    """What is wrong with a run's ``metrics.jsonl``; its end may only be missing where the run has not finished."""
    log = read_log(folder / "metrics.jsonl")
    if log.damage or state not in FINISHED:
        return log.damage
    if log.cut:
        return "metrics.jsonl is cut off"
    wanted = status.get("rows", len(log.rows))  # runs made before rows were counted do not say
    return f"metrics.jsonl holds {len(log.rows)} of {wanted} rows" if wanted != len(log.rows) else None


def config_damage(folder: Path, config_sha: str, meta: Mapping[str, Any]) -> str | None:
    """Whether ``config.yaml`` was edited after the run was made.

    The digest in ``meta.json`` answers at once; without one, or if it differs (a comment may have been added), the
    configuration itself is hashed, which imports torch.
    """
    path = folder / "config.yaml"
    if not path.exists() or meta.get("config_digest") == hashlib.sha256(path.read_bytes()).hexdigest():
        return None
    from experiments.runs import saved_sha

    sha = saved_sha(path)
    if sha == config_sha or (not sha and "config_digest" not in meta and _is_yaml(path)):
        return None  # what today's schema cannot read any more was not edited for that
    return "config.yaml was edited: it is not what meta.json says was run"


def _is_yaml(path: Path) -> bool:
    try:
        yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError):
        return False
    return True


def collect(
    runs: Path, published: Path, task: str | None = None, profile: str | None = None, configs: bool = True
) -> Collection:
    """Reads all run folders of both places, optionally of one task and profile.

    Our own run goes before a published copy of the same identity, unless only the copy has finished. Without
    ``configs``, whether a ``config.yaml`` was edited is not asked.
    """
    found: dict[str, Run] = {}
    damaged: list[tuple[Path, str]] = []
    doubles: list[tuple[Path, Path]] = []
    for origin, root in (("runs", runs), ("published", published)):
        for folder in sorted(root.glob(f"{task or '*'}/*")):
            if folder.name.startswith(".") or not any((folder / name).exists() for name in RUN_FILES):
                continue  # figures and timings lie beside published runs
            try:
                run = read_run(folder, origin, configs)
            except Unreadable as error:
                damaged.append((folder, str(error)))
                continue
            if profile not in (None, run.profile):
                continue
            rival = found.get(run.identity)
            better = rival is None or (rival.state not in FINISHED and run.state in FINISHED)
            if rival is not None and rival.origin == origin:
                doubles.append((run.folder, rival.folder) if better else (rival.folder, run.folder))
            if better:
                found[run.identity] = run
    order = sorted(found.values(), key=lambda r: (r.task, r.profile, r.label, r.norm, r.batch_size, r.seed, r.run))
    return Collection(order, damaged, doubles)
