"""What ranks do in the background of a case: it goes on while calls are measured, is timed alone
and beside them, has right data, and ends on all ranks alike."""

from __future__ import annotations

import csv
import io
import threading
import time
from collections.abc import Callable

import pytest
from needs import need_mpi

from collbench.core.errors import RunBroken
from collbench.records import run_file
from collbench.records.types import Record
from collbench.run.rank.background import FEWEST, UNIT_NS, _make_spin
from collbench.suite import backgrounds
from collbench.suite.case import Case

Measure = Callable[..., list[Record]]
KINDS = ("sleep", "spin", "gemm", "copy", "all_to_all", "all_reduce:4K", "broadcast", "all_to_allv")


def case(background: str = "", backend: str = "gloo", **fields: object) -> Case:
    given = {"collective": "all_reduce", "n": 2, "nbytes": 4096, "op": "sum", **fields}
    return Case(backend=backend, background=background, **given)  # type: ignore[arg-type]


@pytest.mark.slow
def test_it_is_timed_alone_and_beside_the_calls(measure: Measure) -> None:
    records = measure([case(kind, mode="host") for kind in KINDS], iters=60)
    assert [(r.case.background, r.status, r.wrong) for r in records] == [
        (kind, "ok", 0) for kind in KINDS
    ]
    for record in records:
        assert record.background is not None
        assert len(record.background.alone_ns) >= FEWEST - 1
        assert min(record.background.alone_ns) > 0


@pytest.mark.slow
def test_it_goes_on_while_long_calls_are_measured(measure: Measure) -> None:
    kinds = ("sleep", "gemm", "copy", "all_to_all")
    records = measure([case(kind, nbytes=16 << 20) for kind in kinds], iters=6)
    assert [record.case.background for record in records] == [*kinds]
    for record in records:
        assert record.background is not None
        assert len(record.background.during_ns) > 3


GROUPED = {  # by the background, the groups of the case that have none of its ranks
    "all_gather@div:2": (),
    "all_to_all@mod:2": (),
    "all_reduce": (),
    "all_to_all@div:2#1": (0,),
}


@pytest.mark.slow
def test_groups_of_its_own_have_right_data(measure: Measure) -> None:
    """Beside groups of the case: the same, a grid, one of all, and others."""
    by_group = [
        [case(background, groups="div:2", of=2, group=group) for background in GROUPED]
        for group in (1, 0)
    ]
    records = measure(by_group[1], iters=20, split="div:2")
    assert [(r.status, r.wrong, r.note) for r in records] == [("ok", 0, "")] * 2 * len(GROUPED)
    assert {record.case for record in records} == {each for cases in by_group for each in cases}
    assert all(record.background and record.background.alone_ns for record in records)
    assert {
        background: tuple(
            r.case.group
            for r in records
            if r.case.background == background and not backgrounds.count_ranks(r.case)
        )
        for background in GROUPED
    } == GROUPED


@pytest.mark.slow
def test_wrong_data_in_one_group_of_its_own_is_told(measure: Measure) -> None:
    (record,) = measure([case("all_to_all@mod:2", "muddler", n=4)], sabotage="stale:1:0")
    assert record.status == "wrong"
    assert "all_to_all in the background on rank" in record.note


def test_a_core_that_is_kept_busy_leaves_python_its_lock() -> None:
    spin, seen = _make_spin(list), []
    thread = threading.Thread(target=lambda: [spin() for _ in range(200)])
    thread.start()
    while thread.is_alive():
        seen.append(time.perf_counter_ns())
        time.sleep(0)
    assert len(seen) > 200 * 2  # were it held, there would be one look at most to a unit


def test_a_unit_of_sleep_is_no_shorter_than_it_says(measure: Measure) -> None:
    (record,) = measure([case("sleep")])
    assert record.background is not None
    assert min(record.background.alone_ns) >= UNIT_NS


