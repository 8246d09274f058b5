"""Section 5.2 measured: how growing weights shrink what a gradient step does to the prediction.

A small network of one hidden layer learns to tell generated classes apart, under none, BN, WN and LN. Then the
weights w of one hidden unit are multiplied by s, gain and bias as they were. Under BN and WN no prediction
changes by that; under LN none does when the whole matrix W is multiplied, so there that is what is scaled, stepped
along and differentiated by. Without a normalisation the function does change: it is shown for comparison only.

What is to be expected. Where f(s w) = f(w) for all s > 0, differentiating gives J(s w) = J(w)/s for the Jacobian
J = df/dw, and for the gradient of any loss of f likewise G(s w) = G(w)/s, while derivatives by gain and bias stay.
The standard deviation (or norm) sigma is s times as large, so 1/s is what equation 13 writes as g/sigma.

- A step of plain SGD, -eta G, moves the prediction by J Δw = -eta J(w) G(w) / s²: one 1/s from the gradient, one
  from the Jacobian. Exactly, f(s w - eta G(s w)) = f(w - (eta/s²) G(w)): the effective rate is eta/s².
- A step of fixed length l moves it as a step of length l/s did before, and its KL divergence ½ Δwᵀ F Δw (the
  Riemannian metric, equation 12) falls as 1/s²: the two 1/s are those of the two Jacobians in F.
- The blocks of the Fisher matrix F = E_x[Jᵀ Cov[y|x] J], equation 13: weights with weights g_i g_j/(sigma_i sigma_j),
  hence 1/s²; weights with biases and weights with gains 1/s. The text below the equation says that curvature falls
  to a half when the norm doubles, which is so for the latter two; weights with weights fall to a quarter.

Predicted are the values at s = 1 times (g/sigma)² or g/sigma, relative to s = 1, with g and sigma as they are in the
network. A finite step adds a relative error that falls with s; ``Step.bent`` measures it. Equation 13 writes each
output as a function of its own w_i; under LN every w_i moves all of them, which the blocks here include.

Shapes: B cases, I inputs, O hidden units, K classes, S scaled units (1, or all O), P parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.analysis.invariances import exact, gain_and_bias, hidden_layers, incoming
from experiments.rng import generator
from models.norm import BatchNorm, NormLinear
from models.pi_mnist import MLP

NORMS = ("none", "bn", "wn", "ln")
FACTORS = (1, 2, 4, 8, 16)
SIZES, CASES = (12, 10, 4), 128
TRAIN_STEPS, TRAIN_LR = 60, 0.02  # Adam, on all cases at once: far from converged, so that there is a gradient
RATE = 1e-3  # of the SGD step
LENGTH = 1e-4  # of the step of fixed length, relative to the weights' norm at s = 1
DATA = f"{CASES} cases of {SIZES[0]} inputs in {SIZES[-1]} overlapping Gaussian classes, generated from the seed"


@dataclass(frozen=True)
class Step:
    """Measured at one factor; ``sgd`` to ``gain`` are what the figure shows.

    Attributes:
        norm, seed, factor: s, with which the weights were multiplied.
        scale: g/sigma of the scaled units, root mean square over units and cases (1 without a normalisation).
        sgd: root mean square change of the logits (nats) by an SGD step.
        kl: KL divergence (nats per case) of the predictions before a step of fixed length from those after.
        weight, bias, gain: Frobenius norm of the Fisher blocks weights-weights, weights-biases, weights-gains
            (NaN without a gain).
        bent: how far the SGD step's change is from the linear J Δw, relative to it.
    """

    norm: str
    seed: int
    factor: float
    scale: float
    sgd: float
    kl: float
    weight: float
    bias: float
    gain: float
    bent: float


QUANTITIES = {"sgd": 2, "kl": 2, "weight": 2, "bias": 1, "gain": 1}  # with which power of g/sigma each goes


def classes(seed: int) -> tuple[Tensor, Tensor]:
    """Generated data: inputs ``(B, I)`` of differing mean and width, and labels ``(B,)``."""
    random = generator(seed, "classes")
    y_B = torch.arange(CASES) % SIZES[-1]
    means_KI = torch.randn(SIZES[-1], SIZES[0], generator=random, dtype=torch.float64)
    noise_BI = 1.5 * torch.randn(CASES, SIZES[0], generator=random, dtype=torch.float64)
    width_I = 0.5 + torch.rand(SIZES[0], generator=random)
    return (means_KI[y_B] + noise_BI) * width_I, y_B


def trained(norm: str, seed: int, x_BI: Tensor, y_B: Tensor) -> MLP:
    """The network in the middle of its training, in training mode."""
    net = MLP(SIZES, exact(norm), exact("none"), generator(seed, "fisher")).double()
    adam = torch.optim.Adam(net.parameters(), lr=TRAIN_LR)
    for _ in range(TRAIN_STEPS):
        adam.zero_grad()
        F.cross_entropy(net(x_BI), y_B).backward()
        adam.step()
    return net


def layer_of(net: MLP) -> NormLinear:
    """The hidden layer whose weights are scaled."""
    return hidden_layers(net)[0]


def scaled(net: MLP, units: slice, factor: float) -> MLP:
    """A copy with the incoming weights of ``units`` multiplied."""
    twin = copy.deepcopy(net)
    with torch.no_grad():
        incoming(layer_of(twin))[units] *= factor
    return twin


def gradient(net: MLP, x_BI: Tensor, y_B: Tensor, units: slice) -> Tensor:
    """Of the mean cross-entropy by the weights ``(S, I)`` of ``units``."""
    (grad_OI,) = torch.autograd.grad(F.cross_entropy(net(x_BI), y_B), incoming(layer_of(net)))
    return grad_OI[units]


@torch.no_grad()
def after(net: MLP, x_BI: Tensor, units: slice, step_SI: Tensor) -> Tensor:
    """Logits ``(B, K)`` once the weights of ``units`` have moved by a step; ``net`` stays as it is."""
    twin = copy.deepcopy(net)
    incoming(layer_of(twin))[units] += step_SI
    return twin(x_BI)


def jacobians(net: MLP, x_BI: Tensor, units: slice) -> list[Tensor | None]:
    """d logits / d weights, biases, gains of ``units``, each ``(B, K, P)``; None for gains there are not."""
    logits_BK = net(x_BI)
    gain, bias = gain_and_bias(layer_of(net))
    parts = [incoming(layer_of(net)), bias, gain]
    present = [part for part in parts if part is not None]
    one_each = torch.eye(logits_BK.numel(), dtype=logits_BK.dtype).view(-1, *logits_BK.shape)
    grads = iter(torch.autograd.grad(logits_BK, present, one_each, is_grads_batched=True))  # a row for each logit
    return [None if part is None else next(grads)[:, units].reshape(*logits_BK.shape, -1) for part in parts]


def blocks(logits_BK: Tensor, parts: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Fisher blocks ``(P_0, P_i)`` of the first part with each: E_x[J_0ᵀ Cov[y|x] J_i], y one-hot of a softmax."""
    p_BK = logits_BK.softmax(-1)
    cov_BKK = torch.diag_embed(p_BK) - p_BK.unsqueeze(-1) * p_BK.unsqueeze(-2)
    first = parts[0]
    assert first is not None
    left_BKP = cov_BKK @ first / len(p_BK)
    return [None if part is None else left_BKP.flatten(0, 1).T @ part.flatten(0, 1) for part in parts]


