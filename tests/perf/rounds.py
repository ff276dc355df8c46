"""How often an experiment errs, what it finds and how long it takes, with the scatter and cost that
experiments had here: the real ``Experiment`` and the real judge over made-up launches and a made-up
clock.

``python tests/perf/rounds.py --like BASE.jsonl ... [--experiments 300] [--budget 300]``

``--like`` names base runs of recorded ``ab --aa``; their heads lie beside. A made-up change is one
of that row's recorded ones about their middle, turned around as often as not; a launch costs what
it did. ``--budget 0`` is the design with fixed rounds. Three rows of the suite, drawn for each
experiment, are slower by each ``--planted`` in turn. ``--output`` makes it a section of a report.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import sections

from collbench.features.compare import sides
from collbench.features.compare.ab import experiment
from collbench.features.compare.comparison import Rules, compare_runs
from collbench.features.compare.verdict import Judged
from collbench.records import paired, run_file
from collbench.records.case_rows import gather_case_rows
from collbench.records.rows import group_rows, make_rows
from collbench.records.types import Record, World, row_key
from collbench.run.launch.interpreter import Home, Variant
from collbench.suite import toml
from collbench.suite.case import Case

WORLD_SECONDS = 0.5  # of a pair of worlds, beside its rows
MACHINE = {"product": "KVM", "cpu": {"cores": 2, "physical": 2}, "container": {}}


class Known(NamedTuple):
    """A row as it was: its typical call (ns), changes in log time about their middle, and what a
    launch of it costs (s)."""

    call: float
    changes: list[float]
    seconds: float


class Outcome(NamedTuple):
    """Rows as they were judged, which of them were slower, and what it all took (s)."""

    rows: list[Judged]
    planted: set[str]
    seconds: float


def known(paths: Sequence[Path]) -> dict[str, Known]:
    """By row, from all these experiments."""
    changes: defaultdict[str, list[float]] = defaultdict(list)
    calls: defaultdict[str, list[float]] = defaultdict(list)
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for path in paths:
        pair = [
            run_file.read_file(path),
            run_file.read_file(Path(str(path).replace("-base", "-head"))),
        ]
        base, head = (gather_case_rows([file], True, row_key) for file in pair)
        for key in base.keys() & head.keys():
            found = list(sides.log_changes(base[key], head[key], 1).values())
            if len(found) >= paired.FEWEST:
                changes[key] += [value - paired.estimate_shift(found).estimate for value in found]
        for key, rows in group_rows(
            make_rows(pair), lambda row: row_key(row.run, row.case)
        ).items():
            calls[key] += [row.median for row in rows if row.ran]
            seconds[key] += [row.record.seconds for row in rows if row.ran]
    return {
        key: Known(float(np.median(calls[key])), found, float(np.mean(seconds[key])))
        for key, found in changes.items()
    }


class MadeUp:
    """Launches of both sides, drawn, on a clock of their own."""

    def __init__(self, rows: dict[str, Known], planted: dict[str, float], seed: int) -> None:
        self.now, self._rows, self._planted = 0.0, rows, planted
        self._rng = np.random.default_rng(seed)

    def play(self, players: Sequence[Any], lots: object) -> None:
        self.now += WORLD_SECONDS
        for player in players:
            self.launch(player.plan, player.listener.line, player.name)

    def launch(self, plan: Any, hear: Any, side: str) -> None:
        hear(world(plan))
        for job in plan.jobs:
            row = self._rows[job.case.key]
            time = row.call
            if side == "head":
                drawn = self._rng.choice(row.changes) * self._rng.choice((-1, 1))
                time *= float(np.exp(drawn)) * (1 + self._planted.get(job.case.key, 0.0))
            self.now += row.seconds
            hear(record(job.case, time, row.seconds))


def world(plan: Any) -> World:
    about = {"ranks": [], "oversubscribed": False, "same_clock": True, "launcher": "local"}
    return World(index=0, backend=plan.backend, n=plan.n, env=plan.env, **about)


def record(case: Case, time: float, seconds: float) -> Record:
    times = [max(1, round(64 * time))] * 7
    about = {"sync": "window", "cache": "cold", "inner": 64, "seconds": seconds}
    return Record(case=case, status="ok", times_ns=times, **about)


def one(
    rows: dict[str, Known],
    suite: str,
    share: float,
    rounds: tuple[int, int],
    budget: float,
    seed: int,
) -> Outcome:
    """An experiment from its pilot to its verdicts."""
    drawn = np.random.default_rng(seed).permutation(sorted(rows))[: 3 if share else 0]
    planted = dict.fromkeys(map(str, drawn), share)
    made = MadeUp(rows, planted, seed)
    alike = Variant(text="")
    home = Home(python=sys.executable, settings={}, described=MACHINE)
    order = experiment.Order(
        suite=toml.load_suite(suite),
        variants={"base": alike, "head": alike},
        command=[],
        rounds=rounds,
        judge=lambda base, head: compare_runs(base, head, Rules(), under_way=True).rows,
        budget=budget,
        homes={"base": home, "head": home},
    )
    names = iter(experiment.SIDES * 1000)
    experiment.time = SimpleNamespace(monotonic=lambda: made.now)  # type: ignore[assignment]
    experiment.duet.play_in_turns = made.play  # type: ignore[assignment]
    experiment.session.write_line = lambda writer, line: None  # type: ignore[assignment]
    experiment.store.open_writer = lambda run, output: SimpleNamespace(path=Path("made-up"))  # type: ignore[assignment, return-value]
    experiment.Launcher = lambda *_: SimpleNamespace(  # type: ignore[assignment, misc, return-value]
        run=lambda plans, listener: made.launch(plans[0], listener.line, next(names)),
        warm=lambda *_: None,
        close=lambda: None,
    )
    # of the suite's rows those that were recorded
    expand = type(order.suite).expand
    type(order.suite).expand = lambda self: (  # type: ignore[method-assign]
        [case for case in expand(self)[0] if case.key in rows],
        [],
    )
    try:
        trial = experiment.Experiment(order, lambda step: None)
    finally:
        type(order.suite).expand = expand  # type: ignore[method-assign]
    trial.run()
    judged = compare_runs(*trial.files, Rules(), under_way=True).rows
    return Outcome(judged, set(planted), made.now)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--like", type=Path, nargs="+", required=True)
    parser.add_argument("--suite", default="pr")
    parser.add_argument("--experiments", type=int, default=300)
    parser.add_argument("--planted", type=float, nargs="+", default=[0.15])
    parser.add_argument("--budget", type=float, nargs="+", default=[300.0])
    parser.add_argument("--rounds", default="8,12")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    rows = known(asked.like)
    first, second = map(int, asked.rounds.split(","))
    many = range(1, asked.experiments + 1)
    found = [
        f"## Simulated: {asked.experiments} experiments a line, with the scatter of"
        f" {len(asked.like)} recorded ones",
        "",
        sections.machine("rounds.py"),
        "",
        "| budget | slower | with a false row | rows alike | rows slower | rows alike in stage 2"
        " | intervals that hold the truth, by stage | median MDE | median s |",
        "|--:|--:|--:|---|---|--:|---|--:|--:|",
    ]
    taus: set[float] = set()
    with ProcessPoolExecutor() as pool:
        for budget in asked.budget:
            for share in asked.planted:
                trial = partial(one, rows, asked.suite, share, (first, second), budget)
                outcomes = list(pool.map(trial, many, chunksize=4))
                found.append(line(outcomes, budget, share))
                taus |= {row.tau for outcome in outcomes for row in outcome.rows}
                print(found[-1])
    found += ["", *meaning(asked.suite, len(rows), len(asked.like), taus)]
    if asked.output:
        sections.write(asked.output, "Is collbench ab right?", [found])


def meaning(suite: str, rows: int, like: int, taus: set[float]) -> list[str]:
    """What was drawn, and what the coverage of intervals does not show."""
    matters = " or ".join(f"{tau:.0%}" for tau in sorted(taus))
    return [
        f"Rows are {rows} of the suite {Path(suite).stem}, of which three are slower; {matters}",
        f"matters, and less is called SMALL. `--like` {like} recorded experiments, their changes",
        "about their middle; fixed rounds are the design without a budget (`--budget 0`). A",
        "launch's change is drawn independently of all others, and turned around as often as not:",
        "how often an interval holds the truth checks the code, not whether a machine's changes",
        "are independent and symmetric.",
    ]


def line(outcomes: Sequence[Outcome], budget: float, share: float) -> str:
    """What came of experiments of one design, as a row of the table."""
    alike: Counter[str] = Counter()
    slower: Counter[str] = Counter()
    for outcome in outcomes:
        for row in outcome.rows:
            (slower if row.key in outcome.planted else alike)[row.verdict] += 1
    false = sum(
        any(
            row.verdict in ("REGRESSED", "IMPROVED") and row.key not in outcome.planted
            for row in outcome.rows
        )
        for outcome in outcomes
    )
    mdes = [row.mde for outcome in outcomes for row in outcome.rows if row.mde is not None]
    cells = (
        f"{budget:g} s" if budget else "fixed rounds",
        f"{share:.0%}" if share else "none",
        str(false),
        ", ".join(f"{count} {verdict}" for verdict, count in alike.most_common()),
        ", ".join(f"{count} {verdict}" for verdict, count in slower.most_common()),
        str(sum(flagged(outcomes))),
        ", ".join(held(outcomes, share)),
        f"{np.median(mdes):.1%}",
        f"{np.median([outcome.seconds for outcome in outcomes]):.0f}",
    )
    return f"| {' | '.join(cells)} |"


def flagged(outcomes: Sequence[Outcome]) -> Iterator[bool]:
    """Of every row that is alike on both sides, whether stage 1 took it for changed."""
    for outcome in outcomes:
        yield from (row.stage == 2 for row in outcome.rows if row.key not in outcome.planted)


def held(outcomes: Sequence[Outcome], share: float) -> Iterator[str]:
    """How often an interval held the change there was: 95 % of those of stage 1, and more of those
    of stage 2, are to."""
    for stage in (1, 2):
        found = [
            row.lo <= (share if row.key in outcome.planted else 0.0) <= row.hi
            for outcome in outcomes
            for row in outcome.rows
            if row.stage == stage and row.lo is not None and row.hi is not None
        ]
        yield f"{stage}: {np.mean(found):.1%} of {len(found)}" if found else f"{stage}: none"


if __name__ == "__main__":
    main()
