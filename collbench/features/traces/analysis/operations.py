"""Calls of ranks that belong together: an operation of a group is a call of each of its members, a
message a send and its receive. And where ranks disagree on what they do together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress, pairwise
from operator import attrgetter
from typing import NamedTuple

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES
from collbench.features.traces.formats.own import FORM
from collbench.features.traces.types import UNDESCRIBED, Call, RankTrace, Trace
from collbench.features.training.step import LOCAL, POINT_TO_POINT, WORLD

UNNAMED = "unnamed, "  # begins the label of a group that nobody named, which tells its size
EXCHANGES = ("all_to_all", "all_to_allv")  # which is which may differ among ranks of one operation


class Group(NamedTuple):
    """Ranks that do operations together. ``name`` is the trace's, ``label`` what people call it;
    where the trace does not tell who is in it (``is_known``), ``ranks`` are those seen in it."""

    name: str
    label: str
    ranks: tuple[int, ...]
    is_known: bool = True


class MeetingTime(NamedTuple):
    """What an operation took, in ns. ``transfer`` is the least over ranks, from the begin to the
    end of a rank's: that of the rank that came last, which waited for nobody. ``wait`` is how much
    longer the first one's took."""

    transfer: int
    wait: int


class Meeting(NamedTuple):
    """Calls of the same operation by rank, of those that are in the trace and called it. ``number``
    is the library's count of the group's operations, else their place in its order. ``order``
    orders meetings as the lowest of their ranks does. ``call`` is as most ranks have it, ``odd``
    are the calls that do not fit it; all of them where no call is called by more ranks than
    another. ``time`` is None unless the trace tells how long each of its calls took.
    ``is_matched``: no call that a rank lost can make these calls of different operations."""

    group: Group
    number: int
    calls: Mapping[int, Call]
    order: tuple[int, int]
    call: Call
    odd: Mapping[int, Call]
    time: MeetingTime | None
    is_matched: bool = True

    @classmethod
    def of(
        cls, group: Group, number: int, calls: Mapping[int, Call], order: tuple[int, int]
    ) -> Meeting:
        """A meeting of these calls."""
        usual = _usual_ranks(calls)
        odd = {rank: call for rank, call in calls.items() if rank not in usual}
        odd = odd if len(odd) < len(usual) else dict(calls)
        return cls(group, number, calls, order, calls[min(usual)], odd, _time_calls(calls))


class Joined(NamedTuple):
    """``meetings`` are the collectives of all groups, ``messages`` sends with their receives, as
    far as there are both; ``alone`` counts messages without their other half though its rank is
    there. ``by_order`` names the groups whose calls have no numbers."""

    groups: tuple[Group, ...]
    meetings: tuple[Meeting, ...]
    messages: tuple[Meeting, ...]
    alone: int
    by_order: tuple[str, ...]

    @property
    def disagreements(self) -> list[Meeting]:
        """The first meeting of each group in which ranks do not call the same, or exchange blocks
        of which sender and receiver have different sizes; of those that are matched, if any."""
        by_group: dict[Group, Meeting] = {}
        for meeting in self.meetings:
            first = by_group.get(meeting.group)
            is_better = first is None or (meeting.is_matched and not first.is_matched)
            if is_better and (meeting.odd or unequal_blocks(meeting)):
                by_group[meeting.group] = meeting
        return list(by_group.values())


class Block(NamedTuple):
    """Elements that a rank ``sends`` to another in an exchange, where that one ``expects`` another
    number."""

    source: int
    target: int
    sends: int
    expects: int


def unequal_blocks(meeting: Meeting) -> tuple[Block, ...]:
    """The blocks of an exchange of which both ranks tell the size, and not the same."""
    ranks, calls = meeting.group.ranks, meeting.calls
    if not any(call.kind in EXCHANGES for call in calls.values()):
        return ()
    is_even = not any(call.sends or call.receives for call in calls.values())
    if is_even and len({(call.kind, call.nbytes, call.dtype) for call in calls.values()}) == 1:
        return ()
    n = len(ranks)
    sends, expects = (
        [_member_elements(call, side(call), n) if (call := calls.get(r)) else () for r in ranks]
        for side in (attrgetter("sends"), attrgetter("receives"))
    )
    blocks: list[Block] = []
    # whole rows are compared before each pair of ranks: of 1,024 there are a million
    columns = zip(*filter(None, expects), strict=True)
    for source, sent, expected in zip(ranks, sends, columns, strict=False):
        if not sent or tuple(compress(sent, expects)) == expected:
            continue
        pairs = zip(compress(ranks, expects), compress(sent, expects), expected, strict=True)
        blocks += (
            Block(source, target, size, other)
            for target, size, other in pairs
            if target != source and size != other and calls[target].dtype == calls[source].dtype
        )
    return tuple(blocks)


