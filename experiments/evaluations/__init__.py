"""The five downstream evaluations of section 6.3, for any sentence encoder.

    sets = load_downstream()                       # what is here; says what is missing and how to get it
    for metric, value in run(sets, encode, "fast"):

An encoder is a function from sentences to an array (see ``encoding.Encoder``).
"""

from __future__ import annotations

from typing import NamedTuple

from data.downstream import Downstream, available, load_downstream
from experiments.evaluations.encoding import Encoder, EvaluationError

__all__ = ["METRICS", "PROTOCOLS", "Downstream", "Encoder", "EvaluationError", "Score", "available", "load_downstream",
           "metrics_of", "run"]  # fmt: skip

PROTOCOLS = ("paper", "fast")
# Metric -> unit, which way is better, and what it is: the fields of ``experiments.tasks.base.Metric``, which comes with
# the tasks and so cannot be imported here.
METRICS = {
    "sick_r": ("correlation", "higher", "Pearson correlation with the scores of SICK's test pairs"),
    "sick_rho": ("correlation", "higher", "Spearman correlation with the scores of SICK's test pairs"),
    "sick_mse": ("squared points", "lower", "mean squared error on the scores (1 to 5) of SICK's test pairs"),
    "mr": ("percent", "higher", "accuracy on MR, movie reviews"),
    "cr": ("percent", "higher", "accuracy on CR, customer reviews"),
    "subj": ("percent", "higher", "accuracy on SUBJ, subjective or objective"),
    "mpqa": ("percent", "higher", "accuracy on MPQA, polarity of opinions"),
    "vader_movies": ("percent", "higher", "accuracy on rated movie reviews, where MR is not here"),
    "vader_products": ("percent", "higher", "accuracy on rated product reviews, where CR is not here"),
}


class Score(NamedTuple):
    """One result; ``metric`` is of ``METRICS``."""

    metric: str
    value: float


def metrics_of(sets: Downstream) -> list[str]:
    """The metrics that ``run`` gives on these sets, in its order."""
    there = [*(["sick_r", "sick_rho", "sick_mse"] if sets.sick else []), *(name.lower() for name in sets.labelled)]
    return [name for name in METRICS if name in there]


def run(sets: Downstream, encode: Encoder, protocol: str = "paper", seed: int = 0) -> list[Score]:
    """Evaluates an encoder on all sets that are here.

    Args:
        sets: from ``load_downstream``.
        encode: the encoder.
        protocol: ``paper``, as in the authors' code, or ``fast``, for curves; see the two modules.
        seed: of the initial weights of the layer on SICK. The order of the data is the paper's whatever the seed.

    Raises:
        EvaluationError: the vectors cannot be evaluated.
        ValueError: no such protocol.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol={protocol} must be {' or '.join(PROTOCOLS)}")
    from experiments.evaluations import classification, relatedness  # here: scikit-learn would slow every start

    found: dict[str, float] = {}
    if sets.sick is not None:
        found |= relatedness.evaluate(sets.sick, encode, protocol, seed)._asdict()
    for name, labelled in sets.labelled.items():
        found[name.lower()] = classification.evaluate(labelled, encode, protocol)
    return [Score(metric, found[metric]) for metric in METRICS if metric in found]
