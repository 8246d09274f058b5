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
from dataclasses import dataclass

from numpy.random import RandomState

from data.cloze_files import ENTITY, PLACEHOLDER, Question

SEED = 20160721  # of everything here; the number is the date of the paper's first version
VERSION = "1"
SIZES = {"train": 8000, "valid": 1000, "test": 1000}
MARKERS = 24  # marker numbers that stories draw from

THINGS = "lamp map clock boat violin kettle ladder bicycle".split()
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


DEEDS = (
    Deed((("bought", "bought"), ("paid for", "paid for")), (("purchased", "purchased"), ("acquired", "acquired"))),
    Deed((("lost", "lost"), ("forgot", "forgotten")), (("misplaced", "misplaced"), ("left behind", "left behind"))),
    Deed((("mended", "mended"), ("fixed", "fixed")), (("repaired", "repaired"), ("put right", "put right"))),
    Deed((("broke", "broken"), ("damaged", "damaged")), (("wrecked", "wrecked"), ("ruined", "ruined"))),
    Deed((("gave", "given"), ("handed", "handed")), (("presented", "presented"), ("donated", "donated")), to=True),
    Deed((("lent", "lent"), ("loaned", "loaned")), (("entrusted", "entrusted"), ("advanced", "advanced")), to=True),
    Deed((("sent", "sent"), ("mailed", "mailed")), (("posted", "posted"), ("shipped", "shipped")), to=True),
)
# How a fact is told: {a} did {d} (participle {p}) with {t} at, or to, {x}.
TOLD: dict[bool, tuple[str, ...]] = {
    False: (
        "{a} {d} the {t} in {x} .",
        "in {x} , {a} {d} the {t} .",
        "the {t} was {p} by {a} in {x} .",
        "it was in {x} that {a} {d} the {t} .",
    ),
    True: (
        "{a} {d} the {t} to {x} .",
        "it was {a} who {d} the {t} to {x} .",
        "the {t} was {p} to {x} by {a} .",
        "{x} got the {t} that {a} {d} .",
    ),
}
OPENINGS = ("", "", "", "", "", "", "on monday , ", "last week , ", "later , ", "that evening , ", "as reported , ")
# Sentences that tell no fact; {e} is anyone or any place of the story.
EMPTY = (
    "a neighbour of {e} spoke of the {t} .",
    "the {t} was well known to friends of {e} .",
    "nothing new was heard from {e} .",
    "many questions about {e} remain .",
)
# How it is asked for {a}, and for {x}; @ is where the answer belongs.
ASKED_WHO: dict[bool, tuple[str, ...]] = {
    False: (
        "@ {d} the {t}",
        "the {t} was {p} by @",
        "the one who {d} the {t} is called @",
        "near {x} , @ {d} the {t}",
        "the {t} was {p} at {x} by @",
    ),
    True: (
        "@ {d} the {t}",
        "the {t} was {p} by @",
        "the one who {d} the {t} is called @",
        "for {x} , @ {d} the {t}",
        "the {t} was {p} for {x} by @",
    ),
}
ASKED_WHERE: dict[bool, tuple[str, ...]] = {
    False: (
        "the {t} was {p} at @",
        "the place where someone {d} the {t} is @",
        "{a} {d} the {t} at @",
        "@ is where {a} {d} the {t}",
    ),
    True: (
        "the {t} was {p} for @",
        "someone {d} the {t} for @",
        "{a} {d} the {t} for @",
        "@ got what {a} {d} , the {t}",
    ),
}


@dataclass(frozen=True)
class Fact:
    """Who (``a``) did what (number of the deed) with which thing, where or to whom (``x``)."""

    a: str
    deed: int
    thing: str
    x: str


def make_facts(random: RandomState) -> list[Fact]:
    """Facts of a story about people P0, P1 … and places L0, L1 …; each deed and thing occurs in two of them or more."""
    while True:
        deeds = random.permutation(len(DEEDS))[: random.randint(2, 4)]
        things = random.permutation(THINGS)[: random.randint(2, 4)]
        cells = [(int(deed), str(thing)) for deed in deeds for thing in things]
        chosen = [cells[i] for i in random.permutation(len(cells))[: random.randint(4, 8)]]
        people = [f"P{i}" for i in range(random.randint(4, 6))]
        places = [f"L{i}" for i in range(random.randint(3, 5))]
        facts = []
        for deed, thing in chosen:
            a, b = random.permutation(people)[:2]
            x = b if DEEDS[deed].to else places[random.randint(len(places))]
            facts.append(Fact(str(a), deed, thing, str(x)))
        shared = all(
            sum(f.deed == g.deed for g in facts) > 1 and sum(f.thing == g.thing for g in facts) > 1 for f in facts
        )
        who = {name for fact in facts for name in (fact.a, fact.x)}
        several = sum(name in people for name in who) > 3 and sum(name in places for name in who) in (0, 3, 4)
        if shared and several:  # three at least who may be the answer, even if the query names one
            return facts


def _one(options: tuple[str, ...] | list[str], random: RandomState) -> str:
    return options[random.randint(len(options))]


def tell(facts: list[Fact], random: RandomState) -> list[str]:
    """Sentences of a story: a fact each, and up to two that tell none, eight at most."""
    sentences = []
    for fact in facts:
        deed = DEEDS[fact.deed]
        past, participle = deed.told[random.randint(len(deed.told))]
        frame = _one(OPENINGS, random) + _one(TOLD[deed.to], random)
        sentences.append(frame.format(a=fact.a, x=fact.x, t=fact.thing, d=past, p=participle))
    who = sorted({name for fact in facts for name in (fact.a, fact.x)})
    for _ in range(random.randint(0, min(2, 8 - len(facts)) + 1)):
        text = _one(EMPTY, random).format(e=_one(who, random), t=facts[random.randint(len(facts))].thing)
        sentences.insert(random.randint(len(sentences) + 1), text)
    return sentences


def ask(facts: list[Fact], random: RandomState) -> tuple[str, str]:
    """A query and its answer: anyone or any place of the story, all with the same chance."""
    answer = _one(sorted({name for fact in facts for name in (fact.a, fact.x)}), random)
    about = [fact for fact in facts if answer in (fact.a, fact.x)]
    fact = about[random.randint(len(about))]
    deed = DEEDS[fact.deed]
    past, participle = deed.asked[random.randint(len(deed.asked))]
    other = fact.x if answer == fact.a else fact.a
    frames: tuple[str, ...] = (ASKED_WHO if answer == fact.a else ASKED_WHERE)[deed.to]
    # Whoever else took part is named only if he does not give the sentence away.
    if sum(other in (one.a, one.x) for one in facts) < 2:
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
