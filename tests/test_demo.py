"""``make demo``: which run is asked, and what is said when it cannot answer."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import orderdata as od
import pytest
import torch
from commands import TASK_NAMES

from data.captions import UNKNOWN
from data.fetch import DataError
from data.order_embeddings import load_order_embeddings
from experiments.analysis.collect import Run
from experiments.cell import run_folder
from experiments.compose import compose_cells
from experiments.loop import initial_model
from experiments.runs import FORMAT, RunError
from experiments.schema import ConfigError, config_sha, dump, identity
from experiments.tasks import TASKS
from experiments.tasks.base import Demo
from scripts import demo
from scripts.checked import QUERIES, OptionError
from scripts.options import Options, parse

CPU = torch.device("cpu")
TASK = TASKS["order_embeddings"]

ASKABLE = [name for name in TASK_NAMES.split(", ") if isinstance(TASKS[name], Demo)]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, folder in (("LN_DATA", "given"), ("LN_RAW", "raw"), ("LN_CACHE", "cache"), ("LN_RESULTS", "results")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    return tmp_path


@pytest.fixture
def run(root: Path) -> Run:
    """An untrained model in a finished run's folder, and its data beside it."""
    od.write_vendrov(root / "given" / "mine")
    words = "task=order_embeddings profile=smoke norm=ln seed=0 device=cpu task.dataset=mine train.batch_size=2"
    (cfg,) = compose_cells([[*words.split(), "kernel=reference", f"paths.results={root / 'results'}"]])
    source = TASK.data(cfg, CPU).source
    folder = run_folder(cfg, source)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump(cfg))
    meta = {"task": "order_embeddings", "norm": "ln", "batch_size": 2, "seed": 0, "profile": "smoke"}
    meta |= {"data": asdict(source), "identity": identity(cfg, source.fingerprint), "config_sha": config_sha(cfg)}
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "status.json").write_text(json.dumps({"state": "done", "step": 20}))
    model = initial_model(TASK, cfg, CPU)
    torch.save({"format": FORMAT, "model": model.state_dict()}, folder / "checkpoint.pt")
    return demo.choose(options("PROFILE=smoke"))


def options(*words: str) -> Options:
    return parse("demo", ["TASK=order_embeddings", "QUERY=the train", "DEVICE=cpu", *words])


def asked(monkeypatch: pytest.MonkeyPatch, query: str) -> int:
    monkeypatch.setattr(sys, "argv", ["demo", "TASK=order_embeddings", f"QUERY={query}", "PROFILE=smoke", "DEVICE=cpu"])
    return demo.main()


def test_an_answer(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(monkeypatch, "the train 0") == 0
    assert run.run in (said := capsys.readouterr().out) and "closest captions:" in said


def test_a_profile_without_a_run_names_those_that_have_one(run: Run) -> None:
    with pytest.raises(RunError, match=r"no finished run .* at profile small .*, or ask the one with PROFILE=smoke$"):
        demo.choose(options())
    with pytest.raises(RunError, match=r"at profile small SEEDS=7 in .* PROFILE=small SEEDS=7$"):
        demo.choose(options("SEEDS=7"))


def test_of_two_such_runs_the_longer_is_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    longer = SimpleNamespace(**{**vars(run), "run": "z", "status": {"step": run.status["step"] + 1}})
    for runs in ([run, longer], [longer, run]):
        monkeypatch.setattr(demo, "collect", lambda *_, runs=runs: SimpleNamespace(runs=runs))
        assert demo.choose(options("PROFILE=smoke")).run == "z"


def test_other_data_than_it_was_trained_on_are_told(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (od.write_vendrov(root / "elsewhere" / "mine", "vgg") / "train.txt").write_text("\n".join(od.lines("train")[::-1]))
    monkeypatch.setenv("LN_DATA", str(root / "elsewhere"))
    with pytest.raises(
        RunError, match=r"was trained on mine, 10crop features .*, found is mine, vgg features .*: point LN_DATA"
    ):
        demo.load(run, "cpu")


def test_weights_that_are_no_numbers_or_no_weights_are_told(run: Run) -> None:
    path = run.folder / "checkpoint.pt"
    good = path.read_bytes()
    payload = torch.load(path, weights_only=True)
    payload["model"]["image_map.bias"][0] = torch.nan
    torch.save(payload, path)
    with pytest.raises(RunError, match=r"checkpoint.pt: image_map.bias holds numbers that are not finite"):
        demo.load(run, "cpu")
    for damage in (good[: len(good) // 2], b"text", b""):
        path.write_bytes(damage)
        with pytest.raises(RunError, match="checkpoint.pt: not this model's weights") as error:
            demo.load(run, "cpu")
        assert "\n" not in str(error.value)


def test_pictures_show_any_question_as_it_is(
    run: Run, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """A dollar sign begins no formula, and a letter the font lacks is no warning."""
    from matplotlib.figure import Figure

    shown: list[str] = []

    def draws(model: Any, data: Any, cfg: Any, query: str, folder: Path) -> tuple[list[str], list[Path]]:
        figure = Figure()
        figure.suptitle(query)
        figure.savefig(folder / "any.png")
        shown.append(query)
        return [], [folder / "any.png"]

    monkeypatch.setattr(TASK, "demo", draws, raising=False)
    query = "the $x_{$ train \u4e03 " * 20
    assert asked(monkeypatch, query) == 0
    assert shown == [query.strip()] and not list(recwarn)
    assert matplotlib.rcParams["text.parse_math"]


def test_without_a_query_one_for_the_task_is_suggested() -> None:
    assert set(QUERIES) == set(ASKABLE)
    for task, query in QUERIES.items():
        with pytest.raises(OptionError, match="QUERY is missing; ") as error:
            parse("demo", [f"TASK={task}", "QUERY="])
        assert str(error.value).endswith(f'such as QUERY="{query}"')


@pytest.mark.parametrize("task", [name for name in TASK_NAMES.split(", ") if name not in ASKABLE])
def test_a_task_with_nothing_to_ask(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["demo", f"TASK={task}", "QUERY=x", "PROFILE=smoke"])
    with pytest.raises(ConfigError, match=f"TASK={task} has nothing to ask; choose from: {', '.join(ASKABLE)}"):
        demo.main()


def test_a_query(root: Path) -> None:
    od.write_vendrov(root / "given" / "mine")
    data = load_order_embeddings("mine")
    known = data.query("the train")
    assert data.query("The TRAIN!").words.tolist() == known.words.tolist() and UNKNOWN not in known.words
    assert (data.query("the zebra").words == UNKNOWN).sum() == 1
    for text in ("zebra crossing", "", "?!"):
        with pytest.raises(DataError, match="no word of it is among the") as error:
            data.query(text)
        assert "\n" not in str(error.value)


def test_a_question_names_what_is_not_known(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    od.write_vendrov(root / "given" / "mine")
    data = load_order_embeddings("mine")
    data.query("the  train")
    assert not caplog.records
    data.query("the zebra train , zebra")
    assert caplog.messages == ["not known, so they count as any unknown word: zebra"]
    with pytest.raises(DataError, match=r"'the train the train .*…': 202 words, ask with at most 100"):
        data.query("the train " * 101)
    with pytest.raises(DataError, match="no word of it is among") as error:
        data.query("zebra\n" * 1000)
    assert len(str(error.value)) < 300 and "\n" not in str(error.value)
