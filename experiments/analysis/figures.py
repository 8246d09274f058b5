"""Draws a published figure from the runs there are, for one profile and data source.

With fewer than five seeds every seed is a thin line, their median a thick one and their range a band: three
numbers make no confidence interval. Nothing is smoothed. Seeds are aggregated only at evaluation steps they
share. A run that diverged ends in a cross and counts as infinitely bad from there on: at plus or minus infinity, as
the task's ``Metric`` says which way is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from experiments.analysis import style
from experiments.analysis.collect import FINISHED, Run, tidy
from experiments.analysis.curve import run_curve as run_curve  # the other picture, for who looks here
from experiments.analysis.groups import Group, progress, summary
from experiments.analysis.measures import worst
from experiments.analysis.names import LONG, family
from experiments.analysis.output import write_whole

FEW_SEEDS = 5  # below this every seed is shown
FEW_POINTS = 12  # up to this many evaluations each is marked
X_LABELS = {"epoch": "epoch", "step": "training step (updates)"}
SHOWN = "shown"  # column: what a panel draws against
Band = tuple[style.Look, pd.DataFrame]


def better_of(task: str, metric: str) -> str:
    """Whether ``lower`` or ``higher`` values of a metric are better, as its task declares."""
    from experiments.tasks import TASKS  # imports torch

    return TASKS[task].metrics[metric].better


def aggregate(runs: Sequence[tuple[str, pd.DataFrame]], x: str, better: str = "lower") -> pd.DataFrame:
    """Median and spread of several seeds at the evaluation steps they share.

    Args:
        runs: (state, rows of one metric by step) for each seed.
        x: column to draw against.
        better: ``lower`` or ``higher``: a diverged run counts as the other infinity after its last value.

    Returns:
        step, x, low, middle, high by step; low and high are the range with fewer than ``FEW_SEEDS`` seeds,
        else the quartiles.
    """
    bad = worst(better)
    curves = []
    for state, rows in runs:
        curve = rows.set_index("step")["value"].astype(float)
        curves.append((state, curve.fillna(bad)))
    steps = sorted({step for _, curve in curves for step in curve.index})
    for state, curve in curves:
        last = curve.index.max() if len(curve) else -1
        steps = [step for step in steps if step in curve.index or (state == "diverged" and step > last)]
    where = {step: value for _, rows in runs for step, value in zip(rows["step"], rows[x], strict=True)}
    table = np.array([[curve.get(step, bad) for step in steps] for _, curve in curves], dtype=float)
    table = table.reshape(len(curves), len(steps))
    # Quantiles by rank, without interpolation between a number and infinity (which gives NaN).
    ranked = np.sort(table, axis=0)
    n = len(curves)
    with np.errstate(invalid="ignore"):
        middle = ranked[n // 2] if n % 2 else (ranked[n // 2 - 1] + ranked[n // 2]) / 2
    low, high = (0, n - 1) if n < FEW_SEEDS else (round((n - 1) / 4), round(3 * (n - 1) / 4))
    return pd.DataFrame(
        {
            "step": steps,
            x: [where[step] for step in steps],
            "low": ranked[low],
            "middle": middle,
            "high": ranked[high],
        }
    )


def _panels(figure: Mapping[str, Any], group: Group) -> list[dict[str, Any]]:
    """The figure's panels, and its first batch size's again for each batch size that no panel shows.

    A panel without a batch size shows the experiment's own: runs of two batch sizes are not seeds of one another. Where
    no run has a panel's metric but some have that of its ``stand_in``, the stand-in is shown. ``printed`` is the value
    to draw a line at, if the figure names a norm as its ``reference`` and the paper prints that norm's value.
    """
    axis = {"x": "epoch", "xlabel": None, "xunit": 1, "xscale": "linear"}
    axis = {key: figure.get(key, usual) for key, usual in axis.items()}
    printed = printed_values(group.task, figure["reference"]) if "reference" in figure else {}
    panels = []
    for panel in figure["panels"]:
        other = {**panel, **panel.get("stand_in", {})}
        if not _logged(group, panel) and _logged(group, other):
            panel = other
        own = {"batch_size": panel.get("batch_size") or group.batch_size, "reference": figure.get("reference")}
        panels.append({**axis, **panel, **own, "printed": printed.get(panel["metric"])})
    shown = {panel["batch_size"] for panel in panels}
    more = sorted({run.batch_size for run in group.runs} - shown, reverse=True)
    if more and len(shown) == 1:  # now there is something to tell apart
        panels = [{**panel, "title": panel.get("title") or f"batch {panel['batch_size']}"} for panel in panels]
    first = [panel for panel in panels if panel["batch_size"] == panels[0]["batch_size"]]
    return panels + [
        {**panel, "batch_size": batch_size, "title": f"batch {batch_size}"} for batch_size in more for panel in first
    ]


def printed_values(task: str, norm: str) -> dict[str, float]:
    """What the paper prints of a norm, by metric: the ``value`` rows of ``configs/paper``."""
    from experiments.analysis.compare import load_paper

    rows = [row for row in load_paper(task)["rows"] if row["kind"] == "value" and row["norm"] == norm]
    return {row["metric"]: row["paper"] for row in rows if row["paper"] is not None}


def _logged(group: Group, panel: Mapping[str, Any]) -> bool:
    return any(not run.series(panel["split"], panel["metric"]).empty for run in group.runs)


def _panel_runs(panel: Mapping[str, Any], group: Group) -> dict[str, list[tuple[Run, pd.DataFrame]]]:
    """Runs of a panel by norm, with the rows it draws (``SHOWN``: in units of ``xunit``); runs without any left out."""
    chosen: dict[str, list[tuple[Run, pd.DataFrame]]] = {}
    for run in group.runs:
        if panel["batch_size"] != run.batch_size:
            continue
        rows = run.series(panel["split"], panel["metric"])
        if not rows.empty:
            rows = rows.assign(**{SHOWN: rows[panel["x"]] / panel["xunit"]})
            chosen.setdefault(run.norm, []).append((run, rows))
    return dict(sorted(chosen.items(), key=lambda item: (list(style.LOOKS) + [item[0]]).index(item[0])))


def _draw_panel(ax: Axes, panel: Mapping[str, Any], group: Group) -> tuple[list[Band], list[str]]:
    """Draws the lines of one panel; returns the bands still to draw, and remarks for the caption."""
    by_norm = _panel_runs(panel, group)
    bands: list[Band] = []
    remarks: list[str] = []
    if panel.get("yscale") == "log":
        ax.set_yscale("log", nonpositive="mask")
    x = SHOWN
    ax.set_xlabel(panel["xlabel"] or X_LABELS.get(panel["x"], panel["x"]))
    ax.set_ylabel(panel["ylabel"])
    ax.margins(x=0.02)
    if panel["xscale"] == "log":
        ax.set_xscale("log")
        # 0.5, 1, 2, 5, 10: an axis of little more than a decade would otherwise label every tick, one over the other
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if not by_norm:
        ax.set_title(panel.get("title", ""))
        begun = any(run.batch_size == panel["batch_size"] and not run.metrics.empty for run in group.runs)
        why: dict[str, Any] = {"s": "no runs yet"}
        if begun and "missing" in panel:
            why = {"s": panel["missing"].strip(), "fontsize": 8}
        ax.text(0.5, 0.5, transform=ax.transAxes, ha="center", va="center", color="0.5", **why)
        ax.set(xticks=[], yticks=[])
        return bands, remarks
    for norm, runs in by_norm.items():
        look = style.look(norm)
        diverged = [rows.dropna(subset="value") for run, rows in runs if run.state == "diverged"]
        for rows in diverged:
            end = rows.tail(1)
            ax.plot(end[x], end["value"], "X", color=look.color, ms=8, mec="white", mew=0.8, zorder=9)
        if 1 < len(runs) < FEW_SEEDS:
            for _, rows in runs:
                dot: dict[str, Any] = {"marker": "o", "ms": 3} if len(rows) == 1 else {}
                ax.plot(rows[x], rows["value"], color=look.color, lw=0.7, alpha=0.5, zorder=look.order, **dot)
        middle = aggregate([(run.state, rows) for run, rows in runs], x, better_of(group.task, panel["metric"]))
        if len(runs) > 1:
            bands.append((look, middle))
        crosses = f", {len(diverged)} diverged" if diverged else ""
        label = f"{look.name} ({len(runs)} seed{'s' * (len(runs) > 1)}{crosses})"
        shown = middle["middle"].where(np.isfinite(middle["middle"]))
        dot = {"marker": "o", "ms": 3.5} if len(middle) <= FEW_POINTS else {}
        ax.plot(middle[x], shown, color=look.color, ls=look.line, zorder=look.order + 1, label=label, **dot)
        reach = max(rows["step"].max() for _, rows in runs)
        if not diverged and (middle.empty or middle["step"].iloc[-1] < reach):
            at = f"{panel['x']} {middle[x].iloc[-1] * panel['xunit']:.3g}" if len(middle) else None
            where = at or "the start: no common step"
            remarks.append(f"{look.name}: seeds of unequal length, median cut at {where}")
    if (printed := panel["printed"]) is not None:
        label = f"paper, {style.look(panel['reference']).name}: {printed:g}"
        ax.axhline(printed, color="0.5", ls=(0, (2, 2)), lw=1.1, zorder=1, label=label)
    style.legend_above(ax, panel.get("title", ""))
    remarks += _cut(ax, panel, by_norm, bands, x, better_of(group.task, panel["metric"]))
    if printed is not None:  # in view whatever was cut
        low, high = ax.get_ylim()
        ax.set_ylim(min(low, printed - 0.03 * (high - printed)), max(high, printed + 0.03 * (printed - low)))
    return bands, remarks


def _cut(
    ax: Axes,
    panel: Mapping[str, Any],
    by_norm: Mapping[str, list[tuple[Run, pd.DataFrame]]],
    bands: Sequence[Band],
    x: str,
    better: str,
) -> list[str]:
    """Cuts a linear axis where the first values, or a rare spike, would squeeze the rest flat, and says so.

    The worse end is cut, so where higher is better all signs are turned first.

    No median is ever cut, but in the first tenth of the runs.
    """
    if panel.get("yscale", "linear") != "linear":
        return []
    sign = 1 if better == "lower" else -1
    rows = pd.concat([rows for runs in by_norm.values() for _, rows in runs]).dropna(subset="value")
    values = sign * rows["value"]
    late = values[rows[x] >= 0.1 * rows[x].max()]
    if late.empty:
        return []
    middles = [(sign * m["middle"])[(m[x] >= 0.1 * rows[x].max()) & np.isfinite(m["middle"])].max() for _, m in bands]
    top = float(np.nanmax([late.quantile(0.97), *middles]))
    span = top - late.min()
    if values.max() <= top + 1.5 * span:
        return []
    near = values[values <= top + span].max()  # what would hardly squeeze it stays in
    ax.set_ylim(*sorted((sign * (late.min() - 0.06 * span), sign * (near + 0.06 * span))))
    beyond = int((values > near).sum())
    words = "values lie" if beyond > 1 else "value lies"
    where = "above the axis, up to" if better == "lower" else "below the axis, down to"
    return [f"{panel['ylabel']}: {beyond} {words} {where} {sign * values.max():.4g}"]


def _draw_panels(axes: Sequence[Axes], panels: Sequence[Mapping[str, Any]], group: Group) -> list[str]:
    """Draws all panels; those of the same metric share their y-axis. Returns remarks for the caption."""
    drawn = [_draw_panel(ax, panel, group) for ax, panel in zip(axes, panels, strict=True)]
    shared: dict[tuple[str, ...], list[Axes]] = {}
    for ax, panel in zip(axes, panels, strict=True):
        if ax.lines:
            shared.setdefault((panel["split"], panel["metric"], panel["ylabel"]), []).append(ax)
    for together in shared.values():
        limits = [ax.get_ylim() for ax in together]
        for ax in together:
            ax.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    for ax, (bands, _) in zip(axes, drawn, strict=True):
        limit = ax.get_ylim()
        for look, middle in bands:  # now that the limits are known: an infinite edge is the edge of the panel
            low, high = (np.clip(middle[edge], *limit) for edge in ("low", "high"))
            ax.fill_between(middle[SHOWN], low, high, color=look.color, alpha=0.13, lw=0, zorder=look.order - 2)
    return [remark for _, remarks in drawn for remark in remarks]


def _unique(texts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def settings(runs: Sequence[Run], words: Mapping[str, str]) -> list[str]:
    """What the runs' own configurations say of some keys: ``words`` has a phrase for each dotted key."""
    said = []
    for key, phrase in words.items():
        found = set()
        for run in runs:
            path = run.folder / "config.yaml"
            node: Any = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None
            for part in key.split("."):
                node = node.get(part) if isinstance(node, dict) else None
            if node is not None:
                found.add(str(node))
        if found:
            said.append(f"{phrase}: {', '.join(sorted(found))}.")
    return said


