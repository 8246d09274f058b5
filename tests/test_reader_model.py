"""The attentive reader: every arm against the oracle, its initial values, dropout, and what padding does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.attentive_reader import AttentiveReader, ReaderSizes, answer_loss, read_padded
from models.norm import Norm
from models.recurrent_norm import StepBatchNorm
from models.rnn import LSTM
from tests.oracles import reader as oracle
from tests.readercases import ANSWERS, ARMS, BN, LENGTHS, QUERY_LENGTHS, H, V, W, make, parameters, recipe, texts

BN_ARMS = ("bn_lstm", "bn_everywhere")
SWITCHES: list[tuple[str, dict[str, Any]]] = [
    *((arm, {}) for arm in ARMS),
    *((arm, {"padding": "masked"}) for arm in BN_ARMS),
    *((arm, {"mean_term": False}) for arm in ARMS),
    *((arm, {"bias_mode": "paper"}) for arm in ("none", "ln")),
    *((arm, {"kernel": "reference"}) for arm in BN_ARMS),
    ("ln", {"bias_mode": "minimal"}), ("ln", {"kernel": "reference"}), ("none", {"kernel": "reference"}),
    ("bn_everywhere", {"legacy_init": True}), ("ln", {"legacy_init": True, "words": H}),
]  # fmt: skip


def said(model: AttentiveReader, noise: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    return model(*texts(), noise)


@pytest.mark.parametrize(("arm", "changes"), SWITCHES, ids=lambda v: str(v)[:50])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_against_the_oracle(arm: str, changes: dict[str, Any], mode: str) -> None:
    """Training without dropout, and evaluation with its scale; logits, attention, loss."""
    model = make(arm, dropout=0.0 if mode == "train" else 0.25, **changes).train(mode == "train")
    passage, _, query, _ = (part.numpy() for part in texts())
    scale = 1.0 if mode == "train" else 0.75
    logits, weight = oracle.reader(passage, LENGTHS, query, QUERY_LENGTHS, parameters(model), recipe(arm, model), scale)
    answer = said(model)
    np.testing.assert_allclose(answer.logits_BV.detach(), logits, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(answer.weight_TB.detach(), weight, rtol=1e-8, atol=1e-12)
    loss = answer_loss(answer.logits_BV, ANSWERS).mean().item()
    assert loss == pytest.approx(oracle.loss(logits, ANSWERS.tolist()), rel=1e-9)


@pytest.mark.parametrize("arm", ARMS)
def test_float32_is_close_to_the_oracle(arm: str) -> None:
    """With the fused kernel, where there is one."""
    model = make(arm, double=False, dropout=0.0, kernel="auto")
    passage, _, query, _ = (part.numpy() for part in texts())
    logits, _ = oracle.reader(passage, LENGTHS, query, QUERY_LENGTHS, parameters(model), recipe(arm, model))
    np.testing.assert_allclose(said(model).logits_BV.detach(), logits, rtol=1e-4, atol=1e-5)


def test_the_loss_of_an_answer_that_is_out_of_the_question() -> None:
    logits = torch.zeros(2, 4, dtype=torch.float64)
    logits[0, 1] = 200.0
    logits.requires_grad_()
    losses = answer_loss(logits, torch.tensor([2, 3]))
    assert losses.tolist() == pytest.approx([-np.log(1e-8), -np.log(0.25 + 1e-8)])
    losses.sum().backward()
    assert torch.isfinite(logits.grad).all() and logits.grad[0].abs().max() < 1e-70  # type: ignore[union-attr, index]


@pytest.mark.parametrize(
    ("arm", "changes"), [(arm, {}) for arm in ARMS] + [(arm, {"padding": "masked"}) for arm in BN_ARMS],
    ids=lambda v: str(v)[:30],
)  # fmt: skip
def test_gradients(arm: str, changes: dict[str, Any]) -> None:
    """Central differences of the loss along random directions of each parameter, dropout included."""
    model = make(arm, **changes)

    def loss() -> Tensor:
        return answer_loss(said(model, torch.Generator().manual_seed(7)).logits_BV, ANSWERS).mean()

    names, found = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss(), found)
    random = torch.Generator().manual_seed(3)
    for name, parameter, gradient in zip(names, found, gradients, strict=True):
        way = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
        values = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                parameter.add_(step * way)
                values.append(loss().item())
                parameter.sub_(step * way)
        wanted = (gradient * way).sum().item()
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(wanted, rel=1e-5, abs=1e-8), name
        assert gradient.abs().max() > 0, f"{name} does nothing"


def test_the_legacy_matrices_are_one_and_small() -> None:
    """As the authors' functions draw them: numpy's seed is 123 before each draw, whatever the experiment's."""
    units = 7
    sizes = ReaderSizes(vocabulary=V, words=units, units=units)
    first, second = (AttentiveReader(sizes, Norm("ln"), torch.Generator().manual_seed(seed)) for seed in (0, 1))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b), "no seed of ours in them"
    np.random.seed(123)
    bound = np.sqrt(6 / (2 * units + 1))
    left, _, right = np.linalg.svd(np.random.uniform(-bound, bound, (units, units)))
    shared = (0.05 * left @ right.T).astype(np.float32).T
    cells: list[Any] = [first.passage.cells[0], first.query.cells[0]]
    blocks = [block for cell in cells for w in (cell.weight_ih, cell.weight_hh) for block in w.chunk(4)]
    for matrix in (*blocks, first.similarity, first.att_passage.weight):
        np.testing.assert_array_equal(matrix.detach(), shared)
    np.testing.assert_allclose(shared @ shared.T, 0.0025 * np.eye(units), atol=1e-7)

    def uniform(nin: int, *nout: int) -> np.ndarray:
        np.random.seed(123)
        bound = np.sqrt(6 / (nin + nout[0] + 1)) if nout else np.sqrt(1 / nin)
        return np.random.uniform(-bound, bound, (nin, *nout)).astype(np.float32).T

    for layer in (first.att_query, first.out_passage, first.out_query, first.out_mean):
        np.testing.assert_array_equal(layer.weight.detach(), uniform(units, units))  # type: ignore[union-attr]
    np.testing.assert_array_equal(first.logits.weight.detach(), uniform(units, V))
    np.testing.assert_array_equal(first.embedding.detach().T, uniform(V, units))
    np.testing.assert_array_equal(first.score.detach(), uniform(units))
    for name, parameter in first.named_parameters():
        if name.endswith(("bias", "h0")):
            assert not parameter.any(), name


