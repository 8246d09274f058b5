"""Relatedness of two sentences on SICK (section 6.3, Table 3 and Figure 3): a softmax layer on their vectors u and v.

The features are |u - v| and u * v. The score 3.6 is a distribution over the classes 1 … 5 with 0.4 at 3 and 0.6 at 4
(Tai, Socher and Manning, 2015); the layer minimises the cross-entropy against it, with Adam, and the prediction is the
mean of the distribution it gives. It is fitted in rounds until one brings no better Pearson correlation on the trial
pairs; the best round's layer is tested. The training pairs are shuffled once, with the seed 1234.

``paper``: rounds of 100 epochs. ``fast``: of ten, with ten times the learning rate, until one brings less than 0.001.

Shapes: N pairs, D values a sentence, F = 2 D features, K = 5 classes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr
from torch import Tensor

from data.sick import Pairs, Sick
from experiments.evaluations.encoding import Encoder, EvaluationError, vectors
from experiments.rng import generator

CLASSES = 5
SHUFFLE = 1234
BATCH = 128
BETAS, EPSILON = (0.9, 0.999), 1e-8  # Adam's own


class Rounds(NamedTuple):
    """How the layer is fitted: epochs of a round, Adam's learning rate, and the gain below which it ends."""

    epochs: int
    learning_rate: float
    gain: float


# Keras, which the authors used, has the learning rate 1e-3.
PROTOCOLS = {"paper": Rounds(100, 1e-3, 0.0), "fast": Rounds(10, 1e-2, 1e-3)}


class Relatedness(NamedTuple):
    """On the test pairs: Pearson and Spearman correlation, and the mean squared error in points of the scale."""

    sick_r: float
    sick_rho: float
    sick_mse: float


def evaluate(sick: Sick, encode: Encoder, protocol: str, seed: int) -> Relatedness:
    """The three numbers on the test pairs. Raises ``EvaluationError``."""
    vectors_SD = vectors(encode, sick.sentences(), "SICK")
    features, start = [], 0
    for part in sick.parts:
        n = len(part)
        features.append(pair_features(vectors_SD[start : start + n], vectors_SD[start + n : start + 2 * n]))
        start += 2 * n
    order = np.arange(len(sick.train))
    np.random.RandomState(SHUFFLE).shuffle(order)
    layer = fit(
        features[0][order], sick.train.score_N[order], features[1], sick.trial.score_N, PROTOCOLS[protocol], seed
    )
    return measure(predict(*layer, torch.from_numpy(features[2])), sick.test)


def pair_features(first_ND: np.ndarray, second_ND: np.ndarray) -> np.ndarray:
    """|u - v| and u * v, ``(N, 2 D)``."""
    with np.errstate(over="ignore", invalid="ignore"):  # told by ``correlation``
        return np.concatenate([np.abs(first_ND - second_ND), first_ND * second_ND], axis=1)


def soft_targets(score_N: np.ndarray) -> np.ndarray:
    """Distributions over the classes 1 … 5 whose means are the scores, ``(N, K)`` float32."""
    below_N = np.minimum(np.floor(score_N), CLASSES - 1)
    targets_NK = np.zeros((len(score_N), CLASSES), dtype=np.float32)
    rows, place_N = np.arange(len(score_N)), below_N.astype(int) - 1
    targets_NK[rows, place_N] = below_N + 1 - score_N
    targets_NK[rows, place_N + 1] = score_N - below_N
    return targets_NK


@torch.no_grad()
def fit(
    train_NF: np.ndarray, train_N: np.ndarray, trial_NF: np.ndarray, trial_N: np.ndarray, rounds: Rounds, seed: int
) -> tuple[Tensor, Tensor]:
    """Weights ``(K, F)`` and bias ``(K,)`` of the round that is best on the trial pairs.

    Args:
        train_NF: features of the training pairs, in the order they are presented in.
        train_N: their scores.
        trial_NF: features of the trial pairs.
        trial_N: their scores.
        rounds: how it is fitted.
        seed: of the initial weights.

    Raises:
        EvaluationError: the prediction is not finite, or the same for all trial pairs.
    """
    features = torch.from_numpy(train_NF).split(BATCH)
    targets = torch.from_numpy(soft_targets(train_N)).split(BATCH)
    bound = (6 / (train_NF.shape[1] + CLASSES)) ** 0.5  # Glorot's, Keras' default
    weight_KF = torch.empty(CLASSES, train_NF.shape[1]).uniform_(-bound, bound, generator=generator(seed, "sick"))
    bias_K = torch.zeros(CLASSES)
    weight_KF.grad, bias_K.grad = torch.empty_like(weight_KF), torch.empty_like(bias_K)
    optimizer = torch.optim.Adam([weight_KF, bias_K], rounds.learning_rate, BETAS, EPSILON, fused=True)
    best, kept = -1.0, (weight_KF, bias_K)
    trial = torch.from_numpy(trial_NF)
    while True:
        for _ in range(rounds.epochs):
            for x_BF, target_BK in zip(features, targets, strict=True):
                # The gradient of the mean cross-entropy, written out: twice as fast as by autograd.
                error_BK = torch.addmm(bias_K, x_BF, weight_KF.T).softmax(1).sub_(target_BK).div_(len(x_BF))
                torch.mm(error_BK.T, x_BF, out=weight_KF.grad)
                torch.sum(error_BK, 0, out=bias_K.grad)
                optimizer.step()
        found = correlation(predict(weight_KF, bias_K, trial), trial_N, "trial")
        if found > best:
            kept = weight_KF.clone(), bias_K.clone()
        if found <= best + rounds.gain:
            return kept
        best = found


@torch.no_grad()
def predict(weight_KF: Tensor, bias_K: Tensor, features_NF: Tensor) -> np.ndarray:
    """Mean of the predicted distribution, ``(N,)``, 1 … 5, float64."""
    classes_K = torch.arange(1, CLASSES + 1, dtype=torch.float64)
    return (torch.addmm(bias_K, features_NF, weight_KF.T).double().softmax(1) @ classes_K).numpy()


def correlation(predicted_N: np.ndarray, score_N: np.ndarray, part: str) -> float:
    """Pearson's. Raises ``EvaluationError`` where it does not exist, instead of giving NaN or 0."""
    if not np.isfinite(predicted_N).all():
        raise EvaluationError(f"SICK: the predicted scores of the {part} pairs are not finite; scale the vectors down")
    if np.ptp(predicted_N) < 1e-9:
        raise EvaluationError(
            f"SICK: the predicted score is {predicted_N[0]:.3g} for all {part} pairs, so there is no correlation"
        )
    return float(pearsonr(predicted_N, score_N).statistic)


def measure(predicted_N: np.ndarray, pairs: Pairs) -> Relatedness:
    """The three numbers on some pairs. Raises ``EvaluationError``."""
    r = correlation(predicted_N, pairs.score_N, "test")
    rho = float(spearmanr(predicted_N, pairs.score_N).statistic)
    return Relatedness(r, rho, float(np.mean((predicted_N - pairs.score_N) ** 2)))
