"""A whole skip-thoughts model under its authors' parameter names, and back.

Their archive is one ``.npz`` file: ``Wemb`` (V, W), the word vectors; the GRUs as in ``models.official``, under the
prefixes ``encoder``, ``decoder_f`` (the next sentence) and ``decoder_b`` (the previous one); ``ff_logit_W`` (H, V) and
``ff_logit_b`` (V), the output layer. Their word ids are ours: EOS, the unknown word, then words by frequency.

Shapes: V vocabulary, W word dimensions, H units.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.norm import Norm
from models.official import Arrays, load_official, official_arrays
from models.skip_thoughts import SkipSizes, SkipThoughts

FIRST_WORD = 2  # after EOS and the unknown word
PREFIXES = {"encoder": "encoder", "next": "decoder_f", "previous": "decoder_b"}


def _outside(model: SkipThoughts) -> dict[str, Tensor]:
    """Views of what is no GRU."""
    return {"Wemb": model.words.weight, "ff_logit_W": model.output.weight.T, "ff_logit_b": model.output.bias}


def load_skip_thoughts(npz: str | Path | Arrays, vocabulary: Sequence[str] = ()) -> SkipThoughts:
    """Reads a model of the authors, with LN or without.

    Args:
        npz: the file, or its arrays by name.
        vocabulary: the words from id 2 on, if they are known.

    Raises:
        ValueError: a name missing, a shape that does not fit, values that are not finite, or another number of words;
            one line says which.
    """
    if isinstance(npz, str | Path):
        load_official(npz)  # says what is wrong with the file
        with np.load(npz, allow_pickle=False) as archive:
            npz = {name: archive[name] for name in archive.files if archive[name].dtype.kind == "f"}
    missing = [name for name in ("Wemb", "ff_logit_W", "ff_logit_b", "encoder_W", "encoder_U") if name not in npz]
    if missing:
        raise ValueError(f"the archive lacks {', '.join(missing)}: it is no skip-thoughts model of the authors")
    if npz["Wemb"].ndim != 2:
        raise ValueError(f"Wemb has shape {npz['Wemb'].shape}, but must be a table of word vectors")
    rows, width = npz["Wemb"].shape
    if vocabulary and len(vocabulary) != rows - FIRST_WORD:
        raise ValueError(f"Wemb has vectors of {rows - FIRST_WORD:,} words, but {len(vocabulary):,} words are given")
    sizes = SkipSizes(rows, width, len(npz["encoder_U"]))
    norm = Norm("ln" if "encoder_s1" in npz else "none")
    model = SkipThoughts(sizes, norm, torch.Generator(), vocabulary)
    for ours, theirs in PREFIXES.items():
        load_official(npz, theirs, into=getattr(model, ours))
    for name, view in _outside(model).items():
        given, shape = npz[name], tuple(view.shape)
        if given.shape != shape:
            raise ValueError(f"{name} has shape {given.shape}, but must have {shape}")
        if not np.isfinite(given).all():
            raise ValueError(f"{name} holds values that are not finite")
        with torch.no_grad():
            view.copy_(torch.from_numpy(given))
    return model


def skip_thoughts_arrays(model: SkipThoughts) -> dict[str, NDArray[np.floating]]:
    """A model's parameters under the authors' names, to be saved with ``numpy.savez``.

    Raises:
        ValueError: their code cannot express the model.
    """
    if model.sizes.conditioned:
        raise ValueError("the authors' decoders are not conditioned at each step: train with conditioned=False")
    found = {name: view.detach().cpu().numpy().copy() for name, view in _outside(model).items()}
    for ours, theirs in PREFIXES.items():
        found |= official_arrays(getattr(model, ours), theirs)
    return found
