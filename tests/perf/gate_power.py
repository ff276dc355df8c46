"""Whether `collbench expect power` says the truth: its figures beside planted runs, made of real
runs' records and judged as `collbench health --expect` judges a night.

``python tests/perf/gate_power.py --output reports/gate-power.md`` takes some minutes; ``--runs
100`` plants a tenth.

Real are the launches: those of reports/runs/ring-or-one-shot, of two algorithms. A node is made of
them: ten of the twenty launches, all of their times multiplied by a factor of the node's own, which
is lognormal and stands for how nodes of a kind differ. A planted run is a node of which so many
launches were measured, its times divided by 1 - loss.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from planted_losses import (
    SCATTER,
    MadeNode,
    Real,
    digest_real,
    is_found,
    learn,
    make_nodes,
    make_run,
    read_real,
)

from collbench.features.health.checks.curves import Curve
from collbench.features.health.expect import learning, nodes, power
from collbench.features.health.night import LAUNCHES as LEAST
from collbench.features.health.night import Night

NODES, LAUNCHES, NIGHT = 10, 10, 3  # nodes learned from, launches of each, and of a planted run
LOSSES = (0.0, 0.03, 0.05, 0.07, 0.10, 0.15, 0.20)
FRESH_LOSSES = (0.0, 0.10)
SETS = 200  # sets of ten nodes, for 1,000 runs
NIGHTS = 500  # single ones, for as many
SHOWN = 0.0005  # half of the last digit of a share
TABLES = 40  # for as many, each learned from another set


def plant(
    real: Real, made: Sequence[MadeNode], loss: float, runs: int, curves: list[Curve], seed: int
) -> float:
    """The share of planted runs that is found: as many of each node, each of other launches."""
    rng = np.random.default_rng(seed)
    found = total = 0
    for node in made:
        sets = [*itertools.combinations(node.launches, NIGHT)]
        for at in rng.permutation(len(sets))[: runs // len(made)]:
            found += is_found(real, node, sets[int(at)], loss, curves)
            total += 1
    return found / total


def plant_fresh(real: Real, loss: float, runs: int, curves: list[Curve], seed: int) -> float:
    """The share of planted runs that is found, each of a new node."""
    made = make_nodes(real, np.random.default_rng(seed), runs, NIGHT)
    return float(np.mean([is_found(real, n, n.launches, loss, curves) for n in made]))


class Margins(NamedTuple):
    """Each real launch's time in each row, in ns, and the rows' limits: what margins are made of
    where runs would take too long."""

    times: np.ndarray
    limits: np.ndarray

    def of(self, node: MadeNode, count: int) -> np.ndarray:
        """The node's smallest margins over rows, one for each set of ``count`` launches."""
        sets = np.array([*itertools.combinations(node.launches, count)])
        times = self.times[sets]
        enough = np.isfinite(times).sum(axis=1) >= LEAST
        middle = np.where(enough, np.nanmedian(times, axis=1), 0) * node.factor
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.limits / middle).min(axis=1))


def make_margins(real: Real, curves: list[Curve]) -> Margins:
    """By the real launches, as a node without a factor of its own."""
    whole = make_run(real, "node", range(len(real.launches)), 1.0)
    rows = power.select_rows(curves, nodes.describe_node(Night([whole])), power.GRAVE)
    cycles = range(len(real.launches))
    nan = float("nan")
    times = [
        [row.times.get((whole.run.id, cycle), nan) for row in rows.values()] for cycle in cycles
    ]
    return Margins(np.array(times), np.array([row.limit_ns for row in rows.values()]))


def cover(real: Real, margins: Margins, sets: int, fresh: int) -> Iterator[str]:
    """How often intervals hold what is true of all nodes, which are ``fresh`` ones, over sets of
    nodes."""
    rng = np.random.default_rng(7)
    every = make_nodes(real, rng, fresh, NIGHT)
    truth = np.array([margins.of(node, NIGHT)[0] for node in every])
    held = np.zeros((len(LOSSES), 2))
    for _ in range(sets):
        made = make_nodes(real, rng, NODES, LAUNCHES)
        samples = [margins.of(node, NIGHT) for node in made]
        normal = power.normal_margin([], samples, NIGHT)
        for at, chance in enumerate(power.trace_chances(samples, normal, LOSSES)):
            true = float(np.mean(truth < -np.log1p(-chance.loss)))
            held[at] += hold(chance, true)
    for loss, (counted, likely) in zip(LOSSES, held / sets, strict=True):
        true = float(np.mean(truth < -np.log1p(-loss)))
        yield table_row([f"{loss:.0%}", percent(true), f"{counted:.0%}", f"{likely:.0%}"])


def hold(chance: power.Chance, true: float) -> tuple[bool, bool]:
    """Whether the intervals, counted and normal, hold this share as far as it is shown."""
    return (
        chance.lo - SHOWN <= true <= chance.hi + SHOWN,
        chance.normal_lo - SHOWN <= true <= chance.normal_hi + SHOWN,
    )


def judge_nights(real: Real, curves: list[Curve], nights: int) -> Iterator[str]:
    """What single nights, each of another node, say of their own node beside what is true of it:
    over all sets of real launches."""
    rng = np.random.default_rng(13)
    margins = make_margins(real, curves)
    true = np.zeros((nights, len(LOSSES)))
    said = np.zeros_like(true)
    held = np.zeros((len(LOSSES), 2))
    for number, node in enumerate(make_nodes(real, rng, nights, NIGHT)):
        whole = margins.of(node._replace(launches=tuple(range(len(real.launches)))), NIGHT)
        run = make_run(real, node.name, node.launches, node.factor)
        found = power.find_power(curves, [nodes.describe_node(Night([run]))], losses=LOSSES)
        for at, chance in enumerate(found.chances):
            share = true[number, at] = np.mean(whole < -math.log1p(-chance.loss))
            said[number, at] = chance.normal
            held[at] += hold(chance, share)
    off = np.median(np.abs(said - true), axis=0)
    for at, loss in enumerate(LOSSES):
        counted, normal = held[at] / nights
        cells = [percent(true[:, at].mean()), percent(said[:, at].mean()), f"{100 * off[at]:.0f}"]
        yield table_row([f"{loss:.0%}", *cells, f"{counted:.0%}", f"{normal:.0%}"])


