"""Builds and loads the compiled operations, once per machine.

The library's file name holds a hash of the sources, the compiler flags and the versions, so a stale one is never
loaded. It is kept in ``$LN_KERNELS``, or else where PyTorch keeps extensions (``$TORCH_EXTENSIONS_DIR``, or the
user's cache folder), or else in the temporary folder.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import logging
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

import torch

SOURCES = Path(__file__).parent
# at::vec picks its vectors from these definitions, as PyTorch's own build does.
VECTORS = {
    "AVX512": ["-DCPU_CAPABILITY_AVX512", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma"],
    "AVX2": ["-DCPU_CAPABILITY_AVX2", "-mavx2", "-mfma"],
}
_why: str | None = None


def failure() -> str | None:
    """Why there is no extension; ``None`` if there is one or nobody has asked yet."""
    return _why


@functools.cache
def extension() -> ModuleType | None:
    """The compiled module, built at the first call; ``None``, after one warning, where that fails."""
    global _why
    try:
        library = _built()
        try:
            module = _load(library)
        except ImportError:  # cut off, by a full disk for one
            library.unlink()
            module = _load(_built())
        if not module.team_works():
            raise RuntimeError("the compiler's OpenMP is not PyTorch's; set CXX to g++")
        return module
    except (OSError, RuntimeError, ImportError, ValueError, subprocess.SubprocessError) as error:
        _why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        warnings.warn(
            f"the fused recurrent kernels could not be built, the slower reference runs instead: {_why}", stacklevel=2
        )
        return None


def flags() -> list[str]:
    """What the compiler is told, beyond paths."""
    capability = torch.backends.cpu.get_cpu_capability()
    vectors = [f"-DCPU_CAPABILITY={capability}", *VECTORS[capability]] if capability in VECTORS else []
    openmp = ["-fopenmp"] if torch.backends.openmp.is_available() and sys.platform != "darwin" else []
    return ["-O3", "-fPIC", "-std=c++20", "-fno-math-errno", "-fno-trapping-math", *openmp, *vectors]


def _folders() -> list[Path]:
    """Where the library may be kept, the best place first."""
    user = getattr(os, "getuid", lambda: 0)()
    last = Path(tempfile.gettempdir()) / f"layer_norm_kernels_{user}"
    if given := os.environ.get("LN_KERNELS"):
        return [Path(given), last]
    if given := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return [Path(given) / "layer_norm_kernels", last]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [cache / "torch_extensions" / "layer_norm_kernels", last]


def _built() -> Path:
    """The library, compiled if it is not there. One process at a time builds; the others wait for it."""
    digest = hashlib.sha256(repr((flags(), torch.__version__, sys.version)).encode())
    for path in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(path.name.encode() + path.read_bytes())
    name = f"layer_norm_kernels_{digest.hexdigest()[:16]}.so"
    for folder in _folders():
        if (folder / name).exists() and _mine(folder):
            return folder / name
    for folder in _folders():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = open(folder / "lock", "w")  # released by the system even if the process is killed
        except OSError:
            continue  # a read-only home, for one
        if not _mine(folder):
            continue
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / name).exists():
                _compile(folder / name)
            return folder / name
    raise RuntimeError(f"no folder to keep them in: neither {' nor '.join(map(str, _folders()))} can be written")


def _mine(folder: Path) -> bool:
    """Whether nobody else could have put a library there: the temporary folder is everybody's."""
    return not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()


def _compile(library: Path) -> None:
    """Compiles all sources side by side and links them. Raises ``RuntimeError`` with the first error."""
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # no GPU is no news
    from torch.utils.cpp_extension import include_paths, library_paths

    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("g++") or shutil.which("c++") or ""]
    if not compiler[0]:
        raise RuntimeError("no C++ compiler found; install g++ or set CXX")
    print("building the fused recurrent kernels (once, about a minute)", file=sys.stderr, flush=True)
    for left in library.parent.glob("build-*"):  # of a build that was killed: the lock is ours now
        shutil.rmtree(left, ignore_errors=True)
    paths = [*include_paths(), sysconfig.get_paths()["include"]]
    common = [*flags(), f"-DTORCH_EXTENSION_NAME={library.stem}", *(w for path in paths for w in ("-isystem", path))]
    with tempfile.TemporaryDirectory(prefix="build-", dir=library.parent) as work:
        objects = {source: f"{work}/{source.stem}.o" for source in sorted(SOURCES.glob("*.cpp"))}
        _run([[*compiler, "-c", str(source), "-o", to, *common] for source, to in objects.items()])
        searched = [word for path in library_paths() for word in (f"-L{path}", f"-Wl,-rpath,{path}")]
        if sys.platform == "darwin":
            searched += ["-undefined", "dynamic_lookup"]  # Python's own symbols
        linked = ["-o", f"{work}/linked.so", *objects.values(), *searched]
        _run([[*compiler, "-shared", *flags(), *linked, "-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python"]])
        if not Path(f"{work}/linked.so").exists():
            raise RuntimeError(f"{compiler[0]} wrote nothing; set CXX to a C++ compiler")
        os.replace(f"{work}/linked.so", library)


def _run(commands: list[list[str]]) -> None:
    """Runs commands side by side. Raises ``RuntimeError`` with what the first to fail says."""
    english = {**os.environ, "LC_ALL": "C"}
    running = [
        subprocess.Popen(words, stderr=subprocess.PIPE, text=True, errors="replace", env=english) for words in commands
    ]
    try:
        for words, process in zip(commands, running, strict=True):
            _, said = process.communicate()
            if process.returncode:
                lines = [line for line in said.splitlines() if "error" in line] or said.splitlines()[-1:]
                silent = f"{words[0]} ended with exit status {process.returncode} and said nothing"
                raise RuntimeError((lines or [silent])[0])
    finally:
        for process in running:
            process.kill()
            process.wait()


def _load(library: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(library.stem, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
