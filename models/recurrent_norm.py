"""Normalisers of the recurrent sites: W x, U h, and the read-out of the LSTM's cell.

LN comes from ``models.norm``, over a site's stacked gates or gate by gate. BN keeps separate statistics per time
step (Cooijmans et al. 2016), which no feed-forward layer needs, so it has its own module here.

Shapes: T time, B batch, F features of the site, S time steps with statistics of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.norm import Norm, normaliser

EVALUATIONS = ("population", "batch")


class Moment(NamedTuple):
    """Where a time loop is: the step ``t``, and which cases still run (``None``: all of them)."""

    t: int
    mask_B1: Tensor | None = None


class StepBatchNorm(nn.Module):
    """BN over the batch, with its own statistics at each of the first ``max_steps`` time steps.

    Later steps share the last one's. Cases that have ended are left out of mean and variance; where one case is
    left, its variance is 0 and the output is the bias. The running statistics are averages over training batches:
    plain ones at first, with weight ``norm.momentum`` for the newest from the 1/momentum-th batch on.

    Args:
        features: F.
        norm: its constants; ``gain_init`` 0.1 is the value of Cooijmans et al.
        max_steps: S.
        bias: whether there is one.
        evaluation: ``population``: running statistics in eval mode; ``batch``: the batch's own (the public
            code of the attentive reader of March 2016 validated this way).
    """

    running_mean_SF: Tensor
    running_var_SF: Tensor
    batches_S: Tensor

    def __init__(self, features: int, norm: Norm, max_steps: int, bias: bool, evaluation: str) -> None:
        super().__init__()
        self.eps, self.momentum, self.variance = norm.eps, norm.momentum, norm.variance
        self.evaluation = evaluation
        self.gain = nn.Parameter(torch.full((features,), norm.gain_init))
        self.bias = nn.Parameter(torch.zeros(features)) if bias else None
        self.register_buffer("running_mean_SF", torch.zeros(max_steps, features))
        self.register_buffer("running_var_SF", torch.ones(max_steps, features))
        self.register_buffer("batches_S", torch.zeros(max_steps, dtype=torch.int64))

    def forward(self, a_BF: Tensor, moment: Moment) -> Tensor:
        if a_BF.dtype not in (torch.bfloat16, torch.float16):
            return self._normalised(a_BF, moment)
        # Statistics as precise as those of LN, which autocast takes in float32. A layer that is itself of a lower
        # precision goes on in it.
        normal_BF = self._normalised(a_BF.float(), moment)
        return normal_BF if torch.is_autocast_enabled(a_BF.device.type) else normal_BF.to(a_BF.dtype)

    def _normalised(self, a_BF: Tensor, moment: Moment) -> Tensor:
        if not self.training and self.evaluation == "population":
            # Steps that training never reached use the last one it did.
            step = min(moment.t, self.steps_seen() - 1)
            return self._scaled(a_BF, self.running_mean_SF[step], self.running_var_SF[step])
        mask_B1 = moment.mask_B1
        if mask_B1 is None:
            var_F, mean_F = torch.var_mean(a_BF, 0, correction=0)
            count = torch.tensor(float(a_BF.shape[0]), dtype=a_BF.dtype, device=a_BF.device)
        else:
            weight_B1 = mask_B1.to(a_BF.dtype)
            count = weight_B1.sum().clamp_min(1)
            mean_F = (a_BF * weight_B1).sum(0) / count
            var_F = ((a_BF - mean_F).square() * weight_B1).sum(0) / count
        unbiased_F = var_F * (count / (count - 1).clamp_min(1))
        if self.training and (mask_B1 is None or bool(mask_B1.any())):
            self._remember(min(moment.t, len(self.batches_S) - 1), mean_F.detach(), unbiased_F.detach())
        return self._scaled(a_BF, mean_F, unbiased_F if self.variance == "unbiased" else var_F)

    def steps_seen(self) -> int:
        """Time steps that have statistics. Raises ``RuntimeError`` before the first training step."""
        seen = int((self.batches_S > 0).sum())
        if not seen:
            raise RuntimeError(
                "batch normalisation has no statistics to evaluate with: run a training step first, "
                "or use evaluation=batch"
            )
        return seen

    def _scaled(self, a_BF: Tensor, mean_F: Tensor, var_F: Tensor) -> Tensor:
        normal_BF = (a_BF - mean_F) * torch.rsqrt(var_F + self.eps) * self.gain
        return normal_BF if self.bias is None else normal_BF + self.bias

    @torch.no_grad()
    def _remember(self, step: int, mean_F: Tensor, var_F: Tensor) -> None:
        self.batches_S[step] += 1
        weight = max(self.momentum, 1 / int(self.batches_S[step]))
        self.running_mean_SF[step].lerp_(mean_F.to(self.running_mean_SF.dtype), weight)
        self.running_var_SF[step].lerp_(var_F.to(self.running_var_SF.dtype), weight)

    def extra_repr(self) -> str:
        return f"{self.gain.numel()}, steps={len(self.batches_S)}, eps={self.eps}, evaluation={self.evaluation}"


class SiteNorm(nn.Module):
    """A normaliser of one site, applied to each of its groups of neighbouring features separately.

    Args:
        widths: sizes of the groups; LN of an LSTM's stacked gates has one of 4H, gate by gate four of H.
        norm: which normalisation.
        bias: whether the normalisers have one.
    """

    def __init__(self, widths: Sequence[int], norm: Norm, bias: bool) -> None:
        super().__init__()
        self.widths = list(widths)
        self.groups = nn.ModuleList(normaliser(norm, width) for width in widths)
        if not bias:
            for group in self.groups:
                _without_bias(group)

    def forward(self, a_BF: Tensor, moment: Moment) -> Tensor:
        parts = a_BF.split(self.widths, -1)
        normal: list[Tensor] = [group(part) for group, part in zip(self.groups, parts, strict=True)]
        return normal[0] if len(normal) == 1 else torch.cat(normal, -1)

    @property
    def gain(self) -> Tensor:
        """Gains of all features (F)."""
        return torch.cat([group.get_parameter("gain") for group in self.groups])

    @property
    def bias(self) -> Tensor | None:
        """Biases of all features (F), or ``None``."""
        biases: list[Tensor] = [group.bias for group in self.groups if isinstance(group.bias, nn.Parameter)]
        return torch.cat(biases) if biases else None


class Unnormalised(nn.Module):
    """A site that this variant leaves alone."""

    def forward(self, a_BF: Tensor, moment: Moment) -> Tensor:
        return a_BF


def site_norm(
    norm: Norm, widths: Sequence[int], *, bias: bool, max_steps: int | None = None, evaluation: str = "population"
) -> SiteNorm | StepBatchNorm:
    """The normaliser of a site; a module called with the summed inputs and the ``Moment``."""
    if norm.name == "bn":
        assert max_steps is not None
        return StepBatchNorm(sum(widths), norm, max_steps, bias, evaluation)
    return SiteNorm(widths, norm, bias)


def _without_bias(module: nn.Module) -> None:
    """Fixes a normaliser's bias at 0: no parameter, and nothing in its state."""
    if isinstance(bias := getattr(module, "bias", None), nn.Parameter):
        del module.bias
        module.register_buffer("bias", torch.zeros_like(bias), persistent=False)
