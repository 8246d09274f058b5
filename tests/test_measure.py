"""What ``make bench`` and ``make estimate`` measure: the right products, whole steps, and budgets scaled up."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.compose import compose_cells
from experiments.tasks import TASKS
from models import chunked_softmax
from scripts import bench, measure, readme_tables, timing
from tests.commands import make

CPU = torch.device("cpu")
CELL = ["task=pi_mnist", "norm=none", "profile=smoke", "device=cpu", "threads=1"]


def test_the_floor_holds_every_product_of_a_step() -> None:
    (cfg,) = compose_cells([CELL])
    step = measure.Stepper(cfg, TASKS["pi_mnist"].data(cfg, CPU), CPU)
    floor = bench.floor(step)
    # Layers 784-32-32-10: three forward, three for weights, two for inputs (the images need no gradient).
    first, second, last = 784 * 32, 32 * 32, 32 * 10
    assert floor.count == 8
    assert floor.gflop == pytest.approx(2 * cfg.train.batch_size * (2 * first + 3 * second + 3 * last) / 1e9)
    assert floor() > 0


def test_products_keep_their_layout() -> None:
    x_NM = torch.randn(5, 3)
    with timing.Recorder() as recorder:
        torch.randn(4, 5) @ x_NM
        torch.randn(4, 3) @ x_NM.T
        torch.addmm(torch.zeros(3), torch.randn(4, 5), x_NM)
        torch.randn(2, 4, 5) @ torch.randn(2, 5, 3)
    assert [(tuple(a.shape), tuple(b.shape)) for a, b in recorder.found] == [
        ((4, 5), (5, 3)), ((4, 3), (3, 5)), ((4, 5), (5, 3)), ((2, 4, 5), (2, 5, 3))
    ]  # fmt: skip
    floor = timing.Floor(recorder.found, CPU)
    assert floor.calls[1][2].stride() == (1, 3), "a transposed factor stays one"
    assert floor.gflop == pytest.approx(2 * (4 * 5 * 3 * 3 + 2 * 4 * 5 * 3) / 1e9)


def test_products_into_a_given_place_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_softmax, "BLOCK", {"cpu": 2 * 7})  # two rows of seven words
    h_NH, weight_VH = torch.randn(5, 3, requires_grad=True), torch.randn(7, 3, requires_grad=True)
    with timing.Recorder() as recorder:
        chunked_softmax.softmax_loss(h_NH, torch.zeros(5, dtype=torch.int64), weight_VH, torch.zeros(7)).backward()
    floor = timing.Floor(recorder.found, CPU)
    assert floor.count == 3 * 3, "logits, and the gradients of states and weights, of each block"
    assert floor.gflop == pytest.approx(3 * 2 * 5 * 3 * 7 / 1e9)


def test_every_round_times_every_norm() -> None:
    order: list[str] = []
    timers = {name: (lambda name=name: order.append(name) or 1.0) for name in ("none", "ln", "products")}
    seconds = timing.turns(timers)
    assert {len(taken) for taken in seconds.values()} == {timing.MOST_ROUNDS}
    assert order[:6] == ["none", "ln", "products"] * 2, "they take turns"


def test_a_short_call_fills_its_turn_and_its_first_call_does_not_count() -> None:
    calls = iter([5 * timing.TURN_SECONDS, *([timing.TURN_SECONDS / 4] * 10_000)])
    seconds = timing.turns({"long first": lambda: next(calls)})["long first"]
    assert seconds == pytest.approx([timing.TURN_SECONDS / 4] * timing.MOST_ROUNDS)


def test_the_floor_takes_the_faster_library_for_each_product() -> None:
    def slow(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01 * (len(a) == 4))
        return out

    def other(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01 * (len(a) != 4))
        return out

    products = [(torch.randn(n, 5), torch.randn(5, 3)) for n in (4, 6, 4)]
    floor = timing.Floor(products, CPU, by=[slow, other])
    assert [call[0] for call in floor.calls] == [other, slow, other]


@pytest.mark.parametrize("multiply", timing.libraries())
def test_the_libraries_multiply_what_they_are_given(multiply: timing.Multiply) -> None:
    a, b = torch.randn(7, 4).t(), torch.randn(5, 7).t()
    torch.testing.assert_close(multiply(a, b, torch.empty(4, 5)), a @ b)


def test_a_measurement_is_scaled_to_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SECONDS", 0.0)
    (cfg,) = compose_cells([["task=draw", "norm=ln", "profile=smoke", "device=cpu", "threads=1"]])
    found = measure.measure(cfg, jobs=2)
    assert found["steps"] == 2 * 10 and found["evaluations"] == 2, "1,280 images in batches of 128, two epochs"
    hours = (20 * found["ms_per_step"] / 1e3 + 2 * found["seconds_per_evaluation"]) / 3600
    assert found["hours"] == pytest.approx(hours)
    assert found["peak_mib"]["process"] > 50 and found["parameters"] > 0


def test_the_readme_says_where_a_step_was_timed_on_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readme_tables, "PUBLISHED", tmp_path)
    (tmp_path / "bench").mkdir()
    parts = {"products": {"ms": 2.0}, "optimizer": {"ms": 1.0}}
    norms = {"ln": {"ms_per_step": 4.0}}
    data: list[dict[str, Any]] = [{}, {"kind": "mirror", "name": "MNIST"}, {"kind": "stand-in", "name": "scenes"}]
    batches = [
        {"batch_size": n, "threads": 1, "norms": norms, **parts} | ({"data": one} if one else {})
        for n, one in enumerate(data)
    ]
    about = {"task": "pi_mnist", "device": "cpu", "hardware": {"cpu": "some CPU"}, "batches": batches}
    (tmp_path / "bench" / "pi_mnist.json").write_text(json.dumps(about))
    rows = [line.split(" | ") for line in readme_tables.benches().splitlines()[2:]]
    assert [(row[1], row[2], row[3]) for row in rows[:3]] == [
        ("0", "whole step, `ln`", "4.00"), ("0", "products alone", "2.00"), ("0", "optimizer alone", "1.00"),
    ]  # fmt: skip
    assert [row[4] for row in rows[::3]] == ["some CPU, cpu, 1 thread |"] * 2 + ["some CPU, cpu, 1 thread; on scenes |"]


@pytest.mark.slow
def test_bench_and_estimate_as_commands(results: Path) -> None:
    words = ["TASK=pi_mnist", "PROFILE=smoke", "NORM=none,ln", "BATCH=4", "JOBS=2", "DEVICE=cpu"]
    done = make("bench", *words, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads((results / "bench" / "pi_mnist.json").read_text())
    (batch,) = report["batches"]
    assert report["profile"] == "smoke" and batch["batch_size"] == 4 and list(batch["norms"]) == ["none", "ln"]
    for row in batch["norms"].values():
        assert len(row["all_ms"]) >= 5 and row["peak_mib"]["process"] > 50
        assert row["ms_per_step"] > 0 and row["examples_per_second"] == pytest.approx(4e3 / row["ms_per_step"])
    assert batch["products"]["ms"] > 0 and "products alone" in done.stdout
    assert batch["data"]["kind"] in ("original", "mirror")
    assert "optimizer alone" in done.stdout
    assert 0 < batch["optimizer"]["ms"] < batch["norms"]["none"]["ms_per_step"]

    done = make("estimate", *words, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split()[:4] == ["norm", "batch", "ms/step", "steps"]
    assert [line.split()[0] for line in lines[2:4]] == ["none", "ln"]
    assert "all cells: " in done.stdout and "; timed on MNIST" in done.stdout


def test_a_reader_is_timed_on_words_in_the_published_sizes(
    monkeypatch: pytest.MonkeyPatch, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever questions are at hand; the four arms of Figure 2, once each."""
    asked: list[bench.Cell] = []
    found = {"batch_size": 64, "threads": 1, "norms": {}, "products": {"ms": 1.0, "count": 1, "gflop": 1.0},
             "optimizer": {"ms": 1.0}}  # fmt: skip
    monkeypatch.setattr(bench, "bench_batch", lambda batch, grid, *_: asked.extend(grid) or found)
    for words, data in ((["PROFILE=paper"], "random"), (["PROFILE=smoke"], "stories")):
        asked.clear()
        monkeypatch.setattr("sys.argv", ["bench", "TASK=attentive_reader", *words])
        assert bench.main() == 0
        assert [cell.norm for cell in asked] == ["none", "bn_lstm", "bn_everywhere", "ln"]
        datasets = {cfg.task.dataset for cfg in bench.compose_cells([cell.overrides for cell in asked])}
        assert datasets == {data}


def test_what_a_paper_run_costs_is_measured_on_its_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stories are short and know few words: a step on them tells nothing about one on articles."""
    monkeypatch.setattr(measure, "SECONDS", 0.0)
    tiny = ["task=attentive_reader", "norm=ln", "device=cpu", "threads=1", "task.word_dim=4", "task.units=4",
            "train.batch_size=2", "train.eval_batch_size=2"]  # fmt: skip
    paper, small = compose_cells([[*tiny, "profile=paper"], [*tiny, "profile=small"]])
    of_paper, of_small = measure.measure(paper, jobs=2), measure.measure(small, jobs=2)
    assert of_paper["data"] == "random words in the published sizes" and of_paper["parameters"] > 65_830 * 4
    assert of_paper["steps"] == 800_000 and of_paper["evaluations"] == 800
    assert of_small["data"] == "generated stories (stand-in)" and of_small["parameters"] < 10_000
