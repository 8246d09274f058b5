"""Recurrent cells with a norm.

Gates are stacked in the order i, f, o, g (input, forget, output, candidate): the sigmoids are neighbours, so
one call serves them. A checkpoint of another order is converted by permuting rows of weights and biases.

Shapes: B batch, I inputs, H units.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.norm import Norm, normaliser, weight_normed


class State(NamedTuple):
    """What an LSTM carries from step to step: output ``h_BH`` and the un-normalised cell ``c_BH``."""

    h_BH: Tensor
    c_BH: Tensor


class FusedWeights(NamedTuple):
    """``[W_x | W_h]`` (4H, I+H) and b (4H), gathered once per sequence so that a step is one product."""

    weight: Tensor
    bias: Tensor


class LSTMCell(nn.Module):
    """One LSTM step without peepholes; LN on the cell read-out only (eq. 31), WN on every weight vector.

    [i, f, o, g] = W_x x + W_h h + b;  c' = sigmoid(f) c + sigmoid(i) tanh(g);  h' = sigmoid(o) tanh(LN(c')).
    The carried c' is the un-normalised one. Under WN each row of W_x and of W_h is a weight vector.

    Args:
        nin: I.
        units: H.
        norm: none, wn or ln.
        init_std: weights start as N(0, init_std^2) draws of ``generator``, the bias at 0 in all gates.
    """

    def __init__(self, nin: int, units: int, norm: Norm, *, init_std: float, generator: torch.Generator) -> None:
        super().__init__()
        if norm.name == "bn":
            raise ValueError("LSTMCell has no batch normalisation; choose none, wn or ln")
        self.units = units
        self.input = nn.Linear(nin, 4 * units)
        self.recurrent = nn.Linear(units, 4 * units, bias=False)
        self.cell_norm = normaliser(norm, units)
        nn.init.normal_(self.input.weight, 0, init_std, generator)
        nn.init.normal_(self.recurrent.weight, 0, init_std, generator)
        nn.init.zeros_(self.input.bias)
        weight_normed(self.input, norm)
        weight_normed(self.recurrent, norm)

    def fused(self) -> FusedWeights:
        """The weights of all steps: take them once per sequence (under WN this is where w is computed)."""
        return FusedWeights(torch.cat([self.input.weight, self.recurrent.weight], 1), self.input.bias)

    def step(self, inputs: tuple[Tensor, ...], state: State, fused: FusedWeights) -> State:
        """One step. ``inputs``: tensors whose concatenation along axis 1 is x_BI, in that order."""
        gates_B4H = F.linear(torch.cat((*inputs, state.h_BH), 1), fused.weight, fused.bias)
        ifo_B3H, g_BH = gates_B4H.split((3 * self.units, self.units), 1)
        i_BH, f_BH, o_BH = ifo_B3H.sigmoid().chunk(3, 1)
        c_BH = torch.addcmul(f_BH * state.c_BH, i_BH, g_BH.tanh())
        return State(o_BH * self.cell_norm(c_BH).tanh(), c_BH)

    def forward(self, x_BI: Tensor, state: State) -> State:
        return self.step((x_BI,), state, self.fused())
