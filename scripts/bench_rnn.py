"""Times the recurrent layers at the published shapes, beside the framework's own.

    make bench TASK=rnn

Forward and backward of one layer, on the CPU with all its cores; the candidates take turns in one process:

    builtin        torch.nn.LSTM or torch.nn.GRU, which know no norm
    none           ours without a norm
    ln_fused       ours with LN, the fused kernel; left out where it cannot be built
    ln_reference   ours with LN, the loop
    bn, wn         ours with BN (statistics of its own for every step) and WN
    products       the floor: the matrix products of the layer without a norm, and nothing else, each by the faster
                   of the framework's two libraries (torch.nn.GRU uses one, torch.nn.LSTM the other); ln_fused can be
                   below it, for it packs U once and multiplies with code of its own

Writes two files: ``results/bench/rnn.json``, a list of rows ``{layer, shape, candidate, ms, ratio}`` with shape
[T, B, inputs, H], ms the median over its rounds and ratio the median of what each round says about candidate and
builtin; and ``rnn.meta.json``, which says on what machine and code, and every round's time.

Shapes: T time, B batch, I inputs, H units, G gates x units (4H or 3H), N = T B.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from data.processors import cores
from experiments.analysis.collect import results_dir
from experiments.analysis.output import short_path, write_whole
from experiments.cell import git_state, hardware
from experiments.runs import now
from models.kernels import build
from models.rnn import GRU, LSTM
from scripts.timing import Floor, libraries, turns

CPU = torch.device("cpu")
Shape = tuple[int, int, int, int]
# The paper's layers; a label starts with the kind of layer.
SHAPES: dict[str, Shape] = {
    "LSTM reader": (300, 64, 240, 240),
    "LSTM handwriting": (700, 8, 460, 400),
    "LSTM draw": (64, 128, 356, 256),
    "GRU order": (15, 128, 300, 1024),
    "GRU skip": (30, 64, 620, 2400),
}
WARM_UP = 1  # a round with every candidate


class Pass:
    """Forward and backward of one layer on the same batch each time."""

    def __init__(self, layer: nn.Module, x_TBI: Tensor, dout_TBH: Tensor) -> None:
        self.layer, self.x_TBI, self.dout_TBH = layer, x_TBI.clone().requires_grad_(), dout_TBH

    def __call__(self) -> float:
        """Returns seconds."""
        self.layer.zero_grad()
        self.x_TBI.grad = None
        start = time.perf_counter()
        output_TBH, _ = self.layer(self.x_TBI)
        output_TBH.backward(self.dout_TBH)
        return time.perf_counter() - start


def products(kind: str, shape: Shape) -> Floor:
    """What any layer of this shape must multiply: W x, dx, dW and dU at once, h U and dh step by step."""
    steps, batch, inputs, units = shape
    rows, gates = steps * batch, {"LSTM": 4, "GRU": 3}[kind] * units
    x_NI, h_NH, dz_NG = torch.empty(rows, inputs), torch.empty(rows, units), torch.empty(rows, gates)
    w_GI, u_GH = torch.empty(gates, inputs), torch.empty(gates, units)
    forward = [(x_NI, w_GI.t()), *[(h_NH[:batch], u_GH.t())] * steps]
    backward = [*[(dz_NG[:batch], u_GH)] * steps, (dz_NG.t(), h_NH), (dz_NG.t(), x_NI), (dz_NG, w_GI)]
    return Floor([*forward, *backward], CPU, by=libraries())


def candidates(kind: str, shape: Shape) -> dict[str, Pass | Floor]:
    """What takes turns at one shape."""
    steps, batch, inputs, units = shape
    ours: Any = {"LSTM": LSTM, "GRU": GRU}[kind]
    layers = {"builtin": getattr(nn, kind)(inputs, units), "none": ours(inputs, units)}
    if build.extension() is not None:
        layers["ln_fused"] = ours(inputs, units, norm="ln", kernel="fused")
    layers["ln_reference"] = ours(inputs, units, norm="ln", kernel="reference")
    layers["bn"] = ours(inputs, units, norm="bn", max_steps=steps)
    layers["wn"] = ours(inputs, units, norm="wn")
    x_TBI, dout_TBH = torch.randn(steps, batch, inputs), torch.randn(steps, batch, units)
    passes = {name: Pass(layer, x_TBI, dout_TBH) for name, layer in layers.items()}
    return {**passes, "products": products(kind, shape)}


def rows(layer: str, shape: Shape, seconds: Mapping[str, list[float]]) -> list[dict[str, Any]]:
    """The rows of one shape."""
    result = []
    for candidate, taken in seconds.items():
        result.append(
            {
                "layer": layer,
                "shape": list(shape),
                "candidate": candidate,
                "ms": 1e3 * statistics.median(taken),
                "ratio": statistics.median(a / b for a, b in zip(taken, seconds["builtin"], strict=True)),
            }
        )
    return result


def kernel() -> str:
    """Which kernel ``ln_fused`` is, or why there is none."""
    if build.extension() is None:
        return f"missing ({build.failure()})"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"built for {capability if capability in build.VECTORS else 'any processor'}"


def header(about: Mapping[str, Any]) -> str:
    """On what all was measured, in one line."""
    machine, threads = about["hardware"]["cpu"], about["threads"]
    many = f"{threads} thread{'s' * (threads > 1)}"
    return f"{machine}, {many}, torch {about['torch']}, fused kernel: {about['kernel']}"


def show(found: list[dict[str, Any]], seconds: Mapping[str, list[float]]) -> None:
    """Prints the rows of one shape, medians over the rounds."""
    shape = ", ".join(map(str, found[0]["shape"]))
    print(f"\n{found[0]['layer']} (T, B, inputs, H = {shape})")
    print(f"{'':<14}{'ms':>10}{'x builtin':>12}{'rounds':>8}")
    for row in found:
        rounds = len(seconds[row["candidate"]])
        print(f"{row['candidate']:<14}{row['ms']:>10.1f}{row['ratio']:>12.2f}{rounds:>8}", flush=True)


def bench(shapes: Mapping[str, Shape] = SHAPES) -> int:
    """Measures, prints and writes; ``shapes``: others than the paper's, for a quick look. Returns 0."""
    torch.set_num_threads(cores())
    torch.set_flush_denormal(True)  # as in training
    torch.manual_seed(0)
    about: dict[str, Any] = {
        "device": str(CPU),
        "hardware": hardware(CPU),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "kernel": kernel(),
        "git": git_state(),
        "all_ms": {},
    }
    print(header(about), flush=True)
    found = []
    for layer, shape in shapes.items():
        seconds = turns(candidates(layer.split()[0], shape), warm_up=WARM_UP, seconds_at_least=0.0)
        found += rows(layer, shape, seconds)
        about["all_ms"][layer] = {name: [round(1e3 * s, 3) for s in taken] for name, taken in seconds.items()}
        show(found[-len(seconds) :], seconds)
        gc.collect()  # the next shape starts with the memory of this one
    about["measured"] = now()
    folder = results_dir() / "bench"
    write_whole(folder / "rnn.meta.json", json.dumps(about, indent=1) + "\n")
    lines = ",\n".join(json.dumps(row) for row in found)
    path = write_whole(folder / "rnn.json", f"[\n{lines}\n]\n")
    print(f"\n{short_path(path)}")
    return 0
