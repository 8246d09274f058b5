"""Writes run folders as training would, for tests of what reads them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOURCES = {
    "mnist": {"kind": "mirror", "label": "mnist", "name": "MNIST", "detail": "the official files"},
    "fixed": {
        "kind": "original",
        "label": "fixed",
        "name": "binarized MNIST, Larochelle & Murray (fixed)",
        "detail": "the fixed binarization the paper uses",
    },
    "bernoulli": {
        "kind": "stand-in",
        "label": "bernoulli",
        "name": "MNIST binarized by seeded Bernoulli draws",
        "detail": "pixel intensities taken as probabilities; no fixed files of Larochelle & Murray",
    },
}


@dataclass(frozen=True)
class FakeCell:
    """Has what the analysis reads of an experiment's cell."""

    task: str
    norm: str
    batch_size: int
    seed: int
    profile: str
    config_sha: str
    command: str
    overrides: list[str] = field(default_factory=list)


def cell(
    task: str = "draw", norm: str = "ln", batch: int = 128, seed: int = 0, profile: str = "small"
) -> FakeCell:
    """A cell whose hash depends on what names it."""
    sha = hashlib.sha256(f"{task} {norm} {batch} {seed} {profile}".encode()).hexdigest()
    command = f"python -m experiments.train task={task} norm={norm} seed={seed} train.batch_size={batch}"
    return FakeCell(task, norm, batch, seed, profile, sha, f"{command} profile={profile}")


def rows(
    values: Mapping[tuple[str, str], Iterable[float]], unit: str = "nats/image", every: int = 10
) -> list[dict]:
    """Metric records: (split, metric) -> one value per evaluation, 2 s and half an epoch apart."""
    return [
        {
            "step": every * (i + 1), "examples": 128 * every * (i + 1), "epoch": (i + 1) / 2,
            "train_seconds": 2.0 * (i + 1), "split": split, "metric": metric, "unit": unit,
            "value": value if math.isfinite(value) else None,
        }
        for (split, metric), series in values.items()
        for i, value in enumerate(series)
    ]  # fmt: skip


def write_run(
    root: Path,
    cell: FakeCell,
    records: list[dict],
    data: str = "fixed",
    state: str = "done",
    commit: str = "c0ffee00" * 5,
    change: Callable[[dict[str, Any]], None] | None = None,
    **status: Any,
) -> Path:
    """Writes one run folder under ``root`` (a runs or published folder) and returns it."""
    source = {**SOURCES[data], "fingerprint": hashlib.sha256(data.encode()).hexdigest()}
    identity = hashlib.sha256(f"{cell.config_sha} {source['fingerprint']}".encode()).hexdigest()
    folder = root / cell.task / f"{cell.norm}-b{cell.batch_size}-{cell.profile}-s{cell.seed}-{identity[:8]}"
    folder.mkdir(parents=True)
    meta = {
        "run": folder.name, "task": cell.task, "norm": cell.norm, "batch_size": cell.batch_size,
        "seed": cell.seed, "profile": cell.profile, "identity": identity, "config_sha": cell.config_sha,
        "overrides": [],
        "data": source, "git": {"commit": commit, "dirty": False}, "versions": {}, "hardware": {},
        "threads": 1, "device": "cpu", "parameters": 1, "started": "2026-01-02T03:04:05+00:00", "ended": None,
    }  # fmt: skip
    if change:
        change(meta)
    last = max((record["step"] for record in records), default=0)
    full = {
        "state": state, "step": last, "total_steps": last if state == "done" else 2 * max(last, 1),
        "epoch": records[-1]["epoch"] if records else 0.0, "loss": 1.0, "steps_per_second": 2.0,
        "seconds_left": 0.0, "best": None, "error": None, "pid": 1, "host": "here",
        "updated": "2026-01-02T03:14:05+00:00", **status,
    }  # fmt: skip
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    (folder / "status.json").write_text(json.dumps(full), encoding="utf-8")
    text = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    return folder
