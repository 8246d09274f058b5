"""Captions and features that load without complaint elsewhere and would train on something else than they seem to."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orderdata as od
import pytest

from data import order_embeddings
from data.captions import read_captions, tokenise
from data.features import check_features, map_features
from data.fetch import DataError
from data.order_embeddings import load_order_embeddings
from scripts import get_data


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return od.folders(tmp_path, monkeypatch)


def refused(features: str | None = None, dataset: str = "mine") -> str:
    """The one line with which a data set is refused; nothing of it may then be in the cache."""
    with pytest.raises(DataError) as error:
        load_order_embeddings(dataset, features)
    text = str(error.value)
    assert "\n" not in text and not list(order_embeddings.raw_dir().parent.glob("cache/*"))
    return text


VAL = "\n".join(od.lines("val"))
TEXTS = [
    (VAL.encode("utf-16-le"), "line 1 is no text, it holds a NUL"),
    (VAL.replace("this val 1", "this\0val 1"), "line 9 is no text, it holds a NUL"),
    (VAL.replace("\n", "\r"), "its lines end with a carriage return only"),
    (VAL.replace("this val 1", "\u200b\u2060"), "line 9 is without a word"),
    (VAL.replace("this val 1", "\u00a0"), "line 9 is empty"),
    (VAL.replace("this val 1", "word " * 1001), "line 9 is 1,001 words long, a caption has at most 1,000"),
    ("".join(f"{n}\ta dog\n" for n in range(15)), "line 1 is the header or a row of a table"),
    ("".join(f"{n},a dog\n" for n in range(15)), "line 1 is the header or a row of a table"),
    ('{"caption": "a dog"}\n' * 15, "line 1 is JSON or a web page"),
    ("<!DOCTYPE html>\n" * 15, "line 1 is JSON or a web page"),
    ("\n".join(f"three captions {n}" for n in range(9)), "9 lines are no multiple of 5"),
]


@pytest.mark.parametrize(("content", "message"), TEXTS, ids=[message[:35] for _, message in TEXTS])
@pytest.mark.parametrize("write", [od.write_vendrov, od.write_vsepp])
def test_texts_that_are_no_captions(
    write: Callable[[Path], Path], content: str | bytes, message: str, root: Path
) -> None:
    folder = write(root / "mine")
    path = next(folder / name for name in ("val.txt", "dev_caps.txt") if (folder / name).is_file())
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    text = refused()
    assert message in text and str(path) in text


def test_captions_that_only_resemble_tables_are_taken(tmp_path: Path) -> None:
    for first in ("5,000 people", "2 dogs", "3 , 4 or 5 birds", "1\u00a0dog", "{ a brace", "[ sic ] a dog"):
        (tmp_path / "a.txt").write_text(f"{first}\n" + "x\n" * 4, encoding="utf-8")
        assert read_captions(tmp_path / "a.txt", tokenised=True)[0] == first.split()


def scaled(factor: float, kind: str = "float64") -> np.ndarray:
    matrix = od.features("val").astype(kind)
    matrix[2] *= factor
    return matrix


MATRICES = [
    (np.asfortranarray(od.features("val")), "is saved column by column (Fortran order)"),
    (scaled(1e39), "row 2 (from 0) has values up to 8.9e+38, whose squares float32 cannot add up"),
    (scaled(1e-60), "row 2 (from 0) has values up to"),
    (scaled(1e30, "float32"), "row 2 (from 0) has values up to"),
    (scaled(1e-30, "float32"), "row 2 (from 0) has values up to"),
    (od.features("val", count=5), "5 rows for the 3 images of val.txt, five consecutive lines each; both must be"),
]


@pytest.mark.parametrize(("matrix", "message"), MATRICES, ids=[message[:40] for _, message in MATRICES])
def test_matrices_that_only_load(matrix: np.ndarray, message: str, root: Path) -> None:
    path = od.write_vendrov(root / "mine") / "images/10crop/val.npy"
    np.save(path, matrix)
    text = refused()
    assert message in text and str(path) in text


def test_other_byte_orders_and_doubles_are_taken_as_the_same_numbers(root: Path) -> None:
    folder = od.write_vendrov(root / "mine")
    for kind in (">f4", "<f8", ">f8"):
        np.save(folder / "images/10crop/val.npy", od.features("val").astype(kind))
        found = load_order_embeddings("mine").splits["val"].features(np.arange(3))
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, od.features("val"))
    np.save(folder / "one.npy", np.ones((4, 1), dtype=np.float32))  # a column is both orders at once
    check_features(folder, map_features(folder / "one.npy"))


@pytest.mark.parametrize("what", ["captions", "features"])
def test_no_split_may_repeat_another(what: str, root: Path) -> None:
    folder = od.write_vendrov(root / "mine")
    if what == "captions":
        shutil.copy(folder / "val.txt", folder / "test.txt")
        np.save(folder / "images/10crop/test.npy", od.features("test", count=3))
    else:
        shutil.copy(folder / "images/10crop/val.npy", folder / "images/10crop/test.npy")
        (folder / "test.txt").write_text("\n".join(f"other {n}" for n in range(15)))
    assert f"the same {what} as val." in refused()


@pytest.mark.parametrize("split", od.COUNTS)
def test_one_image_is_no_set_to_search(split: str, root: Path) -> None:
    folder = od.write_vendrov(root / "mine")
    (folder / f"{split}.txt").write_text("\n".join(od.lines(split)[:5]))
    np.save(folder / f"images/10crop/{split}.npy", od.features(split)[:1])
    assert f"{split}.txt: one image of split {split}" in refused()


@pytest.mark.parametrize("name", ["val.txt", "images/10crop/train.npy"])
def test_a_folder_is_no_file(name: str, root: Path) -> None:
    folder = od.write_vendrov(root / "mine")
    (folder / name).unlink()
    (folder / name).mkdir()
    assert f"{folder / name}: is a folder, not a file" in refused()


def test_what_cannot_be_read_is_one_line_everywhere(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = od.write_vendrov(root / "order_embeddings" / "mine")
    real = Path.is_file

    def is_file(self: Path) -> bool:  # a folder without the right to look into it; root may look into any
        if self.parent.name in ("mine", "coco"):
            raise PermissionError(13, "Permission denied", str(self.parent))
        return real(self)

    monkeypatch.setattr(Path, "is_file", is_file)
    assert f"{folder}: cannot be read (Permission denied)" in refused()
    assert get_data.main(["order_embeddings"]) == 1
    assert "order_embeddings/coco: cannot be read (Permission denied)" in capsys.readouterr().err

    def fails(task: str) -> None:
        raise PermissionError(13, "Permission denied", "elsewhere")

    monkeypatch.setattr(get_data, "get", fails)
    assert get_data.main(["order_embeddings"]) == 1
    assert capsys.readouterr().err == "error: elsewhere: Permission denied\n"


def test_a_folder_in_no_known_layout_is_not_passed_over(root: Path) -> None:
    folder = root / "order_embeddings" / "coco"
    (folder / "images" / "10crop").mkdir(parents=True)
    assert f"{folder}: holds neither train.txt, train_caps.txt nor dataset_coco.json" in refused(dataset="coco")
    with pytest.raises(DataError, match="holds neither"):
        order_embeddings.get(lambda status, what: None)
    shutil.rmtree(folder / "images")
    assert order_embeddings.locate("coco") is None, "an empty folder waits for its files"
    (root / "coco" / "annotations").mkdir(parents=True)
    assert order_embeddings.locate("coco") is None, "outside order_embeddings it may be of something else"


def test_features_are_chosen_only_where_there_is_a_choice(root: Path) -> None:
    od.write_vsepp(root / "mine")
    assert "leave task.features=resnet at null" in refused("resnet")
    assert "task.features=vgg does nothing with task.dataset=scenes" in refused("vgg", "scenes")


def changed(image: int, **values: Any) -> dict[str, Any]:
    content = od.karpathy()
    content["images"][image].update(values)
    return content


def sentences(*tokens: str) -> list[dict[str, Any]]:
    return [{"tokens": list(tokens)}] * 5


JSONS: list[tuple[Any, str]] = [
    (changed(7, split=["train"]), "image 7 (from 0) has the split ['train']"),
    (changed(7, split={}), "image 7 (from 0) has the split {}"),
    (changed(7, imgid=3), "image 7 (from 0) has the imgid 3 of image 3"),
    (changed(1, imgid=True), "image 1 (from 0) has the imgid True"),
    (changed(7, sentences=sentences("", " \n")), "image 7 (from 0) has a sentence that is without a word"),
    (changed(7, sentences=sentences("a", "\ud800")), "image 7 (from 0) has a sentence that is no text"),
    (changed(7, sentences=sentences(*["w"] * 2000)), "image 7 (from 0) has a sentence that is 2,000 words long"),
    ("[" * 100_000 + "]" * 100_000, "not JSON"),
]


@pytest.mark.parametrize(("content", "message"), JSONS, ids=[message[-30:] for _, message in JSONS])
def test_json_that_only_parses(content: Any, message: str, root: Path) -> None:
    path = od.write_karpathy(root / "mine", "mine") / "dataset_mine.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    text = refused()
    assert message in text and str(path) in text


def test_blanks_in_tokens_separate_words(root: Path) -> None:
    """As in the authors' files, whose lines are the joined tokens; a line feed would shift every later word's id."""
    content = changed(6, sentences=sentences("two\nwords", "", "more words"))
    path = od.write_karpathy(root / "mine", "mine", content) / "dataset_mine.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    data = load_order_embeddings("mine")
    assert data.caption("train", 5) == "two words more words"
    assert all(word == word.strip() != "" for word in data.vocabulary)


def test_make_data_looks_into_the_other_data_sets(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(order_embeddings, "_scenes", lambda why: type("S", (), {"source": None}))
    monkeypatch.setattr(order_embeddings.mnist, "locate", lambda: [])
    monkeypatch.setattr(order_embeddings.mnist, "fetch_mnist", lambda: [Path("digits")])
    od.write_vendrov(root / "order_embeddings" / "flickr8k")
    (od.write_vendrov(root / "order_embeddings" / "flickr30k") / "val.txt").write_text("one line")
    said: list[tuple[str, str]] = []
    order_embeddings.get(lambda status, what: said.append((status, str(what))))
    assert ("fetched", "digits") in said
    assert any("task.dataset=flickr8k): 6/3/2 images, five captions each" in what for _, what in said)
    assert "task.dataset=flickr30k cannot be used" in caplog.text and "no multiple of 5" in caplog.text
    monkeypatch.setitem(os.environ, "LN_LARGE", "yes")
    with pytest.raises(DataError, match="LN_LARGE=yes must be 1"):
        order_embeddings.get(lambda status, what: None)


def test_a_matlab_matrix_is_explained(root: Path) -> None:
    folder = od.write_karpathy(root / "mine", "mine")
    (folder / "feats.npy").rename(folder / "vgg_feats.mat")
    assert "a MATLAB file, which cannot be mapped; save its transposed 'feats'" in refused()
    (folder / "vgg_feats.mat").unlink()
    assert "no feature matrix (.npy) beside it" in refused()


def test_plain_sentences_are_tokenised() -> None:
    assert tokenise("A man's red-and-white dog, isn't it?") == "a mans red and white dog isnt it".split()


def test_a_pickle_is_never_run(root: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    path = od.write_vendrov(root / "mine") / "images/10crop/val.npy"
    np.save(path, np.array([Trap()], dtype=object), allow_pickle=True)
    assert "Python objects" in refused() and not (tmp_path / "sprung").exists()
