"""Handwriting for section 6.5: IAM-OnDB where it has been placed, else a stand-in made from fonts."""

from __future__ import annotations

from data import iam_ondb, pen_stand_in
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
