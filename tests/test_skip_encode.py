"""Encoding sentences: unknown words, EOS, order and batches; and the command, on a checkpoint without its corpus."""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data.fetch import DataError
from data.word_vectors import WordVectors
from experiments.compose import compose_cells
from experiments.runs import RunError
from experiments.schema import ConfigError, dump
from experiments.sentence_encoder import SentenceEncoder, lexicon, tokens
from models.norm import Norm
from models.skip_thoughts import SkipSizes, SkipThoughts, Words
from scripts import encode

WORDS = ["the", "cat", "dog", "sat", ".", "horse"]
NAN = torch.full((2 + len(WORDS), 16), float("nan"))


@pytest.fixture(scope="module")
def model() -> SkipThoughts:
    sizes = SkipSizes(2 + len(WORDS), words=16, units=16)
    return SkipThoughts(sizes, Norm("ln"), torch.Generator().manual_seed(0), WORDS).eval()


def vector(model: SkipThoughts, ids: list[int], unit: bool = True) -> np.ndarray:
    with torch.no_grad():
        h = model.encode(Words(torch.tensor(ids)[:, None], torch.tensor([len(ids)])))[0].numpy()
    return h / np.linalg.norm(h) if unit else h


def test_each_sentence_as_if_alone(model: SkipThoughts) -> None:
    sentences = ["the cat sat .", "dog", "the dog sat . the cat sat .", "cat", "the zebra"]
    ids = [[2, 3, 5, 6], [4], [2, 4, 5, 6, 2, 3, 5, 6], [3], [2, 1]]
    for size in (1, 2, 100):
        encoder = SentenceEncoder(model, lexicon(model), batch_size=size)
        found = encoder(sentences)
        assert found.dtype == np.float32 and found.shape == (5, 16)
        assert (encoder.read, encoder.unknown) == (16, 1)
        for row, expected in zip(found, ids, strict=True):
            np.testing.assert_allclose(row, vector(model, expected), atol=1e-6)
    eos = SentenceEncoder(model, lexicon(model), eos=True, unit=False)(sentences)
    np.testing.assert_allclose(eos[1], vector(model, [4, 0], unit=False), atol=1e-6)
    np.testing.assert_allclose(SentenceEncoder(model, lexicon(model))([""])[0], vector(model, [0]), atol=1e-6)


def test_letters_are_left_as_they_are_unless_asked(model: SkipThoughts) -> None:
    words = lexicon(model)
    (as_is,), (small,) = (
        SentenceEncoder(model, words, lower=lower).numbers(["The cat SAT."]) for lower in (False, True)
    )
    assert as_is == [1, 3, 1, 6] and small == [2, 3, 5, 6]
    assert tokens("It's a dog. He sat!") == ["It", "'s", "a", "dog", ".", "He", "sat", "!"]


def others(words: list[str], width: int = 3, seed: int = 0) -> WordVectors:
    matrix = np.random.RandomState(seed).randn(len(words), width).astype(np.float32)
    return WordVectors({word: n for n, word in enumerate(words)}, matrix)


def test_unseen_words_are_mapped_and_own_words_kept(model: SkipThoughts) -> None:
    own = model.words.weight.detach().numpy()
    given = others([*WORDS[:5], "zebra", "Cat"])
    matrix, intercept = np.random.RandomState(1).randn(3, 16), np.random.RandomState(2).randn(16)
    exact = SkipThoughts(model.sizes, Norm("ln"), torch.Generator(), WORDS)
    with torch.no_grad():
        exact.words.weight[2:7] = torch.from_numpy(given.matrix_ND[:5] @ matrix + intercept).float()
    found = lexicon(exact, given)
    assert found.numbers(["the", "horse", "zebra", "Cat", "gnu"], lower=False) == [2, 7, 8, 9, 1]
    np.testing.assert_allclose(found.table_VW[8:], given.matrix_ND[5:] @ matrix + intercept, atol=1e-4)
    assert torch.equal(found.table_VW[:8], exact.words.weight), "trained words keep their own vectors"
    assert lexicon(model).table_VW.shape == own.shape
    with pytest.raises(
        DataError, match="^word vectors: 3 words are in both vocabularies, too few for a map from 3 dimensions"
    ):
        lexicon(model, others([*WORDS[:3], "zebra"]))


