"""Single operations of a step in comparisons: what is planted in one of them is found there, and
nothing where nothing is."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest
from factories import Rounds, case, experiment, noisy, suite

from collbench.features.compare.comparison import Comparison, Rules, compare_runs
from collbench.features.compare.verdict import Compared
from collbench.features.compare.views import verdicts
from collbench.features.training.parts import PARTS
from collbench.features.training.step import Step, Writer
from collbench.records.types import Operation, Record, RunFile, World
from collbench.suite.case import Case

BUCKETS, BUCKET_NS, OVERHEAD_NS = 10, 1e6, 50_000
WATCHED = 3


def ddp(buckets: int = BUCKETS) -> Step:
    """Two ranks that compute, start a bucket after the other, and wait for all."""
    w = Writer("backward")
    w.compute()
    for number in range(buckets):
        named = f"bucket {number}: a .. b"
        w.add("all_reduce", nbytes=25 << 20, dtype="float", op="sum", source=named)
    w.wait()
    return Step("ddp", 2, (w.program((0, 1)),))


def parts(step: Step) -> list[Case]:
    about = {"subject": step.title, "op": "none", "dtype": "uint8", "n": 2}
    return [case(64 << 20, part, **about) for part in PARTS]


def seen(times: np.ndarray, late: int) -> list[list[Operation]]:
    """What was watched of a step whose buckets take these ns, on two ranks of which one computes
    for so much longer."""
    found = []
    for rank in (0, 1):
        began = OVERHEAD_NS + late * rank
        ends = began + late * (1 - rank) + np.cumsum(times).round().astype(int)
        buckets = [Operation(begins_ns=[began] * WATCHED, ends_ns=[int(e)] * WATCHED) for e in ends]
        compute = Operation(begins_ns=[0] * WATCHED, ends_ns=[began] * WATCHED)
        wait = Operation(begins_ns=[began] * WATCHED, ends_ns=[int(ends[-1])] * WATCHED)
        found.append([compute, *buckets, wait])
    return found


def watched(
    rounds: Mapping[Case, Rounds],
    again: Mapping[Case, Rounds],
    planted: Mapping[int, float],
    seed: int = 1,
    steps: tuple[Step, Step] = (ddp(), ddp()),
    late: int = 0,
    scatter: float = 0.02,
) -> tuple[RunFile, RunFile]:
    """An experiment whose head takes longer for each bucket of ``planted``, by a share, while
    each bucket's launches ``scatter``; ``late`` is how much head's last rank is so, in ns."""
    draw = np.random.default_rng(seed)

    def operations(side: str, here: World, made: Record) -> Record:
        if made.case.collective != next(iter(PARTS)):
            return made
        times = BUCKET_NS * np.exp(draw.normal(0.0, scatter, BUCKETS))
        for number, change in planted.items() if side == "head" else ():
            times[number] *= 1 + change
        return msgspec.structs.replace(made, operations=seen(times, late * (side == "head")))

    suites = {
        side: {"suite": msgspec.structs.replace(suite(), subjects=(step,))}
        for side, step in zip(("base", "head"), steps, strict=True)
    }
    return experiment(rounds, again, change=operations, sides=suites)


def compared(
    planted: Mapping[int, float], seed: int = 1, tau: float = 0.05, **more: object
) -> Comparison:
    """Of an experiment whose step's own times are alike; with a second stage."""
    share = sum(planted.values()) / BUCKETS
    whole, computing, talking = parts(ddp())
    rows = {
        whole: noisy(0.0, 12, seed, 0.002),
        computing: noisy(0.0, 12, seed + 1, 0.002),
        talking: noisy(share, 12, seed + 2, 0.002),
    }
    again = {} if more.pop("once", False) else rows
    return compare_runs(*watched(rows, again, planted, seed, **more), Rules(tau=tau))  # type: ignore[arg-type]


def named(found: Comparison) -> list[Compared]:
    return [one for row in found.rows for one in row.operations]


@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_a_bucket_that_is_slower_is_named_and_no_other(share: float, seed: int) -> None:
    """A tenth of a tenth of the communication: the step's own rows do not show it."""
    (one,) = named(compared({3: share}, 100 * seed))
    assert (one.at, one.of, one.confirmed) == (4, "bucket 3: a .. b", True)
    assert one.lo < share < one.hi


def test_the_row_that_tells_of_them_is_that_of_the_whole_step() -> None:
    rows = [row for row in compared({3: 0.1}).rows if row.operations]
    assert [(row.case.collective, row.verdict) for row in rows] == [("step", "SAME")]


def test_experiments_of_steps_alike_name_no_operation() -> None:
    """Scattering so much that a first stage alone flags some: these, and ten more, are confirmed by
    no second stage."""
    seeds = [100 * number for number in range(60)]
    flagged = [seed for seed in seeds if named(alike(seed, once=True))]
    assert flagged
    assert not [seed for seed in {*flagged, *seeds[:10]} if named(alike(seed, once=False))]


def alike(seed: int, once: bool) -> Comparison:
    return compared({}, seed, once=once, scatter=0.1)


def test_a_change_below_what_matters_is_named_where_the_step_changed() -> None:
    """A bucket's 8 % are 0.8 % of all communication."""
    assert not named(compared({3: 0.08}, tau=0.2))
    assert [one.at for one in named(compared({3: 0.08}, tau=0.006))] == [4]


def test_a_rank_that_is_late_makes_no_operation_slower() -> None:
    """Of the ranks that meet, one waits for the other for as long as a bucket takes."""
    assert not named(compared({}, late=round(BUCKET_NS)))


def test_steps_that_differ_are_not_compared_by_operation() -> None:
    assert not named(compared({3: 0.3}, steps=(ddp(), msgspec.structs.replace(ddp(), programs=()))))


def test_what_one_stage_flags_is_a_suspicion_that_asks_for_the_second() -> None:
    (row,) = [row for row in compared({3: 0.1}, once=True).rows if row.operations]
    assert (row.verdict, row.suspected) == ("SAME", True)
    assert not any(row.suspected for row in compared({3: 0.1}).rows)


def test_saved_runs_of_many_launches_name_the_operation_too() -> None:
    base, head = watched(*[{part: noisy(0.0, 12, 1) for part in parts(ddp())}, {}], {3: 0.15})
    alone = [
        msgspec.structs.replace(file, run=msgspec.structs.replace(file.run, pairing=None))
        for file in (base, head)
    ]
    apart = [
        msgspec.structs.replace(
            file, worlds=[msgspec.structs.replace(w, stage=0, round=0) for w in file.worlds]
        )
        for file in alone
    ]
    assert [one.at for one in named(compare_runs(*apart, Rules(tau=0.05)))] == [4]


def test_people_read_which_operation_it_is_and_by_how_much() -> None:
    view = verdicts.make_readable(compared({3: 0.3}))
    (line,) = verdicts.describe_operations(view)
    assert line.startswith("slower in step")
    assert "bucket 3 (op 4, all_reduce 25 MiB) +3" in line
    assert view.headline.startswith("no row found slower")
