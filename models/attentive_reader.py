"""The attentive reader of section 6.2: one LSTM reads a passage, another one a query, which says where to look.

As in the code whose curves Figure 2 shows (Hermann et al. 2015, with a bilinear term), with E the embedding of both,
h_t the passage's states and u the query's last one:

    s_t = v^T tanh(W_d h_t + b + W_q u + (M h_t)^T (M u))      alpha = softmax of s over the passage
    r = sum_t alpha_t h_t       g = tanh(W_r r + W_u u + b' + W_m mean_t h_t)       logits = W_o g + b_o

The bilinear term is a number, added to every unit. The answer is one of all words. Dropout acts on embedded words and
on g.

A norm acts in the LSTMs, at the gates and on the cell; BN-everywhere also on W_d h, W_q u, W_r r, W_u u and W_m mean_t
h_t, each for itself, not on the bilinear term nor on the logits.

Shapes: T steps of the passage (or of the query), B batch, W word dimensions, H units, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.norm import ACTIVATION_NORMS, Norm
from models.reader_init import Init, independent, legacy
from models.recurrent_norm import EVALUATIONS, Moment, StepBatchNorm, site_norm
from models.rnn import LSTM, LSTMCell

DROPOUTS = ("plain", "inverted")
PADDINGS = ("included", "masked")
PLAIN = Norm()
TINY = 1e-8  # added to the answer's probability, authors' code


@dataclass(frozen=True)
class ReaderSizes:
    """Sizes and switches of the model; the defaults are those of the code of March 2016.

    Attributes:
        vocabulary: V, padding and the unknown word included.
        words: W.
        units: H.
        dropout: probability that a unit is dropped.
        dropout_form: ``plain``: x times 0 or 1 in training, x times (1 - p) in evaluation; ``inverted``: x times 0 or
            1 / (1 - p) in training, x in evaluation.
        mean_term: whether W_m is there.
        legacy_init: initial values as the authors' code draws them, the same for all seeds; see ``models.reader_init``.
        everywhere: whether the norm, BN, acts outside of the LSTMs too.
        bias_mode: of the LSTMs, see ``models.variant``; BN has ``minimal``, for the inner bias would be cancelled.
        padding: BN: whether cases that have ended are ``included`` in a batch's statistics, as in the authors' code,
            or ``masked``.
        evaluation: BN: statistics in eval mode, ``batch`` or ``population``.
        steps: BN: time steps with population statistics of their own.
        kernel: ``auto``, ``reference`` or ``fused``, see ``models.rnn``.
    """

    vocabulary: int
    words: int = 240
    units: int = 240
    dropout: float = 0.5
    dropout_form: str = "plain"
    mean_term: bool = True
    legacy_init: bool = True
    everywhere: bool = False
    bias_mode: str = "official"
    padding: str = "included"
    evaluation: str = "batch"
    steps: int = 500
    kernel: str = "auto"


class Answer(NamedTuple):
    """What the reader says: ``logits_BV``, and where it looked, ``weight_TB`` (0 in the padding)."""

    logits_BV: Tensor
    weight_TB: Tensor


class Summed(nn.Module):
    """W x + b, or under BN the normalised W x, whose own bias stands in the place of b.

    Args:
        bias: whether the layer has one.
        ortho: which of the initial distributions; see ``models.reader_init``.
    """

    def __init__(
        self, nin: int, nout: int, init: Init, *, bias: bool, ortho: bool, norm: Norm = PLAIN, evaluation: str = "batch"
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(init.matrix(nin, nout, ortho))
        self.bias = nn.Parameter(torch.zeros(nout)) if bias and norm.name not in ACTIVATION_NORMS else None
        self.norm = site_norm(norm, [nout], bias=bias, max_steps=1, evaluation=evaluation)

    def forward(self, x_BI: Tensor, counted_B1: Tensor | None = None) -> Tensor:
        """``counted_B1``: which cases BN's statistics are of; None: all."""
        return self.norm(F.linear(x_BI, self.weight, self.bias), Moment(0, counted_B1))


