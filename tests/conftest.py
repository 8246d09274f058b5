"""What all tests share: one torch thread each, no network, and results in a temporary place."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Nothing a test does may leave the machine or wait for it.
os.environ["WANDB_MODE"] = "offline"
os.environ["NETRC"] = os.devnull
os.environ.pop("WANDB_API_KEY", None)

import pytest
import torch
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

torch.set_num_threads(1)
# Wall-clock deadlines fail at random on a busy machine; a fixed seed makes a failure repeat.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    """Undoes what ``experiments.cell.prepare`` sets for a whole process."""
    yield
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)  # hypothesis refuses to work where denormals are flushed


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty results folder that everything below, subprocesses included, writes to."""
    folder = tmp_path / "results"
    folder.mkdir()
    monkeypatch.setenv("LN_RESULTS", str(folder))
    return folder
