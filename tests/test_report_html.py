"""The HTML report needs nothing but itself, reads well without eyes and on a phone, and says what the Markdown says."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from experiments.analysis import document, html, style
from experiments.analysis.document import Bullets, Command, Heading, Picture, Table, Text
from experiments.analysis.measures import VERDICTS
from experiments.tasks import TASKS
from scripts import report
from tests import browser
from tests.commands import ROOT

LOADS = ("src", "srcset", "poster", "data", "background")
VOID = {"meta", "img", "br", "hr", "link", "input"}


class Reader(HTMLParser):
    """Collects what the tests ask about, and checks that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.feed(text)
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole report, from the published runs, as on a fresh clone."""
    out = tmp_path_factory.mktemp("report")
    published = ROOT / "results" / "published"
    assert report.main(["--runs", str(out / "none"), "--published", str(published), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def page(folder: Path) -> Reader:
    return Reader((folder / "report.html").read_text(encoding="utf-8"))


def test_it_loads_nothing(page: Reader) -> None:
    assert not {"script", "link", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert all(attributes[key].startswith("data:image/png;base64,") for key in LOADS if key in attributes), tag
    assert "url(" not in html.STYLE.read_text() and "@import" not in html.STYLE.read_text()


def test_pictures_are_whole_and_described(page: Reader, folder: Path) -> None:
    images = page.all("img")
    files = {path.read_bytes() for path in (folder / "report_files").iterdir()}
    assert {base64.b64decode(image["src"].partition(",")[2]) for image in images} == files
    assert all(len(image["alt"]) > 20 and int(image["width"]) > 100 for image in images)
    assert len({image["alt"] for image in images}) == len(images)


def test_ids_are_unique_and_links_lead_somewhere(page: Reader, folder: Path) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    wanted = [link["href"] for link in page.all("a")]
    wanted += [f"#{attributes['aria-labelledby']}" for _, attributes in page.tags if "aria-labelledby" in attributes]
    assert wanted and {link.removeprefix("#") for link in wanted} <= set(ids)
    text = (folder / "report.md").read_text(encoding="utf-8")
    anchors = re.findall(r'<a id="([\w-]+)">', text)
    assert len(set(anchors)) == len(anchors) and set(re.findall(r"\(#([\w-]+)\)", text)) <= set(anchors)
    for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
        assert (folder / link).is_file(), link


def test_it_has_all_tasks_and_reads_in_order(page: Reader) -> None:
    headings = [(int(tag[1]), attributes["id"]) for tag, attributes in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert headings[0][0] == 1 and [level for level, _ in headings].count(1) == 1
    for (before, _), (level, anchor) in zip(headings, headings[1:], strict=False):
        assert level <= before + 1, anchor
    assert [f"task-{document.anchor(task)}" for task in TASKS] == [a for _, a in headings if a.startswith("task-")]
    assert {"first", "glance", "time-to-target", "table-1", "choices", "how-to-read"} <= {a for _, a in headings}
    assert all(attributes.get("scope") for attributes in page.all("th"))


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser(width: int, folder: Path, tmp_path: Path) -> None:
    seen = browser.layout(folder / "report.html", width, tmp_path)
    assert seen["width"] == width and seen["page"] <= width and seen["outside"] == []
    assert seen["images"] > 0 and seen["broken"] == 0
    assert 0 < seen["scrolling"] <= seen["boxes"], "wide tables scroll in their boxes"


def test_both_pages_come_from_one_structure(tmp_path: Path) -> None:
    png = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    blocks = [
        Heading(1, "A `title` & more", "top"), Heading(2, "Part", "part"), Text("1 < 2, **bold**, [up](#top)"),
        Bullets(["one `a<b`"], warning=True), Command("make x && y"),
        Table("t", ["a|b", "verdict"], [["x", "same direction, stale"], ["y", "no runs"]], verdicts=1),
        Picture("p.png", png, 'say "cheese"', "**c**"),
    ]  # fmt: skip
    text = html.to_html(blocks)
    for part in ("<title>A title &amp; more</title>", "1 &lt; 2, <strong>bold</strong>, <a href=\"#top\">up</a>",
                 "<code>a&lt;b</code>", "make x &amp;&amp; y", 'alt="say &quot;cheese&quot;"', 'width="1" height="1"',
                 '<span class="verdict same-direction">↗ same direction</span>, stale',
                 "<td>no runs</td>"):  # fmt: skip
        assert part in text, part
    Reader(text)
    assert "| a\\|b | verdict |" in document.to_markdown(blocks) and '![say "cheese"](p.png)' in (
        document.to_markdown(blocks)
    )


def _luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1])
def test_text_stands_out_in_light_and_dark(scheme: int) -> None:
    css = re.sub(r"#(\w)(\w)(\w)\b", r"#\1\1\2\2\3\3", html.STYLE.read_text())
    colors = dict(re.findall(r"--(\w+): (#\w{6})", re.findall(r":root \{(.*?)\}", css, re.DOTALL)[scheme]))
    for ink in ("ink", "soft", "link"):
        for paper in ("paper", "shade", "warn"):
            assert _contrast(colors[ink], colors[paper]) >= 4.5, (ink, paper)


def test_no_verdict_and_no_norm_is_told_by_colour_alone() -> None:
    assert len(set(html.SIGNS.values())) == len(VERDICTS) and set(html.SIGNS) == set(VERDICTS)
    for verdict in VERDICTS:
        assert f".verdict.{verdict.replace(' ', '-')} " in html.STYLE.read_text()
    looks = style.LOOKS.values()
    assert len({str(look.line) for look in looks}) == len({look.color for look in looks}) == len(looks)
