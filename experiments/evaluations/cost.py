"""How long an evaluation takes, from parts of it: the whole of the paper's protocol may take hours.

Encoding, and a search for C, take time in proportion to the number of sentences, so a sample of them tells the rest. On
SICK one round of fitting is timed, on random features of its size.

Shapes: N sentences, D values each, F = 2 D features of a pair.
"""

from __future__ import annotations

import math
import time

import numpy as np

from data.downstream import Downstream
from data.sick import Sick
from experiments.evaluations import classification, relatedness
from experiments.evaluations.encoding import Encoder, vectors

SAMPLE = 1024  # sentences
ROUNDS = 5  # on SICK: ours, about as many as a trained encoder takes
# Searches of the grid for C, and the one more fit that follows ten of them or one.
FIT = 1 / len(classification.GRID)
SEARCHES = {"paper": classification.FOLDS * (classification.FOLDS + FIT), "fast": 1 + FIT}


def seconds(sets: Downstream, encode: Encoder, protocol: str) -> float:
    """About how many seconds ``run`` takes on these sets."""
    found = _sick(sets.sick, encode, protocol) if sets.sick is not None else 0.0
    if not sets.labelled:
        return found
    largest = max(sets.labelled.values(), key=len)
    order = np.random.RandomState(classification.SHUFFLE).permutation(len(largest))[:SAMPLE]
    start = time.perf_counter()
    features_ND = vectors(encode, [largest.sentences[n] for n in order], largest.name)
    encoded = time.perf_counter()
    fit, held = np.split(np.arange(len(order)), [round(len(order) * (1 - 1 / classification.FOLDS))])
    classification.path(classification.with_bias(features_ND), largest.label_N[order], fit, held)
    searched = time.perf_counter()
    each = (encoded - start) + SEARCHES[protocol] * (searched - encoded)
    return found + each * sum(map(len, sets.labelled.values())) / len(order)


def _sick(sick: Sick, encode: Encoder, protocol: str) -> float:
    different = list(dict.fromkeys(sick.sentences()))
    some = different[:: max(1, len(different) // SAMPLE)]
    start = time.perf_counter()
    vectors_ND = encode(some)
    encoded = time.perf_counter()
    random, F = np.random.RandomState(0), 2 * vectors_ND.shape[1]
    train_NF, trial_NF = (random.rand(len(part), F).astype(np.float32) for part in (sick.train, sick.trial))
    one = relatedness.PROTOCOLS[protocol]._replace(gain=math.inf)
    made = time.perf_counter()
    relatedness.fit(train_NF, sick.train.score_N, trial_NF, sick.trial.score_N, one, 0)
    return (encoded - start) * len(different) / len(some) + ROUNDS * (time.perf_counter() - made)
