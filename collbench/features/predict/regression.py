"""Robust regression in relative error: times as a sum of columns with constants that cannot be
negative.

Minimised is the sum of rho(ln T - ln model), rho being soft-L1, so that neither large times nor odd
ones rule.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FEWEST, SEGMENTS = 4, 4  # points in a segment; segments in a series

MOST_ENDS = 48  # sizes at which a segment may end: all ways between them are tried

VAGUE = (
    0.25  # standard error of a logarithm from which on a constant is not known: about ±50 % at 95 %
)


class Solution(NamedTuple):
    """Constants (…, columns), costs (…) and the model's times (…, points)."""

    constants: Floats
    cost: Floats
    times: Floats


def solve_constants(
    design: Floats,
    times: Floats,
    scale: Floats,
    weights: Floats | None = None,
    start: Floats | None = None,
) -> Solution:
    """Constants c >= 0 that minimise ``sum w (sqrt(1 + r^2) - 1)``, r = ln(times / (design @ c)) /
    scale.

    ``times`` (…, points) may be many data sets at once, ``weights`` too. By Levenberg and
    Marquardt's method over logarithms of c, with weights for the robust loss renewed in each round;
    constants that no longer move are left as they are while others still do.
    """
    sets, points = times.shape[:-1], times.shape[-1]
    times = times.reshape(-1, points)
    weights = np.ones_like(times) if weights is None else weights.reshape(-1, points)
    if start is None:  # what each column could explain at most, alone
        ratios = times[..., None] / np.maximum(design, 1e-30)
        start = np.where(weights[..., None] > 0, ratios, np.inf).min(-2)
    theta = np.broadcast_to(np.log(start), (len(times), design.shape[1])).copy()
    damping = np.full(len(times), 1e-3)
    cost, residuals, model = _cost_and_gradient(design, theta, times, scale, weights)
    eye = np.eye(design.shape[1])
    still = np.arange(len(times))  # the data sets whose constants still move
    for _ in range(100):
        off, weight = residuals[still], weights[still]
        jacobian = design * np.exp(theta[still])[:, None, :] / (model[still] * scale)[..., None]
        weighted = jacobian * (weight / np.sqrt(1 + off**2))[..., None]
        normal = np.swapaxes(jacobian, -1, -2) @ weighted
        diagonal = np.einsum("...ii->...i", normal)
        damped = normal + eye * (damping[still, None] * diagonal + 1e-12)[..., None]
        slope = np.einsum("...ij,...i->...j", weighted, off)
        move = np.clip(np.linalg.solve(damped, slope[..., None])[..., 0], -2, 2)
        ahead = theta[still] + move
        after, *there = _cost_and_gradient(design, ahead, times[still], scale, weight)
        was = cost[still]
        gain = was - after
        better = gain >= 0
        for known, new in zip((theta, cost, residuals, model), (ahead, after, *there), strict=True):
            known[still[better]] = new[better]
        damping[still] = np.where(better, damping[still] / 5, damping[still] * 4)
        rests = (np.abs(move).max(-1) < 1e-6) | (damping[still] > 1e9)
        if (rests | (gain < 1e-9 * (1 + was)) & better).all():
            break
        still = still[~rests]
    constants = np.exp(theta).reshape(*sets, -1)
    return Solution(constants, cost.reshape(sets), model.reshape(*sets, points))


def _cost_and_gradient(
    design: Floats, theta: Floats, times: Floats, scale: Floats, weights: Floats
) -> tuple[Floats, Floats, Floats]:
    model = np.exp(theta) @ design.T
    residuals = np.log(times / model) / scale
    return (weights * (np.sqrt(1 + residuals**2) - 1)).sum(-1), residuals, model


