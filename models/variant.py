"""The switches of a recurrent cell: which norm, where, with which biases; and what fits together.

The biases differ between the paper's equations, the authors' code and what others do:

| bias_mode | LSTM                                   | GRU                                  | default of |
|-----------|----------------------------------------|--------------------------------------|------------|
| torch     | W x + b_ih + U h + b_hh                | the same; b_hh is multiplied by r    | none, WN   |
| official  | inner and outer, tied; the LNs have one | inner; the LNs have one             | LN         |
| paper     | outer; the LNs have one                | none but the LNs' (LN only)          |            |
| minimal   | outer; only the cell's norm has one    | outer                                | BN         |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from models.inputs import check_whole
from models.kernels import KERNELS
from models.norm import Norm
from models.recurrent_norm import EVALUATIONS

SITES = {"lstm": ("gates+cell", "gates", "cell"), "gru": ("gates",)}
BIAS_MODES = {"none": ("torch", "official", "paper", "minimal"), "bn": ("minimal",)}
BIAS_MODES["wn"] = BIAS_MODES["none"]
ANY_OTHER_NORM = ("official", "paper", "minimal")
INITIAL_STATES = {"lstm": ("zeros", "learned", "learned_h"), "gru": ("zeros", "learned")}
BN = Norm("bn", gain_init=0.1, momentum=0.1)  # gain: Cooijmans et al., section 3; momentum: ours


@dataclass(frozen=True)
class Variant:
    """The switches of a cell; ``None`` stands for the default of the norm.

    Attributes:
        norm: ``none``, ``bn``, ``wn``, ``ln``, with the literature's constants; or a ``models.norm.Norm`` with others.
        sites: where the norm acts: ``gates+cell``, ``gates``, ``cell`` (LSTM), ``gates`` (GRU).
        joint: one norm of W x + U h instead of one for each.
        per_gate: LN gate by gate instead of over the stacked gates.
        bias: False leaves out every bias, those of the norms too.
        bias_mode: which biases there are; see the table of bias modes.
        initial_state: ``zeros``; ``learned`` (parameters that start at 0); ``learned_h``: the LSTM's h only.
        max_steps: BN: time steps with statistics of their own.
        evaluation: BN: ``population`` or ``batch`` statistics in eval mode.
        gate_clip: bound of the loss' derivative with respect to each gate's summed input (Graves 2013, section
            2.1); LSTM only.
        kernel: ``auto``, ``reference`` or ``fused``.
    """

    norm: Norm | str = "none"
    sites: str | None = None
    joint: bool = False
    per_gate: bool = False
    bias: bool = True
    bias_mode: str | None = None
    initial_state: str = "zeros"
    max_steps: int | None = None
    evaluation: str = "population"
    gate_clip: float | None = None
    kernel: str = "auto"

    def resolved(self, cell: str) -> Resolved:
        """Checks the switches for an ``lstm`` or ``gru`` cell. Raises ``ValueError``: one line that says what to do."""
        given = self.norm
        norm = given if isinstance(given, Norm) else BN if given == "bn" else Norm(given)
        acts = norm.name not in ("none", "wn")

        def need(holds: bool, key: str, value: object, why: str) -> None:
            if not holds:
                raise ValueError(f"{key}={value} {why}")

        for key in ("bias", "joint", "per_gate"):
            need(isinstance(getattr(self, key), bool), key, getattr(self, key), "must be True or False")
        sites = (SITES[cell][0] if acts else "none") if self.sites is None else self.sites
        allowed = SITES[cell] if acts else ("none",)
        need(sites in allowed, "sites", sites, f"does not fit a {cell.upper()} with norm={norm.name}: leave it out"
             + (f" or use one of {', '.join(allowed)}" if acts else ""))  # fmt: skip
        at_gates = "gates" in sites
        one_norm = at_gates and norm.name != "bn"
        where = f"norm={norm.name} at {sites}" if acts else f"norm={norm.name}"
        for key in ("joint", "per_gate"):
            need(not getattr(self, key) or one_norm, key, True, f"needs LN at the gates, not {where}")
        modes = BIAS_MODES.get(norm.name, ANY_OTHER_NORM)
        if sites == "cell":
            modes = ("minimal",)  # no norm at the gates, so nothing for the modes to differ in
        elif cell == "gru" and not acts:
            modes = ("torch", "official", "minimal")
        if self.bias:
            mode = modes[0] if self.bias_mode is None else self.bias_mode
            need(mode in modes, "bias_mode", mode, f"does not fit {where}: use {', '.join(modes)}")
        else:
            mode = "without"
            need(self.bias_mode is None, "bias_mode", self.bias_mode, "does nothing with bias=False: leave one out")
        states = INITIAL_STATES[cell]
        need(self.initial_state in states, "initial_state", self.initial_state, f"is unknown: use {', '.join(states)}")
        if norm.name == "bn":
            need(self.max_steps is not None, "max_steps", self.max_steps, "with BN: give the number of time steps "
                 "that have statistics of their own")  # fmt: skip
            check_whole("max_steps", self.max_steps)
            need(
                self.evaluation in EVALUATIONS,
                "evaluation",
                self.evaluation,
                f"is unknown: use {', '.join(EVALUATIONS)}",
            )
        else:
            need(
                self.max_steps is None, "max_steps", self.max_steps, f"does nothing with norm={norm.name}: leave it out"
            )
            need(self.evaluation == "population", "evaluation", self.evaluation,
                 f"does nothing with norm={norm.name}: leave it out")  # fmt: skip
        if self.gate_clip is not None:
            need(cell == "lstm", "gate_clip", self.gate_clip, "is for the LSTM only: leave it out")
            number = isinstance(self.gate_clip, (int, float)) and self.gate_clip > 0
            need(number, "gate_clip", self.gate_clip, "must be a number above 0")
        need(self.kernel in KERNELS, "kernel", self.kernel, f"is unknown: use {', '.join(KERNELS)}")
        return Resolved(norm, sites, mode, self)


class Resolved(NamedTuple):
    """A checked variant with its defaults filled in."""

    norm: Norm
    sites: str
    bias_mode: str
    given: Variant

    @property
    def gates(self) -> bool:
        """Whether the norm acts at the gates."""
        return "gates" in self.sites

    @property
    def cell(self) -> bool:
        """Whether the norm acts on the cell's read-out."""
        return "cell" in self.sites
