"""WN in the recurrent layers: w = g v / ||v|| row by row, once per sequence, with gradients to g and v."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils import parametrize

from models.kernels import build as kernels
from tests.rnncases import KINDS, build, random, scramble

T, B, INPUTS, H = 4, 3, 3, 5
BOTH = ("lstm", "gru")
NAMES = ("weight_ih", "weight_hh")


def g_and_v(cell: Any, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    originals = getattr(cell.parametrizations, name)
    return originals.original0, originals.original1


def counted(module: torch.nn.Module) -> list[int]:
    """A list that grows by one with each matrix that is computed."""
    calls: list[int] = []
    for child in module.modules():
        if isinstance(child, parametrize.ParametrizationList):
            child.register_forward_hook(lambda *_: calls.append(1))
    return calls


@pytest.mark.parametrize("kind", BOTH)
def test_each_row_has_length_g_and_the_direction_of_v(kind: str) -> None:
    cell = build(kind, norm="wn").cells[0]
    for name, weight in zip(NAMES, cell.weights(), strict=True):
        g, v = g_and_v(cell, name)
        assert g.shape == (len(weight), 1) and v.shape == weight.shape
        torch.testing.assert_close(weight.norm(dim=1), g.abs()[:, 0])
        torch.testing.assert_close(weight, g * v / v.norm(dim=1, keepdim=True))
        torch.testing.assert_close(weight, getattr(cell, name))


@pytest.mark.parametrize("kind", BOTH)
def test_it_starts_as_the_un_normalised_layer(kind: str) -> None:
    layers = [KINDS[kind](INPUTS, H, norm=n, generator=torch.Generator().manual_seed(3)) for n in ("none", "wn")]
    plain, normed = (layer.cells[0].weights() for layer in layers)
    for a, b in zip(plain, normed, strict=True):
        torch.testing.assert_close(a, b)
    for name in NAMES:
        g, v = g_and_v(layers[1].cells[0], name)
        torch.testing.assert_close(g, v.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("kernel", ["auto", "reference"])
@pytest.mark.parametrize("kind", BOTH)
def test_w_is_computed_once_per_sequence(kind: str, kernel: str) -> None:
    layer = build(kind, norm="wn", kernel=kernel, num_layers=2, bidirectional=True, dtype=torch.float32)
    calls = counted(layer)
    x = random(T, B, INPUTS, dtype=torch.float32)
    layer(x)
    assert len(calls) == 4 * 2  # cells x matrices, whatever the number of steps
    calls.clear()
    layer(x, None, torch.tensor([4, 2, 1]))
    assert len(calls) == 4 * 2


@pytest.mark.parametrize("kernel", ["reference", "auto"])
@pytest.mark.parametrize(("kind", "clip"), [("lstm", None), ("lstm", 0.1), ("gru", None)])
def test_w_is_computed_once_for_a_loop_of_steps(kind: str, clip: float | None, kernel: str) -> None:
    clipped = {} if clip is None else {"gate_clip": clip}
    layer = build(kind, norm="wn", kernel=kernel, dtype=torch.float32, **clipped)
    cell, calls = layer.cells[0], counted(layer)
    taken, state = cell.begin(T, B), cell.initial(B)
    for t in range(T):
        state = taken(random(B, INPUTS, dtype=torch.float32, seed=t), state)
    assert len(calls) == 2
    if clip is not None:
        calls.clear()
        layer(random(T, B, INPUTS, dtype=torch.float32))
        assert len(calls) == 2


@pytest.mark.skipif(kernels.extension() is None, reason="no fused kernels")
def test_the_fused_steps_pass_gradients_through_to_g_and_v() -> None:
    results = []
    for kernel in ("fused", "reference"):
        cell = build("lstm", norm="wn", kernel=kernel, dtype=torch.float32).cells[0]
        taken, state = cell.begin(2, B), cell.initial(B)
        for t in range(2):
            state = taken(random(B, INPUTS, dtype=torch.float32, seed=t), state)
        state.h_BH.square().sum().backward()
        results.append([part.grad for name in NAMES for part in g_and_v(cell, name)])
    for ours, theirs in zip(*results, strict=True):
        assert theirs.abs().max() > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", BOTH)
def test_gradients_to_g_and_v_are_those_of_the_definition(kind: str) -> None:
    """dL/dg = (dL/dw . v) / ||v||;  dL/dv = g / ||v|| (dL/dw - (dL/dg / ||v||) v)."""
    layer = build(kind, norm="wn", kernel="reference")
    plain = KINDS[kind](INPUTS, H, norm="none", kernel="reference").double()
    cell, other = layer.cells[0], plain.cells[0]
    with torch.no_grad():
        for name, weight in zip(NAMES, cell.weights(), strict=True):
            getattr(other, name).copy_(weight)
        other.bias.copy_(cell.bias), other.bias_hh.copy_(cell.bias_hh)
    for used in (layer, plain):
        used(random(T, B, INPUTS))[0].square().sum().backward()
    for name in NAMES:
        (g, v), dw = g_and_v(cell, name), getattr(other, name).grad
        length = v.norm(dim=1, keepdim=True)
        dg = (dw * v).sum(1, keepdim=True) / length
        torch.testing.assert_close(g.grad, dg)
        torch.testing.assert_close(v.grad, g / length * (dw - dg / length * v))


def test_scaling_v_changes_nothing_and_its_gradient_shrinks() -> None:
    layer = build("lstm", norm="wn")
    x, cell = random(T, B, INPUTS), layer.cells[0]
    _, v = g_and_v(cell, "weight_hh")

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        layer.zero_grad()
        output, _ = layer(x)
        output.square().sum().backward()
        assert v.grad is not None
        return output.detach(), v.grad.clone()

    output, gradient = run()
    with torch.no_grad():
        v.mul_(4)
    same, smaller = run()
    torch.testing.assert_close(output, same)
    torch.testing.assert_close(gradient, 4 * smaller)
    scramble(layer, 5)
    assert not torch.allclose(run()[0], output)
