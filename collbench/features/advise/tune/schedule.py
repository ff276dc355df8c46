"""What a verification measures, and in how many rounds, so that its budget holds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from collbench.features.advise.evidence import find_form
from collbench.features.advise.types import Advice, Cell, Series
from collbench.features.compare.comparison import Rules
from collbench.records import paired
from collbench.run.launch.places import PlaceSource
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite, default_mode

ROUNDS = 12  # the fewest pairs of launches
MIN_ROUNDS = 8  # where time is short
MIN_SECONDS, MAX_SECONDS = 0.05, 0.25  # of samples of a case in a launch
GUESS_START = 3.0  # seconds until two launches have started at once
GUESS_FIXED = 0.2  # seconds of a case beside its samples: warm-up and checks
USED = 0.9  # of a budget may be planned for

Sizes = Mapping[
    Series, Mapping[int, int]
]  # bytes of a call, ascending, and what the sweep asks for


class VerifyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Terms by which an advice is verified.

    ``sweeps`` are those that it comes from (make_sweeps makes them of cases): their sizes are those
    among which two are neighbours, and each case is measured with its backend, datatype, placement
    and mode. ``format`` is one of FORMATS. ``budget`` is in seconds: rounds and the time of a case
    follow from it, and rows that it has no time for are not verified. ``command`` is what a run
    keeps as its command line. ``folder`` is where the file lies while ranks read it, a private one
    where it is None: name one that all hosts see where ``source`` gives places on several.
    """

    format: Any
    sweeps: tuple[Axes, ...]
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


def make_sweeps(cases: Iterable[Case]) -> tuple[Axes, ...]:
    """The sweeps of exactly these cases: one for each form (datatype, placement) in which a
    collective was measured on so many ranks."""
    alike: dict[Any, list[Case]] = {}
    for case in cases:
        alike.setdefault((case.collective, case.n, find_form(case)), []).append(case)
    return tuple(map(_make_sweep, alike.values()))


def _make_sweep(cases: Sequence[Case]) -> Axes:
    """The sweep of cases that differ in size alone."""
    case = cases[0]
    is_usual = case.mode == default_mode(case.backend, case.n)
    return Axes(
        collectives=(case.collective,),
        sizes=tuple(sorted({each.nbytes for each in cases})),
        ranks=(case.n,),
        backends=(case.backend,),
        dtypes=(case.dtype,),
        ops=(case.op,),
        roots=(case.root,),
        in_place=(case.in_place,),
        modes=() if is_usual else (case.mode,),
        arrivals=(case.arrival,) if case.arrival else (),
        splits=(case.splits,),
        backgrounds=(case.background,),
        align=case.align,
    )


@lru_cache(maxsize=8)
def count_forms(sweeps: tuple[Axes, ...]) -> int:
    """In how many forms (datatypes, placements, roots) a size is measured at most."""
    cases, _ = Suite(name="tune", axes=sweeps[0], includes=sweeps[1:]).expand()
    forms = Counter((case.collective, case.n, case.nbytes) for case in cases)
    return max(forms.values(), default=1)


def list_sizes(series: Iterable[Series], sweeps: Sequence[Axes]) -> Sizes:
    """The swept sizes of each series, by the bytes that its calls send: blocks need not divide what
    the sweep asks for."""
    sizes: dict[Series, dict[int, int]] = {}
    for each in series:
        by_size: dict[int, int] = {}
        for axes in sweeps:
            by_size = _list_swept(each, axes) | by_size
        sizes[each] = dict(sorted(by_size.items()))
    return sizes


def _list_swept(series: Series, axes: Axes) -> dict[int, int]:
    """The sizes of a series in one sweep, as list_sizes has them."""
    if series.collective not in axes.collectives or series.n not in axes.ranks:
        return {}
    cases, _ = Suite(name="tune", axes=_narrow_axes(axes, series, axes.sizes)).expand()
    by_size: dict[int, int] = {}
    for case in sorted(cases, key=lambda case: case.nbytes):
        by_size.setdefault(case.size, case.nbytes)
    return by_size


def _narrow_axes(axes: Axes, series: Series, sizes: Sequence[int]) -> Axes:
    return msgspec.structs.replace(
        axes,
        collectives=(series.collective,),
        ranks=(series.n,),
        sizes=tuple(sizes),
        envs=((),),
        algorithms=("native",),
    )


def make_suite(cells: Sequence[Cell], request: VerifyRequest) -> Suite:
    """The suite of exactly these cells, each series in each form a sweep of its own."""
    sizes_by_series: dict[Series, set[int]] = {}
    for cell in cells:
        sizes_by_series.setdefault(cell.series, set()).add(cell.nbytes)
    narrowed: list[Axes] = []
    for series, sizes in sizes_by_series.items():
        for axes in request.sweeps:
            swept = _list_swept(series, axes)
            if asked := [swept[size] for size in swept if size in sizes]:
                narrowed.append(_narrow_axes(axes, series, asked))
    first, *others = narrowed
    return Suite(name="tune", axes=first, includes=tuple(others), policy=request.policy)


def plan_rounds(request: VerifyRequest, cell_count: int, world_count: int, heads: int) -> Schedule:
    """As many rounds of one of so many heads as its share of the budget holds, by a rough guess,
    and then as long cases, as more launches tell more. What is left over goes to rows without a
    verdict in any case."""
    budget = request.budget / heads
    forms = count_forms(request.sweeps)
    case_count = cell_count * forms
    for fewest in (ROUNDS, MIN_ROUNDS):
        rounds = max(fewest, paired.fewest_rounds(heads * case_count))
        launches = 2 * (rounds + 1)  # of both sides, with the pilot
        left = USED * budget - (rounds + 2) * world_count * request.start_seconds
        room = left / (launches * max(1, case_count)) - request.fixed_seconds
        if room >= MIN_SECONDS:
            break
    cell = launches * forms * (request.fixed_seconds + MIN_SECONDS)
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
