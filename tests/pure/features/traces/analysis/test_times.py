"""Times of a trace, against examples that were reckoned by hand."""

from __future__ import annotations

from typing import Any

import pytest
from factories import call, calls_of, trace
from msgspec.structs import replace

from collbench.features.traces.analysis import times
from collbench.features.traces.analysis.operations import Joined, join_calls
from collbench.features.traces.types import Call, Trace

# two all_reduces of 1200 B: rank 2 comes to the first 90 ns after rank 0, to the second 10 ns
SPANS = (((0, 100), (200, 230)), ((40, 100), (200, 230)), ((90, 100), (210, 230)))


def reduced(spans: Any = SPANS) -> Trace:
    return trace(*([call(nbytes=1200, span=span) for span in of] for of in spans))


def joined(spans: Any = SPANS) -> Joined:
    return join_calls(reduced(spans))


def parts(joined: Joined, shared: bool) -> list[times.Part]:
    return [times.make_part(each, shared) for each in times.list_operations(joined)]


def traffic(made: Trace) -> list[times.Traffic]:
    return times.list_traffic(made, times.list_operations(join_calls(made)))


def late(spans: Any = SPANS, shared: bool = True) -> list[times.Late]:
    return times.find_late(reduced(spans), joined(spans), shared)


def test_a_transfer_takes_the_least_over_ranks_and_waits_are_what_others_take_more() -> None:
    found = [meeting.time for meeting in joined().meetings]
    assert found == [(10, 90), (20, 10)]


def test_an_operation_of_which_a_rank_has_no_times_has_none() -> None:
    (meeting,) = join_calls(trace([call(span=(0, 1))], [call()])).meetings
    assert meeting.time is None


def test_bytes_and_busbw_of_a_kind_are_those_of_its_transfers() -> None:
    (part,) = parts(joined(), True)
    assert (part.ops, part.nbytes, part.members) == (2, 2400, 3)
    assert (part.sent, part.total) == (3200, 9600)  # 2 (n-1)/n of the size, of each rank
    assert (part.transfer, part.wait, part.timed) == (30, 100, 2)
    assert part.busbw == pytest.approx(3200 / 30)


def test_blocks_of_other_members_than_a_groups_are_unknown() -> None:
    odd = call("all_to_allv", nbytes=12, sends=(3,))
    (part,) = parts(join_calls(trace([call("all_to_allv", nbytes=12, sends=(1, 2))], [odd])), True)
    assert part.total == 8 + 6


def lengths(*took: int, **fields: Any) -> list[Call]:
    """Calls of which the trace tells how long they took and not when."""
    return [
        replace(call(nbytes=1200, number=number, **fields), length_ns=ns)
        for number, ns in enumerate(took)
    ]


def test_operations_of_which_only_lengths_are_known_add_up() -> None:
    matches = join_calls(trace(lengths(10, 10), lengths(14, 30), host=""))
    (part,) = parts(matches, False)
    assert (part.transfer, part.wait, part.bound) == (20, 24, False)
    assert part.busbw == pytest.approx(120)


def test_lengths_of_messages_that_may_have_overlapped_are_a_bound() -> None:
    halves = lengths(10, 10, kind="send", peer=1), lengths(14, 30, kind="recv", peer=0)
    (part,) = parts(join_calls(trace(*halves, host="")), False)
    assert (part.transfer, part.wait, part.bound) == (20, None, True)


def test_members_of_a_coalesced_call_count_its_length_once() -> None:
    members = [replace(each, number=4) for each in lengths(10, 10)]
    (part,) = parts(join_calls(trace(members, members, host="")), False)
    assert (part.transfer, part.timed) == (10, 2)


def test_what_a_late_rank_costs_adds_up_where_only_lengths_are_known() -> None:
    made = trace(lengths(5, 5, 5), lengths(50, 60, 70), host="")
    assert times.find_late(made, join_calls(made), False)[0].cost == 165


def test_lengths_alone_do_not_tell_when_operations_were_under_way() -> None:
    made = trace(lengths(10, 10), lengths(14, 30), host="")
    assert (times.measure_exposed(made), [row.busy for row in traffic(made)]) == ([], [None])


