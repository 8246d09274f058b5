"""Composes configurations outside of Hydra's own entry point, and turns its errors into one line.

Used to check every cell of a sweep before any work starts, and to find the cells of a published result.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from data.fetch import DataError
from experiments.schema import CONFIGS, Config, ConfigError, one_line, register, resolve, unknown_key

# What to give where a value is of the wrong type: by OmegaConf's name of the type, or by what it says.
WANTED = {"Integer": "a whole number", "Float": "a number, such as 0.001 or 1e-3"}
WANTED_WHEN = {
    "is not a valid bool": "true or false",
    "is not a ListConfig": "a list, such as [1000,1000]",
    "to string": "one word",
    "is not a subclass of": "a group of keys: set one of them, such as train.lr=0.001",
}
WRITE = "write key=value, and quote a value that has brackets, commas, blanks or letters with accents"
INSTALL = {"ray": "make setup LAUNCHER=ray", "sub": "make setup"}
SEED = re.compile(r"seed=(0|[1-9]\d*)")
GROUPS = ("task", "norm", "profile", "logger", "experiment")


def choices(group: str) -> list[str]:
    """The values a config group can take."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


@contextmanager
def _hydra() -> Iterator[None]:
    """Hydra ready to compose ``configs/``; nothing is left behind in its global state."""
    os.environ.setdefault("LN_SWEEP", str(CONFIGS.parent / "results" / "sweeps" / "none"))
    register()
    if GlobalHydra.instance().is_initialized():
        GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
        yield


def experiment_task(name: str) -> str:
    """The task an experiment file chooses."""
    path = CONFIGS / "experiment" / f"{name}.yaml"
    if not path.exists():
        raise ConfigError(f"experiment={name} is unknown: use {', '.join(choices('experiment'))}")
    for entry in OmegaConf.load(path).defaults:
        if OmegaConf.is_dict(entry) and "override /task" in entry:
            return str(entry["override /task"])
    raise ConfigError(f"configs/experiment/{name}.yaml: no 'override /task' in its defaults")


def check_words(overrides: Sequence[str]) -> None:
    """Refuses what Hydra would answer with its grammar, or take and stumble over. Raises ``ConfigError``."""
    for word in overrides:
        key, equals, value = word.partition("=")
        if not key or (not equals and not word.startswith("~")):
            raise ConfigError(f"{word} sets nothing: write key=value, such as norm=ln")
        if key.lstrip("+") == "hydra.launcher.n_jobs" and not re.fullmatch(r"[1-9]\d*|-[1-9]\d*", value):
            raise ConfigError(f"{word} must be a whole number from 1 up, or -1 for one job per core")
        if key in GROUPS and re.fullmatch(r"null|true|false|[\d.]+", value, re.IGNORECASE):
            raise ConfigError(f"{word} is unknown: use {', '.join(choices(key))}")


