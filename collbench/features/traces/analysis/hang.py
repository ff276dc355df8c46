"""Who hung a job: for each group the operation at which it stands still, who is in it, and who
never called it, of what a flight recorder dumped or of a trace that was cut short.

A rank that never called what others wait in may itself wait elsewhere for another: the culprits are
those that wait for nobody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from collbench.features.traces.analysis.operations import (
    Block,
    Group,
    Joined,
    Meeting,
    groups_of,
    list_communicating,
    sizes_differ,
    unequal_blocks,
)
from collbench.features.traces.types import EARLIER, HOST, Call, RankTrace, Trace
from collbench.features.training.step import POINT_TO_POINT

Status = Literal["done", "in", "called", "missing", "silent", "unknown"]
Cause = Literal[
    "other", "unequal", "missing", "silent", "circle", "behind", "unread", "some", "all", "follows"
]


HISTORY = 1000  # calls before the one that differs, whose order tells which was skipped


class Skipping(NamedTuple):
    """Ranks that skipped calls of their group: what they call where others call ``usual``, by rank,
    and the calls that they skipped, in their order. ``repeats``: what they call is what they called
    just before, so that they may have called it once more instead."""

    usual: Call
    odd: Mapping[int, Call]
    calls: tuple[Call, ...]
    repeats: bool


class Front(NamedTuple):
    """The first operation of a group, or message, that not all of its ranks are through with.
    Ranks are ``waiting`` in it, or ``done``; ``behind``: called it, as others whose devices
    have begun it, but theirs has not; ``missing``: their trace ends without it; ``silent``:
    there is no trace of theirs; ``unknown``: their trace begins only after it, or does not
    tell. ``odd`` are calls that do not fit the others'. ``before`` is the number that all
    completed last, -1 where there is none. ``since_ns`` is when the first of those waiting
    called it, -1 if not told. ``skipped`` are calls that the odd ranks left out, where calls
    before show their order, if they did not call once more what they called just before
    (``repeats``). ``unequal`` are blocks of which sender and receiver have different sizes;
    where no blocks are told, ``sizes_differ`` if ranks differ in the size of the exchange."""

    group: Group
    number: int
    call: Call
    waiting: tuple[int, ...]
    behind: tuple[int, ...]
    done: tuple[int, ...]
    missing: tuple[int, ...]
    silent: tuple[int, ...]
    unknown: tuple[int, ...]
    odd: Mapping[int, Call]
    before: int
    since_ns: int
    unequal: tuple[Block, ...] = ()
    sizes_differ: bool = False
    skipped: tuple[Call, ...] = ()
    repeats: bool = False

    @property
    def blamed(self) -> tuple[int, ...]:
        """The ranks that the waiting ranks wait for."""
        return tuple(sorted({*self.missing, *self.silent, *self.behind}))

    @property
    def is_message(self) -> bool:
        """Whether it is a send or a receive, which are not numbered among collectives."""
        return self.call.kind in POINT_TO_POINT


class Hang(NamedTuple):
    """``fronts`` of all groups that hang, the ``cause`` of the others first, and its ``culprits``:
    ranks that call ``"other"`` things, or exchange ``"unequal"`` blocks; that never called it
    (``"missing"``) and wait in nothing else, with those that have no trace, or that have none
    (``"silent"``); that wait for each other in a ``"circle"``; that are ``"behind"`` and wait in
    nothing else; or, where nobody can be named, those whose files are ``"unread"``, or those that
    are in it: ``"some"`` of its ranks, or ``"all"``."""

    cause: Cause
    culprits: tuple[int, ...]
    fronts: tuple[Front, ...]

    @property
    def is_blamed(self) -> bool:
        """Whether somebody is to blame."""
        return self.cause not in ("unread", "some", "all", "follows")


class _Ranks:
    """What the trace tells of each rank's calls."""

    def __init__(self, trace: Trace) -> None:
        self.by_rank = {rank.rank: rank for rank in trace.ranks}
        self._ends = {rank.rank: _tells_ends(rank) for rank in trace.ranks}
        self._messages = {
            (rank.rank, call.group)
            for rank in trace.ranks
            for call in rank.calls
            if call.kind in POINT_TO_POINT
        }

    def status(self, rank: int, call: Call) -> Status:
        """Whether a rank is through with a call, as far as its trace tells."""
        if has_ended(call):
            return "done"
        if not call.state:
            return "called"
        return "in" if self._ends[rank] else "called"

    def reached(self, rank: int, group: Group, called: int) -> tuple[int, int] | None:
        """The last collectives of a group that a rank called and completed, as it counted them
        itself; None where it did not, or counted messages with them, or fewer than ``called``."""
        if (rank, group.name) in self._messages or group.name not in self.by_rank[rank].reached:
            return None
        enqueued, started, completed = self.by_rank[rank].reached[group.name]
        last = max(enqueued, started, completed)
        return (last, completed) if last >= called else None

    def is_alone(self, rank: int, call: Call) -> bool:
        """Whether a message has a number of its own: those of one batch share theirs, and end
        together."""
        own = [
            c
            for c in self.by_rank[rank].calls
            if c.group == call.group and c.kind in POINT_TO_POINT
        ]
        return call.number >= 0 and [c.number for c in own].count(call.number) == 1

    def last_lost(self, rank: int, group: Group) -> int:
        """The last collective of a group that a rank called and its trace lost; -1 for none."""
        trace = self.by_rank.get(rank)
        return max(trace.lost_numbers.get(group.name, ()), default=-1) if trace else -1


