"""``sbatch``, ``srun``, ``sacct`` and ``scancel`` as far as submitit calls them, for one array on this machine.

``install`` puts them into a folder for PATH. What was submitted, and each task's state, lie in files beside them. A
task whose number is in ``$FAKE_SLURM_KILL`` ends at once, as one that ran out of memory does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

COMMANDS = ("sbatch", "srun", "sacct", "scancel")
ARRAY = "4242"


def install(folder: Path) -> Path:
    """Makes the four commands."""
    folder.mkdir()
    for name in COMMANDS:
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {folder} {name} "$@"\n')
        path.chmod(0o755)
    return folder


def sbatch(here: Path, script: str) -> None:
    text = Path(script).read_text()
    (here / "script.sh").write_text(text)
    found = re.search(r"--array=0-(\d+)%", text)
    assert found, "a job array"
    tasks = range(int(found.group(1)) + 1)
    for number in tasks:
        (here / f"state-{number}").write_text("PENDING")
    words = [sys.executable, __file__, str(here), "run", *map(str, tasks)]
    subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(f"Submitted batch job {ARRAY}")


def run(here: Path, *tasks: str) -> None:
    """The queue: one task after another."""
    for number in tasks:
        state = here / f"state-{number}"
        if state.read_text() != "PENDING":
            continue
        state.write_text("RUNNING")
        own = {
            "SLURM_JOB_ID": f"{int(ARRAY) + int(number)}",
            "SLURM_ARRAY_JOB_ID": ARRAY,
            "SLURM_ARRAY_TASK_ID": number,
        }
        code = subprocess.run(["bash", str(here / "script.sh")], env={**os.environ, **own}, check=False).returncode
        state.write_text("COMPLETED" if code == 0 else "OUT_OF_MEMORY")


def srun(here: Path, *words: str) -> None:
    number = os.environ["SLURM_ARRAY_TASK_ID"]
    if number in os.environ.get("FAKE_SLURM_KILL", "").split(","):
        sys.exit(137)
    log = words[words.index("--output") + 1]
    for sign, value in (("%A", ARRAY), ("%a", number), ("%t", "0")):
        log = log.replace(sign, value)
    command = words[words.index("--output") + 2 :]
    Path(log).parent.mkdir(exist_ok=True)  # submitit makes it a moment after it has submitted
    with open(log, "a") as out:
        sys.exit(subprocess.run(command, stdout=out, stderr=out, check=False).returncode)


def sacct(here: Path, *_: str) -> None:
    print("JobID|State|NodeList")
    for path in sorted(here.glob("state-*")):
        print(f"{ARRAY}_{path.name.partition('-')[2]}|{path.read_text()}|node1")


def scancel(here: Path, job: str) -> None:
    (here / f"state-{job.partition('_')[2]}").write_text("CANCELLED")


if __name__ == "__main__":
    place, command, *rest = sys.argv[1:]
    globals()[command](Path(place), *rest)
