"""The generated stories: everything in them can be answered, and nothing by who does not read."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data import stories
from data.attentive_reader import ReaderData, load_attentive_reader
from data.cloze_files import PLACEHOLDER, Question, entity_number, parse_question, write_question
from data.cloze_folder import load_folder
from data.cloze_sentences import split_sentences
from data.stories import ASKED_WHERE, ASKED_WHO, DEEDS, MARKERS, SIZES, TOLD, make_question
from data.story_readers import GUESSERS, Oracle, majority
from tests.clozefiles import place
from tests.test_data_cloze import decoded

COUNT = 2000


@pytest.fixture(scope="module")
def made() -> list[Question]:
    return [make_question("train", number) for number in range(COUNT)]


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture(scope="module")
def candidates(made: list[Question], oracle: Oracle) -> list[list[str]]:
    """Of each story, who may be meant by one who has understood the query and nothing else."""
    return [oracle.candidates(question) for question in made]


def marked(question: Question) -> list[str]:
    return [word for word in question.passage if entity_number(word) is not None]


def test_every_answer_follows_from_the_text(made: list[Question], oracle: Oracle) -> None:
    for question in made:
        assert oracle.answers(question) == {question.answer}, write_question(question)


def test_no_answer_follows_without_the_sentence_that_tells_it(made: list[Question], oracle: Oracle) -> None:
    """So the oracle does read, and one sentence is all that it needs."""
    for question in made[:200]:
        sentences = split_sentences(question.passage)
        needed = 0
        for n in range(len(sentences)):
            rest = [word for m, sentence in enumerate(sentences) if m != n for word in sentence]
            needed += oracle.answers(Question(rest, question.query, question.answer)) != {question.answer}
        assert needed == 1


def test_stories_have_the_shape_that_they_should_have(made: list[Question]) -> None:
    lengths = [len(question.passage) for question in made]
    assert 30 < np.mean(lengths) < 60 and max(lengths) < 90
    counts = [len(split_sentences(question.passage)) for question in made]
    assert set(counts) == {4, 5, 6, 7, 8}
    for question in made:
        text = write_question(question)
        assert parse_question(text.encode(), "a story") == question
        assert set(marked(question)) == set(question.names), "the names are those of the story, each with a marker"
        assert len(set(question.names.values())) == len(question.names)
    words = {word for question in made for word in (*question.passage, *question.query)}
    assert {entity_number(word) for word in words} == {None, *range(MARKERS)}
    assert 80 < len(words) < 500


def test_the_query_names_the_deed_in_other_words(made: list[Question]) -> None:
    told = {word for deed in DEEDS for pair in deed.told for word in pair}
    asked = {word for deed in DEEDS for pair in deed.asked for word in pair}
    assert not told & asked
    for kind in (False, True):  # each word means one deed
        words = [set(sum((*deed.told, *deed.asked), ())) for deed in DEEDS if deed.to == kind]
        assert sum(map(len, words)) == len(set().union(*words))
    for question in made:
        assert not told.intersection(question.query) and not asked.intersection(question.passage)
        assert question.query.count(PLACEHOLDER) == 1


def test_every_way_of_telling_and_asking_occurs(made: list[Question], oracle: Oracle) -> None:
    texts = [" ".join(sentence) for question in made for sentence in split_sentences(question.passage)]
    for pattern, _ in oracle.told:
        assert any(pattern.search(text) for text in texts), pattern
    queries = [" ".join(question.query) for question in made]
    for pattern, _ in (*oracle.who, *oracle.where):
        assert any(pattern.fullmatch(text) for text in queries), pattern
    assert len(oracle.told) == sum(len(frames) for pair in TOLD.values() for frames in pair)
    assert len(oracle.who) + len(oracle.where) == sum(len(f) for d in (ASKED_WHO, ASKED_WHERE) for f in d.values())


def test_other_facts_share_the_deed_and_the_thing(made: list[Question], oracle: Oracle) -> None:
    for question in made:
        facts = oracle.facts(question)
        assert 4 <= len(facts) <= 6
        for name in ("deed", "thing"):
            assert min(Counter(getattr(fact, name) for fact in facts).values()) > 1


def test_readers_of_the_query_alone_are_at_chance(made: list[Question]) -> None:
    share = Counter(question.answer for question in made).most_common(1)[0][1] / COUNT
    assert share < 1.3 / MARKERS
    guess = majority(made)
    held_out = [make_question("valid", number) for number in range(500)]
    assert sum(guess(question, marked(question)) == question.answer for question in held_out) / 500 < 2 / MARKERS
    # Nor does what is asked tell the marker.
    for word in {word for question in made for word in question.query if entity_number(word) is None}:
        answers = Counter(question.answer for question in made if word in question.query)
        total = sum(answers.values())
        likely = total / MARKERS + 4 * (total / MARKERS) ** 0.5
        assert answers.most_common(1)[0][1] <= likely, word


@pytest.mark.parametrize("guess", GUESSERS, ids=lambda guess: guess.__name__)
@pytest.mark.parametrize("informed", [True, False])
def test_guessers_are_near_chance(
    made: list[Question], candidates: list[list[str]], guess: object, informed: bool
) -> None:
    """Of all who are named, and of those who may be meant once the query has been understood."""
    given = candidates if informed else [list(dict.fromkeys(marked(question))) for question in made]
    chance = np.mean([1 / len(several) for several in given])
    assert 0.15 < chance < 0.3
    right = np.mean([guess(q, several) == q.answer for q, several in zip(made, given, strict=True)])  # type: ignore[operator]
    if guess.__name__ == "most_shared_words":  # type: ignore[attr-defined]
        assert right < 0.5, "words that a sentence shares with the query leave most questions open"
    else:
        assert abs(right - chance) < 4 * (chance * (1 - chance) / COUNT) ** 0.5


def test_the_answer_is_among_the_candidates_of_which_there_are_three(
    made: list[Question], candidates: list[list[str]]
) -> None:
    assert all(q.answer in several and len(several) >= 3 for q, several in zip(made, candidates, strict=True))


def test_splits_share_no_story_and_numbers_make_them(made: list[Question]) -> None:
    def plain(question: Question) -> str:
        """Without who it is about."""
        return re.sub(r"@entity\d+", "@", " ".join((*question.passage, *question.query)))

    others = [make_question(split, number) for split in ("valid", "test") for number in range(500)]
    assert not {plain(question) for question in made} & {plain(question) for question in others}
    assert make_question("train", 7) == made[7] and len({plain(question) for question in made}) > 0.99 * COUNT


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> ReaderData:
    """Few of them, without cutting, as a run gets them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(stories, "SIZES", {"train": 300, "valid": 60, "test": 60})
        data = load_attentive_reader("stories", None)
        patch.setattr(stories, "make_question", lambda *_: pytest.fail("made again"))
        assert load_attentive_reader("stories", None).source == data.source
    return data