def has_ended(call: Call) -> bool:
    """Whether a call is known to have ended."""
    return call.state == "completed" or max(call.ends_ns, call.length_ns) >= 0


def _tells_ends(rank: RankTrace) -> bool:
    """Whether it can be told that a call of this rank has not ended: Gloo's recorder has all of
    them as scheduled for ever."""
    calls = [call for _, call in list_communicating(rank)]
    ended = (has_ended(call) or call.state == "started" for call in calls)
    return "gloo" not in rank.backend or any(ended)


def find_hang(trace: Trace, matches: Joined) -> Hang | None:
    """The hang that a trace shows; None where no rank stands still. None also where the trace has
    no states of calls, as of a job that ran on."""
    if not any(call.state for rank in trace.ranks for call in rank.calls):
        return None
    ranks = _Ranks(trace)
    by_group: dict[Group, list[Meeting]] = defaultdict(list)
    for meeting in matches.meetings:
        by_group[meeting.group].append(meeting)
    fronts = [
        front
        for group, meetings in by_group.items()
        if (front := _find_front(group, meetings, ranks))
    ]
    fronts += _message_fronts(ranks)
    fronts += _unaddressed_fronts(ranks)
    return _blame_fronts(fronts, _unread_ranks(trace)) if fronts else None


def _unread_ranks(trace: Trace) -> set[int]:
    """Ranks that may be those of files that are not used."""
    unread = {entry.rank for entry in trace.unread}
    recorded = {rank.rank for rank in trace.ranks}
    return {*range(trace.world)} - recorded if -1 in unread else unread


def _find_front(group: Group, meetings: Sequence[Meeting], ranks: _Ranks) -> Front | None:
    """The first operation of a group that not all of its ranks have completed; None where all have,
    as far as the trace tells."""
    ordered = sorted(meetings, key=lambda meeting: meeting.number)
    numbered = all(meeting.call.number == meeting.number for meeting in ordered)
    called = {rank: meeting.number for meeting in ordered for rank in meeting.calls}  # last of each
    ended = {
        rank: meeting.number
        for meeting in ordered
        for rank, call in meeting.calls.items()
        if has_ended(call)
    }
    for rank in group.ranks:
        if numbered and (lost := ranks.last_lost(rank, group)) >= 0:
            called[rank] = max(lost, called.get(rank, -1))

    def status(rank: int, meeting: Meeting) -> Status:
        if rank not in ranks.by_rank:
            return "silent"
        reached = ranks.reached(rank, group, called.get(rank, -1)) if numbered else None
        completed = reached[1] if reached else -1
        if meeting.number <= completed or meeting.number < ended.get(rank, -1):
            return "done"
        if rank in meeting.calls:
            return ranks.status(rank, meeting.calls[rank])
        if reached:
            return "missing" if meeting.number > reached[0] else "called"
        return (
            "missing"
            if _never_called(ranks.by_rank[rank], meeting, called.get(rank), numbered)
            else "unknown"
        )

    before = -1
    for meeting in ordered:
        if len(meeting.calls) == len(group.ranks) and all(map(has_ended, meeting.calls.values())):
            before = meeting.number
            continue
        statuses = {rank: status(rank, meeting) for rank in group.ranks}
        statuses_seen = {*statuses.values()}
        alone = "silent" in statuses_seen and meeting is ordered[-1]
        is_odd = meeting.is_matched and bool(meeting.odd)
        is_stuck = "missing" in statuses_seen or alone or is_odd
        if "in" in statuses_seen or ("called" in statuses_seen and is_stuck):
            front = _as_front(meeting, statuses, before)
            skipping = find_skipping(meeting, ordered)
            if skipping is None:
                return front
            call, odd, skipped, repeats = skipping
            return front._replace(call=call, odd=odd, skipped=skipped, repeats=repeats)
        before = meeting.number
    return None


