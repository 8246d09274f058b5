"""What every evaluation asks of a sentence encoder, and the one line that says where it falls short.

Shapes: N sentences, D values each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from experiments.runs import RunError

log = logging.getLogger("suite")

# Sentences as they stand in their file -> their vectors (N, D), finite, float32, those of equal sentences equal.
Encoder = Callable[[Sequence[str]], np.ndarray]


class EvaluationError(RunError):
    """The vectors of an encoder cannot be evaluated; one line saying on which set and why."""


def vectors(encode: Encoder, sentences: Sequence[str], where: str) -> np.ndarray:
    """Vectors ``(N, D)`` of all sentences, float32. Each different sentence is encoded once, all in one call.

    Raises:
        EvaluationError: not one finite vector a sentence, or the same for all of them.
    """
    different = list(dict.fromkeys(sentences))
    row = {sentence: n for n, sentence in enumerate(different)}
    found_ND = _checked(encode(different), len(different), where)
    bad = np.flatnonzero(~np.isfinite(found_ND).all(1))
    if len(bad):
        what = "NaN" if np.isnan(found_ND[bad[0]]).any() else "an infinite value"
        raise EvaluationError(
            f"{where}: the encoder gives {what} for {len(bad):,} of {len(different):,} sentences, first for "
            f"{different[bad[0]][:60]!r}"
        )
    if (found_ND == found_ND[0]).all():
        raise EvaluationError(
            f"{where}: the encoder gives one and the same vector for all {len(different):,} sentences"
        )
    return found_ND[[row[sentence] for sentence in sentences]]


def _checked(given: object, count: int, where: str) -> np.ndarray:
    """What the encoder gave, if it is a matrix of numbers with ``count`` rows, as float32."""
    if not isinstance(given, np.ndarray):
        raise EvaluationError(f"{where}: the encoder gives a {type(given).__name__}, not a numpy array")
    if given.ndim != 2 or len(given) != count or not given.shape[1]:
        raise EvaluationError(
            f"{where}: the encoder gives an array of shape {given.shape} for {count:,} sentences, "
            f"not ({count}, values a sentence)"
        )
    if given.dtype == np.float32:
        return given
    if given.dtype.kind not in "fiu":
        raise EvaluationError(f"{where}: the encoder gives {given.dtype}, not float32")
    log.warning("%s: the encoder gives %s; evaluated as float32", where, given.dtype)
    with np.errstate(over="ignore"):  # becomes infinite, which is told
        return given.astype(np.float32)
