"""How often each rule of watching flags nights in which nothing happened, or a step that did
happen: the figures that the rules were chosen by. tests/pure reproduces them from few trials,
tests/perf/nights.py from as many as one likes.

A trial is 40 nights of history, then 15 with the step in them, night by night; see planted.scatter
for how nights vary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from factories import scatter

from collbench.features.health.history.gates import confirm_reruns, gate_night
from collbench.features.health.history.levels import find_changes
from collbench.features.health.history.shifts import APART

HISTORY, NIGHTS, TAU = 40, 15, 0.03
NEAR = 3  # nights before the step that a change may be placed at


class Setting(NamedTuple):
    """Scatter from night to night, the step as a share, how much of a night's scatter the next
    one keeps, and the share of its variance that neighbouring rows have in common: above 0 they
    have all odd nights in common, too."""

    sigma: float
    step: float = 0.0
    rho: float = 0.0
    shared: float = 0.0


QUIET = (Setting(0.01), Setting(0.02))
STEPS = (Setting(0.01, 0.05), Setting(0.02, 0.05), Setting(0.02, 0.10))
SETTINGS = (*QUIET, *STEPS)
Rule = Callable[
    [np.ndarray, np.ndarray], bool
]  # of all nights up to tonight, and three launches more of tonight


def fixed(nights: np.ndarray, _: np.ndarray) -> bool:
    return bool(np.exp(nights[-1]) > 1.10 * np.mean(np.exp(nights[:HISTORY])))


def odd(nights: np.ndarray, _: np.ndarray) -> bool:
    return gate_night(nights[:-1].tolist(), float(nights[-1]), TAU).state == "candidate"


def confirmed(nights: np.ndarray, again: np.ndarray) -> bool:
    return (
        odd(nights, again)
        and confirm_reruns(nights[:-1].tolist(), again.tolist(), TAU).state == "alarm"
    )


def stepped(nights: np.ndarray, _: np.ndarray) -> bool:
    return bool(steps(nights))


def steps(nights: np.ndarray) -> list[int]:
    """Where changes to the slower were found that are none of the history."""
    return [
        one.position
        for one in find_changes(nights.tolist(), TAU)
        if one.position >= HISTORY - NEAR and one.delta > 0
    ]


RULES: dict[str, Rule] = {
    "+10 % over the mean of the history": fixed,
    "robust z > 4, one night": odd,
    "robust z and 3 launches more": confirmed,
    "change points, at least 3 nights": stepped,
}
# Shares flagged, in the order of SETTINGS, by the rules as they were when they were chosen
DOCUMENTED: dict[str, Sequence[float]] = {
    "+10 % over the mean of the history": (0.40, 0.41, 0.61, 0.47, 0.99),
    "robust z > 4, one night": (0.61, 0.46, 0.98, 0.62, 0.93),
    "robust z and 3 launches more": (0.012, 0.003, 0.93, 0.16, 0.90),
    "change points, at least 3 nights": (0.05, 0.07, 0.74, 0.78, 0.98),
}
DELAYS: dict[str, Sequence[int]] = {  # median nights until flagged, of STEPS
    "+10 % over the mean of the history": (5, 7, 2),
    "robust z > 4, one night": (1, 3, 1),
    "robust z and 3 launches more": (1, 2, 1),
    "change points, at least 3 nights": (4, 4, 3),
}


def row(rng: np.random.Generator, setting: Setting) -> np.ndarray:
    """A row's nights; with ``rho`` their common part is autoregressive."""
    nights = scatter(rng, HISTORY + NIGHTS, setting.sigma)
    if setting.rho:
        nights = noise(rng, setting.sigma, setting.rho) + scatter(rng, len(nights), 0.0)
    nights[HISTORY:] += math.log1p(setting.step)
    return nights


def noise(rng: np.random.Generator, sigma: float, rho: float) -> np.ndarray:
    """The scatter of a row's nights alone, without odd ones."""
    values = rng.normal(0, sigma, HISTORY + NIGHTS)
    for place in range(1, len(values)) if rho else ():
        values[place] = rho * values[place - 1] + math.sqrt(1 - rho**2) * values[place]
    return values


def neighbours(rng: np.random.Generator, setting: Setting) -> list[np.ndarray]:
    """Nights of two neighbouring rows."""
    if not setting.shared:
        return [row(rng, setting), row(rng, setting)]
    common = row(rng, setting._replace(sigma=setting.sigma * math.sqrt(setting.shared)))
    own = setting.sigma * math.sqrt(1 - setting.shared)
    return [common + noise(rng, own, setting.rho) for _ in range(2)]


def flagged(setting: Setting, rule: Rule, trials: int, seed: int = 1) -> list[int]:
    """After how many nights each trial was flagged, those only that were."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(trials):
        nights = row(rng, setting)
        again = np.array([scatter(rng, 3, setting.sigma) for _ in range(NIGHTS)]) + math.log1p(
            setting.step
        )
        judged = (
            night for night in range(NIGHTS) if rule(nights[: HISTORY + night + 1], again[night])
        )
        found += [night + 1 for night in judged][:1]
    return found


def agreed(setting: Setting, trials: int, seed: int = 2) -> list[int]:
    """As ``flagged``, of two neighbouring rows that must agree within APART nights."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(trials):
        rows = neighbours(rng, setting)
        for night in range(NIGHTS):
            one, other = (steps(nights[: HISTORY + night + 1]) for nights in rows)
            if any(abs(a - b) <= APART for a in one for b in other):
                found.append(night + 1)
                break
    return found
