"""The loop: exact resume, a clock that stands still, budgets, divergence."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.loop import initial_model
from experiments.runs import Run, read_json
from experiments.tasks import TASKS
from tests.toytask import CPU, Killed, ToyTask, final_model, numbers, run, toy_config


@pytest.fixture(autouse=True)
def _toy_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "toy", ToyTask())  # type: ignore[arg-type]


@pytest.mark.parametrize("eval_every", [1, 0.4, 1.3])
@pytest.mark.parametrize("kill_at", [1, 4, 5, 6, 13, 19, 20])
def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path, kill_at: int, eval_every: float) -> None:
    cfg = toy_config(tmp_path, eval_every=eval_every, checkpoint_seconds=1e-9)
    state, whole, _ = run(cfg, tmp_path / "whole")
    assert state == "done"

    def die(step: int) -> None:
        if step == kill_at:
            raise Killed

    task = ToyTask(on_step=die)
    with pytest.raises(Killed):
        run(cfg, tmp_path / "killed", task)
    state, rest, _ = run(cfg, tmp_path / "killed")
    assert state == "done"
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")
    assert rest.seen == whole.seen[kill_at - 1 :], "the same batches in the same order"
    ours, theirs = final_model(tmp_path / "killed"), final_model(tmp_path / "whole")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_killed_between_metrics_and_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = toy_config(tmp_path)
    run(cfg, tmp_path / "whole")
    saves = []

    def save_twice(self: Run, payload: Any) -> None:
        saves.append(1)
        if len(saves) == 3:
            raise Killed
        original(self, payload)

    original = Run.save_checkpoint
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Run, "save_checkpoint", save_twice)
        run(cfg, tmp_path / "killed")
    assert numbers(tmp_path / "killed")[-1]["step"] == 15, "metrics of step 15 are there, its checkpoint is not"
    run(cfg, tmp_path / "killed")
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")


@pytest.mark.parametrize(("line", "resumed"), [(5, 10), (2, 0)], ids=["the one before", "none"])
@pytest.mark.parametrize(
    ("damage", "left"), [("gone", {5: 5, 2: 5}), ("garbled", {5: 4, 2: 1}), ("doubled", {5: 7, 2: 7})]
)
def test_a_log_damaged_below_its_checkpoint_loses_no_row(
    tmp_path: Path,
    line: int,
    resumed: int,
    damage: str,
    left: dict[int, int],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two rows at each of the steps 5, 10, 15; killed at 17. What was logged is made again, in the same bits."""
    monkeypatch.setattr(logging.getLogger("suite"), "propagate", True)
    cfg = toy_config(tmp_path)
    _, whole, _ = run(cfg, tmp_path / "whole")

    def die(step: int) -> None:
        if step == 17:
            raise Killed

    with pytest.raises(Killed):
        run(cfg, tmp_path / "run", ToyTask(on_step=die))
    path = tmp_path / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 6
    lines[line - 1] = {"gone": "", "garbled": "{\n", "doubled": 2 * lines[line - 1]}[damage]
    path.write_text("".join(lines))
    state, data, _ = run(cfg, tmp_path / "run")
    assert state == "done" and numbers(tmp_path / "run") == numbers(tmp_path / "whole")
    assert f"metrics.jsonl holds {left[line]} of the 6 rows up to step 15); trying the one before" in caplog.text
    assert ("no usable checkpoint; starting from the beginning" in caplog.text) == (resumed == 0)
    assert len(data.seen) == 20 - resumed
    ours, theirs = final_model(tmp_path / "run"), final_model(tmp_path / "whole")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_checkpoint_that_did_not_count_rows_is_resumed(tmp_path: Path) -> None:
    cfg = toy_config(tmp_path)
    run(cfg, tmp_path / "whole")

    def die(step: int) -> None:
        if step == 17:
            raise Killed

    with pytest.raises(Killed):
        run(cfg, tmp_path / "run", ToyTask(on_step=die))
    payload = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert payload["position"].pop("rows") == 6
    torch.save(payload, tmp_path / "run" / "checkpoint.pt")
    assert len(run(cfg, tmp_path / "run")[1].seen) == 5
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")
    rows = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["position"]["rows"]
    assert rows == len(numbers(tmp_path / "run")) == read_json(tmp_path / "run" / "status.json")["rows"]


def test_evaluating_more_often_changes_no_training(tmp_path: Path) -> None:
    run(toy_config(tmp_path, eval_every=1), tmp_path / "one")
    run(toy_config(tmp_path, eval_every=0.2), tmp_path / "five")
    often = {(r["step"], r["metric"]): r["value"] for r in numbers(tmp_path / "five") if r["split"] == "valid"}
    for row in numbers(tmp_path / "one"):
        if row["split"] == "valid":
            assert often[row["step"], row["metric"]] == row["value"]


def test_same_seed_same_bits_and_another_seed_differs(tmp_path: Path) -> None:
    cfg = toy_config(tmp_path)
    for name in ("a", "b"):
        run(cfg, tmp_path / name)
    cfg.seed = 1
    run(cfg, tmp_path / "c")
    assert numbers(tmp_path / "a") == numbers(tmp_path / "b")
    assert numbers(tmp_path / "a") != numbers(tmp_path / "c")


@pytest.mark.parametrize(
    ("train", "steps", "evaluated"),
    [
        ({}, 20, [5, 10, 15, 20]),
        ({"budget": 1.5}, 8, [5, 8]),  # 1.5 epochs of 5 steps: the first step at or past it, evaluated at the end
        ({"budget": 7, "budget_unit": "steps", "eval_every": 3}, 7, [3, 6, 7]),
        ({"batch_size": 3, "budget": 1}, 7, [7]),  # 20 = 6 * 3 + 2
    ],
)
def test_budgets(tmp_path: Path, train: dict[str, Any], steps: int, evaluated: list[int]) -> None:
    state, data, trainer = run(toy_config(tmp_path, **train), tmp_path / "run")
    assert (state, len(data.seen), trainer.total_steps()) == ("done", steps, steps)
    rows = numbers(tmp_path / "run")
    assert sorted({row["step"] for row in rows}) == evaluated
    assert rows[-1]["examples"] == sum(len(batch) for batch in data.seen)


