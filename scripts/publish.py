"""Copies finished runs into ``results/published/``: their logs and metrics, never their checkpoints.

The figures and tables of all published runs are made anew beside them, and what ``make bench`` measured is copied too.

    python -m scripts.publish                      # every finished run of results/runs
    python -m scripts.publish --task draw --profile small
    python -m scripts.publish --seal               # only writes the checksums of published runs that have none

Checksums in each folder let every reader see a file that was edited later.

Refused: a run made with uncommitted changes, whose code nobody else could look up. An older copy of the same run is
replaced, and with it what ``scripts.verify`` said of it. Exit code: 0 published, 1 nothing to publish or a run was
refused, 2 bad input.
"""

from __future__ import annotations

import argparse
import filecmp
import shutil
import sys
from pathlib import Path

from experiments.analysis import seals, verified
from experiments.analysis.collect import Unreadable, read_run, results_dir
from experiments.analysis.output import short_path
from experiments.cli import guarded
from experiments.runs import FINISHED, effective_state, read_json
from scripts import figures, tables
from scripts.checked import OptionError, choice, stems
from scripts.options import Parser, fail

FILES = seals.SEALED


def publish(folder: Path, target: Path) -> str | None:
    """Copies one run. Returns why it was refused, or None."""
    missing = [name for name in FILES if not (folder / name).exists()]
    if missing:
        return f"{', '.join(missing)} missing: start the run again"
    try:
        read_run(folder)
    except Unreadable as error:
        return str(error)
    meta = read_json(folder / "meta.json")
    for git in (meta.get("git") or {}, *meta.get("sessions", [])):  # a resumed run was made by several states of code
        if git.get("commit") and not git.get("dirty"):
            continue
        return "made with uncommitted changes or outside git: commit, delete the run and make it again"
    target.mkdir(parents=True, exist_ok=True)
    if filecmp.cmpfiles(folder, target, FILES, shallow=False)[0] != list(FILES):
        (target / verified.FILE).unlink(missing_ok=True)  # it spoke of the run that is replaced
    for name in FILES:
        shutil.copyfile(folder / name, target / name)
    seals.seal(target)
    return None


def seal_all(published: Path) -> int:
    """Seals the published runs that have no checksums yet; returns the exit code, 1 if one could not be read."""
    code = 0
    for folder in sorted(path.parent for path in published.glob("*/*/meta.json")):
        try:
            read_run(folder, "published")
        except Unreadable as error:
            print(f"error: {short_path(folder)}: {error}", file=sys.stderr)
            code = 1
            continue
        if not seals.is_sealed(folder):
            print(short_path(seals.seal(folder)))
    return code


def main() -> int:
    """Entry point."""
    parser = Parser("publish", __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", help="only this task's runs")
    parser.add_argument("--profile", help="only runs of this profile")
    parser.add_argument("--runs", type=Path, default=results_dir() / "runs", help="where the runs are")
    parser.add_argument("--out", type=Path, default=results_dir() / "published", help="where the copies go")
    parser.add_argument("--seal", action="store_true", help="copy nothing: write the checksums that are missing")
    try:
        options = parser.parse_args()
        for name in ("task", "profile"):
            if getattr(options, name) is not None:
                choice(f"--{name}", getattr(options, name), stems(name))
    except OptionError as error:
        fail(error)
    if options.seal:
        return seal_all(options.out)
    published = refused = 0
    for folder in sorted(path.parent for path in options.runs.glob("*/*/meta.json")):
        meta = read_json(folder / "meta.json")
        if options.task not in (None, meta.get("task")) or options.profile not in (None, meta.get("profile")):
            continue
        if effective_state(folder) not in FINISHED:
            continue
        if reason := publish(folder, options.out / folder.parent.name / folder.name):
            print(f"error: {short_path(folder)}: {reason}", file=sys.stderr)
            refused += 1
        else:
            published += 1
    print(f"{published} runs published in {short_path(options.out)}")
    for bench in sorted(options.runs.parent.glob("bench/*.json")):
        about = bench.with_suffix(".meta.json")  # beside a file that is rows alone
        if not (read_json(about if about.exists() else bench).get("git") or {}).get("dirty", True):
            (options.out / "bench").mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bench, options.out / "bench" / bench.name)
    if published:
        own = ["--runs", str(options.out / ".none"), "--published", str(options.out)]
        figures.main([*own, "--out", str(options.out / "figures")])
        tables.main([*own, "--out", str(options.out / "tables")])
    return int(refused > 0 or published == 0)


if __name__ == "__main__":
    guarded(main)
