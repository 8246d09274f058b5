"""Pen trajectories as arrays: offsets with y up, an end-of-stroke bit, and the text as labels.

Shapes: N lines, P pen offsets of all lines, C characters of all lines, M readings of one stroke.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data.fetch import DataError, Source
from data.parsed_cache import Arrays

# The 57 labels of Graves 2013, section 5: digits and most punctuation share the first one.
OTHER = "0"
ALPHABET = OTHER + " .!?" + "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LABELS = {character: label for label, character in enumerate(ALPHABET)}

# Four disjoint sets of lines, as in the official lists. Graves trains on the first three.
PARTS = ("train", "valid_large", "test", "valid_small")

# Cleaning (Graves 2013, section 4: missing readings are interpolated, over-long steps removed). The numbers are
# ours. A pen of IAM-OnDB reports every 15 ms and a letter is about 300 units high.
PERIOD_S = 0.015
GAP_S = 0.025  # two readings of a stroke further apart than this have others missing between them …
REST_S = 0.5  # … unless the pen rested, or the clock jumped
LONGEST = 2000  # units; a step between two letters has 200, one to the last forgotten dot of a line is longer


@dataclass(frozen=True)
class Lines:
    """Handwritten lines, packed one after the other.

    Attributes:
        offsets_P2: int16, (dx, dy) from one reading to the next, y up, in units of the sensor.
        ends_P: uint8, 1 where the reading that an offset leads to is the last of its stroke.
        starts_N1: int64 (N+1,), line n has the offsets starts[n] … starts[n+1].
        labels_C: uint8, characters as places in ``ALPHABET``.
        text_starts_N1: int64 (N+1,), the same for its characters.
        parts_N: uint8, which of ``PARTS`` a line belongs to.
        source: where they came from.
    """

    offsets_P2: np.ndarray
    ends_P: np.ndarray
    starts_N1: np.ndarray
    labels_C: np.ndarray
    text_starts_N1: np.ndarray
    parts_N: np.ndarray
    source: Source


class BadLine(DataError):
    """One line cannot be used. It may be left out on request, see ``data.iam_ondb``."""


def encode(text: str, where: str) -> np.ndarray:
    """Labels of a text, uint8 (C,). What is printable but not in the alphabet gets the label of ``OTHER``.

    Raises:
        BadLine: empty, or a character that is not printable ASCII.
    """
    if not text.strip():
        raise BadLine(f"{where}: the line is empty; give it its text")
    for position, character in enumerate(text, 1):
        if not " " <= character <= "~":
            shown = character.encode("unicode_escape").decode()
            raise BadLine(
                f"{where}: character {position} is '{shown}', outside the alphabet (printable ASCII); replace it"
            )
    return np.array([_LABELS.get(character, 0) for character in text], np.uint8)


def decode(labels_C: Sequence[int]) -> str:
    """The text of labels, with ``OTHER`` for all that shares its label."""
    return "".join(ALPHABET[label] for label in labels_C)


def fill(stroke_M3: np.ndarray) -> np.ndarray:
    """Interpolates missing readings of a stroke, rows (x, y, seconds), onto the sensor's whole units.

    Returns:
        (M', 2) x, y, M' >= M.
    """
    seconds = np.diff(stroke_M3[:, 2])
    gap = (seconds > GAP_S) & (seconds < REST_S)
    points_M2 = stroke_M3[:, :2]
    if not gap.any():
        return points_M2
    # A reading's place among all readings, present and missing; those between are interpolated.
    places = np.concatenate([[0], np.cumsum(np.where(gap, np.rint(seconds / PERIOD_S).clip(1), 1))])
    every = np.arange(places[-1] + 1)
    return np.stack([np.rint(np.interp(every, places, points_M2[:, axis])) for axis in (0, 1)], 1)


def offsets(strokes: Sequence[np.ndarray], where: str) -> tuple[np.ndarray, np.ndarray]:
    """Offsets between the readings of a line.

    A line of P+1 readings has P offsets; where the pen first touches the board is no information. A step longer
    than ``LONGEST`` is removed, which moves all that follows it.

    Args:
        strokes: (M, 3) arrays of x, y (down) and seconds, each with M >= 1.
        where: the file's name, for errors.

    Returns:
        int16 (P, 2) and uint8 (P,), as in ``Lines``.

    Raises:
        BadLine: fewer than two readings, nothing but over-long steps, or a pen that never moves.
    """
    filled = [fill(stroke_M3) for stroke_M3 in strokes]
    points = np.concatenate(filled)
    if len(points) < 2:
        raise BadLine(f"{where}: {len(points)} point, a line needs at least 2; replace the file")
    ends = np.zeros(len(points), np.uint8)
    ends[np.cumsum([len(points_M2) for points_M2 in filled]) - 1] = 1
    steps_P2 = np.diff(points, axis=0) * (1, -1)
    kept = np.hypot(*steps_P2.T) <= LONGEST
    if not kept.any():
        raise BadLine(f"{where}: every step is longer than {LONGEST} units; replace the file")
    if not steps_P2[kept].any():
        raise BadLine(f"{where}: all points of all strokes are in one place; replace the file")
    return np.rint(steps_P2[kept]).astype(np.int16), ends[1:][kept]


def pack(lines: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray, int]]) -> Arrays:
    """Arrays of ``Lines`` from (offsets, ends, labels, part) of each line."""
    empty = (np.zeros((0, 2), np.int16), np.zeros(0, np.uint8), np.zeros(0, np.uint8), 0)
    steps, ends, labels, parts = zip(*(lines or [empty]), strict=True)
    count = len(lines)
    return {
        "offsets_P2": np.concatenate(steps),
        "ends_P": np.concatenate(ends),
        "starts_N1": np.cumsum([0, *map(len, steps)], dtype=np.int64)[: count + 1],
        "labels_C": np.concatenate(labels),
        "text_starts_N1": np.cumsum([0, *map(len, labels)], dtype=np.int64)[: count + 1],
        "parts_N": np.array(parts[:count], np.uint8),
    }


def statistics(offsets_P2: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (2,) of training offsets, float64.

    Raises:
        DataError: no variance on an axis (all strokes identical): nothing could be scaled to 1.
    """
    mean_2, std_2 = offsets_P2.mean(0, dtype=np.float64), offsets_P2.std(0, dtype=np.float64)
    for axis, std in zip("xy", std_2, strict=True):
        if not std > 0:
            raise DataError(f"{where}: all {axis}-offsets of the training lines are identical; replace the strokes")
    return mean_2, std_2
