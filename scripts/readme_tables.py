"""Fills the tables between the markers of ``README.md``: no number there is typed by hand.

    python -m scripts.readme_tables           writes them
    python -m scripts.readme_tables --check   exits with 1 if they are stale

Results and costs come from the published runs only, so that the README says the same on every machine.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from experiments.analysis import compare, headlines, report, sections, verified
from experiments.analysis.collect import Collection, Run, collect
from experiments.analysis.document import markdown_table
from experiments.analysis.groups import places
from experiments.cli import guarded
from experiments.grid import cells, experiment_names, load_figure, load_table
from experiments.runs import read_json
from experiments.schema import CONFIGS, ROOT
from experiments.tasks import TASKS
from models import variant
from scripts import bench_rnn
from scripts.checked import OptionError
from scripts.options import Parser, fail

README = ROOT / "README.md"
PUBLISHED = ROOT / "results" / "published"
PAPER = "Layer Normalization, arXiv 1607.06450, section "  # how configs/paper starts its sources
MARKS = {
    "†": "The code has changed since; the first steps of the runs were repeated with today's, bit for bit",
    "‡": "The code has changed since, and the runs were not repeated",
}
BY_NORM = ("sites", "bias_mode")  # switches whose default depends on the norm


def published() -> Collection:
    """The runs under version control."""
    return collect(PUBLISHED / ".none", PUBLISHED)


def glance() -> str:
    """Each task's headline: the command, its minutes, the paper's numbers beside ours, the verdicts."""
    collection, rows, without, marks = published(), [], [], set()
    for task in TASKS:
        try:
            paper = compare.load_paper(task)
        except FileNotFoundError:  # nothing is printed about it
            continue
        found = headlines.answers(collection, task)
        if headlines.DEFAULT not in {one.profile for one in found}:
            without.append(f"`{task}`")
        name = f"{paper.get('title', task)} ({paper['source'].removeprefix(PAPER)})"
        for one in found:
            command = f"make reproduce TASK={task}"
            command += f" PROFILE={one.profile}" * (one.profile != headlines.DEFAULT)
            took = "-" if one.minutes is None else f"{one.minutes:.0f}"
            took += f" ({one.runs} of {one.cells} runs)" * (one.runs < one.cells)
            source = f"{one.profile}, {'STAND-IN ' * one.stand_in}{one.label}"
            claims = [short for short, _ in one.claims]
            ours = [report.ours(row) for _, row in one.claims]
            verdicts = [brief(row) for _, row in one.claims]
            marks |= {mark for mark in MARKS for text in verdicts if text.endswith(mark)}
            theirs = [headlines.printed(task, row) for _, row in one.claims]
            rows.append([name, f"`{command}`", took, *map(lines, (claims, theirs, ours)), source, lines(verdicts)])
            name = ""
    if not rows:
        return "No runs are published yet."
    notes = [f"{mark} {MARKS[mark]}." for mark in MARKS if mark in marks]
    if without:
        notes.insert(0, f"No run at the default profile `{headlines.DEFAULT}` is published of {', '.join(without)}.")
    head = ["task", "command", "minutes", "claim", "paper", "ours", "from", "verdict"]
    return "\n\n".join([markdown_table(head, rows), " ".join(notes)]).rstrip()


def lines(texts: Sequence[str]) -> str:
    """Several lines in one cell, none of them broken, so that they stay beside those of other cells."""
    return "<br>".join(text.replace(" ", "\N{NO-BREAK SPACE}") for text in texts)


def brief(row: compare.Row) -> str:
    """A row's verdict in as few words as go into a narrow column."""
    if not row["n_seeds"]:
        return "not measured"
    mark = "†" if row["repeated_steps"] is not None else "‡" if row["code_changed"] else ""
    return f"{row['verdict']} {mark}".rstrip()


def profiles() -> str:
    """What each profile changes of the published setting, and how many cells each result then has."""
    rows = []
    for task in TASKS:
        for path in sorted(CONFIGS.glob(f"profile/*/{task}.yaml")):
            profile = path.parent.name
            changes = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
            text = ", ".join(f"`{key}={value}`" for key, value in flat(changes)) or "the published setting"
            results = [f"{name}: {len(cells(name, profile))} cells" for name in experiment_names(task)]
            rows.append([f"`{task}`", f"`{profile}`", text, ", ".join(results)])
    return markdown_table(["task", "profile", "changes", "result"], rows)


