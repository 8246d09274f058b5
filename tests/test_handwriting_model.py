"""The synthesis network against a transcription of its equations; its window, clipping, carrying on and writing."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.handwriting import Handwriting, HandwritingSizes
from models.mixture import mixture_nll
from models.norm import Norm, count_normalisers
from models.rnn import State
from models.window import Window, encode_text

NORMS = ("none", "wn", "ln")
TINY = HandwritingSizes(units=5, layers=3, gaussians=2, components=3, symbols=6, clip="none", kernel="reference")


def make(norm: str, sizes: HandwritingSizes = TINY, *, shaken: bool = True, double: bool = True) -> Handwriting:
    """A model; ``shaken``: with every parameter away from its initial value."""
    model = Handwriting(sizes, Norm(norm), generator=torch.Generator().manual_seed(0))
    model = model.double() if double else model
    generator = torch.Generator().manual_seed(1)
    if shaken:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype))
    return model


def inputs(steps: int = 7, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Three lines, with texts of 4, 2 and 3 characters."""
    generator = torch.Generator().manual_seed(2)
    x_TB3 = torch.randn(steps, 3, 3, generator=generator, dtype=torch.float64).to(dtype)
    labels_BU = torch.tensor([[1, 2, 3, 4], [5, 0, 3, 3], [0, 0, 2, 1]])
    return x_TB3, labels_BU, torch.tensor([4, 2, 3])


