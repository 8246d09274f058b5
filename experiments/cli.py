"""What every entry point shares: bad input ends in one line and an exit code, never in a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable

from data.fetch import DataError
from experiments.runs import RunError
from experiments.schema import ConfigError


def in_short(error: Exception) -> str:
    """What an error of a library says, in a few words: some have many lines, others are a mere key."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if isinstance(error, KeyError):
        return f"no {lines[0]}"
    # torch names what does not fit in the lines after its heading.
    first = lines[1] if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    return first.partition(". ")[0].rstrip(".")


def guarded(main: Callable[[], int | None]) -> None:
    """Runs ``main`` and exits: its return code, 2 for bad input, 1 for data or run trouble, 130 for Ctrl-C."""
    try:
        code = main() or 0
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except (DataError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # the reader of our output has gone: nobody to tell
            sys.stderr.close()
        else:
            print(f"error: {error.filename or 'input or output'}: {error.strerror or error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    sys.exit(code)
