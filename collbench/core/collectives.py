"""The one table that says what each collective means.

Everything else asks this table: how many elements a rank sends and receives, what ends up where
(``result``), how busbw follows from algbw, what no algorithm can beat, and which buffers may be
shared in place. Sizes follow nccl-tests: ``size`` is the whole for all_gather, reduce_scatter,
all_to_all, gather and scatter, and the per-rank buffer for the rest; ``count`` is the element count
handed to the library call.

Bounds are those of Chan, Heimlich, Purkayastha and van de Geijn (2007) for one-port, full-duplex,
point-to-point networks: ``T >= max(a*alpha, b*beta*S, g*gamma*S)`` with S the size in bytes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from collbench.core.errors import UsageError
from collbench.core.feature import load_entries

Values = Any  # a numpy array (of numbers or of any objects), or a list of blocks for all_to_allv

Combine = Callable[[Any, Any], Any]

Result = Callable[[Sequence[Values], Combine, int], Sequence[Any]]


class Bound(NamedTuple):
    """Lower bound, each component on its own: messages, bytes and reduced bytes as multiples of the
    size."""

    alpha: float
    beta: float
    gamma: float


class Hosts(NamedTuple):
    """How many ``ranks`` there are, on what ``number`` of hosts: the ``fewest`` on one, and those
    on the ``root``'s."""

    ranks: int
    number: int
    fewest: int
    root: int


class Collective(NamedTuple):
    """One row of the table.

    ``result(inputs, op, root)`` maps every rank's input to every rank's output (None where the
    operation leaves a rank's output undefined); it is pure and works on any values that ``op`` can
    combine. ``factor`` is busbw's, ``least`` the terms of the bound, ``sends`` the bytes that all
    ranks together have to send at least, over the size, all as formulas (TERMS). ``total``: the
    size is divided over the ranks. ``in_place``: which buffer serves as both - ``same``, the rank's
    ``block of recv`` is its input, the rank's ``block of send`` is its output - or None where no
    in-place form exists. ``synchronising``: no rank can leave before the last one arrived, so exits
    nearly coincide and per-rank durations tell who came late. ``uneven``: blocks differ in length,
    and an input is a list of blocks. ``moves_data``: there is a size, and bandwidth. ``pairwise``:
    each rank has to do with two others only, so that pairs of ranks can be measured by it, both
    ways at once; ``one_way``: of a pair, the root sends all data, and the other one none.
    """

    name: str
    meaning: str
    result: Result
    counts: Callable[[int, int], tuple[int, int]]
    factor: str
    least: tuple[str, str, str]
    sends: str
    rooted: bool = False
    reduces: bool = False
    total: bool = False
    in_place: str | None = None
    synchronising: bool = False
    aliases: tuple[str, ...] = ()
    uneven: bool = False
    moves_data: bool = True
    pairwise: bool = False
    one_way: bool = False

    @property
    def has_equal_blocks(self) -> bool:
        """Whether the larger buffer is divided among ranks into blocks of one length."""
        return self.total and not self.uneven

    @property
    def is_personal(self) -> bool:
        """Whether each rank has other data for each."""
        return self.name in ("all_to_all", "all_to_allv")

    def busbw(self, n: int) -> float:
        """The factor from algbw to busbw on n ranks."""
        return float(TERMS[self.factor](n))

    def bound(self, n: int) -> Bound:
        """The bound that no algorithm can beat on n ranks."""
        return Bound(*(TERMS[term](n) for term in self.least))

    def bound_by_size(self, n: int) -> Bound:
        """The bound with beta and gamma as multiples of the size, blocks being equal."""
        bound, share = self.bound(n), self.moved_share(n)
        return Bound(bound.alpha, bound.beta * share, bound.gamma * share)

    def bound_outside(self, hosts: Hosts) -> float:
        """The least share of what busbw counts that each rank's port to the outside carries, where
        ranks are on several ``hosts``. Data that differ for each pair of ranks pass the port of
        their own rank; what hosts need of each other passes all ports of a host."""
        n, fewest, root = hosts.ranks, hosts.fewest, hosts.root
        if self.is_personal:
            return (n - fewest) / n / self.moved_share(n)
        if self.pairwise:
            return 1.0
        if self.rooted and self.total:  # the root's host has the others' blocks, they their own
            return max(n - root, root) / n / root
        if self.least[1] == "2(n-1)/n":  # each host sends its sum; all send 2(m-1) among m hosts
            return max(1 / fewest, 2 * (hosts.number - 1) / n)
        return TERMS[self.least[1]](n / fewest) / fewest

    def moved_share(self, n: int) -> float:
        """The share of the size that the bound and busbw count: of blocks that may differ, and are
        equal here, no rank sends itself one."""
        return (n - 1) / n if self.uneven else 1.0

    def traffic(self, n: int) -> float:
        """Bytes that n ranks together send at least, for one byte of the size; nan where that
        depends on how it is divided."""
        return float(TERMS[self.sends](n))

    def overlay(self, n: int, count: int, rank: int) -> tuple[int, int, int]:
        """Where a rank's send and receive block begin in one buffer that holds both, and its
        length, in elements: shared as in place or, where there is no in-place form, one after the
        other."""
        send, recv = self.counts(n, count)
        places = {
            "same": (0, 0),
            "block of recv": (rank * count, 0),
            "block of send": (0, rank * count),
        }
        if self.in_place is None:
            return 0, send, send + recv
        return (*places[self.in_place], max(send, recv))


