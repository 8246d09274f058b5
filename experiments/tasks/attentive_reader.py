"""The attentive reader on cloze questions about CNN articles (section 6.2, Figure 2): none, BN, or LN in its LSTMs.

Training minimises the mean of -log(p + 1e-8), p the probability of the answer among all words. In each minibatch all
entity markers are permuted, so that nothing can be learned about one of them. As in the authors' code, batches are
taken in the order of the files, the last part of an epoch that does not fill one is dropped, in evaluation too, and the
last word of passages and queries is not read; each is a switch.

Shapes: T words of the longest passage (or query) of a batch, B batch, N questions of a split, E entities, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from omegaconf import MISSING
from torch import Tensor, nn

from data.attentive_reader import FIRST_WORD, PAD, Questions, load_attentive_reader
from data.fetch import Source
from experiments.reading import describe, parse_query, read
from experiments.reading_picture import draw_readings
from experiments.rng import generator
from experiments.schema import ConfigError
from experiments.tasks.base import Loss, Metric, Value
from models.attentive_reader import DROPOUTS, PADDINGS, AttentiveReader, ReaderSizes, answer_loss
from models.recurrent_norm import EVALUATIONS
from models.variant import Variant

# Why a norm that there is cannot be chosen here.
REFUSED = {"bn": "say where: bn_lstm, in the LSTMs alone, or bn_everywhere"}
LAST_WORDS = ("dropped", "kept")
ORDERS = ("file", "replacement")
PICTURED = 3  # validation questions


@dataclass
class AttentiveReaderConfig:
    """``task.*``."""

    name: str = MISSING
    dataset: str = MISSING  # cnn | dailymail | top4 | stories | a folder of questions
    sentences: int | None = MISSING  # of a passage, at most; null: all of it
    word_dim: int = MISSING
    units: int = MISSING  # of each LSTM and of the layers above
    legacy_init: bool = MISSING  # the authors' initial matrices, which are all alike; false: independent ones
    dropout: float = MISSING
    dropout_form: str = MISSING  # plain | inverted
    mean_term: bool = MISSING  # whether the mean of the passage's states takes part in the answer
    last_word: str = MISSING  # dropped | kept: of passages and queries
    order: str = MISSING  # file | replacement: of the training questions
    permute_eval: bool = MISSING  # permute the entities in evaluation too
    bias_mode: str = MISSING  # official | paper | minimal; BN has minimal
    bn_padding: str = MISSING  # included | masked
    bn_evaluation: str = MISSING  # batch | population
    bn_steps: int = MISSING  # time steps with population statistics of their own
    train_examples: int | None = MISSING  # the first n; null: all
    eval_examples: int | None = MISSING  # the first n of validation and of test; null: all


class Batch(NamedTuple):
    """Questions side by side, padded with ``PAD``.

    Attributes:
        entities_E: ids of all entity markers.
    """

    passage_TB: Tensor
    lengths_B: Tensor
    query_TB: Tensor
    query_lengths_B: Tensor
    answers_B: Tensor
    entities_E: Tensor

    def permuted(self, words: int, random: torch.Generator) -> Batch:
        """The same with all entity markers exchanged at random, alike in passages, queries and answers."""
        map_V = torch.arange(words, device=self.entities_E.device)
        order_E = torch.randperm(len(self.entities_E), generator=random, device=random.device)
        map_V[self.entities_E] = self.entities_E[order_E]
        return self._replace(
            passage_TB=map_V[self.passage_TB], query_TB=map_V[self.query_TB], answers_B=map_V[self.answers_B]
        )


class AttentiveReaderData:
    """Questions in memory as word ids; a batch is padded when it is asked for.

    Attributes:
        all: the data set as loaded.
        evaluated: name of a split -> how many of its questions are evaluated, the first ones.
    """

    def __init__(self, cfg: Any, device: torch.device) -> None:
        task = cfg.task
        self.all = load_attentive_reader(task.dataset, task.sentences, skip_bad=cfg.data.skip_bad)
        self.device, self.order, self.drop_last = device, task.order, task.last_word == "dropped"
        self.train = self.all.splits["train"]
        self.n_train: int = task.train_examples or len(self.train)
        self.batch_size: int = cfg.train.batch_size
        if self.n_train > len(self.train):
            raise ConfigError(f"task.train_examples={self.n_train} is more than the {len(self.train):,} there are")
        if self.batch_size > self.n_train:
            raise ConfigError(
                f"train.batch_size={self.batch_size} is more than the {self.n_train:,} training questions"
            )
        self.evaluated: dict[str, int] = {}
        for split in ("valid", "test"):
            if (there := len(self.all.splits.get(split, ()))) > 0:
                wanted = min(there, task.eval_examples or there)
                self.evaluated[split] = wanted // self.batch_size * self.batch_size or wanted
        sizes = ", ".join(f"{size:,} of {split}" for split, size in self.evaluated.items())
        self.source: Source = replace(self.all.source, detail=f"{self.all.source.detail}; evaluated: {sizes}")
        self.entities_E = torch.from_numpy(np.ascontiguousarray(self.all.entities)).to(device)
        self.words = FIRST_WORD + len(self.all.vocabulary)

    def epoch(self, epoch: int, seed: int) -> Sequence[Tensor]:
        """Questions in the order of the file, the same in every epoch; or drawn with replacement."""
        used = self.n_train // self.batch_size * self.batch_size
        if self.order == "replacement":
            return torch.randint(self.n_train, (used,), generator=generator(seed, "order", epoch)).split(
                self.batch_size
            )
        return torch.arange(used).split(self.batch_size)

    def batch(self, indices_B: Tensor) -> Batch:
        """Training questions."""
        return self.collate(self.train, indices_B.numpy())

    def collate(self, questions: Questions, numbers_B: np.ndarray) -> Batch:
        """Any questions."""
        passage_TB, lengths_B, query_TB, query_lengths_B, answers_B = questions.padded(numbers_B)
        passage, query = self.cut(passage_TB, lengths_B), self.cut(query_TB, query_lengths_B)
        return Batch(*passage, *query, torch.from_numpy(answers_B).to(self.device), self.entities_E)

    def cut(self, words_TB: np.ndarray, lengths_B: np.ndarray) -> tuple[Tensor, Tensor]:
        """Words and lengths as the model reads them.

        As in the authors' code, the last word of each text is dropped (not of a text of one word, which would be
        nothing then), and the longest is followed by one step of padding.
        """
        if self.drop_last:
            lengths_B = np.maximum(lengths_B - 1, 1)
            steps = int(lengths_B.max()) + 1
            words_TB = np.pad(words_TB, ((0, max(0, steps - len(words_TB))), (0, 0)), constant_values=PAD)[:steps]
            words_TB = np.where(np.arange(steps)[:, None] < lengths_B, words_TB, PAD)
        return torch.from_numpy(words_TB).to(self.device), torch.from_numpy(lengths_B).to(self.device)


class AttentiveReaderTask:
    """The task; see ``experiments.tasks.base.Task``, ``FinalTest`` and ``Demo``."""

    name = "attentive_reader"
    norms: tuple[str, ...] = ("none", "bn_lstm", "bn_everywhere", "ln", "ln_gain01")
    metrics: Mapping[str, Metric] = {
        "error": Metric("percent", "lower", "share of the questions whose likeliest word is not the answer"),
        "entity_error": Metric("percent", "lower", "share whose likeliest entity marker is not the answer"),
        "loss": Metric("nats/question", "lower", "mean of -log(p + 1e-8), p the answer's probability among all words"),
        "error_floor": Metric(
            "percent", "lower", "constant: share of the questions whose answer is not in what is read of the passage"
        ),
        "batch_error": Metric(
            "percent", "lower", "error of the minibatches since the last evaluation, training mode, entities permuted"
        ),
        "batch_loss": Metric("nats/question", "lower", "their loss"),
    }  # fmt: skip
    select = ("valid", "error")
    Config: type = AttentiveReaderConfig

    def check(self, cfg: Any) -> None:
        task, batch_norm = cfg.task, cfg.norm.name == "bn"
        for key in ("word_dim", "units", "bn_steps"):
            if getattr(task, key) < 1:
                raise ConfigError(f"task.{key}={getattr(task, key)} must be 1 or more")
        for key in ("sentences", "train_examples", "eval_examples"):
            if (value := getattr(task, key)) is not None and value < 1:
                raise ConfigError(f"task.{key}={value} must be 1 or more, or null for all")
        if not 0 <= task.dropout < 1:
            raise ConfigError(f"task.dropout={task.dropout} must lie in [0, 1)")
        switches = {
            "dropout_form": DROPOUTS, "last_word": LAST_WORDS, "order": ORDERS, "bn_padding": PADDINGS,
            "bn_evaluation": EVALUATIONS,
        }  # fmt: skip
        for key, allowed in switches.items():
            if getattr(task, key) not in allowed:
                raise ConfigError(f"task.{key}={getattr(task, key)} is unknown: use {' or '.join(allowed)}")
        if not batch_norm:
            try:
                Variant(cfg.norm.norm(), bias_mode=task.bias_mode).resolved("lstm")
            except ValueError as error:
                raise ConfigError(f"task.{error}") from None
        elif task.bias_mode not in ("official", "paper", "minimal"):
            raise ConfigError(f"task.bias_mode={task.bias_mode} is unknown: use official, paper or minimal")
        if batch_norm and cfg.train.batch_size < 2:
            raise ConfigError(f"train.batch_size=1 is too small for norm={cfg.norm.shown}: use 2 or more")
        if batch_norm and cfg.kernel == "fused":
            raise ConfigError(f"kernel=fused knows no norm={cfg.norm.shown}: use auto or reference")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", task.dataset):  # becomes a part of paths
            raise ConfigError(f"task.dataset={task.dataset} must be the name of a data set, such as cnn or stories")

    def data(self, cfg: Any, device: torch.device) -> AttentiveReaderData:
        return AttentiveReaderData(cfg, device)

    def model(self, cfg: Any, generator: torch.Generator) -> nn.Module:
        task, data = cfg.task, load_attentive_reader(cfg.task.dataset, cfg.task.sentences, skip_bad=cfg.data.skip_bad)
        sizes = ReaderSizes(
            FIRST_WORD + len(data.vocabulary), task.word_dim, task.units, dropout=task.dropout,
            dropout_form=task.dropout_form, mean_term=task.mean_term, legacy_init=task.legacy_init,
            everywhere=cfg.norm.arm == "bn_everywhere", bias_mode=task.bias_mode, padding=task.bn_padding,
            evaluation=task.bn_evaluation, steps=task.bn_steps, kernel=cfg.kernel,
        )  # fmt: skip
        return AttentiveReader(sizes, cfg.norm.norm(), generator)

    def loss(self, model: nn.Module, batch: Any, cfg: Any, generator: torch.Generator) -> Loss:
        assert isinstance(model, AttentiveReader)
        passage_TB, lengths_B, query_TB, query_lengths_B, answers_B, _ = batch.permuted(len(model.embedding), generator)
        logits_BV = model(passage_TB, lengths_B, query_TB, query_lengths_B, generator).logits_BV
        loss_B = answer_loss(logits_BV, answers_B)
        wrong = 100 * (logits_BV.detach().argmax(1) != answers_B).sum()
        return Loss(
            loss_B.mean(), {"batch_loss": (loss_B.detach().sum(), len(loss_B)), "batch_error": (wrong, len(loss_B))}
        )

    def evaluate(self, model: nn.Module, data: AttentiveReaderData, cfg: Any, seed: int) -> list[Value]:
        return self._values("valid", model, data, cfg, seed)

    def test(self, model: nn.Module, data: AttentiveReaderData, cfg: Any, seed: int) -> list[Value]:
        """The same on test questions, where there are some: ``top4`` has none."""
        return self._values("test", model, data, cfg, seed) if "test" in data.evaluated else []

    def _values(self, split: str, model: nn.Module, data: AttentiveReaderData, cfg: Any, seed: int) -> list[Value]:
        questions, count = data.all.splits[split], data.evaluated[split]
        sums: dict[str, float] = dict.fromkeys(("error", "entity_error", "loss", "error_floor"), 0.0)
        for number, start in enumerate(range(0, count, size := evaluation_batch(cfg))):
            batch = data.collate(questions, np.arange(start, min(start + size, count)))
            inside_TB = torch.arange(len(batch.passage_TB), device=data.device)[:, None] < batch.lengths_B
            there_B = ((batch.passage_TB == batch.answers_B) & inside_TB).any(0)
            if cfg.task.permute_eval:
                batch = batch.permuted(data.words, generator(seed, "entities", number, device=data.device))
            logits_BV = model(*batch[:4]).logits_BV
            of_entities_B = data.entities_E[logits_BV[:, data.entities_E].argmax(1)]
            sums["error"] += (logits_BV.argmax(1) != batch.answers_B).sum().item()
            sums["entity_error"] += (of_entities_B != batch.answers_B).sum().item()
            sums["loss"] += answer_loss(logits_BV, batch.answers_B).double().sum().item()
            sums["error_floor"] += (~there_B).sum().item()
        return [
            Value(split, name, total / count * (100 if self.metrics[name].unit == "percent" else 1))
            for name, total in sums.items()
        ]

    def plots(self, model: nn.Module, data: AttentiveReaderData, cfg: Any, folder: Path, seed: int) -> list[Path]:
        """Where the model looks for the answers of the first validation questions."""
        readings = [
            read(model, data, number, evaluation_batch(cfg)) for number in range(min(PICTURED, data.evaluated["valid"]))
        ]
        return [draw_readings(readings, f"Where the reader looks ({_about(cfg, data)})", folder / "attention.png")]

    def demo(
        self, model: nn.Module, data: AttentiveReaderData, cfg: Any, query: str, folder: Path
    ) -> tuple[list[str], list[Path]]:
        """Reads a validation question, ``12``, or puts one of one's own about its passage, ``12: @placeholder left``.

        Without a number the passage is that of question 0. Returns lines to print, and pictures written. Raises
        ``DataError`` for a query that cannot be put.
        """
        number, words = parse_query(query, len(data.all.splits["valid"]))
        reading = read(model, data, number, evaluation_batch(cfg), words)
        path = draw_readings(
            [reading], f"Where the reader looks ({_about(cfg, data)})", folder / f"demo_{self.name}.png"
        )
        return describe(reading), [path]


def evaluation_batch(cfg: Any) -> int:
    """Questions at a time in evaluation: as many as in training where the others of a batch matter."""
    meets = (cfg.norm.name == "bn" and cfg.task.bn_evaluation == "batch") or cfg.task.permute_eval
    return int(cfg.train.batch_size if meets else cfg.train.eval_batch_size)


def _about(cfg: Any, data: AttentiveReaderData) -> str:
    return f"attentive_reader, {cfg.norm.shown}, profile {cfg.profile}, seed {cfg.seed}, {data.source.label} data"
