"""The variables of ``make``, checked before any work: ``python -m scripts.options reproduce TASK=draw``.

Scripts take the ``NAME=value`` words of ``make`` as well as flags (``NORM=ln`` is ``--norm ln``); an empty
value counts as not given. Only the standard library is imported here, so that a misspelt value is answered at
once, even before ``.venv`` exists.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from data.processors import cores

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
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
SAMPLED = ("handwriting",)  # tasks that ``sample`` knows
# What ``demo`` can be asked, for example.
QUERIES = {
    "order_embeddings": "a red seven",
    "attentive_reader": "12: @placeholder purchased the lamp",
    "skip_thoughts": "what news from the court ?",
}

# What needs neither data nor runs: the one command that makes it, and the variables it takes there besides TASK.
ANALYSES: dict[str, tuple[str, tuple[str, ...]]] = {"invariances": ("reproduce", ("SEEDS",)), "rnn": ("bench", ())}

# LAUNCHER -> the file of configs/hydra/launcher, the setting that GPUS stands for, and the one that JOBS does.
LAUNCHERS = {
    "joblib": ("joblib", None, "n_jobs"),
    "slurm": ("slurm", "gpus_per_node", "array_parallelism"),
    "ray": ("ray_cluster", "ray.remote.num_gpus", None),
}

PROFILES = {"bench": "paper", "check": "smoke"}
NO_PROFILE = ("data", "figures", "compare", "report", "status", "sample")


class OptionError(ValueError):
    """A missing or wrong variable; the message is one line that names the valid values. Exit code 2."""


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
        if (CONFIGS / "profile" / profile).is_dir() and not _has_profile(profile, task):
            there = [name for name in stems("profile") if _has_profile(name, task)]
            raise OptionError(f"PROFILE={profile} is not defined for TASK={task}; use {', '.join(there)}")
    launcher = choice("LAUNCHER", given.get("LAUNCHER", "joblib"), list(LAUNCHERS))
    return Options(
        tasks=tasks,
        analyses=analyses,
        profile=profile,
        norms=_norms(given.get("NORM"), tasks),
        seeds=_integers("SEEDS", given.get("SEEDS"), least=0),
        batches=_integers("BATCH", given.get("BATCH"), least=1),
        jobs=_jobs(given.get("JOBS", "auto")),
        launcher=launcher,
        gpus=_gpus(launcher, given),
        launch=_launch(launcher, given),
        logger=choice("LOGGER", given.get("LOGGER", "local"), stems("logger")),
        device=_device(given.get("DEVICE", "auto"), here=launcher == "joblib"),
        fail_fast=choice("FAIL_FAST", given.get("FAIL_FAST", "0"), ["0", "1"]) == "1",
        text=given.get("TEXT") if command != "sample" else _text(tasks, given.get("TEXT")),
        bias=_bias(given.get("BIAS", "1")),
        given=given,
        query=_query(command, tasks, given.get("QUERY")),
    )


def stems(group: str) -> list[str]:
    """The names in one config group, in alphabetical order."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def supported_norms(task: str) -> tuple[str, ...]:
    """The ``norms = (...)`` literal of ``experiments/tasks/<task>.py``."""
    # Not written out: the training entry still refuses what does not fit.
    return tuple(_literal(task, "norms", ast.Tuple) or stems("norm"))


def _literal(task: str, name: str, kind: type[ast.expr]) -> Any:
    """What ``name`` is set to in a task's file, read without importing torch; None if it is not written out."""
    path = ROOT / "experiments" / "tasks" / f"{task}.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
        value = getattr(node, "value", None)
        if named and isinstance(value, kind):
            return ast.literal_eval(value)
    return None


def workers(options: Options, cells: int) -> int:
    """How many cells to run at a time; training shares the cores out between them.

    Small models gain little from a second thread, so ``JOBS=auto`` runs as many cells side by side as there
    are cores; a GPU is one worker.
    """
    wanted = options.jobs or (1 if _accelerated(options.device) else cores())
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


def _has_profile(profile: str, task: str) -> bool:
    return (CONFIGS / "profile" / profile / f"{task}.yaml").is_file()


