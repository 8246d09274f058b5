"""Generated scenes, the stand-in for photographs with captions (§6.1): MNIST digits in colours, sizes and places.

Each image has one to three digits in different quarters of a dark canvas, and five captions from a small grammar, from
"two digits" down to every digit's size, colour and place: a caption holds of the image, and says less than the image
shows, as order-embeddings assume. Features come from a convolutional network with random, fixed weights.

Whole numbers below 2^24 are exact in float32 in whatever order they are added, so the network's weights and activations
are whole numbers: the same features, to the bit, on every machine.

Shapes: N scenes, O = 3 objects at most, S = 64 pixels a side, D features.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.captions import Caption
from data.mnist import Mnist

SEED = 20160721  # of everything here; the number is the date of the paper's first version
SPLITS = {"train": 8000, "val": 1000, "test": 1000}
FEATURES = 1024
S, HALF = 64, 32

DIGITS = "zero one two three four five six seven eight nine".split()
COLOURS = {
    "red": (255, 60, 60), "green": (60, 220, 60), "blue": (80, 110, 255), "yellow": (250, 230, 60),
    "purple": (190, 70, 220), "white": (250, 250, 250),
}  # fmt: skip
SIZES = {"small": 14, "large": 28}  # pixels
PLACES = ("top left", "top right", "bottom left", "bottom right")
COUNTS = ("one digit", "two digits", "three digits")
OPENINGS = ("", "this shows ", "a picture of ", "an image with ")
# Columns of a scene's objects; a digit of -1: no object.
DIGIT, COLOUR, SIZE, PLACE, TOP, LEFT, IMAGE = range(7)


def make_scenes(labels_N: np.ndarray, count: int, random: np.random.RandomState) -> np.ndarray:
    """Draws scenes.

    Args:
        labels_N: the digits' classes, in the order of their images.
        count: N.
        random: RandomState, because numpy freezes its stream.

    Returns:
        ``(N, O, 7)`` int32: what ``DIGIT`` … ``IMAGE`` name, objects in reading order.
    """
    scenes_NO7 = np.full((count, 3, 7), -1, dtype=np.int32)
    for scene_O7 in scenes_NO7:
        number = (1, 2, 2, 3, 3)[random.randint(5)]
        for slot, place in enumerate(sorted(random.permutation(4)[:number])):
            image, colour, size = random.randint(len(labels_N)), random.randint(len(COLOURS)), random.randint(2)
            room = HALF - list(SIZES.values())[size]
            top, left = (HALF * at + random.randint(room + 1) for at in divmod(int(place), 2))
            scene_O7[slot] = (labels_N[image], colour, size, place, top, left, image)
    return scenes_NO7


def paint(scene_O7: np.ndarray, digits_N784: np.ndarray) -> np.ndarray:
    """A scene as an image ``(S, S, 3)``, uint8."""
    canvas = np.zeros((S, S, 3), dtype=np.uint8)
    colours, sizes = list(COLOURS.values()), list(SIZES.values())
    for thing in scene_O7:
        if thing[DIGIT] >= 0:
            ink = digits_N784[thing[IMAGE]].reshape(28, 28).astype(np.int64)
            side = sizes[thing[SIZE]]
            if side < 28:  # each pixel the mean of a square, brightened: thin strokes would fade
                ink = np.minimum(255, ink.reshape(side, 28 // side, side, 28 // side).sum((1, 3)) // 3)
            top, left = thing[TOP], thing[LEFT]
            canvas[top : top + side, left : left + side] = ink[..., None] * np.array(colours[thing[COLOUR]]) // 255
    return canvas


def describe(scene_O7: np.ndarray, random: np.random.RandomState) -> list[Caption]:
    """Five captions, from the most abstract to the most detailed."""
    things = [thing for thing in scene_O7 if thing[DIGIT] >= 0]
    colours, sizes = list(COLOURS), list(SIZES)

    def name(thing: np.ndarray, *details: str) -> str:
        words = [sizes[thing[SIZE]]] * ("size" in details) + [colours[thing[COLOUR]]] * ("colour" in details)
        text = " ".join([*words, DIGITS[thing[DIGIT]]])
        place = f" at the {PLACES[thing[PLACE]]}" * ("place" in details)
        return ("an " if text.startswith("eight") else "a ") + text + place

    def listed(*details: str) -> str:
        names = [name(thing, *details) for thing in things]
        return " and ".join([" , ".join(names[:-1])] * (len(names) > 1) + names[-1:])

    one = things[random.randint(len(things))]
    colour = colours[things[random.randint(len(things))][COLOUR]]
    texts = [
        COUNTS[len(things) - 1] + (f" , one of them {colour}" if len(things) > 1 else f" , {colour}"),
        listed(),
        listed("colour"),
        name(one, "size", "colour", "place"),
        listed("size", "colour", "place"),
    ]
    return [(OPENINGS[random.randint(len(OPENINGS))] + text).split() for text in texts]


class RandomFeatures:
    """Three layers of random convolutions with whole-numbered weights, pooled on a 4×4 grid, then unit norm."""

    # (channels in, channels out, kernel, stride, bits dropped afterwards: activations stay below 2^8)
    LAYERS = ((3, 32, 5, 2, 5), (32, 64, 3, 2, 4), (64, 64, 3, 2, 4))

    def __init__(self) -> None:
        random = np.random.RandomState(SEED)
        self.weights = [
            torch.from_numpy(random.randint(-2, 3, (out, into * kernel * kernel))).float()
            for into, out, kernel, _, _ in self.LAYERS
        ]

    def __call__(self, images_NSS3: np.ndarray) -> np.ndarray:
        """Features ``(N, D)``, float32, of unit norm."""
        x: Tensor = torch.from_numpy(images_NSS3).permute(0, 3, 1, 2).float()
        for (_, out, kernel, stride, bits), weight in zip(self.LAYERS, self.weights, strict=True):
            # Not conv2d: some of its algorithms (Winograd's) divide on the way, and are exact no more.
            side = x.shape[-1] // stride
            patches = F.unfold(x, kernel, padding=kernel // 2, stride=stride)
            x = (weight @ patches).clamp_(min=0).mul_(2.0**-bits).floor_().clamp_(max=255).reshape(-1, out, side, side)
        pooled_ND = F.avg_pool2d(x, 2, divisor_override=1).reshape(len(x), -1).double()
        # A scene without a trace left would have no direction.
        pooled_ND[:, 0] += 1
        return (pooled_ND / pooled_ND.square().sum(1, keepdim=True).sqrt()).float().numpy()


def digits_of(split: str, mnist: Mnist) -> tuple[np.ndarray, np.ndarray]:
    """MNIST images and labels that a split's scenes are made of: no digit is in two splits."""
    if split == "test":
        return mnist.test_images_N784, mnist.test_labels_N
    part = slice(0, 50_000) if split == "train" else slice(50_000, 60_000)
    return mnist.train_images_N784[part], mnist.train_labels_N[part]


def generate(mnist: Mnist) -> dict[str, tuple[np.ndarray, list[Caption], np.ndarray]]:
    """All scenes: split -> (scenes (N, O, 7), captions, features (N, D))."""
    random, network = np.random.RandomState(SEED), RandomFeatures()
    made = {}
    for split, count in SPLITS.items():
        images, labels = digits_of(split, mnist)
        scenes = make_scenes(labels, count, random)
        captions = [caption for scene in scenes for caption in describe(scene, random)]
        parts = [np.stack([paint(s, images) for s in scenes[i : i + 200]]) for i in range(0, count, 200)]
        made[split] = scenes, captions, np.concatenate([network(part) for part in parts])
    return made
