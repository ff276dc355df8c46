"""A trace judged: all that it tells of a job, and what it does not tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from collbench.core.collectives import COLLECTIVES
from collbench.core.text import format_count, format_size
from collbench.features.traces.analysis import times
from collbench.features.traces.analysis.hang import (
    Hang,
    Skipping,
    find_hang,
    find_skipping,
    has_ended,
)
from collbench.features.traces.analysis.operations import (
    Joined,
    Meeting,
    join_calls,
    list_communicating,
)
from collbench.features.traces.analysis.times import Clock, Exposed, Late, Part, Share, Traffic
from collbench.features.traces.formats import own
from collbench.features.traces.types import EARLIER, Lost, Trace
from collbench.features.training.step_files import format_ranks


class Lack(NamedTuple):
    """What a trace does not tell, and what follows from that or may be done."""

    what: str
    so: str


class Judged(NamedTuple):
    """All that is told of a trace. ``disagreements`` are those that did not hang the job;
    ``skipping`` who skipped calls before the first of them, where that is known."""

    trace: Trace
    matches: Joined
    hang: Hang | None
    disagreements: tuple[Meeting, ...]
    lacks: tuple[Lack, ...]
    clock: Clock
    parts: tuple[Part, ...]
    traffic: tuple[Traffic, ...]
    late: tuple[Late, ...]
    exposed: tuple[Exposed, ...]
    shares: tuple[Share, ...]
    skipping: Skipping | None

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of the job that the trace does not have."""
        return tuple(sorted({*range(self.trace.world)} - {rank.rank for rank in self.trace.ranks}))

    @property
    def disagree(self) -> bool:
        """Whether ranks disagree for sure: operations that the library does not number, of which
        some ranks have more than others, or have lost more, may be joined wrongly."""
        if self.skipping:  # after calls in which they agree
            return True
        labels = [group.label for group in self.matches.groups]
        counted_anew = labels if self.trace.form == own.FORM else self.matches.by_order
        unsure = {*counted_anew} & _short_ranks(self.matches).keys()
        return any(
            meeting.is_matched and meeting.group.label not in unsure
            for meeting in self.disagreements
        )

    @property
    def communicates(self) -> bool:
        """Whether there is any operation or message to judge."""
        return bool(self.matches.meetings or self.matches.messages)

    @property
    def is_placed(self) -> bool:
        """Whether the trace tells when all that has a time was under way."""
        every = (*self.matches.meetings, *self.matches.messages)
        timed = (meeting for meeting in every if meeting.time)
        return all(call.is_placed for meeting in timed for call in meeting.calls.values())

    @property
    def is_complete(self) -> bool:
        """Whether all files are used to their ends, and most calls could be read."""
        cut = self.trace.unread or any(rank.cut for rank in self.trace.ranks)
        return not cut and not self.is_mostly_lost

    @property
    def lost(self) -> int:
        """Calls that could not be read. Those before all others are not among them: no file of a
        long job has all."""
        losses = (loss for rank in self.trace.ranks for loss in rank.lost)
        return sum(loss.calls for loss in losses if loss.why not in EARLIER)

    @property
    def is_mostly_lost(self) -> bool:
        """Whether more calls could not be read than could."""
        return self.lost > sum(1 for rank in self.trace.ranks for _ in list_communicating(rank))

    @property
    def short_ranks(self) -> dict[str, list[int]]:
        """Ranks by the label of a group on which they lack operations that others have, the last
        or all of them. A rank that lost calls may have lost all of a group."""
        complete_ranks = {
            rank.rank
            for rank in self.trace.ranks
            if not (rank.only_active or any(loss.calls for loss in rank.lost))
        }
        return _short_ranks(self.matches, complete_ranks)

    @property
    def lone_messages(self) -> int:
        """Messages without their other half, of a trace that did not lose its first calls."""
        losses = (loss for rank in self.trace.ranks for loss in rank.lost)
        return 0 if any(loss.why in EARLIER for loss in losses) else self.matches.alone

    @property
    def is_undecided(self) -> bool:
        """Whether a recorder of hung jobs made the trace, and it lacks calls of some ranks: whether
        they never made these, and hung the job, is then not known."""
        states = any(call.state for rank in self.trace.ranks for call in rank.calls)
        return states and bool(self.short_ranks or self.lone_messages)

    @property
    def completed(self) -> bool:
        """Whether the trace tells of all calls that they have ended."""
        calls = (call for rank in self.trace.ranks for _, call in list_communicating(rank))
        return all(map(has_ended, calls))

    @property
    def steps(self) -> int:
        """Iterations that are marked on all ranks."""
        return min((len(rank.steps or rank.marked) for rank in self.trace.ranks), default=0)


