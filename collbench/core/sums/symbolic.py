"""The order in which a schedule adds: its moves run over trees in place of numbers.

What several moves bring to a cell in one step is added to its own value in the order in which they
are listed. Executors (core.program) add in the order of the ranks that hold it, the cell's own
among them, so that all ranks round alike; but where the sum takes the place of the cell's own
value, as it often can in place, as listed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from operator import itemgetter
from typing import NamedTuple

from collbench.core.schedule import Moves, Schedule, expect_outputs, refuse_empty_reads
from collbench.core.sums.trees import SumTree, add_trees, make_leaf

Cell = tuple[int, int]  # a rank, and a cell of its row


class TreeRun(NamedTuple):
    """Neighbouring elements of an output that are added alike, ``length`` of them."""

    tree: SumTree
    length: int


def find_orders(schedule: Schedule, by_rank: bool = False) -> list[list[TreeRun] | None]:
    """By rank, the trees along its output, lengths in cells; None where the output is undefined.
    What meets in a cell is added as listed, or ``by_rank``. Raises WrongSchedule where a step or
    the result reads a cell that holds nothing."""
    refuse_empty_reads(schedule, True)
    state = {
        (rank, cell): make_leaf(rank)
        for rank in range(schedule.n)
        for cell in schedule.input_cells(rank)
    }
    for moves in schedule.steps():
        state |= _add_moves(moves, state, by_rank)
    defined = expect_outputs(schedule.row, schedule.n, schedule.root, schedule.cells)
    return [
        None
        if defined[rank] is None
        else join_runs([TreeRun(state[rank, cell], 1) for cell in schedule.output_cells(rank)])
        for rank in range(schedule.n)
    ]


def _add_moves(moves: Moves, state: Mapping[Cell, SumTree], by_rank: bool) -> dict[Cell, SumTree]:
    """What a step puts into cells."""
    meeting: dict[Cell, list[tuple[int, SumTree]]] = {}
    for src, dst, chunk, into, reduce in moves:
        own = [(dst, state[dst, into])] if reduce else []
        meeting.setdefault((dst, into), own).append((src, state[src, chunk]))
    if by_rank:
        meeting = {cell: sorted(found, key=itemgetter(0)) for cell, found in meeting.items()}
    return {
        cell: functools.reduce(add_trees, (tree for _, tree in found))
        for cell, found in meeting.items()
    }


def join_runs(runs: list[TreeRun]) -> list[TreeRun]:
    """The same runs, those that follow one of the same tree joined to it."""
    joined: list[TreeRun] = []
    for run in runs:
        if joined and joined[-1].tree == run.tree:
            joined[-1] = TreeRun(run.tree, joined[-1].length + run.length)
        else:
            joined.append(run)
    return joined
