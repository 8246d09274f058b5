"""``make reproduce`` from end to end, a subprocess in an empty results folder, at the smallest profile."""

from __future__ import annotations

import csv
import fcntl
import json
import os
from pathlib import Path

import pytest

from tests.commands import make

pytestmark = pytest.mark.slow


def reproduce(*words: str) -> tuple[int, str, list[str]]:
    """Returns exit code, what was printed, and the lines of stderr."""
    done = make("reproduce", "PROFILE=smoke", "DEVICE=cpu", *words, timeout=600)
    return done.returncode, done.stdout, done.stderr.splitlines()


def outputs(results: Path) -> dict[str, tuple[int, bytes]]:
    """When each file of ours was written, and what it holds.

    Without the logs of wandb's background service, which writes its last lines (into this folder, and through a link
    into its own) after the process that used it has ended.
    """
    return {
        str(path.relative_to(results)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in results.rglob("*")
        if path.is_file() and not path.is_symlink() and not path.match("wandb/*/logs/*")
    }


def differing(before: dict[str, tuple[int, bytes]], after: dict[str, tuple[int, bytes]]) -> list[str]:
    """Names of the files that were made, removed or written in between."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def test_what_counts_as_touched(tmp_path: Path) -> None:
    """The service's logs do not, be they here or behind a link; anything else does, be it only written again."""
    results, elsewhere = tmp_path / "results", tmp_path / "core.log"
    logs = results / "wandb" / "offline-run-1" / "logs"
    logs.mkdir(parents=True)
    ours = [results / "runs" / "draw" / "a" / "train.log", results / "wandb" / "offline-run-1" / "run-1.wandb"]
    ours[0].parent.mkdir(parents=True)
    for path in (*ours, logs / "debug-internal.log", elsewhere):
        path.write_text("first")
    (logs / "debug-core.log").symlink_to(elsewhere)
    (results / "wandb" / "debug-internal.log").symlink_to(logs / "debug-internal.log")
    before = outputs(results)
    for path in (logs / "debug-internal.log", elsewhere):
        path.write_text("last words")
    assert differing(before, outputs(results)) == []
    os.utime(ours[0], ns=(1, 1))
    ours[1].write_text("other")
    (results / "new").touch()
    names = ["new", "runs/draw/a/train.log", "wandb/offline-run-1/run-1.wandb"]
    assert differing(before, outputs(results)) == names
    assert differing(outputs(results), before) == names


@pytest.mark.parametrize(
    "task, figure, words, cells, panels",
    [
        ("draw", "fig4_draw", ["SEEDS=0", "JOBS=2"], 3, {"1"}),
        ("order_embeddings", "fig1_order_embeddings", ["SEEDS=0", "JOBS=2"], 2, {"1", "2", "3"}),
        ("attentive_reader", "fig2_attentive_reader", ["SEEDS=0", "NORM=bn_everywhere,ln", "JOBS=2"], 4, {"1"}),
        ("skip_thoughts", "fig3_skip_thoughts", ["SEEDS=0", "JOBS=2"], 2, None),  # the sets that are there
        ("handwriting", "fig5_handwriting", ["SEEDS=0", "JOBS=2"], 2, {"1", "2"}),
        (
            "pi_mnist",
            "fig6_pi_mnist",
            ["SEEDS=0", "NORM=bn,ln", "JOBS=2", "LOGGER=wandb"],
            4,
            {"1", "2", "3", "4"},
        ),
    ],
)
def test_reproduce(
    task: str, figure: str, words: list[str], cells: int, panels: set[str] | None, results: Path
) -> None:
    code, text, errors = reproduce(f"TASK={task}", *words)
    assert code == 0, errors
    assert not any("missing: " in line for line in errors), "cells it was not asked for are no news"
    runs = sorted((results / "runs" / task).iterdir())
    assert len(runs) == cells
    for run in runs:
        assert json.loads((run / "status.json").read_text())["state"] == "done"
        assert (run / "metrics.jsonl").stat().st_size > 0 and (run / "curve.png").exists()

    label = json.loads((runs[0] / "meta.json").read_text())["data"]["label"]
    drawn = results / "figures" / f"smoke-{label}"
    assert (drawn / f"{figure}.png").read_bytes()[:4] == b"\x89PNG"
    assert (drawn / f"{figure}.pdf").read_bytes()[:4] == b"%PDF"
    with open(drawn / f"{figure}.csv", newline="") as file:
        drawn_panels = {row["panel"] for row in csv.DictReader(file)}
    assert drawn_panels == panels if panels else drawn_panels
    rows = json.loads((results / "compare" / f"{task}.json").read_text())
    assert rows and all(row["verdict"] != "matches" for row in rows), "a smoke run never matches the paper"
    if task == "draw":
        assert (drawn / "draw_generated_ln-b128-s0.png").exists()

    # What it made is named at the end, and all of it exists.
    lines = text.splitlines()
    named = [line for line in lines if line.startswith(str(results)) and not line.endswith("cells finished")]
    assert str(drawn / f"{figure}.png") in named and str(results / "compare" / f"{task}.json") in named
    assert all(Path(line).exists() for line in named)
    assert f"{cells} of {cells} cells finished" in lines[-1]
    if "LOGGER=wandb" in words:
        offline = list((results / "wandb").glob("offline-run-*/*.wandb"))
        assert len(offline) == cells + 1, "one run for each cell, and one that holds the final figures"
        assert sum("no API key" in line for line in errors) >= 1

    before = outputs(results)
    code, text, errors = reproduce(f"TASK={task}", *words)
    assert code == 0 and "nothing to do" in text.splitlines()[-1]
    touched = differing(before, outputs(results))
    assert not touched, f"the same command again touches nothing, but it did: {', '.join(touched)}"


def test_a_cell_that_fails_is_reported_at_the_end_and_the_others_finish(results: Path) -> None:
    words = ["TASK=draw", "SEEDS=0", "NORM=none,ln", "JOBS=2"]
    # A first start makes the folders; one of them is then used by another process, this one.
    assert reproduce(*words)[0] == 0
    none, ln = (next((results / "runs" / "draw").glob(f"{norm}-*")) for norm in ("none", "ln"))
    for folder in (none, ln):
        status = json.loads((folder / "status.json").read_text())
        (folder / "status.json").write_text(json.dumps({**status, "state": "interrupted"}))
    (figure,) = (results / "figures").glob("smoke-*/fig4_draw.png")
    figure.unlink()
    with open(none / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, errors = reproduce(*words)
    assert code == 2, "make turns any failure into 2"
    assert any(line.startswith("error: draw none batch 128 seed 0 failed:") and "in use" in line for line in errors)
    assert sum("in use" in line for line in errors) == 1, "an error is told once"
    assert any(line.endswith("interrupted: see above") and none.name in line for line in errors)
    assert json.loads((ln / "status.json").read_text())["state"] == "done"
    assert figure.exists(), "figures show what there is"
