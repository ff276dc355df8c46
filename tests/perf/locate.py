"""How many faulty hosts group testing finds, whom it accuses and what it costs, on simulated hosts:
reports/locate.md.

``python tests/perf/locate.py --output reports/locate.md``
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from collbench.core import algorithms, simulate
from collbench.core.network import Ints, Network
from collbench.core.schedule import Schedule
from collbench.features.health.locate import search as locate
from collbench.features.health.locate.search import Group, Rules
from collbench.run.backends._model import TEN_GIGABIT

HOSTS, FAULTS, BUDGET = 232, range(7), 80
SIZE = 4 << 20  # bytes a host sends to its neighbour, as `collbench locate` has it
NOISES = (
    (0.02, 0.01),
    (0.03, 0.02),
)  # standard deviation of what a group reaches; share of tests that are disturbed
DEPTHS = (0.5, 0.8)  # of a healthy host's bandwidth
DISTURBED = (0.05, 0.25)  # what a disturbed test loses


class Outcome(NamedTuple):
    found: int
    accused: int
    open: int
    tests: int
    rounds: int


@dataclass(frozen=True)
class Ports(Network):
    """The model's network, ports of which reach these shares of its rate: a message is as slow as
    its slower end."""

    shares: tuple[float, ...]

    def ends(self, src: Ints, dst: Ints) -> tuple[Any, Any, Any]:
        share = np.array(self.shares)
        return self.link.alpha, self.link.beta / np.minimum(share[src], share[dst]), self.link.gamma


@cache
def sendrecv(n: int) -> Schedule:
    return algorithms.find_variant("sendrecv", "direct").schedule(n)


def trial(
    hosts: int, faults: int, noise: float, odd: float, seed: int, budget: int = BUDGET
) -> Outcome:
    """One cluster and one search: who is faulty, and how, is the seed's."""
    rng = random.Random(f"{hosts} {faults} {noise} {seed}")
    shares = {host: rng.choice(DEPTHS) for host in rng.sample(range(hosts), faults)}

    def reached(group: Group) -> float:
        network = Ports(TEN_GIGABIT, tuple(shares.get(host, 1.0) for host in group))
        rate = (
            SIZE
            / simulate.cost_schedule(sendrecv(len(group)), network).seconds(SIZE)
            * rng.gauss(1, noise)
        )
        return rate * (1 - rng.uniform(*DISTURBED)) if rng.random() < odd else rate

    search = locate.start_search(hosts, Rules(budget=budget, seed=seed))
    try:
        groups = next(search)
        while True:
            groups = search.send([reached(group) for group in groups])
    except StopIteration as ended:
        located = ended.value
    hosts_named = {culprit.members[0] for culprit in located.culprits if len(culprit.members) == 1}
    accused = len(hosts_named - shares.keys()) + sum(
        len(culprit.members) > 1 for culprit in located.culprits
    )
    return Outcome(
        len(hosts_named & shares.keys()), accused, len(located.open), located.tests, located.rounds
    )


def row(faults: int, noise: float, odd: float, trials: int) -> str:
    found = [trial(HOSTS, faults, noise, odd, seed) for seed in range(trials)]
    every = sum(outcome.found == faults for outcome in found)
    tests, rounds = (
        sorted(getattr(outcome, name) for outcome in found) for name in ("tests", "rounds")
    )
    return (
        f"| {noise:.0%}, {odd:.0%} | {faults} | {every} |"
        f" {sum(outcome.accused > 0 for outcome in found)} |"
        f" {sum(outcome.open > 0 for outcome in found)} | {spread(tests)} | {spread(rounds)} |"
    )


def spread(values: Sequence[int]) -> str:
    return (
        f"{median(values):g} ({values[len(values) // 20]} to {values[-len(values) // 20]}, at most"
        f" {values[-1]})"
    )


PAGE = f"""# Group testing on simulated hosts

{HOSTS} hosts, of which some reach {" or ".join(f"{depth:.0%}" for depth in DEPTHS)} of what the
others do, found by the search of `collbench locate` within a budget of {BUDGET} tests. A test is
one group's measurement; the groups of a round are disjoint and measured at once. {{trials}} seeded
clusters a row. What a group reaches is what sendrecv around it of {SIZE >> 20} MiB a host takes in
the model's network (10 Gb/s; a message is as slow as the slower of two ports), times a normal
error (first figure); besides, some tests (second figure) lose {DISTURBED[0]:.0%} to
{DISTURBED[1]:.0%}, whoever is in them. Links are not at fault here. Made by `python
tests/perf/locate.py --output reports/locate.md`.

Accused are healthy hosts and links. Open are hosts that had not been fine twice when the budget
was spent: they are listed, not accused. Of tests and rounds: the median, and 5 to 95 % of
clusters.

| error, disturbed | faulty | all found | somebody accused | somebody open | tests | rounds |
|---|--:|--:|--:|--:|---|---|
{{lines}}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=200, help="clusters a row")
    given = parser.parse_args()
    lines = [row(faults, *noise, given.trials) for noise in NOISES for faults in FAULTS]
    given.output.write_text(PAGE.format(trials=given.trials, lines="\n".join(lines)))


if __name__ == "__main__":
    main()
