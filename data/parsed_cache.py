"""Parsed arrays on disk, so that every start after the first takes a fraction of a second.

One ``.npz`` per data set and set of source files in ``$LN_CACHE`` (default ``data/cache``), valid while the
files' size and modification time are the same. It holds the arrays' fingerprint, which is computed anew at
each load (tens of milliseconds), so a damaged file is noticed and built again. The cache may be deleted.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from data.fetch import REPO, DataError, fingerprint, sweep_stale

log = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray]
# What numpy and zipfile raise on a damaged file.
DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)
_META = "_key", "_fingerprint", "_columns"


def cache_dir() -> Path:
    """$LN_CACHE, or data/cache of the repository."""
    return Path(os.environ.get("LN_CACHE") or REPO / "data" / "cache").expanduser().absolute()


def cache_path(name: str, sources: Sequence[Path]) -> Path:
    """File that holds the parsed arrays of ``sources``; the same while the files stay where they are."""
    paths = "\n".join(str(p.resolve()) for p in sources)
    return cache_dir() / f"{name}-{hashlib.sha256(paths.encode()).hexdigest()[:12]}.npz"


def cached(
    name: str, sources: Sequence[Path], build: Callable[[], Arrays], *, version: str = "1", bits: bool = False
) -> tuple[Arrays, str]:
    """Arrays from the cache, or from ``build`` if the cache has none for these files in this state.

    Processes that start together may all build; each replaces the file in one step. A cache that cannot be
    written only warns.

    Args:
        name: of the data set; part of the file name and of the fingerprint.
        sources: files the arrays are made from.
        build: parses them; called only when needed.
        version: changes whenever ``build`` would give other arrays for the same files.
        bits: the arrays are 0/1 matrices and are stored eight values a byte.

    Returns:
        The arrays and their fingerprint (``data.fetch.fingerprint``), the same whichever way they came.
    """
    path = cache_path(name, sources)
    try:
        stats = [p.stat() for p in sources]
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror}); check the file") from None
    key = "|".join([version, f"bits={bits}", *(f"{s.st_size}:{s.st_mtime_ns}" for s in stats)])
    if (hit := _load(path, name, key)) is not None:
        return hit
    arrays = build()
    digest = fingerprint(name, arrays)
    _save(path, key, digest, arrays, bits)
    return arrays, digest


def _load(path: Path, name: str, key: str) -> tuple[Arrays, str] | None:
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            if str(stored["_key"]) != key:
                return None  # the source files changed
            columns, digest = int(stored["_columns"]), str(stored["_fingerprint"])
            arrays: Arrays = {k: stored[k] for k in stored.files if k not in _META}
            if columns:
                arrays = {k: np.unpackbits(a, axis=1, count=columns) for k, a in arrays.items()}
        if fingerprint(name, arrays) == digest:
            return arrays, digest
        reason = "content does not match its fingerprint"
    except DAMAGE as error:
        reason = type(error).__name__
    log.warning("%s: damaged cache (%s), parsing the source files again", path, reason)
    return None


def _save(path: Path, key: str, digest: str, arrays: Mapping[str, np.ndarray], bits: bool) -> None:
    columns = next(iter(arrays.values())).shape[1] if bits else 0
    packed = {k: np.packbits(a, axis=1) for k, a in arrays.items()} if bits else dict(arrays)
    meta = dict(zip(_META, (np.array(key), np.array(digest), np.array(columns)), strict=True))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep_stale(path.parent)
        save_npz(path, {**meta, **packed})
    except OSError as error:
        why = error.strerror or error
        log.warning("%s: cannot write the cache (%s); going on, each start parses again", path.parent, why)


def save_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays to ``path`` in one step: it never holds half of them. Raises ``OSError``."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "wb") as out:
            np.savez(out, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
