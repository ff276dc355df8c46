"""Steps as charts: which operation ran when on which rank, and what makes a step longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from collbench.core.text import format_duration
from collbench.features.training.overlap import Overlap, Phase, under_way
from collbench.features.training.step import Step
from collbench.records.stats import median
from collbench.records.types import Operation
from collbench.show.document import Figure
from collbench.show.figure_style import COLOURS, escape_plotly, join_hover, thin_points

RANKS = 8  # of a timeline

BARS = 600  # of each kind, of a timeline

ROW = 0.84  # of the height that a timeline has for a rank


def draw_waterfall(title: str, overlap: Overlap, phases: Sequence[Phase]) -> Figure:
    """From what computation takes alone to what the step takes: what was waited for, by phase."""
    computation, took = median(overlap.computation.times_ns), median(overlap.step_record.times_ns)
    waited = [
        (" ".join(filter(None, (phase.phase, phase.group, phase.kind))), phase.waited)
        for phase in phases
        if phase.waited
    ]
    rest = took - computation - sum(ns for _, ns in waited)
    bars = [("computation", computation), *waited, ("the rest", rest), ("step", took)]
    kinds = ["absolute", *["relative"] * (len(bars) - 2), "total"]
    trace = {
        "type": "waterfall",
        "name": "exposed",
        "x": [escape_plotly(name) for name, _ in bars],
        "y": [ns / 1e6 for _, ns in bars],
        "measure": kinds,
        "text": [escape_plotly(format_signed_time(ns)) for _, ns in bars],
        "textposition": "outside",
        "hoverinfo": "x+text",
        "cliponaxis": False,
        "increasing": {"marker": {"color": SHOWN["communication"]}},
        "decreasing": {"marker": {"color": SAVED}},
        "totals": {"marker": {"color": SHOWN["computation"]}},
        "meta": {},
    }
    caption = (
        "From computation alone to the step: waits of rank 0, by what was under way meanwhile (in"
        " steps that were watched), and the rest: computation that communication slows down, and"
        " calls."
    )
    if overlap.bubble:
        caption += (
            f" Ranks would wait {format_duration(overlap.bubble)} for each other's computation"
            " if communication took no time (the bubble)."
        )
    layout = {"yaxis": {"title": {"text": "ms"}}, "xaxis": {"type": "category"}}
    heading = f"{title}: what is exposed"
    return Figure(name="exposed", title=heading, caption=caption, data=[trace], layout=layout)


SAVED = COLOURS[2]  # what makes a step shorter

SHOWN = {"computation": COLOURS[0], "communication": COLOURS[1], "waiting": COLOURS[8]}


def draw_operations(
    title: str, step: Step, operation_times: Sequence[Sequence[Operation]]
) -> Figure:
    """The last step that was watched: for each rank a lane of computation and waits, and one for
    each of the groups that it talks to."""
    bars: dict[str, list[Bar]] = {kind: [] for kind in SHOWN}
    for rank, ops in enumerate(operation_times[:RANKS]):
        program = step.program(rank)
        is_watched = all(times.ends_ns for times in ops)
        spans = under_way(program, ops, -1) if is_watched else []
        for op, times, when in zip(program.ops, ops, spans, strict=False):
            if times.waits_ns and times.waits_ns[-1]:
                wait = times.waits_ns[-1], times.begins_ns[-1]
                bars["waiting"].append(Bar(rank, "", *wait, "wait", (f"before {op.label}",)))
            if not times.ends_ns[-1]:
                continue
            kind = "communication" if op.communicates else "waiting"
            kind = "computation" if op.kind == "compute" else kind
            lane = (op.group or "world") if op.communicates else ""
            bars[kind].append(Bar(rank, lane, *when, op.kind, (op.label, op.source)))
    caption = "One step: when each operation was under way, and when the program stood still."
    watched = sum(any(times.ends_ns for times in ops) for ops in operation_times)
    is_alone = watched == 1 < step.world
    caption += " Only rank 0 was watched." if is_alone else name_first_ranks(step.world)
    return draw_timeline(f"{title}: one step", caption, bars, "ms after the step's begin")


def name_first_ranks(ranks: int) -> str:
    """The sentence that not all of so many ranks are drawn; empty where all are."""
    return f" Of {ranks:,} ranks the first {RANKS} are drawn." if ranks > RANKS else ""


class Bar(NamedTuple):
    """What a rank did on a ``lane`` of its row: "" is the program's own, others are groups'.
    ``label`` stand in the bar, ``more`` is shown where the pointer rests on it, with ``timing`` if
    the bar's length is not the time that it took."""

    rank: int
    lane: str
    begin_ns: int
    end_ns: int
    label: str
    more: tuple[str, ...] = ()
    timing: str = ""

    @property
    def hover(self) -> str:
        """The text that a bar shows under the pointer."""
        timing = self.timing or format_span(self.begin_ns, self.end_ns)
        return join_hover([*(self.more or (self.label,)), self.lane, timing])


def format_span(begin_ns: int, end_ns: int) -> str:
    """How long something took, and from when on."""
    return f"{format_duration(end_ns - begin_ns)} from {format_duration(begin_ns)}"


def draw_timeline(title: str, caption: str, bars: Mapping[str, Sequence[Bar]], axis: str) -> Figure:
    """The course of a step: bars of each kind in SHOWN, in a row for each rank, at most BARS of a
    kind. A row's lanes lie one below the other, the program's own on top."""
    total = sum(map(len, bars.values()))
    bars = {kind: thin_points(kind_bars, BARS) for kind, kind_bars in bars.items()}
    every = [bar for kind_bars in bars.values() for bar in kind_bars]
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
        caption += f" In a rank's row, what its program does is on top; below, by group: {below}."
    if left_out := total - len(every):
        caption += f" {left_out:,} of {total:,} bars are left out, evenly: gaps may be theirs."
    return Figure(
        name="timeline",
        title=title,
        caption=caption,
        data=[draw_bars(kind, kind_bars, lanes) for kind, kind_bars in bars.items() if kind_bars],
        layout=layout,
        height=160 + 26 * len(ranks) * max(1, len(lanes)),
    )


def draw_bars(kind: str, kind_bars: Sequence[Bar], lanes: Sequence[str]) -> dict[str, Any]:
    """Bars of one colour as plotly's trace, with their words within where there is room."""
    thick = ROW / max(1, len(lanes))
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "y": [f"rank {bar.rank}" for bar in kind_bars],
        "base": [bar.begin_ns / 1e6 for bar in kind_bars],
        "x": [(bar.end_ns - bar.begin_ns) / 1e6 for bar in kind_bars],
        "offset": [ROW / 2 - thick * (1 + lanes.index(bar.lane)) for bar in kind_bars],
        "width": thick,
        "text": [escape_plotly(bar.label) for bar in kind_bars],
        "textposition": "inside",
        "insidetextanchor": "start",
        "hovertext": [bar.hover for bar in kind_bars],
        "hoverinfo": "text",
        "marker": {"color": SHOWN[kind], "line": {"color": "rgba(128,128,128,0.7)", "width": 1}},
        "meta": {},
    }


def format_signed_time(ns: float) -> str:
    """A time that may be less than none."""
    return format_duration(ns) if ns >= 0 else f"-{format_duration(-ns)}"
