"""Sequences are their steps, padding changes nothing, and layers survive copying, saving, compiling and autocast."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from models.recurrent_norm import Moment
from models.rnn import LSTM, State
from tests.rnncases import KINDS, VARIANTS, build, name_of, parts, random, scramble, states

T, B, INPUTS, H = 5, 4, 3, 6
SHORT = [
    {"kind": "lstm", "norm": "none"},
    {"kind": "lstm", "norm": "wn", "bias_mode": "official"},
    {"kind": "lstm", "norm": "ln"},
    {"kind": "lstm", "norm": "ln", "sites": "cell"},
    {"kind": "lstm", "norm": "bn", "max_steps": 3},
    {"kind": "gru", "norm": "none"},
    {"kind": "gru", "norm": "wn"},
    {"kind": "gru", "norm": "ln", "bias_mode": "paper"},
    {"kind": "gru", "norm": "bn", "max_steps": 3},
]
DIRECTIONS = [False, True]


def first(state: Any) -> Any:
    """The state of the first cell alone."""
    return State(state[0][0], state[1][0]) if isinstance(state, tuple) else state[0]


@pytest.mark.parametrize("case", VARIANTS, ids=name_of)
def test_a_sequence_is_its_steps(case: dict[str, Any]) -> None:
    layer = build(**case, kernel="reference")
    cell, x, start = layer.cells[0], random(T, B, INPUTS), states(layer, B)
    wanted, last = layer(x, start)
    loop, looped, single = cell.begin(T, B), first(start), first(start)
    for t in range(T):
        # the loop is given its input in two pieces
        looped = loop((x[t, :, :1], x[t, :, 1:]), looped)
        single = cell(x[t], single, Moment(t))
        for state in (looped, single):
            torch.testing.assert_close(parts(state)[0], wanted[t], rtol=1e-12, atol=1e-13)
    for ours, theirs in zip(parts(looped), parts(last), strict=True):
        torch.testing.assert_close(ours, theirs[0], rtol=1e-12, atol=1e-13)


def everything(layer: Any, x: Tensor, lengths: Tensor) -> list[Tensor]:
    """Real outputs, last states, gradients of input and parameters, and BN's buffers."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    output, last = layer(x, None, lengths)
    real = [output[: lengths[b], b] for b in range(B)]
    loss = sum((part * random(*part.shape, seed=5 + k)).sum() for k, part in enumerate([*real, *parts(last)]))
    loss.backward()
    assert x.grad is not None
    beyond = torch.arange(len(x))[:, None] >= lengths
    assert output[beyond].abs().sum() == 0 and x.grad[beyond].abs().sum() == 0
    gradients = [p.grad for p in layer.parameters() if p.grad is not None]
    return [*real, *parts(last), *(x.grad[: lengths[b], b] for b in range(B)), *gradients, *layer.buffers()]


