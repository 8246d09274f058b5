"""The variables of ``make``, checked before any work: ``python -m scripts.options reproduce TASK=draw``.

Scripts take the ``NAME=value`` words of ``make`` as well as flags (``NORM=ln`` is ``--norm ln``); an empty
value counts as not given. Only the standard library is imported here, so that a misspelt value is answered at
once, even before ``.venv`` exists.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from data.processors import cores
from scripts import checked
from scripts.checked import CONFIGS, LAUNCHERS, ROOT, OptionError, choice, stems

NAMES = {
    "TASK": "task; `all` where a command takes several",
    "PROFILE": "budgets and sizes (default small; bench: paper; check: smoke)",
    "NORM": "norms, such as none,ln (default: those of the published result; sweep: all the task supports)",
    "SEEDS": "seeds, such as 0,1,2 (default: those of the published result; sweep: 0)",
    "BATCH": "batch sizes, such as 128,4 (default: those of the published result; sweep: the task's one)",
    "JOBS": "cells trained at a time (default auto: one per core)",
    "LAUNCHER": "what runs the cells: joblib (this machine), slurm (a job array), ray (a Ray cluster)",
    "GPUS": "slurm, ray: GPUs of each cell",
    "LAUNCH": "slurm, ray: more of their settings, such as partition=gpu timeout_min=600",
    "LOGGER": "local or wandb",
    "DEVICE": "auto, cpu, cuda or mps",
    "FAIL_FAST": "1: start no further cell once one has failed",
    "TEXT": "sample: what to write",
    "BIAS": "sample: how neatly, from 0 (as the model would) up (default 1)",
    "QUERY": "demo: what to ask the trained model",
}
# What each command does with TASK: "one" by name, "many" takes `all` as well, "any" means all when not given.
COMMANDS = {
    "data": "many",
    "reproduce": "many",
    "sweep": "one",
    "figures": "any",
    "tables": "any",
    "compare": "any",
    "report": "any",
    "status": "any",
    "estimate": "one",
    "bench": "one",
    "demo": "one",
    "sample": "one",
    "check": "any",
}

# What needs neither data nor runs: the one command that makes it, and the variables it takes there besides TASK.
ANALYSES: dict[str, tuple[str, tuple[str, ...]]] = {"invariances": ("reproduce", ("SEEDS",)), "rnn": ("bench", ())}


PROFILES = {"bench": "paper", "check": "smoke"}
NO_PROFILE = ("data", "figures", "compare", "report", "status", "sample")


@dataclass(frozen=True)
class Options:
    """Checked variables. ``None`` for norms, seeds and batches means: what ``NAMES`` says.

    ``given`` has the words as they were given, without those left out.
    """

    tasks: tuple[str, ...]
    analyses: tuple[str, ...]
    profile: str
    norms: tuple[str, ...] | None
    seeds: tuple[int, ...] | None
    batches: tuple[int, ...] | None
    jobs: int | None
    launcher: str
    gpus: str | None
    launch: tuple[str, ...]
    logger: str
    device: str
    fail_fast: bool
    text: str | None
    bias: float
    query: str
    given: Mapping[str, str]

    @property
    def task(self) -> str:
        """The task, for commands that take exactly one."""
        (task,) = self.tasks
        return task


class Parser(argparse.ArgumentParser):
    """Of ``scripts.<command>``; answers bad input with ``OptionError``, not with its usage."""

    def __init__(self, command: str, about: str | None, **more: Any) -> None:
        super().__init__(prog=f"python -m scripts.{command}", description=about, allow_abbrev=False, **more)

    def error(self, message: str) -> NoReturn:
        raise OptionError(message)


def parse(command: str, words: list[str], about: str | None = None) -> Options:
    """Checks the command-line words of one of ``COMMANDS``. Raises ``OptionError``."""
    parser = Parser(command, about)
    parser.add_argument("words", nargs="*", metavar="NAME=value", help="as for make, such as TASK=draw")
    for name, text in NAMES.items():
        parser.add_argument(f"--{name.lower().replace('_', '-')}", dest=name, metavar=name, help=text)
    values = vars(parser.parse_intermixed_args(words))
    for word in values.pop("words"):
        name, equals, value = word.partition("=")
        if not equals or name not in NAMES:
            raise OptionError(f"{word!r} is not NAME=value with NAME one of: {', '.join(NAMES)}")
        values[name] = value.strip() or values[name]
    given = {name: value.strip() for name, value in values.items() if (value or "").strip()}

    _check_results()
    analyses = _analyses(command, given)
    tasks = () if given.get("TASK") in ANALYSES else _tasks(command, given.get("TASK"))
    profile = choice("PROFILE", given.get("PROFILE", PROFILES.get(command, "small")), stems("profile"))
    # A task may lack a profile that others have (medium, for example). Commands without a default look at all.
    for task in tasks if "PROFILE" in given or command not in NO_PROFILE else ():
        if (CONFIGS / "profile" / profile).is_dir() and not checked.has_profile(profile, task):
            there = [name for name in stems("profile") if checked.has_profile(name, task)]
            raise OptionError(f"PROFILE={profile} is not defined for TASK={task}; use {', '.join(there)}")
    launcher = choice("LAUNCHER", given.get("LAUNCHER", "joblib"), list(LAUNCHERS))
    return Options(
        tasks=tasks,
        analyses=analyses,
        profile=profile,
        norms=checked.norms(given.get("NORM"), tasks),
        seeds=checked.integers("SEEDS", given.get("SEEDS"), least=0),
        batches=checked.integers("BATCH", given.get("BATCH"), least=1),
        jobs=checked.jobs(given.get("JOBS", "auto")),
        launcher=launcher,
        gpus=checked.gpus(launcher, given),
        launch=checked.launch(launcher, given),
        logger=choice("LOGGER", given.get("LOGGER", "local"), stems("logger")),
        device=checked.device(given.get("DEVICE", "auto"), here=launcher == "joblib"),
        fail_fast=choice("FAIL_FAST", given.get("FAIL_FAST", "0"), ["0", "1"]) == "1",
        text=given.get("TEXT") if command != "sample" else checked.text(tasks, given.get("TEXT")),
        bias=checked.bias(given.get("BIAS", "1")),
        given=given,
        query=checked.query(command, tasks, given.get("QUERY")),
    )


def workers(options: Options, cells: int) -> int:
    """How many cells to run at a time; training shares the cores out between them.

    Small models gain little from a second thread, so ``JOBS=auto`` runs as many cells side by side as there
    are cores; a GPU is one worker.
    """
    wanted = options.jobs or (1 if checked.accelerated(options.device) else cores())
    return min(wanted, max(cells, 1))


def fail(error: Exception) -> NoReturn:
    """Prints one line and exits with 2."""
    print(f"error: {error}", file=sys.stderr)
    raise SystemExit(2)


def from_command_line(command: str, about: str | None = None) -> Options:
    """``parse`` on this process' arguments; prints the error and exits with 2."""
    try:
        return parse(command, sys.argv[1:], about)
    except OptionError as error:
        fail(error)


