"""The run store: one folder per run, named by what was run, locked while it runs, resumable at any moment.

Several processes on several hosts may share one store: see ``experiments.lock``.

``results/runs/<task>/<norm>-b<batch>-<profile>-s<seed>-<hash8>/`` holds ``config.yaml``, ``meta.json``,
``metrics.jsonl``, ``status.json``, ``train.log``, ``checkpoint.pt``, ``checkpoint.prev.pt`` and pictures. Every file
but the append-only metrics and the log is replaced atomically, so a reader never sees half of one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch

from experiments.lock import Held, Lock
from experiments.lock import is_locked as is_locked
from experiments.metrics import read_metrics as read_metrics
from experiments.schema import config_sha, load_saved, one_line

log = logging.getLogger("suite")
FORMAT = 1  # of checkpoints
FINISHED = ("done", "diverged")  # states that a second start leaves alone


class RunError(RuntimeError):
    """A run folder that cannot be used; the message is one line naming it and what to do."""


def write_atomic(path: Path, text: str) -> None:
    """Writes a text file so that it is either the old or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror}; free the disk or choose another LN_RESULTS") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file's object; empty if the file is missing. Raises ``RunError`` if it is damaged."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        raise RunError(f"{path} is damaged ({error}): restore it or delete its run folder") from None
    if not isinstance(value, dict):
        raise RunError(f"{path} holds no JSON object: restore it or delete its run folder")
    return value


def effective_state(folder: Path) -> str:
    """The run's state; ``running`` without a live process is what a kill leaves: ``interrupted``."""
    state = str(read_json(folder / "status.json").get("state", "interrupted"))
    return "interrupted" if state == "running" and not is_locked(folder) else state


