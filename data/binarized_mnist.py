"""Binarized MNIST for DRAW (§6.4): 50,000 training, 10,000 validation and 10,000 test images of 0 and 1.

The paper uses the fixed binarization of Larochelle & Murray. Its files are looked for in $LN_DATA and
data/raw, then at the published address. Where they cannot be had, MNIST's intensities are binarized once with
a fixed seed: the same digits and splits, but other nats, so every figure and comparison names this stand-in.

Shapes: N images, 784 = 28×28 pixels, row by row.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data import mnist
from data.amat import parse_amat
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
from data.parsed_cache import Arrays, cache_path, cached

log = logging.getLogger(__name__)

SPLITS = {"train": 50_000, "valid": 10_000, "test": 10_000}
FOLDERS = ("draw", "binarized_mnist", ".")
URL = "http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/"
# sha256 of the published files (unpacked); also in the catalogue of TensorFlow Datasets.
SHA256 = {
    "train": "ad693b29f94c14277b095f5238ddefbbdaaae0939789dd2f4f0205278cee3e4d",
    "valid": "1de3d397c40fe8eeb33dafd4099a1f665ec01e96d9be234aaeeac8a34930e2e2",
    "test": "e6687bfea3f820c174f33b7865140b2a2dd2930ef786f35d45795fc193b5ab2c",
}
# Fingerprint of the arrays in those files: tells them from other binarizations in the same layout.
FIXED = "7ed40026391379abb97ac150786392231f1f886665822c031b80a5e9265fe47f"
SEED = 20160721  # of the stand-in; the number is the date of the paper's first version


@dataclass(frozen=True)
class BinarizedMnist:
    """The three splits, uint8 arrays of 0 and 1."""

    train_N784: np.ndarray
    valid_N784: np.ndarray
    test_N784: np.ndarray
    source: Source


def file_name(split: str) -> str:
    """Published name of a split's file."""
    return f"binarized_mnist_{split}.amat"


def locate() -> list[Path] | None:
    """The files of train, valid and test, or None if there is none of them.

    Raises:
        DataError: only some are there. Falling back to a stand-in would hide the mistake.
    """
    return find_set([(file_name(s),) for s in SPLITS], FOLDERS)


def load_binarized_mnist(*, retry_url: bool = False) -> BinarizedMnist:
    """Binarized MNIST from the cache, local files, the published address, or as a stand-in from MNIST.

    Args:
        retry_url: ask the published address even if a stand-in made earlier is in the cache. A training start
            does not: it would wait for a dead server every time.

    Raises:
        DataError: a file is damaged or of another layout, or nothing can be had; the message says what to do.
    """
    paths = locate()
    if paths is None and (retry_url or not _stand_in_cached()):
        try:
            paths = fetch_fixed()
        except DataError as error:
            # A dead server is expected; a disk that cannot be written is not.
            level = logging.INFO if isinstance(error, FetchError) else logging.WARNING
            log.log(level, "fixed binarization not fetched (%s); using the stand-in", error)
    return _stand_in() if paths is None else _fixed(paths)


def get(say: Say) -> Source:
    """Gets the three files, or those that the stand-in is made from; see ``scripts.get_data``. Raises ``DataError``."""
    before, mnist_before = locate(), mnist.locate()
    names = [file_name(split) for split in SPLITS]
    try:
        source = load_binarized_mnist(retry_url=True).source
    except DataError:
        if not before:
            say_missing(say, [*names, *(f.name for f in mnist.FILES if not mnist_before)])
        raise
    if (now := locate()) is not None:
        say_files(say, before, now)
    else:
        say_files(say, mnist_before, mnist.locate())
        for name in names:
            say("stand-in", f"{name}: made from MNIST")
        say("optional", f"for the paper's own data {where_to_place()}")
    return source


def _fixed(paths: list[Path]) -> BinarizedMnist:
    def read() -> Arrays:
        files = zip(SPLITS.items(), paths, strict=True)
        return {f"{s}_N784": parse_amat(read_bytes(p), str(p), rows) for (s, rows), p in files}

    arrays, digest = cached("binarized_mnist", paths, read, bits=True)
    name = "binarized MNIST, Larochelle & Murray (fixed)"
    if digest != FIXED:
        folder = paths[0].parent
        log.warning("%s: not the published binarization (sha256 differs); treated as a stand-in", folder)
        source = Source(
            kind="stand-in", label="other", name="binarized MNIST, unknown binarization", fingerprint=digest,
            detail="local .amat files other than the published ones; nats are not comparable with the paper",
        )  # fmt: skip
    elif (origin := origin_of(paths[0].parent)) is not None:
        source = Source("mirror", "fixed", name, digest, f"the published files, fetched from {origin}")
    else:
        source = Source("original", "fixed", name, digest, "the published files, verified by sha256")
    return BinarizedMnist(**arrays, source=source)


def fetch_fixed(url: str = URL, *, wait_s: float = WAIT_S) -> list[Path]:
    """Downloads the published files into data/raw/draw: all three, or none.

    Raises:
        FetchError: unreachable, missing, or not the published files.
        DataError: the disk cannot be written.
    """
    target = raw_dir() / "draw"
    log.info("fetching the fixed binarization from %s", url)
    with staged(target) as staging:
        for split in SPLITS:
            name = file_name(split)
            download(url.rstrip("/") + "/" + name, staging / name, f"sha256:{SHA256[split]}", wait_s=wait_s)
        record_origin(staging, url)
    return [target / file_name(s) for s in SPLITS]


def where_to_place() -> str:
    """Instruction for placing the published files by hand."""
    names = ", ".join(f"{file_name(s)}[.gz]" for s in SPLITS)
    return f"place {names} in {raw_dir() / 'draw'} or $LN_DATA/draw"


def binarize(intensities_N784: np.ndarray, seed: int = SEED) -> np.ndarray:
    """One Bernoulli draw per pixel with probability intensity/255.

    Args:
        intensities_N784: uint8, 0…255.
        seed: same seed, same bits, on every machine.

    Returns:
        uint8 array of 0 and 1.
    """
    # RandomState, because numpy freezes its stream; Generator's may change between versions.
    random, bits_N784 = np.random.RandomState(seed), np.empty_like(intensities_N784)
    for first in range(0, len(bits_N784), 10_000):  # in parts: the draws take 8 bytes a pixel
        part = intensities_N784[first : first + 10_000]
        bits_N784[first : first + 10_000] = random.random_sample(part.shape) * 255.0 < part
    return bits_N784


_STAND_IN = "binarized_mnist-bernoulli"


def _stand_in_cached() -> bool:
    found = mnist.locate()
    return found is not None and cache_path(_STAND_IN, found).is_file()


def _stand_in() -> BinarizedMnist:
    paths = mnist.locate() or mnist.fetch_mnist()

    def build() -> Arrays:
        digits = mnist.load_mnist()
        bits = binarize(np.concatenate([digits.train_images_N784, digits.test_images_N784]))
        ends = np.cumsum(list(SPLITS.values()))[:-1]
        return {f"{s}_N784": part for s, part in zip(SPLITS, np.split(bits, ends), strict=True)}

    arrays, digest = cached(_STAND_IN, paths, build, version=f"seed={SEED}", bits=True)
    source = Source(
        kind="stand-in", label="bernoulli", name="binarized MNIST, seeded Bernoulli binarization (stand-in)",
        fingerprint=digest,
        detail=f"MNIST intensities re-binarized (Bernoulli, seed {SEED}) because the fixed files of "
               f"Larochelle & Murray were not found; nats are not comparable with the paper",
    )  # fmt: skip
    return BinarizedMnist(**arrays, source=source)
