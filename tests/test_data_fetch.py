"""Looking for files, downloads from good and bad servers, and writing all or nothing."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import time
from pathlib import Path

import numpy as np
import pytest
from dataserver import CUT, HANG, STALL, serve

from data import fetch
from data.fetch import DataError, FetchError

BODY = bytes(range(256)) * 2000
SHA = "sha256:" + hashlib.sha256(BODY).hexdigest()


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LN_RAW", str(tmp_path / "raw"))
    monkeypatch.delenv("LN_DATA", raising=False)
    monkeypatch.setattr(fetch, "_unreachable", {})


def one_line(error: pytest.ExceptionInfo[DataError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_roots_are_ln_data_then_raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetch.data_roots() == [tmp_path / "raw"]
    monkeypatch.setenv("LN_DATA", str(tmp_path))
    assert fetch.data_roots() == [tmp_path, tmp_path / "raw"]
    monkeypatch.delenv("LN_RAW")
    assert fetch.data_roots()[1] == fetch.REPO / "data" / "raw"


def test_a_misspelt_ln_data_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LN_DATA", "/nowhere/daat")
    with pytest.raises(DataError, match="LN_DATA=/nowhere/daat: no such folder"):
        fetch.data_roots()


def test_find_set_prefers_ln_data_and_plain_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "given"
    monkeypatch.setenv("LN_DATA", str(given))
    for folder in (given / "sub", tmp_path / "raw" / "sub"):
        folder.mkdir(parents=True)
        for name in ("a", "a.gz", "b.gz"):
            (folder / name).touch()
    found = fetch.find_set([("a",), ("b",)], ["other", "sub"])
    assert found == [given / "sub" / "a", given / "sub" / "b.gz"]


def test_an_incomplete_set_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = tmp_path / "raw" / "sub"
    raw.mkdir(parents=True)
    (raw / "a").touch()
    with pytest.raises(DataError) as error:
        fetch.find_set([("a",), ("b",), ("c",)], ["sub"])
    assert "missing b[.gz], c[.gz]" in one_line(error) and str(raw) in one_line(error)
    assert fetch.find_set([("a",), ("b",)], ["sub"], partial_raw_ok=True) is None
    monkeypatch.setenv("LN_DATA", str(tmp_path / "raw"))  # what the user points to is not fetched again
    monkeypatch.setenv("LN_RAW", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match="missing b"):
        fetch.find_set([("a",), ("b",)], ["sub"], partial_raw_ok=True)


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    (tmp_path / "plain.gz").write_bytes(b"text")
    (tmp_path / "packed").write_bytes(gzip.compress(b"text"))
    assert fetch.read_bytes(tmp_path / "plain.gz") == fetch.read_bytes(tmp_path / "packed") == b"text"


@pytest.mark.parametrize("spoil", [lambda b: b[:-20], lambda b: b[:100] + b"xxxx" + b[104:]])
def test_a_damaged_gzip_file_is_named(tmp_path: Path, spoil) -> None:
    path = tmp_path / "f.gz"
    path.write_bytes(spoil(gzip.compress(os.urandom(1000))))
    with pytest.raises(DataError, match="truncated or damaged gzip") as error:
        fetch.read_bytes(path)
    assert str(path) in one_line(error)


def test_fingerprint_sees_name_key_type_shape_and_values() -> None:
    a = np.arange(6, dtype=np.uint8)
    prints = [
        fetch.fingerprint("x", {"k": a}),
        fetch.fingerprint("y", {"k": a}),
        fetch.fingerprint("x", {"j": a}),
        fetch.fingerprint("x", {"k": a.astype(np.int64)}),
        fetch.fingerprint("x", {"k": a.reshape(2, 3)}),
        fetch.fingerprint("x", {"k": a[::-1]}),
    ]
    assert len(set(prints)) == len(prints)
    assert fetch.fingerprint("x", {"k": a.reshape(2, 3).T.copy().T.reshape(6)}) == prints[0]


def test_download(tmp_path: Path) -> None:
    with serve({"f": BODY}) as (url, _):
        fetch.download(url + "f", tmp_path / "f", SHA)
    assert (tmp_path / "f").read_bytes() == BODY
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize(
    ("behaviour", "served", "why"),
    [
        (CUT, BODY, "transfer broke off"),
        ("", BODY[:-1], "wrong checksum"),
        ("", None, "HTTP 404"),
        (HANG, BODY, "no answer"),
        (STALL, BODY, "no answer"),
    ],
)
def test_a_failed_download_leaves_nothing(
    tmp_path: Path, behaviour: str, served: bytes | None, why: str
) -> None:
    started = time.monotonic()
    with serve({} if served is None else {"f": served}, behaviour) as (url, asked):
        with pytest.raises(FetchError, match=why) as error:
            fetch.download(url + "f", tmp_path / "f", SHA, wait_s=0.5)
        assert url + "f" in one_line(error)
        assert time.monotonic() - started < 3
        if behaviour == HANG:  # a server that does not answer is not asked again
            with pytest.raises(FetchError, match=why):
                fetch.download(url + "g", tmp_path / "g", SHA, wait_s=0.5)
            assert len(asked) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_server_costs_at_most_five_seconds() -> None:
    assert fetch.WAIT_S <= 5 and fetch.GAP_S < 5


def test_unknown_host_and_closed_port(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="resolved|no answer|connection failed"):
        fetch.download("http://no-such-host.invalid/f", tmp_path / "f", SHA)
    with pytest.raises(FetchError, match="connection failed"):
        fetch.download("http://127.0.0.1:9/f", tmp_path / "f", SHA)


def test_staged_publishes_all_or_nothing(tmp_path: Path) -> None:
    target = tmp_path / "raw" / "set"
    with pytest.raises(ValueError), fetch.staged(target) as staging:
        (staging / "a").write_text("half")
        raise ValueError
    assert list((tmp_path / "raw").iterdir()) == []
    for text in ("one", "two"):  # the second time into a folder that exists
        with fetch.staged(target) as staging:
            (staging / "a").write_text(text)
        assert (target / "a").read_text() == text
    assert [p.name for p in (tmp_path / "raw").iterdir()] == ["set"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be written .No space left") as error:
        with fetch.staged(tmp_path / "raw" / "set") as staging:
            (staging / "a").write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")
    assert "LN_RAW" in one_line(error)
    assert list((tmp_path / "raw").iterdir()) == []


def test_a_read_only_disk_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "raw").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="cannot be written"), fetch.staged(tmp_path / "raw" / "set"):
        pass


def test_only_old_leftovers_are_swept(tmp_path: Path) -> None:
    old, new = tmp_path / ".set-1-aa.tmp", tmp_path / ".set-2-bb.tmp"
    for folder in (old, new):
        folder.mkdir()
        (folder / "half").touch()
    os.utime(old, (0, 0))
    fetch.sweep_stale(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [new.name]


def test_origin_of_fetched_and_placed_files(tmp_path: Path) -> None:
    assert fetch.origin_of(tmp_path) is None
    fetch.record_origin(tmp_path, "somewhere")
    assert fetch.origin_of(tmp_path) == "somewhere"
    (tmp_path / fetch.PROVENANCE).write_text("{")
    assert fetch.origin_of(tmp_path) == "an unrecorded place"
