"""``scripts.export_runs``: every logged number once, where it comes from, and one line for what cannot be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
import runfolders as rf

from scripts import export_runs
from tests.commands import TASK_NAMES

VALUES = {("valid", "bound"): [9.0, 8.0, float("nan")], ("test", "bound"): [9.5, 8.25, 7.0]}
LN, NONE = rf.cell(norm="ln"), rf.cell(norm="none", seed=3)


def export(tmp_path: Path, name: str, *words: str) -> int:
    where = ["--runs", str(tmp_path / "runs"), "--published", str(tmp_path / "published")]
    return export_runs.main([str(tmp_path / name), *where, *words])


def fails(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, *words: str) -> str:
    """The one line that a refusal prints."""
    with pytest.raises(SystemExit) as stopped:
        export(tmp_path, name, *words)
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert stopped.value.code == 2 and not out and line.startswith("error: ")
    return line


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three runs: one here and published, one published only, one here that has not finished."""
    for place in ("runs", "published"):
        rf.write_run(tmp_path / place, LN, rf.rows(VALUES))
    rf.write_run(tmp_path / "published", NONE, rf.rows(VALUES), data="bernoulli")
    rf.write_run(tmp_path / "runs", rf.cell("pi_mnist", "bn", 4, 1, "smoke"), rf.rows(VALUES)[:2], state="interrupted")
    return tmp_path


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_every_logged_number_is_a_row_that_says_where_it_is_from(store: Path, suffix: str) -> None:
    assert export(store, f"all.{suffix}") == 0
    read = pd.read_csv if suffix == "csv" else pd.read_parquet
    frame = read(store / f"all.{suffix}")
    assert len(frame) == 6 + 6 + 2 and not frame.duplicated(["identity", "step", "split", "metric"]).any()
    (ln,) = frame[(frame["norm"] == "ln") & (frame["split"] == "test") & (frame["step"] == 20)].to_dict("records")
    assert {name: ln[name] for name in ("task", "batch_size", "profile", "seed", "state", "origin")} == {
        "task": "draw", "batch_size": 128, "profile": "small", "seed": 0, "state": "done", "origin": "runs",
    }  # fmt: skip
    assert (ln["data_label"], ln["data_kind"], ln["commit"], ln["dirty"]) == (
        "fixed",
        "original",
        "c0ffee00" * 5,
        False,
    )
    assert (ln["value"], ln["unit"], ln["examples"], ln["epoch"], ln["train_seconds"]) == (
        8.25,
        "nats/image",
        2560,
        1,
        4,
    )
    last = frame[(frame["norm"] == "none") & (frame["split"] == "valid")].sort_values("step")
    assert list(last["value"].isna()) == [False, False, True], "not finite: missing"
    assert set(last["data_kind"]) == {"stand-in"} and set(last["origin"]) == {"published"}


def test_a_part_can_be_asked_for(store: Path) -> None:
    words = ["--task", "draw", "--profile", "small", "--split", "valid", "--metric", "bound", "--finished"]
    assert export(store, "part.csv", *words) == 0
    frame = pd.read_csv(store / "part.csv")
    assert len(frame) == 6 and set(frame["split"]) == {"valid"} and set(frame["task"]) == {"draw"}


def test_a_damaged_run_is_named_and_left_out(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (damaged,) = (store / "runs" / "pi_mnist").iterdir()
    (damaged / "meta.json").write_text(json.dumps({"task": "pi_mnist"}))
    assert export(store, "all.csv") == 0
    out, err = capsys.readouterr()
    assert f"warning: {damaged} left out: meta.json lacks or garbles" in err and out.startswith("12 rows of 2 runs: ")


def test_what_cannot_be_written_is_one_line(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "all.xlsx: the suffix says the format; use .csv or .parquet" in fails(store, capsys, "all.xlsx")
    assert "all: the suffix says the format" in fails(store, capsys, "all")
    (store / "folder.csv").mkdir()
    assert "folder.csv is a folder; name a file in it" in fails(store, capsys, "folder.csv")
    assert f"choose from: {TASK_NAMES}" in fails(store, capsys, "all.csv", "--task", "drw")
    assert "these runs have none; they have bound" in fails(store, capsys, "all.csv", "--metric", "nll")
    assert "unrecognized arguments: --nonsense" in fails(store, capsys, "all.csv", "--nonsense")
    assert not (store / "all.csv").exists()


def test_without_a_parquet_library(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for engine in export_runs.ENGINES:
        monkeypatch.setitem(sys.modules, engine, None)
    line = fails(store, capsys, "all.parquet")
    assert "Parquet needs one of pyarrow, fastparquet" in line and "or write a .csv" in line


def test_no_runs_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(tmp_path, "all.csv") == 1
    assert capsys.readouterr().err.startswith("error: nothing to export: no logged run")
    assert not (tmp_path / "all.csv").exists()
