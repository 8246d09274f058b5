"""Readers that measure the generated stories: one that must answer everything, and guessers that must not.

All of them see a question's text only. A guesser that looks at nothing but the query, or at nothing but how often and
where an entity is named, should be right as often as chance; so should not be far above it one that takes the sentence
which shares most words with the query.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from data.cloze_files import ENTITY, PLACEHOLDER, Question, entity_number
from data.cloze_sentences import scores, split_sentences
from data.stories import ASKED_WHERE, ASKED_WHO, DEEDS, OPENINGS, THINGS, TOLD, Fact

_MARKER = rf"{ENTITY}[0-9]+"


def _pattern(frame: str, to: bool, asked: bool) -> re.Pattern[str]:
    """What a frame's sentences look like."""
    words = [pair for deed in DEEDS if deed.to == to for pair in (deed.asked if asked else deed.told)]
    parts = {"a": _MARKER, "x": _MARKER, "t": "|".join(THINGS)}
    parts |= {"d": "|".join(past for past, _ in words), "p": "|".join(participle for _, participle in words)}
    text = re.escape(frame.replace("@", PLACEHOLDER)).replace(r"\{", "{").replace(r"\}", "}").replace(r"\ ", " ")
    return re.compile(text.format(**{name: f"(?P<{name}>{part})" for name, part in parts.items()}))


class Oracle:
    """Reads stories by the grammar that they were written by."""

    def __init__(self) -> None:
        self.told = [(_pattern(frame, to, False), to) for to in TOLD for frames in TOLD[to] for frame in frames]
        self.who = [(_pattern(frame, to, True), to) for to in ASKED_WHO for frame in ASKED_WHO[to]]
        self.where = [(_pattern(frame, to, True), to) for to in ASKED_WHERE for frame in ASKED_WHERE[to]]
        self.deeds: dict[tuple[str, bool], int] = {}
        for number, deed in enumerate(DEEDS):
            for pair in (*deed.told, *deed.asked):
                self.deeds |= {(word, deed.to): number for word in pair}

    def _fact(self, found: re.Match[str], to: bool) -> Fact:
        groups = found.groupdict()
        deed = self.deeds[groups.get("d") or groups["p"], to]
        return Fact(groups.get("a") or "", deed, groups["t"], groups.get("x"))

    def facts(self, question: Question) -> list[Fact]:
        """What a passage tells."""
        facts = []
        for sentence in split_sentences(question.passage):
            text = " ".join(sentence)
            text = text.removeprefix(next((opening for opening in OPENINGS if text.startswith(opening)), ""))
            facts += [self._fact(found, to) for pattern, to in self.told if (found := pattern.fullmatch(text))]
        return facts

    def answers(self, question: Question) -> set[str]:
        """All who may be the answer; one, if the story is as it should be."""
        text, answers = " ".join(question.query), set()
        for patterns, who in ((self.who, True), (self.where, False)):
            for pattern, to in patterns:
                if (found := pattern.fullmatch(text)) is None:
                    continue
                asked = self._fact(found, to)
                for fact in self.facts(question):
                    other = asked.x if who else asked.a
                    same = (fact.deed, fact.thing) == (asked.deed, asked.thing)
                    if same and (not other or other == (fact.x if who else fact.a)):
                        answers.add(fact.a if who else fact.x or "")
        return answers

    def candidates(self, question: Question) -> list[str]:
        """Who may be meant by one who understands the query but has not read which sentence answers it.

        People if a person is asked for, otherwise places; those that the query does not name, as they are first named.
        """
        places = {fact.x for fact in self.facts(question) if not DEEDS[fact.deed].to}
        text = " ".join(question.query)
        place = any(pattern.fullmatch(text) for pattern, to in self.where if not to)
        named = [word for word in dict.fromkeys(question.passage) if entity_number(word) is not None]
        return [word for word in named if (word in places) == place and word not in question.query]


Guess = Callable[[Question, Sequence[str]], str]


def most_frequent(question: Question, candidates: Sequence[str]) -> str:
    """Whoever is named most often, the first of them."""
    counts = Counter(question.passage)
    return max(candidates, key=lambda word: counts[word])


def least_frequent(question: Question, candidates: Sequence[str]) -> str:
    """Whoever is named least often, the first of them."""
    counts = Counter(question.passage)
    return min(candidates, key=lambda word: counts[word])


def first(question: Question, candidates: Sequence[str]) -> str:
    """Whoever is named first."""
    return min(candidates, key=question.passage.index)


def last(question: Question, candidates: Sequence[str]) -> str:
    """Whoever is named last."""
    return min(candidates, key=question.passage[::-1].index)


def lowest_number(question: Question, candidates: Sequence[str]) -> str:
    """Whoever has the lowest marker."""
    return min(candidates, key=lambda word: entity_number(word) or 0)


def most_shared_words(question: Question, candidates: Sequence[str]) -> str:
    """The first candidate of the sentence that shares most with the query."""
    sentences = split_sentences(question.passage)
    found = scores(sentences, question.query)
    for n in sorted(range(len(sentences)), key=lambda n: (-found[n], n)):
        for word in sentences[n]:
            if word in candidates:
                return word
    return candidates[0]


GUESSERS: tuple[Guess, ...] = (most_frequent, least_frequent, first, last, lowest_number, most_shared_words)


def majority(training: Sequence[Question]) -> Guess:
    """Whoever was most often the answer in training, whatever is asked."""
    answer = Counter(question.answer for question in training).most_common(1)[0][0]
    return lambda question, candidates: answer
