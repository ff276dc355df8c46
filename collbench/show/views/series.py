"""From runs' records to what a report shows of them: one point per case, over all its launches, in
named series."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from collbench.core.collectives import reading_place
from collbench.core.text import plain_line
from collbench.records.derive import Derived
from collbench.records.points import Best, Point, find_best, make_points
from collbench.records.rows import NO_TIME
from collbench.records.rows import make_rows as records_table
from collbench.records.types import Record, RunFile, World
from collbench.show.document import Column, Line, Meta, Table, Weight
from collbench.show.words import format_interval, split_axes, word_axes
from collbench.suite.case import MODES, Case

STAMP = re.compile(r"^\d{8}-\d{6,9}-")  # how an id begins

MOST = 500  # lines of a table

TOGETHER = 24  # lines of several collectives in one figure


class Series(NamedTuple):
    """A case of one run over all its sizes: ``case`` has size 0, ``points`` are in order of size.

    ``name`` says what tells it from the other series of its figure (collective and mode are the
    figure's), ``meta`` what the page filters by. All text is plain.
    """

    run: int
    case: Case
    points: list[Point]
    name: str
    meta: Meta


class Other(NamedTuple):
    """A record without a time to show, and ``why``: skipped, failed, wrong or "invalid!"."""

    run: int
    record: Record
    why: str


class Conclusion(Protocol):
    """What a feature concludes of runs, which their report says first of all: the page's title, one
    sentence without its full stop, and whether that is good or bad."""

    @property
    def title(self) -> str:
        """The title of the report."""

    @property
    def headline(self) -> str:
        """The conclusion in one sentence, without a full stop."""

    @property
    def weight(self) -> Weight:
        """Whether the conclusion is good, bad or neither."""


class View(NamedTuple):
    """All that sections are made from. ``labels`` name the runs; ``worlds`` has each run's by
    index, ``derived`` what each of its records says; ``best`` is of ``points``."""

    files: Sequence[RunFile]
    labels: list[str]
    worlds: list[dict[int, World]]
    derived: list[list[Derived | None]]
    points: list[Point]
    best: list[Best]
    series: list[Series]
    others: list[Other]
    conclusion: Conclusion | None

    def record(self, point: Point) -> Record:
        """The first of the records behind a point."""
        return self.files[point.run].records[point.record]

    def world(self, point: Point) -> World | None:
        """The world of a point's record; None where the file has none."""
        return self.worlds[point.run].get(self.record(point).world)

    def prefix_run(self, run: int, text: str) -> str:
        """``text``, with the run's label before it where there are several."""
        return f"{self.labels[run]}: {text}" if len(self.labels) > 1 else text


def make_view(files: Sequence[RunFile], conclusion: Conclusion | None = None) -> View:
    """The view of these runs: everything is derived and sorted once."""
    worlds = [{world.index: world for world in file.worlds} for file in files]
    rows = records_table(files)
    cycles = sorted(
        ((row.file, cycle) for row in rows for cycle in row.cycles),
        key=lambda item: (item[0], item[1].number),
    )
    derived: list[list[Derived | None]] = [[] for _ in files]
    for run, cycle in cycles:
        derived[run].append(cycle.derived)
    others = [
        Other(run, cycle.record, cycle.unfit)
        for run, cycle in cycles
        if cycle.unfit not in ("", NO_TIME)
    ]
    labels = _label_runs(files)
    series = _make_series(make_points(rows), labels)
    points = [point for one_series in series for point in one_series.points]
    best = find_best(points)
    return View(files, labels, worlds, derived, points, best, series, others, conclusion)


def filter_values(case: Case) -> Meta:
    """The value of each of document.FILTERS; a barrier has no datatype."""
    kind = {"dtype": case.dtype} if case.row.moves_data else {}
    return {
        "collective": case.collective,
        "backend": plain_line(case.backend),
        "ranks": str(case.n),
        **kind,
    }


def group_series(series: Iterable[Series]) -> dict[str, list[Series]]:
    """Series by the title of the figure they share: a collective and a mode, and whether a model
    predicted them."""
    groups: dict[str, list[Series]] = {}
    for one_series in series:
        groups.setdefault(
            f"{one_series.case.collective}, {name_mode(one_series.points[0])}", []
        ).append(one_series)
    return groups


def name_mode(point: Point) -> str:
    """The name of its mode in titles: "host", or "isolated, predicted"."""
    return point.case.mode + (", predicted" if point.predicted else "")


def merge_groups(groups: dict[str, list[Series]]) -> dict[str, list[Series]]:
    """Groups, those of one mode merged into one where there is one implementation and few lines;
    each series is then named after its collective."""
    by_mode: dict[str, list[str]] = {}
    for title in groups:
        by_mode.setdefault(title.partition(", ")[2], []).append(title)
    merged: dict[str, list[Series]] = {}
    for mode, titles in by_mode.items():
        every = [one_series for title in titles for one_series in groups[title]]
        alone = len({one_series.case.label for one_series in every}) == 1 and len(every) <= TOGETHER
        if not alone or len(titles) == 1:
            merged |= {title: groups[title] for title in titles}
            continue
        merged[f"all collectives, {mode}"] = [
            one_series._replace(name=_rename_series(one_series)) for one_series in every
        ]
    return merged


def _rename_series(series: Series) -> str:
    """The name with the collective in place of the implementation."""
    label, parts = plain_line(series.case.label), series.name.split(", ")
    return ", ".join([series.case.collective, *(word for word in parts if word != label)])


def name_figure(title: str) -> str:
    """The name of a figure for files and anchors, made of its title: "all_reduce, host" is
    "all_reduce-host"."""
    return title.replace(", ", "-").replace(" ", "-")


def _label_runs(files: Sequence[RunFile]) -> list[str]:
    """Each run's tag, else its id without the time; the whole id where another run has the same.
    Sides of an experiment are named by what sets them apart."""
    ids = [plain_line(file.run.id) for file in files]
    names = [
        (
            f"{file.run.pairing.side} {plain_line(file.run.pairing.variant)}".strip()
            if file.run.pairing
            else plain_line(file.run.tag) or STAMP.sub("", ident)
        )
        for file, ident in zip(files, ids, strict=True)
    ]
    times = Counter(names)
    return [
        name if name and times[name] == 1 else ident for name, ident in zip(names, ids, strict=True)
    ]


def _make_series(points: Sequence[Point], labels: Sequence[str]) -> list[Series]:
    mixed: dict[tuple[int, Case, bool], list[Point]] = {}
    for point in points:
        key = point.run, msgspec.structs.replace(point.case, nbytes=0), point.predicted
        mixed.setdefault(key, []).append(point)
    ordered = dict(sorted(mixed.items(), key=lambda item: _order_key(*item[0][:2])))
    sharing: dict[tuple[str, str], list[tuple[int, Case]]] = {}
    for run, case, _ in ordered:
        sharing.setdefault((case.collective, case.mode), []).append((run, case))
    varying = {
        where: split_axes(list(dict.fromkeys(case for _, case in members)))[0]
        for where, members in sharing.items()
    }

    several = {where: len({run for run, _ in members}) > 1 for where, members in sharing.items()}

    def name(run: int, case: Case) -> str:
        where = case.collective, case.mode
        return _name_series(case, varying[where], labels[run] if several[where] else "")

    return [
        Series(
            run, case, sorted(points, key=lambda p: p.size), name(run, case), filter_values(case)
        )
        for (run, case, _), points in ordered.items()
    ]


def _order_key(run: int, case: Case) -> tuple[Any, ...]:
    """The key that orders series: libraries before algorithms, since runs are measured in shuffled
    order."""
    whose = case.algorithm != "native", case.label
    what = case.dtype, case.op, case.root, case.splits, case.in_place
    return (
        reading_place(case.collective),
        MODES.index(case.mode),
        run,
        case.n,
        case.env,
        *whose,
        *what,
    )


def _name_series(case: Case, varying: Sequence[str], label: str) -> str:
    """The implementation, and the values of those other axes along which the group varies."""
    values = word_axes(case)
    details = [values[name] for name in varying if name != "implementation" and values[name]]
    return plain_line(", ".join(filter(None, [label, case.label, *details])))


def plus_minus(point: Point, *, of_rate: bool = False) -> str:
    """The interval of the time, or of the bandwidth, as words.format_interval has it; nothing for a
    prediction."""
    if point.predicted:
        return ""
    return format_interval(point.rate_half_width if of_rate else point.half_width)


def choose_series(series: Sequence[Series], most: int) -> list[Series]:
    """At most ``most``, spread evenly over those with at least half as many sizes as any has."""
    if len(series) <= most:
        return list(series)
    least = max(len(one_series.points) for one_series in series) / 2
    full = [one_series for one_series in series if len(one_series.points) >= least]
    return [full[index * len(full) // most] for index in range(min(most, len(full)))]


def left_out(count: int, total: int, what: str) -> list[str]:
    """The sentence on what is not shown, if anything is not."""
    return (
        [f"{count:,} of {total:,} {what} shown; the rest is in the data."] if count < total else []
    )


def make_table(
    name: str,
    title: str,
    columns: Sequence[Column],
    items: Sequence[Any],
    line: Callable[[Any], Line] | None = None,
    *,
    note: str = "",
    folded: bool = False,
    what: str = "lines",
    common: int = 0,
) -> Table:
    """A table of the first MOST of ``items``, each made a line by ``line`` unless it is one. Its
    note says so where there are more: put first what matters most. Of the first ``common`` columns
    those of one value stand in the title."""
    lines = [line(item) if line else item for item in items[:MOST]]
    notes = [note, *left_out(min(len(items), MOST), len(items), what)]
    same = [at for at in range(common) if len({str(line.cells[at]) for line in lines}) == 1]
    shared = [str(lines[0].cells[at]) for at in same]
    table = Table(
        name=name,
        title=": ".join(filter(None, [title, ", ".join(filter(None, shared))])),
        columns=columns,
        lines=lines,
        folded=folded,
        note=" ".join(filter(None, notes)),
    )
    return table.select_columns([at for at in range(len(columns)) if at not in same])
