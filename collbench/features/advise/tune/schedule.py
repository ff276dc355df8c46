"""What a verification measures, and in how many rounds, so that its budget holds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from collbench.features.advise.types import Advice, Cell, Series
from collbench.features.compare.comparison import Rules
from collbench.records import paired
from collbench.run.launch.places import PlaceSource
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import FIELDS, Axes, Suite, default_mode

ROUNDS = 12  # the fewest paired launches
MIN_ROUNDS = 8  # where time is short
MIN_SECONDS, MAX_SECONDS = 0.05, 0.25  # of samples of a case in a launch
GUESS_START = 3.0  # seconds until two launches have started at once
GUESS_FIXED = 0.2  # seconds of a case beside its samples: warm-up and checks
USED = 0.9  # of a budget may be planned for

Sizes = Mapping[
    Series, Mapping[int, int]
]  # bytes of a call, ascending, and what the sweep asks for


class VerifyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How an advice is verified. ``axes`` is the sweep that it comes from (make_axes makes it of
    cases): its sizes are those among which two are neighbours, and each case is measured with its
    backend, datatype, placement and mode. ``format`` is one of FORMATS. ``budget`` is in seconds:
    rounds and the time of a case follow from it, and rows that it has no time for are not
    verified. ``command`` is what a run keeps as its command line. ``folder`` is where the file lies
    while ranks read it, a private one where it is None: name one that all hosts see where
    ``source`` gives places on several. ``forms``: in how many a size is measured (count_forms)."""

    format: Any
    axes: Axes
    command: Sequence[str]
    policy: Policy = Policy()
    budget: float = 300.0
    rules: Rules = Rules()
    despite_oversubscription: bool = False
    start_seconds: float = GUESS_START  # until a pair of launches has started
    fixed_seconds: float = GUESS_FIXED  # of a case beside its samples
    output: Path | None = None
    tag: str = ""
    source: PlaceSource | None = None
    folder: Path | None = None
    forms: int = 1


class Schedule(NamedTuple):
    """The fewest rounds of an experiment, the seconds of samples of a case in each launch, and the
    most cells for which the budget suffices then."""

    rounds: int
    case_seconds: float
    max_cells: int


class Fitting(NamedTuple):
    """What a budget holds: rows, and the cells to measure for them: all sizes of their series, but
    for so many that are ``unchecked``. ``others`` are the rows that it has no time for."""

    rows: list[Advice]
    others: list[Advice]
    cells: list[Cell]
    unchecked: int


def make_axes(cases: Iterable[Case]) -> Axes:
    """The sweep of measured cases: all collectives, sizes, ranks and forms (datatypes, in place)
    among them, with groups and alignment as the first has them."""
    every = list(cases)
    values: dict[str, Any] = {
        axis: tuple(dict.fromkeys(getattr(case, field) for case in every))
        for axis, field in FIELDS.items()
    }
    usual = all(case.mode == default_mode(case.backend, case.world) for case in every)
    values |= {
        "sizes": tuple(sorted(values["sizes"])),
        "ranks": tuple(sorted({case.world for case in every})),
        "backends": values["backends"][:1],
        "modes": () if usual else values["modes"],
        "envs": ((),),
        "algorithms": ("native",),
        "groups": every[0].groups,
        "align": every[0].align,
    }
    return Axes(**values)


def count_forms(axes: Axes) -> int:
    """In how many forms (datatypes, placements, roots) a size is measured at most."""
    cases, _ = Suite(name="tune", axes=axes).expand()
    forms = Counter((case.collective, case.world, case.nbytes) for case in cases)
    return max(forms.values(), default=1)


def list_sizes(series: Iterable[Series], axes: Axes) -> Sizes:
    """The swept sizes of each series, by the bytes that its calls send: blocks need not divide what
    the sweep asks for."""
    sizes: dict[Series, dict[int, int]] = {}
    for each in series:
        cases, _ = Suite(name="tune", axes=_narrow_axes(axes, each, axes.sizes)).expand()
        by_size: dict[int, int] = {}
        for case in sorted(cases, key=lambda case: case.nbytes):
            by_size.setdefault(case.size, case.nbytes)
        sizes[each] = by_size
    return sizes


def _narrow_axes(axes: Axes, series: Series, sizes: Sequence[int]) -> Axes:
    return msgspec.structs.replace(
        axes,
        collectives=(series.collective,),
        ranks=(series.n,),
        sizes=tuple(sizes),
        envs=((),),
        algorithms=("native",),
    )