@torch.no_grad()
def gain_over_sigma(net: MLP, x_BI: Tensor, units: slice) -> float:
    """g/sigma, which equation 13 has once for every derivative by a weight; root mean square."""
    layer = layer_of(net)
    gain, _ = gain_and_bias(layer)
    if gain is None:
        return 1.0
    a_BO = layer.linear(x_BI)
    if isinstance(layer.norm, nn.Identity):  # WN
        sigma = incoming(layer).norm(dim=1)[None]
    else:
        sigma = a_BO.std(0 if isinstance(layer.norm, BatchNorm) else 1, correction=0, keepdim=True)
    return float((gain.flatten() / sigma).expand_as(a_BO)[:, units].square().mean().sqrt())


def measure(norm: str, seed: int, factors: Sequence[float] = FACTORS) -> list[Step]:
    """Trains one network, scales its weights by each factor, and measures what a step then does."""
    x_BI, y_B = classes(seed)
    net = trained(norm, seed, x_BI, y_B)
    everything = slice(None)
    # One unit whose weights matter: that with the largest gradient. The whole matrix under LN, as said above.
    unit = int(gradient(net, x_BI, y_B, everything).norm(dim=1).argmax())
    units = everything if norm == "ln" else slice(unit, unit + 1)
    length = LENGTH * incoming(layer_of(net))[units].norm().detach()
    steps = []
    for factor in factors:
        at = scaled(net, units, factor)
        parts = jacobians(at, x_BI, units)
        before_BK = at(x_BI).detach()
        grad_SI = gradient(at, x_BI, y_B, units)

        step_SI = -RATE * grad_SI
        change_BK = after(at, x_BI, units, step_SI) - before_BK
        assert parts[0] is not None
        linear_BK = parts[0] @ step_SI.flatten()
        far_BK = after(at, x_BI, units, -length * grad_SI / grad_SI.norm())
        log_p_BK, log_q_BK = before_BK.log_softmax(-1), far_BK.log_softmax(-1)
        sizes = [float("nan") if block is None else float(block.norm()) for block in blocks(before_BK, parts)]
        steps.append(
            Step(
                norm=norm,
                seed=seed,
                factor=factor,
                scale=gain_over_sigma(at, x_BI, units),
                sgd=float(change_BK.square().mean().sqrt()),
                kl=float((log_p_BK.exp() * (log_p_BK - log_q_BK)).sum(-1).mean()),
                weight=sizes[0],
                bias=sizes[1],
                gain=sizes[2],
                bent=float((change_BK - linear_BK).norm() / linear_BK.norm()),
            )
        )
    return steps


def table(seeds: Sequence[int], norms: Sequence[str] = NORMS) -> pd.DataFrame:
    """All measurements beside what equation 13 predicts.

    Returns:
        norm, seed, factor, quantity, measured, predicted (NaN for none, where nothing stays the same); a row for
        each quantity of ``QUANTITIES`` there is.
    """
    rows = []
    for norm in norms:
        for seed in seeds:
            steps = measure(norm, seed)
            for step in steps:
                for quantity, power in QUANTITIES.items():
                    measured, start = getattr(step, quantity), getattr(steps[0], quantity)
                    predicted = start * (step.scale / steps[0].scale) ** power if norm != "none" else float("nan")
                    rows.append((norm, seed, step.factor, quantity, measured, predicted))
    frame = pd.DataFrame(rows, columns=["norm", "seed", "factor", "quantity", "measured", "predicted"])
    return frame.dropna(subset="measured").reset_index(drop=True)


def on_doubling(frame: pd.DataFrame, quantity: str) -> str:
    """By what a quantity is multiplied when the weights' norm first doubles: the range over norms and seeds."""
    rows = frame[(frame["quantity"] == quantity) & (frame["norm"] != "none")]
    wide = rows.pivot(index=["norm", "seed"], columns="factor", values="measured")
    ratios = wide[2] / wide[1]
    return " to ".join(dict.fromkeys([f"{ratios.min():.3f}", f"{ratios.max():.3f}"]))  # one if they print alike