def flat(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of a nested mapping with dotted keys; lists are leaves."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def results() -> str:
    """Published runs held against the paper, one table per task, profile and data source; with their figures."""
    collection, parts = published(), []
    for task in TASKS:
        try:
            paper = compare.load_paper(task)
        except FileNotFoundError:  # nothing is printed about it
            continue
        for (profile, label), several in places(collection, task, compare.experiments(paper))[0].items():
            rows = [row for experiment, group in several for row in compare.rows(paper, group, experiment)]
            body = [
                [report.what(r), report.number(r["paper"]), report.ours(r), str(r["n_seeds"]), verdict(r)]
                for r in rows
                if r["n_seeds"]
            ]
            command = f"make reproduce TASK={task} PROFILE={profile}"
            parts.append(f"**{report.heading(rows, task)}** (`{command}`)")
            parts += figures(task, profile, label)
            parts.append(markdown_table(["number or claim", "paper", "ours: median [range]", "seeds", "verdict"], body))
        parts += [
            f"[{path.stem}]({path.relative_to(ROOT)}): the paper's rows and ours side by side" for path in tables(task)
        ]
    return "\n\n".join(parts) or "No runs are published yet."


def tables(task: str) -> list[Path]:
    """Published tables of a task."""
    names = [block["name"] for experiment in experiment_names(task) if (block := load_table(experiment)) is not None]
    return [path for name in names if (path := PUBLISHED / "tables" / f"{name}.md").is_file()]


def verdict(row: compare.Row) -> str:
    """A row's verdict, whether it is one on code that is not this one any more, and whose time had no end in sight."""
    remarks = []
    if row["repeated_steps"] is not None:
        remarks.append(f"code changed since, {verified.said(row['repeated_steps'])}")
    elif row["code_changed"] is True:
        remarks.append("code changed since")
    if row["open_ended"]:
        remarks.append(f"best at the last evaluation: {', '.join(row['open_ended'])}")
    return row["verdict"] + (f" ({'; '.join(remarks)})" if remarks else "")


def figures(task: str, profile: str, label: str) -> list[str]:
    """Links to the published figures of one group."""
    links = []
    for name in (load_figure(experiment)["name"] for experiment in experiment_names(task)):
        for path in sorted(PUBLISHED.glob(f"**/{profile}-{label}/{name}.png")):
            links.append(f"![{name}, profile {profile}, {label} data]({path.relative_to(ROOT)})")
    return links


def costs() -> str:
    """What the published runs took."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in published().runs:
        if run.state == "done" and not run.metrics.empty:
            meta = read_json(run.folder / "meta.json")
            order = (list(TASKS).index(run.task), run.profile, run.label, -run.batch_size)
            machine = (str(meta["device"]), int(meta["threads"]))
            groups.setdefault((*order, TASKS[run.task].norms.index(run.norm), *machine), []).append(run)
    rows = []
    for (*_, device, threads), runs in sorted(groups.items()):
        run, ends = runs[0], [r.metrics.iloc[-1] for r in runs]
        seconds = statistics.median(float(end["train_seconds"]) for end in ends)
        steps = int(ends[0]["step"])
        meta = read_json(run.folder / "meta.json")
        on = f"{threads} thread{'s' * (threads > 1)}, {device}"
        rows.append(
            [
                f"`{run.task}`", f"`{run.profile}`", str(run.batch_size), f"`{run.norm}`", f"{meta['parameters']:,}",
                f"{ends[0]['epoch']:g}", f"{steps:,}", f"{1e3 * seconds / steps:.2f}", f"{seconds / 60:.1f}",
                str(len(runs)), on,
            ]
        )  # fmt: skip
    head = "task,profile,batch,norm,parameters,epochs,steps,ms/step,minutes of training,runs,on".split(",")
    return markdown_table(head, rows) if rows else "No runs are published yet."


def benches() -> str:
    """One training step at paper sizes: each norm's, and what its parts take alone."""
    rows = []
    for path in sorted(path for path in (PUBLISHED / "bench").glob("*.json") if path.stem in TASKS):
        report_ = read_json(path)
        machine = f"{report_['hardware']['cpu']}, {report_['device']}"
        for batch in report_["batches"]:
            parts = {f"whole step, `{norm}`": row["ms_per_step"] for norm, row in batch["norms"].items()}
            parts |= {
                f"whole step, `{norm}`, `kernel=reference`": row["reference_ms"]
                for norm, row in batch["norms"].items()
                if "reference_ms" in row
            }
            parts |= {f"{part} alone": batch[part]["ms"] for part in ("products", "optimizer")}
            where = f"{machine}, {batch['threads']} thread{'s' * (batch['threads'] > 1)}"
            if (data := batch.get("data")) and data["kind"] == "stand-in":
                where += f"; on {data['name']}"
            for part, ms in parts.items():
                rows.append([f"`{report_['task']}`", str(batch["batch_size"]), part, f"{ms:.2f}", where])
    head = ["task", "batch", "what", "ms (median)", "on"]
    return markdown_table(head, rows) if rows else "Nothing is published yet."


def recurrent() -> str:
    """One layer, forward and backward, at each published shape: ``make bench TASK=rnn``."""
    path = PUBLISHED / "bench" / "rnn.json"
    if not path.exists():
        return "Nothing is published yet."
    about = read_json(path.with_suffix(".meta.json"))
    found = json.loads(path.read_text(encoding="utf-8"))
    others = [name for name in dict.fromkeys(row["candidate"] for row in found) if name != "builtin"]
    body = []
    for layer in dict.fromkeys(row["layer"] for row in found):
        by_name = {row["candidate"]: row for row in found if row["layer"] == layer}
        ratios = [f"{by_name[name]['ratio']:.2f}" if name in by_name else "-" for name in others]
        shape = ", ".join(map(str, by_name["builtin"]["shape"]))
        body.append([layer, shape, f"{by_name['builtin']['ms']:.0f}", *ratios])
    rounds = len(next(iter(about["all_ms"].values()))["builtin"])
    head = ["layer", "T, B, inputs, H", "builtin, ms", *(f"`{name}`" for name in others)]
    return f"{markdown_table(head, body)}\n\n{bench_rnn.header(about)}; medians of {rounds} rounds."


def switches() -> str:
    """The switches of a recurrent layer and its bias modes, as ``models.variant`` describes them."""
    rows = []
    (attributes,) = re.findall(r"Attributes:\n(.*)", inspect.getdoc(variant.Variant) or "", re.DOTALL)
    for text in re.split(r"\n(?= {4}\w)", attributes.rstrip()):
        name, about = text.strip().split(": ", 1)
        default = inspect.signature(variant.Variant).parameters[name].default
        about = re.sub(r"\s+", " ", about).replace("``", "`")
        rows.append([f"`{name}`", "by norm" if name in BY_NORM else f"`{default}`", about])
    modes = [line for line in (variant.__doc__ or "").splitlines() if line.startswith("|")]
    return "\n\n".join([markdown_table(["switch", "default", "what"], rows), "Bias modes:", "\n".join(modes)])


def glossary() -> str:
    """Every logged metric."""
    rows = [
        [f"`{name}`", f"`{metric}`", about.unit, about.better, about.what]
        for name, task in TASKS.items()
        for metric, about in task.metrics.items()
    ]
    return markdown_table(["task", "metric", "unit", "better", "what"], rows)


def new_norm() -> str:
    """What it takes to add RMSNorm: its file, and the lines that come into files there are."""
    folder = ROOT / "tests" / "extensions" / "rms"
    parts = []
    for path in sorted(path for path in (folder / "tree").rglob("*.yaml")):
        parts.append(f"`{path.relative_to(folder / 'tree')}`, new:\n\n```yaml\n{path.read_text(encoding='utf-8')}```")
    for name, edits in yaml.safe_load((folder / "edits.yaml").read_text(encoding="utf-8")).items():
        before = after = (ROOT / name).read_text(encoding="utf-8")
        for edit in edits:
            after = after.replace(edit["old"], edit["new"])
        marked = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
        body = "\n".join(line for line in list(marked)[2:] if not line.startswith("@@"))
        parts.append(f"`{name}`:\n\n```diff\n{body}\n```")
    return "\n\n".join(parts)


def choices() -> str:
    """Choices and deviations: a file for each task, in the paper's order, and what all tasks share."""
    files = [sections.CHOICES / f"{topic}.md" for topic in (*TASKS, "norms")]
    return "\n".join(path.read_text(encoding="utf-8").strip() for path in files if path.is_file())


SECTIONS: dict[str, Callable[[], str]] = {
    "glance": glance,
    "new_norm": new_norm,
    "profiles": profiles,
    "results": results,
    "costs": costs,
    "benches": benches,
    "glossary": glossary,
    "recurrent": recurrent,
    "switches": switches,
    "choices": choices,
}


def filled(text: str) -> str:
    """``text`` with every section between ``<!-- name -->`` and ``<!-- /name -->`` made anew."""
    for name, make in SECTIONS.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"README.md must hold <!-- {name} --> and <!-- /{name} --> once")
        body = make()
        text = pattern.sub(lambda match, body=body: f"{match[1]}\n{body}\n\n{match[2]}", text)  # type: ignore[misc]
    return text


def main(path: Path = README, argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = Parser("readme_tables", __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if they are stale")
    try:
        check = parser.parse_args(argv).check
    except OptionError as error:
        fail(error)
    before = path.read_text(encoding="utf-8")
    after = filled(before)
    if check:
        if after != before:
            print("error: README.md is stale; run: python -m scripts.readme_tables", file=sys.stderr)
        return int(after != before)
    path.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    guarded(main)
