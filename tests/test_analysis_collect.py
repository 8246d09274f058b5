"""Reading run folders: what is kept, what is left out and said."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import runfolders as rf

from experiments.analysis.collect import COLUMNS, Run, collect, read_metrics, tidy
from experiments.analysis.groups import groups
from experiments.compose import compose_cells
from experiments.schema import config_sha, dump

VALUES = {("valid", "bound"): [9.0, 7.0], ("test", "bound"): [9.5, math.inf]}


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Folders of own and published runs."""
    return tmp_path / "runs", tmp_path / "published"


def only(places: tuple[Path, Path]) -> Run:
    """The one run there is, without a warning."""
    found = collect(*places)
    assert found.warnings == []
    (run,) = found.runs
    return run


def test_tidy_table(places: tuple[Path, Path]) -> None:
    folder = rf.write_run(places[0], rf.cell(norm="wn", seed=2), rf.rows(VALUES))
    frame = tidy(collect(*places).runs)
    assert list(frame.columns) == COLUMNS
    assert len(frame) == 4
    row = frame[(frame["split"] == "valid") & (frame["step"] == 20)].iloc[0]
    assert (row["run"], row["norm"], row["seed"], row["batch_size"]) == (folder.name, "wn", 2, 128)
    assert (row["value"], row["unit"], row["epoch"], row["train_seconds"]) == (7.0, "nats/image", 1.0, 4.0)
    assert (row["data_label"], row["data_kind"], row["state"], row["origin"]) == (
        "fixed",
        "original",
        "done",
        "runs",
    )
    # A value that was not finite is null in the file and undefined in the table.
    assert math.isnan(frame[(frame["split"] == "test") & (frame["step"] == 20)]["value"].iloc[0])


def test_no_runs_at_all(places: tuple[Path, Path]) -> None:
    found = collect(*places)
    assert (found.runs, found.warnings) == ([], [])
    assert list(tidy(found.runs).columns) == COLUMNS


def test_cut_off_last_line_is_dropped(places: tuple[Path, Path]) -> None:
    folder = rf.write_run(places[0], rf.cell(), rf.rows(VALUES), state="interrupted")
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-25])
    assert len(only(places).metrics) == 3


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("metrics.jsonl", '"step": 20', '"stop": 20', "line 2 of metrics.jsonl is no record"),
        ("metrics.jsonl", "}\n{", "\n{", "line 1 of metrics.jsonl is no record"),
        ("status.json", "{", "", "status.json cannot be read"),
        ("status.json", '"done"', '"dnoe"', "status.json garbles state"),
        ("status.json", '"best": null', '"best": 3', "status.json garbles best"),
        ("config.yaml", "lr: 0.001", "lr: 0.002", "config.yaml was edited"),
        ("config.yaml", "lr: 0.001", "lr: [", "config.yaml was edited"),
    ],
)
@pytest.mark.parametrize("state", ["done", "interrupted"])
def test_a_damaged_file_is_named_and_its_run_left_out(
    places: tuple[Path, Path], state: str, file: str, old: str, new: str, said: str
) -> None:
    (cfg,) = compose_cells([["task=pi_mnist"]])
    text = dump(cfg)

    def change(meta: dict[str, Any]) -> None:
        meta.update(config_sha=config_sha(cfg), config_digest=hashlib.sha256(text.encode()).hexdigest())

    folder = rf.write_run(places[0], rf.cell(), rf.rows(VALUES), state=state, change=change)
    (folder / "config.yaml").write_text(text)
    assert len(collect(*places).runs) == 1
    (folder / "config.yaml").write_text(f"# my best run\n{text}")
    assert len(collect(*places).runs) == 1, "a comment changes no value"
    path = folder / file
    assert old in path.read_text() or old == '"done"'
    path.write_text(path.read_text().replace(old.replace("done", state), new, 1))
    found = collect(*places)
    (warning,) = found.warnings
    assert not found.runs and str(folder) in warning and said in warning and "restore it" in warning
    assert found.damaged == [(folder, found.damaged[0][1])]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(lambda lines: lines[1:], "holds 3 of 4 rows"), (lambda lines: [*lines[:-1], lines[-1][:-9]], "is cut off")],
)
def test_the_log_of_a_finished_run_is_whole(places: tuple[Path, Path], spoil: Any, said: str) -> None:
    folder = rf.write_run(places[0], rf.cell(), rf.rows(VALUES), rows=4)
    path = folder / "metrics.jsonl"
    path.write_text("".join(spoil(path.read_text().splitlines(keepends=True))))
    (warning,) = collect(*places).warnings
    assert said in warning


