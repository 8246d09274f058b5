"""Large downloads that go on, archives that would write elsewhere, and the fetching of coco.zip."""

from __future__ import annotations

import errno
import io
import zipfile
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from dataserver import CUT, HANG, NO_RANGES, serve

from data import coco, fetch, order_embeddings
from data.archive import download_large, unpack
from data.fetch import DataError, FetchError

BODY = bytes(range(256)) * 2000


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LN_RAW", str(tmp_path / "raw"))
    monkeypatch.delenv("LN_DATA", raising=False)
    monkeypatch.setattr(fetch, "_unreachable", {})


def broken_off(path: Path, body: bytes = BODY) -> None:
    """Leaves what a transfer that broke off leaves."""
    with serve({"big.zip": body}, CUT) as (base, _), pytest.raises(FetchError, match="kept, start again") as error:
        download_large(f"{base}big.zip", path)
    assert "\n" not in str(error.value) and not path.exists()
    part = path.with_name("big.zip.part").read_bytes()
    assert body.startswith(part) and len(part) > len(body) // 2 - (1 << 16), "all but a last incomplete chunk is kept"


def test_a_download_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    path = tmp_path / "new" / "big.zip"
    broken_off(path)
    with serve({"big.zip": BODY[: len(BODY) // 2] + b"x" * (len(BODY) // 2)}) as (base, _):
        # A file that has changed meanwhile is fetched from the start: its halves would not fit together.
        download_large(f"{base}big.zip", path)
    assert path.read_bytes().endswith(b"x")
    path.unlink()
    broken_off(path)
    part = path.with_name("big.zip.part")
    part.write_bytes(b"?" + part.read_bytes()[1:])  # so that one sees that this half was not fetched again
    with serve({"big.zip": BODY}) as (base, asked):
        download_large(f"{base}big.zip", path)
    assert path.read_bytes() == b"?" + BODY[1:] and len(asked) == 1
    assert sorted(p.name for p in path.parent.iterdir()) == ["big.zip"], "no leftovers"


def test_a_whole_part_is_not_fetched_again_and_a_longer_one_is_of_no_use(tmp_path: Path) -> None:
    path = tmp_path / "big.zip"
    for part, expected in ((b"?" + BODY[1:], b"?" + BODY[1:]), (BODY + b"more", BODY)):
        broken_off(path)
        path.with_name("big.zip.part").write_bytes(part)
        with serve({"big.zip": BODY}) as (base, _):
            download_large(f"{base}big.zip", path)
        assert path.read_bytes() == expected
        path.unlink()


def test_a_server_without_ranges_gives_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "big.zip"
    broken_off(path)
    with serve({"big.zip": BODY}, NO_RANGES) as (base, _):
        download_large(f"{base}big.zip", path)
    assert path.read_bytes() == BODY


@pytest.mark.parametrize(
    ("content", "behaviour", "reason"), [({}, "", "HTTP 404"), ({"big.zip": BODY}, HANG, "no answer")]
)
def test_a_server_that_has_nothing_is_one_line(
    content: dict[str, bytes], behaviour: str, reason: str, tmp_path: Path
) -> None:
    with serve(content, behaviour) as (base, _), pytest.raises(FetchError, match=reason) as error:
        download_large(f"{base}big.zip", tmp_path / "big.zip", wait_s=0.3)
    assert "\n" not in str(error.value) and not list(tmp_path.glob("big*"))


def archive(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name, content in members.items():
            made.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "name", ["../escape.txt", "/escape.txt", "a/../../escape.txt", "..\\escape.txt", "C:\\escape.txt"]
)
def test_no_member_leaves_the_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(archive({"good.txt": b"1", name: b"2"}))
    (tmp_path / "target").mkdir()
    with pytest.raises(FetchError, match="leaves the folder; not unpacked"):
        unpack(tmp_path / "a.zip", tmp_path / "target", lambda member: member)
    assert not list((tmp_path / "target").iterdir()) and not list(tmp_path.glob("**/escape*"))


def test_no_link_is_unpacked(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as made:
        made.writestr(link, "/etc")
    with pytest.raises(FetchError, match="leaves the folder"):
        unpack(tmp_path / "a.zip", tmp_path, lambda member: member)


def test_a_damaged_archive_is_one_line(tmp_path: Path) -> None:
    content = archive({"a": bytes(1000)})
    for damaged in (b"<html>moved</html>", content[:-30], content[:200] + b"\x01" + content[201:]):
        (tmp_path / "a.zip").write_bytes(damaged)
        with pytest.raises(FetchError, match="damaged or no zip file") as error:
            unpack(tmp_path / "a.zip", tmp_path, lambda member: PurePosixPath("out") / member)
        assert "\n" not in str(error.value)


def test_two_members_for_one_place_are_refused(tmp_path: Path) -> None:
    """The last one would win, and the captions of another data set might train."""
    (tmp_path / "a.zip").write_bytes(archive({"coco/train.txt": b"1", "f8k/train.txt": b"2"}))
    with pytest.raises(FetchError, match="'coco/train.txt' and 'f8k/train.txt', both for train.txt") as error:
        unpack(tmp_path / "a.zip", tmp_path, lambda member: PurePosixPath(member.name))
    assert "damaged" not in str(error.value)


@pytest.mark.parametrize("form", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_no_damage_is_a_traceback(form: int, tmp_path: Path) -> None:
    """Bytes changed or cut off anywhere: the archive is refused or what it holds is whole."""
    buffer, path = io.BytesIO(), tmp_path / "a.zip"
    with zipfile.ZipFile(buffer, "w", form) as made:
        for name in ("caf\u00e9.txt", "b"):
            made.writestr(name, bytes(range(40)))
    good, random, refused = buffer.getvalue(), np.random.default_rng(form), 0
    for _ in range(80):
        bad = bytearray(good)
        for at in random.integers(0, len(bad), random.integers(1, 4)):
            bad[at] = random.integers(256)
        path.write_bytes(bad if random.random() < 0.5 else bad[: random.integers(len(bad))])
        try:
            written = unpack(path, tmp_path, lambda member: PurePosixPath("out") / member.name)
            assert all(file.read_bytes() == bytes(range(40)) for file in written if file.stat().st_size)
        except FetchError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 40


def test_the_disk_is_not_taken_for_a_damaged_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a.zip").write_bytes(archive({"a": b"1"}))
    monkeypatch.setattr("data.archive.shutil.copyfileobj", full)
    with pytest.raises(OSError, match="No space left"):
        unpack(tmp_path / "a.zip", tmp_path, lambda member: member)


def coco_zip(counts: dict[str, int], width: int = 4096, **changes: bytes) -> bytes:
    members = {"data/coco/readme": b"left out", "data/f30k/train.txt.bak": b"left out"}
    for split, count in counts.items():
        lines = [f"{word} picture {n}" for n in range(count) for word in ("one", "a", "the", "this", "some")]
        members[f"data/coco/{split}.txt"] = "\n".join(lines).encode()
        matrix = io.BytesIO()
        np.save(matrix, np.random.default_rng(count).random((count, width), dtype=np.float32))
        members[f"data/coco/images/10crop/{split}.npy"] = matrix.getvalue()
    return archive(members | {name.replace("__", "."): content for name, content in changes.items()})


@pytest.fixture
def small_coco(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    counts = {"train": 7, "val": 3, "test": 4}
    monkeypatch.setattr(coco, "COCO_IMAGES", counts)
    return counts


def test_coco_is_fetched_checked_and_loaded(small_coco: dict[str, int], tmp_path: Path) -> None:
    with serve({"coco.zip": coco_zip(small_coco)}) as (base, _):
        folder = coco.fetch_coco(f"{base}coco.zip")
    assert sorted(p.name for p in folder.iterdir()) == ["images", "source.json", "test.txt", "train.txt", "val.txt"]
    assert sorted(p.name for p in folder.parent.iterdir()) == ["coco"], "the archive is not kept"
    data = order_embeddings.load_order_embeddings("coco")
    assert (data.source.kind, data.source.label) == (
        "mirror",
        "coco",
    ) and "fetched from http://127" in data.source.detail
    assert {split: len(part) for split, part in data.splits.items()} == small_coco


def test_what_is_not_coco_never_appears(small_coco: dict[str, int], tmp_path: Path) -> None:
    wrong = {**small_coco, "val": 2}
    lacking = {split: n for split, n in small_coco.items() if split != "test"}
    for content, message in (
        (coco_zip(wrong), "7/2/4 images"),
        (coco_zip(lacking), "missing test.txt"),
        (b"<html>", "no zip"),
    ):
        with serve({"coco.zip": content}) as (base, _), pytest.raises(FetchError, match=message) as error:
            coco.fetch_coco(f"{base}coco.zip")
        text = str(error.value)
        assert "\n" not in text and ".tmp" not in text and text.endswith("so that the next attempt fetches it anew")
        assert not list((tmp_path / "raw" / "order_embeddings").iterdir()), "neither archive nor folder stays"


def test_what_was_asked_for_and_cannot_be_had_is_an_error(
    small_coco: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenes in its place would train for hours on something else."""
    monkeypatch.setenv("LN_LARGE", "1")
    with serve({"coco.zip": coco_zip(small_coco)}, CUT) as (base, _):
        monkeypatch.setattr(coco.fetch_coco, "__defaults__", (f"{base}coco.zip",))
        with pytest.raises(DataError, match="transfer broke off; .* are kept, start again to go on .or place") as error:
            order_embeddings.get(lambda status, what: None)
    assert "\n" not in str(error.value) and "without LN_LARGE=1 generated scenes stand in" in str(error.value)


def test_a_full_disk_keeps_the_archive(
    small_coco: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("data.archive.shutil.copyfileobj", full)
    with serve({"coco.zip": coco_zip(small_coco)}) as (base, _):
        with pytest.raises(DataError, match="coco: cannot be written .No space left on device.; free space") as error:
            coco.fetch_coco(f"{base}coco.zip")
        assert not isinstance(error.value, FetchError)
    assert [p.name for p in (tmp_path / "raw" / "order_embeddings").iterdir()] == ["coco.zip"]


def test_get_fetches_only_when_told_to(
    small_coco: dict[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []
    sentinel = object()
    monkeypatch.setattr(order_embeddings, "_scenes", lambda why: type("S", (), {"source": sentinel}))
    monkeypatch.setattr(order_embeddings.mnist, "locate", lambda: [tmp_path / "digits"])
    monkeypatch.delenv("LN_LARGE", raising=False)
    with serve({"coco.zip": coco_zip(small_coco)}) as (base, asked):
        monkeypatch.setattr(coco, "URL", f"{base}coco.zip")
        monkeypatch.setattr(coco.fetch_coco, "__defaults__", (f"{base}coco.zip",))
        assert order_embeddings.get(lambda status, what: said.append(status)) is sentinel
        assert said == ["present", "stand-in", "optional"] and not asked
        monkeypatch.setenv("LN_LARGE", "1")
        said.clear()
        assert order_embeddings.get(lambda status, what: said.append(status)).kind == "mirror"
        assert set(said) == {"fetched"} and asked
        said.clear()
        order_embeddings.get(lambda status, what: said.append(status))
        assert set(said) == {"present"} and len(asked) == 1


def test_a_disk_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raw").write_text("a file where the folder should be")
    with serve({"coco.zip": b""}) as (base, _), pytest.raises(DataError, match="cannot be written") as error:
        coco.fetch_coco(f"{base}coco.zip")
    assert "\n" not in str(error.value)
