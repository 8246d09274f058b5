"""Figures: what is aggregated, what is drawn, what is written, without a window system."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import runfolders as rf
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import figures, style
from experiments.analysis.collect import collect
from experiments.analysis.curve import run_curve
from experiments.analysis.groups import Group, groups
from experiments.analysis.output import write_whole
from experiments.tasks import TASKS

REPO = Path(__file__).resolve().parents[1]
INF = math.inf
FIGURE: dict[str, Any] = {
    "name": "fig4_draw",
    "title": "Figure 4",
    "x": "epoch",
    "panels": [{"title": "", "split": "test", "metric": "bound", "ylabel": "test bound (nats)", "yscale": "linear"}],
}


def rows(*values: float, steps: list[int] | None = None) -> pd.DataFrame:
    """Rows of one metric at steps 10, 20, … (or ``steps``), an epoch every 10 steps."""
    steps = steps or [10 * (i + 1) for i in range(len(values))]
    return pd.DataFrame({"step": steps, "epoch": [step / 10 for step in steps], "value": values})


def group_of(root: Path, curves: dict[tuple[str, int], list[float]], data: str = "fixed", **states: str) -> Group:
    """DRAW runs: (norm, seed) -> test bounds; cells are seeds 0-2 of each norm named."""
    cells = [rf.cell("draw", norm, 128, seed) for norm in dict.fromkeys(n for n, _ in curves) for seed in range(3)]
    for (norm, seed), curve in curves.items():
        cell = rf.cell("draw", norm, 128, seed)
        if cell not in cells:
            cells.append(cell)
        records = rf.rows({("test", "bound"): curve})
        rf.write_run(root, cell, records, data=data, state=states.get(f"{norm}{seed}", "done"))
    (group,) = groups(collect(root, Path("/nonexistent")).runs, cells, "draw", "small")
    return group


def drawn(group: Group, spec: dict[str, Any] = FIGURE) -> tuple[list[Axes], str]:
    """The panels and all text outside of them."""
    figure, _ = figures.draw(spec, group)
    return figure.axes, " ".join(text.get_text().replace("\n", " ") for text in figure.texts)


def line(ax: Axes, label: str) -> np.ndarray:
    """y-values of the line whose legend entry starts with ``label``."""
    (found,) = [x for x in ax.lines if str(x.get_label()).startswith(label)]
    return np.asarray(found.get_ydata(), dtype=float)


def test_aggregate_median_and_range_on_common_steps() -> None:
    seeds = [("done", rows(5, 4, 3)), ("done", rows(9, 8, 1)), ("interrupted", rows(6, 2, steps=[10, 30]))]
    found = figures.aggregate(seeds, "epoch")
    assert found["step"].tolist() == [10, 30]
    assert found["epoch"].tolist() == [1, 3]
    assert found["low"].tolist() == [5, 1]
    assert found["middle"].tolist() == [6, 2]
    assert found["high"].tolist() == [9, 3]


def test_aggregate_counts_a_diverged_run_as_infinite_after_its_end() -> None:
    found = figures.aggregate([("done", rows(5, 4, 3)), ("diverged", rows(4)), ("done", rows(6, 5, 4))], "step")
    assert found["middle"].tolist() == [5, 5, 4]
    assert found["high"].tolist() == [6, INF, INF]
    found = figures.aggregate([("diverged", rows(4)), ("done", rows(6, 5))], "step")
    assert found["middle"].tolist() == [5, INF]


def test_aggregate_value_that_is_not_finite_is_infinitely_bad() -> None:
    found = figures.aggregate([("diverged", rows(4, math.nan)), ("done", rows(6, 5))], "step")
    assert found["high"].tolist() == [6, INF]


def test_aggregate_where_higher_is_better_a_diverged_run_is_at_the_bottom() -> None:
    found = figures.aggregate(
        [("done", rows(5, 6, 7)), ("diverged", rows(4, math.nan)), ("done", rows(6, 7, 8))], "step", "higher"
    )
    assert found["middle"].tolist() == [5, 6, 7]
    assert found["low"].tolist() == [4, -INF, -INF] and found["high"].tolist() == [6, 7, 8]
    found = figures.aggregate([("diverged", rows(4)), ("done", rows(6, 5))], "step", "higher")
    assert found["middle"].tolist() == [5, -INF]


def test_aggregate_five_seeds_have_quartiles() -> None:
    found = figures.aggregate([("done", rows(value)) for value in (1, 2, 3, 4, 100)], "step")
    assert found[["low", "middle", "high"]].iloc[0].tolist() == [2, 3, 4]


def test_few_seeds_are_all_drawn(tmp_path: Path) -> None:
    curves = {("ln", seed): [9.0 + seed, 8.0 + seed, 7.0 + seed] for seed in range(3)}
    (ax,), text = drawn(group_of(tmp_path, curves))
    assert [np.asarray(x.get_ydata()).tolist() for x in ax.lines[:3]] == [curves["ln", s] for s in range(3)]
    assert line(ax, "LN (3 seeds)").tolist() == [10, 9, 8]
    assert len(ax.collections) == 1  # the band
    assert "Thin lines: every seed" in text and "range" in text and "No smoothing" in text
    assert ax.get_ylabel() == "test bound (nats)" and ax.get_xlabel() == "epoch"


def test_many_seeds_are_a_median_with_quartiles(tmp_path: Path) -> None:
    (ax,), text = drawn(group_of(tmp_path, {("ln", seed): [9.0 + seed, 8.0] for seed in range(5)}))
    assert len(ax.lines) == 1 and "interquartile range" in text


def test_single_seed_has_no_band(tmp_path: Path) -> None:
    (ax,), text = drawn(group_of(tmp_path, {("ln", 0): [9.0, 8.0]}))
    assert len(ax.collections) == 0 and len(ax.lines) == 1
    assert "One seed per line" in text and "missing: ln batch 128 seeds 1, 2" in text


def test_diverged_run_ends_in_a_cross(tmp_path: Path) -> None:
    curves = {("none", 0): [9.0, 8.0, 7.0], ("none", 1): [9.0, 8.5], ("none", 2): [9.0, 8.0, 7.5]}
    (ax,), text = drawn(group_of(tmp_path, curves, none1="diverged"))
    (cross,) = [x for x in ax.lines if x.get_marker() == "X"]
    assert (cross.get_xdata()[0], cross.get_ydata()[0]) == (1.0, 8.5)
    assert line(ax, "baseline (3 seeds, 1 diverged)").tolist() == [9.0, 8.0, 7.5]
    assert "diverged and counts as infinitely bad" in text
    top = ax.get_ylim()[1]
    assert ax.collections[0].get_paths()[0].vertices[:, 1].max() == pytest.approx(top)


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_a_rare_spike_is_cut_and_said(tmp_path: Path, better: str) -> None:
    sign = 1 if better == "lower" else -1
    bounds = [sign * (210.0 - i) for i in range(40)]
    spiked = [*bounds[:20], sign * 900.0, *bounds[21:]]
    for seed, values in enumerate((bounds, spiked, bounds)):
        rf.write_run(tmp_path, rf.cell(seed=seed), rf.rows({("test", "bound"): values}))
    runs = [(run, run.series("test", "bound")) for run in collect(tmp_path, tmp_path / "none").runs]
    middle = figures.aggregate([(run.state, series) for run, series in runs], "epoch", better)
    ax = Figure().subplots()
    remarks = figures._cut(ax, FIGURE["panels"][0], {"ln": runs}, [(style.look("ln"), middle)], "epoch", better)
    where = {"lower": "above the axis, up to 900", "higher": "below the axis, down to -900"}[better]
    assert remarks == [f"test bound (nats): 1 value lies {where}"]
    low, high = sorted(sign * limit for limit in ax.get_ylim())
    assert 165 < low < 171 and 205 < high < 230 and ax.get_ylim()[0] < ax.get_ylim()[1]


@pytest.fixture
def bound_is_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """DRAW's metric with its direction turned."""
    task = TASKS["draw"]
    turned = replace(task.metrics["bound"], better="higher")
    monkeypatch.setattr(task, "metrics", {**task.metrics, "bound": turned})


