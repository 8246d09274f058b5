"""What of a run folder goes to wandb, and the folder made from that again.

While a run trains, each step's numbers go there under ``split/metric``. At its end follow, as text in the summary, what
the numbers alone cannot tell: the configuration, ``meta.json``, ``status.json``, the metrics' units, and the digest of
``metrics.jsonl``, which shows whether a history that comes back is the whole of it. The folder made again holds the
same rows; checkpoints and pictures stay where they were made.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.metrics import FIELDS, read_metrics
from experiments.runs import FINISHED, RunError, effective_state, is_locked, read_json, write_atomic
from experiments.schema import config_sha, load_saved

PREFIX = "suite/"
TEXTS = {"config": "config.yaml", "meta": "meta.json", "status": "status.json"}
OF_A_STEP = ("step", "examples", "epoch", "train_seconds")
KEYS = ("config", "meta", "status", "units", "digest")


class Unusable(ValueError):
    """What wandb holds makes no run folder; one line saying why."""


class Foreign(Unusable):
    """Not made by this suite."""


def line(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row as wandb has it, beside others of its step."""
    value = row["value"]
    return {f"{row['split']}/{row['metric']}": math.nan if value is None else value}


def summary(folder: Path) -> dict[str, str]:
    """What a run's summary gets at its end; nothing for a folder that is no run's."""
    if not (folder / "metrics.jsonl").exists():
        return {}
    rows = read_metrics(folder / "metrics.jsonl")
    units = {f"{row['split']}/{row['metric']}": row["unit"] for row in rows}
    found = {name: (folder / file).read_text() for name, file in TEXTS.items()}
    found |= {"units": json.dumps(units), "digest": digest(rows)}
    return {PREFIX + name: text for name, text in found.items()}


def digest(rows: Iterable[Mapping[str, Any]]) -> str:
    """sha256 of rows, whatever their order within a step."""
    plain = sorted(json.dumps([row[name] for name in FIELDS]) for row in rows)
    return hashlib.sha256("\n".join(plain).encode()).hexdigest()


def rows(history: Iterable[Mapping[str, Any]], units: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows of ``metrics.jsonl`` in a history. Pictures and what wandb adds are left out."""
    found = []
    for entry in history:
        for key in sorted(units.keys() & entry.keys()):
            split, _, metric = key.partition("/")
            try:
                of_step = {name: FIELDS[name](entry[name]) for name in OF_A_STEP}
                value = float(entry[key])  # wandb says "NaN" for what was not finite
            except (KeyError, TypeError, ValueError):
                raise Unusable(f"its history garbles {key}") from None
            known = {"split": split, "metric": metric, "unit": units[key]}
            found.append({**of_step, **known, "value": value if math.isfinite(value) else None})
    return sorted(found, key=lambda row: row["step"])


def texts(found: Mapping[str, Any]) -> dict[str, str]:
    """The texts in a summary. Raises ``Foreign`` if there is none of ours, ``Unusable`` if some are missing."""
    ours = {name: found[PREFIX + name] for name in KEYS if isinstance(found.get(PREFIX + name), str)}
    if not ours:
        raise Foreign("it has not finished, or this suite did not make it")
    if missing := [name for name in KEYS if name not in ours]:
        raise Unusable(f"its summary lacks {', '.join(PREFIX + name for name in missing)}")
    return ours


def rebuild(found: Mapping[str, Any], history: Iterable[Mapping[str, Any]], source: str, runs: Path) -> Path | None:
    """Makes a run folder of a summary and its complete history.

    Args:
        found: the summary.
        history: all of its history, row by row.
        source: where both are from; noted in ``meta.json``.
        runs: the run store.

    Returns:
        The folder, or None if the run is there already, finished.

    Raises:
        Unusable: damaged, incomplete, unfinished or foreign; nothing is written.
    """
    own = texts(found)
    meta, status, units = (_object(own, name) for name in ("meta", "status", "units"))
    try:
        task, name = str(meta["task"]), str(meta["run"])
        state, identity, sha = str(status["state"]), str(meta["identity"]), str(meta["config_sha"])
    except KeyError as missing:
        raise Unusable(f"its meta or status lacks {missing}") from None
    if not all(part and "/" not in part and not part.startswith(".") for part in (task, name)):
        raise Unusable(f"its meta names the run {task}/{name}")
    if state not in FINISHED:
        raise Unusable(f"it is {state}: only finished runs can be taken over")
    if not name.endswith(identity[:8]):
        raise Unusable(f"its meta names the run {name}, whose identity is {identity[:8]}")
    folder = runs / task / name
    if (folder / "meta.json").exists():
        if read_json(folder / "meta.json").get("identity") != identity:
            raise Unusable(f"{folder} is another run")
        if is_locked(folder) or effective_state(folder) not in FINISHED:
            raise Unusable(f"{folder} is here and has not finished: delete it to take this one over")
        return None
    whole = rows(history, units)
    if digest(whole) != own["digest"]:
        raise Unusable(f"its history is incomplete or was changed: {len(whole)} of {status.get('rows', '?')} rows")
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=".import-", dir=folder.parent))
    try:
        (place / "config.yaml").write_text(own["config"])
        if _sha(place / "config.yaml") != sha:
            raise Unusable("its configuration is not the one that its meta names")
        write_atomic(place / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in whole))
        write_atomic(place / "status.json", own["status"])
        write_atomic(place / "meta.json", json.dumps({**meta, "imported": source}, indent=1) + "\n")
        place.chmod(0o755)  # mkdtemp makes it private
        place.rename(folder)
    except OSError as error:
        raise RunError(f"cannot write {folder}: {error.strerror}") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return folder


def _object(own: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        value = json.loads(own[name])
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Unusable(f"its {PREFIX}{name} is damaged")
    return value


def _sha(path: Path) -> str:
    try:
        return config_sha(load_saved(path))
    except Exception as error:  # whatever a key or value that is not known makes of it
        raise Unusable(f"its configuration cannot be read by this version ({type(error).__name__})") from None
