"""The prover against an interpreter that shares nothing with it, over every algorithm and planted
faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.core import algorithms
from collbench.core.algorithms import Algorithm, Variant
from collbench.core.collectives import COLLECTIVES
from collbench.core.schedule import (
    Fault,
    Hazard,
    Move,
    Moves,
    Schedule,
    find_hazards,
    join_neighbours,
    prove_schedule,
)

Steps = list[list[Move]]
EVERY = [
    pytest.param(row, id=f"{row.collective}-{row.name}")
    for row in algorithms.list_catalogue().values()
]


class Broken(Exception):
    """A step that means nothing: it reads what is not there, mixes parts, or writes a cell in two
    ways."""


def interpret(
    schedule: Schedule, steps: Steps, inputs: list[list[Any]], op: Callable[[Any, Any], Any]
) -> list[Any]:
    """Every rank's output cells, in plain Python; each cell is (which input cell it is made of,
    value)."""
    cells: dict[tuple[int, int], tuple[int, Any]] = {}
    places = {(rank, cell) for rank in range(schedule.n) for cell in range(schedule.width)}
    for rank in range(schedule.n):
        for part, (at, value) in enumerate(
            zip(schedule.input_cells(rank), inputs[rank], strict=True)
        ):
            cells[rank, at] = (part, value)
    for step in steps:
        before, written = dict(cells), dict[tuple[int, int], bool]()
        for src, dst, chunk, into, reduce in step:
            target = (dst, into)
            if (
                not {target, (src, chunk)} <= places
                or (src, chunk) not in before
                or (reduce and target not in before)
            ):
                raise Broken
            if target in written and not (written[target] and reduce):
                raise Broken
            written[target] = reduce
            part, value = before[src, chunk]
            if reduce and cells[target][0] != part and schedule.has_data:
                raise Broken
            cells[target] = (part, op(cells[target][1], value)) if reduce else (part, value)
    return [
        [cells.get((rank, at), (-1, None))[1] for at in schedule.output_cells(rank)]
        for rank in range(schedule.n)
    ]


def is_right(schedule: Schedule, steps: Steps) -> bool:
    """Whether sums of random 60-bit numbers, or sets of ranks heard of, come out as the
    collective's table says."""
    n, row, rng = schedule.n, schedule.row, random.Random(1)
    try:
        if not schedule.has_data:
            heard = interpret(schedule, steps, [[{rank}] for rank in range(n)], set.union)
            return heard == [[set(range(n))]] * n
        sent = row.counts(n, schedule.cells)[0]
        inputs = [[rng.getrandbits(60) for _ in range(sent)] for _ in range(n)]
        got = interpret(schedule, steps, inputs, lambda a, b: a + b)
    except Broken:
        return False
    values: list[Any] = [np.array(row_, object) for row_ in inputs]
    if row.uneven:
        values = [
            [v[i : i + schedule.cells] for i in range(0, sent, schedule.cells)] for v in values
        ]
    wanted = row.result(values, np.add, max(schedule.root, 0))
    return all(want is None or have == list(want) for have, want in zip(got, wanted, strict=True))


def listed(schedule: Schedule) -> Steps:
    return [list(moves) for moves in schedule.steps()]


def with_steps(schedule: Schedule, steps: Iterable[Iterable[Move]]) -> Schedule:
    columns = [[list(column) for column in zip(*step, strict=True)] or [[]] * 5 for step in steps]
    made = [
        Moves(*(np.array(c, bool if i == 4 else int) for i, c in enumerate(five)))
        for five in columns
    ]
    return schedule._replace(steps=lambda: iter(made))


def drop(steps: Steps, at: int, k: int, other: int) -> None:
    del steps[at][k]


def double_now(steps: Steps, at: int, k: int, other: int) -> None:
    steps[at].append(steps[at][k])


def double_later(steps: Steps, at: int, k: int, other: int) -> None:
    steps[min(len(steps) - 1, at + 1)].append(steps[at][k])


def from_elsewhere(steps: Steps, at: int, k: int, other: int) -> None:
    steps[at][k] = steps[at][k]._replace(src=other)


def to_elsewhere(steps: Steps, at: int, k: int, other: int) -> None:
    steps[at][k] = steps[at][k]._replace(dst=other)


