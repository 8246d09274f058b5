"""Gets the data of a task and says for each file: present, fetched, stand-in, or what to place where.

    python -m scripts.get_data draw        or: all

Each module of ``data`` that a task's file imports says so itself, in its function ``get``: there is no list of tasks
here. Exit code 0 when the task can be trained (a stand-in included), 1 when data are missing or damaged, 2 for an
unknown task.
"""

from __future__ import annotations

import ast
import importlib
import logging
import sys
from collections.abc import Callable, Sequence

from data.fetch import DataError, Say, Source, data_roots
from scripts.checked import ROOT, stems


def getters(task: str) -> list[Callable[[Say], Source]]:
    """``get`` of every module of ``data`` that ``experiments/tasks/<task>.py`` imports (read without importing it)."""
    names: list[str] = []
    path = ROOT / "experiments" / "tasks" / f"{task}.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        else:
            continue
        names += [name for name in found if name.startswith("data.") and name not in names]
    there = [name for name in names if (ROOT / f"{name.replace('.', '/')}.py").is_file()]
    modules = [importlib.import_module(name) for name in there]
    return [module.get for module in modules if hasattr(module, "get")]


def get(task: str) -> None:
    """Gets all data of a task and prints where they came from. Raises ``DataError``."""
    for getter in getters(task):
        source = getter(lambda status, what: print(f"  {status:<9} {what}", flush=True))
        print(f"  {source.name}: {source.kind}, {source.detail} [sha256 {source.fingerprint[:12]}…]", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    tasks = stems("task")
    if len(given) != 1 or given[0] not in (*tasks, "all"):
        shown = f"unknown task '{' '.join(given)}'" if given else "no task given"
        print(f"error: {shown}; valid tasks: {', '.join([*tasks, 'all'])}", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="  %(message)s")
    code = 0
    try:
        data_roots()  # a misspelt LN_DATA would fail every task
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for task in tasks if given[0] == "all" else given:
        print(f"{task}:", flush=True)
        try:
            get(task)
        except DataError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 1
        except OSError as error:
            print(f"error: {error.filename or 'input or output'}: {error.strerror or error}", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
