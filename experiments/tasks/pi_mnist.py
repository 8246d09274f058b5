"""Permutation-invariant MNIST (section 6.6, Figure 6): none, BN, WN or LN at batch 128 and 4.

Training minimises the mean cross-entropy. Evaluation uses running statistics under BN.

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
from data.mnist import load_mnist
from experiments.rng import generator
from experiments.schema import ConfigError
from experiments.tasks.base import Loss, Metric, Value
from models.norm import Norm
from models.pi_mnist import MLP

N_TRAIN, N_VALID = 55_000, 5_000  # paper: 55,000 training cases; ours: the first 5,000 are held out


@dataclass
class PiMnistConfig:
    """``task.*``."""

    name: str = MISSING
    hidden: list[int] = MISSING  # widths of the hidden layers
    bn_logits: bool = MISSING  # BN on the logits too; no other norm ever is
    train_examples: int = MISSING  # the first n of the 55,000
    train_eval_examples: int = MISSING  # the first n of those, on which the training NLL is measured


class MnistData:
    """MNIST on the device, pixels in [0, 1].

    Attributes:
        splits: name -> (images ``(N, 784)`` float32, labels ``(N,)`` int64).
    """

    def __init__(self, cfg: Any, device: torch.device) -> None:
        mnist = load_mnist()
        self.source: Source = mnist.source
        self.n_train: int = cfg.task.train_examples
        self.batch_size: int = cfg.train.batch_size

        def split(images: Any, labels: Any) -> tuple[Tensor, Tensor]:
            x_N784 = torch.as_tensor(images).reshape(-1, 784).to(device, torch.float32).div_(255)
            return x_N784, torch.as_tensor(labels).to(device, torch.int64)

        images, labels = mnist.train_images_N784, mnist.train_labels_N
        train = slice(N_VALID, N_VALID + self.n_train)
        self.splits = {
            "train": split(images[train], labels[train]),
            "valid": split(images[:N_VALID], labels[:N_VALID]),
            "test": split(mnist.test_images_N784, mnist.test_labels_N),
        }

    def epoch(self, epoch: int, seed: int) -> Sequence[Tensor]:
        """A fresh permutation each epoch. The last batch may be smaller; one of a single image is dropped,
        since BN has no variance there."""
        order_N = torch.randperm(self.n_train, generator=generator(seed, "order", epoch))
        batches = order_N.split(self.batch_size)
        return batches[:-1] if len(batches[-1]) == 1 and len(batches) > 1 else batches

    def batch(self, indices_B: Tensor) -> tuple[Tensor, Tensor]:
        """Images ``(B, 784)`` and labels ``(B,)``."""
        x_N784, y_N = self.splits["train"]
        indices_B = indices_B.to(x_N784.device)
        return x_N784[indices_B], y_N[indices_B]


class PiMnistTask:
    """The task; see ``experiments.tasks.base.Task``."""

    name = "pi_mnist"
    norms = ("none", "bn", "wn", "ln")
    metrics = {
        "nll": Metric(
            "nats/example", "lower", "mean cross-entropy in eval mode (train: on a fixed subset of the training set)"
        ),
        "error": Metric("percent", "lower", "share of wrongly classified images"),
        "batch_nll": Metric(
            "nats/example", "lower", "mean cross-entropy of the minibatches since the last evaluation, training mode"
        ),
    }
    select = ("valid", "error")
    Config = PiMnistConfig

    def check(self, cfg: Any) -> None:
        task, train = cfg.task, cfg.train
        if not task.hidden or min(task.hidden) < 1:
            raise ConfigError(f"task.hidden={list(task.hidden)} must name at least one width of 1 or more")
        if not 1 <= task.train_examples <= N_TRAIN:
            raise ConfigError(f"task.train_examples={task.train_examples} must lie in 1…{N_TRAIN}")
        if not 1 <= task.train_eval_examples <= task.train_examples:
            raise ConfigError(
                f"task.train_eval_examples={task.train_eval_examples} must lie in 1…{task.train_examples}"
            )
        if train.batch_size > task.train_examples:
            raise ConfigError(
                f"train.batch_size={train.batch_size} is larger than the {task.train_examples} training images"
            )
        if cfg.norm.name == "bn" and train.batch_size < 2:
            raise ConfigError("train.batch_size=1 with norm=bn: a single image has no batch variance; use 2 or more")

    def data(self, cfg: Any, device: torch.device) -> MnistData:
        return MnistData(cfg, device)

    def model(self, cfg: Any, generator: torch.Generator) -> nn.Module:
        norm = cfg.norm.norm()
        # LN stays off the softmax layer (section 3.1); WN covers every weight vector; BN by switch.
        plain_logits = norm.name == "ln" or (norm.name == "bn" and not cfg.task.bn_logits)
        logits_norm = Norm("none") if plain_logits else norm
        return MLP((784, *cfg.task.hidden, 10), norm, logits_norm, generator)

    def loss(self, model: nn.Module, batch: Any, cfg: Any, generator: torch.Generator) -> Loss:
        x_B784, y_B = batch
        mean = F.cross_entropy(model(x_B784), y_B)
        return Loss(mean, {"batch_nll": (mean.detach() * len(y_B), len(y_B))})

    def evaluate(self, model: nn.Module, data: MnistData, cfg: Any, seed: int) -> list[Value]:
        values = []
        for name, (x_N784, y_N) in data.splits.items():
            if name == "train":
                x_N784, y_N = x_N784[: cfg.task.train_eval_examples], y_N[: cfg.task.train_eval_examples]
            nll, wrong = 0.0, 0
            for x_B784, y_B in zip(
                x_N784.split(cfg.train.eval_batch_size), y_N.split(cfg.train.eval_batch_size), strict=True
            ):
                logits_BK = model(x_B784).double()  # a training NLL of 1e-7 is below float32's grasp
                nll += F.cross_entropy(logits_BK, y_B, reduction="sum").item()
                wrong += int((logits_BK.argmax(-1) != y_B).sum())
            values += [Value(name, "nll", nll / len(y_N)), Value(name, "error", 100 * wrong / len(y_N))]
        return values

    def plots(self, model: nn.Module, data: MnistData, cfg: Any, folder: Path, seed: int) -> list[Path]:
        """The test digits the network gets wrong, most confident mistake first."""
        from matplotlib.figure import Figure
        from torchvision.utils import make_grid

        x_N784, y_N = data.splits["test"]
        chance_NK = torch.cat([model(x_B784).softmax(-1) for x_B784 in x_N784.split(cfg.train.eval_batch_size)])
        confidence_N, guess_N = chance_NK.max(-1)
        wrong = (guess_N != y_N).nonzero().flatten()
        shown = wrong[confidence_N[wrong].argsort(descending=True)][:60]
        figure = Figure(figsize=(8, 5.6), layout="constrained")
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set_title(
            f"{len(wrong)} of {len(y_N)} test digits wrong, the {len(shown)} most confident shown\n"
            f"(pi_mnist, {cfg.norm.name}, batch {cfg.train.batch_size}, profile {cfg.profile}, seed {cfg.seed};"
            " label → guess)",
            fontsize=9,
        )
        if len(shown):
            grid = make_grid(1 - x_N784[shown].reshape(-1, 1, 28, 28).cpu(), nrow=12, padding=8, pad_value=1.0)
            axes.imshow(grid.permute(1, 2, 0).numpy(), vmin=0, vmax=1)
            for i, index in enumerate(shown.tolist()):
                row, column = divmod(i, min(12, len(shown)))
                axes.text(
                    22 + 36 * column, 7 + 36 * row, f"{y_N[index]}→{guess_N[index]}", fontsize=7, ha="center"
                )
        path = folder / "mistakes.png"
        figure.savefig(path, dpi=150)
        return [path]
