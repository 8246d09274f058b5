"""The LSTM cell against a transcription of its equations and against torch's own cell."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn.utils import parametrize

from models.norm import Norm, count_normalisers
from models.rnn import LSTMCell, State

NORMS = ("none", "wn", "ln")
NIN, UNITS, BATCH = 3, 5, 4


def make_cell(norm: Norm, dtype: torch.dtype = torch.float64) -> LSTMCell:
    """A cell none of whose parameters is at its default, so that no term can hide."""
    cell = LSTMCell(NIN, UNITS, norm, init_std=0.5, generator=torch.Generator().manual_seed(0)).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in cell.parameters():
            p.add_(torch.randn(p.shape, generator=generator, dtype=dtype) * 0.7 + 0.3)
    return cell


def make_inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, State]:
    generator = torch.Generator().manual_seed(2)
    x, h, c = (torch.randn(BATCH, n, generator=generator, dtype=dtype) for n in (NIN, UNITS, UNITS))
    return x, State(h, c)


def oracle(cell: LSTMCell, norm: Norm, x: torch.Tensor, state: State) -> tuple[np.ndarray, np.ndarray]:
    """h' and c' from the parameters, in numpy, without a line of the cell's own code."""
    p = {name: value.detach().numpy() for name, value in cell.state_dict().items()}

    def weight(name: str) -> np.ndarray:
        if norm.name != "wn":
            return p[f"{name}.weight"]
        g, v = (p[f"{name}.parametrizations.weight.original{i}"] for i in (0, 1))
        return np.stack([g[row, 0] * v[row] / np.sqrt((v[row] ** 2).sum()) for row in range(len(v))])

    def sigmoid(a: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-a))

    gates = x.numpy() @ weight("input").T + state.h_BH.numpy() @ weight("recurrent").T + p["input.bias"]
    i, f, o, g = (gates[:, k * UNITS : (k + 1) * UNITS] for k in range(4))
    c = sigmoid(f) * state.c_BH.numpy() + sigmoid(i) * np.tanh(g)
    read = c
    if norm.name == "ln":
        mean = c.mean(1, keepdims=True)
        variance = ((c - mean) ** 2).mean(1, keepdims=True)
        scale = {
            "sqrt": np.sqrt(variance + norm.eps),
            "outside": np.sqrt(variance) + norm.eps,
            "var": variance + norm.eps,
        }[norm.eps_mode]
        read = (c - mean) / scale * p["cell_norm.gain"] + p["cell_norm.bias"]
    return sigmoid(o) * np.tanh(read), c


CASES = [Norm(name) for name in NORMS] + [Norm("ln", eps=0.1, eps_mode=mode) for mode in ("sqrt", "outside", "var")]


