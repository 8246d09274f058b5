"""Generated stories, the stand-in for CNN articles with cloze questions (section 6.2).

A story is about a few people, places and things. Each of its facts says who did what with which thing, and where or
to whom. The thing and the deed that are asked about both occur in other facts too, so neither alone tells the answer,
and neither does the number of words that a sentence shares with the query: the query says the deed in other words. A
fact is told in one of several ways, and asked in one of several others. Some sentences tell no fact.

Whom a query asks for is drawn from all who occur in the story, each with the same chance, after the story has been
told. So who is named most often, first or last is no more likely than anyone else, and the markers' numbers are drawn
anew for each story. ``Oracle`` reads the text by the same grammar and answers everything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.random import RandomState

from data.cloze_files import ENTITY, PLACEHOLDER, Question

SEED = 20160721  # of everything here; the number is the date of the paper's first version
VERSION = "1"
SIZES = {"train": 8000, "valid": 1000, "test": 1000}
MARKERS = 10  # marker numbers that stories draw from

THINGS = "lamp map clock boat violin kettle".split()
FIRST = "Ada Bruno Clara Dario Edda Fritz Greta Hugo Ines Jonas Karla Leon Mara Nils Olga Paul".split()
LAST = "Adler Brook Castell Dorn Ekman Frey Gallo Hale Iver Jung Kern Lund Moss Novak".split()
PLACES = "Aldern Brockhaven Castrow Dunmere Elswick Farnbeck Glanford Holmsea Ivestone Kelbridge Lorby Marwick".split()


@dataclass(frozen=True)
class Deed:
    """What is done with a thing.

    Attributes:
        told, asked: wordings in a story and in a query, which share none: (past, participle).
        to: whether it is done to a person; otherwise somewhere.
    """

    told: tuple[tuple[str, str], ...]
    asked: tuple[tuple[str, str], ...]
    to: bool = False


def _both(*words: str) -> tuple[tuple[str, str], ...]:
    """Wordings whose participle is as the past."""
    return tuple((word, word) for word in words)


DEEDS = (
    Deed(_both("bought", "ordered"), _both("purchased", "acquired")),
    Deed((*_both("lost"), ("forgot", "forgotten")), _both("misplaced", "left")),
    Deed(_both("mended", "fixed"), _both("repaired", "restored")),
    Deed((("broke", "broken"), *_both("damaged")), _both("wrecked", "ruined")),
    Deed((("gave", "given"), *_both("handed")), _both("presented", "donated"), to=True),
    Deed(_both("sent", "mailed"), _both("posted", "shipped"), to=True),
)
# How a fact is told: {a} did {d} (participle {p}) with {t}, and, in the second half, at or to {x}.
TOLD: dict[bool, tuple[tuple[str, ...], tuple[str, ...]]] = {
    False: (
        ("{a} {d} the {t} .", "the {t} was {p} by {a} .", "it was {a} who {d} the {t} ."),
        ("{a} {d} the {t} in {x} .", "in {x} {a} {d} the {t} .", "the {t} was {p} in {x} by {a} ."),
    ),
    True: (
        ("{a} {d} the {t} .", "the {t} was {p} by {a} .", "it was {a} who {d} the {t} ."),
        ("{a} {d} the {t} to {x} .", "the {t} was {p} to {x} by {a} .", "{x} got the {t} that {a} {d} ."),
    ),
}
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
# Three sentences of four begin without one.
OPENINGS = ("later ", "last week ", "soon after ", "that evening ", *(f"on {day} " for day in DAYS))
# Sentences that tell no fact; {e} is anyone or any place of the story, {n} and {j} are drawn from these words.
EMPTY = ("{e} was {j} .", "friends of {e} knew the {t} .", "nobody spoke of {e} .", "{e} had {j} {n} .")
QUALITIES = (
    "quiet busy famous strange modern simple bright grey splendid gloomy honest curious distant friendly gentle humble "
    "lively modest noble proud quaint rustic sober timid"
).split()
NOUNS = (
    "friends gardens habits windows neighbours evenings stories visitors songs letters bridges markets kitchens towers "
    "summers winters plans dreams bells roofs walls cousins dogs horses"
).split()
# How it is asked for {a}, and for {x}; @ is where the answer belongs.
ASKED_WHO: dict[bool, tuple[str, ...]] = {
    False: ("@ {d} the {t}", "the {t} was {p} by @", "near {x} @ {d} the {t}"),
    True: ("@ {d} the {t}", "the {t} was {p} by @", "for {x} @ {d} the {t}"),
}
ASKED_WHERE: dict[bool, tuple[str, ...]] = {
    False: ("the {t} was {p} near @", "somebody {d} the {t} near @", "near @ {a} {d} the {t}"),
    True: ("the {t} was {p} for @", "somebody {d} the {t} for @", "for @ {a} {d} the {t}"),
}


@dataclass(frozen=True)
class Fact:
    """Who (``a``) did what (number of the deed) with which thing, where or to whom (``x``)."""

    a: str
    deed: int
    thing: str
    x: str | None

    def who(self) -> list[str]:
        """All who take part."""
        return [self.a] if self.x is None else [self.a, self.x]


def make_cells(random: RandomState) -> list[tuple[int, str]]:
    """Deeds, by number, and things of a story's facts, each deed and each thing in two of them or more."""
    while True:
        deeds = random.permutation(len(DEEDS))[: random.randint(2, 4)].tolist()
        things = [THINGS[n] for n in random.permutation(len(THINGS))[: random.randint(2, 4)]]
        cells = [(deed, thing) for deed in deeds for thing in things]
        cells = [cells[n] for n in random.permutation(len(cells))[: (4, 4, 5, 6)[random.randint(4)]]]
        if all(min(Counter(column).values()) > 1 for column in zip(*cells, strict=True)):
            return cells