def other_cell(steps: Steps, at: int, k: int, other: int) -> None:
    steps[at][k] = steps[at][k]._replace(chunk=other)


def other_place(steps: Steps, at: int, k: int, other: int) -> None:
    steps[at][k] = steps[at][k]._replace(into=other)


def other_kind(steps: Steps, at: int, k: int, other: int) -> None:
    steps[at][k] = steps[at][k]._replace(reduce=not steps[at][k].reduce)


def swap_steps(steps: Steps, at: int, k: int, other: int) -> None:
    at2 = other % len(steps)
    steps[at], steps[at2] = steps[at2], steps[at]


def to_other_step(steps: Steps, at: int, k: int, other: int) -> None:
    steps[other % len(steps)].append(steps[at].pop(k))


MUTATIONS = [
    drop,
    double_now,
    double_later,
    from_elsewhere,
    to_elsewhere,
    other_cell,
    other_place,
    other_kind,
    swap_steps,
    to_other_step,
]


@pytest.mark.parametrize("algorithm", EVERY)
def test_prove_says_right_exactly_where_an_independent_interpreter_does(
    algorithm: Algorithm,
) -> None:
    rng, caught, tried = random.Random(algorithm.name), 0, 0
    for n in (2, 3, 6, 8):
        if Variant(algorithm).refuse(n):
            continue
        schedule = Variant(algorithm).schedule(n, n // 2)
        assert prove_schedule(schedule) == [] and is_right(schedule, listed(schedule))
        for mutate in MUTATIONS:
            steps = listed(schedule)
            at = rng.randrange(len(steps))
            mutate(steps, at, rng.randrange(len(steps[at])), rng.randrange(max(n, schedule.width)))
            faults = prove_schedule(with_steps(schedule, steps))
            assert (faults == []) == is_right(schedule, steps), (n, mutate.__name__, steps, faults)
            caught, tried = caught + bool(faults), tried + 1
    assert caught > tried / 3  # most mutations do harm; some, such as copying twice, do not


@pytest.mark.parametrize(
    "name",
    [
        "all_reduce ring",
        "all_gather bruck",
        "reduce_scatter pairwise",
        "gather binomial",
        "broadcast double_tree:segments=2",
        "all_to_all bruck",
        "scan chain:segments=2",
        "reduce binomial",
        "barrier tree",
    ],
)
def test_of_minimal_algorithms_no_move_can_be_dropped_or_turned_round(name: str) -> None:
    for n in (3, 4, 5):
        schedule = algorithms.find_variant(*name.split()).schedule(n)
        for at, step in enumerate(listed(schedule)):
            for k, move in enumerate(step):
                steps = listed(schedule)
                del steps[at][k]
                assert prove_schedule(with_steps(schedule, steps)), (n, at, move)
                if move.src != move.dst:
                    steps[at].insert(k, move._replace(src=move.dst, dst=move.src))
                    assert prove_schedule(with_steps(schedule, steps)), (n, at, move)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_mixture_of_mutations(data: st.DataObject) -> None:
    algorithm = data.draw(st.sampled_from([row.values[0] for row in EVERY]))
    n = data.draw(st.sampled_from([n for n in range(2, 7) if not Variant(algorithm).refuse(n)]))
    schedule = Variant(algorithm).schedule(n, data.draw(st.integers(0, n - 1)))
    steps = listed(schedule)
    for mutate in data.draw(st.lists(st.sampled_from(MUTATIONS), max_size=3)):
        at = data.draw(st.sampled_from([i for i, step in enumerate(steps) if step] or [None]))
        if at is not None:
            mutate(
                steps,
                at,
                data.draw(st.integers(0, len(steps[at]) - 1)),
                data.draw(st.integers(0, schedule.width)),
            )
    assert (prove_schedule(with_steps(schedule, steps)) == []) == is_right(schedule, steps)


def made(name: str, n: int, *steps: Moves, cells: int = 1, root: int = 0) -> Schedule:
    root = root if COLLECTIVES[name].rooted else -1
    return Schedule("made", name, n, root, cells, lambda: iter(steps))


BOTH = Moves([0, 1], [1, 0], 0, reduce=True)


@pytest.mark.parametrize(
    ("schedule", "fault", "words"),
    [
        (made("all_reduce", 2), ("missing", None, 0, 0), "lacks the contribution of rank 1"),
        (made("all_gather", 2), ("missing", None, 0, 1), "nothing has arrived"),
        (made("all_gather", 2, Moves(0, 1, 1)), ("missing", 0, 1, 1), "never filled"),
        (made("sendrecv", 2, Moves(0, 1, 0, 1, True)), ("missing", 0, 1, 1), "holds nothing"),
        (
            made("barrier", 3, Moves(0, 1, reduce=True)),
            ("missing", None, 0, 0),
            "lacks the contribution of rank 1",
        ),
        (
            made("all_reduce", 2, BOTH, BOTH),
            ("doubled", None, 0, 0),
            "rank 0's contribution 2 times",
        ),
        (
            made("reduce", 2, Moves(1, 0, 0, reduce=True), Moves(1, 0, 0, reduce=True)),
            ("doubled", None, 0, 0),
            "rank 1's",
        ),
        (
            made("broadcast", 2, Moves(0, 1, 0, 1), cells=2),
            ("misplaced", None, 1, 0),
            "of ranks 1 instead of cell 0",
        ),
        (
            made("all_gather", 2, Moves([0, 1], [1, 0], [0, 1], [0, 0])),
            ("misplaced", None, 0, 0),
            "ranks 1 instead",
        ),
        (
            made("all_reduce", 2, Moves(0, 1, 0, 1, True), cells=2),
            ("misplaced", 0, 1, 1),
            "different parts",
        ),
        (
            made("scan", 2, BOTH),
            ("misplaced", None, 0, 0),
            "ranks 0,1 instead of cell 0 of ranks 0",
        ),
        (
            made("all_reduce", 2, BOTH, Moves(0, 2)),
            ("out of range", 1, 2, 0),
            "rank 0 cell 0, among 2 ranks of 1 cell",
        ),
        (made("all_reduce", 2, Moves(0, 1, -1)), ("out of range", 0, 1, -1), "cell -1"),
        (made("all_gather", 2, Moves(0, 1, 0, 2)), ("out of range", 0, 1, 2), "2 cells"),
        (made("broadcast", 3, Moves([0, 1], 2)), ("conflict", 0, 2, 0), "not both reduce"),
        (
            made("all_reduce", 3, Moves([0, 1], 2, reduce=[True, False])),
            ("conflict", 0, 2, 0),
            "not both reduce",
        ),
    ],
)
def test_each_kind_of_fault_is_named_with_its_place(
    schedule: Schedule, fault: tuple[Any, ...], words: str
) -> None:
    found = prove_schedule(schedule)[0]
    assert found[:4] == fault
    assert words in found.what


def test_a_fault_reads_as_a_sentence() -> None:
    assert (
        str(Fault("missing", None, 2, 3, "nothing has arrived"))
        == "missing: rank 2 cell 3: nothing has arrived"
    )
    assert str(Fault("conflict", 4, 2, 3, "x")) == "conflict: rank 2 cell 3 in step 4: x"


def test_every_rank_whose_output_is_wrong_is_named() -> None:
    assert [fault.rank for fault in prove_schedule(made("broadcast", 4, Moves(1, 3), root=1))] == [
        0,
        2,
    ]


def test_several_reductions_may_meet_in_one_cell() -> None:
    assert prove_schedule(made("reduce", 4, Moves([1, 2, 3], 0, reduce=True))) == []


def test_a_step_reads_the_state_before_it() -> None:
    assert prove_schedule(made("all_reduce", 2, BOTH)) == []
    assert prove_schedule(made("all_reduce", 2, Moves(0, 1, reduce=True), Moves(1, 0, reduce=True)))


def test_hazards_are_cells_read_and_written_in_one_step() -> None:
    assert find_hazards(made("all_reduce", 2, BOTH)) == [Hazard(0, 0, 0), Hazard(0, 1, 0)]
    assert find_hazards(made("all_gather", 3, Moves(0, 1), Moves([1, 0], [2, 1], [0, 0]))) == [
        Hazard(1, 1, 0)
    ]
    assert find_hazards(made("all_to_all", 1, Moves(0, 0, 0, 1))) == []
    assert find_hazards(algorithms.find_variant("all_reduce", "ring").schedule(5)) == []


def test_moves_broadcast_iterate_and_select() -> None:
    moves = Moves(np.arange(3)[:, None], [[1], [2], [0]], np.arange(2))
    assert len(moves) == 6
    assert list(moves)[:3] == [
        Move(0, 1, 0, 0, False),
        Move(0, 1, 1, 1, False),
        Move(1, 2, 0, 0, False),
    ]
    assert [move.dst for move in moves.for_rank(2)] == [2, 2, 0, 0]
    assert list(Moves(1, 2, 3, 4, True)) == [Move(1, 2, 3, 4, True)]
    assert all(type(value) in (int, bool) for value in next(iter(moves)))
    assert [len(Moves(0, 1).for_rank(rank)) for rank in range(3)] == [1, 1, 0]


def test_a_schedule_seen_by_one_rank() -> None:
    ring = algorithms.find_variant("all_gather", "ring").schedule(4)
    assert [[move[:3] for move in moves] for moves in ring.for_rank(1)] == [
        [(0, 1, 0), (1, 2, 1)],
        [(0, 1, 3), (1, 2, 0)],
        [(0, 1, 2), (1, 2, 3)],
    ]


@pytest.mark.parametrize(
    ("name", "width", "starts", "ends"),
    [
        ("all_reduce", 2, range(0, 2), range(0, 2)),
        ("all_gather", 6, range(2, 4), range(0, 6)),
        ("reduce_scatter", 6, range(0, 6), range(2, 4)),
        ("all_to_all", 12, range(0, 6), range(6, 12)),
        ("sendrecv", 4, range(0, 2), range(2, 4)),
        ("barrier", 1, range(1), range(1)),
    ],
)
def test_where_input_and_output_lie(name: str, width: int, starts: range, ends: range) -> None:
    schedule = made(name, 3, cells=2)
    assert (schedule.width, schedule.input_cells(1), schedule.output_cells(1)) == (
        width,
        starts,
        ends,
    )


def test_coalescing_joins_neighbouring_cells_of_one_pair() -> None:
    runs = join_neighbours(
        Moves([0, 0, 1, 0, 0], [1, 1, 0, 1, 1], [2, 1, 5, 3, 7], [4, 3, 5, 5, 6])
    )
    assert [field.tolist() for field in runs] == [
        [0, 0, 1],
        [1, 1, 0],
        [1, 7, 5],
        [3, 6, 5],
        [3, 1, 1],
        [False, False, False],
    ]
    assert join_neighbours(Moves(0, 1, [0, 1], [0, 1], [True, False])).length.tolist() == [1, 1]
    assert join_neighbours(Moves(*(np.array([], int),) * 4)).length.tolist() == []


@settings(max_examples=60, deadline=None)
@given(
    st.sets(
        st.tuples(*[st.integers(0, 2)] * 2, *[st.integers(0, 5)] * 2, st.booleans()), min_size=1
    )
)
def test_coalesced_runs_are_the_same_moves_and_cannot_be_joined_further(
    moves: set[tuple[Any, ...]],
) -> None:
    runs = list(zip(*join_neighbours(Moves(*map(list, zip(*moves, strict=True)))), strict=True))
    spread = [(s, d, c + i, t + i, r) for s, d, c, t, length, r in runs for i in range(length)]
    assert len(spread) == len(moves) and set(spread) == moves
    starts = {(s, d, c, t, r) for s, d, c, t, _, r in runs}
    assert not any((s, d, c + length, t + length, r) in starts for s, d, c, t, length, r in runs)


def test_cells_of_different_parts_of_a_block_are_not_exchanged() -> None:
    """They differ by an element where cells do not divide the buffer: right over symbols, wrong
    over memory."""
    steps = [Moves(0, 1, [0, 1], [1, 0]), Moves(1, 1, [0, 1], [1, 0])]
    parked = Schedule("parked", "broadcast", 2, 0, 2, lambda: iter(steps))
    (fault,) = prove_schedule(parked)
    assert (fault.kind, fault.step, fault.rank) == ("misplaced", 0, 1)
    assert "longer or shorter" in fault.what