def cut_segments(sizes: Floats, times: Floats, scale: Floats) -> list[slice]:
    """Segments of sorted sizes, of FEWEST points or more, that minimise ``2 cost + (3 K - 1) ln N``
    for K of them.

    Sizes may scatter more than samples tell: the scale is raised to what even the finest segments
    leave unexplained.
    """
    n, columns = len(sizes), line_columns(sizes)
    finest = _list_segmentations(sizes, times, scale)[max(1, min(SEGMENTS, n // FEWEST))][1]
    rest = [
        np.log(times[part] / solve_constants(columns[part], times[part], scale[part]).times)
        for part in finest
    ]
    free = max(1, n - 3 * len(finest) + 1)
    scatter = 1.4826 * float(np.median(np.abs(np.concatenate(rest)))) * math.sqrt(n / free)
    ways = _list_segmentations(sizes, times, np.maximum(scale, scatter))
    return min((2 * cost + (3 * k - 1) * math.log(n), parts) for k, (cost, parts) in ways.items())[
        1
    ]


def _list_segmentations(
    sizes: Floats, times: Floats, scale: Floats
) -> dict[int, tuple[float, list[slice]]]:
    """The cheapest by number of segments, with its cost; of more than MOST_ENDS sizes they begin
    and end at so many of them, evenly spread."""
    n = len(sizes)
    ends = np.unique(np.linspace(0, n, min(n, MOST_ENDS) + 1).round().astype(int)).tolist()
    spans = [(i, j) for i in ends for j in ends if j - i >= FEWEST]
    inside = np.array([(np.arange(n) >= i) & (np.arange(n) < j) for i, j in spans], float)
    costs = solve_constants(
        line_columns(sizes), np.broadcast_to(times, inside.shape), scale, inside
    ).cost
    ending: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (i, j), cost in zip(spans, costs.tolist(), strict=True):
        ending[j].append((i, cost))
    best: dict[tuple[int, int], tuple[float, list[slice]]] = {
        (0, 0): (0.0, [])
    }  # by segments used, points covered
    for k in range(1, SEGMENTS + 1):
        for j in ends:
            ways = [(best[k - 1, i][0] + cost, i) for i, cost in ending[j] if (k - 1, i) in best]
            if ways:
                least, i = min(ways)
                best[k, j] = least, [*best[k - 1, i][1], slice(i, j)]
    return {k: best[k, n] for k in range(1, SEGMENTS + 1) if (k, n) in best}


def line_columns(sizes: Floats) -> Floats:
    """Columns of a straight line: 1 and size."""
    return np.stack([np.ones_like(sizes), sizes], axis=1)


def condition_number(design: Floats, times: Floats) -> float:
    """The condition number of the columns in relative weights, each scaled to length 1; infinite
    where one is empty."""
    relative = design / times[:, None]
    lengths = np.linalg.norm(relative, axis=0)
    return float(np.linalg.cond(relative / lengths)) if (lengths > 0).all() else math.inf


def find_known(design: Floats, times: Floats, solution: Solution) -> npt.NDArray[np.bool_]:
    """Which constants the points tell: those whose logarithms' standard errors are below VAGUE."""
    relative = design * solution.constants / solution.times[:, None]
    spread = max(0.01, 1.4826 * float(np.median(np.abs(np.log(times / solution.times)))))
    errors = np.linalg.inv(relative.T @ relative + 1e-15 * np.eye(design.shape[1])).diagonal()
    return np.asarray(spread * np.sqrt(np.abs(errors)) < VAGUE)


def bound_by_factors(
    design: Floats, times: Floats, scale: Floats, solution: Solution, owner: npt.NDArray[np.int_]
) -> Floats:
    """By how much each constant's logarithm may be off either way, 95 % sure, if all times of an
    ``owner`` are so many times the model's. These factors scatter as the mean residuals of owners
    show, of which the fit took a part (method of moments); Student's quantile has Satterthwaite's
    degrees of freedom."""
    from scipy.special import stdtrit

    relative = design * solution.constants / solution.times[:, None]
    residuals = np.log(times / solution.times)
    weights = 1 / (scale**2 * np.sqrt(1 + (residuals / scale) ** 2))
    owned = (owner[:, None] == np.arange(owner.max() + 1)).astype(float)
    averaging = (owned * weights[:, None]).T / (weights @ owned)[:, None]
    normal = relative.T @ (relative * weights[:, None]) + 1e-15 * np.eye(design.shape[1])
    moves = np.linalg.solve(normal, relative.T @ (owned * weights[:, None]))  # constants by factors
    remaining = averaging @ (owned - relative @ moves)  # mean residuals by factors
    share = max(1e-9, float((remaining**2).sum()))
    variance = float(((averaging @ residuals) ** 2).sum()) / share
    freedom = share**2 / max(1e-18, float(((remaining.T @ remaining) ** 2).sum()))
    errors = np.sqrt(variance * (moves**2).sum(1))
    return np.asarray(float(stdtrit(max(1.0, freedom), 0.975)) * errors)
