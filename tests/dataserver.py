"""For the tests of the data layer: a local web server that behaves well or badly, and small MNIST files."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from data.idx import encode_idx
from data.mnist import FILES, IdxFile

HANG = "hang"  # accepts the connection and never answers
STALL = "stall"  # headers and half a body, then silence
CUT = "cut"  # half a body, then the connection closes
NO_RANGES = "no ranges"  # gives the whole body whatever part is asked for


@contextmanager
def serve(content: dict[str, bytes], behaviour: str = "") -> Iterator[tuple[str, list[str]]]:
    """Serves files by name; yields the base address and the list of paths asked for.

    A part of a file is given as its ``Range`` says, if it is of the version that ``If-Range`` names.
    """
    asked: list[str] = []
    release = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = content.get(self.path.rsplit("/", 1)[-1])
            if behaviour == HANG:
                release.wait(30)
                return
            if body is None:
                self.send_error(404)
                return
            tag = f'"{hashlib.sha256(body).hexdigest()[:8]}"'
            first, size = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"), len(body)
            part = self.headers.get("If-Range") == tag and behaviour != NO_RANGES
            if part and int(first) >= size:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{size}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if part else 200)
            if part:
                body = body[int(first) :]
                self.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
            self.send_header("ETag", tag)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if behaviour in (CUT, STALL):
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                if behaviour == STALL:
                    release.wait(30)
                return
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mnist/", asked
    finally:
        release.set()
        server.shutdown()
        server.server_close()


def tiny_mnist(train: int = 12, test: int = 5) -> tuple[tuple[IdxFile, ...], dict[str, bytes]]:
    """A table of files with the sizes and checksums of random digits, and the content by name."""
    rng = np.random.default_rng(0)
    files, contents = [], {}
    for file in FILES:
        shape = (train if "train" in file.name else test, *file.shape[1:])
        content = encode_idx(rng.integers(0, 256 if len(shape) == 3 else 10, shape).astype(np.uint8))
        files.append(file._replace(shape=shape, sha256=hashlib.sha256(content).hexdigest()))
        contents[file.name] = content
    return tuple(files), contents


def packed(contents: dict[str, bytes]) -> tuple[dict[str, bytes], list[tuple[str, str]]]:
    """The files as a mirror has them (``.gz``), and torchvision's list of (name, md5)."""
    gz = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in contents.items()}
    return gz, [(name, hashlib.md5(content).hexdigest()) for name, content in gz.items()]
