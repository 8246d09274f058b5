"""The order-embeddings task: its checks, batches, search, golden losses, pictures and answers."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orderdata as od
import pytest
import torch

import experiments.tasks.order_embeddings as module
from experiments.loop import make_optimizer, training_step
from experiments.rng import generator
from experiments.schema import ConfigError
from experiments.tasks.base import Demo, FinalTest
from experiments.tasks.order_embeddings import OrderConfig, OrderEmbeddingsTask
from models.norm import Norm
from models.retrieval import Ranks

TASK = OrderEmbeddingsTask()
DEVICE = torch.device("cpu")


def config(norm: str = "ln", **changes: Any) -> Any:
    """A small configuration; ``changes`` may name keys of task.* or train.*."""
    task: dict[str, Any] = dict(
        name="order_embeddings", dataset="mine", features=None, word_dim=5, units=8, energy="order", margin=None,
        bias_mode="official", unit_features=True, selection="image", train_examples=None, fold_images=1000, folds=5,
    )  # fmt: skip
    train: dict[str, Any] = dict(
        batch_size=2, eval_batch_size=4, lr=1e-2, beta1=0.9, beta2=0.999, adam_eps=1e-8, adam="authors", clip=2.0,
        clip_form="per_tensor",
    )  # fmt: skip
    for key, value in changes.items():
        (task if key in task else train)[key] = value
    return SimpleNamespace(
        task=OrderConfig(**task),
        train=SimpleNamespace(**train),
        norm=SimpleNamespace(name=norm, norm=lambda: Norm(norm)),
        kernel="auto",
        profile="smoke",
        seed=0,
    )


@pytest.fixture(autouse=True)
def small_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    od.write_vendrov(tmp_path / "given" / "mine")
    (tmp_path / "raw").mkdir()
    for name, folder in (("LN_DATA", "given"), ("LN_RAW", "raw"), ("LN_CACHE", "cache")):
        monkeypatch.setenv(name, str(tmp_path / folder))


BAD = [
    ({"units": 0}, "task.units=0 must be 1 or more"),
    ({"word_dim": -1}, "task.word_dim=-1 must be 1 or more"),
    ({"fold_images": 1}, "task.fold_images=1 must be 2 or more"),
    ({"folds": 0}, "task.folds=0 must be 1 or more"),
    ({"energy": "cosine"}, "task.energy=cosine is unknown: use order or symmetric"),
    ({"selection": "caption"}, "task.selection=caption is unknown: use image or both"),
    ({"bias_mode": "theano"}, "task.bias_mode=theano does not fit norm=ln"),
    ({"train_examples": 0}, "task.train_examples=0 must be 1 or more, or null"),
    ({"margin": 0.0}, "task.margin=0.0 must lie above 0"),
    ({"margin": math.nan}, "task.margin=nan must lie above 0"),
    ({"dataset": "../etc"}, "task.dataset=../etc must be the name of a data set"),
    ({"dataset": "my data"}, "task.dataset=my data must be the name of a data set"),
    ({"dataset": ""}, "task.dataset= must be the name"),
    ({"batch_size": 1}, "train.batch_size=1: a caption needs other images"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=lambda v: str(v)[:40])
def test_what_cannot_work_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        TASK.check(config(**changes))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_good_values_pass() -> None:
    for norm in TASK.norms:
        TASK.check(config(norm))
    TASK.check(config(energy="symmetric", margin=0.2, selection="both", bias_mode="minimal"))
    assert isinstance(TASK, FinalTest) and isinstance(TASK, Demo)


@pytest.mark.parametrize("size", [6, 7])
def test_a_batch_as_large_as_the_data_leaves_nothing(size: int) -> None:
    with pytest.raises(ConfigError, match=f"train.batch_size={size} leaves no batch of the 6 training images"):
        TASK.data(config(batch_size=size), DEVICE)


def test_fewer_training_images() -> None:
    data = TASK.data(config(train_examples=5), DEVICE)
    assert {c // 5 for epoch in range(20) for b in data.epoch(epoch, 0) for c in b.tolist()} == set(range(5))
    with pytest.raises(ConfigError, match="task.train_examples=7 is more than the 6 there are"):
        TASK.data(config(train_examples=7), DEVICE)


def test_an_epoch_has_a_caption_of_each_image_and_drops_the_last_batch() -> None:
    for size, batches in ((2, 2), (4, 1), (5, 1), (3, 1)):  # of 6 images; 2 and 3 divide 6, so a full one is dropped
        data = TASK.data(config(batch_size=size), DEVICE)
        for epoch in range(3):
            order = data.epoch(epoch, 0)
            assert [len(b) for b in order] == [size] * batches
            images = torch.cat(list(order)) // 5
            assert len(set(images.tolist())) == size * batches
    data = TASK.data(config(), DEVICE)
    orders = {(s, e): torch.cat(list(data.epoch(e, s))).tolist() for s in (0, 1) for e in (0, 1)}
    assert len({tuple(order) for order in orders.values()}) == 4
    assert torch.cat(list(TASK.data(config(), DEVICE).epoch(1, 1))).tolist() == orders[1, 1]
    which = [c % 5 for e in range(200) for b in data.epoch(e, 0) for c in b.tolist()]
    assert set(which) == set(range(5)) and abs(np.bincount(which) / len(which) - 0.2).max() < 0.05


def test_a_batch() -> None:
    data = TASK.data(config(), DEVICE)
    data.train.captions.words[:3] = (7, 8, 9)
    words, lengths, x = data.batch(torch.tensor([0, 16]))
    assert words.shape == (4, 2) and lengths.tolist() == [4, 4]
    assert words[:, 0].tolist() == [7, 8, 9, 0], "an EOS at the end"
    rows = od.features("train")[[0, 3]]
    np.testing.assert_allclose(x, rows / np.linalg.norm(rows, axis=1, keepdims=True), rtol=1e-6)
    raw = TASK.data(config(unit_features=False), DEVICE)
    np.testing.assert_array_equal(raw.batch(torch.tensor([0, 16]))[2], rows)


def ready(norm: str = "ln", **changes: Any) -> tuple[Any, Any, Any]:
    cfg = config(norm, **changes)
    return cfg, TASK.data(cfg, DEVICE), TASK.model(cfg, generator(0, "model")).eval()


def named(values: list[Any]) -> dict[str, float]:
    return {v.metric: v.value for v in values}


@torch.no_grad()
@pytest.mark.parametrize("energy", ["order", "symmetric"])
def test_search_against_one_pair_at_a_time(energy: str) -> None:
    cfg, data, model = ready(energy=energy)
    n = od.COUNTS["val"]
    costs = np.zeros((5 * n, n))
    for c in range(5 * n):
        s = model.sentences(*data.words(data.all.splits["val"].captions, np.array([c])))
        for i in range(n):
            v = model.images(data.image_features(data.all.splits["val"], np.array([i])))
            costs[c, i] = (s - v).clamp_min(0).square().sum() if energy == "order" else -(s * v).sum()
    found = TASK.evaluate(model, data, cfg, 0)
    assert {v.split for v in found} == {"valid"} and {v.metric for v in found} < set(TASK.metrics)
    ranks = [sum(costs[c] < costs[c, c // 5]) for c in range(5 * n)]
    own = [min(costs[5 * i : 5 * i + 5, i]) for i in range(n)]
    best = [sum(costs[:, i] < own[i]) for i in range(n)]
    got = named(found)
    assert got["image_r1"] == pytest.approx(100 * np.mean(np.array(ranks) < 1))
    assert got["image_mean_rank"] == pytest.approx(np.mean(ranks) + 1)
    assert got["caption_r5"] == pytest.approx(100 * np.mean(np.array(best) < 5))
    assert got["caption_median_rank"] == np.floor(np.median(best)) + 1
    assert got["recall_sum"] == pytest.approx(got["image_r1"] + got["image_r5"] + got["image_r10"])
    both = named(TASK.evaluate(model, data, config(energy=energy, selection="both"), 0))
    assert both["recall_sum"] == pytest.approx(
        got["recall_sum"] + got["caption_r1"] + got["caption_r5"] + got["caption_r10"]
    )


@torch.no_grad()
def test_values_do_not_depend_on_the_evaluation_batch() -> None:
    _, data, model = ready()
    first, *others = [named(TASK.evaluate(model, data, config(eval_batch_size=size), 0)) for size in (1, 4, 100)]
    assert all(other == pytest.approx(first) for other in others)


@torch.no_grad()
def test_folds_are_searched_apart_and_said_in_the_source() -> None:
    cfg, data, model = ready(fold_images=1)
    assert data.folds == [(0, 1), (1, 2)]
    assert data.source.detail.endswith("validation: 1 images; test: 2 folds of 1 images")
    assert named(TASK.test(model, data, cfg, 0))["image_r1"] == 100, "one image is always first"
    values = TASK.test(model, data, cfg, 0)
    assert {v.split for v in values} == {"test"} and len(values) == 11
    cfg, data, model = ready()
    assert data.source.detail.endswith("validation: 3 images; test: 1 fold of 2 images")


@torch.no_grad()
def test_the_test_searches_each_fold_of_the_test_images_and_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, int]] = []
    perfect, poor = Ranks(np.zeros(10), np.zeros(2), 0.0), Ranks(np.full(10, 7), np.array([2, 11]), 0.0)

    def fake(model: Any, data: Any, split: str, first: int, last: int, cfg: Any) -> Ranks:
        asked.append((split, first, last))
        return poor if first else perfect

    monkeypatch.setattr(module, "search", fake)
    cfg, data, model = ready(fold_images=1)
    got = named(TASK.test(model, data, cfg, 0))
    assert asked == [("test", 0, 1), ("test", 1, 2)]
    assert (got["image_r1"], got["image_r5"], got["image_r10"], got["image_mean_rank"]) == (50, 50, 100, 4.5)
    assert (got["caption_r1"], got["caption_r5"], got["caption_r10"], got["caption_mean_rank"]) == (50, 75, 75, 4.25)
    asked.clear()
    TASK.evaluate(model, data, config(fold_images=2), 0)
    assert asked == [("val", 0, 1)], "the data was told of folds of one image"


@torch.no_grad()
def test_an_energy_that_is_not_finite_is_not_a_perfect_rank() -> None:
    cfg, data, model = ready()
    model.image_map.bias.fill_(math.nan)
    assert math.isnan(named(TASK.evaluate(model, data, cfg, 0))["recall_sum"])


@torch.no_grad()
def test_a_model_that_tells_nothing_apart_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    cfg, data, model = ready()
    model.image_map.weight.zero_()
    model.image_map.bias.fill_(1)
    with caplog.at_level("WARNING", logger="suite"):
        TASK.evaluate(model, data, cfg, 0)
    assert "100 % of the captions are as close to another image as to their own" in caplog.text


@pytest.mark.parametrize("norm", TASK.norms)
def test_loss_is_the_contrastive_sum_and_training_lowers_it(norm: str) -> None:
    cfg, data, model = ready(norm, batch_size=5)
    batch = data.batch(torch.arange(5) * 5)
    loss = TASK.loss(model, batch, cfg, generator(0, "noise", 0))
    total, count = loss.sums["batch_loss"]
    assert count == 5 and total.item() == loss.mean.item() and not total.requires_grad
    wide = TASK.loss(model, batch, config(norm, margin=0.2), generator(0, "noise", 0)).mean.item()
    assert wide > loss.mean.item() + 0.1, "a wider margin costs more"
    for energy, margin in (("order", 0.05), ("symmetric", 0.2)):  # the authors'
        usual, given = (
            TASK.loss(model, batch, config(norm, energy=energy, margin=m), generator(0, "x")).mean.item()
            for m in (None, margin)
        )
        assert usual == given
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        TASK.loss(model, batch, cfg, generator(0, "noise", 0)).mean.backward()
        optimizer.step()
    assert TASK.loss(model, batch, cfg, generator(0, "noise", 0)).mean.item() < 0.5 * loss.mean.item()


# Contrastive sum at the start and after three updates in the authors' form. A change that must not change numerics
# gives the same.
GOLDEN = {"none": (3.7919, 2.2543), "wn": (3.7919, 1.9097), "ln": (3.5120, 1.9701)}


@pytest.mark.parametrize("norm", TASK.norms)
def test_golden_losses(norm: str) -> None:
    cfg, data, model = ready(norm, batch_size=5)
    batch = data.batch(torch.arange(5) * 5)
    optimizer = make_optimizer(model, cfg)
    losses = [training_step(TASK, model, optimizer, batch, cfg, generator(0, "noise", 0))[0] for _ in range(4)]
    assert (losses[0], losses[3]) == pytest.approx(GOLDEN[norm], abs=1e-3)
