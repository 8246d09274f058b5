"""Sentences of books as word ids, and padded batches of them (section 6.3).

Ids are numbered as in the authors' code: EOS, the unknown word, then the words by falling frequency. Nothing stored
ends with EOS; ``padded`` appends one to each sentence, and pads with it.

Shapes: N sentences, W words of all of them, T time steps, B batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from data import padding
from data.captions import EOS, FIRST_WORD, UNKNOWN, Encoded, encode
from data.fetch import Source
from data.padding import Padded

__all__ = ["EOS", "FIRST_WORD", "UNKNOWN", "Books", "Encoded", "Padded", "encode_sentences", "padded"]


@dataclass(frozen=True)
class Books:
    """Consecutive sentences.

    Attributes:
        words: ids of all sentences (W,), without EOS; of large corpora mapped from disk.
        starts: where sentence n begins (N + 1,), int64; its end is the start of the next.
        vocabulary: word n has the id ``FIRST_WORD`` + n.
        source: where they came from.
    """

    words: np.ndarray
    starts: np.ndarray
    vocabulary: list[str]
    source: Source

    def __len__(self) -> int:
        return len(self.starts) - 1

    def sentence(self, number: int) -> str:
        """Sentence ``number`` as text, words that are not in the vocabulary as ``<unknown>``."""
        ids = self.words[self.starts[number] : self.starts[number + 1]].tolist()
        return " ".join("<unknown>" if i < FIRST_WORD else self.vocabulary[i - FIRST_WORD] for i in ids)


def padded(sentences: Books | Encoded, numbers: np.ndarray) -> Padded:
    """Some sentences (B,) as a batch, with one EOS after each and EOS as padding beyond it."""
    return padding.padded(sentences.words, sentences.starts, numbers, EOS, marks=1)


def encode_sentences(sentences: Iterable[str | Sequence[str]], vocabulary: Sequence[str]) -> Encoded:
    """Sentences, as words or as text whose words are separated by blanks, as ids; other words become ``UNKNOWN``."""
    split = [sentence.split() if isinstance(sentence, str) else list(sentence) for sentence in sentences]
    return encode(split, vocabulary)
