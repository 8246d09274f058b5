"""Folders of ``.question`` files, parsed by several processes into one set of arrays (section 6.2).

CNN has 387,420 of these files and takes minutes, so the work is done in shards of ``SHARD`` files. A finished shard is
a file in the cache; an interrupted parse goes on with the others, and memory holds one shard per process, then the
arrays themselves. A shard is known by its files' names, sizes and times of change, so what changed is parsed anew.
"""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from data.cloze_files import SUFFIX, BadQuestion, Question, parse_question
from data.cloze_pack import Shard, build_vocabulary, load_shard, merge, pack, save_shard
from data.cloze_sentences import VERSION as SENTENCES_VERSION
from data.fetch import DataError, data_roots
from data.parsed_cache import Arrays, cache_path, cached
from data.processors import cores

log = logging.getLogger(__name__)

SPLITS = {"train": "training", "valid": "validation", "test": "test"}
# What people call them otherwise; only told, since a folder of another name may be of another split.
OTHER_NAMES = {"train": "training", "valid": "validation", "val": "validation", "dev": "validation", "testing": "test"}
SHARD = 1000  # files; half a second of work for one process
PROCESSES = 16  # at most: reading files gains nothing from more
VERSION = f"1:{SENTENCES_VERSION}"  # changes whenever the same files would give other arrays


@dataclass(frozen=True)
class Job:
    """One shard: what to parse and where to put it.

    Attributes:
        folder: of the split.
        names: of its files.
        sentences: how many are kept of a passage; None: all.
        path: of the finished shard.
    """

    folder: str
    names: list[str]
    sentences: int | None
    path: Path


def locate(name: str) -> Path | None:
    """The folder that holds the splits of data set ``name``, or None.

    It is looked for as ``attentive_reader/<name>/questions`` and the like in $LN_DATA and the raw folder.

    Raises:
        DataError: there, but without one of the splits, still packed, or unreadable.
    """
    for root in data_roots():
        for base in (root / "attentive_reader" / name, root / name):
            for folder in (base / "questions", base):
                try:
                    if (found := _with_splits(folder)) is not None:
                        return found
                    packed = [path for path in (base.parent / f"{name}.tgz", base / f"{name}.tgz") if path.is_file()]
                except OSError as error:
                    raise unreadable(error, folder) from None
            if packed:
                raise DataError(f"{packed[0]}: still packed; unpack it there, so that {base / 'questions'} exists")
    return None


def _with_splits(folder: Path) -> Path | None:
    if not folder.is_dir():
        return None
    missing = [name for name in SPLITS.values() if not (folder / name).is_dir()]
    if not missing:
        return folder
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    others = [f"rename {name} to {OTHER_NAMES[name]}" for name in sorted(names) if OTHER_NAMES.get(name) in missing]
    if len(missing) == len(SPLITS) and not others and not any(map(is_question, names)):
        return None  # some other folder
    remedy = ", ".join(others) or "place each split's question files in the folder of its name"
    raise DataError(f"{folder}: no folder {' and no '.join(missing)}; {remedy}")


def is_question(name: str) -> bool:
    """Whether a file name is that of a question."""
    return name.lower().endswith(SUFFIX) and not name.startswith(".")


