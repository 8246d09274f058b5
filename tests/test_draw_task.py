"""The DRAW task: its checks, data order, noise, evaluation, and pictures."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import experiments.tasks.draw as module
from data.fetch import Source
from experiments.rng import generator
from experiments.schema import ConfigError
from experiments.tasks.draw import DrawConfig, DrawTask, image_noise, spread
from models.norm import Norm

TASK = DrawTask()
DEVICE = torch.device("cpu")


def config(norm: str = "ln", **changes: Any) -> Any:
    """A small configuration; ``changes`` may name keys of task.* or train.*."""
    task: dict[str, Any] = dict(
        name="draw", glimpses=3, units=8, latent=4, read=2, write=5, init_std=0.05, centre="gregor",
        initial_state="zeros", order="shuffle", ln_on="both",
        train_examples=50, eval_examples=20, eval_samples=1,
    )  # fmt: skip
    train: dict[str, Any] = dict(batch_size=16, eval_batch_size=20, lr=1e-3, clip=10)
    for key, value in changes.items():
        (task if key in task else train)[key] = value
    return SimpleNamespace(
        task=DrawConfig(**task),
        train=SimpleNamespace(**train),
        norm=SimpleNamespace(name=norm, norm=lambda: Norm(norm)),
        kernel="auto",
        profile="smoke",
        seed=0,
    )


@pytest.fixture(scope="module")
def fake_images() -> SimpleNamespace:
    """Random images in the data set's shape; image n of a split is recognisable by its first pixels."""
    rng = np.random.default_rng(0)

    def split(n: int) -> np.ndarray:
        x = (rng.integers(0, 256, (n, 784), dtype=np.uint8) < 50).astype(np.uint8)
        x[:, :16] = (np.arange(n)[:, None] >> np.arange(16)) & 1
        return x

    return SimpleNamespace(
        train_N784=split(50_000),
        valid_N784=split(10_000),
        test_N784=split(10_000),
        source=Source(kind="stand-in", label="fake", name="fake", fingerprint="0", detail="random pixels"),
    )


@pytest.fixture(autouse=True)
def images(monkeypatch: pytest.MonkeyPatch, fake_images: SimpleNamespace) -> None:
    monkeypatch.setattr(module, "load_binarized_mnist", lambda: fake_images)


def number(x_N784: torch.Tensor) -> list[int]:
    """Which image of its split each row is."""
    return (x_N784[:, :16].long() << torch.arange(16)).sum(1).tolist()


