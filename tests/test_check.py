"""``make check``: what it starts, and how it says that something is wrong. The whole of it is run by people and CI."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from experiments.tasks import TASKS
from scripts import check
from scripts.checked import supported_norms
from scripts.options import parse


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would have been started, with the results of runs in which all went well."""
    commands: list[list[str]] = []

    def run(task: str, options: check.Options, results: Path) -> int:
        commands.append(check.words(task, options))
        (results / f"{task}.log").write_text("first\nlast\n")
        if task in check.ANALYSES:
            (results / "figures" / task).mkdir(parents=True)
            (results / "figures" / task / "a.png").touch()
            return 0
        for norm in options.norms or supported_norms(task):
            folder = results / "runs" / task / f"{norm}-b1-smoke-s0-0"
            folder.mkdir(parents=True)
            (folder / "status.json").write_text(json.dumps({"state": "done"}))
        for folder in ("compare", "figures/smoke-x"):
            (results / folder).mkdir(parents=True, exist_ok=True)
        (results / "compare" / f"{task}.json").write_text("[]")
        (results / "figures" / "smoke-x" / "fig0.png").touch()
        return 0

    monkeypatch.setattr(check, "run", run)
    return commands


def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(check.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    return check.main(words)


def test_every_task_with_every_norm_and_what_needs_no_runs(
    started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r").mkdir()
    assert main(tmp_path / "r", monkeypatch) == 0
    assert {word for words in started for word in words if word.startswith("TASK=")} == {
        f"TASK={name}" for name in [*TASKS, "invariances"]
    }
    for words in started[: len(TASKS)]:
        given = dict(word.split("=") for word in words)
        assert (given["PROFILE"], given["SEEDS"]) == ("smoke", "0")
        assert tuple(given["NORM"].split(",")) == TASKS[given["TASK"]].norms
        parse("reproduce", words)
    out = capsys.readouterr().out.splitlines()
    assert len(out) == len(started) + 1 and out[-1].startswith(f"all {len(started)} well, in ")
    assert not (tmp_path / "r").exists(), "nothing is left behind"


def test_what_is_given_goes_along(started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(tmp_path, monkeypatch, "TASK=draw", "NORM=ln", "JOBS=1", "DEVICE=cpu", "BATCH=") == 0
    assert [sorted(words) for words in started] == [
        ["DEVICE=cpu", "JOBS=1", "NORM=ln", "PROFILE=smoke", "SEEDS=0", "TASK=draw"]
    ]


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        ("runs/draw/ln-b1-smoke-s0-0/status.json", "ln-b1-smoke-s0-0 is without status"),
        ("compare/draw.json", "no comparison"),
        ("figures/smoke-x/fig0.png", "no figure"),
    ],
)
def test_what_is_missing_is_an_error_and_its_results_stay(
    breaks: str, said: str, started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    whole = check.run

    def run(task: str, options: check.Options, results: Path) -> int:
        code = whole(task, options, results)
        (results / breaks).unlink()
        return code

    monkeypatch.setattr(check, "run", run)
    assert main(tmp_path, monkeypatch, "TASK=draw") == 1
    err = capsys.readouterr().err
    assert "  last\n" in err and f"error: draw: {said}, after 0 s; its output: {tmp_path}/draw.log" in err
    assert err.splitlines()[-1].startswith("error: draw failed, of 1 in ") and (tmp_path / "draw.log").exists()


def test_a_state_that_is_not_done_a_norm_without_runs_and_an_exit_code(
    started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = parse("check", ["TASK=draw"])
    assert check.run("draw", options, tmp_path) == 0 and check.wrong("draw", options, tmp_path) is None
    (none,) = (tmp_path / "runs" / "draw").glob("none-*")
    (none / "status.json").write_text(json.dumps({"state": "diverged"}))
    assert check.wrong("draw", options, tmp_path) == f"{none.name} is diverged"
    (none / "status.json").unlink()
    none.rmdir()
    assert check.wrong("draw", options, tmp_path) == "no run with norm none"
    monkeypatch.setattr(check, "run", lambda task, options, results: (results / "draw.log").write_text("") or 3)
    assert not check.check("draw", options, tmp_path)
    assert "error: draw: exit code 3" in capsys.readouterr().err


@pytest.mark.parametrize("code", [check.INTERRUPTED, -signal.SIGTERM, -signal.SIGINT])
def test_ctrl_c(code: int, started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "run", lambda *_: code)
    assert main(tmp_path, monkeypatch, "TASK=draw") == check.INTERRUPTED and not tmp_path.exists()


def test_the_output_of_a_task_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Really started, with values that it refuses at once."""
    monkeypatch.setattr(check, "words", lambda task, options: ["TASK=drew"])
    assert check.run("draw", parse("check", ["TASK=draw"]), tmp_path) == 2
    assert "error: TASK=drew is unknown" in (tmp_path / "draw.log").read_text()


def test_a_child_gets_the_signal_and_is_waited_for() -> None:
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print(flush=True)"
    child = subprocess.Popen([sys.executable, "-c", f"{code}; time.sleep(60)"], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"\n"
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert check.wait(child) == 7
    child.stdout.close()
