"""What recurrent layers and cells accept: one line says what is wrong with anything else.

Shapes: T time, B batch, I inputs, H units.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def check_whole(name: str, value: object) -> None:
    """Raises ``ValueError`` unless ``value`` is a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number, 1 or more")


def check_like(name: str, given: object, like: Tensor) -> None:
    """Raises ``ValueError`` unless ``given`` is a tensor of the parameters' device and (without autocast) dtype."""
    if not isinstance(given, Tensor):
        raise ValueError(f"{name} of type {type(given).__name__} must be a tensor")
    if given.device != like.device:
        raise ValueError(f"{name} on {given.device}, but the layer on {like.device}: move one of them")
    if given.dtype != like.dtype and not _autocast(given, like):
        raise ValueError(f"{name} of dtype {given.dtype}, but the layer of {like.dtype}: convert one of them")


def _autocast(given: Tensor, like: Tensor) -> bool:
    """Whether autocast makes up for the difference of two dtypes."""
    lower = (torch.float32, torch.bfloat16, torch.float16)
    return given.dtype in lower and like.dtype in lower and torch.is_autocast_enabled(given.device.type)


def check_lengths(lengths_B: Tensor, x_TBI: Tensor) -> Tensor | None:
    """The lengths as int64, or ``None`` when all are T: nothing is padded then. Raises ``ValueError``."""
    steps, batch = x_TBI.shape[:2]
    if not isinstance(lengths_B, Tensor):
        raise ValueError(f"lengths of type {type(lengths_B).__name__} must be a tensor of int64")
    if lengths_B.shape != (batch,):
        raise ValueError(f"lengths of shape {tuple(lengths_B.shape)} must be ({batch},): one for each case")
    if lengths_B.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"lengths of dtype {lengths_B.dtype} must be int64")
    if lengths_B.device != x_TBI.device or lengths_B.is_meta:
        raise ValueError(f"lengths on {lengths_B.device}, but the input on {x_TBI.device}: move one of them")
    least, most = int(lengths_B.min()), int(lengths_B.max())
    if least < 1 or most > steps:
        raise ValueError(f"lengths from {least} to {most} must lie in 1…{steps}, the number of time steps")
    return None if least == steps else lengths_B.long().contiguous()


class Step:
    """Checks what each step of a time loop is given: ``steps`` at most, of ``batch`` cases each."""

    def __init__(self, cell: Any, steps: int, batch: int) -> None:
        check_whole("steps", steps)
        check_whole("batch", batch)
        self.like, self.steps, self.batch, self.taken = next(cell.parameters()), steps, batch, 0
        self.inputs, self.state = cell.input_size, (batch, cell.hidden_size)
        self.parts = 2 if cell.kind == "lstm" else 1  # of the state

    def check(self, x_BI: Tensor | tuple[Tensor, ...], states: object) -> list[Tensor]:
        """The parts of the input of the next step. Raises ``ValueError``."""
        if not isinstance(states, (tuple, list)) or len(states) != self.parts:
            wanted = "a pair (h, c)" if self.parts == 2 else "a tensor"
            raise ValueError(f"state must be {wanted}; the cell's initial(batch) gives the first one")
        if self.taken >= self.steps:
            raise ValueError(f"begin(steps={self.steps}) was followed by more steps: say how many there will be")
        self.taken += 1
        parts, width = list(x_BI) if isinstance(x_BI, tuple) else [x_BI], 0
        for part in parts:
            check_like("input", part, self.like)
            if part.dim() != 2 or part.shape[0] != self.batch:
                raise ValueError(f"input of shape {tuple(part.shape)} must have two axes: {self.batch} cases, features")
            width += part.shape[1]
        if width != self.inputs:
            raise ValueError(f"input of width {width}, but input_size={self.inputs}")
        for state in states:
            check_like("state", state, self.like)
            if state.shape != self.state:
                raise ValueError(f"state of shape {tuple(state.shape)} must be {self.state}: batch, units")
        return parts
