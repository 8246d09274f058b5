"""The report says what a reader must know before the numbers, whatever the runs look like, with the right exit code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import runfolders as rf

from experiments.analysis import compare, groups, seals
from scripts import report

CURVE = {("valid", "bound"): [9.0, 8.0, 7.0], ("test", "bound"): [9.0, 8.0, 7.0]}
SOONER = {("valid", "bound"): [7.0, 6.5, 6.0], ("test", "bound"): [7.0, 6.5, 6.0]}
NEVER = {("valid", "bound"): [9.0, 8.5, 7.5], ("test", "bound"): [9.0, 8.5, 7.5]}


@pytest.fixture(autouse=True)
def cells(monkeypatch: pytest.MonkeyPatch) -> list[rf.FakeCell]:
    """DRAW's cells at profile small; git is not asked about made-up commits."""
    found = [rf.cell("draw", norm, 128, seed) for norm in ("none", "wn", "ln") for seed in range(2)]
    monkeypatch.setattr(groups, "experiment_cells", lambda name, profile: found if profile == "small" else [])
    monkeypatch.setattr(compare, "code_changed", lambda commit, task: False)
    return found


def make(root: Path, *words: str) -> tuple[int, str]:
    """Exit code and Markdown of DRAW's report on the runs below ``root``."""
    places = ["--runs", str(root / "runs"), "--published", str(root / "published"), "--out", str(root / "out")]
    code = report.main(["--task", "draw", *places, *words])
    return code, next((root / "out").glob("*.md")).read_text(encoding="utf-8")


def fill(root: Path, cells: list[rf.FakeCell], **changes: Any) -> list[Path]:
    curves = {"none": CURVE, "wn": NEVER, "ln": SOONER}
    return [rf.write_run(root / "runs", cell, rf.rows(curves[cell.norm]), **changes) for cell in cells]


def first(page: str) -> str:
    """What stands before the verdicts."""
    return page.partition("## To know first")[2].partition("## Verdicts at a glance")[0]


def test_a_complete_report(tmp_path: Path, cells: list[rf.FakeCell], capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, cells)
    code, page = make(tmp_path)
    assert code == 0 and capsys.readouterr().err == ""
    assert "Nothing is missing, stale or damaged" in first(page)
    assert "6 runs, 6 made here and 0 published" in page
    for part in ("What the paper says", "**Data:**", "**Machine:**", "make reproduce TASK=draw PROFILE=small",
                 "seed 0: -1 (6 − 7), seed 1: -1 (6 − 7)", "82.09", "Figure 4, the curves"):  # fmt: skip
        assert part in page, part
    assert (tmp_path / "out" / "report_files" / "small-fixed-fig4_draw.png").stat().st_size > 1000
    # Steps 10, 20, 30: the baseline is at its best at 30, LN there at 10, WN never.
    (wn,) = [line for line in page.splitlines() if "| WN, batch 128 |" in line]
    (ln,) = [line for line in page.splitlines() if "| LN, batch 128 |" in line]
    assert "lower is better: 7 / 7 | 30 / 30 | never / never | ∞ / ∞ | ∞ (2 seeds)" in wn
    assert "30 / 30 | 10 / 10 | 0.3333 / 0.3333 | 0.3333 (2 seeds)" in ln
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    make(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}.items() <= (
        before.items()
    ), "the same runs give the same bytes"


def test_no_runs_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, page = make(tmp_path)
    assert code == 1 and "there are no runs at all: `make reproduce TASK=draw`" in first(page)
    assert "**No runs.** `make reproduce TASK=draw` makes them." in page and "What the paper says" in page
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the report has no results: no runs of draw")


def test_runs_of_unequal_length(tmp_path: Path, cells: list[rf.FakeCell]) -> None:
    for folder in fill(tmp_path, cells)[-1:]:
        shutil.rmtree(folder)
        half = {key: values[:2] for key, values in SOONER.items()}
        rf.write_run(tmp_path / "runs", cells[-1], rf.rows(half), state="interrupted")
    code, page = make(tmp_path)
    assert code == 0
    assert "runs of unequal length: norm=ln batch=128 seed=1 ends at step 20, the others at 30" in first(page)
    assert "1 of 6 cells are not finished (interrupted at 50 %: norm=ln batch=128 seed=1)" in first(page)


def test_a_metric_missing_in_some_seeds(tmp_path: Path, cells: list[rf.FakeCell]) -> None:
    folder = fill(tmp_path, cells)[-1]
    path = folder / "metrics.jsonl"
    path.write_text("".join(f"{line}\n" for line in path.read_text().splitlines() if '"valid"' not in line))
    code, page = make(tmp_path)
    assert code == 0 and "valid bound was not logged by norm=ln batch=128 seed=1" in first(page)
    (row,) = [line for line in page.splitlines() if "speed-up of LN over baseline" in line and "in steps" in line]
    assert "| inconclusive |" in row and "not logged by ln batch 128 seed 1" in row


def test_a_run_of_an_older_schema(tmp_path: Path, cells: list[rf.FakeCell], capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, cells)
    old = rf.write_run(tmp_path / "runs", rf.cell("draw", "ln", 64, 7), rf.rows(CURVE))
    (old / "config.yaml").write_text("task:\n  name: draw\n  gone: 1\n")
    code, page = make(tmp_path)
    assert code == 1 and "is of an older schema" in first(page), "it was left out"
    assert f"warning: draw/{old.name} is of an older schema" in capsys.readouterr().err
    older = rf.write_run(tmp_path / "runs", rf.cell("draw", "ln", 64, 8), rf.rows(CURVE))
    meta = json.loads((older / "meta.json").read_text())
    del meta["config_sha"]
    (older / "meta.json").write_text(json.dumps(meta))
    code, page = make(tmp_path)
    assert code == 1
    assert f"draw/{old.name} is of an older schema" in first(page)
    assert f"{older} left out: meta.json lacks or garbles 'config_sha'" in first(page)
    assert "1 runs of draw at profile small (fixed) fit no cell of fig4_draw" in first(page)


