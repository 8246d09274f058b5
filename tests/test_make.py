"""``make`` as a user meets it: help, wrong values answered in one line, a set-up that is taken up again."""

from __future__ import annotations

import re
import stat
import sys
from pathlib import Path

import pytest

from experiments.tasks import TASKS
from scripts import options
from scripts.checked import OptionError, supported_norms
from tests.commands import ROOT, TASK_NAMES, make, run

TARGETS = (
    "setup data reproduce sweep figures tables compare report status estimate bench demo sample check test lint clean"
).split()


def test_help_has_one_line_for_each_target_and_the_variables() -> None:
    done = make("help")
    assert done.returncode == 0
    for target in TARGETS:
        assert len(re.findall(rf"^  make {target} +\S", done.stdout, re.MULTILINE)) == 1, target
    for name in options.NAMES:
        assert name in done.stdout
    assert make().stdout == done.stdout, "make alone helps"


WRONG = [
    ("reproduce", f"TASK is missing; choose from: {TASK_NAMES}, invariances, all"),
    ("sweep", f"TASK is missing; choose from: {TASK_NAMES}"),
    ("data TASK=mnist", f"TASK=mnist is unknown (did you mean pi_mnist?); choose from: {TASK_NAMES}, all"),
    ("estimate TASK=all", f"TASK=all is unknown; choose from: {TASK_NAMES}"),
    ("reproduce TASK=draw PROFILE=smal", "(did you mean small?); choose from: medium, paper, small, smoke"),
    ("reproduce TASK=draw NORM=gn", "NORM=gn is unknown"),
    ("reproduce TASK=draw NORM=none,bn", "NORM=bn is not supported by TASK=draw; choose from: none, wn, ln"),
    (
        "sweep TASK=handwriting NORM=bn",
        "NORM=bn is not supported by TASK=handwriting "
        "(its statistics would be those of 8 lines at each of 500 steps); choose from: none, wn, ln",
    ),
    ("reproduce TASK=all NORM=bn", "NORM=bn is not supported by TASK=attentive_reader (say where: bn_lstm, in the"),
    ("sweep TASK=draw SEEDS=abc", "SEEDS=abc must list whole numbers from 0 up"),
    (f"sweep TASK=draw SEEDS={'9' * 5000}", "must list whole numbers from 0 up"),
    (f"sweep TASK=draw JOBS={'9' * 5000}", "is neither auto nor a whole number"),
    ("sweep TASK=draw SEEDS=-1", "SEEDS=-1 must list whole numbers from 0 up"),
    ("sweep TASK=draw SEEDS=1,1", "SEEDS=1,1 names a value twice"),
    ("sweep TASK=draw BATCH=0", "BATCH=0 must list whole numbers from 1 up"),
    ("sweep TASK=draw BATCH=128,-4", "BATCH=128,-4 must list whole numbers from 1 up"),
    ("sweep TASK=draw JOBS=x", "JOBS=x is neither auto nor a whole number from 1 up"),
    ("sweep TASK=draw JOBS=0", "JOBS=0 is neither auto nor"),
    ("sweep TASK=draw LOGGER=tensorboard", "LOGGER=tensorboard is unknown; choose from: local, wandb"),
    ("sweep TASK=draw DEVICE=gpu", "(did you mean cpu?); choose from: auto, cpu, cuda, mps"),
    ("sweep TASK=draw FAIL_FAST=yes", "FAIL_FAST=yes is unknown; choose from: 0, 1"),
    ("status PROFILE=huge", "PROFILE=huge is unknown"),
    ("sweep TASK=invariances", "TASK=invariances has neither data nor runs; use make reproduce TASK=invariances"),
    ("reproduce TASK=rnn", "TASK=rnn has neither data nor runs; use make bench TASK=rnn"),
    ("estimate TASK=rnn", "use make bench TASK=rnn"),
    ("bench TASK=invariances", "use make reproduce TASK=invariances"),
    ("bench", f"TASK is missing; choose from: {TASK_NAMES}, rnn"),
    ("bench TASK=rnn PROFILE=small", "PROFILE=small does nothing with TASK=rnn, which takes no other variable"),
    ("bench TASK=rnn NORM=ln", "NORM=ln does nothing with TASK=rnn"),
    ("figures TASK=invariances", "use make reproduce TASK=invariances"),
    ("reproduce TASK=invariants", f"(did you mean invariances?); choose from: {TASK_NAMES}, invariances, all"),
    ("reproduce TASK=invariances PROFILE=smoke", "PROFILE=smoke does nothing with TASK=invariances, which"),
    ("reproduce TASK=invariances NORM=ln", "NORM=ln does nothing with TASK=invariances"),
    ("reproduce TASK=invariances SEEDS=x", "SEEDS=x must list whole numbers"),
    ('figures TASK="; touch broken"', f"is unknown; choose from: {TASK_NAMES}, all"),
]


