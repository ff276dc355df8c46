"""Whatever a file says that sizes anything is bounded before use, and the message says so."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import factories
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from collbench.cli import main
from collbench.core import groups, splits
from collbench.core.errors import Exit, UsageError
from collbench.features.compare import command as compare
from collbench.features.health.checks import curves
from collbench.features.interop import importers
from collbench.features.interop.importers import text
from collbench.features.predict import fit
from collbench.machine import cpus, topology
from collbench.records import run_file
from collbench.records.types import Record, Run, RunFile
from collbench.suite import toml
from collbench.suite.grammar import expand_envs
from collbench.suite.sweep import Axes, Exclude, Part, Suite, Threshold, expand_axes, refuse_case

AXES = 'description="x"\n[axes]\ncollectives=["all_reduce"]\nbackends=["model"]\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return factories.write(factories.stored({factories.case(): 1e6}), tmp_path)


READERS = [run_file.read_file, run_file.read_digest, run_file.read_outline]


@pytest.mark.parametrize("read", READERS)
def test_a_line_longer_than_any_runs_is_refused_before_it_is_in_memory(
    read: object, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_file, "MOST_LINE", 1 << 16)
    with path.open("r+b") as file:
        file.truncate(1 << 34)  # sparse
    with pytest.raises(UsageError, match="line 5: a line of more than 0 MiB"):
        read(path)  # type: ignore[operator]


@pytest.mark.parametrize("read", READERS)
def test_more_lines_than_any_runs_are_refused(
    read: object, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_file, "MOST_LINES", 3)
    with pytest.raises(UsageError, match="line 4: a line too many"):
        read(path)  # type: ignore[operator]


def test_more_lines_than_any_runs_are_refused_before_they_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [factories.record(factories.case(4 * (i + 1))) for i in range(2000)]
    path = factories.write(factories.make_file(records), tmp_path)
    monkeypatch.setattr(run_file, "MOST_LINES", 1999)
    tracemalloc.start()
    with pytest.raises(UsageError, match="a line too many"):
        run_file.read_file(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


@pytest.mark.parametrize("read", [run_file.read_file, run_file.read_digest])
def test_what_records_do_not_hold_takes_no_room_in_each(
    read: Callable[[Path], RunFile], tmp_path: Path
) -> None:
    records = [factories.record(factories.case(4 * (i + 1))) for i in range(2)]
    first, second = read(factories.write(factories.make_file(records), tmp_path)).records
    empty = [name for name in run_file.NOTHING if not getattr(first, name)]
    assert {"sent", "load", "starts_ns"} <= {*empty}
    assert all(getattr(first, name) is getattr(second, name) for name in empty)


def test_what_is_compared_or_fitted_holds_no_times_of_single_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which are most of a run, and which neither looks at."""
    case = factories.case()
    each = factories.record(case, per_rank=[[9] * 7] * case.n, starts_ns=[[0] * 7] * case.n)
    path = factories.write(factories.make_file([each]), tmp_path)
    monkeypatch.setattr(run_file, "read_file", None)
    (file,) = compare._find_runs(str(path))
    assert file.records[0].times_ns and not file.records[0].per_rank
    done = CliRunner().invoke(main.app, ["fit", str(path)])
    assert done.exit_code == Exit.NO_VERDICT, done.exception


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["health", "RUN", "--no-history", "--expect"], "larger than 256 KiB"),
        (["history", "baseline", "load"], "larger than 16,384 KiB"),
        (["history", "trend", "--history"], "larger than 4 GiB"),
        (["pairs", "-g", "3", "--dry-run", "--topology"], "larger than 4,096 KiB"),
    ],
)
def test_files_that_are_handed_in_are_refused_before_they_are_in_memory(
    words: list[str], said: str, path: Path, tmp_path: Path
) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 34)  # sparse
    given = [str(path) if word == "RUN" else word for word in words]
    done = CliRunner().invoke(main.app, [*given, str(large)])
    assert isinstance(done.exception, UsageError) and said in str(done.exception)


def test_a_night_is_judged_though_its_history_is_full(path: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    with full.open("wb") as file:
        file.truncate(1 << 34)  # sparse
    done = CliRunner().invoke(main.app, ["health", str(path), "--history", str(full)])
    assert done.exit_code == Exit.NO_VERDICT, done.exception
    assert "larger than 4 GiB" in done.output


def test_expectations_are_no_deeper_than_a_person_writes(tmp_path: Path) -> None:
    """A key of many parts takes the square of their number to read."""
    path = tmp_path / "expected.toml"
    path.write_text("a." * 33 + "a=1")
    with pytest.raises(UsageError, match="its keys are too deep"):
        curves.load_curves(path)


def test_to_go_on_with_a_run_no_endless_line_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_file, "MOST_LINE", 1 << 16)
    with path.open("r+b") as file:
        file.truncate(1 << 34)
    with pytest.raises(UsageError, match="line 5"):
        run_file.Writer(path)


