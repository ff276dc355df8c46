"""Traces as steps: which iteration, which ranks, what is computed between, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.core.errors import UsageError
from collbench.features.traces.from_steps import trace_of_step
from collbench.features.traces.replay import Asked, step_of
from collbench.features.traces.types import EARLIER, Call, Interval, Lost, RankTrace, Trace
from collbench.features.training import presets, walk
from collbench.features.training.step import Op, Step

KIB = 1024


def all_reduce(nbytes: int = 4 * KIB, **fields: object) -> Call:
    return Call("all_reduce", nbytes=nbytes, **{"dtype": "float", "op": "sum", **fields})  # type: ignore[arg-type]


def trace(
    calls: Sequence[Call], n: int = 2, steps: tuple[Interval, ...] = (), **fields: object
) -> Trace:
    """The same calls on each of n ranks."""
    each = RankTrace(0, n, tuple(calls), steps=steps, **fields)  # type: ignore[arg-type]
    return Trace("test", tuple(replace(each, rank=rank) for rank in range(n)))


def of(*ranks: Sequence[Call], world: int = 0, **fields: object) -> Trace:
    """Calls of rank 0, 1 and so on."""
    world = world or len(ranks)
    return Trace(
        "test",
        tuple(RankTrace(rank, world, tuple(calls), **fields) for rank, calls in enumerate(ranks)),  # type: ignore[arg-type]
    )


def ops(step: Step, rank: int = 0) -> list[Op]:
    return [*step.program(rank).ops]


def sizes(step: Step, rank: int = 0) -> list[int]:
    return [op.nbytes for op in ops(step, rank) if op.communicates]


def refused(given: Trace, asked: Asked = Asked()) -> UsageError:  # noqa: B008 it is frozen
    with pytest.raises(UsageError) as error:
        step_of(given, asked)
    return error.value


# (1) one iteration

MARKED = [
    all_reduce(16, issued_ns=5),
    *(all_reduce(4 * KIB, issued_ns=ns, ends_ns=ns + 3, waits=True) for ns in (12, 24, 37)),
    all_reduce(8, issued_ns=44),
]
MARKS = ((10, 20), (20, 32), (33, 42), (43, 50))


def test_of_marked_iterations_alike_that_of_median_time_is_taken() -> None:
    step = step_of(trace(MARKED, steps=MARKS))
    assert sizes(step) == [4 * KIB]
    assert step.recorded is not None
    assert sorted(step.recorded.times_ns) == [9, 10, 12]
    assert any("iteration 0 is taken: 3 of 4 have its calls" in a for a in step.assumptions)


@pytest.mark.parametrize(
    ("said", "found", "took"), [("1", [4 * KIB], 12), ("3", [8], 7), ("2-3", [4 * KIB, 8], 17)]
)
def test_an_iteration_or_several_may_be_asked_for(said: str, found: list[int], took: int) -> None:
    step = step_of(trace(MARKED, steps=MARKS), Asked(iteration=said))
    assert sizes(step) == found
    assert step.recorded is not None
    assert step.recorded.times_ns == (took,)
    assert step.name.endswith(f"iteration={said}")


@pytest.mark.parametrize("said", ["4", "2-1", "0-4", "x", "-1", "1-"])
def test_an_iteration_that_is_none_is_refused(said: str) -> None:
    error = refused(trace(MARKED, steps=MARKS), Asked(iteration=said))
    assert f"--iteration {said}: the trace has 4 iterations" in error.message


def test_ranks_with_other_marks_are_refused() -> None:
    whole = trace(MARKED, steps=MARKS)
    less = replace(whole.ranks[1], steps=MARKS[:2])
    error = refused(replace(whole, ranks=(whole.ranks[0], less)))
    assert "rank 1 has 2, rank 0 has 4" in error.message


def test_marks_without_times_of_calls_tell_nothing() -> None:
    step = step_of(trace([all_reduce(4), all_reduce(8)] * 3, steps=MARKS))
    assert sizes(step) == [4, 8]
    assert step.recorded is None


@pytest.mark.parametrize(
    ("marked", "said"),
    [
        (((1, 3),), "the one iteration is taken, without 4 calls outside of it; marked"),
        (((0, 4),), "all calls of the trace are taken for one iteration; marked"),
        ((), "all calls of the trace are taken for one iteration; no marks"),
    ],
)
def test_calls_outside_of_the_one_marked_iteration_are_told(
    marked: tuple[Interval, ...], said: str
) -> None:
    calls = [all_reduce(4 * number) for number in range(1, 5)]
    step = step_of(trace(calls, marked=marked))
    assert any(said in assumption for assumption in step.assumptions)


def test_iterations_may_be_marked_by_their_calls() -> None:
    given = trace([all_reduce(n) for n in (4, 8, 4, 12, 4, 8)], marked=((0, 2), (2, 4), (4, 6)))
    assert sizes(step_of(given)) == [4, 8]
    assert sizes(step_of(given, Asked(iteration="1"))) == [4, 12]


@pytest.mark.parametrize(
    ("before", "block", "times", "after"),
    [
        ([], [4, 8], 2, []),
        ([64], [4, 8, 12], 9, [16]),
        ([64], [4, 4, 4, 8], 3, [4]),  # what is repeated within one is no iteration
        ([], [4, 8, 4, 8, 12], 4, [4, 8]),
        ([64, 32, 16, 64], [4, 8], 500, []),  # set-up
        ([64, 32, 16, 64], [4, 8], 500, [4, 64]),
        ([64] * 5, [*range(4, 44, 4)], 4, []),
        ([64] * 5, [*range(4, 44, 4)], 4, [4, 8]),
    ],
)
def test_without_marks_the_longest_repeated_block_is_one(
    before: list[int], block: list[int], times: int, after: list[int]
) -> None:
    calls = [all_reduce(nbytes) for nbytes in before + block * times + after]
    step = step_of(trace(calls))
    assert sizes(step) == block
    assert any(f"repeat every {len(block)} on rank 0" in each for each in step.assumptions)


@pytest.mark.parametrize(
    "nbytes",
    [
        [4] * 12 + [8, 4] * 12 + [16],  # layers forward, and back
        [4] * 64 + [8, 12],  # the same call in all layers, then two others
        [64] * 30 + [4, 8, 12] * 3,
        [64] + [4] * 800 + [8, 12],  # all layers of some micro-batches
        [4, 8] * 800 + [12, 16, 20],
        [4] * 12 + [4, 8] * 12,  # weights gathered forward; gathered and gradients back
        [*range(4, 24, 4), *[64, 68, 72, 76, 80, 84] * 2],
    ],
)
def test_layers_of_one_iteration_are_not_iterations(nbytes: list[int]) -> None:
    step = step_of(trace([all_reduce(n) for n in nbytes]))
    assert sizes(step) == nbytes


def test_a_repeated_block_ends_where_the_next_begins() -> None:
    calls = [all_reduce(n, issued_ns=10 * k + n) for k, n in enumerate([4, 8] * 3)]
    step = step_of(trace(calls))
    assert step.recorded is not None
    assert step.recorded.times_ns == (20, 20)  # of the third nobody knows the end


def test_blocks_that_differ_each_time_are_repeated_all_the_same() -> None:
    rows = [(1, 2), (3, 4), (5, 6), (7, 8)]
    calls = [Call("all_to_allv", nbytes=4 * sum(row), dtype="float", sends=row) for row in rows]
    step = step_of(trace([call for each in calls for call in (each, all_reduce())]))
    assert len(ops(step)) == 2


def test_a_trace_that_repeats_nothing_is_one_step() -> None:
    step = step_of(trace([all_reduce(4, issued_ns=2), all_reduce(8, begins_ns=3, ends_ns=9)]))
    assert sizes(step) == [4, 8]
    assert step.recorded is not None
    assert step.recorded.times_ns == (7,)
    assert any("no calls that repeat themselves" in each for each in step.assumptions)


# (2) ranks are joined, and held against each other


def test_calls_are_joined_by_number_whatever_their_order() -> None:
    calls = [all_reduce(4, number=3), all_reduce(8, number=4)]
    swapped = of(calls, calls[::-1])
    assert sizes(step_of(swapped), 1) == [8, 4]  # that they run in another order, the walk finds
    with pytest.raises(UsageError, match="ranks disagree"):
        walk.refuse_deadlock(step_of(swapped))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            all_reduce(16, source="b, node 7"),
            "rank 1, call 1 (b, node 7): all_reduce of 16 B float",
        ),
        (all_reduce(8, dtype="double"), "rank 1, call 1: all_reduce of 8 B double"),
        (Call("broadcast", nbytes=8, dtype="float", root=1), "broadcast of 8 B float with root 1"),
    ],
)
def test_the_first_call_of_each_rank_that_differs_is_told(other: Call, words: str) -> None:
    same = all_reduce(64)
    given = of([same, all_reduce(8, source="a, node 5"), same], [same, other, other])
    error = refused(given)
    assert error.exit == 2
    assert words in error.message
    assert error.message.count("rank 0, call 1 (a, node 5)") == 1


def test_a_call_that_some_ranks_lack_is_told() -> None:
    assert "rank 1: none" in refused(of([all_reduce(4), all_reduce(8)], [all_reduce(4)])).message


def test_numbers_that_do_not_meet_are_told() -> None:
    calls = [[all_reduce(4, number=k), all_reduce(4, number=k + 1)] for k in (3, 4)]
    error = refused(of(*calls, world=2), Asked(iteration="0"))
    assert "rank 1: none" in error.message


def test_of_a_group_ranks_name_the_same_members() -> None:
    groups = [{"dp": (0, 1)}, {"dp": (0, 1, 2)}, {"dp": (0, 1, 2)}]
    each = [RankTrace(k, 3, (all_reduce(group="dp"),), of) for k, of in enumerate(groups)]
    error = refused(Trace("test", tuple(each)))
    assert "members of group 'dp': 0 1, and 0 1 2" in error.message


def test_what_only_some_ranks_tell_holds_for_all() -> None:
    step = step_of(of([all_reduce(op="none")], [all_reduce(op="max")]))
    assert {op.op for rank in (0, 1) for op in ops(step, rank)} == {"max"}
    assert not any("sums" in each for each in step.assumptions)
    roots = [[Call("broadcast", nbytes=4, dtype="float", root=root)] for root in (-1, 1, 0)]
    assert ops(step_of(of(*roots[:2])))[0].root == 1
    assert "roots 0, 1" in refused(of(*roots[1:])).message
    error = refused(of([all_reduce(op="min")], [all_reduce(op="max")]))
    assert "by max, min" in error.message


def test_what_nobody_tells_is_assumed_and_said() -> None:
    step = step_of(trace([all_reduce(op="none"), Call("broadcast", nbytes=4, dtype="float")]))
    assert [(op.op, op.root) for op in ops(step)] == [("sum", -1), ("none", 0)]
    assert any("does not name are sums (1 call)" in each for each in step.assumptions)
    assert any("first members (1 call)" in each for each in step.assumptions)


def test_messages_meet_in_order_of_their_tags() -> None:
    send = [Call("send", nbytes=n, dtype="float", peer=1, tag=tag) for n, tag in ((4, 1), (8, 2))]
    receive = [
        Call("recv", nbytes=n, dtype="float", peer=0, tag=tag) for n, tag in ((8, 2), (4, 1))
    ]
    step = step_of(of(send, receive))
    assert [op.peer for rank in (0, 1) for op in ops(step, rank)] == [1, 1, 0, 0]
    walk.refuse_deadlock(step)
    error = refused(of(send, [replace(receive[0], nbytes=12), receive[1]]))
    assert "send of 8 B float to member 1" in error.message
    assert "recv of 12 B float from member 0" in error.message
    assert "rank 1: none" in refused(of(send, receive[:1])).message


@pytest.mark.parametrize("crossed", [False, True])
def test_an_exchange_in_which_all_send_first_and_wait_then_is_no_deadlock(crossed: bool) -> None:
    """As torch's batch_isend_irecv does it; of several tags each rank may take another first."""
    ranks = []
    for rank in (0, 1):
        tags = (1, 2) if not (crossed and rank) else (2, 1)
        sends, receives = (
            [Call(kind, nbytes=4 * tag, dtype="float", peer=1 - rank, tag=tag) for tag in tags]
            for kind in ("send", "recv")
        )
        waits = [Call("wait", after=(at,)) for at in range(4)]
        ranks.append([*sends, *receives, *waits])
    step = step_of(of(*ranks))
    walk.refuse_deadlock(step)
    assert [op.kind for op in ops(step)] == ["send"] * 2 + ["recv"] * 2 + ["wait"] * 4


