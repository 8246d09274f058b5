"""Training of §6.1: the published setting, and updates beside those of a second program in NumPy.

The second program keeps the authors' layout of tensors, and has their loss, clipping and Adam. Its gradients are
differences of its loss, so nothing of the suite is in it.

Shapes: T time steps, B batch, W word dimensions, H units, D image features.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from experiments.compose import compose_cells
from experiments.optim import clip_gradients, make_optimizer
from models.norm import Norm
from models.order_embeddings import MARGINS, OrderEmbedding, OrderSizes, contrastive_loss

H, W, D, V, B = 3, 4, 5, 6, 3
MARGIN, LR, CLIP = 0.05, 1e-3, 0.4  # a clip that some tensors exceed and others do not
WORDS_TB = np.array([[2, 5, 3], [4, 0, 2], [0, 0, 5], [0, 0, 0]])
LENGTHS_B = np.array([3, 2, 4])
Tensors = dict[str, np.ndarray]


def sigmoid(a: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-a))


def theirs(p: Tensors, x_BD: np.ndarray) -> float:
    """The loss: GRU with gates [r, u] in one matrix and the candidate in another, masked; LN where there are gains."""

    def ln(a: np.ndarray, number: int) -> np.ndarray:
        if f"s{number}" not in p:
            return a
        centred = a - a.mean(1, keepdims=True)
        return p[f"s{number}"] * centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) + p[f"b{number}"]

    def ball(a: np.ndarray) -> np.ndarray:
        return np.abs(a / np.sqrt((a**2).sum(1, keepdims=True)))

    h = np.zeros((B, H))
    for t, words in enumerate(WORDS_TB):
        x = p["Wemb"][words]
        gates = sigmoid(ln(x @ p["W"] + p["b"], 1) + ln(h @ p["U"], 3))
        r, u = gates[:, :H], gates[:, H:]
        new = u * h + (1 - u) * np.tanh(ln(x @ p["Wx"] + p["bx"], 2) + r * ln(h @ p["Ux"], 4))
        m = (t < LENGTHS_B)[:, None]
        h = m * new + (1 - m) * h
    s, v = ball(h), ball(x_BD @ p["im_W"] + p["im_b"])
    error = np.array([[(np.maximum(0, s[i] - v[j]) ** 2).sum() for j in range(B)] for i in range(B)])
    pairs = [(i, j) for i in range(B) for j in range(B) if i != j]
    return sum(
        max(0, MARGIN - error[i, j] + error[i, i]) + max(0, MARGIN - error[i, j] + error[j, j]) for i, j in pairs
    )


def slopes(p: Tensors, x_BD: np.ndarray) -> Tensors:
    """Central differences."""
    found = {}
    for name, value in p.items():
        found[name] = np.zeros_like(value)
        for at in np.ndindex(value.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = value.copy()
                moved[at] += step
                ends.append(theirs(p | {name: moved}, x_BD))
            found[name][at] = (ends[0] - ends[1]) / 2e-6
    return found


def in_their_layout(model: OrderEmbedding) -> Tensors:
    """The model's parameters under the authors' names, where matrices multiply from the right."""
    own = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    (cell,) = [name.removesuffix("weight_ih") for name in own if name.endswith("weight_ih")]
    w, u, b = own[f"{cell}weight_ih"].T, own[f"{cell}weight_hh"].T, own[f"{cell}bias"]
    p = {
        "Wemb": own["words.weight"], "im_W": own["image_map.weight"].T, "im_b": own["image_map.bias"],
        "W": w[:, : 2 * H], "Wx": w[:, 2 * H :], "U": u[:, : 2 * H], "Ux": u[:, 2 * H :], "b": b[: 2 * H],
        "bx": b[2 * H :],
    }  # fmt: skip
    gains = [name for name in own if "gain" in name]
    for number, name in zip((1, 2, 3, 4), gains, strict=bool(gains)):  # of the input, then of the state
        p[f"s{number}"], p[f"b{number}"] = own[name], own[name.replace("gain", "bias")]
    return p


@pytest.mark.parametrize("norm", ["none", "ln"])
def test_updates_are_those_of_the_authors_program(norm: str) -> None:
    random = torch.Generator().manual_seed(3)
    sizes = OrderSizes(vocabulary=V, features=D, words=W, units=H, kernel="reference")
    model = OrderEmbedding(sizes, Norm(norm), random).double()
    x_BD = torch.randn(B, D, generator=random).double()
    with torch.no_grad():  # biases away from 0, gains from 1
        for parameter in model.gru.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=random))
    train: Any = SimpleNamespace(
        lr=LR, beta1=0.9, beta2=0.999, adam_eps=1e-8, adam="authors", clip=CLIP, clip_form="per_tensor"
    )
    optimizer = make_optimizer(model, train)
    p = in_their_layout(model)
    m, v = ({name: np.zeros_like(value) for name, value in p.items()} for _ in range(2))
    clipped = set()
    for t in range(1, 5):
        words_TB, lengths_B = torch.from_numpy(WORDS_TB), torch.from_numpy(LENGTHS_B)
        loss = contrastive_loss(
            model.energy(model.sentences(words_TB, lengths_B), model.images(x_BD)), MARGINS["order"]
        )
        assert loss.item() == pytest.approx(theirs(p, x_BD.numpy()), rel=1e-9)
        optimizer.zero_grad()
        loss.backward()
        assert clip_gradients(model, train)
        optimizer.step()
        for name, g in slopes(p, x_BD.numpy()).items():
            length = np.sqrt((g**2).sum())
            clipped |= {name} if length > CLIP else set()
            g = g * CLIP / length if length > CLIP else g
            m[name], v[name] = 0.1 * g + 0.9 * m[name], 0.001 * g**2 + 0.999 * v[name]
            rate = LR * np.sqrt(1 - 0.001**t) / (1 - 0.1**t)
            p[name] = p[name] - rate * m[name] / (np.sqrt(v[name]) + 1e-8)
    pairs = [{"W", "Wx"}, {"U", "Ux"}, {"b", "bx"}]
    assert any(len(pair & clipped) == 1 for pair in pairs), "of two that are stacked here only one is clipped"
    for name, value in in_their_layout(model).items():
        np.testing.assert_allclose(value, p[name], atol=2e-6, err_msg=name)


def test_paper_is_the_published_setting() -> None:
    """Facts of the authors' code and of the paper; budget and Figure 1's axis follow from COCO's 113,287 images."""
    for norm in ("none", "ln"):
        (cfg,) = compose_cells([["task=order_embeddings", "profile=paper", f"norm={norm}"]])
        task, train = cfg.task, cfg.train
        assert (task.dataset, task.word_dim, task.units, task.energy, task.margin) == ("coco", 300, 1024, "order", None)
        assert (task.bias_mode, task.selection, task.unit_features) == ("official", "image", True)
        assert (task.fold_images, task.folds, task.train_examples) == (1000, 5, None)
        assert (train.lr, train.beta1, train.beta2, train.adam_eps) == (1e-3, 0.9, 0.999, 1e-8)
        assert (train.adam, train.clip, train.clip_form, train.batch_size) == ("authors", 2, "per_tensor", 128)
        per_epoch = (113_287 - 1) // train.batch_size
        assert train.budget_unit == "steps" and train.budget == 100 * per_epoch
        assert train.budget / train.eval_every == 295, "the axis of Figure 1 ends at about 300"
