"""The order in which a schedule adds: its moves run over trees in place of numbers."""

from __future__ import annotations

from typing import NamedTuple

from collbench.core.schedule import Schedule, expect_outputs, run_schedule
from collbench.core.sums.trees import SumTree, add_trees, make_leaf


class TreeRun(NamedTuple):
    """Neighbouring elements of an output that are added alike, ``length`` of them."""

    tree: SumTree
    length: int


def find_orders(schedule: Schedule) -> list[list[TreeRun] | None]:
    """By rank, the trees along its output, lengths in cells; None where the output is undefined.
    Several reducing moves into one cell add in the order in which they are listed."""
    inputs = [[make_leaf(rank)] * len(schedule.input_cells(rank)) for rank in range(schedule.n)]
    for state in run_schedule(schedule, inputs, add_trees):
        last = state
    row = schedule.row
    defined = expect_outputs(row, schedule.n, schedule.root, schedule.cells)
    return [
        None
        if defined[rank] is None
        else join_runs([TreeRun(last[rank, cell], 1) for cell in schedule.output_cells(rank)])
        for rank in range(schedule.n)
    ]


def join_runs(runs: list[TreeRun]) -> list[TreeRun]:
    """The same runs, those that follow one of the same tree joined to it."""
    joined: list[TreeRun] = []
    for run in runs:
        if joined and joined[-1].tree == run.tree:
            joined[-1] = TreeRun(run.tree, joined[-1].length + run.length)
        else:
            joined.append(run)
    return joined
