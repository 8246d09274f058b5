"""Verdicts one can trust: for every row of every task, whatever its kind, and whatever the runs look like."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import runfolders as rf

from experiments.analysis import compare
from experiments.analysis.collect import collect
from experiments.analysis.groups import Group, groups
from tests.commands import TASK_NAMES

NO_PLACE = Path("/nonexistent")
COMPARED = [task for task in TASK_NAMES.split(", ") if (compare.PAPER / f"{task}.yaml").is_file()]
SEEDS = (0, 1, 2)


@pytest.fixture(autouse=True)
def no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "code_changed", lambda commit, task: None)


def settings(paper: dict[str, Any]) -> tuple[list[str], list[int]]:
    """The norms and batch sizes that a task's rows are about."""
    norms: set[str] = set()
    batches: set[int] = set()
    for row in paper["rows"]:
        norms |= {row[key] for key in ("norm", "against", "baseline", "candidate") if row.get(key)}
        norms |= set(row.get("baselines") or [])
        batches |= {row[key] for key in ("batch_size", "from_batch", "to_batch") if row.get(key)}
    return sorted(norms), sorted(batches, reverse=True) or [128]


def values(paper: dict[str, Any], norm: str) -> dict[tuple[str, str], list[float]]:
    """Curves of a norm on which the paper's way is gone: the printed values, or LN better and sooner than all."""
    curves: dict[tuple[str, str], list[float]] = {}
    for row in paper["rows"]:
        sign = 1.0 if row["better"] == "lower" else -1.0
        end = sign * (1.0 if norm == "ln" else 1.5)
        printed = [r["paper"] for r in paper["rows"]
                   if r["kind"] == "value" and r["metric"] == row["metric"] and r["norm"] == norm]  # fmt: skip
        if printed and printed[0] is not None:
            end = printed[0]
        lead = [end + sign * away for away in ((30, 0.001, 0.001, 0) if norm == "ln" else (30, 20, 10, 0))]
        curves.setdefault((row["split"], row["metric"]), lead)
    return curves


def group(root: Path, task: str, profile: str, data: str) -> Group:
    paper = compare.load_paper(task)
    norms, batches = settings(paper)
    cells = [
        rf.cell(task, norm, batch, seed, profile) for norm, batch, seed in itertools.product(norms, batches, SEEDS)
    ]
    for cell in cells:
        rf.write_run(root, cell, rf.rows(values(paper, cell.norm)), data=data)
    (made,) = groups(collect(root, NO_PLACE).runs, cells, task, profile)
    return made


@pytest.mark.parametrize("task", COMPARED)
def test_only_the_published_setting_on_real_data_matches(task: str, tmp_path: Path) -> None:
    paper = compare.load_paper(task)
    found = {}
    for profile, data in itertools.product(("paper", "medium"), ("fixed", "bernoulli")):
        place = tmp_path / f"{profile}-{data}"
        rows = [row for name in compare.experiments(paper)
                for row in compare.rows(paper, group(place / name, task, profile, data), name)]  # fmt: skip
        assert rows and all(row["n_seeds"] == len(SEEDS) for row in rows)
        found[profile, data] = [row["id"] for row in rows if row["verdict"] == "matches"]
    assert [where for where, ids in found.items() if ids] == [("paper", "fixed")]


def test_a_setting_that_the_paper_does_not_have_matches_nothing(tmp_path: Path) -> None:
    paper = compare.load_paper("attentive_reader")
    rows = [row for name in compare.experiments(paper)
            for row in compare.rows(paper, group(tmp_path / name, paper["task"], "paper", "fixed"), name)]  # fmt: skip
    other = [row for row in rows if row["where"] and row["kind"] in ("order", "order_speed")]
    assert {row["verdict"] for row in other} == {"same direction"}
    said = "independent initial matrices, which the paper does not have, give a direction only"
    assert all(said in row["reason"] for row in other)
    assert any(row["verdict"] == "matches" for row in rows)


def test_seeds_that_disagree_about_a_printed_value(tmp_path: Path) -> None:
    made = group(tmp_path, "draw", "paper", "fixed")
    rows = {row["id"]: row for row in compare.rows(compare.load_paper("draw"), made)}
    assert rows["draw_bound_ln"]["verdict"] == "matches"
    run = next(run for run in made.runs if run.norm == "ln" and run.seed == 1)
    path = run.folder / "metrics.jsonl"
    path.write_text(path.read_text().replace(": 82.09", ": 83.09"))
    again = groups(collect(tmp_path, NO_PLACE).runs, made.own, "draw", "paper")[0]
    row = {row["id"]: row for row in compare.rows(compare.load_paper("draw"), again)}["draw_bound_ln"]
    assert row["median"] == 82.09 and row["verdict"] == "inconclusive"
    assert "but only 2 of 3 seeds are" in row["reason"]


def test_a_metric_missing_in_one_seed_is_said_and_decides_nothing(tmp_path: Path) -> None:
    made = group(tmp_path, "draw", "paper", "fixed")
    run = next(run for run in made.runs if run.norm == "ln" and run.seed == 1)
    path = run.folder / "metrics.jsonl"
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines() if "valid" not in line))
    again = groups(collect(tmp_path, NO_PLACE).runs, made.own, "draw", "paper")[0]
    rows = [row for row in compare.rows(compare.load_paper("draw"), again) if row["split"] == "valid"]
    assert {row["verdict"] for row in rows} == {"inconclusive"}
    assert all("valid bound was not logged by ln batch 128 seed 1" in row["reason"] for row in rows)


@pytest.mark.parametrize(("origin", "norm"), [("runs", "ln"), ("published", "ln"), ("published", "wn")])
def test_a_stale_row_names_the_command_that_renews_it(
    origin: str, norm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "code_changed", lambda commit, task: True)
    cells = [rf.cell("draw", "none"), rf.cell("draw", norm)]
    for cell in cells:
        rf.write_run(tmp_path / origin, cell, rf.rows({("test", "bound"): [9.0]}))
    runs = collect(tmp_path / "runs", tmp_path / "published").runs
    (made,) = groups(runs, [cell for cell in cells if cell.norm != "wn"], "draw", "small", cells)
    said = compare.renew(made.runs, made)
    assert said.endswith("make reproduce TASK=draw PROFILE=small" + (" NORM=wn" if norm == "wn" else ""))
    assert said.startswith("delete runs/draw/{") == (origin == "runs")
    (row,) = [row for row in compare.rows(compare.load_paper("draw"), made) if row["id"] == "draw_bound_none"]
    assert row["code_changed"] and row["renew"] and row["renew"] in row["reason"]
