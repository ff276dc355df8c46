"""Who hung a job, of dumps that are made up: each has one cause, which is to be named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from factories import call, calls_of, trace
from msgspec.structs import replace

from collbench.features.traces.analysis.hang import Hang, find_hang
from collbench.features.traces.analysis.operations import join_calls
from collbench.features.traces.types import EARLIER, OVERFLOWED, SKIPPED, Call, Lost, Trace, Unread

DONE, IN, LATER = ({"state": state} for state in ("completed", "started", "scheduled"))
GROUPS = {"a": (0, 1), "b": (1, 2), "c": (2, 0)}


def reduces(*states: dict[str, Any], **fields: Any) -> list[Call]:
    return calls_of(*(("all_reduce", state) for state in states), **fields)


def judged(*programs: Sequence[Call] | None, **fields: Any) -> Hang | None:
    made = trace(*programs, backend=fields.pop("backend", "nccl"), **fields)
    return find_hang(made, join_calls(made))


def of_groups(*programs: Sequence[Call], **fields: Any) -> Hang | None:
    """Of ranks that are in the groups that they call something on, and in those of GROUPS."""
    made = trace(*programs, backend="nccl", **fields)
    ranks = tuple(
        replace(rank, groups={k: v for k, v in GROUPS.items() if rank.rank in v})
        for rank in made.ranks
    )
    return find_hang(found := Trace("", ranks), join_calls(found))


def test_the_rank_that_never_called_what_others_wait_in_is_named() -> None:
    found = judged(reduces(DONE, IN), reduces(DONE), reduces(DONE, IN))
    assert found
    assert (found.cause, found.culprits) == ("missing", (1,))
    (front,) = found.fronts
    assert (front.number, front.before) == (2, 1)
    assert (front.waiting, front.missing) == ((0, 2), (1,))


def by_sizes(sizes: Sequence[int]) -> list[Call]:
    """all_reduces of these sizes, all done but for the last."""
    states = [DONE] * (len(sizes) - 1) + [IN]
    named = zip(sizes, states, strict=True)
    return calls_of(*(("all_reduce", {**state, "nbytes": size}) for size, state in named))


STEP = (4, 4, 4, 8, 16)  # bytes


@pytest.mark.parametrize(
    ("front", "other", "skipped"),
    [
        ((4,), (8,), (4, 4, 4)),
        ((4, 4, 4), (4, 4, 8), (4,)),
        ((4, 4, 4, 8), (4, 4, 4, 16), (8,)),
        ((4, 4, 4, 8, 16), (4, 4, 4, 8, 4), (16,)),
    ],
)
@pytest.mark.parametrize("guilty", [0, 1])
def test_the_rank_that_skipped_calls_is_named_where_earlier_ones_show_their_order(
    guilty: int, front: tuple[int, ...], other: tuple[int, ...], skipped: tuple[int, ...]
) -> None:
    programs = [by_sizes(STEP * 3 + front), by_sizes(STEP * 3 + other)]
    found = judged(*(programs if guilty else reversed(programs)))
    assert found
    assert (found.cause, found.culprits) == ("other", (guilty,))
    assert tuple(call.nbytes for call in found.fronts[0].skipped) == skipped


@pytest.mark.parametrize(
    ("other", "repeats"), [((4, 8, 8), True), ((4, 16), False)], ids=["called twice", "skipped"]
)
def test_a_rank_that_calls_what_it_called_just_before_may_have_called_it_once_more(
    other: tuple[int, ...], repeats: bool
) -> None:
    loop = (4, 8, 16)
    front = (*loop * 3, *loop)[: 9 + len(other)]
    found = judged(by_sizes(front), by_sizes((*loop * 3, *other)))
    assert found and found.culprits == (1,)
    assert found.fronts[0].repeats is repeats


@pytest.mark.parametrize("last", [(4, 8), (32, 64), (32, 4)], ids=["both", "new", "one new"])
def test_no_rank_skipped_a_call_where_earlier_ones_do_not_tell(last: tuple[int, int]) -> None:
    before = (4, 4, 8, 4) if last == (4, 8) else STEP * 2
    found = judged(*(by_sizes((*before, size)) for size in last))
    assert found
    assert (found.culprits, found.fronts[0].skipped) == ((0, 1), ())


def test_a_trace_that_ends_before_others_called_it_accuses_nobody() -> None:
    made = trace(reduces(DONE, {**IN, "issued_ns": 70}), reduces(DONE), backend="nccl")
    causes = []
    for until in (60, 80):
        short = replace(made.ranks[1], until=until)
        found = find_hang(ended := replace(made, ranks=(made.ranks[0], short)), join_calls(ended))
        assert found
        causes.append((found.cause, found.fronts[0].unknown))
    assert causes == [("all", (1,)), ("missing", ())]


def test_calls_whose_end_is_not_told_are_not_where_a_job_stands() -> None:
    found = judged(reduces({}, IN), reduces({}))
    assert found
    assert [front.number for front in found.fronts] == [2]


def test_since_when_is_told_by_the_first_that_waits() -> None:
    waiting = [reduces({**IN, "issued_ns": ns}) for ns in (70, 50)]
    found = judged(waiting[0], [], waiting[1])
    assert found
    assert found.fronts[0].since_ns == 50


def test_calls_that_wait_behind_the_first_are_not_where_a_group_stands() -> None:
    found = judged(reduces(DONE, IN, LATER, LATER), reduces(DONE))
    assert found
    assert found.fronts[0].number == 2


def test_a_rank_without_a_dump_is_told_from_one_that_never_called() -> None:
    found = judged(reduces(DONE, IN), None, reduces(DONE, IN))
    assert found
    assert (found.cause, found.culprits) == ("silent", (1,))
    assert found.fronts[0].missing == ()


def test_a_rank_that_crashed_is_named_beside_one_that_came_not_so_far() -> None:
    found = judged(reduces(DONE, IN), None, reduces(DONE))
    assert found
    assert (found.cause, found.culprits) == ("missing", (1, 2))


def test_the_rank_that_called_another_size_is_named() -> None:
    odd = calls_of(("all_reduce", {**IN, "nbytes": 8}))
    found = judged(reduces(IN), odd, reduces(IN))
    assert found
    assert (found.cause, found.culprits) == ("other", (1,))


def test_what_did_not_keep_a_job_from_going_on_is_not_what_hung_it() -> None:
    odd = calls_of(("all_reduce", {**DONE, "nbytes": 8}), ("all_reduce", IN))
    found = judged(reduces(DONE, IN), odd, reduces(DONE))
    assert found
    assert (found.cause, found.culprits) == ("missing", (2,))


def test_a_rank_that_itself_waits_elsewhere_is_no_culprit() -> None:
    found = of_groups(
        reduces(IN, group="a"),  # waits for rank 1
        reduces(IN, group="b"),  # which waits for rank 2
        calls_of(("all_reduce", DONE), group="b", first=0),
    )
    assert found
    assert (found.cause, found.culprits) == ("missing", (2,))
    assert [front.group.name for front in found.fronts] == ["b", "a"]


def test_ranks_that_wait_for_each_other_are_a_circle() -> None:
    found = of_groups(
        reduces(DONE, IN, group="a") + reduces(DONE, group="c"),
        reduces(DONE, IN, group="b") + reduces(DONE, group="a"),
        reduces(DONE, IN, group="c") + reduces(DONE, group="b"),
    )
    assert found
    assert found.cause == "circle"
    assert sorted(found.culprits) == [0, 1, 2]


def test_a_circle_that_others_wait_for_does_not_have_them_in_it() -> None:
    made = trace(
        reduces(DONE, IN, group="a") + reduces(DONE, group="b"),
        reduces(DONE, IN, group="b") + reduces(DONE, group="a") + reduces(DONE, group="c"),
        reduces(DONE, IN, group="c"),
        backend="nccl",
    )
    groups = {"a": (0, 1), "b": (0, 1), "c": (1, 2)}
    ranks = tuple(
        replace(rank, groups={k: v for k, v in groups.items() if rank.rank in v})
        for rank in made.ranks
    )
    found = find_hang(made := Trace("", ranks), join_calls(made))
    assert found
    assert (found.cause, sorted(found.culprits)) == ("circle", [0, 1])


def test_where_all_are_in_it_nobody_is_named() -> None:
    found = judged(reduces(DONE, IN), reduces(DONE, IN))
    assert found
    assert (found.cause, found.culprits, found.is_blamed) == ("all", (0, 1), False)


def test_a_rank_whose_device_has_not_begun_what_others_have_is_named() -> None:
    found = judged(reduces(DONE, IN), reduces(DONE, LATER), reduces(DONE, IN))
    assert found
    assert (found.cause, found.culprits) == ("behind", (1,))
    assert found.fronts[0].waiting == (0, 2)


def test_where_no_device_has_begun_nobody_is_behind() -> None:
    found = judged(reduces(DONE, LATER), reduces(DONE, LATER))
    assert found
    assert (found.cause, found.fronts[0].behind) == ("all", ())


def test_groups_that_devices_take_in_another_order_are_a_circle() -> None:
    one = reduces(IN, group="a") + reduces(LATER, group="b")
    other = reduces(IN, group="b") + reduces(LATER, group="a")
    found = judged(one, other, groups={"a": (0, 1), "b": (0, 1)})
    assert found
    assert (found.cause, sorted(found.culprits)) == ("circle", [0, 1])


def test_where_some_are_through_the_others_are_told() -> None:
    found = judged(reduces(DONE, DONE), reduces(DONE, IN))
    assert found
    assert (found.cause, found.culprits, found.is_blamed) == ("some", (1,), False)


def test_a_receive_that_nobody_sends_to_waits_for_that_rank() -> None:
    waits = call("recv", peer=1, **IN)
    found = judged([*reduces(DONE), waits], reduces(DONE))
    assert found
    assert (found.cause, found.culprits) == ("missing", (1,))


def test_a_message_that_both_are_in_is_for_nobody() -> None:
    found = judged(
        [*reduces(DONE), call("recv", peer=1, **IN)], [*reduces(DONE), call("send", peer=0, **IN)]
    )
    assert found
    assert (found.cause, found.culprits) == ("all", (0, 1))
    assert len(found.fronts) == 1


def test_a_send_that_has_ended_before_its_receive_is_not_missing() -> None:
    sent = call("send", peer=0, **DONE)
    found = judged([*reduces(DONE), call("recv", peer=1, **IN)], [*reduces(DONE), sent])
    assert found
    assert (found.cause, found.culprits) == ("all", (0,))


@pytest.mark.parametrize(("backend", "named"), [("gloo", True), ("nccl", False)])
def test_a_send_of_another_tag_is_none_where_the_library_goes_by_tags(
    backend: str, named: bool
) -> None:
    sent = call("send", peer=0, tag=6, **DONE)
    waits = call("recv", peer=1, tag=5, **IN)
    found = judged([*reduces(DONE), waits], [*reduces(DONE), sent], backend=backend)
    assert found
    assert (found.culprits, found.is_blamed) == ((1,) if named else (0,), named)


def test_calls_that_have_begun_on_gloo_are_not_through_though_none_has_ended() -> None:
    found = judged([call("recv", peer=1, **IN)], [call("recv", peer=0, **IN)], backend="gloo")
    assert found
    assert (found.cause, sorted(found.culprits)) == ("circle", [0, 1])


ANYBODYS = call("recv", peer=-1, **IN)


def test_a_receive_from_anybody_that_no_rank_sends_to_hangs_and_accuses_nobody() -> None:
    found = judged([*reduces(DONE), ANYBODYS], reduces(DONE), backend="gloo")
    assert found
    assert (found.cause, found.culprits, found.is_blamed) == ("all", (0,), False)
    assert found.fronts[0].unknown == (1,)


def test_a_rank_that_waits_for_a_message_from_anybody_is_no_culprit_elsewhere() -> None:
    others = reduces(DONE, IN)
    found = judged([*reduces(DONE), ANYBODYS], others, others, backend="gloo")
    assert found
    assert (found.cause, found.culprits, found.is_blamed) == ("all", (0,), False)
    assert [front.missing for front in found.fronts] == [(), (0,)]


@pytest.mark.parametrize(("tag", "named"), [(5, False), (6, True)])
def test_a_send_whose_receive_may_be_one_from_anybody_accuses_nobody(tag: int, named: bool) -> None:
    received = call("recv", peer=-1, tag=tag, **DONE)
    sends = call("send", peer=0, tag=5, **IN)
    found = judged([*reduces(DONE), received], [*reduces(DONE), sends], backend="gloo")
    assert found
    assert (found.culprits, found.is_blamed) == ((0,) if named else (1,), named)


def test_a_dump_that_lost_calls_may_have_lost_the_send() -> None:
    lost = Lost("its buffer kept the last calls only", calls=7)
    found = judged([*reduces(DONE), call("recv", peer=1, **IN)], reduces(DONE), lost=(lost,))
    assert found
    assert not found.is_blamed


OVERWRITTEN = (Lost(OVERFLOWED, calls=900),)


@pytest.mark.parametrize("lost", [OVERWRITTEN, (Lost(SKIPPED, calls=9), *OVERWRITTEN)])
@pytest.mark.parametrize(
    ("waits", "others", "named"),
    [
        (call("recv", peer=1, number=9, **IN), [call("send", peer=0, **DONE)] * 3, True),
        (call("send", peer=1, number=9, **IN), [call("recv", peer=0, **DONE)], True),
        (call("send", peer=1, number=9, **LATER), [call("recv", peer=0, **DONE)], True),
        # its data may be there: it waits for its own rank
        (call("recv", peer=1, number=9, **LATER), [call("send", peer=0, **DONE)], False),
        (call("recv", peer=1, number=9, **IN), [], False),
        (call("recv", peer=1, **IN), [call("send", peer=0, **DONE)], False),
    ],
)
def test_where_first_calls_are_overwritten_the_last_messages_of_both_ranks_tell(
    waits: Call, others: list[Call], named: bool, lost: tuple[Lost, ...]
) -> None:
    found = judged([*reduces(DONE), waits], [*reduces(DONE), *others], lost=lost)
    assert found
    assert (found.culprits, found.is_blamed) == ((1,) if named else (0,), named)


def test_a_message_of_a_batch_that_hangs_elsewhere_accuses_nobody_where_calls_are_lost() -> None:
    batch = [call(kind, peer=peer, number=9, **IN) for kind, peer in (("send", 1), ("recv", 2))]
    ended = [call("recv", peer=0, **DONE)]
    found = judged(batch, ended, [call("send", peer=0, **IN)], lost=OVERWRITTEN)
    assert found
    assert not found.is_blamed


def test_a_rank_that_waits_for_a_message_is_no_culprit_elsewhere() -> None:
    found = judged(
        reduces(DONE, IN),
        [*reduces(DONE), call("recv", peer=2, **IN)],
        reduces(DONE),
    )
    assert found
    assert (found.cause, found.culprits) == ("missing", (2,))


def test_a_dump_that_lost_its_beginning_is_no_call_that_is_missing() -> None:
    found = judged(reduces(DONE, DONE, IN), calls_of(("all_reduce", IN), first=3))
    assert found
    assert found.fronts[0].number == 3
    assert found.cause == "all"


def test_a_dump_without_any_call_of_a_group_accuses_nobody_unless_it_goes_back_so_far() -> None:
    late = calls_of(("all_reduce", {**DONE, "issued_ns": 900}), group="b", first=60)
    early = calls_of(("all_reduce", {**DONE, "issued_ns": 100}), group="b", first=60)
    waits = calls_of(("all_reduce", {**IN, "issued_ns": 500}), group="a", first=40)
    unknown, known = of_groups(waits, late, late), of_groups(waits, early, early)
    assert unknown
    assert unknown.fronts[0].unknown == (1,)
    assert known
    assert (known.cause, known.culprits) == ("missing", (1,))


def test_a_rank_that_called_nothing_at_all_is_named() -> None:
    found = judged(reduces(IN), [], reduces(IN))
    assert found
    assert (found.cause, found.culprits) == ("missing", (1,))


def test_gloos_dumps_in_which_all_is_scheduled_name_who_lacks_a_call() -> None:
    found = judged(reduces(LATER, LATER), reduces(LATER), backend="gloo")
    assert found
    assert (found.cause, found.culprits) == ("missing", (1,))
    assert found.fronts[0].before == 1


def test_gloos_dumps_of_ranks_that_called_the_same_show_nothing() -> None:
    assert judged(reduces(LATER, LATER), reduces(LATER, LATER), backend="gloo") is None


def test_gloos_dumps_name_who_called_another_size() -> None:
    odd = calls_of(("all_reduce", {**LATER, "nbytes": 8}))
    found = judged(reduces(LATER), odd, reduces(LATER), backend="gloo")
    assert found
    assert (found.cause, found.culprits) == ("other", (1,))


def test_gloos_dumps_without_one_ranks_stand_at_the_last_call() -> None:
    found = judged(reduces(LATER, LATER), None, reduces(LATER, LATER), backend="gloo")
    assert found
    assert (found.cause, found.culprits, found.fronts[0].number) == ("silent", (1,), 2)


def test_a_trace_that_ends_within_a_call_names_who_never_called_it() -> None:
    timed = [call(span=(0, 9), number=0)]
    cut = [*timed, call(issued_ns=20, number=1, state="started")]
    found = judged(cut, timed, cut, backend="gloo")
    assert found
    assert (found.cause, found.culprits) == ("missing", (1,))


def test_a_job_that_came_to_its_end_did_not_hang() -> None:
    assert judged(reduces(DONE, DONE), reduces(DONE, DONE)) is None


def test_traces_that_end_apart_did_not_hang() -> None:
    timed = [call(span=(0, 9)), call(span=(9, 20))]
    assert judged(timed, timed[:1]) is None


# what ranks counted themselves


def dumps(*reached: tuple[int, int, int] | None, number: int = 41, **fields: Any) -> Hang | None:
    """Of dumps of active calls alone: those of all but the last rank are in a call."""
    waits = calls_of(("all_reduce", IN), first=number)
    made = trace(*[waits] * (len(reached) - 1), [], backend="nccl")
    ranks = tuple(
        replace(rank, only_active=True, reached={"": told} if told else {}, **fields)
        for rank, told in zip(made.ranks, reached, strict=True)
    )
    return find_hang(found := replace(made, ranks=ranks), join_calls(found))


def test_a_rank_that_completed_what_others_wait_in_is_not_accused() -> None:
    found = dumps((41, 41, 40), (41, 41, 41))
    assert found
    assert (found.cause, found.is_blamed, found.fronts[0].done) == ("some", False, (1,))


def test_a_rank_whose_count_is_behind_is_named() -> None:
    found = dumps((41, 41, 40), (41, 41, 40), (40, 40, 40))
    assert found
    assert (found.cause, found.culprits) == ("missing", (2,))


def test_a_rank_whose_count_began_nothing_is_named() -> None:
    found = dumps((0, 0, -1), (-1, -1, -1), number=0)
    assert found
    assert (found.cause, found.culprits) == ("missing", (1,))


def test_an_empty_dump_without_a_count_tells_nothing() -> None:
    found = dumps((41, 41, 40), None)
    assert found
    assert (found.is_blamed, found.fronts[0].unknown) == (False, (1,))


def test_a_count_settles_a_ring_that_overflowed() -> None:
    later = calls_of(("all_reduce", IN), first=90)
    made = trace(calls_of(("all_reduce", IN), first=41), later, backend="nccl")
    other = replace(made.ranks[1], reached={"": (90, 90, 89)})
    found = find_hang(both := replace(made, ranks=(made.ranks[0], other)), join_calls(both))
    assert found
    assert found.fronts[0].done == (1,)


def test_an_empty_dump_is_no_send_that_is_missing() -> None:
    waits = [call("recv", peer=1, **IN)]
    made = trace(waits, [], backend="nccl")
    ranks = (made.ranks[0], replace(made.ranks[1], only_active=True))
    found = find_hang(both := replace(made, ranks=ranks), join_calls(both))
    assert found
    assert not found.is_blamed


@pytest.mark.parametrize(("rank", "cause"), [(1, "unread"), (-1, "unread"), (2, "silent")])
def test_a_rank_whose_file_cannot_be_read_is_not_accused(rank: int, cause: str) -> None:
    made = trace(reduces(DONE, IN), None, reduces(DONE, IN), backend="nccl")
    lame = replace(made, unread=(Unread("x", "the file is empty", rank),))
    found = find_hang(lame, join_calls(lame))
    assert found
    assert (found.cause, found.is_blamed) == (cause, cause == "silent")


def test_blocks_that_sender_and_receiver_do_not_agree_on_are_named() -> None:
    programs = [
        [call("all_to_allv", 32, number=2, sends=(5, 3), receives=(4, 2), **IN)],
        [call("all_to_allv", 16, number=2, sends=(2, 2), receives=(1, 3), **IN)],
    ]
    found = judged(*programs)
    assert found
    assert (found.cause, found.is_blamed) == ("unequal", True)
    (block,) = found.fronts[0].unequal
    assert (block.source, block.target, block.sends, block.expects) == (0, 1, 3, 1)


# calls that were lost

UNREADABLE = Lost("calls have a value that cannot be read (x: entry 3)", calls=1)


def of_lossy(*programs: Sequence[Call], rank: int = 2, **fields: Any) -> Hang | None:
    """Of ranks of which one has lost calls, whose number and group are told in ``fields``."""
    made = trace(*programs, backend="nccl")
    ranks = [replace(one, **fields) if one.rank == rank else one for one in made.ranks]
    return find_hang(lossy := replace(made, ranks=tuple(ranks)), join_calls(lossy))


@pytest.mark.parametrize("numbers", [{}, {"": (2,)}], ids=["unread", "uninterpreted"])
def test_a_rank_whose_last_call_was_lost_is_not_accused(
    numbers: dict[str, tuple[int, ...]],
) -> None:
    waits = reduces(DONE, IN)
    found = of_lossy(waits, waits, reduces(DONE), lost=(UNREADABLE,), lost_numbers=numbers)
    assert found
    assert (found.is_blamed, found.fronts[0].unknown) == (False, (2,))


def test_a_rank_that_lost_all_calls_of_a_group_is_not_accused() -> None:
    waits = reduces(IN)
    found = of_lossy(waits, waits, [], lost=(UNREADABLE,))
    assert found
    assert (found.is_blamed, found.fronts[0].unknown) == (False, (2,))


@pytest.mark.parametrize("numbers", [{"": (1,)}, {"b": (9,)}, {"": (-1,)}])
def test_a_lost_call_whose_place_is_told_hides_no_rank_that_never_called_another(
    numbers: dict[str, tuple[int, ...]],
) -> None:
    waits = reduces(DONE, DONE, IN)
    late = calls_of(("all_reduce", DONE), first=2)
    found = of_lossy(waits, waits, late, lost=(UNREADABLE,), lost_numbers=numbers)
    assert found
    assert (found.cause, found.culprits) == ("missing", (2,))


@pytest.mark.parametrize("why", EARLIER)
def test_calls_lost_before_all_others_hide_no_rank_that_never_called_another(why: str) -> None:
    waits = reduces(DONE, DONE, IN)
    late = calls_of(("all_reduce", DONE), first=2)
    found = of_lossy(waits, waits, late, lost=(Lost(why, calls=1),))
    assert found
    assert (found.cause, found.culprits) == ("missing", (2,))


def test_calls_without_numbers_are_not_matched_beyond_a_lost_one() -> None:
    waits = reduces(DONE, IN, number=-1)
    odd = [*reduces(DONE, number=-1), call("all_gather", number=-1, **IN)]
    sure, unsure = (of_lossy(waits, waits, odd, lost=lost) for lost in ((), (UNREADABLE,)))
    assert sure and unsure
    assert (sure.cause, sure.culprits) == ("other", (2,))
    assert (unsure.is_blamed, unsure.fronts[0].odd) == (False, {})


def test_a_member_of_a_coalesced_call_that_was_lost_makes_the_others_no_other_call() -> None:
    pair = [call("all_reduce", number=2, **IN), call("all_gather", number=2, **IN)]
    found = of_lossy(pair, pair, pair[1:], lost=(UNREADABLE,), lost_numbers={"": (2,)})
    assert found
    assert not found.is_blamed
