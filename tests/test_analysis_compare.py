"""Rows of the comparison: verdicts by the rules, numbers by hand, strict JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import runfolders as rf

from experiments.analysis import compare, report
from experiments.analysis.collect import collect
from experiments.analysis.groups import Group, groups
from experiments.analysis.measures import INF, VERDICTS

NO_PLACE = Path("/nonexistent")


@pytest.fixture(autouse=True)
def no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up commits are unknown to git; do not ask."""
    monkeypatch.setattr(compare, "code_changed", lambda commit, task: None)


def draw_group(
    root: Path,
    curves: dict[str, list[list[float]]],
    profile: str = "paper",
    data: str = "fixed",
    **states: str,
) -> Group:
    """DRAW runs: norm -> a curve per seed, on validation and test. ``ln0='diverged'`` sets a state."""
    cells = [rf.cell("draw", norm, 128, seed, profile) for norm in ("none", "wn", "ln") for seed in range(3)]
    for norm, seeds in curves.items():
        for seed, curve in enumerate(seeds):
            records = rf.rows({("valid", "bound"): curve, ("test", "bound"): curve})
            cell = rf.cell("draw", norm, 128, seed, profile)
            rf.write_run(root, cell, records, data=data, state=states.get(f"{norm}{seed}", "done"))
    (group,) = groups(collect(root, NO_PLACE).runs, cells, "draw", profile)
    return group


def draw_rows(*args: Any, **kwargs: Any) -> dict[str, dict[str, Any]]:
    """Rows of DRAW by id; the two clocks of the claim as draw_speed and draw_speed_seconds."""
    rows = compare.rows(compare.load_paper("draw"), draw_group(*args, **kwargs))
    return {row["id"] + ("_seconds" if row["clock"] == "train_seconds" else ""): row for row in rows}


# The baseline is at its best at its end (step 40, 8 s), LN is there at step 20 (4 s): twice as fast.
BASE = [[100, 90, 85, end] for end in (82.4, 82.3, 82.5)]
LN = [[90, end + 0.2, end + 0.1, end] for end in (82.1, 82.0, 82.2)]


def test_paper_numbers_are_those_printed() -> None:
    printed = {row["id"]: row["paper"] for row in compare.load_paper("draw")["rows"]}
    assert printed == {
        "draw_bound_none": 82.36, "draw_bound_ln": 82.09, "draw_bound_gain": pytest.approx(82.09 - 82.36),
        "draw_speed": 2.0,
    }  # fmt: skip
    # Nothing is printed for this task, and nothing may be read off its curves.
    assert {row["paper"] for row in compare.load_paper("pi_mnist")["rows"]} == {None}


@pytest.mark.parametrize("task", ["draw", "pi_mnist"])
def test_definitions_are_whole(task: str) -> None:
    paper = compare.load_paper(task)
    assert paper["task"] == task and paper["source"].startswith("Layer Normalization")
    for row in paper["rows"]:
        assert {"id", "kind", "metric", "split", "better", "paper", "text"} <= set(row)
        assert row["paper"] is None or {"tolerance", "why"} <= set(row)


def test_paper_profile_on_real_data_can_match(tmp_path: Path) -> None:
    rows = draw_rows(tmp_path, {"none": BASE, "ln": LN})
    assert {key: row["verdict"] for key, row in rows.items()} == {
        "draw_bound_none": "matches", "draw_bound_ln": "matches", "draw_bound_gain": "matches",
        "draw_speed": "matches", "draw_speed_seconds": "same direction",
    }  # fmt: skip
    assert rows["draw_bound_none"]["ours"] == [82.4, 82.3, 82.5]
    assert rows["draw_bound_none"]["median"] == 82.4
    assert rows["draw_bound_gain"]["ours"] == pytest.approx([-0.3, -0.3, -0.3])
    assert rows["draw_speed"]["ours"] == [2, 2, 2]
    assert rows["draw_speed"]["details"][0] == {"seed": 0, "target": 82.4, "baseline": 40, "candidate": 20}
    assert rows["draw_speed_seconds"]["details"][2] == {
        "seed": 2,
        "target": 82.5,
        "baseline": 8,
        "candidate": 4,
    }
    assert rows["draw_bound_ln"]["commit"] == "c0ffee00c0ff" and rows["draw_bound_ln"]["data_source"].startswith("bin")


@pytest.mark.parametrize(("profile", "data"), [("small", "fixed"), ("smoke", "fixed"), ("paper", "bernoulli")])
def test_smaller_profile_or_stand_in_gives_at_most_a_direction(tmp_path: Path, profile: str, data: str) -> None:
    rows = draw_rows(tmp_path, {"none": BASE, "ln": LN}, profile=profile, data=data)
    assert rows["draw_bound_none"]["verdict"] == rows["draw_bound_ln"]["verdict"] == "not comparable"
    for key in ("draw_bound_gain", "draw_speed", "draw_speed_seconds"):
        assert rows[key]["verdict"] == "same direction"
        assert "direction only" in rows[key]["reason"]


