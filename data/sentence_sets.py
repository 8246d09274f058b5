"""MR, CR, SUBJ and MPQA: sentences of two classes (section 6.3), in their original files or those of SentEval's mirror.

One sentence a line, one file a class. The count of each file is checked: an incomplete copy, or one cut at other line
ends, gives scores that look right and are not.

Shapes: N sentences.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from data.archive import judged, obtain, unpack
from data.fetch import DataError, FetchError, Source, find_set, fingerprint, origin_of, raw_dir, record_origin, staged
from data.plain_lines import read_lines

log = logging.getLogger(__name__)

BASES = ("skip_thoughts/downstream", "skip_thoughts", "downstream", ".")
URL = "https://dl.fbaipublicfiles.com/senteval/senteval_data/datasmall_NB_ACL12.zip"


class Files(NamedTuple):
    """Files of one set.

    Attributes:
        title: what the set is.
        ones: names of the file whose sentences have label 1, the original's first.
        zeros: of the one with label 0.
        counts: lines of the two.
        mirror: folder of the set in the mirror's archive.
    """

    title: str
    ones: tuple[str, ...]
    zeros: tuple[str, ...]
    counts: tuple[int, int]
    mirror: str


SETS = {
    "MR": Files("movie reviews", ("rt-polarity.pos",), ("rt-polarity.neg",), (5331, 5331), "rt10662"),
    "CR": Files("customer reviews", ("custrev.pos",), ("custrev.neg",), (2407, 1368), "customerr"),
    "SUBJ": Files("subjectivity", ("plot.tok.gt9.5000", "subj.objective"), ("quote.tok.gt9.5000", "subj.subjective"),
                  (5000, 5000), "subj"),
    "MPQA": Files("opinion polarity", ("mpqa.pos",), ("mpqa.neg",), (3312, 7294), "mpqa"),
}  # fmt: skip


@dataclass(frozen=True)
class SentenceSet:
    """Sentences of two classes.

    Attributes:
        name: as in ``SETS``, or of a stand-in.
        sentences: as they stand in the file, label 1 first, in the file's own tokenisation; some of CR and MPQA are
            blank.
        label_N: 0 or 1, int8.
        source: where they came from.
    """

    name: str
    sentences: list[str]
    label_N: np.ndarray
    source: Source

    def __len__(self) -> int:
        return len(self.sentences)


def folders(name: str, alias: str | None = None) -> list[str]:
    """Folders of a root in which a set may lie."""
    names = [name] if alias is None else [name, alias]
    return [f"{base}/{inner}" for base in BASES for inner in names] + list(BASES)


def locate(name: str) -> list[Path] | None:
    """The two files of a set, label 1 first, or None. Raises ``DataError`` if only one is there."""
    files = SETS[name]
    return find_set([files.ones, files.zeros], folders(name, files.mirror))


def where_to_place(name: str) -> str:
    """Instruction for placing a set by hand, or having it fetched."""
    files = SETS[name]
    inner = f"skip_thoughts/downstream/{name}"
    return (
        f"place {files.ones[0]} and {files.zeros[0]} in {raw_dir() / inner} or $LN_DATA/{inner}, or have them "
        f"fetched by LN_LARGE=1 make data TASK=skip_thoughts ({URL})"
    )


def load(name: str) -> SentenceSet | None:
    """A set of ``SETS``, or None where it is absent. Raises ``DataError`` if it is damaged or incomplete."""
    paths = locate(name)
    return None if paths is None else read(name, paths)


def read(name: str, paths: list[Path]) -> SentenceSet:
    """The set in two files, label 1 first.

    Raises:
        DataError: a file is unreadable, or has another number of lines than the set, or nothing in them; or both hold
            the same sentences.
    """
    files = SETS[name]
    classes = []
    for path, count in zip(paths, files.counts, strict=True):
        lines = [line.strip() for line in read_lines(path)]
        if len(lines) != count:
            raise DataError(
                f"{path}: {len(lines):,} line{'s' * (len(lines) != 1)}, {name} has {count:,} in this file and "
                f"{sum(files.counts):,} in all; replace it by the original"
            )
        if not any(lines):
            raise DataError(f"{path}: all {count:,} lines are blank; replace it by the original")
        classes.append(lines)
    if set(classes[0]) == set(classes[1]):
        raise DataError(f"{paths[1]}: the same sentences as in {paths[0].name}; replace one of them by the original")
    sentences = classes[0] + classes[1]
    origin = origin_of(paths[0].parent)
    detail = f"{len(sentences):,} sentences" + (f", fetched from {origin}" if origin else "")
    return labelled(
        name, f"{name} ({files.title})", sentences, len(classes[0]), "mirror" if origin else "original", detail
    )


def labelled(name: str, title: str, sentences: list[str], ones: int, kind: str, detail: str) -> SentenceSet:
    """A set whose first ``ones`` sentences have label 1."""
    label_N = (np.arange(len(sentences)) < ones).astype(np.int8)
    text = np.frombuffer("\n".join(sentences).encode(), dtype=np.uint8)
    digest = fingerprint(name, {"sentences": text, "label_N": label_N})
    return SentenceSet(name, sentences, label_N, Source(kind, name.lower(), title, digest, detail))


def fetch(names: list[str], url: str = URL) -> None:
    """Downloads the mirror's archive and puts these sets into data/raw, each only if it is whole.

    Raises:
        FetchError: unreachable, no zip file, or without one of the sets.
        DataError: the disk cannot be written.
    """
    target = raw_dir() / "skip_thoughts" / "downstream"
    archive = target / url.rsplit("/", 1)[-1]
    obtain(url, archive)
    for name in names:
        with staged(target / name) as staging, judged(url, archive, staging):
            read(name, _unpack(archive, staging, SETS[name]))
            record_origin(staging, url)
    archive.unlink()


def _unpack(archive: Path, staging: Path, files: Files) -> list[Path]:
    def wanted(member: PurePosixPath) -> PurePosixPath | None:
        inside = member.parent.name == files.mirror and member.name in (*files.ones, *files.zeros)
        return PurePosixPath(member.name) if inside else None

    written = {path.name: path for path in unpack(archive, staging, wanted)}
    found = [next((written[name] for name in names if name in written), None) for names in (files.ones, files.zeros)]
    for path, names in zip(found, (files.ones, files.zeros), strict=True):
        if path is None:
            raise FetchError(f"{archive}: holds no {files.mirror}/{names[-1]}; another archive, or changed")
    return [path for path in found if path is not None]
