"""Verifying trains a published run anew, and believes the present code only as far as it repeats what was logged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.analysis import changes, compare, verified
from experiments.analysis.groups import experiment_groups
from experiments.cell import describe
from experiments.loop import Trainer, initial_model
from experiments.runs import Run, RunError, read_metrics
from experiments.schema import ConfigError, dump
from experiments.tasks import TASKS
from experiments.tracker import Tracker
from scripts import publish, readme_tables, verify
from tests import runfolders as rf
from tests.test_analysis_changes import FILES, Repo
from tests.toytask import ToyTask, toy_config

CPU = torch.device("cpu")
TASK_FILE = "experiments/tasks/toy.py"


def forget() -> None:
    changes.code_changed.cache_clear()
    changes.fingerprint.cache_clear()


class Place:
    """A repository whose toy task has changed since the one published run was made."""

    def __init__(self, root: Path) -> None:
        self.repo = Repo(root / "repo")
        self.published = root / "published"
        cfg, task = toy_config(root), ToyTask()
        data = task.data(cfg, CPU)
        torch.set_num_threads(1)
        meta = describe(cfg, data.source, "none-b4", CPU, []) | {"git": {"commit": self.repo.commit, "dirty": False}}
        with Run(self.published / "toy" / "none-b4", dump(cfg), meta) as run:
            trainer = Trainer(task, cfg, data, initial_model(task, cfg, CPU), run, Tracker(), CPU, lambda: False)
            trainer.close(trainer.train())
        self.folder = run.folder
        self.change("    message = 'better'\n")

    def change(self, line: str) -> None:
        self.repo.write(TASK_FILE, FILES[TASK_FILE] + line)
        self.repo.commit_all()
        forget()

    def edit(self, name: str, change: Callable[[Any], Any]) -> None:
        path = self.folder / name
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    def verify(self, *more: str) -> int:
        forget()
        return verify.main(["--task", "toy", "--published", str(self.published), *more])

    @property
    def record(self) -> dict[str, Any] | None:
        path = self.folder / verified.FILE
        return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setitem(TASKS, "toy", ToyTask())  # type: ignore[arg-type]
    monkeypatch.setattr(changes, "REPO", tmp_path / "repo")
    return Place(tmp_path)


@pytest.mark.parametrize(("evaluations", "step", "rows"), [(1, 5, 2), (2, 10, 4), (9, 20, 8)])
def test_equal_rows_are_recorded(
    place: Place, evaluations: int, step: int, rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in place.folder.iterdir()}
    assert place.verify("--rows", str(evaluations)) == 0
    record = place.record
    assert record is not None
    assert (record["through_step"], record["rows"], record["dirty"]) == (step, rows, False)
    assert record["commit"] == place.repo.git("rev-parse", "HEAD") and record["code"] == changes.fingerprint("toy")
    assert verified.through_step(place.folder, "toy") == step
    assert {name: (place.folder / name).read_bytes() for name in before} == before
    assert f"first {step} steps repeated" in capsys.readouterr().out


def test_it_trains_no_further_than_it_compares(place: Place) -> None:
    task = TASKS["toy"]
    assert isinstance(task, ToyTask)
    assert place.verify() == 0 and task.steps == 5
    assert place.verify() == 0 and task.steps == 5, "verified before"
    assert place.verify("--rows", "2") == 0 and task.steps == 15


def test_unchanged_code_is_not_trained(place: Place) -> None:
    place.change("")
    assert place.verify() == 0 and place.record is None
    task = TASKS["toy"]
    assert isinstance(task, ToyTask) and task.steps == 0


@pytest.mark.parametrize("field", ["value", "step", "split", "metric"])
def test_a_row_that_differs_is_named_and_the_mark_stays(
    place: Place, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place.folder / "metrics.jsonl"
    rows = read_metrics(path)
    old = rows[1][field]
    rows[1][field] = {float: lambda: old * (1 + 2**-52), int: lambda: old - 1, str: lambda: f"{old}x"}[type(old)]()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert place.verify("--rows", "2") == 1 and place.record is None
    (line,) = capsys.readouterr().err.splitlines()
    assert all(part in line for part in (f"differs: {field}", repr(old), repr(rows[1][field])))


def test_a_dirty_tree_is_refused(place: Place) -> None:
    place.repo.write(TASK_FILE, FILES[TASK_FILE] + "    message = 'not committed'\n")
    with pytest.raises(RunError, match="uncommitted"):
        place.verify()
    assert place.record is None


def test_a_mark_that_is_renewed_makes_no_tree_dirty(place: Place) -> None:
    name = f"results/published/toy/none-b4/{verified.FILE}"
    place.repo.write(name, "{}")
    place.repo.commit_all()
    place.repo.write(name, '{"commit": null}')
    assert verify.tree()["dirty"] is False


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("meta.json", lambda m: {**m, "versions": {"torch": "0.1"}}, "torch 0.1"),
        ("meta.json", lambda m: {**m, "hardware": {**m["hardware"], "cpu": "abacus"}}, "cpu abacus"),
        ("meta.json", lambda m: {**m, "data": {**m["data"], "fingerprint": "0"}}, "other data"),
        ("meta.json", lambda m: {**m, "device": "warp"}, "device=warp"),
        ("meta.json", lambda m: {**m, "git": {"commit": "0" * 40, "dirty": False}}, "git cannot tell"),
    ],
)
def test_what_cannot_be_repeated_here(
    place: Place, name: str, change: Callable[[Any], Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place.edit(name, change)
    assert place.verify() == 1 and place.record is None
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_configuration_that_no_longer_composes(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    path = place.folder / "config.yaml"
    path.write_text(path.read_text() + "gone: 1\n")
    place.edit("meta.json", lambda meta: {key: value for key, value in meta.items() if key != "config_digest"})
    assert place.verify() == 1 and place.record is None
    (line,) = capsys.readouterr().err.splitlines()
    assert "no longer composes" in line and "gone" in line


def test_what_to_verify_must_be_chosen(place: Place) -> None:
    for words in ([], ["--all", "--task", "toy"], ["--all", "--rows", "0"]):
        with pytest.raises(ConfigError):
            verify.main(words)


def test_the_next_change_makes_the_record_void(place: Place) -> None:
    assert place.verify() == 0
    place.change("    message = 'better still'\n")
    assert verified.through_step(place.folder, "toy") is None
    place.change("    message = 'better'  # a comment\n")
    assert verified.through_step(place.folder, "toy") == 5


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"code": 1, "through_step": 5}'])
def test_a_damaged_record_counts_for_nothing(place: Place, text: str) -> None:
    (place.folder / verified.FILE).write_text(text)
    assert verified.through_step(place.folder, "toy") is None


@pytest.mark.parametrize(("same", "missing"), [(True, False), (False, False), (True, True)])
def test_reports_say_how_far_it_was_repeated(
    same: bool, missing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = changes.fingerprint("draw")
    for cell in readme_tables.cells("fig4_draw", "smoke", seeds=[0]):
        fake = rf.FakeCell(cell.task, cell.norm, cell.batch_size, 0, "smoke", cell.config_sha, cell.command)
        folder = rf.write_run(tmp_path, fake, rf.rows({("test", "bound"): [9.0], ("valid", "bound"): [9.0]}))
        if not (missing and cell.norm == "ln"):
            record = {"code": code if same else "0" * 64, "through_step": 1430}
            (folder / verified.FILE).write_text(json.dumps(record))
    monkeypatch.setattr(readme_tables, "PUBLISHED", tmp_path)
    monkeypatch.setattr(compare, "code_changed", lambda commit, task: True)
    rows = [line for line in readme_tables.results().splitlines() if line.startswith("| final")]
    wanted = {line: same and not (missing and "`ln`" in line.replace("LN", "`ln`")) for line in rows}
    assert rows
    for line, good in wanted.items():
        assert line.endswith("(code changed since, first 1,430 steps repeated bit for bit) |") == good, line
        assert line.endswith("(code changed since) |") != good, line
    paper = compare.load_paper("draw")
    (group,) = experiment_groups(readme_tables.published(), "draw", paper["experiment"])[0]
    reasons = [row["reason"] for row in compare.rows(paper, group) if row["n_seeds"]]
    assert all("changed since" in reason for reason in reasons)
    assert any("first 1,430 steps repeated" in reason for reason in reasons) == same


@pytest.mark.parametrize("replaced", [False, True])
def test_publishing_keeps_the_record_of_the_same_run_only(tmp_path: Path, replaced: bool) -> None:
    folder = rf.write_run(tmp_path / "runs", rf.cell(), rf.rows({("test", "bound"): [9.0]}))
    (folder / "config.yaml").write_text("x")
    target = tmp_path / "target"
    assert publish.publish(folder, target) is None
    (target / verified.FILE).write_text("{}")
    if replaced:
        text = (folder / "metrics.jsonl").read_text()
        (folder / "metrics.jsonl").write_text(text.replace("9.0", "8.0"))
    assert publish.publish(folder, target) is None
    assert (target / verified.FILE).exists() != replaced
