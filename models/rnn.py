"""LSTM and GRU layers with none, batch, weight or layer normalisation, for whole sequences.

The interface is that of ``torch.nn.LSTM`` and ``torch.nn.GRU``, plus the switches of ``models.variant``, which say
what norm acts where. The mathematics of a step stands in ``models.cells``. Without a norm, and under WN, the
framework's own kernel runs; LN has a fused kernel on the CPU (``models.kernels``); everything else, and
``kernel=reference``, is a loop.

    layer = LSTM(240, 240, norm="ln", bias_mode="official")
    output_TBH, (h_LBH, c_LBH) = layer(x_TBI, lengths=lengths_B)

Shapes: T time, B batch, I inputs, H units, D directions, L = layers x directions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from models.cells import GRUCell, LSTMCell, State
from models.inputs import check_lengths, check_like, check_whole
from models.kernels import builtin, fused, select
from models.recurrent_norm import Moment

__all__ = ["GRU", "GRUCell", "LSTM", "LSTMCell", "State"]


class _Layers(nn.Module):
    """Layers and directions of one kind of cell; ``cells`` lists them as PyTorch does: layer 0 forward, layer 0
    backward, layer 1 forward, …"""

    cell: type[LSTMCell] | type[GRUCell]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        bidirectional: bool = False,
        *,
        init: Callable[[Tensor], object] | None = None,
        generator: torch.Generator | None = None,
        **switches: Any,
    ) -> None:
        super().__init__()
        check_whole("num_layers", num_layers)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first, self.bidirectional, self.directions = batch_first, bidirectional, 2 if bidirectional else 1
        self.cells = nn.ModuleList(
            self.cell(
                input_size if layer == 0 else self.directions * hidden_size,
                hidden_size,
                init=init,
                generator=generator,
                bias=bias,
                **switches,
            )
            for layer in range(num_layers)
            for _ in range(self.directions)
        )

    def load_torch(self, layer: nn.RNNBase) -> None:
        """Copies the weights of a ``torch.nn.LSTM`` or ``torch.nn.GRU`` into layers of norm none, bias_mode torch.

        Raises:
            ValueError: the layer is of another kind, norm or size. Nothing is copied then.
        """
        ours: list[Any] = list(self.cells)
        norm, _, mode, _ = ours[0].variant
        if norm.name != "none" or mode not in ("torch", "without"):
            raise ValueError(f"a layer with norm={norm.name} and bias_mode={mode} cannot take PyTorch's weights")
        if type(self).__name__ != type(layer).__name__:
            raise ValueError(f"a {type(layer).__name__} does not fit this {type(self).__name__}")
        for name in ("input_size", "hidden_size", "num_layers", "bidirectional"):
            if getattr(self, name) != getattr(layer, name):
                raise ValueError(f"{name}={getattr(layer, name)} does not fit this layer's {getattr(self, name)}")
        if layer.bias != (mode == "torch"):
            raise ValueError(f"bias={layer.bias} does not fit this layer's {mode == 'torch'}")
        if getattr(layer, "proj_size", 0):
            raise ValueError(f"proj_size={layer.proj_size} is not to be had here")
        for cell, theirs in zip(ours, layer.all_weights, strict=True):
            with torch.no_grad():
                for name, source in zip(("weight_ih", "weight_hh", "bias", "bias_hh"), theirs, strict=False):
                    getattr(cell, name).copy_(source)

    def _run(self, x: Tensor, states: list[Any] | None, lengths: Tensor | None) -> tuple[Tensor, list[Any]]:
        """All layers; ``states``: one of each cell (``State``, or h alone). Returns the output and the last states."""
        x_TBI = x.transpose(0, 1) if self.batch_first else x
        batch = x_TBI.shape[1]
        lengths = None if lengths is None else check_lengths(lengths, x_TBI)
        if lengths is not None:
            # Padding that is not finite would reach the gradient of the weights, as 0 times what stands there.
            x_TBI = x_TBI.masked_fill(~_running(x_TBI, lengths), 0)
        cells: list[Any] = list(self.cells)
        before = [cell.initial(batch) for cell in cells] if states is None else states
        after = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(self.directions):
                index = layer * self.directions + direction
                backwards = direction == 1
                inputs = _reversed(x_TBI, lengths) if backwards else x_TBI
                output_TBH, last = _sequence(cells[index], inputs, before[index], lengths)
                outputs.append(_reversed(output_TBH, lengths) if backwards else output_TBH)
                after.append(last)
            x_TBI = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        return (x_TBI.transpose(0, 1) if self.batch_first else x_TBI), after

    def _check(self, x: Tensor) -> int:
        """Returns B. Raises ``ValueError`` for an input that does not fit."""
        check_like("input", x, next(self.parameters()))
        if x.layout != torch.strided:
            raise ValueError(f"input of layout {x.layout} must be dense: use to_dense()")
        if x.dim() != 3:
            raise ValueError(f"input of shape {tuple(x.shape)} must have three axes: time, batch and features")
        if x.shape[-1] != self.input_size:
            raise ValueError(f"input of width {x.shape[-1]}, but input_size={self.input_size}")
        if 0 in x.shape:
            raise ValueError(f"input of shape {tuple(x.shape)} is empty: give at least one step and one case")
        return x.shape[0 if self.batch_first else 1]

    def _state(self, name: str, state: Tensor, batch: int) -> Tensor:
        """A checked initial state (L, B, H)."""
        check_like(f"initial {name}", state, next(self.parameters()))
        wanted = (len(self.cells), batch, self.hidden_size)
        if state.shape != wanted:
            shape = tuple(state.shape)
            raise ValueError(f"initial {name} of shape {shape} must be {wanted}: layers x directions, batch, units")
        return state

    def extra_repr(self) -> str:
        return f"layers={self.num_layers}, directions={self.directions}, batch_first={self.batch_first}"


class LSTM(_Layers):
    """LSTM layers (eq. 20-22; see ``models.cells``).

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, bidirectional: as of ``torch.nn.LSTM``.
        init, generator: the initial weights, as of ``models.cells.LSTMCell``.
        switches: norm and more, the same for every cell; see ``models.variant.Variant``.
    """

    cell = LSTMCell

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Runs the layers over a batch of sequences.

        Args:
            x: (T, B, I), or (B, T, I) with ``batch_first``.
            state: h and c before the first step, (L, B, H) each; else the initial state of the variant.
            lengths: (B,), each in 1…T, in any order. What lies beyond a length changes nothing.

        Returns:
            Outputs of the last layer (T, B, D H), 0 beyond a length, and ``State`` of (L, B, H): each case's
            last real step.

        Raises:
            ValueError: a shape, dtype, device or length that does not fit; one line says which.
        """
        batch = self._check(x)
        states = None
        if state is not None:
            if not isinstance(state, (tuple, list)) or len(state) != 2:
                raise ValueError("the initial state of an LSTM must be a pair (h, c)")
            h_LBH, c_LBH = (self._state(name, part, batch) for name, part in zip("hc", state, strict=True))
            states = [State(h, c) for h, c in zip(h_LBH, c_LBH, strict=True)]
        output, after = self._run(x, states, lengths)
        return output, State(torch.stack([s.h_BH for s in after]), torch.stack([s.c_BH for s in after]))


