"""Captions and features in the published layouts, and every way in which other people's copies are wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import orderdata as od
import pytest

from data import coco, order_embeddings
from data.captions import UNKNOWN, build_vocabulary, encode, read_captions
from data.features import check_features, map_features
from data.fetch import DataError
from data.order_embeddings import load_order_embeddings

REAL = Path(os.environ.get("LN_DATA") or "/nowhere")  # before the fixture hides it


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return od.folders(tmp_path, monkeypatch)


def refused(dataset: str = "mine", features: str | None = None) -> str:
    """The one line with which a data set is refused; nothing may then be in the cache."""
    with pytest.raises(DataError) as error:
        load_order_embeddings(dataset, features)
    text = str(error.value)
    assert "\n" not in text
    return text


def by_split(content: dict[str, Any]) -> dict[str, Any]:
    """The images in the order test, train, val, so that ``imgid`` is not an image's place in the list."""
    return {**content, "images": sorted(content["images"], key=lambda image: image["split"])}


LAYOUTS: dict[str, Any] = {
    "order-embedding": lambda root: od.write_vendrov(root / "order_embeddings" / "mine"),
    "other cnn": lambda root: od.write_vendrov(root / "mine", "inceptionv3"),
    "vse++": lambda root: od.write_vsepp(root / "mine"),
    "vse++, rows repeated": lambda root: od.write_vsepp(root / "mine", repeat=5),
    "karpathy": lambda root: od.write_karpathy(root / "mine", "mine"),
    "karpathy, restval": lambda root: od.write_karpathy(root / "mine", "mine", od.karpathy(restval=True)),
    "karpathy, rows in another order": lambda root: od.write_karpathy(root / "mine", "mine", by_split(od.karpathy())),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_examples(layout: str, root: Path) -> None:
    LAYOUTS[layout](root)
    data = load_order_embeddings("mine")
    for split, part in data.splits.items():
        assert isinstance(part.matrix_MD, np.memmap), "features stay on disk"
        n = od.COUNTS[split]
        assert len(part) == n and len(part.captions.starts) == 5 * n + 1
        read = [data.caption(split, c).replace("<unknown>", "test") for c in range(5 * n)]  # not a word of training
        assert read == od.lines(split)
        chosen = np.array([n - 1, 0, n - 1])
        np.testing.assert_array_equal(part.features(chosen), od.features(split)[chosen])
    assert data.source.kind == "stand-in" and "not comparable" in data.source.detail
    assert load_order_embeddings("mine").source == data.source, "the same from the cache"


def test_folders_of_published_names_are_found_and_raw_comes_last(root: Path, tmp_path: Path) -> None:
    od.write_vsepp(root / "f8k_precomp")
    od.write_vendrov(tmp_path / "raw" / "order_embeddings" / "flickr8k")
    assert load_order_embeddings("flickr8k").splits["train"].matrix_MD.filename == root / "f8k_precomp/train_ims.npy"


@pytest.mark.skipif(not (REAL / "order_embeddings" / "flickr8k").is_dir(), reason="LN_DATA holds no Flickr8k")
def test_real_photographs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LN_DATA", str(REAL))
    data = load_order_embeddings("flickr8k")
    assert {split: len(part) for split, part in data.splits.items()} == {"train": 365, "val": 60, "test": 60}
    train = data.splits["train"]
    assert train.matrix_MD.shape == (365, 2048) and data.source.label == "flickr8k"
    assert len(train.captions.starts) == 5 * 365 + 1 and (train.captions.words != UNKNOWN).all()


def test_a_changed_file_is_read_again_and_changes_the_fingerprint(root: Path) -> None:
    folder = od.write_vendrov(root / "mine")
    before = load_order_embeddings("mine").source.fingerprint
    matrix = od.features("test")
    matrix[1, 3] += 1
    np.save(folder / "images/10crop/test.npy", matrix)
    assert load_order_embeddings("mine").source.fingerprint != before


def test_coco_is_known_by_its_counts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    od.write_vendrov(root / "coco")
    assert "6/3/2 images, MS COCO has 113,287/5,000/5,000" in refused("coco")
    monkeypatch.setattr(coco, "COCO_IMAGES", od.COUNTS)
    assert load_order_embeddings("coco").source.kind == "stand-in", "other features are not the paper's"
    monkeypatch.setattr(order_embeddings, "COCO_FEATURES", 8)
    source = load_order_embeddings("coco").source
    assert (source.kind, source.label) == ("original", "coco") and "6/3/2 images" in source.detail


NOT_TEN_CROPS: dict[str, Any] = {
    "coco-precomp": lambda root: od.write_vsepp(root / "coco_precomp"),
    "coco-vgg_feats": lambda root: (od.write_karpathy(root / "coco", "coco") / "feats.npy").rename(
        root / "coco" / "vgg_feats.npy"
    ),
    "coco-1crop": lambda root: od.write_vendrov(root / "coco", "1crop"),
}


@pytest.mark.parametrize("label", NOT_TEN_CROPS)
def test_other_features_of_the_same_width_are_not_the_papers(
    label: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coco, "COCO_IMAGES", od.COUNTS)
    monkeypatch.setattr(order_embeddings, "COCO_FEATURES", 8)
    NOT_TEN_CROPS[label](root)
    source = load_order_embeddings("coco").source
    assert (source.kind, source.label) == ("stand-in", label) and "ten crops" in source.detail
    od.write_vsepp(root / "10crop_precomp")
    if label == "coco-precomp":  # both in one folder, as published together: the paper's go first
        source = load_order_embeddings("coco").source
        assert (source.kind, source.label) == ("original", "coco")


def test_what_is_not_there(root: Path) -> None:
    assert "task.dataset=mine: no such data set; place {train,val,test}.txt" in refused()
    folder = od.write_vendrov(root / "mine")
    (folder / "val.txt").unlink()
    (folder / "images/10crop/test.npy").unlink()
    assert f"{folder}: incomplete, missing val.txt, images/10crop/test.npy" in refused()


def test_several_kinds_of_features_have_to_be_told_apart(root: Path) -> None:
    folder = od.write_vendrov(root / "mine", "vgg")
    for split in od.COUNTS:
        (folder / "images" / "resnet").mkdir(exist_ok=True)
        np.save(folder / "images" / "resnet" / f"{split}.npy", od.features(split, width=5))
    assert "several kinds of features; choose task.features=resnet or vgg" in refused()
    assert load_order_embeddings("mine", "resnet").splits["train"].matrix_MD.shape[1] == 5
    assert "no features called googlenet; there are: resnet, vgg" in refused(features="googlenet")
    np.save(folder / "images/vgg/val.npy", od.features("val", width=5))
    assert "val.npy: 5 features an image, the training images have 8" in refused(features="vgg")


GOOD = "\n".join(od.lines("val"))
BAD_CAPTIONS = [
    (f"image,caption\n{GOOD}", "line 1 is the header or a row of a table"),
    (f"image_name| comment_number| comment\n{GOOD}", "line 1 is the header"),
    (f"caption\n{GOOD}", "line 1 is the header"),
    (f'"filename","sentence"\n{GOOD}', "line 1 is the header"),
    ("12_ab.jpg#0\ta dog\n" * 15, "line 1 is the header or a row of a table"),
    ("12_ab.jpg,a dog\n" * 15, "line 1 is the header or a row of a table"),
    (f"{GOOD}\none more", "16 lines are no multiple of 5; line 16 is the last"),
    (GOOD.replace("this val 1", ""), "line 9 is empty"),
    (GOOD.replace("this val 1", "  \t"), "line 9 is empty"),
    (GOOD.replace("this val 1", "caf\xe9").encode("latin-1"), "line 9 is not UTF-8 (byte 0xe9)"),
    ("", "0 lines are no multiple of 5"),
    ("\n".join(od.lines("val")[:10]), "3 rows for the 2 images of"),
]


@pytest.mark.parametrize(("content", "message"), BAD_CAPTIONS, ids=[message[:30] for _, message in BAD_CAPTIONS])
@pytest.mark.parametrize("layout", ["order-embedding", "vse++"])
def test_bad_captions(layout: str, content: str | bytes, message: str, root: Path) -> None:
    folder = LAYOUTS[layout](root)
    path = folder / ("val.txt" if layout == "order-embedding" else "dev_caps.txt")
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    text = refused()
    assert message in text and path.stem.split("_")[0] in text


def test_what_only_looks_odd_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    odd = ["image of a caption , in jpg", "two\u2028words", "caf\u00e9 \u0085 x", "comment", "x"]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(odd).encode() + b"\r\n")
    read = read_captions(path, tokenised=True)
    assert len(read) == 5 and read[0] == odd[0].split() and read[2][0] == "caf\u00e9"
    path.write_text("a\nb\n...\nd\ne", encoding="utf-8")
    assert read_captions(path, tokenised=True)[2] == ["..."]
    with pytest.raises(DataError, match="line 3 is without a word"):
        read_captions(path, tokenised=False)


