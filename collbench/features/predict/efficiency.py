"""Cases against each other and against what is possible: where implementations change places, and
three numbers that say how good a time is. Times in nanoseconds,
constants in ns a message and ns a byte.

The three numbers, of which none says it all: link efficiency is busbw, times ``carried``
(traffic.py), over that of sendrecv at the same size; bound efficiency is the time that no algorithm
on point-to-point links beats, ``max(L alpha, B n beta, G n gamma)``, over the time measured; the
model ratio is the time measured over what the algorithm's exact schedule takes on such links.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from operator import mul

import msgspec

from collbench.core import algorithms
from collbench.core.errors import CollbenchError
from collbench.core.network import Link, Network
from collbench.core.simulate import Predictor
from collbench.features.predict import fit
from collbench.machine import environment
from collbench.records.case_rows import MANNER
from collbench.records.points import Point, comparison_key
from collbench.records.types import Record, RunFile
from collbench.suite.case import Case

ALARM = 1.05  # bound efficiency from which on a time is more probably wrong than good

FITS, SIZES = 6, 16  # links, and sizes of each, as fitting one takes a good part of a second

LIMITS = ("messages", "bytes", "reducing")  # what makes the bound

PROBE, TWINS = (
    "sendrecv",
    ("reduce_scatter", "all_gather"),
)  # tell alpha and beta, and by their difference gamma


class Crossing(msgspec.Struct, frozen=True, kw_only=True):
    """``before`` is surely faster at size ``low``, ``after`` at ``high``; about ``size`` both take
    as long.

    ``size`` is where straight lines between the medians, in logarithms of both size and time, meet.
    """

    before: Point
    after: Point
    low: int
    high: int
    size: float


class Constants(msgspec.Struct, frozen=True, kw_only=True):
    """What a link does at its best, from ``probe`` in run number ``source``; None with the reason
    in ``refused``.

    ``least`` are alpha, beta and gamma at the lower ends of their intervals. ``gamma`` is 0 where
    unknown: see ``note``."""

    backend: str
    ranks: int
    dtype: str
    mode: str
    source: int
    probe: Case
    alpha: float | None = None
    beta: float | None = None
    least: tuple[float, float, float] = (0.0, 0.0, 0.0)
    gamma: float = 0.0
    refused: str = ""
    note: str = ""


class Merit(msgspec.Struct, frozen=True, kw_only=True):
    """The three numbers of a point, None where they cannot be told; ``bound`` in ns; ``limit``
    names what sets it.

    ``alarming``: it took less than is possible, by more than ALARM and than intervals explain."""

    point: Point
    link: float | None = None
    bound: float | None = None
    share: float | None = None
    limit: str = ""
    model: float | None = None
    alarming: bool = False


def find_crossings(series: Sequence[Sequence[Point]]) -> list[Crossing]:
    """The sizes at which one series becomes faster than another of the same operation and of
    another implementation; each series has a point a size."""
    groups: dict[tuple[object, ...], list[Sequence[Point]]] = defaultdict(list)
    for points in filter(None, series):
        groups[comparison_key(points[0], sized=False)].append(points)
    crossings = []
    for group in groups.values():
        for first, other in itertools.combinations(group, 2):
            crossings += _find_crossings(first, other)
    return crossings


def _find_crossings(first: Sequence[Point], other: Sequence[Point]) -> list[Crossing]:
    """A change of places needs a size at which the one is surely faster, then one at which the
    other is."""
    at = {point.case.nbytes: point for point in other}
    ordered = sorted(first, key=lambda point: point.case.nbytes)
    pairs = [(p, at[p.case.nbytes]) for p in ordered if p.size and p.case.nbytes in at]
    signs = [
        (a.bounds[0] > b.bounds[1]) - (a.bounds[1] < b.bounds[0]) for a, b in pairs
    ]  # 1: the other is faster
    sure = [index for index, sign in enumerate(signs) if sign]
    crossings = []
    for start, end in itertools.pairwise(sure):
        if signs[start] != signs[end]:
            before, after = pairs[start] if signs[end] > 0 else pairs[start][::-1]
            between = pairs[start : end + 1]
            size = _meeting_size([(a.size, math.log(a.median / b.median)) for a, b in between])
            crossings.append(
                Crossing(
                    before=before, after=after, low=before.size, high=between[-1][0].size, size=size
                )
            )
    return crossings


def _meeting_size(logs: Sequence[tuple[int, float]]) -> float:
    """The first size at which the logarithm of a ratio is 0, where it is linear in that of the size
    in between."""
    (low, before), (high, after) = next(
        p for p in itertools.pairwise(logs) if p[0][1] * p[1][1] <= 0
    )
    return math.exp(math.log(low) + math.log(high / low) * before / ((before - after) or 1.0))


class Yardstick:
    """What points are measured against: sendrecv of the same run or, where that has none, of
    another one given that was recorded on the same machine since it was started, in the same
    manner."""

    def __init__(self, files: Sequence[RunFile], points: Sequence[Point]) -> None:
        self._homes = cache(lambda backend: _list_homes(files, backend))
        self._probes: dict[tuple[object, ...], dict[int, Point]] = {}
        probes = (point for point in points if point.case.collective == PROBE)
        for point in sorted(probes, key=_preference):
            sizes = self._probes.setdefault((point.run, *_wire_key(point.case)), {})
            sizes.setdefault(point.case.nbytes, point)
        self._constants: dict[tuple[object, ...], Constants] = {}
        self._wires = cache(lambda run: _Wires(files[run]))
        self._predictors: dict[tuple[object, ...], Predictor | None] = {}

    @property
    def constants(self) -> list[Constants]:
        """The constants of all links that were looked up so far."""
        return list(self._constants.values())

    def merit(self, point: Point) -> Merit:
        """The three numbers of ``point``."""
        probe = self.probe(point)
        link = None
        if probe and probe.busbw and point.busbw is not None:
            link = point.busbw * point.first.carried / probe.busbw
        point_link = self.link(point)
        if (
            point_link is None
            or point_link.alpha is None
            or point_link.beta is None
            or point.case.n < 2
            or math.isnan(point.moved)
        ):
            return Merit(point=point, link=link)
        least = point.case.row.bound(point.case.n)
        amounts = least.alpha, least.beta * point.moved, least.gamma * point.moved
        terms = dict(
            zip(
                LIMITS,
                map(mul, amounts, (point_link.alpha, point_link.beta, point_link.gamma)),
                strict=True,
            )
        )
        limit = max(terms, key=lambda name: terms[name])
        surely = max(map(mul, amounts, point_link.least))
        longest = point.bounds[1] if math.isfinite(point.bounds[1]) else point.median
        seconds = self._model(
            point, Link(point_link.alpha * 1e-9, point_link.beta * 1e-9, point_link.gamma * 1e-9)
        )
        return Merit(
            point=point,
            link=link,
            bound=terms[limit],
            share=terms[limit] / point.median,
            limit=limit,
            model=point.median / seconds if seconds else None,
            alarming=terms[limit] > ALARM * point.median and surely > longest,
        )

    def link(self, point: Point) -> Constants | None:
        """The constants of the link that ``point`` used; None without sendrecv on it."""
        for run in self._homes(point.case.backend)[point.run]:
            key = (run, *_wire_key(point.case))
            if key in self._probes and key not in self._constants:
                probe = min(self._probes[key].values(), key=_preference).case
                is_within = len(self._constants) < FITS
                self._constants[key] = _fit_constants(self._wires(run), run, probe, is_within)
            if key in self._constants:
                return self._constants[key]
        return None

    def probe(self, point: Point) -> Point | None:
        """The sendrecv of a point's size over the same wires, from the first run that has one; None
        without."""
        by_size = (
            self._probes.get((run, *_wire_key(point.case)), {})
            for run in self._homes(point.case.backend)[point.run]
        )
        return next(
            (
                by_size_of[point.case.nbytes]
                for by_size_of in by_size
                if point.case.nbytes in by_size_of
            ),
            None,
        )

    def _model(self, point: Point, link: Link) -> float | None:
        """Nanoseconds that the algorithm's schedule takes; None for a library's choice, of which
        nobody knows it."""
        case = point.case
        if case.algorithm == "native" or case.splits not in ("", "uniform"):
            return None
        key = (case.collective, case.algorithm, case.n, case.root, link)
        if key not in self._predictors:
            self._predictors[key] = _make_predictor(case, link)
        predictor = self._predictors[key]
        return predictor.seconds(point.size) * 1e9 if predictor else None


def _list_homes(files: Sequence[RunFile], backend: str) -> list[list[int]]:
    """Runs by run: itself, then the other runs of the same boot of the same machine, with the same
    software as far as ``backend`` uses it, timed in the same manner."""
    machines = [
        (
            environment.make_fingerprint(run.environment, {backend}),
            run.environment.get("boot_id") or number,
            *(getattr(run.policy, name) for name in (*MANNER, "cache")),
        )
        for number, run in enumerate(f.run for f in files)
    ]
    return [
        [
            run,
            *(
                other
                for other, machine_of in enumerate(machines)
                if other != run and machine_of == machine
            ),
        ]
        for run, machine in enumerate(machines)
    ]


def _wire_key(case: Case) -> tuple[object, ...]:
    return case.n, *fit.wire_key(case)


def _preference(point: Point) -> tuple[bool, float]:
    """The library's own sendrecv rather than a reference algorithm's, else the fastest."""
    return point.case.algorithm != "native", point.median


def _make_predictor(case: Case, link: Link) -> Predictor | None:
    """A predictor of the case's time over ``link``; None where the algorithm is unknown to this
    version, or counting its messages would take seconds."""
    try:
        predictor = Predictor(
            algorithms.find_variant(case.collective, case.algorithm),
            Network(link),
            case.n,
            max(0, case.root),
        )
        predictor.check([case.size], most=1.0)
    except CollbenchError:
        return None
    return predictor


class _Wires:
    """The records of a run by what they were measured over: collective, algorithm and _wire()."""

    def __init__(self, file: RunFile) -> None:
        self.file = file
        self.records: dict[tuple[object, ...], list[Record]] = defaultdict(list)
        for record in file.records:
            case = record.case
            self.records[case.collective, case.algorithm, *_wire_key(case)].append(record)

    def twins(self, probe: Case) -> dict[str, dict[str, Case]]:
        """Cases of both TWINS beside ``probe``, out of place and with times, by algorithm."""
        cases: dict[str, dict[str, Case]] = defaultdict(dict)
        for (collective, algorithm, *wire), records in self.records.items():
            if collective in TWINS and tuple(wire) == _wire_key(probe):
                timed = (r.case for r in records if r.times_ns and not r.case.in_place)
                if case := next(timed, None):
                    cases[str(algorithm)][str(collective)] = case
        return cases


def _fit_constants(wires: _Wires, run: int, probe: Case, is_wanted: bool) -> Constants:
    """Constants fitted to ``probe`` over its sizes: alpha at the smallest messages, beta at its
    best; not fitted unless ``is_wanted``."""
    constants = Constants(
        backend=probe.backend,
        ranks=probe.n,
        dtype=probe.dtype,
        mode=probe.mode,
        source=run,
        probe=probe,
    )
    if not is_wanted:
        return msgspec.structs.replace(
            constants, refused=f"only {FITS} links are fitted in a report; collbench fit does all"
        )
    series_fit = _fit_series(wires, probe)
    alpha = series_fit.segments[0].alpha if series_fit.segments else None
    betas = [segment.beta for segment in series_fit.segments if segment.beta]
    if series_fit.refused or alpha is None or not betas:
        return msgspec.structs.replace(
            constants, refused=series_fit.refused or "its constants cannot be told"
        )
    beta = min(betas, key=lambda estimate: estimate.value)
    gamma, surely, note = _fit_gamma(wires, probe)
    least = (alpha.lo, beta.lo, surely)
    return msgspec.structs.replace(
        constants, alpha=alpha.value, beta=beta.value, gamma=gamma, least=least, note=note
    )


def _fit_gamma(wires: _Wires, probe: Case) -> tuple[float, float, str]:
    """Gamma: by how much a byte of reduce_scatter takes longer than one of all_gather by the same
    algorithm; by how much at least; and why that is not known. A fitted beta is by the bytes that
    links carry, so the difference counts for as many as these are for each one that is reduced:
    two where Gloo runs an all_reduce."""
    why_missing = (
        "gamma is unknown and counts as 0: it takes reduce_scatter and all_gather of one algorithm"
        f" on {probe.backend}"
    )
    for _, cases in sorted(wires.twins(probe).items(), key=lambda item: item[0] == "native"):
        if len(cases) < len(TWINS):
            continue
        reduces, gathers = (_fit_series(wires, cases[name]) for name in TWINS)
        more, less = (
            (f.segments[-1].beta if f.segments and not f.refused else None)
            for f in (reduces, gathers)
        )
        if more is None or less is None:
            why_missing = f"gamma is unknown and counts as 0: {reduces.refused or gathers.refused}"
            continue
        if more.lo <= less.hi:
            return (
                0.0,
                0.0,
                "gamma counts as 0: reduce_scatter takes no surely longer than all_gather",
            )
        _, carried, reduced = reduces.counts
        share = carried / reduced
        return share * (more.value - less.value), share * (more.lo - less.hi), ""
    return 0.0, 0.0, why_missing


def _fit_series(wires: _Wires, like: Case) -> fit.Fit:
    """The series that ``like`` is of, fitted on its own, to at most SIZES of its sizes."""
    same = msgspec.structs.replace(like, nbytes=0, cycle=0)
    near = wires.records[like.collective, like.algorithm, *_wire_key(like)]
    fitting = [
        record for record in near if msgspec.structs.replace(record.case, nbytes=0, cycle=0) == same
    ]
    sizes = sorted({record.case.nbytes for record in fitting})
    chosen_sizes = {sizes[round(i * (len(sizes) - 1) / (SIZES - 1))] for i in range(SIZES) if sizes}
    fitting = [record for record in fitting if record.case.nbytes in chosen_sizes]
    if series := fit.make_series(msgspec.structs.replace(wires.file, records=fitting)):
        return fit.fit_series(series[0])
    return fit.Fit(case=like, model="", refused="it has no samples of its own")
