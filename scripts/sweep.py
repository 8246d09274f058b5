"""Trains the cells norm x batch size x seed of a task, several at a time: one Hydra multirun.

make sweep TASK=pi_mnist BATCH=128,4 NORM=none,bn,ln SEEDS=0,1,2 JOBS=2
make sweep TASK=pi_mnist BATCH=128,4 NORM=none,bn,ln SEEDS=0,1,2 LAUNCHER=slurm GPUS=1 LAUNCH="partition=gpu"
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

from scripts.checked import LAUNCHERS, ROOT, supported_norms
from scripts.options import Options, from_command_line, workers


def values(options: Options) -> list[str]:
    """The Hydra overrides that choose cells, as far as given."""
    lists = (("norm", options.norms), ("train.batch_size", options.batches), ("seed", options.seeds))
    return [f"{key}={','.join(map(str, chosen))}" for key, chosen in lists if chosen is not None]


def command(options: Options, selection: Sequence[str], cells: int) -> list[str]:
    """The multirun's command line.

    Args:
        selection: overrides that choose the cells.
        cells: how many those are; no more jobs than that.
    """
    words = ["-m", *selection, f"profile={options.profile}"]
    words += [f"device={options.device}"] if options.device != "auto" else []
    words += [f"logger={options.logger}"] if options.logger != "local" else []
    words += ["fail_fast=true"] if options.fail_fast else []
    return ["-m", "experiments.train", *words, *launcher(options, cells)]


def launcher(options: Options, cells: int) -> list[str]:
    """The overrides that choose and set what runs the cells; none where they run one after another."""
    name, gpus, at_a_time = LAUNCHERS[options.launcher]
    settings = [f"{gpus}={options.gpus}"] if options.gpus is not None else []
    if options.launcher == "joblib":
        jobs = workers(options, cells)
        if jobs == 1:
            return []
        settings = [f"{at_a_time}={jobs}"]
    elif options.jobs and at_a_time:
        settings += [f"{at_a_time}={options.jobs}"]
    # ++: keys may be added to Ray's own settings, which are a dictionary; elsewhere what is unknown is refused as ever.
    more = [f"++hydra.launcher.{setting}" for setting in options.launch]
    return [f"hydra/launcher={name}", *(f"hydra.launcher.{setting}" for setting in settings), *more]


def launch(words: Sequence[str]) -> int:
    """Shows and runs ``python <words>`` and returns its exit code; Ctrl-C is the child's to handle."""
    print(f"python {shlex.join(words)}", flush=True)
    return wait(subprocess.Popen([sys.executable, *words], cwd=ROOT))


def wait(child: subprocess.Popen[bytes]) -> int:
    """A child's exit code; it gets the signals that ask us to stop, and we end when it does."""

    def forward(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT:  # the terminal sends that to both
            child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> int:
    """Entry point: the exit code is that of the training."""
    options = from_command_line("sweep", __doc__)
    norms = options.norms or supported_norms(options.task)
    chosen = replace(options, norms=norms, seeds=options.seeds or (0,))
    cells = len(norms) * len(chosen.seeds or ()) * len(options.batches or (1,))
    return launch(command(chosen, [f"task={options.task}", *values(chosen)], cells))


if __name__ == "__main__":
    sys.exit(main())
