"""Skip-thoughts (section 6.3, Table 3 and Figure 3): none, WN or LN in the encoder and in both decoders.

Training minimises what the words of both neighbours of a sentence cost. Every ``train.eval_every`` updates the sentence
vectors are judged by what simple classifiers make of them (``experiments.evaluations``), on those sets that are there:
split ``valid``, Figure 3. At the end they are judged once more, by the paper's protocol: split ``test``, Table 3.
Nothing is selected: the paper has no validation data, and its numbers are those of the last update.

Shapes: T time steps, B batch, H units.
"""

from __future__ import annotations

import functools
import hashlib
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from omegaconf import MISSING
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from data.downstream import Downstream, load_downstream
from data.fetch import DataError, Source
from data.skip_thoughts import FIRST_WORD, TEXTS, Batches, Books, Padded, Triples, load_books
from data.word_vectors import read_word_vectors
from experiments.evaluations import METRICS, PROTOCOLS, EvaluationError, cost, metrics_of, run
from experiments.runs import RunError
from experiments.schema import ConfigError
from experiments.sentence_encoder import SentenceEncoder, lexicon, needed, tokens
from experiments.tasks.base import Loss, Metric, Value
from models.skip_thoughts import SkipSizes, SkipThoughts, Words
from models.variant import Variant

LOOKED_AT = 512  # batches, for a typical one
SEARCHED, NEAREST = 20_000, 8  # sentences of the corpus that demo looks at and shows
Batch = tuple[Words, Words, Words]


@dataclass
class SkipConfig:
    """``task.*``."""

    name: str = MISSING
    corpus: str | None = MISSING  # null: the books, or plays in their place; plays; or the path of a text file
    text: str = MISSING  # what such a file holds: auto | lines | raw
    vocabulary: int = MISSING  # word ids, EOS and the unknown word included
    maxlen: int = MISSING  # a triple with a sentence of so many words is dropped
    held_out: int = MISSING  # the last n sentences are not trained on but tell a loss; 0: none
    word_dim: int = MISSING
    units: int = MISSING
    conditioned: bool = MISSING  # decoders read the sentence's vector at each step
    bias_mode: str = MISSING  # official | paper | minimal
    eval: str = MISSING  # paper | fast: the protocol of the evaluations during training
    final: str = MISSING  # paper | fast: that of the one at the end
    word2vec: str | None = MISSING  # file of word vectors that the vocabulary is expanded with
    lower: bool = MISSING  # encoding: look an unknown word up in small letters