def test_an_outline_counts_the_records_that_stand(tmp_path: Path) -> None:
    small = factories.case(8)
    records = [
        Record(case=small, status="failed"),
        factories.record(small),
        factories.record(small, world=1),
        factories.record(small, world=1, again=True),
        Record(case=factories.case(16), status="failed"),
    ]
    path = factories.write(factories.make_file(records), tmp_path)
    found, whole = run_file.read_outline(path), run_file.read_file(path)
    size = path.stat().st_size
    assert found == (whole.run, len(whole.records), whole.end, False, False, size)


def test_a_run_that_cannot_be_read_does_not_stop_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path))
    monkeypatch.setattr(run_file, "MOST_LINE", 1 << 16)
    factories.saved(factories.stored({factories.case(): 1e6}, name="1-well"), tmp_path)
    bad = factories.saved(factories.stored({factories.case(): 1e6}, name="2-bad"), tmp_path)
    with bad.open("r+b") as file:
        file.truncate(1 << 34)
    (tmp_path / "runs" / "3-folder.jsonl").mkdir()
    done = CliRunner().invoke(main.app, ["runs"])
    assert done.exit_code == 0
    assert "1-well" in done.output
    assert done.output.count("left out:") == 1  # a folder is no run


def test_samples_are_no_more_than_any_run_takes() -> None:
    record = msgspec.to_builtins(factories.record(factories.case()))
    record["times_ns"] = [1] * ((1 << 20) + 1)
    with pytest.raises(msgspec.ValidationError, match="length <= 1048576"):
        msgspec.convert(record, Record)


def test_an_environment_is_no_larger_than_any_machines() -> None:
    run = msgspec.to_builtins(factories.run())
    run["environment"]["variables"] = {f"NCCL_{i}": "x" for i in range(30_000)}
    with pytest.raises(msgspec.ValidationError, match="more than 256 KiB"):
        msgspec.convert(run, Run)


