"""A case of one run over all its launches, and the fastest of those that differ in nothing but
implementation. Times in nanoseconds."""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from collbench.records import rows as rows_
from collbench.records.derive import Derived, told_over
from collbench.records.flags import FEW, KNOWN, is_without_interval
from collbench.records.stats import half_width
from collbench.suite.case import Case


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What one case of run number ``run`` took, over all its launches: a median and its 95 %
    interval.

    ``lo`` and ``hi`` are infinite where too few samples bound it. ``launches`` are those behind the
    interval: 1 where it is of the samples within a launch. ``first`` is the first record's row,
    ``pooled`` that of the samples of all launches together, which tails and outliers are of.
    ``ungated`` are the flags for which the case decides no verdict. ``over`` says what another
    tool's time is in place of a median over samples of the slowest rank.
    """

    run: int
    case: Case
    size: int
    moved: float
    median: float
    lo: float
    hi: float
    samples: int
    n_eff: float
    algbw: float
    busbw: float | None
    flags: tuple[str, ...]
    ungated: tuple[str, ...]
    launches: int
    first: Derived
    pooled: Derived
    record: int
    late_share: float = 0.0  # how late the late rank came at most, of the time; 0 without one
    predicted: bool = False
    over: str = ""

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval; a prediction is exact."""
        return (self.median, self.median) if self.predicted else (self.lo, self.hi)

    @property
    def half_width(self) -> float:
        """The larger half of the interval, as a share of the median."""
        return half_width(self.median, self.lo, self.hi)

    @property
    def rate_half_width(self) -> float:
        """The larger half of a bandwidth's interval, as a share of the bandwidth."""
        if self.lo <= 0 or not self.median:
            return math.inf
        return half_width(1 / self.median, 1 / self.hi, 1 / self.lo)


def make_points(rows: Iterable[rows_.Row]) -> list[Point]:
    """A point for each case of a run of which any launch is fit."""
    cases = rows_.group_rows(rows, lambda row: (row.file, row.case, row.predicted))
    return [over_launches(launches) for launches in cases.values() if rows_.select_fit(launches)]


def over_launches(rows: Sequence[rows_.Row]) -> Point:
    """A case by its launches, of one run or of several that were measured alike, of which at least
    one is fit. The flags are those of any, the unfit too, and ``late_share`` is the largest of any.
    """
    time = rows_.case_time(rows)
    fit_rows = rows_.select_fit(rows)
    home = fit_rows[0]
    first = home.first.derived
    pooled = rows_.pool_cycles([cycle for row in fit_rows for cycle in row.fit])
    assert first is not None and pooled is not None  # what is fit has a time
    timed_cycles = [
        cycle.derived
        for row in rows
        for cycle in row.cycles
        if cycle.derived and cycle.record.status in rows_.MEASURED
    ]
    moved = first.algbw * first.times.median
    algbw = moved / time.median
    return Point(
        run=home.file,
        case=home.case,
        size=home.case.size,
        moved=moved,
        median=time.median,
        lo=time.lo,
        hi=time.hi,
        samples=time.samples,
        n_eff=time.n_eff,
        algbw=algbw,
        busbw=None if first.busbw is None else algbw * home.case.row.busbw(home.case.n),
        record=home.first.number,
        launches=time.launches,
        flags=tuple(dict.fromkeys(flag for row in rows for flag in row.flags)),
        ungated=tuple(
            dict.fromkeys(flag for row in rows_.select_deciding(rows) for flag in row.ungated)
        ),
        first=first,
        pooled=pooled,
        late_share=max(timed.late_share for timed in timed_cycles),
        predicted=home.predicted,
        over=told_over(home.record),
    )


def is_known(point: Point) -> bool:
    """Whether a time can be given as an answer: of samples enough, at least as sure as KNOWN. What
    is predicted, or is of another tool's average, has no interval."""
    if point.predicted or is_without_interval(point):
        return True
    return FEW not in point.ungated and point.half_width <= KNOWN


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest implementation of a case, those whose intervals overlap with its own, those of
    which that is unknown as one of both has no interval, those that are surely slower, the fastest
    first, and the library's choice, if it was measured.

    ``gain`` is how much longer the library takes (0.1: 10 % longer); ``reference``: whether
    algorithms take part.
    """

    winner: Point
    ties: list[Point]
    unknown: list[Point]
    slower: list[Point]
    reference: bool
    library: Point | None
    gain: float | None

    @property
    def clear(self) -> bool:
        """Whether the winner is surely faster than the library."""
        return self.library in self.slower


COMMON = (
    *("collective", "n", "dtype", "op", "root", "in_place", "mode", "arrival", "env", "splits"),
    *("align", "background", "groups", "group", "of", "subject"),
)
_read_common = operator.attrgetter(*COMMON)


def comparison_key(point: Point, *, sized: bool = True) -> tuple[object, ...]:
    """Equal for what differs in nothing but implementation (and size, unless ``sized``): these, and
    only these, are set against each other; never what a model says against what was measured."""
    return (
        point.run,
        point.predicted,
        point.case.nbytes if sized else None,
        _read_common(point.case),
    )


def find_best(points: Iterable[Point]) -> list[Best]:
    """The best implementation of each case that has two or more."""
    groups: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in points:
        groups[comparison_key(point)].append(point)
    return [_rank_group(group) for group in groups.values() if len(group) > 1]


def _rank_group(group: list[Point]) -> Best:
    """The fastest point of a group, with those that may be as fast, those of unknown time and those
    surely slower."""
    winner, *others = sorted(group, key=lambda point: point.median)
    are_known = [all(map(math.isfinite, (*point.bounds, *winner.bounds))) for point in others]
    libraries = [point for point in (winner, *others) if point.case.algorithm == "native"]
    library = libraries[0] if libraries else None
    groups: dict[str, list[Point]] = {"ties": [], "unknown": [], "slower": []}
    for point, sure in zip(others, are_known, strict=True):
        overlap = "ties" if point.bounds[0] <= winner.bounds[1] else "slower"
        groups[overlap if sure else "unknown"].append(point)
    return Best(
        winner=winner,
        library=library,
        gain=library.median / winner.median - 1 if library else None,
        reference=len(libraries) < len(group),
        **groups,
    )
