"""The fused kernels compute what the reference computes: every variant, the paper's shapes, odd shapes, threads."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

from models.kernels import build, fused
from tests.rnnfused import allowed, apart, data, distance, exact, layer_of, run, with_kernel

pytestmark = pytest.mark.skipif(build.extension() is None, reason=f"no fused kernels: {build.failure()}")

# kind, sites, time steps (shortened), batch, inputs, units
PAPER = {
    "reader": ("lstm", None, 4, 64, 240, 240),
    "handwriting": ("lstm", None, 5, 8, 460, 400),
    "draw": ("lstm", None, 3, 128, 356, 256),
    "draw, cell only": ("lstm", "cell", 3, 128, 356, 256),
    "order": ("gru", None, 3, 128, 300, 1024),
    "skip": ("gru", None, 2, 64, 620, 2400),
}
PAPER_RUNS = [(shape, threads) for shape in PAPER if shape != "skip" for threads in (1, 2)]
PAPER_RUNS += [pytest.param("skip", 2, marks=pytest.mark.slow)]  # type: ignore[list-item]  # seconds; the rest is less
SWITCHES: list[dict[str, Any]] = [
    {"kind": "lstm", "norm": "ln", "sites": sites, "per_gate": per_gate, **bias}
    for sites in ("gates+cell", "gates")
    for per_gate in (False, True)
    for bias in (*({"bias_mode": mode} for mode in ("official", "paper", "minimal")), {"bias": False})
]
SWITCHES += [
    {"kind": "lstm", "norm": "ln", "sites": "cell"},
    {"kind": "lstm", "norm": "ln", "sites": "cell", "bias": False},
]
SWITCHES += [
    {"kind": "gru", "norm": "ln", "per_gate": per_gate, **bias}
    for per_gate in (False, True)
    for bias in (*({"bias_mode": mode} for mode in ("official", "paper", "minimal")), {"bias": False})
]
CLIPPED: list[dict[str, Any]] = [
    {"kind": "lstm", "norm": norm, "gate_clip": 0.02, **bias}
    for norm in ("none", "wn")
    for bias in (*({"bias_mode": mode} for mode in ("torch", "official", "paper", "minimal")), {"bias": False})
]
CLIPPED += [
    {"kind": "lstm", "norm": "ln", "sites": sites, "gate_clip": 0.02} for sites in ("gates+cell", "gates", "cell")
]


def name_of(case: Any) -> str:
    return (
        " ".join(str(v) if not isinstance(v, bool) else k for k, v in case.items() if v)
        if isinstance(case, dict)
        else str(case)
    )


@pytest.mark.parametrize(("shape", "threads"), PAPER_RUNS)
def test_it_agrees_with_the_reference_at_the_papers_shapes(shape: str, threads: int) -> None:
    kind, sites, steps, batch, inputs, units = PAPER[shape]
    layer = layer_of(kind, inputs, units, norm="ln", sites=sites)
    x, start = data(layer, steps, batch)
    torch.set_num_threads(threads)
    ours = run(layer, x, start)
    torch.set_num_threads(1)
    off = apart(ours, run(with_kernel(layer, "reference"), x, start))
    assert max(off.values()) < 1e-5, off


@pytest.mark.parametrize("per_gate", [False, True], ids=["stacked", "per gate"])
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("units", [1, 2, 3, 17, 401])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_it_is_as_exact_as_float32_allows_at_odd_shapes(
    kind: str, units: int, steps: int, batch: int, per_gate: bool
) -> None:
    layer = layer_of(kind, 7, units, norm="ln", per_gate=per_gate)
    x, start = data(layer, steps, batch)
    truth = exact(layer, x, start)
    limits = allowed(layer, x, start, None, truth)
    off = distance(run(layer, x, start), truth)
    assert {name: (off[name], limits[name]) for name in off if off[name] > limits[name]} == {}


def agrees(case: dict[str, Any], threads: int, batch: int, padded: bool, both_ways: bool) -> None:
    layer = layer_of(inputs=5, units=37, num_layers=2 if both_ways else 1, bidirectional=both_ways, **case)
    x, start = data(layer, 4, batch)
    lengths = (torch.arange(batch) * 3 % 4 + 1) if padded else None
    torch.set_num_threads(threads)
    with mock.patch("models.rnn.fused.sequence", wraps=fused.sequence) as called:
        ours = run(layer, x, start, lengths)
    torch.set_num_threads(1)
    assert called.call_count == len(layer.cells)
    off = apart(ours, run(with_kernel(layer, "reference"), x, start, lengths))
    assert max(off.values()) < 1e-5, off


@pytest.mark.parametrize(("padded", "both_ways"), [(False, False), (True, True)], ids=["plain", "padded, both ways"])
@pytest.mark.parametrize("case", SWITCHES + CLIPPED, ids=name_of)
def test_it_agrees_with_the_reference_in_every_variant(case: dict[str, Any], padded: bool, both_ways: bool) -> None:
    agrees(case, 1, 5, padded, both_ways)


TWO_THREADS = [SWITCHES[0], SWITCHES[-8], SWITCHES[-3], CLIPPED[1]]


@pytest.mark.parametrize("batch", [1, 5, 41], ids=["one case", "by columns", "by cases"])  # how the work is shared out
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("case", TWO_THREADS, ids=name_of)
def test_it_agrees_with_the_reference_on_two_threads(case: dict[str, Any], padded: bool, batch: int) -> None:
    agrees(case, 2, batch, padded, False)


@pytest.mark.parametrize("case", CLIPPED, ids=name_of)
def test_the_clip_of_these_tests_is_felt(case: dict[str, Any]) -> None:
    x, start = data(layer := layer_of(inputs=5, units=37, **case), 4, 5)
    off = apart(run(layer, x, start), run(layer_of(inputs=5, units=37, **{**case, "gate_clip": 1e9}), x, start))
    assert off["output"] == 0 and off["gradient of x"] > 0.1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_same_numbers_come_out_bit_for_bit_each_time(kind: str, threads: int) -> None:
    torch.set_num_threads(threads)
    layer = layer_of(kind, 30, 50, norm="ln")
    x, start = data(layer, 6, 20)
    first = run(layer, x, start)
    for _ in range(3):
        assert all(torch.equal(t, first[name]) for name, t in run(layer, x, start).items())


def test_inputs_need_not_be_contiguous() -> None:
    for kind in ("lstm", "gru"):
        layer = layer_of(kind, 6, 9, norm="ln", batch_first=True, initial_state="learned")
        x = torch.randn(4, 6, 5).transpose(1, 2)  # neither order of its axes is in memory
        ours, theirs = layer(x)[0], with_kernel(layer, "reference")(x)[0]
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
