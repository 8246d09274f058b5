"""Images and captions for order-embeddings (§6.1): MS COCO as published, another data set in a published layout, or
generated scenes where there is none.

The paper's data is ``coco.zip`` of Vendrov et al. (113,287/5,000/5,000 images, VGG19 features). What is looked for, and
where, is in ``data.order_layouts``; anything but COCO with these features counts as a stand-in, since no number of the
paper can be held against it.

Shapes: N images of a split, D features.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from data import mnist, scenes
from data.archive import download_large, unpack
from data.captions import FIRST_WORD, PER_IMAGE, UNKNOWN, Caption, Encoded, build_vocabulary, encode, tokenise
from data.features import check_features, map_features
from data.fetch import DataError, FetchError, Say, Source, origin_of, raw_dir, record_origin, staged
from data.order_layouts import ALIASES, SPLITS, Located, from_folder, locate, read
from data.parsed_cache import Arrays, cached

log = logging.getLogger(__name__)

COCO_IMAGES = {"train": 113_287, "val": 5_000, "test": 5_000}
COCO_FEATURES = 4096
URL = "http://www.cs.toronto.edu/~vendrov/order/coco.zip"
NAMES = {"coco": "MS COCO", "flickr8k": "Flickr8k", "flickr30k": "Flickr30k"}
SCENES = "scenes"
DEV_IMAGES = 1000  # of validation: those whose captions count for the vocabulary, as in the authors' code


@dataclass(frozen=True)
class Split:
    """Captions and features of one split.

    Attributes:
        captions: as word ids; captions 5n … 5n+4 belong to image n.
        matrix_MD: features on disk, mapped; of all splits, in one layout.
        rows: the row of each image in it.
        scenes: for generated scenes, what they were painted from.
    """

    captions: Encoded
    matrix_MD: np.ndarray
    rows: np.ndarray
    scenes: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def features(self, images: np.ndarray) -> np.ndarray:
        """Features ``(len(images), D)`` of some images, float32, read from disk."""
        rows = self.rows[images]
        order = np.argsort(rows, kind="stable")  # a disk is read forwards
        found_BD = np.empty((len(rows), self.matrix_MD.shape[1]), dtype=np.float32)
        found_BD[order] = self.matrix_MD[rows[order]]
        return found_BD


@dataclass(frozen=True)
class OrderEmbeddingData:
    """The three splits, the vocabulary (word n has the id ``FIRST_WORD`` + n), and where it came from."""

    splits: dict[str, Split]
    vocabulary: list[str]
    source: Source
    tokenised: bool  # words are separated by blanks already

    def caption(self, split: str, number: int) -> str:
        """Caption ``number`` of a split, as text."""
        words, starts = self.splits[split].captions
        names = {UNKNOWN: "<unknown>"}
        return " ".join(
            names.get(w) or self.vocabulary[w - FIRST_WORD] for w in words[starts[number] : starts[number + 1]].tolist()
        )

    def query(self, text: str) -> Encoded:
        """A sentence as word ids. Raises ``DataError`` if it has no word that is known."""
        plain = encode([text.split()], self.vocabulary)
        small = encode([tokenise(text)], self.vocabulary)
        best = min((plain, small), key=lambda one: np.mean(one.words == UNKNOWN) if len(one.words) else 1.0)
        if not len(best.words) or (best.words == UNKNOWN).all():
            some = ", ".join(self.vocabulary[:12])
            raise DataError(
                f"query {text!r}: no word of it is among the {len(self.vocabulary):,} known ones ({some} …)"
            )
        return best


def load_order_embeddings(dataset: str = "coco", features: str | None = None) -> OrderEmbeddingData:
    """The data set ``dataset``, or the generated scenes if it is a published one that is not here.

    Args:
        dataset: ``scenes``, ``coco``, ``flickr8k``, ``flickr30k``, or the name of a folder in a published layout.
        features: see ``data.order_layouts.locate``.

    Raises:
        DataError: a file is damaged or of another layout; names the file, the line or row, and the remedy.
    """
    if dataset == SCENES:
        return _scenes("generated in place of photographs")
    found = locate(dataset, features)
    if found is not None:
        return _published(dataset, found)
    if dataset in ALIASES:
        log.warning("%s is not here; generated scenes stand in (%s)", NAMES[dataset], where_to_place(dataset))
        return _scenes(f"generated in place of {NAMES[dataset]}, which was not found")
    raise DataError(f"task.dataset={dataset}: no such data set; {where_to_place(dataset)}, or use {SCENES} or coco")


def where_to_place(dataset: str = "coco") -> str:
    """Instruction for placing files by hand."""
    return (
        f"place {{train,val,test}}.txt and images/10crop/{{train,val,test}}.npy in "
        f"{raw_dir() / 'order_embeddings' / dataset} or $LN_DATA/order_embeddings/{dataset}"
    )


def _encoded_arrays(captions: dict[str, list[Caption]]) -> Arrays:
    """Captions and vocabulary as arrays. As in the authors' code, words of the first validation fold are known too."""
    vocabulary = build_vocabulary(captions["train"] + captions["val"][: PER_IMAGE * DEV_IMAGES])
    arrays = {"vocabulary": np.frombuffer("\n".join(vocabulary).encode(), dtype=np.uint8)}
    for split, several in captions.items():
        encoded = encode(several, vocabulary)
        arrays |= {f"{split}_words": encoded.words, f"{split}_starts": encoded.starts}
    return arrays


