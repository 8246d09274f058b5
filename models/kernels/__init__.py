"""Which implementation of a recurrent cell runs, decided in one place.

``kernel`` of a ``Variant``:
    auto: the fused kernel where it can run, else the reference loop;
    reference: always the loop of ``models.rnn``, or the single step of ``models.cells``;
    fused: the fused kernel, or an error that says why it cannot run.
Without a norm, and under WN, ``auto`` and ``fused`` run the framework's own sequence kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models.kernels import build

KERNELS = ("auto", "reference", "fused")

if TYPE_CHECKING:
    from models.cells import GRUCell, LSTMCell


def unsupported(cell: LSTMCell | GRUCell) -> str | None:
    """Why the fused kernel cannot run this variant; ``None`` if it can."""
    norm, _, _, given = cell.variant
    if norm.name not in ("none", "wn", "ln"):
        return f"norm={norm.name}"
    if cell.kind == "gru" and norm.name != "ln":
        return f"a GRU with norm={norm.name}"
    if given.joint:
        return "joint=True"
    if norm.eps_mode != "sqrt":
        return f"norm.eps_mode={norm.eps_mode}"
    return None


def check_kernel(cell: Any) -> None:
    """Raises ``ValueError`` if the fused kernel is demanded of a variant that it does not know."""
    from models.kernels import builtin

    if cell.variant.given.kernel == "fused" and not builtin.usable(cell) and (why := unsupported(cell)):
        raise ValueError(f"kernel=fused cannot run with {why}; use kernel=auto or kernel=reference")


def select(cell: LSTMCell | GRUCell, like: Tensor) -> bool:
    """Whether the fused kernel runs ``cell`` on tensors like ``like``. Raises ``RuntimeError`` if it was demanded
    and cannot."""
    obstacle = unsupported(cell)
    if obstacle is None and (own := next(cell.parameters()).dtype) != torch.float32:
        obstacle = f"parameters of {own}"
    return choose(cell.variant.given.kernel, like, obstacle)


def choose(kernel: str, like: Tensor, obstacle: str | None = None) -> bool:
    """Whether a fused operation runs on tensors like ``like``; ``obstacle``: what speaks against it anyway."""
    if kernel == "reference":
        return False
    why = obstacle
    if why is None and like.device.type != "cpu":
        why = f"device {like.device.type}"
    if why is None and like.dtype != torch.float32:
        why = f"dtype {like.dtype}"
    if why is None and torch.is_autocast_enabled("cpu"):
        why = "autocast"
    if why is None and torch.compiler.is_compiling():
        why = "torch.compile, which traces the reference"
    if why is None and build.extension() is None:
        why = f"this machine: {build.failure()}"
    if why is not None and kernel == "fused":
        raise RuntimeError(f"kernel=fused cannot run with {why}; use kernel=auto or kernel=reference")
    return why is None
