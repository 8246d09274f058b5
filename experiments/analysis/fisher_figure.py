"""Draws what ``fisher`` measures: four panels over the factor of the weights, on two logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from experiments.analysis import fisher, style
from experiments.analysis.output import write_whole

MARKERS = {"none": "s", "bn": "^", "wn": "D", "ln": "o"}
PAPER_WORDS = "halving (text)"
NAME = "fisher_scaling"
TITLE = "What a gradient step changes, as weights grow"
# title, y-axis, quantity -> whether its markers are filled
PANELS = (
    ("a  One SGD step: ∝ 1/s²", "rms change of the logits [nats]", {"sgd": True}),
    ("b  One step of fixed length: ∝ 1/s²", "KL of the predictions [nats/case]", {"kl": True}),
    ("c  Fisher block weights-weights (w-w): ∝ 1/s²", "Frobenius norm of the block", {"weight": True}),
    ("d  w-biases (filled), w-gains (open): ∝ 1/s", "Frobenius norm of the block", {"bias": True, "gain": False}),
)


def _mean(rows: pd.DataFrame, column: str) -> pd.Series:
    """Geometric mean over seeds, by factor: what an average is on a logarithmic axis."""
    return np.exp(np.log(rows.set_index("factor")[column]).groupby(level=0).mean())


def _draw_panel(ax: Axes, frame: pd.DataFrame, quantities: dict[str, bool]) -> None:
    for norm in fisher.NORMS:
        look = style.look(norm)
        for quantity, filled in quantities.items():
            rows = frame[(frame["norm"] == norm) & (frame["quantity"] == quantity)]
            if rows.empty:
                continue
            for _, seed in rows.groupby("seed"):
                ax.plot(seed["factor"], seed["measured"], color=look.color, lw=0.5, alpha=0.4, zorder=look.order)
            if rows["predicted"].notna().all():
                line = _mean(rows, "predicted")
                ax.plot(line.index, line, color=look.color, ls=look.line, lw=1.4, zorder=look.order + 1)
            mean = _mean(rows, "measured")
            ax.plot(
                mean.index, mean, ls="none", marker=MARKERS[norm], ms=5.5, color=look.color, zorder=look.order + 5,
                mfc=look.color if filled else "none", mew=1.1, label=look.name if filled else None,
            )  # fmt: skip
            if quantity == "weight" and norm == "ln":
                words = mean.iloc[0] / mean.index.to_numpy()
                ax.plot(mean.index, words, color="0.45", ls=":", lw=1.2, zorder=1, label=PAPER_WORDS)


def draw(frame: pd.DataFrame) -> Figure:
    """The figure of ``fisher.table``'s rows."""
    seeds = sorted(frame["seed"].unique())
    which = f"{len(seeds)} seed{'s' * (len(seeds) > 1)} ({', '.join(map(str, seeds))})"
    doubled = {quantity: fisher.on_doubling(frame, quantity) for quantity in fisher.QUANTITIES}
    caption = [
        "Markers: measured, geometric mean of the seeds; thin lines: every seed. Thick lines: predicted from the "
        "value at s = 1 by (g/σ)² in a to c, by g/σ in d, g and σ as they are in the network (equation 13). BN, WN: "
        "the weights of one unit are scaled, stepped along and differentiated by, and no prediction changes by the "
        "scaling; LN: the whole matrix, for LN is not invariant to the scale of one unit. Baseline: one unit, which "
        "changes the function; nothing is predicted.",
        f"a: step -ηG, η = {fisher.RATE:g}: one 1/s is the gradient's, one the Jacobian's. b: step along -G of "
        f"{fisher.LENGTH:g} of the weights' norm at s = 1. c, dotted: what the text of section 5.2 says "
        "of the norm's doubling, against equation 13.",
        "Measured on the first doubling of the norm (lowest to highest of norms and seeds): "
        f"a x{doubled['sgd']}, b x{doubled['kl']}, c x{doubled['weight']}, d x{doubled['bias']} (biases) and "
        f"x{doubled['gain']} (gains). Apart from exact quarters and halves: steps are finite, and relu has a kink.",
        f"Network {'-'.join(map(str, fisher.SIZES))}, after {fisher.TRAIN_STEPS} steps of training; float64; {which}. "
        f"Data: {fisher.DATA}.",
    ]
    with style.suite_style():
        subtitle = "section 5.2 · effective learning rate and Fisher blocks under each normalisation"
        figure, axes = style.canvas(len(PANELS), TITLE, subtitle, caption)
        for ax, (heading, unit, quantities) in zip(axes, PANELS, strict=True):
            ax.set(xscale="log", yscale="log", ylabel=unit)
            ax.set_xlabel("s: factor of the incoming weights, gain and bias unchanged")
            _draw_panel(ax, frame, quantities)
            ax.xaxis.set_major_locator(FixedLocator(list(fisher.FACTORS)))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.xaxis.set_major_formatter(ScalarFormatter())
            style.legend_above(ax, heading)
    return figure


def alt(frame: pd.DataFrame) -> str:
    """The figure for those who cannot see it: what is left of each quantity at the largest factor."""
    last = max(fisher.FACTORS)
    parts = []
    for heading, _, quantities in PANELS:
        for quantity in quantities:
            left = []
            for norm in fisher.NORMS:
                rows = frame[(frame["norm"] == norm) & (frame["quantity"] == quantity)]
                if not rows.empty:
                    mean = _mean(rows, "measured")
                    left.append(f"{style.look(norm).name} x{mean[last] / mean[1]:.2g}")
            parts.append(f"{heading} ({quantity}): {', '.join(left)}")
    return f"Line chart in four panels. {TITLE}. From s = 1 to s = {last}, measured: {'; '.join(parts)}."


def save(frame: pd.DataFrame, folder: Path) -> Sequence[Path]:
    """Writes ``fisher_scaling.{png,pdf,csv}``; returns the paths."""
    figure = draw(frame)
    # Twelve digits: more than any use needs, and fewer than differ with the order of a sum.
    csv = frame.to_csv(index=False, lineterminator="\n", float_format="%.12g")
    with style.suite_style():
        return [
            write_whole(folder / f"{NAME}.png", style.render(figure, "png")),
            write_whole(folder / f"{NAME}.pdf", style.render(figure, "pdf")),
            write_whole(folder / f"{NAME}.csv", csv),
        ]
