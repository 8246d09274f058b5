"""Publishing copies the logs of finished, committed runs, and nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.analysis import seals
from scripts import publish, readme_tables, verify
from tests.runfolders import cell, rows, write_run


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["publish", *arguments])
    return publish.main()


def run(tmp_path: Path, seed: int, **changes: Any) -> Path:
    folder = write_run(tmp_path / "runs", cell(seed=seed), rows({("test", "bound"): [100.0]}), **changes)
    for name in ("config.yaml", "checkpoint.pt", "train.log", "lock"):
        (folder / name).write_text(name)
    return folder


def test_only_the_logs_of_finished_runs_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = run(tmp_path, 0)
    run(tmp_path, 1, state="interrupted")
    diverged = run(tmp_path, 2, state="diverged")
    where = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert call(monkeypatch, *where) == 0
    copies = sorted((tmp_path / "out" / "draw").iterdir())
    assert [c.name for c in copies] == sorted([finished.name, diverged.name])
    assert sorted(p.name for p in copies[0].iterdir()) == sorted([*publish.FILES, seals.FILE])
    assert seals.broken(copies[0]) is None
    assert (copies[0] / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()
    assert capsys.readouterr().out.startswith("2 runs published")
    assert call(monkeypatch, *where, "--profile", "paper") == 1
    assert call(monkeypatch, *where, "--task", "draw") == 0


@pytest.mark.parametrize("git", [{"commit": "c" * 40, "dirty": True}, {"commit": None, "dirty": None}])
def test_a_run_whose_code_cannot_be_looked_up_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], git: dict[str, Any]
) -> None:
    folder = run(tmp_path, 0)
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "git": git}))
    assert call(monkeypatch, "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")) == 1
    assert "uncommitted changes" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--task", "drw"], "--task=drw is unknown (did you mean draw?)"),
        (["--profile", "smal"], "--profile=smal is unknown (did you mean small?)"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
@pytest.mark.parametrize("script", [publish, verify, readme_tables])
def test_wrong_words_are_one_line(
    script: Any, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", *words])
    with pytest.raises(SystemExit) as stopped:
        script.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2 and line.startswith("error: ")
    assert (said if script is publish else words[0]) in line
