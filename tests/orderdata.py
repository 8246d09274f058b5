"""Small data sets in the published layouts of captions and features, for the tests of §6.1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

COUNTS = {"train": 6, "val": 3, "test": 2}
THEIRS = {"train": "train", "val": "dev", "test": "test"}


def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty places for data, downloads and the cache; returns the first. Nothing large is asked for."""
    for variable, name in (("LN_DATA", "given"), ("LN_RAW", "raw"), ("LN_CACHE", "cache")):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.delenv("LN_LARGE", raising=False)
    return tmp_path / "given"


def features(split: str, width: int = 8, count: int | None = None) -> np.ndarray:
    rng = np.random.default_rng(sum(map(ord, split)))
    return rng.random((COUNTS[split] if count is None else count, width), dtype=np.float32) + 0.1


def lines(split: str) -> list[str]:
    """Five captions an image; the image's number is a word of each."""
    return [f"{kind} {split} {n}" for n in range(COUNTS[split]) for kind in ("a", "the", "one", "this", "some")]


def write_vendrov(folder: Path, cnn: str = "10crop") -> Path:
    (folder / "images" / cnn).mkdir(parents=True)
    for split in COUNTS:
        (folder / f"{split}.txt").write_text("\n".join(lines(split)) + "\n", encoding="utf-8")
        np.save(folder / "images" / cnn / f"{split}.npy", features(split))
    return folder


def write_vsepp(folder: Path, repeat: int = 1) -> Path:
    folder.mkdir(parents=True)
    for split, name in THEIRS.items():
        sentences = [f"{line.capitalize()} ." for line in lines(split)]
        (folder / f"{name}_caps.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
        np.save(folder / f"{name}_ims.npy", features(split).repeat(repeat, 0))
    return folder


def karpathy(restval: bool = False) -> dict[str, Any]:
    """The JSON; images in the order val, test, train, so that rows are not those of a split."""
    images: list[dict[str, Any]] = []
    for split in ("val", "test", "train"):
        for n in range(COUNTS[split]):
            sentences = [{"tokens": line.split()} for line in lines(split)[5 * n : 5 * n + 5]]
            label = "restval" if restval and split == "train" and n % 2 else split
            images.append({"imgid": len(images), "split": label, "sentences": [*sentences, {"tokens": ["a", "sixth"]}]})
    return {"dataset": "x", "images": images}


def write_karpathy(folder: Path, name: str, content: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / f"dataset_{name}.json").write_text(json.dumps(content or karpathy()), encoding="utf-8")
    np.save(folder / "feats.npy", np.concatenate([features(split) for split in ("val", "test", "train")]))
    return folder
