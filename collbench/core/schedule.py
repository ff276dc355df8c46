"""A collective algorithm as data: steps of moves between cells, seen globally, and what can be said
of it.

Every rank has a row of cells. The collective's table says where its input lies in that row at the
start and where its output must lie at the end (``Collective.overlay``: shared as in place; first
input, then output, where there is no in-place form). A step is a set of moves; all its reads see
the state before the step. What a cell holds, and how long it is, is the reader's business: symbols
in ``prove_schedule``, numbers in ``run_schedule``, bytes on a wire elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.core.algorithm_files import format_prove_command
from collbench.core.collectives import COLLECTIVES, Collective, Combine
from collbench.core.errors import AlgorithmError
from collbench.core.text import format_count

Ints = NDArray[np.int64]

Index = Any  # an integer, or an array of them


class Move(NamedTuple):
    """Cell ``chunk`` of ``src`` goes to cell ``into`` of ``dst``: replaces it or, reducing, is
    combined with it."""

    src: int
    dst: int
    chunk: int
    into: int
    reduce: bool


class Later(NamedTuple):
    """Cells of a step as an array of ``shape`` that is made when somebody asks for it. Costs depend
    on how many cells move, not on which, and an array of them may be the largest thing of all."""

    shape: tuple[int, ...]
    make: Callable[[], Ints]


class Moves:
    """One step: integers or arrays that broadcast against each other, of cells also Later. ``into``
    is ``chunk`` unless given.

    A move within a rank (src == dst) is a local copy. Several reducing moves may meet in one cell.
    """

    __slots__ = ("_chunk", "_into", "dst", "reduce", "src")

    def __init__(
        self,
        src: Index,
        dst: Index,
        chunk: Index | Later = 0,
        into: Index | Later = None,
        reduce: Any = False,
    ) -> None:
        self.src, self.dst, self._chunk, self.reduce = src, dst, chunk, reduce
        self._into = chunk if into is None else into

    @property
    def chunk(self) -> Index:
        """The cells that are read."""
        return self._chunk.make() if isinstance(self._chunk, Later) else self._chunk

    @property
    def into(self) -> Index:
        """The cells that are written."""
        return self._into.make() if isinstance(self._into, Later) else self._into

    def mirror(self, reduce: bool) -> Moves:
        """The same moves in the other direction."""
        return Moves(self.dst, self.src, self._into, self._chunk, reduce)

    def convert(self, convert: Callable[[str, Callable[[], Any]], Index]) -> Moves:
        """The moves with fields that ``convert(name, get)`` returns, of cells that are Later when
        they are asked for."""

        def apply(name: str, field: Index | Later) -> Index | Later:
            if isinstance(field, Later):
                return Later(field.shape, lambda: convert(name, field.make))
            return convert(name, lambda: field)

        return Moves(
            apply("src", self.src),
            apply("dst", self.dst),
            apply("chunk", self._chunk),
            None if self._into is self._chunk else apply("into", self._into),
            apply("reduce", self.reduce),
        )

    def arrays(self) -> tuple[Ints, Ints, Ints, Ints, NDArray[np.bool_]]:
        """The five fields, as arrays of one length."""
        fields = np.broadcast_arrays(
            self.src, self.dst, self.chunk, self.into, np.asarray(self.reduce, bool)
        )
        return tuple(field.ravel() for field in fields)  # type: ignore[return-value]

    def __iter__(self) -> Iterator[Move]:
        return (Move(*row) for row in zip(*(f.tolist() for f in self.arrays()), strict=True))

    def __len__(self) -> int:
        fields = self.src, self.dst, self._chunk, self._into, self.reduce
        if isinstance(self._chunk, Later) or isinstance(self._into, Later):
            return math.prod(np.broadcast_shapes(*(getattr(f, "shape", ()) for f in fields)))
        return np.broadcast(*fields).size  # type: ignore[arg-type]

    def for_rank(self, rank: int) -> Moves:
        """The moves that ``rank`` sends or receives."""
        fields = self.arrays()
        takes_part = (fields[0] == rank) | (fields[1] == rank)
        return Moves(*(f[takes_part] for f in fields))


class Schedule(NamedTuple):
    """An algorithm's moves for n ranks, each block of the collective cut into ``cells``.

    ``steps()`` starts a new pass over the steps; passes are streams, so schedules larger than
    memory can be read.
    """

    name: str
    collective: str
    n: int
    root: int
    cells: int
    steps: Callable[[], Iterator[Moves]]

    @property
    def row(self) -> Collective:
        """The row of its collective in COLLECTIVES."""
        return COLLECTIVES[self.collective]

    @property
    def has_data(self) -> bool:
        """False for a barrier, whose cells are tokens of no length."""
        return self.row.counts(self.n, 1) != (0, 0)

    @property
    def width(self) -> int:
        """Cells in a rank's row."""
        return self.row.overlay(self.n, self.cells, 0)[2] if self.has_data else 1

    def input_cells(self, rank: int) -> range:
        """The cells in which a rank's input lies before the first step."""
        start = self.row.overlay(self.n, self.cells, rank)[0]
        return (
            range(start, start + self.row.counts(self.n, self.cells)[0])
            if self.has_data
            else range(1)
        )

    def output_cells(self, rank: int) -> range:
        """The cells in which a rank's output must lie after the last step."""
        start = self.row.overlay(self.n, self.cells, rank)[1]
        return (
            range(start, start + self.row.counts(self.n, self.cells)[1])
            if self.has_data
            else range(1)
        )

    def for_rank(self, rank: int) -> Iterator[Moves]:
        """The moves of each step that concern ``rank``."""
        return (moves.for_rank(rank) for moves in self.steps())