def test_number_out_of_reach_gives_the_order_of_the_pair(tmp_path: Path) -> None:
    far = [[100, 90, 88, end + 3] for end in (82.4, 82.3, 82.5)]
    rows = draw_rows(tmp_path, {"none": far, "ln": LN})
    assert rows["draw_bound_none"]["verdict"] == "same direction"
    assert "not within 0.82 of the printed 82.36" in rows["draw_bound_none"]["reason"]
    assert rows["draw_bound_gain"]["ours"] == pytest.approx([-3.3, -3.3, -3.3])
    assert rows["draw_bound_gain"]["verdict"] == "same direction"


def test_spread_of_the_seeds_does_not_widen_the_tolerance(tmp_path: Path) -> None:
    wild = [[100, 90, 88, end] for end in (70.0, 84.0, 99.0)]
    assert draw_rows(tmp_path, {"none": wild, "ln": LN})["draw_bound_none"]["verdict"] == "inconclusive"


def test_opposite_direction(tmp_path: Path) -> None:
    rows = draw_rows(tmp_path, {"none": LN, "ln": BASE})
    assert rows["draw_bound_gain"]["verdict"] == "opposite direction"
    assert rows["draw_speed"]["ours"] == [0, 0, 0]  # never reached the baseline's best value
    assert rows["draw_speed"]["verdict"] == "opposite direction"
    assert "never" in rows["draw_speed"]["reason"]


def test_seeds_that_disagree(tmp_path: Path) -> None:
    mixed = [LN[0], LN[1], [100, 90, 88, 84]]
    rows = draw_rows(tmp_path, {"none": BASE, "ln": mixed}, profile="small")
    assert rows["draw_bound_gain"]["verdict"] == rows["draw_speed"]["verdict"] == "inconclusive"
    assert rows["draw_speed"]["ours"] == [2, 2, 0] and rows["draw_speed"]["median"] == 2
    assert "of 3 seeds 2 go the paper's way, 1 the other" in rows["draw_speed"]["reason"]


def test_diverged_baseline_counts_as_infinite(tmp_path: Path) -> None:
    rows = draw_rows(tmp_path, {"none": BASE, "ln": LN}, none1="diverged")
    assert rows["draw_bound_none"]["ours"] == [82.4, INF, 82.5] and rows["draw_bound_none"]["median"] == 82.5
    assert rows["draw_bound_gain"]["ours"][1] == -INF
    assert rows["draw_speed"]["ours"] == [2, INF, 2]
    assert "diverged, counted as infinite: none batch 128 seed 1" in rows["draw_speed"]["reason"]


def test_both_diverged_says_nothing(tmp_path: Path) -> None:
    row = draw_rows(tmp_path, {"none": BASE, "ln": LN}, none1="diverged", ln1="diverged")["draw_speed"]
    assert math.isnan(row["ours"][1]) and math.isnan(row["median"]) and row["verdict"] == "inconclusive"
    assert "1 neither" in row["reason"]


def test_only_finished_pairs_count(tmp_path: Path) -> None:
    rows = draw_rows(tmp_path, {"none": BASE, "ln": LN[:2]}, none0="interrupted", profile="small")
    assert rows["draw_bound_gain"]["seeds"] == [1] and rows["draw_bound_none"]["seeds"] == [1, 2]
    assert "without seeds 0, 2" in rows["draw_bound_gain"]["reason"]
    assert "one seed, so no spread is known" in rows["draw_bound_gain"]["reason"]


def test_nothing_finished(tmp_path: Path) -> None:
    row = draw_rows(tmp_path, {"none": BASE})["draw_speed"]
    assert (row["ours"], row["n_seeds"], row["verdict"], row["commit"]) == ([], 0, "inconclusive", None)
    assert "no finished run of none and ln" in row["reason"]


def mnist_rows(root: Path, errors: dict[tuple[str, int], list[float]], seeds: int = 3) -> list[dict[str, Any]]:
    """PI-MNIST rows from (norm, batch) -> test error by evaluation, the same for every seed."""
    cells = [
        rf.cell("pi_mnist", n, b, s, "paper") for n in ("none", "bn", "ln") for b in (128, 4) for s in range(seeds)
    ]
    for cell in cells:
        curve = errors[cell.norm, cell.batch_size]
        series = {
            ("test", "error"): curve,
            ("valid", "error"): curve,
            ("train", "nll"): [e / 10 for e in curve],
        }
        rf.write_run(root, cell, rf.rows(series, unit="percent"), data="mnist")
    (group,) = groups(collect(root, NO_PLACE).runs, cells, "pi_mnist", "paper")
    return compare.rows(compare.load_paper("pi_mnist"), group)


ERRORS = {
    ("none", 128): [9.0, 3.0, 1.8], ("none", 4): [9.0, 3.0, 1.9],
    ("bn", 128): [9.0, 3.0, 1.5], ("bn", 4): [9.0, 5.0, 2.5],
    ("ln", 128): [9.0, 1.5, 1.4], ("ln", 4): [2.4, 2.0, 1.5],
}  # fmt: skip


