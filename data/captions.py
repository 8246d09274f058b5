"""Caption files of the order-embedding task (§6.1): one caption a line, five consecutive lines an image.

Lines end at a line feed only: other characters that Python's ``splitlines`` takes for line ends occur inside
captions. Every refusal names the file and the line, counted from 1.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.fetch import DataError

PER_IMAGE = 5  # the protocol of the paper and of every published layout
EOS, UNKNOWN, FIRST_WORD = 0, 1, 2  # word ids; the authors' code numbers them the same way
LONGEST = 1000  # words; what is longer is no caption, and each word is a step of the recurrent layer

_COLUMN = (
    r"(image|images|img|file|filename|image_name|image_id|id|caption|captions|comment|comment_number|sentence|raw)"
)
_HEADER = re.compile(rf'^\W*{_COLUMN}"?\s*([,;|\t].*\b{_COLUMN}\b.*)?$', re.IGNORECASE)
_IMAGE_NAME = re.compile(r"\.(jpe?g|png)(#\d+)?[\"']?\s*[,;|\t ]", re.IGNORECASE)
_NUMBERED = re.compile(r"""^["']?\d+["']?(\s*[|\t]|[,;]["'A-Za-z])""")  # "5,000 people" is a caption
_MARKUP = re.compile(r"^(<(!doctype|\?xml|html)\b|\{\s*\"|\[\s*[{\[\"])", re.IGNORECASE)
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # UTF-16 read as UTF-8, or such escapes in JSON
_PUNCTUATION = re.compile(r"[^\w\s']|_")

Caption = list[str]


class Encoded(NamedTuple):
    """Captions as word ids, one after the other.

    Attributes:
        words: ids of all captions, int32, without EOS.
        starts: where caption n begins, int64; one entry more than there are captions.
    """

    words: np.ndarray
    starts: np.ndarray


def read_captions(path: Path, *, tokenised: bool) -> list[Caption]:
    """The captions of one file as words.

    Args:
        path: UTF-8 text.
        tokenised: words are separated by blanks already (the order-embedding layout) and taken as they are;
            otherwise letters are made small and punctuation is dropped, as in the tokens of Karpathy's files.

    Raises:
        DataError: not UTF-8, a CSV, JSON or a web page, an empty or an endless caption, or no multiple of five lines.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the file") from None
    if b"\r" in content and b"\n" not in content:
        raise DataError(f"{path}: its lines end with a carriage return only; end them with a line feed")
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if lines and not lines[-1].strip():
        lines.pop()
    captions = []
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}: line {number} is not UTF-8 (byte 0x{line[error.start]:02x}); convert the file to UTF-8"
            ) from None
        if number == 1 and (what := _no_caption(text)):
            raise DataError(
                f"{path}: line 1 is {what}, not a caption; "
                "the file must hold captions only, five consecutive lines an image"
            )
        words = text.split() if tokenised else tokenise(text)
        if fault := caption_fault(text, words):
            raise DataError(f"{path}: line {number} is {fault}")
        captions.append(list(map(sys.intern, words)))  # millions of words, thousands of different ones
    if not captions or len(captions) % PER_IMAGE:
        raise DataError(
            f"{path}: {len(captions)} lines are no multiple of {PER_IMAGE}; line {len(captions)} is the last: each "
            f"image needs {PER_IMAGE} consecutive lines, without a header"
        )
    return captions


def _no_caption(text: str) -> str | None:
    """What the first line of a file is if it is known to be something else than a caption."""
    if _HEADER.match(text) or _IMAGE_NAME.search(text) or _NUMBERED.match(text):
        return "the header or a row of a table"
    return "JSON or a web page" if _MARKUP.match(text) else None


def caption_fault(text: str, words: Caption) -> str | None:
    """Why a text of some words is no caption, and what to do; None if it is one."""
    if _NO_TEXT.search(text):
        return "no text, it holds a NUL or half a character; convert it to UTF-8"
    if not words or not any(map(str.isprintable, "".join(words))):
        return f"{'empty' if not text else 'without a word'}; each must hold one caption"
    if len(words) > LONGEST:
        return f"{len(words):,} words long, a caption has at most {LONGEST:,}; give each its own line"
    return None


def tokenise(text: str) -> Caption:
    """Words of a sentence: small letters, no punctuation."""
    return _PUNCTUATION.sub(" ", text.lower()).replace("'", "").split()


def build_vocabulary(captions: Iterable[Caption]) -> list[str]:
    """Words by falling frequency, then by alphabet; word n has the id ``FIRST_WORD + n``."""
    counts = Counter(word for caption in captions for word in caption)
    return sorted(counts, key=lambda word: (-counts[word], word))


def encode(captions: Sequence[Caption], vocabulary: Sequence[str]) -> Encoded:
    """Word ids of captions; a word outside the vocabulary becomes ``UNKNOWN``."""
    ids = {word: number for number, word in enumerate(vocabulary, FIRST_WORD)}
    words = [ids.get(word, UNKNOWN) for caption in captions for word in caption]
    starts = np.cumsum([0, *map(len, captions)], dtype=np.int64)
    return Encoded(np.array(words, dtype=np.int32), starts)
