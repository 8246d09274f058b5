"""Which kernel runs: a failed build falls back with one warning, and the setting means what it says."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from models.kernels import build, fused
from models.norm import Norm
from models.rnn import GRU, LSTM, GRUCell, LSTMCell
from tests.commands import ROOT

HAVE = pytest.mark.skipif(build.extension() is None, reason=f"no fused kernels: {build.failure()}")
LAYER = "import torch; from models.rnn import LSTM; x = torch.ones(2, 1, 3)\n"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("compiler", "why"), [("/bin/false", "/bin/false"), ("/no/such/compiler", "/no/such/compiler")]
)
def test_a_failed_build_falls_back_with_one_warning_and_fused_then_raises(
    compiler: str, why: str, tmp_path: Path
) -> None:
    code = LAYER + (
        "a, b = (LSTM(3, 4, norm='ln')(x)[0].shape for _ in range(2)); print(tuple(a))\n"
        "try: LSTM(3, 4, norm='ln', kernel='fused')(x)\n"
        "except RuntimeError as error: print(error)\n"
    )
    done = python(code, CXX=compiler, LN_KERNELS=str(tmp_path), TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    shape, error = done.stdout.splitlines()
    assert shape == "(2, 1, 4)"
    assert error.startswith("kernel=fused cannot run with this machine: ") and why in error
    assert error.endswith("; use kernel=auto or kernel=reference")
    warned = [line for line in done.stderr.splitlines() if "could not be built" in line]
    assert len(warned) == 1 and "the slower reference runs instead: " in warned[0] and why in warned[0]
    assert not list(tmp_path.rglob("*.so")) and not list(tmp_path.rglob("*.o"))


def test_a_folder_that_cannot_be_written_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LN_KERNELS", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(build, "_compile", lambda library: library.write_text("compiled"))
    library = build._built()
    assert library.parent.parent == tmp_path and library.read_text() == "compiled"
    assert library.parent.stat().st_mode & 0o077 == 0, "nobody else may put a library there"
    monkeypatch.setattr(build, "_folders", lambda: [tmp_path / "file"])
    with pytest.raises(RuntimeError, match="no folder to keep them in"):
        build._built()


def test_reference_never_builds(tmp_path: Path) -> None:
    code = LAYER + (
        "from models.rnn import GRU, LSTMCell\n"
        "LSTM(3, 4, norm='ln', kernel='reference')(x), GRU(3, 4, norm='ln', kernel='reference')(x)\n"
        "cell = LSTMCell(3, 4, norm='ln', kernel='reference'); cell.begin(1, 1)(x[0], cell.initial(1))\n"
        "LSTM(3, 4)(x)\n"  # nor does a layer without a norm
        "from models.kernels import build; print(build.extension.cache_info().misses)\n"
    )
    done = python(code, LN_KERNELS=str(tmp_path / "kernels"))
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout == "0\n" and not (tmp_path / "kernels").exists()


def chosen(layer: LSTM | GRU, dtype: torch.dtype = torch.float32) -> int:
    """How often the fused sequence was called."""
    with mock.patch("models.rnn.fused.sequence", wraps=fused.sequence) as called:
        layer(torch.randn(3, 2, 4, dtype=dtype))
    return called.call_count


@HAVE
def test_auto_takes_the_fused_kernel_where_there_is_one() -> None:
    assert chosen(LSTM(4, 5, norm="ln")) == chosen(GRU(4, 5, norm="ln")) == 1
    assert chosen(LSTM(4, 5, num_layers=2, norm="ln", sites="cell", bidirectional=True)) == 4
    assert chosen(LSTM(4, 5, gate_clip=1.0)) == 1
    others: list[tuple[type[LSTM] | type[GRU], dict[str, Any]]] = [
        (LSTM, {"norm": "ln", "kernel": "reference"}),
        (LSTM, {"norm": "ln", "joint": True}),
        (GRU, {"norm": "ln", "joint": True}),
        (LSTM, {"norm": Norm("ln", eps_mode="outside")}),
        (LSTM, {"norm": "bn", "max_steps": 3}),
        (LSTM, {}),
        (GRU, {"norm": "wn"}),
    ]
    for kind, switches in others:
        assert chosen(kind(4, 5, **switches)) == 0, switches
    assert chosen(LSTM(4, 5, norm="ln").double(), torch.float64) == 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert chosen(LSTM(4, 5, norm="ln")) == 0


@HAVE
def test_steps_take_the_fused_kernel_too() -> None:
    cases: list[dict[str, Any]] = [{"norm": "ln"}, {"norm": "none"}, {"norm": "wn"}, {"norm": "ln", "sites": "cell"}]
    for switches in cases:
        assert isinstance(LSTMCell(4, 5, **switches).begin(1, 1), fused.LSTMSteps)
        assert not isinstance(LSTMCell(4, 5, **switches, kernel="reference").begin(1, 1), fused.LSTMSteps)


def demanded(**switches: Any) -> LSTM:
    return LSTM(4, 5, norm="ln", kernel="fused", **switches)


@HAVE
def test_fused_says_why_it_cannot_run() -> None:
    x = torch.zeros(3, 2, 4)
    refusal = "^kernel=fused cannot run with {}; use kernel=auto or kernel=reference$"
    with pytest.raises(RuntimeError, match=refusal.format("parameters of torch.float64")):
        demanded().double()(x.double())
    with pytest.raises(RuntimeError, match=refusal.format("device meta")):
        demanded().to("meta")(x.to("meta"))
    with pytest.raises(RuntimeError, match=refusal.format("autocast")), torch.autocast("cpu", dtype=torch.bfloat16):
        demanded()(x)


IMPOSSIBLE: list[tuple[type[LSTM] | type[GRU], dict[str, Any], str]] = [
    (LSTM, {"norm": "bn", "max_steps": 2}, "norm=bn"),
    (GRU, {"norm": "bn", "max_steps": 2}, "norm=bn"),
    (LSTM, {"norm": "ln", "joint": True}, "joint=True"),
    (GRU, {"norm": "ln", "joint": True}, "joint=True"),
    (LSTM, {"norm": Norm("ln", eps_mode="var")}, "norm.eps_mode=var"),
]


@pytest.mark.parametrize(("kind", "switches", "why"), IMPOSSIBLE, ids=lambda v: v if isinstance(v, str) else "")
def test_fused_is_refused_at_construction_where_a_variant_has_none(
    kind: type[LSTM] | type[GRU], switches: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=f"^kernel=fused cannot run with {why}; use kernel=auto or kernel=reference$"):
        kind(4, 5, kernel="fused", **switches)
    kind(4, 5, **switches)


def test_fused_is_refused_where_there_are_no_steps() -> None:
    with pytest.raises(ValueError, match="^kernel=fused has no GRU step by step; use kernel=auto, or the sequence"):
        GRUCell(4, 5, norm="ln", kernel="fused").begin(2, 2)


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="^kernel=fast is unknown: use auto, reference, fused$"):
        GRU(4, 5, kernel="fast")


@HAVE
def test_a_compiled_layer_runs_the_reference() -> None:
    layer, x = LSTM(4, 5, norm="ln"), torch.randn(2, 2, 4)
    with mock.patch("models.rnn.fused.sequence", wraps=fused.sequence) as called:
        output, _ = torch.compile(layer, backend="eager")(x)
    assert called.call_count == 0
    torch.testing.assert_close(output, layer(x)[0], rtol=1e-5, atol=1e-6)