def run_schedule(
    schedule: Schedule, inputs: Sequence[Sequence[Any]], op: Combine
) -> Iterator[NDArray[np.object_]]:
    """The state after 0, 1, … steps, as arrays of shape (ranks, cells) of any values; None where
    nothing is yet.

    ``inputs[rank]`` lists the values of its input cells. The array is the same each time: copy what
    you keep.
    """
    state = np.full((schedule.n, schedule.width), None, object)
    for rank in range(schedule.n):
        for cell, value in zip(schedule.input_cells(rank), inputs[rank], strict=True):
            state[rank, cell] = value
    yield state
    for moves in schedule.steps():
        carried = [(move, state[move.src, move.chunk]) for move in moves]
        for move, value in carried:
            old = state[move.dst, move.into]
            state[move.dst, move.into] = op(old, value) if move.reduce else value
        yield state


NOTHING_ARRIVED = "nothing has arrived"

MAX_PROVED_RANKS = 4096  # that collbench prove takes

Kind = Literal["missing", "doubled", "misplaced", "out of range", "conflict"]


class Fault(NamedTuple):
    """Why a schedule is wrong: in which step (None: only the outcome shows it), at which rank and
    cell."""

    kind: Kind
    step: int | None
    rank: int
    cell: int
    what: str

    def __str__(self) -> str:
        where = f"rank {self.rank} cell {self.cell}"
        return (
            f"{self.kind}: {where}{'' if self.step is None else f' in step {self.step}'}:"
            f" {self.what}"
        )


def expect_outputs(row: Collective, n: int, root: int, cells: int) -> Sequence[Ints | None]:
    """The symbols that the table's ``result`` asks for: for each rank's output cells, rows of
    (cell, count per source).

    A row says which input cell it is made of and how often each rank's has gone into it; None where
    undefined.
    """
    if row.counts(n, 1) == (0, 0):
        return [np.array([[0] + [1] * n])] * n
    sent = row.counts(n, cells)[0]
    inputs: list[Any] = []
    for rank in range(n):
        symbols = np.zeros((sent, n + 1), np.int64)
        symbols[:, 0], symbols[:, rank + 1] = np.arange(sent), 1
        inputs.append(
            [symbols[i : i + cells] for i in range(0, sent, cells)] if row.uneven else symbols
        )
    return row.result(inputs, _add_symbols, max(root, 0))


def list_defined(row: Collective, n: int, root: int) -> list[bool]:
    """Whether the collective defines each rank's output: to a root, it does no other's."""
    if root < 0 or row.counts(n, 1) == (0, 0):
        return [True] * n
    sent = row.counts(n, 1)[0]
    return [output is not None for output in row.result([[0] * sent] * n, max, root)]


def _add_symbols(a: Ints, b: Ints) -> Ints:
    both = a + b
    both[:, 0] = a[:, 0]
    return both


class WrongSchedule(AlgorithmError):
    """A schedule with a fault is put to a use for which it must be right."""

    def __init__(self, collective: str, name: str, n: int, fault: Fault, root: int = 0) -> None:
        command = format_prove_command(collective, name)
        if n <= MAX_PROVED_RANKS:  # else prove takes its default numbers of ranks
            command += f" -n {n}" + f" -r {root}" * (root > 0)
        super().__init__(
            f"{collective} {name} is wrong for {format_count(n, 'rank')}: {fault}",
            f"{command} lists its faults",
        )
        self.fault = fault


def prove_schedule(schedule: Schedule) -> list[Fault]:
    """Everything wrong with a schedule, by running it over symbols that count contributions; empty
    if it is right."""
    try:
        return _find_faults(schedule)
    except WrongSchedule as e:
        return [e.fault]