def test_ranks_of_several_jobs_are_refused() -> None:
    ranks = (RankTrace(0, 2, (all_reduce(),)), RankTrace(1, 4, (all_reduce(),)))
    assert "rank 0 of 2, rank 1 of 4" in refused(Trace("test", ranks)).message


# (3) ranks that are missing

SYMMETRIC = Asked(assume_symmetric=True)
GRID = {0: {"0": (0, 1), "1": (0, 2)}, 3: {"2": (2, 3), "3": (1, 3)}}  # of 2 x 2 ranks


def corner(rank: int, world: int = 4) -> RankTrace:
    tp, dp = GRID[rank]
    calls = (all_reduce(8, group=tp), all_reduce(4, group=dp), all_reduce(4))
    return RankTrace(rank, world, calls, GRID[rank])


def test_missing_ranks_are_refused() -> None:
    error = refused(Trace("test", (corner(0), corner(3))))
    assert "of 4 ranks the trace lacks 1,2" in error.message
    assert "--assume-symmetric" in error.hint


def test_ranks_that_are_missing_do_as_the_others_where_that_is_said() -> None:
    step = step_of(Trace("test", (corner(0), corner(3))), SYMMETRIC)
    (program,) = step.programs
    assert program.ranks == (0, 1, 2, 3)
    assert step.groups == {"0": ((0, 1), (2, 3)), "1": ((0, 2), (1, 3))}
    assert any("ranks 1,2 are not in the trace" in each for each in step.assumptions)
    walk.refuse_deadlock(step)


