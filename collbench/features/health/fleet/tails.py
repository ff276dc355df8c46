"""How far the nodes of a healthy fleet lie apart, and how surely a node lies farther: the tail of
the bulk, fitted without those it is to judge.

Values are logarithms, so that a difference is a relative change. Student's t is fitted for some
shapes by censored maximum likelihood: of the slowest CENSORED part it is only known that it is
slower, so that up to that many slow nodes change nothing, and of the rest the shape says how heavy
tails are. Chances are those of all shapes together, weighed by their likelihood and a prior, so
that few nodes, which do not know their tails, accuse nobody by a lucky guess; and as few nodes know
their scale badly, so many degrees of freedom are left. The slower half is fitted by itself, too, as
times are skewed, and the larger scale counts.

Only the scale is the slower half's own, not the shape, so a slow side that is heavier than the
whole says is underrated. Of 4,000 simulated healthy fleets of 8 nodes, with deviations of 0.02
times a lognormal of sigma 0.8, 45 accused a node in all rows (2,006 were judged), and 39 of 4,000
of 40 nodes (708 were judged), where at most 2 of each were to be expected
(tests/perf/fleet_skew.py).

Sources: Lange, Little & Taylor 1989 (t in place of the normal distribution); Cohen 1959
(censoring).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from collbench.records import stats
from collbench.records.stats import Floats

CENSORED = 0.05  # share of nodes, the slowest, that are not fitted; one at least

FLOOR = 0.002  # the least scatter assumed between nodes

SHAPES = (
    2.0,
    2.5,
    3.0,
    4.0,
    5.0,
    7.0,
    10.0,
    15.0,
    30.0,
    100.0,
)  # degrees of freedom that are tried

LEAST_WEIGHT = 1e-6  # of a shape that is not left out

PRIOR, WIDTH = 15.0, 0.5  # degrees of freedom expected, and how surely, in their logarithm


class Shape(NamedTuple):
    """A t distribution that the bulk may have, with its weight among those tried."""

    weight: float
    scale: float
    freedom: float


class Tail(NamedTuple):
    """The bulk of a fleet: its median, and the shapes that it may have."""

    center: float
    shapes: tuple[Shape, ...]

    @property
    def scale(self) -> float:
        """The mean scale of the shapes, by their weights."""
        return sum(shape.weight * shape.scale for shape in self.shapes)

    def chance(self, values: Floats) -> Floats:
        """The chance of each value, or of a slower one, in a healthy node."""
        off = values - self.center
        chances = [
            shape.weight * special.stdtr(shape.freedom, -off / shape.scale) for shape in self.shapes
        ]
        return np.asarray(np.sum(chances, axis=0), dtype=float)

    def limit(self, chance: float) -> float:
        """The value that a healthy node exceeds with this chance."""
        most = max(
            -shape.scale * float(special.stdtrit(shape.freedom, chance)) for shape in self.shapes
        )

        def excess(off: float) -> float:
            return float(self.chance(np.array([self.center + off]))[0]) - chance

        return self.center + float(optimize.brentq(excess, 0.0, 2 * most))


def fit_tail(values: Floats) -> Tail:
    """The bulk of the nodes' values, of which there are at least four."""
    center = stats.median(values)
    off = np.sort(values - center)
    censored = math.ceil(CENSORED * len(off))
    bulk, cut = off[: len(off) - censored], float(off[len(off) - censored - 1])
    rough = max(1.4826 * stats.mad(values), FLOOR)
    fits = []
    for shape in SHAPES:
        scale, likelihood = _fit_scale(bulk, censored, cut, rough, shape)
        prior = -0.5 * (math.log(shape / PRIOR) / WIDTH) ** 2
        fits.append((shape, scale, likelihood + prior))
    best = max(weight for _, _, weight in fits)
    weighed = [(shape, scale, math.exp(weight - best)) for shape, scale, weight in fits]
    total = sum(weight for _, _, weight in weighed)
    shapes = []
    for shape, scale, weight in weighed:
        if weight > LEAST_WEIGHT * total:
            upper, _ = _fit_scale(bulk[bulk >= 0], censored, cut, rough, shape)
            freedom = 1 / (1 / shape + 1 / len(values))
            shapes.append(Shape(weight / total, max(scale, upper, FLOOR), freedom))
    return Tail(center, tuple(shapes))


def _fit_scale(
    bulk: Floats, censored: int, cut: float, rough: float, shape: float
) -> tuple[float, float]:
    """The scale with the greatest likelihood for this shape, and its logarithm."""
    squares = bulk**2

    def cost(log_scale: float) -> float:
        scale = math.exp(log_scale)
        body = float(np.log1p(squares / (shape * scale**2)).sum())
        cost = len(bulk) * (log_scale - _log_constant(shape)) + (shape + 1) / 2 * body
        if censored:
            beyond = float(special.stdtr(shape, -cut / scale))
            cost -= censored * math.log(max(beyond, stats.TINY))
        return cost

    middle = math.log(rough)
    best = optimize.minimize_scalar(
        cost, bounds=(middle - 4, middle + 4), method="bounded", options={"xatol": 3e-3}
    )
    return math.exp(best.x), -float(best.fun)


@lru_cache(maxsize=64)
def _log_constant(shape: float) -> float:
    """The logarithm of the density at 0, of scale 1."""
    return float(
        special.gammaln((shape + 1) / 2)
        - special.gammaln(shape / 2)
        - 0.5 * math.log(shape * math.pi)
    )
