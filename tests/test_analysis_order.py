"""Arms, claims about several of them, and a task with more than one experiment."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import runfolders as rf

from experiments import grid
from experiments.analysis import compare, groups, names, report
from experiments.analysis.collect import collect
from experiments.compose import compose_cells
from experiments.schema import ConfigError, config_sha
from experiments.tasks import TASKS
from scripts import compare as command
from scripts.checked import OptionError, stems, supported_norms
from scripts.options import parse

ARMS = ("none", "bn_lstm", "ln", "ln_gain01")
ORDER = {"metric": "bound", "split": "valid", "better": "lower", "batch_size": None, "paper": None, "text": "first"}
PAPER = {
    "source": "a paper", "task": "draw", "experiment": "fig_one",
    "rows": [
        {"id": "end", "kind": "order", "candidate": "ln", "baselines": ["none", "bn_lstm"], "unit": "nats", **ORDER},
        {"id": "fast", "kind": "order_speed", "candidate": "ln", "baselines": ["none", "bn_lstm"], "clocks": ["step"],
         **ORDER},
        {"id": "least", "kind": "best", "norm": "bn_lstm", "unit": "nats", "context": "others: 4", **ORDER},
        {"id": "gain", "kind": "order", "candidate": "ln", "baselines": ["ln_gain01"], "unit": "nats", **ORDER,
         "experiment": "fig_two", "where": "smaller"},
    ],
}  # fmt: skip
# Final 5 and 4 at step 30; LN ends at 3 and has 5 at step 10, 4 at step 20.
CURVES = {"none": [9.0, 7.0, 5.0], "bn_lstm": [8.0, 3.5, 4.0], "ln": [5.0, 3.5, 3.0], "ln_gain01": [6.0, 5.0, 4.5]}


@pytest.fixture(autouse=True)
def two_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    """``fig_one`` has none, BN-LSTM and LN; ``fig_two`` has LN with both gains."""
    cells = {
        "fig_one": [rf.cell("draw", arm, 128, seed) for arm in ARMS[:3] for seed in range(3)],
        "fig_two": [rf.cell("draw", arm, 128, seed) for arm in ARMS[2:] for seed in range(3)],
    }

    def further(experiment: str, profile: str, norm: str, batch: int, seeds: tuple[int, ...]) -> list[rf.FakeCell]:
        return [rf.cell("draw", norm, batch, seed, profile) for seed in seeds]

    monkeypatch.setattr(compare, "code_changed", lambda commit, task: None)
    monkeypatch.setattr(grid, "experiment_names", lambda task: list(cells) if task == "draw" else [])
    monkeypatch.setattr(groups, "experiment_cells", lambda name, profile: cells[name])
    monkeypatch.setattr(groups, "_cells_of", further)
    monkeypatch.setattr(compare, "load_paper", lambda task: PAPER)


def write(root: Path, curves: dict[str, list[float]] = CURVES, seeds: int = 3, **changes: Any) -> None:
    """A run of each arm and seed; ``changes`` may name a curve (``ln2``) or a state (``ln2_state``)."""
    for arm, curve in curves.items():
        for seed in range(seeds):
            values = changes.get(f"{arm}{seed}", curve)
            state = changes.get(f"{arm}{seed}_state", "done")
            records = rf.rows({("valid", "bound"): values, ("test", "bound"): values})
            rf.write_run(root, rf.cell("draw", arm, 128, seed), records, data="bernoulli", state=state)


def rows_of(root: Path) -> dict[str, dict[str, Any]]:
    there, notes = groups.places(collect(root, Path("/none")), "draw", compare.experiments(PAPER))
    assert notes == []
    (several,) = there.values()
    return {row["id"]: row for name, group in several for row in compare.rows(PAPER, group, name)}


def test_the_best_of_several_on_every_seed(tmp_path: Path) -> None:
    write(tmp_path)
    rows = rows_of(tmp_path)
    assert rows["end"]["ours"] == [-1.0] * 3, "3 minus BN-LSTM's 4, its best rival"
    assert rows["end"]["details"][0] == {"seed": 0, "ln": 3.0, "none": 5.0, "bn_lstm": 4.0}
    # none has its 5 at step 30, LN at 10; BN-LSTM its 3.5 at step 20, LN at 20.
    assert rows["fast"]["ours"] == [1.0] * 3 and rows["fast"]["verdict"] == "inconclusive"
    assert "seeds in which LN is faster than baseline in 3 of 3, than BN-LSTM in 0 of 3" in rows["fast"]["reason"]
    assert rows["end"]["verdict"] == rows["gain"]["verdict"] == "same direction", "never more from a stand-in"
    assert rows["least"]["ours"] == [3.5] * 3 and rows["least"]["verdict"] == "not comparable"
    assert report.what(rows["end"]) == "final valid bound, LN minus the best of baseline and BN-LSTM, batch 128 [nats]"
    assert report.what(rows["fast"]).startswith("least speed-up of LN over baseline and BN-LSTM")
    assert report.what(rows["least"]) == "best valid bound, BN-LSTM, batch 128 [nats] (others: 4)"
    assert report.what(rows["gain"]) == "final valid bound, LN minus LN (gain 0.1), batch 128 [nats], smaller"


def test_seeds_or_rivals_that_disagree_leave_it_open(tmp_path: Path) -> None:
    write(tmp_path / "a", ln2=[5.0, 4.8, 4.5])  # better than the baseline, worse than BN-LSTM
    row = rows_of(tmp_path / "a")["end"]
    assert row["verdict"] == "inconclusive" and row["ours"] == [-1, -1, 0.5]
    assert "LN is better than baseline in 3 of 3, than BN-LSTM in 2 of 3" in row["reason"]
    write(tmp_path / "b", curves={**CURVES, "ln": [9.0, 9.0, 4.5]})
    assert rows_of(tmp_path / "b")["end"]["verdict"] == "inconclusive", "second of three is neither way"
    write(tmp_path / "c", curves={**CURVES, "ln": [9.0, 9.0, 9.0]})
    rows = rows_of(tmp_path / "c")
    assert rows["end"]["verdict"] == rows["fast"]["verdict"] == "opposite direction"
    assert rows["fast"]["ours"] == [0.0] * 3


def test_pairs_share_a_seed_and_a_diverged_rival_is_beaten(tmp_path: Path) -> None:
    write(tmp_path / "a", none1_state="diverged", bn_lstm0_state="interrupted")
    row = rows_of(tmp_path / "a")["end"]
    assert row["seeds"] == [1, 2] and row["ours"] == [-1, -1] and row["verdict"] == "same direction"
    write(tmp_path / "b", none1_state="diverged", ln1_state="diverged")
    row = rows_of(tmp_path / "b")["end"]
    assert math.isnan(row["ours"][1]) and row["verdict"] == "inconclusive"
    write(tmp_path / "c", curves={"none": CURVES["none"], "ln": CURVES["ln"]})
    row = rows_of(tmp_path / "c")["end"]
    assert row["n_seeds"] == 0 and "no finished run of none, bn_lstm and ln" in row["reason"]


def test_each_experiment_has_its_own_runs_and_no_other_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "runs", seeds=4)  # a seed that no experiment lists
    found = collect(tmp_path / "runs", Path("/none"))
    for name, arms in (("fig_one", ARMS[:3]), ("fig_two", ARMS[2:])):
        (group,), notes = groups.experiment_groups(found, "draw", name)
        assert {run.norm for run in group.runs} == set(arms) and notes == []
        assert {run.seed for run in group.runs} == {0, 1, 2, 3} and not group.other
    assert command.main(["--task", "draw", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"),
                         "--published", str(tmp_path / "none")]) == 0  # fmt: skip
    out, err = capsys.readouterr()
    assert err == "" and "smaller" in out and out.count("draw-small-bernoulli.md") == 1
    # An arm that no experiment lists is drawn wherever its settings fit.
    rf.write_run(tmp_path / "runs", rf.cell("draw", "wn", 128, 0), rf.rows({("valid", "bound"): [9.0]}))
    (group,), notes = groups.experiment_groups(collect(tmp_path / "runs", Path("/none")), "draw", "fig_one")[0][1:], []
    assert [run.norm for run in group.runs] == ["wn"] and notes == []


def test_runs_of_other_settings_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_cells_of", lambda *_: [])
    write(tmp_path)
    rf.write_run(tmp_path, rf.cell("draw", "wn", 128, 0), rf.rows({("valid", "bound"): [9.0]}), data="bernoulli")
    _, (note,) = groups.experiment_groups(collect(tmp_path, Path("/none")), "draw", "fig_one")
    assert note.startswith("note: 1 runs of draw at profile small (bernoulli) fit no cell of fig_one")


def test_arms_have_names_and_belong_to_a_norm() -> None:
    assert [names.family(arm) for arm in ("none", "bn_everywhere", "ln_gain01")] == ["none", "bn", "ln"]
    assert [names.name(arm) for arm in ("bn_lstm", "new")] == ["BN-LSTM", "new"]
    arms = [norm for norm in stems("norm") if "_" in norm]
    assert {"bn_lstm", "bn_everywhere", "ln_gain01"} <= set(arms) and all(arm in names.NAMES for arm in arms)


def test_an_arm_is_chosen_by_its_name_and_is_a_run_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(TASKS["pi_mnist"]), "norms", ("none", "bn", "bn_lstm", "bn_everywhere", "ln", "ln_gain01"))
    cells = {norm: compose_cells([["task=pi_mnist", f"norm={norm}"]])[0] for norm in TASKS["pi_mnist"].norms}
    assert {norm: cfg.norm.shown for norm, cfg in cells.items()} == {norm: norm for norm in cells}
    assert len({config_sha(cfg) for cfg in cells.values()}) == len(cells)
    assert cells["bn_lstm"].norm.norm() == cells["bn_everywhere"].norm.norm() != cells["bn"].norm.norm()
    assert cells["ln_gain01"].norm.norm().gain_init == 0.1 and cells["bn"].norm.arm is None
    with pytest.raises(ConfigError, match=r"norm.arm=bn_lstm is no arm of norm.name=ln: use norm= with its name"):
        compose_cells([["task=pi_mnist", "norm=ln", "norm.arm=bn_lstm"]])


@pytest.mark.parametrize("task", [task for task in stems("task") if "bn_lstm" not in supported_norms(task)])
def test_a_task_without_arms_refuses_them(task: str) -> None:
    with pytest.raises(ConfigError, match=f"norm=bn_lstm is not supported by task {task}"):
        compose_cells([[f"task={task}", "norm=bn_lstm"]])
    with pytest.raises(OptionError, match=f"NORM=bn_lstm is not supported by TASK={task}"):
        parse("sweep", [f"TASK={task}", "NORM=bn_lstm"])


def test_a_figure_names_its_arms(tmp_path: Path) -> None:
    from experiments.analysis.figures import draw

    write(tmp_path)
    (group,), _ = groups.experiment_groups(collect(tmp_path, Path("/none")), "draw", "fig_one")
    panel = {"split": "valid", "metric": "bound", "ylabel": "bound", "batch_size": None}
    figure, _ = draw({"name": "x", "title": "x", "panels": [panel]}, group)
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]  # type: ignore[union-attr]
    assert legend == ["baseline (3 seeds)", "BN-LSTM (3 seeds)", "LN (3 seeds)"]
    assert any("BN: batch, LN: layer normalisation" in text.get_text() for text in figure.texts)
