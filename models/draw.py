"""DRAW with attention (Gregor et al. 2015) and the norms of the Layer Normalization paper, section 6.4.

At each of T glimpses the encoder reads a patch of the image x and of the error x - sigmoid(canvas) through a
small window, a latent z is drawn, and the decoder adds a patch to the canvas through another window:

    r_t = read(x, x - sigmoid(c_{t-1}); h_dec_{t-1})     h_enc_t = LSTM_enc([r_t, h_dec_{t-1}], h_enc_{t-1})
    z_t ~ N(mu(h_enc_t), sigma(h_enc_t)^2)               h_dec_t = LSTM_dec(z_t, h_dec_{t-1})
    c_t = c_{t-1} + write(h_dec_t)

The bound is -log p(x | sigmoid(c_T)) + sum_t KL(q(z_t) || N(0, I)), in nats per image. LN normalises the
read-out of the LSTM cells only (eq. 31); WN re-parametrises every weight vector.

Shapes: T glimpses, B batch, A pixels per side, D = A*A pixels, H units, Z latent, P = write*write patch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.attention import Attention, Box
from models.norm import Norm, cached_weights, weight_normed
from models.rnn import LSTMCell, State

LN_SITES = ("both", "encoder", "decoder")
INITIAL_STATES = ("zeros", "learned")


@dataclass(frozen=True)
class DrawSizes:
    """Sizes and switches of the model; the defaults are the published setting (``configs/task/draw.yaml``).

    Attributes:
        image: A, pixels per side.
        read, write: filters per axis of the two windows.
        latent: Z.
        units: H, of encoder and decoder alike.
        glimpses: T.
        centre: convention of the window's centre, see ``Attention``.
        initial_state: ``zeros``, or ``learned``: first canvas, h and c are parameters that start at 0.
        ln_on: which LSTMs LN applies to: ``both``, ``encoder`` or ``decoder``. WN always applies everywhere.
    """

    image: int = 28
    read: int = 2
    write: int = 5
    latent: int = 100
    units: int = 256
    glimpses: int = 64
    centre: str = "gregor"
    initial_state: str = "zeros"
    ln_on: str = "both"


class Bound(NamedTuple):
    """Per image, in nats: -log p(x | z) and the KL summed over glimpses; the bound is their sum."""

    reconstruction_B: Tensor
    kl_B: Tensor


class Frame(NamedTuple):
    """One glimpse, for pictures: the canvas' probabilities after it, and where it wrote and (maybe) read."""

    probabilities_BD: Tensor
    write_box: Box
    read_box: Box | None


