"""Mirrors one run to wandb, if asked to; ``metrics.jsonl`` stays the source of everything.

The tracker never leads: whatever goes wrong here costs one warning line, and training goes on. It never asks
anything, and it never waits long for a network.
"""

from __future__ import annotations

import json
import logging
import netrc
import os
import socket
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from experiments import mirror
from experiments.runs import write_atomic

log = logging.getLogger("suite")
log.addHandler(logging.NullHandler())

OFFLINE = "logging offline; upload later with: wandb sync results/wandb/offline-run-*"
CLOUD = "api.wandb.ai"
CONNECT_SECONDS = 5.0
INIT_SECONDS = 30.0
FINISH_SECONDS = 60.0
# In the run folder: the wandb id, so that a resumed run continues its own, and the last step it was sent.
STATE_FILE = "wandb.json"


class Tracker:
    """Does nothing: what ``logger=local`` uses, and what a wandb that failed turns into."""

    @staticmethod
    def start(
        config: Mapping[str, Any], meta: Mapping[str, Any], folder: Path, logger: Mapping[str, Any]
    ) -> Tracker:
        """Opens the tracker that ``logger.name`` asks for. Never raises.

        Args:
            config: the resolved configuration, plain Python.
            meta: the run's ``meta.json``.
            folder: the run folder.
            logger: ``name`` (local | wandb), ``project``, ``entity``, ``mode`` (auto | online | offline) and
                optionally ``dir``, in which wandb makes its folder ``wandb`` (default: ``results``).
        """
        if logger.get("name") != "wandb":
            return Tracker()
        tracker = WandbTracker(folder)
        tracker.open(config, meta, logger)
        return tracker

    def log(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Mirrors rows of ``metrics.jsonl``."""

    def figure(self, path: Path) -> None:
        """Mirrors one picture (png)."""

    def finish(self, exit_code: int) -> None:
        """Closes the run; 0 means finished, anything else failed."""


class WandbTracker(Tracker):
    """One wandb run for one run folder."""

    def __init__(self, folder: Path) -> None:
        self.state_path = folder / STATE_FILE
        self.run: Any = None
        self.id = ""
        self.sent_step = -1
        self.sent_before = -1

    def open(self, config: Mapping[str, Any], meta: Mapping[str, Any], logger: Mapping[str, Any]) -> None:
        """Starts or continues the wandb run; offline where there is no key or no network."""
        self._guard("start", lambda: self._open(config, meta, logger))

    def log(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """One wandb row per step, with keys ``split/metric``. A resumed run does not send a step again."""
        by_step: dict[int, dict[str, Any]] = {}
        for row in rows:
            if row["step"] > self.sent_before:
                line = by_step.setdefault(row["step"], {key: row[key] for key in mirror.OF_A_STEP})
                line.update(mirror.line(row))
        for step, line in sorted(by_step.items()):
            self._guard("log", partial(self._send, line))
            self.sent_step = max(self.sent_step, step)
        if by_step and self.run is not None:
            self._guard("log", self._remember)

    def figure(self, path: Path) -> None:
        """Sends a png under its file name."""
        self._guard("log a figure", lambda: self._figure(path))

    def finish(self, exit_code: int) -> None:
        """Ends the wandb run, so that the next cell of a multirun gets its own.

        What ``experiments.mirror`` needs to make the run folder again goes into its summary.
        """
        self._guard("finish", self._last_words)
        self._guard("finish", lambda: self.run.finish(exit_code=exit_code))
        self.run = None

    def _open(self, config: Mapping[str, Any], meta: Mapping[str, Any], logger: Mapping[str, Any]) -> None:
        # Set before the import: wandb reads them once. Silent keeps its banners out of the progress lines.
        os.environ["WANDB_SILENT"] = "true"
        os.environ["WANDB_CONSOLE"] = "off"
        import wandb

        self._recall()
        # wandb makes a folder `wandb` in the one it is given: results/wandb for results/runs/<task>/<run>.
        folder = Path(logger.get("dir") or self.state_path.parents[3]).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        mode = self._mode(str(logger.get("mode") or "auto"))
        arguments: dict[str, Any] = dict(
            project=logger.get("project") or "layer-norm",
            entity=logger.get("entity") or None,
            name=meta.get("run"),
            group=f"{meta.get('task')}-{meta.get('profile')}",
            job_type=meta.get("norm"),
            id=self.id,
            resume="allow" if mode == "online" else None,
            dir=str(folder),
            config={**config, "meta": dict(meta)},
            reinit="finish_previous",
        )
        try:
            self.run = wandb.init(mode=mode, settings=self._settings(wandb, mode), **arguments)
        except Exception as error:
            if mode == "offline":
                raise
            self._warn(f"wandb: no connection ({brief(error)}), {OFFLINE}")
            # The service may still hold the id it failed with.
            self.id = arguments["id"] = _new_id()
            arguments["resume"] = None
            self.run = wandb.init(mode="offline", settings=self._settings(wandb, "offline"), **arguments)
        # Our own step as a field: wandb's must only ever grow, ours may be resumed.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        self._remember()

    @staticmethod
    def _settings(wandb: Any, mode: str) -> Any:
        return wandb.Settings(
            mode=mode, silent=True, console="off", init_timeout=INIT_SECONDS, finish_timeout=FINISH_SECONDS
        )

    def _mode(self, wanted: str) -> Literal["online", "offline"]:
        """Online only with a key: without one wandb would ask for it, or fail."""
        if wanted == "offline":
            return "offline"
        if not has_key():
            self._warn(f"wandb: no API key (WANDB_API_KEY or wandb login), {OFFLINE}")
        elif not reachable():
            self._warn(f"wandb: {server().geturl()} is out of reach, {OFFLINE}")
        else:
            return "online"
        return "offline"

    def _send(self, line: Mapping[str, Any]) -> None:
        self.run.log(line)

    def _figure(self, path: Path) -> None:
        import wandb

        if path.suffix == ".png":
            self.run.log({f"figure/{path.stem}": wandb.Image(str(path)), "step": max(self.sent_step, 0)})

    def _last_words(self) -> None:
        if found := mirror.summary(self.state_path.parent):
            self.run.summary.update(found)

    def _recall(self) -> None:
        """Continues the run of this folder; its id is random: others may run the same cell in one project."""
        try:
            state = json.loads(self.state_path.read_text(encoding="utf-8"))
            self.id, self.sent_step = str(state["id"]), int(state["step"])
        except (OSError, ValueError, KeyError, TypeError):
            self.id, self.sent_step = _new_id(), -1
        self.sent_before = self.sent_step

    def _remember(self) -> None:
        write_atomic(self.state_path, json.dumps({"id": self.id, "step": self.sent_step}) + "\n")

    def _guard(self, what: str, call: Callable[[], object]) -> None:
        """Runs a wandb call. The first that fails is reported, and none follows it."""
        if self.run is None and what != "start":
            return
        try:
            call()
        except Exception as error:
            run, self.run = self.run, None
            missing = isinstance(error, ImportError)
            reason = "the package is not installed" if missing else f"could not {what} ({brief(error)})"
            self._warn(f"wandb: {reason}; training goes on, metrics are in {self.state_path.parent}")
            if run is not None and what != "finish":
                try:
                    run.finish(exit_code=1)
                except Exception:
                    log.debug("wandb: finish after a failure failed too", exc_info=True)

    @staticmethod
    def _warn(text: str) -> None:
        log.warning(text)  # to train.log
        print(f"warning: {text}", file=sys.stderr, flush=True)


def _new_id() -> str:
    return uuid.uuid4().hex[:12]


def server() -> SplitResult:
    """The server that wandb would talk to; its default has another name now and then."""
    import wandb

    return urlsplit(str(os.environ.get("WANDB_BASE_URL") or getattr(wandb.Settings(), "base_url", f"https://{CLOUD}")))


def reachable() -> bool:
    """Asks for a connection only, since wandb itself would try for INIT_SECONDS at every cell of a sweep."""
    if any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in os.environ):
        return True  # wandb goes through the proxy; a direct connection says nothing
    here = server()
    try:
        port = here.port or (80 if here.scheme == "http" else 443)
        with socket.create_connection((here.hostname or "", port), timeout=CONNECT_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def has_key() -> bool:
    """Whether wandb would find an API key: in the environment or in the netrc file of ``wandb login``."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    here = server()
    # An older login is under the name that the default server had.
    hosts = {here.netloc, here.hostname or "", *([] if os.environ.get("WANDB_BASE_URL") else [CLOUD])}
    candidates = [os.environ["NETRC"]] if "NETRC" in os.environ else ["~/.netrc", "~/_netrc"]
    for candidate in candidates:
        path = Path(candidate).expanduser()
        try:
            if path.is_file() and any(map(netrc.netrc(str(path)).authenticators, hosts)):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def brief(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
