"""The order in which a schedule adds: its moves run over trees in place of numbers.

What meets in a cell in one step is added in the order of the ranks that hold it, the cell's own
among them, so that all ranks round alike. So do executors (core.program); but where the sum takes
the place of the cell's own value, as in place, that comes first.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

from collbench.core.schedule import Moves, Schedule, expect_outputs
from collbench.core.sums.trees import SumTree, add_trees, make_leaf

Cell = tuple[int, int]  # a rank, and a cell of its row


class TreeRun(NamedTuple):
    """Neighbouring elements of an output that are added alike, ``length`` of them."""

    tree: SumTree
    length: int


def find_orders(schedule: Schedule) -> list[list[TreeRun] | None]:
    """By rank, the trees along its output, lengths in cells; None where the output is undefined."""
    state = {
        (rank, cell): make_leaf(rank)
        for rank in range(schedule.n)
        for cell in schedule.input_cells(rank)
    }
    for moves in schedule.steps():
        state |= _add_moves(moves, state)
    defined = expect_outputs(schedule.row, schedule.n, schedule.root, schedule.cells)
    return [
        None
        if defined[rank] is None
        else join_runs([TreeRun(state[rank, cell], 1) for cell in schedule.output_cells(rank)])
        for rank in range(schedule.n)
    ]


def _add_moves(moves: Moves, state: Mapping[Cell, SumTree]) -> dict[Cell, SumTree]:
    """What a step puts into cells."""
    meeting: dict[Cell, dict[int, SumTree]] = {}
    for src, dst, chunk, into, reduce in moves:
        found = meeting.setdefault((dst, into), {})
        found[src] = state[src, chunk]
        if reduce:
            found[dst] = state[dst, into]
    return {
        cell: functools.reduce(add_trees, (tree for _, tree in sorted(found.items())))
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
