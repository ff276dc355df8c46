"""Runs of training steps: what a step takes, what of its communication computation hides, and where
the time of its operations goes. On a terminal and in a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from collbench.core.text import bandwidth, counted, duration, size
from collbench.features.training.overlap import (
    Overlap,
    Phase,
    as_alone,
    blamed,
    operations,
    overlaps,
    phases,
    step_of,
)
from collbench.features.training.step import Program, Recorded, Step
from collbench.features.training.traffic import count_traffic
from collbench.records.derive import derive
from collbench.records.origins import FAKE, counting, is_fake
from collbench.records.paired import Shift
from collbench.records.stats import median
from collbench.records.traffic import UNSEEN
from collbench.records.types import Operation, RunFile
from collbench.show.document import (
    Block,
    Cell,
    Document,
    Figure,
    Line,
    Section,
    Table,
    toned,
)
from collbench.show.figures import COLOURS, hover, safe, thinned
from collbench.show.views.series import View
from collbench.show.words import caveats
from collbench.suite.case import Case

HEADS = ("phase", "group", "operation", "ops", "size", "sent", "in step", "waited", "busbw\nGB/s")
RANKS = 8  # of a timeline
ROW = 0.84  # of the height that a timeline has for a rank
LITTLE = 0.01  # of the communication, as computation hides nothing
LEGEND = (
    "of rank 0, in steps that were watched. In step: how long such operations were under way;"
    " waited: for how much of that the program stood still; alone: what they take by themselves,"
    " one after the other, and how many times as long they took in the step"
)
CLOSE = 0.8, 1.25  # of what was expected


def document(file: RunFile) -> Document:
    """What came of each step of a run."""
    found = overlaps(counting(file))
    brief: list[Block] = [toned(text, "bad") for text in caveats(file.run, file.worlds)]
    rows: list[dict[str, Any]] = []
    for one in found:
        case = one.whole.case
        step = step_of(file, case)
        seen = phases(step, one.whole.operations[0]) if step and one.whole.operations else []
        if len(found) > 1:
            brief.append(toned(f"{named(case)} on {case.label}", strong=True))
        if one.whole.stop == "cut":
            brief.append(toned(f"{_cut(one)}; collbench run --resume measures it again", "notice"))
        brief += sentences(one) + _expected(one, step)
        if step and step.recorded:
            brief += ["", _recorded(one, step.recorded), ""]
        brief += _contended(file, one, step) + _wire(file, one, step)
        if seen:
            brief += ["", _table(seen), toned(LEGEND, "quiet")]
        if step and (blame := _blamed(one, step)):
            brief.append(blame)
        brief += [f"assumed: {each}" for each in (step.assumptions if step else ())]
        told: dict[str, Any] = {"operations": [each._asdict() for each in seen]}
        if step and one.whole.operations:
            without = blamed(step.program(0), one.whole.operations[0])
            told["without"] = [{"op": each.at, **_bounds(each.less)} for each in without]
        if step and step.recorded:
            told["recorded"] = recorded_values(step.recorded)
        rows.append({**values(one), **told})
    if not (found or is_fake(file)):
        brief += ["no step was measured to its end"]
    return Document(
        title="Steps",
        brief=brief,
        rows=rows,
        values={"steps": rows, **({FAKE: True} if is_fake(file) else {})},
    )


def _cut(one: Overlap) -> str:
    """That a run ended while the step was measured."""
    rounds = counted(len(one.whole.times_ns), "round")
    return (
        f"cut short: of {rounds} that were finished, whose data was not checked afterwards;"
        " no verdict rests on them"
    )


def named(case: Case) -> str:
    """A step's name without the digest that sets steps of the same name apart."""
    return case.subject.rpartition(" #")[0]