BAD = [
    ({"glimpses": 0}, "task.glimpses=0 must be 1 or more"),
    ({"units": -1}, "task.units=-1 must be 1 or more"),
    ({"latent": 0}, "task.latent=0 must be 1 or more"),
    ({"eval_samples": 0}, "task.eval_samples=0 must be 1 or more"),
    ({"read": 1}, "task.read=1 must lie in 2…28"),
    ({"write": 29}, "task.write=29 must lie in 2…28"),
    ({"init_std": 0.0}, "task.init_std=0.0 must be"),
    ({"init_std": math.nan}, "task.init_std=nan must be"),
    ({"init_std": math.inf}, "task.init_std=inf must be"),
    ({"centre": "middle"}, "task.centre=middle is unknown: use gregor or jbornschein"),
    ({"initial_state": "random"}, "task.initial_state=random is unknown: use zeros or learned"),
    ({"order": "random"}, "task.order=random is unknown: use shuffle or sequential"),
    ({"ln_on": "none"}, "task.ln_on=none is unknown: use both or encoder or decoder"),
    ({"norm": "wn", "ln_on": "encoder"}, "task.ln_on=encoder needs norm=ln, not wn"),
    ({"train_examples": 50_001}, "task.train_examples=50001 must lie in 1…50000"),
    ({"train_examples": 0}, "task.train_examples=0 must lie in 1…50000"),
    ({"eval_examples": 10_001}, "task.eval_examples=10001 must lie in 1…10000"),
    ({"batch_size": 51}, "train.batch_size=51 is more than the 50 training images"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=lambda v: str(v)[:40])
def test_what_cannot_work_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        TASK.check(config(**changes))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_good_values_pass_and_bn_is_not_offered() -> None:
    for norm in TASK.norms:
        TASK.check(config(norm))
    TASK.check(config(ln_on="decoder", read=28, batch_size=50))
    assert TASK.norms == ("none", "wn", "ln")


def test_an_epoch_is_a_permutation_that_depends_on_seed_and_epoch_only() -> None:
    data = TASK.data(config(), DEVICE)
    orders = {(seed, epoch): torch.cat(list(data.epoch(epoch, seed))).tolist() for seed in (0, 1) for epoch in (0, 1)}
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 4
    assert [len(b) for b in data.epoch(0, 0)] == [16, 16, 16, 2]  # the small last batch is kept
    again = TASK.data(config(), DEVICE)
    assert torch.cat(list(again.epoch(1, 1))).tolist() == orders[1, 1]
    assert number(data.batch(torch.tensor([7, 3]))) == [7, 3]
    in_file_order = TASK.data(config(order="sequential"), DEVICE)
    assert torch.cat(list(in_file_order.epoch(5, 1))).tolist() == list(range(50))


def test_training_images_are_the_first_and_evaluation_images_are_spread() -> None:
    data = TASK.data(config(), DEVICE)
    assert number(data.splits["train"]) == list(range(50)) and data.n_train == 50
    for split in ("valid", "test"):
        assert number(data.splits[split]) == list(range(0, 10_000, 500))
    assert spread(10_000, 10_000) == list(range(10_000))
    assert spread(3, 10) == [0, 3, 6]


def values(cfg: Any, data: Any, model: torch.nn.Module, seed: int = 5) -> dict[tuple[str, str], float]:
    with torch.no_grad():
        return {(v.split, v.metric): v.value for v in TASK.evaluate(model, data, cfg, seed)}


@pytest.mark.parametrize("norm", TASK.norms)
def test_evaluation_is_invariant_to_its_batch_size_and_uses_no_global_randomness(norm: str) -> None:
    cfg = config(norm, eval_samples=2, init_std=0.5)
    data, model = TASK.data(cfg, DEVICE), TASK.model(cfg, generator(0, "model"))
    before = torch.get_rng_state()
    first = values(cfg, data, model)
    assert torch.equal(before, torch.get_rng_state())
    assert values(cfg, data, model) == first
    for size in (1, 7, 1000):
        cfg.train.eval_batch_size = size
        assert values(cfg, data, model) == pytest.approx(first, rel=1e-6)
    assert values(cfg, data, model, seed=6)["test", "bound"] != first["test", "bound"]
    for split in ("valid", "test"):
        bound, kl, reconstruction = (first[split, m] for m in ("bound", "kl", "reconstruction"))
        assert bound == pytest.approx(kl + reconstruction) and kl > 0
    assert {m for _, m in first} | {"batch_bound"} == set(TASK.metrics)


def test_evaluation_is_the_mean_over_images_and_samples_of_the_models_bound() -> None:
    cfg = config(eval_samples=2)
    data, model = TASK.data(cfg, DEVICE), TASK.model(cfg, generator(0, "model"))
    x = data.splits["valid"].float()
    with torch.no_grad():
        bounds = [model(x, image_noise(cfg.task, 5, "valid", s, data.eval_indices)) for s in range(2)]
    expected = np.mean([(b.reconstruction_B + b.kl_B).mean().item() for b in bounds])
    assert values(cfg, data, model)["valid", "bound"] == pytest.approx(expected, rel=1e-6)


def test_an_images_noise_is_its_own() -> None:
    task = config().task
    noise = image_noise(task, 0, "valid", 0, [3, 8, 9])
    assert noise.shape == (3, 3, 4)
    assert torch.equal(image_noise(task, 0, "valid", 0, [8])[:, 0], noise[:, 1])
    others = [image_noise(task, *key, [8]) for key in ((1, "valid", 0), (0, "test", 0), (0, "valid", 1))]
    assert all((noise[:, 1:2] - other).abs().min() > 0 for other in others)


@pytest.mark.parametrize("norm", TASK.norms)
def test_loss_is_the_mean_bound_with_its_sums_and_training_lowers_it(norm: str) -> None:
    cfg = config(norm, glimpses=2, units=16, init_std=0.05)
    data, model = TASK.data(cfg, DEVICE), TASK.model(cfg, generator(0, "model"))
    batch = data.batch(torch.arange(50))
    loss = TASK.loss(model, batch, cfg, generator(0, "noise", 0))
    total, count = loss.sums["batch_bound"]
    assert count == 50 and not total.requires_grad and total.item() / 50 == pytest.approx(loss.mean.item())
    assert TASK.loss(model, batch, cfg, generator(0, "noise", 0)).mean.item() == loss.mean.item()
    assert 500 < loss.mean.item() < 600  # an untrained canvas: 784 ln 2 = 543 nats, and little KL
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    for step in range(20):
        optimizer.zero_grad()
        TASK.loss(model, batch, cfg, generator(0, "noise", step)).mean.backward()
        optimizer.step()
    assert TASK.loss(model, batch, cfg, generator(0, "noise", 99)).mean.item() < loss.mean.item() - 20


def test_pictures_are_written_without_a_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", "nonsense:99")
    cfg = config(eval_examples=3)
    data, model = TASK.data(cfg, DEVICE), TASK.model(cfg, generator(0, "model"))
    with torch.no_grad():
        written = TASK.plots(model, data, cfg, tmp_path, 0)
    assert [p.name for p in written] == ["generated.png", "reconstructed.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in written)


# Mean bound at the start and after three Adam steps. A change that must not change numerics gives the same.
GOLDEN = {"none": (544.1624, 542.5642), "wn": (544.1624, 542.5553), "ln": (552.3209, 546.1956)}


@pytest.mark.parametrize("norm", TASK.norms)
def test_golden_losses(norm: str) -> None:
    cfg = config(norm, units=16, init_std=0.4)
    data, model = TASK.data(cfg, DEVICE), TASK.model(cfg, generator(0, "model"))
    batch = data.batch(torch.arange(50))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for step in range(4):
        losses.append(TASK.loss(model, batch, cfg, generator(0, "noise", step)).mean)
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert (losses[0].item(), losses[3].item()) == pytest.approx(GOLDEN[norm], abs=2e-3)
