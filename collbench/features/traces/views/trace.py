"""A trace as a document: what is in it, what is not, what operations take across ranks, where
ranks' time goes, and who hung the job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from collbench.core.collectives import COLLECTIVES
from collbench.core.text import format_bandwidth, format_count, format_duration, format_size
from collbench.features.traces.analysis.judgement import Judged, in_words
from collbench.features.traces.analysis.operations import (
    UNNAMED,
    Group,
    Meeting,
    groups_of,
    list_communicating,
    unequal_blocks,
)
from collbench.features.traces.analysis.times import Part, last_to_come
from collbench.features.traces.formats import own
from collbench.features.traces.formats.recognise import FORMS
from collbench.features.traces.types import FAKE_GPU, Call, Interval, RankTrace
from collbench.features.traces.views import hang as hung
from collbench.features.training.step import LOCAL
from collbench.features.training.step_files import format_ranks
from collbench.features.training.views.steps import RANKS, SHOWN, Bar, draw_timeline
from collbench.show.document import Block, Document, Figure, Line, Section, Table, Weight, tone_text
from collbench.show.figures import thin_points

TOP = 10  # lines of a table on a terminal of which a page has more
FILES = 4  # that are named in the headline, of those cut and of those not used
LISTED = 1000  # operations that are listed one by one, and lines of a page's table
BARS = 600  # of each kind, of a timeline
MORE = "-o page.html has a timeline and each operation; collbench replay runs an iteration again"
FIRST = 200  # calls of a rank that are drawn where no iteration is marked


class Headline(NamedTuple):
    """What there is to know first."""

    words: str
    weight: Weight


def make_document(judged: Judged) -> Document:
    """All that a trace tells, for every medium."""
    head = warn_of_fake(judged, make_headline(judged))
    about = _describe_trace(judged)
    found = _make_tables(judged)
    brief: list[Block] = [tone_text(head.words, head.weight, strong=True), about]
    for table in chain(*found.values()):
        brief += ["", tone_text(table.title, strong=True), _shorten_table(table)]
        brief += [tone_text(table.note, "quiet")] if table.note else []
    if any(part.timed for part in judged.parts) and not (judged.hang or judged.disagreements):
        brief += ["", tone_text(MORE, "quiet")]
    return Document(
        title=_make_title(judged),
        verdict=head.words,
        weight=head.weight,
        runs=[about],
        brief=brief,
        sections=_make_sections(judged, found),
        values={"schema": 1, "verdict": head.words, **plain_values(judged)},
        rows=[part._asdict() for part in judged.parts],
    )


def _make_title(judged: Judged) -> str:
    """How many ranks the trace is of, and when their first call was, where that is known."""
    trace = judged.trace
    title = f"Trace of {format_count(len(trace.ranks), 'rank')}"
    times = [call.issued_ns for rank in trace.ranks for call in rank.calls]
    begin = min((ns for ns in times if ns >= hung.EPOCH), default=0)
    if not begin:
        return title
    return f"{title}, {datetime.fromtimestamp(begin // 10**9, UTC):%d %b %Y %H:%M} UTC"


def make_headline(judged: Judged) -> Headline:
    """Who hung the job; else where ranks disagree; else that nothing is known; else who comes
    late. With it, files that are cut or not used."""
    files = _describe_files(judged)
    if judged.hang:
        words = "; ".join([hung.describe_hang(judged.hang), *files])
        return Headline(words, "bad" if judged.hang.named else "notice")
    if judged.disagreements:
        words, weight = _describe_disagreement(judged)
        return Headline("; ".join([words, *files]), weight)
    if not judged.communicates or judged.is_mostly_lost:
        return Headline("; ".join([_explain_nothing(judged), *files]), "notice")
    words, weight = _describe_fine(judged)
    if judged.whole:
        return Headline(words, weight)
    return Headline(f"{'; '.join(files)}. As far as the rest tells: {words}", "notice")


def warn_of_fake(judged: Judged, head: Headline) -> Headline:
    """The headline, which says first that a trace is of a fake GPU."""
    if not judged.trace.fake:
        return head
    return Headline(f"FAKE: {FAKE_GPU}. {head.words}", "bad")


def _describe_files(judged: Judged) -> list[str]:
    """Files that are not used, and those that are cut."""
    trace = judged.trace
    told = []
    for unread in trace.unread[:FILES]:
        of = f"rank {unread.rank}'s file" if unread.rank >= 0 else unread.source
        told.append(f"{of} cannot be used: {unread.why}")
    cut = [rank for rank in trace.ranks if rank.cut]
    told += [f"rank {r.rank}'s file is cut at {r.cut} and read up to there" for r in cut[:FILES]]
    more = max(0, len(trace.unread) - FILES) + max(0, len(cut) - FILES)
    return told + [f"so are {format_count(more, 'file')} more"] * (more > 0)


def _describe_disagreement(judged: Judged) -> Headline:
    first = judged.disagreements[0]
    where = f"#{first.number} of {hung.describe_group(first.group)}"
    if judged.disagree:
        return Headline(f"ranks disagree on operation {where}", "bad")
    told = "the library's numbers of them are not known, and ranks' traces may begin apart"
    return Headline(f"ranks seem to disagree on operation {where}: {told}", "notice")


def _explain_nothing(judged: Judged) -> str:
    """That no operation is known, and why."""
    lost = [each for rank in judged.trace.ranks for each in rank.lost if each.calls]
    if lost:
        most = max(lost, key=lambda each: each.calls)
        return (
            "no verdict: nothing is known of what ranks did together, as"
            f" {format_count(judged.lost, 'call')} cannot be read: {most.why}"
        )
    hint = ""
    if judged.trace.form == "flight":
        hint = ": dumps have no calls (TORCH_FR_BUFFER_SIZE sets how many are kept)"
    return f"no verdict: nothing was recorded of what ranks did together{hint}"


def _describe_fine(judged: Judged) -> Headline:
    """Who comes late, or that all is well, as far as is known."""
    if late := next((each for each in judged.late if each.surely), None):
        return Headline(
            f"rank {late.rank} comes last to {late.last} of {late.ops} operations of"
            f" {hung.describe_group(late.group)}, and costs {format_duration(late.cost)} of"
            " waiting",
            "notice",
        )
    lost = judged.lost
    are = "is" if lost == 1 else "are"
    left = f"; {format_count(lost, 'call')} that cannot be read {are} left out" if lost else ""
    broken = [
        rank.rank
        for rank in judged.trace.ranks
        if any(each.why == own.INTERRUPTED for each in rank.lost)
    ]
    left += f"; the recording of {in_words(broken)} broke off" if broken else ""
    if judged.missing:
        there = in_words([rank.rank for rank in judged.trace.ranks])
        told = f"there is a trace of {there} only, of {judged.trace.world:,}"
        return Headline(f"{told}: nothing in it hangs or disagrees{left}", "notice")
    if not judged.completed:
        told = "all ranks made the same calls; the trace does not show whether all completed"
        return Headline(f"{told}{left}", "good")
    if lost:
        told = "no hang: all ranks made and completed the same calls, as far as these can be read"
        return Headline(f"{told}{left}", "notice")
    return Headline(f"no hang: all ranks made the same calls and completed them{left}", "good")


def _describe_trace(judged: Judged) -> str:
    trace = judged.trace
    steps = format_count(judged.steps, "iteration") if judged.steps else "no iteration marked"
    return (
        f"{_name_form(judged)}: {len(trace.ranks):,} of {format_count(trace.world, 'rank')},"
        f" {steps},"
        f" {format_count(len(judged.joined.meetings), 'operation')} and"
        f" {format_count(len(judged.joined.messages), 'message')} on"
        f" {format_count(len(judged.joined.groups), 'group')}"
    )


def _name_form(judged: Judged) -> str:
    """The trace's format in words."""
    form = judged.trace.form
    return FORMS[form].title if form in FORMS else form


