"""A schedule made ready to run: for every rank, what it reads, combines and writes, and whom it
must wait for.

A step's reads see the state before the step, so nothing may be overwritten that is still to be
read. Cells therefore have several places: a rank's input and output buffer, and two banks of
scratch. A new value goes to its cell's output place if nobody reads that in this step, else to a
bank that is free. What remains are waits across steps: for a value to be there (its writer has
finished that step), and for an old one to have been read by all who do.

Progress of a rank, in one call: 0 before it enters, 1 once its input may be read, k + 2 after step
k.
"""

from __future__ import annotations

from collections import defaultdict
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from collbench.core.schedule import Moves, Schedule, list_defined, refuse_empty_reads


class Bank(IntEnum):
    """Where a cell's value lies. Places are numbered like the cells of the row, in every bank."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2
    SPARE = 3


class Term(NamedTuple):
    """``cells`` neighbouring places of a rank, to be read."""

    rank: int
    bank: Bank
    cell: int


class Action(NamedTuple):
    """Write to ``cells`` places from (bank, cell): the one term's values, or all terms' combined in
    their order."""

    bank: Bank
    cell: int
    cells: int
    terms: tuple[Term, ...]


class Send(NamedTuple):
    """Another rank reads ``cells`` of mine in this step."""

    to: int
    bank: Bank
    cell: int
    cells: int


class Step(NamedTuple):
    """What one rank does: wait for (rank, progress) pairs, act, and publish its own progress if
    anybody waits for it.

    ``sends`` is the other side of what its peers read from it, in the order in which each of them
    lists its terms.
    """

    waits: tuple[tuple[int, int], ...]
    actions: tuple[Action, ...]
    sends: tuple[Send, ...]
    publish: int


class Program(NamedTuple):
    """``ranks[r]`` is rank r's list of steps; the last only waits, until nobody reads from this
    rank any more.

    ``progress`` is the highest that any rank reaches, ``banks`` those that are written to.
    """

    ranks: list[list[Step]]
    progress: int
    banks: frozenset[Bank]


Place = tuple[Bank, int]


def compile_program(schedule: Schedule, in_place: bool, waits: bool = True) -> Program:
    """Compile for out-of-place or in-place buffers; in place, input and output are the same places.

    Without ``waits`` steps have none, for executors whose messages say when data is there. Raises
    WrongSchedule where a step reads what was never written.
    """
    refuse_empty_reads(schedule)
    chosen = _Lowering(schedule, in_place, frozenset())
    if chosen.copied:
        # start in scratch what otherwise ends there
        again = _Lowering(schedule, in_place, chosen.copied)
        chosen = again if len(again.copied) < len(chosen.copied) else chosen
    return _make_program(schedule.n, chosen.steps, _Clocks(schedule.n) if waits else None)


class _Lowering:
    """One pass: places for all values; ``steps`` has every rank's actions."""

    def __init__(
        self, schedule: Schedule, in_place: bool, away: frozenset[tuple[int, int]]
    ) -> None:
        self._schedule, self._in_place, self._away = schedule, in_place, away
        n = schedule.n
        self._outputs = [schedule.output_cells(rank) for rank in range(n)]
        self._at = [
            {cell: self._given(rank, cell) for cell in schedule.input_cells(rank)}
            for rank in range(n)
        ]
        self._written: set[tuple[int, int]] = set()
        self.steps = [self._actions(moves) for moves in schedule.steps()]
        self.steps.append(self._last_copies())

    def _given(self, rank: int, cell: int) -> Place:
        return (Bank.OUTPUT if self._in_place and cell in self._outputs[rank] else Bank.INPUT, cell)

    def _actions(self, moves: Moves) -> list[list[Action]]:
        """Every rank's actions in one step."""
        arriving: dict[tuple[int, int], list[Term]] = defaultdict(list)
        reduced: set[tuple[int, int]] = set()
        for src, dst, chunk, into, reduce in moves:
            arriving[dst, into].append(Term(src, *self._at[src][chunk]))
            if reduce:
                reduced.add((dst, into))
        read = {term for terms in arriving.values() for term in terms}
        actions: list[list[Action]] = [[] for _ in range(self._schedule.n)]
        placed: list[tuple[int, int, Place]] = []
        for (dst, into), terms in arriving.items():
            if (dst, into) in reduced:
                terms.append(Term(dst, *self._at[dst][into]))
            location = self._choose(dst, into, read)
            own_term = Term(dst, *location)
            # in rank order, so that all ranks round alike; but what is overwritten must be the
            # first to be read
            terms.sort(key=lambda term: (term != own_term, term.rank))
            actions[dst].append(Action(*location, 1, tuple(terms)))
            placed.append((dst, into, location))
        for dst, into, location in placed:
            self._at[dst][into] = location
            self._written.add((dst, into))
        return [
            self._turned(rank, _join_actions(rank_actions))
            for rank, rank_actions in enumerate(actions)
        ]

    def _turned(self, rank: int, actions: list[Action]) -> list[Action]:
        """Copies from the next rank first, so that not all ranks ask the same one at once."""
        n = self._schedule.n
        return sorted(
            actions, key=lambda a: (a.terms[0].rank - rank) % n if len(a.terms) == 1 else 0
        )

    def _choose(self, rank: int, cell: int, read: set[Term]) -> Place:
        banks = [Bank.OUTPUT] if cell in self._outputs[rank] else []
        if (rank, cell) in self._away and (rank, cell) not in self._written:
            banks = []
        places = [(bank, cell) for bank in (*banks, Bank.SCRATCH, Bank.SPARE)]
        return next(location for location in places if Term(rank, *location) not in read)

    def _last_copies(self) -> list[list[Action]]:
        """Results that are not in their output place yet."""
        actions: list[list[Action]] = [[] for _ in range(self._schedule.n)]
        is_defined = list_defined(self._schedule.row, self._schedule.n, self._schedule.root)
        self.copied = frozenset(
            (rank, cell)
            for rank, cells in enumerate(self._outputs)
            if is_defined[rank]
            for cell in cells
            if self._at[rank].get(cell, (Bank.OUTPUT, cell)) != (Bank.OUTPUT, cell)
        )
        for rank, cell in sorted(self.copied):
            actions[rank].append(Action(Bank.OUTPUT, cell, 1, (Term(rank, *self._at[rank][cell]),)))
        return [_join_actions(rank_actions) for rank_actions in actions]