def sizes_differ(meeting: Meeting) -> bool:
    """Whether ranks differ in the size of an exchange of which none tells the blocks."""
    calls = meeting.calls.values()
    is_bare = all(c.kind in EXCHANGES and not (c.sends or c.receives) for c in calls)
    return is_bare and len({call.nbytes for call in calls}) > 1


def _member_elements(call: Call, splits: Sequence[int], n: int) -> Sequence[int]:
    """Elements by member of one side of an exchange; nothing where they are not known."""
    if call.kind == "all_to_all" and not splits:
        return (call.nbytes // DTYPES[call.dtype].size // n,) * n
    return splits if call.kind in EXCHANGES and len(splits) == n else ()


def describe_difference(call: Call, other: Call) -> str:
    """The arguments in which two calls of one operation differ; nothing where they do, or one of
    them does not tell."""
    exchange = {call.kind, other.kind} <= {*EXCHANGES}
    if call.kind != other.kind and not exchange:
        return "operation"
    unlike = {
        "datatype": call.dtype != other.dtype,
        "size": call.nbytes != other.nbytes and not exchange,
        "root": call.root != other.root and min(call.root, other.root) >= 0,
        "reduction": call.op != other.op and "none" not in (call.op, other.op),
    }
    moves = call.kind not in COLLECTIVES or COLLECTIVES[call.kind].moves_data
    return next((what for what, differ in unlike.items() if differ and moves), "")


def list_communicating(rank: RankTrace) -> Iterator[tuple[int, Call]]:
    """The calls of a rank that others take part in, with their places."""
    return ((at, call) for at, call in enumerate(rank.calls) if call.kind not in LOCAL)


def groups_of(rank: RankTrace) -> dict[str, Group]:
    """The groups on which a rank calls something, by its name for them; without ranks where the
    trace does not tell of them."""
    return {name: _find_group(rank, name) for name in {call.group for call in rank.calls}}


def _find_group(rank: RankTrace, name: str) -> Group:
    ranks = rank.groups.get(name, ())
    if name == WORLD:
        return Group(name, "world", ranks or tuple(range(rank.world)))
    label = rank.described.get(name) or name
    label = (_group_shape(ranks) or name) if label == UNDESCRIBED else label
    return Group(name, label, ranks, bool(ranks))


def _group_shape(ranks: Sequence[int]) -> str:
    """What groups of one kind that nobody has named have in common."""
    strides = {after - before for before, after in pairwise(ranks)}
    return f"{UNNAMED}{len(ranks)} ranks {strides.pop()} apart" if len(strides) == 1 else ""


def join_calls(trace: Trace) -> Joined:
    """The calls of all ranks, joined by group and number; by order in groups whose calls have no
    numbers."""
    calls: dict[Group, dict[int, list[tuple[int, Call]]]] = defaultdict(dict)
    for rank in trace.ranks:
        by_name: dict[str, list[tuple[int, Call]]] = defaultdict(list)
        for at, call in list_communicating(rank):
            by_name[call.group].append((at, call))
        groups = groups_of(rank)
        for name, numbered_calls in by_name.items():
            calls[groups[name]][rank.rank] = numbered_calls
    by_group = {_settle_group(group, rank_calls): rank_calls for group, rank_calls in calls.items()}
    meetings: list[Meeting] = []
    messages: list[Meeting] = []
    by_order, alone = [], 0
    recorded = {rank.rank for rank in trace.ranks}
    for group, rank_calls in by_group.items():
        collective = {
            rank: [c for c in numbered_calls if _is_collective(c)]
            for rank, numbered_calls in rank_calls.items()
        }
        numbered = all(
            call.number >= 0 for numbered_calls in collective.values() for _, call in numbered_calls
        )
        if not numbered:
            by_order.append(group.label)
        counted = numbered and trace.form != FORM  # by the library
        joined = _list_meetings(group, collective, numbered)
        meetings += _mark_unmatched(joined, trace.ranks, counted)
        pairs, unmatched = _join_messages(group, rank_calls, recorded)
        messages += pairs
        alone += unmatched
    return Joined(
        tuple(sorted(by_group, key=lambda group: (-len(group.ranks), group.ranks, group.name))),
        tuple(sorted(meetings, key=lambda meeting: meeting.order)),
        tuple(sorted(messages, key=lambda meeting: meeting.order)),
        alone,
        tuple(dict.fromkeys(by_order)),
    )


def _mark_unmatched(
    meetings: Iterable[Meeting], ranks: Sequence[RankTrace], counted: bool
) -> Iterator[Meeting]:
    """Meetings, with those marked in which calls that some ranks lost may shift theirs: calls of
    the number or, where the library has not ``counted`` them, any calls."""
    numbers = {
        (rank.rank, name): Counter(lost)
        for rank in ranks
        for name, lost in rank.lost_numbers.items()
    }
    totals = {rank.rank: sum(loss.calls for loss in rank.lost) for rank in ranks}
    if not (numbers if counted else any(totals.values())):
        yield from meetings
        return
    for meeting in meetings:
        name, number = meeting.group.name, meeting.number
        losses = {
            numbers.get((rank, name), Counter())[number] if counted else totals[rank]
            for rank in meeting.calls
        }
        yield meeting if len(losses) == 1 else meeting._replace(is_matched=False)


def _is_collective(numbered_call: tuple[int, Call]) -> bool:
    return numbered_call[1].kind not in POINT_TO_POINT


def _settle_group(group: Group, ranks: Iterable[int]) -> Group:
    """A group of which the trace does not tell who is in it has the ranks seen in it."""
    return group if group.ranks else group._replace(ranks=tuple(sorted(ranks)))


def _list_meetings(
    group: Group, calls_by_rank: Mapping[int, Sequence[tuple[int, Call]]], numbered: bool
) -> Iterator[Meeting]:
    """The meetings of a group's collectives: calls of one number or, where they have none, of one
    index in their rank's order."""
    by_key: dict[tuple[int, int], dict[int, Call]] = defaultdict(dict)
    places: dict[tuple[int, int], tuple[int, int]] = {}
    for rank in sorted(calls_by_rank):
        repeats: Counter[int] = Counter()
        for order, (at, call) in enumerate(calls_by_rank[rank]):
            number = call.number if numbered else order
            key = (number, repeats[number])
            repeats[number] += 1
            by_key[key][rank] = call
            places.setdefault(key, (rank, at))
    for key in sorted(by_key):
        yield Meeting.of(group, key[0], by_key[key], places[key])


def _join_messages(
    group: Group,
    calls_by_rank: Mapping[int, Sequence[tuple[int, Call]]],
    recorded: Collection[int],
) -> tuple[list[Meeting], int]:
    """Sends with their receives, in their order between two ranks; and how many are left over of
    ranks that are ``recorded``. What is left may be half of a call that names no other rank, as a
    receive from anybody."""
    ways: dict[tuple[int, int, int], tuple[list[tuple[int, int, Call]], ...]] = {}
    unaddressed: Counter[tuple[int, str]] = Counter()
    for rank, calls in calls_by_rank.items():
        for at, call in calls:
            if call.kind in POINT_TO_POINT and 0 <= call.peer < len(group.ranks):
                peer = group.ranks[call.peer]
                sends = call.kind == "send"
                way = (rank, peer, call.tag) if sends else (peer, rank, call.tag)
                ways.setdefault(way, ([], []))[not sends].append((rank, at, call))
            elif call.kind in POINT_TO_POINT:
                unaddressed[rank, call.kind] += 1
    meetings, alone = [], 0
    for (source, to, _), (sent, received) in ways.items():
        both = min(len(sent), len(received))
        for number in range(both):
            (_, at, send), (_, _, receive) = sent[number], received[number]
            call_of = {source: send, to: receive}
            meetings.append(
                Meeting(group, number, call_of, (source, at), send, {}, _time_calls(call_of))
            )
        left = [*sent[both:], *received[both:]]
        for number, (rank, at, call) in enumerate(left, both):
            meetings.append(Meeting.of(group, number, {rank: call}, (rank, at)))
        half = (to, "recv") if len(sent) > both else (source, "send")
        fitting = min(len(left), unaddressed[half])
        unaddressed[half] -= fitting
        if source in recorded and to in recorded:
            alone += len(left) - fitting
    return meetings, alone


def _time_calls(calls: Mapping[int, Call]) -> MeetingTime | None:
    took = [call.took_ns for call in calls.values()]
    least = min(took)
    return MeetingTime(least, max(took) - least) if least > 0 else None


def _usual_ranks(calls: Mapping[int, Call]) -> set[int]:
    """The largest set of ranks whose calls agree; of several such the one with the lowest rank."""
    same: dict[tuple[str, int, str, int, str], set[int]] = defaultdict(set)
    for rank, call in calls.items():
        same[call.kind, call.nbytes, call.dtype, call.root, call.op].add(rank)
    if len(same) == 1:
        return {*calls}
    rest, best = list(same.values()), set[int]()
    while rest:
        first = calls[min(rest[0])]
        agreeing = [ranks for ranks in rest if not describe_difference(first, calls[min(ranks)])]
        rest = [ranks for ranks in rest if ranks not in agreeing]
        best = max(best, set[int]().union(*agreeing), key=len)
    return best
