"""The registry: a literal table, so that jump-to-definition and type checks work. A new task is one line in it."""

from __future__ import annotations

from experiments.tasks.attentive_reader import AttentiveReaderTask
from experiments.tasks.base import Task
from experiments.tasks.draw import DrawTask
from experiments.tasks.handwriting import HandwritingTask
from experiments.tasks.order_embeddings import OrderEmbeddingsTask
from experiments.tasks.pi_mnist import PiMnistTask
from experiments.tasks.skip_thoughts import SkipThoughtsTask

_ALL: tuple[Task, ...] = (
    OrderEmbeddingsTask(),
    AttentiveReaderTask(),
    SkipThoughtsTask(),
    DrawTask(),
    HandwritingTask(),
    PiMnistTask(),
)
TASKS: dict[str, Task] = {task.name: task for task in _ALL}
