"""Published runs carry checksums, which see an edit by hand and do not mind another system's line ends."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import runfolders as rf

from experiments.analysis import seals
from experiments.analysis.collect import Collection, collect
from scripts import publish
from tests.commands import ROOT

NO_PLACE = Path("/nonexistent")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = rf.write_run(tmp_path, rf.cell(), rf.rows({("test", "bound"): [9.0, 8.0]}))
    (made / "config.yaml").write_text("task:\n  name: draw\n")
    seals.seal(made)
    return made


def read(folder: Path) -> Collection:
    return collect(NO_PLACE, folder.parent.parent)


def test_the_published_runs_are_sealed_and_whole() -> None:
    published = ROOT / "results" / "published"
    collection = collect(NO_PLACE, published)
    assert collection.runs and collection.warnings == []
    assert [run.run for run in collection.runs if not seals.is_sealed(run.folder)] == []


@pytest.mark.parametrize("name", seals.SEALED)
def test_an_edited_file_is_named_and_its_run_left_out(folder: Path, name: str) -> None:
    assert len(read(folder).runs) == 1
    path = folder / name
    path.write_text(path.read_text().replace("8.0", "7.0").replace("draw", "Draw") + "\n")
    (line,) = read(folder).warnings
    assert read(folder).runs == [] and str(folder) in line and line.startswith("warning: ") and "\n" not in line
    assert f"{name} was edited after it was published" in line
    path.unlink()
    (line,) = read(folder).warnings
    assert f"{name} is missing" in line


def test_line_ends_do_not_count_and_a_damaged_list_does(folder: Path) -> None:
    for name in (*seals.SEALED, seals.FILE):
        (folder / name).write_bytes((folder / name).read_bytes().replace(b"\n", b"\r\n"))
    assert len(read(folder).runs) == 1
    (folder / seals.FILE).write_text("all is well\n")
    assert f"{seals.FILE} is damaged" in read(folder).warnings[0]
    (folder / seals.FILE).write_text("")  # what is not listed was not published
    assert "was edited" in read(folder).warnings[0]


def test_sealing_does_not_hide_an_edit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = rf.write_run(folder.parent.parent, rf.cell(seed=1), rf.rows({("test", "bound"): [9.0]}))
    before = (folder / seals.FILE).read_text()
    (folder / "metrics.jsonl").write_text((folder / "metrics.jsonl").read_text().replace("8.0", "7.0"))
    monkeypatch.setattr(sys, "argv", ["publish", "--seal", "--out", str(folder.parent.parent)])
    assert publish.main() == 1
    out, err = capsys.readouterr()
    assert "metrics.jsonl was edited" in err and str(folder) in err and (folder / seals.FILE).read_text() == before
    assert seals.is_sealed(other) and len(out.splitlines()) == 1
    shutil.rmtree(folder)
    assert publish.main() == 0 and capsys.readouterr().out == ""


def test_two_folders_that_claim_one_run(tmp_path: Path) -> None:
    first = rf.write_run(tmp_path, rf.cell(), rf.rows({("test", "bound"): [9.0]}), state="interrupted")
    second = first.with_name("z-copy")
    shutil.copytree(first, second)
    status = (second / "status.json").read_text()
    (second / "status.json").write_text(status.replace("interrupted", "done"))
    collection = collect(tmp_path, NO_PLACE)
    assert [run.folder for run in collection.runs] == [second]
    assert collection.warnings == [
        f"warning: {first} left out: it claims to be the same run as {second}; delete one of the two"
    ]
    # A published copy of an own run is no second claim.
    shutil.rmtree(first)
    assert collect(tmp_path, tmp_path).warnings == [] and len(collect(tmp_path, tmp_path).runs) == 1
