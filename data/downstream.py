"""The five sets that sentence encoders are evaluated on (section 6.3): which are here, and what stands in for them."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

from data import sentence_sets, sick, vader_reviews
from data.archive import large_asked
from data.fetch import FetchError, Say, Source
from data.sentence_sets import SentenceSet
from data.sick import Sick

log = logging.getLogger(__name__)

NAMES = (sick.NAME, *sentence_sets.SETS)
STAND_INS = {"MR": "vader_movies", "CR": "vader_products"}


@dataclass(frozen=True)
class Downstream:
    """What there is.

    Attributes:
        sick: SICK, or None.
        labelled: the sets of two classes that are here, stand-ins included, by name.
        missing: for each of ``NAMES`` that is not, how to get it, in one line.
        source: of all of them together.
    """

    sick: Sick | None
    labelled: dict[str, SentenceSet]
    missing: dict[str, str]
    source: Source


def available() -> dict[str, Path | str]:
    """For each of ``NAMES`` the folder it is in, or how to get it. Raises ``DataError`` on an incomplete set."""
    found: dict[str, Path | str] = {}
    for name in NAMES:
        paths = sick.locate() if name == sick.NAME else sentence_sets.locate(name)
        found[name] = paths[0].parent if paths else _how_to_get(name)
    return found


def _how_to_get(name: str) -> str:
    return sick.where_to_place() if name == sick.NAME else sentence_sets.where_to_place(name)


def load_downstream() -> Downstream:
    """All sets that are here. In place of MR and CR their stand-ins, from the package registry if need be.

    Raises:
        DataError: a file is damaged or incomplete (never replaced by a stand-in), or there is nothing at all.
    """
    pairs = sick.load()
    missing = {} if pairs else {sick.NAME: sick.where_to_place()}
    labelled: dict[str, SentenceSet] = {}
    archive: Path | FetchError | None = None
    for name in sentence_sets.SETS:
        if (found := sentence_sets.load(name)) is not None:
            labelled[name] = found
            continue
        missing[name] = sentence_sets.where_to_place(name)
        if name in STAND_INS:
            archive = archive or _reviews()
            if isinstance(archive, FetchError):
                log.warning("no stand-in for %s (%s)", name, archive)
            else:
                labelled[STAND_INS[name]] = vader_reviews.load(STAND_INS[name], archive)
    if pairs is None and not labelled:
        assert isinstance(archive, FetchError)
        raise archive
    if missing:
        stand_ins = ", ".join(f"{STAND_INS[name]} for {name}" for name in missing if STAND_INS.get(name) in labelled)
        log.info(
            "no %s here%s; make data TASK=skip_thoughts says how to get them",
            ", ".join(missing), f" (instead {stand_ins})" * bool(stand_ins),
        )  # fmt: skip
    return Downstream(pairs, labelled, missing, _source(pairs, labelled, missing))


def _reviews() -> Path | FetchError:
    """The archive of the stand-ins, or why it cannot be had."""
    try:
        return vader_reviews.locate() or vader_reviews.fetch()
    except FetchError as error:
        return error


def _source(pairs: Sick | None, labelled: dict[str, SentenceSet], missing: dict[str, str]) -> Source:
    sources = [*([pairs.source] if pairs else []), *(each.source for each in labelled.values())]
    if missing:
        kind = "stand-in"
    else:
        kind = "mirror" if any(source.kind == "mirror" for source in sources) else "original"
    digest = hashlib.sha256("".join(source.fingerprint for source in sources).encode()).hexdigest()
    detail = "; ".join(f"{source.name}: {source.detail}" for source in sources)
    if missing:
        detail += f"; not here: {', '.join(missing)}"
    label = "downstream" if not missing else "+".join(source.label for source in sources)
    return Source(kind, label, "sentence evaluation sets", digest, detail)


def get(say: Say) -> Source:
    """Tells of the sets and gets what can be had; see ``scripts.get_data``. Raises ``DataError``."""
    before = available()
    absent = [name for name in sentence_sets.SETS if isinstance(before[name], str)]
    if absent and large_asked():
        try:
            log.info("fetching %s from %s", ", ".join(absent), sentence_sets.URL)
            sentence_sets.fetch(absent, sentence_sets.URL)
        except FetchError as error:
            log.warning("not fetched (%s)", error)
    archive = vader_reviews.locate()
    sets, told = load_downstream(), False
    for name, where in available().items():
        if isinstance(where, Path):
            say("present" if isinstance(before[name], Path) else "fetched", where)
        elif (stand_in := STAND_INS.get(name)) in sets.labelled:
            if not told:  # one archive holds both
                say("present" if archive else "fetched", vader_reviews.locate())
                told = True
            say("stand-in", f"{name}: {stand_in} of it; for the original {where}")
        else:
            say("optional", f"{name}: {where}")
    return sets.source