def test_a_configuration_of_an_older_schema_is_no_damage(places: tuple[Path, Path]) -> None:
    folder = rf.write_run(places[1], rf.cell(), rf.rows(VALUES))
    (folder / "config.yaml").write_text("task: {name: draw, gone: 1}\n")
    assert only(places).origin == "published"


@pytest.mark.parametrize("garbage", ["\x00\xff", "[]", "3", '{"step": 1}', '{"step": null, "value": 1}', ""])
def test_a_damaged_line_ends_the_metrics(tmp_path: Path, garbage: str) -> None:
    first, second = rf.rows({("valid", "bound"): [9.0, 8.0]})
    lines = [json.dumps(first), garbage, json.dumps(second), ""]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert read_metrics(tmp_path / "metrics.jsonl")["value"].tolist() == [9.0]
    assert read_metrics(tmp_path / "absent.jsonl").empty


def test_a_step_written_twice_counts_once(tmp_path: Path) -> None:
    records = [rf.rows({("valid", "bound"): [value]})[0] for value in (9.0, 8.0)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records), encoding="utf-8")
    assert read_metrics(tmp_path / "metrics.jsonl")["value"].tolist() == [8.0]


def test_what_lies_beside_published_runs_is_no_run(places: tuple[Path, Path]) -> None:
    figures = places[1] / "figures" / "small-fixed"
    figures.mkdir(parents=True)
    (figures / "fig4_draw.png").write_bytes(b"")
    (places[1] / "bench").mkdir()
    (places[1] / "bench" / "draw.json").write_text("{}")
    rf.write_run(places[1], rf.cell(), rf.rows(VALUES))
    assert only(places).origin == "published"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("meta.json", "{", "meta.json cannot be read"),
        ("meta.json", "[]", "meta.json is not a JSON object"),
        ("meta.json", "{}", "meta.json lacks or garbles 'data'"),
        ("meta.json", None, "meta.json is missing"),
    ],
)
def test_unusable_folder_is_named_and_skipped(
    places: tuple[Path, Path], name: str, content: str | None, said: str
) -> None:
    good = rf.write_run(places[0], rf.cell(seed=0), rf.rows(VALUES))
    bad = rf.write_run(places[0], rf.cell(seed=1), rf.rows(VALUES))
    (bad / name).unlink()
    if content is not None:
        (bad / name).write_text(content)
    found = collect(*places)
    assert [run.run for run in found.runs] == [good.name]
    (warning,) = found.warnings
    assert str(bad) in warning and said in warning and "\n" not in warning


def test_label_cannot_leave_the_output_folder(places: tuple[Path, Path]) -> None:
    def change(meta: dict[str, Any]) -> None:
        meta["data"]["label"] = "../../etc"

    rf.write_run(places[0], rf.cell(), rf.rows(VALUES), change=change)
    found = collect(*places)
    assert found.runs == [] and "data label '../../etc'" in found.warnings[0]


def test_status_missing_means_interrupted(places: tuple[Path, Path]) -> None:
    folder = rf.write_run(places[0], rf.cell(), [])
    (folder / "status.json").unlink()
    assert only(places).state == "interrupted"


def test_running_only_while_the_lock_is_held(places: tuple[Path, Path]) -> None:
    folder = rf.write_run(places[0], rf.cell(), rf.rows(VALUES), state="running")
    assert only(places).state == "interrupted"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert only(places).state == "running"


def test_same_run_counts_once_own_first(places: tuple[Path, Path]) -> None:
    for place in places:
        rf.write_run(place, rf.cell(), rf.rows(VALUES))
    assert only(places).origin == "runs"