def save_objects(path: Path) -> None:
    np.save(path, np.array([{"a": 1}] * 3, dtype=object), allow_pickle=True)


def with_row(value: float, row: int) -> np.ndarray:
    matrix = od.features("val")
    matrix[row] = value
    return matrix


BAD_FEATURES: list[tuple[Any, str]] = [
    (od.features("val", count=4), "4 rows for the 3 images of val.txt"),
    (od.features("val", count=15), "as many rows as captions, but rows 0 to 4 (from 0) differ"),
    (
        od.features("val").T.copy(),
        "8 rows for the 3 images of val.txt, five consecutive lines each; it looks transposed",
    ),
    (with_row(np.nan, 2), "row 2 (from 0) holds a number that is not finite"),
    (with_row(np.inf, 1), "row 1 (from 0) holds a number that is not finite"),
    (with_row(0, 1), "row 1 (from 0) is all zeros"),
    (od.features("val").astype(np.float16), "holds float16; features must be float32"),
    ((od.features("val") * 9).astype(np.uint8), "holds uint8; features must be float32"),
    (od.features("val")[0], "has the shape (8,), not (images, features)"),
    (save_objects, "holds Python objects, which could run any code"),
    (b"<html>moved</html>", "is not an .npy array"),
    (b"", "is not an .npy array"),
    (b"\x93NUMPY\x01\x00\x10\x00nonsense", "damaged .npy array"),
    ("cut", "is cut off"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FEATURES, ids=[message[:30] for _, message in BAD_FEATURES])
def test_bad_features(content: Any, message: str, root: Path, tmp_path: Path) -> None:
    path = od.write_vendrov(root / "mine") / "images/10crop/val.npy"
    if isinstance(content, np.ndarray):
        np.save(path, content)
    elif content == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)
    text = refused()
    assert message in text and str(path) in text
    assert not list((tmp_path / "cache").iterdir()), "nothing is kept of what was refused"


