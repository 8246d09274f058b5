"""Table 1 of the paper, evaluated: which re-scalings and re-centrings leave the prediction as it was.

A layer computes N(W x). Its weights W, or the data it sees, are transformed, everything else stays, and two
predictions are compared before and after:

- that of the layer, its normalised summed inputs N(W x) with gain and bias, for every case and unit;
- that of the network, the logits of a deeper one with relu and further normalised layers behind it.

A cell of the table counts as invariant only if both stay, in every network, and as not invariant only if both move.

What is transformed: W is what the paper calls the incoming weights. Under WN that is v in w = g v/||v||, with
the gain g held fixed; writing a scaled w into the layer would scale g. Weights are transformed in each hidden
layer in turn, data at the input of the network. BN takes its statistics from the batch (training mode), which is
the whole data set here. The factor is positive: a negative one flips the sign of what is normalised.

Precision: float64. LN runs at epsilon 0; the framework refuses 0 for BN, which runs at one that vanishes beside
any variance met here (``EPS``). So an invariant prediction moves by rounding alone, and the threshold between the
two is the square root of float64's epsilon: half way, in orders of magnitude, from rounding to a change of order one.

Shapes: B batch, I inputs of a layer, O its units, K classes.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from experiments.rng import generator
from experiments.schema import ConfigError
from models.norm import CONSTANTS, Norm, NormLinear
from models.pi_mnist import MLP

SEEDS = (0, 1, 2, 3, 4)
# (widths from x to logits, B). Under WN all of a very small layer may be off for a case: then relu hides a change
# from the network behind.
NETWORKS = (((6, 24, 3), 4), ((32, 48, 24, 10), 16), ((100, 64, 64, 64, 10), 50))
DELTAS = (0.3, 5.0)  # no powers of two: these scale floats without rounding
EPS = {"bn": 1e-40, "ln": 0.0}  # 1e-40: lost in float64 beside a variance above 1e-24
THRESHOLD = math.sqrt(torch.finfo(torch.float64).eps)
FILE = "configs/paper/invariances.yaml"


@dataclass(frozen=True)
class Draw:
    """The constants of one transformation: the factor, the shift (standard normal), which unit, which case."""

    delta: float
    gamma_I: Tensor
    unit: int
    case: int


Transformation = Callable[[Tensor, Tensor, Draw], tuple[Tensor, Tensor]]


def _row_scaled(z: Tensor, row: int, factor: float) -> Tensor:
    z = z.clone()
    z[row] *= factor
    return z


# (W, x, constants) -> (W', x'). Shifts are as large as what they are added to.
OF_WEIGHTS: dict[str, Transformation] = {
    "weight_matrix_rescaling": lambda W_OI, x_BI, d: (d.delta * W_OI, x_BI),
    "weight_matrix_recentering": lambda W_OI, x_BI, d: (W_OI + W_OI.std() * d.gamma_I, x_BI),
    "weight_vector_rescaling": lambda W_OI, x_BI, d: (_row_scaled(W_OI, d.unit, d.delta), x_BI),
}
OF_DATA: dict[str, Transformation] = {
    "dataset_rescaling": lambda W_OI, x_BI, d: (W_OI, d.delta * x_BI),
    "dataset_recentering": lambda W_OI, x_BI, d: (W_OI, x_BI + x_BI.std() * d.gamma_I),
    "single_case_rescaling": lambda W_OI, x_BI, d: (W_OI, _row_scaled(x_BI, d.case, d.delta)),
}
TRANSFORMATIONS = OF_WEIGHTS | OF_DATA


@dataclass(frozen=True)
class Cell:
    """One entry of the table.

    Attributes:
        transformation, norm: which entry.
        paper: whether the paper calls it invariant.
        deviations: one for each network, seed, factor, layer and prediction; see ``deviation``.
    """

    transformation: str
    norm: str
    paper: bool
    deviations: tuple[float, ...]

    @property
    def ours(self) -> bool | None:
        """Whether the prediction stayed; None where it did in some networks and not in others."""
        stayed = {value <= THRESHOLD for value in self.deviations}
        return stayed.pop() if len(stayed) == 1 else None

    @property
    def matches(self) -> bool:
        """Whether ours is the paper's entry."""
        return self.ours is self.paper

    @property
    def median(self) -> float:
        """Of the deviations."""
        return statistics.median(self.deviations)


def paper_table(paper: Mapping[str, Any]) -> dict[str, dict[str, bool]]:
    """norm -> transformation -> entry. Raises ``ConfigError`` where the file's table is not whole."""
    table = paper.get("table")
    if not isinstance(table, dict) or not table:
        raise ConfigError(f"{FILE}: table must hold a block of entries for each norm")
    for norm, entries in table.items():
        if norm not in CONSTANTS or not isinstance(entries, dict):
            raise ConfigError(f"{FILE}: table.{norm} must be a block of entries of a norm: {', '.join(CONSTANTS)}")
        if unknown := sorted(map(str, set(entries) ^ set(TRANSFORMATIONS))):
            raise ConfigError(f"{FILE}: table.{norm} must hold exactly {', '.join(TRANSFORMATIONS)}; see {unknown[0]}")
        for name, entry in entries.items():
            if not isinstance(entry, bool):
                raise ConfigError(f"{FILE}: table.{norm}.{name}={entry} must be true or false")
    return table


