"""What each variable of ``make`` may be: a check for each, which answers with one line that names the valid values.

Only the standard library is imported here: see ``scripts.options``.
"""

from __future__ import annotations

import ast
import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
SAMPLED = ("handwriting",)  # tasks that ``sample`` knows
# What ``demo`` can be asked, for example.
QUERIES = {
    "order_embeddings": "a red seven",
    "attentive_reader": "12: @placeholder purchased the lamp",
    "skip_thoughts": "what news from the court ?",
}
# LAUNCHER -> the file of configs/hydra/launcher, the setting that GPUS stands for, and the one that JOBS does.
LAUNCHERS = {
    "joblib": ("joblib", None, "n_jobs"),
    "slurm": ("slurm", "gpus_per_node", "array_parallelism"),
    "ray": ("ray_cluster", "ray.remote.num_gpus", None),
}


class OptionError(ValueError):
    """A missing or wrong variable; the message is one line that names the valid values. Exit code 2."""


def stems(group: str) -> list[str]:
    """The names in one config group, in alphabetical order."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def supported_norms(task: str) -> tuple[str, ...]:
    """The ``norms = (...)`` literal of ``experiments/tasks/<task>.py``."""
    # Not written out: the training entry still refuses what does not fit.
    return tuple(literal(task, "norms", ast.Tuple) or stems("norm"))


def literal(task: str, name: str, kind: type[ast.expr]) -> Any:
    """What ``name`` is set to in a task's file, read without importing torch; None if it is not written out."""
    path = ROOT / "experiments" / "tasks" / f"{task}.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
        value = getattr(node, "value", None)
        if named and isinstance(value, kind):
            return ast.literal_eval(value)
    return None


def has_profile(profile: str, task: str) -> bool:
    """Whether the task has a file for the profile."""
    return (CONFIGS / "profile" / profile / f"{task}.yaml").is_file()


def choice(name: str, value: str, known: list[str]) -> str:
    """``value`` if it is known. Raises ``OptionError`` that names the known ones."""
    if value in known:
        return value
    near = difflib.get_close_matches(value, known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise OptionError(f"{name}={value} is unknown{hint}; choose from: {', '.join(known)}")


def norms(value: str | None, tasks: tuple[str, ...]) -> tuple[str, ...] | None:
    """``NORM``: norms that all the tasks support; None if not given."""
    if value is None:
        return None
    norms = tuple(choice("NORM", norm.strip(), stems("norm")) for norm in value.split(","))
    for task in tasks:
        for norm in norms:
            if norm not in supported_norms(task):
                supported = ", ".join(supported_norms(task))
                why = (literal(task, "REFUSED", ast.Dict) or {}).get(norm)
                reason = f" ({why})" if why else ""
                raise OptionError(f"NORM={norm} is not supported by TASK={task}{reason}; choose from: {supported}")
    return unique("NORM", norms)


def is_whole(text: str, least: int) -> bool:
    """Whether it is a whole number; isdecimal() alone takes other scripts too, and int() not thousands of digits."""
    return text.isascii() and text.isdecimal() and len(text) <= 18 and int(text) >= least


def integers(name: str, value: str | None, least: int) -> tuple[int, ...] | None:
    """A list of whole numbers, such as ``SEEDS``; None if not given."""
    if value is None:
        return None
    items = [item.strip() for item in value.split(",")]
    if not all(is_whole(item, least) for item in items):
        raise OptionError(f"{name}={value} must list whole numbers from {least} up, such as {name}=1,2")
    return unique(name, tuple(int(item) for item in items))


def query(command: str, tasks: Sequence[str], value: str | None) -> str:
    """``QUERY``, which only ``demo`` needs."""
    if command == "demo" and value is None:
        like = next((f', such as QUERY="{QUERIES[task]}"' for task in tasks if task in QUERIES), "")
        raise OptionError(f"QUERY is missing; give what to ask{like}")
    return value or ""


def unique(name: str, values: tuple[T, ...]) -> tuple[T, ...]:
    """The same values. Raises ``OptionError`` where one stands twice."""
    if len(set(values)) < len(values):
        raise OptionError(f"{name}={','.join(map(str, values))} names a value twice")
    return values


def jobs(value: str) -> int | None:
    """``JOBS``; None for ``auto``."""
    if value == "auto":
        return None
    if not is_whole(value, 1):
        raise OptionError(f"JOBS={value} is neither auto nor a whole number from 1 up")
    return int(value)


def text(tasks: tuple[str, ...], value: str | None) -> str:
    """``TEXT``, for the tasks that can write."""
    if tasks[0] not in SAMPLED:
        raise OptionError(f"TASK={tasks[0]} writes no text; choose from: {', '.join(SAMPLED)}")
    if value is None:
        raise OptionError('TEXT is missing or empty; give what to write, such as TEXT="layer norm"')
    return value


def bias(value: str) -> float:
    """``BIAS``."""
    try:
        bias = float(value)
    except ValueError:
        bias = -1.0
    if not 0 <= bias <= 20:  # a larger one makes every sigma vanish
        raise OptionError(f"BIAS={value} must be a number from 0 to 20")
    return bias


def gpus(launcher: str, given: Mapping[str, str]) -> str | None:
    """``GPUS`` of a cell, for launchers that hand them out; and whether ``JOBS`` means anything to the launcher."""
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


def launch(launcher: str, given: Mapping[str, str]) -> tuple[str, ...]:
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


def device(value: str, here: bool) -> str:
    """``DEVICE``; whether it is there is asked only if the cells run here."""
    choice("DEVICE", value, ["auto", "cpu", "cuda", "mps"])
    if here and value in ("cuda", "mps"):
        try:
            import torch
        except ImportError:  # before the set-up: the script itself asks again
            return value
        if not (torch.cuda if value == "cuda" else torch.backends.mps).is_available():
            raise OptionError(f"DEVICE={value} is not available here; use DEVICE=cpu or DEVICE=auto")
    return value


def accelerated(device: str) -> bool:
    """Whether cells on this device run on a GPU."""
    if device == "cpu":
        return False
    import torch

    return device != "auto" or torch.cuda.is_available()