def sentences(one: Overlap) -> list[str]:
    """What a step takes, and what of it is communication that nothing hides."""
    share = one.exposed.estimate / max(1.0, median(one.whole.times_ns))
    lines = [
        f"exposed communication {within(one.exposed)}: {share:.0%} of the step"
        " (step less computation, round by round)",
    ]
    parts = (one.computation, one.communication)
    computation, communication = (median(record.times_ns) for record in parts)
    if one.hidden is None or computation < LITTLE * communication:
        what = "communication to hide" if one.hidden is None else "computation to hide it behind"
        return [*lines, f"there is no {what}"]
    if math.isinf(one.hidden.hi):
        told = "too few rounds to tell what of the communication computation hides"
    elif one.hidden.lo <= 0 and one.hidden.hi >= 1:  # nothing, all, and more than there is
        told = "steps scatter too much to tell what of the communication computation hides"
    elif one.hidden.lo > 0:
        told = f"computation hides {shares(one.hidden)} of the communication"
    elif one.hidden.hi < 0:
        told = (
            "computation and communication are in each other's way: together they take"
            f" {shares(one.hidden, -1)} of the communication longer than one after the other"
        )
    else:
        told = f"computation hides nothing for sure: {shares(one.hidden)} of the communication"
    return [*lines, told]


def _expected(one: Overlap, step: Step | None) -> list[Block]:
    """What the step would take by what its operations take one by one, and what it took."""
    ns = as_alone(step, one.whole, one.computation) if step else None
    if not ns:
        return []
    took = median(one.whole.times_ns)
    told = (
        f"with every operation at its stand-alone speed: {duration(ns)}; measured"
        f" {took / ns:.2f} × that"
    )
    return [told if CLOSE[0] <= took / ns <= CLOSE[1] else toned(told, "notice")]


def recorded_words(recorded: Recorded) -> str:
    """What iterations of the trace took, and from when to when that is."""
    number = len(recorded.times_ns)
    return f"median of {counted(number, 'iteration')} of the trace, {recorded.meaning}"


def recorded_values(recorded: Recorded) -> dict[str, Any]:
    return {"median_ns": median(recorded.times_ns), **msgspec.structs.asdict(recorded)}


def _recorded(one: Overlap, recorded: Recorded) -> Table:
    """What the step took beside what it took in its trace."""
    before, row = median(recorded.times_ns), derive(one.whole)
    ends = (row.times.lo, row.times.hi) if row else (math.inf, math.inf)
    ratios = [f"{ns / before:.3f}" if before and math.isfinite(ns) else "-" for ns in ends]
    took = median(one.whole.times_ns)
    lines = [
        Line(("recorded", duration(before), "", "")),
        Line(
            (
                "replayed",
                duration(took),
                _ends(*ends),
                f"{took / max(1.0, before):.3f} [{ratios[0]}, {ratios[1]}]",
            )
        ),
    ]
    return Table(
        name="recorded",
        title="Replayed beside recorded",
        heads=("step", "median", "95 %", "replayed / recorded"),
        lines=lines,
        note=f"recorded: {recorded_words(recorded)}; the ratio's interval is that of the replayed"
        " median alone",
    )


def _contended(file: RunFile, one: Overlap, step: Step | None) -> list[Block]:
    """That computation takes cores from communication, where there are too few for both."""
    cramped = any(w.cramped for w in file.worlds if w.index == one.whole.world)
    if not cramped or step is None or step.compute in ("none", "sleep"):
        return []
    words = (
        "contended: ranks have fewer cores than threads that must run, so that computation and"
        " communication share them"
    )
    return [toned(words, "notice")]


def _wire(file: RunFile, one: Overlap, step: Step | None) -> list[Block]:
    """What links carried, against what the operations need."""
    library = next((w.library for w in file.worlds if w.index == one.whole.world), "")
    found = count_traffic(step, one.whole.case, one.whole.sent, library) if step else None
    if found is None:
        return []
    share = found.counted / found.needed
    if share < UNSEEN:
        return ["no counter saw the data, as in shared memory"]
    told = f"links carried {size(found.counted)} for {size(found.needed)} that a step has to send"
    more = found.known / found.needed
    if more > 1:
        told += f": {share:.2f}x, where {more:.2f}x is known of this library"
    return [told if more > 1 else f"{told} ({share:.2f}x)"]


