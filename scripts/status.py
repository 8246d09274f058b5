"""Lists the runs with state, progress and best value: ``python -m scripts.status --task draw``."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis.collect import Run, collect
from scripts.selection import run, say, select


def best(status: Mapping[str, Any]) -> str:
    """Best value so far, e.g. ``valid bound 150.2``."""
    found = status.get("best")
    if not found or found.get("value") is None:
        return "-"
    return f"{found.get('split')} {found.get('metric')} {found['value']:.4g}"


def percent(status: Mapping[str, Any]) -> str:
    """Steps done of all steps, e.g. ``45 %``."""
    step, total = status.get("step"), status.get("total_steps")
    return f"{100 * step / total:.0f} %" if step is not None and total else "-"


def duration(seconds: float) -> str:
    """A duration in its largest unit, e.g. ``3 min``."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def updated(status: Mapping[str, Any], now: datetime.datetime) -> str:
    """How long ago the run last said something, e.g. ``3 min ago``."""
    try:
        when = datetime.datetime.fromisoformat(str(status["updated"]))
        return f"{duration((now - when).total_seconds())} ago"
    except (KeyError, ValueError, TypeError):
        return "-"


def table(runs: Sequence[Run], now: datetime.datetime) -> list[str]:
    """One line for each run, and one below it with what went wrong in a failed one."""
    width = max([len(r.run) for r in runs] + [3])
    lines = [f"{'run':<{width}}  {'state':<11} {'done':>5}  {'best':<20}  updated"]
    for r in runs:
        left = r.status.get("seconds_left")
        rest = f"  {duration(left)} left" if r.state == "running" and left is not None else ""
        line = f"{r.run:<{width}}  {r.state:<11} {percent(r.status):>5}  {best(r.status):<20}"
        lines.append(f"{line}  {updated(r.status, now):<10}{rest}".rstrip())
        if r.status.get("error") and r.state in ("failed", "diverged"):
            lines.append(f"  {r.status['error'].splitlines()[0][:100]}")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0."""
    chosen = select("status", __doc__, argv, out="")
    # Each place by itself: a published copy must not hide behind the run it was made from.
    nowhere = chosen.runs / ".none"
    # What is published is under version control, and to hash its configurations takes seconds.
    mine, copies = collect(chosen.runs, nowhere), collect(nowhere, chosen.published, configs=False)
    say(mine.warnings + copies.warnings)
    now = datetime.datetime.now(datetime.UTC)
    for task in chosen.tasks:
        runs, published = (
            [r for r in collection.runs if r.task == task and chosen.profile in (None, r.profile)]
            for collection in (mine, copies)
        )
        counts = Counter(f"{r.profile} ({r.label})" for r in published)
        known = ", ".join(f"{count} at {where}" for where, count in sorted(counts.items())) or "none"
        print(f"{task}: {len(runs)} runs; published: {known}")
        if runs:
            print("\n".join(f"  {line}" for line in table(runs, now)))
        for folder, why in mine.damaged:
            if folder.parent.name == task:
                print(f"  {folder.name}  damaged: {why}")
    return 0


if __name__ == "__main__":
    run(main)
