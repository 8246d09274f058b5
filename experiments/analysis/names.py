"""What norms and arms are called in figures, tables and reports.

An arm is a norm with settings of its own (``norm.arm``), such as BN in the LSTM alone; its name starts with the norm's.
"""

from __future__ import annotations

NAMES = {
    "none": "baseline",
    "bn": "BN",
    "bn_lstm": "BN-LSTM",
    "bn_everywhere": "BN-everywhere",
    "wn": "WN",
    "ln": "LN",
    "ln_gain01": "LN (gain 0.1)",
}  # in the order of legends
LONG = {"bn": "BN: batch", "wn": "WN: weight", "ln": "LN: layer"}


def name(norm: str) -> str:
    """The short name; one that is not known stays as it is."""
    return NAMES.get(norm, norm)


def family(norm: str) -> str:
    """The norm an arm is of: ``bn`` for ``bn_lstm``."""
    return norm.partition("_")[0]
