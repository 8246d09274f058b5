"""The authors' GRU and LN-GRU parameters (order-embeddings, skip-thoughts) in our layers, and back.

Their archives are plain ``.npz`` files of arrays named ``<prefix>_<name>``, e.g. ``encoder_Wx``:

    W [I, 2H], U [H, 2H], b [2H]     gates r, u           Wx [I, H], Ux [H, H], bx [H]    candidate
    s1, b1 [2H]   LN of x W + b      s2, b2 [H]   LN of x Wx + bx
    s3, b3 [2H]   LN of h U          s4, b4 [H]   LN of h Ux           (s: gain, b: bias; absent without LN)

Their update is h' = u h + (1 - u) h~ with u after r: our z is their u, and every block keeps its place. Both biases
stand inside the input norms, which is our ``bias_mode="official"``. Other arrays of an archive (embeddings, image
encoder) belong to other prefixes and are left alone.

Shapes: I inputs, H units.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.rnn import GRU

Arrays = Mapping[str, NDArray[np.floating]]

PLAIN = ("W", "b", "U", "Wx", "Ux", "bx")
LN = tuple(f"{letter}{site}" for site in (1, 2, 3, 4) for letter in "bs")
# The LNs of each site: gates first, then candidate, as the groups of our norms stand.
SITES = {1: "norm_ih.groups.0", 2: "norm_ih.groups.1", 3: "norm_hh.groups.0", 4: "norm_hh.groups.1"}


def load_official(npz: str | Path | Arrays, prefix: str = "encoder", into: GRU | None = None) -> GRU:
    """Reads one GRU or LN-GRU of an archive of the authors.

    Args:
        npz: the file, or its arrays by name.
        prefix: of the layer's names: ``encoder``, ``decoder_f``, ``decoder_b``.
        into: a layer to fill; else one of the archive's sizes is made, with LN if the archive has LN.

    Returns:
        The filled layer.

    Raises:
        ValueError: no such layer, a name missing or too many, or a shape that does not fit; one line says which.
            ``into`` is unchanged then.
    """
    names, found, where = _read(npz, f"{prefix}_")
    if not any(f"{prefix}_{name}" in found for name in PLAIN):
        prefixes = sorted({name.removesuffix("_Ux") for name in names if name.endswith("_Ux")})
        raise ValueError(f"{where} has no GRU named '{prefix}'; it has: {', '.join(prefixes) or 'none'}")
    normed = any(f"{prefix}_{name}" in found for name in LN)
    wanted = PLAIN + LN if normed else PLAIN
    if missing := [f"{prefix}_{name}" for name in wanted if f"{prefix}_{name}" not in found]:
        raise ValueError(f"{where} lacks {', '.join(missing)}: it is no {'LN-' * normed}GRU of the authors")
    if extra := sorted(found.keys() - {f"{prefix}_{name}" for name in wanted}):
        raise ValueError(f"{where} has {', '.join(extra)}, which no GRU of the authors has: is '{prefix}' the prefix?")
    layer = _made(found[f"{prefix}_W"], normed, where, prefix) if into is None else into
    _check_layer(layer)
    if normed != (layer.cells[0].variant.norm.name == "ln"):  # type: ignore[union-attr]
        raise ValueError(
            f"{where} has a GRU {'with' if normed else 'without'} LN, the layer the other: change its norm"
        )
    for name, view in _to_official(layer).items():
        given, shape = found[f"{prefix}_{name}"], tuple(view.shape)
        if given.shape != shape:
            raise ValueError(f"{where}: {prefix}_{name} has shape {given.shape}, but must have {shape}")
        if given.dtype.kind != "f":
            raise ValueError(f"{where}: {prefix}_{name} has dtype {given.dtype}, but must hold floats")
        if not np.isfinite(given.astype(str(view.dtype).removeprefix("torch."))).all():
            raise ValueError(f"{where}: {prefix}_{name} holds values that are not finite in {view.dtype}")
    with torch.no_grad():
        for name, view in _to_official(layer).items():
            view.copy_(torch.from_numpy(found[f"{prefix}_{name}"].astype("float64")))
    return layer


def official_arrays(layer: GRU, prefix: str = "encoder") -> dict[str, NDArray[np.floating]]:
    """A layer's parameters under the authors' names, e.g. to be saved beside others with ``numpy.savez``.

    Raises:
        ValueError: a layer whose function theirs cannot express.
    """
    _check_layer(layer)
    return {
        f"{prefix}_{name}": value.detach().cpu().numpy().astype("float32", order="C")
        for name, value in _to_official(layer).items()
    }


def save_official(layer: GRU, npz: str | Path, prefix: str = "encoder") -> None:
    """Writes a layer as an archive of the authors; the file appears whole or not at all. Raises: see above."""
    arrays, path = official_arrays(layer, prefix), Path(npz)
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent}: there is no such folder; make it first")
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(partial, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _read(npz: str | Path | Arrays, start: str) -> tuple[list[str], dict[str, NDArray[np.floating]], str]:
    """All names, the arrays whose names begin with ``start``, and what to call their source. Nothing is unpickled."""
    if not isinstance(npz, str | Path):
        if not isinstance(npz, Mapping) or not all(isinstance(value, np.ndarray) for value in npz.values()):
            raise ValueError("npz must be a file's name, or NumPy arrays by name")
        return list(npz), {name: npz[name] for name in npz if name.startswith(start)}, "the given arrays"
    if not Path(npz).is_file():
        raise ValueError(f"{npz}: there is no such file, or it is a folder")
    damaged = f"{npz} is no .npz archive, or a damaged one: fetch it again"
    if not zipfile.is_zipfile(npz):
        raise ValueError(damaged)
    found = {}
    try:
        with np.load(npz, allow_pickle=False) as archive:
            names = list(archive.files)
            for name in (name for name in names if name.startswith(start)):
                try:
                    found[name] = archive[name]
                except ValueError as error:
                    raise ValueError(f"{npz}: {name} is no array of numbers, and nothing is unpickled here") from error
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(damaged) from error
    return names, found, str(npz)


def _made(W: NDArray[np.floating], normed: bool, where: str, prefix: str) -> GRU:
    """A layer of the sizes of W (I, 2H)."""
    if W.ndim != 2 or W.shape[1] % 2 or 0 in W.shape:
        raise ValueError(f"{where}: {prefix}_W has shape {W.shape}, but must have (inputs, 2 x units)")
    return GRU(W.shape[0], W.shape[1] // 2, norm="ln" if normed else "none", bias_mode="official")


def _check_layer(layer: GRU) -> None:
    """Raises ``ValueError`` unless the layer computes what the authors' does."""
    if not isinstance(layer, GRU):
        raise ValueError(f"{type(layer).__name__} is no GRU: the authors' archives of this kind hold GRUs alone")
    norm, _, mode, given = layer.cells[0].variant  # type: ignore[misc]
    obstacles = {
        f"num_layers={layer.num_layers}": layer.num_layers != 1,
        "bidirectional=True": layer.directions != 1,
        f"norm={norm.name}": norm.name not in ("none", "ln"),
        f"norm.eps={norm.eps}": norm.name == "ln" and norm.eps != 1e-5,
        f"norm.eps_mode={norm.eps_mode}": norm.name == "ln" and norm.eps_mode != "sqrt",
        "joint=True": given.joint,
        "per_gate=True": given.per_gate,
        f"bias_mode={mode}": mode != "official",
        f"initial_state={given.initial_state}": given.initial_state != "zeros",
    }
    if found := [key for key, holds in obstacles.items() if holds]:
        raise ValueError(
            f"the authors' GRU knows no {', '.join(found)}: use one layer of bias_mode=official, LN or none"
        )


def _to_official(layer: GRU) -> dict[str, Tensor]:
    """Views of the layer's parameters under the authors' names."""
    cell, units = layer.cells[0], layer.hidden_size
    (W, Wx), (U, Ux) = (cell.get_parameter(f"weight_{name}").split([2 * units, units]) for name in ("ih", "hh"))
    b, bx = cell.get_parameter("bias").split([2 * units, units])
    named = {"W": W.T, "b": b, "U": U.T, "Wx": Wx.T, "Ux": Ux.T, "bx": bx}
    if cell.variant.norm.name == "ln":  # type: ignore[union-attr]
        for site, ours in SITES.items():
            named[f"b{site}"] = cell.get_parameter(f"{ours}.bias")
            named[f"s{site}"] = cell.get_parameter(f"{ours}.gain")
    return named
