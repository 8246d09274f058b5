"""A page as headless Chromium lays it out at a given width, for tests of what a reader sees."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# What sticks out of the page, boxes that scroll apart; whether pictures are there; and what has no place to be read.
MEASURE = """<script>addEventListener("load", () => {
  const within = e => e.closest(".box, pre") && !e.matches(".box, pre");
  const outside = [...document.querySelectorAll("body *")].filter(e => {
    const r = e.getBoundingClientRect();
    return !within(e) && (r.right > innerWidth + 1 || r.left < -1);
  });
  const boxes = [...document.querySelectorAll(".box")];
  parent.postMessage(JSON.stringify({
    width: innerWidth, page: document.documentElement.scrollWidth, images: document.images.length,
    broken: [...document.images].filter(i => !i.naturalWidth).length,
    outside: outside.map(e => e.tagName + " " + e.textContent.slice(0, 40)),
    boxes: boxes.length, scrolling: boxes.filter(b => b.scrollWidth > b.clientWidth).length,
  }), "*");
});</script>"""
# A frame, because a window cannot be as narrow as a phone.
FRAME = """<!DOCTYPE html><title>waiting</title>
<script>addEventListener("message", e => document.title = e.data)</script>
<iframe src="measured.html" style="width: {width}px; height: 900px; border: 0"></iframe>"""


def layout(page: Path, width: int, folder: Path) -> dict[str, Any]:
    """Measures of a page at ``width`` CSS pixels; ``folder`` takes what that needs."""
    assert CHROMIUM
    text = page.read_text(encoding="utf-8")
    (folder / "measured.html").write_text(text.replace("</body>", MEASURE + "</body>"), encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.format(width=width), encoding="utf-8")
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run([*command, (folder / "frame.html").as_uri()], capture_output=True, text=True, timeout=120)
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title and title[1].startswith("{"), done.stderr[-2000:]
    return json.loads(html.unescape(title[1]))