def find_skipping(meeting: Meeting, earlier: Iterable[Meeting]) -> Skipping | None:
    """The ranks that skipped calls of their group, None where ``earlier`` meetings do not tell.

    The calls just before the disagreement are compared with those before earlier occurrences of
    both calls. The usual call is the one with the longer common run; if the other has one too, the
    run must span an iteration. The other call must come later in that iteration, and the calls
    from the usual one up to it are the skipped ones.
    """
    calls = meeting.calls
    if not meeting.odd or not meeting.is_matched or len({*map(identify_call, calls.values())}) != 2:
        return None
    same_group = (m for m in earlier if m.group == meeting.group and m.number < meeting.number)
    earlier = sorted(same_group, key=lambda m: m.number)[-HISTORY:]
    counts: dict[int, dict[int, int]] = {}  # of the same calls before, by rank and place
    for rank in {identify_call(call): rank for rank, call in calls.items()}.values():
        keys = [identify_call(meeting.calls.get(rank)) for meeting in earlier]
        places = (at for at, key in enumerate(keys) if key == identify_call(calls[rank]))
        counts[rank] = {at: _count_same(keys, at) for at in places}
    other, usual = sorted(counts, key=lambda rank: max(counts[rank].values(), default=0))
    longest_other = max(counts[other].values(), default=0)
    repeated = (
        at
        for at, count in counts[usual].items()
        if count > longest_other and (longest_other == 0 or count >= len(earlier) - at)
    )
    begin = max(repeated, default=-1)
    other_key = identify_call(calls[other])
    odd = {rank: call for rank, call in calls.items() if identify_call(call) == other_key}
    after = range(begin + 1, len(earlier))
    later = (at for at in after if identify_call(earlier[at].calls.get(other)) == other_key)
    end = next(later, 0)
    if begin < 0 or not end:
        return None
    left_out = (meeting.calls.get(other) for meeting in earlier[begin:end])
    repeats = all(
        identify_call(earlier[-1].calls.get(rank)) == identify_call(call)
        for rank, call in odd.items()
    )
    return Skipping(calls[usual], odd, tuple(call for call in left_out if call), repeats)


def identify_call(call: Call | None) -> tuple[object, ...]:
    """By what calls of one line of the program are told from others; nothing for no call."""
    return (call.kind, call.nbytes, call.dtype, call.root, call.source) if call else ()


def _count_same(keys: Sequence[object], at: int) -> int:
    """How many of the last keys are those before the one ``at``, in their order."""
    pairs = zip(reversed(keys[:at]), reversed(keys), strict=False)
    return next((count for count, (one, other) in enumerate(pairs) if one != other), at)


def _never_called(rank: RankTrace, meeting: Meeting, last: int | None, numbered: bool) -> bool:
    """Whether the calls in the trace of a rank, the ``last`` of a group among them, show that it
    did not call what others did."""
    if not _trace_reaches(rank, meeting.calls.values()) or _count_unlocated(rank, numbered):
        return False
    if last is not None:
        return meeting.number > last
    return not rank.only_active and _began_before(rank, meeting)


def _count_unlocated(rank: RankTrace, numbered: bool) -> int:
    """Calls of a rank that were lost and may be any of a group: those of which the trace does not
    tell the group and number, less those before all others where calls are ``numbered``."""
    if not numbered:
        return sum(loss.calls for loss in rank.lost)
    lost = sum(loss.calls for loss in rank.lost if loss.why not in EARLIER)
    return lost - sum(map(len, rank.lost_numbers.values()))


