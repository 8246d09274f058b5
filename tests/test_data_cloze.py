"""Question files one by one: what is read, what is refused, which sentences are kept, and how they become arrays."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import cloze_pack
from data.attentive_reader import load_attentive_reader
from data.cloze_files import ENTITIES, PLACEHOLDER, BadQuestion, Question, parse_question, write_question
from data.cloze_pack import FIRST_WORD, PAD, UNKNOWN, Questions, Shard, build_vocabulary, entities_of, merge, pack
from data.cloze_sentences import keep, scores, split_sentences
from tests.clozefiles import question

WHERE = "here/0001.question"
TEXT = write_question(question())


def test_what_is_written_is_read() -> None:
    one = question("@entity3 saw caf\u00e9 @entity0 .")
    text = write_question(one)
    assert text.split("\n")[2:8:2] == [" ".join(one.passage), " ".join(one.query), one.answer]
    assert not text.endswith("\n") and parse_question(text.encode(), WHERE) == one


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data + b"\n",
        lambda data: data + b"\r\n\r\n",
        lambda data: b"\xef\xbb\xbf" + data,
    ],
    ids=["windows", "line end", "blank lines at the end", "byte order mark"],
)
def test_other_line_ends_change_nothing(change: Callable[[bytes], bytes]) -> None:
    plain = parse_question(TEXT.encode(), WHERE)
    read = parse_question(change(TEXT.encode()), WHERE)
    assert (read.passage, read.query, read.answer, read.names) == (
        plain.passage, plain.query, plain.answer, plain.names,
    )  # fmt: skip


def test_a_line_ends_at_a_line_feed_only() -> None:
    text = TEXT.replace("it rained", "it\u2028rained \x85 and\x0bsnowed")
    assert parse_question(text.encode(), WHERE).passage[-6:] == [".", "it", "rained", "and", "snowed", "."]


@pytest.mark.parametrize("length", [1, 2, 2000, 5000])
def test_a_passage_may_have_any_length(length: int) -> None:
    read = parse_question(write_question(question("@entity0 " * length)).encode(), WHERE)
    assert read.passage == ["@entity0"] * length
    assert keep(read.passage, read.query, 4) == read.passage, "it is one sentence"


def changed(**parts: str) -> bytes:
    return write_question(question(**parts)).encode()


LINES = TEXT.split("\n")
BAD: dict[str, tuple[bytes, str]] = {
    "zero bytes": (b"", "empty"),
    "blank": (b" \n\r\n\n", "empty"),
    "no answer": (TEXT.replace("\n@entity0\n", "\n\n").encode(), "no answer (line 7 is blank)"),
    "answer is a word": (changed(answer="rained"), "the answer (line 7) is 'rained', not one marker such as @entity7"),
    "two answers": (changed(answer="@entity0 @entity3"), "is '@entity0 @entity3', not one marker"),
    "answer without number": (changed(answer="@entity"), "is '@entity', not one marker"),
    "no placeholder": (changed(query="who was seen"), "the query (line 5) holds no @placeholder"),
    "placeholder in the passage only": (
        changed(passage="@placeholder saw @entity0", query="seen"), "the query (line 5) holds no @placeholder",
    ),
    "no query": (changed(query=""), "no query (line 5 is blank)"),
    "no passage": (changed(passage=""), "no passage (line 3 is blank)"),
    "answer elsewhere": (changed(answer="@entity7"), "the answer @entity7 is not in the passage"),
    "answer in the query only": (
        changed(query="@placeholder saw @entity9", answer="@entity9"), "the answer @entity9 is not in the passage",
    ),
    "unnamed in the passage": (TEXT.replace("@entity3:Name 0\n", "").encode(), "@entity3 is not among the names"),
    "unnamed in the query": (
        write_question(question()).replace("was seen", "saw @entity8").encode(), "@entity8 is not among the names",
    ),
    "no names": (TEXT[: TEXT.index("@entity3:")].encode(), "@entity3 is not among the names at the end, perhaps"),
    "cut in the address": (LINES[0][:9].encode(), "truncated, line 3 with the passage is not there"),
    "cut in the passage": ("\n".join(LINES[:3])[:-5].encode(), "truncated, line 5 with the query is not there"),
    "cut in the query": ("\n".join(LINES[:5])[:-3].encode(), "truncated, line 7 with the answer is not there"),
    "cut before the answer": ("\n".join([*LINES[:6], ""]).encode(), "no answer (line 7 is blank)"),
    "cut in a name": (TEXT.replace(":Name 1", "").encode(), "line 10 is '@entity0', not a marker and its name"),
    "latin-1": (TEXT.replace("it", "caf\u00e9").encode("latin-1"), "line 3 is not UTF-8 (byte 0xe9)"),
    "utf-16": (TEXT.encode("utf-16"), "line 1 is not UTF-8 (byte 0xff)"),
    "binary": (bytes(range(256)) * 4, "line 2 is not UTF-8 (byte 0x80)"),
    "binary without high bytes": (bytes(range(128)) * 4, "binary, not a question (it holds a zero byte)"),
    "two passages": (TEXT.replace("\n\n@pl", "\nmore\n@pl").encode(), "line 4 before the query must be blank"),
    "no blank before the names": (TEXT.replace("0\n\n@e", "0\n@entity5:E\n@e").encode(), "line 8 before the names"),
    "other text": ("\n".join(f"line {i}" for i in range(20)).encode(), "line 2 before the passage must be blank"),
    "marker beyond": (
        changed(passage=f"@entity0 saw @entity{ENTITIES}"),
        f"'@entity{ENTITIES}' is beyond the vocabulary, whose last marker is @entity{ENTITIES - 1}",
    ),
    "marker far beyond": (changed(passage="@entity0 saw @entity" + "9" * 9999), "…' is beyond the vocabulary"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_one_line_that_names_it(name: str) -> None:
    content, message = BAD[name]
    with pytest.raises(BadQuestion) as error:
        parse_question(content, WHERE)
    text = str(error.value)
    assert text.startswith(f"{WHERE}: ") and message in text and "\n" not in text and len(text) < 200
    assert text.endswith("; replace or remove the file")


@given(st.integers(0, len(TEXT) - 1), st.binary(max_size=3))
def test_damage_is_refused_or_gives_a_sound_question(place: int, junk: bytes) -> None:
    """Whatever a file holds, nothing but ``BadQuestion`` comes of it."""
    for content in (TEXT.encode()[:place], TEXT.encode()[:place] + junk + TEXT.encode()[place:]):
        try:
            read = parse_question(content, WHERE)
        except BadQuestion as error:
            assert str(error).startswith(WHERE)
        else:
            assert read.answer in read.passage and PLACEHOLDER in read.query and read.answer in read.names


def test_sentences_together_are_the_passage() -> None:
    text = 'he came . " why ? " she said . it is 3.5 p.m. now ! ! \' yes . \' ( no . ) then " i " went'
    sentences = [" ".join(words) for words in split_sentences(text.split())]
    assert sentences == [
        "he came .", '" why ? "', "she said .", "it is 3.5 p.m. now ! !", "' yes . '", "( no . )", 'then " i " went',
    ]  # fmt: skip
    assert " ".join(sentences) == text
    # A mark that opens the next sentence looks like one that closes this one.
    assert [len(words) for words in split_sentences('he came . " i am here . "'.split())] == [3, 6]


def test_scores_are_as_documented() -> None:
    sentences = ["the @entity1 fell .".split(), "the cat , the cat saw @entity1 .".split(), "it rained .".split()]
    query = "the cat , @placeholder @entity1 .".split()
    both = math.log(1 + 3 / 2)  # "the" and @entity1 are in two sentences of three; the cat in one
    assert scores(sentences, query) == pytest.approx([2 * both, 2 * both + math.log(4), 0.0])


def test_the_best_sentences_are_kept_in_their_order() -> None:
    passage = "a b . c d . a c . e f .".split()
    assert keep(passage, "@placeholder a c".split(), 1) == "a c .".split()
    assert keep(passage, "@placeholder a c".split(), 2) == "a b . a c .".split(), "of equals the earlier"
    assert keep(passage, [PLACEHOLDER], 2) == "a b . c d .".split(), "nothing to match: the first ones"
    assert keep(passage, "@placeholder a c".split(), 4) == keep(passage, ["x"], 9) == passage


def decoded(questions: Questions, vocabulary: list[str], number: int) -> tuple[str, str, str]:
    """A question's passage, query and answer as text, by way of ``padded``."""
    p_TB, p_B, q_SB, q_B, a_B = questions.padded([number])
    words = {PAD: "<pad>", UNKNOWN: "<unknown>", **dict(enumerate(vocabulary, FIRST_WORD))}
    passage, query = ([words[int(w)] for w in w_TB[:, 0]] for w_TB in (p_TB, q_SB))
    assert (len(passage), len(query)) == (p_B[0], q_B[0])
    return " ".join(passage), " ".join(query), words[int(a_B[0])]