def slow_outputs(model: Handwriting, norm: str, x_T3: np.ndarray, text: list[int]) -> np.ndarray:
    """Outputs (T, Y) for ONE line in numpy."""
    s = model.sizes

    def array(value: Tensor) -> np.ndarray:
        return value.detach().numpy()

    def sigmoid(a: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-a))

    def ln(module: torch.nn.Module, a: np.ndarray) -> np.ndarray:
        if norm != "ln":
            return a
        return (a - a.mean()) / np.sqrt(a.var() + 1e-5) * array(module.gain) + array(module.bias)

    def lstm(n: int, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cell = model.layers[n].cells[0]
        a = ln(cell.norm_ih, array(cell.weight_ih) @ x) + ln(cell.norm_hh, array(cell.weight_hh) @ h)
        i, f, g, o = np.split(a + array(cell.bias), 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(ln(cell.norm_cell, c)), c

    h, c = np.zeros((s.layers, s.units)), np.zeros((s.layers, s.units))
    w, kappa, outputs = np.zeros(s.symbols), np.zeros(s.gaussians), []
    if s.first_window == "first":
        w[text[0]] = 1
    for x in x_T3:
        h[0], c[0] = lstm(0, np.concatenate([x, w]), h[0], c[0])
        window = array(model.window.linear.weight) @ h[0] + array(model.window.linear.bias)
        alpha, beta, step = np.split(np.exp(window), 3)
        kappa = kappa + step
        w = np.zeros(s.symbols)
        for u, label in enumerate(text, 1):
            w[label] += (alpha * np.exp(-beta * (kappa - u) ** 2)).sum()
        for n in range(1, s.layers):
            h[n], c[n] = lstm(n, np.concatenate([x, w, h[n - 1]]), h[n], c[n])
        outputs.append(array(model.output.weight) @ h.reshape(-1) + array(model.output.bias))
    return np.array(outputs)


@pytest.mark.parametrize("first_window", ["zeros", "first"])
@pytest.mark.parametrize("norm", NORMS)
def test_outputs_match_a_transcription(norm: str, first_window: str) -> None:
    model = make(norm, dataclasses.replace(TINY, first_window=first_window))
    x_TB3, labels_BU, lengths_B = inputs()
    output_TBY, _ = model(x_TB3, labels_BU, lengths_B)
    for b, size in enumerate(lengths_B.tolist()):
        expected = slow_outputs(model, norm, x_TB3[:, b].numpy(), labels_BU[b, :size].tolist())
        np.testing.assert_allclose(output_TBY[:, b].detach().numpy(), expected, rtol=1e-9, atol=1e-9)


# By hand, at the published sizes (H 400, C 57, K 10, M 20), one bias per LSTM, no peepholes:
#   layer 1      1600 (3 + 57 + 400) + 1600       = 737,600      window  30 (400 + 1)   = 12,030
#   layers 2, 3  1600 (3 + 57 + 400 + 400) + 1600 = 1,377,600    output  121 (1200 + 1) = 145,321
BASELINE = 737_600 + 2 * 1_377_600 + 12_030 + 145_321
EXTRA = {"none": 0, "ln": 3 * 2 * (1600 + 1600 + 400), "wn": 3 * 2 * 1600 + 30 + 121}


@pytest.mark.parametrize("norm", NORMS)
def test_sizes_and_normalisers_at_the_published_setting(norm: str) -> None:
    model = make(norm, HandwritingSizes(), shaken=False, double=False)
    assert BASELINE == 3_650_151
    assert sum(p.numel() for p in model.parameters()) == BASELINE + EXTRA[norm]
    assert count_normalisers(model) == {"bn": 0, "wn": 8 * (norm == "wn"), "ln": 9 * (norm == "ln")}


def test_initial_values() -> None:
    sizes = HandwritingSizes(units=50, forget_bias=3.0, step_bias=-2.0)
    model, plain = (
        make("ln", s, shaken=False, double=False)
        for s in (sizes, dataclasses.replace(sizes, forget_bias=0.0, step_bias=0.0))
    )
    for n in range(3):
        difference = model.layers[n].cells[0].bias - plain.layers[n].cells[0].bias
        torch.testing.assert_close(difference, torch.tensor([0.0, 3, 0, 0]).repeat_interleave(50))
        assert plain.layers[n].cells[0].weight_ih.abs().max() <= 50**-0.5
    difference = model.window.linear.bias - plain.window.linear.bias
    torch.testing.assert_close(difference, torch.tensor([0.0, 0, -2]).repeat_interleave(10))
    assert plain.output.weight.abs().max() <= 150**-0.5 < 1.05 * plain.output.weight.abs().max()


def test_the_window_moves_forward_and_sees_no_padding() -> None:
    window = Window(5, 2, step_bias=0.0, generator=torch.Generator().manual_seed(0)).double()
    text = encode_text(torch.tensor([[1, 2, 3, 4], [1, 2, 5, 5]]), torch.tensor([4, 2]), 6, torch.float64)
    assert text.positions_U.tolist() == [1, 2, 3, 4] and text.onehot_BUC[1, 2:].sum() == 0
    kappa = window.start(text)
    assert kappa.tolist() == [[0, 0], [0, 0]]
    for seed in range(5):
        h = torch.randn(2, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        look = window.step(h, kappa, text, *window.parameters_of_step())
        assert (look.kappa_BK > kappa).all() and look.window_BC[1, 5] == 0
        torch.testing.assert_close(look.window_BC[0, 1:5], look.weight_BU[0])
        kappa = look.kappa_BK


@pytest.mark.parametrize("norm", NORMS)
def test_a_line_does_not_depend_on_its_company(norm: str) -> None:
    model, (x_TB3, labels_BU, lengths_B) = make(norm), inputs()
    whole, _ = model(x_TB3, labels_BU, lengths_B)
    for b, size in enumerate(lengths_B.tolist()):
        alone, _ = model(x_TB3[:, b : b + 1], labels_BU[b : b + 1, :size], lengths_B[b : b + 1])
        torch.testing.assert_close(alone[:, 0], whole[:, b], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("clip", ["none", "states"])
@pytest.mark.parametrize("norm", NORMS)
def test_two_parts_are_the_whole_and_the_gradient_is_cut_where_it_is_asked_for(norm: str, clip: str) -> None:
    model, (x_TB3, labels_BU, lengths_B) = make(norm, dataclasses.replace(TINY, clip=clip)), inputs()
    whole, end = model(x_TB3, labels_BU, lengths_B)
    first, carry = model(x_TB3[:3], labels_BU, lengths_B)
    second, last = model(x_TB3[3:], labels_BU, lengths_B, carry)
    torch.testing.assert_close(torch.cat((first, second)), whole, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(last.kappa_BK, end.kappa_BK)
    for mine, theirs in zip(last.states, end.states, strict=True):
        torch.testing.assert_close(mine.c_BH, theirs.c_BH)
    x_TB3.requires_grad_()
    _, carry = model(x_TB3[:3], labels_BU, lengths_B)
    second, _ = model(x_TB3[3:], labels_BU, lengths_B, carry.detached())
    (gradient,) = torch.autograd.grad(second.sum(), x_TB3)
    assert gradient[:3].abs().max() == 0 and gradient[3:].abs().min() > 0


@pytest.mark.parametrize("norm", NORMS)
def test_every_parameter_gets_a_finite_gradient(norm: str) -> None:
    model, (x_TB3, labels_BU, lengths_B) = make(norm), inputs()
    output, _ = model(x_TB3, labels_BU, lengths_B)
    mixture_nll(output, x_TB3).sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.abs().max() > 0, name


def gradients(clip: str, scale: float, batch: int = 3) -> dict[str, Tensor]:
    model, (x_TB3, labels_BU, lengths_B) = make("none", dataclasses.replace(TINY, clip=clip, batch=batch)), inputs()
    output, _ = model(x_TB3, labels_BU, lengths_B)
    (scale * output.sum() / batch).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("clip", ["inputs", "states"])
def test_clipping_leaves_small_gradients_alone(clip: str) -> None:
    clipped, free = gradients(clip, 1e-3), gradients("none", 1e-3)
    for name in free:
        torch.testing.assert_close(clipped[name], free[name], rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("clip", ["inputs", "states"])
def test_the_outputs_gradient_is_clipped_per_sequence(clip: str) -> None:
    """7 steps of 3 lines; the loss is their mean, so a line's 100 is 100/3 of it."""
    assert gradients(clip, 1e6)["output.bias"] == pytest.approx(np.full(19, 7 * 3 * 100 / 3))
    assert gradients("none", 1e6)["output.bias"] == pytest.approx(np.full(19, 7 * 3 * 1e6 / 3))


def test_the_gradient_of_summed_inputs_is_clipped_in_every_layer() -> None:
    clipped, free = gradients("inputs", 1e6), gradients("none", 100)  # as much as the clipped outputs let through
    for n in range(3):
        name = f"layers.{n}.cells.0.bias"
        assert clipped[name].abs().max() <= 7 * 3 * 10 / 3 + 1e-9 < free[name].abs().max()


def test_clipping_of_states_differs_from_that_of_inputs_and_bounds_the_window() -> None:
    states, inputs_, free = (gradients(clip, 1e6) for clip in ("states", "inputs", "none"))
    name = "layers.1.cells.0.weight_ih"
    assert not torch.allclose(states[name], inputs_[name]) and states[name].abs().max() < free[name].abs().max()


def gradients_of_states(clip: str, scale: float) -> dict[str, Tensor]:
    """Largest gradients, after any clipping, of every layer's h and c and of w, over all steps."""
    model, (x_TB3, labels_BU, lengths_B) = make("none", dataclasses.replace(TINY, clip=clip, batch=3)), inputs()
    with torch.no_grad():  # w matters more, so that its gradient too is larger than what is let through
        for layer in model.layers:
            layer.cells[0].weight_ih[:, 3 : 3 + TINY.symbols] *= 3
    seen: dict[str, list[Tensor]] = {}

    def watch(names: Sequence[str], function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            values = function(*arguments)
            for name, value in zip(names, values, strict=False):
                value.retain_grad()
                seen.setdefault(name, []).append(value)
            return values

        return call

    for n, layer in enumerate(model.layers):
        cell = layer.cells[0]
        begin = cell.begin
        names = [f"{part}{n}" for part in State._fields]
        cell.begin = lambda *a, begin=begin, names=names: watch(names, begin(*a))
    model.window.step = watch(["w"], model.window.step)
    output, _ = model(x_TB3, labels_BU, lengths_B)
    (scale * output.sum() / 3).backward()
    return {name: torch.stack([v.grad for v in values]).abs().max() for name, values in seen.items()}


def test_the_gradient_of_each_state_and_of_the_window_is_clipped_per_sequence() -> None:
    clipped, free = gradients_of_states("states", 1e6), gradients_of_states("none", 100)
    assert set(clipped) == {"w"} | {f"{part}{n}" for part in State._fields for n in range(3)}
    for name, most in clipped.items():
        assert most.item() == pytest.approx(10 / 3), name
    assert set(free) == {"w", "h_BH0", "c_BH0"}, "the other layers take the whole sequence at once"
    assert min(free.values()) > 2 * 10 / 3, "with outputs' gradients as large as clipping leaves them"


@pytest.mark.parametrize("norm", NORMS)
def test_copies_and_state_dicts_carry_everything(norm: str) -> None:
    model, arguments = make(norm), inputs()
    fresh = make(norm, shaken=False)
    fresh.load_state_dict(model.state_dict())
    for other in (copy.deepcopy(model), fresh):
        assert torch.equal(other(*arguments)[0], model(*arguments)[0])


@pytest.mark.skipif("__import__('models.kernels.build').kernels.build.extension() is None", reason="no fused kernels")
@pytest.mark.parametrize("norm", NORMS)
def test_fused_and_reference_agree(norm: str) -> None:
    results = []
    for kernel in ("reference", "fused"):
        sizes = dataclasses.replace(TINY, units=24, kernel=kernel, clip="inputs", batch=3)
        model = make(norm, sizes, double=False)
        x_TB3, labels_BU, lengths_B = inputs(12, torch.float32)
        output, _ = model(x_TB3, labels_BU, lengths_B)
        mixture_nll(output, x_TB3).sum(0).mean().backward()
        results.append([output.detach(), *(p.grad for p in model.parameters())])
    for reference, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, reference, rtol=1e-3, atol=1e-4)


def noise(steps: int, batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.cat(
        (torch.rand(steps, batch, 2, generator=generator), torch.randn(steps, batch, 2, generator=generator)), 2
    )


@pytest.mark.parametrize("norm", NORMS)
def test_writing_feeds_each_point_back(norm: str) -> None:
    """The outputs for what was written, run through ``forward``, draw the same points from the same noise."""
    from models.mixture import draw, mixture

    model, (_, labels_BU, lengths_B) = make(norm, shaken=False), inputs()
    noise_TB4 = noise(20, 3).double()
    for b, written in enumerate(model.write(labels_BU, lengths_B, noise_TB4)):
        points = written.points_T3
        assert len(points) == len(written.weight_TU) and written.weight_TU.shape[1] == lengths_B[b]
        if not len(points):
            continue
        shifted = torch.cat((torch.zeros_like(points[:1]), points[:-1]))
        output, _ = model(shifted[:, None], labels_BU[b : b + 1], lengths_B[b : b + 1])
        again = draw(mixture(output[:, 0].detach()), noise_TB4[: len(points), b])
        torch.testing.assert_close(again, points)


def test_writing_ends_when_the_window_looks_past_the_text() -> None:
    model = make("none", dataclasses.replace(TINY, gaussians=1), shaken=False)
    with torch.no_grad():  # the window moves by a third of a character a step, whatever the pen does
        model.window.linear.weight.zero_()
        model.window.linear.bias.copy_(torch.tensor([0.0, 0.0, math.log(1 / 3)]))
    written = model.write(*inputs()[1:], noise(40, 3).double())
    # Halfway between character U and the place after it: step t is at kappa = (t + 1) / 3 > U + 1/2.
    assert [len(w.points_T3) for w in written] == [13, 7, 10]
    assert written[0].weight_TU.argmax(1)[[0, 4, 12]].tolist() == [0, 1, 3]
    short = model.write(*inputs()[1:], noise(5, 3).double())
    assert [len(w.points_T3) for w in short] == [5, 5, 5], "the noise is used up before"


def test_unknown_switches_are_refused() -> None:
    for change in ({"clip": "everything"}, {"first_window": "last"}):
        with pytest.raises(ValueError, match=f"{next(iter(change))} '.*' is unknown; choose one of"):
            make("none", dataclasses.replace(TINY, **change))