def _caption(
    figure: Mapping[str, Any], group: Group, panels: Sequence[Mapping[str, Any]], remarks: Sequence[str]
) -> list[str]:
    most = max((len(runs) for panel in panels for runs in _panel_runs(panel, group).values()), default=0)
    spread = (
        "One seed per line." if most == 1
        else "Thin lines: every seed. Thick line: median of the seeds; band: their range." if most < FEW_SEEDS
        else "Line: median of the seeds; band: interquartile range (fewer than five: seeds and range)."
    )  # fmt: skip
    if any(run.state == "diverged" for run in group.runs):
        spread += " Cross: the run diverged and counts as infinitely bad from there on."
    shown = {family(run.norm) for run in group.runs}
    long = [words for norm, words in LONG.items() if norm in shown]
    seeds = sorted({run.seed for run in group.runs})
    which = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    source = group.source
    data = f"Data: {source['name']}, {source['kind']}: {source['detail'].rstrip('.')}."
    lines = [
        " ".join([f"{spread} No smoothing.", *settings(group.runs, figure.get("settings", {}))]),
        f"Profile {group.profile}; {which}; commit {group.commits}. "
        + (f"{', '.join(long)} normalisation. " if long else "")
        + data,
    ]
    notes = _unique(remarks)
    waiting = [run for run in group.runs if run.state not in FINISHED]
    unfinished = [f"{_short(run)} ({run.state}, {progress(run)})" for run in waiting]
    if unfinished:
        notes.append(f"not finished: {', '.join(unfinished)}")
    if group.missing:
        notes.append(f"missing: {summary(group.missing)}")
    if notes:
        lines.append("Note: " + "; ".join(notes) + ".")
    return lines


