"""Asks a trained model something: ``make demo TASK=order_embeddings QUERY="a red seven and a blue two"``.

Takes the finished run of ``results/runs`` with LN if there is one, the first norm otherwise, its lowest seed, and the
longest of several such; NORM, SEEDS and PROFILE choose another. Prints the answer; pictures go to ``results/demo/``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.analysis.collect import Run, collect, results_dir
from experiments.analysis.output import short_path
from experiments.cell import prepare
from experiments.cli import guarded, in_short
from experiments.loop import initial_model, not_finite, weights
from experiments.runs import RunError
from experiments.schema import Config, ConfigError, load_saved
from experiments.tasks import TASKS
from experiments.tasks.base import Data, Demo
from scripts.options import Options, from_command_line


def choose(options: Options) -> Run:
    """The run to ask. Raises ``RunError`` naming the command that makes one."""
    runs = collect(results_dir() / "runs", Path("none"), options.task).runs
    fitting = [
        run
        for run in runs
        if run.state == "done" and (run.folder / "checkpoint.pt").is_file()
        and run.norm in (options.norms or [run.norm]) and run.seed in (options.seeds or [run.seed])
    ]  # fmt: skip
    wanted = [run for run in fitting if run.profile == options.profile]
    if not wanted:
        chosen = "".join(
            f" {name}={','.join(map(str, values))}"
            for name, values in (("NORM", options.norms), ("SEEDS", options.seeds))
            if values
        )
        where = short_path(results_dir() / "runs")
        others = " or ".join(f"PROFILE={profile}" for profile in sorted({run.profile for run in fitting}))
        raise RunError(
            f"no finished run of {options.task} at profile {options.profile}{chosen} in {where}: "
            f"make reproduce TASK={options.task} PROFILE={options.profile}{chosen}"
            + f", or ask the one with {others}"
            * bool(others)
        )
    return min(wanted, key=lambda run: (run.norm != "ln", run.norm, run.seed, -run.status.get("step", 0), run.run))


def load(run: Run, device: str) -> tuple[Config, Data, nn.Module]:
    """A run's configuration, data and selected weights. Raises ``RunError`` if one of them is not that run's."""
    cfg = load_saved(run.folder / "config.yaml")
    cfg.device = device
    place = prepare(cfg, 1)
    task = TASKS[cfg.task.name]
    data = task.data(cfg, place)
    if data.source.fingerprint != run.data["fingerprint"]:
        raise RunError(
            f"{run.run} was trained on {run.data['name']} [sha256 {run.data['fingerprint'][:12]}…], found is "
            f"{data.source.name} [sha256 {data.source.fingerprint[:12]}…]: point LN_DATA to its data, or choose "
            "another run with PROFILE, NORM and SEEDS"
        )
    model = initial_model(task, cfg, place)
    try:
        model.load_state_dict(weights(run.folder / "checkpoint.pt"))
    except Exception as error:  # whatever a damaged or foreign file makes torch raise
        raise RunError(
            f"{run.folder / 'checkpoint.pt'}: not this model's weights ({in_short(error)}); train the run anew"
        ) from None
    if bad := not_finite(model):
        raise RunError(f"{run.folder / 'checkpoint.pt'}: {bad} holds numbers that are not finite; train the run anew")
    return cfg, data, model.eval()


@contextmanager
def plain_text() -> Iterator[None]:
    """Pictures show any question as it is: a dollar sign is no formula, and a letter that the font lacks is a box."""
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        yield


def main() -> int:
    """Entry point."""
    options = from_command_line("demo", __doc__)
    task: Any = TASKS[options.task]
    if not isinstance(task, Demo):
        able = ", ".join(sorted(name for name, one in TASKS.items() if isinstance(one, Demo)))
        raise ConfigError(f"TASK={options.task} has nothing to ask; choose from: {able}")
    run = choose(options)
    cfg, data, model = load(run, options.device)
    folder = results_dir() / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{run.run} ({run.data['name']})")
    with torch.no_grad(), plain_text():
        lines, paths = task.demo(model, data, cfg, options.query, folder)
    print(*lines, *map(short_path, paths), sep="\n")
    return 0


if __name__ == "__main__":
    guarded(main)
