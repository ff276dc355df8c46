"""Calls of ranks joined: by numbers, else by order; and where ranks disagree."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from factories import call, calls_of, trace
from msgspec.structs import replace

from collbench.features.traces.analysis import operations
from collbench.features.traces.analysis.operations import join_calls

PAIRS = {"tp": (0, 1)}, {"tp": (0, 1)}, {"tp": (2, 3)}, {"tp": (2, 3)}


def test_calls_of_a_number_are_one_operation_however_a_dump_begins() -> None:
    early, late = (
        calls_of("all_reduce", "all_gather", "all_reduce"),
        calls_of("all_gather", first=2),
    )
    found = join_calls(trace(early, late)).meetings
    assert [sorted(meeting.calls) for meeting in found] == [[0], [0, 1], [0]]


def test_without_numbers_calls_are_joined_by_their_order() -> None:
    programs = [calls_of("all_reduce", "all_gather", number=-1)] * 2
    found = join_calls(trace(*programs))
    assert [meeting.call.kind for meeting in found.meetings] == ["all_reduce", "all_gather"]
    assert found.by_order == ("world",)


def test_calls_of_one_number_are_joined_in_their_order() -> None:
    several = calls_of("all_reduce", ("all_gather", {"number": 1}))
    found = join_calls(trace(several, several)).meetings
    assert [(m.number, m.call.kind, len(m.calls)) for m in found] == [
        (1, "all_reduce", 2),
        (1, "all_gather", 2),
    ]


def test_groups_of_one_name_with_other_ranks_are_others() -> None:
    made = trace(*[calls_of("all_reduce", group="tp")] * 4)
    ranks = tuple(replace(r, groups=g) for r, g in zip(made.ranks, PAIRS, strict=True))
    found = join_calls(made.__class__("", ranks))
    assert [group.ranks for group in found.groups] == [(0, 1), (2, 3)]
    assert [sorted(meeting.calls) for meeting in found.meetings] == [[0, 1], [2, 3]]


def test_a_group_that_the_trace_does_not_tell_of_has_those_seen_in_it() -> None:
    found = join_calls(
        trace(calls_of("all_reduce", group="x"), [], calls_of("all_reduce", group="x"))
    )
    (group,) = found.groups
    assert group.ranks == (0, 2)
    assert not group.is_known


def test_a_send_and_its_receive_are_one_message() -> None:
    sends = [call("send", peer=1, span=(0, 9)), call("send", peer=1, span=(9, 20))]
    receives = [call("recv", peer=0, span=(5, 9)), call("recv", peer=0, span=(12, 20))]
    found = join_calls(trace(sends, receives))
    assert [sorted(each.calls) for each in found.messages] == [[0, 1], [0, 1]]
    assert found.alone == 0


def test_messages_without_their_other_half_are_counted() -> None:
    found = join_calls(trace([call("send", peer=1)] * 3, [call("recv", peer=0)]))
    assert found.alone == 2


def test_a_message_to_a_rank_that_is_not_there_lacks_nothing() -> None:
    assert join_calls(trace([call("send", peer=1)], None)).alone == 0


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "all_gather"},
        {"nbytes": 8},
        {"dtype": "int32"},
        {"op": "max"},
        {"kind": "broadcast", "root": 1, "op": "none"},
    ],
)
def test_the_rank_that_calls_another_operation_is_the_odd_one(other: dict[str, Any]) -> None:
    usual = calls_of("all_reduce", "all_reduce")
    (found,) = join_calls(trace(usual, [usual[0], replace(usual[1], **other)], usual)).disagreements
    assert found.number == 2
    assert [*found.odd] == [1]


def test_roots_that_differ_are_a_disagreement() -> None:
    (found,) = join_calls(
        trace(calls_of("broadcast"), calls_of("broadcast", root=1), calls_of("broadcast"))
    ).disagreements
    assert [*found.odd] == [1]


def test_of_two_ranks_that_disagree_neither_is_the_odd_one() -> None:
    (found,) = join_calls(trace(calls_of("all_reduce"), calls_of("barrier"))).disagreements
    assert [*found.odd] == [0, 1]


@pytest.mark.parametrize(
    "programs",
    [
        (calls_of("broadcast"), calls_of("broadcast", root=-1)),
        (calls_of("all_reduce"), calls_of("all_reduce", op="none")),
        (calls_of("barrier"), calls_of("barrier", nbytes=1, dtype="uint8")),
        (calls_of("all_to_allv", nbytes=12), calls_of("all_to_allv", nbytes=40)),
        (calls_of("all_to_allv", nbytes=12), calls_of("all_to_all", nbytes=40)),
    ],
    ids=[
        "root unknown",
        "reduction unknown",
        "barrier",
        "all_to_allv",
        "even part of an uneven one",
    ],
)
def test_what_ranks_may_differ_in_is_no_disagreement(programs: Any) -> None:
    assert join_calls(trace(*programs)).disagreements == []


def test_of_each_group_the_first_disagreement_is_told() -> None:
    usual, other = calls_of("all_reduce", "all_reduce"), calls_of("all_gather", "all_gather")
    assert [each.number for each in join_calls(trace(usual, usual, other)).disagreements] == [1]


@pytest.mark.parametrize(
    ("kind", "exchanges"), [("all_reduce", False), ("barrier", False), ("all_to_allv", True)]
)
def test_ranks_are_compared_in_pairs_in_exchanges_alone(
    kind: str, exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes minutes where 1,024 ranks call some thousand operations."""
    asked: list[str] = []
    monkeypatch.setattr(
        operations, "_member_elements", lambda call, *_: asked.append(call.kind) or ()
    )
    splits = {"sends": (1, 1), "receives": (1, 1)} if exchanges else {}
    found = join_calls(trace(*[calls_of(kind, **splits)] * 2))
    assert not found.disagreements
    assert bool(asked) is exchanges


