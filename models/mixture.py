"""The output density of Graves' handwriting networks (2013, section 4.1): bivariate Gaussians and one bit.

    p(x, e) = sum_j pi_j N(x; mu_j, sigma_j, rho_j) * (q if e = 1 else 1 - q)

Outputs of the network, 1 + 6M per step, in this order: end-of-stroke, pi (M), mu_x (M), mu_y (M), log sigma_x (M),
log sigma_y (M), rho before tanh (M). As in Graves, q = 1 / (1 + exp(output)): the bit's sign is reversed.

Everything is computed from logarithms in float64, so that nothing overflows or cancels for far-off points, vanishing
sigma or rho near +-1; the network itself stays in its own precision.

Shapes: T steps, B batch, M mixture components, Y = 1 + 6M outputs; leading axes are written ``...``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

LOG_2 = math.log(2)
LOG_2PI = math.log(2 * math.pi)
# exp(4 * 170) is the largest power that the exponent below can need and float64 can hold. sigma = e^-170 and
# 1 - rho^2 = e^-338 are far outside what a float32 network can tell from zero.
REACH = 170.0


class Mixture(NamedTuple):
    """Parameters of one density per step, from which a sampler draws.

    Attributes:
        stroke_end: q, (...).
        log_weight_M: log pi, (..., M).
        mean_M2, log_sigma_M2: (..., M, 2).
        rho_M: (..., M).
    """

    stroke_end: Tensor
    log_weight_M: Tensor
    mean_M2: Tensor
    log_sigma_M2: Tensor
    rho_M: Tensor


def output_size(components: int) -> int:
    """Y = 1 + 6M."""
    return 1 + 6 * components


def mixture_nll(output_Y: Tensor, target_3: Tensor) -> Tensor:
    """-log p of each step, in nats: a density, so it may be negative.

    Args:
        output_Y: (..., Y), the network's outputs.
        target_3: (..., 3), offsets x, y and the end-of-stroke bit.

    Returns:
        (...), float64.
    """
    output_Y, target_3 = output_Y.double(), target_3.double()
    end, rest = output_Y[..., 0], output_Y[..., 1:]
    weight_M, mean_x_M, mean_y_M, log_sx_M, log_sy_M, raw_rho_M = rest.chunk(6, -1)
    log_sx_M, log_sy_M, raw_rho_M = (p.clamp(-REACH, REACH) for p in (log_sx_M, log_sy_M, raw_rho_M))
    zx_M = (target_3[..., 0:1] - mean_x_M) * (-log_sx_M).exp()
    zy_M = (target_3[..., 1:2] - mean_y_M) * (-log_sy_M).exp()
    # With r = atanh(rho): (zx^2 + zy^2 - 2 rho zx zy) / (1 - rho^2)
    #   = (zx + zy)^2 / (2 (1 + rho)) + (zx - zy)^2 / (2 (1 - rho)),   1 / (1 +- rho) = (1 + exp(-+2r)) / 2.
    together_M = (zx_M + zy_M).square() * (1 + (-2 * raw_rho_M).exp())
    apart_M = (zx_M - zy_M).square() * (1 + (2 * raw_rho_M).exp())
    # log sqrt(1 - rho^2) = log sech r
    magnitude_M = raw_rho_M.abs()
    log_sech_M = LOG_2 - magnitude_M - torch.log1p((-2 * magnitude_M).exp())
    log_normal_M = -LOG_2PI - log_sx_M - log_sy_M - log_sech_M - (together_M + apart_M) / 8
    log_density = torch.logsumexp(weight_M.log_softmax(-1) + log_normal_M, -1)
    bit = F.binary_cross_entropy_with_logits(-end, target_3[..., 2], reduction="none")
    return bit - log_density


def mixture(output_Y: Tensor, bias: float = 0.0) -> Mixture:
    """The density a sampler draws from.

    Args:
        output_Y: (..., Y).
        bias: Graves' probability bias b >= 0 (eq. 61, 62): sigma is divided by exp(b) and pi sharpened by 1 + b; 0
            is the model's own density, larger values write more neatly.
    """
    weight_M, mean_x_M, mean_y_M, log_sx_M, log_sy_M, raw_rho_M = output_Y[..., 1:].chunk(6, -1)
    return Mixture(
        stroke_end=torch.sigmoid(-output_Y[..., 0]),
        log_weight_M=(weight_M * (1 + bias)).log_softmax(-1),
        mean_M2=torch.stack((mean_x_M, mean_y_M), -1),
        log_sigma_M2=torch.stack((log_sx_M, log_sy_M), -1) - bias,
        rho_M=raw_rho_M.tanh(),
    )


def draw(density: Mixture, noise_B4: Tensor) -> Tensor:
    """One point per case.

    Args:
        density: with one leading axis, B.
        noise_B4: uniform in [0, 1) for the component and the bit, then two standard normal numbers.

    Returns:
        (B, 3): x, y, end-of-stroke.
    """
    chosen_B = (density.log_weight_M.exp().cumsum(-1) < noise_B4[:, :1]).sum(-1)
    chosen_B = chosen_B.clamp_max(density.rho_M.shape[-1] - 1)  # the sum of pi may round below 1
    row_B = torch.arange(len(chosen_B), device=chosen_B.device)
    mean_B2, sigma_B2 = density.mean_M2[row_B, chosen_B], density.log_sigma_M2[row_B, chosen_B].exp()
    rho_B, first_B, second_B = density.rho_M[row_B, chosen_B], noise_B4[:, 2], noise_B4[:, 3]
    second_B = rho_B * first_B + (1 - rho_B.square()).clamp_min(0).sqrt() * second_B
    point_B2 = mean_B2 + sigma_B2 * torch.stack((first_B, second_B), 1)
    return torch.cat((point_B2, (noise_B4[:, 1:2] < density.stroke_end[:, None]).to(point_B2)), 1)
