"""The configuration's schema: what keys exist, which of them are the science, and one-line errors.

Hydra composes ``configs/``; ``resolve`` turns the result into plain dataclasses, checked once. ``config_sha`` is
the identity of an experiment: the scientific part only, so that device, threads, paths, logger, checkpoint rhythm
and evaluation batch size never make a new run. A field added later must carry a default that keeps the old
behaviour; at that default it is left out of the hash, so that older runs keep their identity.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from data.handwriting import skip_bad_asked
from data.processors import cores
from experiments.machine import passed_environment
from experiments.optim import ADAMS, CLIPS
from models.kernels import KERNELS
from models.norm import CONSTANTS, Norm

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"


class ConfigError(ValueError):
    """A value, key or combination that cannot work; the message is one line naming it and what to do."""


@dataclass
class NormConfig:
    """``norm.*``; a constant that the chosen norm does not use is null. Meanings: ``models.norm.Norm``."""

    name: str = MISSING
    eps: float | None = MISSING
    eps_mode: str | None = MISSING
    gain_init: float | None = MISSING
    variance: str | None = MISSING
    momentum: float | None = MISSING
    arm: str | None = None  # a norm with settings of its own, ``<name>_<what>``; null: the plain norm

    @property
    def shown(self) -> str:
        """What this is called in folders, figures and tables, and chosen by: the arm's name, or else the norm's."""
        return self.arm or self.name

    def norm(self) -> Norm:
        """The record models take."""
        given = {k: v for k, v in dataclasses.asdict(self).items() if v is not None and k != "arm"}
        used = CONSTANTS.get(self.name, ())
        for key in given:
            if key != "name" and key not in used:
                raise ConfigError(f"norm.{key}={given[key]} does nothing with norm={self.name}: leave it at null")
        for key in used:
            if key not in given:
                raise ConfigError(f"norm.{key}=null: norm={self.name} needs a value")
        if self.name == "bn" and self.eps == 0:
            raise ConfigError("norm.eps=0.0 must be above 0 with norm=bn: a unit may be constant over a batch")
        try:
            return Norm(**given)
        except ValueError as error:
            raise ConfigError(str(error)) from None


@dataclass
class TrainConfig:
    """``train.*``: optimisation and its budget."""

    batch_size: int = MISSING
    budget: float = MISSING  # in budget_unit
    budget_unit: str = MISSING  # epochs | steps
    eval_every: float = MISSING  # in budget_unit
    eval_batch_size: int = MISSING  # examples at a time in evaluation; changes no number
    lr: float = MISSING
    beta1: float = MISSING
    beta2: float = MISSING
    adam_eps: float = MISSING
    clip: float | None = MISSING  # gradient norm, in the form clip_form; null: no clipping
    checkpoint_seconds: float = MISSING  # at most this much work is lost; changes no number
    adam: str = "standard"  # standard | authors: see experiments.optim
    clip_form: str = "global"  # global | per_tensor | norm_as_square


@dataclass
class LoggerConfig:
    """``logger.*``: where metrics are mirrored to; the run folder is always written."""

    name: str = MISSING  # local | wandb
    project: str | None = None
    entity: str | None = None
    mode: str = "auto"  # auto | online | offline


@dataclass
class DataConfig:
    """``data.*``: how files are read. Whatever changes the examples shows in the data's fingerprint."""

    skip_bad: bool = False  # leave out and count what cannot be used, where a data set has such; else stop


@dataclass
class PathsConfig:
    """``paths.*``, relative to the repository."""

    results: str = MISSING


@dataclass
class Config:
    """The whole configuration of one cell. ``task`` holds the task's own dataclass."""

    task: Any = MISSING
    train: TrainConfig = field(default_factory=TrainConfig)
    norm: NormConfig = field(default_factory=NormConfig)
    seed: int = MISSING
    profile: str = MISSING
    device: str = MISSING  # auto | cpu | cuda | mps
    threads: int = MISSING  # torch threads; 0: cores / jobs, $OMP_NUM_THREADS at most
    kernel: str = "auto"  # of recurrent layers: auto | reference | fused
    fail_fast: bool = MISSING
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)
    figure: Any = None  # what an experiment file draws; read by the analysis, not by training
    table: Any = None  # and what it tabulates

    @property
    def results(self) -> Path:
        """Absolute results folder."""
        return ROOT / self.paths.results


