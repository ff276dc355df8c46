"""Times of a trace: what operations take across ranks, who comes late to them, and how much of a
rank's communication nothing hides."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES
from collbench.features.traces.analysis.operations import (
    Group,
    Joined,
    Meeting,
    groups_of,
    list_communicating,
)
from collbench.features.traces.types import Call, Interval, RankTrace, Trace
from collbench.features.training.overlap import Spans, common_length, spans_length, union_spans
from collbench.features.training.step import POINT_TO_POINT, Op
from collbench.records import stats
from collbench.records.stats import Floats


def last_to_come(meeting: Meeting, shared: bool) -> int | None:
    """The rank that came last, where that can be told: of an operation that no rank leaves before
    all have come; of clocks that are not shared, the rank on which it takes least."""
    if len(meeting.calls) < 2 or not is_synchronising(meeting) or meeting.time is None:
        return None
    came = {r: call.begins_ns if shared else -call.took_ns for r, call in meeting.calls.items()}
    return max(came, key=lambda rank: came[rank])


# by rank: bytes that it has to send at least, sizes, and the number of operations
Sums = Mapping[int, list[float]]


class Part(NamedTuple):
    """Operations of a kind on groups of one label, in one phase; of the rank that sends most,
    ``ops`` of them, their sizes' sum ``nbytes``, and the bytes ``sent`` that it has to send at
    least; ``total`` of all ranks that are in the trace. ``transfer`` and ``wait`` are of all
    ``timed`` of them, and count once where these are under way together; ``busbw`` is GB/s while
    they transfer, None where that is not known. ``bound``: of some messages it is known only when
    they had ended, or not whether they were under way together, so that transfer is at most and
    busbw at least so much, and ``wait`` None."""

    phase: str
    group: str
    kind: str
    members: int
    ops: int
    nbytes: int
    sent: float
    total: float
    timed: int
    transfer: int
    wait: int | None
    busbw: float | None
    bound: bool


class Operations(NamedTuple):
    """Those of a kind on groups of one label, in one phase, with the ``sums`` over them."""

    phase: str
    group: str
    kind: str
    meetings: Sequence[Meeting]
    sums: Sums


def list_operations(matches: Joined) -> list[Operations]:
    """The operations of a trace by phase, group and kind, in order of first use."""
    by_kind: dict[tuple[str, str, str], list[Meeting]] = defaultdict(list)
    in_order = sorted((*matches.meetings, *matches.messages), key=lambda meeting: meeting.order)
    for meeting in in_order:
        call = meeting.call
        by_kind[call.phase, meeting.group.label, _operation_kind(call)].append(meeting)
    return [Operations(*key, meetings, _sum_times(meetings)) for key, meetings in by_kind.items()]


def _operation_kind(call: Call) -> str:
    return "send/recv" if call.kind in POINT_TO_POINT else call.kind


def _sum_times(meetings: Iterable[Meeting]) -> Sums:
    """Bytes to send at least, sizes and the number of operations, summed over ``meetings``, by
    rank."""
    ranks: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    least_times: dict[tuple[int, str, int, str], float] = {}  # of calls without blocks of their own
    for meeting in meetings:
        n = len(meeting.group.ranks)
        for rank, call in meeting.calls.items():
            key = n, call.kind, call.nbytes, call.dtype
            if call.sends or key not in least_times:
                least = sent_bytes(meeting.group, rank, call)
                least_times |= {} if call.sends else {key: least}
            else:
                least = least_times[key]
            sums = ranks[rank]
            sums[0] += least
            sums[1] += call.nbytes
            sums[2] += 1
    return ranks


def _time_spent(timed: Iterable[Meeting], shared: bool) -> tuple[int, int]:
    """How long operations transfer, as the rank on which they take least sees it, and wait before
    that, as the one on which they take most does; once where several of a group do, on a clock that
    is ``shared``, or on that of one rank. Where the trace does not tell when they were, only those
    of one number, which are one coalesced call, count once."""
    transfers: dict[tuple[Group, int], list[Interval]] = defaultdict(list)
    waits: dict[tuple[Group, int], list[Interval]] = defaultdict(list)
    lengths: dict[Hashable, tuple[int, int]] = {}
    for meeting in timed:
        took = {rank: call.took_ns for rank, call in meeting.calls.items()}
        least, most = min(took, key=took.__getitem__), max(took, key=took.__getitem__)
        if not all(call.is_placed for call in meeting.calls.values()):
            call = meeting.calls[least]
            number = (
                meeting.order if call.number < 0 else (call.kind in POINT_TO_POINT, call.number)
            )
            lengths[meeting.group, least, number] = took[least], took[most] - took[least]
            continue
        ends, begins = meeting.calls[least].ends_ns, meeting.calls[most].begins_ns
        transfers[meeting.group, -1 if shared else least].append((ends - took[least], ends))
        wait = begins, begins + took[most] - took[least]
        waits[meeting.group, -1 if shared else most].append(wait)
    transfer, wait_ns = (
        sum(spans_length(union_spans(e)) for e in intervals.values())
        + sum(both[index] for both in lengths.values())
        for index, intervals in enumerate((transfers, waits))
    )
    return transfer, wait_ns


def make_part(operations: Operations, shared: bool) -> Part:
    """``shared``: whether ranks have one clock."""
    most = max(operations.sums.values())
    timed = [meeting for meeting in operations.meetings if meeting.time]
    bound = any(
        call.seen_late or (call.kind in POINT_TO_POINT and not call.is_placed)
        for meeting in timed
        for call in meeting.calls.values()
    )
    transfer, wait = _time_spent(timed, shared)
    moved = sum(_carried_bytes(meeting) for meeting in timed)
    return Part(
        operations.phase,
        operations.group,
        operations.kind,
        max(len(meeting.group.ranks) for meeting in operations.meetings),
        int(most[2]),
        int(most[1]),
        most[0],
        sum(sums[0] for sums in operations.sums.values()),
        len(timed),
        transfer,
        None if bound else wait,
        moved / transfer if transfer and moved else None,
        bound,
    )


def sent_bytes(group: Group, rank: int, call: Call) -> float:
    """Bytes that a rank has to send at least for a call; as if all blocks were equal, where their
    lengths are not known, or not those of as many members."""
    sends = call.sends if len(call.sends) == len(group.ranks) else ()
    kind = "all_to_all" if call.kind == "all_to_allv" and not sends else call.kind
    op = Op(kind=kind, nbytes=call.nbytes, dtype=call.dtype, sends=sends)
    index = group.ranks.index(rank) if sends and rank in group.ranks else 0
    return op.sent(len(group.ranks), index)


def _carried_bytes(meeting: Meeting) -> float:
    """Bytes that busbw reckons with."""
    call, n = meeting.call, len(meeting.group.ranks)
    if call.kind in POINT_TO_POINT or n < 2:
        return call.nbytes
    if call.kind == "all_to_allv":
        if not any(call.sends for call in meeting.calls.values()):
            return call.nbytes * (n - 1) / n
        return max(max(e.sends, e.gets) - e.local for e in exchanged_bytes(meeting).values())
    return COLLECTIVES[call.kind].busbw(n) * call.nbytes


class Exchanged(NamedTuple):
    """Bytes that a rank ``sends`` and ``gets`` in an all_to_allv; ``local`` ones, which it sends to
    itself, are among both."""

    sends: int
    gets: int
    local: int


def exchanged_bytes(meeting: Meeting) -> dict[int, Exchanged]:
    """The bytes that each rank sends, gets and keeps in an exchange, by rank. Where a rank's blocks
    received are not in the trace, they are taken from what the others send; where its own block is
    not, it keeps as much as if blocks were equal."""
    itemsize = DTYPES[meeting.call.dtype].size
    ranks = meeting.group.ranks
    rows = {rank: call.sends for rank, call in meeting.calls.items()}
    is_square = (
        bool(ranks)
        and {*ranks} <= rows.keys()
        and all(len(row) == len(ranks) for row in rows.values())
    )
    columns = np.array([rows[rank] for rank in ranks]).sum(axis=0).tolist() if is_square else []
    places = {rank: index for index, rank in enumerate(ranks)}
    exchanged = {}
    for rank, call in meeting.calls.items():
        index, gets = places.get(rank, len(ranks)), sum(call.receives)
        if is_square and not call.receives:
            gets = columns[index]
        has_own = index < len(call.sends)
        own_bytes = call.sends[index] * itemsize if has_own else call.nbytes // max(1, len(ranks))
        sends = sum(call.sends) * itemsize if call.sends else call.nbytes
        exchanged[rank] = Exchanged(sends, gets * itemsize, own_bytes)
    return exchanged


class Traffic(NamedTuple):
    """Bytes that ranks have to send on groups of one label in one phase: the busiest rank, and all
    that are in the trace; ``share`` of all phases and groups; ``busy`` ns, while operations of
    theirs were under way on a rank, the mean over ranks, None where that is not known."""

    phase: str
    group: str
    ops: int
    sent: float
    total: float
    share: float
    busy: float | None


def list_traffic(trace: Trace, operation_list: Iterable[Operations]) -> list[Traffic]:
    """The bytes that ranks send by phase and group, in order of first use."""
    by_phase: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(dict)
    for operations in operation_list:
        ranks = by_phase[operations.phase, operations.group]
        for rank, sums in operations.sums.items():
            ranks[rank] = [a + b for a, b in zip(ranks.get(rank, [0.0] * 3), sums, strict=True)]
    totals = {key: sum(sums[0] for sums in ranks.values()) for key, ranks in by_phase.items()}
    total = sum(totals.values())
    under_way = _under_way(trace)
    return [
        Traffic(
            *key,
            int(most[2]),
            most[0],
            totals[key],
            totals[key] / total if total else 0.0,
            under_way.get(key),
        )
        for key, ranks in by_phase.items()
        for most in [max(ranks.values())]
    ]


def _under_way(trace: Trace) -> dict[tuple[str, str], float]:
    """The time in ns in which a rank has an operation under way, by phase and group: the mean over
    ranks."""
    spans: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in trace.ranks:
        by_phase: dict[tuple[str, str], list[Interval]] = defaultdict(list)
        groups = groups_of(rank)
        for _, call in list_communicating(rank):
            if call.is_placed:
                by_phase[call.phase, groups[call.group].label].append(
                    (call.begins_ns, call.ends_ns)
                )
        for key, intervals in by_phase.items():
            spans[key].append(spans_length(union_spans(intervals)))
    return {key: sum(lengths) / len(lengths) for key, lengths in spans.items()}


class Clock(NamedTuple):
    """Whether times of different ranks may be set against each other, and why not."""

    shared: bool
    why: str = ""


def find_clock(trace: Trace, matches: Joined) -> Clock:
    """One clock where all ranks are on one host and nothing speaks against it: no rank leaves an
    all_reduce before the last one has come."""
    hosts = {rank.host for rank in trace.ranks}
    if len(trace.ranks) < 2:
        return Clock(True)
    if "" in hosts:
        return Clock(False, "the trace does not say on which hosts ranks were")
    if len(hosts) > 1:
        return Clock(False, f"ranks were on {len(hosts)} hosts")
    for meeting in matches.meetings:
        calls = meeting.calls.values()
        if not (is_synchronising(meeting) and meeting.time):
            continue
        if max(call.begins_ns for call in calls) > min(call.ends_ns for call in calls):
            observation = "a rank leaves an operation before another one comes to it"
            return Clock(False, f"{observation}, or ranks' traces begin apart")
    return Clock(True)


def is_synchronising(meeting: Meeting) -> bool:
    """Whether no rank can leave it before all have come."""
    return all(
        call.kind in COLLECTIVES and COLLECTIVES[call.kind].synchronising
        for call in meeting.calls.values()
    )


class Late(NamedTuple):
    """How late a rank of a group comes to the operations that no rank leaves before all have come.
    Chance is computed over steps where these are marked, because operations of one step depend on
    each other, else over operations."""

    group: Group
    rank: int
    ops: int  # the number of these operations
    last: int  # the number of them to which the rank came last
    by: float  # the median time that the rank comes after the first one, ns
    cost: int  # the time for which the rank that came before it waited, ns, overlaps counted once
    surely: bool  # whether the rank is last beyond chance, and by an amount that matters
    steps: int = 0  # the number of steps that have these operations, 0 if none are marked
    last_steps: int = 0  # the number of steps in which the rank's delays add up to the most


def find_late(trace: Trace, matches: Joined, shared: bool) -> list[Late]:
    """Ranks by what their being late costs, after those that are ``surely`` late; of clocks that
    are not shared read off how long an operation takes on each rank, as the last one to come waits
    for nobody."""
    by_group: dict[Group, list[Meeting]] = defaultdict(list)
    for meeting in matches.meetings:
        if is_synchronising(meeting) and len(meeting.calls) > 1 and meeting.time:
            by_group[meeting.group].append(meeting)
    still = {rank.rank: union_spans(_list_waits(rank)) for rank in trace.ranks if not rank.busy}
    steps = {rank.rank: rank.steps for rank in trace.ranks}
    late_ranks = [
        late
        for group, meetings in by_group.items()
        for late in _find_late(group, meetings, shared, still, steps)
    ]
    return sorted(late_ranks, key=lambda e: (not e.surely, -e.cost, -e.last, e.rank))


def _find_late(
    group: Group,
    meetings: Sequence[Meeting],
    shared: bool,
    still: Mapping[int, Spans],
    steps: Mapping[int, Sequence[Interval]],
) -> Iterator[Late]:
    """For each rank of a group how often it came last, by how much, and what that cost the others,
    in the operations that all of the ranks called."""
    ranks = sorted(set[int]().union(*(meeting.calls for meeting in meetings)))
    meetings = [meeting for meeting in meetings if len(meeting.calls) == len(ranks)]
    if not meetings:
        return
    calls = [[meeting.calls[rank] for meeting in meetings] for rank in ranks]
    took = np.array([[call.took_ns for call in rank_call] for rank_call in calls], dtype=float)
    begins = np.array([[call.begins_ns for call in rank_call] for rank_call in calls])
    is_placed = bool((begins >= 0).all())
    starts = (begins - begins.min(axis=0)).astype(float) if shared and is_placed else ()
    if not is_placed:  # one after the other, but for those of one number: a coalesced call
        numbers = np.unique([meeting.number for meeting in meetings], return_inverse=True)[1]
        begins = np.broadcast_to(numbers * took.max(), took.shape)
    came = np.asarray(starts) if len(starts) else took.max(axis=0) - took
    ordered = np.sort(came, axis=0)
    before = np.argsort(came, axis=0, kind="stable")[-2]
    ahead = ordered[-1] - ordered[-2]
    last = (came == ordered[-1]) & (ahead > 0)
    first = [meeting.calls[ranks[0]] for meeting in meetings]
    took_sums, sums = (_sum_by_step(values, first, steps[ranks[0]]) for values in (took, came))
    last_steps = (sums == sums.max(axis=0)) & (sums > sums.min(axis=0))
    if sums.shape[1]:
        straggler = stats.find_straggler(took_sums, sums, stats.MIN_STEPS)
    else:
        straggler = stats.find_straggler(took, came)
    for at, (rank, by) in enumerate(zip(ranks, stats.measure_lateness(took, starts), strict=True)):
        times = last[at]
        stood: list[Interval] = []
        for op in np.flatnonzero(times).tolist():
            other, gap = before[op], int(ahead[op])
            begin, end = int(begins[other, op]), int(begins[at, op])
            stands = still.get(ranks[other]) or [(begin, begin + gap)]
            overlapping = _cut_to_window(stands, (begin, begin + gap))
            stood += (
                (end - gap + low - begin, end - gap + high - begin) for low, high in overlapping
            )
        cost = spans_length(union_spans(stood))
        of_steps = sums.shape[1], int(last_steps[at].sum())
        yield Late(
            group, rank, len(meetings), int(times.sum()), by, cost, at == straggler, *of_steps
        )


def _sum_by_step(values: Floats, calls: Sequence[Call], steps: Sequence[Interval]) -> Floats:
    """Values of operations by rank, summed over those that lie in a step, by rank and step.
    ``calls`` are of the rank whose ``steps`` they are."""
    times = [call.issued_ns if call.issued_ns >= 0 else call.begins_ns for call in calls]
    begins, ends = np.array(sorted(steps), dtype=np.int64).reshape(-1, 2).T
    at = np.searchsorted(begins, times, "right") - 1
    inside = np.array([i >= 0 and ns < ends[i] for i, ns in zip(at, times, strict=True)])
    numbers, places = np.unique(at[inside], return_inverse=True)
    sums = np.zeros((len(numbers), len(values)))
    np.add.at(sums, places, values[:, inside].T)
    return sums.T


def _cut_to_window(spans: Spans, window: Interval) -> Iterator[Interval]:
    """The parts of spans that lie in a window; they are apart from each other, in order."""
    begin, end = window
    at = bisect_right(spans, begin, key=lambda span: span[1])
    while at < len(spans) and spans[at][0] < end:
        yield max(begin, spans[at][0]), min(end, spans[at][1])
        at += 1


How = Literal["computation", "waits", ""]


class Exposed(NamedTuple):
    """Where a rank's time goes, in ns of a mean iteration, or of the whole trace where none is
    marked: ``communication`` under way, ``computation``, ``exposed``: communication while nothing
    is computed, or, where the trace does not tell when that is, waits for it (``how``), None where
    it tells neither; ``neither`` of the two, where the trace tells of both."""

    rank: int
    window: float
    communication: float
    computation: float
    exposed: float | None
    neither: float
    how: How


def measure_exposed(trace: Trace) -> list[Exposed]:
    """The exposed time of each rank of whose calls it is known when they were under way."""
    return [exposed for rank in trace.ranks if (exposed := _measure_rank(rank))]


def _measure_rank(rank: RankTrace) -> Exposed | None:
    """The exposed time of a rank: communication in which it does not compute. None where the trace
    tells of no call when it was under way."""
    calls = [
        (call.begins_ns, call.ends_ns) for _, call in list_communicating(rank) if call.is_placed
    ]
    talks = union_spans([*calls, *rank.unnamed])
    if not talks:
        return None
    computing = (call for call in rank.calls if call.kind == "compute" and call.took_ns > 0)
    placed = ((call.begins_ns, call.ends_ns) for call in computing if call.is_placed)
    computes = union_spans([*rank.busy, *placed])
    still = union_spans(_list_waits(rank))
    windows = union_spans(rank.steps) or [
        (min(talks + computes)[0], max(s[1] for s in talks + computes))
    ]
    count = max(1, len(rank.steps))
    within = [common_length(spans, windows) for spans in (talks, computes, still)]
    both = common_length(_cut_to_windows(talks, windows), computes)
    how: How = "computation" if computes else "waits" if still else ""
    hidden = {"computation": (within[0] - both) / count, "waits": within[2] / count, "": None}[how]
    rest = spans_length(windows) - within[0] - within[1] + both if computes else 0
    window, talked, computed = (ns / count for ns in (spans_length(windows), *within[:2]))
    return Exposed(rank.rank, window, talked, computed, hidden, rest / count, how)


def _cut_to_windows(spans: Spans, windows: Spans) -> Spans:
    """The parts of spans that lie in the windows; both apart from each other, in order."""
    cut, at = [], 0
    for begin, end in spans:
        while at < len(windows) and windows[at][1] <= begin:
            at += 1
        beyond = at
        while beyond < len(windows) and windows[beyond][0] < end:
            low, high = windows[beyond]
            cut.append((max(begin, low), min(end, high)))
            beyond += 1
    return cut


def _list_waits(rank: RankTrace) -> Iterator[Interval]:
    """When the program stood still: in waits, and in calls that hold it up."""
    for call in rank.calls:
        if call.kind == "wait" or (call.waits and call.kind not in ("compute", "mark")):
            begin = call.begins_ns if call.kind == "wait" else call.issued_ns
            begin = begin if begin >= 0 else max(call.issued_ns, call.begins_ns)
            if 0 <= begin <= call.ends_ns:
                yield begin, call.ends_ns


class Share(NamedTuple):
    """A rank's part of the all_to_allvs of its group: bytes it sends and gets in all, those to
    itself among them, each over the mean of all ranks' (``sends`` and ``gets``)."""

    group: Group
    rank: int
    ops: int
    sent: int
    received: int
    sends: float
    gets: float


def measure_imbalance(matches: Joined) -> list[Share]:
    """Ranks by what they get; of exchanges whose splits are known of all ranks."""
    by_group: dict[Group, list[dict[int, Exchanged]]] = defaultdict(list)
    for meeting in matches.meetings:
        is_complete = len(meeting.calls) == len(meeting.group.ranks)
        has_splits = is_complete and all(call.sends for call in meeting.calls.values())
        if has_splits and meeting.call.kind == "all_to_allv":
            by_group[meeting.group].append(exchanged_bytes(meeting))
    shares = [share for group, tables in by_group.items() for share in _list_shares(group, tables)]
    return sorted(shares, key=lambda share: -share.received)


def _list_shares(group: Group, tables: Sequence[Mapping[int, Exchanged]]) -> Iterator[Share]:
    sums = np.array([[table[rank][:2] for rank in group.ranks] for table in tables]).sum(axis=0)
    over = sums / np.maximum(1, sums.mean(axis=0))
    for rank, (out, into), (sends, gets) in zip(group.ranks, sums, over, strict=True):
        yield Share(group, rank, len(tables), int(out), int(into), float(sends), float(gets))