def test_independent_matrices_are_all_different_and_of_scale_1() -> None:
    model, other = (make("none", seed, double=False, moved=False, words=H) for seed in (0, 1))
    cells: list[Any] = [model.passage.cells[0], model.query.cells[0]]
    blocks = [block for cell in cells for w in (cell.weight_ih, cell.weight_hh) for block in w.chunk(4)]
    ortho = [*blocks, model.similarity, model.att_passage.weight]
    for matrix in ortho:
        torch.testing.assert_close(matrix @ matrix.T, torch.eye(H))
    layers = (model.att_query, model.out_passage, model.out_query, model.out_mean)
    uniform = [layer.weight for layer in layers]  # type: ignore[union-attr]
    assert all(matrix.abs().max() <= np.sqrt(6 / (2 * H + 1)) for matrix in uniform)
    every = [tuple(matrix.flatten().tolist()) for matrix in (*ortho, *uniform)]
    assert len(set(every)) == len(every)
    assert not any(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True) if a.any())


def test_bn_starts_with_a_gain_of_a_tenth_and_sits_where_it_should() -> None:
    for arm, sites in (("bn_lstm", 6), ("bn_everywhere", 11)):
        model = make(arm, moved=False)
        norms = {name: module for name, module in model.named_modules() if isinstance(module, StepBatchNorm)}
        assert len(norms) == sites and all(set(norm.gain.tolist()) == {np.float32(0.1)} for norm in norms.values())
        with_bias = {name for name, norm in norms.items() if norm.bias is not None}
        cells = {f"{encoder}.cells.0.norm_cell" for encoder in ("passage", "query")}
        assert with_bias == cells | ({"att_passage.norm", "out_query.norm"} if arm == "bn_everywhere" else set())
        assert model.att_passage.bias is None if arm == "bn_everywhere" else model.att_passage.bias is not None
        assert model.logits.bias is not None
    assert not any(isinstance(module, StepBatchNorm) for module in make("ln").modules())


