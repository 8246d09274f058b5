"""Large downloads that go on where they stopped, and archives unpacked without trusting their names.

A download lives in ``<name>.part`` beside its destination, with ``<name>.part.json`` saying which version of the file
it is a part of; it becomes ``<name>`` once it is whole.
"""

from __future__ import annotations

import errno
import json
import lzma
import os
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from data import fetch
from data.fetch import WAIT_S, DataError, FetchError, byte_bar, network_reason, open_url

CHUNK = 1 << 20


def large_asked() -> bool:
    """Whether $LN_LARGE asks to fetch what is large; empty counts as not given. Raises ``DataError``."""
    given = os.environ.get("LN_LARGE") or "0"
    if given not in ("0", "1"):
        raise DataError(f"LN_LARGE={given} must be 1 (fetch large files too) or 0")
    return given == "1"


def download_large(url: str, path: Path, *, wait_s: float = WAIT_S) -> None:
    """Downloads one file, going on with what an earlier attempt left; shows progress on a terminal.

    What cannot be checked here is that it is the right file: no checksum of it is published.

    Args:
        url: http(s) address.
        path: destination.
        wait_s: seconds for everything up to the first bytes.

    Raises:
        FetchError: unreachable, an HTTP error, or a transfer that broke off; what has come stays for the next attempt.
        OSError: the disk is full or read-only.
    """
    import requests

    server = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    if server in fetch._unreachable:
        raise FetchError(f"{url}: {fetch._unreachable[server]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    part, note = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.json")
    try:
        if not _transfer(url, part, note, wait_s):  # the part is of no use
            part.unlink(missing_ok=True)
            _transfer(url, part, note, wait_s)
    except requests.RequestException as error:
        reason = network_reason(error, wait_s)
        have = part.stat().st_size if part.exists() else 0
        if isinstance(error, requests.ConnectionError | requests.Timeout) and not have:
            fetch._unreachable[server] = reason
        kept = f"; {have / 1e6:.1f} MB are kept, start again to go on" if have and _version(note) else ""
        raise FetchError(f"{url}: {reason}{kept}") from None
    os.replace(part, path)
    note.unlink(missing_ok=True)


def obtain(url: str, archive: Path) -> None:
    """``download_large``, unless the archive is there already.

    Raises:
        FetchError: as ``download_large``.
        DataError: the disk cannot be written.
    """
    try:
        if not archive.is_file():
            download_large(url, archive)
    except OSError as error:
        raise DataError(f"{archive}: cannot be written ({error.strerror or error}); free space or set LN_RAW") from None


@contextmanager
def judged(url: str, archive: Path, staging: Path) -> Iterator[None]:
    """The block unpacks an archive into ``staging`` and checks what was in it.

    Raises:
        FetchError: the block raised ``DataError``: damaged, or not what it should be. The archive is removed, since it
            would fail again; the line names no file of ``staging``, which is about to go away too. What is wrong with
            the disk passes, and the archive stays.
    """
    try:
        yield
    except DataError as error:
        archive.unlink(missing_ok=True)
        told = str(error).replace(str(archive), archive.name)
        told = told.replace(f"{staging}/", "").replace(str(staging), archive.name)
        raise FetchError(f"{url}: {told}; it has been removed, so that the next attempt fetches it anew") from None


def _transfer(url: str, part: Path, note: Path, wait_s: float) -> bool:
    """Gets what is missing of ``part``. Returns whether it is whole; raises if the transfer breaks off."""
    import requests

    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}  # or the sizes would be those of another encoding
    if have and (version := _version(note)):
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    try:
        response, chunks, chunk = open_url(url, wait_s, headers)
    except requests.HTTPError as error:
        if error.response is None or error.response.status_code != 416:
            raise
        # Nothing comes after what we have: it is whole, or of another file.
        return bool(error.response.headers.get("content-range", "").endswith(f"/{have}"))
    with response:
        resumed = response.status_code == 206
        if resumed and not response.headers.get("content-range", "").startswith(f"bytes {have}-"):
            return False
        # A weak ETag may not be used in If-Range.
        tag = response.headers.get("etag") or response.headers.get("last-modified") or ""
        note.write_text(json.dumps({"version": "" if tag.startswith("W/") else tag}))
        length = response.headers.get("content-length")
        total = int(length) + (have if resumed else 0) if length else None
        done = have if resumed else 0
        with (
            open(part, "ab" if resumed else "wb") as out,
            byte_bar(url, total, done) as bar,
        ):
            while chunk:
                out.write(chunk)
                bar.update(len(chunk))
                done += len(chunk)
                chunk = next(chunks, b"")
    if total is not None and done != total:
        raise requests.exceptions.ChunkedEncodingError()
    return True


def _version(note: Path) -> str:
    try:
        return str(json.loads(note.read_text())["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def unpack(archive: Path, target: Path, wanted: Callable[[PurePosixPath], PurePosixPath | None]) -> list[Path]:
    """Unpacks the wanted members of a zip file; its checksums are verified on the way.

    Args:
        archive: zip file.
        target: folder that exists.
        wanted: gives each member's place below ``target``, or None to leave it out.

    Returns:
        The files written.

    Raises:
        FetchError: no zip file, damaged, or with a member whose name leaves the folder it is unpacked into, or two
            for the same place.
        OSError: the disk is full or read-only.
    """
    written: dict[Path, str] = {}
    try:
        with zipfile.ZipFile(archive) as content:
            for member in content.infolist():
                name = PurePosixPath(member.filename.replace("\\", "/"))
                link = (member.external_attr >> 16) & 0o170000 == 0o120000
                if name.is_absolute() or ".." in name.parts or re.match(r"[A-Za-z]:", str(name)) or link:
                    raise FetchError(f"{archive}: holds {member.filename!r}, which leaves the folder; not unpacked")
            for member in content.infolist():
                place = None if member.is_dir() else wanted(PurePosixPath(member.filename.replace("\\", "/")))
                if place is None:
                    continue
                path = target / place
                if path in written:
                    raise FetchError(f"{archive}: holds {written[path]!r} and {member.filename!r}, both for {place}")
                path.parent.mkdir(parents=True, exist_ok=True)
                with content.open(member) as source, open(path, "wb") as out:
                    shutil.copyfileobj(source, out, CHUNK)
                written[path] = member.filename
    except FetchError:  # itself a RuntimeError
        raise
    except (*_DAMAGE, OSError) as error:
        # Unpackers raise OSError without a number, a place before the file's start gives EINVAL; else it is the disk.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FetchError(f"{archive}: damaged or no zip file ({reason}); replace it") from None
    return list(written)


# What the unpackers raise on bytes that are not what they should be. ValueError: a name that is no UTF-8.
_DAMAGE: Any = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, RuntimeError, ValueError)
