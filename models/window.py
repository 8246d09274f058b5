"""The soft window of Graves' synthesis network (2013, section 5.1): which characters the pen is writing.

    alpha, beta, step = exp(W h_t + b);   kappa_t = kappa_{t-1} + step
    phi(t, u) = sum_k alpha_k exp(-beta_k (kappa_k - u)^2);   w_t = sum_u phi(t, u) c_u

Positions u count from 1; kappa starts at 0, before the text. The window can only move forward.

Shapes: B batch, H units, K Gaussians, U characters (padded), C symbols.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Text(NamedTuple):
    """Texts of a batch, ready for the window.

    Attributes:
        onehot_BUC: one-hot characters; rows of padding are zero, so that looking there gives nothing.
        positions_U: 1 … U.
    """

    onehot_BUC: Tensor
    positions_U: Tensor


class Look(NamedTuple):
    """One step of the window: ``window_BC`` (w_t), ``weight_BU`` (phi) and ``kappa_BK``."""

    window_BC: Tensor
    weight_BU: Tensor
    kappa_BK: Tensor


def encode_text(labels_BU: Tensor, lengths_B: Tensor, symbols: int, dtype: torch.dtype) -> Text:
    """Texts as one-hot rows.

    Args:
        labels_BU: int64, any value in the padding.
        lengths_B: int64, characters of each text.
        symbols: C.
        dtype: of the one-hot rows.
    """
    positions_U = torch.arange(1, labels_BU.shape[1] + 1, device=labels_BU.device)
    onehot_BUC = F.one_hot(labels_BU, symbols) * (positions_U <= lengths_B[:, None])[..., None]
    return Text(onehot_BUC.to(dtype), positions_U.to(dtype))


class Window(nn.Module):
    """Predicts the window's K Gaussians from a hidden layer.

    Args:
        units: H.
        gaussians: K.
        step_bias: added to the bias of log step. 0: kappa first moves by about one character a pen reading, as the
            equations have it; -3: about twenty readings a character, as in handwriting.
        generator: the weights and biases are uniform +-1/sqrt(H) draws, as those of a Torch linear layer.
    """

    def __init__(self, units: int, gaussians: int, *, step_bias: float, generator: torch.Generator) -> None:
        super().__init__()
        self.gaussians = gaussians
        self.linear = nn.Linear(units, 3 * gaussians)
        with torch.no_grad():
            for parameter in self.linear.parameters():
                parameter.uniform_(-(units**-0.5), units**-0.5, generator=generator)
            self.linear.bias[2 * gaussians :] += step_bias

    def start(self, text: Text) -> Tensor:
        """kappa before the first step, (B, K)."""
        return text.onehot_BUC.new_zeros(len(text.onehot_BUC), self.gaussians)

    def parameters_of_step(self) -> tuple[Tensor, Tensor]:
        """Weight and bias, taken once per sequence (under WN this is where the weight is computed)."""
        return self.linear.weight, self.linear.bias

    def step(self, h_BH: Tensor, kappa_BK: Tensor, text: Text, weight: Tensor, bias: Tensor) -> Look:
        """One step of a sequence; ``weight`` and ``bias`` come from ``parameters_of_step``."""
        alpha_BK, beta_BK, step_BK = F.linear(h_BH, weight, bias).exp().chunk(3, 1)
        kappa_BK = kappa_BK + step_BK
        distance_BKU = kappa_BK[..., None] - text.positions_U
        bump_BKU = (-beta_BK[..., None] * distance_BKU.square()).exp()
        weight_BU = torch.matmul(alpha_BK[:, None], bump_BKU)[:, 0]
        window_BC = torch.matmul(weight_BU[:, None], text.onehot_BUC)[:, 0]
        return Look(window_BC, weight_BU, kappa_BK)
