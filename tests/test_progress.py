"""The progress display: one live line per running job on a terminal, plain lines elsewhere."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from experiments import progress

ROOT = Path(__file__).resolve().parent.parent
STATUS = {"step": 10, "total_steps": 40, "loss": 1.5, "steps_per_second": 3.0, "seconds_left": 10.0, "best": None}
CODE = """
import sys, time
from pathlib import Path
from experiments.progress import shown
with shown(Path(sys.argv[1]), 2):
    time.sleep(1.2)
"""


def sweep(folder: Path, *states: str) -> Path:
    for number, state in enumerate(states):
        run = folder / f"run{number}"
        for path in (run, folder / str(number)):
            path.mkdir(parents=True)
        best = {"split": "valid", "metric": "bound", "value": 180.25}
        (run / "status.json").write_text(json.dumps({**STATUS, "best": best if state == "done" else None}))
        outcome = {"state": state, "name": f"draw ln seed {number}", "run": str(run), "error": None}
        (folder / str(number) / "outcome.json").write_text(json.dumps(outcome))
    return folder


def test_a_terminal_shows_a_line_per_running_job(tmp_path: Path) -> None:
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 110, 0, 0))
    folder = sweep(tmp_path, "running", "running")
    command = [sys.executable, "-c", CODE, str(folder)]
    subprocess.run(command, cwd=ROOT, stderr=child, check=True, timeout=60)
    os.set_blocking(parent, False)
    text = ""
    try:
        while piece := os.read(parent, 100_000):
            text += piece.decode()
    except BlockingIOError:
        pass  # all there was
    os.close(child)
    os.close(parent)
    lines = [re.sub(r"\x1b\[\w", "", line) for line in re.split(r"[\r\n]+", text)]
    for number in (0, 1):
        shown = [line for line in lines if line.startswith(f"draw ln seed {number}:  25% |")]
        assert shown and shown[-1].rstrip().endswith("| batch loss 1.5, 3 steps/s, 00:10 left"), lines


def test_elsewhere_plain_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    folder = sweep(tmp_path, "running", "done", "failed", "running")
    failed = folder / "2" / "outcome.json"
    failed.write_text(json.dumps({**json.loads(failed.read_text()), "error": "no more"}))
    begun = folder / "3" / "outcome.json"
    begun.write_text(json.dumps({**json.loads(begun.read_text()), "run": None}))
    display = progress.Display(folder, 4)
    display.live = False
    display.refresh()
    display.refresh()
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "draw ln seed 0: 25 %, batch loss 1.5, 3 steps/s, 00:10 left"
    assert err.count("[1/4] draw ln seed 1: done, best valid bound 180.2") == 1, err
    assert err.count("[2/4] draw ln seed 2: failed") == 1, "the error itself comes once, at the end"
    assert "draw ln seed 3: 0 %" in err, "nothing known yet, nothing to enumerate"


def test_half_written_files_are_no_trouble(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "running")
    (folder / "0" / "outcome.json").write_text('{"state": "run')
    (folder / "notes").mkdir()
    assert progress.read_outcomes(folder) == {}
    assert progress.read_status(None) == {} and progress.read_status(str(folder)) == {}


@pytest.mark.parametrize(("seconds", "text"), [(None, "?"), (0, "00:00"), (65, "01:05"), (3723, "1:02:03")])
def test_durations(seconds: Any, text: str) -> None:
    assert progress.duration(seconds) == text
