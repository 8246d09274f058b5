"""Vocabulary expansion (Kiros et al. 2015, section 2.3): vectors for words that a model never saw, by a linear map from
the space of other word vectors to that of the model's own.

Shapes: N words that both spaces have, M words to map, D dimensions of the other space, W of the model's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


@dataclass(frozen=True)
class LinearMap:
    """y = x A + b, with ``matrix_DW`` and ``intercept_W`` in float64."""

    matrix_DW: Array
    intercept_W: Array

    def __call__(self, x_MD: Array) -> Array:
        """The images (M, W) of some vectors, float32."""
        return (x_MD.astype(np.float64) @ self.matrix_DW + self.intercept_W).astype(np.float32)


def least_squares(x_ND: Array, y_NW: Array) -> LinearMap:
    """The map with the least sum of squared errors over the given pairs; an intercept, no regularisation.

    Raises:
        ValueError: fewer pairs than the map has coefficients for each output, D + 1.
    """
    pairs, dimensions = x_ND.shape
    if pairs <= dimensions:
        raise ValueError(
            f"{pairs} words are in both vocabularies, too few for a map from {dimensions} dimensions: it takes "
            f"{dimensions + 1}"
        )
    # About the means the intercept drops out, which also keeps the problem well conditioned.
    x_mean_D, y_mean_W = x_ND.mean(0, dtype=np.float64), y_NW.mean(0, dtype=np.float64)
    matrix_DW, *_ = np.linalg.lstsq(x_ND - x_mean_D, y_NW - y_mean_W, rcond=None)
    return LinearMap(matrix_DW, y_mean_W - x_mean_D @ matrix_DW)
