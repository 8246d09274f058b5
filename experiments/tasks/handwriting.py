"""Handwriting generation (section 6.5, Figure 5): Graves' synthesis network, none, WN or LN.

Training minimises the negative log-likelihood of pen offsets given the text, in nats per sequence: summed over steps,
averaged over the batch. It is a density of offsets scaled to unit variance, so it may be negative, and values compare
only at the same scale (the metric ``offset_scale``) and the same longest length.

Shapes: T steps, B batch, N lines of a split, U characters of the longest text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from omegaconf import MISSING
from torch import Tensor, nn

from data.fetch import DataError
from data.handwriting import load_handwriting
from data.strokes import ALPHABET, PARTS, BadLine, encode, statistics
from experiments.pictures import Penned, draw_samples
from experiments.rng import generator
from experiments.schema import ConfigError
from experiments.tasks.base import Loss, Metric, Value
from models.handwriting import CLIPS, FIRST_WINDOWS, Handwriting, HandwritingSizes
from models.mixture import mixture_nll

# Which official parts a split is made of. Graves 2013 trains on 10,741 lines and stops on the other 1,438.
SPLITS: dict[str, dict[str, tuple[str, ...]]] = {
    "graves": {"train": ("train", "test", "valid_large"), "test": ("valid_small",)},
    "official": {"train": ("train",), "valid": ("valid_small", "valid_large"), "test": ("test",)},
}
# Why a norm that there is cannot be chosen here.
REFUSED = {"bn": "its statistics would be those of 8 lines at each of 500 steps"}
LENGTHS = ("first", "chunks")
POOL = 16  # batches whose lines are sorted by length together
SAMPLES = ("layer norm", "Handwriting", "the quick brown fox", "jumps over the lazy dog.")
SAMPLE_BIASES = (0.0, 1.0)
STEPS_PER_CHARACTER = 60  # a sample that takes longer has lost its way


@dataclass
class HandwritingConfig:
    """``task.*``."""

    name: str = MISSING
    units: int = MISSING  # of each LSTM layer
    layers: int = MISSING
    gaussians: int = MISSING  # of the window
    components: int = MISSING  # of the mixture
    max_steps: int = MISSING
    length: str = MISSING  # first | chunks
    split: str = MISSING  # graves | official
    first_window: str = MISSING  # zeros | first
    clip: str = MISSING  # inputs | states | none
    bias_mode: str = MISSING  # paper | official | minimal
    forget_bias: float = MISSING
    step_bias: float = MISSING
    train_examples: int = MISSING  # the first n lines of the split, or all if there are fewer
    eval_examples: int = MISSING  # n lines, evenly spread, of training, of validation and of test; or all


class Batch(NamedTuple):
    """Lines side by side, padded.

    Attributes:
        target_TB3: scaled offsets and end-of-stroke bits.
        lengths_B: steps of each line.
        labels_BU: texts.
        text_lengths_B: their characters.
    """

    target_TB3: Tensor
    lengths_B: Tensor
    labels_BU: Tensor
    text_lengths_B: Tensor


class HandwritingData:
    """Lines in memory as they were read; a batch is scaled and padded when it is asked for.

    Attributes:
        splits: name -> which lines are evaluated, (N,).
        train_N: which lines are trained on.
        lengths_N: steps of every line, as far as they are used.
        mean_2, std_2: of the training lines' offsets, in sensor units: what scales them to 0 and 1.
        longest_text: characters of the longest training text: the window has not seen further ones.
    """

    def __init__(self, cfg: Any, device: torch.device) -> None:
        self.lines = lines = load_handwriting(skip_bad=cfg.data.skip_bad)
        self.device, self.source = device, lines.source
        task = cfg.task
        parts = {name: [PARTS.index(part) for part in chosen] for name, chosen in SPLITS[task.split].items()}
        found = {name: np.isin(lines.parts_N, chosen).nonzero()[0] for name, chosen in parts.items()}
        for name, chosen in found.items():
            if not len(chosen):
                raise DataError(f"{lines.source.name}: no line of split {name} (task.split={task.split}); place more")
        train_N = found["train"][: task.train_examples]
        if len(train_N) < cfg.train.batch_size:
            raise ConfigError(f"train.batch_size={cfg.train.batch_size} is more than the {len(train_N)} training lines")
        found["train"] = train_N
        self.splits = {name: _spread(chosen, task.eval_examples) for name, chosen in found.items()}
        self.train_N, self.n_train = train_N, len(train_N)
        self.batch_size = cfg.train.batch_size
        steps_N = np.diff(lines.starts_N1)
        self.lengths_N = steps_N.clip(max=task.max_steps) if task.length == "first" else steps_N
        used_P2 = np.concatenate([lines.offsets_P2[slice(*lines.starts_N1[n : n + 2])] for n in train_N])
        self.mean_2, self.std_2 = statistics(used_P2, lines.source.name)
        self.longest_text = int(np.diff(lines.text_starts_N1)[train_N].max())

    def epoch(self, epoch: int, seed: int) -> Sequence[Tensor]:
        """Batches of lines of about the same length, in random order.

        The lines are shuffled, ``POOL`` batches at a time sorted by length and cut into batches, and the batches
        shuffled: less padding, while each line still meets others in every epoch. What is left over at the end of
        the shuffled lines (fewer than a batch) waits for another epoch, so that all updates are of one batch size.
        """
        random = generator(seed, "order", epoch)
        order_N = torch.randperm(self.n_train, generator=random)
        order_N = order_N[: self.n_train // self.batch_size * self.batch_size]
        lengths_N = torch.as_tensor(self.lengths_N[self.train_N])
        pools = [pool_N[lengths_N[pool_N].argsort(stable=True)] for pool_N in order_N.split(POOL * self.batch_size)]
        batches = [batch_B for pool_N in pools for batch_B in pool_N.split(self.batch_size)]
        return [batches[i] for i in torch.randperm(len(batches), generator=random).tolist()]

    def batch(self, indices_B: Tensor) -> Batch:
        """Training lines."""
        return self.collate(self.train_N[indices_B.numpy()])

    def collate(self, chosen_B: np.ndarray) -> Batch:
        """Any lines, scaled and padded with zeros."""
        lines, lengths_B = self.lines, self.lengths_N[chosen_B]
        text_lengths_B = np.diff(lines.text_starts_N1)[chosen_B]
        target_TB3 = np.zeros((lengths_B.max(), len(chosen_B), 3), np.float32)
        labels_BU = np.zeros((len(chosen_B), text_lengths_B.max()), np.int64)
        for b, (n, steps, size) in enumerate(zip(chosen_B, lengths_B, text_lengths_B, strict=True)):
            start, text_start = lines.starts_N1[n], lines.text_starts_N1[n]
            target_TB3[:steps, b, :2] = (lines.offsets_P2[start : start + steps] - self.mean_2) / self.std_2
            target_TB3[:steps, b, 2] = lines.ends_P[start : start + steps]
            labels_BU[b, :size] = lines.labels_C[text_start : text_start + size]
        arrays = (target_TB3, lengths_B, labels_BU, text_lengths_B)
        return Batch(*(torch.as_tensor(array).to(self.device) for array in arrays))


class HandwritingTask:
    """The task; see ``experiments.tasks.base.Task``."""

    name = "handwriting"
    norms: tuple[str, ...] = ("none", "wn", "ln")  # no BN: its statistics would be those of 8 lines at each step
    metrics: Mapping[str, Metric] = {
        "nll": Metric("nats/sequence", "lower", "-log density of a line's offsets given its text, summed over steps"),
        "nll_step": Metric("nats/step", "lower", "the same per step: the sum of all lines divided by all their steps"),
        "batch_nll": Metric("nats/sequence", "lower", "nll of the minibatches since the last evaluation"),
        "offset_scale": Metric(
            "nats/step", "lower",
            "log(s_x s_y), constant: nll_step plus this is the density of offsets in sensor units, whatever the scale",
        ),
    }  # fmt: skip
    select = ("test", "nll")  # Graves' split has no further set
    Config: type = HandwritingConfig

    def check(self, cfg: Any) -> None:
        task = cfg.task
        for key in ("units", "layers", "gaussians", "components", "max_steps", "train_examples", "eval_examples"):
            if getattr(task, key) < 1:
                raise ConfigError(f"task.{key}={getattr(task, key)} must be 1 or more")
        for key in ("forget_bias", "step_bias"):
            if not math.isfinite(getattr(task, key)):
                raise ConfigError(f"task.{key}={getattr(task, key)} must be a finite number")
        switches: dict[str, Sequence[str]] = {
            "length": LENGTHS, "split": tuple(SPLITS), "first_window": FIRST_WINDOWS, "clip": CLIPS,
            "bias_mode": ("paper", "official", "minimal"),
        }  # fmt: skip
        for key, allowed in switches.items():
            if getattr(task, key) not in allowed:
                raise ConfigError(f"task.{key}={getattr(task, key)} is unknown: use {' or '.join(allowed)}")
        if task.train_examples < cfg.train.batch_size:
            raise ConfigError(
                f"train.batch_size={cfg.train.batch_size} is more than the {task.train_examples} training lines"
            )

    def data(self, cfg: Any, device: torch.device) -> HandwritingData:
        return HandwritingData(cfg, device)

    def model(self, cfg: Any, generator: torch.Generator) -> nn.Module:
        task = cfg.task
        sizes = HandwritingSizes(
            task.units, task.layers, task.gaussians, task.components, len(ALPHABET),
            first_window=task.first_window, step_bias=task.step_bias, forget_bias=task.forget_bias,
            bias_mode=task.bias_mode, clip=task.clip, batch=cfg.train.batch_size, kernel=cfg.kernel,
        )  # fmt: skip
        return Handwriting(sizes, cfg.norm.norm(), generator=generator)

    def loss(self, model: nn.Module, batch: Any, cfg: Any, generator: torch.Generator) -> Loss:
        nll_B = sequence_nll(model, batch, cfg.task.max_steps)
        return Loss(nll_B.mean(), {"batch_nll": (nll_B.detach().sum(), len(nll_B))})

    def evaluate(self, model: nn.Module, data: HandwritingData, cfg: Any, seed: int) -> list[Value]:
        values = [Value("train", "offset_scale", float(np.log(data.std_2).sum()))]
        for split, chosen_N in data.splits.items():
            order_N = chosen_N[data.lengths_N[chosen_N].argsort(kind="stable")]
            total = 0.0
            for start in range(0, len(order_N), cfg.train.eval_batch_size):
                batch = data.collate(order_N[start : start + cfg.train.eval_batch_size])
                total += sequence_nll(model, batch, cfg.task.max_steps).sum().item()
            values += [
                Value(split, "nll", total / len(order_N)),
                Value(split, "nll_step", total / int(data.lengths_N[order_N].sum())),
            ]
        return values

    def plots(self, model: nn.Module, data: HandwritingData, cfg: Any, folder: Path, seed: int) -> list[Path]:
        """A fixed set of texts, unbiased and neat, each with where the window looked."""
        about = f"handwriting, {cfg.norm.name}, profile {cfg.profile}, seed {cfg.seed}, {data.source.label} data"
        texts = [text for text in SAMPLES if len(text) <= data.longest_text]
        rows = [row for bias in SAMPLE_BIASES for row in write(model, data, texts, bias, seed)]
        return [draw_samples(rows, f"Generated handwriting ({about})", folder / "samples.png")]


def sequence_nll(model: nn.Module, batch: Batch, most: int) -> Tensor:
    """nll (B,) of each line, float64. Longer lines than ``most`` steps go in parts, between which the states are
    carried on and the gradient is cut."""
    target_TB3 = batch.target_TB3
    input_TB3 = torch.cat((torch.zeros_like(target_TB3[:1]), target_TB3[:-1]))
    steps_T = torch.arange(len(target_TB3), device=target_TB3.device)
    inside_TB = steps_T[:, None] < batch.lengths_B
    nll_B, carry = torch.zeros_like(batch.lengths_B, dtype=torch.float64), None
    for start in range(0, len(target_TB3), most):
        part = slice(start, start + most)
        output_TBY, carry = model(input_TB3[part], batch.labels_BU, batch.text_lengths_B, carry)
        nll_TB = mixture_nll(output_TBY, target_TB3[part])
        nll_B = nll_B + torch.where(inside_TB[part], nll_TB, 0.0).sum(0)
        carry = carry.detached()
    return nll_B


def write(model: nn.Module, data: HandwritingData, texts: Sequence[str], bias: float, seed: int) -> list[Penned]:
    """Writes texts in the order given, each with noise of its own, so that a text's line depends on no other.

    Raises:
        ConfigError: a text that is empty, has characters nobody could have learned, or is longer than any the window
            has seen.
    """
    assert isinstance(model, Handwriting)
    labels = [encode_request(text, data.longest_text) for text in texts]
    lengths_B = torch.tensor([len(label_U) for label_U in labels])
    steps = int(lengths_B.max()) * STEPS_PER_CHARACTER
    noise = []
    for text in texts:
        random = generator(seed, "write", text)
        noise.append(torch.cat((torch.rand(steps, 2, generator=random), torch.randn(steps, 2, generator=random)), 1))
    labels_BU = nn.utils.rnn.pad_sequence([torch.as_tensor(label_U) for label_U in labels], batch_first=True).long()
    labels_BU, lengths_B, noise_TB4 = (t.to(data.device) for t in (labels_BU, lengths_B, torch.stack(noise, 1)))
    rows = []
    for text, written in zip(texts, model.write(labels_BU, lengths_B, noise_TB4, bias), strict=True):
        points_T3 = written.points_T3.cpu().double().numpy()
        places_T2 = np.cumsum(points_T3[:, :2] * data.std_2 + data.mean_2, 0)
        rows.append(Penned(text, bias, places_T2, points_T3[:, 2] > 0, written.weight_TU.cpu().numpy()))
    return rows


def encode_request(text: str, longest: int) -> np.ndarray:
    """Labels of a text to be written. Raises ``ConfigError``."""
    if len(text) > longest:
        raise ConfigError(f"TEXT has {len(text)} characters, but the longest the model has seen has {longest}: cut it")
    try:
        return encode(text, f"TEXT={text!r}")
    except BadLine as error:
        raise ConfigError(str(error)) from None


def _spread(chosen_N: np.ndarray, count: int) -> np.ndarray:
    """``count`` of the lines, evenly spread, or all of them."""
    total = len(chosen_N)
    return chosen_N[[i * total // count for i in range(count)]] if count < total else chosen_N
