"""Classification of sentences by logistic regression on their vectors: MR, CR, SUBJ, MPQA (section 6.3, Table 3).

``paper``: ten outer folds; in each an inner ten-fold cross-validation on the training part picks C from 2^0 … 2^8 by
its mean accuracy. ``fast``: the first two thirds train, the rest tests, and C is picked once, on the last fifth of the
training part. In both the sentences are shuffled with the seed 1234 and folds are contiguous, as in the authors' code,
which leaves blank sentences out.

Shapes: N sentences, D values each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold

from data.sentence_sets import SentenceSet
from experiments.evaluations.encoding import Encoder, EvaluationError, vectors

SHUFFLE = 1234
FOLDS = 10
GRID = tuple(2.0**k for k in range(9))
FAST_TRAIN = 2 / 3
FAST_VALID = 1 / 5  # of the training part
TOLERANCE = 1e-4  # of the derivatives by the weights, relative to those where only the bias is fitted
SMALLEST = 1e-12


def evaluate(labelled: SentenceSet, encode: Encoder, protocol: str) -> float:
    """Accuracy in percent. Raises ``EvaluationError``."""
    kept = [n for n, sentence in enumerate(labelled.sentences) if sentence]
    order = np.array(kept)
    np.random.RandomState(SHUFFLE).shuffle(order)
    features_ND = vectors(encode, [labelled.sentences[n] for n in order], labelled.name)
    label_N = labelled.label_N[order]
    try:
        return 100 * PROTOCOLS[protocol](with_bias(features_ND), label_N)
    except EvaluationError as error:
        raise EvaluationError(f"{labelled.name}: {error}") from None


def with_bias(features_ND: np.ndarray) -> np.ndarray:
    """The features in float64 with a column of ones: liblinear penalises the bias like any weight."""
    ones_N1 = np.ones((len(features_ND), 1))
    return np.concatenate([features_ND, ones_N1], axis=1, dtype=np.float64)


def nested(features_ND: np.ndarray, label_N: np.ndarray, folds: int = FOLDS) -> float:
    """Mean accuracy over the outer folds, C picked by an inner cross-validation in each."""
    accuracies = []
    for train, test in KFold(folds).split(features_ND):
        x_ND, y_N = features_ND[train], label_N[train]
        inner = [path(x_ND, y_N, fit, held) for fit, held in KFold(folds).split(x_ND)]
        # The first of equals, the smallest C.
        best = GRID[int(np.argmax(np.mean(inner, axis=0)))]
        model = fitted(x_ND, y_N, best)
        accuracies.append(model.score(features_ND[test], label_N[test]))
    return float(np.mean(accuracies))


def single(features_ND: np.ndarray, label_N: np.ndarray) -> float:
    """Accuracy on the last third, C picked on a part of the rest."""
    split = round(len(label_N) * FAST_TRAIN)
    x_ND, y_N = features_ND[:split], label_N[:split]
    numbers = np.arange(split)
    held = round(split * (1 - FAST_VALID))
    best = GRID[int(np.argmax(path(x_ND, y_N, numbers[:held], numbers[held:])))]
    return float(fitted(x_ND, y_N, best).score(features_ND[split:], label_N[split:]))


def path(features_ND: np.ndarray, label_N: np.ndarray, fit: np.ndarray, held: np.ndarray) -> list[float]:
    """Accuracy on ``held`` for each C of the grid; each fit starts at the one before."""
    x_ND, y_N = features_ND[fit], label_N[fit]
    held_ND, held_N = features_ND[held], label_N[held]
    model, accuracies = None, []
    for c in GRID:
        model = fitted(x_ND, y_N, c, model)
        accuracies.append(float(model.score(held_ND, held_N)))
    return accuracies


def fitted(
    features_ND: np.ndarray, label_N: np.ndarray, c: float, start: LogisticRegression | None = None
) -> LogisticRegression:
    """The minimum of ||w||^2 / 2 + C sum log(1 + exp(-y w x)), which is liblinear's, by another solver.

    Newton's method with conjugate gradients takes a tenth of liblinear's time on dense features.

    Args:
        features_ND: with the column of ones.
        label_N: 0 or 1.
        c: C.
        start: a model to start from, which is changed.
    """
    # scikit-learn's tolerance is absolute: of the largest derivative of the mean over the sentences.
    derivative_D = (label_N - label_N.mean()) @ features_ND[:, :-1] / len(label_N)
    tolerance = TOLERANCE * min(max(float(np.abs(derivative_D).max()), SMALLEST), 1.0)
    model = start or LogisticRegression(solver="newton-cg", fit_intercept=False, warm_start=True, max_iter=1000)
    model.set_params(C=c, tol=tolerance)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(features_ND, label_N)
    if any(issubclass(each.category, ConvergenceWarning) or "Search failed" in str(each.message) for each in told):
        largest = float(np.abs(features_ND).max())
        raise EvaluationError(
            f"logistic regression with C={c:g} does not converge on vectors with values of up to {largest:.3g}; "
            "scale them down"
        )
    return model


PROTOCOLS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {"paper": nested, "fast": single}
