"""Folders of question files: parsed once, in shards, by several processes; what stands in where there are none."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import attentive_reader, cloze_folder, cloze_pack, stories
from data.attentive_reader import get, load_attentive_reader
from data.cloze_files import write_question
from data.cloze_pack import UNKNOWN
from data.cloze_sentences import keep
from data.fetch import DataError
from data.stories import make_question
from tests.clozefiles import SIZES, place, question, question_file, same, twelve
from tests.test_data_cloze import decoded

REAL = Path(os.environ.get("LN_DATA", "")) / "attentive_reader" / "cnn" / "questions"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return twelve(tmp_path, monkeypatch)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that this process parses, as it does; two a shard."""
    names: list[str] = []
    whole = cloze_folder.parse_shard

    def parse(job: cloze_folder.Job) -> cloze_pack.Shard:
        names.extend(job.names)
        return whole(job)

    monkeypatch.setattr(cloze_folder, "SHARD", 2)
    monkeypatch.setattr(cloze_folder, "parse_shard", parse)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    return names


def parts(root: Path) -> list[Path]:
    return sorted((root.parents[3] / "cache").glob("*.parts/*"))


@pytest.mark.parametrize("sentences", [None, 2])
def test_questions_are_as_in_their_files(root: Path, sentences: int | None) -> None:
    data = load_attentive_reader("cnn", sentences)
    known = set(data.vocabulary)
    for split, size in SIZES.items():
        assert len(data.splits[split]) == size
        lost = 0
        for number in range(size):
            one = make_question(split, number)
            passage = one.passage if sentences is None else keep(one.passage, one.query, sentences)
            text = [" ".join(w if w in known else "<unknown>" for w in words) for words in (passage, one.query)]
            assert decoded(data.splits[split], data.vocabulary, number) == (*text, one.answer)
            lost += one.answer not in passage
        assert data.lost[split] == lost / size
    assert (data.splits["train"].passage_words > UNKNOWN).all(), "every word of training is known"
    assert [data.word(int(n)) for n in data.entities] == [word for word in data.vocabulary if "@entity" in word]


