"""What loss a table of expected bandwidths would find, and how often: its operating characteristic.

A loss is a share of busbw that all rows lose. A node's margin in a row is by how much, as a
logarithm, its busbw is above the limit, by the median over so many of its launches: a loss of x is
found where the margin is below -ln(1 - x), and in any row where the smallest of its margins is.
So one distribution of margins says all.

It is counted: over nodes, and in each over the sets of launches that a night may have, without
replacement (a U-statistic, Hoeffding 1948). Its interval is Clopper and Pearson's for as many
trials as there are nodes, which is too wide rather than too narrow. Beside it stands what normal
margins of the same mean and scatter come to, with the interval that follows from how little so few
nodes say of both: it reaches into tails where nothing can be counted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from collbench.core.errors import NoVerdict, UsageError
from collbench.features.health.checks.curves import Curve
from collbench.features.health.checks.expectations import expect_case
from collbench.features.health.checks.table import GRAVE
from collbench.features.health.expect.nodes import Node, Outlier, find_outliers, spread_of
from collbench.features.health.findings import Severity
from collbench.features.health.night import LAUNCHES
from collbench.records import stats
from collbench.records.stats import Floats
from collbench.suite.case import Case

LOSSES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.10, 0.15, 0.20, 0.30, 0.50)

MAX_SETS = 200  # of launches of a node that are looked at

TINY = 1e-9  # the least scatter, where all times are the same

DRAWS = 4000  # of mean and scatter, for the interval of normal margins

DETECTED = 0.9  # how often the loss that is named for a row is found

Key = tuple[str, int]  # of a launch: its run and cycle


class NodeRow(NamedTuple):
    """A row of a node: its limit as ns a call, and what its launches took; ``busbw`` and ``limit``
    in GB/s."""

    limit_ns: float
    times: Mapping[Key, float]
    busbw: float
    limit: float


class Normal(NamedTuple):
    """Margins as normal values: their mean over so many ``nodes``, and their scatter, which is
    known with so many degrees of ``freedom``."""

    mean: float
    scatter: float
    freedom: int
    nodes: int

    def draw(self) -> tuple[Floats, Floats]:
        """Means and scatters that would fit as well, DRAWS of them from a fixed seed."""
        rng = np.random.default_rng(40)
        scatters = self.scatter * np.sqrt(self.freedom / rng.chisquare(self.freedom, DRAWS))
        return self.mean + scatters * rng.normal(size=DRAWS) / math.sqrt(self.nodes), scatters


class Chance(NamedTuple):
    """How often a loss is found: counted, with its 95 % interval; and for normal margins."""

    loss: float
    counted: float
    lo: float
    hi: float
    normal: float
    normal_lo: float
    normal_hi: float


class RowPower(NamedTuple):
    """A row: its limit and the usual busbw in GB/s; and for normal margins: their scatter, how
    often it fails without a loss, and the loss that it finds DETECTED of the time."""

    case: Case
    limit: float
    busbw: float
    scatter: float
    alarms: float
    detected: float


class Power(NamedTuple):
    """The operating characteristic of a table. ``launches`` are those of a night. ``outliers`` are
    nodes that are left out. ``severities`` are those of the curves that count."""

    chances: list[Chance]
    rows: list[RowPower]
    nodes: int
    launches: int
    outliers: list[Outlier]
    severities: tuple[Severity, ...]

    @property
    def has_nodes(self) -> bool:
        """Whether the scatter between nodes is in it, too."""
        return self.nodes > 1


def find_power(
    curves: Sequence[Curve],
    nodes: Sequence[Node],
    launches: int | None = None,
    losses: Sequence[float] = LOSSES,
) -> Power:
    """The power of a table by what these nodes took, for a night of so many ``launches``, by
    default as many as the smallest run has. Raises NoVerdict where no row of any node has a limit,
    and UsageError for more launches than there are."""
    severities: tuple[Severity, ...] = GRAVE
    rows = {node.name: select_rows(curves, node, GRAVE) for node in nodes}
    if not any(rows.values()):
        severities = ("hint",)
        rows = {node.name: select_rows(curves, node, severities) for node in nodes}
    rows = {name: by_case for name, by_case in rows.items() if by_case}
    if not rows:
        raise NoVerdict(
            f"no row of {LAUNCHES} launches is of machine, collective and size of a curve",
            "collbench expect show FILE lists the curves",
        )
    most = min(len(list_launches(by_case.values())) for by_case in rows.values())
    if launches is not None and launches > most:
        raise UsageError(
            f"--launches {launches}: a run has {most}", f"give at most {most}, or longer runs"
        )
    count = launches or most
    margins = {name: sample_margins(by_case.values(), count) for name, by_case in rows.items()}
    outliers = [
        outlier
        for outlier in find_outliers({name: float(np.median(m)) for name, m in margins.items()})
        if outlier.z < 0
    ]
    for outlier in outliers:
        del margins[outlier.node], rows[outlier.node]
    samples = [of for of in margins.values() if np.isfinite(of).any()]
    chances = trace_chances(samples, normal_margin([*rows.values()], samples, count), losses)
    cases = dict.fromkeys(case for by_case in rows.values() for case in by_case)
    powers = [
        _find_row_power(case, [{case: of[case]} for of in rows.values() if case in of], count)
        for case in cases
    ]
    return Power(chances, powers, len(rows), count, outliers, severities)


def select_rows(
    curves: Sequence[Curve], node: Node, severities: Sequence[Severity]
) -> dict[Case, NodeRow]:
    """The node's rows that have a busbw and a limit of these severities, each with the
    strictest."""
    relevant = [
        curve
        for curve in curves
        if curve.severity in severities and node.machine.is_subject_of(curve)
    ]
    rows = {}
    for timing in node.night.fit:
        rivals = expect_case(relevant, node.chose, timing.case, node.machine.shapes)
        work = timing.moved * timing.case.row.busbw(timing.case.n)
        if not rivals or math.isnan(work):
            continue
        limit = max(expected.limit for severity in rivals for expected in severity)
        rows[timing.case] = NodeRow(work / limit, timing.by_cycle, work / timing.median, limit)
    return rows


def list_launches(rows: Collection[NodeRow]) -> list[Key]:
    """The launches of any row."""
    return sorted({key for row in rows for key in row.times})


def sample_margins(rows: Collection[NodeRow], count: int) -> Floats:
    """A node's smallest margin over rows, for each set of ``count`` of its launches. Rows that keep
    fewer than LAUNCHES of a set are not judged by it; where none is, the margin is infinite."""
    keys = list_launches(rows)
    return np.array(
        [
            min((_find_margin(row, chosen) for row in rows), default=math.inf)
            for chosen in _choose_sets(keys, min(count, len(keys)))
        ]
    )


def _choose_sets(keys: Sequence[Key], count: int) -> list[tuple[Key, ...]]:
    """All sets of so many launches, or MAX_SETS of them, drawn from a fixed seed."""
    if math.comb(len(keys), count) <= MAX_SETS:
        return [*itertools.combinations(keys, count)]
    rng = np.random.default_rng(40)
    drawn = (rng.choice(len(keys), count, replace=False) for _ in range(MAX_SETS))
    return [tuple(keys[int(at)] for at in places) for places in drawn]


def _find_margin(row: NodeRow, chosen: Sequence[Key]) -> float:
    times = [row.times[key] for key in chosen if key in row.times]
    if len(times) < min(LAUNCHES, len(chosen)):
        return math.inf
    return math.log(row.limit_ns / stats.median(times))


def normal_margin(
    nodes: Sequence[Mapping[Case, NodeRow]], samples: Sequence[Floats], count: int
) -> Normal:
    """Mean and scatter of the margins of a night of one node: by all nodes; of a single one by its
    launches alone, whose median scatters less than they do."""
    finite = [margins[np.isfinite(margins)] for margins in samples]
    means = [float(margins.mean()) for margins in finite]
    if len(samples) > 1:
        inside = float(np.mean([margins.var() for margins in finite]))
        scatter = max(TINY, math.sqrt(float(np.var(means, ddof=1)) + inside))
        return Normal(float(np.mean(means)), scatter, len(samples) - 1, len(samples))
    rows = [*nodes[0].values()]
    singles = sample_margins(rows, 1)
    singles = singles[np.isfinite(singles)]
    # within 1 % of what the median of normal values has, for any number of them
    narrower = math.sqrt(1 / (1 + 2 * (count - 1) / math.pi))
    scatter = spread_of([*singles]) * narrower
    return Normal(means[0], max(TINY, scatter), len(singles) - 1, 1)


def trace_chances(
    samples: Sequence[Floats], normal: Normal, losses: Sequence[float]
) -> list[Chance]:
    """How often each loss is found on one node, by each node's margins."""
    from scipy.stats import norm

    drawn = normal.draw()
    chances = []
    for loss in losses:
        at = -math.log1p(-loss)
        counted = float(np.mean([np.mean(margins < at) for margins in samples]))
        lo, hi = bound_share(counted, len(samples))
        likely = float(norm.cdf((at - normal.mean) / normal.scatter))
        spread = norm.cdf((at - drawn[0]) / drawn[1])
        below, above = (float(value) for value in np.quantile(spread, (0.025, 0.975)))
        chances.append(Chance(loss, counted, lo, hi, likely, below, above))
    return chances


def bound_share(share: float, trials: int) -> tuple[float, float]:
    """Clopper and Pearson's 95 % interval of a share of so many trials, which need not be whole."""
    from scipy.stats import beta

    hits = share * trials
    lo = float(beta.ppf(0.025, hits, trials - hits + 1)) if hits > 0 else 0.0
    hi = float(beta.ppf(0.975, hits + 1, trials - hits)) if hits < trials else 1.0
    return lo, hi


def _find_row_power(case: Case, nodes: Sequence[Mapping[Case, NodeRow]], count: int) -> RowPower:
    """What a row alone finds, over the nodes that have it."""
    from scipy.stats import norm

    rows = [node[case] for node in nodes]
    samples = [sample_margins([row], count) for row in rows]
    normal = normal_margin(nodes, [of for of in samples if np.isfinite(of).any()], count)
    alarms = float(norm.cdf(-normal.mean / normal.scatter))
    margin = normal.mean + float(norm.ppf(DETECTED)) * normal.scatter
    detected = -math.expm1(-margin) if margin > 0 else 0.0
    limit, busbw = stats.median([row.limit for row in rows]), stats.median([r.busbw for r in rows])
    return RowPower(case, limit, busbw, normal.scatter, alarms, detected)
