"""Normalisation in one place: none, batch (BN), weight (WN) and layer normalisation (LN).

A model asks for ``norm_linear(nin, nout, norm)`` or ``normaliser(norm, features)`` and never branches on the
norm itself. Which norm a model has shows in its parameter names: ``norm.gain``/``norm.bias`` (LN, BN) or
``parametrizations.weight.original0/1`` (WN: g and v).

Shapes: B batch, F features, I inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm


@dataclass(frozen=True)
class Norm:
    """Which normalisation, and its constants.

    Attributes:
        name: ``none``, ``bn``, ``wn`` or ``ln``.
        eps: added to the variance (the paper has none; the authors' Theano code uses 1e-5).
        eps_mode: LN only. ``sqrt``: (x-mu)/sqrt(var+eps), the Theano code. ``outside``: (x-mu)/(std+eps), the
            Torch code. ``var``: (x-mu)/(var+eps), the Torch code before 25 July 2016, without the square root.
        gain_init: initial gain of LN and BN (1.0; 0.1 is an ablation of the paper). The bias starts at 0.
        variance: BN only, estimator used in training: ``biased`` or ``unbiased`` (the paper at batch 4).
        momentum: BN only, weight of the newest batch in the running statistics.
    """

    name: str = "none"
    eps: float = 1e-5
    eps_mode: str = "sqrt"
    gain_init: float = 1.0
    variance: str = "biased"
    momentum: float = 0.01

    def __post_init__(self) -> None:
        if self.name not in NORMS:
            raise ValueError(f"norm '{self.name}' is unknown; choose one of {', '.join(NORMS)}")
        if self.eps_mode not in ("sqrt", "outside", "var"):
            raise ValueError(f"norm.eps_mode '{self.eps_mode}' is unknown; choose sqrt, outside or var")
        if self.variance not in ("biased", "unbiased"):
            raise ValueError(f"norm.variance '{self.variance}' is unknown; choose biased or unbiased")
        for key in ("eps", "eps_mode", "gain_init", "variance", "momentum"):
            if key not in CONSTANTS[self.name] and getattr(self, key) != getattr(Norm, key):
                raise ValueError(f"norm.{key}={getattr(self, key)} does nothing with norm={self.name}: leave it out")
        if not self.eps >= 0:
            raise ValueError(f"norm.eps={self.eps} must be 0 or more")
        if not 0 < self.momentum <= 1:
            raise ValueError(f"norm.momentum={self.momentum} must lie in (0, 1]")


class LayerNorm(nn.Module):
    """LN (eq. 3, 15-16): per case, over the last axis, biased variance, then gain and bias.

    Args:
        features: F, size of the last axis.
        norm: its constants.

    Shape: ``(..., F) -> (..., F)``.
    """

    def __init__(self, features: int, norm: Norm) -> None:
        super().__init__()
        self.eps, self.eps_mode = norm.eps, norm.eps_mode
        self.gain = nn.Parameter(torch.full((features,), norm.gain_init))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, a: Tensor) -> Tensor:
        if self.eps_mode == "sqrt":
            return F.layer_norm(a, a.shape[-1:], self.gain, self.bias, self.eps)
        centred = a - a.mean(-1, keepdim=True)
        var = centred.square().mean(-1, keepdim=True)
        if self.eps_mode == "outside":
            # The floor keeps the gradient of the root finite for an all-zero vector (h0 = 0).
            scale = var.clamp_min(torch.finfo(var.dtype).tiny).sqrt() + self.eps
        else:
            scale = var + self.eps
        return centred / scale * self.gain + self.bias

    def extra_repr(self) -> str:
        return f"{self.gain.numel()}, eps={self.eps}, eps_mode={self.eps_mode}"


class BatchNorm(nn.Module):
    """BN over the batch axis; running statistics in eval mode.

    Training normalises with the biased or the unbiased variance of the batch (``norm.variance``); the running
    variance is always the unbiased one. Shape: ``(B, F) -> (B, F)``, B >= 2 in training.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, features: int, norm: Norm) -> None:
        super().__init__()
        self.eps, self.momentum, self.variance = norm.eps, norm.momentum, norm.variance
        self.gain = nn.Parameter(torch.full((features,), norm.gain_init))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))

    def forward(self, a_BF: Tensor) -> Tensor:
        gain_F, eps = self.gain, self.eps
        if self.training and self.variance == "unbiased":
            # var_u + eps = B/(B-1) * (var_b + eps (B-1)/B): the fused biased kernel serves both estimators.
            ratio = (a_BF.shape[0] - 1) / a_BF.shape[0]
            gain_F, eps = gain_F * math.sqrt(ratio), eps * ratio  # type: ignore[assignment]  # no longer a Parameter
        return F.batch_norm(
            a_BF, self.running_mean, self.running_var, gain_F, self.bias, self.training, self.momentum, eps
        )

    def extra_repr(self) -> str:
        return f"{self.gain.numel()}, eps={self.eps}, variance={self.variance}, momentum={self.momentum}"


# Normalisers of summed inputs. WN is none of them: it re-parametrises the weights instead.
ACTIVATION_NORMS: dict[str, Callable[[int, Norm], nn.Module]] = {"bn": BatchNorm, "ln": LayerNorm}
# The norms, and which constants of ``Norm`` each of them reads.
CONSTANTS: dict[str, tuple[str, ...]] = {
    "none": (),
    "bn": ("eps", "gain_init", "variance", "momentum"),
    "wn": (),
    "ln": ("eps", "eps_mode", "gain_init"),
}
NORMS = tuple(CONSTANTS)


def normaliser(norm: Norm, features: int) -> nn.Module:
    """The module that normalises summed inputs of width ``features``; the identity for none and WN."""
    make = ACTIVATION_NORMS.get(norm.name)
    return nn.Identity() if make is None else make(features, norm)


def weight_normed(module: nn.Module, norm: Norm, *names: str) -> nn.Module:
    """Re-parametrises the named weights (default ``weight``) as w = g v/||v|| per row, if the norm is WN.

    g starts at ||v||, so that the initial function is the un-normalised one. Inside a time loop use
    ``cached_weights()``: the parametrisation otherwise recomputes w at each access.
    """
    if norm.name == "wn":
        for name in names or ("weight",):
            weight_norm(module, name, dim=0)
    return module


cached_weights = parametrize.cached


class NormLinear(nn.Module):
    """Summed inputs N(W x) of a feed-forward layer; without LN or BN, W x + b (their own bias replaces b)."""

    def __init__(self, nin: int, nout: int, norm: Norm, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = nn.Linear(nin, nout, bias=norm.name not in ACTIVATION_NORMS)
        self.norm = normaliser(norm, nout)
        bound = 1 / math.sqrt(nin)  # uniform +-1/sqrt(nin) for weights and bias: our choice, not stated
        for parameter in self.linear.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
        weight_normed(self.linear, norm)

    def forward(self, x_BI: Tensor) -> Tensor:
        return self.norm(self.linear(x_BI))


def count_normalisers(module: nn.Module) -> dict[str, int]:
    """How many LN and BN modules and weight-normed matrices a model holds (pinned by tests, per task)."""
    counts = {"bn": 0, "wn": 0, "ln": 0}
    for child in module.modules():
        counts["ln"] += isinstance(child, LayerNorm)
        counts["bn"] += isinstance(child, BatchNorm)
        counts["wn"] += isinstance(child, parametrize.ParametrizationList)
    return counts
