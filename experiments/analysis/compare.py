"""Holds runs against what the paper prints: a row for each number or claim of ``configs/paper``.

A row's verdict is one of ``measures.VERDICTS``:

- ``matches``: profile ``paper`` on real data, and every seed within the tolerance (a printed value), or at least
  ``CLAIM_SEEDS`` seeds that all go the paper's way (a claim without a number), with their median within the tolerance
  (a printed difference or speed); what is measured under a setting that the paper does not have never is;
- ``same direction`` / ``opposite direction``: every seed agrees; all that a smaller profile or a stand-in can
  give;
- ``inconclusive``: seeds disagree or tie, a number is undefined, or runs are missing;
- ``not comparable``: there is nothing to hold it against, such as a printed number at a smaller profile.

Only finished runs count. One that diverged counts as infinitely bad or infinitely slow. Pairs share a seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from experiments.analysis import ordering, verified
from experiments.analysis.changes import code_changed
from experiments.analysis.collect import FINISHED, REPO, Run
from experiments.analysis.groups import Group
from experiments.analysis.measures import Race, agreement, best, final, median, minus, race, speedup, within

PAPER = REPO / "configs" / "paper"
CLAIM_SEEDS = 3
UNITS = {"time_to_best": "of the baseline's time"}
Row = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """What a definition gives on the runs: one value per seed, and what to say about them.

    Attributes:
        values: by seed.
        signs: by seed, positive where the seed goes the paper's way; empty where a row has no direction.
        runs: the runs used.
        wanted: what the row needs, for the reason when it is missing.
        details: the numbers behind the values, by seed.
        tally: how often each of several rivals is beaten, for a claim of an order.
        open_ended: norm and seed of the runs whose best value is their last, where that makes a time a lower bound.
    """

    values: dict[int, float]
    signs: list[float]
    runs: list[Run]
    wanted: str
    details: dict[int, dict[str, float]]
    tally: str | None = None
    open_ended: tuple[str, ...] = ()


def load_paper(task: str, folder: Path = PAPER) -> dict[str, Any]:
    """The published numbers and claims of a task. Raises ``FileNotFoundError`` if none are written down."""
    return yaml.safe_load((folder / f"{task}.yaml").read_text(encoding="utf-8"))


def experiments(paper: Mapping[str, Any]) -> list[str]:
    """The experiments whose runs are compared: that of the task, and those that single rows name."""
    return list(
        dict.fromkeys([paper["experiment"], *(d.get("experiment", paper["experiment"]) for d in paper["rows"])])
    )


def rows(paper: Mapping[str, Any], group: Group, experiment: str | None = None) -> list[Row]:
    """The rows of one experiment (that of the task, if none is given), for the runs of one profile and data source."""
    return [
        _row(definition, clock, paper["rows"], group)
        for definition in paper["rows"]
        if definition.get("experiment", paper["experiment"]) == (experiment or paper["experiment"])
        for clock in definition.get("clocks", [None])
    ]


def _seeds(group: Group, norm: str, batch: int | None) -> dict[int, Run]:
    """Finished runs of a norm by seed; without a batch size, those of the experiment's first."""
    if batch is None:
        batch = group.batch_size
    return {
        run.seed: run for run in group.runs if run.norm == norm and run.batch_size == batch and run.state in FINISHED
    }


def _never_logged(d: Mapping[str, Any], group: Group) -> bool:
    """Whether runs are done, but none logged the row's metric, as where an evaluation set was not there."""
    done = [run for run in group.runs if run.state == "done"]
    return bool(done) and all(run.series(d["split"], d["metric"]).empty for run in done)


def _shared(*sides: Mapping[int, Run]) -> list[int]:
    return sorted(set.intersection(*(set(side) for side in sides)))


