"""What came of steps: what is exposed, by rounds, and where operations' time goes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.features.training import overlap
from collbench.features.training.overlap import (
    bound_mean,
    divide_phases,
    find_overlaps,
    list_blamed,
    list_timed,
    predict_step_ns,
)
from collbench.features.training.parts import PARTS
from collbench.features.training.step import Op, Program, Step
from collbench.records.types import Operation, Record
from collbench.suite.case import Case

MS = 1_000_000


def case(part: str, **more: object) -> Case:
    given = {"backend": "gloo", "n": 2, "nbytes": 1024, "subject": "x #1", "dtype": "uint8", **more}
    return Case(collective=part, **given)  # type: ignore[arg-type]


def parts(step: list[float], computation: list[float], communication: list[float]) -> list[Record]:
    times = zip(PARTS, (step, computation, communication), strict=True)
    return [
        Record(case=case(part), status="ok", times_ns=[round(t * MS) for t in of])
        for part, of in times
    ]


ROUNDS = np.random.default_rng(1).normal(1, 0.01, 40)


@pytest.mark.parametrize(("step", "hidden"), [(10.0, 1.0), (14.0, 0.0), (12.0, 0.5), (16.0, -0.5)])
def test_what_is_exposed_and_hidden(step: float, hidden: float) -> None:
    """Computation of 10 ms and communication of 4."""
    records = parts([step * r for r in ROUNDS], [10 * r for r in ROUNDS], [4 * r for r in ROUNDS])
    (one,) = find_overlaps(records)
    assert one.exposed.lo <= (step - 10) * MS <= one.exposed.hi
    assert one.exposed.estimate == pytest.approx((step - 10) * MS, rel=0.05, abs=0.01 * MS)
    assert one.hidden is not None
    assert one.hidden.lo <= hidden + 1e-6
    assert one.hidden.hi >= hidden - 1e-6
    assert one.ideal.estimate == pytest.approx(10 / step, rel=1e-6)


def test_no_more_than_the_step_is_exposed() -> None:
    """However long single steps take: the share is that of rounds, not of the times' means."""
    step = np.random.default_rng(3).permutation([*([0.6, 0.5, 0.7] * 8), *([9.0] * 16)]).tolist()
    (one,) = find_overlaps(parts(step, [0.1] * 40, [0.5] * 40))
    assert one.exposed.estimate > np.median(step) * MS
    assert one.share == pytest.approx(np.median([(each - 0.1) / each for each in step]))


def test_what_all_parts_share_in_a_round_does_not_widen_the_interval() -> None:
    """A machine that is slow by turns is so for all parts of a round."""
    moods = np.tile([1.0, 2.0], 20)
    (one,) = find_overlaps(parts([*(12 + 5 * moods)], [*(10 + 5 * moods)], [*(4 * moods)]))
    assert one.exposed.estimate == pytest.approx(2 * MS)
    assert one.exposed.hi - one.exposed.lo < 0.01 * MS


def pipeline(compute: str = "sleep") -> Step:
    """Two stages, each of which computes 5 forward and 5 backward for one micro-batch."""
    message = {"group": "pp", "nbytes": 8, "dtype": "float", "wait": "call"}
    work = Op(kind="compute", compute_ns=5 * MS)

    def one(kind: str, peer: int) -> Op:
        return Op(kind=kind, peer=peer, **message)  # type: ignore[arg-type]

    first = (work, one("send", 1), one("recv", 1), work)
    last = (one("recv", 0), work, work, one("send", 0))
    programs = Program((0,), first), Program((1,), last)
    return Step("x", 2, programs, {"pp": ((0, 1),)}, compute=compute)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_watched", [True, False])
def test_waits_for_other_ranks_computation_are_no_exposed_communication(is_watched: bool) -> None:
    """20 of 21 are computation and bubble, and half of 2 of communication is hidden."""
    records = parts([21.0] * 8, [10.0] * 8, [2.0] * 8)
    step = pipeline()
    if is_watched:
        operations = [
            [seen((0, 3 * MS)) if op.kind == "compute" else seen((0, 1)) for op in program.ops]
            for program in step.programs
        ]
        records[0] = replace(records[0], operations=operations)
    (one,) = find_overlaps(records, lambda case: step)
    assert one.hidden is not None
    assert (one.bubble, one.exposed.estimate) == (10 * MS, 1 * MS)
    assert (one.hidden.estimate, one.ideal.estimate) == (0.5, 20 / 21)


