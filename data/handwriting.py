"""Handwriting for section 6.5: IAM-OnDB where it has been placed, else a stand-in made from fonts."""

from __future__ import annotations

import os

from data import iam_ondb, pen_fonts, pen_stand_in
from data.fetch import DataError, Say, Source, say_files, say_missing
from data.strokes import Lines


def load_handwriting(*, skip_bad: bool = False) -> Lines:
    """IAM-OnDB from $LN_DATA or data/raw; without it the stand-in.

    Args:
        skip_bad: leave out lines of IAM-OnDB that cannot be used, and count them, instead of raising.

    Raises:
        DataError: bad or incomplete files (never replaced by the stand-in), or nothing to be had.
    """
    folder = iam_ondb.locate()
    return pen_stand_in.load_stand_in() if folder is None else iam_ondb.load_iam(folder, skip_bad=skip_bad)


def skip_bad_asked() -> bool:
    """Whether $LN_SKIP_BAD asks to leave out bad lines; empty counts as not given. Raises ``DataError``."""
    given = os.environ.get("LN_SKIP_BAD") or "false"
    if given not in ("true", "false"):
        raise DataError(f"LN_SKIP_BAD={given} must be true or false")
    return given == "true"


def get(say: Say) -> Source:
    """Says where IAM-OnDB is, or gets what the stand-in is made of; see ``scripts.get_data``. Raises ``DataError``."""
    skip_bad = skip_bad_asked()
    if (folder := iam_ondb.locate()) is not None:
        source = load_handwriting(skip_bad=skip_bad).source
        for name in ("lineStrokes", "ascii"):
            say("present", folder / name)
        return source
    before = pen_fonts.locate()
    try:
        source = load_handwriting().source
    except DataError:
        if not before:
            say_missing(say, [name for name, _ in pen_fonts.WHEELS.values()])
        raise
    say_files(say, before, pen_fonts.locate())
    say("stand-in", "IAM-OnDB: made from these")
    say("optional", f"for the paper's own data {iam_ondb.where_to_place()}")
    return source
