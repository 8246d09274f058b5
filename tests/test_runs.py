"""The run store: locks, atomic files, damage, full disks, folders edited by hand."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import runfolders as rf
import torch

from experiments.cell import Outcome, describe, prepare, run_cell, run_folder
from experiments.runs import Run, RunError, effective_state, is_locked, read_json, read_metrics
from experiments.schema import Config, dump
from experiments.tasks import TASKS
from tests.toytask import ToyData, ToyTask, toy_config

CPU = torch.device("cpu")
LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import torch
from pathlib import Path
from experiments.runs import Run, RunError
run = Run(Path(sys.argv[1]), "", {"config_sha": "x"})
run.save_checkpoint({"step": 1})
run.save_checkpoint({"step": 2})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    run.save_checkpoint({"step": 3, "big": torch.zeros(1_000_000)})
except RunError as error:
    print(error)
print(run.load_checkpoint()["step"], sorted(p.name for p in run.folder.iterdir()))
"""


def open_run(folder: Path, cfg: Config) -> Run:
    return Run(folder, dump(cfg), describe(cfg, ToyData(cfg).source, folder.name, CPU, []))


@pytest.fixture
def cfg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setitem(TASKS, "toy", ToyTask())  # type: ignore[arg-type]
    return toy_config(tmp_path)


def test_a_live_lock_is_refused_and_names_its_holder(tmp_path: Path, cfg: Config) -> None:
    with open_run(tmp_path / "run", cfg):
        assert is_locked(tmp_path / "run")
        with pytest.raises(RunError, match=f"in use by process {os.getpid()}.*stop it first"):
            open_run(tmp_path / "run", cfg)
    assert not is_locked(tmp_path / "run")
    open_run(tmp_path / "run", cfg).__exit__()


def test_a_dead_process_leaves_no_lock(tmp_path: Path, cfg: Config) -> None:
    code = (
        "import os, sys; from pathlib import Path; from experiments.runs import Run;"
        "run = Run(Path(sys.argv[1]), '', {'config_sha': 'x'}); run.write_status('running'); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=False, timeout=60)
    assert read_json(tmp_path / "run" / "status.json")["state"] == "running"
    assert effective_state(tmp_path / "run") == "interrupted"
    (tmp_path / "run" / "meta.json").unlink()  # of another configuration
    with open_run(tmp_path / "run", cfg) as run:
        assert run.state() == "interrupted"


def test_status_of_a_live_run_is_running(tmp_path: Path, cfg: Config) -> None:
    with open_run(tmp_path / "run", cfg) as run:
        run.write_status("running", loss=float("inf"))
        assert effective_state(tmp_path / "run") == "running"
        assert read_json(tmp_path / "run" / "status.json")["loss"] is None


def test_the_newest_two_checkpoints_are_kept_and_a_damaged_one_falls_back(
    tmp_path: Path, cfg: Config, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("suite"), "propagate", True)
    with open_run(tmp_path / "run", cfg) as run:
        for step in (1, 2, 3):
            run.save_checkpoint({"step": step})
        assert sorted(p.name for p in run.folder.glob("*.pt")) == ["checkpoint.prev.pt", "checkpoint.pt"]
        newest = run.folder / "checkpoint.pt"
        newest.write_bytes(newest.read_bytes()[:100])
        payload = run.load_checkpoint()
        assert payload is not None and payload["step"] == 2
        assert f"{newest} cannot be used" in caplog.text and "trying the one before" in caplog.text
        run.save_checkpoint({"step": 4})
        (run.folder / "checkpoint.pt").unlink()  # killed between the two renames: the good one is still there
        payload = run.load_checkpoint()
        assert payload is not None and payload["step"] == 2
        (run.folder / "checkpoint.prev.pt").write_bytes(b"")
        assert run.load_checkpoint() is None
        assert "no usable checkpoint; starting from the beginning" in caplog.text


def test_checkpoints_hold_nothing_but_tensors_and_plain_python(tmp_path: Path, cfg: Config) -> None:
    outcome = Outcome(tmp_path / "sweep" / "0")
    assert run_cell(cfg, outcome, [], 1) == "done"
    folder = run_folder(cfg, ToyData(cfg).source)
    assert torch.load(folder / "checkpoint.pt", weights_only=True)["position"]["step"] == 20


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "run")], capture_output=True, text=True, timeout=60, check=True
    )
    message, state = done.stdout.strip().splitlines()
    assert message.startswith(f"cannot write {tmp_path / 'run' / 'checkpoint.pt'}")
    assert "last good checkpoint" in message
    assert state == "2 ['checkpoint.prev.pt', 'checkpoint.pt', 'config.yaml', 'lease', 'lock', 'meta.json']"


