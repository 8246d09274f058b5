"""The framework's own LSTM and GRU kernels, for cells without a norm and under WN.

Shapes: T time, B batch, I inputs, H units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

if TYPE_CHECKING:
    from models.cells import GRUCell, LSTMCell


def usable(cell: LSTMCell | GRUCell) -> bool:
    """Whether the framework's kernel computes what this cell does."""
    given = cell.variant.given
    return cell.variant.norm.name in ("none", "wn") and given.kernel != "reference" and given.gate_clip is None


def sequence(cell: Any, x_TBI: Tensor, state: Any, lengths_B: Tensor | None) -> tuple[Tensor, Any]:
    """One cell over all steps. Returns the outputs (T, B, H), 0 beyond a length, and the last state."""
    from models.cells import State

    kernel: Any = torch._VF.lstm if isinstance(state, State) else torch._VF.gru
    weights = [*cell.weights(), *_biases(cell)]
    start: Any = [part[None].contiguous() for part in state] if isinstance(state, State) else state[None].contiguous()
    # The numbers: one layer, no dropout, not bidirectional.
    if lengths_B is None:
        output_TBH, *last = kernel(x_TBI, start, weights, len(weights) == 4, 1, 0.0, cell.training, False, False)
    else:
        packed = pack_padded_sequence(x_TBI, lengths_B.cpu(), enforce_sorted=False)
        order_B = packed.sorted_indices
        start = [s[:, order_B] for s in start] if isinstance(start, list) else start[:, order_B]
        flat, *last = kernel(
            packed.data, packed.batch_sizes, start, weights, len(weights) == 4, 1, 0.0, cell.training, False
        )
        last = [part[:, packed.unsorted_indices] for part in last]
        output_TBH, _ = pad_packed_sequence(packed._replace(data=flat), total_length=len(x_TBI))
    return output_TBH, State(*(part[0] for part in last)) if isinstance(state, State) else last[0][0]


def _biases(cell: LSTMCell | GRUCell) -> list[Tensor]:
    """Both biases of the framework's kernel; none if the cell has none."""
    if cell.bias is None:
        return []
    if cell.bias_hh is not None:
        return [cell.bias, cell.bias_hh]
    zeros = torch.zeros_like(cell.bias)
    # official, LSTM: the one bias is added twice; elsewhere once
    return [cell.bias, cell.bias if cell.inner and cell.outer else zeros]