@pytest.mark.parametrize("words, message", WRONG, ids=[words for words, _ in WRONG])
def test_a_wrong_value_is_one_line_that_names_the_valid_ones(words: str, message: str, results: Path) -> None:
    target, *values = words.split(maxsplit=1)
    words_of = re.findall(r'\w+="[^"]*"|\S+', values[0]) if values else []
    done = make(target, *(word.replace('"', "") for word in words_of))
    assert done.returncode == 2
    first, *rest = done.stderr.splitlines()
    assert first.startswith("error: ") and message in first
    assert all(line.startswith("make: ***") for line in rest), "nothing but make's own remark follows"
    assert not done.stdout and not any(results.iterdir()) and not (ROOT / "broken").exists()


@pytest.mark.parametrize("target", ["reproduce", "sweep", "estimate", "bench", "figures", "compare", "status"])
def test_results_in_a_file_are_refused(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LN_RESULTS", str(tmp_path / "file" / "below"))
    done = make(target, "TASK=draw")
    assert done.returncode == 2 and not done.stdout
    assert f"error: LN_RESULTS={tmp_path}/file/below: {tmp_path}/file is a file, not a folder" in done.stderr
    monkeypatch.setenv("LN_RESULTS", str(tmp_path / "new" / "below"))
    assert make(f"check-{target}", "TASK=draw").returncode == 0


def test_a_gpu_that_is_not_there() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA GPU")
    done = make("sweep", "TASK=draw", "DEVICE=cuda")
    assert done.returncode == 2 and "DEVICE=cuda is not available here; use DEVICE=cpu" in done.stderr


def test_a_misspelt_variable_is_not_ignored() -> None:
    done = make("reproduce", "TASK=draw", "SEED=0")
    assert done.returncode == 2 and "unknown variable SEED; choose from: TASK PROFILE" in done.stderr


def test_where_a_variable_of_the_environment_belongs() -> None:
    done = make("data", "TASK=draw", "LN_DATA=somewhere")
    assert done.returncode == 2 and "LN_DATA belongs before make, as in: LN_DATA=... make data" in done.stderr


def test_flags_and_words_mean_the_same() -> None:
    words = options.parse("sweep", ["TASK=draw", "NORM=ln,none", "SEEDS=3", "BATCH=", "FAIL_FAST=1"])
    flags = options.parse("sweep", ["--task", "draw", "--norm=ln,none", "--seeds", "3", "--fail-fast", "1"])
    assert words == flags
    assert (words.norms, words.seeds, words.batches, words.fail_fast) == (("ln", "none"), (3,), None, True)
    assert words.profile == "small" and options.parse("bench", ["TASK=draw"]).profile == "paper"
    with pytest.raises(OptionError, match="SEED=3"):
        options.parse("sweep", ["TASK=draw", "SEED=3"])


def test_the_norms_read_without_torch_are_those_of_the_tasks() -> None:
    for name, task in TASKS.items():
        assert supported_norms(name) == task.norms
    code = "import sys; from scripts.options import parse; parse('reproduce', ['TASK=draw', 'NORM=ln'])"
    loaded = run(sys.executable, "-c", f"{code}; print(*sys.modules)").stdout.split()
    assert loaded and not {"torch", "hydra", "yaml", "numpy"} & set(loaded)


def test_jobs() -> None:
    draw = options.parse("reproduce", ["TASK=draw", "JOBS=3", "DEVICE=cpu"])
    assert options.workers(draw, cells=9) == 3
    assert options.workers(draw, cells=2) == 2, "no more jobs than cells"
    assert options.workers(options.parse("reproduce", ["TASK=draw", "DEVICE=cpu"]), cells=99) >= 1


def fake_python(path: Path, version: str, pip: str) -> Path:
    """A stand-in for python3: ``-m venv`` copies it, and ``-m pip`` runs the shell command ``pip``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "#!/bin/sh\n"
        f'case "$*" in -V) echo Python {version};; -c*) exec {sys.executable} -c "'
        f'import sys; sys.version_info = ({version.replace(".", ", ")}); exec(sys.argv[1])" "$2";;\n'
        f'"-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python";;\n'
        f'"-m pip "*) {pip};;\nesac\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def setup(python: Path, venv: Path, *words: str) -> tuple[int, str]:
    done = make("setup", f"PYTHON={python}", f"VENV={venv}", "NO_SETUP=", *words)
    return done.returncode, done.stdout + done.stderr


def test_setup_needs_python_3_11(tmp_path: Path) -> None:
    code, text = setup(fake_python(tmp_path / "python3", "3.10.4", "true"), tmp_path / "venv")
    assert code == 2 and "Python 3.10.4, this needs Python 3.11 or newer" in text
    assert not (tmp_path / "venv").exists()
    code, text = setup(tmp_path / "nowhere", tmp_path / "venv")
    assert code == 2 and "nowhere not found; install Python 3.11 or newer" in text


def test_a_failed_installation_is_taken_up_again(tmp_path: Path) -> None:
    python, venv = tmp_path / "python3", tmp_path / "venv"
    fake_python(python, "3.12.1", f"echo no network >&2; touch {tmp_path}/tried; exit 1")
    code, text = setup(python, venv)
    assert code == 2 and "error: installing requirements.txt" in text and (tmp_path / "tried").exists()
    assert not (venv / ".installed").exists()

    (tmp_path / "tried").unlink()
    fake_python(python, "3.12.1", f"touch {tmp_path}/tried")
    code, text = setup(python, venv)
    assert code == 0 and "installing" in text and (venv / ".installed").exists() and (tmp_path / "tried").exists()

    (tmp_path / "tried").unlink()
    code, text = setup(python, venv)
    assert code == 0 and not (tmp_path / "tried").exists(), "an environment that is there is left alone"
    (venv / "bin" / "python").unlink()
    assert setup(python, venv)[0] == 0 and (tmp_path / "tried").exists(), "one without a python is made again"


def test_ray_is_installed_when_it_is_first_asked_for(tmp_path: Path) -> None:
    python, venv, tried = tmp_path / "python3", tmp_path / "venv", tmp_path / "tried"
    fake_python(python, "3.12.1", f'echo "$*" >> {tried}')
    assert setup(python, venv)[0] == 0 and "ray" not in tried.read_text()
    code, text = setup(python, venv, "LAUNCHER=ray")
    assert code == 0 and "installing Ray" in text and (venv / ".installed-ray").exists()
    assert tried.read_text().splitlines()[-1].endswith("--no-deps -r requirements-ray.txt")
    before = tried.read_text()
    assert setup(python, venv, "LAUNCHER=ray")[0] == 0 and tried.read_text() == before, "once"


def pins(name: str) -> list[str]:
    return [line for line in (ROOT / name).read_text().splitlines() if line and line[0] != "#"]


def test_requirements_are_exact_and_leave_omegaconf_to_hydra() -> None:
    lines = pins("requirements.txt")
    more = pins("requirements-ray.txt")
    assert not {line.partition("=")[0] for line in lines} & {line.partition("=")[0] for line in more}
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+==[0-9][0-9.]*", line) for line in more), more
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+==[0-9][0-9.]*", line) for line in lines), lines
    assert not any(line.lower().startswith("omegaconf") for line in lines)
    assert "hydra-core==1.3." in "\n".join(lines)