def test_a_full_disk_fails_the_run_in_one_line(tmp_path: Path, cfg: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **keywords: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", full)
        assert run_cell(cfg, Outcome(tmp_path / "sweep" / "0"), [], 1) == "failed"
    outcome = read_json(tmp_path / "sweep" / "0" / "outcome.json")
    assert "checkpoint.pt: No space left on device" in outcome["error"] and "\n" not in outcome["error"]
    assert read_json(Path(outcome["run"]) / "status.json")["state"] == "failed"
    assert run_cell(cfg, Outcome(tmp_path / "sweep" / "1"), [], 1) == "done"


def test_results_that_cannot_be_written(tmp_path: Path, cfg: Config) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    assert run_cell(cfg, Outcome(tmp_path / "sweep" / "0"), [], 1) == "failed"
    assert "cannot create" in read_json(tmp_path / "sweep" / "0" / "outcome.json")["error"]


def test_a_cut_off_last_line_is_forgotten(tmp_path: Path, cfg: Config) -> None:
    with open_run(tmp_path / "run", cfg) as run:
        rows = rf.rows({("valid", "loss"): [0.5, 0.25]}, every=1)
        run.log([rows[0], {**rows[1], "value": float("nan")}])
        with open(run.folder / "metrics.jsonl", "a") as handle:
            handle.write('{"step": 3, "val')
        assert [row["step"] for row in read_metrics(run.folder / "metrics.jsonl")] == [1, 2]
        run.rewind(1)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == json.dumps(rows[0]) + "\n"


@pytest.mark.parametrize("file", ["config.yaml", "meta.json"])
def test_a_folder_edited_by_hand_is_refused(tmp_path: Path, cfg: Config, file: str) -> None:
    folder = run_folder(cfg, ToyData(cfg).source)
    assert run_cell(cfg, Outcome(tmp_path / "sweep" / "0"), [], 1) == "done"
    path = folder / file
    if file == "config.yaml":
        path.write_text(path.read_text().replace("lr: 0.05", "lr: 0.06"))
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), "config_sha": "0" * 64}))
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "lock"}
    assert run_cell(cfg, Outcome(tmp_path / "sweep" / "1"), [], 1) == "failed"
    error = read_json(tmp_path / "sweep" / "1" / "outcome.json")["error"]
    assert "config.yaml no longer matches the hash" in error and "delete the folder" in error
    assert before == {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "lock"}


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_a_damaged_meta_or_status_is_named(tmp_path: Path, cfg: Config, text: str) -> None:
    folder = run_folder(cfg, ToyData(cfg).source)
    run_cell(cfg, Outcome(tmp_path / "sweep" / "0"), [], 1)
    (folder / "meta.json").write_text(text)
    assert run_cell(cfg, Outcome(tmp_path / "sweep" / "1"), [], 1) == "failed"
    assert "meta.json" in read_json(tmp_path / "sweep" / "1" / "outcome.json")["error"]


def test_a_finished_run_is_left_alone(tmp_path: Path, cfg: Config) -> None:
    assert run_cell(cfg, Outcome(tmp_path / "sweep" / "0"), [], 1) == "done"
    folder = run_folder(cfg, ToyData(cfg).source)
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir() if p.name != "lock"}
    assert run_cell(cfg, Outcome(tmp_path / "sweep" / "1"), [], 1) == "unchanged"
    assert before == {p.name: p.stat().st_mtime_ns for p in folder.iterdir() if p.name != "lock"}