def _find_faults(schedule: Schedule) -> list[Fault]:
    state = _start_symbols(schedule)
    parted: list[Fault] = []
    for number, moves in enumerate(schedule.steps()):
        *places, reduce = moves.arrays()
        table = np.array(places)
        if stray := find_stray_move(table, schedule.n, schedule.width, number):
            return [stray]
        parted = parted or _find_uneven_moves(schedule, table, number)
        faults = _find_conflicts(table, reduce, schedule.width, number)
        faults += _apply_step(state, table, reduce, number, schedule.has_data)
        if faults:
            return faults
    return _judge_outputs(schedule, state) or parted


def find_stray_move(table: Ints, n: int, width: int, number: int) -> Fault | None:
    """The first move of step ``number`` from or to a cell that n ranks with rows of ``width`` cells
    do not have. ``table`` has sources, destinations, and cells there, by move."""
    outside = (table < 0) | (table >= np.array([[n], [n], [width], [width]]))
    if not outside.any():
        return None
    src, dst, chunk, into = table[:, int(outside.any(axis=0).argmax())].tolist()
    extent = f"{format_count(n, 'rank')} of {format_count(width, 'cell')}"
    what = f"a move from rank {src} cell {chunk}, among {extent}"
    return Fault("out of range", number, dst, into, what)


def refuse_empty_reads(schedule: Schedule, reads_outputs: bool = False) -> None:
    """Raise WrongSchedule where a step moves a cell, or reduces into one, that holds nothing; with
    ``reads_outputs`` also if a cell of a defined output is empty at the end."""
    if fault := _find_empty_read(schedule, reads_outputs):
        raise WrongSchedule(schedule.collective, schedule.name, schedule.n, fault, schedule.root)


def _find_empty_read(schedule: Schedule, reads_outputs: bool) -> Fault | None:
    is_full = np.zeros((schedule.n, schedule.width), bool)
    for rank in range(schedule.n):
        is_full[rank, list(schedule.input_cells(rank))] = True
    for number, moves in enumerate(schedule.steps()):
        src, dst, chunk, into, reduce = moves.arrays()
        empty = ~is_full[src, chunk] | (reduce & ~is_full[dst, into])
        if empty.any():
            bad = int(empty.argmax())
            what = f"reads a cell that holds nothing (from rank {src[bad]} cell {chunk[bad]})"
            return Fault("missing", number, int(dst[bad]), int(into[bad]), what)
        is_full[dst, into] = True
    defined = list_defined(schedule.row, schedule.n, schedule.root)
    outputs = ((r, c) for r in np.flatnonzero(defined) for c in schedule.output_cells(int(r)))
    missing = next((cell for cell in outputs if not is_full[cell]), None) if reads_outputs else None
    return Fault("missing", None, int(missing[0]), missing[1], NOTHING_ARRIVED) if missing else None


def _start_symbols(schedule: Schedule) -> Ints:
    """The symbols that each cell holds before the first step, (ranks, cells, 1 + ranks), as in
    ``expect_outputs``; cell -1 is an empty one."""
    state = np.zeros((schedule.n, schedule.width, schedule.n + 1), np.int64)
    state[:, :, 0] = -1
    for rank in range(schedule.n):
        places = schedule.input_cells(rank)
        initial = state[rank, places.start : places.stop]
        initial[:, 0], initial[:, rank + 1] = np.arange(len(places)), 1
    return state


def _find_uneven_moves(schedule: Schedule, table: Ints, number: int) -> list[Fault]:
    """Moves between different parts of blocks, which differ in length where cells do not divide the
    elements."""
    src, dst, chunk, into = table
    differ = chunk % schedule.cells != into % schedule.cells
    if not differ.any():
        return []
    bad = int(differ.argmax())
    what = (
        f"comes from another part of a block, perhaps longer or shorter (rank {src[bad]} cell"
        f" {chunk[bad]})"
    )
    return [Fault("misplaced", number, int(dst[bad]), int(into[bad]), what)]


def _find_conflicts(table: Ints, reduce: NDArray[np.bool_], width: int, number: int) -> list[Fault]:
    """Cells that several moves of one step write, other than by reducing."""
    targets = table[1] * width + table[3]
    copied = targets[~reduce]
    order = np.sort(copied)
    clash = np.concatenate(
        [order[1:][order[1:] == order[:-1]], np.intersect1d(copied, targets[reduce])]
    )
    return [
        Fault(
            "conflict",
            number,
            int(t) // width,
            int(t) % width,
            "two moves write it, and not both reduce",
        )
        for t in clash[:1]
    ]


