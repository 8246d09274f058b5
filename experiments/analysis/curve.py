"""The learning curve of one run, drawn at its end for the run folder and for wandb."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.analysis import style
from experiments.analysis.collect import read_metrics
from experiments.analysis.output import write_whole

SPLIT_LOOKS: dict[str, tuple[str, Any]] = {
    "train": ("0.55", (0, (1.2, 1.2))),
    "valid": ("#0072B2", "solid"),
    "test": ("#D55E00", (0, (5, 1.6))),
}


def run_curve(folder: Path) -> Path:
    """Draws the learning curve of one run into ``<folder>/curve.png`` and returns its path.

    It shows the metric of ``status.json``'s best value, else the first one logged on validation data, on all its
    splits.
    """
    rows = read_metrics(folder / "metrics.jsonl")
    meta, status = (_object(folder / name) for name in ("meta.json", "status.json"))
    metric = (status.get("best") or {}).get("metric")
    if metric is None and not rows.empty:
        valid = rows["metric"][rows["split"] == "valid"]
        metric = (valid if len(valid) else rows["metric"]).iloc[0]
    rows = rows[rows["metric"] == metric]
    title = f"{meta.get('task', '')} {meta.get('norm', '')} seed {meta.get('seed', '?')}: {metric or 'no metric'}"
    data = meta.get("data") or {}
    subtitle = f"batch {meta.get('batch_size')} · profile {meta.get('profile')} · data: {data.get('name')}"
    if data.get("kind") == "stand-in":
        subtitle = subtitle.replace("data:", "STAND-IN data:")
    with style.suite_style():
        figure, (ax,) = style.canvas(1, title, subtitle, [folder.name])
        for split, part in rows.groupby("split", sort=False):
            color, line = SPLIT_LOOKS.get(str(split), ("0.3", "solid"))
            ax.plot(part["epoch"], part["value"], color=color, ls=line, label=split, marker="o", ms=2.5)
        ax.set_xlabel("epoch")
        if rows.empty:
            ax.text(0.5, 0.5, "nothing logged", transform=ax.transAxes, ha="center", va="center", color="0.5")
        else:
            ax.set_ylabel(f"{metric} ({rows['unit'].iloc[0]})")
            style.legend_above(ax, "")
        return write_whole(folder / "curve.png", style.render(figure, "png"))


def _object(path: Path) -> dict[str, Any]:
    """A JSON file's object, or nothing: a picture is not worth stopping for."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
