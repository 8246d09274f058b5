"""What the fused kernels refuse, and the accuracy of their functions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.attention import Attention
from models.rnn import GRU, LSTM, LSTMCell, State


def penalty(loss: Tensor, x: Tensor) -> None:
    """Differentiates twice, as a gradient penalty does."""
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    gradient.square().sum().backward()


@pytest.mark.parametrize("layer", [LSTM(3, 5, norm="ln"), GRU(3, 5, norm="ln")], ids=["LSTM", "GRU"])
def test_a_second_derivative_of_a_sequence_is_refused(layer: LSTM | GRU) -> None:
    x_TBI = torch.randn(4, 2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice .* use kernel=reference"):
        penalty(layer(x_TBI)[0].square().sum(), x_TBI)


def test_a_second_derivative_of_steps_and_windows_is_refused() -> None:
    cell, x_BI = LSTMCell(3, 5, norm="ln"), torch.randn(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        penalty(cell.begin(1, 2)(x_BI, cell.initial(2)).h_BH.square().sum(), x_BI)
    window, image = torch.randn(2, 5, requires_grad=True), torch.rand(2, 6, 6)
    attention = Attention(2, 6, "gregor", "fused")
    for out in (attention.glimpse(window, image, image), attention.paint(window, image, torch.rand(2, 4))):
        with pytest.raises(RuntimeError, match="differentiated twice"):
            penalty(out.square().sum(), window)


def test_a_parameter_changed_between_a_step_and_its_backward_pass_is_noticed() -> None:
    cell = LSTMCell(3, 5, norm="ln")
    loss = cell.begin(1, 2)(torch.randn(2, 3), cell.initial(2)).h_BH.sum()
    with torch.no_grad():
        cell.weight_hh.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place between its steps and their backward pass"):
        loss.backward()


def test_steps_begun_without_gradients_cannot_go_on_with_them() -> None:
    cell = LSTMCell(3, 5, norm="ln")
    with torch.no_grad():
        steps = cell.begin(3, 2)
        state = steps(torch.randn(2, 3), cell.initial(2))
    assert not state.h_BH.requires_grad
    with pytest.raises(RuntimeError, match="call both under no_grad, or neither"):
        steps(torch.randn(2, 3), state)


def test_a_default_dtype_of_float64_changes_nothing() -> None:
    cell = LSTMCell(3, 5, norm="ln", sites="cell")
    x_BI = torch.randn(2, 3)
    found = []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            cell.zero_grad()
            cell.begin(1, 2)(x_BI, State(torch.zeros(2, 5).float(), torch.ones(2, 5).float())).h_BH.sum().backward()
        finally:
            torch.set_default_dtype(torch.float32)
        found.append(cell.weight_ih.grad)
    assert torch.equal(*found)


def test_lengths_need_not_be_contiguous() -> None:
    layer, x_TBI = GRU(3, 5, norm="ln"), torch.randn(5, 3, 3)
    lengths_B = torch.tensor([[5, 1], [3, 1], [2, 1]])[:, 0]
    for ours, expected in zip(layer(x_TBI, None, lengths_B), layer(x_TBI, None, lengths_B.clone()), strict=True):
        assert torch.equal(ours, expected)


def test_an_image_that_needs_a_gradient_gets_it() -> None:
    window, canvas = torch.randn(2, 5), torch.rand(2, 6, 6)
    gradients = []
    for kernel in ("auto", "reference"):
        image = torch.ones(2, 6, 6, requires_grad=True)
        Attention(2, 6, "gregor", kernel).glimpse(window, image, canvas).sum().backward()
        gradients.append(image.grad)
    assert torch.equal(*gradients) and gradients[0].abs().max() > 0


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((3, 5), (2, 6, 6)), r"window of shape \[3, 5\] must be \[2, 5\]"),
        (((2, 5), (2, 6, 7)), r"canvas of shape \[2, 6, 7\] must be \[2, 6, 6\]|image of shape"),
        (((2, 5), (2, 8, 8)), r"must be \[2, 6, 6\]"),
    ],
)
def test_a_window_of_the_wrong_shape_is_refused(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    window, image = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(ValueError, match=message):
        Attention(2, 6, "gregor", "fused").glimpse(window, image, image)


@pytest.mark.parametrize("size", [1e-8, 1e-6, 1e-4, 1e-2, 0.3, 1.0, 4.0, 20.0, 200.0])
def test_small_cells_keep_their_digits(size: float) -> None:
    """h = sigmoid(o) tanh(c), relative to float64: tanh as a difference of near-equal numbers would lose them all."""
    cell = LSTMCell(1, 32, gate_clip=1e9, bias=False)
    with torch.no_grad():
        cell.weight_ih.zero_(), cell.weight_hh.zero_()
    c_BH = torch.cat([torch.linspace(-size, -size / 16, 16), torch.linspace(size / 16, size, 16)])[None]
    h_BH, c_after_BH = cell.begin(1, 1)(torch.zeros(1, 1), State(torch.zeros(1, 32), c_BH))
    torch.testing.assert_close(c_after_BH, c_BH / 2, rtol=1e-6, atol=0)
    expected = (c_BH.double() / 2).tanh() / 2
    torch.testing.assert_close(h_BH.double(), expected, rtol=1e-6, atol=0)
