"""Recurrent layers to test: every variant there is, none of their parameters at its default, and the oracle's view.

Shapes: T time, B batch, I inputs, H units.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.norm import Norm
from models.rnn import GRU, LSTM
from tests.oracles import recurrent as oracle

KINDS: dict[str, type[LSTM] | type[GRU]] = {"lstm": LSTM, "gru": GRU}


def _modes(*names: str) -> list[dict[str, Any]]:
    return [{"bias_mode": name} for name in names] + [{"bias": False}]


def _variants() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = []
    for norm in ("none", "wn"):
        cases += [{"kind": "lstm", "norm": norm, **m} for m in _modes("torch", "official", "paper", "minimal")]
        cases += [{"kind": "gru", "norm": norm, **m} for m in _modes("torch", "official", "minimal")]
    groupings = [{}, {"joint": True}, {"per_gate": True}, {"joint": True, "per_gate": True}]
    at_gates = [("lstm", "gates+cell"), ("lstm", "gates"), ("gru", "gates")]
    for kind, sites in at_gates:
        for how in groupings:
            cases += [
                {"kind": kind, "norm": "ln", "sites": sites, **how, **m} for m in _modes("official", "paper", "minimal")
            ]
        cases += [{"kind": kind, "norm": "bn", "sites": sites, "max_steps": 9, **m} for m in _modes("minimal")]
        for eps_mode in ("sqrt", "outside", "var"):
            cases.append({"kind": kind, "norm": Norm("ln", eps=0.1, eps_mode=eps_mode), "sites": sites})
    for norm, more in (("ln", {}), ("bn", {"max_steps": 9})):
        cases += [{"kind": "lstm", "norm": norm, "sites": "cell", **more, **m} for m in _modes("minimal")]
    cases += [{"kind": "lstm", "norm": Norm("bn", variance="unbiased", eps=0.1), "max_steps": 9}]
    return cases


VARIANTS = _variants()


def name_of(case: object) -> str:
    """A readable test name."""
    if not isinstance(case, dict):
        return str(case)
    words = []
    for key, value in case.items():
        if isinstance(value, Norm):
            words.append(f"{value.name}-{value.eps_mode}-{value.variance}")
        elif key != "max_steps":
            words.append(value if isinstance(value, str) else key if value else f"no-{key}")
    return " ".join(words)


def scramble(module: torch.nn.Module, seed: int = 1, scale: float = 0.5) -> None:
    """Moves every parameter off its default, so that no term can hide. Gains stay positive mostly, not always."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_((noise * scale + 0.3 * scale).to(parameter.dtype))


def build(
    kind: str, inputs: int = 3, units: int = 5, dtype: torch.dtype = torch.float64, seed: int = 0, **switches: Any
) -> Any:
    """A layer of the variant, scrambled."""
    layer = KINDS[kind](inputs, units, generator=torch.Generator().manual_seed(seed), **switches).to(dtype)
    scramble(layer, seed + 1)
    return layer


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 2) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def states(layer: Any, batch: int, dtype: torch.dtype = torch.float64, seed: int = 3) -> Any:
    """A random initial state of the layer: (h, c), or h."""
    shape = (len(layer.cells), batch, layer.hidden_size)
    h = random(*shape, dtype=dtype, seed=seed)
    return (h, random(*shape, dtype=dtype, seed=seed + 1)) if isinstance(layer, LSTM) else h


def parts(state: Any) -> tuple[Tensor, ...]:
    """The tensors of a state of either layer."""
    return (state,) if isinstance(state, Tensor) else tuple(state)


DEFAULT_MODES = {"none": "torch", "wn": "torch", "ln": "official", "bn": "minimal"}


def recipe_of(case: dict[str, Any]) -> oracle.Recipe:
    """The oracle's switches, from the case and the documented defaults, not from the layer."""
    norm = case["norm"] if isinstance(case["norm"], Norm) else Norm(case["norm"])
    acts = norm.name in ("ln", "bn")
    sites = case.get("sites") or (("gates+cell" if case["kind"] == "lstm" else "gates") if acts else "none")
    mode = case.get("bias_mode") or ("minimal" if sites == "cell" else DEFAULT_MODES[norm.name])
    return oracle.Recipe(
        case["kind"],
        norm.name,
        sites,
        "without" if case.get("bias") is False else mode,
        case.get("joint", False),
        case.get("per_gate", False),
        norm.eps,
        norm.eps_mode,
        norm.variance == "unbiased",
    )


PREFIXES = {"norm_ih.": "x", "norm_hh.": "h", "norm_cell.": "c"}
WEIGHTS = {"weight_ih": "W", "weight_hh": "U"}


def parameters_of(cell: torch.nn.Module) -> dict[str, np.ndarray]:
    """A cell's parameters under the oracle's names."""
    found: dict[str, Any] = {}
    for name, value in cell.named_parameters():
        array = value.detach().double().numpy()
        if name in WEIGHTS:
            found[WEIGHTS[name]] = array
        elif name.startswith("parametrizations."):
            letter = WEIGHTS[name.split(".")[1]]
            found[("g" if name.endswith("original0") else "v") + letter] = array.squeeze(1) if "0" in name else array
        elif name in ("bias", "bias_hh"):
            found["b" if name == "bias" else "b2"] = array
        else:
            site = next(short for prefix, short in PREFIXES.items() if name.startswith(prefix))
            # groups of a site are listed in their order
            found.setdefault(("s" if name.endswith("gain") else "b") + site, []).append(array)
    return {name: np.concatenate(value) if isinstance(value, list) else value for name, value in found.items()}


def oracle_run(
    layer: Any, recipe: oracle.Recipe, x: Tensor, state: Any, lengths: Tensor | None = None
) -> tuple[np.ndarray, ...]:
    """Output and last states of a one-layer, one-direction layer; states (B, H)."""
    p = parameters_of(layer.cells[0])
    start = [part[0].double().numpy() for part in parts(state)]
    run = oracle.lstm if recipe.kind == "lstm" else oracle.gru
    ends = None if lengths is None else lengths.tolist()
    return run(x.double().numpy(), *start, p, recipe, ends)  # type: ignore[operator]