class Draw(nn.Module):
    """DRAW. Weights start as N(0, init_std^2) draws of ``generator``, biases at 0.

    Args:
        sizes: sizes and switches.
        norm: none, wn or ln.
        init_std: standard deviation of the initial weights.
        generator: CPU generator.
        kernel: of the cells, the windows and the canvas; see ``models.kernels``.
    """

    def __init__(
        self,
        sizes: DrawSizes,
        norm: Norm,
        *,
        init_std: float,
        generator: torch.Generator,
        kernel: str = "auto",
    ) -> None:
        super().__init__()
        if sizes.ln_on not in LN_SITES:
            raise ValueError(f"ln_on '{sizes.ln_on}' is unknown; choose one of {', '.join(LN_SITES)}")
        if sizes.initial_state not in INITIAL_STATES:
            raise ValueError(
                f"initial_state '{sizes.initial_state}' is unknown; choose one of {', '.join(INITIAL_STATES)}"
            )
        self.sizes = sizes
        units, patch = sizes.units, sizes.write**2

        def cell(nin: int, site: str) -> LSTMCell:
            used = norm if norm.name != "ln" or sizes.ln_on in ("both", site) else Norm("none")
            return LSTMCell(
                nin,
                units,
                norm=used,
                sites="cell" if used.name == "ln" else None,
                bias_mode="minimal",
                kernel=kernel,
                init=lambda weight: nn.init.normal_(weight, 0, init_std, generator),
            )

        def linear(nout: int) -> nn.Linear:
            layer = nn.Linear(units, nout)
            nn.init.normal_(layer.weight, 0, init_std, generator)
            nn.init.zeros_(layer.bias)
            weight_normed(layer, norm)
            return layer

        self.encoder = cell(2 * sizes.read**2 + units, "encoder")
        self.posterior = linear(2 * sizes.latent)  # mu and log sigma
        self.decoder = cell(sizes.latent, "decoder")
        self.read_window, self.write_window, self.patch = linear(5), linear(5), linear(patch)
        self.reader = Attention(sizes.read, sizes.image, sizes.centre, kernel)
        self.writer = Attention(sizes.write, sizes.image, sizes.centre, kernel)
        self.initial = nn.ParameterDict()
        if sizes.initial_state == "learned":
            self.initial["canvas"] = nn.Parameter(torch.zeros(sizes.image**2))
            for name in ("encoder_h", "encoder_c", "decoder_h", "decoder_c"):
                self.initial[name] = nn.Parameter(torch.zeros(units))

    def forward(self, x_BD: Tensor, noise_TBZ: Tensor) -> Bound:
        """The bound of each image, with one posterior sample made from standard normal noise.

        Args:
            x_BD: binary images as floats.
            noise_TBZ: standard normal draws.
        """
        canvas_BD, posterior_TBY = self._unroll(x_BD, noise_TBZ, None)
        pixels_BD = F.binary_cross_entropy_with_logits(canvas_BD, x_BD, reduction="none")
        return Bound(pixels_BD.sum(1), gaussian_kl(posterior_TBY).sum(0))

    def reconstruct(self, x_BD: Tensor, noise_TBZ: Tensor) -> list[Frame]:
        """The glimpses of reconstructing ``x_BD``, with the windows read and written through."""
        frames: list[Frame] = []
        self._unroll(x_BD, noise_TBZ, frames)
        return frames

    def generate(self, noise_TBZ: Tensor) -> list[Frame]:
        """The glimpses of drawing new images: z comes from the prior, so it is the noise itself."""
        frames: list[Frame] = []
        self._unroll(None, noise_TBZ, frames)
        return frames

    def _unroll(self, x_BD: Tensor | None, noise_TBZ: Tensor, frames: list[Frame] | None) -> tuple[Tensor, Tensor]:
        """All glimpses. Returns the last canvas' logits (B, D) and mu, log sigma of all glimpses (T, B, 2Z).

        Everything that needs no recurrence stays outside the loop: weights are computed and laid side by side
        once, the noise arrives for all glimpses, and the KL is left to the caller, once for all glimpses.
        """
        glimpses, batch, latent = noise_TBZ.shape
        if (glimpses, latent) != (self.sizes.glimpses, self.sizes.latent):
            raise ValueError(
                f"noise of {glimpses} glimpses and {latent} latents, but the model has "
                f"{self.sizes.glimpses} and {self.sizes.latent}"
            )
        side = self.sizes.image
        with cached_weights():  # WN: each w = g v/||v|| is computed once per call
            posterior_weights = self.posterior.weight, self.posterior.bias
            heads = (self.read_window, self.write_window, self.patch)
            head_weights = torch.cat([h.weight for h in heads]), torch.cat([h.bias for h in heads])
        head_sizes = [5, 5, self.sizes.write**2]

        encode, decode = self.encoder.begin(glimpses, batch), self.decoder.begin(glimpses, batch)
        encoder = State(self._start("encoder_h", noise_TBZ), self._start("encoder_c", noise_TBZ))
        decoder = State(self._start("decoder_h", noise_TBZ), self._start("decoder_c", noise_TBZ))
        canvas_BAA = self._start("canvas", noise_TBZ).reshape(batch, side, side)
        image_BAA = None if x_BD is None else x_BD.view(batch, side, side)
        read_window_B5 = F.linear(decoder.h_BH, *head_weights)[:, :5]
        posterior = []
        for noise_BZ in noise_TBZ.unbind(0):
            z_BZ = noise_BZ
            if image_BAA is not None:
                patches_BR = self.reader.glimpse(read_window_B5, image_BAA, canvas_BAA)
                encoder = encode((patches_BR, decoder.h_BH), encoder)
                posterior_BY = F.linear(encoder.h_BH, *posterior_weights)
                mu_BZ, log_sigma_BZ = posterior_BY.chunk(2, 1)
                z_BZ = torch.addcmul(mu_BZ, log_sigma_BZ.exp(), noise_BZ)
                posterior.append(posterior_BY)
            decoder = decode(z_BZ, decoder)
            heads_BR = F.linear(decoder.h_BH, *head_weights)
            next_window_B5, write_window_B5, patch_BP = heads_BR.split(head_sizes, 1)
            canvas_BAA = self.writer.paint(write_window_B5, canvas_BAA, patch_BP)
            if frames is not None:
                read_box = None if x_BD is None else self.reader.box(read_window_B5)
                canvas_BD = canvas_BAA.reshape(batch, -1)
                frames.append(Frame(canvas_BD.sigmoid(), self.writer.box(write_window_B5), read_box))
            read_window_B5 = next_window_B5
        stacked_TBY = torch.stack(posterior) if posterior else noise_TBZ.new_zeros(0, batch, 2)
        return canvas_BAA.reshape(batch, -1), stacked_TBY

    def _start(self, name: str, like_TBZ: Tensor) -> Tensor:
        """Initial canvas or state for the batch: zeros, or the learned vector."""
        batch = like_TBZ.shape[1]
        if name in self.initial:
            return self.initial[name].expand(batch, -1)
        return like_TBZ.new_zeros(batch, self.sizes.image**2 if name == "canvas" else self.sizes.units)


def gaussian_kl(posterior_NY: Tensor) -> Tensor:
    """KL(N(mu, sigma^2) || N(0, I)) in nats: sum over Z of -log sigma + (sigma^2 + mu^2)/2 - 1/2.

    Args:
        posterior_NY: (..., 2Z), mu then log sigma.

    Returns:
        (...), never negative but for rounding (about 1e-8 per latent in float32; expm1 would avoid it, at ten
        times the cost).
    """
    mu, log_sigma = posterior_NY.chunk(2, -1)
    return (0.5 * ((2 * log_sigma).exp() - 1 + mu.square()) - log_sigma).sum(-1)
