"""The window of DRAW against a loop written from the formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.attention import CENTRES, ROW_SUM_EPS, Attention


def oracle(window: list[float], filters: int, size: int, centre: str) -> tuple[np.ndarray, np.ndarray, float]:
    """F_y, F_x and gamma of one window, one scalar at a time; pixels counted as each source counts them."""
    g_y, g_x, log_stride, log_variance, log_intensity = window
    stride = (size - 1) / (filters - 1) * math.exp(log_stride)
    banks = []
    for g in (g_y, g_x):
        first_pixel = 1 if centre == "gregor" else 0
        middle = (size + 1) / 2 * (g + 1) if centre == "gregor" else size / 2 * (g + 1)
        bank = np.zeros((filters, size))
        for i in range(1, filters + 1):
            mean = middle + (i - filters / 2 - 0.5) * stride
            for a in range(size):
                bank[i - 1, a] = math.exp(-((a + first_pixel - mean) ** 2) / (2 * math.exp(log_variance)))
            bank[i - 1] /= bank[i - 1].sum() + ROW_SUM_EPS
        banks.append(bank)
    return banks[0], banks[1], math.exp(log_intensity)


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


WINDOWS = torch.tensor(
    [[0.3, -0.2, -0.5, 0.4, 0.7], [0, 0, 0, 0, 0], [-0.9, 0.95, -2.0, -1.0, -0.3], [1.4, 0.1, 0.2, 1.5, 0.0]],
    dtype=torch.float64,
)


@pytest.mark.parametrize("centre", CENTRES)
@pytest.mark.parametrize(("filters", "size"), [(2, 28), (5, 28), (3, 7)])
def test_filterbank_read_and_write_match_a_loop(centre: str, filters: int, size: int) -> None:
    attention = Attention(filters, size, centre)
    bank = attention(WINDOWS)
    generator = torch.Generator().manual_seed(1)
    image, guess, canvas = (torch.rand(4, size, size, generator=generator) for _ in range(3))
    patch = torch.randn(4, filters * filters, generator=generator)
    patches = attention.read(bank, image, guess).view(4, filters, 2, filters)
    written = attention.write(bank, canvas, patch)
    for b, window in enumerate(WINDOWS.tolist()):
        rows, columns, gamma = oracle(window, filters, size, centre)
        np.testing.assert_allclose(bank.rows_BNA[b].numpy(), rows, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(bank.columns_BNA[b].numpy(), columns, rtol=1e-12, atol=1e-15)
        for k, seen in enumerate((image, image - guess)):
            expected = gamma * rows @ seen[b].numpy() @ columns.T
            np.testing.assert_allclose(patches[b, :, k].numpy(), expected, rtol=1e-10, atol=1e-14)
        expected = canvas[b].numpy() + rows.T @ patch[b].view(filters, filters).numpy() @ columns / gamma
        np.testing.assert_allclose(written[b].numpy(), expected, rtol=1e-10, atol=1e-14)


def test_the_two_centres_are_half_a_pixel_apart_and_gregors_is_the_exact_middle() -> None:
    window = torch.zeros(1, 5)
    gregor, public = (Attention(3, 28, c).box(window).centre_B2[0] for c in ("gregor", "jbornschein"))
    assert gregor.tolist() == [13.5, 13.5]  # pixels 0 … 27
    assert public.tolist() == [14.0, 14.0]


@settings(max_examples=50, deadline=None)
@given(
    centre=st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=2),
    log_stride=st.floats(-3, -1),
    log_variance=st.floats(-2, 2),
)
def test_rows_inside_the_image_sum_to_one(centre: list[float], log_stride: float, log_variance: float) -> None:
    bank = Attention(5, 28, "gregor")(torch.tensor([[*centre, log_stride, log_variance, 0.0]]))
    for filters in (bank.rows_BNA, bank.columns_BNA):
        assert (filters.sum(-1) - 1).abs().max() < 1e-3
        assert filters.min() >= 0


def test_a_full_identity_window_reads_and_writes_back_the_image() -> None:
    size = 28
    attention = Attention(size, size, "gregor")
    # N = A filters one pixel apart and so narrow that each sees its own pixel only; gamma cancels.
    bank = attention(torch.tensor([[0.0, 0.0, 0.0, -6.0, 0.8]]))
    image = torch.rand(1, size, size, generator=torch.Generator().manual_seed(0))
    patches = attention.read(bank, image, torch.zeros_like(image)).view(1, size, 2, size)
    restored = attention.write(bank, torch.zeros(1, size, size), patches[:, :, 0].reshape(1, -1))
    torch.testing.assert_close(restored, image, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("window", [[9.0, -9.0, -3.0, -4.0, 0.0], [50.0, 50.0, 0.0, 0.0, 0.0], [0, 0, 4.0, -9.0, 2.0]])
def test_gradients_stay_finite_when_the_window_leaves_the_image(window: list[float], dtype: torch.dtype) -> None:
    parameters = torch.tensor([window], dtype=dtype, requires_grad=True)
    attention = Attention(5, 28, "gregor").to(dtype)
    image = torch.rand(1, 28, 28, dtype=dtype)
    bank = attention(parameters)
    patch = attention.read(bank, image, image).view(1, 5, 2, 5)[:, :, 0].reshape(1, -1)
    attention.write(bank, image, patch + 1).square().sum().backward()
    assert parameters.grad is not None and parameters.grad.isfinite().all()


def test_a_filter_far_outside_fades_to_zero_instead_of_being_normalised() -> None:
    bank = Attention(2, 28, "gregor")(torch.tensor([[9.0, 0.0, -3.0, 0.0, 0.0]]))
    assert bank.rows_BNA.abs().max() == 0 and bank.columns_BNA.sum() > 1.9


def test_gradients_match_finite_differences() -> None:
    attention = Attention(3, 9, "gregor")
    images = torch.rand(2, 2, 9, 9, generator=torch.Generator().manual_seed(0))

    def read_and_write(window: torch.Tensor, error: torch.Tensor, patch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bank = attention(window)
        return attention.read(bank, images[0], error), attention.write(bank, error, patch)

    inputs = (WINDOWS[:2].clone(), images[1].clone(), torch.ones(2, 9))
    assert torch.autograd.gradcheck(read_and_write, tuple(x.requires_grad_() for x in inputs))


def test_unknown_centre_and_too_few_filters_are_refused() -> None:
    with pytest.raises(ValueError, match="centre 'graves' is unknown"):
        Attention(2, 28, "graves")
    with pytest.raises(ValueError, match="at least 2 filters"):
        Attention(1, 28, "gregor")
