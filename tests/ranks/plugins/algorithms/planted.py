"""A family of one: an all-reduce down a line of ranks and back."""

from collbench.core.algorithms import Algorithm
from collbench.core.schedule import Moves


def line(n, cells):
    for rank in reversed(range(1, n)):
        yield Moves(rank, rank - 1, reduce=True)
    for rank in range(1, n):
        yield Moves(rank - 1, rank)


ALGORITHMS = (Algorithm("line", "all_reduce", line, "none"),)