class GRU(_Layers):
    """GRU layers (eq. 26-28; see ``models.cells``). Args: as of ``LSTM``."""

    cell = GRUCell

    def forward(self, x: Tensor, state: Tensor | None = None, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As ``LSTM.forward``, with a state of one tensor (L, B, H)."""
        batch = self._check(x)
        states = None if state is None else list(self._state("h", state, batch))
        output, after = self._run(x, states, lengths)
        return output, torch.stack(after)


def _sequence(cell: LSTMCell | GRUCell, x_TBI: Tensor, state: Any, lengths_B: Tensor | None) -> tuple[Tensor, Any]:
    """One cell over all steps. Returns the outputs (T, B, H), 0 beyond a length, and the last state."""
    if builtin.usable(cell):
        return builtin.sequence(cell, x_TBI, state, lengths_B)
    if select(cell, x_TBI):
        output_TBH, last = fused.sequence(cell, x_TBI, state, lengths_B)
    else:
        output_TBH, last = _loop(cell, x_TBI, state, lengths_B)
    if lengths_B is not None:
        output_TBH = output_TBH * _running(x_TBI, lengths_B)
    return output_TBH, last


def _loop(cell: LSTMCell | GRUCell, x_TBI: Tensor, state: Any, lengths_B: Tensor | None) -> tuple[Tensor, Any]:
    """The reference: step by step, W x of all steps taken at once. Ended cases copy their state."""
    weights = cell.weights()
    masks = [None] * len(x_TBI) if lengths_B is None else _running(x_TBI, lengths_B).unbind(0)
    outputs = []
    # unbind: indexing inside the loop would cost time quadratic in T under autograd
    for t, (projected_BG, mask_B1) in enumerate(zip(cell.project(x_TBI, weights).unbind(0), masks, strict=True)):
        state = cell.advance(projected_BG, state, weights, Moment(t, mask_B1))
        outputs.append(state.h_BH if isinstance(state, State) else state)
    return torch.stack(outputs), state


def _running(x_TBI: Tensor, lengths_B: Tensor) -> Tensor:
    """Which cases have not ended at each step (T, B, 1), bool."""
    return (torch.arange(len(x_TBI), device=x_TBI.device)[:, None] < lengths_B)[..., None]


def _reversed(x_TBI: Tensor, lengths_B: Tensor | None) -> Tensor:
    """Each sequence backwards, what lies beyond its length left in place."""
    if lengths_B is None:
        return x_TBI.flip(0)
    t_T1 = torch.arange(len(x_TBI), device=x_TBI.device)[:, None]
    source_TB = torch.where(t_T1 < lengths_B, lengths_B - 1 - t_T1, t_T1)
    return x_TBI.gather(0, source_TB[..., None].expand_as(x_TBI))