def test_finished_copy_goes_before_own_unfinished_run(places: tuple[Path, Path]) -> None:
    rf.write_run(places[0], rf.cell(), rf.rows(VALUES), state="interrupted")
    rf.write_run(places[1], rf.cell(), rf.rows(VALUES), state="done")
    assert only(places).origin == "published"


def test_copy_of_a_running_run_is_interrupted(places: tuple[Path, Path]) -> None:
    rf.write_run(places[1], rf.cell(), rf.rows(VALUES), state="running")
    assert only(places).state == "interrupted"


def test_task_and_profile_choose(places: tuple[Path, Path]) -> None:
    rf.write_run(places[0], rf.cell("draw", profile="small"), [])
    rf.write_run(places[0], rf.cell("draw", profile="paper"), [])
    rf.write_run(places[0], rf.cell("pi_mnist", profile="paper"), [], data="mnist")
    assert len(collect(*places).runs) == 3
    assert len(collect(*places, task="draw").runs) == 2
    assert len(collect(*places, task="draw", profile="paper").runs) == 1


def test_groups_by_data_source(places: tuple[Path, Path]) -> None:
    cells = [rf.cell(seed=s) for s in range(3)]
    for data, seed in (("fixed", 0), ("bernoulli", 0), ("bernoulli", 1)):
        rf.write_run(places[0], cells[seed], rf.rows(VALUES), data=data)
    rf.write_run(places[0], rf.cell(seed=9), rf.rows(VALUES))
    standin, real = groups(collect(*places).runs, cells, "draw", "small")
    assert (standin.label, standin.stand_in, [c.seed for c in standin.missing]) == ("bernoulli", True, [2])
    assert (real.label, real.stand_in, [c.seed for c in real.missing]) == ("fixed", False, [1, 2])
    assert [run.seed for run in real.other] == [9]
    assert "norm=ln batch=128 seed=2: python -m experiments.train" in standin.todo()[0]


def test_two_runs_of_a_cell_are_told(places: tuple[Path, Path]) -> None:
    """Same settings and label, but other data behind it: the newer one counts, and that is said."""
    older = rf.write_run(places[0], rf.cell(), rf.rows(VALUES))

    def change(meta: dict[str, Any]) -> None:
        meta["identity"], meta["started"] = "f" * 64, "2026-02-02T00:00:00Z"

    newer = rf.write_run(places[0] / ".." / "runs", rf.cell(seed=0, batch=128), [], data="mnist", change=change)
    meta = json.loads((newer / "meta.json").read_text())
    meta["data"]["label"] = "fixed"
    (newer / "meta.json").write_text(json.dumps(meta))
    (group,) = groups(collect(*places).runs, [rf.cell()], "draw", "small")
    assert [run.run for run in group.runs] == [newer.name]
    (warning,) = group.warnings
    said = "warning: draw, profile small: 1 run left out: made on other data that are named fixed too"
    assert warning.startswith(said)
    assert warning.endswith(f": {older.name}")


def test_unfinished_runs_are_in_the_list_of_what_to_do(places: tuple[Path, Path]) -> None:
    rf.write_run(places[0], rf.cell(), rf.rows(VALUES), state="failed", total_steps=80)
    (group,) = groups(collect(*places).runs, [rf.cell()], "draw", "small")
    assert group.todo()[0].startswith("failed at 25 %: norm=ln batch=128 seed=0: python -m")


def other_data(meta: dict[str, Any]) -> None:
    meta["identity"], meta["data"]["fingerprint"] = meta["identity"][::-1], "f" * 64