@pytest.mark.usefixtures("bound_is_a_score")
def test_where_higher_is_better_a_diverged_run_pulls_the_band_down_and_a_low_start_is_cut(tmp_path: Path) -> None:
    late = [80.0 + i / 10 for i in range(30)]
    curves = {("none", seed): [1.0, *late] for seed in range(3)}
    curves["none", 1] = curves["none", 1][:20]
    (ax,), text = drawn(group_of(tmp_path, curves, none1="diverged"))
    assert line(ax, "baseline (3 seeds, 1 diverged)").tolist() == curves["none", 0], "the median of the two others"
    low, high = ax.get_ylim()
    assert 79 < low < 80 and high < 90 and "3 values lie below the axis, down to 1" in text
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == pytest.approx(low) and band.max() < 83


def test_unequal_lengths_are_cut_and_noted(tmp_path: Path) -> None:
    curves = {("ln", 0): [9.0, 8.0, 7.0, 6.0], ("ln", 1): [9.0, 8.0]}
    (ax,), text = drawn(group_of(tmp_path, curves, ln1="interrupted"))
    assert line(ax, "LN (2 seeds)").tolist() == [9.0, 8.0]
    assert "LN: seeds of unequal length, median cut at epoch 1" in text
    assert "not finished: ln batch 128 seed 1 (interrupted, 50 %)" in text


