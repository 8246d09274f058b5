"""DRAW on binarized MNIST (section 6.4, Figure 4): none, WN or LN on the LSTMs' cell read-out.

Training minimises the mean of the variational bound, one posterior sample per image; evaluation measures the
same bound on validation and test images. Bounds are in nats per image, summed over pixels and glimpses.

Shapes: T glimpses, B batch, D = 784 pixels, Z latent, N examples of a split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import MISSING
from torch import Tensor, nn

from data.binarized_mnist import load_binarized_mnist
from data.fetch import Source
from experiments.rng import generator
from experiments.schema import ConfigError
from experiments.tasks.base import Loss, Metric, Value
from models.attention import CENTRES
from models.draw import INITIAL_STATES, LN_SITES, Draw, DrawSizes, Frame

N_TRAIN, N_EVAL = 50_000, 10_000  # Larochelle & Murray: 50,000 / 10,000 / 10,000
SIDE = 28
ORDERS = ("shuffle", "sequential")


@dataclass
class DrawConfig:
    """``task.*``."""

    name: str = MISSING
    glimpses: int = MISSING
    units: int = MISSING  # LSTM units of encoder and decoder
    latent: int = MISSING
    read: int = MISSING  # filters per axis of the read window
    write: int = MISSING  # and of the write window
    init_std: float = MISSING
    centre: str = MISSING  # gregor | jbornschein
    initial_state: str = MISSING  # zeros | learned
    order: str = MISSING  # shuffle | sequential
    ln_on: str = MISSING  # both | encoder | decoder
    train_examples: int = MISSING  # the first n of the 50,000
    eval_examples: int = MISSING  # n of the 10,000, evenly spread, of validation and of test
    eval_samples: int = MISSING  # posterior samples per image in evaluation


class DrawData:
    """Binarized MNIST on the device, one byte a pixel.

    Attributes:
        splits: name -> images ``(N, 784)``, uint8, 0 or 1.
        eval_indices: which of the 10,000 validation and test images are kept, evenly spread: the fixed test
            file is sorted by digit, so its first 1,000 images are all zeros and ones.
    """

    def __init__(self, cfg: Any, device: torch.device) -> None:
        images = load_binarized_mnist()
        self.source: Source = images.source
        self.n_train: int = cfg.task.train_examples
        self.batch_size: int = cfg.train.batch_size
        self.shuffle: bool = cfg.task.order == "shuffle"
        self.eval_indices: list[int] = spread(cfg.task.eval_examples, N_EVAL)
        self.splits: dict[str, Tensor] = {
            "train": torch.as_tensor(images.train_N784[: self.n_train]).to(device),
            "valid": torch.as_tensor(images.valid_N784[self.eval_indices]).to(device),
            "test": torch.as_tensor(images.test_N784[self.eval_indices]).to(device),
        }

    def epoch(self, epoch: int, seed: int) -> Sequence[Tensor]:
        """A fresh permutation each epoch (or file order). The last, smaller batch is kept, as the public code
        does: 50,000 is no multiple of 128, and every image is then seen once an epoch."""
        if self.shuffle:
            order_N = torch.randperm(self.n_train, generator=generator(seed, "order", epoch))
        else:
            order_N = torch.arange(self.n_train)
        return order_N.split(self.batch_size)

    def batch(self, indices_B: Tensor) -> Tensor:
        """Images ``(B, 784)`` as floats."""
        train_N784 = self.splits["train"]
        return train_N784[indices_B.to(train_N784.device)].float()


class DrawTask:
    """The task; see ``experiments.tasks.base.Task``."""

    name = "draw"
    norms: tuple[str, ...] = ("none", "wn", "ln")  # no BN: the paper has none here
    metrics: Mapping[str, Metric] = {
        "bound": Metric("nats/image", "lower", "variational bound on -log p(x): reconstruction + kl"),
        "kl": Metric("nats/image", "lower", "KL(q(z|x) || p(z)), summed over glimpses"),
        "reconstruction": Metric("nats/image", "lower", "-log p(x|z), summed over pixels"),
        "batch_bound": Metric("nats/image", "lower", "bound of the minibatches since the last evaluation"),
    }
    select = ("valid", "bound")
    Config: type = DrawConfig

    def check(self, cfg: Any) -> None:
        task, train = cfg.task, cfg.train
        for key in ("glimpses", "units", "latent", "eval_samples"):
            if getattr(task, key) < 1:
                raise ConfigError(f"task.{key}={getattr(task, key)} must be 1 or more")
        for key in ("read", "write"):
            if not 2 <= getattr(task, key) <= SIDE:
                raise ConfigError(f"task.{key}={getattr(task, key)} must lie in 2…{SIDE} (filters per axis)")
        if not 0 < task.init_std < math.inf:
            raise ConfigError(f"task.init_std={task.init_std} must be a finite number above 0")
        switches = {"centre": CENTRES, "initial_state": INITIAL_STATES, "order": ORDERS, "ln_on": LN_SITES}
        for key, allowed in switches.items():
            if getattr(task, key) not in allowed:
                raise ConfigError(f"task.{key}={getattr(task, key)} is unknown: use {' or '.join(allowed)}")
        if task.ln_on != "both" and cfg.norm.name != "ln":
            raise ConfigError(f"task.ln_on={task.ln_on} needs norm=ln, not {cfg.norm.name}")
        for key, most in (("train_examples", N_TRAIN), ("eval_examples", N_EVAL)):
            if not 1 <= getattr(task, key) <= most:
                raise ConfigError(f"task.{key}={getattr(task, key)} must lie in 1…{most}")
        if train.batch_size > task.train_examples:
            raise ConfigError(
                f"train.batch_size={train.batch_size} is more than the {task.train_examples} training images"
            )

    def data(self, cfg: Any, device: torch.device) -> DrawData:
        return DrawData(cfg, device)

    def model(self, cfg: Any, generator: torch.Generator) -> nn.Module:
        task = cfg.task
        sizes = DrawSizes(
            SIDE, task.read, task.write, task.latent, task.units, task.glimpses,
            centre=task.centre, initial_state=task.initial_state, ln_on=task.ln_on,
        )  # fmt: skip
        return Draw(sizes, cfg.norm.norm(), init_std=task.init_std, generator=generator, kernel=cfg.kernel)

    def loss(self, model: nn.Module, batch: Any, cfg: Any, generator: torch.Generator) -> Loss:
        shape = (cfg.task.glimpses, len(batch), cfg.task.latent)
        noise_TBZ = torch.randn(shape, generator=generator, device=generator.device).to(batch.device)
        bound = model(batch, noise_TBZ)
        bound_B = bound.reconstruction_B + bound.kl_B
        return Loss(bound_B.mean(), {"batch_bound": (bound_B.detach().sum(), len(batch))})

    def evaluate(self, model: nn.Module, data: DrawData, cfg: Any, seed: int) -> list[Value]:
        values = []
        for split in ("valid", "test"):
            images_N784, size = data.splits[split], cfg.train.eval_batch_size
            total_2 = torch.zeros(2, dtype=torch.float64)
            for sample in range(cfg.task.eval_samples):
                for start in range(0, len(images_N784), size):
                    x_B784 = images_N784[start : start + size].float()
                    indices = data.eval_indices[start : start + size]
                    noise_TBZ = image_noise(cfg.task, seed, split, sample, indices)
                    bound = model(x_B784, noise_TBZ.to(x_B784.device))
                    total_2 += torch.stack([part_B.double().sum() for part_B in bound]).cpu()
            reconstruction, kl = (total_2 / (len(images_N784) * cfg.task.eval_samples)).tolist()
            values += [
                Value(split, "bound", reconstruction + kl),
                Value(split, "kl", kl),
                Value(split, "reconstruction", reconstruction),
            ]
        return values

    def plots(self, model: nn.Module, data: DrawData, cfg: Any, folder: Path, seed: int) -> list[Path]:
        """Digits being generated and test digits being reconstructed, with the windows marked."""
        assert isinstance(model, Draw)
        about = f"draw, {cfg.norm.name}, profile {cfg.profile}, seed {cfg.seed}, {data.source.label} data"
        rows, device = 8, data.splits["test"].device
        prior_TBZ = image_noise(cfg.task, seed, "generate", 0, range(rows))
        frames = model.generate(prior_TBZ.to(device))
        title = f"Digits being generated ({about})"
        generated = draw_frames(frames, title, None, folder / "generated.png")
        shown = spread(min(rows, len(data.eval_indices)), len(data.eval_indices))
        x_B784 = data.splits["test"][shown].float()
        noise_TBZ = image_noise(cfg.task, seed, "test", 0, [data.eval_indices[i] for i in shown])
        frames = model.reconstruct(x_B784, noise_TBZ.to(device))
        title = f"Test digits being reconstructed ({about})"
        return [generated, draw_frames(frames, title, x_B784, folder / "reconstructed.png")]


def spread(count: int, total: int) -> list[int]:
    """``count`` of ``range(total)``, evenly spread, the first included."""
    return [i * total // count for i in range(count)]


def image_noise(task: Any, seed: int, split: str, sample: int, indices: Sequence[int]) -> Tensor:
    """Noise (T, B, Z) for the images ``indices`` of a split, each from a generator of its own: an image's
    bound is the same whatever evaluation batch it is in."""
    noise = [
        torch.randn(task.glimpses, task.latent, generator=generator(seed, "eval", split, sample, index))
        for index in indices
    ]
    return torch.stack(noise, 1)


READ_COLOUR, WRITE_COLOUR = "#0072b2", "#d55e00"  # blue and orange: most colour-blind readers can tell


def draw_frames(frames: list[Frame], title: str, target_B784: Tensor | None, path: Path) -> Path:
    """One row per image, one column per glimpse (at most 11, evenly spread, the last included).

    The boxes span the outermost filters plus one standard deviation: where the window was at that glimpse.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle
    from torchvision.utils import make_grid

    columns = min(11, len(frames))
    chosen = torch.linspace(0, len(frames) - 1, columns).round().int().tolist()
    images = [frames[t].probabilities_BD for t in chosen] + ([] if target_B784 is None else [target_B784])
    rows, width, pitch, gap = len(images[0]), len(images), SIDE + 6, 6
    cells = 1 - torch.stack(images, 1).reshape(-1, 1, SIDE, SIDE).cpu()
    grid = make_grid(cells, nrow=width, padding=gap, pad_value=0.88)
    figure = Figure(figsize=(0.8 * width, 0.8 * rows + 0.9), layout="constrained")
    axes = figure.subplots()
    axes.imshow(grid.permute(1, 2, 0).numpy(), vmin=0, vmax=1, interpolation="nearest")
    for column, t in enumerate(chosen):
        for box, colour in ((frames[t].read_box, READ_COLOUR), (frames[t].write_box, WRITE_COLOUR)):
            if box is None:
                continue
            for row in range(rows):
                left, top = gap + pitch * column, gap + pitch * row
                y, x = box.centre_B2[row].tolist()
                half = box.half_width_B[row].item()
                edge = Rectangle((left + x - half, top + y - half), 2 * half, 2 * half, fill=False)
                edge.set(edgecolor=colour, linewidth=1.3)
                axes.add_patch(edge)
                # A window may leave its image: it is cut at the cell, not drawn over the neighbours.
                cell = Rectangle((left - 2.5, top - 2.5), SIDE + 4, SIDE + 4, transform=axes.transData)
                edge.set_clip_path(cell)
    labels = [f"{t + 1}" for t in chosen] + ([] if target_B784 is None else ["image"])
    axes.set_xticks([gap + pitch * i + SIDE / 2 for i in range(width)], labels, fontsize=9)
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(f"after glimpse (of {len(frames)})", fontsize=9)
    axes.set_title(title, fontsize=10)
    names = {WRITE_COLOUR: "write window"} | ({} if target_B784 is None else {READ_COLOUR: "read window"})
    handles = [Patch(fill=False, edgecolor=colour, label=name) for colour, name in names.items()]
    figure.legend(handles=handles, loc="outside lower right", ncols=2, fontsize=9, frameon=False)
    figure.savefig(path, dpi=150)
    return path