def _measure(d: Mapping[str, Any], clock: str | None, others: Sequence[Mapping[str, Any]], group: Group) -> Measured:
    """Applies one definition. Its kinds are explained in ``configs/paper/*.yaml``."""
    sign = -1.0 if d["better"] == "lower" else 1.0

    def end(run: Run) -> float:
        return final(run.series(d["split"], d["metric"]), run.state, d["better"])

    if d["kind"] == "best":
        mine = _seeds(group, d["norm"], d["batch_size"])
        values = {seed: best(run.series(d["split"], d["metric"]), d["better"], "step")[0] for seed, run in mine.items()}
        return Measured(values, [], list(mine.values()), d["norm"], {})

    if d["kind"] in ordering.KINDS:
        arms = {norm: _seeds(group, norm, d["batch_size"]) for norm in (d["candidate"], *d["baselines"])}
        found = {
            seed: ordering.standing(d, clock or "step", {norm: side[seed] for norm, side in arms.items()})
            for seed in _shared(*arms.values())
        }
        return Measured(
            {seed: one.value for seed, one in found.items()},
            [sign for one in found.values() for sign in one.ahead.values()],
            [side[seed] for side in arms.values() for seed in found],
            f"{', '.join(d['baselines'])} and {d['candidate']}",
            {seed: one.details for seed, one in found.items()},
            ordering.tally(d, list(found.values())),
        )

    if d["kind"] == "value":
        mine = _seeds(group, d["norm"], d["batch_size"])
        values = {seed: end(run) for seed, run in mine.items()}
        signs = []
        if "against" in d:
            rival = _seeds(group, d["against"], d["batch_size"])
            same = (o for o in others if o["kind"] == "value" and o["metric"] == d["metric"])
            printed = next(o["paper"] for o in same if o["norm"] == d["against"])
            order = math.copysign(1.0, d["paper"] - printed)
            signs = [order * minus(values[seed], end(rival[seed])) for seed in _shared(mine, rival)]
        return Measured(values, signs, list(mine.values()), d["norm"], {})

    if d["kind"] == "difference":
        base, cand = (_seeds(group, d[side], d["batch_size"]) for side in ("baseline", "candidate"))
        seeds = _shared(base, cand)
        details = {seed: {"baseline": end(base[seed]), "candidate": end(cand[seed])} for seed in seeds}
        values = {seed: minus(x["candidate"], x["baseline"]) for seed, x in details.items()}
        direction = math.copysign(1.0, d["paper"]) if d["paper"] is not None else sign
        signs = [direction * value for value in values.values()]
        used = [side[seed] for seed in seeds for side in (base, cand)]
        return Measured(values, signs, used, f"{d['baseline']} and {d['candidate']}", details)

    if d["kind"] in ("change", "robustness"):
        norms = [d["norm"]] if d["kind"] == "change" else [d["baseline"], d["candidate"]]
        sides = [_seeds(group, norm, d[batch]) for norm in norms for batch in ("from_batch", "to_batch")]
        seeds = _shared(*sides)
        rises = {
            seed: [minus(end(sides[i + 1][seed]), end(sides[i][seed])) for i in range(0, len(sides), 2)]
            for seed in seeds
        }
        used = [side[seed] for seed in seeds for side in sides]
        wanted = f"{' and '.join(norms)} at batch {d['from_batch']} and {d['to_batch']}"
        if d["kind"] == "change":
            return Measured({seed: rise[0] for seed, rise in rises.items()}, [], used, wanted, {})
        values = {seed: minus(c, b) for seed, (b, c) in rises.items()}
        details = {seed: {"baseline": b, "candidate": c} for seed, (b, c) in rises.items()}
        return Measured(values, [sign * value for value in values.values()], used, wanted, details)

    if d["kind"] == "speed":
        base, cand = (_seeds(group, d[side], d["batch_size"]) for side in ("baseline", "candidate"))
        races: dict[int, Race] = {
            seed: race(
                base[seed].series(d["split"], d["metric"]), base[seed].state,
                cand[seed].series(d["split"], d["metric"]), cand[seed].state, d["better"], clock or "step",
            )
            for seed in _shared(base, cand)
        }  # fmt: skip
        details = {
            seed: {"target": r.target, "baseline": r.baseline, "candidate": r.candidate} for seed, r in races.items()
        }
        values = {seed: r.ratio for seed, r in races.items()}
        used = [side[seed] for seed in races for side in (base, cand)]
        signs = [value - 1 for value in values.values()]
        return Measured(values, signs, used, f"{d['baseline']} and {d['candidate']}", details)
    if d["kind"] == "time_to_best":
        base, cand = (_seeds(group, d[side], d["batch_size"]) for side in ("baseline", "candidate"))
        seeds, details, open_ended = _shared(base, cand), {}, []
        for seed in seeds:
            for side, run in (("baseline", base[seed]), ("candidate", cand[seed])):
                series = run.series(d["split"], d["metric"])
                value, when = best(series, d["better"], clock or "step")
                if run.state == "diverged":
                    when = math.inf
                elif when == series[clock or "step"].max():
                    open_ended.append(f"{run.norm} seed {seed}")
                details.setdefault(seed, {}).update({side: when, f"{side}_best": value})
        values = {seed: speedup(x["candidate"], x["baseline"]) for seed, x in details.items()}
        used = [side[seed] for seed in seeds for side in (base, cand)]
        signs = [1 - value for value in values.values()]
        wanted = f"{d['baseline']} and {d['candidate']}"
        return Measured(values, signs, used, wanted, details, open_ended=tuple(sorted(open_ended)))
    raise ValueError(f"configs/paper: row {d['id']} has the unknown kind {d['kind']!r}")