def test_groups_of_missing_ranks_are_moved() -> None:
    step = step_of(Trace("test", (corner(0, 8),)), SYMMETRIC)
    assert step.groups["0"] == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert step.groups["1"] == ((0, 2), (1, 3), (4, 6), (5, 7))
    error = refused(Trace("test", (corner(0, 6),)), SYMMETRIC)
    assert "which ranks share group '1' with rank 4" in error.message
    part = step_of(Trace("test", (corner(3, 8),)), replace(SYMMETRIC, ranks="1,3"))
    assert (part.world, part.groups) == (2, {"3": ((0, 1),)})


def test_ranks_that_differ_leave_no_symmetry() -> None:
    other = replace(corner(3), calls=(all_reduce(16, group="2"), *corner(3).calls[1:]))
    error = refused(Trace("test", (corner(0), other)), SYMMETRIC)
    assert "all_reduce of 8 B float on 0, and all_reduce of 16 B float on 0" in error.message


def test_ranks_that_differ_in_what_they_compute_alone_are_symmetric() -> None:
    given = [corner(0), corner(3)]
    gaps = Call("compute", flops=5), *given[1].calls
    after = tuple(replace(call, after=(1,)) for call in gaps[2:])
    given[1] = replace(given[1], calls=(*gaps[:2], *after))
    calls = given[0].calls
    given[0] = replace(
        given[0], calls=(calls[0], *(replace(call, after=(0,)) for call in calls[1:]))
    )
    step = step_of(Trace("test", tuple(given)), SYMMETRIC)
    assert [op.after for op in ops(step, 1) if op.communicates] == [(), (0,), (0,)]


