"""Checksums of published runs: whether a file was edited after it was published.

``checksums.sha256`` in a published run's folder has a line for each of its files, as ``sha256sum`` writes them. Line
ends do not count, for git may turn them on checkout: what is hashed has ``\\n`` where the file has ``\\r\\n``. The
record of ``scripts.verify`` is not sealed, since it comes and goes with the code.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from experiments.analysis.output import write_whole

FILE = "checksums.sha256"
SEALED = ("config.yaml", "meta.json", "metrics.jsonl", "status.json")


def digest(path: Path) -> str:
    """sha256 of a text file, the same whatever its line ends."""
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def seal(folder: Path) -> Path:
    """Writes the checksums of a run folder's files, such as there are; returns their file."""
    lines = [f"{digest(folder / name)}  {name}\n" for name in SEALED if (folder / name).exists()]
    return write_whole(folder / FILE, "".join(lines))


def is_sealed(folder: Path) -> bool:
    """Whether a folder has checksums at all."""
    return (folder / FILE).exists()


def broken(folder: Path) -> str | None:
    """What differs from the checksums, in a few words; None where nothing does, or there are none."""
    if not is_sealed(folder):
        return None
    known: dict[str, str] = {}
    for line in (folder / FILE).read_text(encoding="utf-8", errors="replace").splitlines():
        value, _, name = line.partition("  ")
        if len(value) != 64 or name not in SEALED:
            return f"{FILE} is damaged"
        known[name] = value
    for name in SEALED:
        there = (folder / name).exists()
        if name in known and not there:
            return f"{name} is missing, {FILE} has it"
        if there and known.get(name) != digest(folder / name):
            return f"{name} was edited after it was published: it is not what {FILE} says"
    return None