def test_what_a_run_gets_can_be_answered_too(loaded: ReaderData, oracle: Oracle) -> None:
    for questions in loaded.splits.values():
        for number in range(len(questions)):
            passage, query, answer = decoded(questions, loaded.vocabulary, number)
            assert oracle.answers(Question(passage.split(), query.split(), answer)) == {answer}
    assert (loaded.source.kind, loaded.source.label) == ("stand-in", "stories")
    assert loaded.source.detail.startswith("300/60/60 questions about generated stories")
    assert len(loaded.entities) == MARKERS and set(loaded.lost.values()) == {0.0}


def test_four_sentences_lose_few_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LN_CACHE", str(tmp_path))
    monkeypatch.setattr(stories, "SIZES", {"train": 300, "valid": 60, "test": 60})
    data = load_attentive_reader("stories", 4)
    assert 0 < data.lost["train"] < 0.05
    assert f"which lose the answer of {100 * data.lost['train']:.1f} % of train" in data.source.detail


def test_one_loader_serves_files_and_stories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the stories give the same arrays."""
    sizes = {"train": 30, "valid": 6, "test": 6}
    monkeypatch.setenv("LN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stories, "SIZES", sizes)
    data = load_attentive_reader("stories", 4)
    arrays, _, bad = load_folder("mine", place(tmp_path / "mine", sizes), 4)
    assert not any(bad.values())
    for split, questions in data.splits.items():
        for name, array in vars(questions).items():
            np.testing.assert_array_equal(array, arrays[f"{split}_{name}"])


def test_there_are_thousands_of_stories() -> None:
    assert SIZES["train"] >= 5000 and min(SIZES.values()) >= 1000
