"""Every reference algorithm on real ranks, over messages and over shared memory: verified element by element."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from collbench import algorithms
from collbench.collectives import COLLECTIVES, OPS
from collbench.dtypes import DTYPES
from collbench.suite import Axes, Case, expand

EXECUTORS = ("shm", "gloo")
QUICK = {"iters": 1, "max_seconds": 0.0, "min_seconds": 0.0}


def cases(collective: str, **axes: object) -> list[Case]:
    names = tuple(row.name for row in algorithms.of(collective))
    return expand(Axes(collectives=(collective,), algorithms=names, **axes))[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("backend", EXECUTORS)
def test_every_algorithm_is_right_for_odd_counts_and_fewer_elements_than_ranks(measure, backend: str, n: int) -> None:
    ran = set()
    for collective in COLLECTIVES:
        sizes = (8, 3 * 4, 4 * 1003 * n) if not COLLECTIVES[collective].total else (4 * n, 4 * 1003 * n)
        swept = cases(collective, backends=(backend,), ranks=(n,), sizes=sizes, roots=(n - 1,))
        for record in measure(swept, **QUICK) if swept else []:
            assert (record.status, record.note) == ("ok", record.note), record.case.key
            assert record.wrong == 0 if record.case.size else record.times_ns
            ran.add((collective, record.case.algorithm))
    wanted = {key for key in algorithms.catalogue() if not algorithms.find(*key).why_not(n)}
    assert ran == wanted
