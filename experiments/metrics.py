"""``metrics.jsonl``: one reader, for training, which resumes from it, and for the analysis, which needs no torch.

One JSON object a line, appended at every evaluation; the README names its fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

FIELDS: dict[str, Callable[[Any], Any]] = {
    "step": int, "examples": int, "epoch": float, "train_seconds": float,
    "split": str, "metric": str, "unit": str, "value": lambda value: None if value is None else float(value),
}  # fmt: skip


class Log(NamedTuple):
    """What a log holds.

    Attributes:
        rows: its records up to the first line that is none; ``value`` is None where it was not finite.
        cut: whether the last line was cut off, as a crash does.
        damage: what is wrong with the line after ``rows``, if a crash cannot have done it.
    """

    rows: list[dict[str, Any]]
    cut: bool
    damage: str | None


def read_log(path: Path) -> Log:
    """Reads a ``metrics.jsonl``; one that is missing is empty."""
    rows: list[dict[str, Any]] = []
    *lines, rest = path.read_bytes().split(b"\n") if path.exists() else [b""]
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            rows.append({name: kind(record[name]) for name, kind in FIELDS.items()})
        except (ValueError, KeyError, TypeError):
            return Log(rows, False, f"line {number} of {path.name} is no record")
    return Log(rows, bool(rest), None)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``; a last line that was cut off is left out, as is anything after a damaged one."""
    return read_log(path).rows
