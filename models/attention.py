"""The differentiable window of DRAW (Gregor et al. 2015, section 3.2): filterbank, read and write.

A window is five numbers per image, predicted by the decoder: centre (g_y, g_x), log stride, log variance and
log intensity. It places an N x N grid of Gaussian filters on an A x A image, pixels counted from 0.

Shapes: B batch, N filters per axis, A pixels per axis.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.kernels import choose, fused

# Added to the sum of a filter row before dividing by it (public DRAW code): a row whose window has left the
# image fades to zero instead of blowing up.
ROW_SUM_EPS = 1e-4

CENTRES = ("gregor", "jbornschein")


class Filters(NamedTuple):
    """Filterbank of one window per image.

    Attributes:
        rows_BNA: F_y, one Gaussian over the image's rows per filter; each sums to about 1.
        columns_BNA: F_x, the same over columns.
        intensity_B1: gamma, by which a read is multiplied and a write divided.
    """

    rows_BNA: Tensor
    columns_BNA: Tensor
    intensity_B1: Tensor


class Box(NamedTuple):
    """Where a window looks, in pixels counted from 0: for pictures only.

    Attributes:
        centre_B2: (y, x) of the middle of the grid.
        half_width_B: from there to one standard deviation beyond the outermost filter.
    """

    centre_B2: Tensor
    half_width_B: Tensor


class Attention(nn.Module):
    """Turns five window parameters into filters, and applies them (Gregor et al., eq. 19-26).

    Filter i = 0 … N-1 sits at centre + (i - (N-1)/2) stride, where stride = (A-1)/(N-1) exp(log stride).

    Args:
        filters: N, at least 2 (the stride divides by N-1).
        image_size: A.
        centre: ``gregor``: (A+1)/2 (g+1), pixels counted from 1, so that g = 0 is the middle of the image;
            ``jbornschein``: A/2 (g+1), pixels counted from 0, half a pixel further down and right at g = 0.
        kernel: of ``glimpse`` and ``paint``; see ``models.kernels``.
    """

    pixels_A: Tensor
    offsets_N: Tensor

    def __init__(self, filters: int, image_size: int, centre: str, kernel: str = "auto") -> None:
        super().__init__()
        if centre not in CENTRES:
            raise ValueError(f"centre '{centre}' is unknown; choose one of {', '.join(CENTRES)}")
        if filters < 2:
            raise ValueError(f"a window needs at least 2 filters per axis, not {filters}")
        self.filters, self.image_size, self.kernel = filters, image_size, kernel
        self.spacing = (image_size - 1) / (filters - 1)  # pixels between filters at stride 1
        # centre = slope * g + origin; "- 1" moves Gregor's pixels from counting from 1 to counting from 0.
        self.slope = (image_size + 1) / 2 if centre == "gregor" else image_size / 2
        self.origin = self.slope - 1 if centre == "gregor" else self.slope
        self.register_buffer("pixels_A", torch.arange(image_size, dtype=torch.get_default_dtype()), False)
        unit_N = torch.arange(filters, dtype=torch.get_default_dtype()) - (filters - 1) / 2
        self.register_buffer("offsets_N", unit_N * self.spacing, False)

    def forward(self, window_B5: Tensor) -> Filters:
        """The filterbank of ``window_B5``: (g_y, g_x, log stride, log variance, log intensity)."""
        centre_B2 = window_B5[:, :2] * self.slope + self.origin
        stride_B1, variance_B1, intensity_B1 = window_B5[:, 2:].exp().split(1, 1)
        # Both axes at once: axis 1 of the (B, 2, N, A) tensors is (rows, columns).
        means_B2N = torch.addcmul(centre_B2[..., None], stride_B1[..., None], self.offsets_N)
        distance_B2NA = self.pixels_A - means_B2N[..., None]
        precision_B111 = (-0.5 / variance_B1)[..., None, None]
        weights_B2NA = (distance_B2NA.square() * precision_B111).exp()
        filters_B2NA = weights_B2NA / (weights_B2NA.sum(-1, keepdim=True) + ROW_SUM_EPS)
        rows_BNA, columns_BNA = filters_B2NA.unbind(1)
        return Filters(rows_BNA, columns_BNA, intensity_B1)

    def read(self, filters: Filters, image_BAA: Tensor, guess_BAA: Tensor) -> Tensor:
        """gamma F_y image F_x^T of an image and of its error, image - guess.

        F_y (image - guess) is taken as F_y image - F_y guess: no full-size difference is ever formed.

        Returns:
            (B, N*2*N) patches, flattened in the order (row, image | error, column).
        """
        batch, n, a = filters.rows_BNA.shape
        image_BNA = filters.rows_BNA @ image_BAA
        error_BNA = torch.baddbmm(image_BNA, filters.rows_BNA, guess_BAA, alpha=-1)
        pairs_BRA = torch.cat((image_BNA, error_BNA), 2).view(batch, 2 * n, a)  # R = (row, image | error)
        patches_BRN = pairs_BRA @ filters.columns_BNA.transpose(1, 2)
        return patches_BRN.view(batch, -1) * filters.intensity_B1

    def write(self, filters: Filters, canvas_BAA: Tensor, patch_BP: Tensor) -> Tensor:
        """canvas + F_y^T patch F_x / gamma; ``patch_BP`` holds P = N*N numbers, row by row."""
        patch_BNN = (patch_BP / filters.intensity_B1).view(-1, self.filters, self.filters)
        return torch.baddbmm(canvas_BAA, filters.rows_BNA.transpose(1, 2), patch_BNN @ filters.columns_BNA)

    def glimpse(self, window_B5: Tensor, image_BAA: Tensor, canvas_BAA: Tensor) -> Tensor:
        """``read`` of the image and its error, image - sigmoid(canvas), through ``window_B5``."""
        if not image_BAA.requires_grad and choose(
            self.kernel, canvas_BAA
        ):  # the fused one has no gradient of the image
            return fused.window_read(window_B5, image_BAA, canvas_BAA, self._grid())
        return self.read(self(window_B5), image_BAA, canvas_BAA.sigmoid())

    def paint(self, window_B5: Tensor, canvas_BAA: Tensor, patch_BP: Tensor) -> Tensor:
        """``write`` of the patch through ``window_B5``."""
        if choose(self.kernel, canvas_BAA):
            return fused.window_write(window_B5, canvas_BAA, patch_BP, self._grid())
        return self.write(self(window_B5), canvas_BAA, patch_BP)

    def _grid(self) -> Any:
        return fused.window_grid(self.filters, self.image_size, self.slope, self.origin, self.spacing, ROW_SUM_EPS)

    def box(self, window_B5: Tensor) -> Box:
        """The window's place and size in the image."""
        reach_B = window_B5[:, 2].exp() * (self.image_size - 1) / 2
        sigma_B = (0.5 * window_B5[:, 3]).exp()
        return Box(window_B5[:, :2] * self.slope + self.origin, reach_B + sigma_B)
