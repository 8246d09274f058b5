"""IAM-OnDB (section 6.5): lines of English written on a whiteboard, in its original layout.

``lineStrokes/a01/a01-000/a01-000u-01.xml`` holds the strokes of line 1 of form a01-000u,
``ascii/a01/a01-000/a01-000u.txt`` the text of all its lines, and the official lists name the forms of each set.
The data set needs a registration, so it is never fetched: place it yourself (``where_to_place``).

Shapes: N lines, P pen offsets of all lines, C characters of all lines.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from data.fetch import DataError, Source, data_roots, raw_dir, read_bytes
from data.iam_xml import read_strokes, read_transcript
from data.parsed_cache import Arrays, cached
from data.strokes import GAP_S, LONGEST, PARTS, PERIOD_S, BadLine, Lines, encode, offsets, pack, statistics

log = logging.getLogger(__name__)

FOLDERS = ("handwriting/iam_ondb", "handwriting", "iam_ondb", "IAM-OnDB", ".")
LIST_FOLDERS = ("task1", ".", "lists")
# The official lists of "task 1" and how many of the lines in use each names (Graves 2013, section 4).
LISTS = {
    "train": ("trainset.txt", 5364),
    "valid_large": ("testset_t.txt", 1518),
    "test": ("testset_f.txt", 3859),
    "valid_small": ("testset_v.txt", 1438),
}
EXPECTED = sum(count for _, count in LISTS.values())  # 12,179, the paper's number
ARCHIVES = ("lineStrokes-all.tar.gz", "ascii-all.tar.gz")
VERSION = f"2:{PERIOD_S}:{GAP_S}:{LONGEST}"  # of what is made from the files
FORM = re.compile(r"[A-Za-z0-9_.-]+")


def where_to_place() -> str:
    """Instruction for placing the data by hand."""
    names = ", ".join(name for name, _ in LISTS.values())
    return (
        f"place lineStrokes/, ascii/ and task1/ ({names}) of IAM-OnDB in {raw_dir() / 'handwriting'} or "
        "$LN_DATA/handwriting"
    )


def locate() -> Path | None:
    """The folder that holds ``lineStrokes`` and ``ascii``, or None if there is neither.

    Raises:
        DataError: one of the two is missing, or still packed, or a folder cannot be read.
    """
    for root in data_roots():
        for folder in (root / name for name in FOLDERS):
            try:
                found = [(folder / name).is_dir() for name in ("lineStrokes", "ascii")]
                packed = [name for name in ARCHIVES if (folder / name).is_file()]
            except OSError as error:
                raise _unreadable(error, folder) from None
            if all(found):
                return folder
            if any(found) or packed:
                missing = [n for n, there in zip(("lineStrokes", "ascii"), found, strict=True) if not there]
                hint = f"unpack {', '.join(packed)} there" if packed else "place it next to the other"
                raise DataError(f"{folder}: incomplete IAM-OnDB, no folder {' and '.join(missing)}; {hint}")
    return None


def load_iam(folder: Path, *, skip_bad: bool = False) -> Lines:
    """All lines that the official lists name, from the cache or the files.

    Without lists the forms are divided by a hash of their names, in the proportions of the lists.

    Args:
        folder: as ``locate`` gives it.
        skip_bad: leave out lines that cannot be used, and count them, instead of raising.

    Raises:
        DataError: a bad line (the first, and how many there are), a bad list, a line that is there twice, strokes that
            are all identical, or nothing left.
    """
    lists = find_lists(folder)
    files, digest = manifest([folder / "lineStrokes", folder / "ascii", *(lists or {}).values()])
    strokes = [path for path in files if path.suffix.lower() == ".xml"]

    def build() -> Arrays:
        return _read(folder, strokes, lists, skip_bad)

    version = f"{VERSION}:{skip_bad}:{digest}"
    arrays, fingerprint = cached("iam_ondb", [folder / "lineStrokes"], build, version=version)
    left_out, bad = arrays.pop("left_out_2").tolist()
    return Lines(**arrays, source=_source(arrays["parts_N"], fingerprint, lists is not None, left_out, bad))


def _source(parts_N: np.ndarray, fingerprint: str, listed: bool, left_out: int, bad: int) -> Source:
    """What the data are, with every count that differs from the published one."""
    count = len(parts_N)
    sizes = ", ".join(f"{part} {int((parts_N == i).sum()):,}" for i, part in enumerate(PARTS))
    detail = [f"{count:,} of the expected {EXPECTED:,} lines ({sizes})"]
    if not listed:
        detail.append("no official lists, so divided by a hash of the forms' names")
    if left_out:
        detail.append(f"{left_out:,} lines of forms in no list left out")
    if bad:
        detail.append(f"{bad:,} bad lines skipped")
    for sentence in detail[count == EXPECTED :]:
        log.info("IAM-OnDB: %s", sentence)
    # A copy that lacks a few lines is still the paper's data; a small part of it is not.
    # Nor is one divided in another way: it trains and tests on other lines.
    whole = listed and count >= 0.95 * EXPECTED
    own = "" if listed else ", divided without its lists"
    return Source(
        kind="original" if whole else "stand-in",
        label="iam" if whole else f"iam-{count}" + "-unlisted" * (not listed),
        name="IAM-OnDB" if whole else f"IAM-OnDB, {count:,} of {EXPECTED:,} lines{own}",
        fingerprint=fingerprint,
        detail="; ".join(detail),
    )


def find_lists(folder: Path) -> dict[str, Path] | None:
    """The official list of each part, or None if there is none of them.

    Raises:
        DataError: only some are there, or a folder cannot be read.
    """
    for place in (folder / name for name in LIST_FOLDERS):
        try:
            # Copies from systems that do not tell capitals from small letters may have either.
            there = {path.name.lower(): path for path in sorted(place.iterdir()) if path.is_file()}
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise _unreadable(error, place) from None
        missing = [name for name, _ in LISTS.values() if name not in there]
        if not missing:
            return {part: there[name] for part, (name, _) in LISTS.items()}
        if len(missing) < len(LISTS):
            raise DataError(f"{place}: incomplete lists, missing {', '.join(missing)}; place them next to the others")
    return None


def manifest(roots: Sequence[Path]) -> tuple[list[Path], str]:
    """All data files below ``roots`` in order, and a digest of their names, sizes and times of change.

    Parsing takes half a minute and this a tenth of a second, so it is how a changed file is noticed.

    Raises:
        DataError: a link that leads nowhere or back, or what cannot be read.
    """
    found: list[tuple[str, int, int]] = []
    pending = [str(root) for root in roots]
    seen: dict[tuple[int, int], str] = {}
    while pending:
        place = pending.pop()
        try:
            here = os.stat(place)
            if not stat.S_ISDIR(here.st_mode):
                found.append((place, here.st_size, here.st_mtime_ns))
                continue
            if (first := seen.setdefault((here.st_dev, here.st_ino), place)) != place:
                raise DataError(f"{place}: the same folder as {first}; remove the link")
            with os.scandir(place) as entries:
                for entry in entries:
                    wanted = entry.name.lower().endswith((".xml", ".txt")) and not entry.name.startswith(".")
                    if wanted and not entry.is_dir():
                        file = entry.stat()
                        found.append((entry.path, file.st_size, file.st_mtime_ns))
                    elif entry.is_dir():
                        pending.append(entry.path)
        except OSError as error:
            raise _unreadable(error, place) from None
    found.sort()
    digest = hashlib.sha256(repr([found, *map(str, roots)]).encode()).hexdigest()
    return [Path(path) for path, _, _ in found], digest


def _unreadable(error: OSError, place: str | Path) -> DataError:
    """What to say of a file or folder that the system refuses."""
    path: str | Path = error.filename or place
    if os.path.islink(path) and not os.path.exists(path):
        return DataError(f"{path}: a link that leads nowhere; remove it or place its file")
    return DataError(f"{path}: cannot be read ({error.strerror or error}); check it and its rights")


def read_lists(lists: Mapping[str, Path]) -> dict[str, int]:
    """Form -> which of ``PARTS`` it belongs to.

    Raises:
        DataError: a list cannot be read or is no list of names, or a form is in two.
    """
    parts: dict[str, int] = {}
    for part, path in lists.items():
        for form in read_bytes(path).decode("latin-1").split():
            if not FORM.fullmatch(form):
                shown = form[:20].encode("unicode_escape").decode()
                raise DataError(f"{path}: '{shown}' is no name of a form; replace the list")
            if parts.setdefault(form, PARTS.index(part)) != PARTS.index(part):
                raise DataError(f"{path}: form {form} is in {LISTS[PARTS[parts[form]]][0]} too; replace the lists")
    return parts


def divide(forms: Mapping[str, int]) -> dict[str, int]:
    """Parts of forms (name -> number of lines) in the proportions of the official lists, by hash of their names."""
    order = sorted(forms, key=lambda form: hashlib.sha256(form.encode()).digest())
    ends = np.cumsum([LISTS[part][1] for part in PARTS]) * sum(forms.values()) / EXPECTED
    before, parts = 0, {}
    for form in order:
        parts[form] = int(np.searchsorted(ends, before + forms[form] / 2).clip(max=len(PARTS) - 1))
        before += forms[form]
    return parts


def _read(folder: Path, files: Sequence[Path], lists: Mapping[str, Path] | None, skip_bad: bool) -> Arrays:
    """Parses everything."""
    by_form: dict[str, list[tuple[int, Path]]] = {}
    seen: dict[tuple[str, int], Path] = {}
    for path in files:
        if (name := re.fullmatch(r"(.+)-(\d+)", path.stem)) is None:
            raise DataError(f"{path}: not named <form>-<line>.xml; rename or remove it")
        if (first := seen.setdefault((name[1], int(name[2])), path)) != path:
            raise DataError(f"{path}: the same line as {first}; remove one of them")
        by_form.setdefault(name[1], []).append((int(name[2]), path))
    counts = {form: len(numbered) for form, numbered in by_form.items()}
    parts = divide(counts) if lists is None else read_lists(lists)
    for part, path in (lists or {}).items():
        if not any(parts.get(form) == PARTS.index(part) for form in counts):
            raise DataError(f"{path}: names no form of {folder / 'lineStrokes'}; replace the list or place its forms")
    lines, bad = [], []
    for form, numbered in sorted(by_form.items()):
        if form not in parts:
            continue
        place = numbered[0][1].parent.relative_to(folder / "lineStrokes")
        transcript = folder / "ascii" / place / f"{form}.txt"
        text: list[str] | BadLine
        try:
            text = read_transcript(transcript)
        except BadLine as error:
            text = error
        for number, path in sorted(numbered):
            try:
                labels = _labels(text, number, len(numbered), transcript)
                lines.append((*offsets(read_strokes(path), str(path)), labels, parts[form]))
            except BadLine as error:
                bad.append(error)
    if bad and not skip_bad:
        more = f" ({len(bad) - 1} more bad lines)" if len(bad) > 1 else ""
        raise DataError(f"{bad[0]}, or set data.skip_bad=true (make: LN_SKIP_BAD=true) to leave it out{more}")
    for problem in bad[:10]:
        log.warning("left out: %s", problem)
    if not lines:
        raise DataError(f"{folder}: no usable line in {len(files)} stroke files; {where_to_place()}")
    arrays = pack(lines)
    # Told here too, where the folder is known. Graves trains on all parts but one.
    trained = [line[0] for line in lines if line[3] != PARTS.index("valid_small")]
    statistics(np.concatenate(trained or [arrays["offsets_P2"]]), str(folder / "lineStrokes"))
    left_out = sum(count for form, count in counts.items() if form not in parts)
    return {**arrays, "left_out_2": np.array([left_out, len(bad)])}


def _labels(text: list[str] | BadLine, number: int, count: int, transcript: Path) -> np.ndarray:
    """Labels of line ``number``, counted from 1, of a form that has ``count`` stroke files."""
    if isinstance(text, BadLine):
        raise text
    if not 1 <= number <= len(text):
        found = f"{len(text)} line{'s' * (len(text) != 1)} of text, but {count} stroke file{'s' * (count != 1)}"
        raise BadLine(f"{transcript}: {found}; line {number} has none: add its text or remove its stroke file")
    return encode(text[number - 1], f"{transcript}, line {number} of the text")
