"""Pictures and answers of the order-embeddings task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import experiments.tasks.order_embeddings as module
from data import scenes as sc
from data.captions import build_vocabulary, encode
from data.fetch import DataError, Source
from data.order_embeddings import OrderEmbeddingData, Split
from experiments.retrieval_pictures import WIDTH, Found, draw_found
from experiments.tasks.order_embeddings import search
from tests.test_order_task import TASK, ready
from tests.test_order_task import small_data as small_data  # a fixture


def scenes() -> OrderEmbeddingData:
    """A dozen generated scenes of each split, from noise instead of digits."""
    random = np.random.RandomState(0)
    ink, labels = random.randint(0, 256, (60, 784)).astype(np.uint8), np.arange(60) % 10
    made = {split: sc.make_scenes(labels, 12, random) for split in ("train", "val", "test")}
    captions = {split: [c for scene in s for c in sc.describe(scene, random)] for split, s in made.items()}
    vocabulary, network = build_vocabulary(captions["train"]), sc.RandomFeatures()
    splits = {
        split: Split(
            encode(captions[split], vocabulary),
            network(np.stack([sc.paint(scene, ink) for scene in things])),
            np.arange(12),
            things,
        )
        for split, things in made.items()
    }
    return OrderEmbeddingData(splits, vocabulary, Source("stand-in", "scenes", "scenes", "0", "few"), True)


@pytest.fixture
def with_scenes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = scenes()
    monkeypatch.setattr(module, "load_order_embeddings", lambda dataset, features: made)
    noise = np.random.RandomState(0).randint(0, 256, (60, 784)).astype(np.uint8)
    monkeypatch.setattr(
        module, "paint", lambda data, split, images: [sc.paint(data.splits[split].scenes[i], noise) for i in images]
    )


@torch.no_grad()
def test_pictures_of_scenes(with_scenes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", "nonsense:99")
    drawn: list[Found] = []

    def noted(rows: list[Found], *rest: Any) -> Path:
        drawn.extend(rows)
        return draw_found(rows, *rest)

    monkeypatch.setattr(module, "draw_found", noted)
    cfg, data, model = ready()
    (path,) = TASK.plots(model, data, cfg, tmp_path, 0)
    assert path.name == "retrieval.png" and path.read_bytes().startswith(b"\x89PNG")
    ranks = search(model, data, "test", 0, 12, cfg)
    assert ranks is not None and len(drawn) == 5
    for row in drawn:
        caption = [data.all.caption("test", c) for c in range(60)].index(row.text)
        assert row.own == caption // 5 and row.rank is not None and row.rank == ranks.image_C[caption] + 1
        assert (row.own in row.images[: row.rank]) == (row.rank <= 6)
        assert f"[own image: rank {row.rank} of 12]" in row.heading().replace("\n", " ")


@pytest.mark.parametrize("count", [1, 2, 6])
def test_any_text_and_any_number_of_images(count: int, tmp_path: Path) -> None:
    """One image, a formula that is none, and a text that needs several lines."""
    pixels = [np.zeros((4, 4, 3), dtype=np.uint8)] * count
    for text in ("$x_{$", "word " * 100):
        row = Found(text, range(count))
        assert row.heading().split() == text.split() and max(map(len, row.heading().split("\n"))) <= WIDTH
        path = draw_found([row], [pixels], "title", tmp_path / "a.png")
        assert path.read_bytes().startswith(b"\x89PNG")


@torch.no_grad()
def test_a_question_about_scenes(with_scenes: None, tmp_path: Path) -> None:
    cfg, data, model = ready()
    lines, (path,) = TASK.demo(model, data, cfg, "a red seven", tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")
    start = lines.index("closest test images, with their energies (lower is closer) and third captions:")
    known = {data.all.caption("test", c) for c in range(60)}
    assert len(lines[1:start]) == 5 and all(line.strip() in known for line in lines[1:start])
    found = [int(line.split()[0]) for line in lines[start + 1 :]]
    s = model.sentences(*data.words(data.all.query("a red seven"), np.array([0])))
    order = model.energy(s, model.images(data.image_features(data.all.splits["test"], np.arange(12))))[0].argsort()
    assert found == order[:6].tolist()


@torch.no_grad()
def test_a_question_about_features_only(tmp_path: Path) -> None:
    cfg, data, model = ready()
    assert TASK.plots(model, data, cfg, tmp_path, 0) == []
    lines, paths = TASK.demo(model, data, cfg, "the train 0", tmp_path)
    assert paths == [] and "features only" in lines[-1] and sum("(0." in line for line in lines) == 2
    with pytest.raises(DataError, match="query 'zebra': no word of it"):
        TASK.demo(model, data, cfg, "zebra", tmp_path)