def _apply_step(
    state: Ints, table: Ints, reduce: NDArray[np.bool_], number: int, has_data: bool
) -> list[Fault]:
    """Apply one step to the cells' symbols. A list of the first fault that no later step could
    mend, or an empty one."""
    src, dst, chunk, into = table
    carried = state[src, chunk]
    empty = carried[:, 0] < 0
    before = state[dst, into, 0]
    checks: list[tuple[Any, Kind, str]] = [
        (empty, "missing", "what is moved there was never filled"),
        (reduce & (before < 0), "missing", "reduces into a cell that holds nothing"),
        (
            reduce & (before != carried[:, 0]) & has_data,
            "misplaced",
            "combines different parts of the buffer",
        ),
    ]
    for is_bad, kind, what in checks:
        if is_bad.any():
            bad = int(is_bad.argmax())
            message = f"{what} (from rank {src[bad]} cell {chunk[bad]})"
            return [Fault(kind, number, int(dst[bad]), int(into[bad]), message)]
    copies = ~reduce
    state[dst[copies], into[copies]] = carried[copies]
    carried[:, 0] = 0
    np.add.at(state, (dst[reduce], into[reduce]), carried[reduce])
    return []


def _judge_outputs(schedule: Schedule, state: Ints) -> list[Fault]:
    """The first thing wrong with each rank's output."""
    faults = []
    for rank, expected in enumerate(
        expect_outputs(schedule.row, schedule.n, schedule.root, schedule.cells)
    ):
        if expected is None:
            continue
        places = schedule.output_cells(rank)
        got = state[rank, places.start : places.stop]
        if not schedule.has_data:
            got = np.minimum(got, 1)  # hearing twice of a rank does no harm
        wrong = (got != expected).any(axis=1)
        if wrong.any():
            index = int(wrong.argmax())
            faults.append(_explain_fault(got[index], expected[index], rank, places[index]))
    return faults


def _explain_fault(got: Ints, expected: Ints, rank: int, cell: int) -> Fault:
    """The Fault of a cell that does not hold what the collective promises, by counts of each rank's
    contribution."""
    less, more = (np.flatnonzero(d[1:] > 0) for d in (expected - got, got - expected))
    if got[0] < 0:
        return Fault("missing", None, rank, cell, NOTHING_ARRIVED)
    if got[0] != expected[0] or ((got > 0) & (expected == 0))[1:].any():
        return Fault(
            "misplaced",
            None,
            rank,
            cell,
            f"holds input cell {got[0]} of ranks {_name_ranks(got)} "
            f"instead of cell {expected[0]} of ranks {_name_ranks(expected)}",
        )
    if len(less):
        return Fault("missing", None, rank, cell, f"lacks the contribution of rank {less[0]}")
    return Fault(
        "doubled", None, rank, cell, f"has rank {more[0]}'s contribution {got[more[0] + 1]} times"
    )


def _name_ranks(symbol: Ints) -> str:
    return ",".join(map(str, np.flatnonzero(symbol[1:])))


class Hazard(NamedTuple):
    """A cell that is read and written in the same step: an executor must keep its old content until
    it is read."""

    step: int
    rank: int
    cell: int


def find_hazards(schedule: Schedule) -> list[Hazard]:
    """Every cell that some move of a step reads while another overwrites it, or that is written
    where it is read."""
    hazards = []
    for number, moves in enumerate(schedule.steps()):
        src, dst, chunk, into, _ = moves.arrays()
        both = np.intersect1d(src * schedule.width + chunk, dst * schedule.width + into)
        hazards += [
            Hazard(number, int(at) // schedule.width, int(at) % schedule.width) for at in both
        ]
    return hazards


def fan_in(schedule: Schedule) -> int:
    """The most cells that arrive at one rank in one step to be combined: what executors by messages
    must land."""
    most = 0
    for moves in schedule.steps():
        src, dst, _, _, reduce = moves.arrays()
        most = max(most, int(np.bincount(dst[reduce & (src != dst)], minlength=1).max()))
    return most


class Runs(NamedTuple):
    """Moves whose cells follow each other between the same ranks, joined: equally long arrays."""

    src: Ints
    dst: Ints
    chunk: Ints
    into: Ints
    length: Ints
    reduce: NDArray[np.bool_]


def join_neighbours(moves: Moves) -> Runs:
    """A step's moves with neighbouring cells joined, ordered by source, destination and first
    cell."""
    fields = moves.arrays()
    src, dst, chunk, into, reduce = fields
    order = np.lexsort((chunk, into - chunk, reduce, dst, src))
    src, dst, chunk, into, reduce = *(field[order] for field in fields[:4]), reduce[order]
    # along a run
    same = np.diff(np.array([src, dst, reduce, into - chunk, chunk - np.arange(len(src))])) == 0
    starts = np.flatnonzero(np.append(True, ~same.all(axis=0))[: len(src)])
    lengths = np.diff(np.append(starts, len(src)))
    by_source = np.lexsort((into[starts], chunk[starts], dst[starts], src[starts]))
    at = starts[by_source]
    return Runs(src[at], dst[at], chunk[at], into[at], lengths[by_source], reduce[at])
