"""Sentences of books for skip-thoughts (section 6.3): the plays of Shakespeare where there are no books."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data import plays
from data.books import EOS, FIRST_WORD, UNKNOWN, Books, Encoded, Padded, encode_sentences, padded
from data.captions import build_vocabulary
from data.fetch import Say, Source
from data.parsed_cache import Arrays, cached
from data.sentences import split_text
from data.triples import Batches, Triples

__all__ = ["EOS", "FIRST_WORD", "UNKNOWN", "Batches", "Books", "Encoded", "Padded", "Triples", "encode_sentences",
           "get", "load_books", "padded"]  # fmt: skip

PLAYS = "plays"


def load_books(corpus: str | None = None, vocabulary: int = 20_000) -> Books:
    """The sentences.

    Args:
        corpus: None for the books, or the plays where there are none; ``plays``; or the path of a text file.
        vocabulary: ids of the model, the two that are no words included.
    """
    return _plays(plays.locate() or plays.fetch(), vocabulary)


def _plays(path: Path, vocabulary: int) -> Books:
    def build() -> Arrays:
        sentences = [
            words for play in plays.read_speeches(path) for words in split_text("\n\n".join(play))
        ]  # fmt: skip
        known = build_vocabulary(sentences)[: vocabulary - FIRST_WORD]
        encoded = encode_sentences(sentences, known)
        return {
            "words": encoded.words,
            "starts": encoded.starts,
            "vocabulary": np.frombuffer("\n".join(known).encode(), dtype=np.uint8),
        }

    arrays, digest = cached(f"skip_thoughts-plays-{vocabulary}", [path], build, version="1")
    words: Sequence[str] = arrays["vocabulary"].tobytes().decode().split("\n")
    detail = (
        f"{len(arrays['starts']) - 1:,} sentences of plays, because no books were found; "
        "scores are not comparable with the paper"
    )
    source = Source("stand-in", PLAYS, "plays of Shakespeare (stand-in)", digest, detail)
    return Books(arrays["words"], arrays["starts"], list(words), source)


def get(say: Say) -> Source:
    """Tells of the files; see ``scripts.get_data``. Raises ``DataError``."""
    before = plays.locate()
    path = before or plays.fetch()
    say("present" if before else "fetched", path)
    say("stand-in", "BookCorpus: the plays in it")
    return load_books().source
