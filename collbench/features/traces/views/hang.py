"""A job that stands still, in words: who hung it, where each group stands, and the calls around the
one that it stands at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from msgspec.structs import replace

from collbench.core.collectives import COLLECTIVES
from collbench.core.text import format_count, format_duration, format_size
from collbench.features.traces.analysis.hang import Front, Hang, has_ended
from collbench.features.traces.analysis.judgement import Judged, in_words
from collbench.features.traces.analysis.operations import (
    Group,
    Meeting,
    groups_of,
    list_communicating,
    unequal_blocks,
)
from collbench.features.traces.types import Call, RankTrace
from collbench.features.training.step import POINT_TO_POINT
from collbench.features.training.step_files import format_ranks
from collbench.features.training.views.timeline import RANKS, Bar, draw_timeline, format_span
from collbench.show.document import Column, Figure, Line, Table, make_columns

BEFORE, AFTER = 3, 2  # operations that are shown beside the one at which a group stands
GROUPS = 12  # that are shown
UNEQUAL = 3  # blocks of an exchange that are told
DRAWN = 6  # operations before it that are drawn
EPOCH = 10**17  # ns: less is no time of day


def describe_hang(hang: Hang) -> str:
    """A sentence on who hung the job, and in which operation."""
    return {
        "missing": _describe_missing,
        "silent": _describe_silent,
        "other": _describe_other,
        "unequal": _describe_unequal,
        "unread": _describe_unread,
        "circle": _describe_circle,
        "behind": _describe_behind,
        "some": _describe_partly_done,
        "all": _describe_all,
        "follows": _describe_all,
    }[hang.cause](hang)


def _describe_missing(hang: Hang) -> str:
    front = hang.fronts[0]
    called = tuple(rank for rank in hang.culprits if rank in front.missing)
    gone = tuple(rank for rank in hang.culprits if rank in front.silent)
    also = f", there is no trace of {in_words(gone)}" if gone else ""
    half = {"send": "the recv for ", "recv": "the send for "}.get(front.call.kind, "")
    return (
        f"{in_words(called)} never called"
        f" {half}{describe_operation(front)}{also}{_describe_others(front)}"
    )


def _describe_silent(hang: Hang) -> str:
    front = hang.fronts[0]
    plural = len(hang.culprits) > 1
    crashed, lacking = ("they", "their files are") if plural else ("it", "its file is")
    return (
        f"there is no trace of {in_words(hang.culprits)}, and {_describe_waiting(front)} in"
        f" {describe_operation(front)}{_describe_since(front)}: {crashed} crashed, perhaps"
        f" after another rank failed, or {lacking} not among these"
    )


def _describe_other(hang: Hang) -> str:
    front = hang.fronts[0]
    calls = "; ".join(
        f"{in_words(ranks)} called {call}"
        for call, ranks in _ranks_by_call(front.odd, front.group).items()
    )
    usual = tuple(
        rank for rank in (*front.waiting, *front.behind, *front.done) if rank not in front.odd
    )
    where = f"as #{front.number} on {describe_group(front.group)}"
    if not usual:
        return f"ranks disagree {where}: {calls}"
    return (
        f"{calls} {where}, where {in_words(usual)} called {describe_call(front.call, front.group)}"
        f"{describe_skipped(front.odd, front.skipped, front.repeats, front.group)}"
    )


def describe_skipped(
    odd: Mapping[int, Call], calls: Sequence[Call], repeats: bool, group: Group
) -> str:
    """A clause on calls of a group that ranks skipped, who have called what is ``odd`` and may have
    called it once more (``repeats``); empty where there are none."""
    if not calls:
        return ""
    again = f"called {_locate_call(next(iter(odd.values())), group)} once more, or " * repeats
    more = f" and {format_count(len(calls) - 1, 'call')} after it" if len(calls) > 1 else ""
    skipped = f"skipped {_locate_call(calls[0], group)}{more}"
    return f": {in_words([*odd])} {again}{skipped}, judging by the order of earlier calls"


def _locate_call(call: Call, group: Group) -> str:
    """A call with its line of the program, where the trace tells."""
    return describe_call(call, group) + (f" ({call.source})" if call.source else "")


def _describe_unequal(hang: Hang) -> str:
    front = hang.fronts[0]
    first = front.unequal[0]
    more = len(front.unequal) - 1
    return (
        f"rank {first.source} sends {format_count(first.sends, 'element')} to rank"
        f" {first.target} in"
        f" {describe_operation(front)}, which expects {first.expects:,}"
        + f"; so do {format_count(more, 'block')} more"
        * (more > 0)
    )


def _describe_unread(hang: Hang) -> str:
    front = hang.fronts[0]
    return (
        f"{_describe_waiting(front)} in {describe_operation(front)}{_describe_since(front)}, and"
        " what"
        f" {in_words(hang.culprits)} did is not known"
    )


def _describe_circle(hang: Hang) -> str:
    pairs = zip(hang.culprits, (*hang.culprits[1:], hang.culprits[0]), strict=True)
    waits = []
    for rank, other in pairs:
        fronts = (
            blocked
            for blocked in hang.fronts
            if rank in blocked.waiting and other in blocked.blamed
        )
        front = next(fronts, hang.fronts[0])
        waits.append(f"rank {rank} waits in {describe_operation(front)} for rank {other}")
    return f"deadlock: {', '.join(waits)}"


def _describe_behind(hang: Hang) -> str:
    front = hang.fronts[0]
    its = "its device has" if len(hang.culprits) == 1 else "their devices have"
    return (
        f"{in_words(hang.culprits)} called {describe_operation(front)}, but {its} not begun it:"
        " what was"
        " given to the device before has not ended;"
        f" {_describe_waiting(front)}{_describe_since(front)}"
    )


def _describe_partly_done(hang: Hang) -> str:
    """A sentence where some ranks completed the operation in which others hang."""
    front = hang.fronts[0]
    return (
        f"{in_words(front.waiting)} {'is' if len(front.waiting) == 1 else 'are'} not through"
        f" {describe_operation(front)}{_describe_since(front)}, which {in_words(front.done)}"
        " completed"
        f"{_describe_untold(front) or ': a device or a link, or the job ran on'}"
        f"{_describe_sizes(front)}"
    )


def _describe_all(hang: Hang) -> str:
    front = hang.fronts[0]
    return (
        f"{in_words(front.waiting)} {'is' if len(front.waiting) == 1 else 'are'} in"
        f" {describe_operation(front)}{_describe_since(front)}"
        f"{_describe_untold(front) or ', and none is through: a device, a link, or the job ran on'}"
        f"{_describe_sizes(front)}"
    )


def _describe_untold(front: Front) -> str:
    """Who may not have called it, as far as the trace tells."""
    if not front.unknown:
        return ""
    if front.is_message and front.call.peer < 0:
        return "; which rank it waits for is not in the trace"
    its = "its trace" if len(front.unknown) == 1 else "their traces"
    return f"; what {in_words(front.unknown)} did then is not in {its}"


def _describe_sizes(front: Front) -> str:
    """That an exchange of unknown blocks may be called wrongly."""
    return "; its sizes differ, a mistake unless blocks are uneven" * front.sizes_differ


def describe_group(group: Group) -> str:
    """A group with its ranks: dp (0-7)."""
    return f"{group.label} ({format_ranks(group.ranks)})"


def describe_call(call: Call, group: Group) -> str:
    """A call as messages name it, with ranks of the job: broadcast of 4 MiB float, root 5."""
    if call.kind in COLLECTIVES and not COLLECTIVES[call.kind].moves_data:
        return call.kind
    phrase = f"{call.kind} of {format_size(call.nbytes)} {call.dtype}"
    if call.kind in POINT_TO_POINT and 0 <= call.peer < len(group.ranks):
        way = "to" if call.kind == "send" else "from"
        tag = f", tag {call.tag}" if call.tag else ""
        return f"{phrase} {way} rank {group.ranks[call.peer]}{tag}"
    if not 0 <= call.root < len(group.ranks):
        return phrase
    return f"{phrase}, root {group.ranks[call.root]}"


def describe_operation(front: Front) -> str:
    """An operation with its number and group: all_reduce #57 of 4 MiB float on dp (0-7)."""
    phrase = describe_call(front.call, front.group)
    if front.number >= 0 and not front.is_message:
        phrase = phrase.replace(front.call.kind, f"{front.call.kind} #{front.number}", 1)
    return f"{phrase} on {describe_group(front.group)}"


