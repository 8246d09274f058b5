"""Whether a run's code has changed: by definition, along imports, in packages and their C++."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.analysis import changes
from tests.commands import run

FILES = {
    "experiments/tasks/toy.py": "from models.toy import Toy\n\n\nclass ToyTask:\n    model = Toy\n",
    "experiments/tasks/other.py": "from models import lonely\nfrom models.kernels.op import op\n",
    "models/__init__.py": "",
    "models/toy.py": "from models.norm import Norm\nfrom models.kernels import fused\n\n\n"
    "class Toy(Norm):\n    f = fused\n",
    "models/norm.py": '"""Doc."""\nTABLE = {"ln": 1}\n\n\nclass Norm:\n    def get(self):\n        cell = 1\n'
    "        return max(cell, TABLE['ln'])\n",
    "models/lonely.py": "X = 1\n",
    "models/kernels/__init__.py": "import math\n\n\ndef fused(x):\n    return x\n",
    "models/kernels/op.py": "op = 1\n",
    "models/kernels/op.cpp": "// adds\nint add(int a) { return a + 1; }\n",
    "models/kernels/cpu/vec.h": "#define N 4\n",
    "models/kernels/README.md": "words\n",
}


class Repo:
    """A repository of the suite's shape, with one commit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in FILES.items():
            self.write(name, text)
        self.git("init", "-q")
        self.commit = self.commit_all()

    def git(self, *words: str) -> str:
        done = run("git", "-c", "user.name=a", "-c", "user.email=a@b", *words, cwd=self.root)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit_all(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-qm", "state")
        return self.git("rev-parse", "HEAD")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def changed(self, task: str = "toy") -> bool | None:
        changes.code_changed.cache_clear()
        return changes.code_changed(self.commit, task)


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    monkeypatch.setattr(changes, "REPO", tmp_path)
    return Repo(tmp_path)


def test_a_task_is_made_of_what_it_imports_with_whole_packages(repo: Repo) -> None:
    package = [f"models/kernels/{name}" for name in ("__init__.py", "cpu/vec.h", "op.cpp", "op.py")]
    assert changes.made_of("toy") == ["experiments/tasks/toy.py", *package, "models/norm.py", "models/toy.py"]
    assert changes.made_of("other") == ["experiments/tasks/other.py", *package, "models/lonely.py"]


NORM, CPP = FILES["models/norm.py"], FILES["models/kernels/op.cpp"]
SAME = [
    ("models/norm.py", NORM),
    ("models/norm.py", NORM.replace("Doc", "Other words")),
    ("models/norm.py", NORM.replace("cell = 1", "cell = (\n            1  # one\n        )")),
    ("models/norm.py", f"import os\n{NORM}\n\ndef new():\n    return TABLE\n\n\nclass New(Norm):\n    x = 2\n"),
    ("models/norm.py", f"{NORM}\n\ndef cell():\n    return 1\n"),  # the older `cell` is a local variable
    ("models/norm.py", f"{NORM}\n__all__ = ['Norm']\n"),
    ("models/toy.py", FILES["models/toy.py"].replace("import Norm", "import TABLE, Norm")),
    ("models/lonely.py", "X = 2\n"),  # not imported
    ("models/kernels/new.cpp", "int more;\n"),
    ("models/kernels/op.cpp", CPP.replace("// adds\n", "/* adds\n one */\n").replace("a + 1", "a  +\n  1")),
    ("models/kernels/README.md", "other words\n"),
]
CHANGED = [
    ("models/norm.py", NORM.replace("1}", "2}")),
    ("models/norm.py", NORM.replace("cell = 1", "cell = 2")),
    ("models/norm.py", NORM.replace('TABLE = {"ln": 1}', "")),
    ("models/norm.py", f"{NORM}\n\ndef max(*x):\n    return 0\n"),  # older code now uses this one
    ("models/norm.py", f"{NORM}\nTABLE['ln'] = 2\n"),  # acts on import
    ("models/norm.py", f"{NORM}\nprint()\n"),
    ("models/toy.py", FILES["models/toy.py"].replace("models.norm import", "models.lonely import X as")),
    ("models/kernels/__init__.py", FILES["models/kernels/__init__.py"].replace("return x", "return 2 * x")),
    ("models/kernels/op.cpp", CPP.replace("a + 1", "a + 2")),
    ("models/kernels/cpu/vec.h", "#define N 8\n"),
    ("experiments/tasks/toy.py", FILES["experiments/tasks/toy.py"] + "    lr = 1\n"),
]


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize(
    ("name", "text", "expected"), [(*case, False) for case in SAME] + [(*case, True) for case in CHANGED]
)
def test_what_counts_as_changed(repo: Repo, name: str, text: str, expected: bool, committed: bool) -> None:
    assert repo.changed() is False
    repo.write(name, text)
    if committed and repo.git("status", "--porcelain"):
        repo.commit_all()
    assert repo.changed() is expected


@pytest.mark.parametrize("name", ["models/kernels/op.cpp", "models/kernels/cpu/vec.h", "models/kernels/op.py"])
def test_a_file_that_is_gone_counts(repo: Repo, name: str) -> None:
    (repo.root / name).unlink()
    assert repo.changed() is True


def test_a_package_that_is_new_counts_only_once_older_code_is_changed_for_it(repo: Repo) -> None:
    for name in FILES:
        if name.startswith("models/kernels/"):
            (repo.root / name).unlink()
    repo.write("models/toy.py", "from models.norm import Norm\n\n\nclass Toy(Norm):\n    f = None\n")
    repo.commit = repo.commit_all()
    for name, text in FILES.items():
        if name.startswith("models/kernels/"):
            repo.write(name, text)
    repo.write("models/toy.py", "from models.kernels import fused\n" + (repo.root / "models/toy.py").read_text())
    assert repo.changed() is False
    repo.write("models/toy.py", FILES["models/toy.py"])
    assert repo.changed() is True


def test_where_git_cannot_tell(repo: Repo) -> None:
    repo.commit = "0" * 40
    assert repo.changed() is None
    repo.commit = "unknown"
    assert repo.changed() is None


def test_the_suites_own_tasks_are_made_of_their_models() -> None:
    assert changes.made_of("pi_mnist") == ["experiments/tasks/pi_mnist.py", "models/norm.py", "models/pi_mnist.py"]
    assert {"models/rnn.py", "models/attention.py"} < set(changes.made_of("draw"))