def test_messages_of_missing_ranks_are_moved() -> None:
    around = (
        Call("send", nbytes=4, dtype="float", peer=1),
        Call("recv", nbytes=4, dtype="float", peer=3),
    )
    step = step_of(Trace("test", (RankTrace(0, 4, around),)), SYMMETRIC)
    assert [[op.peer for op in ops(step, rank)] for rank in range(4)] == [
        [1, 3],
        [2, 0],
        [3, 1],
        [0, 2],
    ]
    walk.refuse_deadlock(step)


def test_unequal_blocks_leave_no_symmetry() -> None:
    call = Call("all_to_allv", nbytes=12, dtype="float", sends=(1, 2))
    given = Trace("test", (RankTrace(0, 2, (call,)),))
    assert "nothing says what missing ranks send" in refused(given, SYMMETRIC).message
    even = step_of(given, Asked(assume_symmetric=True, rebalance="mean"))
    assert ops(even, 1)[0].sends == (2, 2)


# (4) on other ranks


def test_a_part_of_the_ranks_does_what_they_do_among_themselves() -> None:
    calls = (all_reduce(8, group="tp"), all_reduce(4 * KIB), all_reduce(8, group="tp"))
    given = Trace(
        "test",
        tuple(RankTrace(k, 4, calls, {"tp": ((0, 1), (2, 3))[k // 2]}) for k in range(4)),
    )
    step = step_of(given, Asked(ranks="2-3"))
    assert (step.world, step.groups) == (2, {"tp": ((0, 1),)})
    assert sizes(step) == [8, 8]
    assert any("left out, of 8 KiB (2 calls)" in each for each in step.assumptions)
    assert step.recorded is None
    assert "no rank 4" in refused(given, Asked(ranks="2-4")).message
    alone = replace(given, ranks=given.ranks[2:])
    assert sizes(step_of(alone, Asked(ranks="2-3"))) == [8, 8]  # those of which nobody knows


ROWS = ((1, 5), (2, 0))


def uneven(rank: int, **fields: object) -> Call:
    row = ROWS[rank]
    told = {"nbytes": 4 * sum(row), "sends": row, "receives": tuple(r[rank] for r in ROWS)}
    return Call("all_to_allv", dtype="float", **{**told, **fields})  # type: ignore[arg-type]


def test_unequal_blocks_stay_what_they_are() -> None:
    step = step_of(of([uneven(0)], [uneven(1)]))
    assert [ops(step, rank)[0].sends for rank in (0, 1)] == [*ROWS]
    assert {ops(step, rank)[0].nbytes for rank in (0, 1)} == {24}  # of the busiest
    walk.refuse_deadlock(step)


def test_an_exchange_may_have_equal_blocks_on_some_ranks() -> None:
    equal = Call("all_to_all", nbytes=16, dtype="float")
    step = step_of(of([uneven(0, sends=(1, 2), receives=(1, 2), nbytes=12)], [equal]))
    assert [(op.kind, op.sends) for rank in (0, 1) for op in ops(step, rank)] == [
        ("all_to_allv", (1, 2)),
        ("all_to_allv", (2, 2)),
    ]
    walk.refuse_deadlock(step)


def test_blocks_are_made_equal_only_where_that_is_said() -> None:
    step = step_of(of([uneven(0)], [uneven(1)]), Asked(rebalance="mean"))
    assert {ops(step, rank)[0].sends for rank in (0, 1)} == {(2, 2)}
    assert any("rebalanced" in each for each in step.assumptions)
    assert step.name == "trace rebalance=mean"


def test_blocks_that_nobody_knows_are_refused_or_equal() -> None:
    given = of(*([uneven(k, sends=(), receives=(), nbytes=32)] for k in (0, 1)))
    assert "--assume-even" in refused(given).hint
    step = step_of(given, Asked(assume_even=True))
    assert ops(step)[0].sends == (4, 4)
    assert any("blocks are unknown have equal ones (2 calls)" in each for each in step.assumptions)


def test_what_is_received_is_what_is_sent() -> None:
    error = refused(of([uneven(0)], [uneven(1, receives=(4, 0))]))
    assert "4 elements from rank 0, which sends 5" in error.message


# (5) what is computed between calls

TIMED = (
    all_reduce(4, issued_ns=30_000, ends_ns=50_000, waits=True),
    all_reduce(8, issued_ns=60_000, begins_ns=60_000, ends_ns=95_000),
    Call("wait", issued_ns=80_000, ends_ns=95_000, after=(1,)),
)
WHOLE = ((10_000, 120_000),)


def written(step: Step) -> list[tuple[object, ...]]:
    return [
        ("compute", op.compute_ns)
        if op.kind == "compute"
        else ("wait", op.after)
        if op.kind == "wait"
        else (op.kind, op.nbytes, op.wait)
        for op in ops(step)
    ]


def test_time_from_a_return_to_the_next_call_is_computed_and_waiting_is_not() -> None:
    assert written(step_of(trace(TIMED, steps=WHOLE))) == [
        ("compute", 20_000),
        ("all_reduce", 4, "call"),
        ("compute", 10_000),
        ("all_reduce", 8, "later"),
        ("compute", 20_000),
        ("wait", (3,)),
        ("compute", 25_000),
    ]


@pytest.mark.parametrize(
    ("gaps", "found"), [("none", []), ("x0.5", [10_000, 5_000, 10_000, 12_500])]
)
def test_gaps_are_left_out_or_multiplied(gaps: str, found: list[int]) -> None:
    step = step_of(trace(TIMED, steps=WHOLE), Asked(gaps=gaps))
    assert [op.compute_ns for op in ops(step) if op.kind == "compute"] == found
    assert step.recorded is None
    assert step.name == f"trace gaps={gaps}"


@pytest.mark.parametrize("gaps", ["x", "half", "x-1", "0.5", "xnan", "x1e9"])
def test_gaps_that_mean_nothing_are_refused(gaps: str) -> None:
    assert f"--gaps {gaps}" in refused(trace(TIMED), Asked(gaps=gaps)).message


def test_computation_of_the_trace_is_kept_with_its_flops() -> None:
    computed = Call("compute", issued_ns=0, begins_ns=0, ends_ns=5_000, flops=8e9)
    step = step_of(trace([computed, all_reduce(4, issued_ns=9_000)]), Asked(gaps="x2"))
    first, second, _ = ops(step)
    assert (first.compute_ns, first.flops) == (10_000, 16e9)
    assert second.compute_ns == 8_000


def test_what_held_up_one_thread_while_another_went_on_is_waited_for_where_it_ended() -> None:
    calls = (
        all_reduce(4, issued_ns=0, ends_ns=40_000, waits=True),
        all_reduce(8, issued_ns=10_000, ends_ns=20_000, waits=True, group="other"),
        all_reduce(12, issued_ns=50_000, ends_ns=60_000, waits=True),
    )
    groups = {"other": (0, 1)}
    assert written(step_of(trace(calls, groups=groups))) == [
        ("all_reduce", 4, "later"),
        ("compute", 10_000),
        ("all_reduce", 8, "call"),
        ("wait", (0,)),
        ("compute", 10_000),
        ("all_reduce", 12, "call"),
    ]


def test_of_a_device_what_it_computed_counts() -> None:
    calls = [
        all_reduce(4, begins_ns=0, ends_ns=10_000),
        all_reduce(8, begins_ns=30_000, ends_ns=50_000),
    ]
    busy = ((2_000, 8_000), (25_000, 60_000))
    assert written(step_of(trace(calls, busy=busy))) == [
        ("all_reduce", 4, "later"),
        ("compute", 6_000),
        ("wait", (0,)),  # as it stood still until that ended
        ("compute", 5_000),
        ("all_reduce", 8, "later"),
        ("compute", 20_000),
    ]


BUCKETS = [
    all_reduce(4, issued_ns=10_000, ends_ns=30_000),
    all_reduce(8, issued_ns=25_000, ends_ns=50_000),
]


def test_a_series_without_a_wait_is_waited_for_where_it_ended_before_anything_else() -> None:
    """As DDP's buckets are, in C++."""
    step = step_of(trace(BUCKETS, steps=((0, 80_000),)))
    assert written(step) == [
        ("compute", 10_000),
        ("all_reduce", 4, "later"),
        ("compute", 15_000),
        ("all_reduce", 8, "later"),
        ("wait", (1, 3)),
        ("compute", 30_000),
    ]
    assert any("until they ended (4 calls)" in each for each in step.assumptions)


@pytest.mark.parametrize("end", [45_000, -1])
def test_a_series_that_had_not_ended_is_not_waited_for(end: int) -> None:
    last = replace(BUCKETS[1], ends_ns=50_000 if end > 0 else -1)
    step = step_of(trace([BUCKETS[0], last], steps=((0, 45_000),)))
    assert [op.kind for op in ops(step)][-2:] == ["all_reduce", "compute"]
    assert any(
        "at the step's end" in each and each.endswith("(4 calls)") for each in step.assumptions
    )


def moved(begins: int, ends: int, **fields: object) -> Call:
    """A call of a KiB a microsecond, of which the trace tells when data moved, and not when the
    program issued it."""
    size = (ends - begins) * KIB
    return all_reduce(size, begins_ns=1000 * begins, ends_ns=1000 * ends, **fields)


def computed(begins: int, ends: int, **fields: object) -> Call:
    times = {"begins_ns": 1000 * begins, "ends_ns": 1000 * ends}
    return Call("compute", **{**times, **fields})  # type: ignore[arg-type]


def under_way(took: int) -> tuple[object, ...]:
    return "all_reduce", took * KIB, "later"


FIRST, WAIT = under_way(10), ("wait", (0,))


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([moved(10, 18)], [WAIT, under_way(8)]),
        ([moved(15, 20)], [WAIT, ("compute", 5_000), under_way(5)]),
        ([moved(10, 18, after=(0,))], [WAIT, under_way(8)]),
        ([moved(0, 30), computed(10, 20)], [under_way(30), WAIT, ("compute", 10_000)]),
        ([computed(15, 30)], [WAIT, ("compute", 5_000), ("compute", 15_000)]),
        ([computed(0, 12), moved(12, 20)], [("compute", 12_000), under_way(8)]),
        ([moved(4, 16)], [("compute", 4_000), under_way(12)]),  # the first had not ended
    ],
)
def test_time_in_which_only_data_moved_is_no_computing(
    calls: list[Call], found: list[tuple[object, ...]]
) -> None:
    step = step_of(trace([moved(0, 10), *calls]))
    assert written(step)[: len(found) + 1] == [FIRST, *found]


@pytest.mark.parametrize("second", ["send", "recv"])
def test_messages_that_ranks_exchange_are_no_computing_and_no_deadlock(second: str) -> None:
    """Ranks that are not in the trace do as rank 0, which receives before it sends, or after."""
    first = "recv" if second == "send" else "send"
    message = {"nbytes": 4, "dtype": "float", "peer": 1}
    calls = (
        Call(first, begins_ns=0, ends_ns=10_000, **message),  # type: ignore[arg-type]
        Call(second, begins_ns=10_000, ends_ns=20_000, **message),  # type: ignore[arg-type]
    )
    step = step_of(Trace("test", (RankTrace(0, 2, calls),)), SYMMETRIC)
    assert [op.kind for op in ops(step)] == [first, second, "wait"]
    walk.refuse_deadlock(step)


def test_times_that_are_unknown_make_no_gap() -> None:
    calls = [
        all_reduce(4, issued_ns=5_000, waits=True),  # when it came back nobody knows
        all_reduce(8, issued_ns=90_000),
        Call("wait", after=(1,)),
        all_reduce(12),
        all_reduce(16),
    ]
    step = step_of(trace(calls))
    assert [op.kind for op in ops(step)] == [
        "all_reduce",
        "all_reduce",
        "wait",
        "all_reduce",
        "all_reduce",
    ]
    assert step.recorded is None
    assert any("computed after 4 calls is left out" in each for each in step.assumptions)
    bare = step_of(trace([all_reduce(4), all_reduce(8)]))
    assert "the trace has no times of a whole iteration" in bare.assumptions


def test_a_wait_of_which_only_the_end_is_known_is_no_computing() -> None:
    calls = [all_reduce(4, issued_ns=0), Call("wait", ends_ns=50_000, after=(0,))]
    step = step_of(trace([*calls, all_reduce(8, issued_ns=60_000)]))
    assert written(step)[1:3] == [("wait", (0,)), ("compute", 10_000)]


def test_a_wait_for_what_is_not_replayed_is_none() -> None:
    calls = [
        all_reduce(4, issued_ns=0),
        all_reduce(8, issued_ns=10, ends_ns=20, waits=True),
        Call("wait", issued_ns=15_000, ends_ns=30_000, after=(0,)),
        all_reduce(12, issued_ns=35_000),
    ]
    step = step_of(trace(calls, steps=((5, 40_000),)))
    assert [op.kind for op in ops(step)] == [
        "all_reduce",
        "compute",
        "compute",
        "all_reduce",
        "compute",
    ]
    assert [op.compute_ns for op in ops(step) if op.kind == "compute"] == [14_980, 5_000, 5_000]


def test_calls_that_nobody_waits_for_are_told() -> None:
    step = step_of(trace([all_reduce(4), all_reduce(8), Call("wait", after=(0,)), all_reduce(12)]))
    assert any(
        "waited for at the step's end" in each and each.endswith("(4 calls)")
        for each in step.assumptions
    )


def test_operations_of_a_lane_before_one_that_is_waited_for_are_waited_for() -> None:
    step = step_of(trace([all_reduce(4), all_reduce(8), Call("wait", after=(1,))]))
    assert not any("no wait" in each for each in step.assumptions)


def test_what_comes_after_operations_waits_for_them() -> None:
    calls = [
        all_reduce(4),
        Call("compute", flops=5, after=(0,)),
        all_reduce(8, group="dp", after=(0,)),
        Call("mark", after=(2,)),
    ]
    step = step_of(trace(calls, groups={"dp": (0, 1)}))
    assert [(op.kind, op.after) for op in ops(step)] == [
        ("all_reduce", ()),
        ("compute", (0,)),
        ("all_reduce", (0,)),
        ("wait", (2,)),
    ]
    assert not any("no wait" in each for each in step.assumptions)


def test_messages_wait_for_nothing_as_others_may_need_what_comes_behind_them() -> None:
    calls = [
        Call("recv", nbytes=4, dtype="float", peer=1, tag=1),
        Call("send", nbytes=4, dtype="float", peer=1, tag=2, after=(0,)),
        Call("send", nbytes=4, dtype="float", peer=1, tag=3),
    ]
    others = [
        Call("recv", nbytes=4, dtype="float", peer=0, tag=3),
        Call("send", nbytes=4, dtype="float", peer=0, tag=1, after=(0,)),
        Call("recv", nbytes=4, dtype="float", peer=0, tag=2),
    ]
    ranks = [RankTrace(rank, 2, tuple(each)) for rank, each in enumerate((calls, others))]
    step = step_of(Trace("test", tuple(ranks)))
    assert [op.after for rank in (0, 1) for op in ops(step, rank)] == [()] * 6


def test_what_is_left_of_computation_that_waits_is_its_wait() -> None:
    calls = [all_reduce(4), Call("compute", flops=5, after=(0,)), all_reduce(8)]
    step = step_of(trace(calls), Asked(gaps="none"))
    assert [(op.kind, op.after) for op in ops(step)] == [
        ("all_reduce", ()),
        ("wait", (0,)),
        ("all_reduce", ()),
    ]


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("megatron:llama3-8b", "tp=1,cp=2,dp=1"),
        ("megatron:llama3-8b", "tp=2,dp=1"),
        ("powersgd:gpt2-124m", "dp=2"),
        ("ddp:gpt2-124m", "dp=2"),
    ],
)
def test_a_step_that_is_replayed_is_the_same_but_for_its_lanes(name: str, layout: str) -> None:
    made = presets.find_step(name, layout, layers=1)
    found = step_of(trace_of_step(made))
    assert [replace(op, lane="") for op in ops(found)] == [replace(op, lane="") for op in ops(made)]


