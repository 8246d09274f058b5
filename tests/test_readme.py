"""The README's commands exist, its tables are those the code makes, and what it names is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import runfolders as rf

from experiments import train
from experiments.analysis import compare
from scripts import export_runs, import_wandb, readme_tables
from tests.commands import ROOT, make

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line]
# In the running text; an ellipsis or <name> stands for what the reader puts there.
INLINE = sorted(
    {" ".join(found.split()) for found in re.findall(r"`((?:[A-Z_]+=\S+ )*(?:make|python -m) [^`]+)`", TEXT)}
)
INLINE = [command for command in INLINE if "…" not in command and "<task>" not in command]
WITHOUT_OPTIONS = ("help", "setup", "test", "lint", "clean")


def test_there_are_commands_and_no_other_kinds() -> None:
    assert "make setup" in COMMANDS and "make reproduce TASK=draw" in COMMANDS and "make test" in COMMANDS
    assert all(line.startswith(("make ", "python -m ")) for line in COMMANDS), COMMANDS


@pytest.mark.parametrize("command", [c for c in (*COMMANDS, *INLINE) if "make " in c])
def test_make_command(command: str) -> None:
    target, *values = shlex.split(command.partition("make ")[2])
    done = make("-n", target, *values)
    assert done.returncode == 0, done.stderr
    if target not in WITHOUT_OPTIONS and (values or command in COMMANDS):  # in the text a target may stand for itself
        checked = make(f"check-{target}", *values)
        assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python -m experiments.train ")])
def test_training_command(command: str) -> None:
    words = shlex.split(command)[3:]
    assert train.check(words, multirun="-m" in words)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python -m scripts.export_runs ")])
def test_export_command(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where its file goes; runs are found all the same
    words = shlex.split(command)[3:]
    assert export_runs.main(words) == 0
    assert (tmp_path / words[0]).stat().st_size > 0


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python -m scripts.import_wandb ")])
def test_import_command(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(import_wandb, "project_runs", lambda path: asked.append(path) or [])
    words = shlex.split(command)[3:]
    assert import_wandb.main([*words, "--runs", str(tmp_path)]) == 1, "there is nothing in it"
    assert asked == words


def test_every_command_is_covered() -> None:
    python = ("experiments.train", "scripts.export_runs", "scripts.import_wandb")
    assert all(c.startswith(("make ", *(f"python -m {module} " for module in python))) for c in COMMANDS)
    assert INLINE and all(re.match(r"(\w+=\S+ )*make |python -m scripts\.\w+", c) for c in INLINE), INLINE


@pytest.mark.parametrize("command", [c for c in INLINE if c.startswith("python -m ")])
def test_inline_command(command: str) -> None:
    """The module is there, takes the options, and has tests of its own that call its ``main``."""
    _, _, module, *words = command.split()
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    for option in (word for word in words if word.startswith("--")):
        assert f'"{option}"' in source, option
    name = module.partition(".")[2]
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    assert re.search(rf"\b{name}\.main\(|\"-m\", \"{module}\"", tests), module


def test_tables_are_up_to_date() -> None:
    assert readme_tables.filled(TEXT) == TEXT, "stale: run python -m scripts.readme_tables"


def test_files_and_keys_it_names_exist() -> None:
    keys = (ROOT / "configs").rglob("*.yaml")
    known = "\n".join(path.read_text(encoding="utf-8") for path in keys)
    for key in re.findall(r"`(?:task|train|norm)\.(?!log\b)(\w+)", TEXT):
        assert re.search(rf"^\s*{key}:", known, re.MULTILINE), key
    for name in re.findall(r"^(\w+/) ", TEXT, re.MULTILINE):
        assert name == "results/" or (ROOT / name).is_dir(), name
    for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", TEXT):
        assert (ROOT / link).is_file(), link


def test_costs_of_different_machines_are_rows_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, (threads, device) in enumerate([(1, "cpu"), (1, "cpu"), (2, "cpu"), (1, "cuda")]):

        def change(meta: dict[str, Any], threads: int = threads, device: str = device) -> None:
            meta.update(threads=threads, device=device)

        rf.write_run(tmp_path, rf.cell(seed=seed), rf.rows({("test", "bound"): [9.0]}), change=change)
    monkeypatch.setattr(readme_tables, "PUBLISHED", tmp_path)
    _, _, *rows = readme_tables.costs().splitlines()
    assert [row.split(" | ")[-2:] for row in rows] == [["2", "1 thread, cpu |"], ["1", "2 threads, cpu |"],
                                                       ["1", "1 thread, cuda |"]]  # fmt: skip


@pytest.mark.parametrize(("changed", "marked"), [(True, True), (False, False), (None, False)])
def test_results_of_changed_code_are_marked(
    changed: bool | None, marked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cell in readme_tables.cells("fig4_draw", "smoke", seeds=[0]):
        fake = rf.FakeCell(cell.task, cell.norm, cell.batch_size, 0, "smoke", cell.config_sha, cell.command)
        values = {("test", "bound"): [9.0], ("valid", "bound"): [9.0]}
        rf.write_run(tmp_path, fake, rf.rows(values))
    monkeypatch.setattr(readme_tables, "PUBLISHED", tmp_path)
    monkeypatch.setattr(compare, "code_changed", lambda commit, task: changed)
    rows = [line for line in readme_tables.results().splitlines() if line.startswith("| final")]
    assert rows and all(line.endswith(" (code changed since) |") == marked for line in rows)
