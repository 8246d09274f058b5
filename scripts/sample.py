"""Writes a text by hand with a trained model: a PNG and an SVG, with the window over the characters beneath.

    make sample TASK=handwriting TEXT="layer norm" BIAS=1.0
    make sample TASK=handwriting TEXT="layer norm" PROFILE=medium NORM=ln SEEDS=0

PROFILE, NORM and SEEDS narrow down which run writes; of those left it is a finished one before others, then the one
with the most updates, then LN, then the smallest seed. BIAS is Graves' probability bias: 0 is the model's own hand, 1 a
neat one.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

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
    """The run that writes. Raises ``ConfigError`` if there is none."""
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
    return max(found, key=lambda run: (run.state == "done", run.status.get("step", 0), run.norm == "ln", -run.seed))


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
        raise RunError(f"{short_path(run.folder)} was trained on other data ({run.data['name']}): make them available")
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
    slug = re.sub(r"[^A-Za-z0-9]+", "-", options.text).strip("-")[:NAME_LENGTH] or "text"
    stem = results / "samples" / run.run / f"{slug}-bias{options.bias:g}"
    return [write_whole(stem.with_name(f"{stem.name}.{kind}"), rendered(figure, kind)) for kind in ("png", "svg")]


def main() -> int:
    """Entry point."""
    for path in sample(from_command_line("sample", __doc__)):
        print(short_path(path))
    return 0


if __name__ == "__main__":
    guarded(main)
