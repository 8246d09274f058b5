"""Cells on other engines: what is asked of them, and how the sweep ends whatever becomes of a cell.

SLURM is ``tests/fakeslurm.py`` under the real submitit. Ray is tried where ``make setup LAUNCHER=ray`` installed it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fakeslurm
import pytest

from data.processors import cores
from experiments import cluster, loop, train
from experiments.cell import Outcome, run_cell, run_folder
from experiments.machine import passed_environment
from experiments.runs import effective_state, is_locked, read_json
from experiments.schema import ConfigError
from experiments.tasks import TASKS
from scripts.checked import OptionError
from scripts.options import parse
from scripts.sweep import command
from tests.commands import ROOT, run
from tests.toytask import ToyData, ToyTask, toy_config

CELL = ["task=pi_mnist", "profile=smoke", "device=cpu"]


def words(*given: str, cells: int = 18) -> list[str]:
    """The launcher's overrides of a sweep, without ``hydra.launcher.``."""
    found = command(parse("sweep", ["TASK=pi_mnist", "DEVICE=cpu", *given]), [], cells)
    return [word.lstrip("+").removeprefix("hydra.launcher.") for word in found if "hydra" in word]


def test_make_variables_become_the_launchers_settings() -> None:
    assert words("JOBS=1") == [] and words("JOBS=3") == ["hydra/launcher=joblib", "n_jobs=3"]
    assert words("LAUNCHER=slurm") == ["hydra/launcher=slurm"]
    assert words("LAUNCHER=slurm", "GPUS=1", "JOBS=4", "LAUNCH=partition=gpu timeout_min=600") == [
        "hydra/launcher=slurm", "gpus_per_node=1", "array_parallelism=4", "partition=gpu", "timeout_min=600",
    ]  # fmt: skip
    assert words("LAUNCHER=ray", "GPUS=0.5", "LAUNCH=ray.remote.num_cpus=2", cells=1) == [
        "hydra/launcher=ray_cluster", "ray.remote.num_gpus=0.5", "ray.remote.num_cpus=2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("LAUNCHER=slrum", r"LAUNCHER=slrum is unknown \(did you mean slurm\?\); choose from: joblib, slurm, ray"),
        ("GPUS=1", "GPUS=1 does nothing with LAUNCHER=joblib: DEVICE chooses there"),
        ("LAUNCH=partition=gpu", "LAUNCH=partition=gpu does nothing with LAUNCHER=joblib; choose slurm or ray"),
        ("LAUNCHER=slurm GPUS=0.5", "GPUS=0.5 must be a whole number from 0 up, or with LAUNCHER=ray a part such as"),
        ("LAUNCHER=ray GPUS=-1", "GPUS=-1 must be"),
        ("LAUNCHER=ray JOBS=2", "JOBS=2 does nothing with LAUNCHER=ray, whose CPUs and GPUs decide"),
        ("LAUNCHER=slurm LAUNCH=gpu", "LAUNCH=gpu: 'gpu' is not key=value"),
        ("LAUNCHER=slurm LAUNCH=comment='x", "LAUNCH=comment='x cannot be read"),
    ],
)
def test_what_a_launcher_cannot_do_is_refused(given: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parse("sweep", ["TASK=pi_mnist", *given.split()])


def test_devices_of_other_hosts_are_not_asked_for_here(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("slurm", "ray"):
        assert parse("sweep", ["TASK=pi_mnist", "DEVICE=cuda", f"LAUNCHER={name}"]).device == "cuda"
    cell = [*CELL[:2], "device=cuda", "seed=0,1"]
    assert len(train.check([*cell, "hydra/launcher=slurm"], multirun=True)) == 2
    for here in ([*cell, "hydra/launcher=joblib"], cell):
        with pytest.raises(ConfigError, match="device=cuda, but torch finds no CUDA GPU here"):
            train.check(here, multirun=True)
    with pytest.raises(ConfigError, match="device=gpu is unknown"):
        train.check([*cell, "device=gpu", "hydra/launcher=slurm"], multirun=True)


def test_a_launcher_that_cannot_work_here_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="hydra/launcher=slurm: no sbatch and srun here; start it on a login node"):
        cluster.check("slurm")
    cluster.check("joblib")
    with pytest.raises(
        ConfigError, match="hydra.launcher.partitio: the launcher chosen by hydra/launcher= has no such"
    ):
        train.check([*CELL, "hydra/launcher=slurm", "hydra.launcher.partitio=gpu"], multirun=True)
    if not find_spec("ray"):
        with pytest.raises(ConfigError, match="ray that is not installed: make setup LAUNCHER=ray"):
            train.check([*CELL, "hydra/launcher=ray_cluster"], multirun=True)


def test_cores_of_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster.cells_beside({}) == 1
    monkeypatch.setattr(cluster, "cores", lambda: 16)
    for own in (1, 2, 5, 16, 32):
        beside = cluster.cells_beside({"cpus_per_task": own})
        assert 16 // beside <= own and (own > 16 or 16 // beside >= own / 2)
        assert cluster.cells_beside({"ray": {"remote": {"num_cpus": own}}}) == beside
    assert cores() >= 1


def test_what_goes_along_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LN_DATA", "/shared/data")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    passed = passed_environment()
    assert passed["LN_DATA"] == "/shared/data" and all(n.startswith("LN_") or n == "PYTHONPATH" for n in passed)


@pytest.mark.parametrize("alone", [False, True])
def test_a_signal_to_a_cell_of_an_engine_stops_that_cell_only(
    alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "STATUS_SECONDS", 0.0)
    task = ToyTask(on_step=lambda step: os.kill(os.getpid(), signal.SIGTERM) if step == 3 else None)
    monkeypatch.setitem(TASKS, "toy", task)  # type: ignore[arg-type]
    assert run_cell(toy_config(tmp_path), Outcome(tmp_path / "sweep" / "0", alone), [], 1) == "interrupted"
    assert (tmp_path / "sweep" / "stop").exists() is not alone


def test_a_cell_whose_time_is_up_is_queued_again_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """submitit's handler leaves the process by ``SystemExit`` after it has put the job back into the queue."""
    cfg = toy_config(tmp_path)
    folder = run_folder(cfg, ToyData(cfg).source)
    monkeypatch.setitem(TASKS, "toy", ToyTask(on_step=lambda step: sys.exit(-1) if step == 12 else None))  # type: ignore[arg-type]
    with pytest.raises(SystemExit):
        run_cell(cfg, Outcome(tmp_path / "sweep" / "0", True), [], 1)
    assert not is_locked(folder) and effective_state(folder) == "interrupted"
    monkeypatch.setitem(TASKS, "toy", ToyTask())  # type: ignore[arg-type]
    assert run_cell(cfg, Outcome(tmp_path / "sweep" / "0", True), [], 1) == "done"
    assert "resumed at step 10" in (folder / "train.log").read_text()


def test_outcomes_of_other_hosts_may_take_a_while_to_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(cluster, "SETTLE_SECONDS", 0.2)
    begun = time.monotonic()
    cluster.settle(tmp_path, 1)
    assert time.monotonic() - begun >= 0.2
    Outcome(tmp_path / "0").write("done", "a cell")
    monkeypatch.setattr(cluster, "SETTLE_SECONDS", 600.0)
    cluster.settle(tmp_path, 1)


def sweep(results: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    done = run(sys.executable, "-m", "experiments.train", "-m", *CELL, *arguments,
               timeout=600, env={**os.environ, "LN_RESULTS": str(results), **environment})  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def states(results: Path) -> dict[str, Any]:
    return {
        f.name.partition("-")[0]: read_json(f / "status.json")["state"] for f in (results / "runs/pi_mnist").iterdir()
    }


@pytest.mark.slow
def test_cells_as_jobs_of_submitit(tmp_path: Path) -> None:
    code, output = sweep(tmp_path, "norm=none,ln", "hydra/launcher=submitit_local")
    assert code == 0, output
    assert states(tmp_path) == {"none": "done", "ln": "done"} and "[2/2] pi_mnist" in output
    assert not list((tmp_path / "sweeps").iterdir()), "nothing is left of the sweep"


@pytest.mark.slow
def test_a_job_array_of_slurm_of_which_one_task_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher gives up at the first job without a result; the others go on and are told of."""
    place = fakeslurm.install(tmp_path / "bin")
    settings = {"gpus_per_node": 1, "partition": "gpu", "timeout_min": 30, "cpus_per_task": 1}
    launcher = ["hydra/launcher=slurm", *(f"hydra.launcher.{key}={value}" for key, value in settings.items())]
    path = f"{place}{os.pathsep}{os.environ['PATH']}"
    code, output = sweep(tmp_path / "results", "norm=none,bn,ln", *launcher, PATH=path, FAKE_SLURM_KILL="0")
    assert code == 1 and states(tmp_path / "results") == {"bn": "done", "ln": "done"}, output
    assert "error: the sweep broke off: UncompletedJobError: Job 4242_0" in output and "Traceback" not in output
    (logs,) = (Path(found) for found in re.findall(r"; logs: (\S+)", output))
    assert len(list(logs.glob("4242_*/*_log.out"))) == 2, "kept, since something went wrong"
    flags = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", (place / "script.sh").read_text(), re.MULTILINE))
    asked = {"array": "0-2%3", "gpus-per-node": "1", "partition": "gpu", "time": "30", "cpus-per-task": "1",
             "nodes": "1", "signal": "USR2@120", "mem": "8GB"}  # fmt: skip
    assert asked.items() <= flags.items()
    threads = {
        json.loads((f / "meta.json").read_text())["threads"] for f in (tmp_path / "results/runs/pi_mnist").iterdir()
    }
    assert threads == {1}, "those of cpus_per_task, not of the host"


def test_queued_jobs_are_found_and_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = fakeslurm.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    for number, state in ((0, "COMPLETED"), (1, "PENDING")):
        (place / f"state-{number}").write_text(state)
        job = tmp_path / "sweep" / ".submitit" / f"4242_{number}"
        job.mkdir(parents=True)
        (job / f"4242_{number}_submitted.pkl").touch()
    cluster.cancel_queued(tmp_path / "sweep")
    assert [(place / f"state-{number}").read_text() for number in (0, 1)] == ["COMPLETED", "CANCELLED"]
    cluster.wait_for_queued(tmp_path / "sweep")
    assert cluster.queued_jobs(tmp_path / "none") == []


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("ray"), reason="Ray is not installed: make setup LAUNCHER=ray")
def test_cells_as_tasks_of_a_ray_cluster(tmp_path: Path) -> None:
    code, output = sweep(tmp_path, "norm=none,ln", "hydra/launcher=ray_cluster", "hydra.launcher.ray.init.num_cpus=2")
    assert code == 0, output
    assert states(tmp_path) == {"none": "done", "ln": "done"}
    meta = [json.loads((f / "meta.json").read_text()) for f in (tmp_path / "runs/pi_mnist").iterdir()]
    assert {one["threads"] for one in meta} == {1} and ROOT.is_dir()
