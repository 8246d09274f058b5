"""``metrics.jsonl``: one reader, for training, which resumes from it, and for the analysis, which needs no torch.

One JSON object a line, appended at every evaluation; the README names its fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


def whole(value: Any) -> int:
    """A whole number of 64 bits, as tables hold it. Raises ``ValueError`` or ``TypeError``."""
    try:
        number = int(value)
    except OverflowError:  # infinity
        number = 2**63
    if not -(2**63) <= number < 2**63:
        raise ValueError("a whole number of more than 64 bits")
    return number


def real(value: Any) -> float:
    """A number. Raises ``ValueError`` or ``TypeError``."""
    try:
        return float(value)
    except OverflowError:
        raise ValueError("a number of too many digits") from None


FIELDS: dict[str, Callable[[Any], Any]] = {
    "step": whole, "examples": whole, "epoch": real, "train_seconds": real,
    "split": str, "metric": str, "unit": str, "value": lambda value: None if value is None else real(value),
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
        except (ValueError, KeyError, TypeError, RecursionError):
            return Log(rows, False, f"line {number} of {path.name} is no record")
    return Log(rows, bool(rest), None)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``; a last line that was cut off is left out, as is anything after a damaged one."""
    return read_log(path).rows
