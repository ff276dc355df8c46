"""Orders of additions, as real ranks of executors and libraries have them: found, proved, repeated;
and planted changes of them, which are seen."""

from __future__ import annotations

import importlib.util

import pytest

from collbench.core.algorithms import find_variant, list_algorithms
from collbench.core.sums.symbolic import find_orders as trace_orders
from collbench.features.order.findings import SizeOrder
from collbench.features.order.request import SumOrder

REDUCING = ("all_reduce", "reduce", "reduce_scatter", "scan")
HAS_MPI = importlib.util.find_spec("mpi4py") is not None
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="no mpi4py here: pip install 'collbench[mpi]'")
ONCE = {"places": ("out",), "shifts": (0,), "repeats": 0, "bisect": False}


def order(collective: str, n: int, *sizes: int, **values: object) -> SumOrder:
    root = 0 if collective == "reduce" else -1
    return SumOrder(collective=collective, world=n, sizes=sizes, **{"root": root, **values})  # type: ignore[arg-type]


def list_trees(size: SizeOrder) -> dict[int, list[str]]:
    """By rank, the trees along its output."""
    return {rank: [p.tree for p in group.pieces] for group in size.ranks for rank in group.ranks}


def trace_trees(collective: str, algorithm: str, n: int) -> dict[int, list[str]]:
    """The same of a reference algorithm, by its schedule."""
    traced = trace_orders(find_variant(collective, algorithm).schedule(n))
    return {
        rank: [str(run.tree) for run in runs]
        for rank, runs in enumerate(traced)
        if runs is not None
    }


# reference algorithms


def list_references(n: int) -> list[tuple[SumOrder, str]]:
    """An order of each reference algorithm that adds, some elements to each of its cells."""
    return [
        (order(collective, n, 4 * 480 * n, **ONCE), row.name)
        for collective in REDUCING
        for row in list_algorithms(collective)
        if not find_variant(collective, row.name).refuse(n)
    ]


def check_references(find_orders, asked: list[tuple[SumOrder, str]], backend: str) -> None:
    found = find_orders(*asked, backend=backend)
    assert len(found) == len(asked)
    for (subject, algorithm), findings in zip(asked, found, strict=True):
        (size,) = findings.sizes
        what = f"{subject.collective} {algorithm}"
        expected = trace_trees(subject.collective, algorithm, subject.world)
        assert (what, list_trees(size)) == (what, expected)
        assert (what, size.proof.right) == (what, size.proof.of)
        assert (what, size.attempts) == (what, 1)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_references_on_shared_memory_add_as_their_schedules_say(find_orders, n: int) -> None:
    check_references(find_orders, list_references(n), "shm")
