"""Files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes | str) -> Path:
    """Writes ``path`` through a temporary file beside it and a rename; makes its folder.

    An unchanged file is left alone, so that drawing the same runs again touches nothing.
    Raises ``OSError`` naming the file when the disk refuses.
    """
    body = content.encode() if isinstance(content, str) else content
    if path.is_file() and path.read_bytes() == body:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(body)
        os.chmod(name, 0o644)  # mkstemp makes it private
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def short_path(path: Path) -> str:
    """``path`` relative to the working directory where that is shorter."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
