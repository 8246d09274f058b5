"""Figure 3, Table 3 and the comparison of skip-thoughts, from run folders written by hand."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import runfolders as rf

from experiments import grid
from experiments.analysis import compare, figures, groups, style, tables
from experiments.analysis.collect import collect
from experiments.analysis.groups import Group

PAPER = compare.load_paper("skip_thoughts")
FIGURE, TABLE = grid.load_figure("fig3_skip_thoughts"), grid.load_table("fig3_skip_thoughts")
assert TABLE is not None
METRICS = [column["metric"] for column in TABLE["columns"]]
PRINTED = {row["norm"]: row["values"] for row in PAPER["table"] if row["norm"]}


@pytest.fixture(autouse=True)
def no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "code_changed", lambda commit, task: None)
    for label, kind in (("books", "original"), ("plays-vader", "stand-in")):
        source = {"kind": kind, "label": label, "name": label, "detail": "sentences"}
        monkeypatch.setitem(rf.SOURCES, label, source)


def group_of(root: Path, profile: str, data: str, metrics: list[str], state: str = "done") -> Group:
    """Three seeds of both norms: the printed values in the end, a tenth off before; for other metrics 50 and 60."""
    cells = [rf.cell("skip_thoughts", norm, 64, seed, profile) for norm in PRINTED for seed in range(3)]
    for cell in cells:
        ends = {metric: PRINTED[cell.norm].get(metric, 60.0) for metric in metrics}
        off = {metric: 1.1 if metric == "sick_mse" else 0.9 for metric in metrics}
        curves = {("valid", metric): [off[metric] * end, end] for metric, end in ends.items()}
        tested = rf.rows({("test", metric): [end] for metric, end in ends.items()}, every=20)
        rf.write_run(root, cell, rf.rows({**curves, ("train", "loss"): [5.0, 4.0]}) + tested, data=data, state=state)
    (group,) = groups.groups(collect(root, Path("/none")).runs, cells, "skip_thoughts", profile)
    return group


def test_printed_numbers_agree_with_each_other() -> None:
    values = [row for row in PAPER["rows"] if row["kind"] == "value"]
    assert len(values) == 2 * len(METRICS) == 14 and len(PAPER["table"]) == 4
    for row in values:
        assert row["paper"] == PRINTED[row["norm"]][row["metric"]], row["id"]
    for row in PAPER["rows"]:
        if row["kind"] == "difference":
            gain = PRINTED["ln"][row["metric"]] - PRINTED["none"][row["metric"]]
            assert row["paper"] == pytest.approx(gain) and abs(gain) == pytest.approx(row["tolerance"]), row["id"]
    assert [list(row["values"].values()) for row in PAPER["table"]] == [
        [0.848, 0.778, 0.287, 75.5, 79.3, 92.1, 86.9],
        [0.842, 0.767, 0.298, 77.3, 81.8, 92.6, 87.9],
        [0.854, 0.785, 0.277, 79.5, 82.6, 93.4, 89.0],
        [0.858, 0.788, 0.270, 79.4, 83.1, 93.7, 89.3],
    ], "as printed in Table 3"
    assert all(list(row["values"]) == METRICS for row in PAPER["table"])


def test_the_printed_values_match_themselves(tmp_path: Path) -> None:
    group = group_of(tmp_path, "paper", "books", METRICS)
    rows = {row["id"]: row for row in compare.rows(PAPER, group) if row["clock"] != "train_seconds"}
    assert {row["verdict"] for name, row in rows.items() if not name.endswith("speed")} == {"matches"}
    assert rows["st_sick_mse_gain"]["median"] == pytest.approx(-0.021)


def test_what_was_never_logged_is_told_as_such(tmp_path: Path) -> None:
    group = group_of(tmp_path, "small", "plays-vader", ["vader_movies", "sick_r"])
    rows = {row["id"]: row for row in compare.rows(PAPER, group)}
    assert rows["st_mr_ln"]["n_seeds"] == rows["st_cr_speed"]["n_seeds"] == rows["st_mpqa_gain"]["n_seeds"] == 0
    assert rows["st_mr_ln"]["verdict"] == "inconclusive"
    assert rows["st_mr_ln"]["reason"] == "test mr was not logged: what it is measured on was not there"
    assert rows["st_sick_r_gain"]["n_seeds"] == 3 and rows["st_sick_r_gain"]["verdict"] == "same direction"
    assert not any("vader" in row["metric"] for row in PAPER["rows"]), "a stand-in is held against no number"


@pytest.mark.parametrize("profile", ["small", "paper"])
def test_a_stand_in_gives_a_direction_of_the_speed_and_nothing_else(profile: str, tmp_path: Path) -> None:
    group = group_of(tmp_path, profile, "books", ["vader_movies"])
    for run in group.runs:
        if run.norm == "ln":  # there at once
            run.metrics.loc[run.metrics["metric"] == "vader_movies", "value"] = 61.0
    rows = {row["id"]: row for row in compare.rows(PAPER, group) if row["clock"] != "train_seconds"}
    row = rows["st_mr_speed"]
    assert (row["metric"], row["ours"], row["verdict"]) == ("vader_movies", [2.0] * 3, "same direction")
    assert row["reason"].startswith("vader_movies stands in for mr and gives a direction only")
    assert row["text"].endswith("(vader_movies in its place)")
    assert all(other["n_seeds"] == 0 for name, other in rows.items() if name != "st_mr_speed")


def panels(group: Group) -> list[Any]:
    figure, _ = figures.draw(FIGURE, group)
    return figure.axes


def text_of(ax: Any) -> str:
    title = ax.get_legend().get_title().get_text() if ax.get_legend() else ax.get_title()
    return " ".join([title, *(t.get_text() for t in ax.texts)]).replace("\n", " ")


def lines_of(ax: Any) -> dict[str, list[float]]:
    return {str(line.get_label()): list(line.get_ydata()) for line in ax.lines if str(line.get_label())[0] != "_"}


def test_six_panels_with_the_printed_baseline(tmp_path: Path) -> None:
    axes = panels(group_of(tmp_path, "paper", "books", METRICS))
    assert len(axes) == 6
    for ax, panel in zip(axes, FIGURE["panels"], strict=True):
        value = PRINTED["none"][panel["metric"]]
        assert lines_of(ax)[f"paper, baseline: {value:g}"] == [value, value]
        low, high = ax.get_ylim()
        assert low < value < high and text_of(ax).startswith(panel["title"])


def test_the_caption_tells_the_protocol_of_the_curves(tmp_path: Path) -> None:
    group = group_of(tmp_path, "small", "books", ["mr"])
    assert "protocol" not in style.caption(figures.draw(FIGURE, group)[0]), "what no run says is not told"
    for run in group.runs:
        (run.folder / "config.yaml").write_text(f"task:\n  eval: {'fast' if run.seed else 'paper'}\n")
    assert "Evaluation protocol of the curves: fast, paper." in style.caption(figures.draw(FIGURE, group)[0])


def test_the_printed_value_stays_in_view_far_from_the_runs(tmp_path: Path) -> None:
    group = group_of(tmp_path, "small", "books", ["mr"])
    for run in group.runs:
        run.metrics["value"] *= 0.1
    ax = panels(group)[2]
    low, high = ax.get_ylim()
    assert low < 7.2 and high > PRINTED["none"]["mr"]


def test_a_missing_set_is_told_and_a_stand_in_is_named(tmp_path: Path) -> None:
    group = group_of(tmp_path, "small", "plays-vader", ["vader_movies", "vader_products"])
    sick, _, mr, cr, subj, mpqa = panels(group)
    for ax, name in ((sick, "SICK_{train,trial,"), (subj, "plot.tok.gt9.5000"), (mpqa, "mpqa.pos")):
        assert "is not here: place" in text_of(ax) and name in text_of(ax) and not ax.lines
    for ax, words in ((mr, "rated movie reviews (stand-in)"), (cr, "rated product reviews (stand-in)")):
        assert words in text_of(ax) and not any("paper" in label for label in lines_of(ax))
    _, table = figures.draw(FIGURE, group)
    assert set(table["metric"]) == {"vader_movies", "vader_products"} and set(table["panel"]) == {3, 4}


def test_before_the_first_evaluation_nothing_is_called_missing(tmp_path: Path) -> None:
    cell = rf.cell("skip_thoughts", "ln", 64, 0, "small")
    rf.write_run(tmp_path, cell, [], data="books", state="interrupted")
    (group,) = groups.groups(collect(tmp_path, Path("/none")).runs, [cell], "skip_thoughts", "small")
    assert {text_of(ax).split(" no ")[-1] for ax in panels(group)} == {"runs yet"}


def test_table_3_has_the_four_printed_rows_and_ours(tmp_path: Path) -> None:
    group = group_of(tmp_path, "small", "plays-vader", ["vader_movies", "sick_r", "sick_mse"])
    paths = tables.save(TABLE, PAPER, [group], tmp_path / "out")
    page = paths[0].read_text()
    assert "| Ours + LN † | paper, 1.7 million updates |  | 0.858 | 0.788 | 0.270 |" in page
    assert "| ours, LN | profile small, STAND-IN plays-vader | 3 | 0.854 [0.854, 0.854] | – |" in page
    none = group_of(tmp_path / "more", "smoke", "plays-vader", ["vader_movies"])
    assert tables.our_rows(TABLE, none) == [], "dashes alone tell nothing"
    assert tables.absent(TABLE, [group]) == []
    (line,) = tables.absent(TABLE, [none])
    assert line.startswith(
        "No row of ours for profile smoke, STAND-IN plays-vader: nothing was there to measure SICK r"
    )
    assert "rated movie reviews for MR: baseline 60.0 [60.0, 60.0], LN 60.0" in line and "product" in line
    bare = group_of(tmp_path / "bare", "smoke", "plays-vader", [])
    assert tables.absent(TABLE, [bare])[0].endswith("SUBJ, MPQA on.")
    unfinished = group_of(tmp_path / "unfinished", "smoke", "plays-vader", [], state="interrupted")
    assert tables.absent(TABLE, [unfinished]) == [], "they may yet have them"
    assert line in tables.save(TABLE, PAPER, [none], tmp_path / "out2")[0].read_text()
    with paths[1].open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 + 2 and not any("vader" in name for name in rows[0])
