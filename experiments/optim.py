"""The update of a training step: Adam and gradient clipping, each in the form that ``train.*`` names.

``train.adam``: ``standard``, or ``authors``: that of the order-embedding and skip-thoughts code, whose bias correction
is wrong. Its b1 = 0.1 and b2 = 0.001 stand for 1 - beta, but the correction takes them for beta: 1 - 0.1^t instead of
1 - 0.9^t. The moments are hardly corrected, and the first thousand steps are larger than the learning rate says
(3.5 times at the first, 6.5 times at the tenth).

``train.clip_form``: ``global``, the norm of all gradients together; ``per_tensor``, each gradient by its own; or
``norm_as_square``, what the attentive reader's code does, where the global norm n stands in the place of its square: it
acts only where n > clip^2, and then leaves a norm of clip sqrt(n), more than clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class AuthorsAdam(torch.optim.Adam):
    """Adam without (almost) any bias correction, in Adam's own fused kernel.

    p -= lr sqrt(1 - (1-b2)^t) / (1 - (1-b1)^t) m / (sqrt(v) + eps). Adam's kernel divides m by 1 - b1^t and v by
    1 - b2^t; learning rate and eps of each step are set so that this cancels.
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, fused=True)
        for group in self.param_groups:
            group |= {"base_lr": lr, "base_eps": eps}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            (b1, b2), t = group["betas"], 1 + self._steps(group)
            theirs = math.sqrt(1 - (1 - b2) ** t) / (1 - (1 - b1) ** t)
            root = math.sqrt(1 - b2**t)
            group["lr"] = group["base_lr"] * theirs * (1 - b1**t) / root
            group["eps"] = group["base_eps"] / root
        return super().step(closure)

    def _steps(self, group: dict[str, Any]) -> int:
        """Steps made so far, from the state that a checkpoint holds."""
        return max((int(self.state[p]["step"]) for p in group["params"] if p in self.state), default=0)


def _standard(params: Iterable[nn.Parameter], lr: float, betas: tuple[float, float], eps: float) -> torch.optim.Adam:
    # One fused kernel: at batch 4 the optimiser's memory traffic is a good part of a step (``make bench``).
    return torch.optim.Adam(params, lr=lr, betas=betas, eps=eps, fused=True)


def _clip_global(model: nn.Module, most: float) -> Tensor:
    return nn.utils.clip_grad_norm_(model.parameters(), most)


def _clip_per_tensor(model: nn.Module, most: float) -> Tensor:
    """Scales each gradient above norm ``most`` down to it. Returns the largest norm before.

    What one tensor is, a model may tell by ``separate_gradients()``: its own parameters may be stacked in other ways
    than those of the code it follows.
    """
    separate = getattr(model, "separate_gradients", None)
    gradients = separate() if separate else [p.grad for p in model.parameters() if p.grad is not None]
    norms_P = torch.stack(torch._foreach_norm(gradients))
    torch._foreach_mul_(gradients, list((most / norms_P.clamp_min(most)).unbind()))
    return norms_P.max()


def _clip_norm_as_square(model: nn.Module, most: float) -> Tensor:
    """Divides all gradients by sqrt(n) / clip, where their norm n is above clip^2. Returns n."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    torch._foreach_mul_(gradients, most / norm.clamp_min(most**2).sqrt())
    return norm


ADAMS: dict[str, Callable[..., torch.optim.Adam]] = {"standard": _standard, "authors": AuthorsAdam}
CLIPS: dict[str, Callable[[nn.Module, float], Tensor]] = {
    "global": _clip_global,
    "per_tensor": _clip_per_tensor,
    "norm_as_square": _clip_norm_as_square,
}


def make_optimizer(model: nn.Module, train: Any) -> torch.optim.Adam:
    """The optimiser that ``train.*`` describes."""
    return ADAMS[train.adam](model.parameters(), train.lr, (train.beta1, train.beta2), train.adam_eps)


def clip_gradients(model: nn.Module, train: Any) -> bool:
    """Clips as ``train.*`` says; false, and no more than spoilt gradients, if a gradient is not finite."""
    if train.clip is None:
        return True
    return math.isfinite(CLIPS[train.clip_form](model, train.clip).item())
