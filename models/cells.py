"""LSTM and GRU cells with a norm: parameters, switches, and one step of mathematics.

The sequence layers of ``models.rnn`` run these cells over time, so each equation stands here once. Gates are
stacked in PyTorch's order: i, f, g, o (LSTM; g is the candidate) and r, z, n (GRU).

``x W`` and ``h U`` are normalised at the *gates*, the LSTM's cell on its read-out only: the carried cell is always
the un-normalised one. With N the norm and b the biases of ``bias_mode``:

    LSTM   z = N(W x + b_inner) + N(U h) + b_outer                                            eq. 20
           c' = sigmoid(f) c + sigmoid(i) tanh(g)         h' = sigmoid(o) tanh(N(c'))         eq. 21-22, 31
    GRU    r, z = sigmoid(N(W x + b_inner) + N(U h) + b_outer)                                eq. 26
           n = tanh(N(W x + b_inner) + b_outer + r * N(U h))      h' = (1 - z) n + z h        eq. 27-28

joint: one norm for both projections, N(W x + U h); the GRU's candidate is then N(W x + r * U h).

``models.variant`` says which biases there are and what can be combined.

Shapes: T time, B batch, I inputs, H units, G gates x units (4H or 3H).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.inputs import Step, check_like, check_whole
from models.norm import cached_weights, weight_normed
from models.recurrent_norm import Moment, SiteNorm, StepBatchNorm, Unnormalised, site_norm
from models.variant import Variant

if TYPE_CHECKING:
    from models.kernels import fused


FIRST = Moment(0)


class State(NamedTuple):
    """What an LSTM carries: the output ``h_BH`` and the un-normalised cell ``c_BH``."""

    h_BH: Tensor
    c_BH: Tensor


class Weights(NamedTuple):
    """The matrices of all steps, taken once per sequence (under WN this is where w = g v/||v|| is computed)."""

    ih_GI: Tensor
    hh_GH: Tensor


class _Cell(nn.Module):
    """The parameters an LSTM and a GRU cell have in common."""

    norm_ih: SiteNorm | StepBatchNorm | Unnormalised
    norm_hh: SiteNorm | StepBatchNorm | Unnormalised
    norm_cell: SiteNorm | StepBatchNorm | Unnormalised  # LSTM only
    kind: ClassVar[str]
    gates: ClassVar[int]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        init: Callable[[Tensor], object] | None = None,
        generator: torch.Generator | None = None,
        **switches: Any,
    ) -> None:
        super().__init__()
        check_whole("input_size", input_size)
        check_whole("hidden_size", hidden_size)
        from models.kernels import check_kernel  # it knows cells

        self.input_size, self.hidden_size = input_size, hidden_size
        known = [switch.name for switch in dataclasses.fields(Variant)]
        if unknown := [name for name in switches if name not in known]:
            raise TypeError(f"unknown argument {unknown[0]}; the switches are {', '.join(known)}")
        self.variant = Variant(**switches).resolved(self.kind)
        norm, sites, mode, given = self.variant
        features = self.gates * hidden_size
        bound = 1 / math.sqrt(hidden_size)

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator))

        self.weight_ih, self.weight_hh = drawn(features, input_size), drawn(features, hidden_size)
        if init is not None:
            with torch.no_grad():
                init(self.weight_ih)
                init(self.weight_hh)
        has_bias = mode in ("torch", "official", "minimal") or (mode == "paper" and self.kind == "lstm")
        self.bias = drawn(features) if mode == "torch" else nn.Parameter(torch.zeros(features)) if has_bias else None
        self.bias_hh = drawn(features) if mode == "torch" else None
        self.inner = mode in ("torch", "official")
        self.outer = has_bias and (not self.inner or (mode == "official" and self.kind == "lstm"))

        def site(acts: bool, widths: list[int], bias: bool) -> SiteNorm | StepBatchNorm | Unnormalised:
            if not acts:
                return Unnormalised()
            return site_norm(norm, widths, bias=bias, max_steps=given.max_steps, evaluation=given.evaluation)

        norm_bias = mode in ("official", "paper")
        groups = self._groups(given.per_gate)
        self.norm_ih = site(self.variant.gates, groups, norm_bias)
        self.norm_hh = site(self.variant.gates and not given.joint, groups, norm_bias)
        if self.kind == "lstm":
            self.norm_cell = site(self.variant.cell, [hidden_size], mode != "without")
        zeros = torch.zeros(hidden_size)
        self.h0 = nn.Parameter(zeros.clone()) if given.initial_state != "zeros" else None
        self.c0 = nn.Parameter(zeros.clone()) if given.initial_state == "learned" and self.kind == "lstm" else None
        weight_normed(self, norm, "weight_ih", "weight_hh")
        check_kernel(self)

    def _groups(self, per_gate: bool) -> list[int]:
        raise NotImplementedError

    def _cases(self, x_BI: Tensor) -> int:
        """The cases of a single step's input, which is always the reference."""
        if self.variant.given.kernel == "fused":
            raise ValueError("kernel=fused has no single step: use begin(), or kernel=auto")
        check_like("input", x_BI, next(self.parameters()))
        return len(x_BI) if x_BI.dim() else 1  # what else is wrong with it the step says

    def weights(self) -> Weights:
        """The matrices; call it once per sequence."""
        with cached_weights():
            return Weights(self.weight_ih, self.weight_hh)

    def project(self, x_BI: Tensor, weights: Weights) -> Tensor:
        """W x, with the bias that stands inside the norm: (…, I) -> (…, G), for one step or for all at once."""
        return F.linear(x_BI, weights.ih_GI, self.bias if self.inner else None)

    def initial_part(self, name: str, batch: int) -> Tensor:
        """``h0`` or ``c0`` for a batch (B, H): the learned vector, or zeros."""
        learned = getattr(self, name, None)
        if learned is not None:
            return learned.expand(batch, -1)
        return next(self.parameters()).new_zeros(batch, self.hidden_size)

    def extra_repr(self) -> str:
        norm, sites, mode, given = self.variant
        flags = [name for name in ("joint", "per_gate") if getattr(given, name)]
        where = [f"sites={sites}"] if sites != "none" else []
        return ", ".join([f"{self.input_size}, {self.hidden_size}, norm={norm.name}", *where, f"bias={mode}", *flags])


