"""Norms against NumPy in float64, the paper's invariances as properties, and constants that must not be ignored."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from models.norm import (
    NORMS,
    BatchNorm,
    LayerNorm,
    Norm,
    NormLinear,
    cached_weights,
    count_normalisers,
    normaliser,
    weight_normed,
)

rng = np.random.default_rng(0)
FINITE = st.floats(-100, 100, width=32)


def filled(layer: nn.Module) -> nn.Module:
    """Every gain and bias different from its default, in float64."""
    layer = layer.double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            low = 0.5 if name.endswith("gain") else -1.0
            parameter.copy_(torch.as_tensor(rng.uniform(low, 1.5, parameter.shape)))
    return layer


@pytest.mark.parametrize("mode", ["sqrt", "outside", "var"])
@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_layer_norm_equals_its_equation(mode: str, eps: float) -> None:
    layer = filled(LayerNorm(7, Norm("ln", eps=eps, eps_mode=mode)))
    a = rng.normal(2, 3, (5, 7))
    mean, var = a.mean(1, keepdims=True), a.var(1, keepdims=True)
    scale = {"sqrt": np.sqrt(var + eps), "outside": np.sqrt(var) + eps, "var": var + eps}[mode]
    expected = (a - mean) / scale * layer.gain.detach().numpy() + layer.bias.detach().numpy()
    np.testing.assert_allclose(layer(torch.as_tensor(a)).detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("mode", ["sqrt", "outside", "var"])
def test_layer_norm_gradients(mode: str) -> None:
    layer = filled(LayerNorm(4, Norm("ln", eps_mode=mode)))
    a = torch.as_tensor(rng.normal(size=(3, 4))).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x), a)


@pytest.mark.parametrize("mode", ["sqrt", "outside", "var"])
def test_an_all_zero_vector_has_finite_gradients(mode: str) -> None:
    layer = LayerNorm(5, Norm("ln", eps_mode=mode))
    a = torch.zeros(2, 5, requires_grad=True)
    out = layer(a)
    out.sum().backward()
    assert torch.equal(out, torch.zeros_like(out))
    assert a.grad is not None and torch.isfinite(a.grad).all()


@given(arrays(np.float32, (3, 8), elements=FINITE))
def test_layer_norm_has_zero_mean_and_at_most_unit_variance(a: Any) -> None:
    out = LayerNorm(8, Norm("ln"))(torch.as_tensor(a)).detach().double()
    assert out.mean(1).abs().max() < 1e-4
    assert (out.var(1, unbiased=False) < 1 + 1e-4).all()
    spread = torch.as_tensor(a).double().var(1, unbiased=False)
    assert torch.allclose(out.var(1, unbiased=False)[spread > 1], torch.ones(1).double(), atol=1e-3)


@given(st.floats(0.1, 50), st.floats(-50, 50), st.integers(0, 1000))
def test_layer_norm_ignores_scale_and_shift_of_a_single_case(scale: float, shift: float, seed: int) -> None:
    a = torch.randn(2, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    layer = LayerNorm(16, Norm("ln", eps=0.0)).double()
    moved = a.clone()
    moved[0] = scale * moved[0] + shift
    assert torch.allclose(layer(moved), layer(a), atol=1e-9)


@pytest.mark.parametrize("variance", ["biased", "unbiased"])
@pytest.mark.parametrize("batch", [2, 4, 9])
def test_batch_norm_equals_its_equation(variance: str, batch: int) -> None:
    eps = 0.01
    layer = filled(BatchNorm(3, Norm("bn", eps=eps, variance=variance, momentum=0.25)))
    assert isinstance(layer, BatchNorm)
    gain, bias = layer.gain.detach().numpy(), layer.bias.detach().numpy()
    mean, var = np.zeros(3), np.ones(3)
    for _ in range(3):
        a = rng.normal(1, 2, (batch, 3))
        out = layer(torch.as_tensor(a)).detach().numpy()
        used = a.var(0, ddof=int(variance == "unbiased"))
        np.testing.assert_allclose(out, (a - a.mean(0)) / np.sqrt(used + eps) * gain + bias, rtol=1e-10)
        mean, var = 0.75 * mean + 0.25 * a.mean(0), 0.75 * var + 0.25 * a.var(0, ddof=1)
    np.testing.assert_allclose(layer.running_mean.numpy(), mean, rtol=1e-6)
    np.testing.assert_allclose(layer.running_var.numpy(), var, rtol=1e-6)
    layer.eval()
    a = rng.normal(size=(1, 3))
    expected = (a - mean) / np.sqrt(var + eps) * gain + bias
    np.testing.assert_allclose(layer(torch.as_tensor(a)).detach().numpy(), expected, rtol=1e-6)


def test_the_two_variance_estimators_differ_at_batch_4() -> None:
    a = torch.as_tensor(rng.normal(size=(4, 3))).float()
    biased, unbiased = (BatchNorm(3, Norm("bn", variance=v, eps=1e-12))(a) for v in ("biased", "unbiased"))
    assert torch.allclose(unbiased, biased * (3 / 4) ** 0.5, atol=1e-6)


def test_weight_norm_is_g_v_over_its_length() -> None:
    layer = NormLinear(6, 4, Norm("wn"), torch.Generator().manual_seed(0))
    parameters = dict(layer.named_parameters())
    g, v = (parameters[f"linear.parametrizations.weight.original{i}"] for i in (0, 1))
    assert g.shape == (4, 1)
    assert torch.allclose(layer.linear.weight, v, atol=1e-6), "g starts at ||v||"
    with torch.no_grad():
        g.copy_(torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
        v.mul_(torch.tensor([[5.0], [0.1], [1.0], [7.0]]))
    assert torch.allclose(layer.linear.weight.norm(dim=1), torch.tensor([1.0, 2.0, 3.0, 4.0]))


def test_weight_norm_is_computed_once_inside_a_cached_block(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = weight_normed(nn.Linear(3, 2), Norm("wn"))
    calls = []
    parametrization = layer.parametrizations.weight[0]  # type: ignore[union-attr, index]
    forward = type(parametrization).forward
    monkeypatch.setattr(type(parametrization), "forward", lambda *a: calls.append(1) or forward(*a))
    with cached_weights():
        for _ in range(5):
            layer(torch.ones(1, 3))
    assert len(calls) == 1
    for _ in range(5):
        layer(torch.ones(1, 3))
    assert len(calls) == 6


@pytest.mark.parametrize("name", NORMS)
def test_deepcopy_and_state_dict_round_trip(name: str) -> None:
    layer = NormLinear(6, 4, Norm(name), torch.Generator().manual_seed(0))
    x = torch.randn(5, 6)
    layer(x)  # moves running statistics
    layer.eval()
    twin = NormLinear(6, 4, Norm(name), torch.Generator().manual_seed(1)).eval()
    assert not torch.equal(twin(x), layer(x))
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(x), layer(x)) and torch.equal(copy.deepcopy(layer)(x), layer(x))


def test_the_norm_shows_in_the_parameter_names() -> None:
    names = {
        name: sorted(n for n, _ in NormLinear(3, 2, Norm(name), torch.Generator()).named_parameters())
        for name in NORMS
    }
    assert names == {
        "none": ["linear.bias", "linear.weight"],
        "bn": ["linear.weight", "norm.bias", "norm.gain"],
        "ln": ["linear.weight", "norm.bias", "norm.gain"],
        "wn": [
            "linear.bias",
            "linear.parametrizations.weight.original0",
            "linear.parametrizations.weight.original1",
        ],
    }


def test_counting_normalisers() -> None:
    model = nn.Sequential(*(NormLinear(3, 3, Norm(name), torch.Generator()) for name in ("ln", "ln", "bn", "wn")))
    assert count_normalisers(model) == {"ln": 2, "bn": 1, "wn": 1}


def test_gain_init_reaches_the_layer() -> None:
    for name in ("ln", "bn"):
        assert torch.equal(normaliser(Norm(name, gain_init=0.1), 3).gain, torch.full((3,), 0.1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"name": "rms"}, "norm 'rms' is unknown; choose one of none, bn, wn, ln"),
        ({"name": "ln", "eps_mode": "in"}, "norm.eps_mode 'in' is unknown"),
        ({"name": "ln", "variance": "unbiased"}, "norm.variance=unbiased does nothing with norm=ln"),
        ({"name": "bn", "eps_mode": "var"}, "norm.eps_mode=var does nothing with norm=bn"),
        ({"name": "none", "eps": 1.0}, "norm.eps=1.0 does nothing with norm=none"),
        ({"name": "wn", "gain_init": 0.1}, "norm.gain_init=0.1 does nothing with norm=wn"),
        ({"name": "ln", "eps": -1.0}, "norm.eps=-1.0 must be 0 or more"),
        ({"name": "bn", "momentum": 0.0}, r"norm.momentum=0.0 must lie in \(0, 1\]"),
        ({"name": "bn", "variance": "other"}, "norm.variance 'other' is unknown"),
    ],
)
def test_a_constant_that_cannot_work_or_does_nothing_is_refused(given_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Norm(**given_)
