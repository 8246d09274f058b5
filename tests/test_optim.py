"""Both forms of Adam and of clipping, against formulas written out."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from experiments.optim import CLIPS, clip_gradients, make_optimizer


@pytest.fixture(autouse=True)
def same_draws() -> None:
    torch.manual_seed(0)


def train(**changes: Any) -> Any:
    return SimpleNamespace(
        **{"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "adam_eps": 1e-8, "adam": "standard", "clip": None,
           "clip_form": "global"} | changes
    )  # fmt: skip


def authors(p: Tensor, gradients: list[Tensor], lr: float, b1: float, b2: float, eps: float) -> Tensor:
    """The authors' update rule, with b1 and b2 as they write them: one minus the usual ones."""
    p, m, v = p.double(), torch.zeros_like(p).double(), torch.zeros_like(p).double()
    for t, g in enumerate((g.double() for g in gradients), 1):
        m, v = b1 * g + (1 - b1) * m, b2 * g * g + (1 - b2) * v
        p = p - lr * math.sqrt(1 - b2**t) / (1 - b1**t) * m / (v.sqrt() + eps)
    return p


@pytest.mark.parametrize("scale", [1.0, 1e-7], ids=["usual gradients", "gradients as small as eps"])
def test_the_authors_adam(scale: float) -> None:
    model = nn.Linear(3, 2)
    start = [p.detach().clone() for p in model.parameters()]
    gradients = [[scale * torch.randn_like(p) for p in model.parameters()] for _ in range(25)]
    optimizer = make_optimizer(model, train(adam="authors"))
    for step, several in enumerate(gradients):
        for p, g in zip(model.parameters(), several, strict=True):
            p.grad = g.clone()
        optimizer.step()
        if step == 9:  # a resumed run goes on with the same step sizes
            saved = optimizer.state_dict()
            optimizer = make_optimizer(model, train(adam="authors"))
            optimizer.load_state_dict(saved)
    for i, p in enumerate(model.parameters()):
        expected = authors(start[i], [several[i] for several in gradients], 1e-2, 0.1, 0.001, 1e-8)
        assert torch.allclose(p.double(), expected, atol=1e-6, rtol=1e-5)


def test_the_early_steps_are_several_times_the_learning_rate() -> None:
    moved = {}
    for form in ("standard", "authors"):
        model = nn.Linear(1, 1, bias=False)
        optimizer = make_optimizer(model, train(adam=form))
        before, moved[form] = model.weight.item(), []
        for _ in range(100):
            model.weight.grad = torch.ones(1, 1)
            optimizer.step()
            moved[form].append((before - model.weight.item()) / 1e-2)
            before = model.weight.item()
    assert moved["standard"] == pytest.approx([1] * 100, abs=0.01)
    for step, times in ((1, 3.5), (10, 6.5), (50, 4.5), (100, 3.2)):
        assert moved["authors"][step - 1] == pytest.approx(times, abs=0.06)


def with_gradients(*norms: float) -> nn.Module:
    model = nn.ParameterList([nn.Parameter(torch.zeros(4)) for _ in norms])
    for parameter, norm in zip(model, norms, strict=True):
        parameter.grad = torch.full((4,), norm / 2)
    return model


def norms_of(model: nn.Module) -> list[float]:
    return [p.grad.norm().item() for p in model.parameters() if p.grad is not None]


def test_clipping_per_tensor_leaves_small_gradients_alone() -> None:
    model = with_gradients(6.0, 1.5, 2.0, 0.0)
    assert clip_gradients(model, train(clip=2.0, clip_form="per_tensor"))
    assert norms_of(model) == pytest.approx([2, 1.5, 2, 0])


def test_global_clipping_scales_all_alike() -> None:
    model = with_gradients(3.0, 4.0)
    assert clip_gradients(model, train(clip=2.5))
    assert norms_of(model) == pytest.approx([1.5, 2.0], rel=1e-5)
    model = with_gradients(3.0, 4.0)
    assert clip_gradients(model, train(clip=None)) and norms_of(model) == [3, 4]


def test_what_one_tensor_is_a_model_may_tell() -> None:
    class Stacked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 4))
            self.weight.grad = torch.tensor([[3.0] * 4, [0.5] * 4])

        def separate_gradients(self) -> list[Tensor]:
            assert self.weight.grad is not None
            return list(self.weight.grad.split(1))

    model = Stacked()
    assert clip_gradients(model, train(clip=2.0, clip_form="per_tensor"))
    assert model.weight.grad is not None and model.weight.grad.norm(dim=1).tolist() == pytest.approx([2, 1])


def test_the_norm_in_the_place_of_its_square() -> None:
    """With clip 10: untouched up to a norm of 100, above it a norm n becomes 10 sqrt(n)."""
    for norm, left in ((12.0, 12.0), (99.99, 99.99), (400.0, 200.0), (2500.0, 500.0)):
        model = with_gradients(0.6 * norm, 0.8 * norm, 0.0)
        assert clip_gradients(model, train(clip=10.0, clip_form="norm_as_square"))
        assert norms_of(model) == pytest.approx([0.6 * left, 0.8 * left, 0])


@pytest.mark.parametrize("form", CLIPS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_told_of(form: str, bad: float) -> None:
    model = with_gradients(1.0, bad, 1.0)
    assert not clip_gradients(model, train(clip=2.0, clip_form=form))
