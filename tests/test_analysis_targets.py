"""Time to target: ratios by hand, misses, what was never logged, and baselines lent between experiments."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import runfolders as rf

from experiments.analysis.collect import collect
from experiments.analysis.groups import Group, groups
from experiments.analysis.targets import paces

BASE, AHEAD, NEVER = [9.0, 8.0, 7.0], [7.0, 6.0, 5.0], [9.0, 8.5, 7.5]  # at steps 10, 20, 30


def group(root: Path, curves: dict[str, list[list[float]]], **states: str) -> Group:
    """DRAW's runs at profile small: norm -> a curve per seed. ``ln0="diverged"`` sets a state."""
    cells = [rf.cell("draw", norm, 128, seed) for norm, seeds in curves.items() for seed in range(len(seeds))]
    for cell in cells:
        curve = curves[cell.norm][cell.seed]
        state = states.get(f"{cell.norm}{cell.seed}", "done")
        rf.write_run(root, cell, rf.rows({("valid", "bound"): curve} if curve else {}), state=state)
    (made,) = groups(collect(root, Path("/nonexistent")).runs, cells, "draw", "small")
    return made


def test_ratios_of_each_norm_seed_by_seed(tmp_path: Path) -> None:
    made = group(tmp_path, {"none": [BASE] * 3, "wn": [NEVER] * 3, "ln": [AHEAD, BASE, NEVER]})
    found = {pace.norm: pace for pace in paces([("fig4_draw", made)])}
    assert set(found) == {"wn", "ln"} and found["ln"].better == "lower" and found["ln"].metric == "bound"
    assert found["wn"].ratios == [math.inf] * 3 and found["wn"].median == math.inf
    assert found["ln"].ratios == pytest.approx([1 / 3, 1, math.inf]) and found["ln"].median == pytest.approx(1)
    assert [race.target for race in found["ln"].races.values()] == [7.0] * 3


def test_what_diverged_never_arrives_and_what_was_not_logged_says_nothing(tmp_path: Path) -> None:
    made = group(tmp_path, {"none": [BASE] * 3, "ln": [AHEAD, [], AHEAD]}, ln0="diverged", ln2="interrupted")
    (pace,) = paces([("fig4_draw", made)])
    assert sorted(pace.races) == [0, 1], "an unfinished run does not race"
    assert pace.ratios[0] == math.inf and math.isnan(pace.ratios[1]) and math.isnan(pace.median)


def test_an_experiment_borrows_the_baseline_of_its_kin_only(tmp_path: Path) -> None:
    main = group(tmp_path, {"none": [BASE], "ln": [AHEAD], "wn": [BASE]})
    arm = Group("draw", "small", "fixed", [], [pair for pair in main.found if pair[1].norm != "none"], [], [], [])
    assert len(paces([("main", main), ("arm", arm)])) == 2, "the same pair of runs is told once"
    assert [(pace.experiment, pace.norm) for pace in paces([("arm", arm), ("main", main)])] == [
        ("arm", "ln"), ("arm", "wn"),
    ]  # fmt: skip
    other = group(tmp_path / "other", {"none": [BASE]})
    stranger = Group("draw", "small", "fixed", [], [], [], [], [])
    assert paces([("arm", arm), ("other", stranger)]) == []
    assert paces([("only", other)]) == [], "the baseline does not race itself"
