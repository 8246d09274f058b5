"""Sentences to vectors with a trained skip-thoughts model, as its authors encode them (section 6.3).

A sentence is split into words by the tokenizer of ``data.sentences``, letters left as they are; EOS is not read unless
asked for (the authors read it for SICK alone); the encoder's last state is scaled to length 1. A word that the model
has not seen has the vector that a linear map gives it (``models.expansion``) if there are word vectors to map, else the
one of unknown words.

Shapes: N sentences, T time steps, B batch, W word dimensions, H units, V words with a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.books import EOS, FIRST_WORD, UNKNOWN
from data.sentences import split_text
from data.word_vectors import Wanted, WordVectors, enough
from models.expansion import least_squares
from models.skip_thoughts import SkipThoughts

PADDED = 1 << 15  # words of a batch, padding included, at most: one long sentence must not fill the memory
Progress = Callable[[int], object]  # told how many more sentences are done


@dataclass(frozen=True)
class Lexicon:
    """Words and their vectors.

    Attributes:
        ids: word -> its row.
        table_VW: the model's own vectors, EOS and the unknown word first, then those of further words.
    """

    ids: Mapping[str, int]
    table_VW: Tensor

    def numbers(self, words: Iterable[str], lower: bool) -> list[int]:
        """The rows of a sentence's words; with ``lower``, a word unknown as written is looked up in small letters."""
        ids = self.ids
        if lower:
            return [ids.get(word) or ids.get(word.lower(), UNKNOWN) for word in words]
        return [ids.get(word, UNKNOWN) for word in words]


def lexicon(model: SkipThoughts, others: WordVectors | None = None) -> Lexicon:
    """The model's words and, mapped into its space, those of ``others`` that it has not; its own keep their vectors.

    Raises:
        DataError: too few words are in both to fit the map.
    """
    own = {word: FIRST_WORD + n for n, word in enumerate(model.vocabulary())}
    table_VW = model.words.weight.detach()
    if others is None:
        return Lexicon(own, table_VW)
    shared = [word for word in own if word in others.rows]
    x_ND = others.matrix_ND[[others.rows[word] for word in shared]]
    y_NW = table_VW[[own[word] for word in shared]].cpu().numpy()
    enough(len(shared), others.matrix_ND.shape[1], others.origin)
    mapped = least_squares(x_ND, y_NW)
    new = [word for word in others.rows if word not in own]
    more_MW = torch.from_numpy(mapped(others.matrix_ND[[others.rows[word] for word in new]])).to(table_VW)
    ids = own | {word: len(table_VW) + n for n, word in enumerate(new)}
    return Lexicon(ids, torch.cat([table_VW, more_MW]))


def needed(words: Iterable[str], own: Iterable[str]) -> Wanted:
    """Words whose vectors a lexicon may be asked for: of text, as written and in small letters, and the model's own."""
    written, known = set(words), set(own)
    return Wanted(written | {word.lower() for word in written} | known, known)


def tokens(sentence: str) -> list[str]:
    """A sentence, or several, as words; no letter is changed."""
    return [word for words in split_text(sentence, lower=False) for word in words]


class SentenceEncoder:
    """Encodes sentences in batches of about equal length.

    Args:
        model: in eval mode.
        words: its words, and further ones.
        eos: read EOS after each sentence.
        lower: look a word up in small letters if it is unknown as written.
        unit: scale vectors to length 1.
        batch_size: sentences at a time, fewer if they are very long; changes no number beyond rounding.
        split: text to words.

    Attributes:
        read, unknown: words so far, and how many of them have no vector of their own.
    """

    def __init__(
        self,
        model: SkipThoughts,
        words: Lexicon,
        *,
        eos: bool = False,
        lower: bool = False,
        unit: bool = True,
        batch_size: int = 128,
        split: Callable[[str], Sequence[str]] = tokens,
    ) -> None:
        self.model, self.words, self.split = model, words, split
        self.eos, self.lower, self.unit, self.batch_size = eos, lower, unit, batch_size
        self.read = self.unknown = 0

    def numbers(self, sentences: Iterable[str]) -> list[list[int]]:
        """Rows of the table for each sentence; one without any word is EOS alone."""
        found = [self.words.numbers(self.split(sentence), self.lower) for sentence in sentences]
        self.read += sum(map(len, found))
        self.unknown += sum(row.count(UNKNOWN) for row in found)
        return [row + [EOS] if self.eos or not row else row for row in found]

    @torch.no_grad()
    def __call__(self, sentences: Sequence[str], progress: Progress | None = None) -> np.ndarray:
        """The vectors (N, H) of sentences, float32, in their order."""
        numbers = self.numbers(sentences)
        lengths_N = np.array([len(row) for row in numbers], dtype=np.int64)
        order, found_NH = (
            np.argsort(lengths_N, kind="stable"),
            np.empty((len(numbers), self.model.sizes.units), dtype=np.float32),
        )
        for places in self._batches(order, lengths_N):
            found_NH[places] = self._batch([numbers[n] for n in places], lengths_N[places])
            if progress is not None:
                progress(len(places))
        return found_NH

    def _batches(self, order: np.ndarray, lengths_N: np.ndarray) -> Iterator[np.ndarray]:
        """Parts of ``order``, in which sentences become longer."""
        start = 0
        while start < len(order):
            size = self.batch_size
            while size > 1 and size * lengths_N[order[start : start + size][-1]] > PADDED:
                size = (size + 1) // 2
            yield order[start : start + size]
            start += size

    def _batch(self, numbers: list[list[int]], lengths_B: np.ndarray) -> np.ndarray:
        ids_TB = np.full((int(lengths_B.max()), len(numbers)), EOS, dtype=np.int64)
        for b, row in enumerate(numbers):
            ids_TB[: len(row), b] = row
        table_VW = self.words.table_VW
        x_TBW = F.embedding(torch.from_numpy(ids_TB).to(table_VW.device), table_VW)
        h_BH = self.model.read(x_TBW, torch.from_numpy(lengths_B).to(table_VW.device))
        return (F.normalize(h_BH, dim=1) if self.unit else h_BH).cpu().numpy()
