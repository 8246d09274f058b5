"""Image features on disk: ``.npy`` matrices that are mapped into memory and never copied whole.

Shapes: N images, D features.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from data.fetch import DataError

MAGIC = b"\x93NUMPY"
CHUNK = 4096  # rows read at a time: 64 MB at 4096 features
SHORTEST = 1e-12  # length below which float32 has no direction left, as in ``torch.nn.functional.normalize``


def map_features(path: Path) -> np.ndarray:
    """Maps a feature matrix (N, D) without reading it.

    Raises:
        DataError: no such file, not an ``.npy`` array, cut off, of Python objects, of another type or shape, or saved
            column by column.
    """
    try:
        with open(path, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise DataError(f"{path}: is not an .npy array; save the features with numpy.save, as float32")
        matrix_ND = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the file") from None
    except (ValueError, EOFError, SyntaxError) as error:
        text = str(error)
        if "object" in text.lower():
            raise DataError(
                f"{path}: holds Python objects, which could run any code when read; save a plain float32 array"
            ) from None
        why = "is cut off" if "mmap length" in text else f"damaged .npy array ({text.splitlines()[0]})"
        raise DataError(f"{path}: {why}; replace the file") from None
    if matrix_ND.ndim != 2 or 0 in matrix_ND.shape:
        raise DataError(f"{path}: has the shape {matrix_ND.shape}, not (images, features); save one row an image")
    if matrix_ND.dtype.kind != "f" or matrix_ND.dtype.itemsize not in (4, 8):
        raise DataError(f"{path}: holds {matrix_ND.dtype.name}; features must be float32 (or float64)")
    if not matrix_ND.flags.c_contiguous:  # a batch would be gathered from all over the file, a page for each number
        raise DataError(
            f"{path}: is saved column by column (Fortran order), so that no image's row can be read alone; "
            "save numpy.ascontiguousarray of it"
        )
    return matrix_ND


def select_rows(path: Path, matrix_ND: np.ndarray, images: int, captions: Path) -> np.ndarray:
    """Which row each of the ``images`` images has that the file ``captions`` describes.

    Some published copies repeat each image's row for its five captions; then every fifth counts.

    Raises:
        DataError: another number of rows, or five rows of an image that differ.
    """
    rows = len(matrix_ND)
    if rows == images:
        return np.arange(images)
    if rows != 5 * images:
        hint = "; it looks transposed" if matrix_ND.shape[1] in (images, 5 * images) else ""
        raise DataError(
            f"{path}: {rows:,} rows for the {images:,} images of {captions.name}, five consecutive lines each{hint}; "
            "both must be of the same images"
        )
    for start in range(0, images, CHUNK // 5):
        part = matrix_ND[5 * start : 5 * min(start + CHUNK // 5, images)].reshape(-1, 5, matrix_ND.shape[1])
        differs = (part != part[:, :1]).any((1, 2))
        if differs.any():
            row = 5 * (start + int(differs.argmax()))
            raise DataError(
                f"{path}: as many rows as captions, but rows {row} to {row + 4} (from 0) differ; save one row an image"
            )
    return np.arange(images) * 5


def check_features(path: Path, matrix_ND: np.ndarray) -> bytes:
    """Reads the whole matrix once, a chunk at a time. Returns the sha256 of its type, shape and content.

    Raises:
        DataError: a row with a number that is not finite, of zeros only, or whose length float32 cannot hold; names the
            first, counted from 0.
    """
    digest = hashlib.sha256(f"{matrix_ND.dtype.str}:{matrix_ND.shape}|".encode())
    for start in range(0, len(matrix_ND), CHUNK):
        part = np.ascontiguousarray(matrix_ND[start : start + CHUNK])
        digest.update(part.data)
        with np.errstate(over="ignore", under="ignore"):
            single = part.astype(np.float32, copy=False)  # what the model is given
            length_n = np.sqrt(np.einsum("nd,nd->n", single, single))
        good = np.isfinite(length_n) & (length_n >= SHORTEST)
        if not good.all():
            row = int(good.argmin())
            raise DataError(f"{path}: row {start + row} (from 0) {_fault(part[row])}")
    return digest.digest()


def _fault(row_D: np.ndarray) -> str:
    """What is wrong with an image's features, and what to do."""
    if not np.isfinite(row_D).all():
        return "holds a number that is not finite; extract the features anew"
    if not row_D.any():
        return "is all zeros, which has no direction; extract it anew"
    return f"has values up to {np.abs(row_D).max():.1e}, whose squares float32 cannot add up; scale the features"
