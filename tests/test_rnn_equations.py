"""Every variant of the recurrent layers against a NumPy transcription of its equations, and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from models.norm import Norm, count_normalisers
from models.rnn import State
from tests import rnncases
from tests.rnncases import VARIANTS, build, name_of, oracle_run, parameters_of, parts, random, recipe_of, states

T, B, INPUTS = 4, 3, 3
LENGTHS = [4, 1, 3]


def run_both(case: dict[str, Any], kernel: str, lengths: list[int] | None) -> tuple[list[np.ndarray], list[np.ndarray]]:
    layer = build(**case, kernel=kernel)
    x, state = random(T, B, INPUTS), states(layer, B)
    ends = None if lengths is None else torch.tensor(lengths)
    output, last = layer(x, state, ends)
    ours = [output, *(part[0] for part in parts(last))]
    return [t.detach().numpy() for t in ours], list(oracle_run(layer, recipe_of(case), x, state, ends))


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "padded"])
@pytest.mark.parametrize("case", VARIANTS, ids=name_of)
def test_outputs_and_states_are_those_of_the_equations(case: dict[str, Any], lengths: list[int] | None) -> None:
    kernels = ("reference", "auto") if case["norm"] in ("none", "wn") else ("reference",)
    for kernel in kernels:
        for ours, theirs in zip(*run_both(case, kernel, lengths), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", VARIANTS, ids=name_of)
def test_gradients_are_those_of_finite_differences(case: dict[str, Any]) -> None:
    layer = build(**case, kernel="reference", units=4, inputs=2)
    names, values = zip(*layer.named_parameters(), strict=True)
    x, state, lengths = random(3, B, 2), states(layer, B), torch.tensor([3, 1, 2])
    if layer.cells[0].kind == "lstm":
        h, c = state
    else:
        h, c = state, torch.zeros(())

    def run(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        start = (h, c) if layer.cells[0].kind == "lstm" else h
        output, last = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x, start, lengths))
        return output, *parts(last)

    inputs = (x, h, c, *(value.detach() for value in values))
    assert gradcheck(run, tuple(t.clone().requires_grad_(t.dim() > 0) for t in inputs), fast_mode=True, nondet_tol=0.0)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gradients_of_the_default_ln_entry_by_entry(kind: str) -> None:
    layer = build(kind, inputs=2, units=3, norm="ln", kernel="reference", initial_state="learned")
    names, values = zip(*layer.named_parameters(), strict=True)
    assert {"cells.0.h0"} <= set(names)

    def run(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))[0]

    inputs = (random(2, 2, 2), *(value.detach() for value in values))
    assert gradcheck(run, tuple(t.clone().requires_grad_() for t in inputs))


def outputs_of(kind: str, **switches: Any) -> torch.Tensor:
    """The output with the same numbers at every place, whatever modules hold them."""
    layer = rnncases.KINDS[kind](3, 5, generator=torch.Generator().manual_seed(0), **switches).double()
    return layer(random(T, B, INPUTS))[0]


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_stacked_per_gate_joint_and_no_norm_all_differ(kind: str) -> None:
    kinds: list[dict[str, Any]] = [
        {"norm": "none", "bias_mode": "minimal"},
        {"norm": "wn", "bias_mode": "minimal"},
        {"norm": "ln"},
        {"norm": "ln", "per_gate": True},
        {"norm": "ln", "joint": True},
        {"norm": "ln", "joint": True, "per_gate": True},
        {"norm": "bn", "max_steps": T},
    ]
    outputs = [outputs_of(kind, **switches) for switches in kinds]
    torch.testing.assert_close(outputs[0], outputs[1])  # WN starts with g = ||v||: the same function at first
    del outputs[1]
    for a in range(len(outputs)):
        for b in range(a):
            assert (outputs[a] - outputs[b]).abs().max() > 1e-2, (a, b)


def test_the_three_sites_of_the_lstm_differ_and_the_carried_cell_is_not_normalised() -> None:
    x, layers = random(1, B, INPUTS), {}
    for sites in ("gates+cell", "gates", "cell"):
        layers[sites] = rnncases.KINDS["lstm"](
            INPUTS, 5, generator=torch.Generator().manual_seed(0), norm="ln", sites=sites, bias_mode="minimal"
        ).double()
    (_, all_sites), (_, gates), (_, cell) = (layers[sites](x) for sites in ("gates+cell", "gates", "cell"))
    assert torch.equal(all_sites.c_BH, gates.c_BH)
    assert (all_sites.h_BH - gates.h_BH).abs().max() > 1e-2
    plain = rnncases.KINDS["lstm"](INPUTS, 5, generator=torch.Generator().manual_seed(0), bias_mode="minimal").double()
    torch.testing.assert_close(cell.c_BH, plain(x)[1].c_BH, rtol=1e-12, atol=0)
    assert (cell.h_BH - plain(x)[1].h_BH).abs().max() > 1e-2


EXPECTED = {  # norm, bias mode -> parameters of a cell of either kind beyond the matrices
    ("none", "torch"): {"b", "b2"},
    ("none", "minimal"): {"b"},
    ("wn", "official"): {"b"},
    ("ln", "official"): {"b", "sx", "bx", "sh", "bh"},
    ("ln", "minimal"): {"b", "sx", "sh"},
    ("bn", "minimal"): {"b", "sx", "sh"},
}


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize(("norm", "mode"), EXPECTED)
def test_the_parameters_of_a_cell_are_those_its_equations_name(kind: str, norm: str, mode: str) -> None:
    layer = build(kind, norm=norm, bias_mode=mode, **({"max_steps": 2} if norm == "bn" else {}))
    weights = {"gW", "vW", "gU", "vU"} if norm == "wn" else {"W", "U"}
    cell_norm = {"sc", "bc"} if kind == "lstm" and norm in ("ln", "bn") else set()
    assert set(parameters_of(layer.cells[0])) == EXPECTED[norm, mode] | weights | cell_norm
    if norm != "bn":
        sites = {"lstm": 3, "gru": 4}[kind]  # the GRU's two groups are normalised separately
        assert count_normalisers(layer) == {
            "bn": 0, "wn": 2 * (norm == "wn"), "ln": sites * (norm == "ln")
        }  # fmt: skip


@pytest.mark.parametrize("case", [case for case in VARIANTS if case.get("bias") is False], ids=name_of)
def test_without_bias_there_is_no_parameter_that_shifts_anything(case: dict[str, Any]) -> None:
    layer = build(**case)
    assert not [name for name in layer.state_dict() if "bias" in name]
    assert {name[0] for name in parameters_of(layer.cells[0])} <= {"W", "U", "g", "v", "s"}


def test_initial_gains_biases_and_weights_are_what_the_documentation_says() -> None:
    for gain, norm in ((1.0, Norm("ln")), (0.1, Norm("ln", gain_init=0.1)), (0.1, "bn")):
        layer = rnncases.KINDS["lstm"](20, 30, norm=norm, **({"max_steps": 2} if norm == "bn" else {}))
        for name, value in parameters_of(layer.cells[0]).items():
            if name[0] == "s":
                assert np.all(value == np.float32(gain))
            elif name[0] == "b":
                assert np.all(value == 0)
            else:
                assert 0.9 / np.sqrt(30) < np.abs(value).max() <= 1 / np.sqrt(30)
    plain = parameters_of(rnncases.KINDS["lstm"](20, 30).cells[0])
    assert all(0.8 / np.sqrt(30) < np.abs(value).max() <= 1 / np.sqrt(30) for value in plain.values())


@pytest.mark.parametrize("norm", ["none", "wn", "ln"])
def test_init_fills_the_matrices_before_a_norm_takes_them_over(norm: str) -> None:
    filled = iter((0.25, -0.5))
    cell = rnncases.KINDS["gru"](4, 3, norm=norm, init=lambda w: w.fill_(next(filled))).cells[0]
    weights = cell.weights()
    torch.testing.assert_close(weights.ih_GI, torch.full((9, 4), 0.25))
    torch.testing.assert_close(weights.hh_GH, torch.full((9, 3), -0.5))


def test_a_learned_initial_state_starts_at_zero_and_is_used() -> None:
    for kind, initial, names in (
        ("lstm", "learned", {"h0", "c0"}), ("lstm", "learned_h", {"h0"}), ("gru", "learned", {"h0"}),
    ):  # fmt: skip
        layer = rnncases.KINDS[kind](INPUTS, 5, norm="ln", initial_state=initial).double()
        learned = {n for n, _ in layer.cells[0].named_parameters() if n in ("h0", "c0")}
        assert learned == names
        assert all(layer.cells[0].get_parameter(name).abs().max() == 0 for name in names)
        rnncases.scramble(layer)
        x = random(T, B, INPUTS)
        start = [getattr(layer.cells[0], n, None) for n in ("h0", "c0")[: 2 if kind == "lstm" else 1]]
        given = [torch.zeros(1, B, 5).double() if s is None else s.detach().expand(1, B, 5) for s in start]
        output, _ = layer(x)
        torch.testing.assert_close(output, layer(x, State(*given) if kind == "lstm" else given[0])[0])
        output.sum().backward()
        assert all(layer.cells[0].get_parameter(name).grad.abs().max() > 0 for name in names)
