"""Cases as gauges: monitoring reads what reports show, and what is missing is absent."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from factories import case, make_file, night, nightly, record, suite, world
from monitoring import lint_metrics, read_samples

from collbench.records import points, rows
from collbench.records.types import RunFile
from collbench.show import programs
from collbench.show.document import Gauge
from collbench.show.views import gauges
from collbench.suite.policy import Policy

EVIL = 'x"} 1\ncollbench_case_time_seconds{a="\\'


def samples(*files: RunFile) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    text = programs.render_prometheus(gauges.make_document(files))
    assert lint_metrics(text) == []
    return read_samples(text)


def test_a_case_has_its_time_interval_and_bandwidth_in_seconds_and_bytes() -> None:
    file = make_file([record(case(1 << 20), times_ns=[1_990_000, 2_000_000, 2_010_000] * 15)])
    (row,) = rows.make_rows([file])
    point = points.over_launches([row])
    values = {name: [*by_labels.values()] for name, by_labels in samples(file).items()}
    assert values["collbench_case_time_seconds"] == [pytest.approx(2e-3)]
    assert math.isfinite(point.lo) and math.isfinite(point.hi)
    assert values["collbench_case_time_low_seconds"] == [pytest.approx(point.lo / 1e9)]
    assert values["collbench_case_time_high_seconds"] == [pytest.approx(point.hi / 1e9)]
    bandwidth = (1 << 20) * 1.5 / 2e-3  # busbw of all_reduce over four ranks is 2 * 3 / 4 of S / t
    assert values["collbench_case_bus_bandwidth_bytes_per_second"] == [pytest.approx(bandwidth)]


def test_labels_say_what_was_measured() -> None:
    file = make_file([record(case(64))], name="id", suite=suite("mine"))
    (labels,) = samples(file)["collbench_case_time_seconds"]
    assert dict(labels) == {
        "suite": "mine",
        "machine": "unknown",
        "collective": "all_reduce",
        "size": "64",
        "ranks": "4",
        "backend": "gloo",
        "algorithm": "native",
        "dtype": "float",
        "op": "sum",
        "in_place": "no",
        "mode": "isolated",
    }


OTHER: dict[str, Any] = {
    "collective": "all_gather",
    "backend": "mpi",
    "n": 8,
    "nbytes": 128,
    "algorithm": "ring",
    "dtype": "half",
    "op": "max",
    "root": 1,
    "in_place": True,
    "mode": "host",
    "env": (("A", "1"),),
    "splits": "zipf:1",
    "align": 16,
    "group": 1,
    "arrival": "late",
    "subject": "ring",
    "background": "matmul",
}


@pytest.mark.parametrize("name", [name for name in case().__struct_fields__ if name != "cycle"])
def test_cases_that_differ_never_share_labels(name: str) -> None:
    if name in ("groups", "of"):
        plain, other = case(64, n=2), case(64, n=2, groups="mod:2", of=2)
    elif name == "group":
        plain, other = (case(64, n=2, groups="mod:2", of=2, group=group) for group in (0, 1))
    else:
        plain, other = case(64), msgspec.structs.replace(case(64), **{name: OTHER[name]})
    assert gauges.label_case(plain) != gauges.label_case(other)


def test_cycles_are_one_case() -> None:
    assert gauges.label_case(case(64)) == gauges.label_case(case(64, cycle=3))


@pytest.mark.parametrize("status", ["failed", "wrong", "skipped"])
def test_a_case_without_a_time_has_no_series_and_is_counted(status: str) -> None:
    found = samples(make_file([record(case(64), status=status), record(case(128))]))
    sizes = [dict(labels)["size"] for labels in found["collbench_case_time_seconds"]]
    counts = {dict(k)["status"]: v for k, v in found["collbench_run_cases"].items()}
    assert sizes == ["128"]
    assert counts == {"ok": 1, "predicted": 0, "skipped": 0, "wrong": 0, "failed": 0} | {status: 1}


def test_an_interval_that_nothing_bounds_is_absent_and_not_0() -> None:
    found = samples(make_file([record(case(64), times_ns=[1000, 1010])]))
    assert len(found["collbench_case_time_seconds"]) == 1
    assert "collbench_case_time_low_seconds" not in found
    assert "collbench_case_time_high_seconds" not in found


def test_a_collective_without_busbw_has_none() -> None:
    found = samples(make_file([record(case(0, "barrier"), 5e3)]))
    assert "collbench_case_bus_bandwidth_bytes_per_second" not in found
    assert "collbench_case_time_seconds" in found


def test_a_run_that_was_cut_short_has_no_end() -> None:
    found = samples(make_file([record(case(64))], end=None))
    assert "collbench_run_end_timestamp_seconds" not in found
    assert "collbench_run_exit_code" not in found
    assert [*found["collbench_run_start_timestamp_seconds"].values()] == [1767323045.0]


def test_a_time_that_cannot_be_read_is_absent() -> None:
    found = samples(make_file([record(case(64))], started="yesterday"))
    assert "collbench_run_start_timestamp_seconds" not in found


def test_a_run_of_nothing_has_no_cases() -> None:
    found = samples(make_file([]))
    assert not any(name.startswith("collbench_case_") for name in found)
    assert sum(found["collbench_run_cases"].values()) == 0


def test_of_two_runs_of_a_suite_the_later_counts_whichever_is_named_first() -> None:
    early = make_file([record(case(64), 1e6)], end=None, name="early")
    late = make_file(
        [record(case(64), 2e6)], end=None, name="late", started="2026-01-03T00:00:00+00:00"
    )
    for files in ((early, late), (late, early)):
        assert [*samples(*files)["collbench_case_time_seconds"].values()] == [pytest.approx(2e-3)]


def test_runs_of_one_night_are_launches_of_one_measurement() -> None:
    """As under Slurm, where each run is a launch."""
    times = [1e6, 3e6, 2e6]
    files = [make_file([record(case(64), ns)], name=f"run-{ns}") for ns in times]
    found = samples(*files)
    assert [*found["collbench_case_launches"].values()] == [3]
    assert [*found["collbench_case_time_seconds"].values()] == [pytest.approx(2e-3)]
    later = make_file([record(case(64), 5e6)], started="2026-01-05T00:00:00+00:00")
    found = samples(*files, msgspec.structs.replace(later, end=None))
    assert [*found["collbench_case_launches"].values()] == [1]


def test_runs_that_were_measured_in_two_ways_are_not_mixed() -> None:
    plain, faulty = (
        make_file([record(case(64), ns)], policy=Policy(inject=inject), name=f"run-{ns}")
        for ns, inject in ((1e6, ""), (2e6, "slow-rank:3:20%"))
    )
    kernels = [
        make_file([record(case(64), ns)], environment={"kernel": kernel}, name=f"run-{ns}")
        for ns, kernel in ((1e6, "6.1"), (2e6, "6.2"))
    ]
    assert [*samples(*kernels)["collbench_case_launches"].values()] == [1]
    times = samples(plain, faulty)["collbench_case_time_seconds"]
    assert sorted(times.values()) == [pytest.approx(1e-3), pytest.approx(2e-3)]


def test_runs_of_two_suites_stand_beside_each_other() -> None:
    files = [make_file([record(case(64))], suite=suite(name), name=name) for name in ("a", "b")]
    assert len(samples(*files)["collbench_case_time_seconds"]) == 2


def test_a_planted_fault_is_a_label_of_every_case() -> None:
    found = samples(make_file([record(case(64))], policy=Policy(inject="slow-rank:3:20%")))
    assert [*found["collbench_run_injected"].values()] == [1]
    names = [name for name in found if name.startswith("collbench_case_")]
    assert names
    for name in names:
        assert all(dict(labels)["fault"] == "slow-rank:3:20%" for labels in found[name])


def test_rows_of_a_fake_gpu_have_no_time() -> None:
    found = samples(make_file([record(case(64), world=0)], [world(fake=True)]))
    assert "collbench_case_time_seconds" not in found
    assert [*found["collbench_run_fake"].values()] == [1]


def test_no_name_breaks_a_line() -> None:
    file = make_file([record(case(64, env=(("A", EVIL),)))], tag=EVIL, suite=suite(EVIL))
    found = samples(file)
    assert len(found["collbench_case_time_seconds"]) == 1
    (labels,) = found["collbench_run_info"]
    assert "\\n" not in dict(labels)["tag"] and '\\"' in dict(labels)["tag"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_absent(value: float) -> None:
    assert programs.render_gauges([Gauge("collbench_a", "A.", [({}, value)])]) == ""


def test_a_line_end_or_backslash_in_a_description_is_escaped() -> None:
    text = programs.render_gauges([Gauge("collbench_a", "A\n\\b.", [({}, 1)])])
    assert text.splitlines()[0] == "# HELP collbench_a A\\n\\\\b."


def test_a_night_makes_some_six_series_a_case() -> None:
    """The number that the manual names."""
    found = samples(night())
    cases = len(nightly())
    series = sum(map(len, found.values()))
    assert len(found["collbench_case_time_seconds"]) == cases
    assert series <= 6 * cases + 11
    assert len(gauges.CASE_GAUGES) == 6


def test_the_linter_finds_what_promtool_does() -> None:
    line = "# HELP {0} A.\n# TYPE {0} gauge\n{0} 1\n"
    assert lint_metrics(line.format("collbench_case_time_seconds")) == []
    for name in ("a_ms", "a_gauge", "aB", "a_total", "a_count", "a_milliseconds"):
        assert lint_metrics(line.format(name)), name
    assert lint_metrics("a 1\n")
    with pytest.raises(ValueError, match="twice"):
        read_samples("a 1\na 2\n")
