"""``make bench TASK=rnn``, the memory a layer keeps, and the README's section on recurrent layers."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from models.kernels import build
from models.rnn import GRU, LSTM
from scripts import bench, bench_rnn, publish, readme_tables, timing
from tests.commands import ROOT, run

SMALL = {"LSTM small": (3, 2, 5, 7), "GRU small": (4, 3, 2, 6)}
NAMES = ["builtin", "none", "ln_fused", "ln_reference", "bn", "wn", "products"]
CLEAN, DIRTY = ({"commit": "0" * 40, "dirty": dirty} for dirty in (False, True))
needs_kernel = pytest.mark.skipif(
    not (os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")), reason="no C++ compiler"
)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call a turn, however short."""
    monkeypatch.setattr(timing, "TURN_SECONDS", 0.0)


def written(results: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return tuple(json.loads((results / "bench" / name).read_text()) for name in ("rnn.json", "rnn.meta.json"))


@needs_kernel
def test_rows_of_every_candidate_at_every_shape(results: Path, quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_rnn.bench(SMALL) == 0
    rows, about = written(results)
    assert [(row["layer"], row["candidate"]) for row in rows] == [(layer, name) for layer in SMALL for name in NAMES]
    for row in rows:
        assert list(row) == ["layer", "shape", "candidate", "ms", "ratio"]
        assert row["shape"] == list(SMALL[row["layer"]]) and row["ms"] > 0 and row["ratio"] > 0
        assert len(about["all_ms"][row["layer"]][row["candidate"]]) == 7
        assert row["ms"] == pytest.approx(statistics.median(about["all_ms"][row["layer"]][row["candidate"]]), abs=1e-3)
        assert row["ratio"] == 1 or row["candidate"] != "builtin"
    out = capsys.readouterr().out
    header, *_ = out.splitlines()
    assert f"torch {torch.__version__}" in header and "fused kernel: built for" in header and "thread" in header
    assert all(re.search(rf"^{name} +[\d.]+ +[\d.]+ +7$", out, re.MULTILINE) for name in NAMES)
    assert out.rstrip().endswith("rnn.json")


def test_without_a_compiler_the_header_says_so_and_the_candidate_is_left_out(
    results: Path, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "extension", lambda: None)
    monkeypatch.setattr(build, "failure", lambda: "no C++ compiler found")
    bench_rnn.bench({"LSTM small": SMALL["LSTM small"]})
    rows, _ = written(results)
    assert [row["candidate"] for row in rows] == [name for name in NAMES if name != "ln_fused"]
    assert "fused kernel: missing (no C++ compiler found)" in capsys.readouterr().out.splitlines()[0]


def test_the_ratio_is_taken_within_each_round() -> None:
    # The machine slowed down threefold in the last round; twice as long is still twice as long.
    seconds = {"builtin": [1.0, 1.0, 3.0], "none": [2.0, 4.0, 6.0], "bn": [5.0, 9.0, 15.0]}
    builtin, none, bn = bench_rnn.rows("LSTM small", (1, 1, 1, 1), seconds)
    assert bn["ratio"] == 5.0
    assert (builtin["ms"], builtin["ratio"], none["ms"], none["ratio"]) == (1e3, 1.0, 4e3, 2.0)


@needs_kernel
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_the_candidates_are_what_their_names_say(kind: str) -> None:
    passes = bench_rnn.candidates(kind, SMALL[f"{kind} small"])
    assert type(passes["builtin"].layer) is getattr(torch.nn, kind)
    ours = {name: passes[name].layer for name in NAMES[1:-1]}
    assert {type(layer) for layer in ours.values()} == {{"LSTM": LSTM, "GRU": GRU}[kind]}
    variants = {name: layer.cells[0].variant for name, layer in ours.items()}
    assert {name: (v.norm.name, v.given.kernel) for name, v in variants.items()} == {
        "none": ("none", "auto"), "ln_fused": ("ln", "fused"), "ln_reference": ("ln", "reference"),
        "bn": ("bn", "auto"), "wn": ("wn", "auto"),
    }  # fmt: skip
    for layer in [passes["builtin"].layer, *ours.values()]:
        assert (layer.input_size, layer.hidden_size) == SMALL[f"{kind} small"][2:]
    assert passes["bn"]() > 0
    assert all(p.grad is not None for p in ours["bn"].parameters()) and passes["bn"].x_TBI.grad is not None


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_the_floor_is_what_the_loop_multiplies(kind: str) -> None:
    steps, batch, inputs, units = shape = SMALL[f"{kind} small"]
    layer = {"LSTM": LSTM, "GRU": GRU}[kind](inputs, units, kernel="reference")
    h_LBH = torch.randn(1, batch, units, requires_grad=True)
    with timing.Recorder() as recorder:
        output_TBH, _ = layer(
            torch.randn(steps, batch, inputs, requires_grad=True),
            (h_LBH, torch.zeros(1, batch, units)) if kind == "LSTM" else h_LBH,
        )
        output_TBH.sum().backward()
    floor = bench_rnn.products(kind, shape)
    of_loop = timing.Floor(recorder.found, bench_rnn.CPU)
    assert floor.gflop == pytest.approx(of_loop.gflop) and floor.count == 2 * steps + 4
    assert of_loop.count == 3 * steps + 3, "the loop takes dU step by step"


def test_make_bench_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.ANALYSES == {"rnn": bench_rnn.bench}
    monkeypatch.setitem(bench.ANALYSES, "rnn", lambda: 7)
    monkeypatch.setattr(sys, "argv", ["bench", "TASK=rnn"])
    assert bench.main() == 7


@pytest.mark.parametrize(("git", "copied"), [(CLEAN, True), (DIRTY, False), (None, False)])
def test_rows_are_published_if_the_code_was_committed(
    git: dict[str, Any] | None, copied: bool, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = results / "bench"
    folder.mkdir()
    (folder / "rnn.json").write_text("[]\n")
    (folder / "rnn.meta.json").write_text(json.dumps({"git": git}))
    monkeypatch.setattr(sys, "argv", ["publish"])
    assert publish.main() == 1, "no runs"
    there = {path.name for path in (results / "published").glob("bench/*")}
    assert there == ({"rnn.json", "rnn.meta.json"} if copied else set())


def test_the_readme_table_is_made_of_published_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readme_tables, "PUBLISHED", tmp_path)
    assert readme_tables.recurrent() == "Nothing is published yet."
    seconds = {"builtin": [0.2] * 7, "ln_fused": [0.15] * 7, "bn": [0.5] * 7}
    rows = bench_rnn.rows("GRU small", (4, 3, 2, 6), seconds)
    about = {"hardware": {"cpu": "some CPU"}, "threads": 2, "torch": "9.9", "kernel": "built for AVX2"}
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "rnn.json").write_text(json.dumps(rows))
    (tmp_path / "bench" / "rnn.meta.json").write_text(json.dumps({**about, "all_ms": {"GRU small": seconds}}))
    head, _, row, _, below = readme_tables.recurrent().splitlines()
    assert head == "| layer | T, B, inputs, H | builtin, ms | `ln_fused` | `bn` |"
    assert row == "| GRU small | 4, 3, 2, 6 | 200 | 0.75 | 2.50 |"
    assert below == "some CPU, 2 threads, torch 9.9, fused kernel: built for AVX2; medians of 7 rounds."
    assert readme_tables.benches() == "Nothing is published yet.", "they are no task's"


def test_the_readme_lists_every_switch() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", readme_tables.switches(), re.MULTILINE)
    assert [name for name, _, _ in listed] == list(readme_tables.variant.Variant.__dataclass_fields__)
    assert dict((name, default) for name, default, _ in listed)["evaluation"] == "`population`"
    assert all(what[-1] == "." and "  " not in what for _, _, what in listed)
    assert "| torch     | W x + b_ih" in readme_tables.switches()


def test_the_readme_example_runs_on_the_folder_alone(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (example,) = (one for one in examples if "from models.rnn import" in one)
    assert len([line for line in example.splitlines() if line]) <= 15
    shutil.copytree(ROOT / "models", tmp_path / "models", ignore=shutil.ignore_patterns("__pycache__"))
    shapes = "print(*(tuple(t.shape) for t in (output_TBH, c_LBH, output_BTH, state.c_BH)))"
    (tmp_path / "example.py").write_text(f"{example}\n{shapes}\nprint(layer.cells[3].weight_hh.grad.isfinite().all())")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = run(sys.executable, "example.py", cwd=tmp_path, env=environment)
    assert done.stdout == "(20, 4, 32) (4, 4, 16) (4, 20, 16) (4, 16)\ntensor(True)\n", done.stderr


KEPT = """
import json, sys, torch
from models.rnn import GRU, LSTM
torch.set_num_threads(1)
T, B, I, H, PASSES = 20, 64, 32, 512, 2
x_TBI, kept, found = torch.randn(T, B, I, requires_grad=True), [], {}

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

for name, layer in {
    "nn.LSTM": torch.nn.LSTM(I, H), "nn.GRU": torch.nn.GRU(I, H),
    "LSTM": LSTM(I, H, norm="ln", kernel="fused"), "GRU": GRU(I, H, norm="ln", kernel="fused"),
    "LSTM cell": LSTM(I, H, norm="ln", sites="cell", kernel="fused"),
}.items():
    kept.append(layer(x_TBI))  # the first pass of a process also loads code
    before = resident()
    kept += [layer(x_TBI) for _ in range(PASSES)]
    found[name] = (resident() - before) / (4 * PASSES * T * B * H)
print(json.dumps(found))
"""


@needs_kernel
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_a_layer_keeps_at_most_twice_what_the_framework_keeps() -> None:
    # Small freed blocks would otherwise stay with the process, and be counted.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    done = run(sys.executable, "-c", KEPT, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)  # floats per step, case and unit
    assert found["LSTM"] <= 2 * found["nn.LSTM"] and found["GRU"] <= 2 * found["nn.GRU"]
    # What the README and models/kernels/fused.py say; the statistics and the last state add a little.
    documented = {"nn.LSTM": 6, "nn.GRU": 8, "LSTM": 10, "GRU": 7, "LSTM cell": 6}
    assert {name: round(value, 1) for name, value in found.items()} == pytest.approx(documented, abs=0.5)