def test_title_and_caption_name_profile_commit_and_stand_in(tmp_path: Path) -> None:
    _, text = drawn(group_of(tmp_path, {("ln", 0): [9.0]}, data="bernoulli"))
    for part in (
        "Figure 4",
        "task draw",
        "profile small",
        "STAND-IN data: MNIST binarized",
        "commit c0ffee00",
        "seed 0",
    ):
        assert part in text
    assert "no fixed files of Larochelle" in text


def test_start_far_above_the_rest_does_not_squeeze_the_axis(tmp_path: Path) -> None:
    curve = [540.0, 110.0, *[100.0 - i / 10 for i in range(30)]]
    (ax,), text = drawn(group_of(tmp_path, {("ln", 0): curve}))
    assert ax.get_ylim()[1] < 120 and "above the axis, up to 540" in text


def test_other_batch_sizes_have_panels_of_their_own(tmp_path: Path) -> None:
    cells = [rf.cell("draw", "ln", batch, 0) for batch in (128, 64)]
    for cell in cells:
        rf.write_run(tmp_path, cell, rf.rows({("test", "bound"): [9.0, cell.batch_size]}))
    found = collect(tmp_path, Path("/nonexistent")).runs
    (group,) = groups(found, cells[:1], "draw", "small", cells[1:])
    axes, _ = drawn(group)
    assert [ax.get_legend().get_title().get_text() for ax in axes] == ["batch 128", "batch 64"]
    assert [line(ax, "LN (1 seed)").tolist() for ax in axes] == [[9, 128], [9, 64]]
    assert figures.draw(FIGURE, group)[1].groupby("panel")["batch_size"].unique().tolist() == [[128], [64]]


def test_files_are_complete_and_the_same_again(tmp_path: Path) -> None:
    group = group_of(tmp_path / "runs", {("ln", 0): [9.0, 8.0], ("none", 1): [9.0, 9.0]}, data="bernoulli")
    paths = figures.save(FIGURE, group, tmp_path / "out")
    assert [p.relative_to(tmp_path / "out").as_posix() for p in paths] == [
        f"small-bernoulli/fig4_draw.{kind}" for kind in ("png", "pdf", "csv")
    ]
    before = [p.read_bytes() for p in paths]
    assert before[0].startswith(b"\x89PNG") and before[1].startswith(b"%PDF")
    table = pd.read_csv(paths[2])
    assert len(table) == 4 and set(table["panel"]) == {1} and set(table["value"]) == {9.0, 8.0}
    assert figures.save(FIGURE, group, tmp_path / "out") == paths
    assert [p.read_bytes() for p in paths] == before
    assert sorted(p.name for p in paths[0].parent.iterdir()) == sorted(p.name for p in paths)


