"""gate_clip: the gradient with respect to each gate's summed input, clamped at every step, then passed on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from models.kernels import build as kernels
from tests.rnncases import build, parameters_of, random, states
from tests.rnnfused import apart, layer_of, with_kernel

T, B, INPUTS, H, CLIP = 3, 4, 5, 7, 0.05
CASES: list[dict[str, Any]] = [
    {"norm": "none", "bias_mode": "minimal"},
    {"norm": "ln", "bias_mode": "paper"},
    {"norm": "ln", "sites": "cell"},
]


def summed(p: dict[str, Tensor], x_BI: Tensor, h_BH: Tensor) -> Tensor:
    """The gates' summed input."""
    from_x, from_h = x_BI @ p["W"].T, h_BH @ p["U"].T
    if "sx" in p:
        width = (4 * H,)
        from_x, from_h = F.layer_norm(from_x, width, p["sx"], p["bx"]), F.layer_norm(from_h, width, p["sh"], p["bh"])
    return from_x + from_h + p["b"]


def rest(p: dict[str, Tensor], z: Tensor, c_BH: Tensor) -> tuple[Tensor, Tensor]:
    """h' and c' from the summed input."""
    i, f, g, o = z.chunk(4, 1)
    c_new = f.sigmoid() * c_BH + i.sigmoid() * g.tanh()
    return o.sigmoid() * (F.layer_norm(c_new, (H,), p["sc"], p["bc"]) if "sc" in p else c_new).tanh(), c_new


def by_hand(
    arrays: dict[str, np.ndarray], x: Tensor, h: Tensor, c: Tensor, weight: Tensor, clip: float
) -> dict[str, Tensor]:
    """Back through time one step at a time, with a clamp between a step's two halves."""
    p = {name: torch.tensor(value, requires_grad=True) for name, value in arrays.items()}
    hs, cs, zs = [h], [c], []
    with torch.no_grad():
        for t in range(T):
            zs.append(summed(p, x[t], hs[t]))
            after = rest(p, zs[t], cs[t])
            hs.append(after[0])
            cs.append(after[1])
    total = {name: torch.zeros_like(value) for name, value in p.items()}
    dh, dc = torch.zeros_like(h), torch.zeros_like(c)
    for t in reversed(range(T)):
        z, c_in, h_in = (v.clone().requires_grad_() for v in (zs[t], cs[t], hs[t]))
        tail = {name: value for name, value in p.items() if name in ("sc", "bc")}
        dz, dc, *more = torch.autograd.grad(rest(p, z, c_in), [z, c_in, *tail.values()], [dh + weight[t], dc])
        for name, gradient in zip(tail, more, strict=True):
            total[name] += gradient
        head = {name: value for name, value in p.items() if name not in tail}
        dh, *more = torch.autograd.grad(summed(p, x[t], h_in), [h_in, *head.values()], dz.clamp(-clip, clip))
        for name, gradient in zip(head, more, strict=True):
            total[name] += gradient
    return {**total, "h": dh, "c": dc}


def of_the_layer(layer: Any, x: Tensor, h: Tensor, c: Tensor, weight: Tensor) -> dict[str, Tensor]:
    h, c = h[None].clone().requires_grad_(), c[None].clone().requires_grad_()
    (layer(x, (h, c))[0] * weight).sum().backward()
    cell = layer.cells[0]
    for parameter in cell.parameters():
        parameter.data = parameter.grad
    assert h.grad is not None and c.grad is not None
    return {**{k: torch.tensor(v) for k, v in parameters_of(cell).items()}, "h": h.grad[0], "c": c.grad[0]}


@pytest.mark.parametrize("clip", [CLIP, 1e9])
@pytest.mark.parametrize("case", CASES, ids=lambda c: " ".join(map(str, c.values())))
def test_the_reference_clamps_at_every_step(case: dict[str, Any], clip: float) -> None:
    layer = build("lstm", INPUTS, H, kernel="reference", gate_clip=clip, **case)
    x, weight = random(T, B, INPUTS), random(T, B, H, seed=5)
    h, c = (part[0] for part in states(layer, B))
    wanted = by_hand(parameters_of(layer.cells[0]), x, h, c, weight, clip)
    if clip == CLIP:
        unclipped = by_hand(parameters_of(layer.cells[0]), x, h, c, weight, 1e9)
        assert (wanted["U"] - unclipped["U"]).abs().max() > 0.1 * unclipped["U"].abs().max()
    found = of_the_layer(layer, x, h, c, weight)
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(kernels.extension() is None, reason="no fused kernels")
@pytest.mark.parametrize("case", CASES, ids=lambda c: " ".join(map(str, c.values())))
def test_the_fused_kernel_clamps_alike(case: dict[str, Any]) -> None:
    layer = layer_of("lstm", INPUTS, H, gate_clip=CLIP, **case)
    x, weight = random(T, B, INPUTS, dtype=torch.float32), random(T, B, H, dtype=torch.float32, seed=5)
    h, c = (part[0] for part in states(layer, B, dtype=torch.float32))
    exactly: Any = tuple(t.double() for t in (x, h, c, weight))
    wanted = by_hand(parameters_of(layer.cells[0]), *exactly, CLIP)
    exact = of_the_layer(with_kernel(layer, "reference").double(), *exactly)
    found = of_the_layer(layer, x, h, c, weight)
    assert max(apart(exact, wanted).values()) < 1e-12
    assert max(apart(found, wanted).values()) < 1e-5
