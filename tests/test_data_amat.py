"""The .amat layout: what is read, and what is refused with which words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from data.amat import encode_amat, parse_amat
from data.fetch import DataError

BITS = arrays(np.uint8, st.tuples(st.integers(1, 7), st.integers(1, 9)), elements=st.integers(0, 1))


@given(BITS)
def test_round_trip(bits_ND: np.ndarray) -> None:
    text = encode_amat(bits_ND)
    assert text == b"".join(b" ".join(b"%d" % v for v in row) + b"\n" for row in bits_ND.tolist())
    np.testing.assert_array_equal(parse_amat(text, "f", *bits_ND.shape), bits_ND)


@given(BITS, st.sampled_from([b" ", b"  ", b"\t"]), st.sampled_from([b"\n", b" \n", b"\r\n"]), st.booleans())
def test_any_blanks_and_line_ends(bits_ND: np.ndarray, blank: bytes, end: bytes, last: bool) -> None:
    text = end.join(blank.join(b"%d" % v for v in row) for row in bits_ND.tolist()) + end * last
    parsed_ND = parse_amat(text, "f", *bits_ND.shape)
    np.testing.assert_array_equal(parsed_ND, bits_ND)
    assert parsed_ND.dtype == np.uint8


@given(BITS, st.data())
def test_one_wrong_byte_never_passes_for_other_pixels(bits_ND: np.ndarray, data: st.DataObject) -> None:
    """Any byte replaced: refused, or the same pixels, or only the pixel that the byte spells differs."""
    text = bytearray(encode_amat(bits_ND))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] = data.draw(st.integers(0, 255))
    try:
        parsed_ND = parse_amat(bytes(text), "f", *bits_ND.shape)
    except DataError as error:
        assert "\n" not in str(error)
        return
    assert (parsed_ND != bits_ND).sum() <= (text[at] in b"01")


ROW = b" ".join([b"0"] * 784) + b"\n"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"MATLAB 5.0 MAT-file, Platform: GLNXA64" + b"\0" * 100, "f.amat: a Matlab file, expected text"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 100, "f.amat: a Matlab file"),
        (b"<!DOCTYPE html><html>moved</html>", "f.amat: a web page"),
        (ROW + ROW[2:] + ROW, "row 2 has 783 columns, expected .* 784 values"),
        (ROW[2:] * 3, "row 1 has 783 columns"),
        (ROW + b"0 " + ROW + ROW, "row 2 has 785 columns"),
        (ROW + ROW + ROW.replace(b"0 ", b"2 ", 1), "row 3, column 1 is '2'"),
        (ROW + b"0.0" + ROW[1:] + ROW, "row 2, column 1 is '0.0'"),
        (ROW + ROW.replace(b"0\n", b"x\n") + ROW, "row 2, column 784 is 'x'"),
        (b"\x80\x02caf\xc3\xa9", r"row 1, column 1 is '\\x80"),
        (ROW + b"\n" + ROW, "row 2 has 0 columns"),
        (ROW * 2, r"2 rows instead of 3 \(too few, the file is cut off\)"),
        (ROW * 4, r"4 rows instead of 3 \(too many\)"),
        (ROW * 2 + ROW[:700], "row 3 has 350 columns"),
        (b"", "0 rows instead of 3"),
        (b"\n\n", "0 rows instead of 3"),
    ],
)
def test_refused(content: bytes, why: str) -> None:
    with pytest.raises(DataError, match=why) as error:
        parse_amat(content, "f.amat", 3)
    text = str(error.value)
    assert text.startswith("f.amat: ") and "expected text of binarized MNIST" in text
    assert "replace it by the published file" in text and "\n" not in text


def test_blank_lines_at_the_end_do_not_count() -> None:
    assert parse_amat(ROW * 3 + b"\n\n", "f", 3).shape == (3, 784)