@pytest.mark.parametrize("padding", [0.0, 3.0, 1e30, float("nan"), float("inf")])
@pytest.mark.parametrize("bidirectional", DIRECTIONS, ids=["one way", "both ways"])
@pytest.mark.parametrize("case", SHORT, ids=name_of)
def test_padding_changes_no_output_gradient_or_statistic(
    case: dict[str, Any], bidirectional: bool, padding: float
) -> None:
    lengths, results = torch.tensor([3, 5, 1, 4]), []
    x = random(T, B, INPUTS)
    for extra, filled in ((0, 0.0), (3, padding)):
        padded = torch.cat([x, torch.zeros(extra, B, INPUTS)])
        padded[torch.arange(T + extra)[:, None] >= lengths] = filled
        layer = build(**case, bidirectional=bidirectional, num_layers=2)
        results.append(everything(layer, padded, lengths))
    for without, with_padding in zip(*results, strict=True):
        torch.testing.assert_close(without, with_padding, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", [case for case in SHORT if case["norm"] != "bn"], ids=name_of)
def test_a_padded_batch_is_its_cases_one_by_one(case: dict[str, Any]) -> None:
    layer, lengths = build(**case, bidirectional=True, num_layers=2), [3, 5, 1, 4]
    x = random(T, B, INPUTS)
    output, last = layer(x, None, torch.tensor(lengths))
    for b, length in enumerate(lengths):
        alone, alone_last = layer(x[:length, b : b + 1])
        torch.testing.assert_close(output[:length, b : b + 1], alone)
        for ours, theirs in zip(parts(last), parts(alone_last), strict=True):
            torch.testing.assert_close(ours[:, b : b + 1], theirs)


@pytest.mark.parametrize("case", VARIANTS, ids=name_of)
def test_an_all_zero_start_has_finite_gradients(case: dict[str, Any]) -> None:
    """U h of h0 = 0 is an all-zero vector into the norm; so is W x of an all-zero first input without a bias."""
    layer = KINDS[case["kind"]](INPUTS, H, **{key: value for key, value in case.items() if key != "kind"})
    x = torch.cat([torch.zeros(1, B, INPUTS), random(2, B, INPUTS, dtype=torch.float32)]).requires_grad_()
    output, _ = layer(x)
    output.square().sum().backward()
    assert output.isfinite().all() and x.grad is not None and x.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("case", SHORT, ids=name_of)
def test_copies_and_state_dicts_carry_everything(case: dict[str, Any]) -> None:
    layer, x = build(**case, num_layers=2), random(T, B, INPUTS)
    layer(x)  # BN gets statistics
    fresh = build(**case, num_layers=2, seed=7)
    assert not torch.equal(fresh(x)[0], layer(x)[0])
    fresh.load_state_dict(layer.state_dict())
    for other in (copy.deepcopy(layer), fresh):
        other.eval()
        assert torch.equal(other(x)[0], layer.eval()(x)[0])
        scramble(other, 8)
        assert not torch.equal(other(x)[0], layer(x)[0])  # nothing is shared


@pytest.mark.parametrize("case", SHORT, ids=name_of)
def test_a_cell_can_be_compiled_and_exported(case: dict[str, Any]) -> None:
    layer = build(**case)
    layer(random(T, B, INPUTS))
    cell, x, state = layer.eval().cells[0], random(B, INPUTS), first(states(layer, B))
    wanted = parts(cell(x, state))
    compiled = torch.compile(cell, backend="eager", fullgraph=case["norm"] != "bn")
    for ours, theirs in zip(parts(compiled(x, state)), wanted, strict=True):
        torch.testing.assert_close(ours, theirs)
    if case["norm"] != "bn":  # the step's statistics are looked up by a number that is data
        exported = torch.export.export(cell, (x, state)).module()
        for ours, theirs in zip(parts(exported(x, state)), wanted, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("lengths", [None, [3, 5, 1, 4]], ids=["full", "padded"])
@pytest.mark.parametrize("case", SHORT, ids=name_of)
def test_bfloat16_autocast_runs_and_stays_near_float32(case: dict[str, Any], lengths: list[int] | None) -> None:
    layer, x = build(**case, dtype=torch.float32), random(T, B, INPUTS, dtype=torch.float32)
    ends = lengths if lengths is None else torch.tensor(lengths)
    wanted = layer(x, None, ends)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = layer(x, None, ends)
    assert not torch.equal(output, wanted)
    # outputs lie in (-1, 1), and a bfloat16 has 8 bits: eight roundings that add up
    assert (output - wanted).abs().max() < 8 * 2**-8
    output.float().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_only_beginning_and_end_differ_between_one_call_and_two() -> None:
    for kind in KINDS:
        layer, x = build(kind, norm="ln", num_layers=2), random(T, B, INPUTS)
        whole, last = layer(x)
        head, state = layer(x[:2])
        tail, state = layer(x[2:], state)
        torch.testing.assert_close(torch.cat([head, tail]), whole)
        for ours, theirs in zip(parts(state), parts(last), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_batch_first_and_directions_only_rearrange() -> None:
    x = random(T, B, INPUTS)
    for kind in KINDS:
        both = build(kind, norm="ln", bidirectional=True)
        output, _ = both(x)
        one_way, other_way = (build(kind, norm="ln") for _ in range(2))
        one_way.cells[0], other_way.cells[0] = both.cells
        torch.testing.assert_close(output[..., :5], one_way(x)[0])
        torch.testing.assert_close(output[..., 5:], other_way(x.flip(0))[0].flip(0))
        both.batch_first = True
        torch.testing.assert_close(both(x.transpose(0, 1))[0].transpose(0, 1), output)


def test_the_state_that_is_returned_carries_the_un_normalised_cell() -> None:
    """c' = sigmoid(f) c + sigmoid(i) tanh(g), whatever norm reads it out: with f at 1 and i at 0, c' = c."""
    layer = LSTM(INPUTS, H, norm="ln", bias_mode="minimal").double()
    with torch.no_grad():
        layer.cells[0].bias.copy_(torch.cat([torch.full((H,), v) for v in (-60.0, 60.0, 0.0, 0.0)]))
    h, c = states(layer, B)
    _, (_, after) = layer(random(T, B, INPUTS), (h, c * 10))
    torch.testing.assert_close(after, c * 10, rtol=1e-12, atol=1e-12)
