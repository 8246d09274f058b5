"""Runs a recurrent layer through the fused kernel, the reference and the reference in float64, on the same numbers.

Shapes: T time, B batch, I inputs, H units.
"""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tests.rnncases import KINDS, parts, random, states

ROUNDING = 2.0**-24  # of a float32
Results = dict[str, Tensor]


def layer_of(kind: str, inputs: int, units: int, **switches: Any) -> Any:
    """A float32 layer of the fused kernel: weights as drawn, gains and biases away from their defaults."""
    generator = torch.Generator().manual_seed(0)
    layer = KINDS[kind](inputs, units, generator=generator, kernel="fused", **switches)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return layer


def with_kernel(layer: Any, kernel: str) -> Any:
    """A copy of the layer that runs another kernel."""
    other = copy.deepcopy(layer)
    for cell in other.cells:
        given = cell.variant.given
        cell.variant = cell.variant._replace(given=given.__class__(**{**vars(given), "kernel": kernel}))
    return other


def run(layer: Any, x: Tensor, start: Any, lengths: Tensor | None = None) -> Results:
    """Outputs, last states and all gradients of a loss in which every number has a weight of its own."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    starts = [part.clone().requires_grad_() for part in parts(start)]
    output, last = layer(x, tuple(starts) if len(starts) == 2 else starts[0], lengths)
    outcome = {"output": output, **{f"last {k}": part for k, part in enumerate(parts(last))}}
    loss = sum((t * random(*t.shape, dtype=t.dtype, seed=11 + k)).sum() for k, t in enumerate(outcome.values()))
    assert isinstance(loss, Tensor)
    loss.backward()
    gradients = {"x": x, **{f"start {k}": part for k, part in enumerate(starts)}, **dict(layer.named_parameters())}
    return {
        **{name: t.detach() for name, t in outcome.items()},
        **{f"gradient of {name}": t.grad for name, t in gradients.items() if t.grad is not None},
    }


def data(layer: Any, steps: int, batch: int) -> tuple[Tensor, Any]:
    """An input and a start."""
    x = random(steps, batch, layer.input_size, dtype=torch.float32)
    return x, states(layer, batch, dtype=torch.float32)


def apart(ours: Results, theirs: Results) -> dict[str, float]:
    """The largest difference of each tensor, relative to its largest entry."""
    peaks = {name: t.abs().max().item() for name, t in theirs.items()}
    return {name: off / (peaks[name] or 1e-30) for name, off in distance(ours, theirs).items()}


def distance(ours: Results, theirs: Results) -> dict[str, float]:
    """The largest difference of each tensor."""
    assert ours.keys() == theirs.keys()
    return {name: (ours[name].double() - theirs[name].double()).abs().max().item() for name in ours}


def exact(layer: Any, x: Tensor, start: Any, lengths: Tensor | None = None, noise: Noise | None = None) -> Results:
    """The reference in float64; ``noise``: with float32 roundings of the inputs, the parameters and inside LN."""
    other = with_kernel(layer, "reference").double()
    tensors = [x.double(), *(part.double() for part in parts(start))]
    if noise is not None:
        with torch.no_grad():
            for t in [*tensors, *other.parameters()]:
                t.copy_(noise(t))
    given = tuple(tensors[1:]) if len(tensors) == 3 else tensors[1]
    with mock.patch("models.norm.F.layer_norm", torch.nn.functional.layer_norm if noise is None else noise.layer_norm):
        return run(other, tensors[0], given, lengths)


class Noise:
    """Roundings of float32, drawn at random, for a calculation that runs in float64.

    LN over a group of one feature is its bias, over two features almost a sign: gradients through it are differences
    of nearly equal numbers, in float32 mostly rounding. How far rounding may move them, no ratio to their own size
    can tell; what it does to a calculation that is exact otherwise can.
    """

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, t: Tensor) -> Tensor:
        return t * (1 + ROUNDING * (2 * torch.rand(t.shape, generator=self.generator, dtype=torch.float64) - 1))

    def layer_norm(self, x: Tensor, shape: Any, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
        """LN in which each result of an operation is rounded, forward and backward."""
        return Rounded.apply(x, eps, self) * gain + bias  # type: ignore[no-untyped-call]


class Rounded(torch.autograd.Function):
    """The normalised value; ``noise`` rounds what float32 would round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, noise: Noise) -> Tensor:
        centred = noise(x) - noise(x.mean(-1, keepdim=True))
        rstd = noise((centred.square().mean(-1, keepdim=True) + eps).rsqrt())
        ctx.noise = noise
        ctx.save_for_backward(normal := noise(centred * rstd), rstd)
        return normal

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (normal, rstd), noise, dz = ctx.saved_tensors, ctx.noise, ctx.noise(gradients[0])
        mean, along = noise(dz.mean(-1, keepdim=True)), noise((dz * normal).mean(-1, keepdim=True))
        return noise(rstd * (dz - mean - noise(normal * along))), None, None


def allowed(layer: Any, x: Tensor, start: Any, lengths: Tensor | None, truth: Results) -> dict[str, float]:
    """How far a float32 result may lie from the truth: 1e-5 of the tensor's largest entry or, where rounding alone
    moves a few draws of the calculation further than that, four times the furthest of them."""
    draws = [distance(exact(layer, x, start, lengths, Noise(seed)), truth) for seed in range(4)]
    return {name: max(1e-5 * t.abs().max().item(), 4 * max(draw[name] for draw in draws)) for name, t in truth.items()}
