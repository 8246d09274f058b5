"""The attentive reader in float64 NumPy, one case at a time where cases do not meet, written from the equations.

Parameters are a dict under names of their own; matrices map a row vector from the left: x @ W.

    E (V, W)                                    embedding
    d.W, d.U, d.b, d.h0 (passage), q.… (query)  LSTM; gates in the order i, f, o, g
    d.sx, d.sh, d.sc, d.bx, d.bh, d.bc          gains and biases of the norms of x W, h U and the cell
    Wd, bd, Wq, M, v                            attention
    Wr, Wu, bu, Wm (or none), Wo, bo            answer
    s.<matrix>                                  BN-everywhere: gain of that matrix' layer; bd and bu are its biases

Shapes: T time, B batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
EPS = 1e-5


@dataclass
class Recipe:
    """norm: none, ln or bn; everywhere: BN around the LSTMs too; included: padding counts in BN's statistics."""

    norm: str = "none"
    everywhere: bool = False
    included: bool = True
    official: bool = True  # the bias inside and outside; else outside only


def sigmoid(a: Array) -> Array:
    return 1 / (1 + np.exp(-a))


def over_cases(a_NF: Array, counted_N: Array) -> Array:
    """BN with the statistics of the counted cases."""
    cases = a_NF[counted_N.astype(bool)]
    mean = cases.mean(0)
    return (a_NF - mean) / np.sqrt(((cases - mean) ** 2).mean(0) + EPS)


def over_features(a: Array) -> Array:
    return (a - a.mean()) / np.sqrt(((a - a.mean()) ** 2).mean() + EPS)


def lstm_alone(x_TW: Array, p: dict[str, Array], name: str, recipe: Recipe) -> Array:
    """States (T, H) of one case, without BN."""
    get = lambda key: p[f"{name}.{key}"]  # noqa: E731
    h, units = get("h0"), len(get("h0"))
    c, states = np.zeros(units), []
    for x in x_TW:
        first, second = x @ get("W") + (get("b") if recipe.official else 0), h @ get("U")
        if recipe.norm == "ln":
            first = over_features(first) * get("sx") + p.get(f"{name}.bx", 0)
            second = over_features(second) * get("sh") + p.get(f"{name}.bh", 0)
        i, f, o, g = np.split(first + second + get("b"), 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        shown = over_features(c) * get("sc") + get("bc") if recipe.norm == "ln" else c
        h = sigmoid(o) * np.tanh(shown)
        states.append(h)
    return np.array(states)


def lstm_together(x_TBW: Array, lengths: list[int], p: dict[str, Array], name: str, recipe: Recipe) -> Array:
    """States (T, B, H) under BN; a case that has ended keeps its state."""
    get = lambda key: p[f"{name}.{key}"]  # noqa: E731
    steps, batch, _ = x_TBW.shape
    h = np.tile(get("h0"), (batch, 1))
    c, states = np.zeros_like(h), []
    for t in range(steps):
        runs = np.array([t < length for length in lengths])
        counted = np.ones(batch) if recipe.included else runs
        if not counted.any():  # nobody is left: no statistics, and nothing changes
            states.append(h)
            continue
        z = over_cases(x_TBW[t] @ get("W"), counted) * get("sx") + over_cases(h @ get("U"), counted) * get("sh")
        i, f, o, g = np.split(z + get("b"), 4, axis=1)
        c = np.where(runs[:, None], sigmoid(f) * c + sigmoid(i) * np.tanh(g), c)
        new = sigmoid(o) * np.tanh(over_cases(c, counted) * get("sc") + get("bc"))
        h = np.where(runs[:, None], new, h)
        states.append(h)
    return np.array(states)


def encode(words_TB: Array, lengths: list[int], p: dict[str, Array], name: str, recipe: Recipe, scale: float) -> Array:
    """States (T, B, H); beyond a length, the last one."""
    x_TBW = p["E"][words_TB] * scale
    if recipe.norm == "bn":
        return lstm_together(x_TBW, lengths, p, name, recipe)
    states_TBH = np.zeros((*words_TB.shape, len(p[f"{name}.h0"])))
    for b, length in enumerate(lengths):
        states_TBH[:length, b] = lstm_alone(x_TBW[:length, b], p, name, recipe)
        states_TBH[length:, b] = states_TBH[length - 1, b]
    return states_TBH


def reader(
    passage_TB: Array, lengths: list[int], query_TB: Array, query_lengths: list[int], p: dict[str, Array],
    recipe: Recipe, scale: float = 1.0,
) -> tuple[Array, Array]:  # fmt: skip
    """Logits (B, V) and attention (T, B). ``scale``: of embedded words and of g, that of dropout in evaluation."""
    h_TBH = encode(passage_TB, lengths, p, "d", recipe, scale)
    u_BH = encode(query_TB, query_lengths, p, "q", recipe, scale)[-1]
    steps, batch, units = h_TBH.shape

    def layer(a_NF: Array, matrix: str, bias: str | None = None, counted_N: Array | None = None) -> Array:
        out = a_NF @ p[matrix]
        if recipe.everywhere:
            out = over_cases(out, np.ones(len(out)) if counted_N is None else counted_N) * p[f"s.{matrix}"]
        return out + (p[bias] if bias else 0)

    inside_TB = np.array([[t < length for length in lengths] for t in range(steps)])
    counted = None if recipe.included else inside_TB.reshape(-1)
    from_passage = layer(h_TBH.reshape(-1, units), "Wd", "bd", counted).reshape(h_TBH.shape)
    from_query = layer(u_BH, "Wq")
    weight_TB, r, mean = np.zeros((steps, batch)), np.zeros((batch, units)), np.zeros((batch, units))
    for b, length in enumerate(lengths):
        scores = [
            p["v"] @ np.tanh(from_passage[t, b] + from_query[b] + (h_TBH[t, b] @ p["M"]) @ (u_BH[b] @ p["M"]))
            for t in range(length)
        ]
        shares = np.exp(np.array(scores) - max(scores))
        weight_TB[:length, b] = shares / shares.sum()
        r[b] = weight_TB[:, b] @ h_TBH[:, b]
        mean[b] = h_TBH[:length, b].mean(0)
    summed = layer(r, "Wr") + layer(u_BH, "Wu", "bu")
    if "Wm" in p:
        summed = summed + layer(mean, "Wm")
    return np.tanh(summed) * scale @ p["Wo"] + p["bo"], weight_TB


def loss(logits_BV: Array, answers: list[int]) -> float:
    """Mean of -log(p + 1e-8)."""
    total = 0.0
    for logits, answer in zip(logits_BV, answers, strict=True):
        p = np.exp(logits - logits.max())
        total -= np.log(p[answer] / p.sum() + 1e-8)
    return total / len(answers)
