"""The skip-thoughts model against NumPy in float64, and its softmax, taken in chunks, against the plain one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import recurrent as oracle
from rnncases import parameters_of, recipe_of, scramble
from torch import Tensor

import models.chunked_softmax as softmax
from models.chunked_softmax import softmax_loss
from models.norm import Norm, count_normalisers
from models.skip_official import load_skip_thoughts, skip_thoughts_arrays
from models.skip_thoughts import SkipSizes, SkipThoughts, Words
from tests.commands import NORM_NAMES
from tests.largest import Largest

NORMS = ("none", "wn", "ln")
V, W, H = 13, 5, 6


@pytest.fixture(autouse=True)
def same_draws() -> None:
    torch.manual_seed(0)


def make(norm: str = "ln", seed: int = 0, **changes: Any) -> SkipThoughts:
    sizes = {"vocabulary": V, "words": W, "units": H, **changes}
    return SkipThoughts(SkipSizes(**sizes), Norm(norm), torch.Generator().manual_seed(seed))


def sentences(lengths: list[int], seed: int, vocabulary: int = V) -> Words:
    """Random words, EOS after the last one and beyond."""
    ids = torch.randint(2, vocabulary, (max(lengths), len(lengths)), generator=torch.Generator().manual_seed(seed))
    for b, length in enumerate(lengths):
        ids[length - 1 :, b] = 0
    return Words(ids, torch.tensor(lengths))


def triple(seed: int = 0) -> tuple[Words, Words, Words]:
    return sentences([3, 1, 5], seed), sentences([4, 4, 4], seed + 1), sentences([2, 6, 4], seed + 2)


def numpy_loss(model: SkipThoughts, norm: str, batch: tuple[Words, Words, Words], floor: float = 1e-8) -> float:
    """The whole model, one sentence and one word at a time."""
    recipe = recipe_of({"kind": "gru", "norm": norm, "bias_mode": "official"})
    table, out_w, out_b = (
        p.detach().double().numpy() for p in (model.words.weight, model.output.weight, model.output.bias)
    )
    layers = {name: parameters_of(getattr(model, name).cells[0]) for name in ("encoder", "previous", "next")}
    previous, current, next_ = batch
    total = 0.0
    for b in range(len(current.lengths_B)):
        ids = current.ids_TB[: current.lengths_B[b], b].numpy()
        _, vector = oracle.gru(table[ids][:, None], np.zeros((1, H)), layers["encoder"], recipe)
        for name, words in (("previous", previous), ("next", next_)):
            target = words.ids_TB[: words.lengths_B[b], b].numpy()
            read = np.concatenate([np.zeros((1, W)), table[target[:-1]]])
            if model.sizes.conditioned:
                read = np.concatenate([read, np.repeat(vector, len(read), 0)], 1)
            states, _ = oracle.gru(read[:, None], vector, layers[name], recipe)
            for state, word in zip(states[:, 0], target, strict=True):
                logits = out_w @ state + out_b
                total -= np.log(np.exp(logits)[word] / np.exp(logits).sum() + floor)
    return total


@pytest.mark.parametrize("conditioned", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_loss_against_numpy(norm: str, conditioned: bool) -> None:
    model = make(norm, conditioned=conditioned)
    scramble(model, scale=0.3)
    batch = triple()
    total, words = model(*batch)
    assert words == (3 + 1 + 5) + (2 + 6 + 4) and total.dim() == 0
    assert total.item() == pytest.approx(numpy_loss(model, norm, batch), rel=1e-5)
    exact = model.double()
    assert exact(*batch)[0].item() == pytest.approx(numpy_loss(exact, norm, batch), rel=1e-11)


@pytest.mark.parametrize("conditioned", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_gradients_against_differences(norm: str, conditioned: bool) -> None:
    model, batch = make(norm, conditioned=conditioned).double(), triple()
    scramble(model, scale=0.3)
    model(*batch)[0].backward()
    direction = [torch.randn_like(p) for p in model.parameters()]
    slope = sum((p.grad * d).sum().item() for p, d in zip(model.parameters(), direction, strict=True))
    ends = []
    for step in (1e-6, -2e-6):
        with torch.no_grad():
            for p, d in zip(model.parameters(), direction, strict=True):
                p.add_(d, alpha=step)
            ends.append(model(*batch)[0].item())
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6)
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters()), "each takes part"


def test_a_sentence_decodes_the_same_alone_and_in_company() -> None:
    batch = triple()
    for norm in NORMS:
        model = make(norm)
        alone = 0.0
        for b in range(3):
            ones = [Words(w.ids_TB[: w.lengths_B[b], b : b + 1], w.lengths_B[b : b + 1]) for w in batch]
            alone += model(*ones)[0].item()
        assert model(*batch)[0].item() == pytest.approx(alone, rel=1e-5)


def test_the_decoders_start_from_the_vector_and_differ() -> None:
    previous, current, next_ = triple()
    model = make("ln").double()
    other = sentences([4, 4, 4], 9)
    losses = {
        model(*b)[0].item() for b in ((previous, current, next_), (next_, current, previous), (previous, other, next_))
    }
    assert len(losses) == 3, "what was read matters, and which decoder says what"


def test_conditioning_reads_the_vector_at_every_step() -> None:
    off, on = make(conditioned=False), make(conditioned=True)
    assert on.next.input_size == W + H and off.next.input_size == W and on.encoder.input_size == W
    with torch.no_grad():  # without its columns for the vector it is the other
        for ours, theirs in zip((on.encoder, on.next, on.previous), (off.encoder, off.next, off.previous), strict=True):
            for name, value in theirs.named_parameters():
                mine = ours.get_parameter(name)
                (mine[:, :W] if mine.shape != value.shape else mine).copy_(value)
        for gru in (on.next, on.previous):
            gru.cells[0].weight_ih[:, W:] = 0
        for name in ("words", "output"):
            on.get_submodule(name).load_state_dict(off.get_submodule(name).state_dict())
    batch = triple()
    torch.testing.assert_close(on(*batch)[0], off(*batch)[0])
    with torch.no_grad():
        on.next.cells[0].weight_ih[:, W:].normal_()  # the same for all units would be lost in LN
    assert (on(*batch)[0] - off(*batch)[0]).abs() > 1e-2


@pytest.mark.parametrize("norm", NORMS)
def test_initial_values_are_those_of_the_authors_code(norm: str) -> None:
    model = make(norm, vocabulary=300, words=30, units=32, conditioned=True)
    for name in ("encoder", "next", "previous"):
        (cell,) = getattr(model, name).cells
        for block in cell.weight_hh.detach().split(32):
            torch.testing.assert_close(block @ block.T, torch.eye(32), atol=1e-5, rtol=0)
        words, *vector = cell.weight_ih.detach().split([30, 32] if name != "encoder" else [30], 1)
        assert 0.09 < words.abs().max() <= 0.1 + 1e-6 and words.std() == pytest.approx(0.1 / 3**0.5, rel=0.05)
        for block in (block for part in vector for block in part.split(32)):
            torch.testing.assert_close(block @ block.T, torch.eye(32), atol=1e-5, rtol=0)
        assert not cell.bias.any()
    for weight in (model.words.weight.detach(), model.output.weight.detach()):
        assert 0.09 < weight.abs().max() <= 0.1 and weight.std() == pytest.approx(0.1 / 3**0.5, rel=0.05)
    assert not model.output.bias.any()
    again = make(norm, vocabulary=300, words=30, units=32, conditioned=True)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_the_norm_is_in_the_three_grus_and_nowhere_else() -> None:
    expected = {"none": {}, "wn": {"wn": 6}, "ln": {"ln": 12}}  # W and U; four sites
    for norm in NORMS:
        model = make(norm)
        assert {k: n for k, n in count_normalisers(model).items() if n} == expected[norm]
        assert sum(sum(count_normalisers(part).values()) for part in (model.words, model.output)) == 0
    assert set(NORMS) < set(NORM_NAMES.split(", "))


def test_parameters_at_the_published_size() -> None:
    with torch.device("meta"):
        model = SkipThoughts(SkipSizes(20_000, 620, 2400), Norm("none"), None)  # type: ignore[arg-type]
    gru = 3 * 2400 * (620 + 2400 + 1)
    assert sum(p.numel() for p in model.parameters()) == 20_000 * 620 + 3 * gru + 20_000 * 2401 == 125_673_600


def test_vocabulary_is_kept_with_the_weights() -> None:
    words = ["the", "naïve", ",", "''"]
    model = SkipThoughts(SkipSizes(6, W, H), Norm("none"), torch.Generator(), words)
    assert model.vocabulary() == words
    assert make().vocabulary() == []
    assert "spelling" in model.state_dict()


@given(st.integers(1, 9), st.integers(1, 7), st.integers(1, 4), st.sampled_from([1, 6, 20, 1 << 20]), st.floats(0, 1))
def test_chunked_softmax_in_blocks_of_any_size(rows: int, words: int, units: int, block: int, floor: float) -> None:
    random = torch.Generator().manual_seed(rows)
    shapes = ((rows, units), (words, units), (words,))
    given_ = [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]
    target = torch.randint(words, (rows,), generator=random)
    before, softmax.BLOCK = softmax.BLOCK, {"cpu": block}
    try:
        found = []
        for loss in (softmax_loss, plain):
            h, w, b = (x.clone().requires_grad_() for x in given_)
            value = loss(h, target, w, b, floor)
            found.append([value, *torch.autograd.grad(3 * value, (h, w, b))])
    finally:
        softmax.BLOCK = before
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def plain(h: Tensor, target: Tensor, w: Tensor, b: Tensor, floor: float) -> Tensor:
    p = torch.softmax(h @ w.T + b, 1)
    return -(p.gather(1, target[:, None]) + floor).log().sum()


def test_chunked_softmax_gradcheck() -> None:
    h, w, b = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((5, 3), (4, 3), (4,)))
    target = torch.tensor([0, 3, 3, 1, 2])
    for floor in (0.0, 1e-8, 0.2):
        assert torch.autograd.gradcheck(lambda h, w, b, floor=floor: softmax_loss(h, target, w, b, floor), (h, w, b))


def test_large_logits_stay_finite() -> None:
    h, w = torch.full((3, 2), 200.0, requires_grad=True), torch.tensor([[1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]])
    loss = softmax_loss(h, torch.tensor([0, 1, 2]), w, torch.zeros(3))
    loss.backward()
    assert loss.item() == pytest.approx(2 * -np.log(1e-8), rel=1e-5), "the floor bounds what an impossible word costs"
    assert bool(torch.isfinite(h.grad).all())


def test_no_tensor_of_all_words_times_the_vocabulary() -> None:
    vocabulary, lengths = 20_000, [30] * 32
    model = make("ln", vocabulary=vocabulary)
    batch = [sentences(lengths, seed, vocabulary) for seed in range(3)]
    with Largest() as largest:
        model(*batch)[0].backward()
    assert largest.most <= softmax.BLOCK["cpu"] < 2 * 30 * 32 * vocabulary / 4
    with torch.no_grad(), Largest() as without:
        model(*batch)
    assert without.most <= softmax.BLOCK["cpu"]


@pytest.mark.parametrize("norm", ["none", "ln"])
def test_the_authors_names_and_back(norm: str, tmp_path: Path) -> None:
    model = make(norm)
    scramble(model)
    arrays = skip_thoughts_arrays(model)
    assert arrays["Wemb"].shape == (V, W) and arrays["ff_logit_W"].shape == (H, V)
    assert {name.rpartition("_")[0] for name in arrays} == {"", "ff_logit", "encoder", "decoder_f", "decoder_b"}
    np.savez(tmp_path / "model.npz", **arrays)
    again, batch = load_skip_thoughts(tmp_path / "model.npz", ["a"] * (V - 2)), triple()
    torch.testing.assert_close(again(*batch)[0], model(*batch)[0], rtol=1e-6, atol=0)
    swapped = {k.replace("_f_", "_x_").replace("_b_", "_f_").replace("_x_", "_b_"): v for k, v in arrays.items()}
    assert (load_skip_thoughts(swapped)(*batch)[0] - model(*batch)[0]).abs() > 1e-3, "f is the next sentence"


def test_archives_that_do_not_fit_are_refused() -> None:
    arrays = skip_thoughts_arrays(make("ln"))
    with pytest.raises(ValueError, match="lacks Wemb"):
        load_skip_thoughts({k: v for k, v in arrays.items() if k != "Wemb"})
    with pytest.raises(ValueError, match=r"ff_logit_b has shape \(3,\)"):
        load_skip_thoughts({**arrays, "ff_logit_b": np.zeros(3)})
    with pytest.raises(ValueError, match="decoder_f_W has shape"):
        load_skip_thoughts({**arrays, "decoder_f_W": np.zeros((2, 2))})
    with pytest.raises(ValueError, match=r"Wemb has shape \(5,\), but must be a table"):
        load_skip_thoughts({**arrays, "Wemb": np.zeros(5)})
    with pytest.raises(ValueError, match="Wemb has vectors of 11 words, but 10 words are given"):
        load_skip_thoughts(arrays, ["a"] * 10)
    with pytest.raises(ValueError, match="Wemb holds values that are not finite"):
        load_skip_thoughts({**arrays, "Wemb": np.full((V, W), np.nan)})
    with pytest.raises(ValueError, match="not conditioned"):
        skip_thoughts_arrays(make(conditioned=True))