def _check_results() -> None:
    """Nothing could be written below a file, and nothing would be found there."""
    root = ROOT / os.environ.get("LN_RESULTS", "results")
    there = next(path for path in (root, *root.parents) if path.exists())
    if not there.is_dir():
        raise OptionError(f"LN_RESULTS={root}: {there} is a file, not a folder; choose another LN_RESULTS")


def _tasks(command: str, value: str | None) -> tuple[str, ...]:
    known = stems("task")
    mode = COMMANDS[command]
    valid = known + _analyses_of(command) + ["all"] * (mode != "one")
    if value is None and mode != "any":
        raise OptionError(f"TASK is missing; choose from: {', '.join(valid)}")
    if value is None or (value == "all" and mode != "one"):
        return tuple(known)
    return (choice("TASK", value, valid),)


def _analyses_of(command: str) -> list[str]:
    return [name for name, (its_command, _) in ANALYSES.items() if its_command == command]


def _analyses(command: str, given: dict[str, str]) -> tuple[str, ...]:
    name = given.get("TASK", "")
    if name not in ANALYSES:
        return tuple(_analyses_of(command)) if name == "all" and COMMANDS[command] != "one" else ()
    its_command, variables = ANALYSES[name]
    if command != its_command:
        raise OptionError(f"TASK={name} has neither data nor runs; use make {its_command} TASK={name}")
    if idle := [word for word in given if word not in ("TASK", *variables)]:
        taken = ", ".join(variables) or "no other variable"
        only = "only " * bool(variables)
        raise OptionError(f"{idle[0]}={given[idle[0]]} does nothing with TASK={name}, which takes {only}{taken}")
    return (name,)


def main() -> None:
    """Checks the words after the command's name and says nothing when they are right."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command not in COMMANDS:
        fail(OptionError(f"unknown command {command!r}; choose from: {', '.join(COMMANDS)}"))
    try:
        parse(command, sys.argv[2:])
    except OptionError as error:
        fail(error)


if __name__ == "__main__":
    main()