def make_facts(random: RandomState) -> list[Fact]:
    """Facts of a story about people P0, P1 … and places L0, L1 …

    Four people or five take part, and three places or none: so there are three at least who may be the answer, even if
    the query names one.
    """
    cells = make_cells(random)
    both = random.randint(0, 2, len(cells)).tolist()  # whether a fact says where or to whom
    at_places = [n for n, (deed, _) in enumerate(cells) if both[n] and not DEEDS[deed].to]
    if len(at_places) < 3:
        both = [two and n not in at_places for n, two in enumerate(both)]
        at_places = []
    to_people = [n for n, (deed, _) in enumerate(cells) if both[n] and DEEDS[deed].to]
    places = dict(zip(at_places, _dealt("L", 3, 3, len(at_places), random), strict=True))
    while True:
        people = _dealt("P", 4, 4 + random.randint(2), len(cells) + len(to_people), random)
        second = places | dict(zip(to_people, people[len(cells) :], strict=True))
        facts = [Fact(people[n], deed, thing, second.get(n)) for n, (deed, thing) in enumerate(cells)]
        if all(fact.a != fact.x for fact in facts):
            return facts


def _dealt(letter: str, least: int, most: int, count: int, random: RandomState) -> list[str]:
    """``count`` names in a random order, ``least`` different ones or more of ``most``; none if ``count`` is 0."""
    numbers = random.permutation(most)[:least].tolist() + random.randint(0, most, max(0, count - least)).tolist()
    return [f"{letter}{numbers[n]}" for n in random.permutation(count).tolist()]


def _one(options: Sequence[str], random: RandomState) -> str:
    return options[random.randint(len(options))]


def tell(facts: list[Fact], random: RandomState) -> list[str]:
    """Sentences of a story: a fact each, and up to two that tell none."""
    sentences = []
    for fact in facts:
        deed = DEEDS[fact.deed]
        past, participle = deed.told[random.randint(len(deed.told))]
        opening = "" if random.randint(4) else _one(OPENINGS, random)
        frame = opening + _one(TOLD[deed.to][fact.x is not None], random)
        sentences.append(frame.format(a=fact.a, x=fact.x, t=fact.thing, d=past, p=participle))
    who = sorted({name for fact in facts for name in fact.who()})
    for _ in range(random.randint(0, 3)):
        words = {"t": facts[random.randint(len(facts))].thing, "n": _one(NOUNS, random), "j": _one(QUALITIES, random)}
        text = _one(EMPTY, random).format(e=_one(who, random), **words)
        sentences.insert(random.randint(len(sentences) + 1), text)
    return sentences


def ask(facts: list[Fact], random: RandomState) -> tuple[str, str]:
    """A query and its answer: anyone or any place of the story, all with the same chance."""
    answer = _one(sorted({name for fact in facts for name in fact.who()}), random)
    about = [fact for fact in facts if answer in fact.who()]
    fact = about[random.randint(len(about))]
    deed = DEEDS[fact.deed]
    past, participle = deed.asked[random.randint(len(deed.asked))]
    other = fact.x if answer == fact.a else fact.a
    frames = (ASKED_WHO if answer == fact.a else ASKED_WHERE)[deed.to]
    # Whoever else took part is named only if that does not give the sentence away.
    if other is None or sum(other in one.who() for one in facts) < 2:
        frames = tuple(frame for frame in frames if "{a}" not in frame and "{x}" not in frame)
    text = _one(frames, random).format(a=fact.a, x=fact.x, t=fact.thing, d=past, p=participle)
    return text.replace("@", PLACEHOLDER), answer


def make_question(split: str, number: int) -> Question:
    """Question ``number`` of a split; the same number, the same question."""
    random = RandomState([SEED, sorted(SIZES).index(split), number])
    facts = make_facts(random)
    sentences = tell(facts, random)
    query, answer = ask(facts, random)
    who = list(dict.fromkeys(re.findall(r"\b[PL]\d\b", " ".join(sentences))))
    numbers = random.permutation(MARKERS)
    markers = {name: f"{ENTITY}{numbers[i]}" for i, name in enumerate(who)}
    towns = iter(random.permutation(PLACES))
    people = (
        f"{first} {last}" for first, last in zip(random.permutation(FIRST), random.permutation(LAST), strict=False)
    )
    names = {markers[name]: str(next(towns if name[0] == "L" else people)) for name in who}

    def anonymous(text: str) -> list[str]:
        return [markers.get(word, word) for word in text.split()]

    return Question(
        passage=anonymous(" ".join(sentences)),
        query=anonymous(query),
        answer=markers[answer],
        names=names,
        address=f"generated/{split}/{number:06d}",
    )