# four that rank 0 has handed over when rank 1, 30 ns later, hands over the first: they queue
QUEUED = tuple(tuple((begin + k, 100 + 10 * k) for k in range(4)) for begin in (0, 30))


@pytest.mark.parametrize("shared", [True, False])
def test_operations_that_transfer_or_wait_together_count_once(shared: bool) -> None:
    (part,) = parts(joined(QUEUED), shared)
    assert (part.transfer, part.wait) == (130 - 30, 33)
    assert part.busbw == 4 * 1200 / 100


def waiting(begin: int) -> list[times.Late]:
    """Rank 0 waits for the four from then on."""
    made = reduced(QUEUED)
    wait = Call("wait", after=(3,), begins_ns=begin, ends_ns=130)
    first = replace(made.ranks[0], calls=(*made.ranks[0].calls, wait))
    made = replace(made, ranks=(first, *made.ranks[1:]))
    return times.find_late(made, join_calls(made), True)


@pytest.mark.parametrize(("begin", "cost"), [(0, 33), (10, 23), (40, 0)])
def test_being_late_costs_what_others_stood_still_meanwhile(begin: int, cost: int) -> None:
    assert [(each.rank, each.last, each.cost) for each in waiting(begin)] == [
        (1, 4, cost),
        (0, 0, 0),
    ]


def test_groups_of_one_label_count_as_one_rank_has_them() -> None:
    labels = {"5": "tp", "6": "tp"}
    of = [("5", (0, 1)), ("5", (0, 1)), ("6", (2, 3)), ("6", (2, 3))]
    made = trace(*(calls_of("all_gather", nbytes=800, group=name) for name, _ in of))
    ranks = tuple(
        replace(rank, groups={name: members}, described=labels)
        for rank, (name, members) in zip(made.ranks, of, strict=True)
    )
    (part,) = parts(join_calls(Trace("", ranks)), True)
    assert (part.group, part.ops, part.nbytes) == ("tp", 1, 800)
    assert part.total == 4 * 400


@pytest.mark.parametrize(
    ("groups", "labels"),
    [
        ([(0, 1), (0, 1), (2, 3), (2, 3)], ["unnamed, 2 ranks 1 apart"]),
        ([(0, 1, 3), (0, 1, 3), (2,), (0, 1, 3)], ["0", "2"]),
        (
            [(0, 1), (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)],
            ["unnamed, 2 ranks 1 apart", "unnamed, 4 ranks 1 apart"],
        ),
    ],
)
def test_groups_that_nobody_named_are_told_apart_by_their_ranks(
    groups: list[tuple[int, ...]], labels: list[str]
) -> None:
    made = trace(*(calls_of("all_gather", nbytes=800, group=str(g[0])) for g in groups))
    ranks = tuple(
        replace(rank, groups={str(g[0]): g}, described={str(g[0]): "undefined"})
        for rank, g in zip(made.ranks, groups, strict=True)
    )
    found = {part.group for part in parts(join_calls(Trace("", ranks)), True)}
    assert sorted(found) == labels


def test_messages_take_the_lesser_of_both_sides() -> None:
    programs = [[call("send", 800, (0, 50), peer=1)], [call("recv", 800, (30, 50), peer=0)]]
    (part,) = parts(join_calls(trace(*programs)), True)
    assert (part.kind, part.transfer, part.wait, part.busbw) == ("send/recv", 20, 30, 40)
    assert (part.sent, part.total) == (800, 800)


@pytest.mark.parametrize("side", [0, 1])
def test_messages_that_may_have_ended_before_tell_no_waits(side: int) -> None:
    sides = [call("send", 800, (0, 50), peer=1), call("recv", 800, (30, 50), peer=0)]
    sides[side] = replace(sides[side], seen_late=True)
    (part,) = parts(join_calls(trace(*([each] for each in sides))), True)
    assert (part.transfer, part.wait, part.busbw, part.bound) == (20, None, 40, True)


def test_an_exchange_is_reckoned_by_its_busiest_rank() -> None:
    programs = [
        [call("all_to_allv", 16, (0, 10), sends=(1, 3))],
        [call("all_to_allv", 32, (0, 10), sends=(2, 6))],
    ]
    (part,) = parts(join_calls(trace(*programs)), True)
    assert part.busbw == 12 / 10  # rank 1 gets 3 floats of rank 0, and 6 of its own stay
    assert part.total == 4 * (3 + 2)  # what ranks keep is not sent


