"""What a table finds how often: power beside planted runs, each judged as health judges it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from factories import case, night, ranks
from planted_losses import is_found, learn, make_nodes, read_real
from scipy.stats import binomtest

from collbench.core.errors import NoVerdict, UsageError
from collbench.features.health.checks.curves import Curve
from collbench.features.health.checks.expectations import check_expectations
from collbench.features.health.expect import nodes, power, view
from collbench.features.health.expect.nodes import Node
from collbench.features.health.night import Night
from collbench.records.types import Record, RunFile

ROWS = [case(size) for size in (1 << 16, 1 << 24)]
LOSSES = (0.0, 0.02, 0.05, 0.08, 0.1, 0.15, 0.3)


def curve(severity: str = "critical", share: float = 0.93) -> Curve:
    """Limits a little below what nodes take without scatter."""
    points = {"64K": 0.4675, "16M": 1.6482}
    given = {"machine": "^rack", "gpus": 4, "points": points, "source": "a test", "file": "a.toml"}
    return msgspec.convert(
        {**given, "severity": severity, "share": share, "day": "2026-01-01", "switch": None}, Curve
    )


def run_of(number: int, launches: int = 4, loss: float = 0.0, **fields: Any) -> RunFile:
    factor = math.exp(np.random.default_rng(number).normal(0, 0.03)) / (1 - loss)
    return night(
        dict.fromkeys(ROWS, factor),
        **{"rows": ROWS, "seed": number, "sigma": 0.03, "launches": launches, **fields},
        worlds={"ranks": ranks([f"rack{number}"] * 4)},
    )


def members(number: int = 8, **fields: Any) -> list[Node]:
    return [nodes.make_node(run_of(n, **fields)) for n in range(number)]


def select_launches(file: RunFile, worlds: tuple[int, ...]) -> RunFile:
    records = [record for record in file.records if record.world in worlds]
    return msgspec.structs.replace(file, records=records)


def lose(file: RunFile, loss: float) -> RunFile:
    """The run with all times longer."""

    def slower(record: Record) -> Record:
        times = [round(time / (1 - loss)) for time in record.times_ns]
        return msgspec.structs.replace(record, times_ns=times)

    return msgspec.structs.replace(file, records=[*map(slower, file.records)])


def test_power_is_the_share_of_all_planted_runs_that_the_gate_finds() -> None:
    """Every three launches of each of eight nodes, with each loss, by check_expectations."""
    found = power.find_power([curve()], members(), 3, LOSSES)
    for chance in found.chances:
        planted = [
            bool(check_expectations(Night([lose(part, chance.loss)]), [curve()]).findings)
            for number in range(8)
            for worlds in itertools.combinations(range(4), 3)
            for part in [select_launches(run_of(number), worlds)]
        ]
        assert chance.counted == pytest.approx(np.mean(planted), abs=1e-9)
    counted = [chance.counted for chance in found.chances]
    assert counted == sorted(counted) and counted[0] < 0.5 < counted[-1]


def test_power_agrees_with_planted_runs_of_real_launches() -> None:
    """Six nodes of five real launches, and all ten sets of three of each: within two points."""
    real = read_real()
    made = make_nodes(real, np.random.default_rng(5), 6, 5)
    curves, read = learn(real, made)
    for chance in power.find_power(curves, read, 3, (0.05, 0.12)).chances:
        planted = [
            is_found(real, node, chosen, chance.loss, curves)
            for node in made
            for chosen in itertools.combinations(node.launches, 3)
        ]
        assert abs(chance.counted - np.mean(planted)) < 0.02


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (1, 6)])
def test_the_interval_is_clopper_and_pearsons(hits: int, trials: int) -> None:
    exact = binomtest(hits, trials).proportion_ci(0.95, "exact")
    assert power.bound_share(hits / trials, trials) == pytest.approx((exact.low, exact.high))


def test_normal_margins_are_covered_by_their_interval() -> None:
    """What ten nodes say of normal margins holds the truth 95 times in 100, in tails as well."""
    rng = np.random.default_rng(3)
    losses = (0.0, 0.05, 0.1, 0.15)
    truth = [float(0.5 * math.erfc((0.1 + math.log1p(-x)) / 0.04 / math.sqrt(2))) for x in losses]
    held = np.zeros(len(losses))
    for _ in range(300):
        samples = [rng.normal(0.1, 0.04, 1) for _ in range(10)]
        normal = power.normal_margin([], samples, 3)
        for at, chance in enumerate(power.trace_chances(samples, normal, losses)):
            held[at] += chance.normal_lo <= truth[at] <= chance.normal_hi
    assert all(0.91 <= share <= 0.985 for share in held / 300)


def test_of_one_node_only_launches_are_known() -> None:
    found = power.find_power([curve()], members(1, launches=8))
    assert not found.has_nodes and found.launches == 8
    text = " ".join(view.describe_power(found))
    assert "Scatter between nodes is not in it" in text
    few, many = (power.find_power([curve()], members(1, launches=n)).rows[0] for n in (3, 12))
    assert 0 < many.scatter < few.scatter


def test_a_slow_node_is_left_out_and_named() -> None:
    slow = nodes.make_node(run_of(9, loss=0.6))
    found = power.find_power([curve()], [*members(), slow])
    assert [outlier.node for outlier in found.outliers] == ["rack9"] and found.nodes == 8
    assert "rack9 is left out as an outlier" in " ".join(view.describe_power(found))


def test_hints_count_where_nothing_else_does() -> None:
    hints = power.find_power([curve("hint", 0.9)], members())
    both = power.find_power([curve("hint", 0.9), curve("warning", 0.5)], members())
    assert "make nobody unhealthy" in " ".join(view.describe_power(hints))
    assert both.severities == power.GRAVE and both.rows[0].limit < hints.rows[0].limit


def test_more_launches_than_there_are_and_no_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="--launches 5: a run has 4"):
        power.find_power([curve()], members(), 5)
    other = msgspec.structs.replace(curve(), machine="^other")
    with pytest.raises(NoVerdict, match="no row of 3 launches"):
        power.find_power([other], members())


def test_the_loss_of_a_row_is_found_nine_times_in_ten() -> None:
    row = power.find_power([curve()], members()).rows[0]
    usual = math.log(row.busbw / row.limit)
    assert row.detected == pytest.approx(1 - math.exp(-(usual + 1.28 * row.scatter)), abs=0.03)
    assert 0 < row.alarms < 0.2


def test_times_without_scatter_are_no_trouble() -> None:
    same = [
        nodes.make_node(
            night(
                rows=ROWS,
                sigma=0.0,
                worlds={"ranks": ranks([f"rack{number}"] * 4)},
            )
        )
        for number in range(3)
    ]
    found = power.find_power([curve()], same, losses=(0.0, 0.5))
    assert [chance.counted for chance in found.chances] == [0.0, 1.0]
