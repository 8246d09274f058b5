"""Figure 1, Table 2 and the comparison of order-embeddings, from run folders written by hand."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runfolders as rf

from experiments import grid
from experiments.analysis import compare, figures, groups, report, tables
from experiments.analysis.collect import collect
from experiments.analysis.groups import Group
from scripts import readme_tables
from scripts import tables as command

PAPER = compare.load_paper("order_embeddings")
FIGURE, TABLE = grid.load_figure("fig1_order_embeddings"), grid.load_table("fig1_order_embeddings")
assert TABLE is not None
METRICS = [column["metric"] for column in TABLE["columns"]]

# Baseline: best sum of recalls at step 30 of 40; LN: at step 20.
SUMS = {"none": [150.0, 160.0, 190.0, 180.0], "ln": [170.0, 199.0, 198.0, 197.0]}
TESTED = {"none": 40.0, "ln": 42.0}


@pytest.fixture(autouse=True)
def no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "code_changed", lambda commit, task: None)


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> None:
    coco = {
        "kind": "original",
        "label": "coco",
        "name": "MS COCO",
        "detail": "the paper's; test: 5 folds of 1,000 images",
    }
    scenes = {"kind": "stand-in", "label": "scenes", "name": "scenes", "detail": "digits; test: 1 fold of 1,000 images"}
    monkeypatch.setitem(rf.SOURCES, "coco", coco)
    monkeypatch.setitem(rf.SOURCES, "scenes", scenes)


def cells(profile: str) -> list[rf.FakeCell]:
    return [rf.cell("order_embeddings", norm, 128, seed, profile) for norm in SUMS for seed in range(3)]


def write(root: Path, profile: str, data: str, sums: dict[str, list[float]] = SUMS, **states: str) -> list[Any]:
    """A run for each cell; the tested values of a seed are ``TESTED`` plus the seed."""
    for cell in cells(profile):
        curve = sums[cell.norm]
        records = rf.rows({("valid", "recall_sum"): curve, **{("valid", f"image_r{k}"): curve for k in (1, 5, 10)}})
        state = states.get(f"{cell.norm}{cell.seed}", "done")
        if state == "done":
            tested = rf.rows({("test", metric): [TESTED[cell.norm] + cell.seed] for metric in METRICS}, every=40)
            records += tested
        rf.write_run(root, cell, records, data=data, state=state)
    return cells(profile)


def group_of(root: Path, profile: str = "paper", data: str = "coco", **kwargs: Any) -> Group:
    wanted = write(root, profile, data, **kwargs)
    (group,) = groups.groups(collect(root, Path("/none")).runs, wanted, "order_embeddings", profile)
    return group


def rows_of(group: Group) -> dict[str, dict[str, Any]]:
    rows = compare.rows(PAPER, group)
    return {row["id"] + ("_seconds" if row["clock"] == "train_seconds" else ""): row for row in rows}


def test_the_printed_table_and_the_rows_held_against_it_are_the_same_numbers() -> None:
    printed = {row["norm"]: row["values"] for row in PAPER["table"] if row["norm"]}
    values = [row for row in PAPER["rows"] if row["kind"] == "value"]
    assert len(values) == 16
    for row in values:
        assert row["paper"] == printed[row["norm"]][row["metric"]], row["id"]
    for row in PAPER["rows"]:
        if row["kind"] == "difference":
            assert row["paper"] == pytest.approx(printed["ln"][row["metric"]] - printed["none"][row["metric"]])
    assert printed["ln"]["caption_r1"] == 48.5 and printed["none"]["image_mean_rank"] == 7.9
    assert set(printed["ln"]) == set(METRICS)


def test_time_to_best_compares_when_each_has_its_own_best(sources: None, tmp_path: Path) -> None:
    rows = rows_of(group_of(tmp_path))
    row = rows["oe_time_to_best"]
    assert row["ours"] == pytest.approx([20 / 30] * 3) and row["paper"] == 0.6
    assert (row["verdict"], row["unit"]) == ("matches", "of the baseline's time")
    assert row["details"][1] == {
        "seed": 1, "baseline": 30, "baseline_best": 190, "candidate": 20, "candidate_best": 199,
    }  # fmt: skip
    assert "none has its best valid recall_sum (190 / 190 / 190) at 30 / 30 / 30" in row["reason"]
    assert rows["oe_time_to_best_seconds"]["verdict"] == "same direction"
    assert rows["oe_time_to_best_seconds"]["ours"] == pytest.approx([4 / 6] * 3)
    assert report.what(row).startswith("LN's time to its best valid recall_sum as a share of the baseline's")


def test_later_than_the_baseline_is_the_opposite_direction(sources: None, tmp_path: Path) -> None:
    group = group_of(tmp_path, sums={"none": SUMS["ln"], "ln": SUMS["none"]})
    row = rows_of(group)["oe_time_to_best"]
    assert row["ours"] == pytest.approx([1.5] * 3) and row["verdict"] == "opposite direction"


def test_a_run_that_ends_at_its_best_is_named(sources: None, tmp_path: Path) -> None:
    """Its time to the best is only known to be no shorter."""
    rising = {"none": [150.0, 160.0, 170.0, 180.0], "ln": SUMS["ln"]}
    rows = rows_of(group_of(tmp_path, sums=rising, none1="diverged"))
    for key in ("oe_time_to_best", "oe_time_to_best_seconds"):
        assert "may take longer: none seed 0, none seed 2" in rows[key]["reason"]
    row = rows["oe_time_to_best"]
    assert row["ours"] == [0.5, 0, 0.5]
    assert readme_tables.verdict(row) == f"{row['verdict']} (best at the last evaluation: none seed 0, none seed 2)"
    assert "longer" not in rows_of(group_of(tmp_path / "settled"))["oe_time_to_best"]["reason"]


def test_a_diverged_run_takes_for_ever(sources: None, tmp_path: Path) -> None:
    row = rows_of(group_of(tmp_path, ln1="diverged", none2="diverged"))["oe_time_to_best"]
    assert row["ours"] == [pytest.approx(2 / 3), math.inf, 0.0] and row["verdict"] == "inconclusive"


def test_each_metric_is_held_against_its_own_rival(sources: None, tmp_path: Path) -> None:
    """Mean ranks are printed lower for LN, recalls higher; ours are higher in both."""
    rows = rows_of(group_of(tmp_path))
    assert rows["oe_image_r5_ln"]["verdict"] == "same direction"
    assert rows["oe_image_mean_rank_ln"]["verdict"] == "opposite direction"
    assert rows["oe_image_r1_gain"]["ours"] == [2, 2, 2] and rows["oe_image_r1_gain"]["verdict"] == "matches"


def test_a_stand_in_gives_a_direction_only(sources: None, tmp_path: Path) -> None:
    verdicts = {key: row["verdict"] for key, row in rows_of(group_of(tmp_path, "small", "scenes")).items()}
    assert verdicts["oe_image_r1_ln"] == "not comparable" and verdicts["oe_time_to_best"] == "same direction"


def test_figure_1_counts_in_300_updates_and_higher_is_better(sources: None, tmp_path: Path) -> None:
    figure, table = figures.draw(FIGURE, group_of(tmp_path, "small", "scenes", ln2="diverged"))
    assert len(figure.axes) == 3
    for ax, k in zip(figure.axes, (1, 5, 10), strict=True):
        assert ax.get_xlabel() == "updates / 300" and ax.get_ylabel() == f"R@{k} (%)"
        (line,) = [one for one in ax.lines if str(one.get_label()).startswith("baseline")]
        np.testing.assert_allclose(np.asarray(line.get_xdata()), np.array([10, 20, 30, 40]) / 300)
        (line,) = [one for one in ax.lines if str(one.get_label()).startswith("LN (3 seeds, 1 diverged)")]
        assert list(np.asarray(line.get_ydata())) == SUMS["ln"], "the diverged one is the lowest, not the highest"
    assert set(table["step"]) == {10, 20, 30, 40}, "the numbers beside it are plain steps"


def test_table_2_has_the_papers_rows_and_ours(sources: None, tmp_path: Path) -> None:
    both = [group_of(tmp_path / "a"), group_of(tmp_path / "b", "small", "scenes", ln2="diverged", none1="running")]
    page, flat = tables.save(TABLE, PAPER, both, tmp_path)
    assert (page.name, flat.name) == ("table2_order_embeddings.md", "table2_order_embeddings.csv")
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    assert lines[0].startswith("| model | source | seeds | caption R@1 | R@5 |") and lines[0].endswith("| mean r |")
    assert lines[2] == "| Sym | Vendrov et al. 2016 |  | 45.4 | – | 88.7 | 5.8 | 36.3 | – | 85.8 | 9.0 |"
    assert lines[5] == "| OE + LN | paper |  | 48.5 | 80.6 | 89.8 | 5.1 | 38.9 | 74.3 | 86.3 | 7.6 |"
    assert lines[6].startswith("| ours, baseline | profile paper, coco | 3 | 41.0 [40.0, 42.0] |")
    assert lines[8].startswith("| ours, baseline | profile small, STAND-IN scenes | 2 | 41.0 [40.0, 42.0] |")
    assert lines[9].startswith("| ours, LN | profile small, STAND-IN scenes | 3 | 42.0 [-inf, 43.0] |")
    assert lines[9].endswith(" 43.0 [42.0, inf] |"), "a rank is bad when it is high"
    text = page.read_text()
    assert "test: 5 folds of 1,000 images" in text and "test: 1 fold of 1,000 images" in text
    assert "not finished: none seed 1 (interrupted)" in text and "infinitely bad: ln seed 2" in text
    with open(flat, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(lines) - 2
    assert (rows[0]["caption_r5"], rows[0]["norm"], rows[0]["seeds"]) == ("", "", "")
    assert (rows[5]["model"], rows[5]["image_r1"], rows[5]["image_r1_low"]) == ("ours, LN", "43.0", "42.0")


def test_the_command_writes_every_profile_and_names_what_is_missing(
    sources: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(groups, "experiment_cells", lambda name, profile: cells(profile))
    write(tmp_path / "runs", "small", "scenes")
    write(tmp_path / "published", "paper", "coco", ln0="running")
    places = [
        "--runs",
        str(tmp_path / "runs"),
        "--published",
        str(tmp_path / "published"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert command.main(["TASK=order_embeddings", *places]) == 0
    out, err = capsys.readouterr()
    assert [line.rpartition("/")[2] for line in out.splitlines()] == [
        f"table2_order_embeddings.{e}" for e in ("md", "csv")
    ]
    assert "interrupted at 50 %: norm=ln batch=128 seed=0" in err
    text = (tmp_path / "out" / "table2_order_embeddings.md").read_text()
    assert "profile paper, coco" in text and "profile small, STAND-IN scenes" in text


def test_nothing_to_tabulate_is_one_line(
    sources: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--runs", str(tmp_path / "runs"), "--published", str(tmp_path / "no"), "--out", str(tmp_path / "out")]
    assert command.main(["TASK=order_embeddings", *places]) == 1
    assert "nothing to tabulate: no runs of order_embeddings" in capsys.readouterr().err
    rf.write_run(tmp_path / "runs", rf.cell("draw"), rf.rows({("test", "bound"): [9.0]}))
    assert command.main(["TASK=draw", *places]) == 1
    assert "nothing to tabulate: draw has no table" in capsys.readouterr().err
    assert command.main(places) == 0, "where all tasks are asked for, one without a table is no error"
    assert not (tmp_path / "out").exists()
