"""A trace as a document: what is in it, what is not, what operations take across ranks, where
ranks' time goes, and who hung the job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from collbench.core.collectives import COLLECTIVES
from collbench.core.text import format_bandwidth, format_count, format_duration, format_size
from collbench.features.traces.analysis.judgement import Judged, in_words
from collbench.features.traces.analysis.operations import UNNAMED, Group, Meeting, unequal_blocks
from collbench.features.traces.analysis.times import Part, last_to_come
from collbench.features.traces.formats import own
from collbench.features.traces.formats.recognise import FORMS
from collbench.features.traces.iterations import measure_extent
from collbench.features.traces.types import EARLIER, FAKE_GPU, Call
from collbench.features.traces.views import hang as hung
from collbench.features.traces.views.timeline import draw_calls
from collbench.features.training.step_files import format_ranks
from collbench.records import stats
from collbench.show.document import (
    Block,
    Column,
    Document,
    Figure,
    Line,
    Section,
    Table,
    Weight,
    code_text,
    make_columns,
    tone_text,
)

TOP = 10  # lines of a table on a terminal of which a page has more
FILES = 4  # that are named in the headline, of those cut and of those not used
SHORT = 3  # groups on which ranks lack operations that the headline names
MIN_LAST_SHARE = 0.75  # of iterations or operations: a rank that is last to fewer is not spoken of
SUSPECT = 0.1  # of the time traced: what waiting for a rank costs before it is spoken of
LISTED = 1000  # operations that are listed one by one, and lines of a page's table
MORE = (
    code_text("-o page.html", "quiet")
    + tone_text(" has a timeline and each operation; ", "quiet")
    + code_text("collbench replay", "quiet")
    + tone_text(" runs an iteration again", "quiet")
)


class Headline(NamedTuple):
    """What there is to know first."""

    text: str
    weight: Weight


def make_document(verdict: Judged) -> Document:
    """The document of what a trace tells, for every medium."""
    head = warn_of_fake(verdict, make_headline(verdict))
    about = _describe_trace(verdict)
    tables = _make_tables(verdict)
    brief: list[Block] = [tone_text(head.text, head.weight, strong=True), about]
    for table in chain(*tables.values()):
        brief += ["", tone_text(table.title, strong=True), _shorten_table(table)]
        brief += [tone_text(table.note, "quiet")] if table.note else []
    if verdict.exposed and not (verdict.hang or verdict.disagreements):
        brief += ["", MORE]
    return Document(
        title=_make_title(verdict),
        verdict=head.text,
        weight=head.weight,
        runs=[about],
        brief=brief,
        sections=_make_sections(verdict, tables),
        values={"schema": 1, "verdict": head.text, **plain_values(verdict)},
        rows=[part._asdict() for part in verdict.parts],
    )


def _make_title(verdict: Judged) -> str:
    """How many ranks the trace is of, and when their first call was, where that is known."""
    trace = verdict.trace
    title = f"Trace of {format_count(len(trace.ranks), 'rank')}"
    times = [call.issued_ns for rank in trace.ranks for call in rank.calls]
    begin = min((ns for ns in times if ns >= hung.EPOCH), default=0)
    if not begin:
        return title
    return f"{title}, {datetime.fromtimestamp(begin // 10**9, UTC):%d %b %Y %H:%M} UTC"


def make_headline(verdict: Judged) -> Headline:
    """Who hung the job; else where ranks disagree; else that nothing is known; else who comes
    late. With it, files that are cut or not used."""
    files = _describe_files(verdict)
    if verdict.hang:
        message = "; ".join([hung.describe_hang(verdict.hang), *files])
        return Headline(message, "bad" if verdict.hang.is_blamed else "notice")
    if verdict.disagreements:
        message, weight = _describe_disagreement(verdict)
        return Headline("; ".join([message, *files]), weight)
    if not verdict.communicates or verdict.is_mostly_lost:
        return Headline("; ".join([_explain_no_operation(verdict), *files]), "notice")
    message, weight = _describe_fine(verdict)
    if verdict.is_complete:
        return Headline(message, weight)
    return Headline(f"{'; '.join(files)}. As far as the rest tells: {message}", "notice")


def warn_of_fake(verdict: Judged, head: Headline) -> Headline:
    """The headline, which says first that a trace is of a fake GPU."""
    if not verdict.trace.fake:
        return head
    return Headline(f"FAKE: {FAKE_GPU}. {head.text}", "bad")


def _describe_files(verdict: Judged) -> list[str]:
    """Files that are not used, and those that are cut."""
    trace = verdict.trace
    sentences = []
    for unread in trace.unread[:FILES]:
        file = f"rank {unread.rank}'s file" if unread.rank >= 0 else unread.source
        sentences.append(f"{file} cannot be used: {unread.why}")
    cut = [rank for rank in trace.ranks if rank.cut]
    sentences += [
        f"rank {r.rank}'s file is cut at {r.cut} and read up to there" for r in cut[:FILES]
    ]
    more = max(0, len(trace.unread) - FILES) + max(0, len(cut) - FILES)
    return sentences + [f"so are {format_count(more, 'file')} more"] * (more > 0)


def _describe_disagreement(verdict: Judged) -> Headline:
    first = verdict.disagreements[0]
    where = f"#{first.number} of {hung.describe_group(first.group)}"
    if verdict.disagree:
        skipped = ""
        if verdict.skipping:
            _, odd, calls, repeats = verdict.skipping
            skipped = hung.describe_skipped(odd, calls, repeats, first.group)
        return Headline(f"ranks disagree on operation {where}{skipped}", "bad")
    doubt = "the library's numbers of them are not known, and ranks' traces may begin apart"
    return Headline(f"ranks seem to disagree on operation {where}: {doubt}", "notice")


def _explain_no_operation(verdict: Judged) -> str:
    """The reason why no operation of the trace is known."""
    losses = (loss for rank in verdict.trace.ranks for loss in rank.lost)
    if verdict.lost:
        most = max((e for e in losses if e.why not in EARLIER), key=lambda loss: loss.calls)
        return (
            "no verdict: nothing is known of what ranks did together, as"
            f" {format_count(verdict.lost, 'call')} cannot be read: {most.why}"
        )
    hint = ""
    if verdict.trace.form == "flight":
        hint = ": dumps have no calls (TORCH_NCCL_TRACE_BUFFER_SIZE sets how many are kept)"
    return f"no verdict: nothing was recorded of what ranks did together{hint}"


def _describe_fine(verdict: Judged) -> Headline:
    """Who comes late, or that all is well, as far as is known."""
    lacking = _describe_lacking(verdict)
    if late := next((late for late in verdict.late if late.surely), None):
        sentence = (
            f"rank {late.rank} comes last to {late.last} of {late.ops} operations of"
            f" {hung.describe_group(late.group)}, and costs {format_duration(late.cost)} of"
            " waiting"
        )
        return Headline("; ".join(filter(None, (sentence, lacking))), "notice")
    lost = verdict.lost
    remarks = _describe_remarks(verdict)
    if verdict.missing:
        ranks = in_words([rank.rank for rank in verdict.trace.ranks])
        sentence = (
            f"there is a trace of {ranks} only, of {verdict.trace.world:,}: nothing in it hangs or"
            " disagrees"
        )
        return Headline("; ".join(filter(None, (sentence, lacking))) + remarks, "notice")
    if lacking:
        sentence = (
            f"{lacking}: nothing in the trace hangs or disagrees, but it does not tell whether"
            " these calls were made"
        )
        sentence += ", and whether all others completed" * (not verdict.completed)
        return Headline(f"{sentence}{remarks}", "notice")
    if not verdict.completed:
        sentence = "all ranks made the same calls; the trace does not show whether all completed"
        return Headline(f"{sentence}{remarks}", "notice" if lost else "good")
    if lost:
        sentence = (
            "no hang: all ranks made and completed the same calls, as far as these can be read"
        )
        return Headline(f"{sentence}{remarks}", "notice")
    sentence = f"no hang: all ranks made the same calls and completed them{remarks}"
    return Headline(sentence, "notice" if _describe_suspect(verdict) else "good")


def _describe_lacking(verdict: Judged) -> str:
    """A clause on ranks that lack operations of others, and on messages of which one half lacks;
    empty where the trace has all."""
    short = [*verdict.short_ranks.items()]
    clauses = [
        f"{in_words(ranks)} lack{'s' * (len(ranks) == 1)} operations on {label} that others called"
        for label, ranks in short[:SHORT]
    ]
    if (more := len(short) - SHORT) > 0:
        clauses.append(f"so it is on {format_count(more, 'more group')}")
    if halves := verdict.lone_messages:
        its, lack = ("its", "lacks") if halves == 1 else ("their", "lack")
        clauses.append(f"{format_count(halves, 'message')} {lack} {its} other half")
    return ", ".join(clauses)


def _describe_remarks(verdict: Judged) -> str:
    """Clauses on calls that are lost, a rank that may be late, and recordings that broke off."""
    lost = verdict.lost
    are = "is" if lost == 1 else "are"
    remarks = f"; {format_count(lost, 'call')} that cannot be read {are} left out" if lost else ""
    remarks += _describe_suspect(verdict)
    broken = [
        rank.rank
        for rank in verdict.trace.ranks
        if any(loss.why == own.INTERRUPTED for loss in rank.lost)
    ]
    return remarks + (f"; the recording of {in_words(broken)} broke off" if broken else "")


def _measure_traced(verdict: Judged) -> float:
    """How long was traced of the rank with most, in ns: by what was under way, or by when calls
    were made where nothing tells that."""
    if verdict.exposed:
        return max(row.window for row in verdict.exposed) * max(1, verdict.steps)
    extents = (measure_extent(rank.calls) for rank in verdict.trace.ranks)
    return max((end - begin for begin, end in extents), default=0)


def _describe_suspect(verdict: Judged) -> str:
    """A clause on the rank whose being last costs much of the time, where that does not suffice to
    blame it: most often as operations are too few."""
    traced = _measure_traced(verdict)
    for late in verdict.late:
        share = late.last_steps / late.steps if late.steps else late.last / late.ops
        enough = (
            stats.count_samples_to_name(len(late.group.ranks), share)
            if late.steps
            else stats.NAMING
        )
        if late.surely or share < MIN_LAST_SHARE:
            continue
        if late.cost > SUSPECT * traced > 0:
            marked = f", in {late.last_steps} of {late.steps} iterations" if late.steps else ""
            few = (late.steps or late.ops) < enough
            lacking = f"too few {'iterations' if marked else 'operations'}" if few else "too little"
            more = f"; record at least {enough} iterations" if late.steps and few else ""
            return (
                f"; rank {late.rank} came last to {late.last} of {late.ops} operations of"
                f" {hung.describe_group(late.group)}{marked}, and others waited"
                f" {format_duration(late.cost)} for it: {lacking} to tell chance from a slow"
                f" rank{more}"
            )
    return ""


def _describe_trace(verdict: Judged) -> str:
    trace = verdict.trace
    steps = format_count(verdict.steps, "iteration") if verdict.steps else "no iteration marked"
    return (
        f"{_name_form(verdict)}: {len(trace.ranks):,} of {format_count(trace.world, 'rank')},"
        f" {steps},"
        f" {format_count(len(verdict.matches.meetings), 'operation')} and"
        f" {format_count(len(verdict.matches.messages), 'message')} on"
        f" {format_count(len(verdict.matches.groups), 'group')}"
    )


def _name_form(verdict: Judged) -> str:
    """The trace's format in words."""
    form = verdict.trace.form
    return FORMS[form].title if form in FORMS else form


