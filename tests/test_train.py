"""``python -m experiments.train`` as a user meets it: in processes of its own, killed, interrupted, side by side."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from data.processors import cores
from experiments.cluster import cells_beside
from experiments.runs import effective_state, read_json, read_metrics
from experiments.train import report

ROOT = Path(__file__).resolve().parent.parent
CELL = ["task=pi_mnist", "profile=smoke", "device=cpu", "threads=1"]
LAUNCHER = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
LONG = ["train.budget=600", "train.eval_every=15", "train.checkpoint_seconds=0.1"]  # 2,400 steps
SIDE_BY_SIDE = ["-m", *CELL, "seed=0,1", "train.budget=1e6", "train.eval_every=60"]


def start(results: Path, *arguments: str, cwd: Path = ROOT) -> subprocess.Popen[str]:
    environment = {**os.environ, "LN_RESULTS": str(results), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.train", *arguments],
        env=environment,
        cwd=cwd,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out + err


def train(results: Path, *arguments: str, cwd: Path = ROOT) -> tuple[int, str]:
    return finish(start(results, *arguments, cwd=cwd))


def folders(results: Path) -> list[Path]:
    return sorted((results / "runs" / "pi_mnist").glob("*"))


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline
        time.sleep(0.02)


def numbers(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k != "train_seconds"} for r in read_metrics(folder / "metrics.jsonl")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of an uninterrupted run, started from another working directory."""
    results = tmp_path_factory.mktemp("whole")
    code, output = train(results, *CELL, *LONG, "norm=bn", cwd=results)
    assert code == 0, output
    assert "[1/1] pi_mnist bn batch 128 seed 0: done after" in output
    assert not list((results / "sweeps").iterdir()), "nothing is left of the sweep"
    assert sorted(p.name for p in results.iterdir()) == ["runs", "sweeps"]
    return folders(results)[0]


def same(folder: Path, other: Path) -> None:
    assert numbers(folder) == numbers(other)
    ours, theirs = (torch.load(f / "checkpoint.pt", weights_only=True) for f in (folder, other))
    assert ours["position"]["step"] == theirs["position"]["step"] == 2400
    assert all(torch.equal(ours["model"][k], theirs["model"][k]) for k in theirs["model"])


