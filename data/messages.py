"""Text of a user's, as messages show it."""

from __future__ import annotations


def shortened(text: str, most: int = 60) -> str:
    """Any text in one line: its first ``most`` characters, and "…" where there are more."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most].rstrip()}…"
