"""LSTM and GRU with none, BN, WN and LN in float64 NumPy, written from the equations and not from the models.

A ``Recipe`` says what is normalised where, with which biases. Parameters have names of their own:

    W (G, I), U (G, H)    weights; under WN vW, gW, vU, gU instead: w = g v / ||v|| row by row
    b, b2 (G)             bias; the framework's second one, added to U h
    sx, bx, sh, bh (G)    gain and bias of the norm of W x and of U h (joint: sx and bx alone)
    sc, bc (H)            gain and bias of the norm of the LSTM's cell

Gates stand in the order i, f, g, o (LSTM) and r, z, n (GRU). Shapes: T time, B batch, I inputs, H units, G gates x
units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class Recipe:
    """What to compute; ``bias_mode`` is torch, official, paper, minimal or without."""

    kind: str
    norm: str
    sites: str = "none"
    bias_mode: str = "torch"
    joint: bool = False
    per_gate: bool = False
    eps: float = 1e-5
    eps_mode: str = "sqrt"
    unbiased: bool = False  # BN: the estimator of the variance used for normalising
    # BN: (site, step) -> mean and variance to normalise with; None: those of the running cases of the batch.
    population: Callable[[str, int], tuple[Array, Array]] | None = None
    # BN: (site, step) -> mean and unbiased variance that the batch had.
    seen: dict[tuple[str, int], tuple[Array, Array]] = field(default_factory=dict)

    def gate_groups(self, units: int) -> Iterable[slice]:
        """Features that are normalised together at the gates."""
        if self.per_gate:
            ends = [units] * (4 if self.kind == "lstm" else 3)
        else:
            ends = [4 * units] if self.kind == "lstm" else [2 * units, units]
        starts = np.cumsum([0, *ends])
        return [slice(int(a), int(b)) for a, b in zip(starts[:-1], starts[1:], strict=True)]


def sigmoid(a: Array) -> Array:
    return (1 + np.tanh(a / 2)) / 2


def layer_norm(a: Array, eps: float, eps_mode: str) -> Array:
    """Eq. 3: over the last axis, biased variance; the three denominators are those of the authors' code."""
    mean = a.sum(-1, keepdims=True) / a.shape[-1]
    var = ((a - mean) ** 2).sum(-1, keepdims=True) / a.shape[-1]
    under = {"sqrt": np.sqrt(var + eps), "outside": np.sqrt(var) + eps, "var": var + eps}[eps_mode]
    return (a - mean) / under


def batch_norm(a: Array, running: NDArray[np.bool_], recipe: Recipe, site: str, t: int) -> Array:
    """Over the cases that still run, or with given statistics."""
    cases = a[running]
    count = max(len(cases), 1)
    mean = cases.sum(0) / count
    var = ((cases - mean) ** 2).sum(0) / count
    unbiased = ((cases - mean) ** 2).sum(0) / max(count - 1, 1)
    if len(cases):
        recipe.seen[site, t] = (mean, unbiased)
    if recipe.population is not None:
        mean, var = recipe.population(site, t)
    elif recipe.unbiased:
        var = unbiased
    return (a - mean) / np.sqrt(var + recipe.eps)


class Site:
    """The norm at W x (``x``), U h (``h``) or the cell (``c``), for some of its features."""

    def __init__(self, name: str, recipe: Recipe, p: dict[str, Array], units: int) -> None:
        self.name, self.recipe, self.p = name, recipe, p
        self.groups = [slice(0, units)] if name == "c" else list(recipe.gate_groups(units))

    def __call__(
        self, a: Array, t: int, running: NDArray[np.bool_], only: Callable[[slice], bool] = lambda _: True
    ) -> Array:
        """Normalises ``a`` group by group; ``only`` picks the groups that ``a`` holds."""
        groups = [group for group in self.groups if only(group)]
        first = groups[0].start
        out = np.empty_like(a)
        for group in groups:
            here = slice(group.start - first, group.stop - first)
            if self.recipe.norm == "ln":
                normal = layer_norm(a[:, here], self.recipe.eps, self.recipe.eps_mode)
            else:
                normal = batch_norm(a[:, here], running, self.recipe, f"{self.name}{group.start}", t)
            out[:, here] = normal * self.p[f"s{self.name}"][group]
            if f"b{self.name}" in self.p:
                out[:, here] += self.p[f"b{self.name}"][group]
        return out