def alarm(real: Real, sets: int, fresh: int) -> float:
    """The share of ``fresh`` healthy nodes that tables learned from sets of nodes fail."""
    rng = np.random.default_rng(11)
    shares = []
    for _ in range(sets):
        curves, _ = learn(real, make_nodes(real, rng, NODES, LAUNCHES))
        margins = make_margins(real, curves)
        others = make_nodes(real, rng, fresh // sets, LAUNCHES)
        shares.append(np.mean([margins.of(node, LAUNCHES)[0] < 0 for node in others]))
    return float(np.mean(shares))


PAGE = """# Gate power: is it what planted runs show?

`python tests/perf/gate_power.py --output reports/gate-power.md`. {nodes} nodes of {launches}
launches each teach a table (`collbench expect learn`). `collbench expect power --launches {night}`
says what it finds of runs of {night} launches. The launches are real: {real} of
reports/runs/ring-or-one-shot (SHA-256 {digest}), in {rows} rows. A node is ten of them,
with all of their times multiplied by a factor of its own, which is lognormal
(σ = {scatter:.0%}) and made up, as one machine cannot show how nodes differ. A loss is planted in
all rows of a run, which is judged as `collbench health --expect` judges it.

## The same nodes: {runs:,} planted runs for each loss

Planted runs are of the nodes that power knows, {each} of each, each of other launches. They differ
from what power says by {worst:.1f} points at most. The intervals are those of ten nodes.

| loss | power says | 95 % | planted runs found | points off | normal scatter | 95 % of that |
|--:|--:|--:|--:|--:|--:|--:|
{same}

## Other nodes: {fresh_runs:,} planted runs, each of a new node

Ten nodes do not say this within 2 points: the interval is to hold it.

| loss | power says | 95 % | planted runs found | inside |
|--:|--:|--:|--:|---|
{other}

## How often intervals hold

Over {sets} sets of ten nodes, by their margins alone: how often each 95 % interval holds what is
found of {fresh:,} nodes, to a tenth of a percent. An interval of counts is to hold it for 95 % of
sets or more. That of normal scatter need not where launches are not normal.

| loss | found of all nodes | counted: holds | normal: holds |
|--:|--:|--:|--:|
{held}

## One night of one node

What `collbench health --gate-power` shows: {nights} nights of {night} launches, each of a new node,
judged by the first table. A night knows its own launches only, so that counts say nothing: their
interval is 0 to 97.5 % or 2.5 to 100 %. That of normal scatter is to hold what is true of the
node, which is found over all sets of {night} of the {real} real launches.

| loss | found of such nodes | normal: says | points off (median) | counted: holds | normal: holds |
|--:|--:|--:|--:|--:|--:|
{single}

## Learned shares

{tables} tables, each learned from ten nodes, fail {failed:.2%} of fresh healthy nodes of as many
launches. `share` is chosen so that it is {alarms:.0%} where scatter between nodes is normal.
"""


def percent(*shares: float) -> str:
    return " to ".join(f"{share:.1%}" for share in shares)


def report(runs: int, fresh: int) -> str:
    real = read_real()
    made = make_nodes(real, np.random.default_rng(1), NODES, LAUNCHES)
    curves, read = learn(real, made)
    found = power.find_power(curves, read, NIGHT, LOSSES)
    same, other, worst = [], [], 0.0
    for number, (loss, chance) in enumerate(zip(LOSSES, found.chances, strict=True)):
        planted = plant(real, made, loss, runs, curves, number)
        off = 100 * (planted - chance.counted)
        worst = max(worst, abs(off))
        says = [f"{loss:.0%}", percent(chance.counted), percent(chance.lo, chance.hi)]
        normal = [percent(chance.normal), percent(chance.normal_lo, chance.normal_hi)]
        same.append(table_row([*says, percent(planted), f"{off:+.1f}", *normal]))
        if loss in FRESH_LOSSES:
            share = plant_fresh(real, loss, runs, curves, 100 + number)
            inside = "yes" if chance.lo <= share <= chance.hi else "no"
            other.append(table_row([*says, percent(share), inside]))
        print(same[-1], file=sys.stderr)
    sizes = SETS, TABLES, NIGHTS
    sets, tables, nights = (math.ceil(number * runs / 1000) for number in sizes)
    return PAGE.format(
        nodes=NODES,
        launches=LAUNCHES,
        night=NIGHT,
        real=len(real.launches),
        digest=digest_real(),
        rows=len(found.rows),
        scatter=SCATTER,
        runs=runs,
        fresh_runs=runs,
        each=runs // NODES,
        worst=worst,
        same="\n".join(same),
        other="\n".join(other),
        sets=sets,
        fresh=fresh,
        held="\n".join(cover(real, make_margins(real, curves), sets, fresh)),
        nights=nights,
        single="\n".join(judge_nights(real, curves, nights)),
        tables=tables,
        alarms=learning.FALSE_ALARMS,
        failed=alarm(real, tables, fresh),
    )


def table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=1000, help="planted for each loss")
    parser.add_argument("--fresh", type=int, default=20_000, help="nodes that stand for all")
    given = parser.parse_args()
    given.output.write_text(report(given.runs, given.fresh))


if __name__ == "__main__":
    main()