def within(value: Shift) -> str:
    """A time with its interval."""
    return f"{signed(value.estimate)} {_ends(value.lo, value.hi)}"


def signed(ns: float) -> str:
    """A time that may be less than none."""
    return duration(ns) if ns >= 0 else f"-{duration(-ns)}"


def shares(value: Shift, sign: int = 1) -> str:
    """A share with its interval."""
    if math.isinf(value.hi):
        return f"{sign * value.estimate:.0%} (too few rounds to bound it)"
    ends = sorted((sign * value.lo, sign * value.hi))
    return f"{sign * value.estimate:.0%} [{ends[0]:.0%}, {ends[1]:.0%}]"


def _table(seen: list[Phase]) -> Table:
    """A line for each kind of operation in each phase."""
    alone = any(each.alone is not None for each in seen)
    lines = [
        Line(
            (
                each.phase,
                each.group or "world",
                each.kind,
                f"{each.ops:,}",
                size(each.nbytes),
                size(each.sent),
                duration(each.busy),
                duration(each.waited),
                bandwidth(each.busbw),
                *(_beside(each) if alone else ()),
            )
        )
        for each in seen
    ]
    heads = (*HEADS, *(("alone", "x alone") if alone else ()))
    return Table(heads=heads, lines=lines, align="lll", dropped=("sent", "x alone", "phase"))


def _blamed(one: Overlap, step: Step) -> Table | None:
    """What steps take less without single operations; None where none was left out."""
    found = blamed(step.program(0), one.whole.operations[0]) if one.whole.operations else []
    whole = one.exposed.estimate
    lines = [
        Line(
            (
                f"{each.at}: {each.op.kind} of {size(each.op.nbytes)}, {each.op.source}".rstrip(
                    ", "
                ),
                within(each.less),
                f"{each.less.estimate / whole:.0%}" if whole > 0 else "-",
            )
        )
        for each in found
    ]
    heads = ("left out", "the step takes less", "of the exposed")
    note = "each left out on all its ranks, in rounds of their own beside the whole step"
    table = Table(
        name="blame", title="Without one operation", heads=heads, lines=lines, align="w", note=note
    )
    return table if found else None


def _beside(each: Phase) -> tuple[Cell, Cell]:
    """What operations take by themselves, and how often longer they are under way in a step."""
    if each.alone is None or each.slower is None:
        return "-", "-"
    times = f"{each.slower:.2f}"
    close = CLOSE[0] <= each.slower <= CLOSE[1]
    return duration(each.alone), times if close else toned(times, "notice")


def values(one: Overlap) -> dict[str, Any]:
    """A step as programs read it, in ns."""
    case = one.whole.case
    bounds = {
        name: None if value is None else _bounds(value)
        for name, value in (
            ("exposed_ns", one.exposed),
            ("hidden", one.hidden),
            ("ideal", one.ideal),
        )
    }
    parts = {
        f"{record.case.collective}_ns": median(record.times_ns)
        for record in (one.whole, one.computation, one.communication)
    }
    about = {"workload": case.subject, "implementation": case.label, "ranks": case.n}
    return {**about, "rounds": len(one.whole.times_ns), **parts, **bounds}


