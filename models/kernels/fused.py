"""Calls of the compiled operations, with a cell's parameters laid out as they expect them.

Shapes: T time, B batch, I inputs, H units, G gates x units.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models.inputs import Step
from models.kernels import build

if TYPE_CHECKING:
    from models.cells import LSTMCell, State


def sequence(cell: Any, x_TBI: Tensor, state: Any, lengths_B: Tensor | None) -> tuple[Tensor, Any]:
    """One cell over all steps. Returns the outputs (T, B, H), beyond a length copies of the last, and the state.

    Kept for the backward pass, besides the inputs and parameters, per step and case, in floats: of the LSTM 10 H + 10
    (the normalised W x and U h, 4 H each, c, and h, which is the output; 1/sigma of each gate's projections, mean and
    1/sigma of c), or 6 H + 10 without LN at the gates (W x + U h, c, h); of the GRU 7 H + 6 (the normalised W x and
    U h, 3 H each, and h; 1/sigma). The gates are computed again. The backward pass writes its gradients over these
    buffers, so there is one per forward pass.
    """
    from models.cells import State

    extension = _extension()
    x_TBI = x_TBI.contiguous()
    if isinstance(state, State):
        h_TBH, *last = extension.lstm_sequence(
            x_TBI, _lstm_parameters(cell), state.h_BH.contiguous(), state.c_BH.contiguous(), lengths_B
        )
        return h_TBH, State(*last)
    return extension.gru_sequence(x_TBI, _gru_parameters(cell), state.contiguous(), lengths_B)


class LSTMSteps:
    """Steps of an ``LSTMCell``: weights packed once, parameter gradients computed once after all steps.

    Each is one operation; ``steps`` and ``batch`` size the buffers that the backward pass needs.
    """

    def __init__(self, cell: LSTMCell, steps: int, batch: int) -> None:
        from models.cells import State

        self.step, self.state = Step(cell, steps, batch), State
        self.steps = _extension().LstmSteps(steps, batch, _lstm_parameters(cell))

    def __call__(self, x_BI: Tensor | tuple[Tensor, ...], state: State) -> State:
        """One step. ``x_BI``: the input, or tensors whose concatenation along axis 1 it is."""
        parts = self.step.check(x_BI, state)
        return self.state(*self.steps.step(parts, *state))


def window_grid(filters: int, pixels: int, slope: float, origin: float, spacing: float, row_sum_eps: float) -> Any:
    """The grid of a window, as ``window_read`` and ``window_write`` take it; see ``models.attention``."""
    return _extension().WindowGrid(filters, pixels, slope, origin, spacing, row_sum_eps)


def window_read(window_B5: Tensor, image_BAA: Tensor, canvas_BAA: Tensor, grid: Any) -> Tensor:
    """A read of the image and of its error, as ``models.attention.Attention.read`` returns it."""
    return _extension().window_read(window_B5, image_BAA, canvas_BAA, grid)


def window_write(window_B5: Tensor, canvas_BAA: Tensor, patch_BP: Tensor, grid: Any) -> Tensor:
    """The canvas with the patch added, as ``models.attention.Attention.write`` returns it."""
    return _extension().window_write(window_B5, canvas_BAA, patch_BP, grid)


def _extension() -> Any:
    extension = build.extension()
    assert extension is not None, "select() decides"
    return extension


def _sum(*biases: Tensor | None) -> Tensor | None:
    given = [bias for bias in biases if bias is not None]
    return sum(given[1:], given[0]) if given else None


def _lstm_parameters(cell: Any) -> Any:
    norm, _, _, given = cell.variant
    weight_ih, weight_hh = cell.weights()
    at_gates, at_cell = cell.variant.gates, cell.variant.cell
    inner = cell.bias if cell.inner and at_gates else None
    # Without a norm at the gates it makes no difference where a bias stands.
    plain = None if at_gates else _sum(cell.bias if cell.inner else None, cell.bias_hh)
    after = _sum(
        cell.norm_ih.bias if at_gates else None,
        cell.norm_hh.bias if at_gates else None,
        cell.bias if cell.outer else None,
        plain,
    )
    zeros = weight_ih.new_zeros(4 * cell.hidden_size)
    cell_bias = cell.norm_cell.bias if at_cell else None
    return _extension().LstmParameters(
        weight_ih=weight_ih.contiguous(),
        inner=inner,
        weight_hh=weight_hh.contiguous(),
        gain_x=cell.norm_ih.gain if at_gates else None,
        gain_r=cell.norm_hh.gain if at_gates else None,
        bias=zeros if after is None else after,
        gain_c=cell.norm_cell.gain if at_cell else None,
        bias_c=(zeros[: cell.hidden_size].clone() if cell_bias is None else cell_bias) if at_cell else None,
        eps=norm.eps,
        per_gate=given.per_gate,
        clip=math.inf if given.gate_clip is None else given.gate_clip,
    )


def _gru_parameters(cell: Any) -> Any:
    norm, _, _, given = cell.variant
    weight_ih, weight_hh = cell.weights()
    zeros, two_h = weight_ih.new_zeros(3 * cell.hidden_size), 2 * cell.hidden_size
    bias_x, bias_r = cell.norm_ih.bias, cell.norm_hh.bias
    outside = _sum(bias_x, cell.bias if cell.outer else None)
    outside = zeros if outside is None else outside
    candidate = zeros[two_h:].clone() if bias_r is None else bias_r[two_h:]
    if bias_r is not None:  # at the gates both are added to the same sum
        outside = torch.cat([outside[:two_h] + bias_r[:two_h], outside[two_h:]])
    return _extension().GruParameters(
        weight_ih=weight_ih.contiguous(),
        inner=cell.bias if cell.inner else None,
        weight_hh=weight_hh.contiguous(),
        gain_x=cell.norm_ih.gain,
        gain_r=cell.norm_hh.gain,
        bias=outside.contiguous(),
        bias_r=candidate.contiguous(),
        eps=norm.eps,
        per_gate=given.per_gate,
    )
