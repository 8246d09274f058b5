"""The attentive reader's task: checks, batches, permuted entities, evaluation, resuming, readings and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import experiments.tasks.attentive_reader as module
from data.attentive_reader import FIRST_WORD, PAD, Questions, ReaderData
from data.fetch import DataError, Source
from experiments import reading_picture
from experiments.cell import describe
from experiments.compose import compose_cells
from experiments.loop import Trainer, initial_model, make_optimizer, training_step
from experiments.reading import Reading, parse_query, read
from experiments.reading import describe as lines_of
from experiments.rng import generator
from experiments.runs import Run, read_metrics
from experiments.schema import Config, ConfigError, dump, load_saved
from experiments.tasks import TASKS
from experiments.tasks.attentive_reader import AttentiveReaderTask, evaluation_batch
from experiments.tasks.base import Demo, FinalTest, Value
from experiments.tracker import Tracker
from models.attentive_reader import AttentiveReader, answer_loss
from scripts.checked import OptionError
from scripts.options import parse

TASK = AttentiveReaderTask()
CPU = torch.device("cpu")
VOCABULARY = ["the", "saw", "@entity0", ".", "@placeholder", "@entity12", "met", "@entity3", "who", "$5"]
ENTITIES = [FIRST_WORD + n for n, word in enumerate(VOCABULARY) if word.startswith("@entity")]
COUNTS = {"train": 20, "valid": 11, "test": 7}


def questions(count: int, seed: int) -> Questions:
    """Random texts of one to six words (queries: of one to three); the answer occurs in two passages of three."""
    random = np.random.RandomState(seed)
    texts: dict[str, list[np.ndarray]] = {"passage": [], "question": []}
    for n in range(count):
        for name, most in (("passage", 6), ("question", 3)):
            size = 1 if n == 3 else random.randint(1, most + 1)
            texts[name].append(random.randint(FIRST_WORD, FIRST_WORD + len(VOCABULARY), size))
    answers = np.array([ENTITIES[n % len(ENTITIES)] for n in range(count)], np.int32)
    for n, passage in enumerate(texts["passage"]):
        passage[0] = answers[n] if n % 3 else ENTITIES[(n + 1) % len(ENTITIES)]

    def packed(name: str) -> dict[str, np.ndarray]:
        starts = np.cumsum([0, *map(len, texts[name])])
        return {f"{name}_words": np.concatenate(texts[name]).astype(np.int32), f"{name}_starts": starts}

    return Questions(**packed("passage"), **packed("question"), answers=answers)


def made(splits: tuple[str, ...] = tuple(COUNTS)) -> ReaderData:
    parts = {split: questions(COUNTS[split], seed) for seed, split in enumerate(splits)}
    return ReaderData(
        parts, VOCABULARY, np.array(ENTITIES), Source("stand-in", "mine", "mine", "0", "few"), dict.fromkeys(parts, 0.0)
    )


@pytest.fixture(autouse=True)
def small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    data = made()
    monkeypatch.setattr(module, "load_attentive_reader", lambda *_, **__: data)


def config(norm: str = "ln", *words: str) -> Config:
    small = ["train.batch_size=4", "train.eval_batch_size=3", "task.train_examples=null", "task.eval_examples=null"]
    cell = ["task=attentive_reader", "profile=smoke", f"norm={norm}", *small, *words]
    last = {word.partition("=")[0]: word for word in cell}  # the later one counts
    (cfg,) = compose_cells([list(last.values())])
    return cfg


def ready(norm: str = "ln", *words: str) -> tuple[Config, Any, AttentiveReader]:
    cfg = config(norm, *words)
    model = TASK.model(cfg, generator(0, "init"))
    assert isinstance(model, AttentiveReader)
    return cfg, TASK.data(cfg, CPU), model.eval()


BAD = [
    ("ln", "task.units=0", "task.units=0 must be 1 or more"),
    ("ln", "task.word_dim=-1", "task.word_dim=-1 must be 1 or more"),
    ("ln", "task.bn_steps=0", "task.bn_steps=0 must be 1 or more"),
    ("ln", "task.sentences=0", "task.sentences=0 must be 1 or more, or null for all"),
    ("ln", "task.train_examples=0", "task.train_examples=0 must be 1 or more, or null"),
    ("ln", "task.dropout=1", "task.dropout=1.0 must lie in [0, 1)"),
    ("ln", "task.dropout=nan", "task.dropout=nan must lie in [0, 1)"),
    ("ln", "task.dropout_form=none", "task.dropout_form=none is unknown: use plain or inverted"),
    ("ln", "task.last_word=read", "task.last_word=read is unknown: use dropped or kept"),
    ("ln", "task.order=random", "task.order=random is unknown: use file or replacement"),
    ("ln", "task.bn_padding=some", "task.bn_padding=some is unknown: use included or masked"),
    ("bn_lstm", "task.bn_evaluation=running", "task.bn_evaluation=running is unknown: use population or batch"),
    ("ln", "task.bias_mode=torch", "task.bias_mode=torch does not fit norm=ln"),
    ("bn_lstm", "task.bias_mode=torch", "task.bias_mode=torch is unknown: use official, paper or minimal"),
    ("bn_everywhere", "train.batch_size=1", "train.batch_size=1 is too small for norm=bn_everywhere: use 2 or more"),
    ("bn_lstm", "kernel=fused", "kernel=fused knows no norm=bn_lstm: use auto or reference"),
    ("ln", "task.dataset=../x", "task.dataset=../x must be the name of a data set"),
    ("ln", "task.dropout=much", "task.dropout=much must be a number"),
    ("ln", "task.legacy_init=maybe", "task.legacy_init=maybe must be true or false"),
    ("bn", "seed=0", "norm=bn is not supported by task attentive_reader (say where: bn_lstm, in the LSTMs alone, or "
                     "bn_everywhere): use none, bn_lstm"),
    ("wn", "seed=0", "norm=wn is not supported by task attentive_reader: use none"),
    ("ln", "norm.arm=bn_lstm", "norm.arm=bn_lstm is no arm of norm.name=ln"),
]  # fmt: skip


@pytest.mark.parametrize(("norm", "word", "message"), BAD, ids=[f"{norm} {word}" for norm, word, _ in BAD])
def test_what_cannot_work_is_refused_in_one_line(norm: str, word: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(norm, word)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_make_says_where_bn_may_be() -> None:
    with pytest.raises(OptionError, match=r"NORM=bn is not supported by TASK=attentive_reader \(say where: bn_lstm"):
        parse("reproduce", ["TASK=attentive_reader", "NORM=none,bn"])
    assert parse("reproduce", ["TASK=attentive_reader", f"NORM={','.join(TASK.norms)}"]).norms == TASK.norms
    assert isinstance(TASK, FinalTest) and isinstance(TASK, Demo) and TASKS["attentive_reader"].name == TASK.name


def test_sizes_that_do_not_fit_the_data() -> None:
    with pytest.raises(ConfigError, match="task.train_examples=21 is more than the 20 there are"):
        ready("ln", "task.train_examples=21")
    with pytest.raises(ConfigError, match="train.batch_size=21 is more than the 20 training questions"):
        ready("ln", "train.batch_size=21")


def test_batches_are_in_the_order_of_the_file_or_drawn() -> None:
    _, data, _ = ready("ln", "train.batch_size=6")
    for epoch, seed in ((0, 0), (3, 1)):
        assert torch.cat(list(data.epoch(epoch, seed))).tolist() == list(range(18)), "the last part is dropped"
    _, data, _ = ready("ln", "train.batch_size=6", "task.order=replacement")
    drawn = {(epoch, seed): torch.cat(list(data.epoch(epoch, seed))).tolist() for epoch in (0, 1) for seed in (0, 1)}
    assert len({tuple(order) for order in drawn.values()}) == 4 and all(len(order) == 18 for order in drawn.values())
    many = torch.cat([torch.cat(list(data.epoch(epoch, 0))) for epoch in range(200)])
    assert set(many.tolist()) == set(range(20)) and any(len(set(order)) < 18 for order in drawn.values())


def test_the_last_word_is_dropped_and_a_step_of_padding_added() -> None:
    data, words = made().splits["train"], [[5, 6, 7], [8], [9, 4]]
    padded = np.array([row + [PAD] * (3 - len(row)) for row in words]).T
    for switch, wanted, lengths in (
        ("dropped", [[5, 6, PAD], [8, PAD, PAD], [9, PAD, PAD]], [2, 1, 1]),
        ("kept", [[5, 6, 7], [8, PAD, PAD], [9, 4, PAD]], [3, 1, 2]),
    ):
        _, task_data, _ = ready("ln", f"task.last_word={switch}")
        cut_TB, cut_lengths_B = task_data.cut(padded, np.array([3, 1, 2]))
        assert cut_TB.T.tolist() == wanted and cut_lengths_B.tolist() == lengths
        batch = task_data.collate(data, np.arange(6))
        assert batch.passage_TB.shape[0] == int(batch.lengths_B.max()) + (switch == "dropped")
    _, task_data, _ = ready()
    cut_TB, lengths_B = task_data.cut(np.array([[7, 8]]), np.array([1, 1]))
    assert cut_TB.tolist() == [[7, 8], [PAD, PAD]] and lengths_B.tolist() == [1, 1], "one word is not dropped"


def test_entities_are_exchanged_alike_in_passage_query_and_answer() -> None:
    _, data, model = ready()
    batch = data.batch(torch.arange(8))
    seen = set()
    for seed in range(40):
        mixed = batch.permuted(data.words, torch.Generator().manual_seed(seed))
        table: dict[int, int] = {}
        for before, after in zip(batch[:5], mixed[:5], strict=True):
            for a, b in zip(before.flatten().tolist(), after.flatten().tolist(), strict=True):
                if before is not batch.lengths_B and before is not batch.query_lengths_B:
                    assert table.setdefault(a, b) == b
        assert all(word == other for word, other in table.items() if word not in ENTITIES)
        assert sorted(table[word] for word in ENTITIES) == ENTITIES
        assert torch.equal(mixed.lengths_B, batch.lengths_B)
        seen.add(tuple(table[word] for word in ENTITIES))
    assert len(seen) == 6, "all orders of three"
    assert len(model.embedding) == data.words == FIRST_WORD + len(VOCABULARY)


def test_the_loss_is_of_permuted_questions_and_the_steps_generator_decides() -> None:
    cfg, data, model = ready("ln", "task.dropout=0")
    batch = data.batch(torch.arange(8))
    loss = TASK.loss(model.train(), batch, cfg, torch.Generator().manual_seed(5))
    mixed = batch.permuted(data.words, torch.Generator().manual_seed(5))
    logits = model(*mixed[:4], torch.Generator()).logits_BV
    torch.testing.assert_close(loss.mean, answer_loss(logits, mixed.answers_B).mean())
    total, count = loss.sums["batch_error"]
    assert count == 8 and total.item() == 100 * (logits.argmax(1) != mixed.answers_B).sum().item()
    losses = [TASK.loss(model, batch, cfg, torch.Generator().manual_seed(seed)).mean.item() for seed in (5, 5, 6)]
    assert losses[0] == losses[1] != losses[2]


def named(values: list[Value]) -> dict[str, float]:
    return {value.metric: value.value for value in values}


@torch.no_grad()
@pytest.mark.parametrize("norm", TASK.norms)
@pytest.mark.parametrize("words", [[], ["task.permute_eval=true"]], ids=["plain", "permuted"])
def test_evaluation_batch_by_batch(norm: str, words: list[str]) -> None:
    """Of 11 questions in batches of 4 the first 8, whatever ``eval_batch_size``; BN has its own batches."""
    cfg, data, model = ready(norm, *words)
    wrong, lost, losses = [], [], []
    for number, start in enumerate((0, 4)):
        batch = data.collate(data.all.splits["valid"], np.arange(start, start + 4))
        read = [set(batch.passage_TB[:n, b].tolist()) for b, n in enumerate(batch.lengths_B.tolist())]
        lost += [answer not in some for answer, some in zip(batch.answers_B.tolist(), read, strict=True)]
        if words:
            batch = batch.permuted(data.words, generator(9, "entities", number))
        logits = model(*batch[:4]).logits_BV
        wrong += (logits.argmax(1) != batch.answers_B).tolist()
        losses += answer_loss(logits, batch.answers_B).tolist()
    found = TASK.evaluate(model, data, cfg, 9)
    assert {value.split for value in found} == {"valid"} and set(named(found)) <= set(TASK.metrics)
    assert named(found)["error"] == 100 * np.mean(wrong)
    assert named(found)["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert named(found)["error_floor"] == 100 * np.mean(lost) > 0
    assert data.source.detail.endswith("evaluated: 8 of valid, 4 of test")
    again = TASK.evaluate(model, data, config(norm, "train.eval_batch_size=100", *words), 9)
    assert named(again) == pytest.approx(named(found), rel=1e-6)


@torch.no_grad()
def test_the_entity_error_chooses_among_entities() -> None:
    cfg, data, model = ready("none")
    model.logits.bias[FIRST_WORD] = 50.0  # "the"
    model.logits.bias[ENTITIES[1]] = 40.0
    found = named(TASK.evaluate(model, data, cfg, 0))
    answers = data.all.splits["valid"].answers[:8]
    assert found["error"] == 100 and found["entity_error"] == 100 * np.mean(answers != ENTITIES[1])


def test_fewer_questions_than_a_batch_are_one_and_a_test_set_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg, data, model = ready("bn_lstm", "train.batch_size=20")
    assert data.evaluated == {"valid": 11, "test": 7}
    assert TASK.test(model, data, cfg, 0)[0].split == "test"
    _, data, _ = ready("ln", "task.eval_examples=5")
    assert data.evaluated == {"valid": 4, "test": 4}
    without = made(("train", "valid"))
    monkeypatch.setattr(module, "load_attentive_reader", lambda *_, **__: without)
    cfg, data, model = ready()
    assert data.evaluated == {"valid": 8} and TASK.test(model, data, cfg, 0) == []


# The first loss, and the fourth, after three updates. A change that must not change numerics gives the same.
GOLDEN = {
    "none": (2.4617, 2.1629),
    "bn_lstm": (2.4972, 2.2234),
    "bn_everywhere": (2.5254, 2.1778),
    "ln": (2.4173, 1.5589),
    "ln_gain01": (2.4745, 2.0889),
}


@pytest.mark.parametrize("norm", TASK.norms)
def test_golden_losses(norm: str) -> None:
    cfg, data, model = ready(norm, "train.lr=0.01", "task.legacy_init=false")
    model.train()
    optimizer = make_optimizer(model, cfg)
    batch = data.batch(torch.arange(8))
    losses = [training_step(TASK, model, optimizer, batch, cfg, generator(0, "noise", 0))[0] for _ in range(4)]
    assert (losses[0], losses[3]) == pytest.approx(GOLDEN[norm], abs=1e-3)


def run(cfg: Config, folder: Path, most: int | None = None) -> str:
    """Trains a cell, or stops it at step ``most``."""
    data = TASK.data(cfg, CPU)
    with Run(folder, dump(cfg), describe(cfg, data.source, folder.name, CPU, [])) as opened:
        trainer = Trainer(TASK, cfg, data, initial_model(TASK, cfg, CPU), opened, Tracker(), CPU, lambda: False)
        step = trainer._step
        if most is not None:

            def dies(batch: Any) -> bool:
                if trainer.at.step > most:
                    raise KeyboardInterrupt
                return step(batch)

            trainer._step = dies
        try:
            state = trainer.train()
        except KeyboardInterrupt:
            return "killed"
        trainer.close(state)
        return state


@pytest.mark.parametrize("norm", ["ln", "bn_everywhere"])
def test_a_killed_run_resumes_to_the_same_bits(norm: str, tmp_path: Path) -> None:
    cfg = config(norm, "train.budget=7", "train.eval_every=3", "train.checkpoint_seconds=1e-9",
                 "task.order=replacement", "task.bn_evaluation=population" if norm != "ln" else "seed=0")  # fmt: skip
    assert run(cfg, tmp_path / "whole") == "done"
    assert run(cfg, tmp_path / "cut", most=4) == "killed"
    assert run(cfg, tmp_path / "cut") == "done"
    logs, states = [], []
    for name in ("whole", "cut"):
        logs.append([{k: v for k, v in row.items() if k != "train_seconds"}
                     for row in read_metrics(tmp_path / name / "metrics.jsonl")])  # fmt: skip
        states.append(torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["model"])
    assert logs[0] == logs[1] and {row["split"] for row in logs[0]} == {"train", "valid", "test"}
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    saved = load_saved(tmp_path / "cut" / "config.yaml")
    assert saved.norm.shown == norm


QUERIES = [
    ("4", (4, None)), (" 10 ", (10, None)), ("3: @placeholder met", (3, ["@placeholder", "met"])),
    ("who met @placeholder", (0, ["who", "met", "@placeholder"])), ("0:", (0, None)),
    ("2 saw @placeholder", (0, ["2", "saw", "@placeholder"])),
]  # fmt: skip


@pytest.mark.parametrize(("query", "meant"), QUERIES)
def test_what_may_be_asked(query: str, meant: Any) -> None:
    assert parse_query(query, 11) == meant


@pytest.mark.parametrize(
    ("query", "message"),
    [("11", "QUERY=11: there is no validation question 11; use 0 to 10"),
     ("99: @placeholder", "there is no validation question 99"),
     ("x" * 61, f"QUERY={'x' * 60}…: give the number"),
     ("9" * 5000, "there is no validation question 999999999999999999…; use 0 to 10"),
     ("who met", "QUERY=who met: give the number of a validation question, such as 12, or words with @placeholder"),
     ("@placeholder " * 101, "QUERY has 101 words; ask in at most 100"),
     ("", "give the number"), ("-1", "give the number"), ("3: who", "give the number")],
)  # fmt: skip
def test_what_may_not(query: str, message: str) -> None:
    with pytest.raises(DataError) as error:
        parse_query(query, 11)
    assert message in str(error.value) and "\n" not in str(error.value)


@torch.no_grad()
@pytest.mark.parametrize("norm", ["ln", "bn_everywhere"])
def test_a_reading_is_that_of_its_evaluation_batch(norm: str) -> None:
    cfg, data, model = ready(norm)
    size = evaluation_batch(cfg)
    assert size == (4 if norm == "bn_everywhere" else 3)
    for number, first in ((5, 5 // size * size), (10, 11 - size)):
        reading = read(model, data, number, size)
        batch = data.collate(data.all.splits["valid"], np.arange(first, first + size))
        answer = model(*batch[:4])
        np.testing.assert_allclose(reading.weights, answer.weight_TB[:, number - first], rtol=1e-5)
        p_V = answer.logits_BV[number - first].softmax(0)
        assert reading.best[0] == (data.all.word(int(p_V.argmax())), pytest.approx(p_V.max().item(), rel=1e-5))
        assert len(reading.best) == 5 and reading.answer in VOCABULARY
        assert reading.read == max(1, len(reading.passage) - 1) and sum(reading.weights) == pytest.approx(1, abs=1e-5)


@torch.no_grad()
def test_ones_own_query_is_read_in_the_place_of_the_passages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cfg, data, model = ready("bn_everywhere")
    own = [data.all.word(w) for w in data.all.splits["valid"].padded([5])[2][:, 0]]
    theirs, same, other = (read(model, data, 5, 4, words) for words in (None, own, ["who", "met", "@placeholder", "."]))
    np.testing.assert_allclose(theirs.weights, same.weights, rtol=1e-6)
    assert other.best != theirs.best and other.answer is None and other.query == ["who", "met", "@placeholder", "."]
    lines, (path,) = TASK.demo(model, data, cfg, "5: Who MET @placeholder nobody", tmp_path)
    assert "not known, so they count as any unknown word: nobody" in lines
    assert lines[0] == "about the passage of validation question 5:" and "answer: not known" in lines
    assert path == tmp_path / "demo_attentive_reader.png" and path.read_bytes().startswith(b"\x89PNG")
    assert any("(not read: the passage's last word" in line and line.endswith("nobody)") for line in lines)
    with pytest.raises(
        DataError, match=r"QUERY=zebra @placeholder: no word of it is among the 10 known ones \(the, saw"
    ):
        TASK.demo(model, data, cfg, "zebra @placeholder", tmp_path)


@torch.no_grad()
def test_a_question_by_its_number(tmp_path: Path) -> None:
    cfg, data, model = ready("none", "task.last_word=kept")
    lines, _ = TASK.demo(model, data, cfg, "4", tmp_path)
    reading = read(model, data, 4, evaluation_batch(cfg))
    assert lines == lines_of(reading) and lines[0] == "validation question 4:"
    assert f"answer: {reading.answer}" in lines and not any("not read" in line for line in lines)
    start = lines.index("likeliest words:")
    assert [line.split()[0] for line in lines[start + 1 : start + 6]] == [word for word, _ in reading.best]
    assert lines[-1].startswith("looked most at: ")


@torch.no_grad()
def test_pictures_are_drawn_without_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dollar signs, which are no formulas, and a passage of many lines."""
    monkeypatch.setenv("DISPLAY", "nonsense:99")
    cfg, data, model = ready()
    (path,) = TASK.plots(model, data, cfg, tmp_path, 0)
    assert path.name == "attention.png" and path.read_bytes().startswith(b"\x89PNG")
    words = ["$5", "a$b$", "@entity1"] * 100
    reading = Reading("long", words, ["@placeholder"], 299, 1, np.full(300, 1 / 299), "@entity1", [("$5", 0.5)])
    assert reading_picture.draw_readings([reading], "a $title$", tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_long_queries_and_answers_are_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go on in another line, and a block is as high as its lines."""
    figures: list[Figure] = []

    def keep(figure: Figure, kind: str) -> bytes:
        figures.append(figure)
        return b""

    monkeypatch.setattr(reading_picture, "rendered", keep)
    words = [letter * 20 for letter in "abcdefghijk"]
    best = [(word, 0.1) for word in words[:5]]
    wide = Reading("wide", words, words, 11, 11, np.full(11, 1 / 11), "@entity1", best)
    reading_picture.draw_readings([wide, wide], "a title", tmp_path / "x.png")
    for axes in figures[0].axes:
        written = [text for text in axes.texts if text.get_fontfamily() == ["monospace"]]
        assert len(written) == len(words) + len(["query:", *words]) + len(["answer", *best])
        ends = [text.get_position()[0] + 0.602 * 8 / 72 * len(text.get_text()) for text in written]
        assert max(ends) < axes.get_xlim()[1], "of inches"
        heights = sorted({text.get_position()[1] for text in axes.texts})
        assert len(heights) == 1 + 3 + 3 + 2 and heights[-1] < axes.get_ylim()[0]
        assert np.diff(heights) == pytest.approx(reading_picture.LINE)
    first, second = (axes.get_position() for axes in figures[0].axes)
    assert first.y0 == pytest.approx(second.y1), "one below the other"


@torch.no_grad()
def test_a_vocabulary_of_fewer_words_than_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Questions(*[np.array(one, np.int32) for one in ([2, 2], [0, 1, 2], [3, 3], [0, 1, 2], [2, 2])])
    data = ReaderData(
        {"train": tiny, "valid": tiny}, ["@entity0", "@placeholder"], np.array([2]), made().source, {"train": 0.0}
    )
    monkeypatch.setattr(module, "load_attentive_reader", lambda *_, **__: data)
    _, reader, model = ready("ln", "train.batch_size=2")
    assert {word for word, _ in read(model, reader, 0, 2).best} == {"@entity0", "@placeholder", "<pad>", "<unknown>"}
