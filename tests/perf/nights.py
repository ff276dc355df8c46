"""How often the rules for nights err, beside the figures that they were chosen by in an earlier
form, and what a trend says of a step.

``python tests/perf/nights.py --output reports/nights.md`` takes minutes; ``--repeat .1`` a tenth of
the trials. All are seeded, with the Monte Carlo error beside each.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import watched
from factories import nights, swept
from watched import DELAYS, DOCUMENTED, QUIET, RULES, SETTINGS, Setting

from collbench.features.health.history.nights import Night, Series, launches_of, merge_nights
from collbench.features.health.history.outlook import make_outlook
from collbench.suite.case import Case

SHARED = 0.5  # of the variance of nights, by neighbouring rows
CHUNK = 100  # trials with a seed of their own, or all if there are fewer
COLLECTIVES, STEP, NIGHT, BAND = (
    ("all_reduce", "all_gather", "reduce_scatter"),
    0.05,
    40,
    (1 << 20, 8 << 20),
)


def shares(
    pool: ProcessPoolExecutor, setting: Setting, rule: str, trials: int
) -> tuple[float, float, float]:
    """The share flagged, its standard error, the median delay in nights."""
    chunk = min(CHUNK, trials)
    seeds = range(math.ceil(trials / chunk))
    work = (
        partial(watched.flagged, setting, RULES[rule]) if rule else partial(watched.agreed, setting)
    )
    found = [delay for each in pool.map(partial(_seeded, work, chunk), seeds) for delay in each]
    share = len(found) / (len(seeds) * chunk)
    error = math.sqrt(max(share * (1 - share), 1 / trials) / trials)
    return share, error, float(np.median(found)) if found else math.nan


def _seeded(work: partial[list[int]], chunk: int, seed: int) -> list[int]:
    return work(chunk, seed)


def table(pool: ProcessPoolExecutor, trials: int) -> Iterator[str]:
    """One line for each rule: what an earlier form of it was found to do, and what was found."""
    yield f"| rule | {' | '.join(map(worded, SETTINGS))} |"
    yield f"|---|{'---|' * len(SETTINGS)}"
    for rule in RULES:
        known = [f"{share:g}" for share in DOCUMENTED[rule][: len(QUIET)]]
        known += [
            f"{s:g} ({d})"
            for s, d in zip(DOCUMENTED[rule][len(QUIET) :], DELAYS[rule], strict=True)
        ]
        yield f"| {rule}, earlier rules | {' | '.join(known)} |"
        yield (
            f"| {rule}, found |"
            f" {' | '.join(cell(*shares(pool, one, rule, trials), one) for one in SETTINGS)} |"
        )
    for shared, which in ((0.0, "independent rows"), (SHARED, "rows with shared nights")):
        alike = (one._replace(shared=shared) for one in SETTINGS)
        agreed = [cell(*shares(pool, one, "", trials), one) for one in alike]
        yield f"| change points that two {which} agree on, found | {' | '.join(agreed)} |"
    yield ""
    yield (
        "Neighbouring rows of one machine have nights in common: *independent rows* share nothing,"
        f" *rows with shared nights* all odd nights and {SHARED:.0%} of the variance. Rows that"
        " share all of it are one row, as in the line of change points alone."
    )
    yield ""
    yield "Nights that resemble the one before (autocorrelation .5), and nothing happens: flagged"
    yield ""
    for setting in (Setting(0.01, rho=0.5), Setting(0.02, rho=0.5)):
        alone = shares(pool, setting, "change points, at least 3 nights", trials)
        pairs = (setting, setting._replace(shared=SHARED))
        found = [
            cell(*each, setting) for each in (alone, *(shares(pool, p, "", trials) for p in pairs))
        ]
        yield (
            f"- {worded(setting)}: by change points {found[0]}, where two independent rows must"
            f" agree {found[1]}, where two with shared nights {found[2]}"
        )


def worded(setting: Setting) -> str:
    what = f"+{setting.step:.0%} step" if setting.step else "no change"
    return f"{what}, σ={setting.sigma:.0%}"


def cell(share: float, error: float, delay: float, setting: Setting) -> str:
    return f"{share:.3f} ± {error:.3f}" + (f" ({delay:g})" if setting.step else "")


def band(seed: int, step: float = STEP) -> dict[str, object]:
    """60 nights of 27 rows with a step on night 40 in one band of sizes of one collective: what the
    trend says."""

    def level(case: Case, number: int) -> float:
        return (
            step
            if case.collective == COLLECTIVES[0]
            and BAND[0] <= case.nbytes <= BAND[1]
            and number >= NIGHT
            else 0.0
        )

    rows: dict[Case, list[Night]] = {}
    for file in nights(swept(*COLLECTIVES), 60, level, seed=seed):
        for case, launches in launches_of(file).items():
            rows.setdefault(case, []).extend(merge_nights(launches))
    found = make_outlook(
        "simulated",
        [Series(machine="simulated", case=case, nights=each) for case, each in rows.items()],
    )
    right = [
        shift
        for shift in found.changed
        if shift.collective == COLLECTIVES[0]
        and shift.delta > 0
        and all(BAND[0] <= size <= BAND[1] for size in shift.sizes)
    ]
    return {
        "named": len(right) == 1,
        "nothing else": len(found.changed) == len(right) and not found.creeping,
        "off": found.days.index(right[0].day) - NIGHT if right else None,
        "sizes": len(right[0].sizes) if right else 0,
        "delta": right[0].delta if right else math.nan,
    }


def steps(pool: ProcessPoolExecutor, trials: int) -> Iterator[str]:
    found = list(pool.map(band, range(trials), chunksize=4))
    good = [one for one in found if one["named"]]
    offs, sizes = (Counter(one[name] for one in good) for name in ("off", "sizes"))
    near = sum(number for off, number in offs.items() if abs(off) <= 3)  # type: ignore[arg-type]
    alone = sum(one["named"] and one["nothing else"] for one in found)
    yield (
        f"- one change is named, of that collective and of sizes of the band only: {len(good)} of"
        f" {trials}"
    )
    yield (
        f"- its night is within 3 of night {NIGHT}: {near} of {trials} (exactly that one:"
        f" {offs[0]})"
    )
    yield f"- nothing else is named, and no row that creeps: {alone} of {trials}"
    yield (
        "- of the 4 sizes, named:"
        f" {', '.join(f'{size} in {number}' for size, number in sorted(sizes.items()))}"
    )
    yield f"- by how much, median: {np.median([one['delta'] for one in good]):+.1%}"
    quiet = list(pool.map(partial(band, step=0.0), range(trials), chunksize=4))
    yield (
        f"- without a step, nothing is named: {sum(bool(one['nothing else']) for one in quiet)} of"
        f" {trials}"
    )


def report(repeat: float) -> Iterator[str]:
    trials, histories = math.ceil(2000 * repeat), math.ceil(300 * repeat)
    trials = math.ceil(trials / CHUNK) * CHUNK if trials > CHUNK else trials
    with ProcessPoolExecutor() as pool:
        yield "# Nights: how often the rules err\n"
        yield (
            f"{trials} trials each, seeded (`python tests/perf/nights.py`): 40 nights of history,"
            " then 15 more, of which a night takes 5 to 25 % longer with probability .05; the"
            " share of trials flagged within these 15 nights ± its standard error, in brackets the"
            " median delay in nights. τ is 3 %. Lines of *earlier rules* are what the rules were"
            " chosen by, in an earlier form of them and of these trials: the lines found need not"
            " agree with those.\n"
        )
        yield from table(pool, trials)
        yield (
            f"\n## A step of {STEP:.0%} on night {NIGHT} of 60, in {COLLECTIVES[0]} of 1 to 8 MiB\n"
        )
        yield (
            f"{histories} histories of 27 rows (3 collectives of 9 sizes), σ=1 %, odd nights as"
            " above, each row's of its own:\n"
        )
        yield from steps(pool, histories)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=float, default=1.0)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    lines = []
    for line in report(given.repeat):
        print(line, flush=True)
        lines.append(line)
    if given.output:
        given.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