def test_padding_is_in_bns_statistics_or_is_not() -> None:
    """Another padding word, and a longer padding, change the included statistics only."""
    passage, lengths, query, query_lengths = texts()
    other = passage.clone()
    other[passage == 0] = 4
    longer = torch.cat((passage, torch.zeros_like(passage[:3])))
    for padding, counts in (("included", True), ("masked", False)):
        model = make("bn_everywhere", padding=padding, dropout=0.0)
        first = model(passage, lengths, query, query_lengths).logits_BV
        apart = (model(other, lengths, query, query_lengths).logits_BV - first).abs().max()
        assert (apart > 1e-4) == counts, padding
        apart = (model(longer, lengths, query, query_lengths).logits_BV - first).abs().max()
        assert (apart > 1e-6) == counts, padding
    for arm in ("none", "ln"):
        model = make(arm, dropout=0.0)
        first = model(passage, lengths, query, query_lengths).logits_BV
        torch.testing.assert_close(model(other, lengths, query, query_lengths).logits_BV, first, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_without_padding_the_loop_is_that_of_the_layer(kernel: str) -> None:
    """And leaves the same statistics: bit for bit through the modules, and through the framework's one operation."""
    switches: dict[str, Any] = {"norm": BN, "max_steps": 4, "initial_state": "learned_h", "kernel": kernel}
    layers = [LSTM(W, H, generator=torch.Generator().manual_seed(0), **switches) for _ in range(2)]
    for seed in range(3):
        x_TBW = torch.randn(6, 4, W, generator=torch.Generator().manual_seed(seed))
        output, (h, _) = layers[0](x_TBW)
        again, last = read_padded(layers[1].cells[0], x_TBW, torch.tensor([6, 6, 6, 6]))  # type: ignore[arg-type]
        exact = {"rtol": 0, "atol": 0} if kernel == "reference" else {"rtol": 1e-4, "atol": 1e-6}
        torch.testing.assert_close(again, output, **exact)
        torch.testing.assert_close(last, h[0], **exact)
    for one, other in zip(layers[0].buffers(), layers[1].buffers(), strict=True):
        torch.testing.assert_close(one, other, **exact)
    assert layers[1].cells[0].norm_ih.batches_S.tolist() == [3, 3, 3, 9]  # type: ignore[union-attr]


def test_population_statistics_make_cases_independent_of_their_batch() -> None:
    """After enough training batches; in eval mode with ``batch`` statistics they are not."""
    for evaluation, alone in (("population", True), ("batch", False)):
        model = make("bn_everywhere", evaluation=evaluation, dropout=0.0)
        model.train()
        for seed in range(3):
            model(*texts(seed))
        model.eval()
        passage, lengths, query, query_lengths = texts()
        first = model(passage, lengths, query, query_lengths).logits_BV
        half = model(passage[:, :2], lengths[:2], query[:, :2], query_lengths[:2]).logits_BV
        assert torch.allclose(first[:2], half, rtol=1e-9, atol=1e-11) == alone


def test_population_statistics_are_means_over_training_batches() -> None:
    model = make("bn_everywhere", evaluation="population", dropout=0.0)
    means = []
    for seed in range(3):
        passage, lengths, *_ = texts(seed)
        embedded = model.embedding[passage[0]]
        means.append((embedded @ model.passage.cells[0].weight_ih.T).mean(0))  # type: ignore[union-attr, operator]
        model(*texts(seed))
    norm: Any = model.passage.cells[0].norm_ih
    torch.testing.assert_close(norm.running_mean_SF[0], torch.stack(means).mean(0).detach())
    assert norm.batches_S.tolist() == [3, 3, 3, 3 * 5], "the later steps share the last one's"


@pytest.mark.parametrize("form", ["plain", "inverted"])
def test_dropout(form: str) -> None:
    model = make("ln", dropout=0.25, dropout_form=form, double=False)
    x = torch.ones(400, 50)
    dropped = model.train()._dropped(x, torch.Generator().manual_seed(0))
    kept = 1.0 if form == "plain" else 1 / 0.75
    assert set(dropped.unique().tolist()) == {0.0, torch.tensor(kept).item()}
    assert (dropped > 0).float().mean().item() == pytest.approx(0.75, abs=0.01)
    assert set(model.eval()._dropped(x, None).unique().tolist()) == ({0.75} if form == "plain" else {1.0})
    logits = [said(model.train(), torch.Generator().manual_seed(seed)).logits_BV for seed in (0, 0, 1)]
    assert torch.equal(logits[0], logits[1]) and not torch.equal(logits[0], logits[2])


@pytest.mark.parametrize("key", ["dropout_form", "padding", "evaluation"])
def test_an_unknown_switch_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} 'other' is unknown; choose one of "):
        make("none", **{key: "other"})


def test_bn_may_stand_on_statistics_of_batches_alone() -> None:
    model = make("bn_lstm", dropout=0.0).eval()
    assert torch.isfinite(said(model).logits_BV).all(), "evaluation=batch needs no training before"