def _make_tables(verdict: Judged) -> dict[str, list[Table]]:
    """The tables of a trace that have lines, by their section."""
    disagreements = (
        [hung.disagreements_table(verdict.disagreements)] if verdict.disagreements else []
    )
    by_section = {
        "hang": [*hung.make_tables(verdict), *disagreements],
        "operations": [_parts_table(verdict), _traffic_table(verdict)],
        "ranks": [_late_table(verdict), _exposed_table(verdict), _shares_table(verdict)],
        "inside": [_groups_table(verdict), _lacks_table(verdict)],
    }
    return {name: [table for table in tables if table.lines] for name, tables in by_section.items()}


def _shorten_table(table: Table) -> Table:
    """A table without its title and note, which stand beside it, and with as many lines as are read
    on a terminal."""
    more = len(table.lines) - TOP
    long = more > 0 and table.name in ("late", "exposed", "shares", "groups")
    rest = Line((f"and {more:,} more", *("" for _ in table.columns[1:])))
    lines = [*table.lines[:TOP], rest] if long else table.lines
    return Table(columns=table.columns, lines=lines)


def _groups_table(verdict: Judged) -> Table:
    """A line for each label of groups."""
    by_label: dict[str, list[Group]] = defaultdict(list)
    for group in verdict.matches.groups:
        by_label[group.label].append(group)
    lines = []
    for label, groups in by_label.items():
        sizes = sorted({len(group.ranks) for group in groups})
        some = ";".join(format_ranks(group.ranks) for group in groups[:4])
        more = f" and {len(groups) - 4} more" * (len(groups) > 4)
        lines.append(Line((label, f"{len(groups):,}", "/".join(map(str, sizes)), f"{some}{more}")))
    return Table(
        name="groups",
        title="Groups",
        columns=make_columns(("group", "number", "ranks each", "ranks"), "lrrw"),
        lines=lines,
    )