class LSTMCell(_Cell):
    """One LSTM step without peepholes; see the equations at the top of this file.

    Args:
        input_size: I.
        hidden_size: H.
        init: fills W, then U, in place; by default they are uniform in +-1/sqrt(H), as in ``torch.nn.LSTM``. (Under
            WN the matrices are computed, so filling them later would do nothing.)
        generator: for the default. Biases start at 0, in torch mode as the default weights do.
        switches: norm and more, see ``models.variant.Variant``.
    """

    kind, gates = "lstm", 4

    def _groups(self, per_gate: bool) -> list[int]:
        return [self.hidden_size] * 4 if per_gate else [4 * self.hidden_size]

    def initial(self, batch: int) -> State:
        """The state before the first step."""
        return State(self.initial_part("h0", batch), self.initial_part("c0", batch))

    def advance(self, projected_BG: Tensor, state: State, weights: Weights, moment: Moment) -> State:
        """One step from ``projected_BG``, as ``project`` returns it."""
        recurrent_BG = F.linear(state.h_BH, weights.hh_GH, self.bias_hh)
        if self.variant.given.joint:
            z_BG = self.norm_ih(projected_BG + recurrent_BG, moment)
        else:
            z_BG = self.norm_ih(projected_BG, moment) + self.norm_hh(recurrent_BG, moment)
        if self.outer:
            z_BG = z_BG + self.bias
        if (clip := self.variant.given.gate_clip) is not None and z_BG.requires_grad:
            z_BG.register_hook(lambda gradient: gradient.clamp(-clip, clip))
        i_BH, f_BH, g_BH, o_BH = z_BG.chunk(4, -1)
        c_BH = f_BH.sigmoid() * state.c_BH + i_BH.sigmoid() * g_BH.tanh()
        h_BH = o_BH.sigmoid() * self.norm_cell(c_BH, moment).tanh()
        if moment.mask_B1 is None:
            return State(h_BH, c_BH)
        running_B1 = moment.mask_B1
        return State(torch.where(running_B1, h_BH, state.h_BH), torch.where(running_B1, c_BH, state.c_BH))

    def forward(self, x_BI: Tensor, state: State | None = None, moment: Moment = FIRST) -> State:
        """One step on its own, through the reference; in a loop use ``begin``, which takes the weights once."""
        batch = self._cases(x_BI)
        state = self.initial(batch) if state is None else state
        Step(self, 1, batch).check(x_BI, state)
        weights = self.weights()
        return self.advance(self.project(x_BI, weights), State(*state), weights, moment)

    def begin(self, steps: int, batch: int) -> LSTMSteps | fused.LSTMSteps:
        """A time loop of at most ``steps`` steps on ``batch`` cases: call the result with the input and the state.

        ``initial`` gives the first state. A loop serves one backward pass: begin anew for the next one. The fused
        kernel runs where it can (``kernel`` decides); its gradients cannot be differentiated again.
        """
        from models.kernels import fused, select  # they know cells

        if select(self, next(self.parameters())):
            return fused.LSTMSteps(self, steps, batch)
        return LSTMSteps(self, steps, batch)