def test_train_metrics_are_means_over_examples_since_the_last_evaluation(tmp_path: Path) -> None:
    cfg = toy_config(tmp_path, batch_size=3, budget=1, lr=1e-12)  # the model stands still; batches of 3 and 2
    _, data, trainer = run(cfg, tmp_path / "run")
    (row,) = [r for r in numbers(tmp_path / "run") if r["metric"] == "batch_loss"]
    from experiments.rng import derive

    total = 0.0
    model = initial_model(ToyTask(), cfg, CPU)
    for step, batch in enumerate(data.seen, 1):
        x_B3 = data.x_N3[batch]
        noise_B1 = torch.randn(len(batch), 1, generator=torch.Generator().manual_seed(derive(0, "noise", step)))
        total += (model(x_B3) - x_B3.sum(1, keepdim=True) + 0.1 * noise_B1).square().sum().item()
    assert row["value"] == pytest.approx(total / 20, rel=1e-5)


def test_the_clock_stands_still_during_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(self: ToyTask, *arguments: Any) -> Any:
        time.sleep(0.2)
        return original(self, *arguments)

    original = ToyTask.evaluate
    monkeypatch.setattr(ToyTask, "evaluate", slow)
    started = time.perf_counter()
    _, _, trainer = run(toy_config(tmp_path), tmp_path / "run")
    whole = time.perf_counter() - started
    assert whole > 0.8
    assert 0 < trainer.at.train_seconds < whole - 0.8 + 0.01


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    cfg = toy_config(tmp_path)
    cfg.task.bad_step = 12
    state, data, _ = run(cfg, tmp_path / "run")
    assert state == "diverged" and len(data.seen) == 12
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "diverged" and status["loss"] is None and "step 12" in status["error"]
    assert torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["position"]["step"] == 10
    assert all(torch.isfinite(value).all() for value in final_model(tmp_path / "run").values())


def test_a_gradient_that_is_not_finite_stops_the_run_before_it_moves_a_weight(tmp_path: Path) -> None:
    class Infinite(ToyTask):
        def loss(self, model: Any, batch: Any, cfg: Any, generator: Any) -> Any:
            loss = super().loss(model, batch, cfg, generator)
            if self.steps < 7:
                return loss
            root = (model.weight - model.weight.detach()).square().sum().sqrt()  # 0, with a slope of 0 * inf
            return dataclasses.replace(loss, mean=loss.mean + root)

    state, data, trainer = run(toy_config(tmp_path, clip=10.0, checkpoint_seconds=1e-9), tmp_path / "run", Infinite())
    assert state == "diverged" and len(data.seen) == 7
    assert all(torch.isfinite(value).all() for value in trainer.model.state_dict().values())


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    task = ToyTask()
    cfg = toy_config(tmp_path, checkpoint_seconds=1e-9)
    seen: list[Any] = []

    def break_a_weight(step: int) -> None:
        if step == 4:
            seen[0].data.fill_(float("nan"))

    task.on_step = break_a_weight
    model = task.model
    task.model = lambda *a: seen.append((m := model(*a)).weight) or m  # type: ignore[method-assign]
    state, data, _ = run(cfg, tmp_path / "run", task)
    assert state == "diverged" and len(data.seen) == 4
    assert torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["position"]["step"] == 3


def test_an_evaluated_value_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    cfg = toy_config(tmp_path)
    cfg.task.bad_value = True
    state, data, _ = run(cfg, tmp_path / "run")
    assert state == "diverged" and len(data.seen) == 5
    assert [r["value"] for r in numbers(tmp_path / "run") if r["split"] == "valid"] == [None]
    assert not (tmp_path / "run" / "checkpoint.pt").exists(), "a bad state is never saved over a good one"


def test_stop_saves_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.loop.STATUS_SECONDS", 0.0)
    cfg = toy_config(tmp_path)
    task = ToyTask()
    state, first, _ = run(cfg, tmp_path / "run", task, stop=lambda: task.steps >= 7)
    assert state == "interrupted" and len(first.seen) == 7
    state, rest, _ = run(cfg, tmp_path / "run")
    assert state == "done" and len(rest.seen) == 13
    run(cfg, tmp_path / "whole")
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")


def test_clipping_bounds_the_step(tmp_path: Path) -> None:
    """Adam is blind to the gradient's scale, except through eps: a tiny clip makes every step tiny."""
    initial = initial_model(ToyTask(), toy_config(tmp_path), CPU).state_dict()
    run(toy_config(tmp_path, clip=1e-12, budget=1), tmp_path / "clipped")
    run(toy_config(tmp_path, budget=1), tmp_path / "free")
    moved = {
        name: max((final_model(tmp_path / name)[k] - initial[k]).abs().max().item() for k in initial)
        for name in ("clipped", "free")
    }
    assert moved["clipped"] < 1e-4 < 0.1 < moved["free"]


def test_best_follows_the_selected_metric(tmp_path: Path) -> None:
    _, _, trainer = run(toy_config(tmp_path), tmp_path / "run")
    values = {r["step"]: r["value"] for r in numbers(tmp_path / "run") if r["split"] == "valid"}
    best = min(values, key=values.__getitem__)
    assert trainer.at.best == {"split": "valid", "metric": "loss", "value": values[best], "step": best}