class Epoch(Sequence[Tensor]):
    """Batches as tensors, each made when it is asked for."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    @overload
    def __getitem__(self, which: int) -> Tensor: ...
    @overload
    def __getitem__(self, which: slice) -> Epoch: ...
    def __getitem__(self, which: int | slice) -> Tensor | Epoch:
        found = self.batches[which]
        return Epoch(found) if isinstance(found, Batches) else torch.from_numpy(found)


class SkipData:
    """The corpus, and what sentence vectors are judged by.

    Attributes:
        books: the whole corpus.
        train, held_out: its triples.
        sets: what sentence vectors are judged by.
        others: word vectors for words of these sets that the corpus does not have, if a file is given.
        tokens: a sentence as words, remembered.
    """

    def __init__(self, cfg: Any, device: torch.device) -> None:
        task = cfg.task
        self.books = load_books(task.corpus, task.vocabulary, task.text)
        self.device, self.batch_size, kept = device, cfg.train.batch_size, len(self.books) - task.held_out
        if kept < 3:
            raise ConfigError(
                f"task.held_out={task.held_out} leaves {max(kept, 0)} of {len(self.books):,} sentences to train on"
            )
        self.train = Triples(part(self.books, 0, kept), task.maxlen)
        self.held_out = Triples(part(self.books, kept, len(self.books)), task.maxlen) if task.held_out else None
        self.n_train = len(self.train)
        self.sets = load_downstream()
        self.tokens = functools.cache(lambda sentence: [sys.intern(word) for word in tokens(sentence)])
        self.others = None
        if task.word2vec is not None:
            words = (word for sentence in judged(self.sets) for word in self.tokens(sentence))
            wanted = needed(words, self.books.vocabulary)
            self.others = read_word_vectors(Path(task.word2vec).expanduser(), wanted)
        self.source: Source = joint_source(self.books.source, self.sets)

    def epoch(self, epoch: int, seed: int) -> Sequence[Tensor]:
        """Numbers of the sentences in the middle; each batch has sentences of one length."""
        return Epoch(self.train.batches(epoch, seed, self.batch_size))

    def batch(self, indices_B: Tensor) -> Batch:
        """The previous sentences, these, and the next."""
        return self.words(self.train, indices_B.numpy())

    def words(self, triples: Triples, numbers_B: np.ndarray) -> Batch:
        """The three sentences of each triple, on the device."""
        previous, current, next_ = (self._on_device(padded) for padded in triples.padded(numbers_B))
        return previous, current, next_

    def _on_device(self, padded: Padded) -> Words:
        ids_TB, lengths_B = (torch.from_numpy(array).to(self.device) for array in padded)
        return Words(ids_TB, lengths_B)

    def typical(self, seed: int) -> Tensor:
        """Of the first batches of an epoch, the one whose words are closest to their mean in number."""
        first = self.epoch(0, seed)[:LOOKED_AT]
        words = np.array([sum(int(padded.lengths_B.sum()) for padded in self.train.padded(i.numpy())) for i in first])
        return first[int(np.abs(words - words.mean()).argmin())]


def part(books: Books, first: int, last: int) -> Books:
    """Sentences ``first`` … ``last`` - 1."""
    return replace(books, starts=books.starts[first : last + 1])


def judged(sets: Downstream) -> list[str]:
    """All sentences that are encoded in an evaluation."""
    pairs = sets.sick.sentences() if sets.sick else []
    return pairs + [sentence for labelled in sets.labelled.values() for sentence in labelled.sentences]


def joint_source(corpus: Source, sets: Downstream) -> Source:
    """The corpus, and what its runs are judged by: other sets make another run.

    With all five sets the label is the corpus' own; else it names those there are.
    """
    there = ["sick"] * (sets.sick is not None) + [name.lower().split("_")[0] for name in sets.labelled]
    label = "-".join([corpus.label, *dict.fromkeys(there)]) if sets.missing else corpus.label
    digest = hashlib.sha256(f"{corpus.fingerprint} {sets.source.fingerprint}".encode()).hexdigest()
    names = [*["SICK"] * (sets.sick is not None), *sets.labelled]
    detail = f"{corpus.detail.rstrip('.')}; evaluated on {', '.join(names)}"
    if sets.missing:
        detail += f"; not here: {', '.join(sets.missing)}"
    return replace(corpus, label=label, fingerprint=digest, detail=detail)


class SkipThoughtsTask:
    """The task; see ``experiments.tasks.base.Task`` and ``FinalTest``."""

    name = "skip_thoughts"
    norms: tuple[str, ...] = ("none", "wn", "ln")
    metrics: Mapping[str, Metric] = {
        "loss": Metric("nats/word", "lower", "what a word of a neighbour costs, its EOS counted as a word; valid: in"
                       " sentences at the corpus' end that are not trained on (ours, task.held_out)"),
        **{name: Metric(*about) for name, about in METRICS.items()},
    }  # fmt: skip
    select = ("train", "loss")  # shown in status; the last weights are tested, as in the paper
    selects = False
    Config: type = SkipConfig

    def check(self, cfg: Any) -> None:
        task = cfg.task
        for key, least in (("vocabulary", 3), ("maxlen", 2), ("held_out", 0), ("word_dim", 1), ("units", 1)):
            if getattr(task, key) < least:
                raise ConfigError(f"task.{key}={getattr(task, key)} must be {least} or more")
        for key in ("eval", "final"):
            if getattr(task, key) not in PROTOCOLS:
                raise ConfigError(f"task.{key}={getattr(task, key)} is unknown: use {' or '.join(PROTOCOLS)}")
        if task.text not in TEXTS:
            raise ConfigError(f"task.text={task.text} is unknown: use {', '.join(TEXTS)}")
        try:
            Variant(cfg.norm.norm(), bias_mode=task.bias_mode).resolved("gru")
        except ValueError as error:
            raise ConfigError(f"task.{error}") from None
        if task.word2vec is not None and not Path(task.word2vec).expanduser().is_file():
            raise ConfigError(f"task.word2vec={task.word2vec}: there is no such file")

    def data(self, cfg: Any, device: torch.device) -> SkipData:
        return SkipData(cfg, device)

    def model(self, cfg: Any, generator: torch.Generator) -> nn.Module:
        task = cfg.task
        words = load_books(task.corpus, task.vocabulary, task.text).vocabulary
        sizes = SkipSizes(
            vocabulary=FIRST_WORD + len(words), words=task.word_dim, units=task.units, conditioned=task.conditioned,
            bias_mode=task.bias_mode, kernel=cfg.kernel,
        )  # fmt: skip
        return SkipThoughts(sizes, cfg.norm.norm(), generator, words)

    def loss(self, model: nn.Module, batch: Batch, cfg: Any, generator: torch.Generator) -> Loss:
        total, words = model(*batch)
        return Loss(total, {"loss": (total.detach(), words)})

    def evaluate(self, model: nn.Module, data: SkipData, cfg: Any, seed: int) -> list[Value]:
        """The loss of held-out sentences, if there are any, and the scores on the sets that are there."""
        return held_out_loss(model, data, cfg) + scores("valid", model, data, cfg, seed)

    def test(self, model: nn.Module, data: SkipData, cfg: Any, seed: int) -> list[Value]:
        """The scores again, by the protocol for the end of a run."""
        return scores("test", model, data, cfg, seed)

    def evaluation_seconds(self, model: nn.Module, data: SkipData, cfg: Any) -> float:
        """About how many seconds ``evaluate`` takes, from samples: the paper's protocol may take hours."""
        start = time.perf_counter()
        held_out_loss(model, data, cfg)
        own = time.perf_counter() - start
        return own + sum(cost.seconds(sets, encode, cfg.task.eval) for sets, encode in to_judge(model, data, cfg))

    def plots(self, model: nn.Module, data: SkipData, cfg: Any, folder: Path, seed: int) -> list[Path]:
        """Nothing: sentences are no pictures. ``make demo`` shows what lies close to one."""
        return []

    def demo(
        self, model: nn.Module, data: SkipData, cfg: Any, query: str, folder: Path
    ) -> tuple[list[str], list[Path]]:
        """The sentences of the corpus whose vectors are closest to that of a query, by the cosine.

        Returns:
            lines to print, and no pictures. Raises ``DataError`` if no word of it is known.
        """
        assert isinstance(model, SkipThoughts)
        words = lexicon(model)
        asked = words.numbers(tokens(query), lower=True)
        if all(number < FIRST_WORD for number in asked):
            some = ", ".join(data.books.vocabulary[:12])
            raise DataError(
                f"query {query!r}: no word of it is among the {len(data.books.vocabulary):,} known ones ({some} …)"
            )
        size = cfg.train.eval_batch_size
        numbers = np.unique(np.linspace(0, len(data.books) - 1, min(SEARCHED, len(data.books))).astype(np.int64))
        texts = list(dict.fromkeys(data.books.sentence(int(number)) for number in numbers))
        near_N = (
            SentenceEncoder(model, words, split=str.split, batch_size=size)(texts)
            @ (SentenceEncoder(model, words, lower=True)([query])[0])
        )
        best = np.argsort(-near_N, kind="stable")[:NEAREST]
        lines = [f"closest of {len(texts):,} sentences of {data.source.name}, with the cosine of the two vectors:"]
        return [*lines, *(f"  {near_N[n]:.3f}  {texts[n]}" for n in best)], []


