"""Initial values of the attentive reader: those of the authors' code, and independent ones of the same kinds.

The authors' functions set numpy's seed to 123 before every draw. So all square matrices that are to be orthogonal (each
gate of both projections of both LSTMs, M and W_d) are one matrix, 0.05 times an orthogonal one, and those that are not
to be (W_q, W_r, W_u and W_m) are one other, whatever the seed of the experiment. At a vocabulary of 65,830 words the
states of an LSTM without a norm start below 1e-4, and the input of an LN below the root of epsilon: the arms do not
start alike.

Shapes: a matrix that maps ``nin`` numbers to ``nout`` is (nout, nin), the authors' transposed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

SEED, SCALE = 123, 0.05


class Init(NamedTuple):
    """How values are drawn.

    Attributes:
        square: n -> an orthogonal matrix (n, n), scaled.
        uniform: (shape, bound) -> values in +-bound.
    """

    square: Callable[[int], Tensor]
    uniform: Callable[[tuple[int, ...], float], Tensor]

    def matrix(self, nin: int, nout: int, ortho: bool) -> Tensor:
        """Orthogonal if it is square and to be so, else uniform +-sqrt(6 / (nin + nout + 1)); (nout, nin)."""
        if ortho and nin == nout:
            return self.square(nin).T.contiguous()
        return self.uniform((nin, nout), math.sqrt(6 / (nin + nout + 1))).T.contiguous()

    def vector(self, n: int) -> Tensor:
        """Uniform +-sqrt(1 / n)."""
        return self.uniform((n,), math.sqrt(1 / n))

    def gates(self, weight_GI: Tensor) -> None:
        """Fills the four stacked blocks of an LSTM's matrix, each drawn as a matrix of its own."""
        for block in weight_GI.chunk(4):
            block.copy_(self.matrix(block.shape[1], block.shape[0], True))


def legacy() -> Init:
    """The authors' draws, float32 as theirs. (How a library's decomposition chooses signs is part of them.)"""

    def uniform(shape: tuple[int, ...], bound: float) -> Tensor:
        return torch.from_numpy(np.random.RandomState(SEED).uniform(-bound, bound, shape).astype(np.float32))

    def square(n: int) -> Tensor:
        bound = math.sqrt(6 / (2 * n + 1))
        left, _, right = np.linalg.svd(np.random.RandomState(SEED).uniform(-bound, bound, (n, n)))
        return torch.from_numpy((SCALE * left @ right.T).astype(np.float32))

    return Init(square, uniform)


def independent(generator: torch.Generator) -> Init:
    """Draws of their own for each matrix, orthogonal ones at scale 1."""

    def uniform(shape: tuple[int, ...], bound: float) -> Tensor:
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)

    def square(n: int) -> Tensor:
        return nn.init.orthogonal_(torch.empty(n, n), generator=generator)

    return Init(square, uniform)
