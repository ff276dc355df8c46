"""How often guidelines are called missed on nights that are well, and how surely a breach is found:
seeded nights.

``python tests/perf/guidelines.py --output reports/guidelines.md``

A night has suite nightly's rows. Launch medians scatter by sigma, of each row's own by a factor
exp(N(0, .5)) where rows are unlike. False: times as alpha + beta n, which meet every guideline. At
the limit: 30 claims whose sides take just as long as is granted, the worst that is still sound.
Found: one of them is beyond that by so much.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from factories import case, nightly, timings

from collbench.features.health.checks.guidelines import (
    ALPHA,
    Claim,
    claim_composition,
    claim_link,
    claim_monotony,
    claim_split,
    find_missed,
)

CHECKS = (claim_monotony, claim_split, claim_composition, claim_link)
CLAIMS = 30


def scatter(rng: np.random.Generator, rows: int, sigma: float, unlike: bool) -> list[float]:
    return [sigma * float(np.exp(rng.normal(0, 0.5 * unlike))) for _ in range(rows)]


def well(nights: int, launches: int, sigma: float, unlike: bool) -> int:
    """Nights on which any check finds anything."""
    rng, rows = np.random.default_rng(1), nightly()
    found = 0
    for _ in range(nights):
        night = timings(rng, rows, launches, scatter(rng, len(rows), sigma, unlike))
        found += any(find_missed(check(night)) for check in CHECKS)  # type: ignore[arg-type]
    return found


def edge(nights: int, launches: int, sigma: float, unlike: bool, breach: float = 0.0) -> int:
    """Nights on which one check finds a claim missed; with ``breach``, the one that is."""
    rng = np.random.default_rng(2)
    lefts, rights = ([case(4 * (i + base)) for i in range(CLAIMS)] for base in (1, 1000))
    found = 0
    for _ in range(nights):
        sides = [
            timings(rng, rows, launches, scatter(rng, CLAIMS, sigma, unlike), lambda _: 1e6).fit
            for rows in (lefts, rights)
        ]
        claims = [Claim(left, (right,), 1.0, "") for left, right in zip(*sides, strict=True)]
        claims[0] = claims[0]._replace(factor=1 / (1 + breach))
        hits = {one.claim.timing.case for one in find_missed(claims)}
        found += lefts[0] in hits if breach else bool(hits)
    return found


PAGE = """# Guidelines: how often they are called missed

{nights:,} seeded nights a cell (`python tests/perf/guidelines.py`), of suite nightly's rows, whose
launch medians scatter by σ; where rows are unlike, each one's σ is that times exp(N(0, .5)). False:
nights with any finding, when times meet every guideline. At the limit: nights with any finding,
when the two sides of {claims} claims take just as long as is granted, the worst that is still
sound; a check is to err on {alpha:.1%} of such. Found: nights on which the one claim that is missed
by so much is found.

| launches | σ | rows | false | at the limit | found, +10 % | +20 % | +40 % |
|--:|--:|---|--:|--:|--:|--:|--:|
{lines}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--nights", type=int, default=1000)
    chosen = parser.parse_args()
    nights, lines = chosen.nights, []
    for launches, sigma, unlike in product((3, 5, 10), (0.01, 0.02, 0.05), (False, True)):
        alarms = [well(nights, launches, sigma, unlike), edge(nights, launches, sigma, unlike)]
        found = [edge(nights, launches, sigma, unlike, more) for more in (0.1, 0.2, 0.4)]
        told = " | ".join([*map(str, alarms), *(f"{number / nights:.1%}" for number in found)])
        lines.append(f"| {launches} | {sigma:.0%} | {'unlike' if unlike else 'alike'} | {told} |")
        print(lines[-1], file=sys.stderr)
    chosen.output.write_text(
        PAGE.format(nights=nights, claims=CLAIMS, alpha=ALPHA, lines="\n".join(lines))
    )


if __name__ == "__main__":
    main()
