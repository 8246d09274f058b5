"""Whether the code that decides a run's numbers has changed since the run's commit.

That code is the task's file and all of ``models`` that it imports, directly or not, with every source file of a package
(its C++ too). Modules are compared by top-level definition, without comments, docstrings and line breaks. What was
there and is changed or gone counts; what is new does not, unless older code uses its name: nothing else could have
been using it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import symtable
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import PurePosixPath

from experiments.analysis.collect import REPO

SOURCES = (".py", ".cpp", ".h", ".cu", ".cuh")
Read = Callable[[str], str | None]  # a file's content by its path in the repository, None if it is not there
List = Callable[[str], list[str]]  # the files below a folder


@cache
def code_changed(commit: str, task: str) -> bool | None:
    """Whether the task, or a model it is made of, differs from ``commit``; None where git cannot tell."""
    try:
        _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
        tree = set(_git("ls-tree", "-r", "--name-only", commit, "experiments/tasks", "models").splitlines())

        def then(name: str) -> str | None:
            return _git("show", f"{commit}:{name}") if name in tree else None

        old = sources(task, then, lambda folder: sorted(name for name in tree if name.startswith(f"{folder}/")))
        new = sources(task, now, files_below)
        return any(differs(old, new, name) for name in old)
    except (OSError, subprocess.SubprocessError, SyntaxError):
        return None


def _git(*words: str) -> str:
    command = ["git", *words]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=20, check=True).stdout


def now(name: str) -> str | None:
    """Content of a file of the working tree."""
    path = REPO / name
    return path.read_text(encoding="utf-8") if path.is_file() else None


def files_below(folder: str) -> list[str]:
    """Files of the working tree."""
    return sorted(path.relative_to(REPO).as_posix() for path in (REPO / folder).rglob("*") if path.is_file())


def sources(task: str, read: Read, below: List) -> dict[str, str]:
    """Path -> content of all that decides the task's numbers."""
    found: dict[str, str] = {}
    pending = [f"experiments/tasks/{task}.py"]
    while pending:
        name = pending.pop()
        content = None if name in found else read(name)
        if content is None:
            continue
        found[name] = content
        if not name.endswith(".py"):
            continue
        if name.endswith("/__init__.py"):
            inside = below(str(PurePosixPath(name).parent))
            pending += [other for other in inside if other.endswith(SOURCES) and "/." not in other]
        for module in imported_models(ast.parse(content)):
            path = PurePosixPath(module.replace(".", "/"))
            pending += [f"{path}.py", *(f"{package}/__init__.py" for package in (path, *path.parents[:-2]))]
    return found


def made_of(task: str) -> list[str]:
    """The files of ``sources`` in the working tree."""
    return sorted(sources(task, now, files_below))


@cache
def fingerprint(task: str) -> str | None:
    """sha256 of what ``code_changed`` compares, as the working tree has it; None where it cannot be read.

    Unlike there, a new definition counts: nothing older is at hand to say whether it could be in use.
    """
    try:
        found = sources(task, now, files_below)
        skeleton = {name: definitions(text) if name.endswith(".py") else plain(text) for name, text in found.items()}
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    return hashlib.sha256(json.dumps(skeleton, sort_keys=True).encode()).hexdigest() if skeleton else None


def imported_models(tree: ast.AST) -> Iterator[str]:
    """Modules below ``models`` that are, or may be, imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in names if name.startswith("models."))


def differs(old: dict[str, str], new: dict[str, str], name: str) -> bool:
    """Whether what was in a file is no longer the same, or is shadowed by a new definition of a name it uses."""
    if name not in new:
        return True
    if not name.endswith(".py"):
        return plain(old[name]) != plain(new[name])
    before, after = definitions(old[name]), definitions(new[name])
    if any(after.get(key) != text for key, text in before.items()):
        return True
    added = after.keys() - before.keys()
    return bool(added & {"", *global_names(symtable.symtable(old[name], name, "exec"))})


def plain(source: str) -> str:
    """C++ without comments and with single blanks."""
    return " ".join(re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL).split())


def definitions(source: str) -> dict[str, str]:
    """A module's top-level definitions as text: name -> syntax trees of all that binds it.

    Under the empty name is all that binds no name, such as a call: it acts when the module is imported.
    """
    found: dict[str, list[str]] = {}
    for node in without_docstrings(ast.parse(source)).body:
        for name, text in _bound(node):
            if name != "__all__":
                found.setdefault(name, []).append(text)
    return {name: "\n".join(texts) for name, texts in found.items()}


def global_names(scope: symtable.SymbolTable) -> Iterator[str]:
    """Names that a module's code looks up among its globals, in whatever scope."""
    for symbol in scope.get_symbols():
        if symbol.is_referenced() and (scope.get_type() == "module" or symbol.is_global()):
            yield symbol.get_name()
    for child in scope.get_children():
        yield from global_names(child)


def _bound(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """(name, tree) for each name that a statement binds; the empty name if it does anything else."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name, _dump(node)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        module = node.module if isinstance(node, ast.ImportFrom) else None
        for alias in node.names:  # one by one: a longer list of imports changes no older one
            yield alias.asname or alias.name.split(".")[0], f"import {module} {alias.name} {alias.asname}"
    elif isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets):
        for target in node.targets:
            assert isinstance(target, ast.Name)
            yield target.id, _dump(node.value)
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, _dump(node.value) if node.value else ""
    elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):  # a string on its own does nothing
        yield "", _dump(node)


def _dump(node: object) -> str:
    """A syntax tree as text, the same in every Python: fields that a newer one has added are empty, and left out."""
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [(name, value) for name, value in ast.iter_fields(node) if value not in (None, [])]
    if isinstance(node, ast.Constant):  # whose value may be None
        fields = [("value", node.value)]
    return f"{type(node).__name__}({', '.join(f'{name}={_dump(value)}' for name, value in fields)})"


def without_docstrings(tree: ast.Module) -> ast.Module:
    """The syntax tree without docstrings, at every level."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            if isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
                del body[0]
    return tree
