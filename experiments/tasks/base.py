"""The shape every task has, and the small records it exchanges with the loop.

A task file reads top to bottom in the same order: ``Config``, ``data``, ``model``, ``loss``, ``evaluate``,
``plots``. The loop knows nothing beyond this page, so a new task touches neither loop, run store nor analysis.

Shapes: B batch, N examples of a split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from data.fetch import Source


@dataclass(frozen=True)
class Metric:
    """What a logged number is.

    Attributes:
        unit: unit as written to ``metrics.jsonl``, such as ``nats/image``.
        better: ``lower`` or ``higher``.
        what: one sentence for the glossary.
    """

    unit: str
    better: str
    what: str


@dataclass(frozen=True)
class Value:
    """One evaluated number: ``metric`` on ``split`` (train, valid or test)."""

    split: str
    metric: str
    value: float


@dataclass(frozen=True)
class Loss:
    """What one training step returns.

    Attributes:
        mean: scalar tensor that is differentiated (mean over the batch unless the task says otherwise).
        sums: name of a metric of the task -> (sum over the examples, number of examples). They are averaged
            between two evaluations and logged under split ``train``. Sums are detached scalar tensors.
    """

    mean: Tensor
    sums: Mapping[str, tuple[Tensor, int]]


class Data(Protocol):
    """Examples of one task, ready on the device.

    Attributes:
        source: where they came from and their fingerprint.
        n_train: number of training examples (an epoch).
    """

    source: Source
    n_train: int

    def epoch(self, epoch: int, seed: int) -> Sequence[Tensor]:
        """Index tensors of the epoch's batches: a pure function of (seed, epoch), so that resuming is exact."""
        ...

    def batch(self, indices_B: Tensor) -> Any:
        """The training batch for one of those index tensors."""
        ...


class Task(Protocol):
    """One room of the house. See ``pi_mnist.py`` for the shortest example.

    Attributes:
        name: as in configs, run folders, figures and Make.
        norms: the values of ``norm=`` it supports. The module may say why another is not, in a literal
            ``REFUSED = {"bn": "its reason"}``.
        metrics: every metric it logs.
        select: (split, metric) that defines the best value shown in status, e.g. ("valid", "bound").
        Config: dataclass of ``task.*``; every field without default is given in ``configs/task/<task>.yaml``.
    """

    @property
    def name(self) -> str: ...
    @property
    def norms(self) -> tuple[str, ...]: ...
    @property
    def metrics(self) -> Mapping[str, Metric]: ...
    @property
    def select(self) -> tuple[str, str]: ...
    @property
    def Config(self) -> type: ...

    def check(self, cfg: Any) -> None:
        """Raises ``ConfigError`` on values that cannot work, before any data is read. ``cfg``: whole config."""
        ...

    def data(self, cfg: Any, device: torch.device) -> Data:
        """Loads the data set. Raises ``data.fetch.DataError``, or ``ConfigError`` if it does not fit ``cfg``."""
        ...

    def model(self, cfg: Any, generator: torch.Generator) -> nn.Module:
        """Builds the model on the CPU; all initial values are drawn from ``generator``."""
        ...

    def loss(self, model: nn.Module, batch: Any, cfg: Any, generator: torch.Generator) -> Loss:
        """One training step's loss; noise comes from ``generator`` (seeded from (seed, step) by the loop)."""
        ...

    def evaluate(self, model: nn.Module, data: Any, cfg: Any, seed: int) -> list[Value]:
        """All evaluated values, in eval mode, without gradients, independent of ``train.eval_batch_size``."""
        ...

    def plots(self, model: nn.Module, data: Any, cfg: Any, folder: Path, seed: int) -> list[Path]:
        """Pictures made once at the end of a run (samples, mistakes, …). Returns the files written."""
        ...


@runtime_checkable
class FinalTest(Protocol):
    """What a task has beside ``Task`` if the test set is for the selected weights only, once, at the end of a run.

    Selected are the weights at the first evaluation that had the best value of ``select``; of a task that says
    ``selects = False``, the last ones.
    """

    def test(self, model: nn.Module, data: Any, cfg: Any, seed: int) -> list[Value]:
        """The values on the test set, under the same rules as ``Task.evaluate``."""
        ...


@runtime_checkable
class Demo(Protocol):
    """What a task has beside ``Task`` if a trained model can be asked something (``make demo``)."""

    def demo(self, model: nn.Module, data: Any, cfg: Any, query: str, folder: Path) -> tuple[list[str], list[Path]]:
        """Answers ``query``: lines to print, and pictures written to ``folder``. Raises ``data.fetch.DataError``."""
        ...
