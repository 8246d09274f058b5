"""Batches of texts that are stored as word ids, one after the other.

Shapes: W words of all texts, N texts, T time steps, B batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Padded(NamedTuple):
    """Some texts side by side, time first.

    Attributes:
        words_TB: ids, int64, with padding beyond the end of each text.
        lengths_B: steps of each text, int64; where each was to end with a mark, that counts as one of them.
    """

    words_TB: np.ndarray
    lengths_B: np.ndarray


def padded(words: np.ndarray, starts: np.ndarray, numbers_B: np.ndarray, filling: int, marks: int = 0) -> Padded:
    """Some texts as a batch.

    Args:
        words: ids of all texts (W,).
        starts: where each text begins (N + 1,), int64; its end is the start of the next.
        numbers_B: which texts.
        filling: the id that pads.
        marks: how many steps of ``filling`` belong to each text itself, as its end.
    """
    begin_B = starts[numbers_B]
    counts_B = starts[numbers_B + 1] - begin_B
    steps_T1 = np.arange(int(counts_B.max(initial=0)) + marks)[:, None]
    inside_TB = steps_T1 < counts_B
    words_TB = np.full(inside_TB.shape, filling, dtype=np.int64)
    words_TB[inside_TB] = words[(begin_B + steps_T1)[inside_TB]]
    return Padded(words_TB, counts_B + marks)
