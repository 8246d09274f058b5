"""The cache of parsed arrays: hit, stale, damaged, read-only, and several processes at once."""

from __future__ import annotations

import logging
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from data import parsed_cache
from data.fetch import DataError, fingerprint
from data.parsed_cache import Arrays, cache_path, cached


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LN_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "source"
    path.write_text("3")
    return path


class Build:
    """Parses the source file and counts how often it was asked to."""

    def __init__(self, source: Path) -> None:
        self.source, self.calls = source, 0

    def __call__(self) -> Arrays:
        self.calls += 1
        bits = np.random.default_rng(int(self.source.read_text())).integers(0, 2, (40, 13))
        return {"bits": bits.astype(np.uint8), "more": 1 - bits.astype(np.uint8)}


@pytest.mark.parametrize("bits", [False, True])
def test_second_time_comes_from_the_cache(source: Path, bits: bool) -> None:
    build = Build(source)
    first, digest = cached("set", [source], build, bits=bits)
    again, digest_again = cached("set", [source], build, bits=bits)
    assert build.calls == 1 and digest == digest_again == fingerprint("set", first)
    assert list(first) == list(again)
    for key in first:
        np.testing.assert_array_equal(first[key], again[key])
        assert again[key].dtype == np.uint8
    assert [p.suffix for p in cache_path("set", [source]).parent.iterdir()] == [".npz"]


def test_changed_source_or_version_builds_again(source: Path) -> None:
    build = Build(source)
    _, digest = cached("set", [source], build)
    os.utime(source, ns=(1, 1))
    cached("set", [source], build)
    source.write_text("45")
    _, other = cached("set", [source], build)
    cached("set", [source], build, version="2")
    assert build.calls == 4 and other != digest
    assert len(list(cache_path("set", [source]).parent.iterdir())) == 1  # the old state is replaced


@pytest.mark.parametrize("damage", ["truncate", "empty", "flip", "other", "folder"])
def test_damaged_cache_is_noticed_and_built_again(
    source: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    build = Build(source)
    good, digest = cached("set", [source], build, bits=True)
    path = cache_path("set", [source])
    content = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(content[:-50])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "flip":
        at = content.rindex(np.packbits(good["bits"], axis=1).tobytes())
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    elif damage == "other":
        np.savez(path, something=np.zeros(3))
    else:
        path.unlink()
        path.mkdir()
    again, digest_again = cached("set", [source], build, bits=True)
    assert build.calls == 2 and digest_again == digest
    np.testing.assert_array_equal(again["bits"], good["bits"])
    if damage != "folder":
        assert "damaged cache" in caplog.text
        cached("set", [source], build, bits=True)
        assert build.calls == 2


def test_swapped_arrays_do_not_pass_for_the_right_ones(source: Path) -> None:
    """A well-formed file with other values fails its fingerprint."""
    build = Build(source)
    cached("set", [source], build)
    path = cache_path("set", [source])
    with np.load(path) as stored:
        content = {key: stored[key] for key in stored.files}
    np.savez(path, **{**content, "bits": content["more"]})
    cached("set", [source], build)
    assert build.calls == 2


def test_unwritable_cache_only_warns(
    source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LN_CACHE", str(source / "cache"))  # below a file: cannot be made, not even by root
    build = Build(source)
    with caplog.at_level(logging.WARNING):
        _, digest = cached("set", [source], build)
        assert cached("set", [source], build)[1] == digest
    assert build.calls == 2 and "cannot write the cache" in caplog.text


def test_full_disk_leaves_no_half_written_cache(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(out, **_: object) -> None:
        out.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parsed_cache.np, "savez", full)
    cached("set", [source], Build(source))
    assert list(cache_path("set", [source]).parent.iterdir()) == []


def test_vanished_source_is_one_line(source: Path) -> None:
    with pytest.raises(DataError, match="gone: cannot be read"):
        cached("set", [source.parent / "gone"], Build(source))


def _worker(source: Path, out) -> None:
    out.put([cached("set", [source], Build(source), bits=True)[1] for _ in range(20)])


def test_processes_that_start_together(source: Path) -> None:
    context = multiprocessing.get_context("fork")
    out = context.Queue()
    workers = [context.Process(target=_worker, args=(source, out)) for _ in range(4)]
    for worker in workers:
        worker.start()
    digests = {digest for _ in workers for digest in out.get(timeout=60)}
    for worker in workers:
        worker.join(60)
    assert len(digests) == 1
    build = Build(source)
    cached("set", [source], build, bits=True)
    assert build.calls == 0
    assert len(list(cache_path("set", [source]).parent.iterdir())) == 1