def _make_tables(judged: Judged) -> dict[str, list[Table]]:
    """Those that have lines, by the section that they are in."""
    apart = [hung.disagreements_table(judged.disagreements)] if judged.disagreements else []
    made = {
        "hang": [*hung.make_tables(judged), *apart],
        "operations": [_parts_table(judged), _traffic_table(judged)],
        "ranks": [_late_table(judged), _exposed_table(judged), _shares_table(judged)],
        "inside": [_groups_table(judged), _lacks_table(judged)],
    }
    return {name: [table for table in each if table.lines] for name, each in made.items()}


def _shorten_table(table: Table) -> Table:
    """A table without its title and note, which stand beside it, and with as many lines as are read
    on a terminal."""
    more = len(table.lines) - TOP
    long = more > 0 and table.name in ("late", "exposed", "shares", "groups")
    heads = table.heads
    rest = Line((f"and {more:,} more", *("" for _ in heads[1:])))
    return Table(
        heads=heads,
        lines=[*table.lines[:TOP], rest] if long else table.lines,
        align=table.align,
        dropped=table.dropped,
    )


def _groups_table(judged: Judged) -> Table:
    """A line for each label of groups."""
    of: dict[str, list[Group]] = defaultdict(list)
    for group in judged.joined.groups:
        of[group.label].append(group)
    lines = []
    for label, groups in of.items():
        sizes = sorted({len(group.ranks) for group in groups})
        some = ";".join(format_ranks(group.ranks) for group in groups[:4])
        more = f" and {len(groups) - 4} more" * (len(groups) > 4)
        lines.append(Line((label, f"{len(groups):,}", "/".join(map(str, sizes)), f"{some}{more}")))
    return Table(
        name="groups",
        title="Groups",
        heads=("group", "number", "ranks each", "ranks"),
        lines=lines,
        align="lrrw",
    )