class _LaterItems(Sequence[Any]):
    """Items that are made when they are asked for, and not kept: of n ranks, each of n blocks, one
    can be had without the others."""

    def __init__(self, length: int, make: Callable[[int], Any]) -> None:
        self._indexes, self._make = range(length), make

    def __len__(self) -> int:
        return len(self._indexes)

    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        return self._make(self._indexes[index])

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, self._indexes)


def _cut_blocks(values: Any, n: int) -> Sequence[Any]:
    if len(values) % n:
        raise ValueError(f"{len(values)} elements cannot be cut into {n} equal blocks")
    size = len(values) // n
    return _LaterItems(n, lambda i: values[i * size : (i + 1) * size])


def _join_blocks(parts: Sequence[Any]) -> Any:
    import numpy as np

    return np.concatenate(list(parts))


def _all_reduce(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return [functools.reduce(op, inputs)] * len(inputs)


def _all_gather(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return [_join_blocks(inputs)] * len(inputs)


def _reduce_scatter(inputs: Sequence[Values], op: Combine, root: int) -> Sequence[Any]:
    return _cut_blocks(functools.reduce(op, inputs), len(inputs))


def _all_to_all(inputs: Sequence[Values], op: Combine, root: int) -> Sequence[Any]:
    return _all_to_allv([_cut_blocks(values, len(inputs)) for values in inputs], op, root)


def _all_to_allv(inputs: Sequence[Values], op: Combine, root: int) -> Sequence[Any]:
    return _LaterItems(len(inputs), lambda rank: _join_blocks([blocks[rank] for blocks in inputs]))


def _broadcast(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return [inputs[root]] * len(inputs)


def _at_root(value: Any, n: int, root: int) -> list[Any]:
    return [value if rank == root else None for rank in range(n)]


def _reduce(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return _at_root(functools.reduce(op, inputs), len(inputs), root)


def _gather(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return _at_root(_join_blocks(inputs), len(inputs), root)


def _scatter(inputs: Sequence[Values], op: Combine, root: int) -> Sequence[Any]:
    return _cut_blocks(inputs[root], len(inputs))


def _sendrecv(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return [inputs[rank - 1] for rank in range(len(inputs))]


def _scan(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return list(itertools.accumulate(inputs, op))


def _barrier(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return [None] * len(inputs)


def _count_same(n: int, count: int) -> tuple[int, int]:
    return count, count


def _count_gathered(n: int, count: int) -> tuple[int, int]:
    return count, n * count


def _count_scattered(n: int, count: int) -> tuple[int, int]:
    return n * count, count


def _count_exchanged(n: int, count: int) -> tuple[int, int]:
    return n * count, n * count


def _count_nothing(n: int, count: int) -> tuple[int, int]:
    return 0, 0


# Formulas of the table, for n ranks.
TERMS: dict[str, Callable[[Any], float]] = {
    "2(n-1)/n": lambda n: 2 * (n - 1) / n,
    "(n-1)/n": lambda n: (n - 1) / n,
    "1": lambda n: 1,
    "1 (of the busiest rank's bytes)": lambda n: 1,
    "n-1": lambda n: n - 1,
    "2(n-1)": lambda n: 2 * (n - 1),
    "n": lambda n: n,
    "?": lambda n: math.nan,
    "0": lambda n: 0,
    "-": lambda n: 0,
    "log2(n)": lambda n: (n - 1).bit_length(),
}

COLLECTIVES: dict[str, Collective] = {
    row.name: row
    for row in (
        Collective(
            "all_reduce",
            "Every rank ends with the reduction of all ranks' buffers.",
            _all_reduce,
            _count_same,
            factor="2(n-1)/n",
            least=("log2(n)", "2(n-1)/n", "(n-1)/n"),
            sends="2(n-1)",
            reduces=True,
            in_place="same",
            synchronising=True,
            aliases=("allreduce",),
        ),
        Collective(
            "all_gather",
            "Every rank ends with all ranks' blocks, in rank order.",
            _all_gather,
            _count_gathered,
            factor="(n-1)/n",
            least=("log2(n)", "(n-1)/n", "0"),
            sends="n-1",
            total=True,
            in_place="block of recv",
            synchronising=True,
            aliases=("allgather",),
        ),
        Collective(
            "reduce_scatter",
            "The reduction of all ranks' buffers is cut into n blocks; rank r ends with block r.",
            _reduce_scatter,
            _count_scattered,
            factor="(n-1)/n",
            least=("log2(n)", "(n-1)/n", "(n-1)/n"),
            sends="n-1",
            reduces=True,
            total=True,
            in_place="block of send",
            synchronising=True,
            aliases=("reducescatter",),
        ),
        Collective(
            "all_to_all",
            "Block j of rank i arrives as block i of rank j.",
            _all_to_all,
            _count_exchanged,
            factor="(n-1)/n",
            least=("log2(n)", "(n-1)/n", "0"),
            sends="n-1",
            total=True,
            synchronising=True,
            aliases=("alltoall",),
        ),
        Collective(
            "all_to_allv",
            "all_to_all with blocks of unequal length (--splits).",
            _all_to_allv,
            _count_exchanged,
            factor="1 (of the busiest rank's bytes)",
            least=("log2(n)", "1", "0"),
            sends="?",
            total=True,
            synchronising=True,
            aliases=("alltoallv",),
            uneven=True,
        ),
        Collective(
            "broadcast",
            "Every rank ends with the root's buffer.",
            _broadcast,
            _count_same,
            factor="1",
            least=("log2(n)", "1", "0"),
            sends="n-1",
            rooted=True,
            in_place="same",
            aliases=("bcast",),
            one_way=True,
        ),
        Collective(
            "reduce",
            "The root ends with the reduction of all ranks' buffers.",
            _reduce,
            _count_same,
            factor="1",
            least=("log2(n)", "1", "(n-1)/n"),
            sends="n-1",
            rooted=True,
            reduces=True,
            in_place="same",
        ),
        Collective(
            "gather",
            "The root ends with all ranks' blocks, in rank order.",
            _gather,
            _count_gathered,
            factor="(n-1)/n",
            least=("log2(n)", "(n-1)/n", "0"),
            sends="(n-1)/n",
            rooted=True,
            total=True,
            in_place="block of recv",
        ),
        Collective(
            "scatter",
            "The root's buffer is cut into n blocks; rank r ends with block r.",
            _scatter,
            _count_scattered,
            factor="(n-1)/n",
            least=("log2(n)", "(n-1)/n", "0"),
            sends="(n-1)/n",
            rooted=True,
            total=True,
            in_place="block of send",
        ),
        Collective(
            "sendrecv",
            "Ring shift: every rank sends its buffer to rank+1 and receives that of rank-1.",
            _sendrecv,
            _count_same,
            factor="1",
            least=("1", "1", "0"),
            sends="n",
            pairwise=True,
        ),
        Collective(
            "scan",
            "Rank r ends with the reduction of the buffers of ranks 0..r (inclusive prefix).",
            _scan,
            _count_same,
            factor="1",
            least=("log2(n)", "1", "(n-1)/n"),
            sends="n-1",
            reduces=True,
            in_place="same",
        ),
        Collective(
            "barrier",
            "No rank leaves before every rank has entered; latency only, no data.",
            _barrier,
            _count_nothing,
            factor="-",
            least=("log2(n)", "0", "0"),
            sends="0",
            synchronising=True,
            moves_data=False,
        ),
    )
}


def make_subject_row(name: str, meaning: str, moves_data: bool = True) -> Collective:
    """A row of a kind of case that is no collective, of which it says how large it is at most: its
    size is what the busiest rank has to send."""
    least = ("0", "1" if moves_data else "0", "0")
    counts = _count_same if moves_data else _count_nothing
    return Collective(name, meaning, _barrier, counts, "1", least, "?", moves_data=moves_data)


class RowTable(NamedTuple):
    """The rows of one kind of case, by the names that stand in ``Case.collective``. ``together``:
    one job measures all of them, in turns, each a case. ``noun`` is what a report counts.
    ``once``: a launch has one sample of a case, as that can happen but once in a process.
    ``planned_as_one``: --dry-run has one line for all of them, by their subject."""

    kind: str
    rows: Mapping[str, Collective]
    together: bool = False
    noun: str = "case"
    once: bool = False
    planned_as_one: bool = False

    def find_row(self, name: str) -> Collective:
        """The row of this name; one that knows nothing of its data where there is none."""
        return self.rows.get(name) or make_subject_row(name, "", moves_data=False)


COLLECTIVE = RowTable("collective", COLLECTIVES)
UNKNOWN = RowTable("unknown", {})  # of files that a feature wrote which is not installed


@cache
def find_row_table(name: str) -> RowTable:
    """The table, other than that of collectives, that has a row of this name."""
    tables = load_entries("row_tables").values()
    return next((table for table in tables if name in table.rows), UNKNOWN)


@cache
def reading_place(name: str) -> int:
    """The index by which reports sort a row of this name: collectives first, then features'
    rows."""
    tables = (COLLECTIVE, *load_entries("row_tables").values())
    names = [row for table in tables for row in table.rows]
    return names.index(name) if name in names else len(names)


def map_collective_names() -> dict[str, str]:
    """The collective that each name and alias means."""
    return {name: row.name for row in COLLECTIVES.values() for name in (row.name, *row.aliases)}


def find_collective(name: str) -> Collective:
    """The row called ``name`` or an alias of it (``allreduce``, ``alltoall``, ``alltoall_perf``,
    ``all-reduce`` …)."""
    word = name.replace("-", "_").removesuffix("_perf")
    for row in COLLECTIVES.values():
        if word in (row.name, *row.aliases):
            return row
    raise UsageError(f"unknown collective '{name}'", f"one of {', '.join(COLLECTIVES)}")
