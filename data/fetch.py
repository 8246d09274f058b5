"""Shared by every data set: where files are looked for, and how a failure is told."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]


class DataError(RuntimeError):
    """A data file is missing, damaged or of the wrong layout; one line naming the file and the remedy."""


@dataclass(frozen=True)
class Source:
    """Where a data set came from; goes into a run's meta, captions and comparisons.

    Attributes:
        kind: "original" (local files in the official layout), "mirror" (downloaded) or "stand-in".
        label: short slug used in output paths: "mnist", "fixed", "bernoulli".
        name: full name of the data set.
        fingerprint: sha256 hex over the label and the decoded arrays, the same whichever way they came.
        detail: one sentence for captions, e.g. what a stand-in is and why it is used.
    """

    kind: str
    label: str
    name: str
    fingerprint: str
    detail: str


def raw_dir() -> Path:
    """Folder that downloads are saved to: $LN_RAW, or data/raw of the repository."""
    return Path(os.environ.get("LN_RAW") or REPO / "data" / "raw").expanduser().absolute()


def data_roots() -> list[Path]:
    """Folders searched for data files, in order: $LN_DATA if set, then the raw folder."""
    roots = [Path(os.environ["LN_DATA"]).expanduser().absolute()] if os.environ.get("LN_DATA") else []
    return [*roots, raw_dir()]