def test_a_bubble_goes_by_flops_where_rank_0_alone_was_watched() -> None:
    """Else what others compute would take no time."""
    records = parts([21.0] * 8, [10.0] * 8, [2.0] * 8)
    first, last = pipeline().programs
    ops = (replace(op, flops=1.0) for op in last.ops if op.kind == "compute")
    other = replace(last, ops=(last.ops[0], *ops, last.ops[-1]))
    step = replace(pipeline(), programs=(first, other))
    watched = [seen((0, 3 * MS)) for _ in first.ops]
    records[0] = replace(records[0], operations=[watched, [Operation()] * len(other.ops)])
    (one,) = find_overlaps(records, lambda case: step)
    assert one.bubble == 10 * MS


def test_a_step_whose_computation_is_left_out_has_no_bubble() -> None:
    records = parts([2.0] * 8, [0.1] * 8, [2.0] * 8)
    (one,) = find_overlaps(records, lambda case: pipeline("none"))
    assert one.bubble == 0


def test_ranks_that_compute_alike_have_no_bubble() -> None:
    programs = Program((0,), OPS), Program((1,), OPS)
    records = parts([12.0] * 8, [10.0] * 8, [4.0] * 8)
    (one,) = find_overlaps(records, lambda case: Step("x", 2, programs))
    assert one.bubble == 0


@pytest.mark.parametrize("centre", [1000.0, 0.0, -1000.0])
def test_rounds_that_hang_together_widen_the_interval_whatever_their_sign(centre: float) -> None:
    """The same series around another centre: neighbours correlate by .9."""
    rng, values = np.random.default_rng(3), np.zeros(200)
    for at in range(1, 200):
        values[at] = 0.9 * values[at - 1] + rng.normal()
    found = [bound_mean(values * 40 + c) for c in (1e6, centre)]
    assert found[1].hi - found[1].lo == pytest.approx(found[0].hi - found[0].lo)


def test_few_rounds_bound_nothing() -> None:
    (one,) = find_overlaps(parts([12.0] * 3, [10.0] * 3, [4.0] * 3))
    assert math.isinf(one.exposed.hi)


def test_no_communication_is_not_hidden() -> None:
    records = parts([10.0] * 8, [10.0] * 8, [0.0] * 8)
    (one,) = find_overlaps(records)
    assert one.hidden is None


def test_parts_that_are_missing_failed_or_not_of_the_same_rounds_make_no_step() -> None:
    records = parts([12.0] * 8, [10.0] * 8, [4.0] * 8)
    assert find_overlaps(records[:2]) == []
    assert find_overlaps(parts([12.0] * 8, [10.0] * 7, [4.0] * 8)) == []
    failed = [Record(case=each.case, status="failed") for each in records[:1]]
    assert find_overlaps([*failed, *records[1:]]) == []


OPS = (
    Op(kind="all_reduce", phase="backward", nbytes=800, dtype="float", op="sum"),
    Op(kind="compute", flops=1.0),
    Op(kind="all_reduce", phase="backward", nbytes=400, dtype="float", op="sum"),
    Op(kind="wait"),
)


def seen(*spans: tuple[int, int], alone: tuple[int, ...] = ()) -> Operation:
    begins, ends = zip(*spans, strict=True)
    return Operation(begins_ns=[*begins], ends_ns=[*ends], alone_ns=[*alone])


def test_time_under_way_counts_once_and_what_was_waited_of_it() -> None:
    """Two all_reduces, 0..60 and 20..100 of which 70..110 the program stood still."""
    step = Step("x", 2, (Program((0, 1), OPS),))
    watched = [
        seen((0, 60), (0, 60), alone=(30, 31, 32)),
        seen((5, 70), (5, 70)),
        seen((20, 100), (20, 100), alone=(10, 10, 10)),
        seen((70, 110), (70, 110)),
    ]
    (part,) = divide_phases(step, watched)
    assert (part.ops, part.nbytes, part.sent) == (2, 1200, 1200.0)
    assert (part.busy, part.waited, part.alone) == (100, 30, 41)
    assert part.busbw == 12.0
    first, second = list_timed(step.programs[0], watched)
    assert (first.took, first.hidden, first.alone) == (60, 1.0, 31)
    assert (second.begins, second.took, second.hidden) == (60, 40, 1 - 30 / 40)


def test_operations_that_do_not_fit_the_step_are_not_told() -> None:
    step = Step("x", 2, (Program((0, 1), OPS),))
    assert divide_phases(step, [seen((0, 1))]) == []


def test_what_two_kinds_are_waited_for_at_once_is_divided() -> None:
    """Of a wait of 40, one is under way for 20, both for the next 10 and the other for the last."""
    ops = (
        Op(kind="all_reduce", group="tp", nbytes=8, dtype="float", op="sum"),
        Op(kind="all_gather", group="dp", nbytes=8, dtype="float"),
        Op(kind="wait"),
    )
    step = Step("x", 2, (Program((0, 1), ops),), {"tp": ((0, 1),), "dp": ((0, 1),)})
    watched = [seen((0, 90)), seen((80, 100)), seen((60, 100))]
    assert [part.waited for part in divide_phases(step, watched)] == [20 + 5, 5 + 10]