def list_questions(folder: Path) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The question files of each split and, for each, what tells whether it has changed.

    Returns:
        split -> names in order; and ``<split folder>/<name>`` -> size and time of change.

    Raises:
        DataError: a split without a question, a link that leads nowhere, or what cannot be read.
    """
    names: dict[str, list[str]] = {}
    states: dict[str, str] = {}
    for split, part in SPLITS.items():
        place = folder / part
        try:
            with os.scandir(place) as entries:
                found = {entry.name: entry.stat() for entry in entries if is_question(entry.name)}
        except OSError as error:
            raise unreadable(error, place) from None
        if not found:
            raise DataError(f"{place}: no {SUFFIX} file in it; place the question files of {split} there")
        names[split] = sorted(found)
        states |= {f"{part}/{name}": f"{state.st_size}:{state.st_mtime_ns}" for name, state in found.items()}
    return names, states


def unreadable(error: OSError, place: str | Path) -> DataError:
    """What to say of a file or folder that the system refuses."""
    path: str | Path = error.filename or place
    if os.path.islink(path) and not os.path.exists(path):
        return DataError(f"{path}: a link that leads nowhere; remove it or place its file")
    return DataError(f"{path}: cannot be read ({error.strerror or error}); check it and its rights")


def load_folder(
    name: str, folder: Path, sentences: int | None, *, skip_bad: bool = False
) -> tuple[Arrays, str, dict[str, int]]:
    """All questions of a folder, from the cache or the files.

    Args:
        name: of the data set.
        folder: as ``locate`` gives it.
        sentences: how many of a passage are kept at most; None: all.
        skip_bad: leave out files that cannot be used instead of raising.

    Returns:
        Arrays as ``merge`` gives them with ``vocabulary``, ``<split>_lost``; their fingerprint; and how many bad files
        each split left out.

    Raises:
        DataError: a bad file (the first, and how many there are), or a split without a usable one.
    """
    names, states = list_questions(folder)
    digest = hashlib.sha256(repr(sorted(states.items())).encode()).hexdigest()
    label = f"attentive_reader-{name}-{sentences or 'all'}"

    def build() -> Arrays:
        return _parse(folder, names, states, sentences, skip_bad, cache_path(label, [folder]).with_suffix(".parts"))

    arrays, fingerprint = cached(label, [folder], build, version=f"{VERSION}:{skip_bad}:{digest}")
    bad = {split: int(arrays.pop(f"{split}_bad")) for split in SPLITS}
    return arrays, fingerprint, bad


def _parse(
    folder: Path,
    names: Mapping[str, Sequence[str]],
    states: Mapping[str, str],
    sentences: int | None,
    skip_bad: bool,
    parts: Path,
) -> Arrays:
    """Parses everything by way of shards in ``parts``, which goes away once all are merged."""
    with _writable(parts) as parts:
        jobs: dict[str, list[Job]] = {split: [] for split in names}
        for split, several in names.items():
            for start in range(0, len(several), SHARD):
                chosen = list(several[start : start + SHARD])
                state = repr([(name, states[f"{SPLITS[split]}/{name}"]) for name in chosen])
                key = hashlib.sha256(f"{VERSION} {sentences} {state}".encode()).hexdigest()[:16]
                path = parts / f"{split}-{start // SHARD:05d}-{key}.npz"
                jobs[split].append(Job(str(folder / SPLITS[split]), chosen, sentences, path))
        run([job for several in jobs.values() for job in several])
        readers = {split: [partial(finished, job) for job in several] for split, several in jobs.items()}
        # Three times over all shards, so that never more than one is in memory.
        bad = {split: [text for read in several for text in read().bad] for split, several in readers.items()}
        _tell(folder, names, bad, skip_bad)
        vocabulary = build_vocabulary(
            (read() for read in readers["train"]), (read() for split in ("valid", "test") for read in readers[split])
        )
        arrays = merge(readers, vocabulary)
        arrays |= {f"{split}_bad": np.array(len(several)) for split, several in bad.items()}
        shutil.rmtree(parts, ignore_errors=True)
    return arrays


def _tell(folder: Path, names: Mapping[str, Sequence[str]], bad: Mapping[str, Sequence[str]], skip_bad: bool) -> None:
    """Raises for bad files, or warns of those that are left out."""
    every = [text for several in bad.values() for text in several]
    if every and not skip_bad:
        more = f" ({len(every) - 1:,} more bad file{'s' * (len(every) > 2)})" if len(every) > 1 else ""
        raise DataError(f"{every[0]}, or set data.skip_bad=true (make: LN_SKIP_BAD=true) to leave it out{more}")
    for text in every[:10]:
        log.warning("left out: %s", text)
    for split, several in bad.items():
        if len(several) == len(names[split]):
            raise DataError(f"{folder / SPLITS[split]}: no usable question in {len(several):,} files; replace them")


@contextmanager
def _writable(parts: Path) -> Iterator[Path]:
    """``parts``, or where that cannot be a temporary folder, from which no later parse can go on."""
    try:
        parts.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or error
        log.warning("%s: cannot write the cache (%s); an interrupted parse starts again", parts.parent, why)
        with tempfile.TemporaryDirectory(prefix="layer-norm-") as folder:
            yield Path(folder)
    else:
        yield parts


def run(jobs: Sequence[Job]) -> None:
    """Makes the shards that are not there yet, with all cores where there are many.

    Raises:
        DataError: the disk is full, or a process was killed; what is finished stays.
    """
    from tqdm import tqdm

    todo = [job for job in jobs if not job.path.is_file()]
    total, done = (sum(len(job.names) for job in several) for several in (jobs, [j for j in jobs if j not in todo]))
    if done:
        log.info("%s of %s question files are parsed already", f"{done:,}", f"{total:,}")
    # Starting a process costs about as much as a shard. One of a pool may have no children.
    count = min(cores(), PROCESSES)
    alone = count == 1 or total - done <= 4 * SHARD or multiprocessing.current_process().daemon
    bar = tqdm(total=total, initial=done, unit="file", desc="questions", leave=False, disable=not sys.stderr.isatty())
    try:
        with bar:
            if alone:
                for job in todo:
                    bar.update(make_shard(job))
                return
            log.info("parsing %s question files with %d processes (once)", f"{total - done:,}", count)
            # Not forked: a copy of a process with threads, as PyTorch has, may wait for ever.
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(min(count, len(todo)), context, _start_child) as pool:
                futures = [pool.submit(make_shard, job) for job in todo]
                try:
                    for future in as_completed(futures):
                        bar.update(future.result())
                finally:
                    pool.shutdown(cancel_futures=True)
    except BrokenProcessPool:
        raise DataError(
            f"{jobs[0].folder}: a process that parses it was killed, perhaps for want of memory; start again to go on"
        ) from None
    except OSError as error:  # those of the questions' own files are told as bad files
        raise DataError(
            f"{jobs[0].path.parent}: cannot be written ({error.strerror or error}); free space or set LN_CACHE"
        ) from None


def _start_child() -> None:
    """What a child does first: it leaves Ctrl-C, which goes to all of them, to its parent, and does not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()  # returns when the parent is gone, also if it was killed
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def make_shard(job: Job) -> int:
    """Parses one shard and saves it, unless another process has. Returns how many files it has."""
    if not job.path.is_file():
        save_shard(job.path, parse_shard(job))
    return len(job.names)


def parse_shard(job: Job) -> Shard:
    """Reads and packs the files of a shard; bad ones are left out and told in it."""
    bad: list[str] = []

    def questions() -> Iterator[Question]:
        for name in job.names:
            path = f"{job.folder}{os.sep}{name}"
            try:
                with open(path, "rb") as file:
                    content = file.read()
                yield parse_question(content, path)
            except OSError as error:
                bad.append(_one_line(unreadable(error, path)))
            except BadQuestion as error:
                bad.append(_one_line(error))

    return pack(questions(), job.sentences, bad)


def _one_line(error: Exception) -> str:
    """An error's text; a file name may hold anything."""
    return " ".join(str(error).split("\n"))


def finished(job: Job) -> Shard:
    """A shard from its file; parsed again if that is damaged or another process has removed it."""
    shard = load_shard(job.path)
    if shard is None:
        shard = parse_shard(job)
        save_shard(job.path, shard)
    return shard
