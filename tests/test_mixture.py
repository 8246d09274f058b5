"""The mixture density against torch.distributions, and at the edges where a naive formula breaks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, MixtureSameFamily, MultivariateNormal

from models.mixture import draw, mixture, mixture_nll, output_size


def outputs(*shape: int, components: int = 5, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(*shape, output_size(components), generator=generator, dtype=dtype)


def reference(output_Y: Tensor, target_3: Tensor) -> Tensor:
    """The same density, put together from the library's distributions."""
    end = output_Y[..., 0]
    weight, mx, my, sx, sy, r = output_Y[..., 1:].chunk(6, -1)
    sx, sy, rho = sx.exp(), sy.exp(), r.tanh()
    covariance = torch.stack((torch.stack((sx**2, rho * sx * sy), -1), torch.stack((rho * sx * sy, sy**2), -1)), -2)
    points = MixtureSameFamily(Categorical(logits=weight), MultivariateNormal(torch.stack((mx, my), -1), covariance))
    ends = Bernoulli(probs=1 / (1 + end.exp()))
    return -points.log_prob(target_3[..., :2]) - ends.log_prob(target_3[..., 2])


def targets(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    point = 2 * torch.randn(*shape, 2, generator=generator, dtype=torch.float64)
    return torch.cat((point, (torch.rand(*shape, 1, generator=generator) < 0.3).double()), -1)


@pytest.mark.parametrize("scale", [0.1, 1.0, 2.0])
def test_density_and_gradient_are_those_of_torch_distributions(scale: float) -> None:
    output, target = outputs(7, 3, scale=scale).requires_grad_(), targets(7, 3)
    nll = mixture_nll(output, target)
    expected = reference(output, target)
    torch.testing.assert_close(nll, expected, rtol=1e-9, atol=1e-9)
    (mine,) = torch.autograd.grad(nll.sum(), output)
    (theirs,) = torch.autograd.grad(expected.sum(), output)
    torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-7)


def test_the_density_of_a_float32_network_is_computed_in_float64() -> None:
    output, target = outputs(50, dtype=torch.float32), targets(50).float()
    nll = mixture_nll(output, target)
    assert nll.dtype == torch.float64
    torch.testing.assert_close(nll, reference(output.double(), target.double()), rtol=1e-9, atol=1e-9)


def single(mx: float, my: float, log_sx: float, log_sy: float, r: float, end: float = 0.0) -> Tensor:
    return torch.tensor([end, 0.0, mx, my, log_sx, log_sy, r], dtype=torch.float64)


# One component and points where the result is known by hand: x = mu + (a, b) sigma.
# With r = atanh(rho), -log N = log 2 pi + log sx sy + log sech r + ((a + b)^2 (1 + e^-2r) + (a - b)^2 (1 + e^2r)) / 8.
EDGES = [
    ("centre, sigma e^-100", single(0, 0, -100, -100, 0), (0, 0), -200.0),
    ("far away", single(0, 0, 0, 0, 0), (1e3, -1e3), 1e6),
    ("far away, wide", single(0, 0, 100, 100, 0), (1e3, 1e3), 200.0),
    ("far away, sigma e^-20", single(0, 0, -20, -20, 0), (1e3, 0.0), 0.5 * 1e6 * math.exp(40) - 40),
    ("rho to 1, on the ridge", single(0, 0, 0, 0, 50), (3, 3), math.log(2) - 50 + 36 / 8),
    ("rho to -1, on the ridge", single(0, 0, 0, 0, -50), (3, -3), math.log(2) - 50 + 36 / 8),
    ("rho to 1, off the ridge", single(0, 0, 0, 0, 50), (1, -1), math.log(2) - 50 + 4 * math.exp(100) / 8),
    ("rho to 1, at 1e3", single(0, 0, 0, 0, 20), (1e3, 1e3), math.log(2) - 20 + 4e6 / 8),
]


