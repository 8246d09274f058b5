"""DRAW's bound against a transcription of its equations, and what the norm and the switches change."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn.utils import parametrize

from models.attention import ROW_SUM_EPS
from models.draw import Draw, DrawSizes, gaussian_kl
from models.norm import Norm, count_normalisers

NORMS = ("none", "wn", "ln")
TINY = DrawSizes(image=6, read=2, write=3, latent=4, units=5, glimpses=3)


def make(norm: str, sizes: DrawSizes = TINY, *, shaken: bool = True) -> Draw:
    """A float64 model; ``shaken``: with every parameter away from its initial value."""
    model = Draw(sizes, Norm(norm), init_std=0.3, generator=torch.Generator().manual_seed(0)).double()
    generator = torch.Generator().manual_seed(1)
    if shaken:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


def inputs(sizes: DrawSizes = TINY, batch: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = (torch.rand(batch, sizes.image**2, generator=generator) < 0.4).double()
    return x, torch.randn(sizes.glimpses, batch, sizes.latent, generator=generator, dtype=torch.float64)


def slow_bound(model: Draw, norm: str, x: np.ndarray, noise: np.ndarray) -> tuple[float, float]:
    """Reconstruction and KL of ONE image in numpy, from the parameters alone. ``noise``: (T, Z)."""
    s, p = model.sizes, {name: value.detach().numpy() for name, value in model.state_dict().items()}

    def sigmoid(a: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-a))

    def weight(name: str, which: str = "weight") -> np.ndarray:
        if norm != "wn":
            return p[f"{name}.{which}"]
        g, v = (p[f"{name}.parametrizations.{which}.original{i}"] for i in (0, 1))
        return g * v / np.linalg.norm(v, axis=1, keepdims=True)

    def affine(name: str, a: np.ndarray) -> np.ndarray:
        return weight(name) @ a + p[f"{name}.bias"]

    def lstm(name: str, a: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z = weight(name, "weight_ih") @ a + weight(name, "weight_hh") @ h + p[f"{name}.bias"]
        i, f, g, o = np.split(z, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        read = c
        if f"{name}.norm_cell.groups.0.gain" in p:
            read = (c - c.mean()) / np.sqrt(c.var() + 1e-5) * p[f"{name}.norm_cell.groups.0.gain"]
            read = read + p[f"{name}.norm_cell.groups.0.bias"]
        return sigmoid(o) * np.tanh(read), c

    def bank(window: np.ndarray, filters: int) -> tuple[np.ndarray, np.ndarray, float]:
        stride = (s.image - 1) / (filters - 1) * math.exp(window[2])
        both = []
        for g in window[:2]:
            if s.centre == "gregor":
                middle = (s.image + 1) / 2 * (g + 1) - 1
            else:
                middle = s.image / 2 * (g + 1)
            means = middle + (np.arange(filters) - filters / 2 + 0.5) * stride
            f = np.exp(-((np.arange(s.image)[None] - means[:, None]) ** 2) / (2 * math.exp(window[3])))
            both.append(f / (f.sum(1, keepdims=True) + ROW_SUM_EPS))
        return both[0], both[1], math.exp(window[4])

    def start(name: str, size: int) -> np.ndarray:
        return p.get(f"initial.{name}", np.zeros(size))

    canvas = start("canvas", s.image**2).reshape(s.image, s.image)
    h_enc, c_enc = start("encoder_h", s.units), start("encoder_c", s.units)
    h_dec, c_dec = start("decoder_h", s.units), start("decoder_c", s.units)
    image, kl = x.reshape(s.image, s.image), 0.0
    for t in range(s.glimpses):
        rows, columns, gamma = bank(affine("read_window", h_dec), s.read)
        patches = [gamma * rows @ i @ columns.T for i in (image, image - sigmoid(canvas))]
        r = np.stack(patches, 1).reshape(-1)  # row, image | error, column
        h_enc, c_enc = lstm("encoder", np.concatenate([r, h_dec]), h_enc, c_enc)
        mu, log_sigma = np.split(affine("posterior", h_enc), 2)
        kl += float((-log_sigma + (np.exp(log_sigma) ** 2 + mu**2) / 2 - 0.5).sum())
        h_dec, c_dec = lstm("decoder", mu + np.exp(log_sigma) * noise[t], h_dec, c_dec)
        rows, columns, gamma = bank(affine("write_window", h_dec), s.write)
        canvas = canvas + rows.T @ affine("patch", h_dec).reshape(s.write, s.write) @ columns / gamma
    q = sigmoid(canvas).reshape(-1)
    return float(-(x * np.log(q) + (1 - x) * np.log(1 - q)).sum()), kl


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "changes",
    [{}, {"centre": "jbornschein"}, {"initial_state": "learned"}],
    ids=lambda c: ",".join(c.values()) or "default",
)
def test_bound_matches_a_transcription(norm: str, changes: dict[str, str]) -> None:
    model = make(norm, dataclasses.replace(TINY, **changes))
    x_BD, noise_TBZ = inputs()
    bound = model(x_BD, noise_TBZ)
    for b in range(len(x_BD)):
        reconstruction, kl = slow_bound(model, norm, x_BD[b].numpy(), noise_TBZ[:, b].numpy())
        assert bound.reconstruction_B[b].item() == pytest.approx(reconstruction, rel=1e-10)
        assert bound.kl_B[b].item() == pytest.approx(kl, rel=1e-10)


@pytest.mark.parametrize("site", ["encoder", "decoder"])
def test_ln_on_one_lstm_only(site: str) -> None:
    model = make("ln", dataclasses.replace(TINY, ln_on=site))
    assert count_normalisers(model) == {"bn": 0, "wn": 0, "ln": 1}
    assert f"{site}.norm_cell.groups.0.gain" in dict(model.named_parameters())
    x_BD, noise_TBZ = inputs(batch=1)
    reconstruction, kl = slow_bound(model, "ln", x_BD[0].numpy(), noise_TBZ[:, 0].numpy())
    bound = model(x_BD, noise_TBZ)
    assert bound.reconstruction_B.item() == pytest.approx(reconstruction, rel=1e-10)
    assert bound.kl_B.item() == pytest.approx(kl, rel=1e-10)


def test_kl_is_that_of_torch_and_never_negative() -> None:
    generator = torch.Generator().manual_seed(0)
    posterior = torch.randn(50, 20, generator=generator, dtype=torch.float64) * 2
    posterior[0] = 0  # the prior itself
    posterior[1] = 1e-7
    mu, log_sigma = posterior.chunk(2, 1)
    zero, one = torch.zeros_like(mu), torch.ones_like(mu)
    expected = kl_divergence(Independent(Normal(mu, log_sigma.exp()), 1), Independent(Normal(zero, one), 1))
    kl = gaussian_kl(posterior)
    torch.testing.assert_close(kl, expected, rtol=1e-12, atol=1e-14)
    assert kl[0] == 0 and kl.min() > -1e-15
    assert gaussian_kl(1e-3 * posterior.float()).min() >= -1e-6  # rounding of float32, at most


# By hand, at the published sizes (H 256, Z 100, read 2, write 5):
#   encoder    1024 (8 + 256) + 1024 + 1024 256 = 533,504     posterior  200 (256 + 1) = 51,400
#   decoder    1024 100 + 1024 + 1024 256       = 365,568     heads      (5 + 5 + 25) (256 + 1) = 8,995
BASELINE = 959_467
EXTRA = {"none": 0, "ln": 2 * 2 * 256, "wn": 4 * 1024 + 200 + 35}  # gain and bias per LSTM; one g per row
LEARNED = 28 * 28 + 4 * 256


@pytest.mark.parametrize("norm", NORMS)
def test_sizes_normalisers_and_initial_values_at_the_published_setting(norm: str) -> None:
    model = Draw(DrawSizes(), Norm(norm), init_std=0.01, generator=torch.Generator().manual_seed(0))
    parameters = dict(model.named_parameters())
    assert sum(p.numel() for p in parameters.values()) == BASELINE + EXTRA[norm]
    assert count_normalisers(model) == {"bn": 0, "wn": 8 * (norm == "wn"), "ln": 2 * (norm == "ln")}
    matrices = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
    matrices += [w for cell in (model.encoder, model.decoder) for w in (cell.weight_ih, cell.weight_hh)]
    assert len(matrices) == 8
    for weight in matrices:
        assert weight.std().item() == pytest.approx(0.01, rel=0.05)
        assert abs(weight.mean().item()) < 1e-3
    assert all(p.abs().max() == 0 for name, p in parameters.items() if name.endswith("bias"))
    learned = Draw(
        DrawSizes(initial_state="learned"),
        Norm(norm),
        init_std=0.01,
        generator=torch.Generator().manual_seed(0),
    )
    assert sum(p.numel() for p in learned.parameters()) == BASELINE + EXTRA[norm] + LEARNED


def test_norms_have_their_own_names_and_outputs_but_the_same_initial_weights() -> None:
    x_BD, noise_TBZ = inputs()
    models = {norm: make(norm, shaken=False) for norm in NORMS}
    names = {norm: {n for n, _ in model.named_parameters()} for norm, model in models.items()}
    assert names["ln"] - names["none"] == {
        f"{lstm}.norm_cell.groups.0.{p}" for lstm in ("encoder", "decoder") for p in ("gain", "bias")
    }
    matrices = [
        *(f"{lstm}.parametrizations.{w}" for lstm in ("encoder", "decoder") for w in ("weight_ih", "weight_hh")),
        *(f"{layer}.parametrizations.weight" for layer in ("posterior", "read_window", "write_window", "patch")),
    ]
    assert {n for n in names["wn"] if "original" in n} == {f"{m}.original{i}" for m in matrices for i in (0, 1)}
    bounds = {norm: sum(model(x_BD, noise_TBZ)) for norm, model in models.items()}
    torch.testing.assert_close(bounds["wn"], bounds["none"])  # g starts at ||v||
    assert (bounds["ln"] - bounds["none"]).abs().min() > 1e-3
    shaken = {norm: sum(make(norm)(x_BD, noise_TBZ)) for norm in NORMS}
    assert (shaken["wn"] - shaken["none"]).abs().min() > 1e-3


@pytest.mark.parametrize("norm", NORMS)
def test_every_parameter_gets_a_finite_gradient(norm: str) -> None:
    model = make(norm, dataclasses.replace(TINY, initial_state="learned"))
    sum(model(*inputs())).sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.abs().max() > 0, name


@pytest.mark.parametrize("norm", NORMS)
def test_first_gradient_is_finite_at_the_published_initialisation(norm: str) -> None:
    sizes = DrawSizes(units=32, glimpses=4)
    model = Draw(sizes, Norm(norm), init_std=0.01, generator=torch.Generator().manual_seed(0))
    x_BD, noise_TBZ = (t.float() for t in inputs(sizes))
    sum(model(x_BD, noise_TBZ)).mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("norm", NORMS)
def test_copies_and_state_dicts_carry_everything(norm: str) -> None:
    model, (x_BD, noise_TBZ) = make(norm), inputs()
    fresh = make(norm, shaken=False)
    fresh.load_state_dict(model.state_dict())
    for other in (copy.deepcopy(model), fresh):
        for mine, theirs in zip(model(x_BD, noise_TBZ), other(x_BD, noise_TBZ), strict=True):
            assert torch.equal(mine, theirs)


def test_normalised_weights_are_computed_once_per_forward() -> None:
    model, calls = make("wn"), []
    for module in model.modules():
        if isinstance(module, parametrize.ParametrizationList):
            module.register_forward_hook(lambda *_: calls.append(1))
    model(*inputs())
    assert len(calls) == 8


@pytest.mark.parametrize("norm", NORMS)
def test_a_bound_depends_on_its_own_image_only(norm: str) -> None:
    model, (x_BD, noise_TBZ) = make(norm), inputs()
    whole = model(x_BD, noise_TBZ)
    for b in range(len(x_BD)):
        alone = model(x_BD[b : b + 1], noise_TBZ[:, b : b + 1])
        torch.testing.assert_close(torch.stack(list(alone))[:, 0], torch.stack(list(whole))[:, b], rtol=1e-12, atol=0)


def test_reconstruction_shows_the_canvas_of_the_bound_and_generation_needs_no_image() -> None:
    model, (x_BD, noise_TBZ) = make("ln"), inputs()
    frames = model.reconstruct(x_BD, noise_TBZ)
    assert len(frames) == TINY.glimpses
    q_BD = frames[-1].probabilities_BD
    expected_B = -(x_BD * q_BD.log() + (1 - x_BD) * (1 - q_BD).log()).sum(1)
    torch.testing.assert_close(model(x_BD, noise_TBZ).reconstruction_B, expected_B)
    assert all(f.read_box is not None and f.write_box.centre_B2.shape == (3, 2) for f in frames)
    generated = model.generate(noise_TBZ)
    assert len(generated) == TINY.glimpses and all(f.read_box is None for f in generated)
    assert not torch.equal(generated[-1].probabilities_BD[0], generated[-1].probabilities_BD[1])


def test_unknown_switches_and_noise_of_another_shape_are_refused() -> None:
    x_BD, noise_TBZ = inputs()
    with pytest.raises(ValueError, match="noise of 2 glimpses and 4 latents, but the model has 3 and 4"):
        make("none")(x_BD, noise_TBZ[:2])
    for change, message in (
        ({"ln_on": "all"}, "ln_on 'all' is unknown"),
        ({"initial_state": "ones"}, "initial_state 'ones' is unknown"),
    ):
        with pytest.raises(ValueError, match=message):
            make("ln", dataclasses.replace(TINY, **change))
