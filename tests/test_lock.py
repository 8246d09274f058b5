"""The lock between hosts: where ``flock`` holds on one host only or not at all, and where a process stood still.

Another host is a process whose ``flock`` says nothing to ours and whose host name is another.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from experiments import lock
from experiments.lock import Held, Lock, holder, is_locked
from experiments.runs import Run, RunError, effective_state
from tests.commands import ROOT

SECONDS = 2.0
OTHER_HOST = """
import fcntl, socket, sys
fcntl.flock = lambda *_: None
socket.gethostname = lambda: "node7"
from pathlib import Path
from experiments import lock
lock.LEASE_SECONDS = float(sys.argv[2])
"""
HOLDS = """
held = lock.Lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""
TRAINS = """
from experiments.runs import Run, RunError
run = Run(Path(sys.argv[1]), "", {"config_sha": "x"})
run.write_status("running")
print("held", flush=True)
for line in sys.stdin:
    try:
        run.log([])
        print("logged", flush=True)
    except RunError as error:
        print(error, flush=True)
"""


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LEASE_SECONDS", SECONDS)


@contextmanager
def other_host(folder: Path, does: str) -> Iterator[subprocess.Popen[str]]:
    """A process on another host that holds the folder's lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER_HOST + does, str(folder), str(SECONDS)],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()


def ask(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("log\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_another_hosts_live_process_is_refused_until_it_stands_still(tmp_path: Path) -> None:
    with other_host(tmp_path, TRAINS) as process:
        assert is_locked(tmp_path) and effective_state(tmp_path) == "running"
        with pytest.raises(RunError, match=f"in use by process {process.pid} on node7: wait for it"):
            Run(tmp_path, "", {"config_sha": "x"})
        assert ask(process) == "logged", "watching it did not take anything away"
        before = (tmp_path / "status.json").read_bytes()
        process.send_signal(signal.SIGSTOP)
        (tmp_path / "meta.json").unlink()  # of a configuration that is none
        with Run(tmp_path, "", {"config_sha": "x"}):
            process.send_signal(signal.SIGCONT)
            line = ask(process)
            assert f"{tmp_path}: its lock went to process {os.getpid()} on {socket.gethostname()}" in line
            assert line.endswith("that process goes on with the run, this one stops")
        assert ask(process) == line, "not even once the lock is free again"
        assert (tmp_path / "status.json").read_bytes() == before


def test_another_hosts_dead_process_is_found_out_by_its_lease(tmp_path: Path) -> None:
    with other_host(tmp_path, HOLDS) as process:
        process.kill()
        process.wait()
        assert is_locked(tmp_path), "not yet: its number says nothing here"
        taken = Lock(tmp_path)
        assert is_locked(tmp_path) and holder(tmp_path)[1] == socket.gethostname()
        taken.release()
    assert not is_locked(tmp_path) and not (tmp_path / "lease").exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_flock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    first = Lock(tmp_path)
    assert is_locked(tmp_path)
    with pytest.raises(Held, match=f"process {os.getpid()} on "):
        Lock(tmp_path)
    first.release()
    assert not is_locked(tmp_path)
    Lock(tmp_path).release()


def test_on_one_host_a_killed_process_leaves_nothing_to_wait_for(tmp_path: Path) -> None:
    code = "import os, sys; from pathlib import Path; from experiments.lock import Lock; Lock(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", f"{code}; os._exit(9)", str(tmp_path)], cwd=ROOT, check=False, timeout=60)
    assert (tmp_path / "lease").exists() and not is_locked(tmp_path)
    started = time.monotonic()
    Lock(tmp_path).release()
    assert time.monotonic() - started < SECONDS / 2


def test_a_lease_is_renewed_and_its_loss_is_noticed(tmp_path: Path) -> None:
    held = Lock(tmp_path)
    first = (tmp_path / "lease").stat().st_mtime_ns
    assert soon(lambda: (tmp_path / "lease").stat().st_mtime_ns > first)
    assert held.lost() is None
    (tmp_path / "lease").unlink()
    assert soon(lambda: held.lost() is not None)
    held.release()
