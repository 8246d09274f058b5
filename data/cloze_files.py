"""The ``.question`` files of Hermann et al. (section 6.2): one cloze question over one passage each.

Nine parts of one UTF-8 text: the address of the article, the passage, the query, the answer, and what each entity
marker stands for, one blank line between them::

    http://...

    @entity3 was seen in @entity0 .

    someone saw @placeholder

    @entity3

    @entity0:Rome
    @entity3:Ann Lee

Words are separated by blanks. The passage, the query and the answer are one line each; a line ends at a line feed,
with or without a carriage return before it, and the last one need not end. A passage may have any length from one
token on: nothing is cut.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

PLACEHOLDER = "@placeholder"
ENTITY = "@entity"
SUFFIX = ".question"
# Markers are numbered by where their entity first occurs in an article, so a published one is below 2,001.
ENTITIES = 10_000
# What precedes the names: address, passage, query and answer, each followed by a blank line.
ADDRESS, PASSAGE, QUERY, ANSWER, NAMES = 0, 2, 4, 6, 8
_MARKER = re.compile(rf"{ENTITY}([0-9]+)")
_NAME = re.compile(rf"({ENTITY}[0-9]+):(.*)")


class BadQuestion(ValueError):
    """A question that cannot be used; the text names the file and what to do, as one of many may be left out."""


@dataclass(frozen=True)
class Question:
    """One question as words.

    Attributes:
        passage, query: words; the query holds ``PLACEHOLDER``.
        answer: the marker that belongs in its place.
        names: what each marker stands for; a reader never sees it.
        address: of the article.
    """

    passage: list[str]
    query: list[str]
    answer: str
    names: Mapping[str, str] = field(default_factory=dict)
    address: str = ""


def write_question(question: Question) -> str:
    """The text of a file; without a line end after the last name, as in the published ones."""
    names = "\n".join(f"{marker}:{name}" for marker, name in question.names.items())
    parts = [question.address, " ".join(question.passage), " ".join(question.query), question.answer, names]
    return "\n\n".join(parts)


def entity_number(word: str) -> int | None:
    """The number of an entity marker, None for another word."""
    found = _MARKER.fullmatch(word)
    return None if found is None else int(found[1][:9])  # Python refuses to read thousands of digits


def parse_question(content: bytes, where: str) -> Question:
    """Reads and checks one file.

    Args:
        content: of the file.
        where: the file, for messages.

    Raises:
        BadQuestion: empty, not UTF-8, truncated, of another layout, without ``@placeholder`` or answer, with an answer
            that the passage does not hold, or with an entity that is not among the names.
    """

    def bad(what: str) -> BadQuestion:
        return BadQuestion(f"{where}: {what}; replace or remove the file")

    if not content.strip():
        raise bad("empty")
    try:
        text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        at = content.count(b"\n", 0, error.start) + 1
        raise bad(f"line {at} is not UTF-8 (byte 0x{content[error.start]:02x})") from None
    if "\0" in text:
        raise bad("binary, not a question (it holds a zero byte)")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    for place, what in ((PASSAGE, "passage"), (QUERY, "query"), (ANSWER, "answer")):
        if len(lines) <= place:
            raise bad(f"truncated, line {place + 1} with the {what} is not there")
        if not lines[place].strip():
            raise bad(f"no {what} (line {place + 1} is blank)")
        if lines[place - 1].strip():
            raise bad(f"line {place} before the {what} must be blank")
    passage, query, answer = (lines[place].split() for place in (PASSAGE, QUERY, ANSWER))
    if PLACEHOLDER not in query:
        raise bad(f"the query (line {QUERY + 1}) holds no {PLACEHOLDER}")
    if len(answer) != 1 or entity_number(answer[0]) is None:
        raise bad(f"the answer (line {ANSWER + 1}) is {_shown(lines[ANSWER])}, not one marker such as {ENTITY}7")
    names: dict[str, str] = {}
    if len(lines) > NAMES and lines[NAMES - 1].strip():
        raise bad(f"line {NAMES} before the names must be blank")
    for number, line in enumerate(lines[NAMES:], NAMES + 1):
        if not line.strip():
            continue
        if (entry := _NAME.fullmatch(line)) is None:
            raise bad(f"line {number} is {_shown(line)}, not a marker and its name such as {ENTITY}7:Ann")
        names[entry[1]] = entry[2]
    if answer[0] not in passage:
        raise bad(f"the answer {answer[0]} is not in the passage")
    for word in dict.fromkeys([*passage, *query]):
        if (entity := entity_number(word)) is not None:
            if entity >= ENTITIES:
                raise bad(f"{_shown(word)} is beyond the vocabulary, whose last marker is {ENTITY}{ENTITIES - 1}")
            if word not in names:
                raise bad(f"{word} is not among the names at the end, perhaps truncated")
    return Question(passage, query, answer[0], names, lines[ADDRESS])


def _shown(text: str) -> str:
    """Some of a text that may be anything."""
    return "'" + text[:40].encode("unicode_escape").decode() + "…" * (len(text) > 40) + "'"
