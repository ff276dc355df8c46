"""How ranks come to a call: what it costs when they come apart, where it matters how they come, and
which come late."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Literal

import numpy as np

from collbench.core.text import duration, plain, size
from collbench.judge.efficiency import Point
from collbench.records.types import RankInfo
from collbench.show import figures
from collbench.show.document import Figure, Line, Section, Table
from collbench.show.views.series import Series, View, left_out, plus_minus, table

MAPS = 6


_Key = tuple[int, str, str, str, Sequence[int]]  # of a map: run, collective, mode, backend, ranks


def arrival(view: View) -> Section | None:
    """Cases whose ranks came apart on purpose, and those that take another time in the other
    cadence; None where there are neither."""
    points = [(one, point) for one in view.series for point in one.points]
    apart = [_apart(*pair) for pair in points if pair[1].case.arrival]
    other = [_other(*pair) for pair in points if pair[1].first.sensitive]
    if not (apart or other):
        return None
    words = []
    if apart:
        words.append(
            "A call cannot end before the last rank has come. What it takes from then on is what"
            " arrival leaves to the library; absorbed is the share of the ranks' spread that it"
            " used for work: 100% where the call ends as soon after the first rank came as it"
            " would have with all ranks there, 0% where it all happens after the last came."
        )
    if other:
        words.append(
            "A benchmark that aligns ranks starts them within a microsecond, a program's come as"
            " they are. Where the two take different times, a program sees the time as called."
        )
    what = ("collective", "case", "size")
    came = (*what, "arrival", "spread", "after the last", "±", "absorbed")
    took = (*what, "as called", "aligned", "factor", "flags")
    tables = [
        table("apart", "Ranks that come apart", came, apart, align="llrlrrrr"),
        table("cadence", "As called and aligned", took, other, align="llrrrrl"),
    ]
    tables = [one for one in tables if one.lines]
    return Section(name="arrival", title="Arrival", words=words, tables=tables)


def _apart(one: Series, point: Point) -> Line:
    spread, absorbed = point.first.skew, point.first.absorbed
    cells = (
        point.case.collective,
        one.name,
        size(point.size) if point.size else "-",
        point.case.arrival,
        "-" if spread is None else duration(spread),
        duration(point.median),
        plus_minus(point),
        "not known" if absorbed is None else f"{absorbed:.0%}",
    )
    return Line(cells, one.meta)


def _other(one: Series, point: Point) -> Line:
    control = point.first.control or point.median
    natural = point.case.mode == "host"
    called, aligned = (point.median, control) if natural else (control, point.median)
    cells = (
        f"{point.case.collective}, {point.case.mode}",
        one.name,
        size(point.size) if point.size else "-",
        duration(called),
        duration(aligned),
        f"{max(called, aligned) / min(called, aligned):.1f}x",
        " ".join(point.flags),
    )
    return Line(cells, one.meta, "" if natural else "notice")


def skew(view: View) -> Section:
    """Lateness by rank and size, and the ranks that came late too often for chance."""
    usable = [
        point
        for point in view.points
        if point.case.row.synchronising
        and point.case.n > 1
        and point.first.lateness
        and (world := view.world(point)) is not None
        and not world.oversubscribed
    ]
    if not usable:
        none = (
            "There is no case that tells: it takes each rank's times, ranks with cores of their"
            " own, and a collective "
        )
        none += "that no rank can leave before all have come."
        return Section(name="skew", title="Late ranks", words=[none])
    grouped: dict[_Key, list[Point]] = defaultdict(list)
    for point in usable:
        case = point.case
        grouped[point.run, case.collective, case.mode, case.backend, case.members].append(point)
    shown = sorted(
        grouped, key=lambda key: -max(max(_late(view, point)) for point in grouped[key])
    )[:MAPS]
    words = [
        (
            "By how much of the time each rank came after the first, only of collectives that no"
            " rank can leave before all have come."
        ),
        *left_out(len(shown), len(grouped), "maps, those with the latest ranks,"),
    ]
    late, slow = _late_ranks(view, usable)
    words += [] if late.lines else ["No rank came last beyond chance."]
    return Section(
        name="skew",
        title="Late ranks",
        words=words,
        figures=[_map(view, place, key, grouped[key]) for place, key in enumerate(shown)],
        tables=[one for one in (late, slow) if one.lines],
    )


def _late_ranks(view: View, usable: Sequence[Point]) -> tuple[Table, Table]:
    heads = ("rank", "host", "runs on", "collectives", "late by", "cases")
    late = table(
        "late",
        "Late ranks",
        heads,
        _ranks(view, usable, "late_rank"),
        align="llll",
        note=(
            "Ranks that came last more often than chance explains and by more than 5 % of the"
            " time; late by: in the median of these cases."
        ),
    )
    slow = table(
        "slow",
        "Ranks that leave last",
        heads,
        _ranks(view, usable, "slow_rank"),
        align="llll",
        note=(
            "Where all came in time, on one clock, and one left last as often and by as much:"
            " its transfers are slow, or the algorithm ends there."
        ),
    )
    return late, slow


def _late(view: View, point: Point) -> list[float]:
    """Share of a sample's time by which each rank came after the first."""
    whole = view.record(point).inner * point.first.median
    return [late / whole for late in point.first.lateness]