def _describe_waiting(front: Front) -> str:
    others = front.waiting
    return f"{in_words(others)} {'waits' if len(others) == 1 else 'wait'}"


def _describe_others(front: Front) -> str:
    """Who waits in it, and since when."""
    number = len(front.waiting)
    if not number:
        return f", which {in_words(front.done)} completed" if front.done else ""
    who = in_words(front.waiting) if number == 1 else format_count(number, "other")
    return f", which {who} wait{'s' * (number == 1)} in{_describe_since(front)}"


def _describe_since(front: Front) -> str:
    if front.since_ns < EPOCH:
        return ""
    return f" since {datetime.fromtimestamp(front.since_ns // 10**9, UTC):%H:%M:%S} UTC"


def format_time(ns: int) -> str:
    """A time of day: 12:03:07.250."""
    if ns < EPOCH:
        return "-"
    second, rest = divmod(ns, 10**9)
    return f"{datetime.fromtimestamp(second, UTC):%H:%M:%S}.{rest // 10**6:03}"


def _ranks_by_call(calls: Mapping[int, Call], group: Group) -> dict[str, list[int]]:
    """Ranks by the words of their call."""
    by_call: dict[str, list[int]] = {}
    for rank, call in calls.items():
        by_call.setdefault(describe_call(call, group), []).append(rank)
    return by_call