def _words(arrays: Arrays) -> list[str]:
    return arrays["vocabulary"].tobytes().decode().split("\n")


def _published(dataset: str, found: Located) -> OrderEmbeddingData:
    """A data set in one of the published layouts. Read and checked whole once, then from the cache."""

    def build() -> Arrays:
        parts = read(found)
        _check_counts(dataset, found, {split: len(part.rows) for split, part in parts.items()})
        arrays = _encoded_arrays({split: part.captions for split, part in parts.items()})
        matrices = {found.splits[split].features: part.matrix_ND for split, part in parts.items()}
        digests = [check_features(path, matrix) for path, matrix in matrices.items()]
        arrays["features_sha256"] = np.frombuffer(b"".join(digests), dtype=np.uint8)
        return arrays | {f"{split}_rows": part.rows for split, part in parts.items()}

    arrays, digest = cached(f"order_embeddings-{dataset}", found.files(), build, version=f"1 {dataset}")
    splits = {
        split: Split(
            Encoded(arrays[f"{split}_words"], arrays[f"{split}_starts"]),
            map_features(found.splits[split].features),
            arrays[f"{split}_rows"],
        )
        for split in SPLITS
    }
    width = splits["train"].matrix_MD.shape[1]
    name = f"{NAMES.get(dataset, dataset)}, {found.cnn} features"
    sizes = "/".join(f"{len(splits[split]):,}" for split in SPLITS)
    detail = f"{sizes} images, five captions each, {width} features"
    if dataset != "coco" or width != COCO_FEATURES or not found.ten_crops:
        kind, label = "stand-in", dataset if dataset != "coco" else f"coco-{found.cnn}"
        detail += "; not the paper's data (MS COCO, 4096 VGG19 features, ten crops), so its numbers are not comparable"
    elif (origin := origin_of(found.folder)) is not None:
        kind, label, detail = "mirror", "coco", f"{detail}, fetched from {origin}"
    else:
        kind, label = "original", "coco"
    source = Source(kind, label, name, digest, detail)
    return OrderEmbeddingData(splits, _words(arrays), source, found.layout == "order-embedding")


def _check_counts(dataset: str, found: Located, counts: dict[str, int]) -> None:
    if dataset == "coco" and counts != COCO_IMAGES:
        have, want = ("/".join(f"{n[split]:,}" for split in SPLITS) for n in (counts, COCO_IMAGES))
        raise DataError(
            f"{found.folder}: {have} images, MS COCO has {want}; complete it, or give the folder another name "
            "and that to task.dataset"
        )