def test_batches_of_long_sentences_are_small(model: SkipThoughts, monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = ["the cat", "dog", "the dog sat . " * 3, "cat", "the zebra sat"]
    encoder = SentenceEncoder(model, lexicon(model), batch_size=4)
    expected, real, sizes = encoder(sentences), encoder._batch, []

    def batch(numbers: list[list[int]], lengths_B: np.ndarray) -> np.ndarray:
        sizes.append(lengths_B.tolist())
        return real(numbers, lengths_B)

    monkeypatch.setattr("experiments.sentence_encoder.PADDED", 7)
    monkeypatch.setattr(encoder, "_batch", batch)
    np.testing.assert_allclose(encoder(sentences), expected, atol=1e-6)
    assert sizes == [[1, 1], [2, 3], [12]], "seven words at most, padding included, but never less than one sentence"


@pytest.fixture(scope="module")
def run(model: SkipThoughts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's configuration and weights, nothing else."""
    folder = tmp_path_factory.mktemp("run")
    (cfg,) = compose_cells([["task=skip_thoughts", "profile=smoke", "norm=ln", "task.word_dim=16", "task.units=16"]])
    (folder / "config.yaml").write_text(dump(cfg))
    torch.save({"model": model.state_dict()}, folder / "checkpoint.pt")
    return folder


def options(run: Path, **changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(encode.parse(["--run", str(run), "--device", "cpu"])), **changes})


def encoded(text: bytes, chosen: argparse.Namespace) -> np.ndarray:
    target = io.BytesIO()
    encode.encode(chosen, io.BytesIO(text), target)
    return np.load(io.BytesIO(target.getvalue()))


def test_the_command(run: Path, model: SkipThoughts, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    text = "\ufeffthe cat sat.\ndog\r\nThe naïve cat\n".encode()
    found = encoded(text, options(run))
    assert found.shape == (3, 16) and found.dtype == np.float32
    np.testing.assert_allclose(found[0], vector(model, [2, 3, 5, 6]), atol=1e-6)
    np.testing.assert_allclose(found[1], vector(model, [4]), atol=1e-6)
    np.testing.assert_allclose(found[2], vector(model, [1, 1, 3]), atol=1e-6)
    assert "2 of 8 words (25.0 %) are unknown to the model" in capsys.readouterr().err
    monkeypatch.setattr(encode, "BLOCK", 2)
    np.testing.assert_allclose(encoded(text.rstrip(b"\n"), options(run)), found, atol=1e-6)
    chosen = options(run, eos=True, raw=True, lower=True)
    np.testing.assert_allclose(encoded(text, chosen)[2], vector(model, [2, 1, 3, 0], unit=False), atol=1e-6)
    np.testing.assert_allclose(
        encoded(b"cat sat.\n", options(run, tokenised=True))[0], vector(model, [3, 1]), atol=1e-6
    )


def test_the_command_with_word_vectors(run: Path, tmp_path: Path, model: SkipThoughts) -> None:
    words = [*WORDS, "zebra"]
    rows = others(words).matrix_ND
    lines = [f"{word} {' '.join(map(str, row.tolist()))}" for word, row in zip(words, rows, strict=True)]
    (tmp_path / "v.txt").write_text(f"{len(words)} 3\n" + "\n".join(lines) + "\n")
    plain, expanded = (encoded(b"zebra\ncat\n", options(run, word2vec=p)) for p in (None, tmp_path / "v.txt"))
    np.testing.assert_allclose(plain[1], expanded[1], atol=1e-6)
    assert np.abs(plain[0] - expanded[0]).max() > 1e-3
    small = encoded(b"Zebra\n", options(run, word2vec=tmp_path / "v.txt", lower=True))
    np.testing.assert_allclose(small[0], expanded[0], atol=1e-6)


BAD = {
    b"": "no input: give sentences on stdin, one a line",
    b"cat\n\ndog\n": "line 2 of the input is empty",
    b"cat\n  \n": "line 2 of the input is empty",
    b"cat\ncaf\xe9\n": "line 2 of the input is not UTF-8 (byte 0xe9)",
    b"cat\x00\n": "line 1 of the input holds a NUL byte",
    b"cat\n" + b"the " * 10_001: "line 2 of the input has more than 10,000 words or 100,000 characters: give",
    b"x" * 100_001: "line 1 of the input has more than 10,000 words or 100,000 characters: give one sentence a line",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_input_is_one_line_and_nothing_is_written(text: bytes, run: Path) -> None:
    target = io.BytesIO()
    with pytest.raises(ConfigError) as error:
        encode.encode(options(run), io.BytesIO(text), target)
    assert BAD[text] in str(error.value) and "\n" not in str(error.value) and not target.getvalue()


def test_a_folder_that_is_no_run(run: Path, tmp_path: Path) -> None:
    def reason(folder: Path) -> str:
        with pytest.raises(RunError) as error:
            encoded(b"cat\n", options(folder))
        assert str(folder) in str(error.value) and "\n" not in str(error.value)
        return str(error.value)

    (tmp_path / "none").mkdir()
    assert "no config.yaml there" in reason(tmp_path / "none")
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
    assert "no checkpoint.pt there" in reason(tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"junk")
    assert "no usable run of skip_thoughts" in reason(tmp_path)
    torch.save({"model": {"a": torch.zeros(1)}}, tmp_path / "checkpoint.pt")
    assert "no usable run of skip_thoughts" in reason(tmp_path)
    torch.save(
        {"model": torch.load(run / "checkpoint.pt")["model"] | {"words.weight": NAN}}, tmp_path / "checkpoint.pt"
    )
    assert "words.weight holds numbers that are not finite" in reason(tmp_path)
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text().replace("units: 16", "units: 17"))
    assert "no usable run of skip_thoughts (size mismatch for " in reason(tmp_path)
    (other,) = compose_cells([["task=pi_mnist", "profile=smoke", "norm=ln"]])
    (tmp_path / "config.yaml").write_text(dump(other))
    assert "a run of pi_mnist; give one of skip_thoughts" in reason(tmp_path)
    with pytest.raises(ConfigError, match="--batch-size 0 must be 1 or more"):
        encoded(b"cat\n", options(run, batch_size=0))


def test_an_unknown_run_is_answered_with_those_there_are(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reason(name: str) -> str:
        with pytest.raises(RunError) as error:
            encoded(b"cat\n", options(Path(name)))
        assert "\n" not in str(error.value)
        return str(error.value)

    monkeypatch.setenv("LN_RESULTS", str(tmp_path))
    assert "--run ln-0: neither a folder nor a run in" in reason("ln-0")
    assert "make reproduce TASK=skip_thoughts trains some" in reason("ln-1")
    shutil.copytree(run, tmp_path / "runs" / "skip_thoughts" / "ln-1")
    (tmp_path / "runs" / "skip_thoughts" / "untrained").mkdir()
    assert reason("ln-0").endswith("choose from: ln-1") and encoded(b"cat\n", options(Path("ln-1"))).shape == (1, 16)
    assert "checkpoint.pt: a file; give the folder of a run, such as" in reason(str(run / "checkpoint.pt"))


def test_from_stdin_to_stdout(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, out = b"the cat sat.\ndog\n", io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr("sys.argv", ["encode", "--run", str(run), "--device", "cpu"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    monkeypatch.setattr("sys.stdout", out)
    assert encode.main() == 0
    np.testing.assert_array_equal(np.load(io.BytesIO(out.buffer.getvalue())), encoded(text, options(run)))  # type: ignore[attr-defined]
