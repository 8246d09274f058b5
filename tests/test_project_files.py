"""The files beside the code: licence, citation, and what CONTRIBUTING.md tells people to run."""

from __future__ import annotations

import re
import shlex
import tomllib

import pytest
import yaml

from experiments.runs import RunError
from scripts import verify
from tests.commands import ROOT, make

# Of the Citation File Format 1.2.0, as far as they are used here; a key it does not know makes the file invalid.
CFF_KEYS = {"abstract", "authors", "cff-version", "date-released", "doi", "identifiers", "keywords", "license",
            "message", "references", "repository-code", "title", "type", "url", "version"}  # fmt: skip
CFF_REFERENCE = {"authors", "doi", "identifiers", "status", "title", "type", "url", "year"}
CFF_STATUS = {"abstract", "advance-online", "in-preparation", "in-press", "preprint", "submitted"}


def test_licence() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert text.startswith("MIT License\n") and "The authors of this repository" in text
    assert "WITHOUT WARRANTY OF ANY KIND" in text


def test_citation_is_of_its_format_and_of_this_version() -> None:
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(cff) <= CFF_KEYS
    assert cff["cff-version"] == "1.2.0" and cff["type"] == "software" and cff["license"] == "MIT"
    assert all(set(author) == {"name"} for author in cff["authors"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert cff["version"] == project["version"]
    (paper,) = cff["references"]
    assert {"type", "title", "authors"} <= set(paper) <= CFF_REFERENCE
    assert paper["status"] in CFF_STATUS and isinstance(paper["year"], int)
    assert all(set(author) == {"family-names", "given-names"} for author in paper["authors"])
    assert {"type": "other", "value": "arXiv:1607.06450"}.items() <= paper["identifiers"][0].items()


def test_what_contributors_are_told_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    commands = {line.strip() for block in blocks for line in block.splitlines()}
    commands |= set(re.findall(r"`(make [^`]+)`", text))
    monkeypatch.setattr(verify, "tree", lambda: {"commit": None, "dirty": None})
    for command in commands:
        program, *words = shlex.split(command)
        if program == "make":
            done = make("-n", *words)
            assert done.returncode == 0, done.stderr
        else:
            assert [program, *words[:2]] == ["python", "-m", "scripts.verify"]
            with pytest.raises(RunError, match="commit first"):  # it got as far as looking at the working tree
                verify.main(words[2:])
    assert len(commands) >= 6
    for path in re.findall(r"`((?:experiments|tests|models)/[\w/.]*)`", text):
        assert (ROOT / path).exists(), path