def _scenes(why: str) -> OrderEmbeddingData:
    """The stand-in, from the cache or made anew (some seconds)."""

    def build() -> Arrays:
        made = scenes.generate(mnist.load_mnist())
        arrays = _encoded_arrays({split: captions for split, (_, captions, _) in made.items()})
        for split, (things, _, features) in made.items():
            arrays |= {f"{split}_scenes": things, f"{split}_features": features}
        return arrays

    paths = mnist.locate() or mnist.fetch_mnist()
    arrays, digest = cached("order_embeddings-scenes", paths, build, version=f"seed={scenes.SEED} 1")
    splits = {
        split: Split(
            Encoded(arrays[f"{split}_words"], arrays[f"{split}_starts"]),
            arrays[f"{split}_features"],
            np.arange(len(arrays[f"{split}_features"])),
            arrays[f"{split}_scenes"],
        )
        for split in SPLITS
    }
    sizes = "/".join(f"{len(splits[split]):,}" for split in SPLITS)
    detail = (
        f"{sizes} images of one to three coloured MNIST digits, five captions each from a grammar, "
        f"{scenes.FEATURES} features of random convolutions; {why}: recalls are not comparable with the paper"
    )
    source = Source("stand-in", "scenes", "scenes of MNIST digits (stand-in)", digest, detail)
    return OrderEmbeddingData(splits, _words(arrays), source, tokenised=True)


def paint(data: OrderEmbeddingData, split: str, images: Sequence[int]) -> list[np.ndarray]:
    """Generated scenes as pictures, ``(S, S, 3)`` uint8 each."""
    things = data.splits[split].scenes
    assert things is not None, "only generated scenes can be painted"
    digits, _ = scenes.digits_of(split, mnist.load_mnist())
    return [scenes.paint(things[image], digits) for image in images]


def fetch_coco(url: str = URL) -> Path:
    """Downloads ``coco.zip`` (1 GB), going on where an earlier attempt stopped, unpacks and checks it.

    Returns:
        ``data/raw/order_embeddings/coco``, which appears only once all of it has been checked.

    Raises:
        FetchError: unreachable, broken off, or no zip file.
        DataError: what is in it is not COCO, or the disk cannot be written.
    """
    target = raw_dir() / "order_embeddings" / "coco"
    archive = target.with_name("coco.zip")
    try:
        if not archive.is_file():
            download_large(url, archive)
    except OSError as error:
        why = error.strerror or error
        raise DataError(f"{archive}: cannot be written ({why}); free space or set LN_RAW") from None
    try:
        with staged(target) as staging:
            unpack(archive, staging, _coco_member)
            found = from_folder(staging)
            parts = read(found)
            _check_counts("coco", found, {split: len(part.rows) for split, part in parts.items()})
            for split, part in parts.items():
                check_features(found.splits[split].features, part.matrix_ND)
            record_origin(staging, url)
    except DataError as error:
        told = str(error).replace(str(archive), archive.name)
        if "cannot be written" not in told:
            archive.unlink(missing_ok=True)  # damaged or not COCO: it would fail again
            told = told.replace(f"{staging}/", "").replace(str(staging), archive.name)
        raise FetchError(f"{url}: {told}") from None
    archive.unlink()
    return target


def _coco_member(name: PurePosixPath) -> PurePosixPath | None:
    """Where a member of ``coco.zip`` goes; whatever folders it is wrapped in."""
    if name.name in [f"{split}.txt" for split in SPLITS]:
        return PurePosixPath(name.name)
    if name.parts[-3:-1] == ("images", "10crop") and name.name in [f"{split}.npy" for split in SPLITS]:
        return PurePosixPath(*name.parts[-3:])
    return None


def get(say: Say) -> Source:
    """Tells of COCO's files and, with LN_LARGE=1, fetches them; see ``scripts.get_data``. Raises ``DataError``."""
    before = locate("coco")
    if before is None and os.environ.get("LN_LARGE") == "1":
        try:
            log.info("fetching MS COCO from %s", URL)
            fetch_coco()
        except FetchError as error:
            log.warning("MS COCO not fetched (%s)", error)
    found = locate("coco")
    if found is not None:
        for path in found.files():
            say("present" if before else "fetched", path)
        return _published("coco", found).source
    for path in mnist.locate() or mnist.fetch_mnist():
        say("present", path)
    say("stand-in", "MS COCO: scenes made from MNIST")
    say("optional", f"for the paper's own data {where_to_place()}; LN_LARGE=1 make data fetches coco.zip (1 GB)")
    for name in ALIASES:
        if name != "coco" and (other := locate(name)) is not None:
            say("present", f"{other.folder} (task.dataset={name})")
    return _scenes("generated in place of MS COCO, which was not found").source
