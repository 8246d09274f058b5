"""A stand-in for IAM-OnDB: pen trajectories of English lines, made from single-stroke fonts.

Each "writer" has a font and a hand of his own: every letter is bent a little, always in the same way; the line has
his slant, width, spacing and speed, and wanders. A pen moves slower where a stroke bends and where it starts and
ends (the two-thirds power law of human drawing), and its place is read at a fixed rhythm, so letters have 20 to 30
readings, denser in the bends, as on IAM-OnDB. Whatever is random is a function of the writer's and the line's number.

Shapes: K points of a polygon, M readings of a stroke, P offsets of a line.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import RandomState

from data import pen_fonts
from data.fetch import Source
from data.parsed_cache import Arrays, cached
from data.pen_fonts import Glyph, read_font, read_plays
from data.strokes import PARTS, Lines, encode, offsets, pack

log = logging.getLogger(__name__)

# Font -> whether neighbouring letters are joined.
FONTS = {"scripts": True, "futural": False, "cursive": True, "rowmans": False}
# Lines of each part, a quarter of IAM-OnDB's; writers and plays of one part are in no other.
SIZES = {"train": 1341, "valid_large": 380, "test": 965, "valid_small": 360}
LINES_PER_WRITER = 15
UNIT = 12.0  # sensor units per font unit: capitals are about 250 high
RHYTHM_S = 0.015  # as data.strokes.PERIOD_S
SEED = 20160721
VERSION = "1"


@dataclass(frozen=True)
class Writer:
    """One hand.

    Attributes:
        glyphs: his letters.
        joined: whether the pen stays down between letters that meet.
        slant: dx per dy.
        width, height: scale of letters.
        gap: added between letters, font units.
        word: width of a blank, font units.
        tremor: standard deviation of the pen's wander, font units.
        loose: how much one letter differs from the same letter elsewhere.
        pace: font units per second on a straight stroke.
        columns: characters that fit on his line.
    """

    glyphs: Mapping[str, Glyph]
    joined: bool
    slant: float
    width: float
    height: float
    gap: float
    word: float
    tremor: float
    loose: float
    pace: float
    columns: int


def make_writer(number: int, fonts: Mapping[str, Mapping[str, Glyph]]) -> Writer:
    """The hand of writer ``number``; the same number, the same hand."""
    random = RandomState([SEED, 1, number])
    name = list(fonts)[number % len(fonts)]
    bend = random.normal(0, 0.35, (4, 2))
    glyphs = {
        character: ([_bent(stroke, bend + random.normal(0, 0.25, (4, 2))) for stroke in strokes], width)
        for character, (strokes, width) in sorted(fonts[name].items())
    }
    return Writer(
        glyphs=glyphs,
        joined=FONTS[name],
        slant=random.uniform(-0.1, 0.15) if FONTS[name] else random.uniform(-0.05, 0.35),
        width=random.uniform(0.8, 1.15),
        height=random.uniform(0.85, 1.15),
        gap=0.0 if FONTS[name] else random.uniform(-1.5, 0.5),
        word=random.uniform(11, 17),
        tremor=random.uniform(0.15, 0.35),
        loose=random.uniform(0.6, 1.4),
        pace=random.uniform(110, 160),
        columns=random.randint(22, 36),
    )


def _bent(stroke_K2: np.ndarray, bend_42: np.ndarray) -> np.ndarray:
    """A smooth displacement of the plane, one wave in about the size of a letter; ``bend_42`` its amplitudes."""
    x, y = stroke_K2.T / 9.0
    waves = np.stack([np.sin(x + 1.3), np.sin(y + 0.4), np.sin(x + y), np.sin(x - y + 2.0)], 1)
    return stroke_K2 + waves @ bend_42


def smooth(stroke_K2: np.ndarray, times: int = 3) -> np.ndarray:
    """Rounds a polygon by cutting its corners (Chaikin), ends kept."""
    for _ in range(times):
        if len(stroke_K2) < 3:
            break
        first, second = stroke_K2[:-1], stroke_K2[1:]
        cut = np.stack([0.75 * first + 0.25 * second, 0.25 * first + 0.75 * second], 1).reshape(-1, 2)
        stroke_K2 = np.concatenate([stroke_K2[:1], cut[1:-1], stroke_K2[-1:]])
    return stroke_K2


def read_pen(stroke_K2: np.ndarray, pace: float, phase: float) -> np.ndarray:
    """Readings of a pen that draws a stroke: (M, 2), M >= 2, at a fixed rhythm.

    Args:
        stroke_K2: a smooth line, in font units.
        pace: font units per second where it is straight.
        phase: when the first reading after the start falls, in [0, 1) of a period.
    """
    steps = np.diff(stroke_K2, axis=0)
    length = np.hypot(*steps.T).clip(1e-6)
    angle = np.arctan2(steps[:, 1], steps[:, 0])
    turn = np.abs(np.diff(angle, prepend=angle[:1]))
    turn = np.minimum(turn, 2 * math.pi - turn) / length
    bend = np.convolve(np.pad(turn, 2, mode="edge"), np.full(5, 0.2), mode="valid")
    speed = pace * (1 + 3 * bend) ** (-1 / 3)
    place = np.cumsum(length) - length / 2
    whole = float(length.sum())
    speed *= np.minimum(1, 0.45 + 0.25 * np.minimum(place, whole - place))  # slow at both ends
    clock = np.concatenate([[0.0], np.cumsum(length / speed)])
    count = int(clock[-1] / RHYTHM_S - phase)
    when = np.concatenate([[0.0], (np.arange(max(count, 0)) + phase + 0.5) * RHYTHM_S, clock[-1:]])
    return np.stack([np.interp(when, clock, stroke_K2[:, axis]) for axis in (0, 1)], 1)


def draw_line(text: str, writer: Writer, random: RandomState) -> list[np.ndarray]:
    """Strokes of a line: (M, 3) x, y (down) and seconds, in sensor units, as a stroke file has them."""
    polygons: list[np.ndarray] = []
    pen = 0.0
    for character in text:
        if character == " ":
            pen += writer.word * random.uniform(0.85, 1.25)
            continue
        strokes, width = writer.glyphs[character]
        scale = 1 + writer.loose * random.normal(0, 0.05, 2)
        shift = np.array([pen, 0]) + writer.loose * random.normal(0, (0.25, 0.35))
        wave = writer.loose * random.normal(0, 0.16, (4, 2))
        for number, stroke in enumerate(strokes):
            placed = _bent(stroke, wave) * scale + shift
            # A pen goes on where the last letter ended, if that is where this one begins.
            near = bool(polygons) and math.dist(polygons[-1][-1], placed[0]) < 3.2
            if writer.joined and number == 0 and near:
                middle = (polygons[-1][-1] + placed[0]) / 2
                polygons[-1] = np.concatenate([polygons[-1][:-1], middle[None], placed[1:]])
            else:
                polygons.append(placed)
        pen += width * scale[0] + writer.gap
    rise, wobble, phase = random.normal(0, 0.006), random.normal(0, 0.8), random.uniform(0, 7)
    readings = [read_pen(smooth(polygon), writer.pace, random.uniform()) for polygon in polygons]
    tremor = _wander(sum(map(len, readings)), random) * writer.tremor
    lines, done, clock = [], 0, 0.0
    for points in readings:
        points = points + tremor[done : done + len(points)]
        done += len(points)
        x, y = points.T
        y = y * writer.height + rise * x + wobble * np.sin(x / 90 + phase)
        placed = np.stack([x * writer.width + writer.slant * y, 30 - y], 1) * UNIT
        times = clock + RHYTHM_S * np.arange(len(points))
        clock = times[-1] + 0.1
        lines.append(np.concatenate([np.rint(placed), times[:, None]], 1))
    return lines


def _wander(count: int, random: RandomState) -> np.ndarray:
    """(count, 2) smooth noise of unit variance whose neighbours differ little."""
    kernel = np.exp(-0.5 * (np.arange(-9, 10) / 3.0) ** 2)
    kernel /= np.sqrt((kernel**2).sum())
    noise = random.normal(size=(count + len(kernel) - 1, 2))
    return np.stack([np.convolve(noise[:, axis], kernel, mode="valid") for axis in (0, 1)], 1)


def wrapped(words: Sequence[str], columns: int, start: int) -> tuple[str, int]:
    """As many words from ``start`` on as fit on a line, and where the next one starts."""
    end = start + 1
    while end < len(words) and len(" ".join(words[start : end + 1])) <= columns:
        end += 1
    return " ".join(words[start:end]), end


def write_lines(
    fonts: Mapping[str, Mapping[str, Glyph]], plays: Mapping[str, list[str]], sizes: Mapping[str, int]
) -> Arrays:
    """Packed lines of all parts, ``sizes`` of each."""
    lines, number = [], 0
    for place, (part, size) in enumerate(sizes.items()):
        # Plays are dealt out like cards, so that no text is in two parts.
        words = [word for title in sorted(plays)[place :: len(sizes)] for word in plays[title]]
        for first in range(0, size, LINES_PER_WRITER):
            writer = make_writer(number, fonts)
            start = RandomState([SEED, 2, number]).randint(len(words) - writer.columns * LINES_PER_WRITER)
            for line in range(min(LINES_PER_WRITER, size - first)):
                text, start = wrapped(words, writer.columns, start)
                strokes = draw_line(text, writer, RandomState([SEED, 3, number, line]))
                where = f"line {line} of writer {number}"
                lines.append((*offsets(strokes, where), encode(text, where), PARTS.index(part)))
            number += 1
    return pack(lines)


def load_stand_in() -> Lines:
    """The stand-in, from the cache or made anew (about 20 seconds).

    Raises:
        DataError: what it is made of cannot be had.
    """
    paths = pen_fonts.locate() or pen_fonts.fetch()

    def build() -> Arrays:
        log.info("making %d lines of stand-in handwriting (once)", sum(SIZES.values()))
        return write_lines({name: read_font(paths[0], name) for name in FONTS}, read_plays(paths[1]), SIZES)

    arrays, digest = cached("handwriting-pen", paths, build, version=f"{VERSION}:{SEED}:{SIZES}")
    source = Source(
        kind="stand-in", label="pen", name="pen trajectories of single-stroke fonts (stand-in)",
        fingerprint=digest,
        detail=f"{sum(SIZES.values()):,} lines of Shakespeare in {len(FONTS)} fonts, bent and shaken as by "
               f"{sum(-(-size // LINES_PER_WRITER) for size in SIZES.values())} writers, because IAM-OnDB was not "
               "found; nats are not comparable with the paper",
    )  # fmt: skip
    return Lines(**arrays, source=source)
