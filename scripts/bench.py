"""Times one training step of every norm of a task, beside the time of its matrix products alone.

    make bench TASK=draw

A step is everything between two batches: forward, backward, clipping, optimiser. The norms take turns in one
run, so that a busy machine slows all of them alike. The floor is what no implementation of the same model can
undercut on the same library: the matrix products of one real step of the first norm, recorded and then run on
their own. (The compiled recurrent kernels use products of their own, so they can be below it.) A model with recurrent
layers is timed with ``kernel=reference`` too.
Writes ``results/bench/<task>.json``.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.analysis.output import short_path, write_whole
from experiments.cell import git_state, hardware, prepare
from experiments.cli import guarded
from experiments.compose import compose_cells
from experiments.grid import Cell, cells, experiment_names
from experiments.runs import now
from experiments.schema import Config
from experiments.tasks import TASKS
from models.cells import GRUCell, LSTMCell
from scripts.measure import Stepper, in_subprocess, synchronize
from scripts.options import Options, from_command_line

WARM_UP, LEAST_ROUNDS, MOST_ROUNDS, SECONDS = 2, 7, 50, 15.0
TURN_SECONDS = 0.1
REFERENCE = "kernel=reference"
ATEN = torch.ops.aten
# Operation -> positions of its two factors.
PRODUCTS = {
    ATEN.mm.default: (0, 1),
    ATEN.addmm.default: (1, 2),
    ATEN.bmm.default: (0, 1),
    ATEN.baddbmm.default: (1, 2),
}
Product = tuple[Tensor, Tensor]


class Recorder(TorchDispatchMode):
    """Collects the factors of every matrix product, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Product] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (positions := PRODUCTS.get(func)) is not None:
            a, b = (args[position] for position in positions)
            self.found.append((a.detach(), b.detach()))
        return func(*args, **(kwargs or {}))


class Floor:
    """The matrix products of one step, in their order, on factors of the same shapes and layouts.

    Attributes:
        count: number of products.
        gflop: multiplications and additions, in units of 1e9.
    """

    def __init__(self, products: Sequence[Product], device: torch.device) -> None:
        self.device, self.count = device, len(products)
        self.gflop = sum(2 * a.numel() * b.shape[-1] for a, b in products) / 1e9
        kept: dict[tuple[Any, ...], tuple[Callable[..., Tensor], Tensor, Tensor, Tensor]] = {}
        self.calls = []
        for a, b in products:
            key = (a.shape, a.stride(), b.shape, b.stride())
            if key not in kept:
                out = torch.empty(*a.shape[:-1], b.shape[-1], device=device)
                kept[key] = (torch.bmm if a.dim() == 3 else torch.mm, _like(a), _like(b), out)
            self.calls.append(kept[key])

    @torch.no_grad()
    def __call__(self) -> float:
        """Runs them all. Returns seconds."""
        start = time.perf_counter()
        for multiply, a, b, out in self.calls:
            multiply(a, b, out=out)
        synchronize(self.device)
        return time.perf_counter() - start


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


def _like(x: Tensor) -> Tensor:
    """Random values in the layout of ``x``; where that repeats memory (a broadcast), in one of its own."""
    if any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True)):
        return torch.randn(x.shape, device=x.device)
    return torch.empty_strided(x.shape, x.stride(), device=x.device).normal_()


def floor(step: Stepper) -> Floor:
    """Records one step and builds its floor."""
    with Recorder() as recorder:
        step()
    return Floor(recorder.found, step.device)


def turns(timers: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Runs the timers in turn, round after round. Returns seconds per call and round, warm-up left out.

    A turn lasts a tenth of a second, however short the call, and its first call does not count: the caches that the
    others left behind would be what is measured.
    """
    seconds: dict[str, list[float]] = {name: [] for name in timers}
    start = time.perf_counter()
    for number in range(WARM_UP + MOST_ROUNDS):
        if number == WARM_UP:
            start = time.perf_counter()
        for name, timer in timers.items():
            first = timer()
            taken = [timer() for _ in range(max(1, int(TURN_SECONDS / first)))] if first < TURN_SECONDS else [first]
            if number >= WARM_UP:
                seconds[name].append(statistics.fmean(taken))
        if number + 1 >= WARM_UP + LEAST_ROUNDS and time.perf_counter() - start > SECONDS:
            break
    return seconds


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
    jobs = options.jobs or 1
    report: dict[str, Any] = {"task": options.task, "profile": options.profile, "batches": []}
    for name in experiment_names(options.task):
        grid = cells(name, options.profile, options.norms, options.batches, seeds=[0])
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
