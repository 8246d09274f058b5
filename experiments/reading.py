"""What an attentive reader makes of a question: where it looked, and the likeliest answers.

Shapes: T words of a passage (or query), B batch, V vocabulary, K likeliest words.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from data.attentive_reader import FIRST_WORD, PAD, UNKNOWN
from data.cloze_files import PLACEHOLDER
from data.fetch import DataError
from data.messages import shortened
from models.attentive_reader import AttentiveReader

COLUMNS = 96  # characters in a line
CANDIDATES = 5
MOST_WORDS = 100  # of a query


@dataclass(frozen=True)
class Reading:
    """A question and what the model said.

    Attributes:
        title: which question it is.
        passage, query: all their words; the first ``read`` and ``query_read`` of them are read.
        weights: attention to the passage's words, and 0 for padding, if there is some.
        answer: the right word; None if nobody knows it.
        best: the likeliest words and their probabilities.
        strange: words of the query that the model does not know.
    """

    title: str
    passage: list[str]
    query: list[str]
    read: int
    query_read: int
    weights: np.ndarray
    answer: str | None
    best: list[tuple[str, float]]
    strange: list[str] = field(default_factory=list)


def describe(reading: Reading) -> list[str]:
    """Lines for the terminal."""
    most = np.argsort(-reading.weights[: reading.read], kind="stable")[:5]
    looked = ", ".join(f"{reading.passage[t]} ({reading.weights[t]:.2f})" for t in most)
    return [
        f"{reading.title}:",
        *textwrap.wrap(" ".join(reading.passage), COLUMNS, initial_indent="  ", subsequent_indent="  "),
        f"query:  {' '.join(reading.query)}" + _unread(reading),
        *[f"not known, so they count as any unknown word: {', '.join(reading.strange)}"] * bool(reading.strange),
        f"answer: {reading.answer or 'not known'}",
        "likeliest words:",
        *(f"  {word} {p:.3f}" + "  (right)" * (word == reading.answer) for word, p in reading.best),
        f"looked most at: {looked}",
    ]


def _unread(reading: Reading) -> str:
    texts = (("passage", reading.passage, reading.read), ("query", reading.query, reading.query_read))
    left = [f"the {name}'s last word, {words[-1]}" for name, words, read in texts if read < len(words)]
    return f"  (not read: {' and '.join(left)})" if left else ""


def parse_query(query: str, questions: int) -> tuple[int, list[str] | None]:
    """The number of a validation question, and the words of a query of one's own. Raises ``DataError``."""
    found = re.fullmatch(r"\s*(?:(\d+)\s*(?::|$))?\s*(.*?)\s*", query, re.DOTALL)
    assert found is not None, "any text fits"
    digits, words = found[1] or "0", found[2].split()
    number = int(digits[:18])  # one of more digits is too large anyway, and Python refuses to read thousands of them
    shown = shortened(query)
    if len(words) > MOST_WORDS:
        raise DataError(f"QUERY has {len(words)} words; ask in at most {MOST_WORDS}")
    if number >= questions or len(digits) > 18:
        raise DataError(
            f"QUERY={shown}: there is no validation question {shortened(digits, 18)}; use 0 to {questions - 1}"
        )
    if words and PLACEHOLDER not in words or not (words or found[1]):
        raise DataError(
            f"QUERY={shown}: give the number of a validation question, such as 12, or words with {PLACEHOLDER} about "
            f'its passage, such as "12: {PLACEHOLDER} was there"'
        )
    return number, words or None


@torch.no_grad()
def read(model: nn.Module, data: Any, number: int, size: int, words: list[str] | None = None) -> Reading:
    """What the model makes of a validation question, or of another query (``words``) about its passage.

    The question is read among the others of its evaluation batch, for BN's sake.

    Args:
        data: ``AttentiveReaderData``.
        size: of an evaluation batch.
    """
    assert isinstance(model, AttentiveReader)
    questions = data.all.splits["valid"]
    start = max(0, min(number // size * size, len(questions) - size))
    passage_TB, lengths_B, query_TB, query_lengths_B, answers_B = questions.padded(
        np.arange(start, min(start + size, len(questions)))
    )
    b = number - start
    if words is not None:
        query_TB, query_lengths_B = _put(data, words, query_TB, query_lengths_B, b)
    passage, query = data.cut(passage_TB, lengths_B), data.cut(query_TB, query_lengths_B)
    answer = model(*passage, *query)
    shares_V = answer.logits_BV[b].softmax(0)
    p_K, best_K = shares_V.topk(min(CANDIDATES, len(shares_V)))
    spoken = [[data.all.word(int(word)) for word in words_TB[: lengths[b], b]]
              for words_TB, lengths in ((passage_TB, lengths_B), (query_TB, query_lengths_B))]  # fmt: skip
    if words is not None:
        spoken[1] = words
    return Reading(
        title=("" if words is None else "about the passage of ") + f"validation question {number}",
        passage=spoken[0], query=spoken[1], read=int(passage[1][b]), query_read=int(query[1][b]),
        weights=answer.weight_TB[:, b].double().cpu().numpy(),
        answer=None if words is not None else data.all.word(int(answers_B[b])),
        best=[(data.all.word(word), p) for word, p in zip(best_K.tolist(), p_K.tolist(), strict=True)],
        strange=[] if words is None else [
            word for word, number in zip(words, query_TB[:, b], strict=False) if number == UNKNOWN
        ],
    )  # fmt: skip


def _put(
    data: Any, words: list[str], query_TB: np.ndarray, lengths_B: np.ndarray, b: int
) -> tuple[np.ndarray, np.ndarray]:
    """The queries with that of case ``b`` replaced. Raises ``DataError`` if none of its words is known."""
    known = {word: FIRST_WORD + n for n, word in enumerate(data.all.vocabulary)}
    ids = [known.get(word, known.get(word.lower(), UNKNOWN)) for word in words]
    if all(number == UNKNOWN or word == PLACEHOLDER for number, word in zip(ids, words, strict=True)):
        shown, some = shortened(" ".join(words)), [word for word in known if word.isalnum()][:12]
        raise DataError(
            f"QUERY={shown}: no word of it is among the {len(known):,} known ones ({', '.join(some)} …); use those"
        )
    query_TB = np.pad(query_TB, ((0, max(0, len(ids) - len(query_TB))), (0, 0)), constant_values=PAD)
    query_TB[:, b] = PAD
    query_TB[: len(ids), b] = ids
    lengths_B = lengths_B.copy()
    lengths_B[b] = len(ids)
    return query_TB, lengths_B
