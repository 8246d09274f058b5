"""Table 1 is measured, not asserted: wrong normalisers fail it. Section 5.2's powers hold within derived bands."""

from __future__ import annotations

import copy
import csv
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from experiments.analysis import fisher, fisher_figure
from experiments.analysis import invariances as inv
from experiments.analysis.compare import load_paper
from experiments.schema import ConfigError
from models import norm as norms
from models.norm import BatchNorm, LayerNorm, Norm
from models.pi_mnist import MLP
from scripts import invariances, reproduce
from scripts.options import parse

# Copied from the paper once more, in the order of its columns.
PRINTED = {
    "bn": [True, False, True, True, True, False],
    "wn": [True, False, True, False, False, False],
    "ln": [True, True, False, True, False, True],
}
TABLE = {norm: dict(zip(inv.TRANSFORMATIONS, entries, strict=True)) for norm, entries in PRINTED.items()}


def wrong(cells: list[inv.Cell]) -> set[str]:
    return {f"{cell.norm} {cell.transformation}" for cell in cells if not cell.matches}


def test_all_18_entries_are_the_papers() -> None:
    assert inv.paper_table(load_paper("invariances")) == TABLE
    cells = inv.evaluate(TABLE, seeds=(0, 1))
    assert len({(cell.transformation, cell.norm) for cell in cells}) == len(cells) == 18
    assert not wrong(cells)
    stayed, moved = inv.gap(cells)
    assert stayed < 1e-13 and moved > 1e-3, "nothing lies near the threshold"


class UncentredBatchNorm(BatchNorm):
    def forward(self, a_BF: Tensor) -> Tensor:
        return a_BF / a_BF.square().mean(0).sqrt() * self.gain + self.bias


class UncentredLayerNorm(LayerNorm):
    def forward(self, a: Tensor) -> Tensor:
        return a / a.square().mean(-1, keepdim=True).sqrt() * self.gain + self.bias


class UnscaledLayerNorm(LayerNorm):
    def forward(self, a: Tensor) -> Tensor:
        return (a - a.mean(-1, keepdim=True)) * self.gain + self.bias


WRONG = [
    ("bn", UncentredBatchNorm, {"bn dataset_recentering"}),
    ("ln", UncentredLayerNorm, {"ln weight_matrix_recentering"}),
    ("ln", UnscaledLayerNorm, {"ln weight_matrix_rescaling", "ln dataset_rescaling", "ln single_case_rescaling"}),
]


