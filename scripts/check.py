"""The whole suite at profile smoke: every task with every norm it supports, from data to figures and comparison.

    make check
    make check TASK=draw JOBS=1

Each task is ``make reproduce``, started as a user would, with results in a new temporary folder; that folder stays if
something went wrong. Exit code: 0 all well, 1 a task was not, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from scripts.checked import ROOT, OptionError, supported_norms
from scripts.options import ANALYSES, Options, fail, parse
from scripts.sweep import wait

INTERRUPTED = 130
TAIL = 15  # lines of a task's output that are shown if it fails


def words(task: str, options: Options) -> list[str]:
    """What ``make reproduce`` is given: all norms and one seed, if nothing else was said."""
    if task in ANALYSES:
        return [f"TASK={task}"]
    given = {"PROFILE": options.profile, "NORM": ",".join(supported_norms(task)), "SEEDS": "0", **options.given}
    return [f"{name}={value}" for name, value in {**given, "TASK": task}.items()]


def run(task: str, options: Options, results: Path) -> int:
    """Starts one task. Its output goes to ``<results>/<task>.log``. Returns the exit code."""
    command = [sys.executable, "-m", "scripts.reproduce", *words(task, options)]
    own = {**os.environ, "LN_RESULTS": str(results)}
    with open(results / f"{task}.log", "wb") as log:
        return wait(subprocess.Popen(command, cwd=ROOT, env=own, stdin=subprocess.DEVNULL, stdout=log, stderr=log))


def wrong(task: str, options: Options, results: Path) -> str | None:
    """What is missing after a task ended with 0, or None."""
    if task in ANALYSES:
        return None if list((results / "figures" / task).glob("*.png")) else "no figure"
    states = {folder: _state(folder) for folder in sorted((results / "runs" / task).glob("*"))}
    for folder, state in states.items():
        if state != "done":
            return f"{folder.name} is {state}"
    norms = Counter(folder.name.partition("-")[0] for folder in states)
    wanted = options.norms or supported_norms(task)
    if lacking := [norm for norm in wanted if not norms[norm]]:
        return f"no run with norm {', '.join(lacking)}"
    if not (results / "compare" / f"{task}.json").exists():
        return "no comparison"
    return None if list((results / "figures").glob("*/fig*.png")) else "no figure"


def _state(folder: Path) -> str:
    try:
        return str(json.loads((folder / "status.json").read_text())["state"])
    except (OSError, ValueError, KeyError):
        return "without status"


def check(task: str, options: Options, results: Path) -> bool:
    """One task, with a line for how it went."""
    begun = time.monotonic()
    code = run(task, options, results)
    if code == INTERRUPTED or -code in (signal.SIGINT, signal.SIGTERM):
        raise KeyboardInterrupt
    error = f"exit code {code}" if code else wrong(task, options, results)
    cells = len(list((results / "runs" / task).glob("*")))
    seconds = f"{time.monotonic() - begun:.0f} s"
    if error is None:
        print(f"{task}: {f'{cells} cells, ' if cells else ''}{seconds}", flush=True)
        return True
    lines = (results / f"{task}.log").read_text(errors="replace").splitlines()[-TAIL:]
    print("".join(f"  {line}\n" for line in lines), end="", file=sys.stderr)
    print(f"error: {task}: {error}, after {seconds}; its output: {results / task}.log", file=sys.stderr, flush=True)
    return False


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    try:
        options = parse("check", sys.argv[1:] if argv is None else list(argv), __doc__)
    except OptionError as error:
        fail(error)
    results = Path(tempfile.mkdtemp(prefix="layer-norm-check-"))
    begun = time.monotonic()
    try:
        everything = options.given.get("TASK", "all") == "all"
        analyses = [name for name, (command, _) in ANALYSES.items() if command == "reproduce" and everything]
        tasks = [*options.tasks, *analyses]
        failed = [task for task in tasks if not check(task, options, results)]
    except KeyboardInterrupt:
        shutil.rmtree(results, ignore_errors=True)
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    took = f"{time.monotonic() - begun:.0f} s"
    if failed:
        print(f"error: {', '.join(failed)} failed, of {len(tasks)} in {took}; results: {results}", file=sys.stderr)
        return 1
    shutil.rmtree(results, ignore_errors=True)
    print(f"all {len(tasks)} well, in {took}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
