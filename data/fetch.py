"""Shared by every data set: where files are looked for, downloads, and how a failure is told.

Nothing half-written is ever visible: a download is verified in a staging folder next to its destination and
moved there in one step, and the staging folder goes away whatever happens.

Environment: ``LN_DATA`` (read only, searched first), ``LN_RAW`` (downloads, default ``data/raw``).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import queue
import secrets
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

REPO = Path(__file__).resolve().parents[1]
WAIT_S = 5.0  # all that an unreachable server may cost, name look-up to first byte
GAP_S = 4.0  # longest silence inside a download
MIN_RATE = 20_000  # bytes per second after the first 20 s; slower than this is as good as absent
PROVENANCE = "source.json"
GZIP = b"\x1f\x8b"
STALE_S = 3600.0  # leftovers of a killed process older than this are removed

# How a data set's ``get`` tells of its files: (present | fetched | stand-in | optional | missing, which file).
Say = Callable[[str, object], None]

_unreachable: dict[str, str] = {}  # server -> reason; asked once per process


class DataError(RuntimeError):
    """A data file is missing, damaged or of the wrong layout; one line naming the file and the remedy."""


class FetchError(DataError):
    """One way of getting a file failed; the next one may be tried."""


@dataclass(frozen=True)
class Source:
    """Where a data set came from; goes into a run's meta, captions and comparisons.

    Attributes:
        kind: "original" (local files in the official layout), "mirror" (downloaded) or "stand-in".
        label: short slug used in output paths: "mnist", "fixed", "bernoulli".
        name: full name of the data set.
        fingerprint: sha256 hex over the label and the decoded arrays, the same whichever way they came.
        detail: one sentence for captions, e.g. what a stand-in is and why it is used.
    """

    kind: str
    label: str
    name: str
    fingerprint: str
    detail: str


def raw_dir() -> Path:
    """Folder that downloads are saved to: $LN_RAW, or data/raw of the repository."""
    return Path(os.environ.get("LN_RAW") or REPO / "data" / "raw").expanduser().absolute()


def data_roots() -> list[Path]:
    """Folders searched for data files, in order: $LN_DATA if set, then the raw folder.

    Raises:
        DataError: $LN_DATA is set but is not a folder; going on without it would hide a typo.
    """
    if not os.environ.get("LN_DATA"):
        return [raw_dir()]
    given = Path(os.environ["LN_DATA"]).expanduser().absolute()
    if not given.is_dir():
        raise DataError(f"LN_DATA={os.environ['LN_DATA']}: no such folder; correct it or unset LN_DATA")
    return [given, raw_dir()]


def find_set(
    names: Sequence[Sequence[str]], folders: Sequence[str], *, partial_raw_ok: bool = False
) -> list[Path] | None:
    """Finds a set of files that belong together.

    Args:
        names: for each file, the names it may have; each also with ``.gz``.
        folders: sub-folders of a root to look into, "." for the root itself.
        partial_raw_ok: an incomplete set in the raw folder counts as absent (it can be fetched again).

    Returns:
        The paths in the order of ``names``, or None if no root holds any of the files.

    Raises:
        DataError: a root holds some of the files but not all; names those that are missing.
    """
    for root in data_roots():
        partial: tuple[Path, list[str]] | None = None
        for folder in (root / f for f in folders):
            options = [[folder / (n + suffix) for n in each for suffix in ("", ".gz")] for each in names]
            found = [next((p for p in each if p.is_file()), None) for each in options]
            complete = [p for p in found if p is not None]
            if len(complete) == len(names):
                return complete
            if complete and partial is None:
                missing = [each[0] for each, path in zip(names, found, strict=True) if path is None]
                partial = folder, missing
        if partial and not (partial_raw_ok and root == raw_dir()):
            folder, missing = partial
            wanted = ", ".join(f"{name}[.gz]" for name in missing)
            raise DataError(f"{folder}: incomplete, missing {wanted}; place them next to the others")
    return None


def say_files(say: Say, before: Sequence[Path] | None, now: Sequence[Path] | None) -> None:
    """Tells of a set's files after it was loaded: fetched if they were not there ``before``."""
    for path in now or ():
        say("present" if before else "fetched", path)


def say_missing(say: Say, names: Sequence[str]) -> None:
    """Tells of the files that could not be had."""
    for name in names:
        say("missing", f"{name}[.gz]")


def record_origin(folder: Path, origin: str) -> None:
    """Notes beside fetched files where they came from."""
    (folder / PROVENANCE).write_text(json.dumps({"origin": origin}) + "\n")


