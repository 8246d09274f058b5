"""Triples of neighbouring sentences and their batches: what the authors' code does, found out another way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.books import EOS, FIRST_WORD, UNKNOWN, Books, encode_sentences, padded
from data.fetch import DataError, Source
from data.triples import Batches, Triples

SOURCE = Source("stand-in", "made", "made up", "0", "")
RANDOM = np.random.RandomState(0)


def books(lengths: list[int]) -> Books:
    """Sentences of these lengths; the words of sentence n all have the id FIRST_WORD + n."""
    words = np.repeat(np.arange(len(lengths)) + FIRST_WORD, lengths).astype(np.uint16)
    vocabulary = [f"w{n}" for n in range(len(lengths))]
    return Books(words, np.cumsum([0, *lengths], dtype=np.int64), vocabulary, SOURCE)


@pytest.fixture(scope="module")
def many() -> Triples:
    return Triples(books(RANDOM.randint(1, 40, 5000).tolist()))


def test_thirty_words_drop_every_triple_they_are_in() -> None:
    made = books([3, 29, 4, 30, 5, 6, 7, 31])
    triples = Triples(made)
    assert np.flatnonzero(triples.usable_N).tolist() == [1, 5] and len(triples) == 2
    assert sorted(np.concatenate(list(triples.batches(0, 0, 64))).tolist()) == [1, 5]
    assert np.flatnonzero(Triples(made, maxlen=31).usable_N).tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("lengths", [[5, 30, 5], [5, 5], [30] * 9, [5, 5, 30, 5, 5]])
def test_no_usable_triple_is_an_error(lengths: list[int]) -> None:
    message = (
        f"made up: {len(lengths)} sentences, but no three neighbours of fewer than 30 words each; give another text or"
    )
    with pytest.raises(DataError, match=message):
        Triples(books(lengths))


def test_sentences_held_out_at_the_end_are_named_so() -> None:
    whole = books([5, 5, 5, 5, 30, 5])
    with pytest.raises(DataError, match="made up: the last 2 sentences, but no three .* each; raise task.held_out or"):
        Triples(replace(whole, starts=whole.starts[4:]))


def test_an_epoch_has_each_triple_once_in_batches_of_one_length(many: Triples) -> None:
    lengths = np.diff(many.books.starts)
    batches = list(many.batches(0, 0, 8))
    assert sorted(np.concatenate(batches).tolist()) == np.flatnonzero(many.usable_N).tolist()
    assert all(len(set(lengths[batch])) == 1 for batch in batches)
    sizes = [len(batch) for batch in batches]
    assert min(sizes) >= 1 and max(sizes) == 8
    # About a quarter of the neighbours have 30 words or more, so almost half of the triples drop out after the draw.
    drawn = -(-np.bincount(lengths[1:-1])[1:30] // 8)
    assert np.mean(sizes) == pytest.approx(8 * (29 / 39) ** 2, rel=0.1) and len(batches) <= drawn.sum()


def test_batches_are_a_function_of_seed_and_epoch(many: Triples) -> None:
    def drawn(epoch: int, seed: int) -> list[list[int]]:
        return [batch.tolist() for batch in many.batches(epoch, seed, 16)]

    first = drawn(0, 0)
    assert drawn(0, 0) == first
    assert drawn(1, 0) != first != drawn(0, 1) and drawn(1, 0) != drawn(0, 1)


def test_lengths_take_turns_in_a_random_order(many: Triples) -> None:
    lengths = np.diff(many.books.starts)
    turns = []
    for epoch in (0, 1):
        first = [int(lengths[batch[0]]) for batch in many.batches(epoch, 0, 32)[: 2 * 29]]
        assert first[:29] == first[29:] and sorted(first[:29]) == list(range(1, 30))
        turns.append(first[:29])
    assert turns[0] != turns[1] and turns[0] != sorted(turns[0])


def in_turns(groups: list[list[int]], usable: np.ndarray, size: int) -> list[list[int]]:
    """Round robin, step by step."""
    left, found = [list(group) for group in groups], []
    while any(left):
        for group in left:
            drawn, group[:] = group[:size], group[size:]
            if kept := [n for n in drawn if usable[n]]:
                found.append(kept)
    return found


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 7), st.integers(0, 100), st.randoms())
def test_turns(sizes: list[int], batch: int, percent: int, random: np.random.RandomState) -> None:
    numbers = np.arange(sum(sizes))
    usable = np.array([100 * random.random() < percent for _ in numbers])
    groups = np.split(numbers.astype(np.int32), np.cumsum(sizes)[:-1])
    expected = in_turns([group.tolist() for group in groups], usable, batch)
    batches = Batches(groups, usable, batch)
    assert [one.tolist() for one in batches] == expected
    assert len(batches) == len(expected)
    assert [batches[n].tolist() for n in range(-len(expected), len(expected))] == 2 * expected
    for part in (slice(2, None), slice(None, None, 3), slice(-3, -1)):
        assert [one.tolist() for one in batches[part]] == expected[part] and len(batches[part]) == len(expected[part])
    assert all(one.dtype == np.int64 for one in batches)
    with pytest.raises(IndexError):
        batches[len(expected)]


def test_padding_is_eos_and_every_sentence_has_one() -> None:
    made = books([2, 1, 3, 1])
    previous, middle, following = Triples(made).padded(np.array([2, 1]))
    assert previous.words_TB.T.tolist() == [[3, EOS, EOS], [2, 2, EOS]] and previous.lengths_B.tolist() == [2, 3]
    assert middle.words_TB.T.tolist() == [[4, 4, 4, EOS], [3, EOS, EOS, EOS]] and middle.lengths_B.tolist() == [4, 2]
    assert following.words_TB.T.tolist() == [[5, EOS, EOS, EOS], [4, 4, 4, EOS]]
    assert middle.words_TB.dtype == middle.lengths_B.dtype == np.int64


def test_a_batch_has_one_encoder_length(many: Triples) -> None:
    for batch in many.batches(3, 1, 64)[:40]:
        (previous, middle, following), starts = many.padded(batch), many.books.starts
        assert len(set(middle.lengths_B.tolist())) == 1
        for part, step in ((previous, -1), (middle, 0), (following, 1)):
            for row, number in zip(part.words_TB.T, batch + step, strict=True):
                words = many.books.words[starts[number] : starts[number + 1]].tolist()
                assert row.tolist() == words + [EOS] * (len(row) - len(words))


def test_sentences_of_others_are_encoded_with_the_vocabulary() -> None:
    encoded = encode_sentences(["the cat sat", ["a", "cat"], ""], ["cat", "the"])
    assert encoded.words.tolist() == [3, 2, UNKNOWN, UNKNOWN, 2] and encoded.starts.tolist() == [0, 3, 5, 5]
    words, lengths = padded(encoded, np.array([2, 0, 1]))
    assert words.T.tolist() == [[EOS] * 4, [3, 2, UNKNOWN, EOS], [UNKNOWN, 2, EOS, EOS]]
    assert lengths.tolist() == [1, 4, 3]
    assert padded(encoded, np.array([], dtype=np.int64)).words_TB.shape == (1, 0)
    made = Books(encoded.words, encoded.starts, ["cat", "the"], SOURCE)
    assert made.sentence(0) == "the cat <unknown>" and len(made) == 3
