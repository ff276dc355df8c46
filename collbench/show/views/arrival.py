"""How ranks come to a call: what it costs when they come apart, where it matters how they come, and
which come late."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from collbench.core.text import format_duration, format_size, plain_line
from collbench.records.points import Point
from collbench.records.types import RankInfo
from collbench.show import figure_style, figures
from collbench.show.document import Figure, Line, Section, Table, make_columns
from collbench.show.views.series import Series, View, left_out, make_table, plus_minus

MAPS = 6

SHARE = 0.05  # of the time; where nobody comes later than this, there is no map

Floats = NDArray[np.float64]

_Key = tuple[int, str, str, str, Sequence[int]]  # of a map: run, collective, mode, backend, ranks


def make_arrival(view: View) -> Section | None:
    """Cases whose ranks arrived apart on purpose, and those that take another time in the other
    cadence; None where there are neither."""
    points = [(series, point) for series in view.series for point in series.points]
    delayed = [_line_apart(*pair) for pair in points if pair[1].case.arrival]
    other = [_line_other(*pair) for pair in points if pair[1].pooled.sensitive]
    if not (delayed or other):
        return None
    sentences = []
    if delayed:
        sentences.append(
            "A call cannot end before the last rank has come. What it takes from then on is what"
            " arrival leaves to the library; absorbed is the share of the ranks' spread that it"
            " used for work: 100% where the call ends as soon after the first rank came as it"
            " would have with all ranks there, 0% where it all happens after the last came."
        )
    if other:
        sentences.append(
            "A benchmark that aligns ranks starts them within a microsecond, a program's come as"
            " they are. Where the two take different times, a program sees the time as called."
        )
    what = ("collective", "case", "size")
    came = make_columns((*what, "arrival", "spread", "after the last", "±", "absorbed"), "llrl")
    took = make_columns((*what, "as called", "aligned", "factor", "flags"), "llrrrrl")
    tables = [
        make_table("apart", "Ranks that come apart", came, delayed),
        make_table("cadence", "As called and aligned", took, other),
    ]
    tables = [table for table in tables if table.lines]
    return Section(name="arrival", title="Arrival", sentences=sentences, tables=tables)


def _line_apart(series: Series, point: Point) -> Line:
    """The line of a point that was measured with ranks apart on purpose."""
    spread, absorbed = point.pooled.skew, point.pooled.absorbed
    cells = (
        point.case.collective,
        series.name,
        format_size(point.size) if point.size else "-",
        point.case.arrival,
        "-" if spread is None else format_duration(spread),
        format_duration(point.median),
        plus_minus(point),
        "not known" if absorbed is None else f"{absorbed:.0%}",
    )
    return Line(cells, series.meta)


def _line_other(series: Series, point: Point) -> Line:
    """The line of a point whose time depends on how ranks come to the call: as called, and
    aligned."""
    control = point.pooled.control or point.median
    natural = point.case.mode == "host"
    called, aligned = (point.median, control) if natural else (control, point.median)
    cells = (
        f"{point.case.collective}, {point.case.mode}",
        series.name,
        format_size(point.size) if point.size else "-",
        format_duration(called),
        format_duration(aligned),
        f"{max(called, aligned) / min(called, aligned):.1f}x",
        " ".join(point.flags),
    )
    return Line(cells, series.meta, "" if natural else "notice")


def make_skew(view: View) -> Section | None:
    """Lateness by rank and size, and the ranks that came late too often for chance; None where
    nobody was."""
    usable = [
        point
        for point in view.points
        if point.case.row.synchronising
        and point.case.n > 1
        and not point.case.arrival
        and point.first.lateness
        and (world := view.world(point)) is not None
        and not world.oversubscribed
    ]
    grouped: dict[_Key, list[Point]] = defaultdict(list)
    for point in usable:
        case = point.case
        grouped[point.run, case.collective, case.mode, case.backend, case.members].append(point)
    matrices = {key: _late_matrix(view, points) for key, points in grouped.items()}
    tables = [table for table in _late_ranks(view, usable) if table.lines]
    has_late = any(table.name == "late" for table in tables)
    late = {key: cells for key, cells in matrices.items() if has_late and cells.max() > SHARE}
    drawn_keys = sorted(late, key=lambda key: -late[key].max())[:MAPS]
    sentences = [
        (
            "How late each rank started, as a share of the call's time (synchronising collectives"
            " only)."
        ),
        *left_out(len(drawn_keys), len(late), "maps, those with the latest ranks,"),
    ]
    if not tables:
        return None
    return Section(
        name="skew",
        title="Late ranks",
        sentences=sentences,
        figures=[
            _draw_map(view, index, key, grouped[key], late[key])
            for index, key in enumerate(drawn_keys)
        ],
        tables=tables,
    )


def _late_ranks(view: View, usable: Sequence[Point]) -> tuple[Table, Table]:
    """A table of ranks that come late, and one of ranks that are slow."""
    heads = ("rank", "host", "runs on", "collectives", "cases")
    late = make_table(
        "late",
        "Late ranks",
        make_columns((*heads[:-1], "late by", heads[-1]), "llll"),
        _list_ranks(view, usable, "late_rank"),
        note=(
            "Ranks that came last more often than chance explains and by more than 5 % of the"
            f" time{_first_alone(usable)}; late by: in the median of these cases alone."
        ),
    )
    slow = make_table(
        "slow",
        "Ranks that leave last",
        make_columns(heads, "llll"),
        _list_ranks(view, usable, "slow_rank"),
        note=(
            f"Ranks that started on time but finished last{_first_alone(usable)}: slow transfers,"
            " or the algorithm's last step."
        ),
    )
    return late, slow


def _first_alone(points: Sequence[Point]) -> str:
    """A clause where launches other than the first are not looked at."""
    return ", in each case's first launch" * any(point.launches > 1 for point in points)


def _late_shares(view: View, point: Point) -> list[float]:
    """Share of a sample's time by which each rank came after the first."""
    call_time = view.record(point).inner * point.first.times.median
    return [late / call_time for late in point.first.lateness]


