"""``make sample``: which run writes, what it leaves, and one line for everything that cannot be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import experiments.tasks.handwriting as task_module
from data.fetch import Source
from data.strokes import Lines
from experiments.cell import run_folder
from experiments.compose import compose_cells
from experiments.loop import initial_model
from experiments.runs import FORMAT, RunError
from experiments.schema import ConfigError, config_sha, dump, identity
from experiments.tasks.handwriting import HandwritingTask
from scripts import options, sample
from tests.commands import make
from tests.test_handwriting_task import fake_lines as fake_lines  # a fixture

CPU = torch.device("cpu")


def place(monkeypatch: pytest.MonkeyPatch, lines: Lines) -> None:
    """Makes these the data that are there."""
    for module in (task_module, sample):
        monkeypatch.setattr(module, "load_handwriting", lambda *, skip_bad=False: lines)


@pytest.fixture
def runs(results: Path, fake_lines: Lines, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Untrained models of two norms and seeds, in finished run folders."""
    place(monkeypatch, fake_lines)
    for norm, seed, step in (("none", 0, 90), ("ln", 0, 90), ("ln", 1, 60)):
        words = ["task=handwriting", "profile=smoke", f"norm={norm}", f"seed={seed}", "device=cpu"]
        (cfg,) = compose_cells([[*words, f"paths.results={results}"]])
        folder = run_folder(cfg, fake_lines.source)
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(dump(cfg))
        source = {key: getattr(fake_lines.source, key) for key in ("kind", "label", "name", "fingerprint", "detail")}
        meta = {"task": "handwriting", "norm": norm, "batch_size": 8, "seed": seed, "profile": "smoke", "data": source}
        meta |= {"identity": identity(cfg, fake_lines.source.fingerprint), "config_sha": config_sha(cfg)}
        (folder / "meta.json").write_text(json.dumps(meta))
        (folder / "status.json").write_text(json.dumps({"state": "done", "step": step}))
        model = initial_model(HandwritingTask(), cfg, CPU)
        torch.save({"format": FORMAT, "model": model.state_dict()}, folder / "checkpoint.pt")
    yield results / "runs" / "handwriting"


def parsed(*words: str) -> options.Options:
    return options.parse("sample", ["TASK=handwriting", "DEVICE=cpu", *words])


def test_a_text_becomes_two_pictures_and_the_same_ones_again(runs: Path, results: Path) -> None:
    paths = sample.sample(parsed("TEXT=a b", "BIAS=0.5"))
    assert [path.name for path in paths] == ["a-b-bias0.5.png", "a-b-bias0.5.svg"]
    assert paths[0].parent.parent == results / "samples" and paths[0].parent.name.startswith("ln-b8-smoke-s0-")
    before = [path.read_bytes() for path in paths]
    assert before[0].startswith(b"\x89PNG") and b"<svg" in before[1]
    assert [path.read_bytes() for path in sample.sample(parsed("TEXT=a b", "BIAS=0.5"))] == before
    assert sample.sample(parsed("TEXT=a b", "BIAS=2"))[0].name == "a-b-bias2.png"
    assert len(sample.sample(parsed("TEXT=$a$"))) == len(sample.sample(parsed("TEXT=$_{"))) == 2, "no formulas"


def test_no_two_texts_share_a_file() -> None:
    texts = ["a b", "a-b", "a/ b", " a b", "a  b", "a b.", "", "?", "!", "word " * 20, "word " * 21, "x" * 40, "x" * 41]
    names = {sample.file_name(text, bias) for text in texts for bias in (1.0, 1.0000001)}
    assert len(names) == 2 * len(texts) and all(len(name) < 80 for name in names)
    assert sample.file_name("layer norm", 1.0) == "layer-norm-bias1", "a plain text needs no hash"


@pytest.mark.parametrize(
    ("words", "chosen"),
    [([], ("ln", 0)), (["NORM=none"], ("none", 0)), (["SEEDS=1"], ("ln", 1)), (["PROFILE=smoke"], ("ln", 0))],
)
def test_the_words_choose_the_run(runs: Path, results: Path, words: list[str], chosen: tuple[str, int]) -> None:
    run = sample.choose(parsed("TEXT=a", *words), results / "runs")
    assert (run.norm, run.seed) == chosen


def test_a_finished_run_goes_first_then_the_longest(runs: Path, results: Path) -> None:
    for folder in runs.glob("*-s0-*"):
        (folder / "status.json").write_text(json.dumps({"state": "interrupted", "step": 90}))
    assert sample.choose(parsed("TEXT=a"), results / "runs").seed == 1


def test_a_run_on_the_data_at_hand_goes_before_any_other(
    runs: Path, results: Path, fake_lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in runs.glob("*-s0-*"):
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps(meta | {"data": meta["data"] | {"fingerprint": "1"}}))
    assert sample.choose(parsed("TEXT=a"), results / "runs").seed == 1
    other = Source("stand-in", "fake", "fake lines", "1", "")
    place(monkeypatch, Lines(**{**vars(fake_lines), "source": other}))
    assert sample.choose(parsed("TEXT=a"), results / "runs").seed == 0


def test_what_cannot_be_written_is_one_line(runs: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(kind: type[Exception], *words: str) -> str:
        with pytest.raises(kind) as error:
            sample.sample(parsed(*words))
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "no trained model of handwriting with NORM=wn in" in refused(ConfigError, "TEXT=a", "NORM=wn")
    assert "with PROFILE=medium SEEDS=7 in" in refused(ConfigError, "TEXT=a", "SEEDS=7", "PROFILE=medium")
    assert "TEXT has 5 characters, but the longest the model has seen has 4" in refused(ConfigError, "TEXT=abcde")
    assert "outside the alphabet" in refused(ConfigError, "TEXT=\u00e9")
    folder = next(runs.glob("ln-*-s0-*"))
    (folder / "checkpoint.pt").write_bytes(b"half")
    assert "checkpoint.pt cannot be read: train that run again" in refused(RunError, "TEXT=a")
    (folder / "config.yaml").write_text("task: {name: handwriting, wings: 2}")
    assert "is not of this version" in refused(RunError, "TEXT=a")
    other = Source("stand-in", "fake", "other lines", "1", "")
    place(monkeypatch, Lines(**{**vars(task_module.load_handwriting(skip_bad=False)), "source": other}))
    message = refused(RunError, "TEXT=a", "SEEDS=1")
    assert "was trained on other data (fake lines; here: other lines): set LN_DATA to their folder, or unset" in message


WRONG: list[tuple[list[Any], str]] = [
    (["TASK=draw", "TEXT=a"], "TASK=draw writes no text; choose from: handwriting"),
    (["TASK=handwriting"], "TEXT is missing or empty"),
    (["TASK=handwriting", "TEXT= "], "TEXT is missing or empty"),
    (["TASK=handwriting", "TEXT=a", "BIAS=neat"], "BIAS=neat must be a number from 0 to 20"),
    (["TASK=handwriting", "TEXT=a", "BIAS=-1"], "BIAS=-1 must be a number from 0 to 20"),
    (["TASK=handwriting", "TEXT=a", "BIAS=nan"], "BIAS=nan must be a number from 0 to 20"),
    (["TASK=handwriting", "TEXT=a", "SEED=1"], "unknown variable SEED"),
    (["TASK=handwriting", 'TEXT=$HOME "c=d" \'e;'], "no trained model of handwriting in"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[" ".join(words)[:40] for words, _ in WRONG])
def test_make_answers_in_one_line(words: list[str], message: str, results: Path) -> None:
    done = make("sample", *words)
    assert done.returncode == 2 and message in done.stderr.splitlines()[0]