def _trace_reaches(rank: RankTrace, calls: Iterable[Call]) -> bool:
    """Whether the trace of a rank goes on to when others issued these calls, and the job no further
    than it."""
    return rank.until < 0 or rank.until > max(call.issued_ns for call in calls)


def _began_before(rank: RankTrace, meeting: Meeting) -> bool:
    """Whether the trace of a rank without any call of a group goes back to where this one would
    be."""
    calls = [call for _, call in list_communicating(rank)]
    issued = [call.issued_ns for call in meeting.calls.values() if call.issued_ns >= 0]
    if any(0 <= call.issued_ns < min(issued, default=0) for call in calls):
        return True
    return not calls or (meeting.number <= 1 and any(0 <= call.number <= 1 for call in calls))


def _as_front(meeting: Meeting, statuses: Mapping[int, Status], before: int) -> Front:
    """The front at a meeting, with its ranks by status; ``before`` is the number of the last
    operation that all completed, -1 for none."""

    def those(*status: Status) -> tuple[int, ...]:
        return tuple(rank for rank, rank_status in statuses.items() if rank_status in status)

    called = those("in", "called")
    state = {rank: meeting.calls[rank].state for rank in called if rank in meeting.calls}
    begun = "started" in state.values()
    behind = tuple(
        rank for rank, rank_status in state.items() if begun and rank_status == "scheduled"
    )
    issued = (meeting.calls[rank].issued_ns for rank in state)
    return Front(
        meeting.group,
        meeting.number,
        meeting.call,
        tuple(rank for rank in called if rank not in behind),
        behind,
        those("done"),
        those("missing"),
        those("silent"),
        those("unknown"),
        meeting.odd if meeting.is_matched else {},
        before,
        min((ns for ns in issued if ns >= 0), default=-1),
        unequal_blocks(meeting) if meeting.is_matched else (),
        meeting.is_matched and sizes_differ(meeting),
    )


def _message_fronts(ranks: _Ranks) -> Iterator[Front]:
    """Sends and receives that have begun and not ended, the first of each between two ranks, and of
    one tag where the library goes by tags."""
    every: dict[tuple[Group, int, int, int, str], list[Call]] = defaultdict(list)
    unaddressed: set[tuple[Group, int, int, str]] = set()
    for rank_trace in ranks.by_rank.values():
        groups = groups_of(rank_trace)
        for _, call in list_communicating(rank_trace):
            group, tag = groups[call.group], _tag_of(call, rank_trace)
            if call.kind in POINT_TO_POINT and 0 <= call.peer < len(group.ranks):
                every[group, rank_trace.rank, group.ranks[call.peer], tag, call.kind].append(call)
            elif call.kind in POINT_TO_POINT:
                unaddressed.add((group, rank_trace.rank, tag, call.kind))
    begun = {
        key: [at for at, call in enumerate(calls) if ranks.status(key[1], call) == "in"]
        for key, calls in every.items()
    }
    for key, (at, *_) in ((key, calls) for key, calls in begun.items() if calls):
        call, (group, rank, peer, tag, kind) = every[key][at], key
        other = "recv" if kind == "send" else "send"
        half = (group, peer, rank, tag, other)
        both = bool(begun.get(half))
        losses = {
            lost.why
            for r in {rank, peer} & ranks.by_rank.keys()
            for lost in ranks.by_rank[r].lost
            if lost.calls
        }
        is_readable = peer in ranks.by_rank and _trace_reaches(ranks.by_rank[peer], [call])
        is_readable = is_readable and not ranks.by_rank[peer].only_active
        is_told = is_readable and (group, peer, tag, other) not in unaddressed
        others = every.get(half, ())
        lacks = not losses and len(others) <= at
        if losses and losses <= {*EARLIER}:
            lacks = ranks.is_alone(rank, call) and _is_after_all(call, others)
        lacks = lacks and is_told and not both
        statuses: dict[int, Status] = {
            rank: "in",
            peer: "in" if both else "missing" if lacks else "unknown",
        }
        statuses |= {} if peer in ranks.by_rank else {peer: "silent"}
        if kind == "recv" or not both:
            yield _as_front(Meeting.of(group, call.number, {rank: call}, (rank, at)), statuses, -1)