@pytest.mark.parametrize(("norm", "module", "fails"), WRONG, ids=[module.__name__ for _, module, _ in WRONG])
def test_a_wrong_normaliser_fails_its_entries(
    norm: str, module: type[nn.Module], fails: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(norms.ACTIVATION_NORMS, norm, module)
    assert wrong(inv.evaluate(TABLE, seeds=(0,))) == fails


def test_scaling_the_gain_too_fails_under_weight_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is transformed under WN is v: with g scaled as well, nothing is left of the invariance."""
    monkeypatch.setattr(inv, "incoming", lambda layer: inv.gain_and_bias(layer)[0])
    scaling = {"wn": {name: True for name in inv.TRANSFORMATIONS}}
    monkeypatch.setattr(inv, "OF_WEIGHTS", {k: inv.OF_WEIGHTS[k] for k in ("weight_matrix_rescaling",)})
    monkeypatch.setattr(inv, "TRANSFORMATIONS", inv.OF_WEIGHTS)
    assert wrong(inv.evaluate(scaling, seeds=(0,))) == {"wn weight_matrix_rescaling"}


def test_a_negative_factor_flips_the_sign() -> None:
    cells = inv.evaluate(TABLE, seeds=(0,), deltas=(-3.0,))
    scaled = {f"{n} {t}" for n, row in TABLE.items() for t, stays in row.items() if stays and "rescaling" in t}
    assert wrong(cells) == scaled and len(scaled) == 8
    x_BI = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for name in PRINTED:
        (layer,) = inv.hidden_layers(inv.network((5, 6, 3), inv.exact(name), seed=0))
        bias = inv.gain_and_bias(layer)[1]
        before = layer(x_BI) - bias
        with torch.no_grad():
            inv.incoming(layer).mul_(-3)
        torch.testing.assert_close(layer(x_BI) - bias, -before)


def test_deviations_are_those_of_the_networks_forward_pass() -> None:
    before, after = torch.tensor([3.0, -4.0, 0.0, 0.0]), torch.tensor([3.0, -4.0, 0.5, -1.0])
    assert inv.deviation(before, after) == pytest.approx(1.0 / 2.5)
    x_BI = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for name in PRINTED:
        net = inv.network((5, 6, 4, 3), inv.exact(name), seed=0)
        layers, logits = inv.predictions(net, x_BI)
        assert torch.equal(logits, net(x_BI)) and torch.equal(layers[0], net.hidden[0](x_BI))
        saved = copy.deepcopy(net.state_dict())
        inv.moved(net, x_BI, 1, inv.TRANSFORMATIONS["weight_matrix_rescaling"], inv.Draw(5.0, x_BI[0], 0, 0))
        parameters = dict(net.named_parameters())
        assert all(torch.equal(parameters[key], saved[key]) for key in parameters), "the network is left as it was"


def test_an_epsilon_moves_the_prediction_by_what_it_should() -> None:
    """LN(delta a) over LN(a) is sqrt((s² + e)/(s² + e/delta²)) at epsilon e and variance s²."""
    net, eps, delta = inv.network((5, 6, 3), Norm("ln", eps=1e-2), seed=0), 1e-2, 5.0
    x_BI = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    draw = inv.Draw(delta, x_BI[0], 0, 0)
    measured, _ = inv.moved(net, x_BI, 0, inv.TRANSFORMATIONS["weight_matrix_rescaling"], draw)
    (layer,) = inv.hidden_layers(net)
    out, bias = layer(x_BI).detach(), inv.gain_and_bias(layer)[1].detach()
    var = layer.linear(x_BI).var(-1, correction=0, keepdim=True).detach()
    expected = (out - bias) * ((var + eps) / (var + eps / delta**2)).sqrt() + bias
    assert measured == pytest.approx(inv.deviation(out, expected), rel=1e-9) and measured > 1e-3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"table": {}}, "table must hold a block"),
        ({"table": {**TABLE, "gn": {}}}, "table.gn must be a block of entries of a norm"),
        ({"table": {"ln": {"dataset_rescaling": True}}}, "table.ln must hold exactly"),
        ({"table": {"ln": {**TABLE["ln"], "dataset_rescaling": "yes"}}}, "dataset_rescaling=yes must be true or false"),
    ],
)
def test_a_broken_table_is_one_line(change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        inv.paper_table({**load_paper("invariances"), **change})


def case(norm: str, seed: int = 0) -> tuple[MLP, Tensor, Tensor, slice]:
    """A trained network, its data, and the units to scale."""
    x_BI, y_B = fisher.classes(seed)
    return fisher.trained(norm, seed, x_BI, y_B), x_BI, y_B, slice(None) if norm == "ln" else slice(3, 4)


@pytest.mark.parametrize("norm", PRINTED)
def test_scaled_weights_are_a_smaller_learning_rate_exactly(norm: str) -> None:
    net, x_BI, y_B, units = case(norm)
    grad_SI = fisher.gradient(net, x_BI, y_B, units)
    for factor in (3.0, 16.0):
        big = fisher.scaled(net, units, factor)
        torch.testing.assert_close(big(x_BI), net(x_BI), rtol=1e-11, atol=1e-11)  # function-preserving
        big_grad_SI = fisher.gradient(big, x_BI, y_B, units)
        torch.testing.assert_close(big_grad_SI * factor, grad_SI, rtol=1e-10, atol=1e-12)
        # Far beyond where anything is linear: rate eta at s is rate eta/s² at 1, length l is length l/s.
        torch.testing.assert_close(
            fisher.after(big, x_BI, units, -40 * big_grad_SI),
            fisher.after(net, x_BI, units, -40 / factor**2 * grad_SI), rtol=1e-9, atol=1e-11,
        )  # fmt: skip
        torch.testing.assert_close(
            fisher.after(big, x_BI, units, -0.7 * big_grad_SI / big_grad_SI.norm()),
            fisher.after(net, x_BI, units, -0.7 / factor * grad_SI / grad_SI.norm()), rtol=1e-9, atol=1e-11,
        )  # fmt: skip


def test_one_unit_is_not_enough_under_ln_nor_without_a_norm() -> None:
    for norm in ("none", "ln"):
        net, x_BI, _, _ = case(norm)
        other = fisher.scaled(net, slice(3, 4), 2.0)
        assert inv.deviation(net(x_BI).detach(), other(x_BI).detach()) > 1e-2


@pytest.mark.parametrize("norm", PRINTED)
def test_the_powers_of_section_5_2(norm: str) -> None:
    for seed in (0, 1):
        steps = fisher.measure(norm, seed)
        first = steps[0]
        for step in steps:
            s = step.factor
            assert step.scale * s == pytest.approx(first.scale, rel=1e-12)
            assert step.weight * s**2 == pytest.approx(first.weight, rel=1e-9)
            assert step.bias * s == pytest.approx(first.bias, rel=1e-9)
            assert step.gain * s == pytest.approx(first.gain, rel=1e-9)
            # The linear part falls as 1/s² exactly, and a change is within 1 ± bent of its linear part.
            assert step.bent < 1e-3
            low, high = (1 - step.bent) / (1 + first.bent), (1 + step.bent) / (1 - first.bent)
            assert low * (1 - 1e-9) <= step.sgd * s**2 / first.sgd <= high * (1 + 1e-9)


def test_without_a_norm_nothing_shrinks_and_nothing_is_predicted() -> None:
    frame = fisher.table((0,), norms=("none", "wn"))
    baseline = frame[(frame["norm"] == "none") & (frame["quantity"] == "sgd")]["measured"].tolist()
    assert baseline[-1] > baseline[0]
    assert frame[frame["norm"] == "none"]["predicted"].isna().all() and "gain" not in set(
        frame[frame["norm"] == "none"]["quantity"]
    )
    ours = frame[frame["norm"] == "wn"]
    assert set(ours["quantity"]) == set(fisher.QUANTITIES) and len(ours) == 5 * len(fisher.FACTORS)
    exact = ours[ours["quantity"].isin(["weight", "bias", "gain"])]
    np.testing.assert_allclose(exact["measured"], exact["predicted"], rtol=1e-9)
    said = fisher_figure.alt(frame)
    assert "Fisher block weights-weights (w-w): ∝ 1/s² (weight): baseline x" in said and "WN x0.0039;" in said, "1/256"
    assert "(gain): WN x0.062." in said, "1/16, and the baseline has no gain"
    assert fisher.on_doubling(frame, "weight") == "0.250" and fisher.on_doubling(frame, "gain") == "0.500"


@pytest.mark.parametrize("norm", PRINTED)
def test_fisher_blocks_are_those_of_equation_13(norm: str) -> None:
    """A normalised softmax regression, against the equation written out in NumPy (LN: with all outputs moving)."""
    units, n = 3, 6
    net = inv.network((2, units, units), inv.exact(norm), seed=4)
    (layer,) = inv.hidden_layers(net)
    g, b = inv.gain_and_bias(layer)
    assert g is not None
    with torch.no_grad():  # logits = N(W x) + b: relu idles, and the softmax does not see what is common to all
        b += 100
        net.logits.linear.weight.copy_(torch.eye(units))
        net.logits.linear.bias.zero_()
    x = torch.randn(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    chosen = slice(None) if norm == "ln" else slice(1, 2)
    got = fisher.blocks(net(x), fisher.jacobians(net, x, chosen))

    X, W, gain = (t.detach().numpy() for t in (x, inv.incoming(layer), g.flatten()))
    a = X @ W.T
    if norm == "wn":
        mu, sigma = np.zeros_like(a), np.tile(np.sqrt((W**2).sum(1)), (n, 1))
        dsigma = np.tile(W[1] / sigma[0, 1], (n, 1))
    elif norm == "bn":
        mu, sigma = np.tile(a.mean(0), (n, 1)), np.tile(a.std(0), (n, 1))
        dsigma = np.tile(((a - mu)[:, 1:2] * X).mean(0) / sigma[0, 1], (n, 1))
    else:
        mu, sigma = np.tile(a.mean(1, keepdims=True), units), np.tile(a.std(1, keepdims=True), units)
    ahat = (a - mu) / sigma
    p = np.exp(gain * ahat + b.detach().numpy() - 100)
    p /= p.sum(1, keepdims=True)
    cov = np.einsum("nk,kl->nkl", p, np.eye(units)) - np.einsum("nk,nl->nkl", p, p)
    if norm == "ln":
        inner = np.eye(units)[None] - 1 / units - np.einsum("nk,ni->nki", ahat, ahat) / units
        J = np.einsum("nki,np->nkip", (gain / sigma)[:, :, None] * inner, X).reshape(n, units, -1)
        J_b, J_g = np.tile(np.eye(units), (n, 1, 1)), np.einsum("nk,ki->nki", ahat, np.eye(units))
        want = [np.einsum("nkp,nkl,nlq->pq", J, cov, other) / n for other in (J, J_b, J_g)]
    else:
        dmu = X.mean(0) if norm == "bn" else 0.0
        chi = X - dmu - ahat[:, 1:2] * dsigma
        c, gs = cov[:, 1, 1], gain[1] / sigma[:, 1]
        want = [
            np.einsum("n,np,nq->pq", c * gs**2, chi, chi) / n,
            np.einsum("n,np->p", c * gs, chi)[:, None] / n,
            np.einsum("n,np->p", c * gs * ahat[:, 1], chi)[:, None] / n,
        ]
    for ours, theirs in zip(got, want, strict=True):
        assert ours is not None and np.abs(theirs).max() > 1e-6
        np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=1e-9, atol=1e-12)


def test_the_files_are_the_same_each_time(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(2)
    assert invariances.reproduce((0,)) == 0 and torch.get_num_threads() == 2
    said = capsys.readouterr().out
    names = {str(path.relative_to(results)): path for path in results.rglob("*") if path.is_file()}
    assert set(names) == {
        "tables/table1_invariances.md", "tables/table1_invariances.csv",
        *(f"figures/invariances/fisher_scaling.{kind}" for kind in ("png", "pdf", "csv")),
    }  # fmt: skip
    before = {name: (path.stat().st_mtime_ns, path.read_bytes()) for name, path in names.items()}
    assert invariances.reproduce((0,)) == 0 and capsys.readouterr().out == said
    assert {name: (path.stat().st_mtime_ns, path.read_bytes()) for name, path in names.items()} == before

    with open(names["tables/table1_invariances.csv"], newline="") as file:
        lines = list(csv.DictReader(file))
    assert {(line["norm"], line["transformation"]): line["paper"] for line in lines} == {
        (n, t): "yes" if stays else "no" for n, row in TABLE.items() for t, stays in row.items()
    }
    assert all(line["paper"] == line["ours"] and line["match"] == "yes" for line in lines)
    assert all((float(line["deviation_median"]) < 1e-8) == (line["ours"] == "yes") for line in lines)
    page = names["tables/table1_invariances.md"].read_text(encoding="utf-8")
    assert "18 of 18 entries" in page and "18 of 18 entries" in said and "weights x0.250" in said


def test_an_entry_that_is_not_the_papers_fails_the_command(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(norms.ACTIVATION_NORMS, "bn", UncentredBatchNorm)
    monkeypatch.setattr(sys, "argv", ["reproduce", "TASK=invariances", "SEEDS=0"])
    assert reproduce.main() == 1
    out, err = capsys.readouterr()
    assert err.splitlines() == ["error: all x → x + γ under BN: paper yes, ours no"]
    assert "17 of 18 entries are the paper's" in out


def test_reproduce_makes_it_alone_or_with_all_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse("reproduce", ["TASK=all"]).analyses == ("invariances",)
    assert parse("reproduce", ["TASK=draw"]).analyses == parse("data", ["TASK=all"]).analyses == ()
    alone = parse("reproduce", ["TASK=invariances", "SEEDS=4,2"])
    assert (alone.tasks, alone.analyses, alone.seeds) == ((), ("invariances",), (4, 2))

    calls: list[object] = []

    def called(code: int) -> Callable[..., int]:
        return lambda what, *_: (calls.append(what), code)[1]  # type: ignore[func-returns-value]

    monkeypatch.setattr(reproduce, "ANALYSES", {"invariances": called(0)})
    monkeypatch.setattr(reproduce, "reproduce", called(1))
    monkeypatch.setattr(sys, "argv", ["reproduce", "TASK=all", "PROFILE=smoke"])
    assert reproduce.main() == 1, "the worst code"
    assert calls == [*parse("reproduce", ["TASK=all"]).tasks, None]
