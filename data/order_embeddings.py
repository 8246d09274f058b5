"""Images and captions for order-embeddings (§6.1): MS COCO as published, another data set in a published layout, or
generated scenes where there is none.

The paper's data is ``coco.zip`` of Vendrov et al. (113,287/5,000/5,000 images, VGG19 features). What is looked for, and
where, is in ``data.order_layouts``; anything but COCO with these features counts as a stand-in, since no number of the
paper can be held against it.

Shapes: N images of a split, D features.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data import mnist, scenes
from data.archive import large_asked
from data.captions import FIRST_WORD, PER_IMAGE, UNKNOWN, Caption, Encoded, build_vocabulary, encode, tokenise
from data.coco import COCO_FEATURES, check_counts, check_matrices, fetch_coco
from data.features import map_features
from data.fetch import DataError, FetchError, Say, Source, origin_of, raw_dir, say_files
from data.messages import shortened
from data.order_layouts import ALIASES, SPLITS, Located, locate, read
from data.parsed_cache import Arrays, cached

log = logging.getLogger(__name__)

NAMES = {"coco": "MS COCO", "flickr8k": "Flickr8k", "flickr30k": "Flickr30k"}
SCENES = "scenes"
LONGEST_QUERY = 100  # words
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
        """A sentence as word ids; warns of words that are not known.

        Raises:
            DataError: it has no word that is known, or too many words.
        """
        readings: list[tuple[float, int, Encoded, list[str], list[str]]] = []
        for words in (text.split(), tokenise(text)):  # as a caption would be written, or in plain language
            encoded = encode([words], self.vocabulary)
            strange = [word for word, number in zip(words, encoded.words, strict=True) if number == UNKNOWN]
            readings.append((len(strange) / max(len(words), 1), len(readings), encoded, words, strange))
        _, _, encoded, words, strange = min(readings)
        shown = shortened(text)
        if len(strange) == len(words):
            some = ", ".join([word for word in self.vocabulary if word.isalnum()][:12])
            raise DataError(
                f"query {shown!r}: no word of it is among the {len(self.vocabulary):,} known ones ({some} …); use those"
            )
        if len(words) > LONGEST_QUERY:
            raise DataError(f"query {shown!r}: {len(words):,} words, ask with at most {LONGEST_QUERY}")
        if strange:
            log.warning("not known, so they count as any unknown word: %s", ", ".join(dict.fromkeys(strange)))
        return encoded


def load_order_embeddings(dataset: str = "coco", features: str | None = None) -> OrderEmbeddingData:
    """The data set ``dataset``, or the generated scenes if it is a published one that is not here.

    Args:
        dataset: ``scenes``, ``coco``, ``flickr8k``, ``flickr30k``, or the name of a folder in a published layout.
        features: see ``data.order_layouts.locate``.

    Raises:
        DataError: a file is damaged or of another layout; names the file, the line or row, and the remedy.
    """
    if dataset == SCENES:
        if features is not None:
            raise DataError(f"task.features={features} does nothing with task.dataset={SCENES}: leave it at null")
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
        if dataset == "coco":
            check_counts(found, parts)
        digests = check_matrices(found, parts)
        arrays = _encoded_arrays({split: part.captions for split, part in parts.items()})
        arrays["features_sha256"] = np.frombuffer(b"".join(digests), dtype=np.uint8)
        return arrays | {f"{split}_rows": part.rows for split, part in parts.items()}

    arrays, digest = cached(f"order_embeddings-{dataset}", found.files(), build, version=f"2 {dataset}")
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


def get(say: Say) -> Source:
    """Tells of COCO's files and, with LN_LARGE=1, fetches them; see ``scripts.get_data``.

    Raises:
        DataError: bad files, or COCO was asked for and could not be fetched: scenes would not be what was asked for.
    """
    asked = large_asked()
    before = locate("coco")
    if before is None and asked:
        try:
            log.info("fetching MS COCO, coco.zip")
            fetch_coco()
        except FetchError as error:
            raise FetchError(f"{error} (or {where_to_place()}; without LN_LARGE=1 generated scenes stand in)") from None
    found = locate("coco")
    if found is not None:
        for path in found.files():
            say("present" if before else "fetched", path)
        return _published("coco", found).source
    digits = mnist.locate()
    say_files(say, digits, digits or mnist.fetch_mnist())
    say("stand-in", "MS COCO: scenes made from MNIST")
    say("optional", f"for the paper's own data {where_to_place()}; LN_LARGE=1 make data fetches coco.zip (1 GB)")
    for name in ALIASES:
        try:
            if name != "coco" and (other := locate(name)) is not None:
                say("present", f"{other.folder} (task.dataset={name}): {_published(name, other).source.detail}")
        except DataError as error:  # not what was asked for
            log.warning("task.dataset=%s cannot be used: %s", name, error)
    return _scenes("generated in place of MS COCO, which was not found").source
