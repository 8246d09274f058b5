"""The authors' GRU archives: read, computed with as their code does, written, and refused where they do not fit."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from models.norm import Norm
from models.official import load_official, official_arrays, save_official
from models.rnn import GRU, LSTM
from tests.rnncases import random, scramble

T, B, INPUTS, H = 4, 3, 5, 6
Array = NDArray[Any]
SHAPES = {"W": (INPUTS, 2 * H), "b": (2 * H,), "U": (H, 2 * H), "Wx": (INPUTS, H), "Ux": (H, H), "bx": (H,)}
LN_SHAPES = {f"{letter}{site}": (2 * H if site % 2 else H,) for site in range(1, 5) for letter in "bs"}


def archive(normed: bool, prefix: str = "encoder", seed: int = 0, dtype: str = "float32") -> dict[str, Array]:
    """Arrays in the authors' layout, each number different, and some of other parts of their models."""
    drawn = np.random.default_rng(seed)
    shapes = SHAPES | (LN_SHAPES if normed else {})
    arrays = {f"{prefix}_{name}": drawn.normal(0.2, 0.7, shape).astype(dtype) for name, shape in shapes.items()}
    return {"Wemb": drawn.normal(size=(9, INPUTS)), "ff_image_W": drawn.normal(size=(7, H)), **arrays}


def normalise(a: Array, b: Array, s: Array) -> Array:
    return s * (a - a.mean(1)[:, None]) / np.sqrt(a.var(1)[:, None] + 1e-5) + b


def forward(p: dict[str, Array], x_TBI: Array, h: Array, mask_TB: Array, prefix: str = "encoder") -> Array:
    """The authors' step in float64: r, u = sigmoid(...), h~ = tanh(...), h' = u h + (1 - u) h~, then the mask."""
    q = {name.removeprefix(f"{prefix}_"): value.astype("float64") for name, value in p.items()}
    states = []
    for x, m in zip(x_TBI, mask_TB, strict=True):
        below, below_x, above, above_x = x @ q["W"] + q["b"], x @ q["Wx"] + q["bx"], h @ q["U"], h @ q["Ux"]
        if "s1" in q:
            below, below_x = normalise(below, q["b1"], q["s1"]), normalise(below_x, q["b2"], q["s2"])
            above, above_x = normalise(above, q["b3"], q["s3"]), normalise(above_x, q["b4"], q["s4"])
        gates = 1 / (1 + np.exp(-(below + above)))
        r, u = gates[:, :H], gates[:, H:]
        new = u * h + (1 - u) * np.tanh(above_x * r + below_x)
        h = m[:, None] * new + (1 - m)[:, None] * h
        states.append(h)
    return np.stack(states)