def _bounds(value: Shift) -> dict[str, float | None]:
    return {"estimate": value.estimate, "lo": _finite(value.lo), "hi": _finite(value.hi)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def section(view: View) -> Section | None:
    """The steps of a report's runs; None where there are none."""
    tables: list[Table] = []
    drawn: list[Figure] = []
    for number, file in enumerate(view.files):
        for one in overlaps(counting(file)):
            case = one.whole.case
            title = view.titled(number, f"{named(case)} on {case.label}, {counted(case.n, 'rank')}")
            tables.append(_parts(title, one))
            if one.whole.stop == "cut":
                tables[-1] = replace(tables[-1], note=_cut(one))
            step = step_of(file, case)
            if step and step.recorded:
                beside = _recorded(one, step.recorded)
                tables.append(replace(beside, title=f"{title}: replayed beside recorded"))
            if step is None or not one.whole.operations:
                continue
            seen = phases(step, one.whole.operations[0])
            tables += [
                replace(_table(seen), title=f"{title}: by phase", note=LEGEND),
                _operations(title, step.program(0), one.whole.operations[0]),
            ]
            if blame := _blamed(one, step):
                tables.append(replace(blame, title=f"{title}: without one operation"))
            drawn += [
                _waterfall(title, one, seen),
                _timeline(title, step, one.whole.operations),
            ]
    if not tables:
        return None
    words = [
        "The whole step, its computation alone and its communication alone were measured in turns,"
        " in rounds. Exposed is the step less its computation, round by round; hidden is the share"
        " of the communication that this leaves out, below 0 where the two hinder each other."
        " Intervals are at 95 %.",
    ]
    return Section(name="steps", title="Training steps", words=words, figures=drawn, tables=tables)


def _parts(title: str, one: Overlap) -> Table:
    """What a step takes, and its parts, with their intervals."""
    lines = []
    for record in (one.whole, one.computation, one.communication):
        row = derive(record)
        ends = (row.times.lo, row.times.hi) if row else (math.inf, math.inf)
        lines.append((record.case.collective, duration(median(record.times_ns)), _ends(*ends)))
    exposed = one.exposed
    lines.append(("exposed", signed(exposed.estimate), _ends(exposed.lo, exposed.hi)))
    if one.hidden is not None:
        share, _, between = shares(one.hidden).partition(" ")
        lines.append(("hidden", share, between))
    heads = ("", "median", "95 %")
    return Table(name="steps", title=title, heads=heads, lines=[Line(line) for line in lines])


def _ends(lo: float, hi: float) -> str:
    bounded = math.isfinite(lo + hi)
    return f"[{signed(lo)}, {signed(hi)}]" if bounded else "(too few rounds to bound it)"


def _operations(title: str, program: Program, seen: Sequence[Operation]) -> Table:
    """A line for each operation of rank 0 with others: what it takes by itself and in the step, and
    how much of that the program did not wait for."""
    lines = [
        Line(
            (
                str(each.at),
                each.op.phase,
                each.op.words,
                each.op.source,
                *(
                    "-" if ns is None else duration(ns)
                    for ns in (each.alone, each.begins, each.took)
                ),
                f"{each.hidden:.0%}",
            )
        )
        for each in operations(program, seen)
    ]
    heads = ("op", "phase", "operation", "of", "alone", "begins", "in step", "hidden")
    note = "medians over the steps that were watched; hidden: while the program did not wait"
    return Table(
        name="operations",
        title=f"{title}: each operation of rank 0",
        heads=heads,
        lines=lines,
        align="rlll",
        note=note,
        folded=True,
    )


def _waterfall(title: str, one: Overlap, seen: Sequence[Phase]) -> Figure:
    """From what computation takes alone to what the step takes: what was waited for, by phase."""
    computation, took = median(one.computation.times_ns), median(one.whole.times_ns)
    waited = [
        (" ".join(filter(None, (each.phase, each.group, each.kind))), each.waited)
        for each in seen
        if each.waited
    ]
    rest = took - computation - sum(ns for _, ns in waited)
    bars = [("computation", computation), *waited, ("the rest", rest), ("step", took)]
    kinds = ["absolute", *["relative"] * (len(bars) - 2), "total"]
    trace = {
        "type": "waterfall",
        "name": "exposed",
        "x": [safe(name) for name, _ in bars],
        "y": [ns / 1e6 for _, ns in bars],
        "measure": kinds,
        "text": [safe(signed(ns)) for _, ns in bars],
        "textposition": "outside",
        "hoverinfo": "x+text",
        "cliponaxis": False,
        "increasing": {"marker": {"color": SHOWN["communication"]}},
        "decreasing": {"marker": {"color": SAVED}},
        "totals": {"marker": {"color": SHOWN["computation"]}},
        "meta": {},
    }
    words = (
        "From computation alone to the step: waits of rank 0, by what was under way meanwhile (in"
        " steps that were watched), and the rest: computation that communication slows down, and"
        " calls."
    )
    layout = {"yaxis": {"title": {"text": "ms"}}, "xaxis": {"type": "category"}}
    heading = f"{title}: what is exposed"
    return Figure(name="exposed", title=heading, words=words, data=[trace], layout=layout)


SAVED = COLOURS[2]  # what makes a step shorter
SHOWN = {"computation": COLOURS[0], "communication": COLOURS[1], "waiting": COLOURS[8]}


def _timeline(title: str, step: Step, seen: Sequence[Sequence[Operation]]) -> Figure:
    """The last step that was watched: for each rank a lane of computation and waits, and one for
    each of the groups that it talks to."""
    bars: dict[str, list[Bar]] = {kind: [] for kind in SHOWN}
    for rank, ops in enumerate(seen[:RANKS]):
        for op, times in zip(step.program(rank).ops, ops, strict=True):
            if not times.ends_ns or not times.ends_ns[-1]:
                continue
            kind = "communication" if op.communicates else "waiting"
            kind = "computation" if op.kind == "compute" else kind
            lane = (op.group or "world") if op.communicates else ""
            when = times.begins_ns[-1], times.ends_ns[-1]
            bars[kind].append(Bar(rank, lane, *when, op.kind, (op.words, op.source)))
    words = "One step: when each operation was under way, and when the program stood still."
    kept = {kind: thinned(found) for kind, found in bars.items()}
    return timeline(f"{title}: one step", words, kept, "ms after the step's begin")


class Bar(NamedTuple):
    """What a rank did on a ``lane`` of its row: "" is the program's own, others are groups'.
    ``words`` stand in the bar, ``more`` is shown where the pointer rests on it."""

    rank: int
    lane: str
    begin_ns: int
    end_ns: int
    words: str
    more: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """All that is known of it."""
        took = f"{duration(self.end_ns - self.begin_ns)} from {duration(self.begin_ns)}"
        return hover([*(self.more or (self.words,)), self.lane, took])


def timeline(title: str, words: str, bars: Mapping[str, Sequence[Bar]], axis: str) -> Figure:
    """What was under way when: bars of each kind in SHOWN, in a row for each rank. A row's lanes
    lie one below the other, the program's own on top."""
    every = [bar for each in bars.values() for bar in each]
    lanes = sorted({bar.lane for bar in every})
    ranks = sorted({bar.rank for bar in every}, reverse=True)
    layout = {
        "barmode": "overlay",
        "uniformtext": {"mode": "hide", "minsize": 9},
        "xaxis": {"title": {"text": axis}, "rangemode": "tozero"},
        "yaxis": {"categoryorder": "array", "categoryarray": [f"rank {rank}" for rank in ranks]},
    }
    if len(lanes) > 1:
        below = ", ".join(lane for lane in lanes if lane)
        words += f" In a rank's row, what its program does is on top; below, by group: {below}."
    return Figure(
        name="timeline",
        title=title,
        words=words,
        data=[draw_bars(kind, found, lanes) for kind, found in bars.items() if found],
        layout=layout,
        height=160 + 26 * len(ranks) * max(1, len(lanes)),
    )


def draw_bars(kind: str, found: Sequence[Bar], lanes: Sequence[str]) -> dict[str, Any]:
    """Bars of one colour as plotly's trace, with their words within where there is room."""
    thick = ROW / max(1, len(lanes))
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "y": [f"rank {bar.rank}" for bar in found],
        "base": [bar.begin_ns / 1e6 for bar in found],
        "x": [(bar.end_ns - bar.begin_ns) / 1e6 for bar in found],
        "offset": [ROW / 2 - thick * (1 + lanes.index(bar.lane)) for bar in found],
        "width": thick,
        "text": [safe(bar.words) for bar in found],
        "textposition": "inside",
        "insidetextanchor": "start",
        "hovertext": [bar.told for bar in found],
        "hoverinfo": "text",
        "marker": {"color": SHOWN[kind], "line": {"color": "rgba(128,128,128,0.7)", "width": 1}},
        "meta": {},
    }