class AttentiveReader(nn.Module):
    """The model.

    Args:
        sizes: sizes and switches.
        norm: of the LSTMs, and with ``sizes.everywhere`` of the other layers.
        generator: the initial values are drawn from it, unless they are the legacy ones.
    """

    def __init__(self, sizes: ReaderSizes, norm: Norm, generator: torch.Generator) -> None:
        super().__init__()
        for key, allowed in (("dropout_form", DROPOUTS), ("padding", PADDINGS), ("evaluation", EVALUATIONS)):
            if (value := getattr(sizes, key)) not in allowed:
                raise ValueError(f"{key} '{value}' is unknown; choose one of {', '.join(allowed)}")
        self.sizes = sizes
        self.batch_norm = batch_norm = norm.name == "bn"
        self.padding_counts = batch_norm and sizes.padding == "included"
        init = legacy() if sizes.legacy_init else independent(generator)
        units = sizes.units
        switches: dict[str, Any] = {"max_steps": sizes.steps, "evaluation": sizes.evaluation} if batch_norm else {}

        def encoder() -> LSTM:
            return LSTM(
                sizes.words, units, norm=norm, bias_mode="minimal" if batch_norm else sizes.bias_mode,
                initial_state="learned_h", init=init.gates, kernel=sizes.kernel, **switches,
            )  # fmt: skip

        def layer(bias: bool, ortho: bool = False) -> Summed:
            outside = norm if sizes.everywhere else PLAIN
            return Summed(units, units, init, bias=bias, ortho=ortho, norm=outside, evaluation=sizes.evaluation)

        self.embedding = nn.Parameter(init.matrix(sizes.vocabulary, sizes.words, True).T.contiguous())
        self.passage, self.query = encoder(), encoder()
        self.similarity = nn.Parameter(init.matrix(units, units, True))  # M
        self.score = nn.Parameter(init.vector(units))  # v
        self.att_passage, self.att_query = layer(bias=True, ortho=True), layer(bias=False)  # W_d, b and W_q
        self.out_passage, self.out_query = layer(bias=False), layer(bias=True)  # W_r and W_u, b'
        self.out_mean = layer(bias=False) if sizes.mean_term else None  # W_m
        self.logits = Summed(units, sizes.vocabulary, init, bias=True, ortho=False)

    def forward(
        self, passage_TB: Tensor, lengths_B: Tensor, query_TB: Tensor, query_lengths_B: Tensor,
        noise: torch.Generator | None = None,
    ) -> Answer:  # fmt: skip
        """Reads word ids.

        Args:
            passage_TB, query_TB: padded with any word; where BN counts it, with the one the authors use, 0.
            lengths_B, query_lengths_B: what of them is text, at least one word.
            noise: of dropout; needed in training.
        """
        h_TBH, _ = self._read(self.passage, self._dropped(F.embedding(passage_TB, self.embedding), noise), lengths_B)
        _, u_BH = self._read(self.query, self._dropped(F.embedding(query_TB, self.embedding), noise), query_lengths_B)
        inside_TB = torch.arange(len(h_TBH), device=h_TBH.device)[:, None] < lengths_B
        weight_TB = self._attention(h_TBH, u_BH, inside_TB)
        r_BH = (weight_TB[..., None] * h_TBH).sum(0)
        summed_BH = self.out_passage(r_BH) + self.out_query(u_BH)
        if self.out_mean is not None:
            mean_BH = (h_TBH * inside_TB[..., None]).sum(0) / lengths_B[:, None]
            summed_BH = summed_BH + self.out_mean(mean_BH)
        return Answer(self.logits(self._dropped(summed_BH.tanh(), noise)), weight_TB)

    def _attention(self, h_TBH: Tensor, u_BH: Tensor, inside_TB: Tensor) -> Tensor:
        """alpha (T, B), 0 in the padding."""
        counted_N1 = None if self.padding_counts else inside_TB.reshape(-1, 1)
        passage_TBH = self.att_passage(h_TBH.flatten(0, 1), counted_N1).view_as(h_TBH)
        # (M h)^T (M u) = h^T M^T (M u): one product per query instead of one per word of the passage
        key_BH = F.linear(F.linear(u_BH, self.similarity), self.similarity.T)
        similar_TB1 = (h_TBH * key_BH).sum(-1, keepdim=True)
        score_TB = (passage_TBH + self.att_query(u_BH) + similar_TB1).tanh() @ self.score
        return score_TB.masked_fill(~inside_TB, -math.inf).softmax(0)

    def _read(self, encoder: LSTM, x_TBW: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """States (T, B, H), those of padding of no use, and the last one (B, H)."""
        if self.padding_counts:
            cell = encoder.cells[0]
            assert isinstance(cell, LSTMCell)
            return read_padded(cell, x_TBW, lengths_B)
        if self.batch_norm:
            h_TBH, (h_LBH, _) = encoder(x_TBW, lengths=lengths_B)
            return h_TBH, h_LBH[-1]
        # Without BN a case's padding comes after all that counts, so it may be read: the framework's kernel takes many
        # times as long with lengths.
        h_TBH, _ = encoder(x_TBW)
        return h_TBH, h_TBH.gather(0, (lengths_B - 1)[None, :, None].expand(1, -1, h_TBH.shape[2]))[0]

    def _dropped(self, x: Tensor, noise: torch.Generator | None) -> Tensor:
        rate, inverted = self.sizes.dropout, self.sizes.dropout_form == "inverted"
        if rate == 0:
            return x
        if not self.training:
            return x if inverted else x * (1 - rate)
        assert noise is not None, "dropout in training needs a generator"
        kept = torch.empty_like(x).bernoulli_(1 - rate, generator=noise)
        return x * (kept / (1 - rate) if inverted else kept)


def read_padded(cell: LSTMCell, x_TBI: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
    """The BN-LSTM of ``models.cells``, where cases that have ended stay in BN's statistics, as in the authors' code.

    They take part with the padding's input and with the state they ended in, that of the cell before its read-out is
    normalised. The layers of ``models.rnn`` leave them out, so the step stands here again.

    Returns:
        states (T, B, H), those of padding copied from the last real one, and the last state (B, H).
    """
    weights, running_T = cell.weights(), torch.arange(len(x_TBI), device=x_TBI.device)[:, None] < lengths_B
    state = cell.initial(x_TBI.shape[1])
    h_BH, c_BH, states = state.h_BH, state.c_BH, []
    assert cell.bias is not None
    steps = zip(cell.project(x_TBI, weights).unbind(0), running_T[..., None].unbind(0), strict=True)
    with whole_batch(cell.norm_ih, x_TBI, cell) as norm_ih, whole_batch(cell.norm_hh, x_TBI, cell) as norm_hh, \
         whole_batch(cell.norm_cell, x_TBI, cell) as norm_cell:  # fmt: skip
        for t, (projected_BG, running_B1) in enumerate(steps):
            recurrent_BG = F.linear(h_BH, weights.hh_GH)
            z_BG = norm_ih(projected_BG, t) + norm_hh(recurrent_BG, t) + cell.bias
            i_BH, f_BH, g_BH, o_BH = z_BG.chunk(4, -1)
            c_BH = torch.where(running_B1, f_BH.sigmoid() * c_BH + i_BH.sigmoid() * g_BH.tanh(), c_BH)
            h_BH = torch.where(running_B1, o_BH.sigmoid() * norm_cell(c_BH, t).tanh(), h_BH)
            states.append(h_BH)
    return torch.stack(states), h_BH


@contextmanager
def whole_batch(norm: nn.Module, x_TBI: Tensor, cell: LSTMCell) -> Iterator[Callable[[Tensor, int], Tensor]]:
    """A site's BN over all cases of a batch, to be called with summed inputs and the time step, in one pass.

    With ``kernel=reference``, and where the framework's operation does something else, that is the module itself.
    Otherwise each step is one operation instead of some twenty.
    """
    assert isinstance(norm, StepBatchNorm)
    frozen = not norm.training and norm.evaluation == "population"
    same = norm.variance == "biased" and x_TBI.shape[1] > 1 and x_TBI.dtype == norm.running_mean_SF.dtype
    if frozen or not same or cell.variant.given.kernel == "reference":
        yield lambda a_BF, t: norm(a_BF, Moment(t))
        return
    counts: list[int] = norm.batches_S.tolist()

    def apply(a_BF: Tensor, t: int) -> Tensor:
        mean_F = var_F = None
        weight, step = 0.0, min(t, len(counts) - 1)
        if norm.training:
            counts[step] += 1
            weight = max(norm.momentum, 1 / counts[step])
            mean_F, var_F = norm.running_mean_SF[step], norm.running_var_SF[step]
        return F.batch_norm(a_BF, mean_F, var_F, norm.gain, norm.bias, True, weight, norm.eps)

    yield apply
    if norm.training:
        norm.batches_S.copy_(torch.tensor(counts))


def answer_loss(logits_BV: Tensor, answers_B: Tensor) -> Tensor:
    """-log(p + 1e-8) of each answer (B,), p its probability among all words."""
    log_p_B = logits_BV.gather(1, answers_B[:, None])[:, 0] - logits_BV.logsumexp(1)
    return -(log_p_B.exp() + TINY).log()