def test_four_panels_share_the_axis_of_a_metric(tmp_path: Path) -> None:
    spec = yaml.safe_load((REPO / "configs/experiment/fig6_pi_mnist.yaml").read_text(encoding="utf-8"))["figure"]
    cells = [rf.cell("pi_mnist", norm, batch, 0) for norm in ("none", "bn", "ln") for batch in (128, 4)]
    for i, cell in enumerate(cells):
        series = {("train", "nll"): [1, 0.1 / (i + 1), 0.0], ("test", "error"): [5.0, 2.0 + i, 1.5]}
        rf.write_run(tmp_path, cell, rf.rows(series, unit="percent"), data="mnist")
    (group,) = groups(collect(tmp_path, Path("/nonexistent")).runs, cells, "pi_mnist", "small")
    axes, _ = drawn(group, spec)
    assert [ax.get_yscale() for ax in axes] == ["log", "linear", "log", "linear"]
    assert axes[0].get_ylim() == axes[2].get_ylim() and axes[1].get_ylim() == axes[3].get_ylim()
    assert [len(ax.get_legend().get_texts()) for ax in axes] == [3, 3, 3, 3]
    assert [ax.get_legend().get_title().get_text() for ax in axes] == [
        "batch 128",
        "batch 128",
        "batch 4",
        "batch 4",
    ]


def test_an_axis_may_be_logarithmic_in_units_of_its_own(tmp_path: Path) -> None:
    group = group_of(tmp_path, {("ln", seed): [5.0, 4.0, 3.0] for seed in range(3)})
    spec = {**FIGURE, "x": "step", "xscale": "log", "xunit": 5, "xlabel": "updates × 5"}
    (ax,), _ = drawn(group, spec)
    assert ax.get_xscale() == "log" and ax.get_xlabel() == "updates × 5"
    assert all(line.get_xdata().tolist() == [2, 4, 6] for line in ax.lines), "steps 10, 20, 30"
    (ax,), _ = drawn(group)
    assert ax.get_xscale() == "linear" and ax.get_xlabel() == "epoch"


def test_empty_panel_says_so(tmp_path: Path) -> None:
    spec = {**FIGURE, "panels": [*FIGURE["panels"], {**FIGURE["panels"][0], "metric": "kl"}]}
    axes, _ = drawn(group_of(tmp_path, {("ln", 0): [9.0]}), spec)
    assert [text.get_text() for text in axes[1].texts] == ["no runs yet"]


def test_looks_are_distinct() -> None:
    looks = style.LOOKS.values()
    kinds = [{look.color for look in looks}, {str(look.line) for look in looks}, {look.name for look in looks}]
    assert [len(kind) for kind in kinds] == [len(looks)] * 3
    assert style.look("new").name == "new"


@pytest.mark.parametrize("best", [None, {"split": "valid", "metric": "bound", "value": 7.0, "step": 20}])
def test_run_curve(tmp_path: Path, best: dict[str, Any] | None) -> None:
    records = rf.rows({("valid", "bound"): [9.0, 7.0], ("test", "bound"): [9.5, INF], ("train", "kl"): [1.0, 2.0]})
    folder = rf.write_run(tmp_path, rf.cell(), records, best=best)
    assert run_curve(folder) == folder / "curve.png"
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_run_curve_never_stops_a_run(tmp_path: Path) -> None:
    assert run_curve(tmp_path).is_file()
    (tmp_path / "meta.json").write_text("{")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1')
    assert run_curve(tmp_path).is_file()


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.csv"
    path.write_text("old")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_no_window_system_no_pyplot_no_torch(tmp_path: Path) -> None:
    """Drawing works with a display that is not there, and needs neither pyplot nor torch."""
    group_of(tmp_path, {("ln", 0): [9.0, 8.0]})
    folder = next((tmp_path / "draw").iterdir())
    code = (
        "import sys; from pathlib import Path; from experiments.analysis.curve import run_curve;"
        "import scripts.figures, scripts.compare, scripts.status;"
        f"run_curve(Path({str(folder)!r}));"
        "print([m for m in ('torch', 'matplotlib.pyplot', 'tkinter', 'hydra') if m in sys.modules])"
    )
    env = {**os.environ, "DISPLAY": "nonsense:99", "MPLBACKEND": "TkAgg"}
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