def _lacks_table(judged: Judged) -> Table:
    lines = [Line((lack.what, lack.so)) for lack in judged.lacks]
    lines += [Line((each, "assumed")) for each in judged.trace.assumptions]
    return Table(
        name="lacks",
        title="Limits of this trace",
        heads=("what is missing", "what follows"),
        lines=lines,
        align="ww",
    )


def _parts_table(judged: Judged) -> Table:
    """A line for each kind of operation on each group in each phase."""
    several = any(part.phase for part in judged.parts)
    loose = any(part.bound for part in judged.parts)
    rooted = any(row.rooted for part in judged.parts if (row := COLLECTIVES.get(part.kind)))
    lines = [
        Line(
            (
                *([part.phase] if several else []),
                part.group + f" of {part.members}" * (not part.group.startswith(UNNAMED)),
                part.kind,
                f"{part.ops:,}",
                format_size(part.nbytes),
                format_size(part.sent),
                *_format_part(part),
            )
        )
        for part in judged.parts
    ]
    heads = ("group", "operation", "ops", "size", "sent", "transfer", "waits", "busbw\nGB/s")
    return Table(
        name="operations",
        title="Operations",
        heads=(*(["phase"] if several else []), *heads),
        lines=lines,
        align="lll" if several else "ll",
        dropped=("sent", "ops"),
        note="ops, size and sent: of the rank that sends most; transfer: time on the fastest rank"
        " (no waiting); waits: how much longer it takes on the slowest; both are sums, in which"
        " operations that overlap count once; busbw: of transfers alone"
        + "; sent of operations with a root: the mean over members" * rooted
        + "; ≤ and ≥: messages whose end was seen only when they were waited for" * loose,
    )


def _format_part(part: Part) -> tuple[str, str, str]:
    """Cells of transfer, waits and busbw."""
    most, least = ("≤ ", "≥ ") if part.bound else ("", "")
    transfer = f"{most}{format_duration(part.transfer)}" if part.timed else "-"
    wait = format_duration(part.wait) if part.timed and part.wait is not None else "-"
    return transfer, wait, f"{least if part.busbw else ''}{format_bandwidth(part.busbw)}"


def _traffic_table(judged: Judged) -> Table:
    several = any(each.phase for each in judged.traffic)
    lines = [
        Line(
            (
                *([each.phase] if several else []),
                each.group,
                format_size(each.sent),
                format_size(each.total),
                f"{each.share:.0%}",
                format_duration(each.busy),
            )
        )
        for each in judged.traffic
    ]
    heads = ("group", "sent a rank", "all ranks", "share", "under way")
    return Table(
        name="traffic",
        title="Bytes by group and phase" if several else "Bytes by group",
        heads=(*(["phase"] if several else []), *heads),
        lines=lines if len(lines) > 1 else [],
        align="ll" if several else "l",
        dropped=("all ranks",),
        note="what has to be sent at least; under way: the mean over ranks, of at least one"
        " operation",
    )


def _late_table(judged: Judged) -> Table:
    lines = [
        Line(
            (
                tone_text(f"{each.rank}", "notice" if each.surely else ""),
                hung.describe_group(each.group),
                f"{each.last:,} of {each.ops:,}",
                format_duration(each.by),
                format_duration(each.cost),
            )
        )
        for each in judged.late[:LISTED]
        if each.last
    ]
    told = "start times" if judged.clock.shared else "how long operations take"
    return Table(
        name="late",
        title="Ranks that come last",
        heads=("rank", "group", "came last", "behind", "costs"),
        lines=lines,
        align="rl",
        note="only operations that no rank leaves before all have come; behind: the first to come,"
        " in the median; costs: total time that the rank before it waited for this rank (from"
        f" {told})",
    )


