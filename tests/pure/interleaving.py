"""Ranks as generators in one process, taking turns in any order."""

from __future__ import annotations

import random
from collections.abc import Iterator


def finish(lives: dict[int, Iterator[bool]], rng: random.Random, patience: int) -> bool:
    """Run all to their end, a few moves of one at a time; False if they wait for each other instead.

    A life yields whether it got anywhere; ``patience`` is how many moves in a row may all be in vain.
    """
    stuck = 0
    while lives:
        rank = rng.choice(list(lives))
        for _ in range(rng.choice((1, 1, 3, 100))):
            moved = next(lives[rank], None)
            if moved is None:
                del lives[rank]
            stuck = 0 if moved is not False else stuck + 1
            if not moved:
                break
        if stuck > patience:
            return False
    return True
