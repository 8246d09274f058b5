"""Permutation-invariant MNIST: the network, the split, the metrics, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import experiments.tasks.pi_mnist as module
from data.fetch import Source
from data.mnist import Mnist
from experiments.compose import compose_cells
from experiments.loop import evaluate, initial_model, make_optimizer, training_step
from experiments.rng import generator
from experiments.schema import Config, ConfigError
from experiments.tasks.pi_mnist import PiMnistTask
from models.norm import count_normalisers

CPU = torch.device("cpu")
TASK = PiMnistTask()


def config(*overrides: str) -> Config:
    return compose_cells([["task=pi_mnist", *overrides]])[0]


@pytest.fixture
def fake_mnist(monkeypatch: pytest.MonkeyPatch) -> Mnist:
    """60,000 + 10,000 images of three grey levels; the label is a function of the index."""
    rng = np.random.default_rng(0)
    mnist = Mnist(
        train_images_N784=rng.integers(0, 256, (60_000, 1), np.uint8).repeat(784, 1),
        train_labels_N=np.arange(60_000) % 10,
        test_images_N784=rng.integers(0, 256, (10_000, 784), np.uint8),
        test_labels_N=np.arange(10_000) % 10,
        source=Source("mirror", "mnist", "MNIST", "f" * 64, ""),
    )
    monkeypatch.setattr(module, "load_mnist", lambda: mnist)
    return mnist


PAPER = 784 * 1000 + 1000 * 1000 + 1000 * 10


@pytest.mark.parametrize(
    ("overrides", "counts", "parameters"),
    [
        (["norm=none"], {"ln": 0, "bn": 0, "wn": 0}, PAPER + 2010),
        (["norm=ln"], {"ln": 2, "bn": 0, "wn": 0}, PAPER + 2 * 2000 + 10),
        (["norm=bn"], {"ln": 0, "bn": 3, "wn": 0}, PAPER + 2 * 2010),
        (["norm=bn", "task.bn_logits=false"], {"ln": 0, "bn": 2, "wn": 0}, PAPER + 2 * 2000 + 10),
        (["norm=wn"], {"ln": 0, "bn": 0, "wn": 3}, PAPER + 2 * 2010),
    ],
)
def test_normalisers_and_parameters_at_paper_size(
    overrides: list[str], counts: dict[str, int], parameters: int
) -> None:
    model = initial_model(TASK, config("profile=paper", *overrides), CPU)
    assert count_normalisers(model) == counts
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("norm", TASK.norms)
def test_initial_weights_are_uniform_within_one_over_root_nin(norm: str) -> None:
    model = initial_model(TASK, config("profile=paper", f"norm={norm}"), CPU)
    for layer, nin in zip([*model.hidden, model.logits], (784, 1000, 1000), strict=True):
        weight = layer.linear.weight.detach()
        assert weight.abs().max() <= nin**-0.5 * (1 + 1e-5)
        assert weight.std().item() == pytest.approx((nin * 3) ** -0.5, rel=0.02)


def test_hidden_layers_are_relu_of_the_normalised_sum() -> None:
    model = initial_model(TASK, config("profile=smoke", "norm=ln"), CPU).double()
    x = torch.rand(6, 784, dtype=torch.float64)
    h = x.numpy()
    for layer in model.hidden:
        a = h @ layer.linear.weight.detach().numpy().T
        h = np.maximum((a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-5), 0)
    logits = h @ model.logits.linear.weight.detach().numpy().T + model.logits.linear.bias.detach().numpy()
    np.testing.assert_allclose(model(x).detach().numpy(), logits, rtol=1e-6)


def test_batch_norm_variance_follows_the_batch_size() -> None:
    assert config("norm=bn", "train.batch_size=4").norm.variance == "unbiased"
    assert config("norm=bn", "train.batch_size=128").norm.variance == "biased"
    assert config("norm=bn", "train.batch_size=4", "norm.variance=biased").norm.variance == "biased"


def test_the_split_is_the_last_55000_for_training(fake_mnist: Mnist) -> None:
    data = TASK.data(config("profile=paper"), CPU)
    assert {name: len(y) for name, (_, y) in data.splits.items()} == {"train": 55_000, "valid": 5_000, "test": 10_000}
    x, y = data.batch(torch.tensor([0, 54_999]))
    assert y.tolist() == [5_000 % 10, 59_999 % 10]
    np.testing.assert_allclose(x.numpy(), fake_mnist.train_images_N784[[5_000, 59_999]] / 255, rtol=1e-6)
    assert torch.equal(data.splits["valid"][1], torch.as_tensor(fake_mnist.train_labels_N[:5_000]))


@pytest.mark.parametrize(("batch", "sizes"), [(128, {128, 10_000 % 128}), (9_999, {9_999}), (4, {4})])
def test_an_epoch_visits_every_image_once_but_drops_a_lone_last_one(
    fake_mnist: Mnist, batch: int, sizes: set[int]
) -> None:
    data = TASK.data(config(f"train.batch_size={batch}"), CPU)
    batches = data.epoch(3, 0)
    assert {len(b) for b in batches} == sizes
    seen = torch.cat(list(batches))
    assert len(seen.unique()) == len(seen) >= 9_999
    assert torch.equal(torch.cat(list(data.epoch(3, 0))), seen), "a pure function of (seed, epoch)"
    assert not torch.equal(torch.cat(list(data.epoch(4, 0))), seen)
    assert not torch.equal(torch.cat(list(data.epoch(3, 1))), seen)


@pytest.mark.parametrize("norm", TASK.norms)
def test_evaluation_does_not_depend_on_its_batch_size(fake_mnist: Mnist, norm: str) -> None:
    values = []
    for size in (997, 10_000):
        cfg = config("profile=smoke", f"norm={norm}", f"train.eval_batch_size={size}")
        data = TASK.data(cfg, CPU)
        model = initial_model(TASK, cfg, CPU)
        TASK.loss(model, data.batch(torch.arange(64)), cfg, generator(0, "x"))  # moves running statistics
        values.append(evaluate(TASK, model, data, cfg))
    for one, other in zip(*values, strict=True):
        assert (one.split, one.metric) == (other.split, other.metric)
        assert one.value == pytest.approx(other.value, rel=1e-6)


def test_metrics_by_hand(fake_mnist: Mnist) -> None:
    cfg = config("profile=smoke", "norm=none")
    data = TASK.data(cfg, CPU)
    model = initial_model(TASK, cfg, CPU).eval()
    values = {(v.split, v.metric): v.value for v in TASK.evaluate(model, data, cfg, 0)}
    for split, count in (("train", 256), ("valid", 5_000), ("test", 10_000)):
        x, y = (t[:count] for t in data.splits[split])
        logits = model(x).detach().double().numpy()
        logits = logits - logits.max(1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        assert values[split, "nll"] == pytest.approx(-log_p[np.arange(count), y.numpy()].mean(), rel=1e-6)
        assert values[split, "error"] == pytest.approx(100 * (log_p.argmax(1) != y.numpy()).mean())


def test_loss_is_the_mean_and_its_sum_is_the_total(fake_mnist: Mnist) -> None:
    cfg = config("profile=smoke", "norm=none")
    data = TASK.data(cfg, CPU)
    model = initial_model(TASK, cfg, CPU)
    x, y = data.batch(torch.arange(5))
    loss = TASK.loss(model, (x, y), cfg, generator(0, "x"))
    expected = F.cross_entropy(model(x), y, reduction="sum").item()
    assert loss.mean.item() == pytest.approx(expected / 5)
    total, count = loss.sums["batch_nll"]
    assert (total.item(), count) == (pytest.approx(expected), 5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.hidden=[]"], r"task.hidden=\[\] must name at least one width"),
        (["task.hidden=[10,0]"], "task.hidden"),
        (["task.train_examples=55001"], r"task.train_examples=55001 must lie in 1…55000"),
        (["task.train_eval_examples=0"], "task.train_eval_examples=0"),
        (["train.batch_size=10001"], "train.batch_size=10001 is larger than the 10000 training images"),
        (["norm=bn", "train.batch_size=1"], "single image has no batch variance"),
    ],
)
def test_bad_values_are_refused_before_any_data(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(*overrides)


def test_pictures_of_mistakes(fake_mnist: Mnist, tmp_path: Any) -> None:
    cfg = config("profile=smoke", "norm=none")
    data, model = TASK.data(cfg, CPU), initial_model(TASK, cfg, CPU).eval()
    with torch.no_grad():
        (path,) = TASK.plots(model, data, cfg, tmp_path, 0)
    assert path.stat().st_size > 10_000
    # A network that is never wrong: nothing to show, and no crash.
    data.splits["test"] = (data.splits["test"][0], model(data.splits["test"][0]).argmax(1))
    with torch.no_grad():
        TASK.plots(model, data, cfg, tmp_path, 0)


def test_every_metric_it_logs_is_declared(fake_mnist: Mnist) -> None:
    cfg = config("profile=smoke")
    data, model = TASK.data(cfg, CPU), initial_model(TASK, cfg, CPU)
    names = {value.metric for value in evaluate(TASK, model, data, cfg)}
    names |= set(TASK.loss(model, data.batch(torch.arange(2)), cfg, generator(0, "x")).sums)
    assert names == set(TASK.metrics)
    assert all(dataclasses.is_dataclass(metric) for metric in TASK.metrics.values())


GOLDEN = {
    ("none", 128): [2.303708, 2.322219, 2.331028, 2.309376],
    ("none", 4): [2.327998, 2.226326, 2.219005, 2.229993, 2.313724],
    ("bn", 128): [2.707651, 2.590873, 2.714157, 2.729782],
    ("bn", 4): [2.606432, 2.736551, 2.899103, 1.947583, 2.675487],
    ("wn", 128): [2.303708, 2.322206, 2.331149, 2.309389],
    ("wn", 4): [2.327998, 2.225698, 2.217958, 2.231464, 2.314964],
    ("ln", 128): [2.378905, 2.390113, 2.372559, 2.322851],
    ("ln", 4): [1.960882, 2.004345, 2.024096, 2.57429, 2.484082],
}


@pytest.mark.parametrize("batch", [128, 4])
@pytest.mark.parametrize("norm", TASK.norms)
def test_golden_losses(fake_mnist: Mnist, norm: str, batch: int) -> None:
    """Up to five updates from a fixed seed. A change that must not change numbers leaves these as they are."""
    cfg = config("profile=smoke", f"norm={norm}", f"train.batch_size={batch}")
    data, model = TASK.data(cfg, CPU), initial_model(TASK, cfg, CPU)
    optimizer = make_optimizer(model, cfg)
    losses = [
        training_step(TASK, model, optimizer, data.batch(indices_B), cfg, generator(0, "x"))[0]
        for indices_B in data.epoch(0, cfg.seed)[:5]
    ]
    assert losses == pytest.approx(GOLDEN[norm, batch], rel=1e-4)
