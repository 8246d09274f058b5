"""The one training loop: loss, backward, clip, step; evaluate; checkpoint.

Order of a step: batch, loss (stop if not finite), backward, clip, optimiser. After a step, in this order: evaluation
and its metrics when due; at the end the test of the selected weights, where a task asks for it; then a checkpoint. So a
checkpoint at step k always has the metrics up to k on disk, and a resumed run forgets the ones after. The training
clock stands still during evaluation and checkpoints. All randomness is a function of (seed, purpose, step or epoch), so
resuming restores nothing but tensors and counters, and evaluation cannot disturb training.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments import optim
from experiments.rng import derive, generator
from experiments.runs import Run, now
from experiments.schema import Config
from experiments.tasks.base import Data, FinalTest, Task, Value
from experiments.tracker import Tracker

log = logging.getLogger("suite")
STATUS_SECONDS = 1.0


def make_optimizer(model: nn.Module, cfg: Config) -> torch.optim.Optimizer:
    """The cell's optimiser, ``train.adam``."""
    return optim.make_optimizer(model, cfg.train)


def training_step(
    task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, cfg: Config, noise: torch.Generator
) -> tuple[float, Any]:
    """One update. Returns the loss and the sums to average.

    No update is made if the loss, or the gradient norm where it is computed, is not finite; the loss is then NaN.
    """
    loss = task.loss(model, batch, cfg, noise)
    value = loss.mean.item()
    if math.isfinite(value):
        optimizer.zero_grad()
        loss.mean.backward()
        if not optim.clip_gradients(model, cfg.train):
            return math.nan, loss.sums
        optimizer.step()
    return value, loss.sums


@torch.no_grad()
def evaluate(
    task: Task, model: nn.Module, data: Data, cfg: Config, how: Callable[..., list[Value]] | None = None
) -> list[Value]:
    """The task's evaluation (or ``how``), in eval mode; the model is back in training mode afterwards."""
    model.eval()
    try:
        return (how or task.evaluate)(model, data, cfg, derive(cfg.seed, "evaluation"))
    finally:
        model.train()


@dataclass
class Position:
    """Where a run stands; plain numbers, saved in every checkpoint."""

    step: int = 0
    epoch: int = 0
    offset: int = 0  # batches of this epoch already used
    examples: int = 0
    train_seconds: float = 0.0
    evaluations: int = 0
    best: dict[str, Any] | None = None  # the first of the best values of the task's ``select``
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)  # since the last evaluation
    rows: int | None = 0  # logged so far; None in a checkpoint that did not count them


