"""How many healthy fleets accuse a node in all rows, where nodes' deviations are skewed: 0.02 times
a lognormal, which is heavier on the slow side than any t distribution that is fitted.

    python tests/perf/fleet_skew.py NODES FLEETS SIGMA
"""

from __future__ import annotations

import math
import sys

import numpy as np

from collbench.features.health.fleet.judgement import BLIND, CHANCE, LEAST
from collbench.features.health.fleet.tails import fit_tail

SCALE = 0.02


def main() -> None:
    """Draw the fleets from a fixed seed, and print how many were judged and how many accused."""
    nodes, fleets, sigma = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    rng = np.random.default_rng(40)
    chance = CHANCE / 2 / nodes  # half of it is for all rows together
    judged = accused = 0
    for _ in range(fleets):
        values = SCALE * rng.lognormal(0, sigma, nodes)
        tail = fit_tail(values)
        limit = max(LEAST, math.expm1(tail.limit(chance) - tail.center))
        if limit <= BLIND:
            judged += 1
            accused += math.expm1(values.max() - tail.center) >= limit
    print(f"{fleets:,} fleets of {nodes} nodes: {judged:,} judged, {accused:,} accused a node")


if __name__ == "__main__":
    main()
