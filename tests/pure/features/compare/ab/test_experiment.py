"""How the two sides of a pair take turns: in one world, in two that are alive at once, or launch by
launch."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from factories import case
from helpers.experiments import small

from collbench.core.errors import Exit
from collbench.features.compare.ab import duet
from collbench.features.compare.ab.experiment import Experiment, Order
from collbench.features.compare.comparison import Rules, compare_runs
from collbench.run import memory, plan
from collbench.run.jobs import Job, Plan
from collbench.run.launch.interpreter import Home, SideName, Variant
from collbench.run.reporter import Step
from collbench.suite import toml
from collbench.suite.policy import Policy

MIB = 1 << 20


def one(backend: str, algorithm: str) -> Plan:
    row = case(MIB, backend=backend, algorithm=algorithm)
    (found,) = plan.plan_worlds([Job(case=row, rotation=1, cache="hot")], Policy())
    return found


def together(backend: str, *algorithms: str, alone: bool = True) -> str:
    plenty = memory.Room("", 1 << 40, 0, 2, MIB)
    order = SimpleNamespace(in_one_world=alone, room=lambda *of: plenty)
    plans = {name: one(backend, of) for name, of in zip(("base", "head"), algorithms, strict=True)}
    return Experiment._together(SimpleNamespace(_order=order), plans)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("backend", "algorithms", "alone", "how"),
    [
        ("gloo", ("ring", "tree"), True, "world"),
        ("gloo", ("ring", "ring"), True, "turns"),  # one case on both sides
        ("gloo", ("ring", "tree"), False, "turns"),  # more differs than the algorithm
        ("symm", ("ring", "one_shot"), True, "turns"),  # whose buffers are of one case
        ("model", ("ring", "tree"), True, ""),  # has no ranks
    ],
)
def test_sides_share_a_world_where_one_can_be_both(
    backend: str,
    algorithms: tuple[str, str],
    alone: bool,
    how: str,
) -> None:
    assert together(backend, *algorithms, alone=alone) == how


def test_of_two_rounds_base_begins_in_one() -> None:
    """Which of them is drawn for each two, and for each world."""
    drawn = {}
    for seed in range(8):
        steps = [Step(1, place, 12, "", 0, 1) for place in range(12)]
        order = partial(Experiment._in_order, SimpleNamespace(_seed=seed), "a world")
        firsts = [order(step)[0] for step in steps]  # type: ignore[arg-type]
        assert {frozenset(two) for two in zip(firsts[::2], firsts[1::2], strict=True)} == {
            frozenset(("base", "head"))
        }
        drawn[tuple(firsts)] = seed
    assert len(drawn) > 1


@pytest.mark.parametrize(("shared", "fits"), [(False, False), (True, True)])
def test_one_world_takes_less_than_two(shared: bool, fits: bool) -> None:
    """A rank takes 1 GiB beside its buffers, and there are 3 GiB for two of them."""
    base = memory.RANK_BYTES + (1 << 30)
    room = memory.Room("", 3 << 30, 0, 2, base)
    plans = [one("gloo", "ring"), one("gloo", "tree")]
    assert duet.fits_at_once(plans, lambda *of: room, shared) == fits


def test_what_is_to_be_confirmed_has_no_first_stage(tmp_path: Path) -> None:
    """Every row is measured by as many pairs as Bonferroni's level takes, and judged by these."""
    suite = toml.load_suite(small(tmp_path, backends='"model"', sizes='"4K", "64M"', iters=20))
    sides: dict[SideName, Variant] = {
        "base": Variant(text="algo:ring", algorithm="ring"),
        "head": Variant(text="algo:tree", algorithm="tree"),
    }
    home = Home(python=sys.executable, settings={}, described={})
    order = Order(
        suite=suite,
        variants=sides,
        command=["collbench", "tune"],
        rounds=(0, 6),
        judge=lambda base, head: compare_runs(base, head, Rules(), under_way=True).rows,
        budget=0.0,
        homes={"base": home, "head": home},
        is_confirming=True,
        output=tmp_path,
    )
    experiment = Experiment(order, lambda step: None)
    experiment.run()
    comparison = compare_runs(*experiment.files, Rules(across_machines=True), under_way=True)
    assert comparison.stages == (0, 7)  # the exact test of two rows takes as many pairs
    assert {row.stage for row in comparison.rows} == {2}
    assert {row.verdict for row in comparison.rows} == {"REGRESSED", "SMALL"}
    experiment.end(Exit.OK)
