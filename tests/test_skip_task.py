"""The skip-thoughts task: its checks, batches, losses and scores; what lies close to a query; golden losses."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skipdata as sd
import torch

import experiments.tasks.skip_thoughts as module
from data.fetch import DataError
from experiments.cell import describe
from experiments.compose import compose_cells
from experiments.evaluations import classification, cost, relatedness
from experiments.loop import Trainer, initial_model, make_optimizer, training_step
from experiments.rng import generator
from experiments.runs import Run, RunError, read_metrics
from experiments.schema import ConfigError, dump
from experiments.sentence_encoder import SentenceEncoder, lexicon
from experiments.tasks.base import Demo, FinalTest
from experiments.tasks.skip_thoughts import SkipThoughtsTask, joint_source, judged
from experiments.tracker import Tracker

TASK = SkipThoughtsTask()
DEVICE = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load_books", lambda corpus, vocabulary, text: sd.books())
    monkeypatch.setattr(module, "load_downstream", sd.sets)


BAD = [
    ({"vocabulary": 2}, "task.vocabulary=2 must be 3 or more"),
    ({"maxlen": 1}, "task.maxlen=1 must be 2 or more"),
    ({"held_out": -1}, "task.held_out=-1 must be 0 or more"),
    ({"word_dim": 0}, "task.word_dim=0 must be 1 or more"),
    ({"units": 0}, "task.units=0 must be 1 or more"),
    ({"bias_mode": "theano"}, "task.bias_mode=theano does not fit norm=ln"),
    ({"text": "html"}, "task.text=html is unknown: use auto, lines, raw"),
    ({"eval": "quick"}, "task.eval=quick is unknown: use paper or fast"),
    ({"final": "slow"}, "task.final=slow is unknown: use paper or fast"),
    ({"word2vec": "/nowhere/vectors.bin"}, "task.word2vec=/nowhere/vectors.bin: there is no such file"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=lambda v: str(v)[:40])
def test_what_cannot_work_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        TASK.check(sd.config(**changes))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_published_setting() -> None:
    for norm in ("none", "ln"):
        (cfg,) = compose_cells([["task=skip_thoughts", "profile=paper", f"norm={norm}"]])
        task, train = cfg.task, cfg.train
        assert (task.vocabulary, task.word_dim, task.units, task.maxlen) == (20_000, 620, 2400, 30)
        assert (task.conditioned, task.bias_mode, task.held_out, task.lower) == (False, "official", 0, False)
        assert (task.eval, task.final, task.corpus, task.word2vec) == ("paper", "paper", None, None)
        assert (train.batch_size, train.budget, train.budget_unit, train.eval_every) == (64, 1e6, "steps", 50_000)
        assert (train.lr, train.beta1, train.beta2, train.adam_eps) == (2e-4, 0.9, 0.999, 1e-8)
        assert (train.adam, train.clip, train.clip_form) == ("authors", 5, "global")


def test_good_values_pass() -> None:
    for norm in TASK.norms:
        TASK.check(sd.config(norm))
        TASK.check(sd.config(norm, bias_mode="minimal", conditioned=True, eval="paper", held_out=5))
    assert isinstance(TASK, Demo) and isinstance(TASK, FinalTest) and not TASK.selects, "the last weights are tested"


def ready(norm: str = "ln", **changes: Any) -> tuple[Any, Any, Any]:
    cfg = sd.config(norm, **changes)
    return cfg, TASK.data(cfg, DEVICE), TASK.model(cfg, generator(0, "model")).eval()


def test_a_batch_is_three_neighbours_with_an_eos_each() -> None:
    _, data, _ = ready()
    books = sd.books()
    for indices in data.epoch(0, 0):
        batch = data.batch(indices)
        assert len(set(batch[1].lengths_B.tolist())) == 1, "one length"
        for words, step in zip(batch, (-1, 0, 1), strict=True):
            for b, number in enumerate(indices.tolist()):
                start, end = books.starts[number + step : number + step + 2]
                assert words.lengths_B[b] == end - start + 1 <= 7
                ids = words.ids_TB[:, b].tolist()
                assert ids[: end - start] == books.words[start:end].tolist() and not any(ids[end - start :])


def test_an_epoch_is_a_function_of_seed_and_number() -> None:
    _, data, _ = ready()
    orders = {(s, e): torch.cat(list(data.epoch(e, s))).tolist() for s in (0, 1) for e in (0, 1)}
    assert len({tuple(order) for order in orders.values()}) == 4
    assert {frozenset(order) for order in orders.values()} == {frozenset(orders[0, 0])}
    whole = data.epoch(1, 1)
    assert torch.cat(list(whole)).tolist() == orders[1, 1] and data.n_train == len(orders[1, 1])
    assert [i.tolist() for i in whole[2:]] == [i.tolist() for i in whole][2:], "resumed in the middle"


def test_a_typical_batch_has_about_the_mean_number_of_words() -> None:
    _, data, _ = ready()

    def words(indices: Any) -> int:
        return sum(int(part.lengths_B.sum()) for part in data.batch(indices))

    counts = [words(indices) for indices in data.epoch(0, 0)]
    assert abs(words(data.typical(0)) - np.mean(counts)) == min(abs(n - np.mean(counts)) for n in counts)


def test_held_out_sentences_are_not_trained_on() -> None:
    cfg, data, model = ready(held_out=20)
    trained = set(torch.cat(list(data.epoch(0, 0))).tolist())
    usable = np.flatnonzero(TASK.data(sd.config(), DEVICE).train.usable_N)
    assert trained == {n for n in usable.tolist() if n + 1 < 40} and max(usable) > 40
    total = words = 0
    for number in np.flatnonzero(data.held_out.usable_N):
        more, count = model(*data.words(data.held_out, np.array([number])))
        total, words = total + more.item(), words + count
    assert words > 20
    for size in (1, 5, 100):
        (value,) = [v for v in module.held_out_loss(model, data, sd.config(eval_batch_size=size))]
        assert (value.split, value.metric) == ("valid", "loss") and value.value == pytest.approx(total / words)
    first = data.held_out.padded(np.array([1]))[0]
    assert first.words_TB[:-1, 0].tolist() == sd.books().words[slice(*sd.books().starts[40:42])].tolist()
    with pytest.raises(ConfigError, match="task.held_out=58 leaves 2 of 60 sentences to train on"):
        TASK.data(sd.config(held_out=58), DEVICE)


@torch.no_grad()
def test_scores_on_the_sets_that_are_there() -> None:
    cfg, data, model = ready(held_out=20)
    found = {v.metric: v for v in TASK.evaluate(model, data, cfg, 3)}
    assert set(found) == {"loss", "sick_r", "sick_rho", "sick_mse", "mr"} and set(found) < set(TASK.metrics)
    assert {v.split for v in found.values()} == {"valid"}
    plain, eos = (SentenceEncoder(model, lexicon(model), eos=eos) for eos in (False, True))
    assert found["mr"].value == classification.evaluate(data.sets.labelled["MR"], plain, "fast")
    sick = relatedness.evaluate(data.sets.sick, eos, "fast", 3)
    assert found["sick_r"].value == pytest.approx(sick.sick_r, rel=1e-4)
    assert found["sick_mse"].value == pytest.approx(sick.sick_mse, rel=1e-4)
    tested = TASK.test(model, data, cfg, 3)
    assert {v.split for v in tested} == {"test"} and {v.metric for v in tested} == set(found) - {"loss"}
    few = {v.metric: v for v in module.scores("valid", model, replace_sets(data, sd.sets(sick=False)), cfg, 3)}
    assert set(few) == {"vader_movies"}


def replace_sets(data: Any, sets: Any) -> Any:
    data.sets = sets
    return data


@torch.no_grad()
def test_eos_is_read_for_sick_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg, data, model = ready(final="paper")
    read, protocols = [], []

    def run(sets: Any, encode: Any, protocol: str, seed: int) -> list[Any]:
        read.append((sets.sick, sets.labelled, encode))
        protocols.append(protocol)
        return []

    monkeypatch.setattr(module, "run", run)
    module.scores("test", model, data, cfg, 0)
    module.scores("valid", model, data, cfg, 0)
    assert protocols == ["paper", "paper", "fast", "fast"]
    (sick, none, with_eos), (nothing, labelled, without) = read[:2]
    assert sick is not None and none == {} and nothing is None and list(labelled) == ["MR"]
    assert with_eos.eos and not without.eos and with_eos.unit and without.unit
    assert not with_eos.lower and not without.lower
    cfg.task.lower = True
    module.scores("valid", model, data, cfg, 0)
    assert all(encode.lower for _, _, encode in read[4:])


def test_vectors_that_cannot_be_judged_end_the_run_in_one_line() -> None:
    cfg, data, model = ready()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        with pytest.raises(RunError, match="the sentence vectors cannot be evaluated: SICK: ") as error:
            TASK.evaluate(model, data, cfg, 0)
    assert "\n" not in str(error.value)


def test_a_diverged_model_is_no_failure_but_diverged() -> None:
    cfg, data, model = ready()
    with torch.no_grad():
        model.encoder.cells[0].weight_hh.fill_(np.nan)
        found = TASK.evaluate(model, data, cfg, 0)
    assert [v.metric for v in found] == ["sick_r", "sick_rho", "sick_mse", "mr"] and all(
        np.isnan(v.value) for v in found
    )


def test_other_sets_make_another_run() -> None:
    corpus, full, few = sd.books().source, sd.sets(), sd.sets(sick=False)
    whole, part = joint_source(corpus, full), joint_source(corpus, few)
    other = joint_source(sd.books(seed=1).source, full)
    assert len({corpus.fingerprint, whole.fingerprint, part.fingerprint, other.fingerprint}) == 4
    assert whole.label == "tiny" and part.label == "tiny-vader"
    assert whole.detail.endswith("evaluated on SICK, MR")
    assert part.detail.endswith("evaluated on vader_movies; not here: SICK, MR")
    assert part.kind == corpus.kind and len(judged(full)) == 2 * 100 + 60


def test_word_vectors_give_unseen_words_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = sd.sets()
    sets.labelled["MR"].sentences[0] = "zebra Cat"
    monkeypatch.setattr(module, "load_downstream", lambda: sets)
    words = [*sd.WORDS, "zebra", "unused", "Cat"]
    random = np.random.RandomState(0)
    body = b"".join(w.encode() + b" " + struct.pack("<3f", *random.randn(3)) for w in words)
    (tmp_path / "v.bin").write_bytes(b"%d 3\n" % len(words) + body)
    cfg, data, model = ready(word2vec=str(tmp_path / "v.bin"))
    assert set(data.others.rows) == {*sd.WORDS, "zebra", "Cat"}, "only what may be asked for"
    table = module.lexicon(model, data.others)
    assert table.numbers(["cat", "zebra", "Cat", "gnu"], lower=False)[::3] == [3, 1]
    assert len(table.table_VW) == 12 + 2
    (tmp_path / "v.bin").write_bytes(
        b"%d 12\n" % len(words) + b"".join(w.encode() + b" " + struct.pack("<12f", *random.randn(12)) for w in words)
    )
    with pytest.raises(DataError, match="v.bin: 10 words are in both vocabularies, too few for a map from 12 dim"):
        TASK.data(cfg, DEVICE)  # before any training


def test_demo_finds_the_same_sentence_first() -> None:
    cfg, data, model = ready()
    books = sd.books()
    asked = max((books.sentence(n) for n in range(len(books))), key=len)
    lines, pictures = TASK.demo(model, data, cfg, asked, Path("none"))
    assert pictures == [] and lines[1] == f"  1.000  {asked}"
    scores = [float(line.split()[0]) for line in lines[1:]]
    assert scores == sorted(scores, reverse=True) and len(lines) == 1 + module.NEAREST
    with pytest.raises(DataError, match="no word of it is among the 10 known ones") as error:
        TASK.demo(model, data, cfg, "xylophone zebra", Path("none"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("norm", TASK.norms)
def test_the_loss_is_a_sum_and_training_lowers_it(norm: str) -> None:
    cfg, data, model = ready(norm)
    batch = data.batch(data.typical(0))
    loss = TASK.loss(model, batch, cfg, generator(0, "noise", 0))
    total, count = loss.sums["loss"]
    assert count == int(batch[0].lengths_B.sum() + batch[2].lengths_B.sum())
    assert total.item() == loss.mean.item() and not total.requires_grad
    assert total.item() / count == pytest.approx(np.log(12), rel=0.2), "at first every word is about as likely"
    optimizer = make_optimizer(model, cfg)
    for _ in range(60):
        training_step(TASK, model, optimizer, batch, cfg, generator(0, "noise", 0))
    assert TASK.loss(model, batch, cfg, generator(0, "noise", 0)).mean.item() < 0.7 * loss.mean.item()


def trained(folder: Path, cfg: Any, most: int) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Trains on, up to ``most`` more steps. Returns what is logged, without the clock, and the weights."""
    steps = 0

    class Counted(SkipThoughtsTask):
        def loss(self, *args: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps > most:
                raise KeyboardInterrupt
            return super().loss(*args)

    task: Any = Counted()
    data, model = task.data(cfg, DEVICE), initial_model(task, cfg, DEVICE)
    with Run(folder, dump(cfg), describe(cfg, data.source, folder.name, DEVICE, [])) as opened:
        try:
            assert Trainer(task, cfg, data, model, opened, Tracker(), DEVICE, lambda: False).train() == "done"
        except KeyboardInterrupt:
            pass
    rows = [{k: v for k, v in r.items() if k != "train_seconds"} for r in read_metrics(folder / "metrics.jsonl")]
    return rows, torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


def test_a_run_repeats_itself_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    words = [
        "task=skip_thoughts",
        "profile=smoke",
        "norm=ln",
        "train.budget=24",
        "train.eval_every=12",
        "train.batch_size=8",
    ]
    (cfg,) = compose_cells([[*words, "task.held_out=10", "task.maxlen=8", "train.checkpoint_seconds=1e-9"]])
    whole, weights = trained(tmp_path / "whole", cfg, 100)
    assert {row["split"] for row in whole} == {"train", "valid", "test"} and whole[-1]["step"] == 24
    assert trained(tmp_path / "again", cfg, 100)[0] == whole
    for cut in (5, 13):  # in the first epoch, and in a later one
        folder = tmp_path / f"cut{cut}"
        trained(folder, cfg, cut)
        rows, resumed = trained(folder, cfg, 100)
        assert rows == whole and all(torch.equal(resumed[name], weights[name]) for name in weights)


# Loss of the first batch at the start and after three updates. A change that must not change numerics gives the same.
GOLDEN = {"none": (144.1246, 138.6865), "wn": (144.1246, 138.8514), "ln": (144.2461, 133.3767)}


@pytest.mark.parametrize("norm", TASK.norms)
def test_golden_losses(norm: str) -> None:
    cfg, data, model = ready(norm)
    batch = data.batch(data.epoch(0, 0)[0])
    optimizer = make_optimizer(model, cfg)
    losses = [training_step(TASK, model, optimizer, batch, cfg, generator(0, "noise", 0))[0] for _ in range(4)]
    assert (losses[0], losses[3]) == pytest.approx(GOLDEN[norm], abs=1e-2)


@pytest.mark.parametrize("protocol", ["fast", "paper"])
def test_the_cost_of_an_evaluation_is_scaled_up_from_samples(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that counts calls: encoding 4 a sentence, a search 1, a round on SICK 10."""
    clock = [0.0]
    monkeypatch.setattr(cost.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(cost, "SAMPLE", 20)

    def spend(seconds: float) -> None:
        clock[0] += seconds

    def encode(sentences: list[str]) -> np.ndarray:
        spend(4.0 * len(sentences))
        return np.random.RandomState(0).rand(len(sentences), 3).astype(np.float32)

    monkeypatch.setattr(cost.classification, "path", lambda *_: spend(1.0))
    monkeypatch.setattr(cost.relatedness, "fit", lambda *_: spend(10.0))
    sets = sd.sets()
    sentences = {s for part in (sets.sick.train, sets.sick.trial, sets.sick.test) for s in (*part.first, *part.second)}
    searches = {"fast": 1 + 1 / 9, "paper": 100 + 10 / 9}[protocol]
    expected = 4 * len(sentences) + 10 * cost.ROUNDS + (4 * 20 + searches) * 60 / 20
    assert cost.seconds(sets, encode, protocol) == pytest.approx(expected)