def test_programs_of_ranks_that_compute_alike_are_one() -> None:
    assert len(step_of(of([all_reduce(source="a")], [all_reduce(source="b")])).programs) == 1
    late = of(TIMED, [replace(call, issued_ns=call.issued_ns + 5_000) for call in TIMED])
    assert len(step_of(late).programs) == 2


# (6), (7) what is lost


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (all_reduce(dtype="posit", source="r0.json, node 9"), "there is no datatype 'posit'"),
        (all_reduce(group="ep", source="r0.json, node 9"), "there is no group 'ep' with rank 0"),
        (Call("all_shout", source="r0.json, node 9"), "there is no operation 'all_shout'"),
        (
            Call("recv", nbytes=4, dtype="float", source="r0.json, node 9"),
            "nothing says who the other end",
        ),
        (all_reduce(5, source="r0.json, node 9"), "5 B are not a whole number"),
    ],
)
def test_what_is_unknown_is_told_with_its_place(call: Call, why: str) -> None:
    given = trace([all_reduce(4), call])
    error = refused(given)
    assert f"r0.json, node 9: {why}" in error.message
    assert "--partial" in error.hint
    step = step_of(given, Asked(partial=True))
    assert sizes(step) == [4]
    assert any(f"left out: r0.json, node 9: {why}" in each for each in step.assumptions)