def test_killed_and_started_again_it_ends_in_the_same_bits(tmp_path: Path, whole: Path) -> None:
    for steps in (60, 360):
        process = start(tmp_path, *CELL, *LONG, "norm=bn")

        def far_enough(steps: int = steps) -> bool:
            return any(row["step"] >= steps for f in folders(tmp_path) for row in read_metrics(f / "metrics.jsonl"))

        wait_for(far_enough, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert effective_state(folders(tmp_path)[0]) == "interrupted"
    code, output = train(tmp_path, *CELL, *LONG, "norm=bn")
    assert code == 0, output
    assert "resumed at step" in (folders(tmp_path)[0] / "train.log").read_text()
    same(folders(tmp_path)[0], whole)


def test_ctrl_c_saves_and_leaves_interrupted(tmp_path: Path, whole: Path) -> None:
    process = start(tmp_path, *CELL, *LONG, "norm=bn")
    wait_for(lambda: [f for f in folders(tmp_path) if (f / "metrics.jsonl").exists()], process)
    os.killpg(process.pid, signal.SIGINT)
    code, output = finish(process)
    assert code == 130, output
    assert "Traceback" not in output and "start the same command again to resume" in output
    assert read_json(folders(tmp_path)[0] / "status.json")["state"] == "interrupted"
    code, output = train(tmp_path, *CELL, *LONG, "norm=bn")
    assert code == 0, output
    same(folders(tmp_path)[0], whole)


def test_a_second_start_changes_nothing(whole: Path) -> None:
    before = {p.name: p.stat().st_mtime_ns for p in whole.iterdir() if p.name != "lock"}
    started = time.monotonic()
    code, output = train(whole.parents[2], *CELL, *LONG, "norm=bn")
    assert code == 0 and "was finished before" in output
    assert time.monotonic() - started < 60
    assert before == {p.name: p.stat().st_mtime_ns for p in whole.iterdir() if p.name != "lock"}


def test_a_sweep_reports_the_cell_that_fails_and_finishes_the_others(tmp_path: Path) -> None:
    """Cells side by side; one is locked by another process, one diverges."""
    sweep = ["-m", *CELL, "norm=none,ln", "train.lr=1e-3", "train.budget=1"]
    code, output = train(tmp_path, *sweep)
    assert code == 0, output
    (locked,) = [f for f in folders(tmp_path) if f.name.startswith("ln")]
    for path in locked.iterdir():
        if path.name != "lock":
            path.unlink()
    with open(locked / "lock") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        sweep[-2] = "train.lr=1e-3,1e37"
        code, output = train(tmp_path, *sweep, *LAUNCHER)
    assert code == 1, output
    assert "error: pi_mnist ln batch 128 seed 0 failed: " in output and "is in use by" in output
    assert "diverged: a loss, gradient, weight or evaluated value is not finite" in output
    assert "Traceback" not in output
    states = {(f.name[:4], read_json(f / "status.json").get("state")) for f in folders(tmp_path)}
    assert ("none", "done") in states and ("none", "diverged") in states
    code, output = train(tmp_path, *sweep)
    assert code == 3, output


def test_a_worker_that_is_killed_is_told_of(tmp_path: Path) -> None:
    process = start(tmp_path, *SIDE_BY_SIDE, *LAUNCHER)
    wait_for(lambda: [f for f in folders(tmp_path) if read_json(f / "status.json").get("step")], process)
    worker = next(p for f in folders(tmp_path) if (p := read_json(f / "status.json").get("pid")))
    assert worker != process.pid
    os.kill(worker, signal.SIGKILL)
    code, output = finish(process)
    assert code == 1 and "error: the sweep broke off" in output and "its process died" in output, output
    assert "Traceback" not in output.split("error: ", 1)[1]
    assert "interrupted" in {effective_state(f) for f in folders(tmp_path)}


def test_sigterm_of_the_parent_stops_its_workers_too(tmp_path: Path) -> None:
    process = start(tmp_path, *SIDE_BY_SIDE, *LAUNCHER)
    wait_for(lambda: len([f for f in folders(tmp_path) if read_json(f / "status.json").get("step")]) == 2, process)
    os.kill(process.pid, signal.SIGTERM)
    code, output = finish(process)
    assert code == 130, output
    assert [read_json(f / "status.json")["state"] for f in folders(tmp_path)] == ["interrupted"] * 2


def test_fail_fast_starts_no_further_cell(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    code, output = train(tmp_path, "-m", *CELL, "seed=0,1,2", "fail_fast=true")
    assert code == 1
    assert output.count("failed: cannot create") == 1 and output.count("skipped") == 2, output


def test_an_error_that_cells_share_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    errors = ["data are gone", "data are gone", "disk is full"]
    outcomes = {i: {"state": "failed", "name": f"seed {i}", "error": error} for i, error in enumerate(errors)}
    assert report(outcomes, 3) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: seed 0 and 1 more failed: data are gone",
        "error: seed 2 failed: disk is full",
    ]


def test_a_misspelt_ln_data_is_told_before_any_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LN_DATA", str(tmp_path / "nowhere"))
    code, output = train(tmp_path, "-m", *CELL, "seed=0,1,2")
    assert code == 1 and output.strip() == (
        f"error: LN_DATA={tmp_path / 'nowhere'}: no such folder; correct it or unset LN_DATA"
    )
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_two_processes_never_share_a_run(tmp_path: Path) -> None:
    endless = ["train.budget=1e6", "train.eval_every=60"]
    first = start(tmp_path, *CELL, *endless)
    wait_for(lambda: [f for f in folders(tmp_path) if (f / "metrics.jsonl").exists()], first)
    code, output = train(tmp_path, *CELL, *endless)
    assert code == 1 and f"is in use by process {first.pid}" in output
    os.killpg(first.pid, signal.SIGINT)
    finish(first)


def test_results_in_the_way_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, output = train(tmp_path / "file", *CELL)
    assert code == 1 and output.strip().startswith("error: cannot create") and "Traceback" not in output


def test_bad_input_exits_2_and_writes_nothing(tmp_path: Path) -> None:
    code, output = train(tmp_path, "task=draw", "+task.glmpses=3")
    assert code == 2 and not list(tmp_path.iterdir())
    assert output.strip().splitlines() == [
        "error: unknown key task.glmpses; did you mean task.glimpses? (all keys: configs/config.yaml and configs/task)"
    ]


def test_damaged_data_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mnist").mkdir()
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"):
        (tmp_path / "mnist" / name).write_bytes(b"\x00\x00\x08\x01")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"\x00\x00\x08\x01")
    monkeypatch.setenv("LN_DATA", str(tmp_path))
    code, output = train(tmp_path / "results", *CELL)
    assert code == 1 and "Traceback" not in output
    assert "mnist" in output and not (tmp_path / "results" / "runs").exists()


def test_jobs_side_by_side() -> None:
    assert [cells_beside({"n_jobs": n}) for n in (None, 0, 1, 3, -1)] == [1, 1, 1, 3, cores()]


def test_hydras_own_flags_work(tmp_path: Path) -> None:
    code, output = train(tmp_path, "--cfg", "job", "task=draw", "profile=paper")
    assert code == 0 and "glimpses: 64" in output and not list(tmp_path.iterdir())


def test_meta_tells_what_made_the_run(whole: Path) -> None:
    meta = json.loads((whole / "meta.json").read_text())
    assert meta["task"] == "pi_mnist" and meta["norm"] == "bn" and meta["threads"] == 1 and meta["device"] == "cpu"
    assert set(meta["versions"]) == {"torch", "torchvision", "numpy", "hydra-core", "python"}
    assert meta["data"]["kind"] in ("original", "mirror") and len(meta["data"]["fingerprint"]) == 64
    assert meta["parameters"] == 784 * 32 + 32 * 32 + 32 * 10 + 2 * (32 + 32 + 10)
    assert meta["started"] <= meta["ended"] and "norm=bn" in meta["overrides"]
    assert whole.name.endswith(meta["identity"][:8])
    row = read_metrics(whole / "metrics.jsonl")[0]
    assert set(row) == {"step", "examples", "epoch", "train_seconds", "split", "metric", "unit", "value"}