def test_what_the_source_says(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = load_attentive_reader("cnn", 2).source
    assert (source.kind, source.label) == ("stand-in", "cnn-12")
    assert source.name == "CNN, 12 of 387,420 questions"
    assert (
        "7/3/2 of the expected 380,298/3,924/3,198 questions; at most 2 sentences a passage, which lose"
        in source.detail
    )
    monkeypatch.setattr(attentive_reader, "CNN_QUESTIONS", SIZES)
    source = load_attentive_reader("cnn", None).source
    assert (source.kind, source.label, source.name) == ("original", "cnn", "CNN")
    assert source.detail.startswith("7/3/2 questions; whole passages; other sentences than the paper's")
    root.parent.rename(root.parent.with_name("mine"))
    source = load_attentive_reader("mine").source
    assert (source.kind, source.label, source.name) == ("stand-in", "mine", "mine") and "(CNN)" in source.detail


@pytest.mark.parametrize("place", ["attentive_reader/cnn", "cnn/questions", "cnn"])
def test_folders_that_are_looked_into(root: Path, place: str) -> None:
    before = load_attentive_reader("cnn").source.fingerprint
    target = root.parents[2] / place
    moved = root.rename(root.parents[2] / "moved")
    root.parent.rmdir()
    target.parent.mkdir(parents=True, exist_ok=True)
    moved.rename(target)
    assert load_attentive_reader("cnn").source.fingerprint == before


def test_an_archive_of_another_name_is_not_meant(root: Path) -> None:
    (root.parents[1] / "cnn.tgz").touch()
    with pytest.raises(DataError, match="task.dataset=cnn.v2: no such data set"):
        load_attentive_reader("cnn.v2")
    (root.parents[1] / "cnn.v2.tgz").touch()
    with pytest.raises(DataError, match=r"cnn.v2.tgz: still packed; unpack it there, so that .*cnn.v2/questions"):
        load_attentive_reader("cnn.v2")


def test_names_in_capitals_and_other_files(root: Path) -> None:
    before = load_attentive_reader("cnn").source.fingerprint
    for path in root.rglob("0001.question"):
        path.rename(path.with_name("0001.QUESTION"))
    for name in ("README.txt", "._0001.question", ".DS_Store"):
        (root / "training" / name).write_bytes(b"\xff")
    assert load_attentive_reader("cnn").source.fingerprint == before


def test_shards_processes_and_interruptions_change_nothing(
    root: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alone = load_attentive_reader("cnn")
    assert len(parsed) == sum(SIZES.values()) and not parts(root)
    again = load_attentive_reader("cnn")
    assert same(alone, again) and len(parsed) == sum(SIZES.values()), "the cache has them"
    for path in (root.parents[3] / "cache").glob("*.npz"):
        path.unlink()

    # Interrupted in the third shard; what was done before stays.
    counting = cloze_folder.parse_shard

    def interrupted(job: cloze_folder.Job) -> cloze_pack.Shard:
        if len(parts(root)) == 2:
            raise KeyboardInterrupt
        return counting(job)

    monkeypatch.setattr(cloze_folder, "parse_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_attentive_reader("cnn")
    assert len(parts(root)) == 2 and not list((root.parents[3] / "cache").glob("*.npz"))
    parsed.clear()
    monkeypatch.setattr(cloze_folder, "parse_shard", counting)
    with caplog.at_level(logging.INFO):
        assert same(load_attentive_reader("cnn"), alone)
    assert len(parsed) == sum(SIZES.values()) - 4 and "4 of 12 question files are parsed already" in caplog.text
    assert not parts(root)

    # By several processes, of which two are all that is needed to see that the order of the shards stays.
    for path in (root.parents[3] / "cache").glob("*.npz"):
        path.unlink()
    parsed.clear()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert same(load_attentive_reader("cnn"), alone) and not parsed and not parts(root)


def test_a_damaged_or_stolen_shard_is_parsed_again(
    root: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_attentive_reader("cnn", None)
    for path in (root.parents[3] / "cache").glob("*.npz"):
        path.unlink()
    run = cloze_folder.run

    def spoilt(jobs: list[cloze_folder.Job]) -> None:
        run(jobs)
        jobs[0].path.write_bytes(jobs[0].path.read_bytes()[:40])
        jobs[1].path.unlink()

    monkeypatch.setattr(cloze_folder, "run", spoilt)
    parsed.clear()
    assert same(load_attentive_reader("cnn", None), before)
    assert len(parsed) == sum(SIZES.values()) + 2 * 2


def test_only_what_changed_is_parsed_again(root: Path, parsed: list[str]) -> None:
    load_attentive_reader("cnn")
    path = question_file(root, "train", 1)
    path.write_bytes(b"")
    with pytest.raises(DataError):
        load_attentive_reader("cnn")
    assert len(parts(root)) == 7, "four shards of training, two and one of the others"
    parsed.clear()
    path.write_text(write_question(question()))
    data = load_attentive_reader("cnn")
    assert parsed == ["0000.question", "0001.question"]
    assert decoded(data.splits["train"], data.vocabulary, 1)[2] == "@entity0"


def test_without_a_cache_all_works_but_slowly(
    root: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = load_attentive_reader("cnn")
    blocked = root.parents[3] / "a file"
    blocked.touch()
    monkeypatch.setenv("LN_CACHE", str(blocked / "cache"))
    for _ in range(2):
        assert same(load_attentive_reader("cnn"), before)
    assert "cannot write the cache (Not a directory); an interrupted parse starts again" in caplog.text
    assert len(parsed) == 3 * sum(SIZES.values())


def test_a_killed_process_is_told(root: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system does it when memory runs out."""

    class Pool:
        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None: ...
        def shutdown(self, **_: object) -> None: ...
        def submit(self, make: Callable[[cloze_folder.Job], int], job: cloze_folder.Job) -> Any:
            raise BrokenProcessPool("a child was terminated abruptly")

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(cloze_folder, "ProcessPoolExecutor", Pool)
    with pytest.raises(DataError, match="questions/training: a process that parses it was killed, perhaps for want of"):
        load_attentive_reader("cnn")


def test_children_leave_interrupts_to_their_parent() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        cloze_folder._start_child()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Few stories, because they are made anew where the cache is empty."""
    monkeypatch.setattr(stories, "SIZES", {"train": 20, "valid": 5, "test": 5})
    yield stories.SIZES


def test_without_a_data_set_stories_stand_in(root: Path, few: dict[str, int], caplog: pytest.LogCaptureFixture) -> None:
    own = load_attentive_reader("stories")
    for name in ("dailymail", "top4"):
        data = load_attentive_reader(name)
        assert same(data, own) and data.source.kind == "stand-in" and "which was not found" in data.source.detail
    assert "Daily Mail is not here; generated stories stand in (place training/, validation/, test/" in caplog.text
    assert "CNN, top 4 sentences is not here; generated stories stand in (place dict.pkl, train4_pass" in caplog.text
    with pytest.raises(
        DataError, match="task.dataset=cmn: no such data set; place training/, .* or use stories or cnn$"
    ):
        load_attentive_reader("cmn")


@pytest.mark.parametrize("dataset", ["cnn", "stories", "top4"])
def test_no_sentence_is_no_passage(root: Path, dataset: str) -> None:
    with pytest.raises(DataError, match="^task.sentences=0 must be 1 or more, or null for whole passages$"):
        load_attentive_reader(dataset, 0)


def test_make_data_tells_what_is_here(root: Path, few: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []

    def say(status: str, what: object) -> None:
        told.append((status, str(what)))

    place(root.parents[1] / "dailymail" / "questions", {"train": 1, "valid": 1, "test": 1})
    assert get(say).name == "CNN, 12 of 387,420 questions"
    assert [status for status, _ in told] == ["present"] * 4
    assert told[3][1].endswith("dailymail/questions (task.dataset=dailymail)")
    question_file(root, "train", 0).write_bytes(b"")
    monkeypatch.setenv("LN_SKIP_BAD", "true")
    assert "1 bad file skipped" in get(say).detail
    root.parent.rename(root.parents[1] / "other")
    told.clear()
    assert get(say).label == "stories"
    assert [status for status, _ in told] == ["stand-in", "optional", "present"]
    assert "$LN_DATA/attentive_reader/cnn/questions" in told[1][1]


@pytest.mark.skipif(not REAL.is_dir(), reason="needs LN_DATA with attentive_reader/cnn/questions")
def test_real_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LN_CACHE", str(tmp_path))
    whole = load_attentive_reader("cnn", None)
    kept = load_attentive_reader("cnn", 4)
    files = {split: len(list((REAL / name).glob("*.question"))) for split, name in cloze_folder.SPLITS.items()}
    assert {split: len(part) for split, part in whole.splits.items()} == files
    assert set(whole.lost.values()) == {0.0}, "whole passages hold every answer"
    for split, part in kept.splits.items():
        long, short = np.diff(whole.splits[split].passage_starts), np.diff(part.passage_starts)
        assert (short <= long).all() and short.mean() < long.mean() / 3
        assert 0 < kept.lost[split] < 0.43, "fewer than the paper's selection lost"