def judge_trace(trace: Trace) -> Judged:
    """The judgement of a trace."""
    matches = join_calls(trace)
    stuck = find_hang(trace, matches)
    fronts = stuck.fronts if stuck else ()
    at = {(front.group, front.number) for front in fronts if front.odd or front.unequal}
    mismatches = [
        mismatch
        for mismatch in matches.disagreements
        if (mismatch.group, mismatch.number) not in at
    ]
    clock, operations = times.find_clock(trace, matches), times.list_operations(matches)
    verdict = Judged(
        trace,
        matches,
        stuck,
        tuple(mismatches),
        (),
        clock,
        tuple(times.make_part(operation, clock.shared) for operation in operations),
        tuple(times.list_traffic(trace, operations)),
        tuple(times.find_late(trace, matches, clock.shared)),
        tuple(times.measure_exposed(trace)),
        tuple(times.measure_imbalance(matches)),
        find_skipping(mismatches[0], matches.meetings) if mismatches else None,
    )
    return verdict._replace(
        lacks=(
            *_list_losses(trace),
            *_lacking_files(verdict),
            *_lacking_calls(verdict),
            *_lacking_times(verdict),
        )
    )


def _list_losses(trace: Trace) -> Iterator[Lack]:
    """What readers could not use, by the reason, with the first place where it is."""
    by_reason: dict[str, list[tuple[int, Lost]]] = defaultdict(list)
    for rank in trace.ranks:
        for lost in rank.lost:
            why, _, location = lost.why.rpartition(" (")
            by_reason[why if why and location.endswith(")") else lost.why].append((rank.rank, lost))
    for losses in sorted(
        by_reason.values(), key=lambda losses: -sum(lost.calls for _, lost in losses)
    ):
        calls, nbytes = sum(e.calls for _, e in losses), sum(e.nbytes for _, e in losses)
        volume = f" of {format_size(nbytes)}" if nbytes else ""
        amount = f"{format_count(calls, 'call')}{volume}, " if calls else ""
        ranks = sorted({rank for rank, _ in losses})
        follows = "left out of all that is told" if calls else "the rest is told"
        yield Lack(f"lost: {losses[0][1].why}", f"{amount}{in_words(ranks)}: {follows}")


def _lacking_files(verdict: Judged) -> Iterator[Lack]:
    """Files that are not used, ranks that are not there, and clocks."""
    for unread in verdict.trace.unread:
        yield Lack(f"{unread.source} is not used", unread.why)
    for rank in verdict.trace.ranks:
        if rank.cut:
            yield Lack(f"{rank.source} is cut at {rank.cut}", "it is read up to there")
    if verdict.missing:
        yield Lack(
            f"no trace of {in_words(verdict.missing)}, of {verdict.trace.world}",
            "give their files, too: what others wait for them is not seen",
        )
    if len(verdict.trace.ranks) == 1:
        yield Lack(
            "one rank only",
            "its times have in them what it waited for others; who is late is not known",
        )
    if not verdict.clock.shared:
        yield Lack(
            f"no common clock: {verdict.clock.why}",
            "only times of one rank are set against each other; the last to come is the rank on"
            " which an operation takes least",
        )