def _list_places(points: Sequence[Point]) -> tuple[list[int], list[int]]:
    """Sizes, and places among the ranks, that a map has."""
    sizes = figure_style.thin_points(sorted({point.size for point in points}), 32)
    return sizes, figure_style.thin_points(range(len(points[0].case.members)), 64)


def _late_matrix(view: View, points: Sequence[Point]) -> Floats:
    """How late each rank started, by rank and size: the median over cases."""
    sizes, places = _list_places(points)
    by_size: dict[int, list[list[float]]] = defaultdict(list)
    for point in points:
        by_size[point.size].append(_late_shares(view, point))
    return np.array([np.median(by_size[at], axis=0)[places] for at in sizes]).T


def _draw_map(view: View, index: int, key: _Key, points: Sequence[Point], cells: Floats) -> Figure:
    """Ranks by sizes."""
    run, collective, mode, backend, members = key
    n = len(members)
    sizes, places = _list_places(points)
    ranks = [members[position] for position in places]
    world = view.world(points[0])
    hosts = {info.rank: info.host for info in world.ranks} if world else {}
    many = len(set(hosts.values())) > 1
    names = [
        f"rank {rank}" + (f" ({hosts[rank]})" if many and rank in hosts else "") for rank in ranks
    ]
    row, column = np.unravel_index(int(cells.argmax()), cells.shape)
    title = view.prefix_run(run, f"{collective}, {plain_line(backend)}, {n} ranks, {mode}")
    caption = (
        f"In the median of the cases of a size, rank {ranks[row]} is the latest: by"
        f" {cells[row, column]:.1%} of the time at {format_size(sizes[column])}."
    )
    matrix = figures.Matrix(
        x=[format_size(at) if at else "no data" for at in sizes],
        y=names,
        z=cells.tolist(),
        text=[[f"{cell:.1%} late" for cell in line] for line in cells.tolist()],
        labels=("size", ""),
        legend="late by",
        least=0.2,
    )
    about = {"collective": collective, "backend": plain_line(backend), "ranks": str(n)}
    return figures.draw_heatmap(f"skew-{index}", title, caption, matrix, about)


def _list_ranks(
    view: View, usable: Sequence[Point], what: Literal["late_rank", "slow_rank"]
) -> list[Line]:
    """Ranks that rows name so, those in most cases first."""
    by_rank: dict[tuple[int, int, int], list[Point]] = defaultdict(list)
    for point in usable:
        if (rank := getattr(point.first, what)) is not None:
            by_rank[point.run, view.record(point).world, rank].append(point)
    totals = Counter(
        (point.run, view.record(point).world, rank)
        for point in usable
        for rank in point.case.members
    )
    lines = []
    for (run, index, rank), points in sorted(by_rank.items(), key=lambda item: -len(item[1])):
        world = view.worlds[run][index]
        info = next((info for info in world.ranks if info.rank == rank), None)
        share = float(
            np.median(
                [_late_shares(view, point)[point.case.members.index(rank)] for point in points]
            )
        )
        late = what == "late_rank"
        cells = (
            view.prefix_run(run, f"rank {rank} of {world.n} ({plain_line(world.backend)})"),
            plain_line(info.host) if info else "unknown",
            _name_seat(info),
            ", ".join(sorted({point.case.collective for point in points})),
            *([f"{share:.0%}"] if late else []),
            f"{len(points):,} of {totals[run, index, rank]:,}",
        )
        about = {"backend": plain_line(world.backend), "ranks": str(world.n)}
        lines.append(Line(cells, about, "notice" if late else ""))
    return lines


def _name_seat(info: RankInfo | None) -> str:
    if info is None:
        return "unknown"
    return (
        f"CPU {', '.join(map(str, info.cpus))}" if info.device == "cpu" else plain_line(info.device)
    )
