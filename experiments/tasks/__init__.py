"""The registry: a literal table, so that jump-to-definition and type checks work."""

from __future__ import annotations

from experiments.tasks.base import Task
from experiments.tasks.draw import DrawTask
from experiments.tasks.pi_mnist import PiMnistTask

TASKS: dict[str, Task] = {task.name: task for task in (DrawTask(), PiMnistTask())}