def _lacks_table(verdict: Judged) -> Table:
    lines = [Line((lack.what, lack.so)) for lack in verdict.lacks]
    lines += [Line((assumption, "assumed")) for assumption in verdict.trace.assumptions]
    return Table(
        name="lacks",
        title="Limits of this trace",
        columns=make_columns(("what is missing", "what follows"), "ww"),
        lines=lines,
    )


PARTS = (
    Column("phase", "left"),
    Column("group", "left"),
    Column("operation", "left"),
    Column("ops", priority=1),
    Column("size"),
    Column("sent", priority=2),
    Column("transfer"),
    Column("waits"),
    Column("busbw\nGB/s"),
)


def _parts_table(verdict: Judged) -> Table:
    """A line for each kind of operation on each group in each phase."""
    several = any(part.phase for part in verdict.parts)
    loose = any(part.bound for part in verdict.parts)
    rooted = any(row.rooted for part in verdict.parts if (row := COLLECTIVES.get(part.kind)))
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
        for part in verdict.parts
    ]
    return Table(
        name="operations",
        title="Operations",
        columns=PARTS if several else PARTS[1:],
        lines=lines,
        note="ops, size and sent: of the rank that sends most; transfer: time on the fastest rank"
        " (no waiting); waits: how much longer it takes on the slowest; both are sums"
        + ", in which operations that overlap count once" * verdict.is_placed
        + "; busbw: of transfers alone"
        + "; sent of operations with a root: the mean over members" * rooted
        + "; ≤ and ≥: messages, of which some may have ended earlier or overlapped" * loose,
    )


