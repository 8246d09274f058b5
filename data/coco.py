"""MS COCO as Vendrov et al. published it for order-embeddings (§6.1): ``coco.zip``, its counts, and how it is fetched.

Shapes: N images of a split, D features.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from data.archive import judged, obtain, unpack
from data.features import check_features
from data.fetch import DataError, raw_dir, record_origin, staged
from data.order_layouts import SPLITS, Located, SplitData, from_folder, read

COCO_IMAGES = {"train": 113_287, "val": 5_000, "test": 5_000}
COCO_FEATURES = 4096
URL = "http://www.cs.toronto.edu/~vendrov/order/coco.zip"


def check_counts(found: Located, parts: Mapping[str, SplitData]) -> None:
    """Raises ``DataError`` if there are not as many images as COCO has."""
    counts = {split: len(parts[split].rows) for split in SPLITS}
    if counts != COCO_IMAGES:
        have, want = ("/".join(f"{n[split]:,}" for split in SPLITS) for n in (counts, COCO_IMAGES))
        raise DataError(
            f"{found.folder}: {have} images, MS COCO has {want}; complete it, or give the folder another name "
            "and that to task.dataset"
        )


def check_matrices(found: Located, parts: Mapping[str, SplitData]) -> list[bytes]:
    """Reads each feature matrix once. Returns what ``check_features`` does. Raises ``DataError``.

    Two splits with the same features are refused: what is found among images that were trained on tells nothing.
    """
    seen: dict[bytes, Path] = {}
    for path, matrix_ND in {found.splits[split].features: part.matrix_ND for split, part in parts.items()}.items():
        digest = check_features(path, matrix_ND)
        if digest in seen:
            raise DataError(f"{path}: the same features as {seen[digest].name}; a split needs images of its own")
        seen[digest] = path
    return list(seen)


def fetch_coco(url: str = URL) -> Path:
    """Downloads ``coco.zip`` (1 GB), going on where an earlier attempt stopped, unpacks and checks it.

    Returns:
        ``data/raw/order_embeddings/coco``, which appears only once all of it has been checked.

    Raises:
        FetchError: unreachable, broken off, no zip file, or what is in it is not COCO; such an archive is removed.
        DataError: the disk cannot be written.
    """
    target = raw_dir() / "order_embeddings" / "coco"
    archive = target.with_name("coco.zip")
    obtain(url, archive)
    with staged(target) as staging, judged(url, archive, staging):
        unpack(archive, staging, _member)
        found = from_folder(staging)
        parts = read(found)
        check_counts(found, parts)
        check_matrices(found, parts)
        record_origin(staging, url)
    archive.unlink()
    return target


def _member(name: PurePosixPath) -> PurePosixPath | None:
    """Where a member of ``coco.zip`` goes; whatever folders it is wrapped in."""
    if name.name in [f"{split}.txt" for split in SPLITS]:
        return PurePosixPath(name.name)
    if name.parts[-3:-1] == ("images", "10crop") and name.name in [f"{split}.npy" for split in SPLITS]:
        return PurePosixPath(*name.parts[-3:])
    return None
