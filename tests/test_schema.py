"""Configuration: identity, saved configurations, and one line for every bad value."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import compose, grid
from experiments.optim import CLIPS
from experiments.rng import derive
from experiments.schema import (
    Config,
    ConfigError,
    config_sha,
    dump,
    identity,
    load_saved,
    pick_threads,
    science,
)
from experiments.train import check
from scripts.checked import stems
from tests.commands import NORM_NAMES, TASK_NAMES


def config(*overrides: str) -> Config:
    return compose.compose_cells([["task=pi_mnist", *overrides]])[0]


BASE = config_sha(config())


@pytest.mark.parametrize(
    "override",
    [
        "device=cpu",
        "threads=2",
        "logger=wandb",
        "fail_fast=true",
        "paths.results=elsewhere",
        "train.eval_batch_size=17",
        "train.checkpoint_seconds=1",
        "train.lr=0.001",
        "train.budget=10.0",
    ],
)
def test_what_is_not_science_keeps_the_identity(override: str) -> None:
    assert config_sha(config(override)) == BASE


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "norm=bn",
        "norm.eps=1e-6",
        "norm.eps_mode=var",
        "train.lr=0.002",
        "train.batch_size=64",
        "train.budget=11",
        "train.eval_every=2",
        "train.clip=1",
        "task.hidden=[1000]",
        "task.train_examples=9999",
        "profile=paper",
    ],
)
def test_what_is_science_makes_another_run(override: str) -> None:
    assert config_sha(config(override)) != BASE


def test_the_data_is_part_of_a_runs_identity() -> None:
    cfg = config()
    assert identity(cfg, "a") != identity(cfg, "b")


def test_a_later_field_at_its_default_keeps_the_identity() -> None:
    @dataclass
    class Later(type(config().task)):  # type: ignore[misc]
        new_switch: str = "as before"

    old = config()
    new = dataclasses.replace(old, task=Later(**dataclasses.asdict(old.task)))
    assert config_sha(new) == config_sha(old)
    new.task.new_switch = "another way"
    assert config_sha(new) != config_sha(old)


def test_the_identity_is_pinned() -> None:
    """Published runs are found by this hash: if it moves, they are lost to figures and comparisons."""
    sha = config_sha(config("profile=paper", "norm=ln"))
    assert sha == "8d142b444346943724dd308783e61e8608632f24228676b0a9eacd5d8ad0ac73"


def test_science_is_everything_but_the_declared_exceptions() -> None:
    plain = science(config())
    assert set(plain) == {"task", "train", "norm", "seed"}
    assert "eval_batch_size" not in plain["train"] and "batch_size" in plain["train"]


@pytest.mark.parametrize("overrides", [[], ["norm=bn", "train.clip=3"], ["profile=paper", "seed=7"]])
def test_a_saved_configuration_reads_back_the_same(tmp_path: Path, overrides: list[str]) -> None:
    cfg = config(*overrides)
    (tmp_path / "config.yaml").write_text(dump(cfg))
    assert load_saved(tmp_path / "config.yaml") == cfg


BAD = [
    ([], f"no task given: add task= with one of {TASK_NAMES}"),
    (["norm=ln"], "no task given"),
    (["task=foo"], f"task=foo is unknown: use {TASK_NAMES}"),
    (["task=pi_mnist", "norm=xx"], f"norm=xx is unknown: use {NORM_NAMES}"),
    (["task=draw", "norm=bn"], "norm=bn is not supported by task draw: use none, wn, ln"),
    (["task=pi_mnist", "profile=foo"], "profile=foo is unknown: use medium, paper, small, smoke"),
    (["task=pi_mnist", "profile=medium"], "profile=medium has no settings for task pi_mnist: use paper, small, smoke"),
    (["task=draw", "+task.glmpses=3"], "unknown key task.glmpses; did you mean task.glimpses?"),
    (["task=draw", "task.glmpses=3"], "unknown key task.glmpses; did you mean task.glimpses?"),
    (["task=draw", "++glimpses=3"], "unknown key glimpses"),
    (["task=draw", "trian.lr=3"], "unknown key trian"),
    (["task=draw", "+train.lrr=3"], "unknown key train.lrr; did you mean train.lr?"),
    (["task=draw", "~train"], "~train: keys cannot be removed"),
    (["task=draw", "task.glimpses=0"], "task.glimpses=0 must be 1 or more"),
    (["task=draw", "task.glimpses=many"], "task.glimpses=many must be a whole number"),
    (["task=draw", "train.lr=fast"], "train.lr=fast must be a number, such as 0.001"),
    (["task=draw", "fail_fast=maybe"], "fail_fast=maybe must be true or false"),
    (["task=pi_mnist", "task.hidden=3"], "task.hidden=3 must be a list, such as [1000,1000]"),
    (["task=pi_mnist", "task.hidden=[a]"], "task.hidden[0]=a must be a whole number"),
    (["task=draw", "train=3"], "train=3 must be a group of keys: set one of them"),
    (["task=draw", "device=[1]"], "device=[1] must be one word"),
    (["task=draw", "hello"], "hello sets nothing: write key=value, such as norm=ln"),
    (["hello"], "hello sets nothing: write key=value"),
    (["task=draw", "=3"], "=3 sets nothing: write key=value"),
    (["task=3"], f"task=3 is unknown: use {TASK_NAMES}"),
    (["task=draw", "experiment=null"], "experiment=null is unknown: use "),
    (["task=draw", "task.read=(1"], "task.read=(1 cannot be read: write key=value, and quote"),
    (["task=draw", "seed=1=2"], "mismatched input '=' expecting <EOF>: write key=value"),
    (["task=draw", "hydra/launcher=foo"], "hydra/launcher=foo is unknown: use basic, joblib, ray_cluster, slurm"),
    (
        ["task=draw", "hydra.launcher.n_jobs=2"],
        "hydra.launcher.n_jobs needs a launcher that has it: add hydra/launcher=",
    ),
    *(
        (
            ["task=draw", "hydra/launcher=joblib", f"hydra.launcher.n_jobs={jobs}"],
            f"hydra.launcher.n_jobs={jobs} must be a whole number from 1 up, or -1",
        )
        for jobs in ("0", "two", "")
    ),
    (
        ["experiment=fig6_pi_mnist", "task=draw"],
        "task=draw does not go with experiment=fig6_pi_mnist, which is of task",
    ),
    (["task=draw", "task.name=other"], "task.name=other is unknown"),
    (["task=pi_mnist", "train.batch_size=0"], "train.batch_size=0 must be a finite number above 0"),
    (["task=pi_mnist", "train.batch_size=-4"], "train.batch_size=-4 must be a finite number above 0"),
    (["task=pi_mnist", "train.batch_size=1.5"], "train.batch_size=1.5 must be a whole number"),
    (["task=pi_mnist", "train.batch_size=null"], "train.batch_size=null: this key needs a value"),
    (["task=pi_mnist", "train.batch_size=60000"], "larger than the 10000 training images"),
    (["task=draw", "train.batch_size=60000"], "train.batch_size=60000 is more than"),
    (["task=draw", "logger.mode=on"], "logger.mode=on is unknown: use auto, online or offline"),
    (["task=pi_mnist", "train.budget=inf"], "train.budget=inf must be a finite number above 0"),
    (["task=pi_mnist", "train.budget_unit=years"], "train.budget_unit=years is unknown: use epochs or steps"),
    (["task=pi_mnist", "train.beta1=1"], "train.beta1=1.0 must lie in"),
    (["task=pi_mnist", "train.clip=0"], "train.clip=0.0 must be above 0, or null"),
    (["task=pi_mnist", "seed=abc"], "seed=abc must be a whole number"),
    (["task=pi_mnist", "seed=-1"], "seed=-1 must be 0 or more"),
    (["task=pi_mnist", "threads=-1"], "threads=-1 must be 0"),
    (["task=pi_mnist", "device=gpu"], "device=gpu is unknown: use auto, cpu, cuda or mps"),
    (["task=pi_mnist", "device=mps"], "device=mps, but torch finds no Apple GPU here"),
    (["task=pi_mnist", "norm.eps=-1"], "norm.eps=-1.0 must be 0 or more"),
    (["task=pi_mnist", "norm=bn", "norm.eps=0"], "norm.eps=0.0 must be above 0 with norm=bn"),
    (["task=pi_mnist", "norm=none", "norm.eps=1"], "norm.eps=1.0 does nothing with norm=none"),
    (["task=pi_mnist", "norm=ln", "norm.eps=null"], "norm.eps=null: norm=ln needs a value"),
    (["task=pi_mnist", "logger=foo"], "logger=foo is unknown: use local, wandb"),
    (["task=draw", "train.adam=adamw"], "train.adam=adamw is unknown: use standard or authors"),
    (["task=draw", "train.clip_form=value"], f"train.clip_form=value is unknown: use {' or '.join(CLIPS)}"),
    (["task=handwriting", "data.skip_bad=perhaps"], "data.skip_bad=perhaps must be true or false"),
    (["task=handwriting", "data.skipbad=true"], "unknown key data.skipbad; did you mean data.skip_bad?"),
    (["task=handwriting", "task.clip=all"], "task.clip=all is unknown: use inputs or states or none"),
    (
        ["task=handwriting", "norm=bn"],
        "norm=bn is not supported by task handwriting "
        "(its statistics would be those of 8 lines at each of 500 steps): use none, wn, ln",
    ),
    (["experiment=foo"], f"experiment=foo is unknown: use {', '.join(stems('experiment'))}"),
    (["task=pi_mnist", "seed=0,1"], "add -m to run them all"),
    (["task=pi_mnist", "seed"], "seed sets nothing: write key=value"),
]


@pytest.mark.parametrize(("overrides", "message"), BAD, ids=[" ".join(o) or "nothing" for o, _ in BAD])
@pytest.mark.parametrize("multirun", [False, True])
def test_bad_input_is_one_line_that_names_the_key(overrides: list[str], message: str, multirun: bool) -> None:
    if multirun and "-m" in message:
        pytest.skip("several values are what a multirun is for")
    with pytest.raises(ConfigError) as caught:
        check([*overrides, *(["train.lr=1e-3,2e-3"] if multirun else [])], multirun=multirun)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="there is a GPU")
def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="device=cuda, but torch finds no CUDA GPU here"):
        config("device=cuda")


def test_one_bad_cell_of_a_sweep_stops_it_before_it_starts() -> None:
    with pytest.raises(ConfigError, match="norm=bn is not supported by task draw"):
        check(["task=draw", "norm=none,ln,bn", "seed=0,1"], multirun=True)


def test_a_profile_gives_way_to_the_command_line() -> None:
    cfg = config("profile=smoke", "train.budget=7", "task.hidden=[5]")
    assert (cfg.train.budget, list(cfg.task.hidden), cfg.task.train_examples) == (7, [5], 512)


def test_expanding_a_sweep_like_hydra_does() -> None:
    assert compose.expand(["task=draw", "norm=none,ln", "seed=0,1", "train.lr=1"]) == [
        ["task=draw", "norm=none", "seed=0", "train.lr=1"],
        ["task=draw", "norm=none", "seed=1", "train.lr=1"],
        ["task=draw", "norm=ln", "seed=0", "train.lr=1"],
        ["task=draw", "norm=ln", "seed=1", "train.lr=1"],
    ]
    assert len(compose.expand(["experiment=fig6_pi_mnist", "seed=range(0,2)"])) == 3 * 2 * 2
    assert len(compose.expand(["task=draw,pi_mnist", "seed=0,1"])) == 4
    assert compose.expand(["task=pi_mnist", "task.hidden=[1,2]"]) == [["task=pi_mnist", "task.hidden=[1,2]"]]


def test_cells_of_a_published_result() -> None:
    cells = grid.cells("fig6_pi_mnist", "paper")
    assert len(cells) == 18 and len({cell.config_sha for cell in cells}) == 18
    assert {(c.norm, c.batch_size, c.seed) for c in cells} == {
        (n, b, s) for n in ("none", "bn", "ln") for b in (4, 128) for s in (0, 1, 2)
    }
    (one,) = grid.cells("fig6_pi_mnist", "paper", norms=["ln"], batches=[4], seeds=[5])
    words = ["task=pi_mnist", "norm=ln", "train.batch_size=4", "seed=5", "profile=paper"]
    assert one.command.split() == ["python", "-m", "experiments.train", *words]
    cfg = compose.compose_cells([one.command.split()[3:]])[0]
    assert config_sha(cfg) == one.config_sha, "the printed command makes the very cell"


def test_experiments_belong_to_tasks() -> None:
    assert grid.experiment_names("draw") == ["fig4_draw"]
    assert grid.experiment_names("pi_mnist") == ["fig6_pi_mnist"]
    with pytest.raises(ConfigError, match="experiment=fig9 is unknown"):
        grid.load_figure("fig9")


@given(st.integers(0, 2**31), st.text(max_size=5), st.integers(0, 10**9))
def test_derived_seeds_fit_torch_and_differ(seed: int, purpose: str, step: int) -> None:
    value = derive(seed, purpose, step)
    assert 0 <= value < 2**63
    assert value != derive(seed, purpose, step + 1) and value != derive(seed + 1, purpose, step)


def test_derived_seeds_are_pinned() -> None:
    assert derive(0, "noise", 1) == 3136146697272329583


@pytest.mark.parametrize(
    ("most", "shares"), [("", (8, 4, 1)), ("3", (3, 3, 1)), ("16,2", (8, 4, 1)), ("0", (8, 4, 1)), ("many", (8, 4, 1))]
)
def test_threads_share_the_cores(monkeypatch: pytest.MonkeyPatch, most: str, shares: tuple[int, ...]) -> None:
    monkeypatch.setattr("experiments.schema.cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", most)
    assert tuple(pick_threads(0, jobs) for jobs in (1, 2, 10_000)) == shares
    assert pick_threads(5, 2) == 5, "what is asked for counts"
