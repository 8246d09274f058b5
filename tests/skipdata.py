"""A small corpus and small evaluation sets, for the tests of skip-thoughts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from data.downstream import Downstream
from data.fetch import Source
from data.sentence_sets import labelled
from data.sick import Pairs, Sick
from data.skip_thoughts import Books, encode_sentences
from experiments.tasks.skip_thoughts import SkipConfig
from models.norm import Norm

WORDS = ["the", "cat", "dog", "sat", "ran", "on", "a", "mat", "road", "."]


def books(count: int = 60, seed: int = 0) -> Books:
    """Sentences of one to seven random words."""
    random = np.random.RandomState(seed)
    sentences = [random.choice(WORDS, random.randint(1, 8)).tolist() for _ in range(count)]
    encoded = encode_sentences(sentences, WORDS)
    return Books(
        encoded.words, encoded.starts, WORDS, Source("stand-in", "tiny", "tiny corpus", f"{seed}", "a few words")
    )


def sets(sick: bool = True) -> Downstream:
    """SICK, where the score tells how many words two sentences share, and one set whose label is the first word."""
    random = np.random.RandomState(1)

    def pairs(count: int) -> Pairs:
        first = [" ".join(random.choice(WORDS, 4)) for _ in range(count)]
        second = [" ".join(random.choice(WORDS, 4)) for _ in range(count)]
        shared = [len(set(a.split()) & set(b.split())) for a, b in zip(first, second, strict=True)]
        return Pairs(first, second, 1.0 + np.array(shared, dtype=np.float64))

    def source(name: str) -> Source:
        return Source("original", name.lower(), name, f"of {name}", "made up")

    found = Sick(pairs(60), pairs(20), pairs(20), source("SICK")) if sick else None
    rest = [" ".join(random.choice(WORDS, 5)) for _ in range(60)]
    halves = [f"cat {s}" for s in rest[:30]] + [f"dog {s}" for s in rest[30:]]
    name = "MR" if sick else "vader_movies"
    missing = {} if sick else {"SICK": "place it", "MR": "place it"}
    return Downstream(
        found,
        {name: labelled(name, name, halves, 30, "original", "made up")},
        missing,
        source("all" if sick else "few"),
    )


def config(norm: str = "ln", **changes: Any) -> Any:
    """A small configuration; ``changes`` may name keys of task.* or train.*."""
    task: dict[str, Any] = dict(
        name="skip_thoughts", corpus=None, text="auto", vocabulary=12, maxlen=7, held_out=0, word_dim=4, units=6,
        conditioned=False, bias_mode="official", eval="fast", final="fast", word2vec=None, lower=False,
    )  # fmt: skip
    train: dict[str, Any] = dict(
        batch_size=8, eval_batch_size=5, lr=1e-2, beta1=0.9, beta2=0.999, adam_eps=1e-8, adam="authors", clip=5.0,
        clip_form="global",
    )  # fmt: skip
    for key, value in changes.items():
        (task if key in task else train)[key] = value
    return SimpleNamespace(
        task=SkipConfig(**task),
        train=SimpleNamespace(**train),
        norm=SimpleNamespace(name=norm, norm=lambda: Norm(norm)),
        kernel="auto",
        profile="smoke",
        seed=0,
    )