def _is_after_all(call: Call, others: Sequence[Call]) -> bool:
    """Whether a message that has begun, and not ended, comes after these halves of messages on the
    other rank, however many before them are lost: all of them have ended, which no receive does
    before its send, and no send long before a receive that has started."""
    is_after = call.kind == "send" or call.state == "started"
    return is_after and bool(others) and all(map(has_ended, others))


def _unaddressed_fronts(ranks: _Ranks) -> Iterator[Front]:
    """Messages that have begun and not ended, and of which the trace does not tell the other rank,
    as a receive from anybody: the first of each rank in a group, and of one tag where the library
    goes by tags."""
    for rank, rank_trace in ranks.by_rank.items():
        groups = groups_of(rank_trace)
        seen: set[tuple[str, str, int]] = set()
        for at, call in list_communicating(rank_trace):
            group, key = groups[call.group], (call.group, call.kind, _tag_of(call, rank_trace))
            is_unaddressed = call.kind in POINT_TO_POINT and call.peer < 0 and rank in group.ranks
            if not is_unaddressed or key in seen or ranks.status(rank, call) != "in":
                continue
            seen.add(key)
            statuses: dict[int, Status] = dict.fromkeys(group.ranks, "unknown")
            statuses[rank] = "in"
            yield _as_front(Meeting.of(group, call.number, {rank: call}, (rank, at)), statuses, -1)


def _tag_of(call: Call, rank: RankTrace) -> int:
    """The tag of a message where the library goes by tags, else 0."""
    return call.tag if rank.backend in HOST else 0


def _blame_fronts(fronts: Sequence[Front], unread: set[int]) -> Hang:
    """The hang with the cause that explains most, and all fronts in that order."""
    waits: dict[int, list[Front]] = defaultdict(list)
    for front in fronts:
        for rank in front.waiting:
            waits[rank].append(front)
    blamed = [(front, *_find_cause(front, waits, unread)) for front in fronts]
    blamed.sort(
        key=lambda entry: (CAUSES.index(entry[1]), -len(entry[0].waiting), entry[0].since_ns)
    )
    _, cause, culprits = blamed[0]
    return Hang(cause, culprits, tuple(front for front, _, _ in blamed))


CAUSES: tuple[Cause, ...] = get_args(Cause)  # what explains most first


def _find_cause(
    front: Front, waits: Mapping[int, Sequence[Front]], unread: set[int]
) -> tuple[Cause, tuple[int, ...]]:
    """Why a group hangs, and the ranks to blame for it."""
    if front.odd:
        return "other", tuple(sorted(front.odd))
    if front.unequal:
        ranks = {rank for block in front.unequal for rank in (block.source, block.target)}
        return "unequal", tuple(sorted(ranks))
    missing = {rank for rank in front.missing if rank not in waits}
    silent = {*front.silent} - unread
    if missing or silent:
        return "missing" if missing else "silent", tuple(sorted({*missing, *silent}))
    return _cause_by_waits(front, waits)


def _cause_by_waits(
    front: Front, waits: Mapping[int, Sequence[Front]]
) -> tuple[Cause, tuple[int, ...]]:
    """Why a group hangs, and the ranks to blame for it, where no rank is known to have missed the
    call: by what its ranks wait for in other groups."""
    if behind := tuple(sorted(rank for rank in front.behind if rank not in waits)):
        return "behind", behind
    if front.silent:
        return "unread", front.silent
    if front.blamed:
        circle = _find_circle(front.blamed[0], waits)
        return ("circle", circle) if circle else ("follows", front.blamed)
    return "some" if front.done else "all", front.waiting


def _find_circle(rank: int, waits: Mapping[int, Sequence[Front]]) -> tuple[int, ...]:
    """Ranks that wait for each other, each for the next and the last for the first, as one comes to
    them from this rank; none where that leads elsewhere."""
    path = [rank]
    while True:
        ahead = next((wait for wait in waits.get(path[-1], ()) if wait.blamed), None)
        if ahead is None:
            return ()
        rank = ahead.blamed[0]
        if rank in path:
            return tuple(path[path.index(rank) :])
        path.append(rank)
