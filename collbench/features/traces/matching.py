"""Calls of ranks as operations that they do together: joined by the library's numbers, else by
their order in the group; held against each other; and made whole where a trace leaves open what
others of its ranks, or the user, say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from msgspec.structs import replace

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.core.text import format_count, format_size
from collbench.features.traces.groups import Group, Place, explain_unknown, group_of
from collbench.features.traces.types import Call, RankTrace
from collbench.features.training.step import LOCAL, POINT_TO_POINT

MOST_TOLD = 6  # disagreements


class Uneven(NamedTuple):
    """What is to be done about unequal blocks: taken for equal where they are unknown, and made
    equal, as many elements in all."""

    assume_even: bool = False
    rebalanced: bool = False


class Joined(NamedTuple):
    """The calls with others, as far as ranks are there, and what was assumed of them."""

    calls: dict[Place, Call]
    assumptions: tuple[str, ...]


def join_calls(
    ranks: Sequence[RankTrace], spans: Sequence[tuple[int, int]], inside: set[int], uneven: Uneven
) -> Joined:
    """The calls of these ranks, from the first of each rank's ``spans`` to that before the second,
    on groups that lie wholly ``inside``. Raises UsageError where ranks disagree, with the first
    operation of each that differs."""
    by_group: dict[Group, dict[int, list[tuple[Place, Call]]]] = defaultdict(dict)
    for rank, span in zip(ranks, spans, strict=True):
        for at in range(*span):
            call = rank.calls[at]
            if call.kind not in LOCAL and not explain_unknown(rank, call):
                rank_calls = by_group[group_of(rank, call)].setdefault(rank.rank, [])
                rank_calls.append((Place(rank.rank, at), call))
    outside = [group for group in by_group if not {*group.members} <= inside]
    outside_calls = [
        call
        for group in outside
        for rank_calls in by_group.pop(group).values()
        for _, call in rank_calls
    ]
    _refuse_groups([*by_group])
    present_ranks = {rank.rank for rank in ranks}
    trouble: list[str] = []
    matched: dict[Place, Call] = {}
    assumed: dict[str, int] = defaultdict(int)
    for group, by_rank in by_group.items():
        present = [rank for rank in group.members if rank in present_ranks]
        for meeting in _join_collectives(group, by_rank, present, trouble):
            matched |= _resolve_calls(meeting, group, uneven, assumed, trouble)
        matched |= _join_messages(group, by_rank, present_ranks, trouble)
    if trouble:
        more = len(trouble) - MOST_TOLD
        disagreements = [*trouble[:MOST_TOLD], *([f"and {more} more"] if more > 0 else [])]
        raise UsageError(
            f"ranks disagree: {'; '.join(disagreements)}",
            "give a trace in which all ranks are recorded over the same iterations, or --ranks",
        )
    if outside_calls:
        nbytes = sum(call.nbytes for call in outside_calls)
        assumed[f"operations with other ranks are left out, of {format_size(nbytes)}"] = len(
            outside_calls
        )
    assumptions = (
        f"{assumption} ({format_count(n, 'call')})" for assumption, n in assumed.items() if n
    )
    return Joined(matched, tuple(assumptions))


def _refuse_groups(groups: Sequence[Group]) -> None:
    """Raises UsageError where ranks name other members of a group that they share."""
    group_of_name: dict[tuple[str, int], Group] = {}
    for group in groups:
        for rank in group.members:
            other = group_of_name.setdefault((group.name, rank), group)
            if other != group:
                raise UsageError(
                    f"ranks disagree on the members of group '{group.name[:40]}':"
                    f" {_name_ranks(other.members)}, and {_name_ranks(group.members)}",
                    "give traces of one job, in which a group has one name on all its ranks",
                )


def _name_ranks(ranks: Sequence[int]) -> str:
    return " ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")


Meeting = dict[int, tuple[Place, Call]]  # by rank


def _join_collectives(
    group: Group,
    calls_by_rank: Mapping[int, Sequence[tuple[Place, Call]]],
    present: Sequence[int],
    trouble: list[str],
) -> Iterator[Meeting]:
    """What the present members of a group do together, in order, as long as they agree."""
    numbered: dict[int, dict[int, tuple[Place, Call]]] = {}
    calls = {
        r: [c for c in calls_by_rank.get(r, ()) if c[1].kind not in POINT_TO_POINT] for r in present
    }
    numbers = {r: [call.number for _, call in calls[r]] for r in present}
    are_numbered = all(
        min(rank_numbers, default=0) >= 0 and len({*rank_numbers}) == len(rank_numbers)
        for rank_numbers in numbers.values()
    )
    for rank in present:
        keys = numbers[rank] if are_numbered else range(len(calls[rank]))
        numbered[rank] = dict(zip(keys, calls[rank], strict=True))
    for number in sorted({key for by_number in numbered.values() for key in by_number}):
        meeting = {
            rank: by_number[number] for rank, by_number in numbered.items() if number in by_number
        }
        meeting = _even_exchange(meeting, len(group.members))
        some, (_, first) = next(iter(meeting.items()))
        for rank in present:
            if rank not in meeting:
                other = _describe_call(*meeting[some])
                trouble.append(f"{other}, rank {rank}: none{_name_group(group)}")
                return
            if _common_key(meeting[rank][1]) != _common_key(first):
                pair = f"{_describe_call(*meeting[some])}, {_describe_call(*meeting[rank])}"
                trouble.append(f"{pair}{_name_group(group)}")
                return
        yield meeting


def _even_exchange(meeting: Meeting, n: int) -> Meeting:
    """The meeting, all of an all_to_allv where it is one on some ranks: an exchange whose blocks
    are equal on others."""
    if {call.kind for _, call in meeting.values()} != {"all_to_all", "all_to_allv"}:
        return meeting

    def uneven(call: Call) -> Call:
        if call.kind == "all_to_allv":
            return call
        block = call.nbytes // DTYPES[call.dtype].size // n
        return replace(call, kind="all_to_allv", sends=(block,) * n)

    return {rank: (call_place, uneven(call)) for rank, (call_place, call) in meeting.items()}


def _common_key(call: Call) -> tuple[object, ...]:
    """The fields that all members of an operation tell, and tell alike."""
    row = COLLECTIVES[call.kind]
    nbytes = 0 if row.uneven else call.nbytes
    return (call.kind, nbytes, call.dtype) if row.moves_data else (call.kind,)


def _describe_call(call_place: Place, call: Call) -> str:
    source = f" ({call.source})" if call.source else ""
    to = {"send": f" to member {call.peer}", "recv": f" from member {call.peer}"}.get(call.kind, "")
    root = f" with root {call.root}" if call.root >= 0 else ""
    what = f"{call.kind} of {call.nbytes} B {call.dtype}{to}{root}"
    return f"rank {call_place.rank}, call {call_place.at}{source}: {what}"


def _name_group(group: Group) -> str:
    return f" on group '{group.name[:40]}'" if group.name else ""


def _resolve_calls(
    meeting: Meeting,
    group: Group,
    uneven: Uneven,
    assumed: dict[str, int],
    trouble: list[str],
) -> dict[Place, Call]:
    """The calls of a meeting, with what some of its ranks or nobody says."""
    first, *_ = meeting.values()
    row = COLLECTIVES[first[1].kind]
    ops = {call.op for _, call in meeting.values()} - {"none"} if row.reduces else {"none"}
    roots = {call.root for _, call in meeting.values()} - {-1} if row.rooted else {-1}
    assumed["reductions that the trace does not name are sums"] += not ops
    assumed["roots that the trace does not name are the first members"] += not roots
    if len(ops) > 1 or len(roots) > 1:
        odd = f"by {', '.join(sorted(ops))}, roots {', '.join(map(str, sorted(roots)))}"
        trouble.append(f"{_describe_call(*first)}{_name_group(group)}: {odd}")
    op, root = min(ops, default="sum"), min(roots, default=0)
    resolved = {
        call_place: replace(original, op=op, root=root) for call_place, original in meeting.values()
    }
    if row.uneven:
        resolved = _resolve_blocks(resolved, group, uneven, assumed, trouble)
    return resolved


def _resolve_blocks(
    calls: dict[Place, Call],
    group: Group,
    uneven: Uneven,
    assumed: dict[str, int],
    trouble: list[str],
) -> dict[Place, Call]:
    """The calls of an all_to_allv with what each sends to each. Its size is what the busiest rank
    sends or receives. Raises UsageError where that is unknown."""
    n, rows = len(group.members), {}
    for call_place, call in calls.items():
        itemsize = DTYPES[call.dtype].size
        rows[call_place.rank] = call.sends
        if len(call.sends) != n:
            if not uneven.assume_even:
                raise UsageError(
                    f"{_describe_call(call_place, call)}: the trace does not say how it is divided",
                    "add --assume-even to take its blocks for equal, as is said where it is shown",
                )
            rows[call_place.rank] = (call.nbytes // itemsize // n,) * n
            assumed["all_to_allv whose blocks are unknown have equal ones"] += 1
    for call_place, call in calls.items():
        index = group.members.index(call_place.rank)
        for rank, got in zip(group.members, call.receives, strict=False):
            if call.sends and rank in rows and rows[rank][index] != got:
                description = f"{_describe_call(call_place, call)}, {got} elements from rank {rank}"
                trouble.append(f"{description}, which sends {rows[rank][index]}")
    if uneven.rebalanced:
        mean = round(sum(map(sum, rows.values())) / (n * len(rows)))
        rows = dict.fromkeys(rows, (mean,) * n)
        assumed["all_to_allv are rebalanced: every block is the mean of all"] += len(rows)
    columns = [sum(column) for column in zip(*rows.values(), strict=True)]
    busiest = max(*map(sum, rows.values()), *columns)
    return {
        call_place: replace(
            call, sends=rows[call_place.rank], nbytes=busiest * DTYPES[call.dtype].size, receives=()
        )
        for call_place, call in calls.items()
    }


def _join_messages(
    group: Group,
    calls_by_rank: Mapping[int, Sequence[tuple[Place, Call]]],
    present_ranks: set[int],
    trouble: list[str],
) -> dict[Place, Call]:
    """The messages between members, each of a send and a receive where both ranks are there."""
    ends: dict[tuple[int, int, int], dict[str, list[tuple[Place, Call]]]] = defaultdict(dict)
    matched: dict[Place, Call] = {}
    for rank, calls in calls_by_rank.items():
        for call_place, call in calls:
            if call.kind in POINT_TO_POINT:
                other = group.members[call.peer]
                way = (rank, other) if call.kind == "send" else (other, rank)
                ends[(*way, call.tag)].setdefault(call.kind, []).append((call_place, call))
                matched[call_place] = call
    for (source, target, _), both in ends.items():
        if not {source, target} <= present_ranks:
            continue
        sends, receives = (both.get(kind, []) for kind in POINT_TO_POINT)
        for sent, received in zip_longest(sends, receives):
            if not sent or not received:
                existing, alone = (sent, target) if sent else (received, source)
                trouble.append(
                    f"{_describe_call(*existing)}, rank {alone}: none{_name_group(group)}"
                )
                break
            if (sent[1].nbytes, sent[1].dtype) != (received[1].nbytes, received[1].dtype):
                trouble.append(
                    f"{_describe_call(*sent)}, {_describe_call(*received)}{_name_group(group)}"
                )
                break
    return matched