def test_an_operation_waits_for_the_one_before_it_in_its_lane() -> None:
    ops = (
        Op(kind="all_gather", phase="forward", nbytes=8, dtype="float"),
        Op(kind="reduce_scatter", phase="backward", nbytes=8, dtype="float", op="sum"),
        Op(kind="wait"),
    )
    step = Step("x", 2, (Program((0, 1), ops),))
    watched = [seen((0, 60)), seen((10, 100)), seen((20, 100))]
    assert [part.busy for part in divide_phases(step, watched)] == [60, 40]
    assert [part.waited for part in divide_phases(step, watched)] == [40, 40]


def test_an_operation_waits_for_those_it_comes_after() -> None:
    ops = (
        Op(kind="reduce_scatter", group="dp", nbytes=8, dtype="float", op="sum"),
        Op(kind="all_reduce", group="rep", nbytes=4, dtype="float", op="sum", after=(0,)),
        Op(kind="wait"),
    )
    step = Step("x", 2, (Program((0, 1), ops),), {"dp": ((0, 1),), "rep": ((0, 1),)})
    watched = [seen((0, 60)), seen((10, 100)), seen((20, 100))]
    assert [part.busy for part in divide_phases(step, watched)] == [60, 40]


def test_a_wait_before_an_operation_that_comes_after_others_is_waited() -> None:
    """From 20 until 60, where the first all_reduce has ended."""
    ops = (OPS[0], Op(kind="compute", after=(0,)), Op(kind="wait"))
    step = Step("x", 2, (Program((0, 1), ops),))
    begun = Operation(begins_ns=[60], ends_ns=[90], waits_ns=[20])
    watched = [seen((0, 60)), begun, seen((90, 90))]
    assert [part.waited for part in divide_phases(step, watched)] == [40]


@pytest.mark.parametrize(("ends", "waited"), [((), 70), ((Op(kind="wait"),), 0)])
def test_what_nothing_waits_for_is_waited_for_at_the_end(ends: tuple[Op, ...], waited: int) -> None:
    ops = (OPS[0], OPS[1], *ends)
    step = Step("x", 2, (Program((0, 1), ops),))
    watched = [seen((0, 100)), seen((5, 30)), *(seen((30, 30)) for _ in ends)]
    assert [part.waited for part in divide_phases(step, watched)] == [waited]


@pytest.mark.parametrize(
    ("kind", "busbw"), [("broadcast", 8.0), ("reduce", 8.0), ("all_gather", 6.0), ("send", 8.0)]
)
def test_busbw_of_a_phase_counts_what_busbw_counts(kind: str, busbw: float) -> None:
    """800 B among 4 in 100 ns; of a root's operation all of it, whoever sends it."""
    op = Op(kind=kind, nbytes=800, dtype="float", root=0, peer=1)
    step = Step("x", 4, (Program((0, 1, 2, 3), (op, Op(kind="wait"))),))
    (part,) = divide_phases(step, [seen((0, 100)), seen((100, 100))])
    assert part.busbw == busbw


def test_busbw_of_uneven_blocks_counts_the_busiest_port() -> None:
    """Rank 0 sends nothing and receives 100 floats of each of two others."""
    programs = tuple(
        Program((rank,), (Op(kind="all_to_allv", sends=sends, dtype="float"), Op(kind="wait")))
        for rank, sends in enumerate([(0, 0, 0), (100, 0, 0), (100, 0, 0)])
    )
    (part,) = divide_phases(Step("x", 3, programs), [seen((0, 100)), seen((100, 100))])
    assert part.busbw == 8.0


@pytest.mark.parametrize("kind", ["recv", "barrier"])
def test_what_sends_nothing_has_no_busbw(kind: str) -> None:
    step = Step("x", 2, (Program((0, 1), (Op(kind=kind, peer=1, nbytes=8 * (kind == "recv")),)),))
    (part,) = divide_phases(step, [seen((0, 100))])
    assert part.busbw is None


def alone(communication: int, computation: float, *, told: bool = True) -> float | None:
    """A step of two all_reduces of which the first is under way while the rank computes."""
    ops = (OPS[0], OPS[1], OPS[0], OPS[3])
    step = Step("x", 2, (Program((0, 1), ops),))
    times = (communication,) if told else ()
    watched = [seen((0, 1), alone=times), seen((1, 3)), seen((3, 4)), seen((4, 5))]
    whole, computed, _ = parts([1.0] * 3, [computation] * 3, [1.0] * 3)
    whole = Record(
        case=whole.case, status="ok", times_ns=whole.times_ns, operations=[watched, watched]
    )
    return predict_step_ns(step, whole, computed)


