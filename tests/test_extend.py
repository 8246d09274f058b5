"""The house holds: a seventh task and a fifth norm are added to a copy of the suite, run, and counted.

``tests/extensions/<name>/tree`` holds the files an extension brings, ``edits.yaml`` what it changes in files that are
there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml

from data.fetch import raw_dir
from data.parsed_cache import cache_dir
from experiments.runs import read_json, read_metrics
from tests.commands import ROOT, run

EXTENSIONS = ROOT / "tests" / "extensions"


@dataclass(frozen=True)
class Added:
    """What an extension adds: its own files, and for each file that was there before how many lines."""

    files: list[str]
    lines: dict[str, int]


def git(*arguments: str, cwd: Path = ROOT) -> str:
    done = run("git", *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def code_lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


class Copy:
    """A copy of the suite without its results, and the commands run in it."""

    def __init__(self, root: Path) -> None:
        self.root, self.results = root, root / "results"
        for name in git("ls-files", "-co", "--exclude-standard").splitlines():
            if not name.startswith("results/") and (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, root / name)

    def extend(self, name: str) -> Added:
        """Adds an extension: its own files, none of which may be there already, and its edits."""
        tree = EXTENSIONS / name / "tree"
        lines: dict[str, int] = {}
        files = sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())
        files = [file for file in files if "__pycache__" not in file]
        for file in files:
            assert not (self.root / file).exists(), f"{file} is there already"
            (self.root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tree / file, self.root / file)
        for file, edits in yaml.safe_load((EXTENSIONS / name / "edits.yaml").read_text()).items():
            before = text = (self.root / file).read_text()
            for edit in edits:
                assert text.count(edit["old"]) == 1, f"{file}: {edit['old']!r}"
                text = text.replace(edit["old"], edit["new"])
            (self.root / file).write_text(text)
            lines[file] = code_lines("\n".join(set(text.splitlines()) - set(before.splitlines())))
        return Added(files, lines)

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        """``python <words>`` in the copy, with the data of this checkout."""
        env = {**os.environ, "LN_RESULTS": str(self.results), "LN_RAW": str(raw_dir()), "LN_CACHE": str(cache_dir())}
        done = run(sys.executable, *words, cwd=self.root, env={**env, "PYTHONPATH": str(self.root)})
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def cells(self, task: str) -> list[Path]:
        return sorted((self.results / "runs" / task).iterdir())


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path / "copy")


@pytest.mark.slow
def test_a_seventh_task_touches_nothing_but_the_registry(copy: Copy) -> None:
    added = copy.extend("quadrants")
    assert added.lines == {"experiments/tasks/__init__.py": 2}, "its import and its entry in the table"
    places = ("configs/", "data/quadrants.py", "models/quadrants.py", "experiments/tasks/quadrants.py")
    assert all(file.startswith(places) for file in added.files)
    assert all("quadrants" in Path(file).stem for file in added.files)

    done = copy.python("-m", "scripts.reproduce", "TASK=quadrants", "PROFILE=smoke", "DEVICE=cpu")
    assert "four quadrants: original" in done.stdout and "6 of 6 cells finished" in done.stdout
    for folder in copy.cells("quadrants"):
        rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["metric"] == "accuracy"]
        assert {row["split"] for row in rows} == {"valid", "test"} and rows[-1]["value"] > 55
        best = read_json(folder / "status.json")["best"]
        assert best["value"] == max(row["value"] for row in rows if row["split"] == "valid"), "higher is better"
    drawn = copy.results / "figures" / "smoke-quadrants"
    assert {path.suffix for path in drawn.glob("fig_quadrants.*")} == {".png", ".pdf", ".csv"}
    rows = json.loads((copy.results / "compare" / "quadrants.json").read_text())
    assert {row["id"]: row["n_seeds"] for row in rows} == {"quadrants_accuracy": 3, "quadrants_speed": 3}
    assert "quadrants: 6 runs" in copy.python("-m", "scripts.status", "--task", "quadrants").stdout

    copy.python("-m", "scripts.readme_tables")
    assert "| `quadrants` | `accuracy` | percent | higher |" in (copy.root / "README.md").read_text()
    # The tests that go over all tasks take it in as well.
    tests = copy.python(
        "-m", "pytest", "-n", "0", "tests/test_configs.py", "tests/test_data_binarized.py", "-k", "quadrants"
    )
    assert " passed" in tests.stdout


# At the gates and on the cell's read-out, over stacked gates and gate by gate, in both kinds of layer.
RECURRENT = """
import torch
from models.norm import Norm
from models.rnn import GRU, LSTM
x_TBI = torch.randn(4, 3, 5, requires_grad=True)
for kind in (LSTM, GRU):
    for per_gate in (False, True):
        torch.manual_seed(0)
        layer = kind(5, 6, 2, bidirectional=True, norm=Norm("rms"), per_gate=per_gate)
        torch.manual_seed(0)
        other = kind(5, 6, 2, bidirectional=True, norm="ln", per_gate=per_gate)
        output_TBH = layer(x_TBI, lengths=torch.tensor([4, 1, 2]))[0]
        assert not torch.allclose(output_TBH, other(x_TBI, lengths=torch.tensor([4, 1, 2]))[0])
        output_TBH.square().sum().backward()
        gains = [p for name, p in layer.named_parameters() if name.endswith("gain")]
        sites = {(LSTM, False): 3, (LSTM, True): 9, (GRU, False): 4, (GRU, True): 6}[kind, per_gate]
        assert len(gains) == 4 * sites and all(p.grad.abs().max() > 0 for p in gains)
"""


@pytest.mark.slow
def test_a_fifth_norm_is_a_few_lines(copy: Copy) -> None:
    """RMSNorm in the feed-forward layers, in DRAW's LSTMs, and in the recurrent layers."""
    added = copy.extend("rms")
    assert added.files == ["configs/norm/rms.yaml"]
    cells = [f"{lstm}.norm_cell.groups.0" for lstm in ("encoder", "decoder")]
    tasks = {"pi_mnist": ["hidden.0.norm", "hidden.1.norm"], "draw": cells}
    assert sorted(added.lines) == sorted(["models/norm.py", *(f"experiments/tasks/{task}.py" for task in tasks)])
    assert {added.lines[f"experiments/tasks/{task}.py"] for task in tasks} == {1}, "its name alone"
    config = (copy.root / added.files[0]).read_text()
    assert sum(added.lines.values()) + code_lines(config) < 20

    copy.python("-c", RECURRENT)
    for task, sites in tasks.items():
        copy.python("-m", "experiments.train", f"task={task}", "norm=rms", "profile=smoke", "device=cpu")
        (folder,) = copy.cells(task)
        assert folder.name.startswith("rms-") and read_json(folder / "status.json")["state"] == "done"
        weights = torch.load(folder / "checkpoint.pt", weights_only=True)["model"]
        for site in sites:
            assert not torch.equal(weights[f"{site}.gain"], torch.ones_like(weights[f"{site}.gain"])), "it has learnt"
            assert f"{site}.bias" not in weights
