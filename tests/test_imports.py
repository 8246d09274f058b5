"""What the source may not do: import against the direction, pick a device, build objects from strings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import ROOT

# Imports point one way: scripts -> experiments -> {models, data}.
MAY_IMPORT = {
    "models": {"models"},
    "data": {"data"},
    "experiments": {"experiments", "models", "data"},
    "scripts": {"scripts", "experiments", "models", "data"},
}
PACKAGES = {*MAY_IMPORT, "tests"}
SOURCES = sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[str]:
    """Names of all imported modules, those inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the direction"
            yield node.module or ""


def top(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_source(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ours = {name.split(".")[0] for name in imported(tree)} & PACKAGES
    assert ours <= MAY_IMPORT[top(path)], f"{path} imports {ours - MAY_IMPORT[top(path)]}"

    calls = [
        n.func.attr for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
    ]
    assert "cuda" not in calls, "the device comes from the configuration: .to(device)"

    wandb = "wandb" in {name.split(".")[0] for name in imported(tree)}
    assert not wandb or path.name in ("tracker.py", "import_wandb.py"), "only what writes to it and reads from it"
    if wandb:
        at_the_top = [name for node in tree.body for name in imported(ast.Module([node], []))
                      if isinstance(node, ast.Import | ast.ImportFrom)]  # fmt: skip
        assert "wandb" not in at_the_top, "wandb is imported only when asked for"


def test_the_analysis_never_uses_a_network_or_pyplot() -> None:
    for path in (ROOT / "experiments" / "analysis").glob("*.py"):
        names = set(imported(ast.parse(path.read_text(encoding="utf-8"))))
        assert not names & {"urllib.request", "requests", "pooch", "socket", "matplotlib.pyplot"}, path


def test_configs_hold_no_code() -> None:
    for path in (ROOT / "configs").rglob("*"):
        assert path.suffix != ".py", path
        if path.suffix == ".yaml":
            assert "_target_" not in path.read_text(encoding="utf-8"), path
