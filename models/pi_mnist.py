"""Permutation-invariant MNIST (section 6.6): a 784-1000-1000-10 network on images as plain vectors.

h = relu(N(W x)) in the two hidden layers; LN never touches the logits, BN does by default ("all layers").

Shapes: B batch, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.norm import Norm, NormLinear


class MLP(nn.Module):
    """Fully connected classifier.

    Args:
        sizes: widths from input to logits, such as (784, 1000, 1000, 10).
        norm: normalisation of the hidden layers.
        logits_norm: normalisation of the last layer's summed inputs (``Norm("none")`` under LN).
        generator: source of the initial weights.
    """

    def __init__(
        self, sizes: Sequence[int], norm: Norm, logits_norm: Norm, generator: torch.Generator
    ) -> None:
        super().__init__()
        *hidden, (last_in, last_out) = zip(sizes[:-1], sizes[1:], strict=True)
        self.hidden = nn.ModuleList(NormLinear(nin, nout, norm, generator) for nin, nout in hidden)
        self.logits = NormLinear(last_in, last_out, logits_norm, generator)

    def forward(self, x_BI: Tensor) -> Tensor:
        """Logits ``(B, K)`` of images ``(B, 784)`` with values in [0, 1]."""
        for layer in self.hidden:
            x_BI = torch.relu(layer(x_BI))
        return self.logits(x_BI)
