"""Order-violation energy, contrastive loss and both encoders, against formulas written as loops."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import models.order_embeddings as module
from models.norm import Norm, count_normalisers
from models.order_embeddings import OrderEmbedding, OrderSizes, contrastive_loss, order_violation
from models.retrieval import ranks
from models.variant import Variant
from tests.largest import Largest


@pytest.fixture(autouse=True)
def same_draws() -> None:
    torch.manual_seed(0)


def make(norm: str = "ln", seed: int = 0, **changes: Any) -> OrderEmbedding:
    sizes = {"vocabulary": 11, "features": 7, "words": 5, "units": 6, **changes}
    return OrderEmbedding(OrderSizes(**sizes), Norm(norm), torch.Generator().manual_seed(seed))


def points(count: int, units: int, seed: int) -> Tensor:
    return F.normalize(torch.randn(count, units, generator=torch.Generator().manual_seed(seed)).double()).abs()


def broadcast(s_CH: Tensor, v_NH: Tensor) -> Tensor:
    return (s_CH[:, None] - v_NH).clamp_min(0).square().sum(-1)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 7), st.sampled_from([1, 5, 20, 100, 1 << 17]))
def test_energy_and_gradients_in_blocks_of_any_size(captions: int, images: int, units: int, block: int) -> None:
    before, module.BLOCK = module.BLOCK, {"cpu": block}
    try:
        found, weight = [], points(captions, images, 3)
        for energy in (order_violation, broadcast):
            s, v = points(captions, units, 1).requires_grad_(), points(images, units, 2).requires_grad_()
            value = energy(s, v)
            found.append([value, *torch.autograd.grad((value * weight).sum(), (s, v))])
    finally:
        module.BLOCK = before
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_energy_by_hand() -> None:
    s, v = torch.tensor([[0.6, 0.8], [0.0, 1.0]]), torch.tensor([[0.8, 0.6], [0.0, 1.0], [0.6, 0.8]])
    expected = torch.tensor([[0.04, 0.36, 0.0], [0.16, 0.0, 0.04]])
    torch.testing.assert_close(order_violation(s, v), expected)


def test_no_tensor_of_captions_times_images_times_units() -> None:
    s, v = points(300, 64, 1).float().requires_grad_(), points(200, 64, 2).float().requires_grad_()
    with Largest() as largest:
        order_violation(s, v).sum().backward()
    assert largest.most <= max(module.BLOCK["cpu"], 300 * 200) < 300 * 200 * 64 / 10


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_blocks_are_not_shared_out_between_threads(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for one another at every block take minutes on a busy machine."""
    seen: set[int] = set()

    class Threads(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (torch.ops.aten.sub.out, torch.ops.aten.addcmul_.default):
                seen.add(torch.get_num_threads())
            return func(*args, **(kwargs or {}))

    s, v = points(9, 4, 1).requires_grad_(), points(7, 4, 2)
    with Threads():
        order_violation(s, v).sum().backward()
    assert seen == {1} and torch.get_num_threads() == 2
    monkeypatch.setattr(torch.linalg, "vector_norm", None)
    with pytest.raises(TypeError):
        order_violation(s, v)
    assert torch.get_num_threads() == 2, "also after an error"


@pytest.mark.parametrize("margin", [0.05, 0.2])
def test_contrastive_loss_against_loops(margin: float) -> None:
    energy = torch.rand(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = 0.0
    for i in range(5):
        for j in range(5):
            if i != j:
                expected += max(0.0, margin - energy[i, j].item() + energy[i, i].item())
                expected += max(0.0, margin - energy[i, j].item() + energy[j, j].item())
    assert contrastive_loss(energy, margin).item() == pytest.approx(expected)
    apart = torch.ones(4, 4) - torch.eye(4)
    assert contrastive_loss(apart, margin).item() == 0, "no cost once all others are further by the margin"


def test_the_diagonal_costs_nothing_and_has_no_gradient_of_its_own() -> None:
    energy = torch.full((3, 3), 5.0, requires_grad=True)
    with torch.no_grad():
        energy.fill_diagonal_(0.0)
    contrastive_loss(energy, 0.05).backward()
    assert energy.grad is not None and not energy.grad.any()


def test_embeddings_lie_on_the_sphere_without_negative_parts() -> None:
    for form, negative in (("order", False), ("symmetric", True)):
        model = make(energy=form, units=40)
        v = model.images(torch.randn(9, 7))
        s = model.sentences(torch.randint(2, 11, (4, 9)), torch.tensor([4] * 9))
        for points_BH in (v, s):
            torch.testing.assert_close(points_BH.norm(dim=1), torch.ones(9))
            assert bool((points_BH < 0).any()) == negative
        expected = broadcast(s, v) if form == "order" else -F.cosine_similarity(s[:, None], v[None], dim=-1)
        torch.testing.assert_close(model.energy(s, v), expected)


def test_image_map_by_hand() -> None:
    model, x = make(), torch.randn(3, 7)
    mapped = x.numpy() @ model.image_map.weight.detach().numpy().T + model.image_map.bias.detach().numpy()
    expected = np.abs(mapped / np.linalg.norm(mapped, axis=1, keepdims=True))
    np.testing.assert_allclose(model.images(x).detach().numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm", ["none", "wn", "ln"])
def test_padding_changes_nothing(norm: str) -> None:
    model = make(norm)
    words, lengths = torch.randint(2, 11, (5, 3)), torch.tensor([5, 3, 4])
    whole = model.sentences(words, lengths)
    for b, length in enumerate(lengths.tolist()):
        alone = model.sentences(words[:length, b : b + 1], lengths[b : b + 1])
        torch.testing.assert_close(whole[b : b + 1], alone)
    longer = torch.cat([words, torch.full((4, 3), 9)])
    torch.testing.assert_close(model.sentences(longer, lengths), whole)
    assert (model.sentences(words, lengths - 1) - whole).abs().max() > 1e-4, "each step counts, the EOS too"


def stacked(model: OrderEmbedding) -> tuple[Tensor, Tensor]:
    (cell,) = model.gru.cells
    return cell.weight_ih.detach(), cell.weight_hh.detach()


@pytest.mark.parametrize("norm", ["none", "wn", "ln"])
def test_initial_values_are_those_of_the_authors_code(norm: str) -> None:
    model = make(norm, vocabulary=200, words=30, units=32, features=50)
    weight_ih, weight_hh = stacked(model)
    for block in weight_hh.split(32):
        torch.testing.assert_close(block @ block.T, torch.eye(32), atol=1e-5, rtol=0)
    assert not torch.equal(weight_hh[:32], weight_hh[32:64]), "three different ones"
    for values, bound in ((weight_ih, 0.1), (model.words.weight, 0.1), (model.image_map.weight, (6 / 82) ** 0.5)):
        values = values.detach()
        assert 0.9 * bound < values.abs().max() <= bound and values.std() == pytest.approx(bound / 3**0.5, rel=0.05)
    square, _ = stacked(make(norm, words=32, units=32))
    torch.testing.assert_close(square[:32] @ square[:32].T, torch.eye(32), atol=1e-5, rtol=0)
    assert not model.image_map.bias.any()
    for name, parameter in model.gru.named_parameters():
        if "bias" in name:
            assert not parameter.any(), name
    again = make(norm, vocabulary=200, words=30, units=32, features=50)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("norm", ["none", "wn", "ln"])
def test_the_norm_is_in_the_sentence_gru_and_nowhere_else(norm: str) -> None:
    model = make(norm)
    outside = {**dict(model.words.named_modules(prefix="w")), **dict(model.image_map.named_modules(prefix="i"))}
    assert len(outside) == 2
    counts = count_normalisers(model)
    assert counts[norm] > 0 if norm != "none" else not any(counts.values()), counts


def numpy_sentence(model: OrderEmbedding, words: list[int]) -> np.ndarray:
    """The authors' GRU, step by step (facts of their code: gates first, candidate apart, biases inside the LNs)."""
    (cell,), units = model.gru.cells, model.gru.hidden_size
    w, u = (matrix.numpy().astype(np.float64).T for matrix in stacked(model))
    b = cell.bias.detach().numpy().astype(np.float64)
    own = {name: p.detach().numpy().astype(np.float64) for name, p in cell.named_parameters()}

    def norm(site: str, a: np.ndarray, part: slice) -> np.ndarray:
        if not (gains := [name for name in own if name.startswith(site) and "gain" in name]):
            return a
        gain = np.concatenate([own[name] for name in gains])[part]
        bias = np.concatenate([own[name.replace("gain", "bias")] for name in gains])[part]
        return gain * (a - a.mean()) / np.sqrt(a.var() + 1e-5) + bias

    def sigmoid(a: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-a))

    gates, rest, h = slice(0, 2 * units), slice(2 * units, 3 * units), np.zeros(units)
    for word in words:
        x = model.words.weight[word].detach().numpy().astype(np.float64)
        both = norm("norm_ih", x @ w[:, gates] + b[gates], gates) + norm("norm_hh", h @ u[:, gates], gates)
        reset, update = sigmoid(both[:units]), sigmoid(both[units:])
        candidate = norm("norm_ih", x @ w[:, rest] + b[rest], rest) + reset * norm("norm_hh", h @ u[:, rest], rest)
        h = update * h + (1 - update) * np.tanh(candidate)
    return np.abs(h / np.linalg.norm(h))


@pytest.mark.parametrize("norm", ["none", "ln"])
def test_sentences_against_the_equations(norm: str) -> None:
    model, random = make(norm), torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.gru.parameters():  # gains and biases away from 1 and 0
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=random))
    words = [3, 9, 4, 0]
    found = model.sentences(torch.tensor(words)[:, None], torch.tensor([4]))[0]
    np.testing.assert_allclose(found.detach().numpy(), numpy_sentence(model, words), rtol=2e-4, atol=1e-6)