def _exposed_table(judged: Judged) -> Table:
    ordered = sorted(judged.exposed, key=lambda each: -(each.exposed or 0.0))
    computes = any(each.how == "computation" for each in ordered)
    known = any(each.how for each in ordered)
    lines = []
    for each in ordered[:LISTED]:
        share = "-" if each.exposed is None else f"{each.exposed / max(1.0, each.window):.0%}"
        cells = (
            str(each.rank),
            format_duration(each.window),
            format_duration(each.communication),
            *((format_duration(each.exposed), share) if known else ()),
            *(
                (format_duration(each.computation), format_duration(each.neither))
                if computes
                else ()
            ),
        )
        lines.append(Line(cells))
    heads: tuple[str, ...] = ("rank", "time", "communication")
    heads += ("exposed", "of the time") if known else ()
    heads += ("computation", "neither") if computes else ()
    marked = any(rank.steps for rank in judged.trace.ranks)
    unit = "a mean iteration" if marked else "the whole trace"
    by = "communication while nothing is computed" if computes else "waits of the program for it"
    return Table(
        name="exposed",
        title="Where ranks' time goes",
        heads=heads,
        lines=lines,
        align="r",
        dropped=("neither",),
        note=f"of {unit}{f'; exposed: {by}' * known}",
    )


def _shares_table(judged: Judged) -> Table:
    lines = [
        Line(
            (
                str(each.rank),
                hung.describe_group(each.group),
                f"{each.ops:,}",
                format_size(each.sent),
                f"{each.sends:.2f}",
                format_size(each.received),
                f"{each.gets:.2f}",
            )
        )
        for each in judged.shares[:LISTED]
    ]
    return Table(
        name="shares",
        title="Balance of all_to_allv",
        heads=("rank", "group", "ops", "sends", "x mean", "gets", "x mean"),
        lines=lines,
        align="rl",
        note="what ranks keep is counted; x mean: over the mean of all ranks of the group",
    )


# pages


TITLES = {
    "hang": "Where the job hangs",
    "operations": "Operations",
    "ranks": "Ranks",
    "inside": "What is in the trace",
}


def _make_sections(judged: Judged, found: dict[str, list[Table]]) -> list[Section]:
    sections = []
    for name, tables in found.items():
        figures: list[Figure] = []
        if name == "operations":
            drawn = _draw_timeline(judged)
            figures = [drawn] if drawn else []
            tables = [*tables, *_operation_tables(judged)]  # noqa: PLW2901 - those of a page
        if name == "hang" and judged.hang and (drawn := hung.draw_hang(judged)):
            figures = [drawn]
        if tables or figures:
            made = Section(name=name, title=TITLES[name], words=[], figures=figures, tables=tables)
            sections.append(made)
    return sections


def _operation_tables(judged: Judged) -> list[Table]:
    """The first operations one by one."""
    lines = [
        Line(
            (
                str(each["number"]),
                each["group"],
                each["operation"],
                each["phase"],
                format_duration(each["transfer"]),
                format_duration(each["wait"]),
                "-" if each["last"] is None else str(each["last"]),
                each["source"],
            )
        )
        for each in _one_by_one(judged)
    ]
    table = Table(
        name="each",
        title="Each operation",
        heads=("#", "group", "operation", "phase", "transfer", "waits", "last", "from"),
        lines=lines,
        align="rlllrrrl",
        note=f"the first {len(lines):,} of {format_count(len(judged.joined.meetings), 'operation')}"
        * (len(lines) < len(judged.joined.meetings)),
        folded=True,
    )
    return [table] if lines else []


def _one_by_one(judged: Judged) -> list[dict[str, Any]]:
    """The first operations: what they took across ranks, and who came last."""
    found = []
    for meeting in judged.joined.meetings[:LISTED]:
        took, call = meeting.taken, meeting.call
        told = {
            "number": meeting.number,
            "group": meeting.group.label,
            "members": list(meeting.group.ranks),
            "operation": hung.describe_call(call, meeting.group),
            "phase": call.phase,
            "transfer": took and took.transfer,
            "wait": took and took.wait,
            "last": last_to_come(meeting, judged.clock.shared),
            "source": call.source,
        }
        found.append(told)
    return found


