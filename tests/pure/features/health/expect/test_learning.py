"""A table learned from nodes: what is in it, who is left out, and how often healthy nodes fail."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from factories import case, night, ranks

from collbench.core.errors import NoVerdict, UsageError
from collbench.features.health.checks.curves import Curve, load_curves
from collbench.features.health.checks.expectations import check_expectations, measure_busbw
from collbench.features.health.expect import learning, nodes
from collbench.features.health.expect.nodes import Node
from collbench.features.health.night import Night
from collbench.records.types import Record, RunFile
from collbench.suite.case import Case

ROWS = [case(size, name) for name in ("all_reduce", "all_gather") for size in (1 << 16, 1 << 24)]


def run_of(number: int, factor: float = 1.0, **fields: Any) -> RunFile:
    """A run of a node of four ranks, all of whose calls take so much longer than expected."""
    given = {"rows": ROWS, "sigma": 0.0, "name": f"run-{number}", **fields}
    return night(
        dict.fromkeys(given["rows"], factor),
        worlds={"ranks": ranks([f"rack{number}"] * 4)},
        **given,
    )


def node_of(number: int, factor: float = 1.0, **fields: Any) -> Node:
    return nodes.make_node(run_of(number, factor, **fields))


def read_back(tmp_path: Path, learned: learning.Learned, **options: str) -> list[Curve]:
    path = tmp_path / "ours.toml"
    path.write_text(learning.render_table(learned, "critical", **options))
    return load_curves(path)


FACTORS = (0.98, 0.99, 1.0, 1.0, 1.01, 1.02, 1.03)


def test_points_are_medians_over_nodes_and_are_read_back(tmp_path: Path) -> None:
    members = [node_of(number, factor) for number, factor in enumerate(FACTORS)]
    curves = read_back(tmp_path, learning.learn_table(members))
    assert [(c.collective, c.backend, c.gpus, c.nodes) for c in curves] == [
        ("all_gather", "gloo", 4, 1),
        ("all_reduce", "gloo", 4, 1),
    ]
    for curve in curves:
        for size, rate in curve.sizes:
            busbws = [
                measure_busbw(timing)
                for node in members
                for timing in node.night.fit
                if (timing.case.collective, timing.case.size) == (curve.collective, size)
            ]
            assert rate == pytest.approx(np.median(busbws), rel=1e-3)
    assert {curve.severity for curve in curves} == {"critical"}
    assert {curve.machine for curve in curves} == {"^rack"}


def test_what_was_learned_passes_the_nodes_and_fails_a_slow_one(tmp_path: Path) -> None:
    members = [node_of(number, factor) for number, factor in enumerate(FACTORS)]
    curves = read_back(tmp_path, learning.learn_table(members))
    for node in members:
        seen = check_expectations(node.night, curves)
        assert (list(seen.findings), seen.missing) == ([], "")
    slow = check_expectations(Night([run_of(9, 1.25)]), curves)
    assert len(slow.findings) == len(ROWS)


def test_a_slow_node_is_named_and_left_out_of_all_rows() -> None:
    members = [node_of(n, factor) for n, factor in enumerate((*FACTORS, 1.3))]
    learned = learning.learn_table(members)
    (line,) = learning.describe_left_out(learned)
    assert line.startswith("rack7: an outlier in 4 of 4 rows") and "22.7% below" in line
    assert "rack7" in learning.render_table(learned, "hint").split("[[curve]]")[0]
    alone = learning.learn_table(members[:-1])
    assert learned.curves == alone.curves


def test_a_node_that_is_slow_in_one_row_is_left_out_of_that() -> None:
    odd = nodes.make_node(
        night({ROWS[0]: 1.5}, rows=ROWS, sigma=0.0, worlds={"ranks": ranks(["rack8"] * 4)})
    )
    learned = learning.learn_table([*map(node_of, range(7)), odd])
    (line,) = learning.describe_left_out(learned)
    assert line.startswith("rack8 in 1 of 4 rows; all_reduce 64 KiB: 33.3% below the median")
    counts = sorted(row.nodes for rows in learned.curves.values() for row in rows)
    assert counts == [7, 8, 8, 8]


def wrong(record: Record) -> Record:
    return msgspec.structs.replace(record, status="wrong", wrong=1)


def test_rows_whose_algorithm_was_forced_teach_nothing() -> None:
    """Here they are twice as slow, at the sizes at which the library chose, and at one more."""
    forced = [
        msgspec.structs.replace(row, env=(("NCCL_PROTO", "LL"),))
        for row in [*ROWS, case(1 << 20, "all_reduce")]
    ]

    def learned(*more: Case) -> object:
        rows = [*ROWS, *more]
        slower = dict.fromkeys(ROWS, 1.0) | dict.fromkeys(more, 2.0)
        made = [
            night(
                slower,
                rows=rows,
                sigma=0.0,
                name=f"run-{number}",
                worlds={"ranks": ranks([f"rack{number}"] * 4)},
            )
            for number in range(6)
        ]
        return learning.learn_table([*map(nodes.make_node, made)]).curves

    assert learned(*forced) == learned()


def test_a_node_with_wrong_data_counts_nowhere() -> None:
    members = [*map(node_of, range(6)), node_of(6, change=wrong)]
    learned = learning.learn_table(members)
    assert "received wrong data" in learned.unsound["rack6"]
    with pytest.raises(NoVerdict, match="rack6 had wrong data"):
        learning.learn_table(members[1:])


def test_five_nodes_are_no_verdict() -> None:
    with pytest.raises(NoVerdict, match="5 nodes given: scatter between nodes needs 6"):
        learning.learn_table([*map(node_of, range(5))])


def test_rows_of_fewer_than_three_launches_teach_nothing() -> None:
    with pytest.raises(NoVerdict, match="no row has 3 launches on 6 nodes"):
        learning.learn_table([node_of(number, launches=2) for number in range(6)])


def test_runs_that_say_nothing_of_a_node_are_refused() -> None:
    planted = run_of(1)
    policy = msgspec.structs.replace(planted.run.policy, inject="slow-rank:1:20%")
    run = msgspec.structs.replace(planted.run, policy=policy)
    with pytest.raises(NoVerdict, match="a fault was planted: slow-rank:1:20%"):
        nodes.make_node(msgspec.structs.replace(planted, run=run))


def test_a_node_unlike_the_first_is_noted() -> None:
    other = run_of(6).run.environment | {"kernel": "6.2.0"}
    learned = learning.learn_table([*map(node_of, range(6)), node_of(6, environment=other)])
    assert learned.notes == ["rack6 is unlike rack0: kernel 6.1.0 -> 6.2.0"]


def test_slower_forms_of_a_row_decide_its_point() -> None:
    """A curve does not tell datatypes and places apart: what it says must hold for all of them."""
    both = [ROWS[0], msgspec.structs.replace(ROWS[0], in_place=True)]
    slower = {both[1]: 2.0}
    members = [
        nodes.make_node(
            night(slower, rows=both, sigma=0.0, worlds={"ranks": ranks([f"rack{number}"] * 4)})
        )
        for number in range(6)
    ]
    ((row,),) = learning.learn_table(members).curves.values()
    timings = {timing.case: measure_busbw(timing) for timing in members[0].night.fit}
    assert row.busbw == pytest.approx(timings[both[1]]) and timings[both[0]] > 1.5 * row.busbw


@pytest.mark.parametrize(
    ("hosts", "pattern"),
    [
        (["gpu-001", "gpu-017"], "^gpu-"),
        (["rack1.a", "rack1.b"], r"^rack1\."),
        (["alpha", "beta"], "^(alpha|beta)$"),
        (["alone7"], "^alone"),
    ],
)
def test_a_table_is_about_hosts_that_are_called_alike(hosts: list[str], pattern: str) -> None:
    assert learning.choose_pattern(hosts) == pattern


@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 10, 3 << 20, (1 << 30) + 4])
def test_sizes_are_exact(size: int) -> None:
    from collbench.suite.grammar import parse_size

    assert parse_size(learning.spell_size(size), "") == size


@pytest.mark.parametrize(("count", "rows"), [(6, 1), (10, 16), (40, 5)])
def test_healthy_nodes_fail_a_learned_table_in_one_case_of_a_hundred(count: int, rows: int) -> None:
    """Rows that scatter apart, which is the worst: 1 % over all of them, by simulation."""
    rng = np.random.default_rng(count)
    failed = []
    for _ in range(150):
        logs = rng.normal(0, 0.05, (rows, count))
        limits = np.array(
            [np.median(row) + math.log(learning.choose_share(list(row), rows)) for row in logs]
        )
        fresh = rng.normal(0, 0.05, (200, rows))
        failed.append(float((fresh < limits).any(axis=1).mean()))
    assert 0.005 < np.mean(failed) < 0.015


def test_a_share_leaves_three_percent_at_least() -> None:
    assert learning.choose_share([1.0] * 6, 1) == 0.97


@pytest.mark.parametrize("count", [6, 8, 12, 24, 60])
def test_few_rows_of_healthy_nodes_lose_one(count: int) -> None:
    rng = np.random.default_rng(1)
    lost = 0
    for _ in range(1000):
        logs = dict(enumerate(rng.normal(0, 0.1, count)))
        lost += bool(nodes.find_outliers({str(name): float(x) for name, x in logs.items()}))
    assert 0.015 < lost / 1000 < 0.07


def test_two_runs_of_a_node_are_refused(tmp_path: Path) -> None:
    from factories import write

    paths = [str(write(run_of(number), tmp_path)) for number in range(2)]
    again = msgspec.structs.replace(run_of(1), run=msgspec.structs.replace(run_of(1).run, id="two"))
    with pytest.raises(UsageError, match="run-1 and two are both runs of rack1"):
        nodes.read_nodes([*paths, str(write(again, tmp_path))])