def _short(cell: Any) -> str:
    return f"{cell.norm} batch {cell.batch_size} seed {cell.seed}"


def draw(figure: Mapping[str, Any], group: Group) -> tuple[Figure, pd.DataFrame]:
    """Draws ``figure`` (the block of an experiment file) from the runs of ``group``.

    Returns:
        the figure, and the tidy table of what it shows (``collect.COLUMNS`` after the panel's number).
    """
    panels = _panels(figure, group)
    data = tidy(group.runs)
    parts = []
    for number, panel in enumerate(panels):
        mask = (data["split"] == panel["split"]) & (data["metric"] == panel["metric"])
        mask &= data["batch_size"] == panel["batch_size"]
        parts.append(data[mask].assign(panel=number + 1))
    table = pd.concat(parts, ignore_index=True)
    table.insert(0, "panel", table.pop("panel"))

    source = group.source
    kind = "STAND-IN data" if group.stand_in else "data"
    subtitle = f"task {group.task} · profile {group.profile} · {kind}: {source['name']}"
    with style.suite_style():

        def compose(remarks: Sequence[str]) -> tuple[Figure, list[str]]:
            caption = _caption(figure, group, panels, remarks)
            canvas, axes = style.canvas(len(panels), figure["title"], subtitle, caption)
            return canvas, _draw_panels(axes, panels, group)

        canvas, remarks = compose([])
        if remarks:  # known only after drawing, but the height of the caption decides the layout
            canvas, _ = compose(remarks)
    return canvas, table


def has_data(figure: Mapping[str, Any], group: Group) -> bool:
    """Whether any panel has anything to show."""
    return any(_panel_runs(panel, group) for panel in _panels(figure, group))


def save(figure: Mapping[str, Any], group: Group, out: Path) -> list[Path]:
    """Draws and writes ``<out>/<profile>-<label>/<name>.{png,pdf,csv}``; returns the three paths."""
    canvas, table = draw(figure, group)
    folder = out / f"{group.profile}-{group.label}"
    with style.suite_style():
        return [
            write_whole(folder / f"{figure['name']}.png", style.render(canvas, "png")),
            write_whole(folder / f"{figure['name']}.pdf", style.render(canvas, "pdf")),
            write_whole(folder / f"{figure['name']}.csv", table.to_csv(index=False, lineterminator="\n")),
        ]