def make_tables(verdict: Judged) -> list[Table]:
    """Tables of a hang: where each group stands, what the culprits called last, and the calls
    around the first of them, unless that is a message: its number is none of a collective."""
    hang = verdict.hang
    if hang is None:
        return []
    first = hang.fronts[0]
    around = [] if first.is_message else [_around_table(verdict, first)]
    return [_fronts_table(hang), *_last_tables(verdict, hang), *around]


def draw_hang(verdict: Judged) -> Figure | None:
    """Where the job hangs, drawn: the last calls of the first group that hangs, a row for each
    rank, how long those that wait have waited, and what the others lack. None where the trace has
    no times, or the first that hangs is a message."""
    assert verdict.hang
    front = verdict.hang.fronts[0]
    if front.is_message:
        return None
    ranks = _drawn_ranks(verdict.hang, front)
    calls = _list_drawn(verdict, front, ranks)
    if front.number < 0 or not any(drawn.is_waiting for drawn in calls):
        return None
    zero = min(drawn.begin for drawn in calls)
    begun = min(drawn.begin for drawn in calls if drawn.number == front.number) - zero
    notes = [
        {
            "x": begun / 1e6,
            "y": f"rank {rank}",
            "text": f"<b>{_describe_lack(front, rank)}</b>",
            "showarrow": False,
            "xanchor": "left",
        }
        for rank in ranks
        if _describe_lack(front, rank)
    ]
    bars = _make_bars(calls, front.group, zero)
    caption = f"{_drawn_words(verdict, front, ranks)} {_describe_ends(calls)}"
    timeline = draw_timeline("Who waits for whom", caption, bars, "ms")
    layout = {**timeline.layout, "annotations": notes}
    rows = [f"rank {rank}" for rank in sorted(ranks, reverse=True)]
    layout["yaxis"] = {"type": "category", "categoryorder": "array", "categoryarray": rows}
    layout["yaxis"] |= {"range": [-0.5, len(rows) - 0.5]}
    return replace(timeline, name="hang", layout=layout, height=140 + 34 * len(rows))


