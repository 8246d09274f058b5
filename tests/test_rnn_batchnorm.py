"""Recurrent BN: statistics per time step, masked, shared beyond the last, and what evaluation uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from models.norm import Norm
from models.recurrent_norm import Moment, StepBatchNorm
from models.rnn import GRU, LSTM
from tests.oracles import recurrent as oracle
from tests.rnncases import build, oracle_run, parameters_of, random, recipe_of, states

T, B, INPUTS = 5, 6, 3
LENGTHS = torch.tensor([5, 2, 4, 1, 3, 4])
KINDS = ("lstm", "gru")
SITES = {"lstm": {"norm_ih": "x", "norm_hh": "h", "norm_cell": "c"}, "gru": {"norm_ih": "x", "norm_hh": "h"}}


def case_of(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "norm": "bn", "max_steps": 3, **more}


def seen_by_the_oracle(kind: str, recipe: oracle.Recipe, site: str, steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Mean and unbiased variance of all features of a site at each step."""
    groups = sorted({key[0] for key in recipe.seen if key[0][0] == site}, key=lambda name: int(name[1:]))
    return [
        tuple(np.concatenate([recipe.seen[group, t][k] for group in groups]) for k in (0, 1))  # type: ignore[misc]
        for t in range(steps)
    ]


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "padded"])
@pytest.mark.parametrize("kind", KINDS)
def test_running_statistics_are_averages_over_batches_step_by_step(kind: str, lengths: torch.Tensor | None) -> None:
    case = case_of(kind, max_steps=T)
    layer, batches = build(**case), 3
    seen: dict[str, list[Any]] = {site: [] for site in SITES[kind].values()}
    for batch in range(batches):
        x, start = random(T, B, INPUTS, seed=20 + batch), states(layer, B, seed=30 + batch)
        recipe = recipe_of(case)
        oracle_run(layer, recipe, x, start, lengths)
        for site, found in seen.items():
            found.append(seen_by_the_oracle(kind, recipe, site, T))
        layer(x, start, lengths)
    for name, site in SITES[kind].items():
        norm = getattr(layer.cells[0], name)
        assert norm.batches_S.tolist() == [batches] * T
        for t in range(T):
            mean, var = (np.mean([found[t][k] for found in seen[site]], 0) for k in (0, 1))
            np.testing.assert_allclose(norm.running_mean_SF[t], mean, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(norm.running_var_SF[t], var, rtol=1e-9, atol=1e-12)


def test_after_one_over_momentum_batches_the_newest_keeps_its_weight() -> None:
    norm = StepBatchNorm(2, Norm("bn", momentum=0.25), 1, False, "population")
    means = [random(4, 2, seed=k) for k in range(7)]
    wanted = torch.zeros(2)
    for k, a in enumerate(means):
        norm.double()(a, Moment(0))
        wanted = wanted.double().lerp(a.mean(0), max(1 / (k + 1), 0.25))
    torch.testing.assert_close(norm.running_mean_SF[0], wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_population_evaluation_uses_the_running_statistics_of_each_step(kind: str) -> None:
    case = case_of(kind, max_steps=T)
    layer = build(**case)
    layer(random(T, B, INPUTS, seed=4), states(layer, B, seed=5))
    layer.eval()
    kept = {name: value.clone() for name, value in layer.named_buffers()}
    units = layer.hidden_size

    def population(site: str, t: int) -> tuple[np.ndarray, np.ndarray]:
        norm = getattr(layer.cells[0], {v: k for k, v in SITES[kind].items()}[site[0]])
        first = int(site[1:])
        # the oracle's groups of a site start where their name says
        stop = {0: 4 * units if kind == "lstm" else 2 * units, 2 * units: 3 * units}[first] if site[0] != "c" else units
        return norm.running_mean_SF[t, first:stop].numpy(), norm.running_var_SF[t, first:stop].numpy()

    recipe = recipe_of(case)
    recipe.population = population
    x, start = random(T, B, INPUTS), states(layer, B)
    output, _ = layer(x, start, LENGTHS)
    np.testing.assert_allclose(output.detach(), oracle_run(layer, recipe, x, start, LENGTHS)[0], rtol=1e-9, atol=1e-11)
    # each case is on its own now, and nothing is learned
    alone = layer(x[:, 2:3], tuple(s[:, 2:3] for s in start) if kind == "lstm" else start[:, 2:3], LENGTHS[2:3])[0]
    torch.testing.assert_close(output[:, 2:3], alone)
    assert all(torch.equal(value, kept[name]) for name, value in layer.named_buffers())


@pytest.mark.parametrize("kind", KINDS)
def test_batch_evaluation_is_training_without_learning(kind: str) -> None:
    layer = build(**case_of(kind, evaluation="batch"))
    x, start = random(T, B, INPUTS), states(layer, B)
    evaluated = layer.eval()(x, start, LENGTHS)[0]
    assert all(norm.batches_S.sum() == 0 for norm in layer.modules() if isinstance(norm, StepBatchNorm))
    assert torch.equal(evaluated, layer.train()(x, start, LENGTHS)[0])
    population = build(**case_of(kind))
    population.load_state_dict(layer.state_dict())
    assert (population.eval()(x, start, LENGTHS)[0] - evaluated).abs().max() > 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_steps_beyond_the_last_share_its_statistics(kind: str) -> None:
    layer = build(**case_of(kind, max_steps=2))
    layer(random(T, B, INPUTS))
    norm = layer.cells[0].norm_ih
    assert norm.batches_S.tolist() == [1, T - 1]
    weights = layer.cells[0].weights().ih_GI
    x = random(T, B, INPUTS)
    # W x has no bias inside, so its statistics are those of the inputs alone
    means = (x @ weights.T).mean(1).detach()
    torch.testing.assert_close(norm.running_mean_SF[0], means[0])
    torch.testing.assert_close(norm.running_mean_SF[1], means[1:].mean(0))
    layer.eval()
    long = random(1, B, INPUTS).expand(7, -1, -1)
    at_last = norm(torch.ones_like(means), Moment(1))
    for t in (2, 6, 100):
        assert torch.equal(norm(torch.ones_like(means), Moment(t)), at_last)
    assert layer(long)[0].isfinite().all()


def test_steps_that_training_never_reached_use_the_last_it_did() -> None:
    layer = build(**case_of("lstm", max_steps=9))
    layer(random(2, B, INPUTS))
    norm, a = layer.eval().cells[0].norm_ih, random(B, 20)
    assert norm.steps_seen() == 2
    assert torch.equal(norm(a, Moment(5)), norm(a, Moment(1)))
    assert not torch.equal(norm(a, Moment(1)), norm(a, Moment(0)))


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_before_any_training_step_is_refused(kind: str) -> None:
    layer = build(**case_of(kind)).eval()
    with pytest.raises(RuntimeError, match="has no statistics to evaluate with: run a training step first") as error:
        layer(random(T, B, INPUTS))
    assert "\n" not in str(error.value) and "evaluation=batch" in str(error.value)


def test_one_running_case_is_its_bias_and_no_case_leaves_no_trace() -> None:
    norm = StepBatchNorm(3, Norm("bn"), 4, True, "population").double()
    with torch.no_grad():
        assert norm.bias is not None
        norm.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    a = random(4, 3).requires_grad_()
    alone = norm(a, Moment(0, torch.tensor([[False], [True], [False], [False]])))
    torch.testing.assert_close(alone[1], norm.bias.double())
    alone.sum().backward()
    assert a.grad is not None and a.grad.isfinite().all()
    assert norm.running_mean_SF[0].tolist() == a[1].tolist() and norm.running_var_SF[0].abs().max() == 0
    norm(a, Moment(1, torch.zeros(4, 1, dtype=torch.bool)))
    assert norm.batches_S.tolist() == [1, 0, 0, 0]


def test_the_statistics_survive_saving_and_float32() -> None:
    layer = LSTM(INPUTS, 4, norm="bn", max_steps=2)
    layer(random(2, B, INPUTS, dtype=torch.float32))
    names = {name.rsplit(".", 1)[1] for name in layer.state_dict() if "running" in name or "batches" in name}
    assert names == {"running_mean_SF", "running_var_SF", "batches_S"}
    fresh = LSTM(INPUTS, 4, norm="bn", max_steps=2)
    fresh.load_state_dict(layer.state_dict())
    x = random(2, B, INPUTS, dtype=torch.float32)
    assert torch.equal(fresh.eval()(x)[0], layer.eval()(x)[0])


def test_each_layer_and_direction_has_statistics_of_its_own() -> None:
    layer = GRU(INPUTS, 4, 2, bidirectional=True, norm="bn", max_steps=3).double()
    layer(random(3, B, INPUTS), None, torch.tensor([3, 2, 3, 1, 2, 3]))
    means = [cell.get_submodule("norm_ih").get_buffer("running_mean_SF") for cell in layer.cells]
    assert all(not torch.equal(a, b) for k, a in enumerate(means) for b in means[:k])
    # backwards, the first step of each case is its last real one
    x, lengths = random(3, B, INPUTS), [3, 2, 3, 1, 2, 3]
    last = torch.stack([x[length - 1, b] for b, length in enumerate(lengths)])
    weights = torch.tensor(parameters_of(layer.cells[1])["W"])
    torch.testing.assert_close(means[1][0], (last @ weights.T).mean(0))


@pytest.mark.parametrize("kind", [LSTM, GRU])
def test_a_layer_of_bfloat16_stays_one(kind: type[LSTM] | type[GRU]) -> None:
    layer = kind(3, 4, norm="bn", max_steps=2).bfloat16()
    output_TBH, _ = layer(torch.randn(3, 5, 3).bfloat16())
    assert output_TBH.dtype == torch.bfloat16
    output_TBH.float().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
