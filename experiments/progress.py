"""Shows a sweep while it runs, from the files its cells write: one live line per running job.

A thread of the parent process reads outcomes and status files, so that jobs in other processes never write to the
same terminal. Without a terminal it prints a plain line per job every half minute.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

LIVE_SECONDS, PLAIN_SECONDS = 0.5, 30.0


def read_outcomes(sweep: Path) -> dict[int, dict[str, Any]]:
    """The cells of a sweep that have begun: number -> outcome record."""
    found: dict[int, dict[str, Any]] = {}
    for path in sweep.glob("*/outcome.json"):
        try:
            found[int(path.parent.name)] = json.loads(path.read_text())
        except (ValueError, OSError):
            continue  # between two writes, or not ours
    return dict(sorted(found.items()))


def read_status(run: str | None) -> dict[str, Any]:
    """A run's status, or an empty record while there is none."""
    try:
        return json.loads((Path(run or "") / "status.json").read_text())
    except (ValueError, OSError):
        return {}


def duration(seconds: float | None) -> str:
    """Such as ``1:02:03``, ``4:05``; ``?`` if unknown."""
    return "?" if seconds is None else str(tqdm.format_interval(seconds))


def describe(status: dict[str, Any]) -> str:
    """Loss, speed, best value and time left, as far as known."""
    parts = []
    if status.get("loss") is not None:
        parts.append(f"batch loss {status['loss']:.4g}")
    if status.get("steps_per_second"):
        parts.append(f"{status['steps_per_second']:.3g} steps/s")
    if best := status.get("best"):
        parts.append(f"best {best['split']} {best['metric']} {best['value']:.4g}")
    if status.get("seconds_left") is not None:
        parts.append(f"{duration(status['seconds_left'])} left")
    return ", ".join(parts)


class Display:
    """Polls a sweep's folder and prints what changed."""

    def __init__(self, sweep: Path, total: int) -> None:
        self.sweep, self.total = sweep, total
        # A terminal that does not know its width (some pseudo-terminals) cannot show a line that moves.
        self.live = sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns > 0
        self.bars: dict[int, tqdm[Any]] = {}
        self.finished: set[int] = set()
        self.printed: dict[int, float] = {}
        self.begun: dict[int, float] = {}

    def refresh(self) -> None:
        """One look at the files."""
        for number, outcome in read_outcomes(self.sweep).items():
            if outcome["state"] == "running":
                self.begun.setdefault(number, time.monotonic())
                self._show(number, outcome)
            elif number not in self.finished:
                self.finished.add(number)
                self._close(number, outcome)

    def _show(self, number: int, outcome: dict[str, Any]) -> None:
        status = read_status(outcome["run"])
        if self.live:
            if number not in self.bars:
                self.bars[number] = tqdm(
                    total=status.get("total_steps"),
                    desc=outcome["name"],
                    bar_format="{desc}: {percentage:3.0f}% |{bar:20}| {unit}",  # tqdm puts a comma before a postfix
                    unit="",
                    file=sys.stderr,
                    leave=False,
                    dynamic_ncols=True,
                )
            bar = self.bars[number]
            bar.total = status.get("total_steps") or bar.total
            bar.n = status.get("step", bar.n)
            bar.unit = describe(status)
            bar.refresh()
        elif time.monotonic() - self.printed.get(number, self.begun[number]) >= PLAIN_SECONDS:
            self.printed[number] = time.monotonic()
            done = 100 * status.get("step", 0) / max(1, status.get("total_steps") or 1)
            self._print(", ".join(filter(None, [f"{outcome['name']}: {done:.0f} %", describe(status)])))

    def _close(self, number: int, outcome: dict[str, Any]) -> None:
        """Says how a cell ended; an error comes once, when the whole sweep is reported."""
        if number in self.bars:
            self.bars.pop(number).close()
        took = f" after {duration(time.monotonic() - self.begun[number])}" if number in self.begun else ""
        best = read_status(outcome["run"]).get("best") if outcome["state"] in ("done", "unchanged") else None
        value = f", best {best['split']} {best['metric']} {best['value']:.4g}" if best else ""
        word = {"unchanged": "was finished before"}.get(outcome["state"], outcome["state"])
        self._print(f"[{len(self.finished)}/{self.total}] {outcome['name']}: {word}{took}{value}")

    def _print(self, line: str) -> None:
        if self.live:
            tqdm.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Removes the bars."""
        for bar in self.bars.values():
            bar.close()


@contextmanager
def shown(sweep: Path, total: int) -> Iterator[None]:
    """Shows the sweep while the body runs it."""
    display, over = Display(sweep, total), threading.Event()

    def poll() -> None:
        while not over.wait(LIVE_SECONDS):
            display.refresh()

    thread = threading.Thread(target=poll, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        display.refresh()
        display.close()
