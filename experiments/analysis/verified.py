"""What ``scripts.verify`` has found: that the present code repeats the first steps of a run made with an older one.

``verified.json`` in a published run's folder holds ``commit`` and ``dirty`` of the tree that repeated it, ``code``, the
fingerprint of the code that decides the task's numbers, ``through_step`` and ``rows``, how far it was compared, and
``when``. It counts for as long as the present code has that fingerprint, and only for the steps it names.
"""

from __future__ import annotations

import json
from pathlib import Path

from experiments.analysis.changes import fingerprint

FILE = "verified.json"


def through_step(folder: Path, task: str) -> int | None:
    """The step up to which the present code has repeated a run; None if it has not, or the record is damaged."""
    try:
        record = json.loads((folder / FILE).read_text(encoding="utf-8"))
        code, step = record["code"], record["through_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(code, str) or type(step) is not int or step < 1:
        return None
    return step if code == fingerprint(task) else None


def said(step: int) -> str:
    """How reports put it."""
    return f"first {step:,} steps repeated bit for bit"