def choice(name: str, value: str, known: list[str]) -> str:
    """``value`` if it is known. Raises ``OptionError`` that names the known ones."""
    if value in known:
        return value
    near = difflib.get_close_matches(value, known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise OptionError(f"{name}={value} is unknown{hint}; choose from: {', '.join(known)}")


def _norms(value: str | None, tasks: tuple[str, ...]) -> tuple[str, ...] | None:
    if value is None:
        return None
    norms = tuple(choice("NORM", norm.strip(), stems("norm")) for norm in value.split(","))
    for task in tasks:
        for norm in norms:
            if norm not in supported_norms(task):
                supported = ", ".join(supported_norms(task))
                why = (_literal(task, "REFUSED", ast.Dict) or {}).get(norm)
                reason = f" ({why})" if why else ""
                raise OptionError(f"NORM={norm} is not supported by TASK={task}{reason}; choose from: {supported}")
    return _unique("NORM", norms)


def _is_whole(text: str, least: int) -> bool:
    """Whether it is a whole number; isdecimal() alone takes other scripts too, and int() not thousands of digits."""
    return text.isascii() and text.isdecimal() and len(text) <= 18 and int(text) >= least


def _integers(name: str, value: str | None, least: int) -> tuple[int, ...] | None:
    if value is None:
        return None
    items = [item.strip() for item in value.split(",")]
    if not all(_is_whole(item, least) for item in items):
        raise OptionError(f"{name}={value} must list whole numbers from {least} up, such as {name}=1,2")
    return _unique(name, tuple(int(item) for item in items))


def _query(command: str, tasks: Sequence[str], value: str | None) -> str:
    if command == "demo" and value is None:
        like = next((f', such as QUERY="{QUERIES[task]}"' for task in tasks if task in QUERIES), "")
        raise OptionError(f"QUERY is missing; give what to ask{like}")
    return value or ""


def _unique(name: str, values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) < len(values):
        raise OptionError(f"{name}={','.join(map(str, values))} names a value twice")
    return values


def _jobs(value: str) -> int | None:
    if value == "auto":
        return None
    if not _is_whole(value, 1):
        raise OptionError(f"JOBS={value} is neither auto nor a whole number from 1 up")
    return int(value)


def _text(tasks: tuple[str, ...], value: str | None) -> str:
    if tasks[0] not in SAMPLED:
        raise OptionError(f"TASK={tasks[0]} writes no text; choose from: {', '.join(SAMPLED)}")
    if value is None:
        raise OptionError('TEXT is missing or empty; give what to write, such as TEXT="layer norm"')
    return value


def _bias(value: str) -> float:
    try:
        bias = float(value)
    except ValueError:
        bias = -1.0
    if not 0 <= bias <= 20:  # a larger one makes every sigma vanish
        raise OptionError(f"BIAS={value} must be a number from 0 to 20")
    return bias


def _gpus(launcher: str, given: Mapping[str, str]) -> str | None:
    value = given.get("GPUS")
    if LAUNCHERS[launcher][2] is None and given.get("JOBS", "auto") != "auto":
        raise OptionError(f"JOBS={given['JOBS']} does nothing with LAUNCHER={launcher}, whose CPUs and GPUs decide")
    if value is None:
        return None
    if LAUNCHERS[launcher][1] is None:
        raise OptionError(f"GPUS={value} does nothing with LAUNCHER={launcher}: DEVICE chooses there")
    whole = value.isascii() and value.isdecimal()
    part = launcher == "ray" and re.fullmatch(r"0?\.\d+", value) is not None
    if not (whole or part):
        raise OptionError(f"GPUS={value} must be a whole number from 0 up, or with LAUNCHER=ray a part such as 0.5")
    return value


def _launch(launcher: str, given: Mapping[str, str]) -> tuple[str, ...]:
    """``LAUNCH`` as words; which keys there are, the launcher's configuration says."""
    value = given.get("LAUNCH", "")
    if value and launcher == "joblib":
        raise OptionError(f"LAUNCH={value} does nothing with LAUNCHER=joblib; choose slurm or ray")
    try:
        words = tuple(shlex.split(value))
    except ValueError as error:
        raise OptionError(f"LAUNCH={value} cannot be read ({error}); give key=value words") from None
    for word in words:
        if not re.fullmatch(r"[A-Za-z_][\w.]*=.*", word):
            raise OptionError(f"LAUNCH={value}: {word!r} is not key=value, such as timeout_min=600")
    return words


def _device(value: str, here: bool) -> str:
    choice("DEVICE", value, ["auto", "cpu", "cuda", "mps"])
    if here and value in ("cuda", "mps"):
        try:
            import torch
        except ImportError:  # before the set-up: the script itself asks again
            return value
        if not (torch.cuda if value == "cuda" else torch.backends.mps).is_available():
            raise OptionError(f"DEVICE={value} is not available here; use DEVICE=cpu or DEVICE=auto")
    return value


def _accelerated(device: str) -> bool:
    if device == "cpu":
        return False
    import torch

    return device != "auto" or torch.cuda.is_available()


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