@pytest.mark.parametrize(
    ("kind", "sends"), [("all_to_all", ()), ("all_to_allv", (512, 512)), ("all_to_allv", ())]
)
def test_an_even_exchange_has_one_busbw_however_it_is_told(
    kind: str, sends: tuple[int, ...]
) -> None:
    made = trace(*[[call(kind, 4096, (0, 1000), sends=sends)]] * 2)
    (part,) = parts(join_calls(made), True)
    assert (part.busbw, part.sent) == (2.048, 2048)


def test_what_a_group_and_a_phase_send_is_a_share_of_all() -> None:
    made = trace(*[[call(nbytes=300, phase="a"), call("all_gather", 1200, phase="b")]] * 2)
    found = traffic(made)
    assert [(each.phase, each.total, each.share) for each in found] == [
        ("a", 600, 1 / 3),
        ("b", 1200, 2 / 3),
    ]


def test_what_the_busiest_rank_sends_is_what_one_rank_does() -> None:
    made = trace(
        [call("send", 800, peer=1), call(nbytes=300)],
        [call("recv", 800, peer=0), call(nbytes=300), call(nbytes=300, group="1")],
    )
    last = replace(made.ranks[1], groups={"1": (1, 2)}, described={"1": "world"})
    made = replace(made, ranks=(made.ranks[0], last))
    (found,) = traffic(made)
    assert (found.ops, found.sent, found.total) == (2, 800 + 300, 800 + 3 * 300)


def test_operations_that_overlap_are_under_way_once() -> None:
    made = trace(*[[call(span=(0, 30)), call(span=(20, 40))]] * 2)
    (found,) = traffic(made)
    assert found.busy == 40


@pytest.mark.parametrize("shared", [True, False])
def test_who_comes_last_is_told_by_begins_and_by_durations_alike(shared: bool) -> None:
    found = {each.rank: each for each in late(shared=shared)}
    assert [found[rank].last for rank in range(3)] == [0, 0, 2]
    assert [found[rank].by for rank in range(3)] == [0, 20, 50]  # medians of 0 0, 40 0, 90 10
    assert [found[rank].cost for rank in range(3)] == [0, 0, 50 + 10]


@pytest.mark.parametrize("shared", [True, False])
def test_of_one_operation_the_last_to_come_is_told(shared: bool) -> None:
    assert [times.last_to_come(meeting, shared) for meeting in joined().meetings] == [2, 2]


def test_nobody_is_last_to_what_ranks_leave_as_they_like() -> None:
    (meeting,) = join_calls(trace([call("broadcast", span=(0, 9))], [call("broadcast")])).meetings
    assert times.last_to_come(meeting, True) is None


def test_the_rank_whose_being_late_costs_most_is_first() -> None:
    assert next(each.rank for each in late()) == 2


def test_a_rank_is_called_late_only_where_chance_would_not_make_it_so() -> None:
    often = [[span for _ in range(12) for span in of] for of in SPANS]
    assert not any(each.surely for each in late())
    assert [each.rank for each in late(often) if each.surely] == [2]


@pytest.mark.parametrize(("steps", "named"), [(10, []), (11, [1])])
def test_operations_of_one_step_are_one_sample_of_who_comes_last(
    steps: int, named: list[int]
) -> None:
    """Of two ranks, one of which comes last to all: a coin makes 10 of 10 in one of 512."""
    spans = [[(at + late, at + 100) for at in range(0, 300 * steps, 100)] for late in (0, 50)]
    marks = tuple((300 * step, 300 * step + 300) for step in range(steps))
    made = reduced(spans)
    made = replace(made, ranks=tuple(replace(rank, steps=marks) for rank in made.ranks))
    found = times.find_late(made, join_calls(made), True)
    assert [each.rank for each in found if each.surely] == named
    assert [(each.steps, each.last_steps) for each in found] == [(steps, steps), (steps, 0)]


def test_operations_that_a_rank_may_leave_before_others_come_tell_of_nobody() -> None:
    made = trace(*([call("broadcast", span=span) for span in of] for of in SPANS))
    assert times.find_late(made, join_calls(made), True) == []