@pytest.mark.parametrize(("name", "output", "point", "expected"), EDGES, ids=[e[0] for e in EDGES])
def test_the_edges_are_exact_and_their_gradients_finite(
    name: str, output: Tensor, point: tuple[float, float], expected: float
) -> None:
    target = torch.tensor([*point, 1.0], dtype=torch.float64)
    output = output.clone().requires_grad_()
    nll = mixture_nll(output, target)
    assert nll.item() == pytest.approx(math.log(2 * math.pi) + expected + math.log(2), rel=1e-12)
    nll.backward()
    assert output.grad is not None and output.grad.isfinite().all()


def test_a_component_that_explains_nothing_takes_no_part() -> None:
    """One component is infinitely far from the point for any float; value and gradient are the other's."""
    far = torch.tensor([0.0, 0, 0, 1e3, 0, 1e3, 0, -160, 0, -160, 0, 0, 0], dtype=torch.float64, requires_grad=True)
    near = single(0, 0, 0, 0, 0).requires_grad_()
    target = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    nll = mixture_nll(far, target)
    assert nll.item() == pytest.approx(mixture_nll(near, target).item() + math.log(2))
    nll.backward()
    assert far.grad is not None and far.grad.isfinite().all()


@pytest.mark.parametrize("end", [-800.0, 800.0])
def test_a_certain_bit(end: float) -> None:
    """The output's sign is reversed: a large one says that the stroke goes on."""
    nll = [mixture_nll(single(0, 0, 0, 0, 0, end), torch.tensor([0, 0, bit])).item() for bit in (0.0, 1.0)]
    assert sorted(value - math.log(2 * math.pi) for value in nll) == pytest.approx([0, 800])
    assert (nll[1] > nll[0]) == (end > 0)


def test_the_density_integrates_to_one() -> None:
    output = outputs(components=3, scale=0.5)
    axis = torch.linspace(-12, 12, 601, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    mass = 0.0
    for bit in (0.0, 1.0):
        target = torch.cat((grid, torch.full((len(grid), 1), bit, dtype=torch.float64)), 1)
        mass += (-mixture_nll(output.expand(len(grid), -1), target)).exp().sum().item() * (24 / 600) ** 2
    assert mass == pytest.approx(1, abs=1e-4)


def test_samples_have_the_densitys_moments() -> None:
    count = 200_000
    output = outputs(components=3, scale=0.8)
    density = mixture(output.expand(count, -1))
    generator = torch.Generator().manual_seed(3)
    noise = torch.cat(
        (
            torch.rand(count, 2, generator=generator, dtype=torch.float64),
            torch.randn(count, 2, generator=generator, dtype=torch.float64),
        ),
        1,
    )
    points = draw(density, noise)
    weight, mx, my, sx, sy, r = output[1:].chunk(6)
    pi, means = weight.softmax(0), torch.stack((mx, my), 1)
    mean = (pi[:, None] * means).sum(0)
    torch.testing.assert_close(points[:, :2].mean(0), mean, rtol=0, atol=0.02)
    cross = pi @ ((mx - mean[0]) * (my - mean[1]) + r.tanh() * (sx + sy).exp())
    assert torch.cov(points[:, :2].T)[0, 1].item() == pytest.approx(cross.item(), abs=0.05)
    assert points[:, 2].mean().item() == pytest.approx(1 / (1 + output[0].exp().item()), abs=0.01)
    assert set(points[:, 2].tolist()) == {0.0, 1.0}


def test_bias_narrows_and_sharpens() -> None:
    plain, neat = mixture(outputs(components=4)), mixture(outputs(components=4), bias=2.0)
    torch.testing.assert_close(neat.log_sigma_M2, plain.log_sigma_M2 - 2)
    torch.testing.assert_close(neat.log_weight_M, (3 * plain.log_weight_M).log_softmax(-1))
    for field in ("stroke_end", "mean_M2", "rho_M"):
        assert torch.equal(getattr(neat, field), getattr(plain, field))
    assert (neat.log_weight_M.max() > plain.log_weight_M.max()).item()