def _format_part(part: Part) -> tuple[str, str, str]:
    """Cells of transfer, waits and busbw."""
    most, least = ("≤ ", "≥ ") if part.bound else ("", "")
    transfer = f"{most}{format_duration(part.transfer)}" if part.timed else "-"
    wait = format_duration(part.wait) if part.timed and part.wait is not None else "-"
    return transfer, wait, f"{least if part.busbw else ''}{format_bandwidth(part.busbw)}"


TRAFFIC = (
    Column("phase", "left"),
    Column("group", "left"),
    Column("sent a rank"),
    Column("all ranks", priority=1),
    Column("share"),
    Column("under way"),
)


def _traffic_table(verdict: Judged) -> Table:
    several = any(traffic.phase for traffic in verdict.traffic)
    lines = [
        Line(
            (
                *([traffic.phase] if several else []),
                traffic.group,
                format_size(traffic.sent),
                format_size(traffic.total),
                f"{traffic.share:.0%}",
                format_duration(traffic.busy),
            )
        )
        for traffic in verdict.traffic
    ]
    return Table(
        name="traffic",
        title="Bytes by group and phase" if several else "Bytes by group",
        columns=TRAFFIC if several else TRAFFIC[1:],
        lines=lines if len(lines) > 1 else [],
        note="what has to be sent at least; under way: the mean over ranks, of at least one"
        " operation",
    )


