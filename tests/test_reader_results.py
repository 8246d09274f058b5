"""Figure 2's three experiments and the claims of section 6.2, from run folders written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import runfolders as rf

from experiments.analysis import compare, report
from experiments.analysis.groups import experiment_cells
from scripts import compare as compare_command
from scripts import figures as figures_command

PAPER = compare.load_paper("attentive_reader")
EXPERIMENTS = ("fig2_attentive_reader", "fig2_attentive_reader_gain", "fig2_attentive_reader_init")
# Validation error in percent by evaluation. LN is the best of all, except with independent matrices on seed 0.
ERRORS = {
    "none": [90.0, 80.0, 70.0], "bn_lstm": [80.0, 50.0, 52.0], "bn_everywhere": [80.0, 60.0, 48.0],
    "ln": [48.0, 45.0, 46.0], "ln_gain01": [90.0, 70.0, 60.0],
}  # fmt: skip


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run for every cell of the three experiments at profile smoke; those they share once."""
    stories = {"kind": "stand-in", "label": "stories", "name": "stories", "detail": "generated"}
    monkeypatch.setitem(rf.SOURCES, "stories", stories)
    monkeypatch.setattr(compare, "code_changed", lambda commit, task: None)
    cells = {cell.config_sha: cell for name in EXPERIMENTS for cell in experiment_cells(name, "smoke")}
    assert len(cells) == 12 + 3 + 12
    for cell in cells.values():
        lucky = "legacy_init=False" in cell.command and (cell.norm, cell.seed) == ("none", 0)
        curve = [44.0] * 3 if lucky else ERRORS[cell.norm]
        fake = rf.FakeCell(cell.task, cell.norm, cell.batch_size, cell.seed, "smoke", cell.config_sha, cell.command)
        records = rf.rows({("valid", "error"): curve, ("train", "batch_error"): curve}, unit="percent")
        rf.write_run(tmp_path / "runs", fake, records, data="stories")
    return tmp_path


def test_claims_and_figures(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--runs", str(written / "runs"), "--published", str(written / "none"), "--out", str(written / "out")]
    assert compare_command.main(["--task", "attentive_reader", *places]) == 0
    text, err = capsys.readouterr()
    assert err == "", "every run belongs to an experiment"
    rows = json.loads((written / "out" / "attentive_reader.json").read_text())
    assert {row["n_seeds"] for row in rows} == {3} and "matches" not in {row["verdict"] for row in rows}
    found = {(row["id"], row["kind"], row["where"], row["clock"]): row for row in rows}
    end = found["ar_order", "order", None, None]
    assert end["ours"] == [-2.0] * 3 and end["verdict"] == "same direction", "46 minus BN-everywhere's 48"
    fast = found["ar_order", "order_speed", None, "step"]
    assert fast["ours"] == [2.0] * 3, "BN-LSTM has its 50 at step 20, LN is there at step 10"
    other = found["ar_order", "order", "independent initial matrices", None]
    assert other["ours"] == [2.0, -2.0, -2.0] and other["verdict"] == "inconclusive"
    gain = found["ar_gain", "order", None, None]
    assert gain["ours"] == [-14.0] * 3 and gain["verdict"] == "same direction"
    least = [report.what(row) for row in rows if row["kind"] == "best"]
    assert least[0] == "best valid error, baseline, batch 32 [percent] (Cooijmans et al. 2016, their data: 50.3)"
    assert "Cooijmans et al. 2016, their data: 49.5" in least[1] and "50.0" in least[2] and "Cooijmans" not in least[3]
    assert all(row["paper"] is None for row in rows), "what others state is no target"

    assert figures_command.main(["--task", "attentive_reader", *places]) == 0
    out, err = capsys.readouterr()
    assert err == "" and {Path(line).stem for line in out.splitlines()} == set(EXPERIMENTS)
    drawn = {name: (written / "out" / "smoke-stories" / f"{name}.csv").read_text() for name in EXPERIMENTS}
    shown = {name: {arm for arm in ERRORS if f",{arm}," in table} for name, table in drawn.items()}
    four = {"none", "bn_lstm", "bn_everywhere", "ln"}
    assert shown == dict(zip(EXPERIMENTS, (four, {"ln", "ln_gain01"}, four), strict=True))


def test_every_row_is_of_an_experiment_that_has_its_arms() -> None:
    assert sorted(compare.experiments(PAPER)) == sorted(EXPERIMENTS)
    arms = {name: {cell.norm for cell in experiment_cells(name, "smoke")} for name in EXPERIMENTS}
    for row in PAPER["rows"]:
        named = {row.get("norm"), row.get("candidate"), *row.get("baselines", [])} - {None}
        assert named and named <= arms[row.get("experiment", PAPER["experiment"])], row