@pytest.mark.parametrize("tables", [101, 1])
def test_tables_that_every_case_is_asked_about_are_few_and_short(tables: int) -> None:
    match = Part(sizes=tuple(range(2001 // tables)))
    asked = tuple(Threshold(match=match, tau=0.1) for _ in range(tables))
    with pytest.raises(ValueError, match="more than 100 overrides"):
        msgspec.structs.replace(factories.suite(), thresholds=asked)


def test_cases_times_the_tables_they_are_asked_about_are_bounded() -> None:
    axes = Axes(collectives=("all_reduce",), sizes=tuple(range(4, 20_004)), ranks=(2,))
    exclude = Exclude(match=Part(sizes=(4,)))
    assert sum(map(len, Suite(name="x", axes=axes, excludes=(exclude,)).expand())) == 39_998
    with pytest.raises(UsageError, match="more than 10000 cases with 100 overrides and excludes"):
        Suite(name="x", axes=axes, excludes=(exclude,) * 100).expand()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("#" + "x" * (1 << 18), "larger than 256 KiB"),
        ("a." * 33 + "a=1", "its keys are too deep"),
        ("'a' . " * 33 + "a=1", "its keys are too deep"),
        (AXES + f"ranks=[2]\nsizes={list(range(10_001))}", "at most 10000"),
        (AXES + f"sizes=[8]\nranks={list(range(2, 1003))}", "at most 1000"),
        (AXES + "ranks=[2]\nsizes=[8]\n" + "[[include]]\nsizes=[16]\n" * 101, "more than 100"),
        (AXES + "ranks=[2]\nsizes=[8]\n" + "[[exclude]]\nsizes=[16]\n" * 101, "more than 100"),
    ],
)
def test_suites_are_no_longer_than_a_person_writes(words: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(words)
    with pytest.raises(UsageError, match=said):
        toml.load_suite(str(path))


def test_settings_are_no_more_than_worlds_can_be_started() -> None:
    with pytest.raises(UsageError, match="more than 1000 combinations"):
        expand_envs([f"A{i}=1,2" for i in range(60)])


def test_rounds_of_pairs_are_counted_while_they_are_made() -> None:
    axes = Axes(collectives=("all_reduce",), sizes=(8,), ranks=(4096,), groups="pairs")
    with pytest.raises(UsageError, match="more than 50000 cases"):
        expand_axes(axes)
    assert groups.list_members.cache_info().currsize <= 128


def test_groups_are_made_of_no_more_ranks_than_there_are_machines_for() -> None:
    with pytest.raises(UsageError, match="ranks are too many"):
        groups.list_members("mod:2", 1 << 20)


@pytest.mark.parametrize("rule", ["mod:" + "9" * 5000, "pairs:rail:" + "9" * 5000])
def test_a_rule_has_no_number_that_is_none(rule: str) -> None:
    with pytest.raises(UsageError):
        groups.normalise_rule(rule)


@given(
    st.sampled_from(["uniform", "spread", "spread:0", "spread:0.3", "zipf", "zipf:0", "zipf:2.5"]),
    st.integers(1, 40),
    st.integers(0, 1 << 20),
    st.sampled_from([1, 2, 4, 8]),
)
def test_the_extent_of_splits_is_that_of_their_table(
    spec: str, n: int, nbytes: int, itemsize: int
) -> None:
    table = splits.split_matrix(spec, n, nbytes, itemsize)
    expected = (table.sum(1).max(), table.sum(0).max(), splits.count_busiest(table))
    assert splits.measure_extent(spec, n, nbytes, itemsize) == expected


def test_a_case_makes_no_table_of_all_pairs_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "split_matrix", lambda *_: pytest.fail("made"))
    case = factories.case(1 << 30, "all_to_allv", n=4096, splits="zipf:1.25")
    assert case.size > case.moved > 0


def test_a_table_of_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").write_text("8 8\n8 8\n")
    case = factories.case(16, "all_to_allv", n=2, splits=f"matrix:{tmp_path}/m")
    assert case.size == 16
    monkeypatch.setattr(np, "loadtxt", lambda *_, **__: pytest.fail("again"))
    assert (case.size, case.moved) == (16, 8)


def test_moves_of_a_million_ranks_are_not_counted() -> None:
    case = factories.case(n=1 << 20, algorithm="ring")
    assert refuse_case(case) == "ring: for at most 4096 ranks"
    rows = {msgspec.structs.replace(case, nbytes=8 << i): 1e6 for i in range(4)}
    (series,) = fit.make_series(factories.stored(rows))
    assert series.refused


def test_dry_run_shows_so_many_lines_and_counts_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(AXES + f"ranks=[2]\nsizes={list(range(4, 1204, 2))}")
    done = CliRunner().invoke(main.app, ["run", str(path), "--dry-run"])
    assert "and 200 more" in done.output
    assert len(done.output.splitlines()) < 1100


def test_cores_are_counted_once_for_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    number = cpus.core_count()
    monkeypatch.setattr(cpus, "usable_cpus", lambda *_: pytest.fail("again"))
    assert cpus.core_count() == number


def test_json_of_more_values_than_any_log_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MOST_VALUES", 9)
    log = json.dumps({"results": [{}] * 9})
    with pytest.raises(UsageError, match="more than 9 values"):
        importers.read_log(log, importers.Asked(name="x"), "nccl-tests")


def test_a_log_has_no_more_results_than_tables_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importers, "MOST_RECORDS", 2)
    rows = "8 1.0\n16 1.0\n32 1.0\n"
    log = f"# OSU MPI Allreduce Latency Test\n# Size Avg Latency(us)\n{rows}"
    with pytest.raises(UsageError, match="more than 2 results"):
        importers.read_log(log, importers.Asked(name="x", ranks=2))


def test_a_log_of_more_ranks_than_can_be_described_is_refused() -> None:
    log = "# OSU MPI Allreduce Latency Test\n# Size Avg Latency(us)\n8 1.0\n"
    with pytest.raises(UsageError, match="no machine has 100000 ranks"):
        importers.read_log(log, importers.Asked(name="x", ranks=100_000))


@pytest.mark.parametrize("key", ["a." * 3000, '"a" . ' * 3000])
def test_a_topology_of_deep_keys_is_refused_before_it_is_parsed(tmp_path: Path, key: str) -> None:
    """A hundred thousand parts would take 40 GB."""
    path = tmp_path / "racks.toml"
    path.write_text(f"{key}b = 1\n")
    with pytest.raises(UsageError, match="its keys are too deep"):
        topology.read_racks(path)
