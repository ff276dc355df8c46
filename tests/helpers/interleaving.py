"""Ranks as generators in one process, taking turns in any order; and what they run."""

from __future__ import annotations

import random
from collections.abc import Iterator

from collbench.core import algorithms
from collbench.core.collectives import COLLECTIVES
from collbench.suite.case import Case


def finish(lives: dict[int, Iterator[bool]], rng: random.Random, patience: int) -> bool:
    """Run all to their end, a few moves of one at a time; False if they wait for each other
    instead.

    A life yields whether it got anywhere; ``patience`` is how many moves in a row may all be in
    vain.
    """
    stuck, left = 0, [*lives.values()]
    while left:
        place = int(rng.random() * len(left))
        for _ in range((1, 1, 3, 100)[int(rng.random() * 4)]):
            moved = next(left[place], None)
            if moved is None:
                del left[place]
            stuck = 0 if moved is not False else stuck + 1
            if not moved:
                break
        if stuck > patience:
            return False
    return True


def cases(
    backend: str, n: int, nbytes: int, dtype: str, in_place_op: str = "sum"
) -> Iterator[Case]:
    """Every algorithm that moves data in even blocks, of ``nbytes`` each, out of place and in
    place."""
    for name, algorithm in algorithms.list_catalogue():
        row = COLLECTIVES[name]
        if name in ("barrier", "all_to_allv") or algorithms.find_variant(name, algorithm).refuse(n):
            continue
        for in_place in (False, True) if row.in_place else (False,):
            yield Case(
                collective=name,
                backend=backend,
                n=n,
                nbytes=nbytes * (n if row.total else 1),
                dtype=dtype,
                algorithm=algorithm,
                op=(in_place_op if in_place else "sum") if row.reduces else "none",
                root=n - 1 if row.rooted else -1,
                in_place=in_place,
            )
