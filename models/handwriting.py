"""Graves' handwriting synthesis network (2013, section 5) with the norms of the Layer Normalization paper, section 6.5.

Three LSTM layers predict the next pen offset from the last one and from the characters that a soft window shows:

    h1_t = LSTM1([x_{t-1}, w_{t-1}])    w_t = window(h1_t)    hn_t = LSTMn([x_{t-1}, w_t, h(n-1)_t]), n = 2, 3
    output_t = W [h1_t, h2_t, h3_t] + b    (a mixture density of x_t, see models.mixture)

The first layer and the window go step by step, for w feeds the layer it comes from; the others take a whole sequence
at once. The first input is all zeros, so that the first offset is predicted too. LN is on both projections and the
cell of every LSTM; WN on every weight vector. There are no peepholes: the paper's equations (17-22) have none.

Shapes: T steps, B batch, H units, U characters, C symbols, Y outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.mixture import draw, mixture, output_size
from models.norm import Norm, cached_weights, weight_normed
from models.rnn import LSTM, LSTMCell, State
from models.window import Look, Text, Window, encode_text

FIRST_WINDOWS = ("zeros", "first")
CLIPS = ("inputs", "states", "none")
OUTPUT_CLIP, LSTM_CLIP = 100.0, 10.0  # Graves 2013, section 5.3 (outputs) and 2.1 (LSTM)


@dataclass(frozen=True)
class HandwritingSizes:
    """Sizes and switches; the defaults are the published setting (``configs/task/handwriting.yaml``).

    Attributes:
        units: H, of each layer.
        layers: number of LSTM layers.
        gaussians: K, of the window.
        components: M, of the mixture.
        symbols: C, characters that are told apart.
        first_window: w_0: ``zeros``, or ``first``: the one-hot first character.
        step_bias: see ``models.window.Window``.
        forget_bias: added to the forget gates' initial bias.
        bias_mode: biases of the LSTMs, see ``models.rnn``.
        clip: what of the gradient is clipped to +-10: ``inputs``, the LSTMs' summed inputs (Graves); ``states``,
            each step's h and c, and w (public code; every layer then goes step by step, which is slow); ``none``.
            Unless it is ``none``, the gradient of the outputs is clipped to +-100. Bounds are those of the loss of a
            single sequence: ``batch`` says how many are averaged.
        batch: sequences the loss is the mean of.
        kernel: ``auto``, ``reference`` or ``fused``, see ``models.rnn``.
    """

    units: int = 400
    layers: int = 3
    gaussians: int = 10
    components: int = 20
    symbols: int = 57
    first_window: str = "zeros"
    step_bias: float = 0.0
    forget_bias: float = 0.0
    bias_mode: str = "paper"
    clip: str = "inputs"
    batch: int = 1
    kernel: str = "auto"


class Carry(NamedTuple):
    """Where a part of a line ends and the next one starts: every layer's state, w and kappa."""

    states: tuple[State, ...]
    window_BC: Tensor
    kappa_BK: Tensor

    def detached(self) -> Carry:
        """The same, without the way back: the gradient is cut here."""
        states = tuple(State(h_BH.detach(), c_BH.detach()) for h_BH, c_BH in self.states)
        return Carry(states, self.window_BC.detach(), self.kappa_BK.detach())


class Written(NamedTuple):
    """A generated line: offsets and end-of-stroke bits ``points_T3``, and the window's ``weight_TU``."""

    points_T3: Tensor
    weight_TU: Tensor