def test_what_a_step_takes_if_operations_are_as_fast_as_by_themselves() -> None:
    assert alone(3 * MS, 5.0) == pytest.approx((5 + 3) * MS)  # the first is hidden
    assert alone(7 * MS, 5.0) == pytest.approx((7 + 7) * MS)  # computation is
    assert alone(3 * MS, 5.0, told=False) is None


def test_an_operation_that_a_rank_is_alone_in_takes_it_no_time() -> None:
    call, work = replace(OPS[0], group="g", wait="call"), Op(kind="compute", flops=1e9)
    programs = Program((0, 1), (call,)), Program((2,), (call, work))
    step = Step("x", 3, programs, {"g": ((0, 1), (2,))})
    whole, computed, _ = parts([1.0] * 3, [5.0] * 3, [1.0] * 3)
    whole = replace(whole, operations=[[seen((0, 1), alone=(3 * MS,))]])
    assert predict_step_ns(step, whole, computed) == pytest.approx(5 * MS)
    (phase,) = divide_phases(step, whole.operations[0])
    assert phase.alone == 3 * MS
    (phase,) = divide_phases(replace(step, groups={"g": ((0,), (1, 2))}), whole.operations[0])
    assert phase.alone is None


def predict(took: list[int], work: Op) -> float | None:
    """What a step of 8 ms of computation takes, whose computation was seen to take these times,
    while operations of no time are under way."""
    step = Step("x", 2, (Program((0, 1), (work, OPS[0], OPS[3])),))
    none = [0] * len(took)
    watched = [
        Operation(begins_ns=none, ends_ns=took),
        Operation(begins_ns=none, ends_ns=none, alone_ns=[0]),
        Operation(begins_ns=none, ends_ns=none),
    ]
    whole, computed, _ = parts([1.0] * 3, [8.0] * 3, [1.0] * 3)
    return predict_step_ns(step, replace(whole, operations=[watched, watched]), computed)


def test_a_step_at_stand_alone_speeds_takes_no_less_than_its_computation() -> None:
    """Though most computations were shorter in the steps that were watched than their mean."""
    work = Op(kind="compute", flops=1e9)
    assert predict([1, 1, 1, 1, 9], work) == pytest.approx(8 * MS)
    assert predict([], work) == pytest.approx(8 * MS)  # of a step too long to be watched


def test_a_step_whose_computations_are_unknown_has_no_stand_alone_speed() -> None:
    assert predict([], Op(kind="compute", touched=1024)) is None


def test_the_operation_that_costs_most_is_first() -> None:
    times = np.arange(100, 120)
    spared = [5, 0, 9, 0]
    left_out = [
        Operation(with_ns=[*times], without_ns=[*(times - less)]) if less else Operation()
        for less in spared
    ]
    first, second = list_blamed(Program((0, 1), OPS), left_out)
    assert (first.at, first.less.estimate, first.less.lo, first.less.hi) == (2, 9, 9, 9)
    assert (second.at, second.op) == (0, OPS[0])


def test_times_by_themselves_are_looked_up_by_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of the whole program for each operation takes minutes where there are many."""
    ops = tuple(Op(kind="all_reduce", nbytes=8 * at, dtype="float", op="sum") for at in range(40))
    labels: list[Op] = []
    label = Op.label.fget

    def read(op: Op) -> str:
        labels.append(op)
        return str(label(op))

    monkeypatch.setattr(Op, "label", property(read))
    timed = list_timed(Program((0,), ops), [seen((0, 1), alone=(5,))] * 40)
    assert [one.alone for one in timed] == [5] * 40
    assert len(labels) <= 2 * len(ops)


def test_waits_of_a_step_are_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each operation anew they take minutes where there are many."""
    count, sorted_spans = 60, []
    merge = overlap.union_spans

    def union(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        sorted_spans.extend(spans := [*spans])
        return merge(spans)

    monkeypatch.setattr(overlap, "union_spans", union)
    queued = Op(kind="all_reduce", nbytes=8, dtype="float", op="sum")
    ops = (queued, Op(kind="compute", flops=1.0), Op(kind="wait")) * count
    rng = np.random.default_rng(1)
    begins = np.cumsum(rng.integers(1, 9, len(ops)))
    ends = begins + rng.integers(0, 30, len(ops))
    watched = [seen((int(b), int(e))) for b, e in zip(begins, ends, strict=True)]
    program = Program((0,), ops)
    timed = list_timed(program, watched)
    assert len(sorted_spans) <= len(ops)
    spans = overlap.under_way(program, watched, 0)
    waits = overlap._waiting_spans(program, watched, 0)
    assert any(0 < entry.hidden < 1 for entry in timed)
    assert [(entry.took, entry.hidden) for entry in timed] == [
        (end - begin, 1 - overlap.common_length([(begin, end)], waits) / max(1, end - begin))
        for begin, end in spans[::3]
    ]