def _join_actions(actions: list[Action]) -> list[Action]:
    """Actions on neighbouring places joined where all their terms are neighbours too."""
    merged: list[Action] = []
    for action in sorted(actions, key=lambda a: ([t[:2] for t in a.terms], a.bank, a.cell)):
        last = merged[-1] if merged else None
        if last and _is_neighbour(last, action):
            merged[-1] = last._replace(cells=last.cells + 1)
        else:
            merged.append(action)
    return merged


def _is_neighbour(last: Action, action: Action) -> bool:
    """Whether ``action`` goes on where ``last`` ends, in the buffer that is written and in all that
    are read, so that the two are one."""
    if (last.bank, last.cell + last.cells, len(last.terms)) != (
        action.bank,
        action.cell,
        len(action.terms),
    ):
        return False
    return all(
        (a.rank, a.bank, a.cell + last.cells) == tuple(b)
        for a, b in zip(last.terms, action.terms, strict=True)
    )


class _Clocks:
    """Who waits for whose progress, less what follows from what the awaited rank had waited for
    itself."""

    def __init__(self, n: int) -> None:
        # row: the progress of each that this rank can count on
        self._progress = np.eye(n, dtype=np.int32)
        self._at = {1: self._progress.copy()}
        self.awaited: set[tuple[int, int]] = set()

    def wait(self, rank: int, needs: dict[int, int]) -> tuple[tuple[int, int], ...]:
        waits = []
        for peer, progress in sorted(needs.items(), key=lambda need: -need[1]):
            if self._progress[rank, peer] < progress:
                waits.append((peer, progress))
                self.awaited.add((peer, progress))
                np.maximum(self._progress[rank], self._at[progress][peer], out=self._progress[rank])
        return tuple(waits)

    def tick(self, progress: int) -> None:
        """Note that all ranks have come to ``progress``, though not at the same time."""
        np.fill_diagonal(self._progress, progress)
        self._at[progress] = self._progress.copy()