def test_blocks_of_even_exchanges_are_compared_where_ranks_differ() -> None:
    even, odd = calls_of("all_to_all", nbytes=64), calls_of("all_to_all", nbytes=128)
    assert join_calls(trace(even, even)).disagreements == []
    (found,) = join_calls(trace(even, odd)).disagreements
    assert [block.sends for block in operations.unequal_blocks(found)] == [8, 16]


class Counted(int):
    """Elements of a block, which count how often a program compares them. Python takes one object
    in two tuples for equal without asking it."""

    compared: ClassVar[int] = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other


@pytest.mark.parametrize("sends", [4, 9], ids=["all agree", "rank 1 does not"])
def test_blocks_of_each_pair_of_ranks_are_looked_at_where_those_of_a_rank_differ_alone(
    sends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = {n: Counted(n) for n in (3, 4, 5, 6, 9)}
    rows = [[size[n] for n in row] for row in ((3, 4, 5), (4, 3, 6), (5, 6, 3))]
    calls = [{"sends": tuple(row), "receives": tuple(row)} for row in rows]
    calls[1]["sends"] = (size[sends], *rows[1][1:])
    (found,) = join_calls(
        trace(*(calls_of("all_to_allv", nbytes=48, **given) for given in calls))
    ).meetings
    monkeypatch.setattr(Counted, "compared", 0)
    blocks, compared = operations.unequal_blocks(found), Counted.compared
    # that row, and its blocks to two other ranks
    assert (compared, blocks) == ((3, ((1, 0, 9, 4),)) if sends == 9 else (0, ()))


def test_blocks_that_one_rank_does_not_tell_are_not_compared() -> None:
    known = calls_of("all_to_allv", nbytes=12, sends=(1, 1, 4), receives=(1, 2, 3))
    (found,) = join_calls(trace(known, calls_of("all_to_allv", nbytes=40), known)).disagreements
    blocks = operations.unequal_blocks(found)
    assert [(block.source, block.target) for block in blocks] == [(0, 2), (2, 0)]


def test_a_message_to_a_rank_that_called_nothing_lacks_its_other_half() -> None:
    assert join_calls(trace([call("send", peer=1)], [])).alone == 1
