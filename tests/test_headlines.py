"""The README's first table: each task's headline means one row, the best evidence comes first, times are honest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import runfolders as rf

from experiments.analysis import compare, groups, headlines
from experiments.analysis.collect import Collection, collect
from experiments.grid import cells as real_cells
from experiments.tasks import TASKS
from scripts import readme_tables
from tests.commands import TASK_NAMES

NOWHERE = Path("/nonexistent")
COMPARED = [task for task in TASK_NAMES.split(", ") if (compare.PAPER / f"{task}.yaml").is_file()]
CURVES = {"none": [9.0, 8.0, 7.0], "wn": [9.0, 8.0, 7.0], "ln": [7.0, 6.0, 5.0]}


@pytest.fixture(autouse=True)
def cells(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[rf.FakeCell]]:
    """DRAW's cells at each profile; git is not asked about made-up commits."""
    found = {
        profile: [rf.cell("draw", norm, 128, seed, profile) for norm in ("none", "wn", "ln") for seed in range(2)]
        for profile in ("paper", "medium", "small", "smoke")
    }
    fake = lambda name, profile: found[profile]  # noqa: E731
    monkeypatch.setattr(groups, "experiment_cells", fake)
    monkeypatch.setattr(headlines, "experiment_cells", fake)
    monkeypatch.setattr(compare, "code_changed", lambda commit, task: None)
    return found


def write(root: Path, cell: rf.FakeCell, data: str, **meta: Any) -> None:
    clock = {"started": "2026-01-02T03:00:00Z", "ended": "2026-01-02T03:10:00Z", **meta}
    records = rf.rows({(split, "bound"): CURVES[cell.norm] for split in ("valid", "test")})
    rf.write_run(root, cell, records, data=data, change=lambda made: made.update(clock))


def answers(root: Path) -> list[headlines.Answer]:
    return headlines.answers(collect(root, NOWHERE), "draw")


def test_the_best_two_places_come_first(tmp_path: Path, cells: dict[str, list[rf.FakeCell]]) -> None:
    for profile, data in (("smoke", "fixed"), ("small", "fixed"), ("small", "bernoulli"), ("medium", "bernoulli")):
        for cell in cells[profile]:
            write(tmp_path, cell, data)
    assert [(one.profile, one.label) for one in answers(tmp_path)] == [("small", "fixed"), ("medium", "bernoulli")]
    for cell in cells["paper"][:1]:
        write(tmp_path, cell, "fixed")
    first, second = answers(tmp_path)
    assert [(one.profile, one.label, one.runs, one.cells) for one in (first, second)] == [
        ("paper", "fixed", 1, 6), ("small", "fixed", 6, 6)
    ]  # fmt: skip
    (short, gain), (_, speed) = second.claims
    assert short == "bound, LN − none" and gain["ours"] == [-2.0, -2.0] and headlines.printed("draw", gain) == "-0.27"
    assert speed["clock"] == "step" and speed["ours"] == [3.0, 3.0], "at its best at step 30, and LN there at step 10"
    assert second.minutes == pytest.approx(6 * 10 / 2) and first.minutes == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("meta", "minutes"),
    [
        ({}, 5.0),
        ({"threads": 2}, 10.0),
        ({"threads": 8}, 10.0),
        ({"device": "cuda"}, None),
        ({"ended": None}, None),
        ({"sessions": [{}, {}]}, None),
    ],
)
def test_minutes_are_said_only_where_they_are_known(
    meta: dict[str, Any], minutes: float | None, tmp_path: Path, cells: dict[str, list[rf.FakeCell]]
) -> None:
    write(tmp_path, cells["small"][0], "fixed", **meta)
    assert headlines.minutes(collect(tmp_path, NOWHERE).runs) == (minutes and pytest.approx(minutes))
    assert headlines.minutes([]) is None


def test_the_table(tmp_path: Path, cells: dict[str, list[rf.FakeCell]], monkeypatch: pytest.MonkeyPatch) -> None:
    for cell in cells["medium"]:
        write(tmp_path, cell, "bernoulli")
    monkeypatch.setattr(readme_tables, "PUBLISHED", tmp_path)
    text = readme_tables.glance()
    (row,) = [line for line in text.splitlines() if line.startswith("| DRAW")]
    assert "(6.4 and Figure 4) | `make reproduce TASK=draw PROFILE=medium` | 30 | " in row
    assert " | -0.27<br>2 | -2 [-2, -2]<br>3 [3, 3] | medium, STAND-IN bernoulli | " in row.replace(
        "\N{NO-BREAK SPACE}", " "
    )
    (note,) = [line for line in text.splitlines() if line.startswith("No run at the default profile `small`")]
    assert all(f"`{task}`" in note for task in TASKS if task in COMPARED)
    monkeypatch.setattr(readme_tables, "PUBLISHED", NOWHERE)
    assert readme_tables.glance() == "No runs are published yet."


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"n_seeds": 0}, "not measured"),
        ({"n_seeds": 1, "repeated_steps": 9, "code_changed": False}, "matches †"),
        ({"n_seeds": 1, "repeated_steps": None, "code_changed": True}, "matches ‡"),
        ({"n_seeds": 1, "repeated_steps": None, "code_changed": None}, "matches"),
    ],
)
def test_a_stale_verdict_is_marked(row: dict[str, Any], said: str) -> None:
    assert readme_tables.brief({"verdict": "matches", **row}) == said


@pytest.mark.parametrize("task", COMPARED)
def test_every_headline_means_one_row(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper = compare.load_paper(task)
    assert 1 <= len(paper["headline"]) <= 2 and paper["title"] and paper["says"] and paper["unchecked"]
    (cell, *_) = real_cells(paper["experiment"], "small", seeds=[0])
    monkeypatch.setattr(groups, "experiment_cells", lambda name, profile: [cell])
    monkeypatch.setattr(headlines, "experiment_cells", lambda name, profile: [cell])
    fake = rf.FakeCell(task, cell.norm, cell.batch_size, 0, "small", cell.config_sha, cell.command)
    rf.write_run(tmp_path, fake, rf.rows({("train", "x"): [1.0]}))
    (answer,) = headlines.answers(collect(tmp_path, NOWHERE), task)
    assert [short for short, _ in answer.claims] == [item["short"] for item in paper["headline"]]
    assert all(headlines.printed(task, row) != "-" for _, row in answer.claims)


def test_a_headline_that_means_no_row_is_refused(
    tmp_path: Path, cells: dict[str, list[rf.FakeCell]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, cells["small"][0], "fixed")
    wrong = {**compare.load_paper("draw"), "headline": [{"kind": "value", "short": "either"}]}
    monkeypatch.setattr(compare, "load_paper", lambda task: wrong)
    with pytest.raises(ValueError, match=r"configs/paper/draw.yaml: headline \{'kind': 'value'\} means 2 rows"):
        answers(tmp_path)
    assert headlines.answers(Collection([]), "draw") == []