def _map(view: View, place: int, key: _Key, points: Sequence[Point]) -> Figure:
    """Ranks by sizes; a cell is the median over cases."""
    run, collective, mode, backend, members = key
    n = len(members)
    by_size: dict[int, list[list[float]]] = defaultdict(list)
    for point in points:
        by_size[point.size].append(_late(view, point))
    sizes, places = figures.thinned(sorted(by_size), 32), figures.thinned(range(n), 64)
    cells = np.array([np.median(by_size[at], axis=0)[places] for at in sizes]).T
    ranks = [members[place] for place in places]
    world = view.world(points[0])
    hosts = {info.rank: info.host for info in world.ranks} if world else {}
    many = len(set(hosts.values())) > 1
    names = [
        f"rank {rank}" + (f" ({hosts[rank]})" if many and rank in hosts else "") for rank in ranks
    ]
    row, column = np.unravel_index(int(cells.argmax()), cells.shape)
    title = view.titled(run, f"{collective}, {plain(backend)}, {n} ranks, {mode}")
    words = (
        f"At most, rank {ranks[row]} came late by {cells[row, column]:.1%} of the time, at"
        f" {size(sizes[column])}."
    )
    matrix = figures.Matrix(
        x=[size(at) if at else "no data" for at in sizes],
        y=names,
        z=cells.tolist(),
        text=[[f"{cell:.1%} late" for cell in line] for line in cells.tolist()],
        labels=("size", ""),
        legend="late by",
        least=0.2,
    )
    about = {"collective": collective, "backend": plain(backend), "ranks": str(n)}
    return figures.heat(f"skew-{place}", title, words, matrix, about)


def _ranks(
    view: View, usable: Sequence[Point], what: Literal["late_rank", "slow_rank"]
) -> list[Line]:
    """Ranks that rows name so, those in most cases first."""
    by_rank: dict[tuple[int, int, int], list[Point]] = defaultdict(list)
    for point in usable:
        if (rank := getattr(point.first, what)) is not None:
            by_rank[point.run, view.record(point).world, rank].append(point)
    of = Counter(
        (point.run, view.record(point).world, rank)
        for point in usable
        for rank in point.case.members
    )
    lines = []
    for (run, index, rank), points in sorted(by_rank.items(), key=lambda item: -len(item[1])):
        world = view.worlds[run][index]
        info = next((info for info in world.ranks if info.rank == rank), None)
        share = float(
            np.median([_late(view, point)[point.case.members.index(rank)] for point in points])
        )
        cells = (
            view.titled(run, f"rank {rank} of {world.n} ({plain(world.backend)})"),
            plain(info.host) if info else "unknown",
            _seat(info),
            ", ".join(sorted({point.case.collective for point in points})),
            f"{share:.0%}",
            f"{len(points):,} of {of[run, index, rank]:,}",
        )
        lines.append(
            Line(cells, {"backend": plain(world.backend), "ranks": str(world.n)}, "notice")
        )
    return lines


def _seat(info: RankInfo | None) -> str:
    if info is None:
        return "unknown"
    return f"CPU {', '.join(map(str, info.cpus))}" if info.device == "cpu" else plain(info.device)
