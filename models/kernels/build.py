"""Builds and loads the compiled operations, once per machine.

The library's file name holds a hash of the sources, the compiler flags and the versions, so a stale one is never
loaded. It is kept in ``$LN_KERNELS``, or else where PyTorch keeps extensions (``$TORCH_EXTENSIONS_DIR``, or the
user's cache folder).
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
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
        return _load(_built())
    except (OSError, RuntimeError, ImportError, subprocess.SubprocessError) as error:
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


def _folder() -> Path:
    if given := os.environ.get("LN_KERNELS"):
        return Path(given)
    if given := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions"


def _sources() -> list[Path]:
    return sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")])


def _built() -> Path:
    """The library, compiled if it is not there. One process at a time builds; the others wait for it."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    digest = hashlib.sha256(repr((flags(), torch.__version__, sys.version, compiler)).encode())
    for path in _sources():
        digest.update(path.name.encode() + path.read_bytes())
    name = f"layer_norm_kernels_{digest.hexdigest()[:16]}"
    folder = _folder() / "layer_norm_kernels"
    library = folder / f"{name}.so"
    if library.exists():
        return library
    if compiler is None:
        raise RuntimeError("no C++ compiler found; install g++ or set CXX")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:  # released by the system even if the process is killed
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(compiler, library)
    return library


def _compile(compiler: str, library: Path) -> None:
    from torch.utils.cpp_extension import include_paths, library_paths

    print("building the fused recurrent kernels (once, under a minute)", file=sys.stderr, flush=True)
    work = library.with_suffix(f".{os.getpid()}")
    work.mkdir()
    try:
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
        paths = [word for path in [*include_paths(), _python_headers()] for word in ("-isystem", path)]
        objects, running = [], []
        for source in SOURCES.glob("*.cpp"):
            objects.append(str(work / f"{source.stem}.o"))
            words = [compiler, "-c", str(source), "-o", objects[-1], *flags(), abi, *paths]
            words.append(f"-DTORCH_EXTENSION_NAME={library.stem}")
            running.append(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
        for process in running:
            _, errors = process.communicate()
            if process.returncode:
                raise RuntimeError(next((line for line in errors.splitlines() if "error" in line), errors))
        torch_libraries = [f"-L{path}" for path in library_paths()]
        words = [compiler, "-shared", *objects, "-o", str(work / library.name), *flags(), *torch_libraries]
        words += ["-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python"]
        linked = subprocess.run(words, capture_output=True, text=True)
        if linked.returncode:
            raise RuntimeError(linked.stderr)
        os.replace(work / library.name, library)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _python_headers() -> str:
    import sysconfig

    return sysconfig.get_paths()["include"]


def _load(library: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(library.stem, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
