"""``scripts.reproduce``: what it says before any work, and what its exit code stands for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments.schema import ConfigError
from scripts import compare, figures, get_data, reproduce
from scripts.options import parse


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever would fetch data or train fails the test."""

    def forbidden(*_: object) -> int:
        raise AssertionError("work was done")

    monkeypatch.setattr(reproduce, "launch", forbidden)
    monkeypatch.setattr(get_data, "get", forbidden)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["TASK=draw", "BATCH=60000"], "train.batch_size=60000"),
        (["TASK=all", "BATCH=1"], "train.batch_size=1"),  # not the first task, which is draw, but a later one objects
    ],
)
def test_what_cannot_work_is_said_before_any_work(
    words: list[str], said: str, no_work: None, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["reproduce", "PROFILE=smoke", *words])
    with pytest.raises(ConfigError, match=said):  # guarded: one line and exit code 2
        reproduce.main()
    assert not any(results.iterdir())


@pytest.mark.parametrize(("drawn", "compared", "code"), [(0, 0, 0), (1, 0, 1), (0, 1, 1)])
def test_a_figure_or_comparison_that_fails_is_in_the_exit_code(
    drawn: int, compared: int, code: int, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = parse("reproduce", ["TASK=draw", "PROFILE=smoke", "NORM=ln", "SEEDS=0", "DEVICE=cpu"])
    experiments = reproduce.composed("draw", options)
    monkeypatch.setattr(get_data, "get", lambda task: None)
    monkeypatch.setattr(reproduce, "launch", lambda words: 0)
    monkeypatch.setattr(reproduce, "report", lambda *_: 0)
    done = reproduce.Plan("fig4_draw", experiments["fig4_draw"], [], None)  # type: ignore[arg-type]
    monkeypatch.setattr(reproduce, "plan", lambda *_: done)
    monkeypatch.setattr(reproduce, "pictures", lambda *_: [])
    monkeypatch.setattr(figures, "main", lambda _, tell_missing: drawn)
    monkeypatch.setattr(compare, "main", lambda _, tell_missing: compared)
    assert reproduce.reproduce("draw", experiments, options) == code
