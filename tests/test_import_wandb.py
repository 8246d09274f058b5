"""A run goes to wandb and comes back: every number, bit for bit, or one line that says why not."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fakewandb
import pytest

from experiments import mirror, tracker
from experiments.analysis.collect import read_run
from experiments.cell import Outcome, run_cell
from experiments.metrics import read_metrics
from experiments.mirror import Unusable, rebuild
from experiments.runs import RunError
from experiments.tasks import TASKS
from scripts import import_wandb
from tests.commands import ROOT, run
from tests.toytask import ToyTask, toy_config

UPLOAD = """
import sys
from dataclasses import replace
from pathlib import Path
from experiments.cell import Outcome, run_cell
from experiments.schema import LoggerConfig
from experiments.tasks import TASKS
from tests.toytask import ToyTask, toy_config
results = Path(sys.argv[1])
for number, (seed, bad_step) in enumerate([(0, 0), (1, 12)]):
    TASKS["toy"] = ToyTask()
    cfg = toy_config(results)
    cfg.logger, cfg.seed, cfg.task.bad_step = LoggerConfig("wandb", "proj", "lab", "online"), seed, bad_step
    print(run_cell(cfg, Outcome(results / "sweep" / str(number)), [], 1))
import wandb
foreign = wandb.init(project="proj", entity="lab", id="foreign", name="cats", config={"lr": 1})
foreign.log({"loss": 1.0})
foreign.finish()
"""
IMPORT = """
import sys
from experiments.tasks import TASKS
from scripts import import_wandb
from tests.toytask import ToyTask
TASKS["toy"] = ToyTask()
import_wandb.RUNS_A_PAGE = import_wandb.ROWS_A_PAGE = 2
for _ in range(2):
    print("code", import_wandb.main(["lab/proj", "--runs", sys.argv[1]]), flush=True)
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a finished run."""
    monkeypatch.setitem(TASKS, "toy", ToyTask())  # type: ignore[arg-type]
    cfg = toy_config(tmp_path / "there")
    assert run_cell(cfg, Outcome(tmp_path / "sweep" / "0"), [], 1) == "done"
    (folder,) = (tmp_path / "there" / "runs" / "toy").iterdir()
    return folder


def history(folder: Path) -> list[dict[str, Any]]:
    """What wandb has of a run: a line per step beside pictures and fields of its own; numbers as JSON gives them."""
    lines: dict[int, dict[str, Any]] = {}
    for row in read_metrics(folder / "metrics.jsonl"):
        line = lines.setdefault(row["step"], {"_step": len(lines), "_runtime": 1.5})
        line.update({name: row[name] for name in mirror.OF_A_STEP} | mirror.line(row))
    picture = {"_step": len(lines), "step": 20, "figure/curve": {"_type": "image-file"}}
    return [json.loads(json.dumps(line)) for line in [*lines.values(), picture]]


def same(ours: Path, theirs: Path) -> None:
    """The same run: files, and rows in whatever order within a step."""
    assert ours.name == theirs.name
    for name in ("config.yaml", "status.json"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    first, second = (json.loads((folder / "meta.json").read_text()) for folder in (ours, theirs))
    assert {**first, "imported": None} == {**second, "imported": None}
    rows = [sorted(map(repr, read_metrics(folder / "metrics.jsonl"))) for folder in (ours, theirs)]
    assert rows[0] == rows[1] and rows[0]
    read_run(theirs)


def test_a_run_is_made_again_from_summary_and_history(made: Path, tmp_path: Path) -> None:
    folder = rebuild(mirror.summary(made), history(made), "wandb lab/proj/x", tmp_path / "here")
    assert folder is not None
    same(made, folder)
    assert json.loads((folder / "meta.json").read_text())["imported"] == "wandb lab/proj/x"
    assert folder.stat().st_mode & 0o777 == 0o755 and [p.name for p in folder.parent.iterdir()] == [folder.name]
    assert rebuild(mirror.summary(made), [], "again", tmp_path / "here") is None, "it is here"


def test_numbers_that_are_not_finite_come_back_as_such() -> None:
    of_step = {"step": 5, "examples": 20.0, "epoch": 1, "train_seconds": 2}
    units = {"valid/loss": "u", "test/loss": "u", "train/loss": "u"}
    values = {"valid/loss": "NaN", "test/loss": math.nan, "train/loss": 2, "other": 1, "figure/x": {}}
    found = {row["split"]: row for row in mirror.rows([{**of_step, **values}], units)}
    assert (found["valid"]["value"], found["test"]["value"], found["train"]["value"]) == (None, None, 2.0)
    assert found["train"]["examples"] == 20 and isinstance(found["train"]["value"], float)


def without(*names: str) -> Callable[[dict[str, str]], None]:
    return lambda found: [found.pop("suite/" + name) for name in names]  # type: ignore[return-value]


def changed(name: str, **values: Any) -> Callable[[dict[str, str]], None]:
    def change(found: dict[str, str]) -> None:
        found["suite/" + name] = json.dumps({**json.loads(found["suite/" + name]), **values})

    return change


def edited(name: str, old: str, new: str) -> Callable[[dict[str, str]], None]:
    def change(found: dict[str, str]) -> None:
        assert old in found["suite/" + name]
        found["suite/" + name] = found["suite/" + name].replace(old, new)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without(*mirror.KEYS), "it has not finished, or this suite did not make it"),
        (without("meta", "units"), "its summary lacks suite/meta, suite/units"),
        (edited("meta", '"run"', '"rum"'), "its meta or status lacks 'run'"),
        (edited("status", "{", "["), "its suite/status is damaged"),
        (changed("status", state="interrupted"), "it is interrupted: only finished runs can be taken over"),
        (changed("meta", run="../../x"), "its meta names the run toy/../../x"),
        (changed("meta", task=".hidden"), "its meta names the run .hidden/"),
        (changed("meta", identity="0" * 64), "whose identity is 00000000"),
        (changed("meta", config_sha="0" * 64), "its configuration is not the one that its meta names"),
        (edited("config", "lr: 0.05", "lr: 0.06"), "its configuration is not the one that its meta names"),
        (edited("config", "name: toy", "name: cats"), "its configuration cannot be read by this version (KeyError)"),
        (edited("units", '"u"', '"v"'), "its history is incomplete or was changed: 8 of 8 rows"),
    ],
)
def test_a_damaged_run_is_one_line_and_leaves_nothing(
    change: Callable[[dict[str, str]], None], said: str, made: Path, tmp_path: Path
) -> None:
    found = mirror.summary(made)
    change(found)
    with pytest.raises(Unusable) as caught:
        rebuild(found, history(made), "wandb", tmp_path / "here")
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not list((tmp_path / "here").rglob("*.*"))


@pytest.mark.parametrize("lost", ["a line", "a value", "a step", "garbled"])
def test_a_history_that_is_not_whole_is_refused(lost: str, made: Path, tmp_path: Path) -> None:
    lines = history(made)
    if lost == "a line":
        del lines[1]
    elif lost == "garbled":
        lines[1]["valid/loss"] = "much"
    else:
        lines[1].pop("valid/loss" if lost == "a value" else "step")
    said = "garbles" if lost in ("garbled", "a step") else "incomplete or was changed: [67] of 8 rows"
    with pytest.raises(Unusable, match=said):
        rebuild(mirror.summary(made), lines, "wandb", tmp_path / "here")
    assert not list((tmp_path / "here").rglob("*.*"))


def test_what_is_here_is_never_replaced(made: Path) -> None:
    store, found = made.parents[1], mirror.summary(made)
    assert rebuild(found, history(made), "wandb", store) is None
    status = json.loads((made / "status.json").read_text())
    (made / "status.json").write_text(json.dumps({**status, "state": "interrupted"}))
    with pytest.raises(Unusable, match="is here and has not finished: delete it to take this one over"):
        rebuild(found, history(made), "wandb", store)
    meta = json.loads((made / "meta.json").read_text())
    (made / "meta.json").write_text(json.dumps({**meta, "identity": "1" * 64}))
    with pytest.raises(Unusable, match="is another run"):
        rebuild(found, history(made), "wandb", store)


def test_the_command_tells_each_run_and_counts(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def scanned(**_: Any) -> Any:
        yield from history(made)[:1]
        raise ConnectionError("the line\nis down")

    whole = SimpleNamespace(
        id="a", name="good", summary_metrics=mirror.summary(made), scan_history=lambda **_: history(made)
    )
    broken = SimpleNamespace(id="b", name="cut", summary_metrics=mirror.summary(made), scan_history=scanned)
    foreign = SimpleNamespace(id="c", name="cats", summary_metrics=None, scan_history=lambda **_: [])
    words = ["lab/proj", "--runs", str(tmp_path / "here")]
    monkeypatch.setattr(import_wandb, "project_runs", lambda path: [broken, whole, foreign])
    assert import_wandb.main(words) == 1
    out, err = capsys.readouterr()
    assert err.splitlines() == [
        "error: lab/proj/b (cut) left out: its history cannot be read (ConnectionError: the line is down)",
        "note: lab/proj/c (cats) left out: it has not finished, or this suite did not make it",
    ]
    assert out.splitlines()[-1] == "1 runs taken over, 0 here before, 1 left out, 1 not of this suite or unfinished"
    monkeypatch.setattr(import_wandb, "project_runs", lambda path: [whole, foreign])
    assert import_wandb.main(words) == 0 and "0 runs taken over, 1 here before" in capsys.readouterr().out
    monkeypatch.setattr(import_wandb, "project_runs", lambda path: [foreign])
    assert import_wandb.main(words) == 1, "nothing of ours"
    with pytest.raises(SystemExit) as stopped:
        import_wandb.main(["proj"])
    assert stopped.value.code == 2 and "proj must be ENTITY/PROJECT" in capsys.readouterr().err


def test_without_a_key_a_network_or_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="no API key of wandb: run wandb login, or set WANDB_API_KEY"):
        import_wandb.project_runs("lab/proj")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setattr(tracker, "reachable", lambda: False)
    with pytest.raises(RunError, match="is out of reach: check the network, or WANDB_BASE_URL"):
        import_wandb.project_runs("lab/proj")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RunError, match="the package wandb is not installed: make setup"):
        import_wandb.project_runs("lab/proj")


def python(code: str, server: fakewandb.FakeWandb, *arguments: str) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_BASE_URL": server.url, "WANDB_API_KEY": "a" * 40}
    environment.pop("WANDB_MODE", None)
    done = run(sys.executable, "-c", code, *arguments, env=environment, timeout=240)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_through_wandbs_own_client_there_and_back(tmp_path: Path) -> None:
    """Runs are uploaded by the real client and read by the real one, page by page, with one damaged on the server."""
    with fakewandb.serving() as server:
        code, out, err = python(UPLOAD, server, str(tmp_path / "there"))
        assert code == 0 and out.split()[:2] == ["done", "diverged"], err
        good = next(one for one in server.runs.values() if "suite/meta" in one.summary)
        other = good.summary.replace("-s0-", "-s7-").replace("-s1-", "-s7-")
        cut = [line for line in good.history if '"step":10' not in line]
        server.runs["damaged"] = replace(good, name="damaged", history=cut, summary=other)
        code, out, err = python(IMPORT, server, str(tmp_path / "here"))
    assert code == 0, err
    first, second = out.split("code 1")[:2]
    assert "2 runs taken over, 0 here before, 1 left out, 1 not of this suite" in first
    assert "0 runs taken over, 2 here before, 1 left out, 1 not of this suite" in second
    assert "lab/proj/foreign (cats) left out: it has not finished" in err and "Traceback" not in err
    assert "lab/proj/damaged" in err and "its history is incomplete or was changed" in err
    assert server.asked.count("Runs") == 2 * 2 and server.asked.count("HistoryPage") > 4, "several pages of each"
    there, here = (sorted((tmp_path / place / "runs" if place == "there" else tmp_path / place).glob("toy/*"))
                   for place in ("there", "here"))  # fmt: skip
    assert len(there) == len(here) == 2
    for ours, theirs in zip(there, here, strict=True):
        same(ours, theirs)


def test_the_server_is_the_one_that_wandb_talks_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import wandb

    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    assert tracker.server().geturl() == wandb.Settings().base_url
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for host, known in ((tracker.server().netloc, True), (tracker.CLOUD, True), ("example.org", False)):
        (tmp_path / "netrc").write_text(f"machine {host} login user password {'a' * 40}")
        assert tracker.has_key() is known
    monkeypatch.setenv("WANDB_BASE_URL", "http://wandb.lab:8080")
    (tmp_path / "netrc").write_text(f"machine wandb.lab:8080 login user password {'a' * 40}")
    assert tracker.has_key()
    (tmp_path / "netrc").write_text(f"machine {tracker.CLOUD} login user password {'a' * 40}")
    assert not tracker.has_key()