def make_suite(cells: Sequence[Cell], sizes: Sizes, request: VerifyRequest) -> Suite:
    """The suite of exactly these cells, each series a sweep of its own."""
    sizes_by_series: dict[Series, list[int]] = {}
    for cell in cells:
        asked = sizes.get(cell.series, {}).get(cell.nbytes, cell.nbytes)
        sizes_by_series.setdefault(cell.series, []).append(asked)
    first, *others = (
        _narrow_axes(request.axes, series, swept) for series, swept in sizes_by_series.items()
    )
    return Suite(name="tune", axes=first, includes=tuple(others), policy=request.policy)


def plan_rounds(request: VerifyRequest, cell_count: int, world_count: int, heads: int) -> Schedule:
    """As many rounds of one of so many heads as its share of the budget holds, by a rough guess,
    and then as long cases, as more launches tell more. What is left over goes to rows without a
    verdict in any case."""
    budget = request.budget / heads
    case_count = cell_count * request.forms
    for fewest in (ROUNDS, MIN_ROUNDS):
        rounds = max(fewest, paired.fewest_rounds(heads * case_count))
        launches = 2 * (rounds + 1)  # of both sides, with the pilot
        left = USED * budget - (rounds + 2) * world_count * request.start_seconds
        room = left / (launches * max(1, case_count)) - request.fixed_seconds
        if room >= MIN_SECONDS:
            break
    cell = launches * request.forms * (request.fixed_seconds + MIN_SECONDS)
    seconds = min(MAX_SECONDS, max(MIN_SECONDS, room))
    return Schedule(rounds, seconds, max(0, int(left / cell)))


def split_heads(rows: Sequence[Advice], by_size: bool) -> list[list[Advice]]:
    """The rows that are compared with the default at once: of a file all, else those of a
    setting."""
    if by_size:
        return [list(rows)] if rows else []
    heads: dict[Any, list[Advice]] = {}
    for row in rows:
        heads.setdefault(row.setting, []).append(row)
    return list(heads.values())


def list_cells(rows: Sequence[Advice], sizes: Sizes) -> list[Cell]:
    """All swept sizes of the series of some rows."""
    return [
        Cell(series, size)
        for series in sorted({row.series for row in rows})
        for size in sorted(sizes[series])
    ]


def fit_budget(rows: Sequence[Advice], sizes: Sizes, request: VerifyRequest) -> Fitting:
    """The rows that the budget can verify with all sizes of their series, those that promise most
    for a size first. One is always tried: where time does not suffice for it, sizes far from
    any row are left out."""
    form = request.format
    fitting: list[Advice] = []
    others: list[Advice] = []
    for unit in _sort_units(rows, form.covers_all):
        heads = split_heads([*fitting, *unit], form.by_size)
        fits = all(_has_room(list_cells(head, sizes), len(heads), request) for head in heads)
        (fitting if fits or not fitting else others).extend(unit)
    cells = list_cells(fitting, sizes)
    near = cells
    if form.by_size and fitting and not _has_room(cells, 1, request):
        near = _trim_cells(fitting, cells, sizes, request)
    ordered = sorted(fitting, key=lambda row: (row.series, row.low))
    return Fitting(ordered, others, near, len(cells) - len(near))


def _sort_units(rows: Sequence[Advice], covers_all: bool) -> list[list[Advice]]:
    """Rows that go together, by what they promise: one by one, or all of a series where a file has
    to name something for all of its sizes."""
    units: dict[object, list[Advice]] = {}
    for index, row in enumerate(rows):
        units.setdefault(row.series if covers_all else index, []).append(row)

    def promise(unit: Sequence[Advice]) -> float:
        gains = [each.gain for row in unit for each in row.gains]
        return sum(gains) / len(gains)

    return sorted(units.values(), key=promise, reverse=True)


def _has_room(cells: Sequence[Cell], heads: int, request: VerifyRequest) -> bool:
    return len(cells) <= _plan(cells, heads, request).max_cells


def _plan(cells: Sequence[Cell], heads: int, request: VerifyRequest) -> Schedule:
    worlds = len({cell.series.n for cell in cells})
    return plan_rounds(request, len(cells), worlds, heads)


def _trim_cells(
    rows: Sequence[Advice], cells: Sequence[Cell], sizes: Sizes, request: VerifyRequest
) -> list[Cell]:
    """As many cells as there is time for, those next to rows first, which always stay."""
    distances: dict[Cell, int] = {}
    for series in {row.series for row in rows}:
        ascending = sorted(sizes[series])
        covered = [
            index
            for index, size in enumerate(ascending)
            if any(row.low <= size <= row.high for row in rows if row.series == series)
        ]
        for index, size in enumerate(ascending):
            away = min((abs(index - other) for other in covered), default=len(ascending))
            distances[Cell(series, size)] = away
    nearest = sorted(cells, key=lambda cell: distances[cell])
    core = sum(distances[cell] <= 1 for cell in cells)
    number = max(core, _plan(cells, 1, request).max_cells)
    return sorted(nearest[:number])