def test_what_little_is_lost_is_told_only() -> None:
    calls = [all_reduce(4 * KIB * (1 + k), number=k) for k in range(30)]
    lost = (Lost("a coalesced call without shapes", 1, 4 * KIB),)
    step = step_of(trace(calls, lost=lost))
    assert any("coalesced call without shapes (2 calls, 8 KiB)" in a for a in step.assumptions)
    assert step.recorded is None
    more = (Lost("a coalesced call without shapes", 1, 100 * KIB),)
    assert "of the trace's bytes" in refused(trace(calls, lost=more)).message
    assert "of the trace's calls" in refused(trace(calls, lost=(Lost("x", 1),))).message


@pytest.mark.parametrize("why", EARLIER)
def test_calls_that_were_lost_before_whole_iterations_are_told_only(why: str) -> None:
    lost = (Lost(why, 5000),)
    calls = [all_reduce(n) for n in [4, 8] * 3]
    step = step_of(trace(calls, lost=lost))
    assert sizes(step) == [4, 8]
    assert any(why in each for each in step.assumptions)
    assert "add --partial" in refused(trace(calls[:3], lost=lost)).hint


def test_a_trace_without_operations_is_refused() -> None:
    assert "no operation between ranks" in refused(trace([Call("compute", flops=1)])).message


