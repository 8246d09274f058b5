"""The cells of a published result: which runs a figure needs, and the command that makes each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from experiments.compose import choices, compose_cells, expand, experiment_task
from experiments.schema import CONFIGS, config_sha


@dataclass(frozen=True)
class Cell:
    """One run that a published result needs.

    Attributes:
        norm: the norm or its arm, as ``norm=`` chooses it.
        overrides: its Hydra overrides.
        config_sha: identity of its scientific configuration.
        command: what a user types to make it.
    """

    task: str
    norm: str
    batch_size: int
    seed: int
    profile: str
    overrides: tuple[str, ...]
    config_sha: str
    command: str


def experiment_names(task: str) -> list[str]:
    """The experiments of a task."""
    return [name for name in choices("experiment") if experiment_task(name) == task]


def load_figure(name: str) -> dict[str, Any]:
    """The ``figure:`` block of an experiment: name, title, x and panels."""
    figure = _block(name, "figure")
    assert figure is not None
    return figure


def load_table(name: str) -> dict[str, Any] | None:
    """The ``table:`` block of an experiment: name, title, split and columns; None if it has none."""
    return _block(name, "table")


def _block(name: str, key: str) -> dict[str, Any] | None:
    experiment_task(name)  # says so if there is no such file
    block = dict(OmegaConf.load(CONFIGS / "experiment" / f"{name}.yaml")).get(key)
    if block is None:
        return None
    plain = OmegaConf.to_container(block, resolve=True)
    assert isinstance(plain, dict)
    return {str(k): v for k, v in plain.items()}


def cells(
    name: str,
    profile: str,
    norms: Sequence[str] | None = None,
    batches: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Cell]:
    """All cells of an experiment at a profile; ``norms``, ``batches`` and ``seeds`` replace its own lists."""
    overrides = [f"experiment={name}", f"profile={profile}"]
    for key, values in (("norm", norms), ("train.batch_size", batches), ("seed", seeds)):
        if values is not None:
            overrides.append(f"{key}={','.join(str(v) for v in values)}")
    lists = [[o for o in cell if not o.startswith("experiment=")] for cell in expand(overrides)]
    task = experiment_task(name)
    lists = [[f"task={task}", *cell] for cell in lists]
    return [
        Cell(
            task=cfg.task.name,
            norm=cfg.norm.shown,
            batch_size=cfg.train.batch_size,
            seed=cfg.seed,
            profile=cfg.profile,
            overrides=tuple(cell),
            config_sha=config_sha(cfg),
            command=f"python -m experiments.train {' '.join(cell)}",
        )
        for cell, cfg in zip(lists, compose_cells(lists), strict=True)
    ]