def check_task(cell: Sequence[str]) -> None:
    """Refuses a task beside an experiment of another one: the figure would be drawn of runs it does not show."""
    given = dict(word.lstrip("+").partition("=")[::2] for word in cell)
    task, experiment = given.get("task"), given.get("experiment", "null")
    if task and experiment != "null" and (own := experiment_task(experiment)) != task:
        raise ConfigError(
            f"task={task} does not go with experiment={experiment}, which is of task {own}: leave one out"
        )


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The cells of a multirun: one list of overrides each, in the order Hydra's basic sweeper runs them."""
    check_words(overrides)
    with _hydra(), translated():
        parser = OverridesParser.create()
        given = parser.parse_overrides(list(overrides))
        if removed := [override.input_line for override in given if override.is_delete()]:
            raise ConfigError(f"{removed[0]}: keys cannot be removed; set a value instead")
        plain = [override.input_line or "" for override in given if not override.is_sweep_override()]
        if not any(override.get_key_element() in ("task", "experiment") for override in given):
            raise ConfigError(f"no task given: add task= with one of {', '.join(choices('task'))}")
        with_task = plain
        if not any(override.get_key_element() in ("task", "experiment") for override in parser.parse_overrides(plain)):
            with_task = [f"task={choices('task')[0]}", *plain]  # a sweep over tasks: any shows the parameters
        params = compose("config", overrides=with_task, return_hydra_config=True).hydra.sweeper.params or {}
        parsed = parser.parse_overrides([f"{key}={value}" for key, value in params.items()]) + given
        values: dict[str, list[str]] = {}  # a later override of the same key replaces an earlier one
        for override in parsed:
            key = override.get_key_element()
            if override.is_sweep_override():
                values[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            else:
                values[key] = [f"{key}={override.get_value_element_as_str()}"]
    return [list(cell) for cell in itertools.product(*values.values())]


def compose_cells(cells: Sequence[Sequence[str]], here: bool = True) -> list[Config]:
    """The checked configuration of each cell. Raises ``ConfigError`` at the first that cannot work.

    Args:
        here: whether they run on this machine: see ``schema.resolve``.
    """
    for cell in cells:
        check_task(cell)
    composed: dict[tuple[str, ...], DictConfig] = {}
    configs = []
    with _hydra(), translated():
        for cell in cells:
            # Cells that differ in nothing but their seed are composed once: that takes a tenth of a second each.
            key = tuple("seed" if SEED.fullmatch(word) else word for word in cell)
            if key.count("seed") != 1:
                configs.append(resolve(compose("config", overrides=list(cell)), here))
                continue
            if key not in composed:
                composed[key] = compose("config", overrides=list(cell))
            composed[key].seed = int(cell[key.index("seed")].partition("=")[2])
            configs.append(resolve(composed[key], here))
    return configs


@contextmanager
def translated() -> Iterator[None]:
    """Hydra's errors as ``ConfigError``, in one line."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error)) from None


def explain(error: Exception) -> str:
    """One line that names the key or value at fault and what to do."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    if own := next((c for c in causes if isinstance(c, DataError)), None):  # of an environment variable
        return str(own)
    text = "\n".join(str(c) for c in causes)
    if match := re.search(r"Could not (?:find|load) 'profile/(\w+)/(\w+)'", text):
        profile, task = match.groups()
        have = [p for p in choices("profile") if (CONFIGS / "profile" / p / f"{task}.yaml").exists()]
        return f"profile={profile} has no settings for task {task}: use {', '.join(have)}"
    if match := re.search(r"Could not (?:find|load) 'hydra/launcher/(ray|submitit_\w+)'", text):
        return (
            f"hydra/launcher needs a package for {match.group(1)} that is not installed: {INSTALL[match.group(1)[:3]]}"
        )
    if match := re.search(r"Could not find '([\w/]+)/([^'/]*)'", text):
        group, choice = match.groups()
        listed = re.search(r"Available options in [^\n]*\n((?:\t[^\n]+\n?)*)", text)  # some of Hydra's have no file
        known = listed.group(1).split() if listed and group.startswith("hydra") else choices(group)
        return f"{group}={choice} is unknown: use {', '.join(known)}"
    match = re.search(r"Could not override '([^']+)'", text) or re.search(r"Key '([^']+)' (?:is )?not in", text)
    if match:
        full = re.search(r"full_key: (\S+)", text)
        key = full.group(1) if full else match.group(1)
        if key == "hydra.launcher.n_jobs":
            return f"{key} needs a launcher that has it: add hydra/launcher=joblib"
        if key.startswith("hydra.launcher."):
            return f"{key}: the launcher chosen by hydra/launcher= has no such key; --cfg hydra shows those it has"
        if re.search(r"Key '[^']+' (?:is )?not in|not in struct", text):
            return unknown_key(key)
    if match := re.search(r"Value '(.*)'.* of type '\w+' could not be converted to (\w+)", text):
        full = re.search(r"full_key: (\S+)", text)
        return f"{full.group(1) if full else 'a value'}={match.group(1)} must be {WANTED[match.group(2)]}"
    if match := re.search(r"Error merging override (\S+)=null", text):
        return f"{match.group(1)}=null: this key needs a value"
    if match := re.search(r"Error merging override (.*)", text):
        found = (wanted for pattern, wanted in WANTED_WHEN.items() if re.search(pattern, text))
        return f"{match.group(1)} must be {next(found, 'of the type it has in configs/')}"
    if match := re.search(r"Error parsing override '(.*)'", text):
        return f"{match.group(1)} cannot be read: {WRITE}"
    if "override_grammar" in text:
        return f"{one_line(text).partition(';')[0]}: {WRITE}"
    return one_line(str(error))
