"""The loss of a softmax over a large vocabulary, a block of rows at a time.

The logits of a whole batch would be its largest tensor by far (2,000 words times 20,000 are 160 MB, and plain autograd
keeps several of that size). Here one block of them exists at a time: its loss and all its gradients are taken at once,
so that the backward pass neither keeps nor computes anything again.

Shapes: N rows (predicted words), n rows of a block, H units, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Logits at a time: on a CPU 419 rows of 20,000, few enough to stay small, enough to keep the products efficient.
BLOCK = {"cpu": 1 << 23, "cuda": 1 << 27}
FLOOR = 1e-8  # added to a probability before the logarithm, as in the authors' code


def softmax_loss(h_NH: Tensor, target_N: Tensor, weight_VH: Tensor, bias_V: Tensor, floor: float = FLOOR) -> Tensor:
    """The sum over all rows of -log(p + floor), p the probability of the row's target under softmax(W h + b).

    The same number and, up to rounding, the same gradients as the plain form has. They cannot be differentiated again.
    """
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in (h_NH, weight_VH, bias_V))
    total: Tensor = _SoftmaxLoss.apply(h_NH, target_N, weight_VH, bias_V, floor, wanted)
    return total


class _SoftmaxLoss(torch.autograd.Function):
    """Forward takes the gradients too, for a loss' own gradient is a single factor, known only backwards."""

    @staticmethod
    def forward(
        ctx: Any, h_NH: Tensor, target_N: Tensor, weight_VH: Tensor, bias_V: Tensor, floor: float, wanted: bool
    ) -> Tensor:
        vocabulary = len(weight_VH)
        size = max(1, BLOCK.get(h_NH.device.type, BLOCK["cpu"]) // vocabulary)
        logits = h_NH.new_empty(min(size, len(h_NH)), vocabulary)
        total = h_NH.new_zeros(())
        dh_NH, dweight_VH, dbias_V = (torch.zeros_like(x) if wanted else None for x in (h_NH, weight_VH, bias_V))
        for n in range(0, len(h_NH), size):
            h_nH, target_n1 = h_NH[n : n + size], target_N[n : n + size, None]
            p_nV = torch.addmm(bias_V, h_nH, weight_VH.T, out=logits[: len(h_nH)])
            p_nV.sub_(p_nV.amax(1, keepdim=True)).exp_()
            p_nV.div_(p_nV.sum(1, keepdim=True))
            own_n1 = p_nV.gather(1, target_n1)
            total -= (own_n1 + floor).log_().sum()
            if dh_NH is None or dweight_VH is None or dbias_V is None:
                continue
            # d/dz_j of -log(p_y + floor) = p_y / (p_y + floor) (p_j - [j = y])
            scale_n1 = own_n1 / (own_n1 + floor)
            p_nV.mul_(scale_n1).scatter_add_(1, target_n1, -scale_n1)
            torch.mm(p_nV, weight_VH, out=dh_NH[n : n + size])
            dweight_VH.addmm_(p_nV.T, h_nH)
            dbias_V += p_nV.sum(0)
        if wanted:
            ctx.save_for_backward(dh_NH, dweight_VH, dbias_V)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        dh_NH, dweight_VH, dbias_V = (grad * x for x in ctx.saved_tensors)
        return dh_NH, None, dweight_VH, dbias_V, None, None