DEVICES = ("auto", "cpu", "cuda", "mps")
SCIENCE = ("task", "train", "norm", "seed")
NOT_SCIENCE = {"train": ("eval_batch_size", "checkpoint_seconds")}


def register() -> None:
    """Makes the schemas known to Hydra: ``schema`` and, per task, ``schema/<task>``."""
    from experiments.tasks import TASKS

    OmegaConf.register_new_resolver("env_skip_bad", skip_bad_asked, replace=True)
    OmegaConf.register_new_resolver("env_passed", passed_environment, replace=True)
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    store.store(group="norm", name="schema_norm", node=NormConfig)
    for name, task in TASKS.items():
        store.store(group="schema", name=name, node=task.Config)


def science(cfg: Config) -> dict[str, Any]:
    """The scientific part as plain data; fields with a default are left out at that default."""
    plain: dict[str, Any] = {}
    for part in SCIENCE:
        value = getattr(cfg, part)
        if dataclasses.is_dataclass(value):
            skip = NOT_SCIENCE.get(part, ())
            plain[part] = {
                f.name: getattr(value, f.name)
                for f in dataclasses.fields(value)
                if f.name not in skip and (f.default == MISSING or getattr(value, f.name) != f.default)
            }
        else:
            plain[part] = value
    return plain