@pytest.mark.parametrize("norm", CASES, ids=lambda n: f"{n.name}-{n.eps_mode}-{n.eps}")
def test_two_steps_match_the_oracle_and_the_carried_cell_is_not_normalised(norm: Norm) -> None:
    cell = make_cell(norm)
    x, state = make_inputs()
    for _ in range(2):
        h, c = oracle(cell, norm, x, state)
        state = cell(x, state)
        np.testing.assert_allclose(state.c_BH.detach().numpy(), c, rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(state.h_BH.detach().numpy(), h, rtol=1e-12, atol=1e-14)
        state = State(state.h_BH.detach(), state.c_BH.detach())


def test_without_norm_it_is_torchs_cell() -> None:
    ours, (x, state) = make_cell(Norm("none")), make_inputs()
    theirs = torch.nn.LSTMCell(NIN, UNITS, dtype=torch.float64)

    def torch_order(rows: torch.Tensor) -> torch.Tensor:
        i, f, o, g = rows.detach().chunk(4)  # ours; theirs is i, f, g, o
        return torch.cat([i, f, g, o])

    with torch.no_grad():
        theirs.weight_ih.copy_(torch_order(ours.input.weight))
        theirs.weight_hh.copy_(torch_order(ours.recurrent.weight))
        theirs.bias_ih.copy_(torch_order(ours.input.bias))
        theirs.bias_hh.zero_()
    a, b = ours(x, state), theirs(x, tuple(state))
    for mine, other in zip(a, b, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-13)
    (a.h_BH.square().sum() + a.c_BH.sum()).backward()
    (b[0].square().sum() + b[1].sum()).backward()
    for mine, other in (
        (ours.input.weight, theirs.weight_ih),
        (ours.recurrent.weight, theirs.weight_hh),
        (ours.input.bias, theirs.bias_ih),
    ):
        torch.testing.assert_close(torch_order(mine.grad), other.grad, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_match_finite_differences(norm: str) -> None:
    cell, (x, state) = make_cell(Norm(norm)), make_inputs()
    names, values = zip(*cell.named_parameters(), strict=True)

    def run(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, *parameters: torch.Tensor) -> State:
        return torch.func.functional_call(cell, dict(zip(names, parameters, strict=True)), (x, State(h, c)))

    inputs = (x, *state, *(v.detach() for v in values))
    assert torch.autograd.gradcheck(run, tuple(t.clone().requires_grad_() for t in inputs))


def test_ln_has_finite_gradients_at_an_all_zero_cell() -> None:
    for mode in ("sqrt", "outside", "var"):
        cell = LSTMCell(
            NIN, UNITS, Norm("ln", eps_mode=mode), init_std=1e-2, generator=torch.Generator().manual_seed(0)
        )
        zeros = torch.zeros(BATCH, UNITS)
        out = cell(torch.zeros(BATCH, NIN), State(zeros, zeros))  # tanh(0) = 0: the cell is exactly 0
        out.h_BH.sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in cell.parameters())


@pytest.mark.parametrize("norm", NORMS)
def test_the_norm_shows_in_the_parameter_names_and_the_initial_values(norm: str) -> None:
    cell = LSTMCell(40, 30, Norm(norm), init_std=0.2, generator=torch.Generator().manual_seed(0))
    expected = {
        "none": {"input.weight", "input.bias", "recurrent.weight"},
        "ln": {"input.weight", "input.bias", "recurrent.weight", "cell_norm.gain", "cell_norm.bias"},
        "wn": {"input.bias"}
        | {f"{m}.parametrizations.weight.original{i}" for m in ("input", "recurrent") for i in (0, 1)},
    }
    assert {name for name, _ in cell.named_parameters()} == expected[norm]
    assert count_normalisers(cell) == {"bn": 0, "wn": 2 * (norm == "wn"), "ln": int(norm == "ln")}
    # WN starts with g = ||v||, so every norm starts from the same weights.
    baseline = LSTMCell(40, 30, Norm("none"), init_std=0.2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(cell.fused().weight, baseline.fused().weight)
    assert cell.fused().weight.std().item() == pytest.approx(0.2, rel=0.02)
    assert cell.fused().bias.abs().max() == 0


@pytest.mark.parametrize("norm", NORMS)
def test_copies_and_state_dicts_carry_everything(norm: str) -> None:
    cell, (x, state) = make_cell(Norm(norm)), make_inputs()
    fresh = LSTMCell(NIN, UNITS, Norm(norm), init_std=0.1, generator=torch.Generator().manual_seed(9)).double()
    fresh.load_state_dict(cell.state_dict())
    for other in (copy.deepcopy(cell), fresh):
        assert torch.equal(other(x, state).h_BH, cell(x, state).h_BH)


def test_the_norm_changes_the_output_and_weights_are_computed_once_per_sequence() -> None:
    x, state = make_inputs()
    plain, layer = (
        LSTMCell(NIN, UNITS, Norm(n), init_std=0.5, generator=torch.Generator().manual_seed(0)).double()
        for n in ("none", "ln")
    )
    assert (plain(x, state).h_BH - layer(x, state).h_BH).abs().max() > 1e-2
    assert torch.equal(plain(x, state).c_BH, layer(x, state).c_BH)

    weighted, calls = make_cell(Norm("wn")), []
    for module in weighted.modules():
        if isinstance(module, parametrize.ParametrizationList):
            module.register_forward_hook(lambda *_: calls.append(1))
    fused = weighted.fused()
    for _ in range(3):
        state = weighted.step((x,), state, fused)
    assert len(calls) == 2


def test_bn_is_refused() -> None:
    with pytest.raises(ValueError, match="no batch normalisation"):
        LSTMCell(NIN, UNITS, Norm("bn"), init_std=0.1, generator=torch.Generator())