class _DrawnCall(NamedTuple):
    """A call of a rank that is drawn, from ``begin`` to ``end`` (ns). A call that hangs ends at the
    time until which its rank's recording is complete. ``end`` is -1 where it is unknown."""

    rank: int
    number: int
    call: Call
    begin: int
    end: int
    is_waiting: bool


def _list_drawn(verdict: Judged, front: Front, ranks: Sequence[int]) -> list[_DrawnCall]:
    """The last calls of a group, of those ranks that are drawn."""
    complete = {rank.rank: rank.complete_until_ns for rank in verdict.trace.ranks}
    calls = []
    for meeting in verdict.matches.meetings:
        if meeting.group != front.group or not 0 <= front.number - meeting.number <= DRAWN:
            continue
        for rank, call in meeting.calls.items():
            begin = _begin_time(call)
            is_waiting = meeting.number == front.number and rank in front.waiting
            end = complete[rank] if is_waiting else call.ends_ns
            end = end if end >= begin + is_waiting else -1
            if rank in ranks and begin >= 0:
                calls.append(_DrawnCall(rank, meeting.number, call, begin, end, is_waiting))
    return calls


def _make_bars(calls: Sequence[_DrawnCall], group: Group, zero: int) -> dict[str, list[Bar]]:
    """The bars of calls, in ns after ``zero``, by kind. The bar of a call that hangs goes to the
    figure's edge where it is unknown how long its rank has waited."""
    edge = _find_edge(calls, zero)
    bars: dict[str, list[Bar]] = {"communication": [], "waiting": []}
    for rank, number, call, begin, end, is_waiting in calls:
        name, hover = f"{call.kind} #{number}", (describe_call(call, group), call.source)
        if is_waiting:
            took = f" for {format_duration(end - begin)}" if end >= 0 else ""
            when = begin - zero, (end if end >= 0 else edge) - zero
            bar = Bar(rank, "", *when, f"waits in {name}{took}", hover, f"waits{took}")
        else:  # wide enough to be seen
            when = begin - zero, max(end, begin + (edge - zero) // 100) - zero
            bar = Bar(rank, "", *when, name, hover, _describe_timing(call, zero))
        bars["waiting" if is_waiting else "communication"].append(bar)
    return bars


def _find_edge(calls: Sequence[_DrawnCall], zero: int) -> int:
    """The time at which the figure ends. Where the ends of all waits are unknown, it leaves them
    room after the last call; where one is known, no bar is longer for being unknown."""
    edge = max(max(drawn.begin, drawn.end) for drawn in calls)
    unknown = [drawn.begin for drawn in calls if drawn.is_waiting and drawn.end < 0]
    if not unknown:
        return edge
    if any(drawn.is_waiting and drawn.end >= 0 for drawn in calls):
        return max(edge, max(unknown) + (edge - zero) // 100)  # wide enough to be seen
    return edge + max((edge - zero) // 2, 1_000_000)


def _describe_ends(calls: Sequence[_DrawnCall]) -> str:
    """A sentence on where the bars of those that wait end."""
    known = {drawn.end >= 0 for drawn in calls if drawn.is_waiting}
    if True not in known:
        return "Bars of waiting ranks end at the figure's edge: how long they waited is unknown."
    unknown = "; where that is unknown, at the figure's edge" * (False in known)
    until = "at the time until which its recording is complete"
    return f"The bar of a waiting rank ends {until}{unknown}."


def _describe_timing(call: Call, zero: int) -> str:
    """How long a call took, and when it began after ``zero``."""
    begin = _begin_time(call)
    if call.ends_ns >= begin:
        return format_span(begin - zero, call.ends_ns - zero)
    took = f"{format_duration(call.length_ns)}, " if call.length_ns >= 0 else ""
    return f"{took}issued at {format_duration(begin - zero)}"


def _drawn_ranks(hang: Hang, front: Front) -> list[int]:
    """The culprits in the group, then those that wait, as many as a figure has."""
    first = [rank for rank in hang.culprits if rank in front.group.ranks]
    return list(dict.fromkeys([*first, *front.blamed, *front.waiting]))[:RANKS]


def _begin_time(call: Call) -> int:
    """The time in ns at which a call began, or else was issued; -1 where the trace does not
    tell."""
    return call.begins_ns if call.begins_ns >= 0 else call.issued_ns


def _describe_lack(front: Front, rank: int) -> str:
    """What a rank does not do that others wait for."""
    name = f"{front.call.kind} #{front.number}"
    if rank in front.missing:
        return f"never called {name}"
    if rank in front.silent:
        return "no trace"
    if rank in front.odd:
        return f"called {front.odd[rank].kind}"
    return "device has not begun it" if rank in front.behind else ""


def _drawn_words(verdict: Judged, front: Front, ranks: Sequence[int]) -> str:
    more = len(front.group.ranks) - len(ranks)
    return (
        f"The last calls of {describe_group(front.group)} up to the one that does not end."
        + f" {format_count(more, 'more rank')} not drawn." * (more > 0)
        + " Ranks share no clock: their calls may be shifted." * (not verdict.clock.shared)
    )


def _fronts_table(hang: Hang) -> Table:
    """A line for each group: the operation, which ranks are in it, and what others do."""
    fronts = hang.fronts[:GROUPS]
    ranks_of: dict[Column, list[Sequence[int]]] = {
        Column("waiting", "left"): [front.waiting for front in fronts],
        Column("missing", "left"): [front.missing for front in fronts],
        Column("not begun", "left", priority=2): [front.behind for front in fronts],
        Column("no trace", "left", priority=3): [front.silent for front in fronts],
        Column("called another", "left", priority=1): [tuple(front.odd) for front in fronts],
        Column("past it", "left", priority=4): [front.done for front in fronts],
    }
    columns = [column for column in ranks_of if column.head == "waiting" or any(ranks_of[column])]
    lines = [
        Line(
            (
                describe_operation(front),
                *(_name_ranks(ranks_of[column][index]) for column in columns),
                format_time(front.since_ns),
            )
        )
        for index, front in enumerate(fronts)
    ]
    more = len(hang.fronts) - GROUPS
    return Table(
        name="fronts",
        title="Hanging calls",
        columns=[Column("call", "wrap"), *columns, Column("since", "left")],
        lines=lines,
        note="times are UTC" + f"; {format_count(more, 'group')} more hang" * (more > 0),
    )


def _name_ranks(ranks: Sequence[int]) -> str:
    return in_words(ranks) if ranks else "-"


def _last_tables(verdict: Judged, hang: Hang) -> list[Table]:
    """A table of what the culprits called last, and when."""
    rank_traces = {rank.rank: rank for rank in verdict.trace.ranks}
    lines = [
        Line(_did_last(rank_traces[rank])) for rank in hang.culprits[:GROUPS] if rank in rank_traces
    ]
    columns = make_columns(("rank", "called last", "at", "state", "from"), "rwllw")
    table = Table(name="last", title="What the culprits did last", columns=columns, lines=lines)
    return [table] if lines else []


def _did_last(rank: RankTrace) -> tuple[str, ...]:
    """The cells of a rank's line: its last call, when that was, its state and its place in the
    program."""
    calls = [call for _, call in list_communicating(rank)]
    if not calls:
        return str(rank.rank), "nothing", "-", "-", "-"
    call = max(calls, key=lambda call: max(call.issued_ns, call.begins_ns))
    group = groups_of(rank)[call.group]
    number = f" #{call.number}" if call.number >= 0 else ""
    last_call = describe_call(call, group).replace(call.kind, f"{call.kind}{number}", 1)
    at = format_time(max(call.issued_ns, call.begins_ns))
    state = "completed" if has_ended(call) else call.state or "-"
    return str(rank.rank), f"{last_call} on {group.label}", at, state, call.source or "-"


AROUND = (
    Column("#"),
    Column("operation", "wrap"),
    Column("called by", "left"),
    Column("completed by", "left"),
    Column("first called", "left", priority=2),
    Column("from", "wrap", priority=1),
)


def _around_table(verdict: Judged, front: Front) -> Table:
    """The operations of a group before and after the one at which it stands."""
    low, high = front.number - BEFORE, front.number + AFTER
    near = [
        meeting
        for meeting in verdict.matches.meetings
        if low <= meeting.number <= high and meeting.group == front.group
    ]
    lines = [Line(_describe_called(meeting, meeting.number == front.number)) for meeting in near]
    gloo = any("gloo" in rank.backend for rank in verdict.trace.ranks)
    gloo = gloo and verdict.trace.form != "collbench"
    return Table(
        name="calls",
        title=f"Calls of {describe_group(front.group)}, one by one",
        columns=AROUND,
        lines=lines,
        note="> hangs here" + "; Gloo's recorder does not record which calls have completed" * gloo,
    )


def _describe_called(meeting: Meeting, is_front: bool) -> tuple[str, ...]:
    """The cells of a meeting's line: its calls, the ranks that called, those that are done, and
    when it was first issued."""
    kinds = "; ".join(
        call if len(ranks) == len(meeting.calls) else f"{call} ({in_words(ranks)})"
        for call, ranks in _ranks_by_call(meeting.calls, meeting.group).items()
    )
    done = [rank for rank, call in meeting.calls.items() if has_ended(call)]
    issued = [call.issued_ns for call in meeting.calls.values() if call.issued_ns >= 0]
    return (
        f"{'> ' * is_front}{meeting.number}",
        kinds,
        _name_ranks([*meeting.calls]),
        _name_ranks(done),
        format_time(min(issued, default=-1)),
        meeting.call.source or "-",
    )


def _unequal_words(meeting: Meeting) -> str:
    """The first blocks of an exchange that its two ranks do not agree on."""
    blocks = unequal_blocks(meeting)
    sentences = [
        f"rank {block.source} sends {format_count(block.sends, 'element')} to rank"
        f" {block.target}, which"
        f" expects {block.expects:,}"
        for block in blocks[:UNEQUAL]
    ]
    more = len(blocks) - UNEQUAL
    return "; ".join([*sentences, *([f"and {more:,} more blocks"] if more > 0 else [])])


def disagreements_table(meetings: Iterable[Meeting]) -> Table:
    """The first operation of each group in which ranks do not call the same."""
    lines = [
        Line(
            (
                describe_group(meeting.group),
                str(meeting.number),
                "; ".join(
                    f"{in_words(ranks)}: {call}"
                    for call, ranks in _ranks_by_call(meeting.odd, meeting.group).items()
                )
                or _unequal_words(meeting),
                describe_call(meeting.call, meeting.group)
                if len(meeting.odd) < len(meeting.calls)
                else "-",
            )
        )
        for meeting in meetings
    ]
    return Table(
        name="disagreements",
        title="Ranks that disagree",
        columns=make_columns(("group", "#", "called", "the others"), "lrww"),
        lines=lines,
        note="the first such operation of each group: kind, size, datatype, root and reduction are"
        " the same on all ranks of it, and what one sends the other expects",
    )


def plain_values(hang: Hang) -> dict[str, Any]:
    """A job that stands still, as programs read it."""
    return {
        "cause": hang.cause,
        "ranks": list(hang.culprits),
        "words": describe_hang(hang),
        "groups": [
            {
                "group": front.group.label,
                "members": list(front.group.ranks),
                "number": front.number,
                "operation": describe_call(front.call, front.group),
                "waiting": list(front.waiting),
                "not_begun": list(front.behind),
                "missing": list(front.missing),
                "no_trace": list(front.silent),
                "not_told": list(front.unknown),
                "completed": list(front.done),
                "other": {
                    str(rank): describe_call(c, front.group) for rank, c in front.odd.items()
                },
                "all_completed": front.before,
                "since_ns": front.since_ns,
            }
            for front in hang.fronts
        ],
    }