def weight(p: dict[str, Array], name: str) -> Array:
    """W or U; under WN each row v is scaled to length g."""
    if name in p:
        return p[name]
    g, v = p[f"g{name}"], p[f"v{name}"]
    return np.stack([g[row] * v[row] / np.sqrt((v[row] ** 2).sum()) for row in range(len(v))])


def biases(recipe: Recipe, p: dict[str, Array], features: int) -> tuple[Array, Array, Array]:
    """What is added to W x, to U h, and outside the norms."""
    zero, b = np.zeros(features), p.get("b", np.zeros(features))
    lstm = recipe.kind == "lstm"
    return {
        "torch": (b, p.get("b2", zero), zero),
        "official": (b, zero, b if lstm else zero),
        "paper": (zero, zero, b if lstm else zero),
        "minimal": (zero, zero, b),
        "without": (zero, zero, zero),
    }[recipe.bias_mode]


def lstm(
    x: Array, h: Array, c: Array, p: dict[str, Array], recipe: Recipe, lengths: list[int] | None = None
) -> tuple[Array, Array, Array]:
    """Eq. 20-22 (cell alone: eq. 31). Returns outputs (T, B, H), 0 beyond a length, and the last h and c."""
    W, U, H = weight(p, "W"), weight(p, "U"), h.shape[1]
    inner, recurrent, outer = biases(recipe, p, 4 * H)
    gates, read_out = "gates" in recipe.sites, "cell" in recipe.sites
    nx, nh, nc = (Site(name, recipe, p, H) for name in "xhc")
    outputs = np.zeros((len(x), *h.shape))
    for t in range(len(x)):
        running = np.array([lengths is None or t < lengths[b] for b in range(len(h))])
        from_x, from_h = x[t] @ W.T + inner, h @ U.T + recurrent
        if not gates:
            z = from_x + from_h
        elif recipe.joint:
            z = nx(from_x + from_h, t, running)
        else:
            z = nx(from_x, t, running) + nh(from_h, t, running)
        z = z + outer
        i, f, g, o = z[:, :H], z[:, H : 2 * H], z[:, 2 * H : 3 * H], z[:, 3 * H :]
        c_new = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h_new = sigmoid(o) * np.tanh(nc(c_new, t, running) if read_out else c_new)
        c, h = np.where(running[:, None], c_new, c), np.where(running[:, None], h_new, h)
        outputs[t, running] = h[running]
    return outputs, h, c


def gru(
    x: Array, h: Array, p: dict[str, Array], recipe: Recipe, lengths: list[int] | None = None
) -> tuple[Array, Array]:
    """Eq. 26-28 with the update gate z = 1 - the paper's. Returns outputs (T, B, H) and the last h."""
    W, U, H = weight(p, "W"), weight(p, "U"), h.shape[1]
    inner, recurrent, outer = biases(recipe, p, 3 * H)
    norms = "gates" in recipe.sites
    nx, nh = (Site(name, recipe, p, H) for name in "xh")
    outputs = np.zeros((len(x), *h.shape))
    for t in range(len(x)):
        running = np.array([lengths is None or t < lengths[b] for b in range(len(h))])
        from_x, from_h = x[t] @ W.T + inner, h @ U.T + recurrent
        if norms and not recipe.joint:
            from_x, from_h = nx(from_x, t, running), nh(from_h, t, running)
        both = from_x[:, : 2 * H] + from_h[:, : 2 * H]
        if recipe.joint:
            both = nx(both, t, running, lambda group: group.start < 2 * H)
        both = sigmoid(both + outer[: 2 * H])
        r, z = both[:, :H], both[:, H:]
        candidate = from_x[:, 2 * H :] + r * from_h[:, 2 * H :]
        if recipe.joint:
            candidate = nx(candidate, t, running, lambda group: group.start >= 2 * H)
        n = np.tanh(candidate + outer[2 * H :])
        h = np.where(running[:, None], (1 - z) * n + z * h, h)
        outputs[t, running] = h[running]
    return outputs, h
