"""Running commands as a user would, for the tests that do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripts.checked import stems
from scripts.options import NAMES

ROOT = Path(__file__).resolve().parent.parent
# As errors list them, whatever tasks and norms there are.
TASK_NAMES, NORM_NAMES = (", ".join(stems(group)) for group in ("task", "norm"))


def run(*command: str, timeout: float = 300, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command from the repository's root with stdin closed, and returns its output as text."""
    return subprocess.run(
        command,
        cwd=kwargs.pop("cwd", ROOT),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        **kwargs,
    )


def make(*words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Runs ``make`` with the interpreter that runs the tests, without installing anything."""
    # Under `make test` this one would be a sub-make, with the outer one's flags, level and variables.
    outer = {"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "PYTEST", *NAMES}
    env = {name: value for name, value in os.environ.items() if name not in outer}
    # Not resolved: the link inside the environment is what makes it one.
    venv = Path(sys.executable).parent.parent
    command = ("make", "--no-print-directory", f"VENV={venv}", "NO_SETUP=1", *words)
    return run(*command, timeout=timeout, env=env)