def test_gradients_apart_are_views_in_the_authors_tensors() -> None:
    model = make("ln")
    loss = model.sentences(torch.tensor([[3], [4]]), torch.tensor([2])).sum() + model.images(torch.ones(1, 7)).sum()
    loss.backward()
    apart = model.separate_gradients()
    sizes = sorted(tuple(g.shape) for g in apart if g.dim() == 2)
    # words, W, Wx, U, Ux, image map; vectors: b, bx, four gains and four biases, the image map's
    assert sizes == sorted([(11, 5), (12, 5), (6, 5), (12, 6), (6, 6), (6, 7)])
    assert sorted(len(g) for g in apart if g.dim() == 1) == [6] * 6 + [12] * 5
    for gradient in apart:
        gradient.zero_()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_a_bias_mode_that_does_not_fit_is_one_line() -> None:
    with pytest.raises(ValueError, match="bias_mode=nothing"):
        Variant(Norm("ln"), bias_mode="nothing").resolved("gru")


@pytest.mark.slow
def test_a_fold_of_the_paper_is_searched_in_seconds() -> None:
    """5,000 captions against 1,000 images at 1,024 units: 3 s on two cores, so 6 s of CPU time."""
    s, v = (F.normalize(torch.randn(n, 1024)).abs() for n in (5000, 1000))
    start = time.process_time()
    ranks(order_violation(s, v))
    assert time.process_time() - start < 6