def _late_table(verdict: Judged) -> Table:
    lines = [
        Line(
            (
                tone_text(f"{late.rank}", "notice" if late.surely else ""),
                hung.describe_group(late.group),
                f"{late.last:,} of {late.ops:,}",
                format_duration(late.by),
                format_duration(late.cost),
            )
        )
        for late in verdict.late[:LISTED]
        if late.last
    ]
    basis = "start times" if verdict.clock.shared else "how long operations take"
    return Table(
        name="late",
        title="Ranks that come last",
        columns=make_columns(
            ("rank", "group", "came last", "behind, median", "costs, total"), "rl"
        ),
        lines=lines,
        note="only operations that no rank leaves before all have come; behind: the first to come;"
        " costs: time that the rank before it waited for this rank (from"
        f" {basis}); ranks late beyond chance come first, then by costs",
    )


def _exposed_table(verdict: Judged) -> Table:
    ordered = sorted(verdict.exposed, key=lambda row: -(row.exposed or 0.0))
    computes = any(row.how == "computation" for row in ordered)
    is_known = any(row.how for row in ordered)
    lines = []
    for row in ordered[:LISTED]:
        share = "-" if row.exposed is None else f"{row.exposed / max(1.0, row.window):.0%}"
        cells = (
            str(row.rank),
            format_duration(row.window),
            format_duration(row.communication),
            *((format_duration(row.exposed), share) if is_known else ()),
            *((format_duration(row.computation), format_duration(row.neither)) if computes else ()),
        )
        lines.append(Line(cells))
    columns = [Column("rank"), Column("time"), Column("communication")]
    columns += [Column("exposed"), Column("of the time", priority=1)] if is_known else []
    columns += [Column("computation"), Column("neither", priority=2)] if computes else []
    marked = any(rank.steps for rank in verdict.trace.ranks)
    unit = "a mean iteration" if marked else "the whole trace"
    by = "communication while nothing is computed" if computes else "waits of the program for it"
    return Table(
        name="exposed",
        title="Where ranks' time goes",
        columns=columns,
        lines=lines,
        note=f"of {unit}{f'; exposed: {by}' * is_known}",
    )


def _shares_table(verdict: Judged) -> Table:
    lines = [
        Line(
            (
                str(share.rank),
                hung.describe_group(share.group),
                f"{share.ops:,}",
                format_size(share.sent),
                f"{share.sends:.2f}",
                format_size(share.received),
                f"{share.gets:.2f}",
            )
        )
        for share in verdict.shares[:LISTED]
    ]
    heads = ("rank", "group", "ops", "sends", "x mean", "gets", "x mean")
    return Table(
        name="shares",
        title="Balance of all_to_allv",
        columns=make_columns(heads, "rl"),
        lines=lines,
        note="what ranks keep is counted; x mean: over the mean of all ranks of the group",
    )


# pages


TITLES = {
    "hang": "Where the job hangs",
    "operations": "Operations",
    "ranks": "Ranks",
    "inside": "What is in the trace",
}


def _make_sections(verdict: Judged, tables_of: dict[str, list[Table]]) -> list[Section]:
    """The sections of a page, with their figures, from tables by section."""
    sections = []
    for name, tables in tables_of.items():
        figures: list[Figure] = []
        if name == "operations":
            drawn = draw_calls(verdict)
            figures = [drawn] if drawn else []
            tables = [*tables, *_operation_tables(verdict)]  # noqa: PLW2901 - those of a page
        if name == "hang" and verdict.hang and (drawn := hung.draw_hang(verdict)):
            figures = [drawn]
        if tables or figures:
            section = Section(
                name=name, title=TITLES[name], sentences=[], figures=figures, tables=tables
            )
            sections.append(section)
    return sections