def test_cases_without_have_none(measure: Measure) -> None:
    with_one, without = measure([case("gemm"), case()])
    assert with_one.background is not None and without.background is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "algorithm", "mode"),
    [
        ("shm", "ring", "isolated"),
        ("gloo", "ring", "streaming"),
        ("gloo", "native", "isolated"),
        ("mpi", "native", "isolated"),
    ],
)
def test_every_way_of_calling_has_it(
    backend: str, algorithm: str, mode: str, measure: Measure
) -> None:
    if backend == "mpi":
        need_mpi()
    (record,) = measure([case("copy", backend, algorithm=algorithm, mode=mode)], iters=10)
    assert (record.status, record.wrong) == ("ok", 0), record.note
    assert record.background is not None


@pytest.mark.parametrize("sabotage", ["stale:1:0", "freeze:1:0"])
def test_wrong_data_of_a_collective_in_the_background_is_told(
    sabotage: str, measure: Measure
) -> None:
    """Its call works on other buffers than it is given, or does nothing after the first."""
    (record,) = measure([case("all_to_all", "muddler")], sabotage=sabotage)
    assert record.status == "wrong"
    assert "all_to_all in the background on rank" in record.note
    assert record.times_ns == []


@pytest.mark.slow
def test_a_rank_that_ends_meanwhile_is_named(measure: Measure) -> None:
    with pytest.raises(RunBroken, match="rank 1"):
        measure([case("all_to_all", nbytes=1 << 20)], iters=50, inject="drop:1")


@pytest.mark.slow
def test_who_ended_is_told_on_the_command_line(cli) -> None:
    done = cli(
        *("all_reduce", "--background", "all_to_all", "--sizes", "64K", "-g", "2", "-n", "10"),
        *("--place", "out", "--no-save", "--inject", "drop:1"),
    )
    assert done.returncode == 4, done.stderr
    assert "rank 1" in done.stderr


@pytest.mark.slow
def test_overlap_measures_and_shows_again(cli, tmp_path) -> None:
    path = tmp_path / "run.jsonl"
    words = ("--with", "sleep,all_to_all", "--sizes", "64K", "-g", "2", "-n", "7")
    done = cli(
        "overlap",
        "all_reduce",
        *words,
        *("--max-time", "0.05s", "--format", "csv"),
        *("--output", str(path)),
    )
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    is_decided = any(row["verdict"] != "no verdict" for row in rows)
    code = 0 if is_decided else 3
    assert done.returncode == code, done.stderr
    assert [row["background"] for row in rows] == ["sleep", "all_to_all"]
    assert {row["rounds"] for row in rows} == {"7"}
    assert all(float(row["slower_lo"]) > 0 for row in rows)
    again = cli("overlap", str(path), "--format", "csv")
    assert (again.returncode, again.stdout) == (code, done.stdout)


@pytest.mark.slow
def test_a_single_round_decides_nothing_and_exits_3(cli) -> None:
    words = ("--with", "sleep", "--sizes", "64K", "-g", "2", "-n", "1", "--max-time", "0.05s")
    done = cli("overlap", "all_reduce", *words, "--format", "csv", "--no-save")
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    assert (row["rounds"], row["verdict"]) == ("1", "no verdict")
    assert done.returncode == 3, done.stderr


@pytest.mark.slow
def test_a_run_without_any_says_what_would_make_one(cli, tmp_path) -> None:
    path = tmp_path / "run.jsonl"
    cli("all_reduce", "--sizes", "64", "-g", "1", "-n", "2", "--output", str(path))
    done = cli("overlap", str(path))
    assert done.returncode == 2
    assert "collbench overlap all_reduce" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-J", "out.json")])
def test_rows_with_one_are_read_back_from_nccl_tests_forms(options, cli, tmp_path) -> None:
    asked = ("--background", "none,sleep,all_to_all:4K", "--sizes", "1K", "-g", "2", "-n", "6")
    done = cli("all_reduce", *asked, *(str(tmp_path / o) if "." in o else o for o in options))
    assert done.returncode == 0, done.stderr
    log = tmp_path / (options[-1] if options else "log.txt")
    if not options:
        log.write_text(done.stdout)
    path = tmp_path / "run.jsonl"
    read = cli("import", str(log), "--output", str(path))
    assert read.returncode == 0, read.stderr
    backgrounds = {record.case.background for record in run_file.read_file(path).records}
    assert backgrounds == {"", "sleep", "all_to_all:4K"}
