"""Does a point lie in an even or an odd quadrant? A seventh task, as small as one can be.

Shapes: B batch, N examples of a split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from omegaconf import MISSING
from torch import Tensor, nn

from data.fetch import Source
from data.quadrants import load_quadrants
from experiments.rng import generator
from experiments.schema import ConfigError
from experiments.tasks.base import Loss, Metric, Value
from models.quadrants import QuadrantNet

N_TRAIN, N_EVAL = 1000, 500


@dataclass
class QuadrantsConfig:
    """``task.*``."""

    name: str = MISSING
    units: int = MISSING  # of the hidden layer
    train_examples: int = MISSING  # the first n of the 1,000


class QuadrantsData:
    """Points on the device, by split: points ``(N, 2)`` and parities ``(N,)``."""

    def __init__(self, cfg: Any, device: torch.device) -> None:
        quadrants = load_quadrants()
        self.source: Source = quadrants.source
        self.n_train: int = cfg.task.train_examples
        self.batch_size: int = cfg.train.batch_size
        x_N2, y_N = (torch.as_tensor(a).to(device) for a in (quadrants.points_N2, quadrants.odd_N))
        spans = {"train": (0, self.n_train), "valid": (N_TRAIN, N_TRAIN + N_EVAL), "test": (N_TRAIN + N_EVAL, None)}
        self.splits = {name: (x_N2[slice(*span)], y_N[slice(*span)]) for name, span in spans.items()}

    def epoch(self, epoch: int, seed: int) -> Sequence[Tensor]:
        """A fresh permutation each epoch."""
        order_N = torch.randperm(self.n_train, generator=generator(seed, "order", epoch))
        return order_N.split(self.batch_size)

    def batch(self, indices_B: Tensor) -> tuple[Tensor, Tensor]:
        """Points ``(B, 2)`` and parities ``(B,)``."""
        x_N2, y_N = self.splits["train"]
        return x_N2[indices_B], y_N[indices_B]


class QuadrantsTask:
    """The task; see ``experiments.tasks.base.Task``."""

    name = "quadrants"
    norms = ("none", "bn", "wn", "ln")
    metrics = {
        "accuracy": Metric("percent", "higher", "share of points told right"),
        "batch_nll": Metric("nats/example", "lower", "mean cross-entropy of the minibatches since the last evaluation"),
    }
    select = ("valid", "accuracy")
    Config = QuadrantsConfig

    def check(self, cfg: Any) -> None:
        if not 1 <= cfg.task.train_examples <= N_TRAIN:
            raise ConfigError(f"task.train_examples={cfg.task.train_examples} must lie in 1…{N_TRAIN}")

    def data(self, cfg: Any, device: torch.device) -> QuadrantsData:
        return QuadrantsData(cfg, device)

    def model(self, cfg: Any, generator: torch.Generator) -> nn.Module:
        return QuadrantNet(cfg.task.units, cfg.norm.norm(), generator)

    def loss(self, model: nn.Module, batch: Any, cfg: Any, generator: torch.Generator) -> Loss:
        x_B2, y_B = batch
        mean = F.cross_entropy(model(x_B2), y_B)
        return Loss(mean, {"batch_nll": (mean.detach() * len(y_B), len(y_B))})

    def evaluate(self, model: nn.Module, data: QuadrantsData, cfg: Any, seed: int) -> list[Value]:
        values = []
        for split in ("valid", "test"):
            x_N2, y_N = data.splits[split]
            logits_N2 = torch.cat([model(x_B2) for x_B2 in x_N2.split(cfg.train.eval_batch_size)])
            right = int((logits_N2.argmax(-1) == y_N).sum())
            values.append(Value(split, "accuracy", 100 * right / len(y_N)))
        return values

    def plots(self, model: nn.Module, data: QuadrantsData, cfg: Any, folder: Path, seed: int) -> list[Path]:
        """None: the learning curve says it all."""
        return []
