"""The IDX files of MNIST: big-endian header (magic, sizes), then one byte per value.

Magic 2051 is a 3-d array of unsigned bytes (images), 2049 a 1-d one (labels). torchvision decodes them; the
checks here come first, because its own failures on a wrong file are assertions without a word.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import numpy as np

from data.fetch import DataError, is_gzip, read_bytes

IMAGES, LABELS = 2051, 2049
_KIND = {IMAGES: "images", LABELS: "labels"}


def encode_idx(array: np.ndarray) -> bytes:
    """IDX file content of a uint8 array (images N×28×28, or labels N): byte for byte the official layout."""
    return struct.pack(f">{1 + array.ndim}I", 2048 + array.ndim, *array.shape) + array.tobytes()


def check_idx(data: bytes, where: str | Path, shape: tuple[int, ...]) -> None:
    """Checks header and length against the expected shape.

    Raises:
        DataError: wrong magic number, wrong sizes, too few or too many bytes.
    """
    magic = 2048 + len(shape)
    expected = f"expected an IDX file of {_KIND[magic]}, magic number {magic}"
    if len(data) < 4:
        raise DataError(f"{where}: truncated, {len(data)} bytes; {expected}")
    if (found := struct.unpack(">I", data[:4])[0]) != magic:
        hint = f" (that is a file of {_KIND[found]})" if found in _KIND else ""
        raise DataError(f"{where}: wrong magic number {found}{hint}; {expected}; replace the file")
    header = 4 * (1 + len(shape))
    if len(data) < header:
        raise DataError(f"{where}: truncated inside its header; replace it with a good copy")
    sizes = struct.unpack(f">{len(shape)}I", data[4:header])
    if sizes != shape:
        got, want = ("×".join(map(str, s)) for s in (sizes, shape))
        raise DataError(f"{where}: holds {got} {_KIND[magic]}, expected {want}; replace the file")
    if (size := header + int(np.prod(shape))) != len(data):
        word = "truncated" if len(data) < size else "too long"
        raise DataError(f"{where}: {word}, {len(data):,} bytes instead of {size:,}; replace it")


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Reads an IDX file, plain or gzip.

    Args:
        path: the file.
        shape: expected sizes, (N, 28, 28) for images and (N,) for labels.

    Returns:
        uint8 array of that shape.

    Raises:
        DataError: unreadable, or not the expected content.
    """
    from torchvision.datasets.mnist import read_image_file, read_label_file

    data = read_bytes(path)
    check_idx(data, path, shape)
    read = read_image_file if len(shape) == 3 else read_label_file
    if not is_gzip(path):
        return read(str(path)).numpy().astype(np.uint8)
    try:  # torchvision opens a path and does not unpack
        with tempfile.NamedTemporaryFile() as plain:
            plain.write(data)
            plain.flush()
            return read(plain.name).numpy().astype(np.uint8)
    except OSError as error:
        raise DataError(f"{path}: cannot be unpacked to {tempfile.gettempdir()} ({error.strerror})") from None
