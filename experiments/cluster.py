"""What a sweep needs to know of the engine that runs its cells: ``hydra/launcher=``.

On this machine: ``basic`` (one after another) and ``joblib``. Elsewhere, on hosts that share the file system: ``slurm``
and ``submitit_*`` (a job array), ``ray_cluster``. Cells report through files, whatever the engine: the parent needs
nothing of them but their outcomes, and stops them through the file ``stop``.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data.processors import cores
from experiments.schema import ConfigError

QUEUED = ("slurm", "submitit_slurm", "submitit_local")
SETTLE_SECONDS = 60.0  # what a file system may take to show what another host has written
POLL_SECONDS = 1.0


def launcher(overrides: Sequence[str]) -> str:
    """The launcher that overrides choose."""
    chosen = [word.partition("=")[2] for word in overrides if word.lstrip("+").startswith("hydra/launcher=")]
    return chosen[-1] if chosen else "basic"


def elsewhere(name: str) -> bool:
    """Whether cells may run on other hosts, whose devices nobody knows here."""
    return name in QUEUED or name.startswith("ray")


def check(name: str) -> None:
    """Refuses a launcher that cannot work here. Raises ``ConfigError``."""
    if name in ("slurm", "submitit_slurm") and not (shutil.which("sbatch") and shutil.which("srun")):
        raise ConfigError(f"hydra/launcher={name}: no sbatch and srun here; start it on a login node of the cluster")


def cells_beside(settings: Mapping[str, Any]) -> int:
    """Among how many cells the cores of this host are shared out.

    Args:
        settings: ``hydra.launcher``: joblib's ``n_jobs`` (which counts negative numbers from the cores: -1 is one job
            per core), or the cores of one cell, of which SLURM and Ray need not let a cell see no more.
    """
    if n_jobs := settings.get("n_jobs"):
        return n_jobs if n_jobs > 0 else max(1, cores() + 1 + n_jobs)
    own = settings.get("cpus_per_task") or ((settings.get("ray") or {}).get("remote") or {}).get("num_cpus")
    return math.ceil(cores() / max(1, own)) if own else 1


def queued_jobs(sweep: Path) -> list[Any]:
    """The jobs that submitit made for a sweep."""
    if not (sweep / ".submitit").is_dir():
        return []
    import submitit

    names = [path.name for path in (sweep / ".submitit").iterdir() if list(path.glob("*_submitted.pkl"))]
    kind = submitit.SlurmJob if shutil.which("sbatch") else submitit.LocalJob
    return [kind(folder=sweep / ".submitit" / "%j", job_id=name) for name in sorted(names)]


def wait_for_queued(sweep: Path) -> None:
    """Waits for all jobs of a sweep: the launcher gives up at the first that was killed, the others go on."""
    jobs = queued_jobs(sweep)
    while jobs:
        time.sleep(POLL_SECONDS)
        jobs = [job for job in jobs if not job.done()]


def cancel_queued(sweep: Path) -> None:
    """Takes the jobs of a sweep out of the queue."""
    for job in queued_jobs(sweep):
        if not job.done():
            job.cancel(check=False)


def settle(sweep: Path, cells: int) -> None:
    """Waits, not for long, until all outcomes that other hosts have written can be seen here."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while len(list(sweep.glob("*/outcome.json"))) < cells and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
