"""The loop with a final test: which weights are selected, and that these alone are tested, once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.loop import weights as loaded_weights
from experiments.schema import Config
from experiments.tasks import TASKS
from experiments.tasks.base import Value
from tests.toytask import Killed, ToyConfig, ToyData, ToyTask, numbers, run, toy_config


@pytest.fixture(autouse=True)
def _toy_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "toy", ToyTask())  # type: ignore[arg-type]


class TestedToy(ToyTask):
    """The toy with a test of the selected weights; best is the evaluation whose weights sum up to ``target``."""

    __test__ = False  # no class of tests
    target = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.evaluated: list[torch.Tensor] = []
        self.tested: list[torch.Tensor] = []

    def evaluate(self, model: Any, data: ToyData, cfg: Config, seed: int) -> list[Value]:
        self.evaluated.append(model.weight.detach().clone())
        return [Value("valid", "loss", abs(float(model.weight.sum()) - self.target))]

    def test(self, model: Any, data: ToyData, cfg: Config, seed: int) -> list[Value]:
        assert not model.training and not torch.is_grad_enabled()
        self.tested.append(model.weight.detach().clone())
        return [Value("test", "loss", float("nan") if cfg.task.bad_value else float(model.weight.sum()))]


@pytest.fixture
def second_is_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Makes the second of four evaluations the best one; returns the weights at all of them."""
    pilot = TestedToy()
    run(toy_config(tmp_path), tmp_path / "pilot", pilot)
    monkeypatch.setattr(TestedToy, "target", float(pilot.evaluated[1].sum()))
    return pilot.evaluated


def test_only_the_selected_weights_are_tested_and_only_once(tmp_path: Path, second_is_best: list[torch.Tensor]) -> None:
    task = TestedToy()
    state, _, trainer = run(toy_config(tmp_path), tmp_path / "run", task)
    assert state == "done"
    (weights,) = task.tested
    assert torch.equal(weights, second_is_best[1])
    rows = [row for row in numbers(tmp_path / "run") if row["split"] == "test"]
    assert [(row["step"], row["value"]) for row in rows] == [(20, float(weights.sum()))]
    assert torch.equal(trainer.model.weight, weights), "pictures show the selected weights"  # type: ignore[arg-type]
    saved = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert torch.equal(saved["model"]["weight"], second_is_best[3]), "a checkpoint goes on from the last ones"
    assert torch.equal(saved["selected"]["weight"], weights)
    assert torch.equal(loaded_weights(tmp_path / "run" / "checkpoint.pt")["weight"], weights)


def test_the_first_of_equally_good_weights_is_selected(tmp_path: Path) -> None:
    class Tied(TestedToy):
        def evaluate(self, *args: Any) -> list[Value]:
            super().evaluate(*args)
            return [Value("valid", "loss", (3.0, 2.0, 2.0, 4.0)[len(self.evaluated) - 1])]

    task = Tied()
    _, _, trainer = run(toy_config(tmp_path), tmp_path / "run", task)
    assert not torch.equal(task.evaluated[1], task.evaluated[2])
    assert torch.equal(task.tested[0], task.evaluated[1]), "only what is strictly better takes its place"
    assert trainer.at.best is not None and (trainer.at.best["step"], trainer.at.best["value"]) == (10, 2)


@pytest.mark.parametrize("kill_at", [3, 9, 10, 11, 19])
def test_a_resumed_run_tests_the_same_weights(tmp_path: Path, second_is_best: list[torch.Tensor], kill_at: int) -> None:
    cfg = toy_config(tmp_path, checkpoint_seconds=1e-9)
    run(cfg, tmp_path / "whole", TestedToy())

    def die(step: int) -> None:
        if step == kill_at:
            raise Killed

    dying = TestedToy()
    dying.on_step = die
    with pytest.raises(Killed):
        run(cfg, tmp_path / "killed", dying)
    assert not dying.tested
    task = TestedToy()
    assert run(cfg, tmp_path / "killed", task)[0] == "done"
    assert len(task.tested) == 1 and torch.equal(task.tested[0], second_is_best[1])
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")


def test_a_task_that_selects_nothing_tests_its_last_weights(tmp_path: Path, second_is_best: list[torch.Tensor]) -> None:
    class Last(TestedToy):
        selects = False

    task = Last()
    assert run(toy_config(tmp_path), tmp_path / "run", task)[0] == "done"
    (weights,) = task.tested
    assert torch.equal(weights, second_is_best[3])
    saved = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert "selected" not in saved and torch.equal(saved["model"]["weight"], weights)
    assert [row["step"] for row in numbers(tmp_path / "run") if row["split"] == "test"] == [20]


def test_a_test_value_that_is_not_finite_ends_as_diverged(tmp_path: Path) -> None:
    cfg = dataclasses.replace(toy_config(tmp_path), task=ToyConfig(bad_value=True))
    assert run(cfg, tmp_path / "run", TestedToy())[0] == "diverged"


def test_a_task_without_a_final_test_keeps_no_second_copy_of_its_weights(tmp_path: Path) -> None:
    run(toy_config(tmp_path), tmp_path / "run")
    saved = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert "selected" not in saved
    assert torch.equal(loaded_weights(tmp_path / "run" / "checkpoint.pt")["weight"], saved["model"]["weight"])
