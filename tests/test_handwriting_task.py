"""The handwriting task: its checks, splits, batches, evaluation, pictures and texts."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text

import experiments.tasks.handwriting as module
from data.fetch import DataError, Source
from data.strokes import PARTS, Lines, encode, pack
from experiments import pictures
from experiments.pictures import Penned, draw_samples, rendered, sample_figure
from experiments.rng import generator
from experiments.schema import ConfigError
from experiments.tasks.handwriting import (
    POOL,
    Batch,
    HandwritingConfig,
    HandwritingTask,
    encode_request,
    sequence_nll,
    write,
)
from models.mixture import mixture_nll
from models.norm import Norm
from scripts import handwriting_lines

TASK = HandwritingTask()
DEVICE = torch.device("cpu")
SIZES = {"train": 60, "valid_large": 12, "test": 30, "valid_small": 15}


def config(norm: str = "ln", kernel: str = "auto", **changes: Any) -> Any:
    """A small configuration; ``changes`` may name keys of task.* or train.*."""
    task: dict[str, Any] = dict(
        name="handwriting", units=8, layers=3, gaussians=2, components=3, max_steps=20, length="first", split="graves",
        first_window="zeros", clip="inputs", bias_mode="paper", forget_bias=0.0, step_bias=-2.0,
        train_examples=1000, eval_examples=1000,
    )  # fmt: skip
    train: dict[str, Any] = dict(batch_size=4, eval_batch_size=7, lr=1e-3, clip=None)
    for key, value in changes.items():
        (train if key in ("batch_size", "eval_batch_size") else task)[key] = value
    return SimpleNamespace(
        task=HandwritingConfig(**task),
        train=SimpleNamespace(**train),
        norm=SimpleNamespace(name=norm, norm=lambda: Norm(norm)),
        data=SimpleNamespace(skip_bad=False),
        kernel=kernel,
        profile="smoke",
        seed=0,
    )


@pytest.fixture(scope="module")
def fake_lines() -> Lines:
    """Random walks of 5 to 40 steps; the first label says which line it is."""
    rng, lines = np.random.default_rng(0), []
    for part, size in SIZES.items():
        for _ in range(size):
            steps = int(rng.integers(5, 41))
            offsets = rng.integers(-30, 31, (steps, 2)).astype(np.int16) + np.array([9, 0], np.int16)
            text = encode("ab c"[: rng.integers(1, 5)], "fake")
            lines.append((offsets, (rng.random(steps) < 0.2).astype(np.uint8), text, PARTS.index(part)))
    source = Source(kind="stand-in", label="fake", name="fake lines", fingerprint="0", detail="random walks")
    return Lines(**pack(lines), source=source)


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch, fake_lines: Lines) -> None:
    monkeypatch.setattr(module, "load_handwriting", lambda *, skip_bad: fake_lines)


BAD = [
    ({"units": 0}, "task.units=0 must be 1 or more"),
    ({"layers": -1}, "task.layers=-1 must be 1 or more"),
    ({"gaussians": 0}, "task.gaussians=0 must be 1 or more"),
    ({"components": 0}, "task.components=0 must be 1 or more"),
    ({"max_steps": 0}, "task.max_steps=0 must be 1 or more"),
    ({"train_examples": 0}, "task.train_examples=0 must be 1 or more"),
    ({"eval_examples": 0}, "task.eval_examples=0 must be 1 or more"),
    ({"forget_bias": math.inf}, "task.forget_bias=inf must be a finite number"),
    ({"step_bias": math.nan}, "task.step_bias=nan must be a finite number"),
    ({"length": "all"}, "task.length=all is unknown: use first or chunks"),
    ({"split": "mine"}, "task.split=mine is unknown: use graves or official"),
    ({"first_window": "last"}, "task.first_window=last is unknown: use zeros or first"),
    ({"clip": "all"}, "task.clip=all is unknown: use inputs or states or none"),
    ({"bias_mode": "torch"}, "task.bias_mode=torch is unknown: use paper or official or minimal"),
    ({"train_examples": 3}, "train.batch_size=4 is more than the 3 training lines"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=lambda v: str(v)[:40])
def test_what_cannot_work_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        TASK.check(config(**changes))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_good_values_pass_and_bn_is_not_offered() -> None:
    for norm in TASK.norms:
        TASK.check(config(norm, length="chunks", split="official", clip="states", first_window="first"))
    assert TASK.norms == ("none", "wn", "ln")


def test_a_batch_larger_than_the_data_is_told_once_they_are_read() -> None:
    with pytest.raises(ConfigError, match="train.batch_size=200 is more than the 102 training lines"):
        TASK.data(config(batch_size=200), DEVICE)


def test_a_split_without_lines_is_told(monkeypatch: pytest.MonkeyPatch, fake_lines: Lines) -> None:
    few = Lines(**{**vars(fake_lines), "parts_N": np.zeros_like(fake_lines.parts_N)})
    monkeypatch.setattr(module, "load_handwriting", lambda *, skip_bad: few)
    with pytest.raises(DataError, match=r"fake lines: no line of split test \(task.split=graves\)"):
        TASK.data(config(), DEVICE)


def test_graves_and_the_official_split() -> None:
    graves, official = TASK.data(config(), DEVICE), TASK.data(config(split="official"), DEVICE)
    assert {name: len(chosen) for name, chosen in graves.splits.items()} == {"train": 102, "test": 15}
    assert {name: len(chosen) for name, chosen in official.splits.items()} == {"train": 60, "valid": 27, "test": 30}
    for data in (graves, official):
        everything = np.concatenate(list(data.splits.values()))
        assert len(set(everything)) == len(everything) == 117
    few = TASK.data(config(train_examples=10, eval_examples=5), DEVICE)
    assert few.n_train == 10 and few.splits["train"].tolist() == few.train_N[[0, 2, 4, 6, 8]].tolist()
    assert few.splits["test"].tolist() == graves.splits["test"][[0, 3, 6, 9, 12]].tolist()


def test_offsets_are_scaled_by_the_training_lines_alone(fake_lines: Lines) -> None:
    data = TASK.data(config(length="chunks"), DEVICE)
    batch = data.collate(data.train_N)
    inside = torch.arange(len(batch.target_TB3))[:, None] < batch.lengths_B
    scaled = batch.target_TB3[..., :2][inside].double()
    assert scaled.mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert scaled.std(0, unbiased=False).tolist() == pytest.approx([1, 1], abs=1e-6)
    assert batch.target_TB3[~inside].abs().max() == 0
    n = int(data.splits["test"][0])
    one = data.collate(np.array([n]))
    start, end = fake_lines.starts_N1[n : n + 2]
    back = one.target_TB3[:, 0, :2].double().numpy() * data.std_2 + data.mean_2
    np.testing.assert_allclose(back, fake_lines.offsets_P2[start:end], atol=1e-4)
    assert one.target_TB3[:, 0, 2].tolist() == fake_lines.ends_P[start:end].tolist()
    labels = fake_lines.labels_C[fake_lines.text_starts_N1[n] : fake_lines.text_starts_N1[n + 1]]
    assert one.labels_BU[0].tolist() == labels.tolist() and one.text_lengths_B.tolist() == [len(labels)]


def test_long_lines_are_cut_or_kept_and_their_text_is_whole() -> None:
    cut, whole = TASK.data(config(), DEVICE), TASK.data(config(length="chunks"), DEVICE)
    assert cut.lengths_N.max() == 20 and whole.lengths_N.max() == 40
    chosen = cut.train_N[:20]
    a, b = cut.collate(chosen), whole.collate(chosen)
    assert torch.equal(a.labels_BU, b.labels_BU) and torch.equal(a.lengths_B, b.lengths_B.clamp(max=20))


def test_an_epoch_is_of_whole_batches_of_similar_length_and_depends_on_seed_and_epoch_only() -> None:
    data = TASK.data(config(), DEVICE)
    orders = {(seed, epoch): data.epoch(epoch, seed) for seed in (0, 1) for epoch in (0, 1)}
    for batches in orders.values():
        assert [len(batch) for batch in batches] == [4] * 25, "two of 102 wait for another epoch"
        assert len(set(torch.cat(list(batches)).tolist())) == 100
    assert len({tuple(torch.cat(list(batches)).tolist()) for batches in orders.values()}) == 4
    again = TASK.data(config(), DEVICE).epoch(1, 1)
    assert all(torch.equal(a, b) for a, b in zip(again, orders[1, 1], strict=True))
    lengths = data.lengths_N[data.train_N]
    spread = np.mean([np.ptp(lengths[batch.numpy()]) for batch in orders[0, 0]])
    assert spread < 0.4 * np.mean([np.ptp(np.random.default_rng(i).choice(lengths, 4)) for i in range(50)])
    assert POOL * 4 < 102, "there is more than one pool"


def values(cfg: Any, data: Any, model: torch.nn.Module, seed: int = 5) -> dict[tuple[str, str], float]:
    with torch.no_grad():
        return {(v.split, v.metric): v.value for v in TASK.evaluate(model, data, cfg, seed)}


@pytest.mark.parametrize("length", ["first", "chunks"])
@pytest.mark.parametrize("norm", TASK.norms)
def test_evaluation_is_invariant_to_its_batch_size_and_uses_no_randomness(norm: str, length: str) -> None:
    cfg = config(norm, length=length, split="official", max_steps=15)
    data, model = TASK.data(cfg, DEVICE), TASK.model(cfg, generator(0, "model"))
    before = torch.get_rng_state()
    first = values(cfg, data, model)
    assert torch.equal(before, torch.get_rng_state())
    assert values(cfg, data, model, seed=6) == first
    for size in (1, 5, 1000):
        cfg.train.eval_batch_size = size
        assert values(cfg, data, model) == pytest.approx(first, rel=1e-5)
    assert {m for _, m in first} | {"batch_nll"} == set(TASK.metrics)
    assert first["train", "offset_scale"] == pytest.approx(np.log(data.std_2).sum())
    for split, chosen in data.splits.items():
        steps = data.lengths_N[chosen].sum()
        assert first[split, "nll_step"] * steps == pytest.approx(first[split, "nll"] * len(chosen))


def test_the_nll_of_a_line_is_the_sum_over_its_own_steps_and_parts_give_the_whole() -> None:
    cfg = config(length="chunks")
    data, model = TASK.data(cfg, DEVICE), TASK.model(cfg, generator(0, "model"))
    chosen = data.train_N[:6]
    with torch.no_grad():
        nll_B = sequence_nll(model, data.collate(chosen), 1000)
        for most in (1, 7, 40):
            torch.testing.assert_close(sequence_nll(model, data.collate(chosen), most), nll_B, rtol=1e-5, atol=1e-4)
        for b, n in enumerate(chosen):
            one = data.collate(np.array([n]))
            shifted = torch.cat((torch.zeros_like(one.target_TB3[:1]), one.target_TB3[:-1]))
            output, _ = model(shifted, one.labels_BU, one.text_lengths_B)
            assert mixture_nll(output, one.target_TB3).sum().item() == pytest.approx(nll_B[b].item(), rel=1e-5)


def test_the_gradient_is_cut_between_parts_of_a_line() -> None:
    cfg = config("none", length="chunks", clip="none")
    data, model = TASK.data(cfg, DEVICE), TASK.model(cfg, generator(0, "model"))
    batch = data.collate(data.train_N[:6])

    def gradient(most: int) -> torch.Tensor:
        model.zero_grad()
        sequence_nll(model, batch, most).mean().backward()
        return model.layers[0].cells[0].weight_hh.grad.clone()

    assert not torch.allclose(gradient(10), gradient(1000), rtol=1e-2)


@pytest.mark.parametrize("norm", TASK.norms)
def test_loss_is_the_mean_of_the_sequences_and_training_lowers_it(norm: str) -> None:
    cfg = config(norm)
    data, model = TASK.data(cfg, DEVICE), TASK.model(cfg, generator(0, "model"))
    batch = data.batch(torch.arange(4))
    loss = TASK.loss(model, batch, cfg, generator(0, "noise", 0))
    total, count = loss.sums["batch_nll"]
    assert count == 4 and not total.requires_grad and total.item() / 4 == pytest.approx(loss.mean.item())
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    for _ in range(20):
        optimizer.zero_grad()
        TASK.loss(model, batch, cfg, generator(0)).mean.backward()
        optimizer.step()
    assert TASK.loss(model, batch, cfg, generator(0)).mean.item() < loss.mean.item() - 5


# Mean NLL at the start and after three Adam steps. A change that must not change numerics gives the same.
GOLDEN = {"none": (73.3803, 69.4427), "wn": (73.3803, 69.2726), "ln": (74.4710, 66.9155)}


@pytest.mark.parametrize("norm", TASK.norms)
def test_golden_losses(norm: str) -> None:
    cfg = config(norm, units=16, kernel="reference")
    data, model = TASK.data(cfg, DEVICE), TASK.model(cfg, generator(0, "model"))
    batch = data.batch(torch.arange(4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(4):
        losses.append(TASK.loss(model, batch, cfg, generator(0)).mean)
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert (losses[0].item(), losses[3].item()) == pytest.approx(GOLDEN[norm], abs=2e-3)


def test_a_texts_line_is_its_own() -> None:
    cfg = config()
    data, model = TASK.data(cfg, DEVICE), TASK.model(cfg, generator(0, "model"))
    together = write(model, data, ["ab", "c a", "b"], 0.5, seed=3)
    assert [row.text for row in together] == ["ab", "c a", "b"]
    (alone,) = write(model, data, ["c a"], 0.5, seed=3)
    shortest = min(len(alone.points_T2), len(together[1].points_T2))
    assert shortest > 0
    np.testing.assert_allclose(alone.points_T2[:shortest], together[1].points_T2[:shortest], rtol=1e-4, atol=1e-2)
    (other,) = write(model, data, ["c a"], 0.5, seed=4)
    assert len(other.points_T2) != len(alone.points_T2) or not np.allclose(other.points_T2, alone.points_T2)


def test_texts_that_cannot_be_written() -> None:
    data = TASK.data(config(), DEVICE)
    assert data.longest_text == 4
    for text, message in (
        ("", "TEXT='': the line is empty"),
        ("abcde", "TEXT has 5 characters, but the longest the model has seen has 4: cut it"),
        ("\u00e9", r"TEXT='\u00e9': character 1 is '\\xe9', outside the alphabet"),
    ):
        with pytest.raises(ConfigError, match=message):
            encode_request(text, data.longest_text)


def test_pictures_are_written_without_a_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", "nonsense:99")
    monkeypatch.setattr(module, "SAMPLES", ("ab", "a text longer than any that was seen"))
    cfg = config()
    data, model = TASK.data(cfg, DEVICE), TASK.model(cfg, generator(0, "model"))
    with torch.no_grad():
        (path,) = TASK.plots(model, data, cfg, tmp_path, 0)
    assert path.name == "samples.png" and path.read_bytes().startswith(b"\x89PNG")


def labels_of(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def test_dollars_are_drawn_as_they_are_and_the_window_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Penned("$\\frac$", 0.0, np.array([[0, 0], [9, 3.0]]), np.zeros(2, bool), np.ones((2, 7)))
    drawn: list[Figure] = []
    monkeypatch.setattr(pictures, "rendered", lambda figure, kind: drawn.append(figure) or rendered(figure, kind))
    draw_samples([row, row], "of $\\frac$ only", tmp_path / "page.png")
    drawn.append(sample_figure(row, "“$\\frac$”"))
    rendered(drawn[1], "svg")
    for figure in drawn:
        texts = labels_of(figure)
        assert "$\\frac$" in texts and "window on" in texts and "dark: where the window looks" in texts
        window = figure.axes[1]
        window.set_xlim(0, 2)
        assert all(tick == int(tick) for tick in window.get_xticks()), "there is no half a reading"
    assert "Each line is drawn as large as its place allows" in labels_of(drawn[0])


def test_a_line_of_nothing_and_one_of_dots_can_be_drawn(tmp_path: Path) -> None:
    nothing = Penned("a b", 0.0, np.zeros((0, 2)), np.zeros(0, bool), np.zeros((0, 3)))
    dots = Penned("..", 1.0, np.array([[0, 0], [9, 0.0]]), np.ones(2, bool), np.ones((2, 2)))
    path = draw_samples([nothing, dots], "lines", tmp_path / "lines.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    for row in (nothing, dots):
        svg = rendered(sample_figure(row, "a line"), "svg")
        assert b"<svg" in svg and rendered(sample_figure(row, "a line"), "svg") == svg, "the same line, the same file"


def test_a_batch_has_no_more_steps_than_its_longest_line() -> None:
    data = TASK.data(config(), DEVICE)
    for indices in data.epoch(0, 0):
        batch = data.batch(indices)
        assert isinstance(batch, Batch) and len(batch.target_TB3) == batch.lengths_B.max()
        assert batch.labels_BU.shape[1] == batch.text_lengths_B.max()


def test_ten_lines_are_drawn(
    fake_lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(handwriting_lines, "load_handwriting", lambda: fake_lines)
    path = tmp_path / "lines.png"
    monkeypatch.setattr("sys.argv", ["handwriting_lines", str(path)])
    assert handwriting_lines.main() == 0 and path.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.strip().endswith("lines.png")
    monkeypatch.setattr("sys.argv", ["handwriting_lines"])
    with pytest.raises(ConfigError, match="give one argument, the PNG to write"):
        handwriting_lines.main()
