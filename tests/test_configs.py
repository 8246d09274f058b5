"""Every configuration composes, in both of Hydra's modes; what does not exist is refused in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from experiments.analysis.compare import experiments, load_paper
from experiments.compose import compose_cells
from experiments.grid import cells, experiment_names, experiment_task, load_figure
from experiments.schema import CONFIGS, register
from experiments.tasks import TASKS
from scripts.checked import stems
from tests.commands import NORM_NAMES, TASK_NAMES, run

EXPERIMENTS = stems("experiment")
PROFILES = [(task, path.parent.name) for task in TASKS for path in sorted(CONFIGS.glob(f"profile/*/{task}.yaml"))]


@pytest.mark.parametrize("task, profile", PROFILES, ids=["-".join(pair) for pair in PROFILES])
def test_every_norm_of_a_task_composes_at_every_profile(task: str, profile: str) -> None:
    lists = [[f"task={task}", f"profile={profile}", f"norm={norm}"] for norm in TASKS[task].norms]
    for norm, cfg in zip(TASKS[task].norms, compose_cells(lists), strict=True):
        assert (cfg.task.name, cfg.profile, cfg.norm.shown) == (task, profile, norm)
    (changed,) = compose_cells([[*lists[0], "train.lr=0.5", "train.batch_size=7"]])
    assert (changed.train.lr, changed.train.batch_size) == (0.5, 7), "the command line wins over a profile"


@pytest.mark.parametrize("mode", ["RUN", "MULTIRUN"])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_hydras_own_settings_resolve_in_both_modes(
    experiment: str, mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder that resolves only in a single run, or only in a multirun, fails when the user is away."""
    monkeypatch.setenv("LN_SWEEP", str(tmp_path))
    register()
    GlobalHydra.instance().clear()
    # A multirun numbers its jobs; a single run has no number.
    mode_words = [f"hydra.mode={mode}"] + ["hydra.job.num=3"] * (mode == "MULTIRUN")
    for launcher in ("basic", "joblib"):
        words = [f"experiment={experiment}", f"hydra/launcher={launcher}", *mode_words]
        with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
            cfg = compose("config", overrides=words, return_hydra_config=True)
        for part in ("run", "sweep") if mode == "MULTIRUN" else ("run",):
            assert str(tmp_path) in str(OmegaConf.to_container(cfg.hydra[part], resolve=True))
        OmegaConf.to_container(cfg.hydra.launcher, resolve=True)
        OmegaConf.to_container(cfg.hydra.sweeper, resolve=True)
        assert cfg.hydra.job.chdir is False


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_cell_of_an_experiment_composes_and_its_figure_shows_what_is_logged(experiment: str) -> None:
    task = TASKS[experiment_task(experiment)]
    assert experiment in experiment_names(task.name)
    figure = load_figure(experiment)
    for panel in figure["panels"]:
        assert panel["metric"] in task.metrics and panel["split"] in ("train", "valid", "test")
    for profile in (profile for name, profile in PROFILES if name == task.name):
        grid = cells(experiment, profile)
        assert len({cell.config_sha for cell in grid}) == len(grid), "no two cells are the same run"
        assert len({cell.seed for cell in grid}) >= 3
        batches = {panel["batch_size"] for panel in figure["panels"]} - {None}
        assert batches <= {cell.batch_size for cell in grid}


@pytest.mark.parametrize("task", [task for task in TASKS if (CONFIGS / "paper" / f"{task}.yaml").exists()])
def test_what_the_paper_prints_is_compared_the_way_the_task_declares(task: str) -> None:
    paper = load_paper(task)
    assert paper["task"] == task and {experiment_task(name) for name in experiments(paper)} == {task}
    for row in paper["rows"]:
        assert row["better"] == TASKS[task].metrics[row["metric"]].better, row["id"]


WRONG = [
    ("task=draw +task.glmpses=3", "glmpses"),
    ("task=draw task.glmpses=3", "did you mean task.glimpses?"),
    ("task=drw", f"task=drw is unknown: use {TASK_NAMES}"),
    ("task=draw norm=gn", f"norm=gn is unknown: use {NORM_NAMES}"),
    ("task=draw norm=bn", "norm=bn is not supported by task draw"),
    ("task=draw profile=tiny", "profile=tiny is unknown"),
    ("task=draw task.glimpses=0", "task.glimpses=0"),
    ("task=draw task.glimpses=many", "many"),
    ("task=draw train.batch_size=0", "train.batch_size=0"),
    ("task=draw train.batch_size=-4", "train.batch_size=-4"),
    ("task=draw train.batch_size=60000", "train.batch_size=60000 is "),
    ("-m task=draw norm=ln,bn", "norm=bn is not supported by task draw"),
    ("norm=ln", "no task given"),
]


@pytest.mark.parametrize("words, message", WRONG, ids=[words for words, _ in WRONG])
def test_what_cannot_work_is_refused_in_one_line(words: str, message: str, results: Path) -> None:
    from experiments import train
    from experiments.schema import ConfigError

    arguments = words.split()
    with pytest.raises(ConfigError) as error:
        train.check(arguments, multirun="-m" in arguments)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not any(results.iterdir())


def test_the_command_prints_that_line_and_exits_with_2(results: Path) -> None:
    done = run(sys.executable, "-m", "experiments.train", "task=draw", "+task.glmpses=3")
    assert done.returncode == 2 and not any(results.iterdir())
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "glmpses" in line


def test_cells_that_differ_in_their_seed_are_what_each_is_alone() -> None:
    cells = [
        [f"task={task}", "profile=smoke", "norm=ln", f"seed={seed}"] for task in ("draw", "pi_mnist") for seed in (3, 0)
    ]
    cells += [["task=draw", "profile=smoke", "seed=1", "seed=2"], ["task=draw", "profile=smoke"]]
    together, alone = compose_cells(cells), [compose_cells([cell])[0] for cell in cells]
    assert together == alone and [cfg.seed for cfg in together] == [3, 0, 3, 0, 2, 0]