class LSTMSteps:
    """Steps of an ``LSTMCell`` with the weights of one sequence."""

    def __init__(self, cell: LSTMCell, steps: int, batch: int) -> None:
        self.cell, self.weights = cell, cell.weights()
        self.step = Step(cell, steps, batch)

    def __call__(self, x_BI: Tensor | tuple[Tensor, ...], state: State) -> State:
        """One step. ``x_BI``: the input, or tensors whose concatenation along axis 1 it is."""
        moment = Moment(self.step.taken)
        parts = self.step.check(x_BI, state)
        x_BI = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return self.cell.advance(self.cell.project(x_BI, self.weights), State(*state), self.weights, moment)


class GRUCell(_Cell):
    """One GRU step, the reset gate applied after the product; see the equations at the top of this file.

    Args: as of ``LSTMCell``.
    """

    kind, gates = "gru", 3

    def _groups(self, per_gate: bool) -> list[int]:
        return [self.hidden_size] * 3 if per_gate else [2 * self.hidden_size, self.hidden_size]

    def initial(self, batch: int) -> Tensor:
        """The state before the first step (B, H)."""
        return self.initial_part("h0", batch)

    def advance(self, projected_BG: Tensor, h_BH: Tensor, weights: Weights, moment: Moment) -> Tensor:
        """One step from ``projected_BG``, as ``project`` returns it."""
        recurrent_BG = F.linear(h_BH, weights.hh_GH, self.bias_hh)
        sizes = [2 * self.hidden_size, self.hidden_size]
        outer_gates, outer_candidate = self.bias.split(sizes) if self.outer else (0.0, 0.0)  # type: ignore[union-attr]
        if self.variant.given.joint:
            # The candidate's summed input contains r, so the two groups are normalised one after the other.
            x_gates, x_candidate = projected_BG.split(sizes, -1)
            h_gates, h_candidate = recurrent_BG.split(sizes, -1)
            *gate_norms, candidate_norm = self.norm_ih.groups  # type: ignore[misc]
            summed = (x_gates + h_gates).chunk(len(gate_norms), -1)
            normal = torch.cat([norm(part) for norm, part in zip(gate_norms, summed, strict=True)], -1)
            r_BH, z_BH = (normal + outer_gates).sigmoid().chunk(2, -1)
            n_BH = (candidate_norm(x_candidate + r_BH * h_candidate) + outer_candidate).tanh()
        else:
            x_gates, x_candidate = self.norm_ih(projected_BG, moment).split(sizes, -1)
            h_gates, h_candidate = self.norm_hh(recurrent_BG, moment).split(sizes, -1)
            r_BH, z_BH = (x_gates + h_gates + outer_gates).sigmoid().chunk(2, -1)
            n_BH = (x_candidate + outer_candidate + r_BH * h_candidate).tanh()
        new_BH = n_BH + z_BH * (h_BH - n_BH)
        return new_BH if moment.mask_B1 is None else torch.where(moment.mask_B1, new_BH, h_BH)

    def forward(self, x_BI: Tensor, h_BH: Tensor | None = None, moment: Moment = FIRST) -> Tensor:
        """One step on its own, through the reference; in a loop use ``begin``, which takes the weights once."""
        batch = self._cases(x_BI)
        h_BH = self.initial(batch) if h_BH is None else h_BH
        Step(self, 1, batch).check(x_BI, (h_BH,))
        weights = self.weights()
        return self.advance(self.project(x_BI, weights), h_BH, weights, moment)

    def begin(self, steps: int, batch: int) -> GRUSteps:
        """A time loop, as of ``LSTMCell``. There is no fused kernel of the single step."""
        if self.variant.given.kernel == "fused":
            raise ValueError("kernel=fused has no GRU step by step; use kernel=auto, or the sequence layer")
        return GRUSteps(self, steps, batch)


class GRUSteps:
    """Steps of a ``GRUCell`` with the weights of one sequence."""

    def __init__(self, cell: GRUCell, steps: int, batch: int) -> None:
        self.cell, self.weights = cell, cell.weights()
        self.step = Step(cell, steps, batch)

    def __call__(self, x_BI: Tensor | tuple[Tensor, ...], h_BH: Tensor) -> Tensor:
        """One step. ``x_BI``: the input, or tensors whose concatenation along axis 1 it is."""
        moment = Moment(self.step.taken)
        parts = self.step.check(x_BI, (h_BH,))
        x_BI = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return self.cell.advance(self.cell.project(x_BI, self.weights), h_BH, self.weights, moment)