class Handwriting(nn.Module):
    """The network.

    Args:
        sizes: sizes and switches.
        norm: none, wn or ln.
        generator: LSTM weights are uniform +-1/sqrt(H) draws, those of a linear layer +-1/sqrt(its inputs).
    """

    def __init__(self, sizes: HandwritingSizes, norm: Norm, *, generator: torch.Generator) -> None:
        super().__init__()
        for name, allowed in (("first_window", FIRST_WINDOWS), ("clip", CLIPS)):
            if (value := getattr(sizes, name)) not in allowed:
                raise ValueError(f"{name} '{value}' is unknown; choose one of {', '.join(allowed)}")
        self.sizes = sizes
        units, nin = sizes.units, 3 + sizes.symbols
        clip = LSTM_CLIP / sizes.batch if sizes.clip == "inputs" else None
        self.layers = nn.ModuleList(
            LSTM(
                nin + (units if layer else 0), units, norm=norm, bias_mode=sizes.bias_mode, gate_clip=clip,
                kernel=sizes.kernel, generator=generator,
            )
            for layer in range(sizes.layers)
        )  # fmt: skip
        self.window = Window(units, sizes.gaussians, step_bias=sizes.step_bias, generator=generator)
        self.output = nn.Linear(sizes.layers * units, output_size(sizes.components))
        bound = (sizes.layers * units) ** -0.5
        with torch.no_grad():
            for parameter in self.output.parameters():
                parameter.uniform_(-bound, bound, generator=generator)
            for layer in range(sizes.layers):
                bias = self._cell(layer).bias
                assert bias is not None
                bias[units : 2 * units] += sizes.forget_bias  # gate order i, f, g, o
        weight_normed(self.window.linear, norm)
        weight_normed(self.output, norm)

    def _cell(self, layer: int) -> LSTMCell:
        """The one cell of a layer."""
        return self.layers[layer].cells[0]  # type: ignore[index, return-value]

    def forward(
        self, x_TB3: Tensor, labels_BU: Tensor, text_lengths_B: Tensor, carry: Carry | None = None
    ) -> tuple[Tensor, Carry]:
        """Outputs (T, B, Y) of the densities of the offsets that follow each input.

        Args:
            x_TB3: inputs: zeros, then the offsets before each predicted one.
            labels_BU: texts, padded with anything.
            text_lengths_B: their lengths.
            carry: how the part before ended; None at the start of the lines.

        Returns:
            the outputs, and how this part ends.
        """
        text = encode_text(labels_BU, text_lengths_B, self.sizes.symbols, x_TB3.dtype)
        carry = carry or self._start(text)
        with cached_weights():  # WN: each w = g v/||v|| is computed once per call
            h_TBH, window_TBC, state, kappa_BK = self._first(x_TB3, text, carry)
            hidden, states = [h_TBH], [state]
            for number, start in enumerate(carry.states[1:], 1):
                run = self._by_step if self.sizes.clip == "states" else self._whole
                h_TBH, state = run(number, torch.cat((x_TB3, window_TBC, hidden[-1]), 2), start)
                hidden.append(h_TBH)
                states.append(state)
            output_TBY = self.output(torch.cat(hidden, 2))
        if self.sizes.clip != "none":
            output_TBY = self._clipped(output_TBY, OUTPUT_CLIP)
        return output_TBY, Carry(tuple(states), window_TBC[-1], kappa_BK)

    def _start(self, text: Text) -> Carry:
        """Zero states, and w_0."""
        batch = len(text.onehot_BUC)
        window_BC = text.onehot_BUC[:, 0] if self.sizes.first_window == "first" else None
        return Carry(
            tuple(self._cell(layer).initial(batch) for layer in range(len(self.layers))),
            text.onehot_BUC.new_zeros(batch, self.sizes.symbols) if window_BC is None else window_BC,
            self.window.start(text),
        )

    def _first(self, x_TB3: Tensor, text: Text, carry: Carry) -> tuple[Tensor, Tensor, State, Tensor]:
        """First layer and window, step by step: (T, B, H), (T, B, C), the last state and kappa."""
        advance = self._cell(0).begin(*x_TB3.shape[:2])
        parameters = self.window.parameters_of_step()
        state, window_BC, kappa_BK = carry.states[0], carry.window_BC, carry.kappa_BK
        hidden, windows = [], []
        for x_B3 in x_TB3.unbind(0):
            state = self._state(advance((x_B3, window_BC), state))
            window_BC, _, kappa_BK = self.window.step(state.h_BH, kappa_BK, text, *parameters)
            window_BC = self._clipped_state(window_BC)
            hidden.append(state.h_BH)
            windows.append(window_BC)
        return torch.stack(hidden), torch.stack(windows), state, kappa_BK

    def _whole(self, layer: int, x_TBI: Tensor, state: State) -> tuple[Tensor, State]:
        """A layer that takes the whole sequence at once."""
        h_TBH, (h_LBH, c_LBH) = self.layers[layer](x_TBI, State(state.h_BH[None], state.c_BH[None]))
        return h_TBH, State(h_LBH[0], c_LBH[0])

    def _by_step(self, layer: int, x_TBI: Tensor, state: State) -> tuple[Tensor, State]:
        """A layer whose states' gradients are clipped at each step."""
        advance = self._cell(layer).begin(*x_TBI.shape[:2])
        hidden = []
        for x_BI in x_TBI.unbind(0):
            state = self._state(advance(x_BI, state))
            hidden.append(state.h_BH)
        return torch.stack(hidden), state

    def _state(self, state: State) -> State:
        return State(*(self._clipped_state(part) for part in state))

    def _clipped_state(self, part: Tensor) -> Tensor:
        return self._clipped(part, LSTM_CLIP) if self.sizes.clip == "states" else part

    def _clipped(self, value: Tensor, bound: float) -> Tensor:
        """``value``, whose gradient is clipped element by element."""
        if value.requires_grad:
            most = bound / self.sizes.batch
            value.register_hook(lambda gradient: gradient.clamp(-most, most))
        return value

    @torch.no_grad()
    def write(self, labels_BU: Tensor, text_lengths_B: Tensor, noise_TB4: Tensor, bias: float = 0.0) -> list[Written]:
        """Writes texts, one step after the other (Graves, section 5.4).

        A line ends when the window looks past its last character more than at any other, or with the noise.

        Args:
            labels_BU, text_lengths_B: as for ``forward``.
            noise_TB4: as ``models.mixture.draw`` takes it, for T steps.
            bias: larger is neater, see ``models.mixture.mixture``.
        """
        steps, batch, _ = noise_TB4.shape
        # One more position, which is no character of any text.
        text = encode_text(F.pad(labels_BU, (0, 1)), text_lengths_B, self.sizes.symbols, noise_TB4.dtype)
        last_B1 = text_lengths_B[:, None]
        inside_BU = torch.arange(text.onehot_BUC.shape[1], device=last_B1.device) < last_B1
        with cached_weights():
            advance = [self._cell(layer).begin(steps, batch) for layer in range(len(self.layers))]
            parameters = self.window.parameters_of_step()
            start = self._start(text)
            states, look = list(start.states), Look(start.window_BC, start.window_BC, start.kappa_BK)
            x_B3, ends_B = noise_TB4.new_zeros(batch, 3), torch.full((batch,), steps)
            points, weights = [], []
            for t, noise_B4 in enumerate(noise_TB4.unbind(0)):
                states[0] = advance[0]((x_B3, look.window_BC), states[0])
                look = self.window.step(states[0].h_BH, look.kappa_BK, text, *parameters)
                for n in range(1, len(states)):
                    states[n] = advance[n]((x_B3, look.window_BC, states[n - 1].h_BH), states[n])
                x_B3 = draw(mixture(self.output(torch.cat([s.h_BH for s in states], 1)), bias), noise_B4)
                beyond_B = look.weight_BU.gather(1, last_B1)[:, 0] > look.weight_BU.where(inside_BU, 0).amax(1)
                ends_B = torch.where(beyond_B.cpu() & (ends_B == steps), t, ends_B)
                points.append(x_B3)
                weights.append(look.weight_BU)
                if (ends_B < steps).all():
                    break
        points_TB3, weight_TBU = torch.stack(points), torch.stack(weights)
        lengths = zip(ends_B.tolist(), text_lengths_B.tolist(), strict=True)
        return [Written(points_TB3[:end, b], weight_TBU[:end, b, :size]) for b, (end, size) in enumerate(lengths)]