@pytest.mark.parametrize("normed", [True, False], ids=["LN-GRU", "GRU"])
@pytest.mark.parametrize("prefix", ["encoder", "decoder_f"])
def test_an_archive_computes_what_the_authors_code_does(normed: bool, prefix: str, tmp_path: Path) -> None:
    arrays = archive(normed, prefix) | archive(normed, "decoder_b", seed=1)
    np.savez(tmp_path / "model.npz", **arrays)  # type: ignore[arg-type]
    layer = load_official(tmp_path / "model.npz", prefix)
    assert (layer.input_size, layer.hidden_size) == (INPUTS, H)
    x, h, lengths = random(T, B, INPUTS), random(1, B, H, seed=7), torch.tensor([2, 4, 3])
    mask = (np.arange(T)[:, None] < lengths.numpy()).astype(float)
    wanted = forward(
        {k: v for k, v in arrays.items() if k.startswith(f"{prefix}_")}, x.numpy(), h[0].numpy(), mask, prefix
    )
    output, last = layer.double()(x, h, lengths)
    np.testing.assert_allclose(output.detach(), wanted * mask[..., None], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(last[0].detach(), wanted[-1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("normed", [True, False], ids=["LN-GRU", "GRU"])
def test_there_and_back_every_number_is_the_same(normed: bool, tmp_path: Path) -> None:
    arrays = archive(normed)
    save_official(load_official(arrays), tmp_path / "ours.npz")
    with np.load(tmp_path / "ours.npz", allow_pickle=False) as written:
        assert set(written.files) == {name for name in arrays if name.startswith("encoder_")}
        for name in written.files:
            assert written[name].dtype == np.float32 and written[name].flags.c_contiguous
            np.testing.assert_array_equal(written[name], arrays[name])
    assert [path.name for path in tmp_path.iterdir()] == ["ours.npz"]


def test_back_and_there_a_layer_is_the_same(tmp_path: Path) -> None:
    layer = GRU(INPUTS, H, norm="ln", bias_mode="official")
    scramble(layer)
    save_official(layer, tmp_path / "ours.npz", "decoder_b")
    other = load_official(tmp_path / "ours.npz", "decoder_b", into=GRU(INPUTS, H, norm="ln", bias_mode="official"))
    for (name, ours), (_, theirs) in zip(layer.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    assert len(official_arrays(layer)) == 14 and len(list(layer.parameters())) == 11


def test_a_layer_is_filled_in_its_own_dtype() -> None:
    layer = GRU(INPUTS, H, norm="ln").double()
    assert load_official(archive(True, dtype="float64"), into=layer) is layer
    np.testing.assert_array_equal(layer.cells[0].get_parameter("bias")[2 * H :].detach(),
                                  archive(True, dtype="float64")["encoder_bx"])  # fmt: skip
    assert all(p.dtype == torch.float64 and p.requires_grad for p in layer.parameters())


def without(name: str) -> dict[str, Array]:
    return {key: value for key, value in archive(True).items() if key != name}


def having(**more: Any) -> dict[str, Array]:
    return archive(True) | {f"encoder_{name}": np.asarray(value) for name, value in more.items()}


GIVEN = "the given arrays"
BAD: dict[str, tuple[dict[str, Array], str]] = {
    "prefix": (archive(True, "decoder_f"), f"{GIVEN} has no GRU named 'encoder'; it has: decoder_f"),
    "nothing": ({}, f"{GIVEN} has no GRU named 'encoder'; it has: none"),
    "missing": (without("encoder_Ux"), f"{GIVEN} lacks encoder_Ux: it is no LN-GRU of the authors"),
    "missing of LN": (without("encoder_s3"), f"{GIVEN} lacks encoder_s3: it is no LN-GRU of the authors"),
    "extra": (having(h0=np.zeros(H)),
        f"{GIVEN} has encoder_h0, which no GRU of the authors has: is 'encoder' the prefix?"),
    "shape": (having(b4=np.zeros(2 * H)), f"{GIVEN}: encoder_b4 has shape (12,), but must have (6,)"),
    "turned": (having(U=np.zeros((2 * H, H))), f"{GIVEN}: encoder_U has shape (12, 6), but must have (6, 12)"),
    "odd": (having(W=np.zeros((INPUTS, 7))), f"{GIVEN}: encoder_W has shape (5, 7), but must have (inputs, 2 x units)"),
    "flat": (having(W=np.zeros(7)), f"{GIVEN}: encoder_W has shape (7,), but must have (inputs, 2 x units)"),
    "integers": (having(bx=np.zeros(H, int)), f"{GIVEN}: encoder_bx has dtype int64, but must hold floats"),
    "NaN": (having(bx=np.full(H, np.nan)), f"{GIVEN}: encoder_bx holds values that are not finite in torch.float32"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_archives_that_do_not_fit_are_refused_in_one_line(what: str) -> None:
    arrays, message = BAD[what]
    with pytest.raises(ValueError) as error:
        load_official(arrays)
    assert str(error.value) == message


def test_a_refused_archive_leaves_the_layer_as_it_was() -> None:
    layer = GRU(INPUTS, H, norm="ln")
    before = [p.clone() for p in layer.parameters()]
    for arrays, message in (
        (having(b4=np.zeros(1)), "encoder_b4 has shape"),
        (archive(False), "has a GRU without LN, the layer the other: change its norm"),
    ):
        with pytest.raises(ValueError, match=message):
            load_official(arrays, into=layer)
    with pytest.raises(ValueError, match=r"encoder_W has shape \(5, 12\), but must have \(4, 12\)"):
        load_official(archive(True), into=GRU(4, H, norm="ln"))
    assert all(torch.equal(a, b) for a, b in zip(before, layer.parameters(), strict=True))


@pytest.mark.parametrize(
    ("why", "switches"),
    [
        ("num_layers=2", {"norm": "ln", "num_layers": 2}),
        ("bidirectional=True", {"norm": "ln", "bidirectional": True}),
        ("norm=wn", {"norm": "wn", "bias_mode": "official"}),
        ("norm=bn, bias_mode=minimal", {"norm": "bn", "max_steps": 2}),
        ("norm.eps=0.1, norm.eps_mode=var", {"norm": Norm("ln", eps=0.1, eps_mode="var")}),
        ("joint=True", {"norm": "ln", "joint": True}),
        ("per_gate=True", {"norm": "ln", "per_gate": True}),
        ("bias_mode=torch", {}),
        ("bias_mode=without", {"norm": "ln", "bias": False}),
        ("initial_state=learned", {"norm": "ln", "initial_state": "learned"}),
    ],
)
def test_layers_the_authors_have_not_are_refused(why: str, switches: dict[str, Any], tmp_path: Path) -> None:
    layer = GRU(INPUTS, H, **switches)
    for call in (lambda: save_official(layer, tmp_path / "a.npz"), lambda: load_official(archive(True), into=layer)):
        with pytest.raises(ValueError, match=f"^the authors' GRU knows no {why}: use one layer of bias_mode=official"):
            call()
    assert not list(tmp_path.iterdir())


def test_an_lstm_is_refused() -> None:
    with pytest.raises(ValueError, match="^LSTM is no GRU"):
        official_arrays(LSTM(INPUTS, H, norm="ln"))  # type: ignore[arg-type]


class Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was loaded",)


def test_no_pickle_is_ever_loaded(tmp_path: Path) -> None:
    # skip-thoughts' archives carry a history of errors, which may be an array of objects
    bombs = np.array([Bomb(), Bomb()], dtype=object)
    np.savez(tmp_path / "model.npz", history_errs=bombs, **archive(True))  # type: ignore[arg-type]
    load_official(tmp_path / "model.npz")
    np.savez(tmp_path / "bad.npz", **(archive(True) | {"encoder_b": bombs}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bad.npz: encoder_b is no array of numbers, and nothing is unpickled here$"):
        load_official(tmp_path / "bad.npz")
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="pickle.npz is no .npz archive, or a damaged one: fetch it again$"):
        load_official(tmp_path / "pickle.npz")


def test_files_that_cannot_be_read_are_refused_in_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", **archive(True))  # type: ignore[arg-type]
    whole = (tmp_path / "good.npz").read_bytes()
    for name, content in {"empty": b"", "text": b"not an archive", "cut": whole[: len(whole) // 2]}.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(ValueError) as error:
            load_official(tmp_path / f"{name}.npz")
        assert str(error.value) == f"{tmp_path / name}.npz is no .npz archive, or a damaged one: fetch it again"
    spoilt = bytearray(whole)
    spoilt[whole.index(b"encoder_U.npy") + 200] ^= 255  # one byte of an array
    (tmp_path / "spoilt.npz").write_bytes(spoilt)
    with pytest.raises(ValueError, match="spoilt.npz is no .npz archive, or a damaged one: fetch it again$"):
        load_official(tmp_path / "spoilt.npz")
    np.save(tmp_path / "single.npy", np.zeros(3))
    with pytest.raises(ValueError, match="single.npy is no .npz archive, or a damaged one: fetch it again$"):
        load_official(tmp_path / "single.npy")
    with pytest.raises(ValueError, match="nowhere.npz: there is no such file, or it is a folder$"):
        load_official(tmp_path / "nowhere.npz")
