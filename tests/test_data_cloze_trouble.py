"""Folders of question files with something wrong in them: one line says what and where, and nothing stands in."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data import cloze_folder
from data.attentive_reader import get, load_attentive_reader
from data.fetch import DataError
from tests.clozefiles import question_file, same, twelve
from tests.test_data_cloze import BAD


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return twelve(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_stops_with_its_name_and_is_skipped_only_on_request(
    root: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    content, message = BAD[name]
    path = question_file(root, "valid", 1)
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        load_attentive_reader("cnn")
    text = str(error.value)
    assert text.startswith(f"{path}: ") and message in text and "\n" not in text and "more bad" not in text
    assert text.endswith("or set data.skip_bad=true (make: LN_SKIP_BAD=true) to leave it out")
    data = load_attentive_reader("cnn", skip_bad=True)
    assert len(data.splits["valid"]) == 2 and "1 bad file skipped" in data.source.detail
    assert f"left out: {path}" in caplog.text
    assert same(load_attentive_reader("cnn", skip_bad=True), data)
    with pytest.raises(DataError):  # also after the good ones are in the cache
        load_attentive_reader("cnn")


def test_bad_files_are_counted(root: Path) -> None:
    for number in range(3):
        question_file(root, "train", number).write_bytes(b"")
    with pytest.raises(DataError, match=r"0000.question: empty; replace or remove.*\(2 more bad files\)$"):
        load_attentive_reader("cnn")
    assert "3 bad files skipped" in load_attentive_reader("cnn", skip_bad=True).source.detail
    for number in range(2):
        question_file(root, "test", number).write_bytes(b"")
    with pytest.raises(DataError, match="questions/test: no usable question in 2 files; replace them$"):
        load_attentive_reader("cnn", skip_bad=True)


def unlink_all(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: unlink_all(r / "training"), "questions/training: no .question file in it; place the question"),
        (
            lambda r: [p.rename(p.with_suffix(".txt")) for p in (r / "test").iterdir()],
            "questions/test: no .question file in it",
        ),
        (lambda r: (r / "validation").rename(r / "v"), "questions: no folder validation; place each split's question"),
        (lambda r: (r / "training").rename(r / "train"), "questions: no folder training; rename train to training"),
        (
            lambda r: [(r / old).rename(r / new) for old, new in (("validation", "dev"), ("training", "train"))],
            "questions: no folder training and no validation; rename dev to validation, rename train to training",
        ),
        (
            lambda r: (
                [p.rename(r / f"{n}{p.name}") for n, p in enumerate(sorted(r.rglob("*.question")))]
                and [(r / name).rmdir() for name in ("training", "validation", "test")]
            ),
            "questions: no folder training and no validation and no test; place each split's question files",
        ),
        (
            lambda r: (r.rename(r.parents[2] / "gone"), (r.parent / "cnn.tgz").touch()),
            "attentive_reader/cnn/cnn.tgz: still packed; unpack it there, so that .*cnn/questions exists",
        ),
        (
            lambda r: (r.rename(r.parents[2] / "gone"), r.parent.with_suffix(".tgz").touch()),
            "attentive_reader/cnn.tgz: still packed; unpack it there",
        ),
        (
            lambda r: (r / "test" / "x.question").symlink_to("nowhere"),
            "test/x.question: a link that leads nowhere; remove it or place its file",
        ),
        (
            lambda r: (r / "test" / "x.question").mkdir(),
            r"test/x.question: cannot be read \(Is a directory\); check it",
        ),
    ],
)
def test_a_wrong_layout_is_told_and_never_replaced_by_the_stand_in(
    root: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(root)
    with pytest.raises(DataError, match=message) as error:
        load_attentive_reader("cnn")
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match=message):  # what make data calls
        get(lambda status, what: None)


@pytest.mark.parametrize(
    ("where", "owner", "name"),
    [
        ("training", os, "scandir"),
        ("validation/0001.question", builtins, "open"),
        ("questions", Path, "is_dir"),
    ],
)
def test_what_the_system_refuses_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, where: str, owner: Any, name: str
) -> None:
    """Rights do not bind every user, so the refusal is played."""
    given = getattr(owner, name)

    def refuse(path: str | Path, *rest: Any, **more: Any) -> Any:
        if str(path).endswith(where):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return given(path, *rest, **more)

    monkeypatch.setattr(owner, name, refuse)
    with pytest.raises(DataError, match=rf"{where}: cannot be read \(Permission denied\); check it"):
        load_attentive_reader("cnn")


def test_a_full_disk_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cloze_folder, "save_shard", full)
    with pytest.raises(DataError, match=r"cache/.*parts: cannot be written \(No space left on device\); free space or"):
        load_attentive_reader("cnn")