def _lacking_calls(verdict: Judged) -> Iterator[Lack]:
    """Calls that are there, and not whole."""
    every = (*verdict.matches.meetings, *verdict.matches.messages)
    untimed = sum(meeting.time is None for meeting in every)
    if every and untimed == len(every):
        yield Lack(
            "no times of operations",
            "what they take is not known; torch's profiler records it, and a flight recorder with"
            " TORCH_NCCL_ENABLE_TIMING=1",
        )
    elif untimed:
        yield Lack(
            f"no times of {untimed:,} of {format_count(len(every), 'operation')}", "left out"
        )
    if not verdict.is_placed:
        yield Lack(
            "when operations began and ended is not known, only how long they took",
            "no timeline and no time under way; sums count each, also those that overlap",
        )
    if verdict.matches.by_order:
        yield Lack(
            f"operations of {_list_labels(verdict.matches.by_order)} have no numbers",
            "those of different ranks are joined by their order",
        )
    if unknown := [group.label for group in verdict.matches.groups if not group.is_known]:
        yield Lack(
            f"who is in {_list_labels(unknown)} is not in the trace",
            "those seen in it are taken for its members",
        )
    calls = [(call.kind, call) for meeting in every for call in meeting.calls.values()]
    if without_splits := sum(kind == "all_to_allv" and not call.sends for kind, call in calls):
        yield Lack(
            f"no splits of {format_count(without_splits, 'all_to_allv call')}",
            "taken for even where bytes are counted, and by collbench replay with --assume-even",
        )
    rooted = {name for name, row in COLLECTIVES.items() if row.rooted}
    if number := sum(kind in rooted and call.root < 0 for kind, call in calls):
        yield Lack(f"no root of {format_count(number, 'call')}", "ranks are not compared in that")
    if verdict.matches.alone:
        yield Lack(
            f"{format_count(verdict.matches.alone, 'message')} without their other half",
            "the other rank never called it, or its trace begins later, ends earlier or lost calls",
        )


def _lacking_times(verdict: Judged) -> Iterator[Lack]:
    """Iterations, computation, and where ranks' traces end."""
    if not verdict.steps:
        yield Lack(
            "no iterations are marked",
            "what is told is of the whole trace; step() of torch's profiler marks them",
        )
    if any(exposed.how == "" for exposed in verdict.exposed):
        yield Lack("neither computation nor waits have times", "exposed communication is not known")
    if verdict.hang is None:
        for label, ranks in verdict.short_ranks.items():
            yield Lack(
                f"operations on {label} that others have and {in_words(ranks)} not",
                "they never called them, or their trace was taken for less long, began later or"
                " lost calls",
            )


def _short_ranks(matches: Joined, recorded: Collection[int] = ()) -> dict[str, list[int]]:
    """Ranks by the label of a group on which their last operation is before that of others; of
    those that are ``recorded`` also where they have none at all."""
    last: dict[tuple[str, tuple[int, ...]], dict[int, int]] = {}
    for meeting in matches.meetings:
        key = (meeting.group.label, meeting.group.ranks)
        if key not in last:
            last[key] = {rank: -1 for rank in meeting.group.ranks if rank in recorded}
        last_numbers = last[key]
        for rank in meeting.calls:
            last_numbers[rank] = max(meeting.number, last_numbers.get(rank, -1))
    short: dict[str, list[int]] = defaultdict(list)
    for (label, _), last_numbers in last.items():
        most = max(last_numbers.values())
        short[label] += [rank for rank, number in last_numbers.items() if number < most]
    return {label: sorted({*ranks}) for label, ranks in short.items() if ranks}


def in_words(ranks: Sequence[int]) -> str:
    """Ranks as they are told: rank 3, ranks 0-2,4."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {format_ranks(sorted(ranks))}"


def _list_labels(labels: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(labels))
    more = f" and {len(distinct) - 5} more" if len(distinct) > 5 else ""
    return f"{', '.join(distinct[:5])}{more}"