def origin_of(folder: Path) -> str | None:
    """Where fetched files came from, None for files that the user placed."""
    try:
        return str(json.loads((folder / PROVENANCE).read_text())["origin"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return "an unrecorded place"


def is_gzip(path: Path) -> bool:
    """Whether a file is gzip, told by its first bytes: names lie after a browser has unpacked a download."""
    with open(path, "rb") as file:
        return file.read(2) == GZIP


def read_bytes(path: Path) -> bytes:
    """Content of a file, unpacked if it is gzip.

    Raises:
        DataError: unreadable, or a truncated or damaged gzip file.
    """
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == GZIP else data
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: truncated or damaged gzip file ({error}); replace it") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the file") from None


def fingerprint(name: str, arrays: Mapping[str, np.ndarray]) -> str:
    """sha256 hex over a data set's name and its decoded arrays (key, dtype, shape and content of each)."""
    digest = hashlib.sha256(name.encode())
    for key, array in arrays.items():
        digest.update(f"|{key}:{array.dtype.str}:{array.shape}|".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def sweep_stale(folder: Path) -> None:
    """Removes what a killed process left behind, once it is old enough not to belong to a living one."""
    for path in folder.glob(".*.tmp"):
        try:
            if time.time() - path.stat().st_mtime > STALE_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError:
            pass  # another process was faster, or it is not ours to remove


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A new folder beside ``target`` whose files move into ``target`` if the block succeeds.

    Raises:
        DataError: the disk is full or read-only; nothing is left behind.
    """
    staging = target.parent / f".{target.name}-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep_stale(target.parent)
        staging.mkdir()
        yield staging
        try:
            os.rename(staging, target)  # one step, if the folder is new
        except OSError:
            target.mkdir(exist_ok=True)
            for path in sorted(staging.iterdir()):
                os.replace(path, target / path.name)
    except OSError as error:
        why = error.strerror or error
        raise DataError(f"{target}: cannot be written ({why}); free space or set LN_RAW") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def download(url: str, path: Path, known_hash: str, *, wait_s: float = WAIT_S) -> None:
    """Downloads one file and verifies it; ``path`` exists afterwards only if it is the right file.

    Args:
        url: http(s) address.
        path: destination.
        known_hash: as pooch takes it, ``sha256:…`` or ``md5:…``.
        wait_s: seconds for everything up to the first bytes. A server that fails to answer is not asked again
            by this process.

    Raises:
        FetchError: unreachable, an HTTP error, a broken or stalled transfer, or a wrong checksum.
        OSError: the disk is full or read-only.
    """
    import pooch  # imported here, with requests, so that reading the cache does not pay for them
    import requests

    server = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    if server in _unreachable:
        raise FetchError(f"{url}: {_unreachable[server]}")
    pooch.get_logger().setLevel("ERROR")  # pooch announces each download; the callers do that

    def fetch(url: str, output_file: str, _: Any) -> None:
        _stream(url, Path(output_file), wait_s)

    try:
        pooch.retrieve(url, known_hash, fname=path.name, path=path.parent, downloader=fetch)
        os.chmod(path, 0o644)  # pooch's temporary files are private
    except requests.RequestException as error:
        reason = network_reason(error, wait_s)
        if isinstance(error, requests.ConnectionError | requests.Timeout):
            _unreachable[server] = reason
        raise FetchError(f"{url}: {reason}") from None
    except ValueError:  # pooch's word for a wrong hash
        raise FetchError(f"{url}: wrong checksum, expected {known_hash}; damaged or not the file") from None


def open_url(url: str, wait_s: float, headers: Mapping[str, str] | None = None) -> tuple[Any, Iterator[bytes], bytes]:
    """Asks for ``url``: the response, its chunks, and the first of them. Raises ``requests.RequestException``."""
    import requests

    answers: queue.Queue[Any] = queue.Queue()

    def ask() -> None:
        try:
            response = requests.get(url, stream=True, timeout=(wait_s, min(GAP_S, wait_s)), headers=headers)
            response.raise_for_status()
            chunks = response.iter_content(1 << 16)
            answers.put((response, chunks, next(chunks, b"")))
        except Exception as error:  # handed to the waiting thread, which raises it
            answers.put(error)

    # In a thread, because no timeout of a socket covers name look-up, several addresses, TLS and redirects
    # together; a daemon, because a hanging look-up cannot be cancelled.
    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=wait_s)
    except queue.Empty:
        raise requests.Timeout() from None
    if isinstance(answer, Exception):
        raise answer
    response, chunks, chunk = answer
    return response, chunks, chunk


def byte_bar(url: str, total: int | None, done: int = 0) -> Any:
    """The progress bar of a download, of which ``done`` bytes are there; silent without a terminal."""
    from tqdm import tqdm

    name = url.rsplit("/", 1)[-1]
    return tqdm(
        total=total, initial=done, unit="B", unit_scale=True, desc=name, leave=False, disable=not sys.stderr.isatty()
    )


def _stream(url: str, path: Path, wait_s: float) -> None:
    """Writes the body of ``url`` to ``path``, with a progress bar on a terminal."""
    import requests

    response, chunks, chunk = open_url(url, wait_s)
    started, done = time.monotonic(), 0
    total = int(response.headers.get("content-length") or 0) or None
    with (
        response,
        open(path, "wb") as out,
        byte_bar(url, total) as bar,
    ):
        while chunk:
            out.write(chunk)
            bar.update(len(chunk))
            done += len(chunk)
            if (elapsed := time.monotonic() - started) > 20 and done < MIN_RATE * elapsed:
                raise requests.Timeout()
            chunk = next(chunks, b"")


def network_reason(error: Exception, wait_s: float) -> str:
    """A network error in a few words; the libraries' own texts nest several exceptions."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code}"
    if isinstance(error, requests.exceptions.SSLError):
        return "TLS failed"
    if isinstance(error, requests.Timeout) or "timed out" in str(error):
        return f"no answer, or too slow (waited {wait_s:g} s)"
    if "resolve" in str(error) or "Name or service" in str(error):
        return "host name cannot be resolved"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "transfer broke off"
    return "connection failed"
