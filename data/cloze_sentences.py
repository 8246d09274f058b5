"""Which sentences of a passage are kept: those that share most with the query (section 6.2).

Recurrent networks read the CNN articles too slowly, so Cooijmans et al. (2016) kept the four sentences that a string
match found most relevant. Their score was not published; this is ours:

    score(sentence) = sum over its different words w that are in the query too of  log(1 + S / n(w))

S being the number of sentences of the passage, n(w) how many of them hold w. A word that is in every sentence counts
log 2, a rare one more, so no list of common words is needed. Entity markers are words like others; the placeholder and
what has no letter or digit do not count. Of equal scores the earlier sentence wins, and a passage keeps its order.
What it loses is reported: a question whose answer is in no kept sentence cannot be answered from them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from data.cloze_files import PLACEHOLDER

ENDS = frozenset([".", "!", "?"])
CLOSERS = frozenset(['"', "'", "''", "`", "\u201d", "\u2019", ")", "-rrb-"])  # belong to the sentence before them
VERSION = "1"  # changes with whatever changes what is kept


def split_sentences(passage: Sequence[str]) -> list[Sequence[str]]:
    """Sentences of a passage; together they are the passage.

    One ends after a full stop, an exclamation or a question mark, or after a closing quotation mark or bracket that
    follows it: one that was opened in the same sentence, because opening and closing marks look alike.
    """
    sentences, start, n = [], 0, 0
    while n < len(passage):
        n += 1
        if passage[n - 1] in ENDS:
            while n < len(passage) and (passage[n] in ENDS or _closes(passage, start, n)):
                n += 1
            sentences.append(passage[start:n])
            start = n
    if start < len(passage):
        sentences.append(passage[start:])
    return sentences


def _closes(passage: Sequence[str], start: int, place: int) -> bool:
    """Whether the word at ``place`` closes what the sentence that began at ``start`` opened."""
    word = passage[place]
    if word not in CLOSERS:
        return False
    return word not in ('"', "'") or passage[start:place].count(word) % 2 == 1


def scores(sentences: Sequence[Sequence[str]], query: Sequence[str]) -> list[float]:
    """The score of each sentence; see the top of this file."""
    asked = {word for word in query if word != PLACEHOLDER and any(map(str.isalnum, word))}
    shared = [asked.intersection(sentence) for sentence in sentences]
    holds = Counter(word for words in shared for word in words)
    weights = {word: math.log(1 + len(sentences) / count) for word, count in holds.items()}
    return [math.fsum(weights[word] for word in words) for words in shared]  # exact: the order of a set varies


def keep(passage: Sequence[str], query: Sequence[str], most: int) -> list[str]:
    """The words of the ``most`` sentences of highest score, in the order of the passage."""
    sentences = split_sentences(passage)
    found = scores(sentences, query)
    best = sorted(sorted(range(len(sentences)), key=lambda n: (-found[n], n))[:most])
    return [word for n in best for word in sentences[n]]
