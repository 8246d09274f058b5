"""Times one training step of every norm of a task, beside the time of its matrix products alone.

    make bench TASK=draw
    make bench TASK=rnn

A step is everything between two batches: forward, backward, clipping, optimiser. The norms take turns in one
run, so that a busy machine slows all of them alike. The floor is what no implementation of the same model can
undercut on the same library: the matrix products of one real step of the first norm, recorded and then run on
their own. (The compiled recurrent kernels use products of their own, so they can be below it.) A model with recurrent
layers is timed with ``kernel=reference`` too.
Writes ``results/bench/<task>.json``. ``TASK=rnn`` times the recurrent layers alone: ``scripts.bench_rnn``.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from experiments.analysis.output import short_path, write_whole
from experiments.cell import git_state, hardware, prepare
from experiments.cli import guarded
from experiments.compose import compose_cells
from experiments.grid import Cell, cells, experiment_names
from experiments.runs import now
from experiments.schema import Config
from experiments.tasks import TASKS
from models.cells import GRUCell, LSTMCell
from scripts import bench_rnn
from scripts.measure import PAPER_SIZED, Stepper, in_subprocess, synchronize
from scripts.options import Options, from_command_line
from scripts.timing import Floor, Recorder, turns

REFERENCE = "kernel=reference"
ANALYSES = {"rnn": bench_rnn.bench}  # what is no task


class Update:
    """The optimiser's part of a step, alone, on the gradients of the last one."""

    def __init__(self, step: Stepper) -> None:
        self.optimizer, self.device = step.optimizer, step.device

    def __call__(self) -> float:
        """Makes one update. Returns seconds."""
        start = time.perf_counter()
        self.optimizer.step()
        synchronize(self.device)
        return time.perf_counter() - start


def floor(step: Stepper) -> Floor:
    """Records one step and builds its floor."""
    with Recorder() as recorder:
        step()
    return Floor(recorder.found, step.device)


def bench_batch(batch: int, grid: Sequence[Cell], options: Options, jobs: int) -> dict[str, Any]:
    """All norms at one batch size."""
    norms: dict[str, Cell] = {}
    for cell in grid:
        if cell.batch_size == batch:
            norms.setdefault(cell.norm, cell)
    configs: dict[str, Config] = {}
    for norm, cell in norms.items():
        (configs[norm],) = compose_cells([[*cell.overrides, f"device={options.device}"]])
    first = next(iter(configs.values()))
    device = prepare(first, jobs)
    data = TASKS[first.task.name].data(first, device)
    steps = {norm: Stepper(cfg, data, device) for norm, cfg in configs.items()}
    # The same steps through the plain loop, where a model has recurrent layers; its products can be recorded too.
    loops = {
        norm: Stepper(replace(cfg, kernel="reference"), data, device)
        for norm, cfg in configs.items()
        if any(isinstance(module, (LSTMCell, GRUCell)) for module in steps[norm].model.modules())
    }
    products = floor(next(iter((loops or steps).values())))
    timers = {**steps, **{f"{norm}, {REFERENCE}": step for norm, step in loops.items()}}
    seconds = turns({**timers, "products": products, "optimizer": Update(next(iter(steps.values())))})
    of_products, of_optimizer = seconds.pop("products"), seconds.pop("optimizer")
    of_loops = {norm: seconds.pop(f"{norm}, {REFERENCE}") for norm in loops}
    result: dict[str, Any] = {
        "batch_size": batch,
        "threads": torch.get_num_threads(),
        "data": {"kind": data.source.kind, "name": data.source.name},
        "products": {
            "ms": 1e3 * statistics.median(of_products),
            "count": products.count,
            "gflop": products.gflop,
            "all_ms": [round(1e3 * s, 3) for s in of_products],
        },
        "optimizer": {
            "ms": 1e3 * statistics.median(of_optimizer),
            "all_ms": [round(1e3 * s, 3) for s in of_optimizer],
        },
        "norms": {},
    }
    for norm, taken in seconds.items():
        median = statistics.median(taken)
        overrides = [*norms[norm].overrides, f"device={options.device}"]
        result["norms"][norm] = {
            "ms_per_step": 1e3 * median,
            "examples_per_second": batch / median,
            "times_products": median / statistics.median(of_products),
            "peak_mib": in_subprocess(overrides, jobs)["peak_mib"],
            "all_ms": [round(1e3 * s, 3) for s in taken],
        }
        if norm in of_loops:
            ratios = [mine / loop for mine, loop in zip(taken, of_loops[norm], strict=True)]
            result["norms"][norm] |= {
                "reference_ms": 1e3 * statistics.median(of_loops[norm]),
                "of_reference": statistics.median(ratios),
            }
    return result


def show(result: dict[str, Any]) -> None:
    """Prints the table of one batch size."""
    products = result["products"]
    threads = result["threads"]
    print(f"batch {result['batch_size']}, {threads} thread{'s' * (threads > 1)}")
    loops = any("reference_ms" in row for row in result["norms"].values())
    head = f"{'':<18}{'ms/step':>10}{'examples/s':>12}{'x products':>12}{'peak MiB':>10}"
    print(head + (f"{REFERENCE:>18}{'ratio':>8}" if loops else ""))
    for norm, row in result["norms"].items():
        line = (
            f"{norm:<18}{row['ms_per_step']:>10.2f}{row['examples_per_second']:>12.0f}"
            f"{row['times_products']:>12.2f}{row['peak_mib']['process']:>10.0f}"
        )
        print(line + (f"{row['reference_ms']:>18.2f}{row['of_reference']:>8.2f}" if "reference_ms" in row else ""))
    count, gflop = products["count"], products["gflop"]
    print(f"{'products alone':<18}{products['ms']:>10.2f}   {count} products, {gflop:.2f} GFLOP")
    print(f"{'optimizer alone':<18}{result['optimizer']['ms']:>10.2f}\n", flush=True)


def main() -> int:
    """Entry point."""
    options = from_command_line("bench", __doc__)
    for name in options.analyses:
        return ANALYSES[name]()
    jobs = options.jobs or 1
    report: dict[str, Any] = {"task": options.task, "profile": options.profile, "batches": []}
    # Of several experiments the first: the others differ in what takes no time.
    grid = cells(experiment_names(options.task)[0], options.profile, options.norms, options.batches, seeds=[0])
    if options.profile == "paper":  # the same on every machine
        sized = tuple(f"task.{key}={value}" for key, value in PAPER_SIZED.get(options.task, {}).items())
        grid = [replace(cell, overrides=(*cell.overrides, *sized)) for cell in grid]
    (cfg,) = compose_cells([[*grid[0].overrides, f"device={options.device}"]])
    device = prepare(cfg, jobs)
    report |= {
        "device": str(device),
        "hardware": hardware(device),
        "git": git_state(),
        "torch": torch.__version__,
    }
    for batch in dict.fromkeys(cell.batch_size for cell in grid):
        report["batches"].append(bench_batch(batch, grid, options, jobs))
        show(report["batches"][-1])
    report["measured"] = now()
    path = cfg.results / "bench" / f"{options.task}.json"
    print(short_path(write_whole(path, json.dumps(report, indent=1) + "\n")))
    return 0


if __name__ == "__main__":
    guarded(main)
