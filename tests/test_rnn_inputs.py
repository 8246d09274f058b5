"""What the recurrent layers refuse, each in one line that says what to do, and what a NaN does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from models.kernels import build as kernels
from models.norm import Norm
from models.recurrent_norm import StepBatchNorm
from models.rnn import GRU, LSTM, GRUCell, LSTMCell, State
from tests.rnncases import random

T, B, INPUTS, H = 4, 3, 5, 6
BOTH: tuple[type[LSTM] | type[GRU], ...] = (LSTM, GRU)
CELLS: tuple[type[LSTMCell] | type[GRUCell], ...] = (LSTMCell, GRUCell)


def refused(message: str, call: Any) -> None:
    """The whole message, on one line."""
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == message


def zeros(*shape: int, **kwargs: Any) -> torch.Tensor:
    return torch.zeros(shape, **kwargs)


X = zeros(T, B, INPUTS)
INPUT = {
    "rank": (zeros(T, INPUTS), f"input of shape ({T}, {INPUTS}) must have three axes: time, batch and features"),
    "width": (zeros(T, B, 7), "input of width 7, but input_size=5"),
    "no step": (zeros(0, B, INPUTS), "input of shape (0, 3, 5) is empty: give at least one step and one case"),
    "no case": (zeros(T, 0, INPUTS), "input of shape (4, 0, 5) is empty: give at least one step and one case"),
    "dtype": (X.double(), "input of dtype torch.float64, but the layer of torch.float32: convert one of them"),
    "integers": (X.long(), "input of dtype torch.int64, but the layer of torch.float32: convert one of them"),
    "device": (X.to("meta"), "input on meta, but the layer on cpu: move one of them"),
    "packed": (pack_sequence([zeros(2, INPUTS)]), "input of type PackedSequence must be a tensor"),
    "list": ([1.0], "input of type list must be a tensor"),
}  # fmt: skip


@pytest.mark.parametrize("what", INPUT)
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("norm", ["none", "ln"])
def test_inputs_that_do_not_fit(kind: type[LSTM] | type[GRU], norm: str, what: str) -> None:
    x, message = INPUT[what]
    refused(message, lambda: kind(INPUTS, H, norm=norm)(x))


def int64(*values: int) -> torch.Tensor:
    return torch.tensor(values)


LENGTHS = {
    "zero": (int64(4, 0, 2), "lengths from 0 to 4 must lie in 1…4, the number of time steps"),
    "negative": (int64(4, -1, 2), "lengths from -1 to 4 must lie in 1…4, the number of time steps"),
    "beyond": (int64(5, 1, 2), "lengths from 1 to 5 must lie in 1…4, the number of time steps"),
    "too few": (int64(4, 1), "lengths of shape (2,) must be (3,): one for each case"),
    "a column": (int64(4, 1, 2)[:, None], "lengths of shape (3, 1) must be (3,): one for each case"),
    "floats": (torch.tensor([4.0, 1, 2]), "lengths of dtype torch.float32 must be int64"),
    "a mask": (torch.tensor([True, True, False]), "lengths of dtype torch.bool must be int64"),
    "device": (int64(4, 1, 2).to("meta"), "lengths on meta, but the input on cpu: move one of them"),
    "list": ([4, 1, 2], "lengths of type list must be a tensor of int64"),
}


@pytest.mark.parametrize("what", LENGTHS)
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("norm", ["none", "ln"])
def test_lengths_that_do_not_fit(kind: type[LSTM] | type[GRU], norm: str, what: str) -> None:
    lengths, message = LENGTHS[what]
    refused(message, lambda: kind(INPUTS, H, norm=norm)(X, None, lengths))


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("norm", ["none", "ln"])
def test_lengths_may_be_unsorted_int32_or_all_full(kind: type[LSTM] | type[GRU], norm: str) -> None:
    layer, x = kind(INPUTS, H, norm=norm), random(T, B, INPUTS, dtype=torch.float32)
    output, _ = layer(x, None, int64(2, 4, 1))
    assert torch.equal(output, layer(x, None, int64(2, 4, 1).int())[0])
    order = [1, 0, 2]  # sorted, longest first
    torch.testing.assert_close(output[:, order], layer(x[:, order], None, int64(4, 2, 1))[0])
    torch.testing.assert_close(layer(x, None, int64(4, 4, 4))[0], layer(x)[0], rtol=0, atol=0)


def test_states_that_do_not_fit() -> None:
    good, bad = zeros(1, B, H), zeros(B, H)
    where = "must be (1, 3, 6): layers x directions, batch, units"
    for norm in ("none", "ln"):
        lstm, gru = LSTM(INPUTS, H, norm=norm), GRU(INPUTS, H, norm=norm)
        refused(f"initial h of shape (3, 6) {where}", lambda gru=gru: gru(X, bad))
        refused(f"initial h of shape (3, 6) {where}", lambda lstm=lstm: lstm(X, (bad, good)))
        refused(f"initial c of shape (3, 6) {where}", lambda lstm=lstm: lstm(X, (good, bad)))
        refused(f"initial h of shape (2, 3, 6) {where}", lambda gru=gru: gru(X, zeros(2, B, H)))
        refused("the initial state of an LSTM must be a pair (h, c)", lambda lstm=lstm: lstm(X, good))
        refused("initial h of type tuple must be a tensor", lambda gru=gru: gru(X, (good, good)))
        refused("initial c of dtype torch.float64, but the layer of torch.float32: convert one of them",
                lambda lstm=lstm: lstm(X, (good, good.double())))  # fmt: skip
        refused("initial h on meta, but the layer on cpu: move one of them", lambda gru=gru: gru(X, good.to("meta")))


@pytest.mark.parametrize("kernel", ["auto", "reference"])
@pytest.mark.parametrize("kind", CELLS)
def test_steps_that_do_not_fit(kind: type[LSTMCell] | type[GRUCell], kernel: str) -> None:
    cell = kind(INPUTS, H, norm="ln", kernel=kernel)
    state: Any = cell.initial(B)
    wide: Any = State(zeros(B, 9), zeros(B, 9)) if kind is LSTMCell else zeros(B, 9)
    few: Any = State(zeros(1, H), zeros(1, H)) if kind is LSTMCell else zeros(1, H)
    x = zeros(B, INPUTS)
    for step in (cell.begin(9, B), cell):
        refused("input of width 9, but input_size=5", lambda step=step: step(zeros(B, 9), state))
        refused("input of dtype torch.float64, but the layer of torch.float32: convert one of them",
                lambda step=step: step(x.double(), state))  # fmt: skip
        refused("state of shape (3, 9) must be (3, 6): batch, units", lambda step=step: step(x, wide))
        refused("state of shape (1, 6) must be (3, 6): batch, units", lambda step=step: step(x, few))
        refused("input of shape (3, 1, 5) must have two axes: 3 cases, features",
                lambda step=step: step(x[:, None], state))  # fmt: skip
    refused("input of shape (1, 5) must have two axes: 3 cases, features", lambda: cell.begin(9, B)(x[:1], state))
    parts = (x[:, :1], x[:, 2:])
    refused("input of width 4, but input_size=5", lambda: cell.begin(9, B)(parts, state))


CONSTRUCTION: dict[str, tuple[type[LSTM] | type[GRU], dict[str, Any], str]] = {
    "norm": (LSTM, {"norm": "layer"}, "norm 'layer' is unknown; choose one of {norms}"),
    "units": (LSTM, {"hidden_size": 0}, "hidden_size=0 must be a whole number, 1 or more"),
    "inputs": (GRU, {"input_size": -1}, "input_size=-1 must be a whole number, 1 or more"),
    "layers": (GRU, {"num_layers": 0}, "num_layers=0 must be a whole number, 1 or more"),
    "sites of the other cell": (GRU, {"norm": "ln", "sites": "cell"},
        "sites=cell does not fit a GRU with norm=ln: leave it out or use one of gates"),
    "sites unknown": (LSTM, {"norm": "ln", "sites": "input"},
        "sites=input does not fit a LSTM with norm=ln: leave it out or use one of gates+cell, gates, cell"),
    "sites of nothing": (LSTM, {"sites": "gates"}, "sites=gates does not fit a LSTM with norm=none: leave it out"),
    "sites of WN": (GRU, {"norm": "wn", "sites": "gates"}, "sites=gates does not fit a GRU with norm=wn: leave it out"),
    "joint of nothing": (LSTM, {"joint": True}, "joint=True needs LN at the gates, not norm=none"),
    "joint of BN": (LSTM, {"norm": "bn", "max_steps": 1, "joint": True},
        "joint=True needs LN at the gates, not norm=bn at gates+cell"),
    "joint of the cell": (LSTM, {"norm": "ln", "sites": "cell", "joint": True},
        "joint=True needs LN at the gates, not norm=ln at cell"),
    "per gate of WN": (GRU, {"norm": "wn", "per_gate": True},
        "per_gate=True needs LN at the gates, not norm=wn"),
    "bias mode unknown": (LSTM, {"norm": "ln", "bias_mode": "all"},
        "bias_mode=all does not fit norm=ln at gates+cell: use official, paper, minimal"),
    "bias mode of BN": (LSTM, {"norm": "bn", "max_steps": 1, "bias_mode": "official"},
        "bias_mode=official does not fit norm=bn at gates+cell: use minimal"),
    "bias mode of LN": (GRU, {"norm": "ln", "bias_mode": "torch"},
        "bias_mode=torch does not fit norm=ln at gates: use official, paper, minimal"),
    "bias mode of a GRU": (GRU, {"bias_mode": "paper"},
        "bias_mode=paper does not fit norm=none: use torch, official, minimal"),
    "bias mode of the cell": (LSTM, {"norm": "ln", "sites": "cell", "bias_mode": "official"},
        "bias_mode=official does not fit norm=ln at cell: use minimal"),
    "bias mode without": (LSTM, {"bias": False, "bias_mode": "torch"},
        "bias_mode=torch does nothing with bias=False: leave one out"),
    "initial state": (LSTM, {"initial_state": "random"},
        "initial_state=random is unknown: use zeros, learned, learned_h"),
    "initial state of a GRU": (GRU, {"initial_state": "learned_h"},
        "initial_state=learned_h is unknown: use zeros, learned"),
    "BN's steps": (LSTM, {"norm": "bn"},
        "max_steps=None with BN: give the number of time steps that have statistics of their own"),
    "BN's steps none": (LSTM, {"norm": "bn", "max_steps": 0}, "max_steps=0 must be a whole number, 1 or more"),
    "steps of LN": (LSTM, {"norm": "ln", "max_steps": 3}, "max_steps=3 does nothing with norm=ln: leave it out"),
    "evaluation": (GRU, {"norm": "bn", "max_steps": 3, "evaluation": "running"},
        "evaluation=running is unknown: use population, batch"),
    "evaluation of LN": (GRU, {"norm": "ln", "evaluation": "batch"},
        "evaluation=batch does nothing with norm=ln: leave it out"),
    "clip of a GRU": (GRU, {"gate_clip": 1.0}, "gate_clip=1.0 is for the LSTM only: leave it out"),
    "clip none": (LSTM, {"gate_clip": 0.0}, "gate_clip=0.0 must be a number above 0"),
    "clip negative": (LSTM, {"gate_clip": -1.0}, "gate_clip=-1.0 must be a number above 0"),
    "kernel": (LSTM, {"kernel": "cuda"}, "kernel=cuda is unknown: use auto, reference, fused"),
}  # fmt: skip


@pytest.mark.parametrize("what", CONSTRUCTION)
def test_switches_that_do_nothing_or_are_not_there_are_refused_at_construction(what: str) -> None:
    from models.norm import NORMS

    kind, switches, message = CONSTRUCTION[what]
    sizes = {"input_size": INPUTS, "hidden_size": H}
    refused(message.format(norms=", ".join(NORMS)), lambda: kind(**{**sizes, **switches}))


def test_arguments_that_only_the_framework_has_are_refused() -> None:
    for argument in ({"dropout": 0.5}, {"proj_size": 3}, {"device": "cpu"}, {"dtype": torch.float64}):
        with pytest.raises(TypeError, match=f"unknown argument {next(iter(argument))}; the switches are norm, sites"):
            LSTM(INPUTS, H, **argument)


WHOLE = "must be a whole number, 1 or more"
NO_NUMBERS = {
    "hidden_size=4.0 " + WHOLE: lambda: LSTMCell(3, 4.0),
    "hidden_size=True " + WHOLE: lambda: GRU(3, True),
    "input_size='3' " + WHOLE: lambda: GRUCell("3", 4),
    "num_layers=1.5 " + WHOLE: lambda: LSTM(3, 4, 1.5),
    "max_steps=2.5 " + WHOLE: lambda: GRU(3, 4, norm="bn", max_steps=2.5),
    "gate_clip=1 must be a number above 0": lambda: LSTM(3, 4, gate_clip="1"),
    "bias=no must be True or False": lambda: LSTM(3, 4, bias="no"),
    "steps='2' " + WHOLE: lambda: LSTMCell(3, 4).begin("2", 2),
    "batch=2.5 " + WHOLE: lambda: GRUCell(3, 4).begin(2, 2.5),
    "sites= does not fit a LSTM with norm=ln: leave it out or use one of gates+cell, gates, cell": lambda: LSTM(
        3, 4, norm="ln", sites=""
    ),
}


@pytest.mark.parametrize("message", NO_NUMBERS)
def test_what_is_no_number_or_no_switch_is_named(message: str) -> None:
    refused(message, NO_NUMBERS[message])


def test_a_state_that_is_none_is_named() -> None:
    cell, x_BI = LSTMCell(INPUTS, H), torch.zeros(B, INPUTS)
    message = "state must be a pair (h, c); the cell's initial(batch) gives the first one"
    refused(message, lambda: cell.begin(1, B)(x_BI, None))
    refused(message, lambda: cell(x_BI, (x_BI, x_BI, x_BI)))
    refused("input of type NoneType must be a tensor", lambda: cell(None))
    refused("input of shape () must have two axes: 1 cases, features", lambda: cell(torch.tensor(1.0)))


def test_a_single_step_is_never_the_fused_kernel() -> None:
    for cell in (LSTMCell(INPUTS, H, norm="ln", kernel="fused"), GRUCell(INPUTS, H, norm="ln", kernel="fused")):
        refused("kernel=fused has no single step: use begin(), or kernel=auto", lambda cell=cell: cell(X[0]))


KERNELS = [
    "reference",
    pytest.param("fused", marks=pytest.mark.skipif(kernels.extension() is None, reason="none built")),
]


@pytest.mark.parametrize("lengths", [None, int64(4, 2, 3)], ids=["full", "padded"])
@pytest.mark.parametrize("norm", ["none", "wn", "ln"])
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_nan_reaches_its_own_case_from_its_step_on(
    kernel: str, kind: type[LSTM] | type[GRU], norm: str, lengths: torch.Tensor | None
) -> None:
    layer = kind(INPUTS, H, norm=norm, kernel=kernel)
    clean = random(T, B, INPUTS, dtype=torch.float32)
    spoilt = clean.clone()
    spoilt[1, 1, 2] = float("nan")
    wanted, (output, last) = layer(clean, None, lengths)[0], layer(spoilt, None, lengths)
    ended = T if lengths is None else 2
    assert output[1:ended, 1].isnan().all()
    torch.testing.assert_close(output[:, [0, 2]], wanted[:, [0, 2]], rtol=0, atol=0)
    torch.testing.assert_close(output[:1, 1], wanted[:1, 1], rtol=0, atol=0)
    for part in (last,) if isinstance(last, torch.Tensor) else last:
        assert part[0, 1].isnan().all() and part[0, [0, 2]].isfinite().all()
    output.sum().backward()  # no crash; the sum is not a number, and so are its gradients
    assert all(p.grad is not None and p.grad.isnan().any() for p in layer.parameters())


@pytest.mark.skipif(kernels.extension() is None, reason="no fused kernels")
@pytest.mark.parametrize("value", [1e15, -1e15, float("inf")])  # squares beyond 1e38 are beyond float32 in any case
def test_huge_numbers_do_in_both_kernels_what_they_do_in_one(value: float) -> None:
    x = random(T, B, INPUTS, dtype=torch.float32)
    x[1, 1] = value
    for kind in BOTH:
        layer = kind(INPUTS, H, norm="ln", kernel="fused", generator=torch.Generator().manual_seed(0))
        other = kind(INPUTS, H, norm="ln", kernel="reference", generator=torch.Generator().manual_seed(0))
        ours, theirs = layer(x)[0], other(x)[0]
        assert torch.equal(ours.isfinite(), theirs.isfinite())
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_bn_at_evaluation_without_statistics_names_the_way_out() -> None:
    norm = StepBatchNorm(3, Norm("bn"), 2, False, "population").eval()
    with pytest.raises(RuntimeError, match="run a training step first, or use evaluation=batch$"):
        norm.steps_seen()
