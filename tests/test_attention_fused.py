"""The compiled window of DRAW against the one written in PyTorch."""

from __future__ import annotations

import pytest
import torch

from models.attention import Attention


@pytest.mark.parametrize(("filters", "size"), [(2, 28), (5, 28), (3, 6), (12, 33), (16, 16)])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_fused_window_is_the_reference_one(filters: int, size: int, threads: int) -> None:
    """Patches, canvas and all gradients, both kernels in float32, the error relative to the largest entry."""
    generator = torch.Generator().manual_seed(filters)
    window_B5 = 0.5 * torch.randn(7, 5, generator=generator)
    image_BAA = (torch.rand(7, size, size, generator=generator) < 0.3).float()
    canvas_BAA = torch.randn(7, size, size, generator=generator)
    patch_BP = torch.randn(7, filters**2, generator=generator)
    found = {}
    for kernel in ("reference", "fused"):
        attention = Attention(filters, size, "gregor", kernel)
        window, canvas, patch = (t.clone().requires_grad_() for t in (window_B5, canvas_BAA, patch_BP))
        torch.set_num_threads(threads)
        try:
            read, painted = attention.glimpse(window, image_BAA, canvas), attention.paint(window, canvas, patch)
            weights = torch.Generator().manual_seed(1)
            loss = sum((out * torch.randn(out.shape, generator=weights)).sum() for out in (read, painted))
            found[kernel] = [read, painted, *torch.autograd.grad(loss, (window, canvas, patch))]
        finally:
            torch.set_num_threads(1)
    for ours, expected in zip(found["fused"], found["reference"], strict=True):
        assert ours.shape == expected.shape
        assert (ours - expected).abs().max() <= 2e-5 * expected.abs().max()


def test_the_fused_window_can_be_demanded_only_where_it_runs() -> None:
    attention = Attention(2, 6, "gregor", "fused").double()
    with pytest.raises(RuntimeError, match="kernel=fused cannot run with dtype torch.float64; use kernel=auto"):
        attention.glimpse(*(torch.zeros(shape).double() for shape in ((1, 5), (1, 6, 6), (1, 6, 6))))
