"""Small attentive readers and what the oracle needs of them, for the tests of section 6.2."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.attentive_reader import AttentiveReader, ReaderSizes
from models.norm import Norm
from tests.oracles.reader import Recipe

BN = Norm("bn", gain_init=0.1)
ARMS: dict[str, tuple[Norm, bool]] = {
    "none": (Norm(), False),
    "bn_lstm": (BN, False),
    "bn_everywhere": (BN, True),
    "ln": (Norm("ln"), False),
    "ln_gain01": (Norm("ln", gain_init=0.1), False),
}
V, W, H = 23, 6, 5
LENGTHS, QUERY_LENGTHS = [7, 2, 5, 1], [3, 4, 1, 2]
ANSWERS = torch.tensor([3, 9, 22, 5])
PARTS = {"sx": "norm_ih", "sh": "norm_hh", "sc": "norm_cell"}


def make(arm: str, seed: int = 0, double: bool = True, moved: bool = True, **changes: Any) -> AttentiveReader:
    """A model; ``moved``: its parameters are random, biases, gains and h0 too, so that each of them counts."""
    norm, everywhere = ARMS[arm]
    sizes = {"vocabulary": V, "words": W, "units": H, "legacy_init": False, "steps": 4, **changes}
    generator = torch.Generator().manual_seed(seed)
    model = AttentiveReader(ReaderSizes(everywhere=everywhere, **sizes), norm, generator)
    model = model.double() if double else model
    if moved:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator).to(parameter))
    return model


def texts(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Passages with a step of padding after the longest one, and queries; padding is word 0."""
    random = np.random.RandomState(seed)
    found = []
    for lengths, steps in ((LENGTHS, 8), (QUERY_LENGTHS, 5)):
        words = random.randint(1, V, (steps, len(lengths)))
        words[np.arange(steps)[:, None] >= np.array(lengths)] = 0
        found += [torch.from_numpy(words), torch.tensor(lengths)]
    return tuple(found)  # type: ignore[return-value]


def recipe(arm: str, model: AttentiveReader) -> Recipe:
    norm, everywhere = ARMS[arm]
    return Recipe(norm.name, everywhere, model.sizes.padding == "included", model.sizes.bias_mode == "official")


def parameters(model: AttentiveReader) -> dict[str, np.ndarray]:
    """The oracle's names, gates in its order."""

    def plain(tensor: Any) -> np.ndarray:
        return tensor.detach().double().numpy()

    def gates(array: np.ndarray) -> np.ndarray:
        i, f, g, o = np.split(array, 4)
        return np.concatenate([i, f, o, g])

    p = {"E": plain(model.embedding), "M": plain(model.similarity).T, "v": plain(model.score)}
    for name, encoder in (("d", model.passage), ("q", model.query)):
        cell: Any = encoder.cells[0]
        p |= {f"{name}.W": gates(plain(cell.weight_ih)).T, f"{name}.U": gates(plain(cell.weight_hh)).T}
        p |= {f"{name}.b": gates(plain(cell.bias)), f"{name}.h0": plain(cell.h0)}
        for key, where in PARTS.items():
            site = getattr(cell, where)
            if not hasattr(site, "eps") and not hasattr(site, "groups"):
                continue
            turn = gates if key != "sc" else (lambda array: array)
            p[f"{name}.{key}"] = turn(plain(site.gain))
            if site.bias is not None:
                p[f"{name}.b{key[1]}"] = turn(plain(site.bias))
    layers = {"Wd": model.att_passage, "Wq": model.att_query, "Wr": model.out_passage, "Wu": model.out_query,
              "Wm": model.out_mean, "Wo": model.logits}  # fmt: skip
    for name, layer in layers.items():
        if layer is None:
            continue
        p[name] = plain(layer.weight).T
        bias: Any = layer.bias
        if model.sizes.everywhere and name != "Wo":
            p[f"s.{name}"], bias = plain(layer.norm.gain), layer.norm.bias
        if name in ("Wd", "Wu", "Wo"):
            p[f"b{name[1]}"] = plain(bias)
        else:
            assert bias is None, name
    return p
