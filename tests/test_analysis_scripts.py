"""figures, compare and status as a user runs them."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import runfolders as rf

from experiments import grid
from experiments.analysis import groups
from experiments.analysis.collect import read_run
from scripts import compare, figures, status
from tests.commands import TASK_NAMES

METRICS = ("bound", "nll", "error")
SMALL = {("valid", "bound"): [9.0, 8.0, 7.0], ("test", "bound"): [9.0, 8.0, 7.0]}


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> list[rf.FakeCell]:
    """DRAW's cells at profile small, without composing configurations (that is the grid's own business)."""
    found = [rf.cell("draw", norm, 128, seed) for norm in ("none", "wn", "ln") for seed in range(2)]
    monkeypatch.setattr(groups, "experiment_cells", lambda name, profile: found if profile == "small" else [])
    return found


def places(root: Path) -> list[str]:
    """Arguments that keep everything below ``root``."""
    return ["--runs", str(root / "runs"), "--published", str(root / "published"), "--out", str(root / "out")]


def test_figures_draws_what_there_is_and_names_what_is_missing(
    tmp_path: Path, cells: list[rf.FakeCell], capsys: pytest.CaptureFixture[str]
) -> None:
    for cell in cells[:-1]:
        rf.write_run(tmp_path / "runs", cell, rf.rows(SMALL), data="bernoulli")
    assert figures.main(["--task", "draw", *places(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert [line.rpartition("/")[2] for line in out.splitlines()] == [
        "fig4_draw.png",
        "fig4_draw.pdf",
        "fig4_draw.csv",
    ]
    assert all(Path(line).is_file() for line in out.splitlines())
    assert "1 of 6 cells are not finished; all of them: make reproduce TASK=draw PROFILE=small" in err
    assert f"missing: norm=ln batch=128 seed=1: {cells[-1].command}" in err


def test_sources_and_profiles_do_not_overwrite_each_other(tmp_path: Path, cells: list[rf.FakeCell]) -> None:
    for data in ("bernoulli", "fixed"):
        rf.write_run(tmp_path / "runs", cells[0], rf.rows(SMALL), data=data)
    assert figures.main(places(tmp_path)) == 0
    assert compare.main(places(tmp_path)) == 0
    assert {p.parent.name for p in (tmp_path / "out").rglob("fig4_draw.png")} == {
        "small-bernoulli",
        "small-fixed",
    }
    assert {p.name for p in (tmp_path / "out").glob("draw*")} == {
        "draw.json", "draw-small-bernoulli.md", "draw-small-fixed.md",
    }  # fmt: skip
    rows = json.loads((tmp_path / "out" / "draw.json").read_text())
    assert {row["data_label"] for row in rows} == {"bernoulli", "fixed"}


def test_published_runs_are_enough(
    tmp_path: Path, cells: list[rf.FakeCell], capsys: pytest.CaptureFixture[str]
) -> None:
    for cell in cells:
        rf.write_run(tmp_path / "published", cell, rf.rows(SMALL))
    assert figures.main(["TASK=draw", "PROFILE=small", "SEEDS=", *places(tmp_path)]) == 0
    assert compare.main(["TASK=draw", *places(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "draw: profile small, data: binarized MNIST" in out
    assert out.splitlines()[-2:] == [str(tmp_path / "out" / name) for name in ("draw-small-fixed.md", "draw.json")]


def test_runs_with_other_settings_are_told(
    tmp_path: Path, cells: list[rf.FakeCell], capsys: pytest.CaptureFixture[str]
) -> None:
    rf.write_run(tmp_path / "runs", rf.cell("draw", "ln", 64, 0), rf.rows(SMALL))
    assert figures.main(["--task", "draw", *places(tmp_path)]) == 1
    told = "1 runs of draw at profile small (fixed) fit no cell of fig4_draw"
    assert told in capsys.readouterr().err
    rf.write_run(tmp_path / "runs", cells[0], rf.rows(SMALL))
    assert figures.main(["--task", "draw", *places(tmp_path)]) == 0
    assert told in capsys.readouterr().err, "told as well when others do fit"


@pytest.mark.parametrize("script", [figures, compare])
def test_nothing_at_all_is_one_line(tmp_path: Path, script: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--task", "pi_mnist", "--profile", "smoke", *places(tmp_path)]) == 1  # type: ignore[attr-defined]
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("error: nothing to") and "make reproduce TASK=pi_mnist PROFILE=smoke" in err
    assert not (tmp_path / "out").exists()


def test_nothing_logged_yet_is_not_drawn(
    tmp_path: Path, cells: list[rf.FakeCell], capsys: pytest.CaptureFixture[str]
) -> None:
    rf.write_run(tmp_path / "runs", cells[0], [], state="failed")
    assert figures.main(["--task", "draw", *places(tmp_path)]) == 1
    assert "nothing logged, not drawn" in capsys.readouterr().err


@pytest.mark.parametrize("script", [figures, compare, status])
@pytest.mark.parametrize(
    ("argument", "names"),
    [
        ("--task=drww", TASK_NAMES),
        ("PROFILE=smal", "small"),
        ("SEEDS=abc", "whole numbers"),
        ("FOO=1", "TASK"),
        ("--nonsense", "unrecognized arguments"),
    ],
)
def test_wrong_choice_names_the_valid_ones(
    script: object, argument: str, names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        script.main([argument])  # type: ignore[attr-defined]
    err = capsys.readouterr().err
    assert exit.value.code == 2 and err.count("\n") == 1 and names in err


@pytest.mark.parametrize("file", ["meta.json", "status.json"])
def test_a_damaged_folder_costs_one_line(
    tmp_path: Path, file: str, cells: list[rf.FakeCell], capsys: pytest.CaptureFixture[str]
) -> None:
    for cell in cells:
        folder = rf.write_run(tmp_path / "runs", cell, rf.rows(SMALL))
    (folder / file).write_text("{")
    for script in (figures, compare, status):
        capsys.readouterr()
        assert script.main(["--task", "draw", *places(tmp_path)]) == 0
        out, err = capsys.readouterr()
        warnings = [line for line in err.splitlines() if line.startswith("warning")]
        assert len(warnings) == 1 and folder.name in warnings[0] and file in warnings[0]
        shown = [line for line in out.splitlines() if line.startswith(f"  {folder.name}  damaged: {file}")]
        assert len(shown) == (script is status)


def test_cells_of_the_real_grid_find_their_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that training made is found by the hash of its configuration."""
    for cell in groups.experiment_cells("fig6_pi_mnist", "smoke"):
        fake = rf.FakeCell(
            cell.task, cell.norm, cell.batch_size, cell.seed, cell.profile, cell.config_sha, cell.command
        )
        series = {("train", "nll"): [1.0, 0.1], ("test", "error"): [9.0, 5.0], ("valid", "error"): [9.0, 5.5]}
        rf.write_run(tmp_path / "runs", fake, rf.rows(series, unit="percent"), data="mnist")
    assert figures.main(["--task", "pi_mnist", *places(tmp_path)]) == 0
    assert compare.main(["--task", "pi_mnist", *places(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows = json.loads((tmp_path / "out" / "pi_mnist.json").read_text())
    assert {row["n_seeds"] for row in rows} == {3}
    assert {row["verdict"] for row in rows} == {
        "not comparable",
        "inconclusive",
    }  # all norms alike: no direction


def write_cells(root: Path, experiment: str, norms: list[str], seeds: list[int], data: str) -> None:
    """Runs that training would make for these cells at profile smoke, at all the experiment's batch sizes."""
    values = {(split, metric): [9.0, 8.0] for split in ("train", "valid", "test") for metric in METRICS}
    for cell in grid.cells(experiment, "smoke", norms=norms, seeds=seeds):
        fake = rf.cell(cell.task, cell.norm, cell.batch_size, cell.seed, cell.profile)
        rf.write_run(root / "runs", replace(fake, config_sha=cell.config_sha), rf.rows(values), data=data)


def drawn(root: Path, name: str) -> pd.DataFrame:
    """The numbers of the one figure there is."""
    (path,) = (root / "out").rglob(f"{name}.csv")
    return pd.read_csv(path)


def test_further_seeds_are_drawn_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cells(tmp_path, "fig4_draw", ["none", "wn", "ln"], [0, 1, 2, 3, 4], "fixed")
    assert figures.main(["--task", "draw", *places(tmp_path)]) == 0
    assert compare.main(["--task", "draw", *places(tmp_path)]) == 0
    assert capsys.readouterr().err == ""
    assert set(drawn(tmp_path, "fig4_draw")["seed"]) == {0, 1, 2, 3, 4}
    rows = json.loads((tmp_path / "out" / "draw.json").read_text())
    assert {row["n_seeds"] for row in rows} == {5} and not any("without seed" in row["reason"] for row in rows)


def test_a_further_norm_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cells(tmp_path, "fig6_pi_mnist", ["wn", "ln"], [0], "mnist")
    assert figures.main(["--task", "pi_mnist", *places(tmp_path)]) == 0
    table = drawn(tmp_path, "fig6_pi_mnist")
    assert set(table["norm"]) == {"wn", "ln"} and set(table["panel"]) == {1, 2, 3, 4}
    err = capsys.readouterr().err
    assert "16 of 20 cells are not finished" in err and "norm=wn" not in err, "only what is published can be missing"


def test_a_seed_of_ones_own_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cells(tmp_path, "fig4_draw", ["none", "wn", "ln"], [7], "fixed")
    assert figures.main(["--task", "draw", *places(tmp_path)]) == 0
    assert compare.main(["--task", "draw", *places(tmp_path)]) == 0
    assert set(drawn(tmp_path, "fig4_draw")["seed"]) == {7}
    rows = json.loads((tmp_path / "out" / "draw.json").read_text())
    assert {tuple(row["seeds"]) for row in rows} == {(7,)} and "without seeds 0, 1, 2" in rows[0]["reason"]
    assert "9 of 12 cells are not finished" in capsys.readouterr().err


def test_status_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = {"split": "valid", "metric": "bound", "value": 150.25, "step": 20}
    rf.write_run(tmp_path / "runs", rf.cell("draw", "ln", 128, 0), rf.rows(SMALL), best=best)
    rf.write_run(tmp_path / "runs", rf.cell("draw", "ln", 128, 1), rf.rows(SMALL), state="running")
    rf.write_run(tmp_path / "runs", rf.cell("draw", "ln", 128, 2), [], state="failed", error="ValueError: no\nmore")
    rf.write_run(tmp_path / "published", rf.cell("draw", "ln", 128, 0), rf.rows(SMALL), best=best)
    assert status.main(places(tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "pi_mnist: 0 runs; published: none" in lines
    lines = lines[lines.index("draw: 3 runs; published: 1 at small (fixed)") :]
    assert ["done", "100 %", "valid bound 150.2"] == [part for part in lines[2].split("  ") if part][1:4]
    assert "interrupted" in lines[3] and " 50 %" in lines[3]
    assert "failed" in lines[4] and lines[5].strip() == "ValueError: no"
    assert max(map(len, lines)) <= 110


def test_status_times(tmp_path: Path) -> None:
    folder = rf.write_run(tmp_path, rf.cell(), rf.rows(SMALL), updated="2026-01-02T03:04:05Z")
    now = datetime.datetime(2026, 1, 2, 3, 9, 5, tzinfo=datetime.UTC)
    assert status.updated(read_run(folder).status, now) == "5 min ago"
    assert status.updated({"updated": "soon"}, now) == status.updated({}, now) == "-"
    assert [status.duration(s) for s in (-1, 59, 60, 7200, 3 * 86400)] == [
        "0 s",
        "59 s",
        "1 min",
        "2 h",
        "3 d",
    ]
    assert status.percent({"step": 0, "total_steps": 10}) == "0 %" and status.percent({}) == "-"
