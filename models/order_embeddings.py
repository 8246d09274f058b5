"""Order-embeddings of images and sentences (Vendrov et al. 2016; section 6.1): a GRU reads the sentence, a linear map
takes image features, and both end on the non-negative part of the unit sphere.

The more abstract of the two, the sentence, should lie below the image in every coordinate; how far it does not is the
order-violation energy E(s, v) = sum_d max(0, s_d - v_d)^2. LN acts in the sentence GRU only.

Shapes: T time steps, B batch, C captions, N images, V vocabulary, W word dimensions, H units (of the embedding too),
D image features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from models.norm import Norm
from models.rnn import GRU

ENERGIES = ("order", "symmetric")
MARGINS = {"order": 0.05, "symmetric": 0.2}  # Vendrov et al. 2016, section 5.1 and the authors' code
# Elements of s_d - v_d at a time: on a CPU they stay in its second-level cache, on a GPU they fill it.
BLOCK = {"cpu": 1 << 17, "cuda": 1 << 25}


@dataclass(frozen=True)
class OrderSizes:
    """Sizes and switches of the model.

    Attributes:
        vocabulary: V, EOS and the unknown word included.
        features: D.
        words: W.
        units: H.
        energy: ``order``, or ``symmetric``: the cosine, without absolute values (Vendrov's baseline).
        bias_mode, kernel: of the GRU, see ``models.variant``.
    """

    vocabulary: int
    features: int
    words: int
    units: int
    energy: str = "order"
    bias_mode: str = "official"
    kernel: str = "auto"


class OrderEmbedding(nn.Module):
    """Both encoders.

    Args:
        sizes: sizes and switches.
        norm: of the GRU.
        generator: all initial values are drawn from it. As in the authors' code: words uniform ±0.1; recurrent blocks
            orthogonal; input blocks uniform ±0.1, orthogonal where square; the image map Xavier uniform; biases 0.
    """

    def __init__(self, sizes: OrderSizes, norm: Norm, generator: torch.Generator) -> None:
        super().__init__()
        self.energy_form = sizes.energy
        self.words = nn.Embedding(sizes.vocabulary, sizes.words)

        def init(weight: Tensor) -> None:
            """Stacked blocks of H rows: orthogonal where a block is square, else uniform."""
            for block in weight.split(sizes.units):
                if block.shape[0] == block.shape[1]:
                    nn.init.orthogonal_(block, generator=generator)
                else:
                    nn.init.uniform_(block, -0.1, 0.1, generator=generator)

        self.gru = GRU(sizes.words, sizes.units, norm=norm, bias_mode=sizes.bias_mode, kernel=sizes.kernel, init=init)
        self.image_map = nn.Linear(sizes.features, sizes.units)
        nn.init.uniform_(self.words.weight, -0.1, 0.1, generator=generator)
        bound = math.sqrt(6 / (sizes.features + sizes.units))
        nn.init.uniform_(self.image_map.weight, -bound, bound, generator=generator)
        nn.init.zeros_(self.image_map.bias)

    def sentences(self, words_TB: Tensor, lengths_B: Tensor) -> Tensor:
        """Embeddings (B, H) of sentences: word ids with EOS at their ends, and lengths that count it."""
        _, h_LBH = self.gru(self.words(words_TB), lengths=lengths_B)
        return self._on_the_sphere(h_LBH[-1])

    def images(self, x_BD: Tensor) -> Tensor:
        """Embeddings (B, H) of images."""
        return self._on_the_sphere(self.image_map(x_BD))

    def _on_the_sphere(self, a_BH: Tensor) -> Tensor:
        """L2-normalised first, absolute values then (not under the cosine)."""
        unit_BH = F.normalize(a_BH, dim=1)
        return unit_BH.abs() if self.energy_form == "order" else unit_BH

    def separate_gradients(self) -> list[Tensor]:
        """Gradients in the tensors of the authors' code, where the GRU's gates and its candidate are two."""
        units, found = self.gru.hidden_size, []
        stacked = {id(parameter) for parameter in self.gru.parameters() if parameter.shape[0] == 3 * units}
        for parameter in self.parameters():
            if parameter.grad is not None:
                sizes = (2 * units, units) if id(parameter) in stacked else parameter.shape[:1]
                found += parameter.grad.split(tuple(sizes))
        return found

    def energy(self, s_CH: Tensor, v_NH: Tensor) -> Tensor:
        """Energies (C, N) of captions against images; low where they belong together."""
        return order_violation(s_CH, v_NH) if self.energy_form == "order" else -(s_CH @ v_NH.T)


def contrastive_loss(energy_BB: Tensor, margin: float) -> Tensor:
    """Sum over all pairs of caption i and image j != i of what is closer than the true pair plus ``margin``.

    sum_ij max(0, margin - E_ij + E_ii) + max(0, margin - E_ij + E_jj): each caption against the other images, each
    image against the other captions. A sum, not a mean, as in the authors' code.
    """
    true_B = energy_BB.diagonal()
    apart_BB = margin - energy_BB
    cost_BB = (apart_BB + true_B[:, None]).clamp_min(0) + (apart_BB + true_B).clamp_min(0)
    return cost_BB.sum() - cost_BB.diagonal().sum()


def order_violation(s_CH: Tensor, v_NH: Tensor) -> Tensor:
    """E_cn = sum_h max(0, s_ch - v_nh)^2 for all pairs, ``(C, N)``, without a (C, N, H) tensor."""
    return _OrderViolation.apply(s_CH, v_NH)


def _blocks(s_CH: Tensor, v_NH: Tensor) -> tuple[range, range, int, int, Tensor]:
    """Starts and sizes of the blocks that rows and columns are taken in, and a buffer for one of them."""
    (rows, units), columns = s_CH.shape, len(v_NH)
    most = max(1, BLOCK.get(s_CH.device.type, BLOCK["cpu"]) // max(1, units))
    wide = max(1, min(columns, most))
    high = max(1, min(rows, most // wide))
    buffer = s_CH.new_empty(high, wide, units)
    return range(0, rows, high), range(0, columns, wide), high, wide, buffer


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU, one thread for operations on a block.

    They are too short for several: two threads halve nothing, and where other programs share the cores each operation
    waits for a thread that does not run, a hundred thousand times in the search of a fold.
    """
    if device.type != "cpu" or (threads := torch.get_num_threads()) == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _OrderViolation(torch.autograd.Function):
    """A block at a time, in one buffer; the backward pass computes the differences again instead of keeping them."""

    @staticmethod
    def forward(ctx: Any, s_CH: Tensor, v_NH: Tensor) -> Tensor:
        ctx.save_for_backward(s_CH, v_NH)
        energy_CN = s_CH.new_empty(len(s_CH), len(v_NH))
        rows, columns, high, wide, buffer = _blocks(s_CH, v_NH)
        with _one_thread(s_CH.device):
            for n in columns:
                v_nH = v_NH[n : n + wide]
                for c in rows:
                    s_cH = s_CH[c : c + high]
                    over_cnH = buffer[: len(s_cH), : len(v_nH)]
                    torch.sub(s_cH[:, None], v_nH, out=over_cnH).clamp_(min=0)
                    energy_CN[c : c + high, n : n + wide] = torch.linalg.vector_norm(over_cnH, dim=-1)
        return energy_CN.square_()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_CN: Tensor) -> tuple[Tensor, Tensor]:
        s_CH, v_NH = ctx.saved_tensors
        ds_CH, dv_NH = torch.zeros_like(s_CH), torch.zeros_like(v_NH)
        rows, columns, high, wide, buffer = _blocks(s_CH, v_NH)
        twice_CN = 2 * grad_CN
        with _one_thread(s_CH.device):
            for n in columns:
                v_nH = v_NH[n : n + wide]
                for c in rows:
                    s_cH, g_cn = s_CH[c : c + high], twice_CN[c : c + high, n : n + wide]
                    over_cnH = buffer[: len(s_cH), : len(v_nH)]
                    torch.sub(s_cH[:, None], v_nH, out=over_cnH).clamp_(min=0)
                    ds_CH[c : c + high] += torch.bmm(g_cn[:, None], over_cnH)[:, 0]
                    for over_nH, g_n in zip(over_cnH, g_cn, strict=True):
                        dv_NH[n : n + wide].addcmul_(over_nH, g_n[:, None], value=-1)
        return ds_CH, dv_NH
