"""Order-embeddings of images and sentences (section 6.1, Table 2 and Figure 1): none, WN or LN in the sentence GRU.

Training minimises the contrastive sum over all pairs of a batch. Every ``train.eval_every`` updates the first fold of
the validation images is searched; the weights with the best sum of recalls are the ones that are tested, at the end.
Recalls are in percent; ranks start at 1.

Shapes: T time steps, B batch, C captions, N images, D image features, H units.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from omegaconf import MISSING
from torch import Tensor, nn

from data.books import padded
from data.captions import FIRST_WORD, PER_IMAGE, Encoded
from data.fetch import Source
from data.order_embeddings import Split, load_order_embeddings, paint
from experiments.retrieval_pictures import Found, draw_found
from experiments.rng import generator
from experiments.schema import ConfigError
from experiments.tasks.base import Loss, Metric, Value
from models.order_embeddings import ENERGIES, MARGINS, OrderEmbedding, OrderSizes, contrastive_loss
from models.retrieval import Ranks, fold_bounds, mean_statistics, ranks
from models.variant import Variant

log = logging.getLogger("suite")
SELECTIONS = ("image", "both")
TIES = 0.01  # share of tied captions from which on a warning is due


@dataclass
class OrderConfig:
    """``task.*``."""

    name: str = MISSING
    dataset: str = MISSING  # coco | flickr8k | flickr30k | scenes | a folder in a published layout
    features: str | None = MISSING  # which, where a data set has several; null: 10crop, or the only one
    word_dim: int = MISSING
    units: int = MISSING
    energy: str = MISSING  # order | symmetric
    margin: float | None = MISSING  # null: 0.05 with order, 0.2 with symmetric
    bias_mode: str = MISSING  # official | paper | minimal
    unit_features: bool = MISSING  # scale each image's features to length 1
    selection: str = MISSING  # image | both: whose recalls select the weights
    train_examples: int | None = MISSING  # the first n training images; null: all
    fold_images: int = MISSING  # images that are searched at a time
    folds: int = MISSING  # of the test set, at most


class OrderData:
    """Captions in memory, features on disk.

    Attributes:
        all: the data set as loaded.
        valid_images: how many validation images are searched: the first fold.
        folds: first and last+1 test image of each fold.
    """

    def __init__(self, cfg: Any, device: torch.device) -> None:
        task = cfg.task
        self.all = load_order_embeddings(task.dataset, task.features)
        self.device, self.unit = device, task.unit_features
        self.train = self.all.splits["train"]
        self.n_train: int = task.train_examples or len(self.train)
        if self.n_train > len(self.train):
            raise ConfigError(f"task.train_examples={self.n_train} is more than the {len(self.train):,} there are")
        self.batch_size: int = cfg.train.batch_size
        if self.batch_size >= self.n_train:
            raise ConfigError(
                f"train.batch_size={self.batch_size} leaves no batch of the {self.n_train:,} training images: the last "
                "one of an epoch is dropped"
            )
        self.folds = fold_bounds(len(self.all.splits["test"]), task.fold_images, task.folds)
        self.valid_images = min(task.fold_images, len(self.all.splits["val"]))
        first, last = self.folds[0]
        searched = (
            f"validation: {self.valid_images:,} images; "
            f"test: {len(self.folds)} fold{'s' * (len(self.folds) > 1)} of {last - first:,} images"
        )
        self.source: Source = replace(self.all.source, detail=f"{self.all.source.detail}; {searched}")

    def epoch(self, epoch: int, seed: int) -> Sequence[Tensor]:
        """Caption numbers: images in a random order, one of the five captions of each, at random.

        As in the authors' code, the last batch is dropped, be it full or not.
        """
        random = generator(seed, "order", epoch)
        order_N = torch.randperm(self.n_train, generator=random)
        which_N = torch.randint(PER_IMAGE, (self.n_train,), generator=random)
        kept = (self.n_train - 1) // self.batch_size
        return (PER_IMAGE * order_N + which_N).split(self.batch_size)[:kept]

    def batch(self, indices_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Words (T, B), lengths (B,) and image features (B, D) of these captions."""
        captions = indices_B.numpy()
        return *self.words(self.train.captions, captions), self.image_features(self.train, captions // PER_IMAGE)

    def words(self, encoded: Encoded, captions: np.ndarray) -> tuple[Tensor, Tensor]:
        """Word ids (T, B), EOS at the end and as padding, and lengths (B,) that count one EOS."""
        words_TB, lengths_B = (torch.from_numpy(array).to(self.device) for array in padded(encoded, captions))
        return words_TB, lengths_B

    def image_features(self, split: Split, images: np.ndarray) -> Tensor:
        """Features (B, D) of these images, of length 1 if the task wants that."""
        x_BD = torch.from_numpy(split.features(images)).to(self.device)
        return F.normalize(x_BD, dim=1) if self.unit else x_BD


class OrderEmbeddingsTask:
    """The task; see ``experiments.tasks.base.Task`` and ``FinalTest``."""

    name = "order_embeddings"
    norms: tuple[str, ...] = ("none", "wn", "ln")
    metrics: Mapping[str, Metric] = {
        **{
            f"{what}_{key}": Metric("percent", "higher", f"{what} retrieval, {words}")
            for what, asked in (("image", "caption's image"), ("caption", "image's best caption"))
            for key, words in (
                ("r1", f"share of the queries with the {asked} first"),
                ("r5", f"with the {asked} among the first 5"),
                ("r10", f"with the {asked} among the first 10"),
            )
        },
        **{
            f"{what}_{key}_rank": Metric("rank", "lower", f"{what} retrieval, {key} rank of the {asked}, from 1")
            for what, asked in (("image", "caption's image"), ("caption", "image's best caption"))
            for key in ("median", "mean")
        },
        "recall_sum": Metric("percent", "higher", "what selects the weights: R@1 + R@5 + R@10 of image retrieval"
                             " (task.selection=both: and of caption retrieval)"),
        "batch_loss": Metric("energy/caption", "lower", "contrastive sum of the minibatches since the last"
                             " evaluation, by the number of their captions"),
    }  # fmt: skip
    select = ("valid", "recall_sum")
    Config: type = OrderConfig

    def check(self, cfg: Any) -> None:
        task = cfg.task
        for key, least in (("word_dim", 1), ("units", 1), ("fold_images", 2), ("folds", 1)):
            if getattr(task, key) < least:  # one image alone is found by any caption
                raise ConfigError(f"task.{key}={getattr(task, key)} must be {least} or more")
        switches = {"energy": ENERGIES, "selection": SELECTIONS}
        for key, allowed in switches.items():
            if getattr(task, key) not in allowed:
                raise ConfigError(f"task.{key}={getattr(task, key)} is unknown: use {' or '.join(allowed)}")
        if task.train_examples is not None and task.train_examples < 1:
            raise ConfigError(f"task.train_examples={task.train_examples} must be 1 or more, or null for all")
        try:
            Variant(cfg.norm.norm(), bias_mode=task.bias_mode).resolved("gru")
        except ValueError as error:
            raise ConfigError(f"task.{error}") from None
        if task.margin is not None and not 0 < task.margin < 4:
            raise ConfigError(f"task.margin={task.margin} must lie above 0 and below 4, or be null")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", task.dataset):  # becomes a part of paths
            raise ConfigError(f"task.dataset={task.dataset} must be the name of a data set, such as coco or scenes")
        if cfg.train.batch_size < 2:
            raise ConfigError("train.batch_size=1: a caption needs other images to be told from; use 2 or more")

    def data(self, cfg: Any, device: torch.device) -> OrderData:
        return OrderData(cfg, device)

    def model(self, cfg: Any, generator: torch.Generator) -> nn.Module:
        task, data = cfg.task, load_order_embeddings(cfg.task.dataset, cfg.task.features)
        sizes = OrderSizes(
            vocabulary=FIRST_WORD + len(data.vocabulary), features=data.splits["train"].matrix_MD.shape[1],
            words=task.word_dim, units=task.units, energy=task.energy, bias_mode=task.bias_mode,
            kernel=cfg.kernel,
        )  # fmt: skip
        return OrderEmbedding(sizes, cfg.norm.norm(), generator)

    def loss(self, model: nn.Module, batch: Any, cfg: Any, generator: torch.Generator) -> Loss:
        assert isinstance(model, OrderEmbedding)
        words_TB, lengths_B, x_BD = batch
        energy_BB = model.energy(model.sentences(words_TB, lengths_B), model.images(x_BD))
        margin = MARGINS[cfg.task.energy] if cfg.task.margin is None else cfg.task.margin
        total = contrastive_loss(energy_BB, margin)
        return Loss(total, {"batch_loss": (total.detach(), len(lengths_B))})

    def evaluate(self, model: nn.Module, data: OrderData, cfg: Any, seed: int) -> list[Value]:
        """Search in the first fold of the validation images."""
        return self._values("valid", [search(model, data, "val", 0, data.valid_images, cfg)], cfg)

    def test(self, model: nn.Module, data: OrderData, cfg: Any, seed: int) -> list[Value]:
        """Search in each fold of the test images; means over the folds."""
        return self._values("test", [search(model, data, "test", *fold, cfg) for fold in data.folds], cfg)

    def _values(self, split: str, folds: list[Ranks | None], cfg: Any) -> list[Value]:
        good = [fold for fold in folds if fold is not None]
        if len(good) < len(folds):  # the loop takes it from here
            return [Value(split, "recall_sum", math.nan)]
        if (tied := max(fold.tied for fold in good)) > TIES:
            log.warning("%s: %.0f %% of the captions are as close to another image as to their own", split, 100 * tied)
        found = mean_statistics(good)
        counted = ("image", "caption") if cfg.task.selection == "both" else ("image",)
        found["recall_sum"] = sum(found[f"{what}_r{k}"] for what in counted for k in (1, 5, 10))
        return [Value(split, name, value) for name, value in found.items()]

    def plots(self, model: nn.Module, data: OrderData, cfg: Any, folder: Path, seed: int) -> list[Path]:
        """What the model finds for some test captions, from a vague one to a detailed one; scenes only."""
        if data.all.splits["test"].scenes is None:
            return []
        assert isinstance(model, OrderEmbedding)
        v_NH = embed_images(model, data, "test", *data.folds[0], cfg)
        chosen = [i * len(v_NH) // PER_IMAGE * PER_IMAGE + i for i in range(PER_IMAGE)]
        s_CH = embed_captions(model, data, data.all.splits["test"].captions, np.array(chosen), cfg)
        rows = []
        for caption, energy_N in zip(chosen, model.energy(s_CH, v_NH), strict=True):
            own, best_K = caption // PER_IMAGE, energy_N.topk(min(6, len(v_NH)), largest=False).indices.tolist()
            rank = int((energy_N < energy_N[own]).sum()) + 1
            rows.append(Found(data.all.caption("test", caption), best_K, own, rank, len(v_NH)))
        title = f"Test images closest to a caption; framed: its own image ({_about(cfg)})"
        pixels = [paint(data.all, "test", row.images) for row in rows]
        return [draw_found(rows, pixels, title, folder / "retrieval.png")]

    def demo(
        self, model: nn.Module, data: OrderData, cfg: Any, query: str, folder: Path
    ) -> tuple[list[str], list[Path]]:
        """What the model finds for a sentence among the test images and captions; see ``Demo``."""
        assert isinstance(model, OrderEmbedding)
        encoded = data.all.query(query)
        s_1H = embed_captions(model, data, encoded, np.array([0]), cfg)
        captions = data.all.splits["test"].captions
        v_NH = embed_images(model, data, "test", 0, len(data.all.splits["test"]), cfg)
        s_CH = embed_captions(model, data, captions, np.arange(len(captions.starts) - 1), cfg)
        to_images, to_captions = model.energy(s_1H, v_NH)[0], model.energy(s_1H, s_CH)[0]
        best_K = to_images.topk(min(6, len(v_NH)), largest=False).indices.tolist()
        lines = ["closest captions:"]
        texts = [data.all.caption("test", c) for c in to_captions.argsort(stable=True)[:200].tolist()]
        lines += [f"  {text}" for text in list(dict.fromkeys(texts))[:5]]
        lines.append("closest test images, with their energies (lower is closer) and third captions:")
        for image in best_K:
            lines.append(f"  {image} ({to_images[image]:.4f}): {data.all.caption('test', PER_IMAGE * image + 2)}")
        if data.all.splits["test"].scenes is None:
            return [*lines, "no picture: of these images there are features only"], []
        pixels = [paint(data.all, "test", best_K)]
        title = f"Closest test images ({_about(cfg)})"
        return lines, [draw_found([Found(query, best_K)], pixels, title, folder / "demo_order_embeddings.png")]


def _about(cfg: Any) -> str:
    return f"order_embeddings, {cfg.norm.name}, profile {cfg.profile}, seed {cfg.seed}"


def embed_images(model: nn.Module, data: OrderData, split: str, first: int, last: int, cfg: Any) -> Tensor:
    """Embeddings (N, H) of images ``first`` … ``last`` - 1 of a split."""
    assert isinstance(model, OrderEmbedding)
    part, size = data.all.splits[split], cfg.train.eval_batch_size
    starts = range(first, last, size)
    return torch.cat([model.images(data.image_features(part, np.arange(i, min(i + size, last)))) for i in starts])


def embed_captions(model: nn.Module, data: OrderData, encoded: Encoded, captions: np.ndarray, cfg: Any) -> Tensor:
    """Embeddings (C, H) of captions, in batches of about equal length."""
    assert isinstance(model, OrderEmbedding)
    lengths = encoded.starts[captions + 1] - encoded.starts[captions]
    order, size = np.argsort(lengths, kind="stable"), cfg.train.eval_batch_size
    parts = [model.sentences(*data.words(encoded, captions[order[i : i + size]])) for i in range(0, len(order), size)]
    s_CH = torch.cat(parts)
    return s_CH[torch.from_numpy(np.argsort(order)).to(s_CH.device)]


def search(model: nn.Module, data: OrderData, split: str, first: int, last: int, cfg: Any) -> Ranks | None:
    """Ranks among images ``first`` … ``last`` - 1 of a split and their captions; None if an energy is not finite."""
    assert isinstance(model, OrderEmbedding)
    captions = np.arange(PER_IMAGE * first, PER_IMAGE * last)
    s_CH = embed_captions(model, data, data.all.splits[split].captions, captions, cfg)
    energy_CN = model.energy(s_CH, embed_images(model, data, split, first, last, cfg))
    return ranks(energy_CN) if bool(torch.isfinite(energy_CN).all()) else None
