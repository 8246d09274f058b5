"""The ``.amat`` text layout of binarized MNIST: one image a line, 784 values 0 or 1 separated by blanks.

Other programs save other things under this suffix (Matlab files, floats, web pages of a moved server), so
parsing is strict and every refusal says which row is wrong. Shapes: N rows, D columns.
"""

from __future__ import annotations

import numpy as np

from data.fetch import DataError

LAYOUT = "text of binarized MNIST (Larochelle & Murray): one image a line, {} values 0 or 1 separated by blanks"
_PAIR = int.from_bytes(b"0 ", "little")  # "0 " and "1 " differ in the lowest bit
_LAST = int.from_bytes(b"0\n", "little")


def encode_amat(values_ND: np.ndarray) -> bytes:
    """The published text of a 0/1 matrix, byte for byte."""
    text = np.full((values_ND.shape[0], 2 * values_ND.shape[1]), ord(" "), np.uint8)
    text[:, ::2] = values_ND + ord("0")
    text[:, -1] = ord("\n")
    return text.tobytes()


def parse_amat(data: bytes, where: str, rows: int, columns: int = 784) -> np.ndarray:
    """Decodes the content of an unpacked ``.amat`` file.

    Args:
        data: the bytes.
        where: the file's name, for errors.
        rows: expected number of rows.
        columns: expected number of values in a row.

    Returns:
        uint8 array (rows, columns) of 0 and 1.

    Raises:
        DataError: another kind of file, or a wrong value, row length or number of rows.
    """
    layout = (
        f"expected {LAYOUT.format(columns)}; replace it by the published file, or remove all three to have them fetched"
    )
    start = data[:512].lstrip().lower()
    if data[:6] == b"MATLAB" or data[:8] == b"\x89HDF\r\n\x1a\n":
        raise DataError(f"{where}: a Matlab file, {layout}")
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        raise DataError(f"{where}: a web page, {layout}")
    values_ND = _parse_fixed(data, columns)
    if values_ND is None:
        values_ND = _parse_lines(data, where, columns, layout)
    if (found := len(values_ND)) != rows:
        word = "too few, the file is cut off" if found < rows else "too many"
        raise DataError(f"{where}: {found:,} rows instead of {rows:,} ({word}); {layout}")
    return values_ND


def _parse_fixed(data: bytes, columns: int) -> np.ndarray | None:
    """Fast way for the published layout, where every value and its separator take two bytes; else None."""
    if data[-1:] != b"\n":
        data += b"\n"
    if len(data) % (2 * columns):
        return None
    pairs_ND = np.frombuffer(data, "<u2").reshape(-1, columns)
    bits_ND = pairs_ND & np.uint16(1)
    rest_ND = pairs_ND ^ bits_ND
    if np.all(rest_ND[:, :-1] == _PAIR) and np.all(rest_ND[:, -1] == _LAST):
        return bits_ND.astype(np.uint8)
    return None


def _parse_lines(data: bytes, where: str, columns: int, layout: str) -> np.ndarray:
    """Slow way: any blanks and line ends; finds the first wrong row."""
    lines = data.rstrip().split(b"\n") if data.strip() else []
    values_ND = np.empty((len(lines), columns), np.uint8)
    for number, line in enumerate(lines, 1):
        tokens = line.split()
        for column, token in enumerate(tokens, 1):
            if token not in (b"0", b"1"):
                shown = token[:20].decode("ascii", "backslashreplace")
                raise DataError(f"{where}: row {number}, column {column} is '{shown}', {layout}")
        if len(tokens) != columns:
            raise DataError(f"{where}: row {number} has {len(tokens)} columns, {layout}")
        values_ND[number - 1] = np.frombuffer(b"".join(tokens), np.uint8) - ord("0")
    return values_ND