def exact(norm: str) -> Norm:
    """The norm with an epsilon that changes nothing in float64."""
    return Norm(norm, eps=EPS[norm]) if "eps" in CONSTANTS[norm] else Norm(norm)


def network(sizes: Sequence[int], norm: Norm, seed: int) -> MLP:
    """A random network in training mode: hidden layers under ``norm``, logits without.

    Every gain and bias is drawn too, for at their defaults (1 and 0) some changes would not show.
    """
    net = MLP(sizes, norm, Norm(), generator(seed, "weights", *sizes)).double()
    draw = generator(seed, "gains", *sizes)
    for layer in hidden_layers(net):
        for parameter, low, high in zip(gain_and_bias(layer), (0.5, -0.5), (1.5, 0.5), strict=True):
            if parameter is not None:
                nn.init.uniform_(parameter, low, high, generator=draw)
    return net


def hidden_layers(net: MLP) -> list[NormLinear]:
    """The layers that are normalised."""
    return cast(list[NormLinear], list(net.hidden))


def incoming(layer: NormLinear) -> Tensor:
    """W of a layer, ``(O, I)``: v under WN."""
    if parametrize.is_parametrized(layer.linear):
        return layer.linear.parametrizations.weight.original1  # type: ignore[union-attr, return-value]
    return layer.linear.weight


def gain_and_bias(layer: NormLinear) -> tuple[Tensor | None, Tensor]:
    """g, of shape ``(O,)`` or under WN ``(O, 1)``, and b ``(O,)``; None for the gain without a normalisation."""
    if parametrize.is_parametrized(layer.linear):
        return layer.linear.parametrizations.weight.original0, layer.linear.bias  # type: ignore[union-attr, return-value]
    if isinstance(layer.norm, nn.Identity):
        return None, layer.linear.bias
    return layer.norm.gain, layer.norm.bias  # type: ignore[return-value]


def predictions(net: MLP, x_BI: Tensor) -> tuple[list[Tensor], Tensor]:
    """Normalised summed inputs ``(B, O)`` of each hidden layer, and the logits ``(B, K)``."""
    layers = []
    for layer in hidden_layers(net):
        layers.append(layer(x_BI))
        x_BI = torch.relu(layers[-1])
    return layers, net.logits(x_BI)


def deviation(before: Tensor, after: Tensor) -> float:
    """Largest change of any predicted number, in units of the root mean square of the predictions before."""
    return float((after - before).abs().max() / before.square().mean().sqrt())


@torch.no_grad()
def moved(net: MLP, x_BI: Tensor, index: int, transform: Transformation, draw: Draw) -> list[float]:
    """Deviation of hidden layer ``index``, whose weights are transformed, and of the network behind it."""
    layers, logits = predictions(net, x_BI)
    twin = copy.deepcopy(net)
    weights_OI = incoming(hidden_layers(twin)[index])
    new_OI, new_BI = transform(weights_OI, x_BI, draw)
    weights_OI.copy_(new_OI)
    new_layers, new_logits = predictions(twin, new_BI)
    return [deviation(layers[index], new_layers[index]), deviation(logits, new_logits)]


def evaluate(
    table: Mapping[str, Mapping[str, bool]], seeds: Sequence[int] = SEEDS, deltas: Sequence[float] = DELTAS
) -> list[Cell]:
    """Measures every entry of the paper's table.

    Args:
        table: norm -> transformation -> the paper's entry.
        seeds: of weights, data and shifts.
        deltas: the factors.

    Returns:
        a cell per entry, by transformation, then norm.
    """
    found: dict[tuple[str, str], list[float]] = {(name, norm): [] for name in TRANSFORMATIONS for norm in table}
    for sizes, cases in NETWORKS:
        for seed in seeds:
            random = generator(seed, "data", *sizes)
            # Neither centred nor equally wide in every input.
            x_BI = torch.randn(cases, sizes[0], generator=random, dtype=torch.float64)
            x_BI = x_BI * (0.5 + torch.rand(sizes[0], generator=random)) + torch.randn(sizes[0], generator=random)
            nets = {norm: network(sizes, exact(norm), seed) for norm in table}
            for delta in deltas:
                for index, (width, units) in enumerate(zip(sizes[:-2], sizes[1:-1], strict=True)):
                    draw = Draw(
                        delta,
                        torch.randn(width, generator=random, dtype=torch.float64),
                        int(torch.randint(units, (), generator=random)),
                        int(torch.randint(cases, (), generator=random)),
                    )
                    for name, transform in (OF_WEIGHTS if index else TRANSFORMATIONS).items():
                        for norm, net in nets.items():
                            found[name, norm] += moved(net, x_BI, index, transform, draw)
    return [Cell(name, norm, table[norm][name], tuple(values)) for (name, norm), values in found.items()]


def gap(cells: Sequence[Cell]) -> tuple[float, float]:
    """The largest deviation where the prediction stayed, and the smallest where it moved (infinite if none did)."""
    values = [value for cell in cells for value in cell.deviations]
    return (
        max((v for v in values if v <= THRESHOLD), default=0.0),
        min((v for v in values if v > THRESHOLD), default=math.inf),
    )
