"""Gets the data of a task and says for each file: present, fetched, stand-in, or what to place where.

Usage: ``python -m scripts.get_data TASK`` with TASK one of draw, pi_mnist, all. Exit code 0 when the task can
be trained (a stand-in included), 1 when data are missing or damaged, 2 for an unknown task.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from data import binarized_mnist, mnist
from data.fetch import DataError, Source


def _say(status: str, what: object) -> None:
    print(f"  {status:<9} {what}", flush=True)


def _summary(source: Source) -> None:
    print(f"  {source.name}: {source.kind}, {source.detail} [sha256 {source.fingerprint[:12]}…]", flush=True)


def _files(before: list[Path] | None, now: list[Path] | None) -> None:
    for path in now or []:
        _say("present" if before else "fetched", path)


def _missing(names: Sequence[str]) -> None:
    for name in names:
        _say("missing", f"{name}[.gz]")


def get_mnist() -> Source:
    """MNIST's four files."""
    before = mnist.locate()
    try:
        source = mnist.load_mnist().source
    except DataError:
        if not before:
            _missing([f.name for f in mnist.FILES])
        raise
    _files(before, mnist.locate())
    return source


def get_pi_mnist() -> None:
    """Data of permutation-invariant MNIST."""
    _summary(get_mnist())


def get_draw() -> None:
    """Data of DRAW: the fixed binarization, or the stand-in made from MNIST."""
    before, mnist_before = binarized_mnist.locate(), mnist.locate()
    names = [binarized_mnist.file_name(split) for split in binarized_mnist.SPLITS]
    try:
        data = binarized_mnist.load_binarized_mnist(retry_url=True)
    except DataError:
        if not before:
            _missing([*names, *(f.name for f in mnist.FILES if not mnist_before)])
        raise
    if (now := binarized_mnist.locate()) is not None:
        _files(before, now)
    else:
        _files(mnist_before, mnist.locate())
        for name in names:
            _say("stand-in", f"{name}: made from MNIST")
        _say("optional", f"for the paper's own data {binarized_mnist.where_to_place()}")
    _summary(data.source)


GETTERS: dict[str, Callable[[], None]] = {"draw": get_draw, "pi_mnist": get_pi_mnist}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    valid = ", ".join([*GETTERS, "all"])
    if len(given) != 1 or given[0] not in (*GETTERS, "all"):
        shown = f"unknown task '{' '.join(given)}'" if given else "no task given"
        print(f"error: {shown}; valid tasks: {valid}", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="  %(message)s")
    code = 0
    for task in GETTERS if given[0] == "all" else given:
        print(f"{task}:", flush=True)
        try:
            GETTERS[task]()
        except DataError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
