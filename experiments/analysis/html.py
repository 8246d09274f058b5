"""A page of ``experiments.analysis.document`` as one HTML file that needs nothing beside itself.

Plain elements, the style sheet and the pictures inside. Tables and, on a narrow screen, pictures scroll in boxes of
their own, which the keyboard reaches. Verdicts differ by sign, border and word, not by colour alone.
"""

from __future__ import annotations

import base64
import html
import re
import struct
from collections.abc import Sequence
from pathlib import Path

from experiments.analysis.document import Block, Bullets, Command, Heading, Picture, Table, Text
from experiments.analysis.measures import VERDICTS

STYLE = Path(__file__).with_name("page.css")
SIGNS = dict(zip(VERDICTS, ("✓", "↗", "↘", "?", "–"), strict=True))
MIDDLE, LONG = 24, 60  # characters from which a cell is given some room, and more


def inline(text: str) -> str:
    """Escaped text with its code, bold and links."""
    parts = re.split(r"`([^`]+)`", text)
    return "".join(f"<code>{html.escape(part)}</code>" if i % 2 else _words(part) for i, part in enumerate(parts))


def _words(text: str) -> str:
    text = html.escape(text)
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"\[([^\]]+)\]\((#[\w-]+)\)", r'<a href="\2">\1</a>', text)


def to_html(blocks: Sequence[Block]) -> str:
    """The page. Its title is the first heading's; headings of the second level make the list of contents."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "")
    sections = [block for block in blocks if isinstance(block, Heading) and block.level == 2]
    body, in_section = [], False
    for number, block in enumerate(blocks):
        if isinstance(block, Heading) and block.level == 2:
            if block is sections[0]:
                body.append(_contents(sections))
            body.append(f'{"</section>" * in_section}<section aria-labelledby="{block.anchor}">')
            in_section = True
        body.append(_block(block, f"t{number}"))
    body.append("</section>" * in_section)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(re.sub(r'[`*]', '', title))}</title>\n"
        f"<style>\n{STYLE.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _contents(sections: Sequence[Heading]) -> str:
    items = "".join(f'<li><a href="#{one.anchor}">{inline(one.text)}</a></li>' for one in sections)
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


def _block(block: Block, name: str) -> str:
    if isinstance(block, Heading):
        return f'<h{block.level} id="{block.anchor}">{inline(block.text)}</h{block.level}>'
    if isinstance(block, Text):
        return f"<p>{inline(block.text)}</p>"
    if isinstance(block, Bullets):
        kind = ' class="warning"' if block.warning else ""
        return f"<ul{kind}>" + "".join(f"<li>{inline(item)}</li>" for item in block.items) + "</ul>"
    if isinstance(block, Command):
        return f'<pre tabindex="0"><code>{html.escape(block.text)}</code></pre>'
    if isinstance(block, Table):
        return _table(block, name)
    return _picture(block)


def _table(table: Table, name: str) -> str:
    head = "".join(f'<th scope="col">{inline(cell)}</th>' for cell in table.head)
    rows = "\n".join(
        "<tr>" + "".join(_cell(cell, i, i == table.verdicts) for i, cell in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="box" role="region" aria-labelledby="{name}" tabindex="0"><table>'
        f'<caption id="{name}">{inline(table.caption)}</caption>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>"
    )


def _cell(cell: str, column: int, verdict: bool) -> str:
    text = inline(cell)
    if verdict:
        kind = next((kind for kind in VERDICTS if cell.startswith(kind)), None)
        if kind:
            sign = f'<span class="verdict {kind.replace(" ", "-")}">{SIGNS[kind]} {kind}</span>'
            text = sign + inline(cell[len(kind) :])
            return f'<td class="one-line">{text}</td>'
    room = ' class="long"' if len(cell) > LONG else ' class="middle"' if len(cell) > MIDDLE else ""
    return f'<th scope="row"{room}>{text}</th>' if column == 0 else f"<td{room}>{text}</td>"


def _picture(picture: Picture) -> str:
    width, height = struct.unpack(">II", picture.png[16:24])  # of the PNG's header
    data = base64.b64encode(picture.png).decode()
    return (
        f'<figure><div class="box" role="region" aria-label="picture" tabindex="0"><img '
        f'src="data:image/png;base64,{data}" width="{width}" height="{height}" alt="{html.escape(picture.alt)}">'
        f"</div><figcaption>{inline(picture.caption)}</figcaption></figure>"
    )
