"""The evaluations of sentence encoders: the protocols against independent computations, and encoders that fail."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.random import RandomState
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.utils import shuffle

from data.downstream import Downstream
from data.fetch import Source
from data.sentence_sets import SentenceSet, labelled
from data.sick import Pairs, Sick
from experiments.evaluations import (
    METRICS,
    EvaluationError,
    classification,
    load_downstream,
    metrics_of,
    relatedness,
    run,
)
from experiments.evaluations.classification import GRID, fitted, nested, single, with_bias
from experiments.evaluations.relatedness import Rounds, fit, measure, pair_features, predict, soft_targets
from tests.commands import ROOT
from tests.sentencedata import mean_of_words, place

REAL = Path(os.environ.get("LN_DATA", "")) / "skip_thoughts" / "downstream"
PATH = classification.path
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="needs the sets: LN_DATA/skip_thoughts/downstream")


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Downstream:
    """All five, small."""
    place(tmp_path / "skip_thoughts" / "downstream", monkeypatch)
    monkeypatch.setenv("LN_DATA", str(tmp_path))
    return load_downstream()


# Relatedness


def noisy_pairs(count: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vectors u and v, and scores that depend on both with noise: a layer with as many weights overfits."""
    random = RandomState(seed)
    u_ND, v_ND = random.standard_normal((2, count, size)).astype(np.float32)
    close_N = (u_ND * v_ND).mean(1) - np.abs(u_ND - v_ND).mean(1)
    return u_ND, v_ND, np.clip(3 + 1.5 * (close_N + 1.1) + random.standard_normal(count), 1, 5).round(1)


def reference_fit(
    x_NF: np.ndarray, score_N: np.ndarray, trial_NF: np.ndarray, trial_N: np.ndarray, weight_FK: np.ndarray
) -> tuple[np.ndarray, list[float]]:
    """The layer by plain numpy in float64: weights of the best round with the bias as last row, and each round's r."""
    target_NK = np.array([[max(0.0, 1 - abs(score - k)) for k in range(1, 6)] for score in score_N])
    x_NG, trial_NG = (np.c_[x, np.ones(len(x))].astype(float) for x in (x_NF, trial_NF))
    w, m, v, t = weight_FK.astype(float), 0.0, 0.0, 0
    best, found = w, [-1.0]
    while True:
        for _ in range(100):
            for start in range(0, len(x_NG), 128):
                x, target = x_NG[start : start + 128], target_NK[start : start + 128]
                p = np.exp(x @ w)
                gradient = x.T @ (p / p.sum(1, keepdims=True) - target) / len(x)
                t += 1
                m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
                w = w - 0.001 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        p = np.exp(trial_NG @ w)
        predicted = (p / p.sum(1, keepdims=True)) @ np.arange(1, 6)
        found.append(np.corrcoef(predicted, trial_N)[0, 1])
        if found[-1] <= max(found[:-1]):
            return best, found[1:]
        best = w


def test_the_layer_is_that_of_an_independent_computation() -> None:
    u, v, score = noisy_pairs(300, 10, seed=1)
    train, trial, test = slice(0, 150), slice(150, 210), slice(210, 300)
    x = pair_features(u, v)
    np.testing.assert_array_equal(x[7], [*np.abs(u[7] - v[7]), *(u[7] * v[7])])
    paper = relatedness.PROTOCOLS["paper"]
    initial = fit(x[train], score[train], x[trial], score[trial], paper._replace(epochs=0), seed=3)
    start = torch.cat([initial[0].T, initial[1][None]]).numpy()
    assert (start[-1] == 0).all() and 0.9 < np.abs(start[:-1]).max() / np.sqrt(6 / (20 + 5)) <= 1
    expected, rounds = reference_fit(x[train], score[train], x[trial], score[trial], start)
    assert len(rounds) > 3, "more than the first round counts"
    weight_KF, bias_K = fit(x[train], score[train], x[trial], score[trial], paper, seed=3)
    np.testing.assert_allclose(torch.cat([weight_KF.T, bias_K[None]]).numpy(), expected, atol=2e-5)
    logits = np.c_[x[test], np.ones(90)] @ expected
    by_hand = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)) @ np.arange(1, 6)
    predicted = predict(weight_KF, bias_K, torch.from_numpy(x[test]))
    np.testing.assert_allclose(predicted, by_hand, atol=1e-5)
    result = measure(predicted, Pairs([], [], score[test]))
    ranks = [np.array([np.mean(a < b) + np.mean(a <= b) for b in a]) for a in (predicted, score[test])]
    assert result.sick_r == pytest.approx(np.corrcoef(by_hand, score[test])[0, 1], abs=1e-5)
    assert result.sick_rho == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-9)
    assert result.sick_mse == pytest.approx(np.mean((by_hand - score[test]) ** 2), abs=1e-5)


