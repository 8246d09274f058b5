"""What a cell on another host must be told of this one."""

from __future__ import annotations

import os


def passed_environment() -> dict[str, str]:
    """Variables that a cell on another host needs, where the engine does not pass the environment on."""
    return {name: value for name, value in os.environ.items() if name.startswith("LN_") or name == "PYTHONPATH"}
