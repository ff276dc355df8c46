"""A case's algorithm, compiled for its executors: the program, and which bytes of which buffer each
place is."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from collbench.core import algorithms, splits
from collbench.core.program import Bank, Program, Term, compile_program
from collbench.core.schedule import Schedule
from collbench.suite.case import Case

VECTOR = 16  # bytes that a GPU's thread moves at once


class Spot(NamedTuple):
    """Bytes ``start .. stop`` of a bank."""

    bank: Bank
    start: int
    stop: int


class Compiled:
    """One case's program, and its geometry in bytes.

    ``halfway`` is alpha / beta of what it runs on, the bytes that take as long as a message's
    latency: default segment counts go by it. ``waits`` are worked out for executors without
    messages. Cells are equal parts of a block, to one element, or from 1 KiB each to 16 bytes,
    which GPUs move at once; with fewer elements than cells some are empty.
    """

    def __init__(self, case: Case, halfway: float, waits: bool) -> None:
        variant = algorithms.find_variant(case.collective, case.algorithm)
        parameters = tuple(variant.resolved(case.n, case.size / halfway).items())
        self.schedule, self.program = _compile_schedule(
            case.collective,
            variant.algorithm.name,
            parameters,
            case.n,
            case.root,
            case.in_place,
            waits,
        )
        self.name = self.schedule.name
        self._size, self._count, self._cells = case.type.size, case.count, self.schedule.cells
        fine = self._count // self._cells * self._size < 1024
        self._grain = 1 if fine else VECTOR // self._size
        self._starts = None  # of an uneven row's cells, and its end, per rank
        if case.splits:
            self._starts = [
                list(itertools.accumulate(row, initial=0))
                for row in splits.block_lengths(case.matrix).tolist()
            ]

    @functools.cached_property
    def row_bytes(self) -> int:
        """Length of the longest rank's row, which is that of every rank's scratch banks."""
        if not self.schedule.has_data:
            return 0
        return (
            max(self._ends(rank, self.schedule.width - 1)[1] for rank in range(self.schedule.n))
            * self._size
        )

    def spots(
        self, first: Term, cells: int, part: int = 0, parts: int = 1, grain: int = 1
    ) -> Iterator[Spot]:
        """The spots at which ``cells`` neighbouring cells lie, from ``first`` on. With several
        parts, the ``part``-th part of each cell, which is cut at multiples of ``grain``
        elements."""
        places = {Bank.INPUT: self.schedule.input_cells, Bank.OUTPUT: self.schedule.output_cells}
        whose = places.get(first.bank)
        origin = self._ends(first.rank, whose(first.rank).start)[0] if whose else 0
        edges = [self._ends(first.rank, first.cell + k) for k in range(cells)]
        if parts == 1:
            edges = [(edges[0][0], edges[-1][1])]
        for start, stop in edges:
            length = stop - start
            cuts = [
                length if k == parts else length * k // parts // grain * grain
                for k in (part, part + 1)
            ]
            low, high = (start + cut - origin for cut in cuts)
            yield Spot(first.bank, low * self._size, high * self._size)

    def output(self, rank: int) -> Spot:
        """All of a rank's output, empty where its content is undefined."""
        cells = self.schedule.output_cells(rank)
        (spot,) = self.spots(Term(rank, Bank.OUTPUT, cells.start), len(cells))
        undefined = self.schedule.row.reduces and self.schedule.root not in (-1, rank)
        return spot._replace(stop=spot.start) if undefined else spot

    def _ends(self, rank: int, cell: int) -> tuple[int, int]:
        """The begin and the end of a cell in its rank's row, in elements."""
        if self._starts is not None:
            return self._starts[rank][cell], self._starts[rank][cell + 1]
        block, piece = divmod(cell, self._cells)
        low, high = (self._cut(piece + k) for k in (0, 1))
        return block * self._count + low, block * self._count + high

    def _cut(self, cells: int) -> int:
        """The element of a block at which its first ``cells`` cells end."""
        return (
            self._count
            if cells == self._cells
            else cells * self._count // self._cells // self._grain * self._grain
        )


@functools.lru_cache(maxsize=64)
def _compile_schedule(
    collective: str,
    algorithm: str,
    parameters: tuple[tuple[str, int], ...],
    n: int,
    root: int,
    in_place: bool,
    waits: bool,
) -> tuple[Schedule, Program]:
    row = algorithms.list_catalogue()[collective, algorithm]
    schedule = algorithms.Variant(row, parameters).schedule(n, root)
    return schedule, compile_program(schedule, in_place, waits)