class _Uses:
    """When each place was last written, and read since, in progress of the ranks that did."""

    def __init__(self) -> None:
        self._written: dict[Term, int] = {}
        self._readers: dict[Term, dict[int, int]] = defaultdict(dict)

    def needs(self, rank: int, actions: list[Action]) -> dict[int, int]:
        """The progress that other ranks must have made before ``rank`` may do ``actions``, by rank:
        the values that it reads are written, and the values that it overwrites have been read."""
        needs: dict[int, int] = {}
        for bank, cell, cells, terms in actions:
            for location in (location for term in terms for location in _list_terms(term, cells)):
                needs[location.rank] = max(
                    needs.get(location.rank, 0), self._written.get(location, 1)
                )
            for location in _list_terms(Term(rank, bank, cell), cells):
                for reader, when in self._readers[location].items():
                    needs[reader] = max(needs.get(reader, 0), when)
        needs.pop(rank, None)
        return needs

    def note(self, actions: list[list[Action]], progress: int) -> None:
        """A step has been taken."""
        for rank, rank_actions in enumerate(actions):
            for _, _, cells, terms in rank_actions:
                for location in (
                    location for term in terms for location in _list_terms(term, cells)
                ):
                    self._readers[location][rank] = progress
        for rank, rank_actions in enumerate(actions):
            for bank, cell, cells, _ in rank_actions:
                for location in _list_terms(Term(rank, bank, cell), cells):
                    self._readers[location], self._written[location] = {}, progress


def _make_program(n: int, steps: list[list[list[Action]]], clocks: _Clocks | None) -> Program:
    """The program of n ranks from their actions by step; with ``clocks`` it also has the waits by
    which ranks need no other synchronisation."""
    uses = _Uses()
    last: list[dict[int, int]] = [
        {} for _ in range(n)
    ]  # per rank, of each peer once it has read from it for good
    ranks = [[Step((), (), (), 1)] for _ in range(n)]
    for progress, actions in enumerate(steps, 2):
        sends: list[list[Send]] = [[] for _ in range(n)]
        for rank, rank_actions in enumerate(actions):
            for _, _, cells, terms in rank_actions:
                for term in (term for term in terms if term.rank != rank):
                    sends[term.rank].append(Send(rank, term.bank, term.cell, cells))
                    last[term.rank][rank] = progress
        waits = [
            clocks.wait(rank, uses.needs(rank, rank_actions)) if clocks else ()
            for rank, rank_actions in enumerate(actions)
        ]
        if clocks:
            clocks.tick(progress)
            uses.note(actions, progress)
        for rank in range(n):
            ranks[rank].append(
                Step(waits[rank], tuple(actions[rank]), tuple(sends[rank]), progress)
            )
    if clocks:
        for rank in range(n):
            ranks[rank].append(Step(clocks.wait(rank, last[rank]), (), (), 0))
    awaited = clocks.awaited if clocks else set()
    banks = frozenset(
        action.bank for step in steps for rank_actions in step for action in rank_actions
    )
    return Program(
        [_select_steps(rank_steps, rank, awaited) for rank, rank_steps in enumerate(ranks)],
        len(steps) + 1,
        banks,
    )


def _list_terms(first: Term, cells: int) -> list[Term]:
    return [first._replace(cell=first.cell + k) for k in range(cells)]


def _select_steps(steps: list[Step], rank: int, awaited: set[tuple[int, int]]) -> list[Step]:
    """Steps in which something happens, publishing only what somebody waits for."""
    steps = [
        step if (rank, step.publish) in awaited else step._replace(publish=0) for step in steps
    ]
    return [step for step in steps if any(step)]
