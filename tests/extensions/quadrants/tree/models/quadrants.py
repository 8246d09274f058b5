"""One hidden layer for points in the plane. Shapes: B batch, H units."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.norm import Norm, NormLinear


class QuadrantNet(nn.Module):
    """Logits of even and odd: W relu(N(V x)).

    Args:
        units: H.
        norm: normalisation of the hidden layer.
        generator: source of the initial weights.
    """

    def __init__(self, units: int, norm: Norm, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden = NormLinear(2, units, norm, generator)
        self.logits = NormLinear(units, 2, Norm("none"), generator)

    def forward(self, x_B2: Tensor) -> Tensor:
        return self.logits(self.hidden(x_B2).relu())
