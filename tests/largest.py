"""How large the tensors of a computation become."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """Within it, ``most`` is the number of elements of the largest tensor that any operation returned."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.most = max(self.most, out.numel())
        return out
