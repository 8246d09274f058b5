"""Everything behind one published result: data, the runs that are not finished yet, figures, comparison.

    make reproduce TASK=draw
    make reproduce TASK=pi_mnist PROFILE=paper BATCH=4 SEEDS=0 JOBS=2
    make reproduce TASK=draw PROFILE=paper LAUNCHER=slurm GPUS=1 LAUNCH="partition=gpu"
    make reproduce TASK=invariances

Exit code: 0 (a run that diverged is a result too), 1 a cell failed, data are missing or an entry of Table 1 is not
the paper's, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from data.fetch import Source
from experiments.analysis.output import short_path
from experiments.cell import run_folder
from experiments.cli import guarded
from experiments.compose import compose_cells
from experiments.grid import cells, experiment_names, load_table
from experiments.runs import FINISHED, effective_state, read_json
from experiments.schema import Config, ConfigError
from experiments.tasks import TASKS
from experiments.tracker import Tracker
from scripts import compare, figures, get_data, invariances, tables
from scripts.options import Options, from_command_line
from scripts.sweep import command, launch, values

INTERRUPTED, BAD_INPUT = 130, 2
ANALYSES = {"invariances": invariances.reproduce}  # what needs neither data nor runs


@dataclass(frozen=True)
class Plan:
    """The cells of one experiment and the folders their runs have."""

    experiment: str
    configs: list[Config]
    folders: list[Path]
    source: Source

    def states(self) -> list[str]:
        """Each cell's state; ``missing`` before its first start."""
        return [effective_state(f) if (f / "meta.json").exists() else "missing" for f in self.folders]

    def unfinished(self) -> int:
        """How many cells are left to train."""
        return sum(state not in FINISHED for state in self.states())


def composed(task: str, options: Options) -> dict[str, list[Config]]:
    """The checked cells of each of a task's experiments. Raises ``ConfigError``; needs no data."""
    if not experiment_names(task):
        raise ConfigError(f"TASK={task} has no published result in configs/experiment; use make sweep")
    extra = [f"device={options.device}", f"logger={options.logger}"]
    grids = {
        name: cells(name, options.profile, options.norms, options.batches, options.seeds)
        for name in experiment_names(task)
    }
    here = options.launcher == "joblib"
    return {name: compose_cells([[*cell.overrides, *extra] for cell in grid], here) for name, grid in grids.items()}


def plan(experiment: str, configs: list[Config]) -> Plan:
    """Loads the data, whose fingerprint is part of each run's name."""
    source = TASKS[configs[0].task.name].data(configs[0], torch.device("cpu")).source
    return Plan(experiment, configs, [run_folder(cfg, source) for cfg in configs], source)


def reproduce(task: str, experiments: Mapping[str, list[Config]], options: Options) -> int:
    """One task from data to comparison, with the cells of its experiments. Returns the exit code."""
    print(f"== {task}, profile {options.profile}", flush=True)
    get_data.get(task)
    code, trained, plans = 0, 0, []
    for experiment, configs in experiments.items():
        todo = plan(experiment, configs)
        plans.append(todo)
        if left := todo.unfinished():
            print(
                f"{experiment}: {len(todo.folders) - left} of {len(todo.folders)} cells are finished",
                flush=True,
            )
            trained += left
            selection = [f"experiment={experiment}", *values(options)]
            status = launch(command(options, selection, left))
            if status in (BAD_INPUT, INTERRUPTED):
                return status
            code = max(code, int(status not in (0, 3)))  # 3: a cell diverged, which is a result

    results = plans[0].configs[0].results
    before = snapshot(results)
    words = ["--task", task, "--profile", options.profile]
    # Which of its own cells are not finished it says at the end; others were not asked for.
    drawn, paths, remarks = captured(lambda: figures.main(words, tell_missing=False))
    compared, text, more = captured(lambda: compare.main(words, tell_missing=False))
    tabulated, pages_of_tables, most = 0, "", ""
    if any(load_table(experiment) for experiment in experiments):
        tabulated, pages_of_tables, most = captured(lambda: tables.main(words, tell_missing=False))
    # All of them say what is wrong with a run.
    for remark in dict.fromkeys([*remarks.splitlines(), *more.splitlines(), *most.splitlines()]):
        print(remark, file=sys.stderr)
    code = max(code, drawn, compared, tabulated)
    made = [*paths.splitlines(), *pages_of_tables.splitlines()]
    table, _, pages = text.rpartition("\n\n")
    print(f"\n{table}\n" if table else "")
    made += pages.splitlines()
    made += [short_path(path) for path in pictures(plans[0], results)]
    changed = snapshot(results) != before
    if changed and options.logger == "wandb":
        for one in plans:
            mirror(one, results, [Path(path) for path in made])
    return code | report(plans, [path for path in made if Path(path).exists()], trained > 0, changed)


