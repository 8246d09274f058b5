"""Without a norm the layers are ``torch.nn.LSTM`` and ``torch.nn.GRU``, and run the framework's own kernel."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from models.rnn import GRU, LSTM
from tests.rnncases import build, parts, random, states

T, B, INPUTS, H = 5, 4, 3, 6
LENGTHS = [2, 5, 1, 4]
FRAMEWORK = {"lstm": nn.LSTM, "gru": nn.GRU}
SUFFIXES = ("", "_reverse")
NAMES = ("weight_ih", "weight_hh", "bias", "bias_hh")
THEIR_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def pairs(ours: Any, theirs: nn.RNNBase) -> list[tuple[Tensor, Tensor]]:
    """Parameters of both in the same order."""
    found: list[tuple[Tensor, Tensor]] = []
    for index, cell in enumerate(ours.cells):
        layer, direction = divmod(index, ours.directions)
        for name, other in zip(NAMES, THEIR_NAMES, strict=True):
            if (parameter := getattr(cell, name)) is not None:
                found.append((parameter, theirs.get_parameter(f"{other}_l{layer}{SUFFIXES[direction]}")))
    return found


def twins(kind: str, kernel: str, **interface: Any) -> tuple[Any, nn.RNNBase]:
    ours = build(kind, INPUTS, H, kernel=kernel, **interface)
    theirs = FRAMEWORK[kind](INPUTS, H, dtype=torch.float64, **interface)
    with torch.no_grad():
        for mine, other in (matched := pairs(ours, theirs)):
            other.copy_(mine)
    assert len(matched) == len(list(theirs.parameters()))
    return ours, theirs


def padded(theirs: nn.RNNBase, x: Tensor, state: Any, lengths: list[int] | None) -> tuple[Tensor, Any]:
    if lengths is None:
        return theirs(x, state)
    first = theirs.batch_first
    packed, last = theirs(pack_padded_sequence(x, torch.tensor(lengths), first, enforce_sorted=False), state)
    return pad_packed_sequence(packed, first, total_length=T)[0], last


GRID = [*itertools.product(FRAMEWORK, (1, 2), (False, True), (False, True), (None, LENGTHS), (True, False))]


@pytest.mark.parametrize("kernel", ["auto", "reference"])
@pytest.mark.parametrize(
    ("kind", "layers", "bidirectional", "batch_first", "lengths", "bias"),
    GRID,
    ids=lambda v: str(v) if not isinstance(v, list) else "padded",
)
def test_outputs_states_and_gradients_are_the_frameworks(
    kind: str, layers: int, bidirectional: bool, batch_first: bool, lengths: list[int] | None, bias: bool, kernel: str
) -> None:
    ours, theirs = twins(
        kind, kernel, num_layers=layers, bidirectional=bidirectional, batch_first=batch_first, bias=bias
    )
    results = []
    for layer in (ours, theirs):
        x = random(*((B, T) if batch_first else (T, B)), INPUTS).requires_grad_()
        state = states(ours, B)
        starts = [part.requires_grad_() for part in parts(state)]
        if layer is ours:
            output, last = ours(x, state, lengths if lengths is None else torch.tensor(lengths))
        else:
            output, last = padded(theirs, x, state, lengths)
        outcome = [output, *parts(last)]
        # a different weight for every number, so that none can be in the wrong place
        sum((t * random(*t.shape, seed=9 + k)).sum() for k, t in enumerate(outcome)).backward()
        results.append([*outcome, x.grad, *(start.grad for start in starts)])
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)
    for mine, other in pairs(ours, theirs):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("norm", ["none", "wn"])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "padded"])
def test_the_frameworks_kernel_is_what_runs(kind: str, norm: str, lengths: list[int] | None) -> None:
    ends = lengths if lengths is None else torch.tensor(lengths)
    called = {}
    for kernel in ("auto", "fused", "reference"):
        layer = build(kind, INPUTS, H, norm=norm, kernel=kernel, num_layers=2)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            layer(random(T, B, INPUTS), None, ends)
        called[kernel] = sum(event.count for event in profile.key_averages() if event.key == f"aten::{kind}")
    assert called == {"auto": 2, "fused": 2, "reference": 0}


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_default_start_is_zero_as_the_frameworks(kind: str) -> None:
    ours, theirs = twins(kind, "auto")
    x = random(T, B, INPUTS)
    torch.testing.assert_close(ours(x)[0], theirs(x)[0])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_default_weights_are_drawn_as_the_frameworks(kind: str) -> None:
    ours = build(kind, 50, 40).__class__(50, 40)
    for parameter in ours.parameters():
        assert 0.9 / 40**0.5 < parameter.abs().max() <= 1 / 40**0.5
        assert abs(parameter.mean()) < 0.3 / 40**0.5


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_cell_is_the_frameworks_cell(kind: str) -> None:
    layer = build(kind, INPUTS, H)
    theirs = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}[kind](INPUTS, H, dtype=torch.float64)
    cell = layer.cells[0]
    with torch.no_grad():
        for name, other in zip(NAMES, THEIR_NAMES, strict=True):
            getattr(theirs, other).copy_(getattr(cell, name))
    x, state = random(B, INPUTS), [part[0] for part in parts(states(layer, B))]
    mine = cell(x, tuple(state) if kind == "lstm" else state[0])
    other = theirs(x, tuple(state) if kind == "lstm" else state[0])
    for a, b in zip(parts(mine), parts(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("bias", [True, False])
def test_load_torch_copies_a_layer_whole(kind: str, bias: bool) -> None:
    theirs = getattr(torch.nn, kind)(3, 4, 2, bias=bias, bidirectional=True)
    ours = {"LSTM": LSTM, "GRU": GRU}[kind](3, 4, 2, bias=bias, bidirectional=True)
    ours.load_torch(theirs)
    x_TBI = torch.randn(5, 2, 3)
    torch.testing.assert_close(ours(x_TBI)[0], theirs(x_TBI)[0])


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        (LSTM(3, 4, norm="wn"), torch.nn.LSTM(3, 4), "norm=wn and bias_mode=torch cannot take PyTorch's weights"),
        (LSTM(3, 4, norm="ln", bias=False), torch.nn.LSTM(3, 4, bias=False), "norm=ln and bias_mode=without"),
        (LSTM(3, 4), torch.nn.GRU(3, 4), "a GRU does not fit this LSTM"),
        (GRU(4, 4, 2), torch.nn.GRU(4, 4, bidirectional=True), "num_layers=1 does not fit this layer's 2"),
        (GRU(4, 4), torch.nn.GRU(4, 4, bidirectional=True), "bidirectional=True does not fit this layer's False"),
        (LSTM(3, 4), torch.nn.LSTM(5, 4), "input_size=5 does not fit this layer's 3"),
        (LSTM(3, 4), torch.nn.LSTM(3, 4, bias=False), "bias=False does not fit this layer's True"),
        (LSTM(3, 4), torch.nn.LSTM(3, 4, proj_size=2), "proj_size=2 is not to be had here"),
    ],
)
def test_load_torch_refuses_what_does_not_fit(ours: LSTM | GRU, theirs: torch.nn.RNNBase, message: str) -> None:
    before = [parameter.clone() for parameter in ours.parameters()]
    with pytest.raises(ValueError, match=message):
        ours.load_torch(theirs)
    assert all(torch.equal(a, b) for a, b in zip(before, ours.parameters(), strict=True))
