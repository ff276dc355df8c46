"""Launches as they scatter in the field, made up, and how often each design of a comparison errs on
them.

The figures that the protocol was chosen by; tests/pure reproduces them from few repetitions,
tests/perf/judging.py from as many as they were found with. Scatter is in log time: ``SIGMA``
between launches of one build.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from factories import experiment, sized
from scipy.stats import mannwhitneyu

from collbench.features.compare.comparison import Rules, compare_runs
from collbench.records import paired
from collbench.records.types import RunFile

SIGMA, NOISE, RHO, DRIFT, SAMPLES = 0.01, 0.02, 0.3, 0.003, 50
Scatter = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.normal(size=shape)


def heavy(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Student's t with 3 degrees of freedom, scaled to a standard deviation of 1."""
    return rng.standard_t(3, shape) / math.sqrt(3)


def launches(rng: np.random.Generator, number: int) -> np.ndarray:
    """Log times (launch, sample) in the order measured: each launch off by SIGMA, the machine on a
    random walk of DRIFT a launch, samples with NOISE that is autocorrelated."""
    noise = np.empty((number, SAMPLES))
    noise[:, 0] = rng.normal(size=number)
    for i in range(1, SAMPLES):
        noise[:, i] = RHO * noise[:, i - 1] + math.sqrt(1 - RHO**2) * rng.normal(size=number)
    walk = np.cumsum(rng.normal(0, DRIFT, number))
    return (SIGMA * rng.normal(size=number) + walk)[:, None] + NOISE * noise


def suspects(files: tuple[RunFile, RunFile], rules: Rules) -> list[str]:
    """Keys of the rows that are flagged by the first stage of an experiment under way."""
    judged = compare_runs(*files, rules, under_way=True).rows
    return [row.key for row in judged if row.verdict == "SUSPECT"]


def false_positives(runs: int, rounds: int) -> dict[str, float]:
    """Share of comparisons of two identical builds that find a difference at 5 %, by design of the
    comparison."""
    rng, found = np.random.default_rng(1), []
    for _ in range(runs):
        measured = launches(rng, 2 * rounds)
        first = 2 * np.arange(rounds) + rng.integers(0, 2, rounds)
        medians = np.median(measured, axis=1)
        base, head = measured[:rounds], measured[rounds:]
        found.append(
            (
                mannwhitneyu(measured[0], measured[1]).pvalue < 0.05,
                mannwhitneyu(base.ravel(), head.ravel()).pvalue < 0.05,
                paired.mann_whitney_p(medians[:rounds], medians[rounds:]) < 0.05,
                paired.signed_rank_p(medians[first] - medians[first ^ 1]) < 0.05,
            )
        )
    shares = np.mean(found, axis=0)
    return dict(
        zip(
            ("one launch each", "pooled", "one block after the other", "pairs"),
            map(float, shares),
            strict=True,
        )
    )


def coverage(runs: int, rounds: int, scatter: Scatter = normal, seed: int = 2) -> float:
    """Share of 95 % intervals that hold the truth."""
    rng = np.random.default_rng(seed)
    bounds = [paired.estimate_shift(changes)[1:3] for changes in scatter(rng, (runs, rounds))]
    return float(np.mean([lo <= 0 <= hi for lo, hi in bounds]))


def power(runs: int, rounds: int, change: float, seed: int = 3) -> float:
    """Share of experiments that find a change of so many SIGMA at 5 %."""
    rng = np.random.default_rng(seed)
    changes = change + math.sqrt(2) * rng.normal(size=(runs, rounds))
    return float(np.mean([paired.estimate_shift(row).lo > 0 for row in changes]))


def pull_request(
    seed: int, scatter: Scatter = normal, sigma: float = 0.02, rows: int = 100
) -> dict[str, float]:
    """A whole comparison in two stages, of which 5 rows are truly 8 % slower: 8 rounds, 12 more for
    what they flag.

    ``false`` rows are unchanged ones called REGRESSED, ``found`` the share of slower rows that are,
    ``same`` the share of unchanged rows called SAME and ``within`` of those whose interval lies
    within what matters (some are SMALL), and ``uncorrected`` the unchanged rows that the first
    stage's intervals call slower.
    """
    rng = np.random.default_rng([4, seed])
    keys = sized(rows)
    slower = {case.key for case in keys[:5]}
    true = np.array([0.08 if case.key in slower else 0.0 for case in keys])

    def rounds(number: int) -> dict[object, list[tuple[float, float]]]:
        logs = sigma * scatter(rng, (rows, number, 2))
        logs[:, :, 1] += np.log1p(true)[:, None]
        return {
            case: [(float(b), float(h)) for b, h in 1e6 * np.exp(logs[i])]
            for i, case in enumerate(keys)
        }

    first, rules = rounds(8), Rules(tau=0.05)
    flagged = set(suspects(experiment(first), rules))
    judged = compare_runs(
        *experiment(first, {case: r for case, r in rounds(12).items() if case.key in flagged}),
        rules,
    )
    verdicts = {row.key: row.verdict for row in judged.rows}
    within = [row.lo > -0.05 and row.hi < 0.05 for row in judged.rows if row.key not in slower]
    unchanged = [key for key in verdicts if key not in slower]
    early = [
        paired.estimate_shift([math.log(h / b) for b, h in row]).lo > 0
        for row in list(first.values())[5:]
    ]
    return {
        "false": sum(verdicts[key] == "REGRESSED" for key in unchanged),
        "found": sum(verdicts[key] == "REGRESSED" for key in slower) / len(slower),
        "same": sum(verdicts[key] == "SAME" for key in unchanged) / len(unchanged),
        "within": sum(within) / len(unchanged),
        "uncorrected": sum(early),
    }
