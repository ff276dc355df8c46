"""A schedule made ready to run: for every rank, what it reads, combines and writes, and whom it must wait for.

A step's reads see the state before the step, so nothing may be overwritten that is still to be read. Cells therefore
have several places: a rank's input and output buffer, and two banks of scratch. A new value goes to its cell's output
place if nobody reads that in this step, else to a bank that is free. What remains are waits across steps: for a value
to be there (its writer has finished that step), and for an old one to have been read by all who do.

Progress of a rank, in one call: 0 before it enters, 1 once its input may be read, k + 2 after step k.
"""

from __future__ import annotations

from collections import defaultdict
from enum import IntEnum
from typing import NamedTuple

from collbench.schedule import Moves, Schedule


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
    """Write to ``cells`` places from (bank, cell): the one term's values, or all terms' combined in their order."""

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
    """What one rank does: wait for (rank, progress) pairs, act, and publish its own progress if anybody waits for it.

    ``sends`` is the other side of what its peers read from it, in the order in which each of them lists its terms.
    """

    waits: tuple[tuple[int, int], ...]
    actions: tuple[Action, ...]
    sends: tuple[Send, ...]
    publish: int


class Program(NamedTuple):
    """``ranks[r]`` is rank r's list of steps; the last only waits, until nobody reads from this rank any more.

    ``progress`` is the highest that any rank reaches, ``banks`` those that are written to.
    """

    ranks: list[list[Step]]
    progress: int
    banks: frozenset[Bank]


Place = tuple[Bank, int]


def lower(schedule: Schedule, in_place: bool) -> Program:
    """Compile for out-of-place or in-place buffers; in place, input and output are the same places."""
    first = _Lowering(schedule, in_place, frozenset())
    if not first.copied:
        return first.program
    second = _Lowering(schedule, in_place, first.copied)  # start in scratch what otherwise ends there
    return second.program if len(second.copied) < len(first.copied) else first.program


class _Lowering:
    """One pass: places for all values, then waits."""

    def __init__(self, schedule: Schedule, in_place: bool, away: frozenset[tuple[int, int]]) -> None:
        self._schedule, self._in_place, self._away = schedule, in_place, away
        n = schedule.n
        self._outputs = [schedule.output_cells(rank) for rank in range(n)]
        self._at = [{cell: self._given(rank, cell) for cell in schedule.input_cells(rank)} for rank in range(n)]
        self._written: set[tuple[int, int]] = set()
        steps = [self._actions(moves) for moves in schedule.steps()]
        steps.append(self._last_copies())
        self.program = _with_waits(n, steps)

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
            place = self._choose(dst, into, read)
            own = Term(dst, *place)
            # in rank order, so that all ranks round alike; but what is overwritten must be the first to be read
            terms.sort(key=lambda term: (term != own, term.rank))
            actions[dst].append(Action(*place, 1, tuple(terms)))
            placed.append((dst, into, place))
        for dst, into, place in placed:
            self._at[dst][into] = place
            self._written.add((dst, into))
        return [_joined(mine) for mine in actions]

    def _choose(self, rank: int, cell: int, read: set[Term]) -> Place:
        banks = [Bank.OUTPUT] if cell in self._outputs[rank] else []
        if (rank, cell) in self._away and (rank, cell) not in self._written:
            banks = []
        places = [(bank, cell) for bank in (*banks, Bank.SCRATCH, Bank.SPARE)]
        return next(place for place in places if Term(rank, *place) not in read)

    def _last_copies(self) -> list[list[Action]]:
        """Results that are not in their output place yet."""
        actions: list[list[Action]] = [[] for _ in range(self._schedule.n)]
        self.copied = frozenset(
            (rank, cell) for rank, cells in enumerate(self._outputs) for cell in cells
            if self._at[rank].get(cell, (Bank.OUTPUT, cell)) != (Bank.OUTPUT, cell)
        )  # fmt: skip
        for rank, cell in sorted(self.copied):
            actions[rank].append(Action(Bank.OUTPUT, cell, 1, (Term(rank, *self._at[rank][cell]),)))
        return [_joined(mine) for mine in actions]


