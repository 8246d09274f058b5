"""Random words in the sizes of the published questions (section 6.2): for timing a step, never for a result.

``top4`` has 65,829 words; its passages have a few hundred words at most. Here all have ``PASSAGE`` of them, besides the
last one, which the authors' code drops.
"""

from __future__ import annotations

import numpy as np

from data.cloze_pack import FIRST_WORD, Questions

WORDS, ENTITIES = 65_828, 600  # with padding and the unknown word 65,830 ids, as the published model has
PASSAGE, QUERY = 300, 15
SIZES = {"train": 1280, "valid": 128, "test": 128}


def vocabulary() -> list[str]:
    """Entity markers, then words without a meaning."""
    return [f"@entity{n}" for n in range(ENTITIES)] + [f"word{n}" for n in range(WORDS - ENTITIES)]


def questions(split: str) -> Questions:
    """The questions of one split; the same ones each time."""
    random, count = np.random.RandomState(sorted(SIZES).index(split)), SIZES[split]

    def words(length: int) -> tuple[np.ndarray, np.ndarray]:
        ids = random.randint(FIRST_WORD, FIRST_WORD + WORDS, count * (length + 1)).astype(np.int32)
        return ids, np.arange(count + 1, dtype=np.int64) * (length + 1)

    answers = random.randint(FIRST_WORD, FIRST_WORD + ENTITIES, count).astype(np.int32)
    return Questions(*words(PASSAGE), *words(QUERY), answers)
