"""wandb mirrors a run and can never stop it: no key, no package, no network, closed stdin, a failing call."""

from __future__ import annotations

import json
import math
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from experiments.tracker import Tracker
from tests.commands import ROOT, run

META = {"run": "ln-b4-smoke-s0-12345678", "task": "draw", "profile": "smoke", "norm": "ln"}


def row(step: int, value: float | None = 1.0, metric: str = "bound") -> dict[str, Any]:
    return {
        "step": step, "examples": 4 * step, "epoch": 0.5 * step, "train_seconds": 0.1 * step,
        "split": "valid", "metric": metric, "unit": "nats/image", "value": value,
    }  # fmt: skip


def new_folder(results: Path, name: str = "run") -> Path:
    folder = results / "runs" / "draw" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class FakeRun:
    """Records what it is sent; ``fails`` names the method that raises."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.logged: list[dict[str, Any]] = []
        self.defined: list[tuple[str, str | None]] = []
        self.finished: list[int] = []

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.defined.append((name, step_metric))

    def log(self, line: dict[str, Any]) -> None:
        if self.fails == "log":
            raise RuntimeError("two\nlines")
        self.logged.append(line)

    def finish(self, exit_code: int) -> None:
        if self.fails == "finish":
            raise RuntimeError("late")
        self.finished.append(exit_code)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A wandb module that opens ``fake.run`` and keeps the arguments of ``init``."""
    module: Any = ModuleType("wandb")
    state = SimpleNamespace(run=FakeRun(), init=[], module=module)

    def init(**arguments: Any) -> FakeRun:
        state.init.append(arguments)
        return state.run

    module.init, module.Settings, module.Image = (
        init,
        lambda **settings: settings,
        lambda path: ("image", path),
    )
    monkeypatch.setitem(sys.modules, "wandb", module)
    yield state


def start(folder: Path, **logger: Any) -> Tracker:
    return Tracker.start(
        {"task": {"glimpses": 2}}, META, folder, {"name": "wandb", "mode": "offline", **logger}
    )


def test_local_does_nothing_and_imports_nothing(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    quiet = start(new_folder(results), name="local")
    quiet.log([row(1)])
    quiet.finish(0)
    assert not any((results / "runs" / "draw" / "run").iterdir())


def test_rows_of_one_step_make_one_line_with_our_own_step(results: Path, fake: SimpleNamespace) -> None:
    mirror = start(new_folder(results))
    mirror.log([row(3), row(3, 2.0, "kl"), row(6, None)])
    mirror.figure(Path("samples.png"))
    mirror.finish(0)
    assert ("*", "step") in fake.run.defined
    first, second, picture = fake.run.logged
    assert (first["step"], first["examples"], first["epoch"]) == (3, 12, 1.5)
    assert (first["valid/bound"], first["valid/kl"]) == (1.0, 2.0)
    assert second["step"] == 6 and math.isnan(second["valid/bound"])
    assert picture["figure/samples"] == ("image", "samples.png")
    assert fake.run.finished == [0]
    (arguments,) = fake.init
    assert arguments["config"]["meta"] == META and arguments["config"]["task"] == {"glimpses": 2}
    assert arguments["mode"] == "offline" and arguments["dir"] == str(results.resolve())


def test_a_resumed_run_keeps_its_id_and_sends_no_step_twice(results: Path, fake: SimpleNamespace) -> None:
    folder = new_folder(results)
    first = start(folder)
    first.log([row(1), row(2), row(3)])  # then killed; the checkpoint was at step 1
    fake.run = FakeRun()
    resumed = start(folder)
    resumed.log([row(2), row(3), row(4)])
    resumed.log([row(4, metric="kl")])
    assert [line["step"] for line in fake.run.logged] == [4, 4]
    assert fake.init[0]["id"] == fake.init[1]["id"]
    assert start(new_folder(results, "other")) and fake.init[2]["id"] != fake.init[0]["id"]


def test_a_failing_call_warns_once_and_training_goes_on(
    results: Path, fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.run.fails = "log"
    mirror = start(new_folder(results))
    for step in (1, 2, 3):
        mirror.log([row(step)])
    mirror.finish(0)
    (line,) = capsys.readouterr().err.splitlines()
    assert "RuntimeError: two lines" in line
    assert fake.run.finished == [1], "what broke off is marked as failed, and not as finished later"


def test_a_failing_finish_warns(
    results: Path, fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.run.fails = "finish"
    start(new_folder(results)).finish(1)
    assert "could not finish" in capsys.readouterr().err


def test_without_the_package(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    mirror = start(new_folder(results))
    mirror.log([row(1)])
    mirror.finish(0)
    (line,) = capsys.readouterr().err.splitlines()
    assert "not installed" in line


@pytest.mark.parametrize("mode", ["auto", "online"])
def test_without_a_key_or_a_server_it_is_offline(
    mode: str,
    results: Path,
    fake: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    start(new_folder(results), mode=mode)
    assert "no API key" in capsys.readouterr().err and fake.init[-1]["mode"] == "offline"

    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, never listening: refuses
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        start(new_folder(results, "b"), mode=mode)
    assert "out of reach" in capsys.readouterr().err and fake.init[-1]["mode"] == "offline"


def test_online_with_a_key_and_a_server(
    results: Path, fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login user password " + "a" * 40)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        start(new_folder(results), mode="auto")
    assert fake.init[-1]["mode"] == "online" and fake.init[-1]["resume"] == "allow"


REAL = """
import sys
from pathlib import Path
from experiments import tracker
meta = {"run": "r", "task": "draw", "profile": "smoke", "norm": "ln"}
row = dict(step=1, examples=1, epoch=1.0, train_seconds=1.0, split="test", metric="m", unit="u", value=1.0)
tracker.INIT_SECONDS = 3.0
for name in sys.argv[2:]:
    folder = Path(sys.argv[1]) / "runs" / "draw" / name
    folder.mkdir(parents=True, exist_ok=True)
    mirror = tracker.Tracker.start({}, meta, folder, {"name": "wandb", "mode": "auto"})
    mirror.log([row])
    mirror.finish(0)
    print("finished", name, mirror.sent_step)
"""


def test_real_wandb_makes_one_offline_run_per_cell(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cells in one process, stdin closed, no key, and a stray wandb settings file that says disabled."""
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("[default]\ndisabled = true\nmode = disabled\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = run(sys.executable, "-c", REAL, str(results), "a", "b", cwd=tmp_path, timeout=90)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["finished", "a", "1", "finished", "b", "1"]
    assert done.stderr.count("no API key") == 2
    assert len(list((results / "wandb").glob("offline-run-*/*.wandb"))) == 2
    ids = [json.loads((results / "runs" / "draw" / name / "wandb.json").read_text())["id"] for name in "ab"]
    assert len(set(ids)) == 2


@pytest.mark.slow
def test_real_wandb_does_not_hang_on_a_server_that_never_answers(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        done = run(sys.executable, "-c", REAL, str(results), "a", timeout=90)
    assert done.returncode == 0, done.stderr
    assert "no connection" in done.stderr and "finished a 1" in done.stdout
