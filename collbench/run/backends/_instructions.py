"""A compiled schedule as a table of instructions that one GPU kernel walks: int64 words, a list
for each channel of each rank. _kernel.py executes it, on memory whose addresses stand in a
second table, so that one tape serves all buffers of a case, in other processes' memory as in
this one's.

A channel is one block of threads. Channel c of C takes the c-th part of every cell, on all
ranks, and has a line of progress of its own: channels never touch each other's bytes and so need
not wait for each other. A channel's line on a rank (``line_bytes``) is its base, to which all
progress of a call is added, then a word for each rank: how far that one has said that it is.
Each word has one writer, and is only written where this rank waits for what is written.

An instruction begins with its head, one word of 31 bits: opcode, whether it is ``WIDE``, and from
bit ``LENGTH`` on how many words it takes in all, so that the next head can be on its way while an
instruction is executed. What follows the head:

    STOP     nothing; for a length, by how much a call raises the base
    WAIT     a pair for each peer: its rank, and the progress to wait for
    MOVE     elements, then pairs of (address, bytes past it): the target, and each of the terms
    PUBLISH  progress, then the rank of each peer that waits for it
    DIVIDE   elements, address, bytes past it, divisor

Addresses are numbers of the second table (``ADDRESSES`` of each rank: its banks, then its
lines). WIDE says that all operands begin and end on multiples of 16 bytes. What is written
before a WAIT may be read after it by any thread of the block, even where it waits for nobody.
The tape begins with the bytes of a line, and where each list begins and the last one ends.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from collbench.core.dtypes import OPS
from collbench.core.program import Action, Bank, Term
from collbench.run.backends._compiled import VECTOR, Compiled, Spot
from collbench.suite.case import Case

PIECE_BYTES = 8 << 10  # least of a cell for a channel of its own: a vector for each of 512 threads

LINES = len(Bank)  # a rank's last address: of its channels' lines

ADDRESSES = LINES + 1

WIDE, LENGTH = 8, 4  # in a head: a flag, and from which bit on its length stands

Words = NDArray[np.int64]


class Opcode(IntEnum):
    """The operation of an instruction on a tape."""

    STOP = 0
    WAIT = 1
    MOVE = 2
    PUBLISH = 3
    DIVIDE = 4


def line_bytes(n: int) -> int:
    """From one channel's line to the next: cache lines, so that no two channels share one."""
    return -(-8 * (1 + n) // 128) * 128


def count_channels(compiled: Compiled, most: int) -> int:
    """How many channels are worth their start: one for small messages, and never more than
    ``most``."""
    cell = compiled.row_bytes // compiled.schedule.width
    return max(1, min(most, cell // PIECE_BYTES))


def write_tape(
    case: Case, compiled: Compiled, ranks: Sequence[int], parts: int, bases: Words, most: int
) -> Words:
    """The tape of these ranks, with ``parts`` channels each. ``bases``, of shape (n, ADDRESSES), is
    only looked at for how addresses are aligned; ``most`` is how many peers an instruction can
    hold."""
    writer = _Writer(case, compiled, parts, bases, most)
    lists = (writer.instructions(rank, channel) for rank in ranks for channel in range(parts))
    return _assemble_tape(case.n, compiled.program.progress, lists)


def write_barrier(rank: int, n: int, most: int) -> Words:
    """The tape of a barrier, on one channel: everyone tells everyone else."""
    peers = [peer for peer in range(n) if peer != rank]
    pushes, waits = (
        _encode_pushes(1, peers, most),
        _encode_waits([(peer, 1) for peer in peers], most),
    )
    return _assemble_tape(n, 1, [[*pushes, *waits]])


def _assemble_tape(n: int, span: int, lists: Iterable[Iterable[int]]) -> Words:
    stop = span << LENGTH | Opcode.STOP
    lists_of_words = [
        np.fromiter(itertools.chain(words_of_list, (stop,)), np.int64) for words_of_list in lists
    ]
    ends = np.cumsum([2 + len(lists_of_words), *map(len, lists_of_words)])
    return np.concatenate([[line_bytes(n)], ends, *lists_of_words])


def _encode_instruction(flagged: int, *operands: int) -> tuple[int, ...]:
    return ((1 + len(operands)) << LENGTH | flagged, *operands)


def _encode_waits(peers: Sequence[tuple[int, int]], most: int) -> Iterator[int]:
    for at in range(0, max(1, len(peers)), most):
        yield from _encode_instruction(Opcode.WAIT, *itertools.chain(*peers[at : at + most]))


def _encode_pushes(progress: int, peers: Sequence[int], most: int) -> Iterator[int]:
    for at in range(0, len(peers), most):
        yield from _encode_instruction(Opcode.PUBLISH, progress, *peers[at : at + most])


class _Writer:
    def __init__(self, case: Case, compiled: Compiled, parts: int, bases: Words, most: int) -> None:
        self._case, self._compiled, self._parts, self._most = case, compiled, parts, most
        self._size = case.type.size
        self._grain = max(1, VECTOR // self._size)
        self._past = bases % VECTOR
        self._waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
        for rank, steps in enumerate(compiled.program.ranks):
            for awaited in itertools.chain(*(step.waits for step in steps)):
                self._waiting[awaited].append(rank)

    def instructions(self, rank: int, channel: int) -> Iterator[int]:
        for waits, actions, _, publish in self._compiled.program.ranks[rank]:
            moves = [word for action in actions for word in self._moves(rank, action, channel)]
            if waits or moves:
                yield from _encode_waits(waits, self._most)
            yield from moves
            yield from _encode_pushes(publish, self._waiting[rank, publish], self._most)
        yield from self._divisions(rank, channel)

    def _moves(self, rank: int, action: Action, channel: int) -> Iterator[int]:
        if not self._compiled.schedule.has_data:
            return
        bank, cell, cells, terms = action
        all_terms = (Term(rank, bank, cell), *terms)
        for spots in zip(*(self._spots(term, cells, channel) for term in all_terms), strict=True):
            places = [(term.rank, spot) for term, spot in zip(all_terms, spots, strict=True)]
            if places[1:] != places[:1]:
                for wide, operands in self._operands(places):
                    yield from _encode_instruction(Opcode.MOVE | wide, *operands)

    def _divisions(self, rank: int, channel: int) -> Iterator[int]:
        """The instructions that turn a rank's finished sums into means, once no other rank reads
        the sums any more."""
        output = self._compiled.output(rank)
        if (
            self._case.op not in OPS
            or not OPS[self._case.op].divides
            or output.stop == output.start
        ):
            return
        output_cells = self._compiled.schedule.output_cells(rank)
        yield from _encode_waits((), self._most)
        for spot in self._spots(
            Term(rank, Bank.OUTPUT, output_cells.start), len(output_cells), channel
        ):
            for wide, operands in self._operands([(rank, spot)]):
                yield from _encode_instruction(Opcode.DIVIDE | wide, *operands, self._case.n)

    def _spots(self, term: Term, cells: int, channel: int) -> Iterator[Spot]:
        """The byte ranges of a buffer that a term of a step names, for one channel."""
        return self._compiled.spots(term, cells, channel, self._parts, self._grain)

    def _operands(self, places: Sequence[tuple[int, Spot]]) -> Iterator[tuple[int, list[int]]]:
        """What an instruction on these bytes of ranks says, or two of them: one on all that moves
        wide, one on what is left; with its flag."""
        length = places[0][1].stop - places[0][1].start
        past = [int(self._past[rank, spot.bank]) + spot.start for rank, spot in places]
        wide = 0 if any(at % VECTOR for at in past) else length // VECTOR * VECTOR
        for low, high in ((0, wide), (wide, length)):
            if low < high:
                operands = [(high - low) // self._size]
                for rank, spot in places:
                    operands += (rank * ADDRESSES + spot.bank, spot.start + low)
                yield WIDE * (high == wide), operands