def test_robustness_is_a_difference_of_differences(tmp_path: Path) -> None:
    rows = mnist_rows(tmp_path, ERRORS)
    by_kind = {(row["kind"], row["norm"]): row for row in rows if row["kind"] in ("change", "robustness")}
    assert by_kind["change", "bn"]["ours"] == pytest.approx([1.0] * 3)  # 2.5 - 1.5
    assert by_kind["change", "ln"]["ours"] == pytest.approx([0.1] * 3)  # 1.5 - 1.4
    assert by_kind["robustness", "ln"]["ours"] == pytest.approx([-0.9] * 3)  # 0.1 - 1.0
    assert by_kind["robustness", "ln"]["verdict"] == "matches"
    assert by_kind["change", "bn"]["verdict"] == "not comparable"
    assert by_kind["robustness", "ln"]["batch_size"] == [128, 4]


def test_mnist_speed_for_each_batch_size_and_clock(tmp_path: Path) -> None:
    rows = [row for row in mnist_rows(tmp_path, ERRORS) if row["kind"] == "speed" and row["clock"] == "step"]
    ratios = {(row["metric"], row["batch_size"]): row["median"] for row in rows}
    # BN is at its best at step 30; LN is there at step 20 (1.5 <= 1.5) and step 10 (2.4 <= 2.5).
    assert ratios == {("nll", 128): 1.5, ("nll", 4): 3.0, ("error", 128): 1.5, ("error", 4): 3.0}
    assert {row["verdict"] for row in rows} == {"matches"}


def test_claim_without_a_number_needs_several_seeds(tmp_path: Path) -> None:
    rows = mnist_rows(tmp_path, ERRORS, seeds=1)
    claims = [row for row in rows if row["kind"] in ("speed", "robustness")]
    assert {row["verdict"] for row in claims} == {"same direction"}
    assert all("one seed" in row["reason"] for row in claims)


def test_reports_are_strict_and_readable(tmp_path: Path) -> None:
    rows = list(
        draw_rows(tmp_path, {"none": BASE, "ln": LN}, none1="diverged", ln1="diverged", data="bernoulli").values()
    )
    text = report.to_json(rows)
    read = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert isinstance(read, list) and {row["verdict"] for row in read} <= set(VERDICTS)
    by_id = {row["id"]: row for row in read if row["clock"] != "train_seconds"}
    assert by_id["draw_bound_none"]["ours"] == [82.4, "inf", 82.5]
    assert by_id["draw_speed"]["ours"] == [2, None, 2] and by_id["draw_speed"]["median"] is None
    wanted = "metric split norm paper ours median n_seeds profile data_source commit verdict reason".split()
    assert all(set(wanted) <= set(row) for row in read)

    table = report.to_text(rows, "draw")
    assert max(map(len, table.splitlines())) <= report.WIDTH <= 120
    assert "STAND-IN" in table and "c0ffee00c0ff" in table and "82.36" in table
    page = report.to_markdown(rows, "draw", "the paper")
    assert "STAND-IN" in page and "82.4, inf, 82.5" in page
    bars = {line.replace("\\|", "").count("|") for line in page.splitlines() if line.startswith("|")}
    assert bars == {8}


def test_changed_code_is_in_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "code_changed", lambda commit, task: True)
    row = draw_rows(tmp_path, {"none": BASE, "ln": LN})["draw_speed"]
    assert row["code_changed"] is True and "changed since" in row["reason"]


def test_one_seed_gives_a_direction_of_a_printed_difference_and_no_match(tmp_path: Path) -> None:
    rows = draw_rows(tmp_path, {"none": BASE[:1], "ln": LN[:1]})
    for key in ("draw_bound_gain", "draw_speed"):
        assert rows[key]["verdict"] == "same direction" and rows[key]["n_seeds"] == 1
        assert "fewer than 3 seeds give a direction only" in rows[key]["reason"]
    assert rows["draw_bound_ln"]["verdict"] == "matches" and "one seed" in rows["draw_bound_ln"]["reason"]


def test_a_printed_value_without_its_rival_has_no_direction(tmp_path: Path) -> None:
    far = [[100, 90, 88, end + 3] for end in (82.4, 82.3, 82.5)]
    row = draw_rows(tmp_path, {"none": far})["draw_bound_none"]
    assert row["verdict"] == "inconclusive" and row["reason"].startswith(
        "no direction: no finished run of ln with a shared seed; median not within 0.82"
    )


@pytest.mark.parametrize(("told", "known"), [((True, None), True), ((False, None), None), ((False, False), False)])
def test_one_run_of_changed_code_makes_a_row_stale(
    told: tuple[bool | None, ...], known: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = draw_group(tmp_path, {"none": BASE, "ln": LN}, profile="small")
    for run in group.runs:
        object.__setattr__(run, "commit", run.norm)
    monkeypatch.setattr(compare, "code_changed", lambda commit, task: told[commit == "ln"])
    rows = {row["id"]: row for row in compare.rows(compare.load_paper("draw"), group)}
    assert rows["draw_bound_gain"]["code_changed"] is known
