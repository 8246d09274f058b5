"""Measures one cell in a process of its own and prints JSON: ``python -m scripts.measure task=draw norm=ln``.

A process of its own, because its peak memory cannot be told apart from that of the cells before it otherwise.
"""

from __future__ import annotations

import itertools
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from data.attentive_reader import CNN_QUESTIONS, RANDOM
from experiments.cell import prepare
from experiments.cli import guarded
from experiments.compose import compose_cells
from experiments.loop import evaluate, initial_model, make_optimizer, training_step
from experiments.rng import derive
from experiments.runs import RunError
from experiments.schema import ROOT, Config
from experiments.tasks import TASKS
from experiments.tasks.base import Data

# Where a step's cost depends on the data and those of the paper may be absent: what stands in for their size.
PAPER_SIZED = {"attentive_reader": {"dataset": RANDOM, "eval_examples": CNN_QUESTIONS["valid"]}}
WARM_UP, LEAST_STEPS, MOST_STEPS, SECONDS = 2, 3, 50, 4.0


class Stepper:
    """A model in training, one step at a time.

    Data whose batches differ much in size have ``typical(seed)``, one batch that stands for all; of others, all full
    batches are taken in turn.

    Args:
        cfg: the cell.
        data: its data, shared between the norms that are measured side by side.
    """

    def __init__(self, cfg: Config, data: Data, device: torch.device) -> None:
        self.cfg, self.data, self.device, self.task = cfg, data, device, TASKS[cfg.task.name]
        self.model = initial_model(self.task, cfg, device).train()
        self.optimizer = make_optimizer(self.model, cfg)
        self.noise = torch.Generator(device=device)
        self.indices = self._indices()
        self.step = 0

    def _indices(self) -> Iterator[torch.Tensor]:
        epoch, typical = 0, getattr(self.data, "typical", None)
        if typical is not None:
            yield from itertools.repeat(typical(self.cfg.seed))
        while True:
            yield from (i for i in self.data.epoch(epoch, self.cfg.seed) if len(i) == self.cfg.train.batch_size)
            epoch += 1

    def __call__(self) -> float:
        """Makes one whole step, batch to optimiser. Returns its seconds."""
        self.step += 1
        start = time.perf_counter()
        self.noise.manual_seed(derive(self.cfg.seed, "noise", self.step))
        training_step(self.task, self.model, self.optimizer, self.data.batch(next(self.indices)), self.cfg, self.noise)
        synchronize(self.device)
        return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Waits for the device, so that a clock read afterwards is right."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_mib(device: torch.device) -> dict[str, float]:
    """Peak memory of this process so far, in MiB, and of the GPU if one is used."""
    try:
        # Not getrusage: on Linux its peak starts at that of the parent, which may be larger than all this.
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        peak = {"process": int(status.split("VmHWM:")[1].split()[0]) / 2**10}
    except (OSError, IndexError):
        peak = {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}  # bytes on macOS
    if device.type == "cuda":
        peak["gpu"] = torch.cuda.max_memory_allocated() / 2**20
    return peak


@torch.no_grad()
def evaluation_seconds(step: Stepper, data: Data, cfg: Config) -> float:
    """Seconds of one evaluation; as the task estimates them where it can, for one may take hours."""
    if hasattr(step.task, "evaluation_seconds"):
        return float(step.task.evaluation_seconds(step.model.eval(), data, cfg))
    start = time.perf_counter()
    evaluate(step.task, step.model, data, cfg)
    synchronize(step.device)
    return time.perf_counter() - start


def paper_sized(cfg: Config) -> Config:
    """The cell on data of the paper's size, which mean nothing, where the task has such data; else the cell itself."""
    return replace(cfg, task=replace(cfg.task, **PAPER_SIZED.get(cfg.task.name, {})))


def measure(cfg: Config, jobs: int) -> dict[str, Any]:
    """Times a few steps and one chunk of the evaluation, and scales both up to the whole budget.

    Returns:
        ms_per_step, steps, evaluations, seconds_per_evaluation, hours, peak_mib, parameters, and the name of the data.
    """
    device = prepare(cfg, jobs)
    task = TASKS[cfg.task.name]
    if cfg.profile == "paper" and cfg.task.name in PAPER_SIZED and task.data(cfg, device).source.kind == "stand-in":
        cfg = paper_sized(cfg)
    # Where a task says how many examples it evaluates, one chunk of them tells the rest.
    share = 1.0
    small = cfg
    if (wanted := getattr(cfg.task, "eval_examples", None)) is not None:
        chunk = min(wanted, cfg.train.eval_batch_size)
        share, small = wanted / chunk, replace(cfg, task=replace(cfg.task, eval_examples=chunk))
    data = task.data(small, device)
    step = Stepper(small, data, device)
    for _ in range(WARM_UP):
        step()
    seconds: list[float] = []
    while len(seconds) < LEAST_STEPS or (sum(seconds) < SECONDS and len(seconds) < MOST_STEPS):
        seconds.append(step())
    evaluation = share * evaluation_seconds(step, data, small)

    train = cfg.train
    per_epoch = len(data.epoch(0, cfg.seed))
    steps = math.ceil(train.budget * (per_epoch if train.budget_unit == "epochs" else 1) - 1e-9)
    evaluations = math.ceil(train.budget / train.eval_every - 1e-9)
    per_step = statistics.median(seconds)
    return {
        "ms_per_step": 1e3 * per_step,
        "steps": steps,
        "evaluations": evaluations,
        "seconds_per_evaluation": evaluation,
        "hours": (steps * per_step + evaluations * evaluation) / 3600,
        "peak_mib": peak_mib(device),
        "parameters": sum(p.numel() for p in step.model.parameters()),
        "data": data.source.name,
    }


def in_subprocess(overrides: Sequence[str], jobs: int) -> dict[str, Any]:
    """``measure`` in a fresh process. Raises ``RunError`` with its last line if that fails."""
    command = [sys.executable, "-m", "scripts.measure", str(jobs), *overrides]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RunError(f"measuring {' '.join(overrides)} failed: {lines[-1].removeprefix('error: ')}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    """``JOBS`` and the cell's overrides come as arguments."""
    (cfg,) = compose_cells([sys.argv[2:]])
    print(json.dumps(measure(cfg, int(sys.argv[1]))))
    return 0


if __name__ == "__main__":
    guarded(main)