def config_sha(cfg: Config) -> str:
    """sha256 of the scientific part (hex). Numbers are hashed by value: 1 and 1.0 are the same."""

    def canonical(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: canonical(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [canonical(v) for v in value]
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return value

    text = json.dumps(canonical(science(cfg)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def identity(cfg: Config, data_fingerprint: str) -> str:
    """Identity of a run: the scientific configuration and the data it saw."""
    return hashlib.sha256(f"{config_sha(cfg)}:{data_fingerprint}".encode()).hexdigest()


def resolve(raw: DictConfig, here: bool = True) -> Config:
    """The checked configuration of one cell. Raises ``ConfigError``; reads no data.

    Args:
        here: whether the cell runs on this machine, so that its device must be there.
    """
    from experiments.tasks import TASKS

    if raw.task.get("name") not in TASKS:
        raise ConfigError(f"task.name={raw.task.get('name')} is unknown: use task= with one of {', '.join(TASKS)}")
    for key in _leaves(raw):  # Hydra's + and ++ add keys past any schema
        if key not in known_keys(raw.task.name):
            raise ConfigError(unknown_key(key))
    missing = sorted(OmegaConf.missing_keys(raw))
    if missing:
        raise ConfigError(f"no value for {', '.join(missing)}: give it on the command line or in configs/")
    try:
        cfg = OmegaConf.to_object(raw)
    except OmegaConfBaseException as error:
        raise ConfigError(one_line(str(error))) from None
    assert isinstance(cfg, Config)
    task = TASKS[cfg.task.name]
    if cfg.norm.arm is not None and not cfg.norm.arm.startswith(f"{cfg.norm.name}_"):
        raise ConfigError(f"norm.arm={cfg.norm.arm} is no arm of norm.name={cfg.norm.name}: use norm= with its name")
    if cfg.norm.shown not in task.norms:
        why = getattr(sys.modules[type(task).__module__], "REFUSED", {}).get(cfg.norm.shown)
        reason = f" ({why})" if why else ""
        raise ConfigError(
            f"norm={cfg.norm.shown} is not supported by task {task.name}{reason}: use {', '.join(task.norms)}"
        )
    if cfg.norm.variance == "auto":
        # The paper uses the unbiased estimator at batch 4, where the two differ by a third.
        cfg.norm.variance = "unbiased" if cfg.train.batch_size <= 16 else "biased"
    cfg.norm.norm()
    _check_train(cfg.train)
    if cfg.logger.name not in ("local", "wandb"):
        raise ConfigError(f"logger.name={cfg.logger.name} is unknown: use local or wandb")
    if cfg.logger.mode not in ("auto", "online", "offline"):
        raise ConfigError(f"logger.mode={cfg.logger.mode} is unknown: use auto, online or offline")
    if cfg.kernel not in KERNELS:
        raise ConfigError(f"kernel={cfg.kernel} is unknown: use {', '.join(KERNELS)}")
    if cfg.threads < 0:
        raise ConfigError(f"threads={cfg.threads} must be 0 (cores / jobs) or more")
    if cfg.seed < 0:
        raise ConfigError(f"seed={cfg.seed} must be 0 or more")
    if here or cfg.device not in DEVICES:
        pick_device(cfg.device)
    task.check(cfg)
    return cfg


def known_keys(task: str) -> set[str]:
    """Dotted names of all keys that a configuration of this task may hold."""
    from experiments.tasks import TASKS

    keys = {f.name for f in dataclasses.fields(Config)}
    for part, schema in (
        ("task", TASKS[task].Config),
        ("train", TrainConfig),
        ("norm", NormConfig),
        ("logger", LoggerConfig),
        ("data", DataConfig),
        ("paths", PathsConfig),
    ):
        keys |= {f"{part}.{f.name}" for f in dataclasses.fields(schema)}
    return keys


def _leaves(raw: DictConfig) -> list[str]:
    """Dotted names of a configuration's keys, one level deep; ``figure`` and ``table`` are the analysis' own."""
    keys = []
    for key in raw:
        node = raw._get_node(key)
        if isinstance(node, DictConfig) and not node._is_none() and key not in ("figure", "table"):
            keys += [f"{key!s}.{child!s}" for child in node]
        else:
            keys.append(str(key))
    return keys


def unknown_key(key: str) -> str:
    """The message for a key that no schema has, with the nearest one that exists."""
    from experiments.tasks import TASKS

    near = difflib.get_close_matches(key, sorted(set().union(*map(known_keys, TASKS))), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown key {key}{hint} (all keys: configs/config.yaml and configs/task)"


def _check_train(train: TrainConfig) -> None:
    for name in ("batch_size", "budget", "eval_every", "eval_batch_size", "lr", "adam_eps", "checkpoint_seconds"):
        value = getattr(train, name)
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"train.{name}={value} must be a finite number above 0")
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(train, name) < 1:
            raise ConfigError(f"train.{name}={getattr(train, name)} must lie in [0, 1)")
    if train.clip is not None and not train.clip > 0:
        raise ConfigError(f"train.clip={train.clip} must be above 0, or null for no clipping")
    for name, known in (("adam", ADAMS), ("clip_form", CLIPS)):
        if getattr(train, name) not in known:
            raise ConfigError(f"train.{name}={getattr(train, name)} is unknown: use {' or '.join(known)}")
    if train.budget_unit not in ("epochs", "steps"):
        raise ConfigError(f"train.budget_unit={train.budget_unit} is unknown: use epochs or steps")


def pick_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is one, else the CPU; anything else must exist."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda, but torch finds no CUDA GPU here: use device=cpu or device=auto")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device=mps, but torch finds no Apple GPU here: use device=cpu or device=auto")
    if name not in DEVICES:
        raise ConfigError(f"device={name} is unknown: use auto, cpu, cuda or mps")
    return torch.device(name)


def pick_threads(threads: int, jobs: int) -> int:
    """Torch threads of one job: as asked, or the cores shared out between the jobs; $OMP_NUM_THREADS is the most."""
    most = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list has one for each level of nesting
    share = max(1, cores() // max(1, jobs))
    return threads or (min(share, int(most)) if re.fullmatch("[1-9][0-9]{0,8}", most) else share)


def one_line(text: str) -> str:
    """An error text of several lines as one."""
    return "; ".join(line.strip() for line in text.strip().splitlines() if line.strip())


def dump(cfg: Config) -> str:
    """The configuration as YAML, as saved in a run folder."""
    return OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(cfg)))


def load_saved(path: Path) -> Config:
    """Reads a run folder's ``config.yaml`` back through today's schema (keys it lacks take their defaults)."""
    from experiments.tasks import TASKS

    raw = OmegaConf.load(path)
    assert isinstance(raw, DictConfig)
    task = OmegaConf.merge(OmegaConf.structured(TASKS[raw.task.name].Config), raw.task)
    cfg = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), {**raw, "task": task}))
    assert isinstance(cfg, Config)
    return cfg