# groups


def test_groups_of_like_use_are_one_family() -> None:
    names = {0: "7", 1: "7", 2: "9", 3: "9"}
    ranks = [
        RankTrace(
            rank,
            4,
            (all_reduce(group=name),),
            {name: (0, 1) if rank < 2 else (2, 3)},
            described={name: "mesh_dp"},
        )
        for rank, name in names.items()
    ]
    step = step_of(Trace("test", tuple(ranks)))
    assert step.groups == {"mesh_dp": ((0, 1), (2, 3))}
    assert len(step.programs) == 1


def test_groups_that_share_ranks_are_several_families() -> None:
    groups = {"a": (0, 1), "b": (0, 1)}
    step = step_of(trace([all_reduce(group="a"), all_reduce(group="b")], groups=groups))
    assert step.groups == {"a": ((0, 1),), "b": ((0, 1),)}
    described = {"a": "dp", "b": "dp"}
    named = step_of(
        trace([all_reduce(group="a"), all_reduce(group="b")], groups=groups, described=described)
    )
    assert [*named.groups] == ["dp", "dp 2"]


def test_a_step_is_the_same_whatever_was_recorded() -> None:
    step = step_of(trace(MARKED, steps=MARKS), Asked(iteration="0"))
    assert replace(step, recorded=None).title == step.title
    titles = [step_of(trace(TIMED, steps=WHOLE), Asked(gaps=g)).title for g in ("keep", "x1")]
    assert {title.rpartition("#")[2] for title in titles} == {titles[0].rpartition("#")[2]}