def _row(d: Mapping[str, Any], clock: str | None, others: Sequence[Mapping[str, Any]], group: Group) -> Row:
    if "stand_in" in d and _never_logged(d, group) and not _never_logged({**d, "metric": d["stand_in"]}, group):
        text = f"{d['text']} ({d['stand_in']} in its place)"
        d = {**d, "metric": d["stand_in"], "in_place_of": d["metric"], "text": text}
    absent = _never_logged(d, group)
    measured = _measure(d, clock, others, replace(group, found=[]) if absent else group)
    batch = (d["batch_size"] or group.batch_size) if "batch_size" in d else [d["from_batch"], d["to_batch"]]
    seeds = sorted(measured.values)
    values = [measured.values[seed] for seed in seeds]
    middle = median(values)
    verdict, reasons = _verdict(d, clock, measured, middle, group)
    changed, steps = [], []
    for run in measured.runs:
        differs = code_changed(run.commit, group.task)
        if differs and (step := verified.through_step(run.folder, group.task)) is not None:
            differs = False
            steps.append(step)
        changed.append(differs)
    known = True if True in changed else None if None in changed or not changed else False
    renewal = renew([run for run, differs in zip(measured.runs, changed, strict=True) if differs], group)
    repeated = min(steps) if steps and known is False else None
    if known:
        reasons.append(f"model or task code changed since these runs; to renew them: {renewal}")
    elif repeated is not None:
        reasons.append(f"model or task code changed since, {verified.said(repeated)}")
    commits = sorted({run.commit[:12] + "+dirty" * run.dirty for run in measured.runs})
    return {
        "id": d["id"],
        "text": d["text"],
        "kind": d["kind"],
        "metric": d["metric"],
        "split": d["split"],
        "norm": d.get("norm", d.get("candidate")),
        "baseline": d.get("baseline"),
        "baselines": d.get("baselines"),
        "batch_size": batch,
        "clock": clock,
        "unit": d.get("unit", UNITS.get(d["kind"], "times as fast")),
        "paper": d["paper"],
        "context": d.get("context"),
        "where": d.get("where"),
        "ours": values,
        "seeds": seeds,
        "median": middle,
        "n_seeds": len(seeds),
        "details": [{"seed": seed, **measured.details[seed]} for seed in seeds if seed in measured.details],
        "profile": group.profile,
        "data_source": group.source["name"],
        "data_kind": group.source["kind"],
        "data_label": group.label,
        "commit": ", ".join(commits) or None,
        "code_changed": known,
        "repeated_steps": repeated,
        "renew": renewal if known else None,
        "open_ended": list(measured.open_ended),
        "verdict": verdict,
        "reason": "; ".join(reasons),
    }


def renew(stale: Sequence[Run], group: Group) -> str:
    """What to do to have runs made anew with the present code: one's own are in the way of new ones."""
    norms = sorted({run.norm for run in stale} - {cell.norm for cell in group.own})
    more = f" NORM={','.join(norms)}" if norms else ""
    command = f"make reproduce TASK={group.task} PROFILE={group.profile}{more}"
    own = sorted({run.run for run in stale if run.origin == "runs"})
    return f"delete runs/{group.task}/{{{','.join(own)}}} of the results folder, then {command}" if own else command