def test_a_resumed_run_keeps_its_threads_and_notes_each_session(
    tmp_path: Path, cfg: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another number of threads rounds differently, so a resumed run would not be bit-equal."""
    cfg.threads = 0
    threads: list[int] = []
    task = ToyTask(on_step=lambda step: threads.append(torch.get_num_threads()))
    monkeypatch.setitem(TASKS, "toy", task)  # type: ignore[arg-type]
    monkeypatch.setattr("experiments.schema.cores", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with monkeypatch.context() as patched:
        patched.setattr(ToyTask, "evaluate", lambda *_: 1 / 0)
        assert run_cell(cfg, Outcome(tmp_path / "sweep" / "0"), [], jobs=2) == "failed"
    assert run_cell(cfg, Outcome(tmp_path / "sweep" / "1"), [], jobs=1) == "done"
    assert set(threads) == {1}
    meta = read_json(run_folder(cfg, ToyData(cfg).source) / "meta.json")
    assert [session["threads"] for session in meta["sessions"]] == [1, 1]
    assert {"commit", "dirty", "device", "started"} < set(meta["sessions"][0])


def test_a_run_that_diverged_says_why_and_says_it_again(tmp_path: Path, cfg: Config) -> None:
    cfg.task.bad_step = 12
    for number in ("0", "1"):
        run_cell(cfg, Outcome(tmp_path / "sweep" / number), [], 1)
        outcome = read_json(tmp_path / "sweep" / number / "outcome.json")
        assert outcome["state"] == "diverged" and "not finite at step 12" in outcome["error"]
    assert (Path(outcome["run"]) / "curve.png").exists()


def test_killed_at_the_pictures_they_are_made_by_the_next_start(
    tmp_path: Path, cfg: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("experiments.analysis.figures.run_curve", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        run_cell(cfg, Outcome(tmp_path / "sweep" / "0"), [], 1)
    assert run_cell(cfg, Outcome(tmp_path / "sweep" / "1"), [], 1) == "done"
    assert (run_folder(cfg, ToyData(cfg).source) / "curve.png").exists()


def test_stale_temporary_files_are_removed(tmp_path: Path, cfg: Config) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".checkpoint.pt.1.tmp").write_bytes(b"half")
    with open_run(tmp_path / "run", cfg) as run:
        assert not list(run.folder.glob(".*.tmp"))


def test_fail_fast_and_ctrl_c_skip_the_cells_that_have_not_begun(tmp_path: Path, cfg: Config) -> None:
    cfg.fail_fast = True
    (tmp_path / "runs").write_text("in the way")
    sweep = tmp_path / "sweep"
    assert run_cell(cfg, Outcome(sweep / "0"), [], 1) == "failed"
    (tmp_path / "runs").unlink()
    assert run_cell(cfg, Outcome(sweep / "1"), [], 1) == "skipped"


def test_a_crash_in_a_task_is_recorded_with_its_traceback(
    tmp_path: Path, cfg: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyTask, "evaluate", lambda *_: 1 / 0)
    assert run_cell(cfg, Outcome(tmp_path / "sweep" / "0"), [], 1) == "failed"
    outcome = read_json(tmp_path / "sweep" / "0" / "outcome.json")
    assert outcome["error"].startswith("ZeroDivisionError: division by zero (traceback: ")
    status = read_json(Path(outcome["run"]) / "status.json")
    assert status["state"] == "failed" and status["error"] == outcome["error"]
    assert "Traceback" in (Path(outcome["run"]) / "train.log").read_text()


@pytest.mark.parametrize(("threads", "load", "told"), [(2, 4.4, True), (2, 3.9, False), (1, 9.0, False)])
def test_several_threads_on_a_busy_machine_are_told_of(
    cfg: Config,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    threads: int,
    load: float,
    told: bool,
) -> None:
    monkeypatch.setattr("experiments.cell.cores", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    cfg.threads, before = threads, torch.get_num_threads()
    try:
        prepare(cfg, 1)
    finally:
        torch.set_num_threads(before)
    assert ("2 threads on a machine that is busy (load 4 on 2 cores)" in caplog.text) == told
