"""A tiny task for tests of the loop and the run store: a linear fit with dropout-like noise, in microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from data.fetch import Source
from experiments.cell import describe
from experiments.loop import Trainer, initial_model
from experiments.rng import generator
from experiments.runs import Run, read_metrics
from experiments.schema import Config, LoggerConfig, NormConfig, PathsConfig, TrainConfig, dump
from experiments.tasks.base import Loss, Metric, Value
from experiments.tracker import Tracker

CPU = torch.device("cpu")


@dataclass
class ToyConfig:
    name: str = "toy"
    size: int = 20
    bad_step: int = 0  # the loss is infinite from this step on; 0: never
    bad_value: bool = False  # the evaluated value is not a number


class ToyData:
    def __init__(self, cfg: Any) -> None:
        self.source = Source("original", "toy", "toy", "f" * 64, "")
        self.n_train = cfg.task.size
        self.batch_size = cfg.train.batch_size
        self.x_N3 = torch.randn(cfg.task.size, 3, generator=generator(0, "toy"))
        self.seen: list[list[int]] = []

    def epoch(self, epoch: int, seed: int) -> Sequence[Tensor]:
        return torch.randperm(self.n_train, generator=generator(seed, "order", epoch)).split(self.batch_size)

    def batch(self, indices_B: Tensor) -> Tensor:
        self.seen.append(indices_B.tolist())
        return self.x_N3[indices_B]


@dataclass
class ToyTask:
    name: str = "toy"
    norms: tuple[str, ...] = ("none", "ln")
    metrics: dict[str, Metric] = field(
        default_factory=lambda: {"loss": Metric("u", "lower", ""), "batch_loss": Metric("u", "lower", "")}
    )
    select: tuple[str, str] = ("valid", "loss")
    Config: type = ToyConfig
    steps: int = 0
    evaluations: int = 0
    on_step: Any = None

    def check(self, cfg: Any) -> None:
        return None

    def data(self, cfg: Any, device: torch.device) -> ToyData:
        return ToyData(cfg)

    def model(self, cfg: Any, generator: torch.Generator) -> nn.Module:
        layer = nn.Linear(3, 1)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, generator=generator)
        return layer

    def loss(self, model: nn.Module, batch: Any, cfg: Any, generator: torch.Generator) -> Loss:
        self.steps += 1
        if self.on_step:
            self.on_step(self.steps)
        noise_B1 = torch.randn(len(batch), 1, generator=generator)
        loss_B = (model(batch) - batch.sum(1, keepdim=True) + 0.1 * noise_B1).square().flatten()
        mean = loss_B.mean()
        if cfg.task.bad_step and self.steps >= cfg.task.bad_step:
            mean = mean * float("inf")
        return Loss(mean, {"batch_loss": (loss_B.detach().sum(), len(batch))})

    def evaluate(self, model: nn.Module, data: ToyData, cfg: Any, seed: int) -> list[Value]:
        assert not model.training
        self.evaluations += 1
        torch.randn(7)  # a task that draws global randomness must not disturb training
        value = (model(data.x_N3) - data.x_N3.sum(1, keepdim=True)).square().mean().item()
        return [Value("valid", "loss", float("nan") if cfg.task.bad_value else value)]

    def plots(self, model: nn.Module, data: Any, cfg: Any, folder: Path, seed: int) -> list[Path]:
        return []


def toy_config(results: Path, **train: Any) -> Config:
    """A configuration of the toy task: 20 examples, batch 4, 5 steps an epoch, 4 epochs."""
    values: dict[str, Any] = {
        "batch_size": 4,
        "budget": 4,
        "budget_unit": "epochs",
        "eval_every": 1,
        "eval_batch_size": 8,
        "lr": 0.05,
        "beta1": 0.9,
        "beta2": 0.999,
        "adam_eps": 1e-8,
        "clip": None,
        "checkpoint_seconds": 3600,
    }
    return Config(
        task=ToyConfig(),
        train=TrainConfig(**{**values, **train}),
        norm=NormConfig("none", None, None, None, None, None),
        seed=0,
        profile="smoke",
        device="cpu",
        threads=1,
        fail_fast=False,
        logger=LoggerConfig("local"),
        paths=PathsConfig(str(results)),
    )


class Killed(Exception):
    """Stands for a process that dies at this very point."""


def run(cfg: Config, folder: Path, task: ToyTask | None = None, stop: Any = None) -> tuple[str, ToyData, Trainer]:
    """Trains the toy. Returns how it ended, what it was given, and the trainer."""
    task = task or ToyTask()
    data = task.data(cfg, CPU)
    with Run(folder, dump(cfg), describe(cfg, data.source, folder.name, CPU, [])) as opened:
        trainer = Trainer(
            task, cfg, data, initial_model(task, cfg, CPU), opened, Tracker(), CPU, stop or (lambda: False)
        )
        state = trainer.train()
        trainer.close(state)
        return state, data, trainer


def numbers(folder: Path) -> list[dict[str, Any]]:
    """The logged rows, but for the time they took."""
    return [{k: v for k, v in r.items() if k != "train_seconds"} for r in read_metrics(folder / "metrics.jsonl")]


def final_model(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]
