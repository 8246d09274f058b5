"""Generated scenes: what a caption says is true of its image, and every machine makes the same ones."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from data import scenes as sc
from data.fetch import Source
from data.mnist import Mnist

RNG = np.random.default_rng(0)
INK = RNG.integers(0, 256, (60, 784), dtype=np.uint8)
LABELS = np.arange(60) % 10


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    return sc.make_scenes(LABELS, 400, np.random.RandomState(3))


def test_scenes_vary_in_everything_and_stay_on_the_canvas(drawn: np.ndarray) -> None:
    things = drawn[drawn[..., sc.DIGIT] >= 0]
    for column, values in ((sc.DIGIT, 10), (sc.COLOUR, 6), (sc.SIZE, 2), (sc.PLACE, 4)):
        assert set(things[:, column]) == set(range(values))
    sides = np.array(list(sc.SIZES.values()))[things[:, sc.SIZE]]
    for column, half in ((sc.TOP, things[:, sc.PLACE] // 2), (sc.LEFT, things[:, sc.PLACE] % 2)):
        start = things[:, column] - sc.HALF * half
        assert (start >= 0).all() and (start + sides <= sc.HALF).all(), "each digit lies within its quarter"
    counts = (drawn[..., sc.DIGIT] >= 0).sum(1)
    assert set(counts) == {1, 2, 3}
    assert (LABELS[things[:, sc.IMAGE]] == things[:, sc.DIGIT]).all()
    several = drawn[counts == 3]
    assert (np.diff(several[..., sc.PLACE]) > 0).all(), "one digit to a quarter, in reading order"


def test_a_painting_shows_its_digits_and_nothing_else(drawn: np.ndarray) -> None:
    for scene in drawn[:50]:
        image, seen = sc.paint(scene, INK), np.zeros((sc.S, sc.S), dtype=bool)
        for thing in scene[scene[:, sc.DIGIT] >= 0]:
            side = list(sc.SIZES.values())[thing[sc.SIZE]]
            box = slice(thing[sc.TOP], thing[sc.TOP] + side), slice(thing[sc.LEFT], thing[sc.LEFT] + side)
            colour = np.array(list(sc.COLOURS.values())[thing[sc.COLOUR]])
            assert (image[box] <= colour).all() and image[box].any()
            if side == 28:
                expected = INK[thing[sc.IMAGE]].reshape(28, 28).astype(int)[..., None] * colour // 255
                np.testing.assert_array_equal(image[box], expected)
            seen[box] = True
        assert not image[~seen].any()


def test_captions_are_true_and_get_more_detailed(drawn: np.ndarray) -> None:
    for scene in drawn[:200]:
        captions = [" ".join(words) for words in sc.describe(scene, np.random.RandomState(1))]
        things = [thing for thing in scene if thing[sc.DIGIT] >= 0]
        full = [
            f"{list(sc.SIZES)[t[sc.SIZE]]} {list(sc.COLOURS)[t[sc.COLOUR]]} {sc.DIGITS[t[sc.DIGIT]]} at the "
            f"{sc.PLACES[t[sc.PLACE]]}"
            for t in things
        ]
        vague, classes, coloured, one, everything = captions
        assert sc.COUNTS[len(things) - 1] in vague
        assert any(f" {list(sc.COLOURS)[t[sc.COLOUR]]}" in vague for t in things)
        assert sum(one.endswith(text) for text in full) >= 1 and " and " not in one
        for text, thing in zip(full, things, strict=True):
            assert text in everything
            assert sc.DIGITS[thing[sc.DIGIT]] in classes.split()
            assert f"{list(sc.COLOURS)[thing[sc.COLOUR]]} {sc.DIGITS[thing[sc.DIGIT]]}" in coloured
        assert not any(colour in classes.split() for colour in sc.COLOURS)
        for text in captions:
            assert " an eight" in f" {text}" or " an " not in text.replace("an image", "") and " a eight" not in text


def test_features_have_unit_norm_and_do_not_depend_on_the_batch(drawn: np.ndarray) -> None:
    network = sc.RandomFeatures()
    images = np.stack([sc.paint(scene, INK) for scene in drawn[:20]])
    features = network(images)
    assert features.shape == (20, sc.FEATURES) and features.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-6)
    parts = np.concatenate([network(images[:7]), network(images[7:])])
    assert parts.tobytes() == features.tobytes(), "whole numbers: equal to the bit"
    assert np.isfinite(network(np.zeros((1, sc.S, sc.S, 3), dtype=np.uint8))).all()
    moved = images.copy()
    moved[0] = np.roll(moved[0], 9, 0)
    assert np.abs(network(moved)[0] - features[0]).max() > 0.01, "a place changes the features"


def test_the_same_scenes_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captions, paintings and features of a few scenes, by a hash: a change of it is a change of the data."""
    monkeypatch.setattr(sc, "SPLITS", {"train": 6, "val": 4, "test": 4})
    ink = np.random.RandomState(0).randint(0, 256, (60_000, 784)).astype(np.uint8)
    labels = (np.arange(60_000) % 10).astype(np.int64)
    source = Source("original", "fake", "fake", "0", "")
    made = sc.generate(Mnist(ink, labels, ink[:10_000], labels[:10_000], source))
    digest = hashlib.sha256()
    for things, captions, features in made.values():
        digest.update(things.tobytes() + str(captions).encode() + features.tobytes())
    assert digest.hexdigest()[:16] == "2c4ec02715bcf2c1"