def test_soft_targets_have_the_score_as_their_mean() -> None:
    score = np.array([1, 1.3, 2, 3.6, 4.9, 5])
    targets = soft_targets(score)
    np.testing.assert_allclose(targets @ np.arange(1, 6), score, rtol=1e-6)
    np.testing.assert_allclose(targets.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(targets[3], [0, 0, 0.4, 0.6, 0], atol=1e-6)
    assert (targets >= 0).all() and targets[0].tolist() == [1, 0, 0, 0, 0] and targets[5].tolist() == [0, 0, 0, 0, 1]


def sick_of(pairs: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> tuple[Sick, Callable[..., np.ndarray]]:
    """SICK with these vectors as its sentences, and the encoder that knows them."""
    vectors: dict[str, np.ndarray] = {}
    parts = []
    for n, (u, v, score) in enumerate(pairs):
        names = [[f"{side}{n} {i}" for i in range(len(score))] for side in "uv"]
        vectors |= dict(zip(names[0] + names[1], [*u, *v], strict=True))
        parts.append(Pairs(*names, score))
    source = Source("original", "sick", "SICK", "", "")
    return Sick(*parts, source=source), lambda sentences: np.stack([vectors[each] for each in sentences])


def test_training_pairs_are_shuffled_once_as_the_authors_did() -> None:
    pairs = [noisy_pairs(count, 10, seed) for seed, count in enumerate((140, 60, 90))]
    sick, encode = sick_of(pairs)
    found = relatedness.evaluate(sick, encode, "paper", seed=5)
    u, v, score = shuffle(*pairs[0], random_state=1234)
    trial = pair_features(*pairs[1][:2])
    layer = fit(pair_features(u, v), score, trial, pairs[1][2], relatedness.PROTOCOLS["paper"], seed=5)
    assert found == measure(predict(*layer, torch.from_numpy(pair_features(*pairs[2][:2]))), sick.test)
    unshuffled = fit(pair_features(*pairs[0][:2]), pairs[0][2], trial, pairs[1][2], Rounds(100, 1e-3, 0.0), seed=5)
    assert (unshuffled[0] != layer[0]).any()
    assert relatedness.evaluate(sick, encode, "paper", seed=6) != found


# Classification


def two_classes(count: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of length 1 and labels that follow from them with noise, two thirds of them 1."""
    random = RandomState(seed)
    x_ND = random.standard_normal((count, size))
    x_ND /= np.linalg.norm(x_ND, axis=1, keepdims=True)
    return x_ND, (3 * x_ND[:, 0] - 2 * x_ND[:, 1] + random.standard_normal(count) > -0.5).astype(np.int8)


@pytest.mark.parametrize("scale", [1e-3, 1, 30])
@pytest.mark.parametrize("c", [GRID[0], GRID[-1]])
def test_the_solution_is_liblinears(scale: float, c: float) -> None:
    x, y = two_classes(400, 12, seed=0)
    theirs = LogisticRegression(C=c, solver="liblinear", tol=1e-9, max_iter=10_000).fit(scale * x, y)
    expected = np.append(theirs.coef_, theirs.intercept_)
    ours = fitted(with_bias(scale * x), y, c).coef_[0]
    np.testing.assert_allclose(ours, expected, atol=1e-3 * np.abs(expected).max())
    warm = fitted(with_bias(scale * x), y, c, fitted(with_bias(scale * x), y, GRID[4])).coef_[0]
    np.testing.assert_allclose(warm, expected, atol=1e-3 * np.abs(expected).max())


def test_the_grid_is_the_authors() -> None:
    assert list(GRID) == liblinear_grid(KFold(10)).param_grid["C"] and GRID[-1] == 256


def liblinear_grid(folds: KFold | list[tuple[np.ndarray, np.ndarray]]) -> GridSearchCV:
    return GridSearchCV(LogisticRegression(solver="liblinear"), {"C": [2**k for k in range(9)]}, cv=folds)


@pytest.mark.filterwarnings("ignore")  # of what a later scikit-learn will call things
def test_nested_is_a_grid_search_in_a_cross_validation() -> None:
    x, y = two_classes(203, 6, seed=1)
    expected = cross_validate(liblinear_grid(KFold(10)), x, y, cv=KFold(10), return_estimator=True)
    assert nested(with_bias(x), y) == pytest.approx(expected["test_score"].mean(), abs=1e-12)
    chosen = {grid.best_params_["C"] for grid in expected["estimator"]}
    assert len(chosen) > 1, "folds that all pick the same C would not show how it is picked"


@pytest.mark.filterwarnings("ignore")
def test_the_fast_protocol_tests_on_the_last_third(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = two_classes(300, 6, seed=2)
    fit_on, held = np.arange(160), np.arange(160, 200)
    expected = liblinear_grid([(fit_on, held)]).fit(x[:200], y[:200]).score(x[200:], y[200:])
    asked: list[np.ndarray] = []

    def path(x_ND: np.ndarray, label_N: np.ndarray, *parts: np.ndarray) -> list[float]:
        asked.extend(parts)
        return PATH(x_ND, label_N, *parts)

    monkeypatch.setattr(classification, "path", path)
    assert single(with_bias(x), y) == pytest.approx(expected, abs=1e-12)
    assert [part.tolist() for part in asked] == [fit_on.tolist(), held.tolist()]


def test_each_sentence_keeps_its_label_and_blank_ones_are_left_out() -> None:
    x, y = two_classes(210, 6, seed=3)
    order = np.argsort(-y, kind="stable")  # label 1 first, as in the sets
    names = [f"s{n}" for n in order]
    names[7] = names[-2] = ""
    labels = labelled("MR", "", names, int(y.sum()), "original", "")
    asked: list[str] = []

    def encode(sentences: Sequence[str]) -> np.ndarray:
        asked.extend(sentences)
        return np.stack([x[int(each[1:])] for each in sentences]).astype(np.float32)

    kept = [name for name in names if name]
    shuffled = shuffle(kept, random_state=1234)
    rows = [int(name[1:]) for name in shuffled]
    expected = 100 * single(with_bias(x[rows].astype(np.float32)), y[rows])
    assert classification.evaluate(labels, encode, "fast") == expected and asked == shuffled
    assert classification.PROTOCOLS == {"paper": nested, "fast": single}
    everything = {name: int(label) for name, label in zip(names, labels.label_N, strict=True)}
    assert classification.evaluate(labels, lambda s: np.float32([[everything[e]] for e in s]), "fast") == 100


# What every encoder must give


def test_scores_have_the_promised_names(sets: Downstream) -> None:
    encode = mean_of_words(6)
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.rand(()), np.random.rand()
    torch.manual_seed(0)
    np.random.seed(0)
    scores = run(sets, encode, "fast")
    assert [each.metric for each in scores] == metrics_of(sets) == list(METRICS)[:7]
    assert np.isfinite([each.value for each in scores]).all()
    with torch.inference_mode():
        assert run(sets, encode, "fast") == scores
    part = Downstream(sets.sick, {"CR": sets.labelled["CR"]}, {}, sets.source)
    assert [each.metric for each in run(part, encode)] == metrics_of(part) == ["sick_r", "sick_rho", "sick_mse", "cr"]
    assert (torch.rand(()), np.random.rand()) == before, "no randomness of the training is used"
    part = Downstream(None, {"vader_movies": sets.labelled["MR"]}, {}, sets.source)
    assert [each.metric for each in run(part, encode, "fast")] == metrics_of(part) == ["vader_movies"]
    with pytest.raises(ValueError, match="protocol=slow must be paper or fast"):
        run(sets, encode, "slow")


def test_the_example_of_the_readme(sets: Downstream, capsys: pytest.CaptureFixture[str]) -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Sentence encoders")[2]
    exec(section.partition("```python\n")[2].partition("```")[0], {})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == metrics_of(sets)


def spoiled(change: Callable[[np.ndarray], object]) -> Callable[[Sequence[str]], np.ndarray]:
    encode = mean_of_words(6)
    return lambda sentences: change(encode(sentences))  # type: ignore[return-value]


def with_value(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(found_ND: np.ndarray) -> np.ndarray:
        found_ND[2, 1] = value
        return found_ND

    return change


BAD_ENCODERS: dict[str, tuple[Callable[[np.ndarray], object], str]] = {
    "nan": (with_value(np.nan), "gives NaN for 1 of [0-9]+ sentences, first for '[a-z ]+'"),
    "infinite": (with_value(np.inf), "gives an infinite value for 1 of"),
    "constant": (lambda found: np.ones_like(found), "gives one and the same vector for all [0-9]+ sentences"),
    "one vector": (lambda found: found[0], r"gives an array of shape \(6,\) for [0-9]+ sentences, not \("),
    "transposed": (lambda found: found.T, r"gives an array of shape \(6, [0-9]+\) for [0-9]+ sentences"),
    "one less": (lambda found: found[1:], r"gives an array of shape \([0-9]+, 6\) for [0-9]+ sentences"),
    "steps": (lambda found: found[:, None], r"gives an array of shape \([0-9]+, 1, 6\)"),
    "no values": (lambda found: found[:, :0], r"gives an array of shape \([0-9]+, 0\)"),
    "tensor": (torch.from_numpy, "gives a Tensor, not a numpy array"),
    "list": (lambda found: found.tolist(), "gives a list, not a numpy array"),
    "complex": (lambda found: found.astype(complex), "gives complex128, not float32"),
    "text": (lambda found: found.astype(str), "gives <U[0-9]+, not float32"),
    "too large": (lambda found: found.astype(float) * 1e300, "gives an infinite value for"),
}


@pytest.mark.parametrize("case", BAD_ENCODERS)
@pytest.mark.parametrize("name", ["SICK", "CR"])
def test_bad_vectors_are_told_in_one_line(
    sets: Downstream, name: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, what = BAD_ENCODERS[case]
    part = Downstream(sets.sick if name == "SICK" else None, {"CR": sets.labelled["CR"]}, {}, sets.source)
    with pytest.raises(EvaluationError, match=f"^{name}: the encoder {what}") as error:
        run(part, spoiled(change), "fast")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32])
def test_other_precisions_are_evaluated_in_float32_and_told(
    sets: Downstream, dtype: type, caplog: pytest.LogCaptureFixture
) -> None:
    def rounded(found_ND: np.ndarray) -> np.ndarray:
        return (8 * found_ND).round()

    expected = run(sets, spoiled(rounded), "fast")
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert run(sets, spoiled(lambda found: rounded(found).astype(dtype)), "fast") == expected
    assert caplog.messages[0] == f"SICK: the encoder gives {np.dtype(dtype)}; evaluated as float32"


def test_what_has_no_correlation_is_told() -> None:
    u, v, score = noisy_pairs(40, 4, seed=0)
    same = np.float32([[1, 2, 3, 4]])
    pairs = [(u, v, score), (np.repeat(same, 9, 0), np.repeat(2 * same, 9, 0), score[:9])]
    sick, encode = sick_of([*pairs, pairs[0]])
    with pytest.raises(
        EvaluationError, match="^SICK: the predicted score is [0-9.]+ for all trial pairs, so there is no"
    ):
        relatedness.evaluate(sick, encode, "fast", seed=0)
    sick, encode = sick_of([pairs[0], pairs[0], pairs[1]])
    with pytest.raises(EvaluationError, match="^SICK: the predicted score is [0-9.]+ for all test pairs"):
        relatedness.evaluate(sick, encode, "fast", seed=0)
    sick, encode = sick_of([(u * np.float32(1e38), 10 * v, score)] * 3)
    with pytest.raises(EvaluationError, match="^SICK: the predicted scores of the trial pairs are not finite"):
        relatedness.evaluate(sick, encode, "fast", seed=0)


def test_what_does_not_converge_is_told() -> None:
    x, y = two_classes(90, 3, seed=0)
    labels = labelled("CR", "", [f"s{n}" for n in np.argsort(-y, kind="stable")], int(y.sum()), "original", "")
    huge = x.astype(np.float32) * np.float32(1e25)
    with pytest.raises(
        EvaluationError, match="^CR: logistic regression .* values of up to .*e[+]2[45]; scale them down"
    ):
        classification.evaluate(labels, lambda sentences: huge[[int(each[1:]) for each in sentences]], "fast")


# On the real sets


@needs_real
def test_real_scores_of_a_known_encoder() -> None:
    """All five sets and both protocols: any change of data, order, folds, grid or solver moves these numbers."""
    sets = load_downstream()
    known = {"sick_r": 0.6039, "sick_rho": 0.5780, "sick_mse": 0.6511}
    accuracies = {"mr": 57.57, "cr": 68.66, "subj": 70.51, "mpqa": 69.95}
    scores = {each.metric: each.value for each in run(sets, mean_of_words(64), "fast")}
    assert {name: scores[name] for name in known} == pytest.approx(known, abs=0.002)
    assert {name: scores[name] for name in accuracies} == pytest.approx(accuracies, abs=0.15)
    small = Downstream(None, {"CR": sets.labelled["CR"]}, {}, sets.source)
    assert run(small, mean_of_words(16), "paper")[0].value == pytest.approx(64.97, abs=0.1)


@needs_real
@pytest.mark.parametrize("name,accuracy", [("MR", 75.01), ("CR", 77.65), ("SUBJ", 89.44), ("MPQA", 84.89)])
def test_real_scores_of_a_bag_of_words(name: str, accuracy: float) -> None:
    """Which words there are, as features: sets with these accuracies are the ones that the literature knows."""
    found: SentenceSet = load_downstream().labelled[name]
    kept = [n for n, text in enumerate(found.sentences) if text]
    texts, label_N = shuffle([found.sentences[n] for n in kept], found.label_N[kept], random_state=1234)
    known = CountVectorizer(token_pattern=r"\S+", binary=True, dtype=float)
    features = sparse.hstack([known.fit_transform(texts), np.ones((len(texts), 1))]).tocsr()
    assert 100 * single(features, label_N) == pytest.approx(accuracy, abs=0.15)