@pytest.mark.parametrize(
    ("own", "published", "taken"), [([1], [0, 1, 2], [1]), ([], [0, 1], [0, 1]), ([0, 1], [2], [0, 1])]
)
def test_runs_on_other_data_of_the_same_name_are_not_mixed(
    places: tuple[Path, Path], own: list[int], published: list[int], taken: list[int]
) -> None:
    """Own runs decide which data count, then what there is more of; never is a run held against one on other data."""
    cells = [rf.cell(seed=seed) for seed in range(3)]
    for seed in own:
        rf.write_run(places[0], cells[seed], rf.rows(VALUES), change=other_data)
    for seed in published:
        rf.write_run(places[1], cells[seed], rf.rows(VALUES))
    rf.write_run(places[0], cells[2], rf.rows(VALUES)[:1], state="interrupted", change=other_data)
    (group,) = groups(collect(*places).runs, cells, "draw", "small")
    assert len({run.data["fingerprint"] for run in group.runs}) == 1
    assert [run.seed for run in group.runs if run.state == "done"] == taken
    (warning,) = group.warnings
    out = len(published) if own else 1
    assert f"{out} run{'s' * (out > 1)} left out: made on other data that are named fixed too" in warning


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("git", "abc"), ("hardware", []), ("threads", "two"), ("parameters", 1.5), ("data", "mnist"),
        ("seed", math.inf), ("seed", 10**30), ("batch_size", "many"), ("task", "pi_mnist"), ("data", {"kind": "x"}),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_in_meta_is_named(places: tuple[Path, Path], key: str, value: Any) -> None:
    rf.write_run(places[0], rf.cell(), rf.rows(VALUES), change=lambda meta: meta.update({key: value}))
    found = collect(*places)
    (warning,) = found.warnings
    assert not found.runs and "left out: meta.json " in warning and "\n" not in warning


@pytest.mark.parametrize(
    ("key", "value"), [("step", 10**400), ("total_steps", 2**63), ("best", {"value": "x"}), ("error", ["x"])]
)
def test_a_value_of_another_kind_in_status_is_named(places: tuple[Path, Path], key: str, value: Any) -> None:
    folder = rf.write_run(places[0], rf.cell(), rf.rows(VALUES))
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, key: value}))
    (warning,) = collect(*places).warnings
    assert f"left out: status.json garbles {key}" in warning


@pytest.mark.parametrize("key", ["task", "norm", "profile", "identity", "config_sha"])
def test_what_names_a_run_is_text(places: tuple[Path, Path], key: str) -> None:
    folder = rf.write_run(places[0], rf.cell(), rf.rows(VALUES))
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, key: 3}))
    (warning,) = collect(*places).warnings
    assert f"left out: meta.json lacks or garbles '{key}'" in warning


def test_a_profile_that_there_is_not_is_told(places: tuple[Path, Path]) -> None:
    rf.write_run(places[0], rf.cell(profile="huge"), rf.rows(VALUES))
    (warning,) = collect(*places).warnings
    assert "left out: meta.json has the profile 'huge', which configs/profile does not" in warning


@pytest.mark.parametrize("name", ["meta.json", "status.json", "metrics.jsonl", "config.yaml", "checksums.sha256"])
def test_a_folder_in_the_place_of_a_file_is_named(places: tuple[Path, Path], name: str) -> None:
    folder = rf.write_run(places[1], rf.cell(), rf.rows(VALUES))
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    (warning,) = collect(*places).warnings
    assert f"left out: {name} cannot be read (Is a directory)" in warning


@pytest.mark.parametrize(
    "old_new", [('"step": 20', f'"step": {10**30}'), ('"value": 7.0', f'"value": {10**400}'),
                ('"step": 20', '"step": Infinity'), ('"step": 20', f'"step": {"[" * 10**5}')]
)  # fmt: skip
def test_numbers_that_no_table_holds_are_damage(places: tuple[Path, Path], old_new: tuple[str, str]) -> None:
    path = rf.write_run(places[0], rf.cell(), rf.rows(VALUES)) / "metrics.jsonl"
    path.write_text(path.read_text().replace(*old_new, 1))
    (warning,) = collect(*places).warnings
    assert "line 2 of metrics.jsonl is no record" in warning


@pytest.mark.parametrize("text", [b"a: [", b"\xff\xfe\x00"])
def test_a_configuration_that_is_no_yaml_is_damage(places: tuple[Path, Path], text: bytes) -> None:
    folder = rf.write_run(places[0], rf.cell(), rf.rows(VALUES))
    (folder / "config.yaml").write_bytes(text)
    (warning,) = collect(*places).warnings
    assert "config.yaml was edited" in warning
