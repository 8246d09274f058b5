"""What figures, compare and status have in common: which runs they look at.

They take flags (``--task draw --profile small``) and the ``NAME=value`` words of ``make``. Nothing given
means all tasks and profiles for which there are runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.analysis.collect import results_dir
from experiments.analysis.output import short_path
from scripts import options
from scripts.checked import OptionError, stems


@dataclass(frozen=True)
class Selection:
    """Tasks and profile to look at (no profile: all), where runs are, and the folder reports go to."""

    tasks: tuple[str, ...]
    profile: str | None
    runs: Path
    published: Path
    out: Path


def select(command: str, description: str | None, argv: Sequence[str] | None, out: str) -> Selection:
    """Reads the command line; exits with 2 and one line that names the valid values when it is wrong.

    Args:
        command: figures, tables, compare or status.
        out: default output folder, below the results folder.
    """
    parser = options.Parser(command, description)
    parser.add_argument("words", nargs="*", metavar="NAME=value", help="as for make, such as TASK=draw")
    parser.add_argument("--task", default="", help="one task (default: all that have runs)")
    parser.add_argument("--profile", default="", help="one profile (default: all that have runs)")
    root = results_dir()
    parser.add_argument("--runs", type=Path, default=root / "runs", help="folder of our own runs")
    parser.add_argument("--published", type=Path, default=root / "published", help="folder of published runs")
    parser.add_argument("--out", type=Path, default=root / out, help="folder the results are written to")
    try:
        given = parser.parse_intermixed_args(argv)
    except OptionError as error:
        options.fail(error)
    words = [*given.words, f"TASK={given.task}", f"PROFILE={given.profile}"]
    values = dict(word.partition("=")[::2] for word in words if word.partition("=")[2].strip())
    task, profile = values.get("TASK", "all").strip(), values.get("PROFILE", "").strip() or None
    known = stems("profile")
    try:
        # Without a task, a profile that only some tasks have selects those.
        some = task == "all" and profile in known
        tasks = options.parse(command, [word for word in words if not (some and word.startswith("PROFILE="))]).tasks
    except OptionError as error:
        options.fail(error)
    return Selection(tasks, profile, given.runs, given.published, given.out)


def finish(paths: Sequence[Path]) -> None:
    """Ends a command's output: the files it made."""
    for path in paths:
        print(short_path(path))


def say(lines: Sequence[str]) -> None:
    """Prints remarks apart from results."""
    for line in lines:
        print(line, file=sys.stderr)


def run(main: Callable[[], int]) -> None:
    """Runs an entry point: trouble with a file or a configuration is one line, not a traceback.

    ``experiments.cli.guarded`` does the same for commands that train; it imports torch, which takes longer
    than everything a status needs.
    """
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        sys.stderr.close()
        code = 1
    except OSError as error:
        print(f"error: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        code = 1
    except ValueError as error:
        schema = sys.modules.get("experiments.schema")
        if schema is None or not isinstance(error, schema.ConfigError):
            raise
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