def held_out_loss(model: nn.Module, data: SkipData, cfg: Any) -> list[Value]:
    """The loss of a word in held-out sentences, if there are any."""
    if data.held_out is None:
        return []
    numbers, total, words = np.flatnonzero(data.held_out.usable_N), 0.0, 0
    for start in range(0, len(numbers), cfg.train.eval_batch_size):
        batch = data.words(data.held_out, numbers[start : start + cfg.train.eval_batch_size])
        more, count = model(*batch)
        total, words = total + more.item(), words + count
    return [Value("valid", "loss", total / words)]


def scores(split: str, model: nn.Module, data: SkipData, cfg: Any, seed: int) -> list[Value]:
    """What the classifiers make of the vectors: ``valid`` during training, ``test`` at its end.

    Raises:
        RunError: the vectors cannot be judged; says on which set and why.
    """
    protocol = cfg.task.eval if split == "valid" else cfg.task.final
    try:
        # The libraries of NumPy have threads of their own; here they take no more than the job was given.
        with threadpool_limits(torch.get_num_threads()):
            found = [s for sets, encode in to_judge(model, data, cfg) for s in run(sets, encode, protocol, seed)]
    except EvaluationError as error:
        if not all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()):
            return [
                Value(split, name, math.nan) for name in metrics_of(data.sets)
            ]  # diverged: the loop takes it from here
        raise RunError(f"the sentence vectors cannot be evaluated: {error}") from None
    return [Value(split, score.metric, score.value) for score in found]


def to_judge(model: nn.Module, data: SkipData, cfg: Any) -> list[tuple[Downstream, SentenceEncoder]]:
    """SICK and the other sets, each with the encoder for it: as in the authors' code, EOS is read for SICK alone."""
    assert isinstance(model, SkipThoughts)
    words, size = lexicon(model, data.others), cfg.train.eval_batch_size

    def encoder(eos: bool) -> SentenceEncoder:
        return SentenceEncoder(model, words, eos=eos, lower=cfg.task.lower, batch_size=size, split=data.tokens)

    return [(replace(data.sets, labelled={}), encoder(True)), (replace(data.sets, sick=None), encoder(False))]
