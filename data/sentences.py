"""Running text as tokenised lower-case sentences: the rule-based tokenizer of NLTK, without any trained model.

The authors used NLTK's Punkt with its trained model for English and the Treebank tokenizer. The model is not in the
package registry; the same algorithm runs here without one, with a list of abbreviations in its place.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator

# What a full stop belongs to, in small letters; Punkt knows initials and numbers by itself.
ABBREVIATIONS = (
    "mr mrs ms messrs dr prof rev hon st capt col gen lt sgt maj cmdr gov sen rep pres supt insp esq jr sr bros "
    "co corp inc ltd vs viz cf etc e.g i.e a.m p.m u.s jan feb mar apr jun jul aug sep sept oct nov dec vol pp ed "
    "approx dept ave"
).split()
_BREAK = re.compile(r"\n[ \t\r\f\v]*\n\s*")


@functools.cache
def _tools() -> tuple[Callable[[str], list[str]], Callable[[str], list[str]]]:
    """What splits a paragraph into sentences and a sentence into words; importing NLTK takes seconds."""
    from nltk.tokenize.destructive import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    known = PunktParameters()
    known.abbrev_types.update(ABBREVIATIONS)
    return PunktSentenceTokenizer(known).tokenize, NLTKWordTokenizer().tokenize


def split_text(text: str, *, lower: bool = True) -> Iterator[list[str]]:
    """The sentences of running text as words; none goes beyond a blank line, other line ends do not count.

    Args:
        text: paragraphs with blank lines between them.
        lower: make letters small.
    """
    sentences, words = _tools()
    for paragraph in _BREAK.split(text):
        for sentence in sentences(" ".join(paragraph.split())):
            found = words(sentence.lower() if lower else sentence)
            if found:
                yield found
