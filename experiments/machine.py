"""What the machine offers. Only the standard library: ``scripts.options`` asks before anything is installed."""

from __future__ import annotations

import os


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def passed_environment() -> dict[str, str]:
    """Variables that a cell on another host needs, where the engine does not pass the environment on."""
    return {name: value for name, value in os.environ.items() if name.startswith("LN_") or name == "PYTHONPATH"}
