"""Lines of the text files that sentence encoders are evaluated on, as they stand."""

from __future__ import annotations

from pathlib import Path

from data.fetch import DataError, read_bytes


def read_lines(path: Path) -> list[str]:
    """All lines of a text file (or of a gzip file), blank ones too, without their line ends.

    Lines end at a line feed, with or without a carriage return before it, and nowhere else: the movie reviews hold
    byte 0x85, which ``str.splitlines`` takes for a line end. Text that is not UTF-8 is Latin-1, as those files are.

    Raises:
        DataError: unreadable, damaged, or no text.
    """
    content = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    if (nul := content.find(b"\0")) >= 0:
        number = content.count(b"\n", 0, nul) + 1
        raise DataError(f"{path}: line {number} holds a NUL byte, so this is no text file; replace it")
    if b"\r" in content and b"\n" not in content:
        raise DataError(f"{path}: line 1 never ends, for there are carriage returns and no line feeds; convert them")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
