"""For the tests of the sentence evaluations: small sets in their original layouts, and an encoder that is known."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from data import sentence_sets, sick

SIZES = {"MR": (17, 16), "CR": (15, 14), "SUBJ": (16, 16), "MPQA": (14, 18)}
PAIRS = {"train": 40, "trial": 12, "test": 15}
HEADER = "\t".join(("pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment"))
WORDS = "good bad fine dull bright slow long short warm cold".split()


def sentence(number: int) -> str:
    """A sentence that no other number has."""
    return " ".join(WORDS[int(digit)] for digit in str(number))


def pair_lines(count: int, first: int = 0) -> list[str]:
    """Lines of a SICK file: the more words of a pair agree, the higher its score."""
    random = np.random.RandomState(first)
    lines = [HEADER]
    for n in range(first, first + count):
        words, shared = random.choice(WORDS, 4), random.randint(5)
        other = [word if k < shared else random.choice(WORDS) for k, word in enumerate(words)]
        score = 1 + min(3.9, shared + random.randint(10) / 10)
        lines.append(f"{n}\t{' '.join(words)}\t{' '.join(other)}\t{score:.1f}\tNEUTRAL")
    return lines


def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All five sets, small, below ``folder``; the counts that are asked for are theirs. Returns ``folder``."""
    first = 0
    for name, files in sentence_sets.SETS.items():
        (folder / name).mkdir(parents=True)
        for file, count in zip((files.ones[0], files.zeros[0]), SIZES[name], strict=True):
            lines = [sentence(number) for number in range(first, first + count)]
            (folder / name / file).write_text("".join(f"{line}\n" for line in lines))
            first += count
        monkeypatch.setitem(sentence_sets.SETS, name, files._replace(counts=SIZES[name]))
    (folder / sick.NAME).mkdir()
    for part, (file, _) in sick.FILES.items():
        end = "\r\n" if part == "test" else "\n"  # as in the originals
        (folder / sick.NAME / file).write_bytes(end.join([*pair_lines(PAIRS[part], first), ""]).encode())
        first += PAIRS[part]
        monkeypatch.setitem(sick.FILES, part, (file, PAIRS[part]))
    return folder


def word_vector(word: str, size: int) -> np.ndarray:
    """A vector that depends on the word alone."""
    return np.random.RandomState(zlib.crc32(word.encode())).standard_normal(size).astype(np.float32)


def mean_of_words(size: int) -> Callable[[Sequence[str]], np.ndarray]:
    """The known encoder: the mean of the words' vectors, scaled to length 1; zeros without a word."""
    known: dict[str, np.ndarray] = {}

    def encode(sentences: Sequence[str]) -> np.ndarray:
        found = np.zeros((len(sentences), size), dtype=np.float32)
        for row, text in zip(found, sentences, strict=True):
            words = text.split()
            for word in words:
                if word not in known:
                    known[word] = word_vector(word, size)
            if words:
                row += np.sum([known[word] for word in words], axis=0)
                row /= max(np.linalg.norm(row), 1e-9)
        return found

    return encode


def packed(members: Mapping[str, bytes]) -> bytes:
    """A ``.tar.gz`` of plain files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()