class Trainer:
    """Trains one cell to its end, or until told to stop.

    Args:
        task, cfg, data, model, run, tracker: the cell's parts.
        device: where the model lives.
        should_stop: asked about once a second; true ends the run as ``interrupted`` after a checkpoint.
    """

    def __init__(
        self,
        task: Task,
        cfg: Config,
        data: Data,
        model: nn.Module,
        run: Run,
        tracker: Tracker,
        device: torch.device,
        should_stop: Callable[[], bool],
    ) -> None:
        self.task, self.cfg, self.data, self.model = task, cfg, data, model
        self.run, self.tracker, self.device, self.should_stop = run, tracker, device, should_stop
        self.optimizer = make_optimizer(model, cfg)
        self.noise = torch.Generator(device=device)
        self.at = Position()
        self.loss = math.nan
        self.selects = isinstance(task, FinalTest) and getattr(task, "selects", True)
        self.selected: dict[str, torch.Tensor] | None = None  # weights of ``at.best``, for a task that selects them
        self.batches = data.epoch(0, cfg.seed)
        self._mark = self._saved = self._told = time.perf_counter()
        self._start: tuple[int, float] = (0, self._mark)

    def train(self) -> str:
        """Runs to the end. Returns the state to ``close`` with: ``done``, ``diverged`` or ``interrupted``."""
        self._resume()
        self.model.train()
        self._tell("running")
        self._mark = self._saved = time.perf_counter()
        self._start = (self.at.step, self._mark)
        while not self._finished():
            for batch in self._epoch():
                if not self._step(batch):
                    return "diverged"
                due = self._evaluation_due() or self._finished()
                if due and not self._evaluate():
                    return "diverged"
                if self._finished() and not self._final_test():
                    return "diverged"
                if due or time.perf_counter() - self._saved > self.cfg.train.checkpoint_seconds:
                    if not self._save():
                        return "diverged"
                if self._finished():
                    break
                if time.perf_counter() - self._told > STATUS_SECONDS:
                    self._tell("running")
                    if self.should_stop():
                        return "interrupted" if self._save() else "diverged"
        if self.selected is not None:
            self.model.load_state_dict(self.selected)  # what the task's pictures show
        return "done"

    def total_steps(self) -> int:
        """Steps of the whole budget (an estimate if epochs differ in length)."""
        train = self.cfg.train
        return math.ceil(train.budget * (len(self.batches) if train.budget_unit == "epochs" else 1) - 1e-9)

    def _progress(self) -> float:
        """How far the run is, in ``train.budget_unit``."""
        at = self.at
        return at.epoch + at.offset / len(self.batches) if self.cfg.train.budget_unit == "epochs" else float(at.step)

    def _finished(self) -> bool:
        return self._progress() >= self.cfg.train.budget - 1e-9

    def _evaluation_due(self) -> bool:
        return math.floor(self._progress() / self.cfg.train.eval_every + 1e-9) > self.at.evaluations

    def _epoch(self) -> Iterator[Any]:
        """The batches left in this epoch; the position is already past the batch that is handed out."""
        self.batches = self.data.epoch(self.at.epoch, self.cfg.seed)
        for indices_B in self.batches[self.at.offset :]:
            self.at.offset += 1
            self.at.step += 1
            self.at.examples += len(indices_B)
            if self.at.offset == len(self.batches):
                self.at.epoch, self.at.offset = self.at.epoch + 1, 0
            yield self.data.batch(indices_B)

    def _step(self, batch: Any) -> bool:
        self.noise.manual_seed(derive(self.cfg.seed, "noise", self.at.step))
        self.loss, sums = training_step(self.task, self.model, self.optimizer, batch, self.cfg, self.noise)
        for name, (total, count) in sums.items():
            old_total, old_count = self.at.sums.get(name, (0.0, 0))
            self.at.sums[name] = (old_total + total.item(), old_count + count)
        return math.isfinite(self.loss)

    def _evaluate(self) -> bool:
        """Evaluates and logs; false if a value is not finite."""
        self._stop_clock()
        values = [Value("train", name, total / count) for name, (total, count) in self.at.sums.items()]
        values += evaluate(self.task, self.model, self.data, self.cfg)
        self.at.sums = {}
        self.at.evaluations = math.floor(self._progress() / self.cfg.train.eval_every + 1e-9)
        self._note_best(values)
        self._log(values)
        self._mark = time.perf_counter()
        return all(math.isfinite(value.value) for value in values)

    def _final_test(self) -> bool:
        """Tests the selected weights, or the last ones of a task that selects none; false if a value is not finite.

        The rows carry the last step, as all that is logged at the end does; ``at.best`` has that of the weights.
        """
        if not isinstance(self.task, FinalTest) or (self.selects and self.selected is None):
            return True
        last = None
        if self.selected is not None:
            assert self.at.best is not None
            last = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
            self.model.load_state_dict(self.selected)
            log.info("testing the weights of step %d", self.at.best["step"])
        values = evaluate(self.task, self.model, self.data, self.cfg, self.task.test)
        if last is not None:
            self.model.load_state_dict(last)
        self._log(values)
        self._mark = time.perf_counter()
        return all(math.isfinite(value.value) for value in values)

    def _log(self, values: list[Value]) -> None:
        """Writes values to metrics, tracker and log."""
        rows = [
            {
                "step": self.at.step,
                "examples": self.at.examples,
                "epoch": round(self.at.epoch + self.at.offset / len(self.batches), 6),
                "train_seconds": round(self.at.train_seconds, 3),
                "split": value.split,
                "metric": value.metric,
                "unit": self.task.metrics[value.metric].unit,
                "value": value.value,
            }
            for value in values
        ]
        self.run.log(rows)
        self.at.rows = (self.at.rows or 0) + len(rows)
        self.tracker.log(rows)
        shown = ", ".join(f"{v.split} {v.metric} {v.value:.4g}" for v in values)
        log.info("step %d: %s", self.at.step, shown)

    def _note_best(self, values: list[Value]) -> None:
        split, metric = self.task.select
        sign = 1 if self.task.metrics[metric].better == "lower" else -1
        for v in values:
            if (v.split, v.metric) == (split, metric) and math.isfinite(v.value):
                if self.at.best is None or sign * v.value < sign * self.at.best["value"]:
                    self.at.best = {"split": split, "metric": metric, "value": v.value, "step": self.at.step}
                    if self.selects:
                        self.selected = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def _stop_clock(self) -> None:
        """Adds the time since the last mark to the training clock, after the device has caught up."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.at.train_seconds += time.perf_counter() - self._mark
        self._mark = time.perf_counter()

    def _save(self) -> bool:
        """Saves a checkpoint; false, and nothing saved, if a weight is no longer finite."""
        self._stop_clock()
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters()):
            return False
        position = {**vars(self.at), "sums": {k: list(v) for k, v in self.at.sums.items()}}
        payload = {"position": position, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        if self.selected is not None:
            payload["selected"] = self.selected
        self.run.save_checkpoint(payload)
        self._mark = self._saved = time.perf_counter()
        return True

    def _resume(self) -> None:
        payload = self.run.load_checkpoint(self._misfit)
        if payload is not None:
            self.model.load_state_dict(payload["model"])
            self.optimizer.load_state_dict(payload["optimizer"])
            if "selected" in payload:
                self.selected = {name: tensor.to(self.device) for name, tensor in payload["selected"].items()}
            self.at = Position(**{"rows": None, **payload["position"]})
            self.at.sums = {k: (total, count) for k, (total, count) in payload["position"]["sums"].items()}
            self.batches = self.data.epoch(self.at.epoch, self.cfg.seed)
            log.info("resumed at step %d", self.at.step)
        self.run.rewind(self.at.step)
        self.at.rows = self.run.logged(self.at.step)

    def _misfit(self, payload: dict[str, Any]) -> str | None:
        """Whether the metrics up to a checkpoint have been damaged since: going on would lose them without a word."""
        position = payload["position"]
        wanted, there = position.get("rows"), self.run.logged(position["step"])
        if wanted in (None, there):
            return None
        return f"metrics.jsonl holds {there} of the {wanted} rows up to step {position['step']}"

    def _tell(self, state: str, error: str | None = None) -> None:
        seconds, done = time.perf_counter() - self._start[1], self.at.step - self._start[0]
        speed = done / seconds if done and seconds > 0 else None
        left = max(0, self.total_steps() - self.at.step)
        self.run.write_status(
            state,
            step=self.at.step,
            total_steps=self.total_steps(),
            epoch=round(self.at.epoch + self.at.offset / len(self.batches), 3),
            loss=self.loss,
            steps_per_second=speed,
            seconds_left=left / speed if speed and state == "running" else None,
            best=self.at.best,
            error=error,
            rows=self.at.rows,
        )
        self._told = time.perf_counter()

    def close(self, state: str) -> str | None:
        """Writes the final status; after the pictures, so that a run that is done has them. Returns its error."""
        error = None
        if state == "diverged":
            error = (
                f"a loss, gradient, weight or evaluated value is not finite at step {self.at.step}; "
                "the last good checkpoint is kept"
            )
            log.error(error)
        self.run.write_meta(ended=now())
        self._tell(state, error)
        return error


def initial_model(task: Task, cfg: Config, device: torch.device) -> nn.Module:
    """The cell's model at step 0."""
    return task.model(cfg, generator(cfg.seed, "init")).to(device)


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint: the selected ones, for a task that selects. Raises what ``torch.load`` does."""
    payload = torch.load(checkpoint, map_location="cpu", weights_only=True)
    found: dict[str, torch.Tensor] = payload.get("selected") or payload["model"]
    return found


def not_finite(model: nn.Module) -> str | None:
    """The name of the first weight or statistic of a model that holds a number that is not finite."""
    return next((name for name, weight in model.state_dict().items() if not bool(weight.isfinite().all())), None)