def test_the_check_reads_in_chunks_and_counts_rows_over_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = np.random.default_rng(0).random((10, 3), dtype=np.float32)
    np.save(tmp_path / "a.npy", matrix)
    whole = check_features(tmp_path, map_features(tmp_path / "a.npy"))
    monkeypatch.setattr("data.features.CHUNK", 4)
    assert check_features(tmp_path, matrix) == whole
    matrix[9, 1] = np.nan
    with pytest.raises(DataError, match=r"row 9 \(from 0\)"):
        check_features(tmp_path, matrix)
    assert check_features(tmp_path, matrix[:8].astype(np.float64)) != check_features(tmp_path, matrix[:8])


def change(content: dict[str, Any], image: int, **values: Any) -> dict[str, Any]:
    content["images"][image].update(values)
    return content


BAD_JSON: list[tuple[Any, str]] = [
    (change(od.karpathy(), 4, sentences=[]), "image 4 (from 0) has no sentences; each image needs 5"),
    (
        change(od.karpathy(), 4, sentences=od.karpathy()["images"][4]["sentences"][:4]),
        "image 4 (from 0) has 4 sentences",
    ),
    (change(od.karpathy(), 2, sentences=None), "image 2 (from 0) has no sentences"),
    (change(od.karpathy(), 2, sentences=[{"raw": "a dog"}] * 5), "image 2 (from 0) has a sentence without tokens"),
    (
        change(od.karpathy(), 7, split="dev"),
        "image 7 (from 0) has the split 'dev'; it must be one of train, restval, val, test",
    ),
    (change(od.karpathy(), 7, split=None), "image 7 (from 0) has the split None"),
    (change(od.karpathy(), 7, imgid=99), "image 7 (from 0) has the imgid 99, which is no row of feats.npy"),
    ({"images": []}, "holds no list of images"),
    ([1, 2], "holds no list of images"),
    ({"images": od.karpathy()["images"][:10]}, "feats.npy: 11 rows for the 10 images"),
    ({"images": [{**image, "split": "train"} for image in od.karpathy()["images"]]}, "no image has the split val"),
    (b"{", "not JSON"),
    (b"\xff{}", "is not UTF-8"),
]


@pytest.mark.parametrize(("content", "message"), BAD_JSON, ids=[message[:45] for _, message in BAD_JSON])
def test_bad_json(content: Any, message: str, root: Path) -> None:
    path = od.write_karpathy(root / "mine", "mine") / "dataset_mine.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    text = refused()
    assert message in text and str(path.parent) in text


def test_vocabulary_by_frequency_with_words_of_the_first_validation_fold(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build_vocabulary([["b", "a"], ["c", "b"]]) == ["b", "a", "c"]
    assert encode([["c", "nothing"], ["b"]], ["b", "a", "c"]).words.tolist() == [4, UNKNOWN, 2]
    monkeypatch.setattr(order_embeddings, "DEV_IMAGES", 2)
    path = od.write_vendrov(root / "mine") / "val.txt"
    path.write_text(path.read_text().replace("some val 1", "some val inside").replace("some val 2", "some val beyond"))
    data = load_order_embeddings("mine")
    assert {"val", "inside"} <= set(data.vocabulary) and not {"beyond", "test"} & set(data.vocabulary)
    assert data.caption("test", 0) == "a <unknown> 0"