def test_one_norm_only(tmp_path: Path, cells: list[rf.FakeCell]) -> None:
    fill(tmp_path, cells[-2:])
    code, page = make(tmp_path)
    assert code == 0 and "only ln has runs, so the figure shows one norm and nothing can be compared" in first(page)
    assert "no finished pair of runs" in page and "![Line chart." in page


def test_published_files_edited_by_hand(
    tmp_path: Path, cells: list[rf.FakeCell], capsys: pytest.CaptureFixture[str]
) -> None:
    folders = fill(tmp_path, cells)
    (tmp_path / "runs").rename(tmp_path / "published")
    folders = [tmp_path / "published" / "draw" / folder.name for folder in folders]
    for folder in folders[:-1]:
        seals.seal(folder)
    code, page = make(tmp_path)
    assert (
        code == 0
        and f"1 published runs have no checksums, so that an edit would not be seen ({folders[-1].name})"
        in (first(page))
    )
    path = folders[0] / "metrics.jsonl"
    path.write_text(path.read_text().replace("7.0", "8.5"))
    capsys.readouterr()
    code, page = make(tmp_path)
    assert code == 1 and "metrics.jsonl was edited after it was published" in first(page)
    assert "1 of 6 cells are not finished (missing: none batch 128 seed 0)" in first(page)
    assert str(folders[0]) in capsys.readouterr().err


def test_two_runs_that_claim_one_cell(tmp_path: Path, cells: list[rf.FakeCell]) -> None:
    folders = fill(tmp_path, cells)

    def other_data(meta: dict[str, Any]) -> None:
        meta["identity"], meta["data"]["fingerprint"] = "f" * 64, "f" * 64

    twin = folders[0].rename(folders[0].with_name("kept"))
    rf.write_run(tmp_path / "runs", cells[0], rf.rows(NEVER), change=other_data)
    code, page = make(tmp_path)
    left = f"draw, profile small: 1 run left out: made on other data that are named fixed too (fingerprint {'f' * 8}, "
    assert code == 0 and left in first(page)
    shutil.copytree(twin, twin.with_name("copy"))
    code, page = make(tmp_path)
    assert code == 1 and "it claims to be the same run as" in first(page)


def test_own_runs_go_first_and_smoke_stays_quiet(tmp_path: Path, cells: list[rf.FakeCell]) -> None:
    fill(tmp_path, cells)
    shutil.copytree(tmp_path / "runs", tmp_path / "published")
    for path in (tmp_path / "published").rglob("metrics.jsonl"):
        path.write_text(path.read_text().replace(": 7.0", ": 1.0"))
    rf.write_run(tmp_path / "runs", rf.cell("draw", "ln", profile="smoke"), rf.rows(CURVE))
    code, page = make(tmp_path)
    assert code == 0 and "6 runs, 6 made here and 0 published" in page and "| 7 | seed 0: 7, seed 1: 7 |" in page
    assert "1 run at profile smoke is not shown" in first(page) and "small-fixed" in page
    assert (tmp_path / "out" / "report-draw.html").is_file(), "a part does not replace the whole"


def test_bad_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        report.main(["TASK=darw", "--out", str(tmp_path)])
    assert "did you mean draw?" in capsys.readouterr().err and not any(tmp_path.iterdir())


def test_stale_rows_are_told_first(tmp_path: Path, cells: list[rf.FakeCell], monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, cells)
    (tmp_path / "runs").rename(tmp_path / "published")
    for folder in (tmp_path / "published" / "draw").iterdir():
        seals.seal(folder)
    monkeypatch.setattr(compare, "code_changed", lambda commit, task: True)
    code, page = make(tmp_path)
    assert code == 0 and "stale or damaged" not in first(page)
    assert (
        "5 of 5 rows are stale, for model or task code has changed since; to renew them: make reproduce TASK=draw "
        "PROFILE=small" in first(page)
    )
    monkeypatch.setattr(compare, "code_changed", lambda commit, task: None)
    code, page = make(tmp_path)
    assert "whether the code of 5 rows has changed since cannot be told" in first(page)
    assert "(c0ffee00c0ff)" in first(page)


def test_what_is_damaged_elsewhere_is_no_matter_of_a_task(tmp_path: Path, cells: list[rf.FakeCell]) -> None:
    folder = rf.write_run(tmp_path / "runs", rf.cell("pi_mnist"), rf.rows(CURVE), data="mnist")
    (folder / "meta.json").write_text("{")
    fill(tmp_path, cells)
    code, page = make(tmp_path)
    assert code == 0 and folder.name not in page


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n"])
def test_a_sample_that_is_no_picture_is_told(content: bytes, tmp_path: Path, cells: list[rf.FakeCell]) -> None:
    fill(tmp_path, cells)
    place = tmp_path / "figures" / "small-fixed"
    place.mkdir(parents=True)
    (place / "draw_samples_ln-b128-s0.png").write_bytes(content)
    code, page = make(tmp_path)
    assert code == 0 and "draw_samples_ln-b128-s0.png is no picture, and is not shown." in page
