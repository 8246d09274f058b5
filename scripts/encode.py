"""Encodes sentences with a trained skip-thoughts model, one vector for each line of its input.

    python -m scripts.encode --run results/runs/skip_thoughts/<run> < sentences.txt > vectors.npy

Input: UTF-8, one sentence a line. Output: a ``.npy`` array of float32, one row a line, in the order of the lines, for
``numpy.load``. The run's folder needs ``config.yaml`` and ``checkpoint.pt`` and nothing else: the words are kept with
the weights. Progress goes to stderr. Exit code: 0; 1 if a file cannot be used, 2 for bad input, with nothing written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from tqdm import tqdm

from data.word_vectors import read_word_vectors
from experiments.analysis.collect import results_dir
from experiments.analysis.output import short_path
from experiments.cli import guarded, in_short
from experiments.loop import not_finite, weights
from experiments.runs import RunError
from experiments.schema import ConfigError, load_saved, pick_device
from experiments.sentence_encoder import SentenceEncoder, lexicon, needed, tokens
from models.skip_thoughts import SkipSizes, SkipThoughts

BLOCK = 1 << 14  # lines sorted by length and written at a time
LONGEST = 10_000  # words of a line, and a tenth of its characters; no sentence has more
SHOWN = 8  # runs that a message names


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.encode", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", required=True, help="folder of a run, or its name in results/runs/skip_thoughts")
    parser.add_argument(
        "--eos", action="store_true", help="read EOS after each sentence (the authors do for SICK alone)"
    )
    parser.add_argument("--raw", action="store_true", help="leave vectors as they are, not scaled to length 1")
    parser.add_argument(
        "--lower", action="store_true", help="look words that are unknown as written up in small letters"
    )
    parser.add_argument("--tokenised", action="store_true", help="words are separated by blanks already")
    parser.add_argument("--word2vec", type=Path, help="word vectors, text or binary, for words the model has not seen")
    parser.add_argument("--batch-size", type=int, default=128, help="sentences at a time (default 128)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    return parser.parse_args(argv)


def find_run(name: str) -> Path:
    """The folder of a run, given as such or by its name. Raises ``RunError`` naming the runs there are."""
    runs = results_dir() / "runs" / "skip_thoughts"
    for folder in (Path(name), runs / name):
        if name and folder.is_dir():
            return folder
    if Path(name).is_file():
        raise RunError(f"{name}: a file; give the folder of a run, such as {Path(name).absolute().parent}")
    there = sorted(checkpoint.parent.name for checkpoint in runs.glob("*/checkpoint.pt"))
    some = ", ".join(there[:SHOWN]) + " …" * (len(there) > SHOWN)
    what = f"choose from: {some}" if there else "there is none yet: make reproduce TASK=skip_thoughts trains some"
    raise RunError(f"--run {name}: neither a folder nor a run in {short_path(runs)}; {what}")


def load_model(folder: Path, device: str = "auto") -> SkipThoughts:
    """The trained model of a run, in eval mode. Its corpus is not needed: the words are kept with the weights.

    Raises:
        RunError: no run of this task, or without usable weights.
        ConfigError: no such device.
    """
    place = pick_device(device)
    for name in ("config.yaml", "checkpoint.pt"):
        if not (folder / name).is_file():
            raise RunError(f"{folder}: no {name} there, so no trained model; give the folder of a run")
    try:
        cfg = load_saved(folder / "config.yaml")
        if (other := cfg.task.name) != "skip_thoughts":
            raise RunError(f"{folder}: a run of {other}; give one of skip_thoughts")
        task, found = cfg.task, weights(folder / "checkpoint.pt")
        sizes = SkipSizes(
            vocabulary=len(found["words.weight"]), words=task.word_dim, units=task.units,
            conditioned=task.conditioned, bias_mode=task.bias_mode, kernel=cfg.kernel,
        )  # fmt: skip
        model = SkipThoughts(sizes, cfg.norm.norm(), torch.Generator())
        model.spelling = found["spelling"]  # of its own size
        model.load_state_dict(found)
    except RunError:
        raise
    except Exception as error:  # whatever a damaged or foreign file makes torch or omegaconf raise
        raise RunError(f"{folder}: no usable run of skip_thoughts ({in_short(error)}); train it anew") from None
    if bad := not_finite(model):
        raise RunError(f"{folder / 'checkpoint.pt'}: {bad} holds numbers that are not finite; train it anew")
    return model.to(place).eval()


def read_lines(source: BinaryIO) -> list[str]:
    """The sentences. Raises ``ConfigError`` naming the first line that cannot be used."""
    lines = source.read().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise ConfigError("no input: give sentences on stdin, one a line")
    found = []
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"line {number} of the input is not UTF-8 (byte 0x{line[error.start]:02x}): convert it"
            ) from None
        if "\0" in text:
            raise ConfigError(f"line {number} of the input holds a NUL byte: it is no text")
        if not text:
            raise ConfigError(f"line {number} of the input is empty: give one sentence a line")
        if len(text) > 10 * LONGEST or len(text.split(maxsplit=LONGEST)) > LONGEST:
            raise ConfigError(
                f"line {number} of the input has more than {LONGEST:,} words or {10 * LONGEST:,} characters: give one "
                "sentence a line"
            )
        found.append(text)
    return found


def encode(options: argparse.Namespace, source: BinaryIO, target: BinaryIO) -> None:
    """Reads all sentences, then writes their vectors, a block of lines at a time."""
    if options.batch_size < 1:
        raise ConfigError(f"--batch-size {options.batch_size} must be 1 or more")
    model = load_model(find_run(options.run), options.device)
    sentences = read_lines(source)
    split = str.split if options.tokenised else tokens
    others = None
    if options.word2vec is not None:
        words_read = (word for sentence in sentences for word in split(sentence))
        others = read_word_vectors(options.word2vec, needed(words_read, model.vocabulary()))
    words = lexicon(model, others)
    encoder = SentenceEncoder(
        model, words, eos=options.eos, lower=options.lower, unit=not options.raw, batch_size=options.batch_size,
        split=split,
    )  # fmt: skip
    header = {"descr": "<f4", "fortran_order": False, "shape": (len(sentences), model.sizes.units)}
    np.lib.format.write_array_header_1_0(target, header)
    with tqdm(total=len(sentences), unit=" sentences", file=sys.stderr, mininterval=1) as bar:
        for start in range(0, len(sentences), BLOCK):
            target.write(encoder(sentences[start : start + BLOCK], bar.update).astype("<f4").tobytes())
    if encoder.unknown:
        share = 100 * encoder.unknown / encoder.read
        print(
            f"{encoder.unknown:,} of {encoder.read:,} words ({share:.1f} %) are unknown to the model", file=sys.stderr
        )


def main() -> int:
    """Entry point."""
    options = parse()
    if sys.stdout.isatty():
        raise ConfigError("vectors are no text for a terminal: append > vectors.npy")
    if sys.stdin.isatty():
        raise ConfigError("no input: append < sentences.txt, a file with one sentence a line")
    encode(options, sys.stdin.buffer, sys.stdout.buffer)
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    guarded(main)
