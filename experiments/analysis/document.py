"""A page as a list of blocks, written as Markdown or, by ``experiments.analysis.html``, as HTML.

Texts are plain but for ``code`` between backticks, **bold** between double stars and [links](#anchor) within the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Heading:
    """``level`` 1 is the page's title; ``anchor`` is unique in the page."""

    level: int
    text: str
    anchor: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list; ``warning``: what a reader must see before the numbers."""

    items: Sequence[str]
    warning: bool = False


@dataclass(frozen=True)
class Command:
    """What to type into a terminal."""

    text: str


@dataclass(frozen=True)
class Table:
    """``caption`` names the table for those who hear it; ``verdicts`` is the column with verdicts, if there is one."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    verdicts: int | None = None


@dataclass(frozen=True)
class Picture:
    """A PNG and its place beside the Markdown page."""

    path: str
    png: bytes
    alt: str
    caption: str


Block = Heading | Text | Bullets | Command | Table | Picture


def anchor(text: str) -> str:
    """Lower-case words joined by dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, a line for each row; a bar within a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def to_markdown(blocks: Sequence[Block]) -> str:
    """The page; pictures are linked by their paths."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f'<a id="{block.anchor}"></a>\n\n{"#" * block.level} {block.text}'
    if isinstance(block, Text):
        return block.text
    if isinstance(block, Bullets):
        return "\n".join(f"- {item}" for item in block.items)
    if isinstance(block, Command):
        return f"```sh\n{block.text}\n```"
    if isinstance(block, Table):
        return f"{block.caption}:\n\n{markdown_table(block.head, block.rows)}"
    alt = block.alt.replace("[", "(").replace("]", ")")
    return f"![{alt}]({block.path})\n\n{block.caption}"
