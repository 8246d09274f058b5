"""The three published layouts of captions and image features (§6.1), read into one form.

- Vendrov et al. (``coco.zip``): ``{train,val,test}.txt``, tokenised, and ``images/<cnn>/{train,val,test}.npy``.
- VSE++ (``coco_precomp`` and the like): ``{train,dev,test}_caps.txt``, plain sentences, and ``…_ims.npy``.
- Karpathy: ``dataset_<name>.json`` and one matrix, saved as ``.npy``, whose row is an image's ``imgid``.

In all of them five captions belong to an image. Shapes: N images of a split, D features.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data.captions import PER_IMAGE, Caption, caption_fault, read_captions
from data.features import map_features, select_rows
from data.fetch import DataError, data_roots

SPLITS = ("train", "val", "test")
# Folder names under which a data set is published, those with the paper's features first; more can be given any other
# name.
ALIASES = {
    "coco": ("coco", "10crop_precomp", "coco_precomp"),
    "flickr8k": ("flickr8k", "f8k", "f8k_precomp"),
    "flickr30k": ("flickr30k", "f30k", "f30k_precomp"),
}
KARPATHY_SPLITS = {"train": "train", "restval": "train", "val": "val", "test": "test"}


@dataclass(frozen=True)
class SplitFiles:
    """Where a split's captions and features are.

    Attributes:
        captions: text file, or the JSON file of all splits.
        features: matrix file; may be that of all splits.
    """

    captions: Path
    features: Path


@dataclass(frozen=True)
class Located:
    """A data set found on disk.

    Attributes:
        layout: ``order-embedding``, ``vse++`` or ``karpathy``.
        cnn: what the features are called: the folder below ``images``, or the matrix' file name.
        splits: by ``SPLITS``.
    """

    folder: Path
    layout: str
    cnn: str
    splits: dict[str, SplitFiles]

    def files(self) -> list[Path]:
        """All files, each once, in a fixed order."""
        each = [path for split in self.splits.values() for path in (split.captions, split.features)]
        return list(dict.fromkeys(each))

    @property
    def ten_crops(self) -> bool:
        """Whether the features are called what the paper's are: means over ten crops of a photograph.

        Others of 4096 numbers are published too: of one crop (VSE++'s ``coco_precomp``), of another network
        (Karpathy's ``vgg_feats``).
        """
        return self.cnn == "10crop" or self.folder.name == "10crop_precomp"


def locate(name: str, features: str | None = None) -> Located | None:
    """Looks for data set ``name`` in $LN_DATA and the raw folder.

    Args:
        name: of the data set; its folder is ``order_embeddings/<name>``, ``<name>``, or one of ``ALIASES``.
        features: which folder below ``images``, or which matrix beside a JSON file, where there are several.

    Raises:
        DataError: there, but incomplete, unreadable or in no known layout, or with several kinds of features and none
            chosen.
    """
    unknown: Path | None = None
    try:
        for root in data_roots():
            for base in (root / "order_embeddings", root, root / "order_embeddings" / "data", root / "data"):
                for alias in ALIASES.get(name, (name,)):
                    if (found := _in_folder(base / alias, name, features)) is not None:
                        return found
                    # Elsewhere a folder of that name may be of something else.
                    if base.name == "order_embeddings" and _holds_something(base / alias):
                        unknown = unknown or base / alias
                if (base / f"dataset_{name}.json").is_file():
                    return _karpathy(base / f"dataset_{name}.json", features)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror}); check its permissions") from None
    if unknown is not None:
        raise DataError(
            f"{unknown}: holds neither train.txt, train_caps.txt nor dataset_{name}.json; "
            "place the data set's files right in it, or remove it"
        )
    return None


def _holds_something(folder: Path) -> bool:
    return folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir())


def _in_folder(folder: Path, name: str, features: str | None) -> Located | None:
    """The data set in one folder, whichever of the layouts it has."""
    if any((folder / f"{split}.txt").is_file() for split in SPLITS):
        return from_folder(folder, features)
    if any((folder / f"{split}_caps.txt").is_file() for split in ("train", "dev", "test")):
        if features is not None:
            raise DataError(f"{folder}: has one kind of features, *_ims.npy; leave task.features={features} at null")
        files = {
            split: SplitFiles(folder / f"{theirs}_caps.txt", folder / f"{theirs}_ims.npy")
            for split, theirs in zip(SPLITS, ("train", "dev", "test"), strict=True)
        }
        return _complete(Located(folder, "vse++", "precomp", files))
    if (folder / f"dataset_{name}.json").is_file():
        return _karpathy(folder / f"dataset_{name}.json", features)
    return None


def from_folder(folder: Path, features: str | None = None) -> Located:
    """A folder in the order-embedding layout."""
    kinds = sorted(path.parent.name for path in (folder / "images").glob("*/train.npy"))
    cnn = features or ("10crop" if "10crop" in kinds or not kinds else kinds[0])
    if features is None and len(kinds) > 1 and "10crop" not in kinds:
        raise DataError(f"{folder / 'images'}: several kinds of features; choose task.features={' or '.join(kinds)}")
    if features is not None and kinds and features not in kinds:
        raise DataError(f"{folder / 'images'}: no features called {features}; there are: {', '.join(kinds)}")
    files = {s: SplitFiles(folder / f"{s}.txt", folder / "images" / cnn / f"{s}.npy") for s in SPLITS}
    return _complete(Located(folder, "order-embedding", cnn, files))


def _karpathy(path: Path, features: str | None) -> Located:
    matrices = sorted(p.stem for p in path.parent.glob("*.npy"))
    if features is None and len(matrices) != 1:
        if not matrices and (path.parent / "vgg_feats.mat").is_file():
            raise DataError(
                f"{path.parent / 'vgg_feats.mat'}: a MATLAB file, which cannot be mapped; save its transposed 'feats' "
                "as float32 in vgg_feats.npy beside it"
            )
        what = f"choose task.features={' or '.join(matrices)}" if matrices else "no feature matrix (.npy) beside it"
        raise DataError(f"{path}: {what}")
    chosen = path.parent / f"{features or matrices[0]}.npy"
    return _complete(Located(path.parent, "karpathy", chosen.stem, dict.fromkeys(SPLITS, SplitFiles(path, chosen))))


def _complete(located: Located) -> Located:
    missing = [str(path.relative_to(located.folder)) for path in located.files() if not path.is_file()]
    for name in missing:
        if (located.folder / name).is_dir():
            raise DataError(f"{located.folder / name}: is a folder, not a file; put the file in its place")
    if missing:
        raise DataError(f"{located.folder}: incomplete, missing {', '.join(missing)}; place them there")
    return located


@dataclass(frozen=True)
class SplitData:
    """One split, read: five captions an image in order, and which row of the matrix each image has."""

    captions: list[Caption]
    rows: np.ndarray
    matrix_ND: np.ndarray


def read(located: Located) -> dict[str, SplitData]:
    """Reads captions and maps features. Raises ``DataError`` naming the file and line or row at fault."""
    splits = _read_karpathy(located) if located.layout == "karpathy" else _read_files(located)
    for split, part in splits.items():
        if len(part.rows) < 2:
            raise DataError(
                f"{located.splits[split].captions}: one image of split {split}, which any caption would find; "
                "at least two are needed"
            )
    return splits


def _read_files(located: Located) -> dict[str, SplitData]:
    """The layouts with a pair of files for each split."""
    splits: dict[str, SplitData] = {}
    width = None
    for split, files in located.splits.items():
        captions = read_captions(files.captions, tokenised=located.layout == "order-embedding")
        matrix_ND = map_features(files.features)
        rows = select_rows(files.features, matrix_ND, len(captions) // PER_IMAGE, files.captions)
        if width not in (None, matrix_ND.shape[1]):
            raise DataError(
                f"{files.features}: {matrix_ND.shape[1]} features an image, the training images have {width}"
            )
        width = matrix_ND.shape[1]
        splits[split] = SplitData(captions, rows, matrix_ND)
        for other, part in splits.items():
            if other != split and part.captions == captions:
                twin = located.splits[other].captions.name
                raise DataError(f"{files.captions}: the same captions as {twin}; a split needs images of its own")
    return splits


def _read_karpathy(located: Located) -> dict[str, SplitData]:
    path, features = located.splits["train"].captions, located.splits["train"].features
    matrix_ND = map_features(features)
    captions: dict[str, list[Caption]] = {split: [] for split in SPLITS}
    rows: dict[str, list[int]] = {split: [] for split in SPLITS}
    images = _images(path)
    owner: dict[int, int] = {}  # row -> image
    if len(matrix_ND) != len(images):
        hint = "; it looks transposed" if matrix_ND.shape[1] == len(images) else ""
        raise DataError(f"{features}: {len(matrix_ND):,} rows for the {len(images):,} images of {path.name}{hint}")
    for number, image in enumerate(images):
        where = f"{path}: image {number} (from 0)"
        if not isinstance(image, dict):
            raise DataError(f"{where} is no object; the file must be Karpathy's dataset_<name>.json")
        given = image.get("split")
        if not isinstance(given, str) or given not in KARPATHY_SPLITS:
            raise DataError(f"{where} has the split {given!r}; it must be one of {', '.join(KARPATHY_SPLITS)}")
        sentences = image.get("sentences")
        if not isinstance(sentences, list) or len(sentences) < PER_IMAGE:
            count = len(sentences) if isinstance(sentences, list) else 0
            raise DataError(f"{where} has {count or 'no'} sentences; each image needs {PER_IMAGE}")
        row = image.get("imgid", number)
        if type(row) is not int or not 0 <= row < len(matrix_ND):  # in Python, true is a whole number as well
            raise DataError(f"{where} has the imgid {row!r}, which is no row of {features.name}")
        if (other := owner.setdefault(row, number)) != number:
            raise DataError(f"{where} has the imgid {row} of image {other}; each image needs a row of its own")
        split = KARPATHY_SPLITS[given]
        for sentence in sentences[:PER_IMAGE]:
            tokens = sentence.get("tokens") if isinstance(sentence, dict) else None
            if not isinstance(tokens, list) or not tokens or not all(isinstance(word, str) for word in tokens):
                raise DataError(f"{where} has a sentence without tokens; give each a list of words")
            text = " ".join(tokens)  # and split again, as in the authors' code: a token may hold blanks
            if fault := caption_fault(text, words := text.split()):
                raise DataError(f"{where} has a sentence that is {fault}")
            captions[split].append(list(map(sys.intern, words)))
        rows[split].append(row)
    for split in SPLITS:
        if not rows[split]:
            raise DataError(f"{path}: no image has the split {split}; train, val and test are needed")
    return {s: SplitData(captions[s], np.array(rows[s], dtype=np.int64), matrix_ND) for s in SPLITS}


def _images(path: Path) -> list[Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the file") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; convert the file to UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}); replace the file") from None
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not images:
        raise DataError(f"{path}: holds no list of images; the file must be Karpathy's dataset_<name>.json")
    return images
