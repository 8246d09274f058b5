"""Writes a text by hand with a trained model: a PNG and an SVG, with the window over the characters beneath.

    make sample TASK=handwriting TEXT="layer norm" BIAS=1.0
    make sample TASK=handwriting TEXT="layer norm" PROFILE=medium NORM=ln SEEDS=0

PROFILE, NORM and SEEDS narrow down which run writes; of those left it is one trained on the data that are there
(LN_DATA) before others, then a finished one, then the one with the most updates, then LN, then the smallest seed. BIAS
is Graves' probability bias: 0 is the model's own hand, 1 a neat one.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import torch

from data.fetch import DataError, Source
from data.handwriting import load_handwriting
from experiments.analysis.collect import Run, collect, results_dir
from experiments.analysis.output import short_path, write_whole
from experiments.cell import prepare
from experiments.cli import guarded
from experiments.pictures import rendered, sample_figure
from experiments.rng import derive
from experiments.runs import RunError
from experiments.schema import ConfigError, load_saved
from experiments.tasks.handwriting import HandwritingTask, write
from scripts.options import Options, from_command_line
from scripts.selection import say

NAME_LENGTH = 40
NARROWING = ("PROFILE", "NORM", "SEEDS")


def choose(options: Options, runs: Path) -> Run:
    """The run that writes. Raises ``ConfigError`` if there is none, ``DataError`` if its data cannot be told."""
    collection = collect(runs, runs / "none", options.task)
    say(collection.warnings)
    found = [
        run
        for run in collection.runs
        if (run.folder / "checkpoint.pt").is_file()
        and ("PROFILE" not in options.given or run.profile == options.profile)
        and (options.norms is None or run.norm in options.norms)
        and (options.seeds is None or run.seed in options.seeds)
    ]
    if not found:
        words = " ".join(f"{name}={value}" for name, value in sorted(options.given.items()) if name in NARROWING)
        raise ConfigError(
            f"no trained model of {options.task}{f' with {words}' if words else ''} in {short_path(runs)}: "
            f"make one with make reproduce TASK={options.task}"
        )
    here = at_hand().fingerprint

    def rank(run: Run) -> tuple[bool, bool, int, bool, int]:
        own = run.data["fingerprint"] == here
        return own, run.state == "done", run.status.get("step", 0), run.norm == "ln", -run.seed

    return max(found, key=rank)


def at_hand() -> Source:
    """The data there are. Raises ``DataError``."""
    try:
        return load_handwriting().source
    except DataError:
        return load_handwriting(skip_bad=True).source  # what a run with data.skip_bad=true was trained on


def file_name(text: str, bias: float) -> str:
    """A name, without suffix, that no other text or bias has: a hash tells apart what looks alike in a file name."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:NAME_LENGTH].strip("-") or "text"
    if slug.replace("-", " ") != text:
        slug += f"-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return f"{slug}-bias{bias:.12g}"


def sample(options: Options) -> list[Path]:
    """Writes the pictures and returns their paths.

    Raises:
        ConfigError: no run, or a text it cannot write.
        RunError: its checkpoint is damaged, or its data are not there any more.
    """
    assert options.text is not None
    results = results_dir()
    run = choose(options, results / "runs")
    try:
        cfg = load_saved(run.folder / "config.yaml")
    except Exception:  # whatever a key of another version makes omegaconf raise
        raise RunError(f"{run.folder / 'config.yaml'} is not of this version: train that run again") from None
    cfg.device = options.device
    device, task = prepare(cfg, 1), HandwritingTask()
    data = task.data(cfg, device)
    if data.source.fingerprint != run.data["fingerprint"]:
        raise RunError(
            f"{short_path(run.folder)} was trained on other data ({run.data['name']}; here: {data.source.name}): set "
            "LN_DATA to their folder, or unset it for the stand-in"
        )
    path = run.folder / "checkpoint.pt"
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)["model"]
    except Exception:  # whatever a damaged file makes torch raise
        raise RunError(f"{path} cannot be read: train that run again") from None
    model = task.model(cfg, torch.Generator())
    model.load_state_dict(saved)
    model.to(device).eval()
    (row,) = write(model, data, [options.text], options.bias, derive(cfg.seed, "sample"))
    figure = sample_figure(row, f"“{options.text}”, bias {options.bias:g} ({run.run}, {run.label} data)")
    folder, name = results / "samples" / run.run, file_name(options.text, options.bias)
    return [write_whole(folder / f"{name}.{kind}", rendered(figure, kind)) for kind in ("png", "svg")]


def main() -> int:
    """Entry point."""
    for path in sample(from_command_line("sample", __doc__)):
        print(short_path(path))
    return 0


if __name__ == "__main__":
    guarded(main)