def test_ranks_of_one_host_share_a_clock() -> None:
    made = reduced()
    assert times.find_clock(made, join_calls(made)).shared


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        (("a", "b", "b"), "on 2 hosts"),
        (("", "", ""), "does not say on which hosts"),
        (("a", "", "a"), "does not say on which hosts"),
    ],
)
def test_ranks_of_other_hosts_share_none(hosts: tuple[str, ...], words: str) -> None:
    made = reduced()
    ranks = tuple(replace(r, host=host) for r, host in zip(made.ranks, hosts, strict=True))
    found = times.find_clock(Trace("", ranks), joined())
    assert not found.shared
    assert words in found.why


def test_a_rank_that_leaves_before_another_comes_shows_another_clock() -> None:
    made = reduced([((0, 100),), ((101, 110),), ((0, 100),)])
    assert "leaves an operation before" in times.find_clock(made, join_calls(made)).why


def spent(calls: list[Call], **fields: Any) -> times.Exposed:
    (found,) = times.measure_exposed(trace(calls, **fields))
    return found


TALK = [call(span=(10, 30)), call(span=(50, 70))]


def test_exposed_is_communication_while_nothing_is_computed() -> None:
    found = spent(TALK, busy=((0, 20), (60, 80)), steps=((0, 100),))
    assert (found.window, found.communication, found.computation) == (100, 40, 40)
    assert (found.exposed, found.neither, found.how) == (20, 40, "computation")


def test_computation_may_be_calls() -> None:
    found = spent([*TALK, call("compute", span=(0, 20)), call("compute", span=(60, 80))])
    assert (found.window, found.exposed) == (80, 20)


def test_times_are_those_of_a_mean_iteration() -> None:
    found = spent(TALK, busy=((0, 20), (60, 80)), steps=((0, 50), (50, 100)))
    assert (found.window, found.communication, found.exposed, found.neither) == (50, 20, 10, 20)


def test_what_lies_beyond_the_iterations_is_left_out() -> None:
    found = spent([call(span=(90, 140))], busy=((95, 130),), steps=((0, 100),))
    assert (found.communication, found.computation, found.exposed) == (10, 5, 5)


def test_operations_that_overlap_are_exposed_once() -> None:
    found = spent([call(span=(0, 30)), call(span=(10, 40))], busy=((35, 50),))
    assert (found.communication, found.exposed) == (40, 35)


def test_where_computation_has_no_times_waits_are_what_is_exposed() -> None:
    waits = call("wait", 0, span=(20, 30))
    holds = call(span=(50, 70), issued_ns=48, waits=True)
    found = spent([TALK[0], waits, holds], steps=((0, 100),))
    assert (found.exposed, found.how) == (10 + 22, "waits")


def test_what_is_exposed_is_not_guessed() -> None:
    assert spent(TALK).exposed is None


def test_a_rank_without_times_has_no_line() -> None:
    assert times.measure_exposed(trace([call()])) == []


EXCHANGE = (
    [call("all_to_allv", 16, sends=(1, 3))],
    [call("all_to_allv", 32, sends=(2, 6))],
)


def test_what_ranks_send_and_get_is_told_over_the_mean() -> None:
    found = {share.rank: share for share in times.measure_imbalance(join_calls(trace(*EXCHANGE)))}
    assert (found[0].sent, found[1].sent) == (16, 32)
    assert (found[0].received, found[1].received) == (12, 36)
    assert (found[0].gets, found[1].gets) == (0.5, 1.5)
    assert found[1].sends == pytest.approx(32 / 24)


def test_what_ranks_get_is_taken_from_themselves_where_they_tell() -> None:
    told = ([replace(EXCHANGE[0][0], receives=(1, 2))], [replace(EXCHANGE[1][0], receives=(3, 6))])
    found = {
        share.rank: share.received for share in times.measure_imbalance(join_calls(trace(*told)))
    }
    assert found == {0: 12, 1: 36}


def test_exchanges_without_splits_have_no_balance() -> None:
    made = trace(EXCHANGE[0], [call("all_to_allv", 32)])
    assert times.measure_imbalance(join_calls(made)) == []