@pytest.fixture(scope="module")
def three() -> list[Question]:
    return [
        question(),
        question("@entity2 slept . rain . @entity5 came . snow . hail .", "@placeholder slept", "@entity2"),
        question("@entity5 saw snow . it rained . @entity2 saw snow", "snow on @placeholder", "@entity2"),
    ]


def test_arrays_hold_the_questions(three: list[Question]) -> None:
    shards = {"train": [pack(three[:2], None), pack(three[2:], None)], "valid": [pack(three[:1], 1)]}
    vocabulary = build_vocabulary(shards["train"], shards["valid"])
    arrays = merge({k: [lambda s=s: s for s in each] for k, each in shards.items()}, vocabulary)  # type: ignore[misc]
    parts = {
        split: Questions(**{name: arrays[f"{split}_{name}"] for name in Questions.__dataclass_fields__})
        for split in shards
    }
    for n, one in enumerate(three):
        expected = " ".join(one.passage), " ".join(one.query), one.answer
        assert decoded(parts["train"], vocabulary, n) == expected
    assert decoded(parts["valid"], vocabulary, 0)[0] == "@entity3 saw @entity0 ."
    assert len(parts["train"]) == 3 and parts["train"].passage_words.dtype == np.int32
    p_TB, p_B, q_SB, q_B, a_B = parts["train"].padded(np.array([1, 0]))
    assert p_TB.shape == (p_B.max(), 2) and q_SB.shape == (q_B.max(), 2)
    assert (p_TB[p_B[1] :, 1] == PAD).all() and (p_TB[: p_B[1], 1] != PAD).all()
    assert all(array.dtype == np.int64 for array in (p_TB, p_B, q_SB, q_B, a_B))


