"""What the cells of a published result would cost: hours, steps and peak memory, from a few measured steps.

    make estimate TASK=draw PROFILE=paper

One measurement per norm and batch size, each in a process of its own with the threads of a job of the sweep.
"""

from __future__ import annotations

from experiments.cli import guarded
from experiments.grid import cells, experiment_names
from scripts.measure import in_subprocess
from scripts.options import Options, from_command_line, workers

WIDTHS = (6, 6, 10, 10, 9, 7, 9, 10, 7)
COLUMNS = ("norm", "batch", "ms/step", "steps", "eval s", "evals", "hours", "peak MiB", "cells")


def line(*values: object) -> str:
    """One line of the table, right-aligned."""
    return "".join(f"{value!s:>{width}}" for value, width in zip(values, WIDTHS, strict=True))


def estimate(options: Options) -> int:
    """Prints the table; every experiment of the task in turn."""
    for name in experiment_names(options.task):
        grid = cells(name, options.profile, options.norms, options.batches, options.seeds)
        jobs = workers(options, len(grid))
        print(f"{name}: {len(grid)} cells at profile {options.profile}, JOBS={jobs}")
        print(line(*COLUMNS))
        hours, memory, data = 0.0, 0.0, ""
        for norm, batch in dict.fromkeys((cell.norm, cell.batch_size) for cell in grid):
            alike = [cell for cell in grid if (cell.norm, cell.batch_size) == (norm, batch)]
            found = in_subprocess([*alike[0].overrides, f"device={options.device}"], jobs)
            peak, data = found["peak_mib"]["process"], found["data"]
            hours, memory = hours + len(alike) * found["hours"], max(memory, peak)
            values = (f"{found['ms_per_step']:.2f}", found["steps"], f"{found['seconds_per_evaluation']:.2f}")
            more = (found["evaluations"], f"{found['hours']:.3f}", f"{peak:.0f}", len(alike))
            print(line(norm, batch, *values, *more), flush=True)
        print(
            f"all cells: {hours:.2f} hours of computing, so about {hours / jobs:.2f} hours with JOBS={jobs}, "
            f"in up to {jobs * memory / 1024:.1f} GiB; jobs side by side slow each other down somewhat; "
            f"timed on {data}\n"
        )
    return 0


def main() -> int:
    """Entry point."""
    return estimate(from_command_line("estimate", __doc__))


if __name__ == "__main__":
    guarded(main)