def captured(main: Callable[[], int]) -> tuple[int, str, str]:
    """A command's exit code, and what it prints to stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main()
    except BaseException:
        sys.stderr.write(err.getvalue())
        raise
    return code, out.getvalue(), err.getvalue()


def snapshot(results: Path) -> dict[Path, int]:
    """When each figure, table and comparison was last written."""
    folders = (results / "figures", results / "tables", results / "compare")
    return {path: path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*") if path.is_file()}


def pictures(one: Plan, results: Path) -> list[Path]:
    """Copies the pictures of one finished run, LN's if there is one, beside the figures.

    They are named after the task and the run, for a run's own folder is hard to guess.
    """
    finished = [(cfg, f) for cfg, f, s in zip(one.configs, one.folders, one.states(), strict=True) if s == "done"]
    finished.sort(key=lambda pair: (pair[0].norm.shown != "ln", pair[0].seed))
    copies: list[Path] = []
    for cfg, folder in finished[:1]:
        target = results / "figures" / f"{cfg.profile}-{one.source.label}"
        target.mkdir(parents=True, exist_ok=True)
        for picture in sorted(folder.glob("*.png")):
            name = f"{cfg.task.name}_{picture.stem}_{cfg.norm.shown}-b{cfg.train.batch_size}-s{cfg.seed}.png"
            copy = target / name
            if picture.stem != "curve":
                if not copy.exists() or copy.read_bytes() != picture.read_bytes():
                    shutil.copyfile(picture, copy)
                copies.append(copy)
    return copies


def mirror(one: Plan, results: Path, made: Sequence[Path]) -> None:
    """Sends the final figures to wandb, as a run of their own: they belong to no single cell."""
    cfg = one.configs[0]
    name = f"{one.experiment}-{cfg.profile}-{one.source.label}"
    folder = results / "wandb" / "figures" / name
    folder.mkdir(parents=True, exist_ok=True)
    meta = {
        "run": name,
        "task": cfg.task.name,
        "profile": cfg.profile,
        "norm": "figures",
        "data": asdict(one.source),
    }
    tracker = Tracker.start({}, meta, folder, {**asdict(cfg.logger), "dir": str(results)})
    for path in made:
        tracker.figure(path)
    tracker.finish(0)


def report(plans: Sequence[Plan], made: Sequence[str], trained: bool, changed: bool) -> int:
    """Says what was made and, last, which cells have no result. Returns 1 if any cell failed.

    Where cells were trained just now, their errors have been told already.
    """
    # Experiments may share cells.
    found = {folder: state for one in plans for folder, state in zip(one.folders, one.states(), strict=True)}
    folders, states = list(found), list(found.values())
    print("\n".join(made))
    if not trained and not changed:
        print(f"nothing to do: all {len(folders)} cells were finished before, their figures are up to date")
    else:
        finished = sum(state in FINISHED for state in states)
        print(f"{finished} of {len(folders)} cells finished, in {short_path(folders[0].parent)}")
    for folder, state in zip(folders, states, strict=True):
        if state != "done":
            word = "note" if state in FINISHED else "error"
            error = "see above" if trained else read_json(folder / "status.json").get("error")
            print(f"{word}: {short_path(folder)} {state}: {error}", file=sys.stderr)
    return int(any(state not in FINISHED for state in states))


def main() -> int:
    """Entry point; with several tasks the worst exit code."""
    options = from_command_line("reproduce", __doc__)
    every = {task: composed(task, options) for task in options.tasks}  # what cannot work is said before any work
    worst = 0
    for task, experiments in every.items():
        code = reproduce(task, experiments, options)
        if code in (BAD_INPUT, INTERRUPTED):
            return code
        worst = max(worst, code)
    for name in options.analyses:
        worst = max(worst, ANALYSES[name](options.seeds))
    return worst


if __name__ == "__main__":
    guarded(main)