def _joined(actions: list[Action]) -> list[Action]:
    """Actions on neighbouring places joined where all their terms are neighbours too."""
    joined: list[Action] = []
    for action in sorted(actions, key=lambda a: ([t[:2] for t in a.terms], a.bank, a.cell)):
        last = joined[-1] if joined else None
        if last and _follows(last, action):
            joined[-1] = last._replace(cells=last.cells + 1)
        else:
            joined.append(action)
    return joined


def _follows(last: Action, action: Action) -> bool:
    if (last.bank, last.cell + last.cells, len(last.terms)) != (action.bank, action.cell, len(action.terms)):
        return False
    return all((a.rank, a.bank, a.cell + last.cells) == tuple(b) for a, b in zip(last.terms, action.terms, strict=True))


class _Clocks:
    """Who waits for whose progress, less what follows from what the awaited rank had waited for itself."""

    def __init__(self, n: int) -> None:
        self._known = [[int(peer == rank) for peer in range(n)] for rank in range(n)]  # progress to count on
        self._at = {(rank, 1): list(known) for rank, known in enumerate(self._known)}
        self.awaited: set[tuple[int, int]] = set()

    def wait(self, rank: int, needs: dict[int, int]) -> tuple[tuple[int, int], ...]:
        waits = []
        for peer, progress in sorted(needs.items(), key=lambda need: -need[1]):
            if self._known[rank][peer] < progress:
                waits.append((peer, progress))
                self.awaited.add((peer, progress))
                pairs = zip(self._known[rank], self._at[peer, progress], strict=True)
                self._known[rank] = [max(pair) for pair in pairs]
        return tuple(waits)

    def tick(self, progress: int) -> None:
        """All ranks have come to the same progress (which is not to say at the same time)."""
        for rank, known in enumerate(self._known):
            known[rank] = progress
            self._at[rank, progress] = list(known)


def _with_waits(n: int, steps: list[list[list[Action]]]) -> Program:
    written: dict[Term, int] = {}  # progress of its rank once a place has its present value
    readers: dict[Term, dict[int, int]] = defaultdict(dict)  # progress of each rank that reads it, once it has
    last: list[dict[int, int]] = [{} for _ in range(n)]  # per rank, of each peer once it has read from it for good
    clocks = _Clocks(n)
    ranks = [[Step((), (), (), 1)] for _ in range(n)]
    for progress, actions in enumerate(steps, 2):
        sends: list[list[Send]] = [[] for _ in range(n)]
        read, fresh = [], []
        waits = []
        for rank, mine in enumerate(actions):
            needs: dict[int, int] = {}
            for bank, cell, cells, terms in mine:
                for term in terms:
                    for place in _places(term, cells):
                        read.append((place, rank))
                        needs[term.rank] = max(needs.get(term.rank, 0), written.get(place, 1))
                    if term.rank != rank:
                        sends[term.rank].append(Send(rank, term.bank, term.cell, cells))
                        last[term.rank][rank] = progress
                for place in _places(Term(rank, bank, cell), cells):
                    fresh.append(place)
                    for reader, when in readers[place].items():
                        needs[reader] = max(needs.get(reader, 0), when)
            needs.pop(rank, None)
            waits.append(clocks.wait(rank, needs))
        clocks.tick(progress)
        for place, rank in read:
            readers[place][rank] = progress
        for place in fresh:
            readers[place], written[place] = {}, progress
        for rank in range(n):
            ranks[rank].append(Step(waits[rank], tuple(actions[rank]), tuple(sends[rank]), progress))
    for rank in range(n):
        ranks[rank].append(Step(clocks.wait(rank, last[rank]), (), (), 0))
    banks = frozenset(action.bank for step in steps for mine in step for action in mine)
    return Program([_needed(mine, rank, clocks.awaited) for rank, mine in enumerate(ranks)], len(steps) + 1, banks)


def _places(first: Term, cells: int) -> list[Term]:
    return [first._replace(cell=first.cell + k) for k in range(cells)]


def _needed(steps: list[Step], rank: int, awaited: set[tuple[int, int]]) -> list[Step]:
    """Steps in which something happens, publishing only what somebody waits for."""
    steps = [step if (rank, step.publish) in awaited else step._replace(publish=0) for step in steps]
    return [step for step in steps if any(step)]