def test_words_are_numbered_by_how_often_training_has_them(three: list[Question]) -> None:
    training = pack(three, None)
    vocabulary = build_vocabulary([training], [])
    text = [word for one in three for word in (*one.passage, *one.query)]
    counts = [text.count(word) for word in vocabulary]
    assert sorted(set(text)) == sorted(vocabulary) and counts == sorted(counts, reverse=True)
    assert vocabulary == sorted(vocabulary, key=lambda word: (-text.count(word), word))
    assert [vocabulary[n - FIRST_WORD] for n in entities_of(vocabulary)] == [w for w in vocabulary if "@entity" in w]


def test_unseen_words_are_unknown_but_unseen_markers_are_not(three: list[Question]) -> None:
    other = pack([question("@entity12 saw @entity11 yesterday", "@placeholder was seen", "@entity11")], None)
    vocabulary = build_vocabulary([pack(three, None)], [other])
    assert vocabulary[-2:] == ["@entity11", "@entity12"]
    arrays = merge({"test": [lambda: other]}, vocabulary)
    words = [vocabulary[w - FIRST_WORD] if w != UNKNOWN else "?" for w in arrays["test_passage_words"]]
    assert words == ["@entity12", "saw", "@entity11", "?"]
    assert (vocabulary[arrays["test_answers"][0] - FIRST_WORD], arrays["test_lost"]) == ("@entity11", 0)


def test_lost_answers_are_counted_and_stay_in_the_vocabulary(three: list[Question]) -> None:
    lost = question("@entity0 saw snow . rain .", "@placeholder likes rain", "@entity0")
    shard = pack([*three, lost], 1)
    vocabulary = build_vocabulary([shard], [])
    assert shard.lost == sum(one.answer not in keep(one.passage, one.query, 1) for one in [*three, lost]) >= 1
    assert merge({"train": [lambda: shard]}, vocabulary)["train_answers"].min() >= FIRST_WORD


def test_merging_holds_few_shards_at_a_time(three: list[Question]) -> None:
    alive: list[weakref.ref[Shard]] = []
    most = 0

    def read() -> Shard:
        nonlocal most
        shard = pack(three, None)
        alive.append(weakref.ref(shard))
        most = max(most, sum(one() is not None for one in alive))
        return shard

    def several() -> Iterator[Shard]:
        for _ in range(9):
            yield read()

    merge({"train": [read] * 9}, build_vocabulary(several(), several()))
    assert len(alive) == 36 and most <= 3


def test_a_shard_comes_back_from_its_file_and_a_damaged_one_does_not(tmp_path: object, three: list[Question]) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "one.npz"
    shard = pack(three, None, ["a\udcffb: bad"])
    cloze_pack.save_shard(path, shard)
    back = cloze_pack.load_shard(path)
    assert back is not None and (back.words, back.bad, back.lost) == (shard.words, shard.bad, shard.lost)
    for name in ("counts", "passage_words", "passage_lengths", "question_words", "question_lengths", "answers"):
        np.testing.assert_array_equal(getattr(back, name), getattr(shard, name))
    assert [p.name for p in path.parent.iterdir()] == ["one.npz"]
    path.write_bytes(path.read_bytes()[:-30])
    assert cloze_pack.load_shard(path) is None
    np.savez(path, words=np.zeros(1, np.uint8))
    assert cloze_pack.load_shard(path) is None
    assert cloze_pack.load_shard(path.with_name("none.npz")) is None


def test_random_words_have_the_published_sizes() -> None:
    """For timing: 65,830 ids with padding and the unknown word, and passages of 300 words after the last is dropped."""
    first, again = load_attentive_reader("random"), load_attentive_reader("random")
    assert FIRST_WORD + len(first.vocabulary) == 65_830 and len(set(first.vocabulary)) == 65_828
    assert [first.word(int(n)).startswith("@entity") for n in first.entities] == [True] * 600
    for split, questions in first.splits.items():
        passages_TB, lengths_B, _, _, answers_B = questions.padded(np.arange(64))
        assert passages_TB.shape == (301, 64) and set(lengths_B.tolist()) == {301}
        assert passages_TB.min() >= FIRST_WORD and passages_TB.max() < 65_830 and set(answers_B) <= set(first.entities)
        assert np.array_equal(questions.passage_words, again.splits[split].passage_words)
    assert first.source.kind == "stand-in" and first.source.fingerprint == again.source.fingerprint