def _draw_timeline(judged: Judged) -> Figure | None:
    """The first iteration of the first ranks; None where the trace has no times."""
    ranks = judged.trace.ranks[:RANKS]
    windows = {rank.rank: _first_interval(rank) for rank in ranks}
    begins = [begin for begin, end in windows.values() if end > begin]
    if not begins:
        return None
    bars: dict[str, list[Bar]] = {kind: [] for kind in SHOWN}
    for rank in ranks:
        low, high = windows[rank.rank]
        zero = min(begins) if judged.clock.shared else low
        for kind, bar in _under_way(rank):
            if low <= bar.begin_ns < high:
                moved = bar._replace(begin_ns=bar.begin_ns - zero, end_ns=bar.end_ns - zero)
                bars[kind].append(moved)
    kept = {kind: thin_points(found, BARS) for kind, found in bars.items()}
    of = "the first iteration" if any(rank.steps for rank in ranks) else "the beginning"
    clock = "" if judged.clock.shared else " Each rank's begin is 0, as ranks share no clock."
    return draw_timeline(
        f"Timeline of {of}",
        f"When operations were under way, and when ranks computed or waited.{clock}",
        kept,
        "ms",
    )


def _first_interval(rank: RankTrace) -> Interval:
    """The time in which the first iteration is, or the first calls."""
    if rank.steps:
        return rank.steps[0]
    spans = [(bar.begin_ns, bar.end_ns) for _, bar in _under_way(rank)][:FIRST]
    return min(spans, default=(0, 0))[0], max((end for _, end in spans), default=0)


def _under_way(rank: RankTrace) -> Iterable[tuple[str, Bar]]:
    """What is drawn of a rank, by kind."""
    number, groups = rank.rank, groups_of(rank)
    for _, call in list_communicating(rank):
        if call.took_ns >= 0:
            group = groups[call.group]
            when = call.begins_ns, call.ends_ns
            told = hung.describe_call(call, group), call.source
            yield "communication", Bar(number, group.label, *when, call.kind, told)
    for call in rank.calls:
        if call.kind in LOCAL and call.took_ns > 0:
            kind = "computation" if call.kind == "compute" else "waiting"
            told = call.kind, call.source
            yield kind, Bar(number, "", call.begins_ns, call.ends_ns, call.kind, told)
    for begin, end in rank.unnamed:
        yield "communication", Bar(number, "unnamed", begin, end, "communication without a name")
    for begin, end in rank.busy:
        yield "computation", Bar(number, "", begin, end, "computation")


# JSON


def plain_values(judged: Judged) -> dict[str, Any]:
    """A trace as programs read it; times in ns, None where they are not known."""
    trace = judged.trace
    return {
        "format": trace.form,
        **({"fake": True} if trace.fake else {}),
        "world": trace.world,
        "ranks": [rank.rank for rank in trace.ranks],
        "missing": list(judged.missing),
        "iterations": judged.steps,
        "shared_clock": judged.clock.shared,
        "groups": [
            {"group": group.label, "name": group.name, "ranks": list(group.ranks)}
            for group in judged.joined.groups
        ],
        "unread": [msgspec.structs.asdict(each) for each in trace.unread],
        "cut": {str(rank.rank): rank.cut for rank in trace.ranks if rank.cut},
        "lacks": [lack._asdict() for lack in judged.lacks],
        "assumptions": list(trace.assumptions),
        "hang": hung.plain_values(judged.hang) if judged.hang else None,
        "disagreements": [_apart(meeting) for meeting in judged.disagreements],
        "operations": [part._asdict() for part in judged.parts],
        "each": _one_by_one(judged),
        "traffic": [each._asdict() for each in judged.traffic],
        "late": [_label_row(each) for each in judged.late],
        "exposed": [each._asdict() for each in judged.exposed],
        "balance": [_label_row(each) for each in judged.shares],
    }


def _label_row(each: Any) -> dict[str, Any]:
    """A row's fields, with its group as it is called."""
    return {**each._asdict(), "group": each.group.label, "members": list(each.group.ranks)}


def _apart(meeting: Meeting) -> dict[str, Any]:
    def words(calls: Sequence[tuple[int, Call]]) -> dict[str, str]:
        return {str(rank): hung.describe_call(call, meeting.group) for rank, call in calls}

    return {
        "group": meeting.group.label,
        "members": list(meeting.group.ranks),
        "number": meeting.number,
        "calls": words([*meeting.calls.items()]),
        "odd": sorted(meeting.odd),
        "unequal": [block._asdict() for block in unequal_blocks(meeting)],
    }