def _verdict(
    d: Mapping[str, Any], clock: str | None, measured: Measured, middle: float, group: Group
) -> tuple[str, list[str]]:
    """Verdict and the clauses of its reason. The rules are at the top of this file."""
    n, paper = len(measured.values), d["paper"]
    claim = d["kind"] in ("speed", "robustness", "time_to_best", *ordering.KINDS)
    full = group.profile == "paper" and not group.stand_in and "in_place_of" not in d and "where" not in d
    limit = (
        f"{d['metric']} stands in for {d['in_place_of']} and gives a direction only" if "in_place_of" in d
        else f"stand-in data ({group.label}) give a direction only" if group.stand_in
        else f"{d['where']}, which the paper does not have, give a direction only"
        if "where" in d and group.profile == "paper"
        else f"profile {group.profile} gives a direction only"
    )  # fmt: skip
    remarks = _remarks(d, clock, measured, group)
    if n == 0 and _never_logged(d, group):
        return "inconclusive", [f"{d['split']} {d['metric']} was not logged: what it is measured on was not there"]
    if n == 0:
        return "inconclusive", [f"no finished run of {measured.wanted} with a shared seed", *remarks]
    if paper is None and not claim:
        return "not comparable", ["the paper prints no number", *remarks]
    if d["kind"] == "value" and not full:
        return "not comparable", ["a printed number needs profile paper on real data", *remarks]

    direction = agreement(measured.signs)
    reasons = []
    if direction == "inconclusive":
        reasons.append(measured.tally or _split(measured.signs, str(d.get("against"))))
    if not full:
        return direction, [limit, *reasons, *remarks]
    if clock == "train_seconds":
        return direction, ["seconds depend on the machine: a direction only", *reasons, *remarks]
    if paper is None:
        if n < CLAIM_SEEDS:
            return direction, [f"fewer than {CLAIM_SEEDS} seeds give a direction only", *reasons, *remarks]
        return ("matches" if direction == "same direction" else direction), [*reasons, *remarks]
    close = within(middle, paper, d["tolerance"])
    where = "within" if close else "not within"
    reasons.append(f"median {where} {d['tolerance']:g} of the printed {paper:g} ({d['why']})")
    if close and d["kind"] == "value":
        near = sum(within(value, paper, d["tolerance"]) for value in measured.values.values())
        if near == n:
            return "matches", [*reasons, *remarks]
        return "inconclusive", [*reasons, f"but only {near} of {n} seeds are", *remarks]
    if close and direction == "same direction":
        if n >= CLAIM_SEEDS:
            return "matches", [*reasons, *remarks]
        reasons.append(f"fewer than {CLAIM_SEEDS} seeds give a direction only")
    return direction, [*reasons, *remarks]


def _split(signs: Sequence[float], rival: str) -> str:
    """Why seeds have no direction in common."""
    if not signs:
        return f"no direction: no finished run of {rival} with a shared seed"
    paper_way, other_way = sum(s > 0 for s in signs), sum(s < 0 for s in signs)
    ties = len(signs) - paper_way - other_way
    return f"of {len(signs)} seeds {paper_way} go the paper's way, {other_way} the other" + (
        f", {ties} neither" if ties else ""
    )


def _remarks(d: Mapping[str, Any], clock: str | None, measured: Measured, group: Group) -> list[str]:
    """Clauses that say what the numbers rest on."""
    remarks = []
    if d["kind"] == "speed" and measured.details:
        unit = "s" if clock == "train_seconds" else "steps"
        base, cand = (
            " / ".join(_number(x[side]) for _, x in sorted(measured.details.items()))
            for side in ("baseline", "candidate")
        )
        target = " / ".join(_number(x["target"]) for _, x in sorted(measured.details.items()))
        remarks.append(
            f"{d['baseline']} has its best {d['split']} {d['metric']} ({target}) at {base} {unit}, "
            f"{d['candidate']} reaches it at {cand}"
        )
    if d["kind"] == "time_to_best" and measured.details:
        unit = "s" if clock == "train_seconds" else "steps"
        own = [
            f"{d[side]} has its best {d['split']} {d['metric']} ("
            + " / ".join(_number(x[f"{side}_best"]) for _, x in sorted(measured.details.items()))
            + ") at "
            + " / ".join(_number(x[side]) for _, x in sorted(measured.details.items()))
            for side in ("baseline", "candidate")
        ]
        remarks.append(f"{own[0]}, {own[1]} {unit}")
    if measured.open_ended:
        remarks.append(
            f"best at the last evaluation, so that a longer run may take longer: {', '.join(measured.open_ended)}"
        )
    silent = sorted({f"{run.norm} batch {run.batch_size} seed {run.seed}" for run in measured.runs
                     if run.state != "diverged" and run.series(d["split"], d["metric"]).empty})  # fmt: skip
    if silent:
        remarks.append(f"{d['split']} {d['metric']} was not logged by {', '.join(silent)}")
    diverged = sorted({f"{run.norm} batch {run.batch_size} seed {run.seed}" for run in measured.runs
                       if run.state == "diverged"})  # fmt: skip
    if diverged:
        remarks.append(f"diverged, counted as infinite: {', '.join(diverged)}")
    absent = sorted({cell.seed for cell in group.own} - set(measured.values))
    if absent and measured.values:
        remarks.append(f"without seed{'s' * (len(absent) > 1)} {', '.join(map(str, absent))}")
    if len(measured.values) == 1:
        remarks.append("one seed, so no spread is known")
    return remarks


def _number(value: float) -> str:
    if math.isinf(value):
        return "never" if value > 0 else "-inf"
    return "?" if math.isnan(value) else f"{value:.5g}"
