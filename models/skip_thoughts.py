"""Skip-thoughts (Kiros et al. 2015; section 6.3): a GRU reads a sentence, and two others, started from its last state,
predict the sentences before and after it, word by word.

One table of word vectors serves all three, one output layer both decoders. A decoder reads the words it should have
said, shifted by one, after a first input of zeros. The norm acts in the three GRUs and nowhere else.

Shapes: T time steps, B batch, V vocabulary, W word dimensions, H units, N predicted words of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.chunked_softmax import softmax_loss
from models.norm import Norm
from models.rnn import GRU


@dataclass(frozen=True)
class SkipSizes:
    """Sizes and switches of the model.

    Attributes:
        vocabulary: V, EOS and the unknown word included.
        words: W.
        units: H, of the encoder and of each decoder.
        conditioned: the decoders read the sentence's vector at every step, beside the word (the paper of 2015); else
            only their first state is told of it (the authors' code).
        bias_mode, kernel: of the GRUs, see ``models.variant``.
    """

    vocabulary: int
    words: int
    units: int
    conditioned: bool = False
    bias_mode: str = "official"
    kernel: str = "auto"


class Words(NamedTuple):
    """Sentences as word ids (T, B), EOS at the end and beyond it; and their lengths (B,), which count one EOS."""

    ids_TB: Tensor
    lengths_B: Tensor


class SkipThoughts(nn.Module):
    """Encoder and decoders.

    Args:
        sizes: sizes and switches.
        norm: of the three GRUs.
        generator: all initial values are drawn from it. As in the authors' code: words and output layer uniform ±0.1;
            recurrent blocks orthogonal; input blocks uniform ±0.1, orthogonal where square; biases 0.
        vocabulary: the words themselves, from the first id after EOS and the unknown word. They are kept with the
            weights, so that sentences can be encoded where the corpus is not.
    """

    spelling: Tensor

    def __init__(
        self, sizes: SkipSizes, norm: Norm, generator: torch.Generator, vocabulary: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.words = nn.Embedding(sizes.vocabulary, sizes.words)
        nn.init.uniform_(self.words.weight, -0.1, 0.1, generator=generator)

        def init(weight: Tensor) -> None:
            """Blocks of H rows, and of one input's columns: orthogonal where a block is square, else uniform."""
            conditioned = weight.shape[1] == sizes.words + sizes.units
            for part in weight.split([sizes.words, sizes.units], 1) if conditioned else [weight]:
                for block in part.split(sizes.units):
                    if block.shape[0] == block.shape[1]:
                        nn.init.orthogonal_(block, generator=generator)
                    else:
                        nn.init.uniform_(block, -0.1, 0.1, generator=generator)

        def gru(inputs: int) -> GRU:
            switches = {"norm": norm, "bias_mode": sizes.bias_mode, "kernel": sizes.kernel}
            return GRU(inputs, sizes.units, init=init, **switches)  # type: ignore[arg-type]

        inputs = sizes.words + sizes.units if sizes.conditioned else sizes.words
        self.encoder, self.next, self.previous = gru(sizes.words), gru(inputs), gru(inputs)
        self.output = nn.Linear(sizes.units, sizes.vocabulary)
        nn.init.uniform_(self.output.weight, -0.1, 0.1, generator=generator)
        nn.init.zeros_(self.output.bias)
        self.register_buffer("spelling", torch.tensor(list("\n".join(vocabulary).encode()), dtype=torch.uint8))

    def vocabulary(self) -> list[str]:
        """The words as given."""
        text = bytes(self.spelling.cpu().numpy()).decode()
        return text.split("\n") if text else []

    def read(self, x_TBW: Tensor, lengths_B: Tensor) -> Tensor:
        """The encoder's last states (B, H) for word vectors."""
        _, h_LBH = self.encoder(x_TBW, lengths=lengths_B)
        return h_LBH[-1]

    def encode(self, sentences: Words) -> Tensor:
        """Vectors (B, H) of sentences."""
        return self.read(self.words(sentences.ids_TB), sentences.lengths_B)

    def forward(self, previous: Words, current: Words, next_: Words) -> tuple[Tensor, int]:
        """What the two neighbours of each sentence cost.

        Returns:
            The sum over both neighbours, all their words and EOS, and all sentences of -log(p + 1e-8): a sum, not a
            mean, as in the authors' code. And the number of words summed over.
        """
        # One look-up, for its gradient is as large as the table.
        parts = [current.ids_TB, previous.ids_TB[:-1], next_.ids_TB[:-1]]
        vectors = self.words(torch.cat([ids.reshape(-1) for ids in parts])).split([ids.numel() for ids in parts])
        x_TBW, *shifted = (v.view(*ids.shape, self.sizes.words) for v, ids in zip(vectors, parts, strict=True))
        h_BH = self.read(x_TBW, current.lengths_B)
        states, targets = [], []
        for decoder, neighbours, before in zip((self.previous, self.next), (previous, next_), shifted, strict=True):
            ids_TB, lengths_B = neighbours
            h_TBH = self._decode(decoder, F.pad(before, (0, 0, 0, 0, 1, 0)), h_BH, lengths_B)
            said_TB = torch.arange(len(ids_TB), device=ids_TB.device)[:, None] < lengths_B
            states.append(h_TBH[said_TB])
            targets.append(ids_TB[said_TB])
        h_NH, target_N = torch.cat(states), torch.cat(targets)
        return softmax_loss(h_NH, target_N, self.output.weight, self.output.bias), len(target_N)

    def _decode(self, decoder: GRU, x_TBW: Tensor, h_BH: Tensor, lengths_B: Tensor) -> Tensor:
        """States (T, B, H) of a decoder that starts from ``h_BH``."""
        if self.sizes.conditioned:
            x_TBW = torch.cat([x_TBW, h_BH.expand(len(x_TBW), -1, -1)], -1)
        h_TBH, _ = decoder(x_TBW, h_BH[None], lengths=lengths_B)
        return h_TBH