def _operation_tables(verdict: Judged) -> list[Table]:
    """The first operations one by one."""
    total = len(verdict.matches.meetings)
    lines = [
        Line(
            (
                str(operation["number"]),
                operation["group"],
                operation["operation"],
                operation["phase"],
                format_duration(operation["transfer"]),
                format_duration(operation["wait"]),
                "-" if operation["last"] is None else str(operation["last"]),
                operation["source"],
            )
        )
        for operation in _one_by_one(verdict)
    ]
    heads = ("#", "group", "operation", "phase", "transfer", "waits", "last", "from")
    table = Table(
        name="each",
        title="Each operation",
        columns=make_columns(heads, "rlllrrrl"),
        lines=lines,
        note=f"the first {len(lines):,} of {format_count(total, 'operation')}"
        * (len(lines) < total),
        folded=True,
    )
    return [table] if lines else []


def _one_by_one(verdict: Judged) -> list[dict[str, Any]]:
    """The first operations: what they took across ranks, and who came last."""
    operations = []
    for meeting in verdict.matches.meetings[:LISTED]:
        took, call = meeting.time, meeting.call
        operation = {
            "number": meeting.number,
            "group": meeting.group.label,
            "members": list(meeting.group.ranks),
            "operation": hung.describe_call(call, meeting.group),
            "phase": call.phase,
            "transfer": took and took.transfer,
            "wait": took and took.wait,
            "last": last_to_come(meeting, verdict.clock.shared),
            "source": call.source,
        }
        operations.append(operation)
    return operations


# JSON


def plain_values(verdict: Judged) -> dict[str, Any]:
    """A trace as programs read it; times in ns, None where they are not known."""
    trace = verdict.trace
    return {
        "format": trace.form,
        **({"fake": True} if trace.fake else {}),
        "world": trace.world,
        "ranks": [rank.rank for rank in trace.ranks],
        "missing": list(verdict.missing),
        "iterations": verdict.steps,
        "shared_clock": verdict.clock.shared,
        "groups": [
            {"group": group.label, "name": group.name, "ranks": list(group.ranks)}
            for group in verdict.matches.groups
        ],
        "unread": [msgspec.structs.asdict(unread) for unread in trace.unread],
        "cut": {str(rank.rank): rank.cut for rank in trace.ranks if rank.cut},
        "lacks": [lack._asdict() for lack in verdict.lacks],
        "assumptions": list(trace.assumptions),
        "hang": hung.plain_values(verdict.hang) if verdict.hang else None,
        "disagreements": [_flatten_disagreement(meeting) for meeting in verdict.disagreements],
        "operations": [part._asdict() for part in verdict.parts],
        "each": _one_by_one(verdict),
        "traffic": [traffic._asdict() for traffic in verdict.traffic],
        "late": [_label_row(late) for late in verdict.late],
        "exposed": [exposed._asdict() for exposed in verdict.exposed],
        "balance": [_label_row(share) for share in verdict.shares],
    }


def _label_row(row: Any) -> dict[str, Any]:
    """A row's fields, with its group as it is called."""
    return {**row._asdict(), "group": row.group.label, "members": list(row.group.ranks)}


def _flatten_disagreement(meeting: Meeting) -> dict[str, Any]:
    """A meeting whose calls do not fit each other, as an object of the JSON output."""

    def describe_calls(calls: Sequence[tuple[int, Call]]) -> dict[str, str]:
        return {str(rank): hung.describe_call(call, meeting.group) for rank, call in calls}

    return {
        "group": meeting.group.label,
        "members": list(meeting.group.ranks),
        "number": meeting.number,
        "calls": describe_calls([*meeting.calls.items()]),
        "odd": sorted(meeting.odd),
        "unequal": [block._asdict() for block in unequal_blocks(meeting)],
    }
