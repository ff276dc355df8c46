"""The orders in which reference algorithms add, as lines of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from collbench.core.algorithms import Variant
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.core.schedule import Schedule
from collbench.core.sums.names import MAX_REFERENCE_RANKS, describe_order
from collbench.core.sums.symbolic import TreeRun, find_orders
from collbench.features.study.order_drawing import format_ranks

HEADS = ("algorithm", "n", "ranks", "chunks", "order")

Row = tuple[str, ...]


def refuse_too_many(numbers: Sequence[int]) -> None:
    """Raise UsageError for more ranks than trees are made of in seconds."""
    if max(numbers) > MAX_REFERENCE_RANKS:
        raise UsageError(
            f"-n: the trees of {max(numbers)} ranks are too many",
            f"at most {MAX_REFERENCE_RANKS} with --orders",
        )


def list_rows(variant: Variant, numbers: Iterable[int], root: int) -> list[Row]:
    """A row for each tree along the outputs of an algorithm, chunks in order, ranks with the same
    outputs together; none for numbers of ranks, or a root, that it does not run with."""
    is_rooted = COLLECTIVES[variant.algorithm.collective].rooted
    rows: list[Row] = []
    for n in numbers:
        if n > 1 and not variant.refuse(n) and root < (n if is_rooted else 1):
            rows += _list_schedule_rows(variant.schedule(n, root))
    return rows


def _list_schedule_rows(schedule: Schedule) -> list[Row]:
    outputs: dict[tuple[TreeRun, ...], list[int]] = {}
    for rank, found in enumerate(find_orders(schedule)):
        if found:
            outputs.setdefault(tuple(found), []).append(rank)
    rows: list[Row] = []
    for runs, ranks in outputs.items():
        chunk = 0
        for run in runs:
            last = chunk + run.length - 1
            chunks = str(chunk) if last == chunk else f"{chunk}-{last}"
            where = (schedule.name, str(schedule.n), format_ranks(ranks), chunks)
            rows.append((*where, describe_order(run.tree, schedule.n)))
            chunk = last + 1
    return rows
