"""Files that collbench 0.1.0 wrote on two days of its making are read as it read them.

tests/earlier/DAY holds what the revision of that day wrote, hosts and paths renamed: two runs of a
suite with the suite, and rows.csv, which is that revision's own `collbench.frame` of the two; where
it had them, a database of 14 nights (as SQL) with its reviewed baselines, nccl-tests' text and
JSON, a run of pairs, a recorded job, a training step."""

from __future__ import annotations

import csv
import json
import math
import sqlite3
import statistics
from pathlib import Path

import pytest
from factories import nights, swept

import collbench
from collbench.core.errors import Exit
from collbench.features.health import history
from collbench.records import run_file

EARLIER = Path(__file__).parents[1] / "earlier"
DAYS = sorted(path.name for path in EARLIER.iterdir())
FIRST, LATER = DAYS
COLUMNS = ("collective", "implementation", "size", "status")


@pytest.fixture
def database(tmp_path: Path) -> str:
    """The database of 14 nights as the first revision left it: all_reduce is slower from the 11th
    night on, and that level was accepted."""
    path = tmp_path / "history.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript((EARLIER / FIRST / "history.sql").read_text())
    connection.close()
    return str(path)


def runs(day: str) -> list[str]:
    return [str(EARLIER / day / f"{side}.jsonl") for side in ("base", "head")]


def test_there_are_files_of_two_days() -> None:
    assert len(DAYS) == 2


@pytest.mark.parametrize("day", DAYS)
def test_rows_are_those_that_the_writing_version_made(day: str) -> None:
    with (EARLIER / day / "rows.csv").open() as file:
        expected = {tuple(line[name] for name in COLUMNS): [] for line in csv.DictReader(file)}
        file.seek(0)
        for line in csv.DictReader(file):
            expected[tuple(line[name] for name in COLUMNS)].append(line)
    table = collbench.frame(*runs(day))
    assert len(table) == sum(map(len, expected.values())) == 12
    for key, lines in expected.items():
        chosen = table
        for name, text in zip(COLUMNS, key, strict=True):
            chosen = chosen[chosen[name].astype(str) == text]
        for name in ("median", "busbw"):
            values = [float(line[name]) if line[name] else math.nan for line in lines]
            assert list(chosen[name]) == pytest.approx(values, nan_ok=True, rel=1e-12), (key, name)


@pytest.mark.parametrize("day", DAYS)
def test_a_runs_median_is_that_of_its_recorded_times(day: str) -> None:
    for path in runs(day):
        lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
        medians = sorted(
            statistics.median(line["times_ns"]) / line.get("inner", 1)
            for line in lines
            if line["line"] == "record" and line["status"] == "ok"
        )
        table = collbench.frame(path)
        assert sorted(table["median"].dropna()) == pytest.approx(medians, rel=1e-6)


@pytest.mark.parametrize("day", DAYS)
def test_runs_are_reported_and_compared(inside, day: str, tmp_path: Path) -> None:
    page = inside("report", *runs(day), "-o", str(tmp_path / "page.md"))
    assert page.returncode == 0, page.stderr
    assert "ring@gloo" in (tmp_path / "page.md").read_text()
    done = inside("compare", *runs(day), "--format", "json")
    assert done.returncode == Exit.NO_VERDICT, done.stderr  # of one launch a side
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 4


@pytest.mark.parametrize("day", DAYS)
def test_a_finished_run_has_nothing_left_to_resume(inside, day: str) -> None:
    done = inside("run", "--resume", runs(day)[0], "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "0 cases" in done.stdout


@pytest.mark.parametrize("day", DAYS)
def test_a_suite_plans_the_cases_that_it_measured(inside, day: str) -> None:
    done = inside("run", str(EARLIER / day / "suite.toml"), "--dry-run")
    assert done.returncode == 0, done.stderr
    measured = [line.case for line in run_file.read_file(Path(runs(day)[0])).records]
    assert len(measured) == 6
    assert "4 cases" in done.stdout and "2 skipped" in done.stdout
    assert "left out" in done.stdout  # the reason of its [[exclude]]


def test_nights_are_listed_with_the_level_that_was_accepted(inside, database: str) -> None:
    listed = inside("history", "list", "--history", database)
    assert listed.returncode == 0 and "2026-01-14" in listed.stdout, listed.stderr
    trend = inside("history", "trend", "--history", database, "--all", "--format", "json")
    assert trend.returncode == 0, trend.stderr
    assert "new kernel" in trend.stdout


def test_tonight_is_held_against_nights_that_an_earlier_version_kept(database: str) -> None:
    cases = swept("all_reduce", "broadcast", sizes=[1 << 20])
    *_, tonight = nights(cases, 15, lambda case, night: 0.0)
    with history.open_book(database) as book:
        assert book.add(tonight)
        segments = {
            series.case.collective: [(len(part.nights), part.why) for part in series.segments]
            for series in book.series("node1")
        }
    assert segments == {
        "all_reduce": [(10, "first night"), (5, "accepted: new kernel")],
        "broadcast": [(15, "first night")],
    }


@pytest.mark.parametrize("day", DAYS)
def test_baselines_are_loaded(inside, day: str, tmp_path: Path) -> None:
    files = [str(EARLIER / day / f"{name}.json") for name in ("baseline", "accepted")]
    kept = str(tmp_path / "new.sqlite")
    done = inside("history", "baseline", "load", *files, "--history", kept)
    assert done.returncode == 0, done.stderr
    with history.open_book(kept) as book:
        medians = {
            key.partition("/")[0]: row.median
            for baseline in book.baselines("node1")
            for key, row in baseline.rows.items()
        }
    learned = json.loads(Path(files[0]).read_text())["rows"]
    (level,) = learned.values()
    assert medians["broadcast"] == pytest.approx(level["median"])


@pytest.mark.parametrize("day", DAYS)
@pytest.mark.parametrize("name", ["nccl.json", "nccl.txt"])
def test_nccl_tests_text_and_json_are_imported(inside, day: str, name: str, tmp_path: Path) -> None:
    done = inside("import", str(EARLIER / day / name), "--output", str(tmp_path / "run.jsonl"))
    assert done.returncode == 0, done.stderr
    assert "2 records of all_reduce, 2 ranks" in done.stdout


@pytest.mark.parametrize("day", DAYS)
def test_a_run_of_pairs_is_reported(inside, day: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    done = inside("report", str(EARLIER / day / "pairs.jsonl"), "-o", str(page))
    assert done.returncode == 0, done.stderr
    assert "sendrecv" in page.read_text()


def test_a_recorded_job_is_analysed_and_counted(inside) -> None:
    trace = str(EARLIER / LATER / "trace")
    assert "no hang" in inside("trace", trace).stdout
    counted = inside("replay", trace, "--show")
    assert counted.returncode == 0, counted.stderr
    assert "296 B" in counted.stdout  # 8 for what DDP broadcasts, 288 for 8 x 8 weights and a bias


def test_a_training_step_is_counted(inside) -> None:
    done = inside("workload", str(EARLIER / LATER / "step.csv"), "--show")
    assert done.returncode == 0, done.stderr
    assert "177.3 MiB" in done.stdout
