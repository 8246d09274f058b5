"""What autograd may ask of the fused kernels: once backward, several passes, part of the gradients, steps in a loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from models.kernels import build
from models.rnn import LSTMCell, State
from tests.rnncases import parts, random
from tests.rnnfused import apart, data, layer_of, with_kernel

pytestmark = pytest.mark.skipif(build.extension() is None, reason=f"no fused kernels: {build.failure()}")

ONCE = "can be run backward once.*use kernel=reference"
KINDS = ("lstm", "gru")
T, B, INPUTS, H = 4, 3, 6, 19


def close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    off = apart(ours, theirs)
    assert off and max(off.values()) < 1e-5, off


def gradients(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_backward_pass_raises_and_names_the_way_out(kind: str) -> None:
    layer = layer_of(kind, INPUTS, H, norm="ln")
    loss = layer(random(T, B, INPUTS, dtype=torch.float32))[0].sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=ONCE):
        loss.backward()
    again = with_kernel(layer, "reference")
    loss = again(random(T, B, INPUTS, dtype=torch.float32))[0].sum()
    loss.backward(retain_graph=True)
    loss.backward()  # the way out works


@pytest.mark.parametrize("kind", KINDS)
def test_passes_that_are_under_way_together_do_not_share_buffers(kind: str) -> None:
    layer = layer_of(kind, INPUTS, H, norm="ln", num_layers=2)
    xs = [random(T, B, INPUTS, dtype=torch.float32, seed=seed) for seed in range(3)]
    results = []
    for used in (layer, with_kernel(layer, "reference")):
        used.zero_grad()
        outputs = [used(x)[0] for x in xs]
        shares = []
        for k in (1, 0, 2):  # in another order than they were run
            used.zero_grad()
            outputs[k].square().sum().backward()
            shares.append(gradients(used))
        results.append({f"{k} {name}": t for k, share in enumerate(shares) for name, t in share.items()})
    close(*results)


@pytest.mark.parametrize("kind", KINDS)
def test_without_gradients_it_only_runs_forward(kind: str) -> None:
    layer, x = layer_of(kind, INPUTS, H, norm="ln"), random(T, B, INPUTS, dtype=torch.float32)
    wanted = layer(x)[0].detach()
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            output, _ = layer(x)
        assert torch.equal(output, wanted) and not output.requires_grad


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wanted", ["x", "start", "weight_ih", "weight_hh", "bias", "gain", "all but x"])
def test_only_what_is_asked_for_gets_a_gradient(kind: str, wanted: str) -> None:
    layer = layer_of(kind, INPUTS, H, norm="ln")
    x, start = data(layer, T, B)
    results = []
    for used in (layer, with_kernel(layer, "reference")):
        given = x.clone().requires_grad_(wanted == "x")
        begun = tuple(part.clone().requires_grad_(wanted == "start") for part in parts(start))
        for name, parameter in used.named_parameters():
            parameter.requires_grad_(wanted in name or wanted == "all but x")
        used(given, begun if len(begun) == 2 else begun[0])[0].square().sum().backward()
        found = {**gradients(used), "x": given.grad, **{f"start {k}": part.grad for k, part in enumerate(begun)}}
        results.append({name: t for name, t in found.items() if t is not None})
    close(*results)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_of_the_last_state_or_of_one_output_alone(kind: str) -> None:
    layer, x = layer_of(kind, INPUTS, H, norm="ln"), random(T, B, INPUTS, dtype=torch.float32)
    losses = [lambda o, s: o[1, 0, 2], lambda o, s: parts(s)[-1].square().sum(), lambda o, s: parts(s)[0][0, 1].sum()]
    for loss in losses:
        results = []
        for used in (layer, with_kernel(layer, "reference")):
            used.zero_grad()
            loss(*used(x)).backward()
            results.append(gradients(used))
        close(*results)


def test_outputs_changed_in_place_are_noticed() -> None:
    layer, x = layer_of("lstm", INPUTS, H, norm="ln"), random(T, B, INPUTS, dtype=torch.float32)
    output, _ = layer(x)
    loss = output.sum()
    output.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_are_refused_instead_of_taken_for_nought(kind: str) -> None:
    layer, x = layer_of(kind, INPUTS, H, norm="ln"), random(T, B, INPUTS, dtype=torch.float32).requires_grad_()
    for used, raises in ((layer, True), (with_kernel(layer, "reference"), False)):
        loss = used(x)[0].square().sum()
        if raises:
            with pytest.raises(RuntimeError, match="kernel=reference"):
                torch.autograd.grad(loss, x, create_graph=True)
        else:
            (first,) = torch.autograd.grad(loss, x, create_graph=True)
            assert torch.autograd.grad(first.square().sum(), x)[0].abs().max() > 0
    cell = layer.cells[0]
    if kind == "lstm":
        with pytest.raises(RuntimeError, match="kernel=reference"):
            torch.autograd.grad(cell.begin(1, B)(x[0], cell.initial(B)).h_BH.sum(), x, create_graph=True)


def test_parameters_changed_between_the_passes_are_noticed() -> None:
    layer, x = layer_of("lstm", INPUTS, H, norm="ln"), random(T, B, INPUTS, dtype=torch.float32)
    cell = layer.cells[0]
    for loss in (layer(x)[0].sum(), cell.begin(1, B)(x[0], cell.initial(B)).h_BH.sum()):
        with torch.no_grad():
            cell.weight_hh.mul_(2)
        with pytest.raises(RuntimeError, match="in ?place"):
            loss.backward()


CELLS: list[dict[str, Any]] = [
    {"norm": "none"},
    {"norm": "none", "gate_clip": 0.05},
    {"norm": "wn", "bias_mode": "official"},
    {"norm": "ln", "sites": "cell"},
    {"norm": "ln", "sites": "gates", "per_gate": True},
    {"norm": "ln", "bias_mode": "paper"},
    {"norm": "ln", "gate_clip": 0.05, "initial_state": "learned"},
]


def both(switches: dict[str, Any]) -> list[LSTMCell]:
    layer = layer_of("lstm", INPUTS, H, **switches)
    return [layer.cells[0], with_kernel(layer, "reference").cells[0]]


def looped(cell: LSTMCell, said: int, steps: int, counted: range) -> dict[str, Tensor]:
    """A loop whose input depends on its output; the loss is taken of the ``counted`` steps alone."""
    cell.zero_grad()
    x = random(T, B, INPUTS - 2, dtype=torch.float32).requires_grad_()
    start = [part + random(B, H, dtype=torch.float32, seed=7 + k) for k, part in enumerate(cell.initial(B))]
    taken, state, loss = cell.begin(said, B), State(*start), torch.zeros(())
    outputs = {}
    for t in range(steps):
        state = taken((x[t % T], state.h_BH[:, :2]), state)  # in two parts, one of them the output
        outputs[f"h {t}"], outputs[f"c {t}"] = state.h_BH.detach(), state.c_BH.detach()
        if t in counted:
            loss = loss + (state.h_BH * random(B, H, dtype=torch.float32, seed=t)).sum() + state.c_BH.square().sum()
    loss.backward()
    assert x.grad is not None
    return {**outputs, **gradients(cell), "x": x.grad}


@pytest.mark.parametrize(
    ("said", "steps", "counted"),
    [(4, 4, range(4)), (4, 4, range(2)), (4, 4, range(1, 2)), (9, 4, range(4)), (1, 1, range(1))],
    ids=["all", "the last two not in the loss", "one in the loss", "fewer than said", "one"],
)
@pytest.mark.parametrize("switches", CELLS, ids=lambda c: " ".join(map(str, c.values())))
def test_steps_in_a_loop_are_the_references(switches: dict[str, Any], said: int, steps: int, counted: range) -> None:
    close(*(looped(cell, said, steps, counted) for cell in both(switches)))


def test_steps_on_two_threads() -> None:
    fused, reference = both(CELLS[-1])
    torch.set_num_threads(2)
    ours = looped(fused, T, T, range(T))
    torch.set_num_threads(1)
    close(ours, looped(reference, T, T, range(T)))


@pytest.mark.parametrize("kernel", [0, 1], ids=["fused", "reference"])
def test_more_steps_than_said_are_refused(kernel: int) -> None:
    cell = both({"norm": "ln"})[kernel]
    taken, state = cell.begin(1, B), cell.initial(B)
    state = taken(torch.zeros(B, INPUTS), state)
    with pytest.raises(ValueError, match=r"^begin\(steps=1\) was followed by more steps: say how many there will be$"):
        taken(torch.zeros(B, INPUTS), state)


def test_steps_run_backward_once_whatever_was_asked_for() -> None:
    cell = both({"norm": "ln"})[0]
    x = torch.randn(B, INPUTS, requires_grad=True)
    for second in (x, cell.weight_hh):
        taken = cell.begin(2, B)
        loss = taken(x, taken(x, cell.initial(B))).h_BH.sum()
        torch.autograd.grad(loss, x, retain_graph=True)
        with pytest.raises(RuntimeError, match=ONCE):
            torch.autograd.grad(loss, second)


def test_a_loop_begun_without_gradients_takes_none_later() -> None:
    cell = both({"norm": "ln"})[0]
    with torch.no_grad():
        taken = cell.begin(2, B)
    with pytest.raises(RuntimeError, match="no_grad"):
        taken(torch.zeros(B, INPUTS), cell.initial(B))


def test_two_loops_of_one_cell_and_a_state_used_twice() -> None:
    results = []
    for cell in both({"norm": "ln"}):
        x = random(B, INPUTS, dtype=torch.float32).requires_grad_()
        first, second = cell.begin(3, B), cell.begin(1, B)
        shared = first(x, cell.initial(B))
        ends = [first(2 * x, shared), second(3 * x, shared), first(-x, shared)]
        sum((k + 1) * end.h_BH.square().sum() for k, end in enumerate(ends)).backward()  # type: ignore[union-attr]
        assert x.grad is not None
        results.append({**gradients(cell), "x": x.grad})
    close(*results)


def test_a_loop_without_gradients_and_one_with_frozen_parameters() -> None:
    fused, reference = both({"norm": "ln"})
    x = torch.randn(B, INPUTS)
    with torch.no_grad():
        state = fused.begin(1, B)(x, fused.initial(B))
        wanted = reference.begin(1, B)(x, reference.initial(B))
    assert not state.h_BH.requires_grad
    torch.testing.assert_close(state.h_BH, wanted.h_BH, rtol=1e-5, atol=1e-6)
    results = []
    for cell in (fused, reference):
        given = x.clone().requires_grad_()
        for parameter in cell.parameters():
            parameter.requires_grad_(False)
        cell.begin(1, B)(given, State(torch.ones(B, H), torch.ones(B, H))).h_BH.sum().backward()
        assert given.grad is not None
        results.append({"x": given.grad})
    close(*results)