class Run:
    """An open run folder. Use as a context manager: leaving it releases the lock.

    Args:
        folder: the run's folder; created if new.
        config_text: resolved configuration, YAML.
        meta: what ``meta.json`` of a new run says; its ``config_sha`` is what the folder's configuration must hash to.

    Raises:
        RunError: locked by a live process, or edited by hand, or not writable.
    """

    def __init__(self, folder: Path, config_text: str, meta: Mapping[str, Any]) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(folder)
        except Held as other:
            raise RunError(f"{folder} is in use by {other}: wait for it, or stop it first") from None
        except OSError as error:
            raise RunError(f"cannot create {folder}: {error.strerror}; choose another LN_RESULTS") from None
        try:
            self._adopt(config_text, meta)
        except BaseException:
            self._lock.release()
            raise
        self._metrics: IO[str] | None = None

    def _check_lock(self) -> None:
        """Before anything is written. Raises ``RunError`` once another process has the run."""
        if why := self._lock.lost():
            raise RunError(f"{self.folder}: {why}: that process goes on with the run, this one stops")

    def _adopt(self, config_text: str, meta: Mapping[str, Any]) -> None:
        for stale in self.folder.glob(".*.tmp"):
            stale.unlink()
        known = read_json(self.folder / "meta.json")
        config_path = self.folder / "config.yaml"
        if known and config_path.exists():
            if known.get("config_sha") != meta["config_sha"] or saved_sha(config_path) != meta["config_sha"]:
                raise RunError(
                    f"{config_path} no longer matches the hash in the folder's name ({meta['identity'][:8]}): "
                    "it or meta.json was edited; restore them or delete the folder"
                )
            self.meta = known
            return
        self.meta = dict(meta)
        write_atomic(config_path, config_text)
        self.write_meta(config_digest=hashlib.sha256(config_text.encode()).hexdigest())

    def write_meta(self, **changes: Any) -> None:
        """Rewrites ``meta.json`` with these changes."""
        self._check_lock()
        self.meta.update(changes)
        write_atomic(self.folder / "meta.json", json.dumps(self.meta, indent=1) + "\n")

    def state(self) -> str:
        """The state that the last process left (this one holds the lock): ``new`` if none did."""
        status = read_json(self.folder / "status.json")
        return "interrupted" if status.get("state") == "running" else str(status.get("state", "new"))

    def write_status(self, state: str, **fields: Any) -> None:
        """Replaces ``status.json``; fields as documented in the README. Non-finite numbers become null."""
        self._check_lock()
        status = {"state": state, **fields, "pid": os.getpid(), "host": socket.gethostname(), "updated": now()}
        write_atomic(self.folder / "status.json", json.dumps(_finite(status)) + "\n")

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Appends rows to ``metrics.jsonl`` and puts them on the disk."""
        self._check_lock()
        path = self.folder / "metrics.jsonl"
        try:
            if self._metrics is None:
                self._metrics = open(path, "a")
            self._metrics.write("".join(json.dumps(_finite(row)) + "\n" for row in rows))
            self._metrics.flush()
            os.fsync(self._metrics.fileno())
        except OSError as error:
            raise RunError(f"cannot append to {path}: {error.strerror}; free the disk and start again") from None

    def logged(self, step: int) -> int:
        """How many whole rows ``metrics.jsonl`` holds up to a step."""
        return sum(row["step"] <= step for row in read_metrics(self.folder / "metrics.jsonl"))

    def rewind(self, step: int) -> None:
        """Forgets metrics after ``step`` (and a cut-off line), so that a resumed curve has no doubles."""
        path = self.folder / "metrics.jsonl"
        if path.exists():
            kept = [row for row in read_metrics(path) if row["step"] <= step]
            write_atomic(path, "".join(json.dumps(row) + "\n" for row in kept))

    def save_checkpoint(self, payload: Mapping[str, Any]) -> None:
        """Writes ``checkpoint.pt`` atomically; the one before stays as ``checkpoint.prev.pt``."""
        self._check_lock()
        path, previous = self.folder / "checkpoint.pt", self.folder / "checkpoint.prev.pt"
        temporary = self.folder / f".checkpoint.pt.{os.getpid()}.tmp"
        try:
            with open(temporary, "wb") as handle:
                torch.save({"format": FORMAT, **payload}, handle)
                handle.flush()
                os.fsync(handle.fileno())
            if path.exists():
                os.replace(path, previous)
            os.replace(temporary, path)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            temporary.unlink(missing_ok=True)
            reason = getattr(error, "strerror", None) or one_line(str(error))
            raise RunError(
                f"cannot write {path}: {reason}; the last good checkpoint is kept: free the disk and start again"
            ) from None

    def load_checkpoint(self, misfit: Callable[[dict[str, Any]], str | None] = lambda _: None) -> dict[str, Any] | None:
        """The newest checkpoint that can be read and used, or None if there is none at all.

        Args:
            misfit: why a checkpoint does not go with the rest of the folder, or None if it does.
        """
        found = False
        for name in ("checkpoint.pt", "checkpoint.prev.pt"):
            path = self.folder / name
            if not path.exists():
                continue
            found = True
            try:
                payload = torch.load(path, map_location="cpu", weights_only=True)
                reason = f"format {payload['format']}, expected {FORMAT}"
                if payload["format"] == FORMAT:
                    if (wrong := misfit(payload)) is None:
                        return payload
                    reason = wrong
            except Exception as error:  # whatever a damaged file makes torch raise
                reason = f"{type(error).__name__} {one_line(str(error))[:120]}".strip()
                path.unlink()  # or the next save would keep it as the one before, and drop the good one
            log.warning("%s cannot be used (%s); trying the one before", path, reason)
        if found:
            log.warning("%s: no usable checkpoint; starting from the beginning", self.folder)
        return None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._metrics is not None:
            self._metrics.close()
        self._lock.release()


def saved_sha(config_path: Path) -> str:
    """``config_sha`` of a saved configuration, or an empty string if it cannot be read as one."""
    try:
        return config_sha(load_saved(config_path))
    except Exception:  # any damage means: not that configuration
        return ""


def now() -> str:
    """The time, ISO 8601, UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _finite(value: Any) -> Any:
    """JSON has no infinity or NaN: they are written as null."""
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
