"""The timeline of a trace: the calls of each rank in one interval."""

from __future__ import annotations

from collections.abc import Iterable

from collbench.features.traces.analysis.judgement import Judged
from collbench.features.traces.analysis.operations import groups_of, list_communicating
from collbench.features.traces.types import Interval, RankTrace
from collbench.features.traces.views import hang as hung
from collbench.features.training.step import LOCAL
from collbench.features.training.views.timeline import (
    RANKS,
    SHOWN,
    Bar,
    draw_timeline,
    name_first_ranks,
)
from collbench.show.document import Figure

FIRST = 200  # calls of a rank that are drawn where no iteration is marked


def draw_calls(verdict: Judged) -> Figure | None:
    """The first iteration of the first ranks; None where the trace has no times."""
    ranks = verdict.trace.ranks[:RANKS]
    windows = {rank.rank: _first_interval(rank) for rank in ranks}
    begins = [begin for begin, end in windows.values() if end > begin]
    if not begins:
        return None
    bars: dict[str, list[Bar]] = {kind: [] for kind in SHOWN}
    for rank in ranks:
        low, high = windows[rank.rank]
        zero = min(begins) if verdict.clock.shared else low
        for kind, bar in _under_way(rank):
            if low <= bar.begin_ns < high:
                moved = bar._replace(begin_ns=bar.begin_ns - zero, end_ns=bar.end_ns - zero)
                bars[kind].append(moved)
    stretch = "the first iteration" if any(rank.steps for rank in ranks) else "the beginning"
    clock = "" if verdict.clock.shared else " Each rank's begin is 0, as ranks share no clock."
    return draw_timeline(
        f"Timeline of {stretch}",
        f"When operations were under way, and when ranks computed or waited.{clock}"
        f"{name_first_ranks(len(verdict.trace.ranks))}",
        bars,
        "ms",
    )


def _first_interval(rank: RankTrace) -> Interval:
    """The time in which the first iteration is, or the first calls."""
    if rank.steps:
        return rank.steps[0]
    spans = [(bar.begin_ns, bar.end_ns) for _, bar in _under_way(rank)][:FIRST]
    return min(spans, default=(0, 0))[0], max((end for _, end in spans), default=0)


def _under_way(rank: RankTrace) -> Iterable[tuple[str, Bar]]:
    """The intervals that are drawn for a rank, by kind."""
    number, groups = rank.rank, groups_of(rank)
    for _, call in list_communicating(rank):
        if call.is_placed:
            group = groups[call.group]
            when = call.begins_ns, call.ends_ns
            hover = hung.describe_call(call, group), call.source
            yield "communication", Bar(number, group.label, *when, call.kind, hover)
    for call in rank.calls:
        if call.kind in LOCAL and call.is_placed and call.took_ns:
            kind = "computation" if call.kind == "compute" else "waiting"
            hover = call.kind, call.source
            yield kind, Bar(number, "", call.begins_ns, call.ends_ns, call.kind, hover)
    for begin, end in rank.unnamed:
        yield "communication", Bar(number, "unnamed", begin, end, "communication without a name")
    for begin, end in rank.busy:
        yield "computation", Bar(number, "", begin, end, "computation")
