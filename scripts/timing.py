"""Timing side by side: what takes turns with what, and the matrix products that nothing can undercut."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from scripts.measure import synchronize

WARM_UP, LEAST_ROUNDS, MOST_ROUNDS, SECONDS = 2, 7, 50, 15.0
TURN_SECONDS = 0.1
TRIALS = 2  # calls of a product by each library
ATEN = torch.ops.aten
# Operation -> positions of its two factors; the forms with a given place for the result, and in place, too.
PRODUCTS = {
    form: positions
    for product, positions in (("mm", (0, 1)), ("addmm", (1, 2)), ("bmm", (0, 1)), ("baddbmm", (1, 2)))
    for name, kind in ((product, "default"), (product, "out"), (f"{product}_", "default"))
    if (form := getattr(getattr(ATEN, name, None), kind, None)) is not None
}
Product = tuple[Tensor, Tensor]
Multiply = Callable[[Tensor, Tensor, Tensor], Tensor]  # a, b, a place where it may write -> a b


class Recorder(TorchDispatchMode):
    """Collects the factors of every matrix product, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Product] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (positions := PRODUCTS.get(func)) is not None:
            a, b = (args[position] for position in positions)
            self.found.append((a.detach(), b.detach()))
        return func(*args, **(kwargs or {}))


def by_blas(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """The product as ``torch.mm`` and the layers of PyTorch take it, but for ``torch.nn.LSTM``."""
    return (torch.bmm if a.dim() == 3 else torch.mm)(a, b, out=out)


def by_onednn(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """The product as ``torch.nn.LSTM`` takes it; on some processors twice as fast. It makes a place of its own."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")
    return product


def libraries() -> list[Multiply]:
    """What PyTorch can multiply matrices with on a CPU."""
    return [by_blas, by_onednn] if hasattr(torch.ops.mkldnn, "_linear_pointwise") else [by_blas]


class Floor:
    """The matrix products of one step, in their order, on factors of the same shapes and layouts.

    Args:
        products: the pairs of factors.
        device: where.
        by: libraries; each product is given to the one that is fastest at it.

    Attributes:
        count: number of products.
        gflop: multiplications and additions, in units of 1e9.
    """

    def __init__(self, products: Sequence[Product], device: torch.device, by: Sequence[Multiply] = (by_blas,)) -> None:
        self.device, self.count = device, len(products)
        self.gflop = sum(2 * a.numel() * b.shape[-1] for a, b in products) / 1e9
        kept: dict[tuple[Any, ...], tuple[Multiply, Tensor, Tensor, Tensor]] = {}
        self.calls = []
        for a, b in products:
            key = (a.shape, a.stride(), b.shape, b.stride())
            if key not in kept:
                out = torch.empty(*a.shape[:-1], b.shape[-1], device=device)
                factors = _like(a), _like(b), out
                kept[key] = (_fastest(by, factors), *factors)
            self.calls.append(kept[key])

    @torch.no_grad()
    def __call__(self) -> float:
        """Runs them all. Returns seconds."""
        start = time.perf_counter()
        for multiply, a, b, out in self.calls:
            multiply(a, b, out)
        synchronize(self.device)
        return time.perf_counter() - start


@torch.no_grad()
def _fastest(by: Sequence[Multiply], factors: tuple[Tensor, Tensor, Tensor]) -> Multiply:
    """The library with the shortest of a few calls."""

    def seconds(multiply: Multiply) -> float:
        start = time.perf_counter()
        multiply(*factors)
        return time.perf_counter() - start

    return by[0] if len(by) == 1 else min(by, key=lambda multiply: min(seconds(multiply) for _ in range(TRIALS)))


def _like(x: Tensor) -> Tensor:
    """Random values in the layout of ``x``; where that repeats memory (a broadcast), in one of its own."""
    if any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True)):
        return torch.randn(x.shape, device=x.device)
    return torch.empty_strided(x.shape, x.stride(), device=x.device).normal_()


def turns(
    timers: Mapping[str, Callable[[], float]],
    warm_up: int = WARM_UP,
    seconds_at_least: float = SECONDS,
) -> dict[str, list[float]]:
    """Runs the timers in turn, round after round. Returns seconds per call and round, warm-up left out.

    Rounds go on until ``seconds_at_least`` have passed, within ``LEAST_ROUNDS`` and ``MOST_ROUNDS``.

    A turn lasts a tenth of a second, however short the call, and its first call does not count: the caches that the
    others left behind would be what is measured.
    """
    seconds: dict[str, list[float]] = {name: [] for name in timers}
    start = time.perf_counter()
    for number in range(warm_up + MOST_ROUNDS):
        if number == warm_up:
            start = time.perf_counter()
        for name, timer in timers.items():
            first = timer()
            taken = [timer() for _ in range(max(1, int(TURN_SECONDS / first)))] if first < TURN_SECONDS else [first]
            if number >= warm_up:
                seconds[name].append(statistics.fmean(taken))
        if number + 1 >= warm_up + LEAST_ROUNDS and time.perf_counter() - start > seconds_at_least:
            break
    return seconds