def test_places_of_waits_are_of_operations_before() -> None:
    step = step_of(trace(TIMED, steps=WHOLE))
    waits = [(at, op.after) for at, op in enumerate(ops(step)) if op.kind == "wait"]
    assert all(each < at for at, after in waits for each in after)
    assert all(a.kind != b.kind for a, b in pairwise(ops(step)))


NS = st.integers(-1, 5_000)
PLACE = st.integers(-1, 3)
CALLS = st.builds(
    Call,
    kind=st.sampled_from(["all_reduce", "all_to_allv", "all_to_all", "gather", "send", "recv"])
    | st.sampled_from(["wait", "compute", "mark", "barrier", "all_shout"]),
    group=st.sampled_from(["", "g", "h"]),
    nbytes=st.sampled_from([0, 4, 8, 5]),
    dtype=st.sampled_from(["float", "float", "double", "posit"]),
    op=st.sampled_from(["none", "sum", "max"]),
    root=PLACE,
    peer=PLACE,
    sends=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    receives=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    number=PLACE,
    issued_ns=NS,
    begins_ns=NS,
    ends_ns=NS,
    after=st.lists(st.integers(0, 9), max_size=2).map(tuple),
    waits=st.booleans(),
)
ASKED = st.builds(
    Asked,
    ranks=st.sampled_from(["", "0", "0-1"]),
    iteration=st.sampled_from(["", "0", "0-1"]),
    assume_symmetric=st.booleans(),
    assume_even=st.booleans(),
    rebalance=st.sampled_from(["", "mean"]),
    partial=st.booleans(),
)


@drawn(
    calls=st.lists(st.lists(CALLS, max_size=8), min_size=1, max_size=2),
    ranks=st.sets(st.integers(0, 2), min_size=1),
    steps=st.sampled_from([(), ((0, 2_000), (2_000, 5_000)), ((9, 2),)]),
    busy=st.sampled_from([(), ((5, 70), (100, 3_000))]),
    asked=ASKED,
)
def test_whatever_a_trace_says_it_is_a_step_or_refused(
    calls: list[list[Call]],
    ranks: set[int],
    steps: tuple[Interval, ...],
    busy: tuple[Interval, ...],
    asked: Asked,
) -> None:
    each = [
        RankTrace(k, 3, tuple(calls[k % len(calls)]), {"g": (0, 1)}, steps=steps, busy=busy)
        for k in sorted(ranks)
    ]
    try:
        step = step_of(Trace("test", tuple(each)), asked)
    except UsageError as e:
        assert e.message
    else:
        assert sum(op.communicates for program in step.programs for op in program.ops)
