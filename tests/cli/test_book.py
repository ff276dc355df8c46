"""The database of nights: several writers, killed ones, old and newer versions."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from factories import ENVIRONMENT, case, dated, nights, swept

from collbench.core.errors import CannotRun, UsageError
from collbench.features.health import history
from collbench.features.health.history import baselines, storage, ways
from collbench.features.health.history import nights as nights_
from collbench.features.health.history.storage import Book
from collbench.machine import environment
from collbench.records.types import RunFile
from collbench.suite import sweep

FORK = multiprocessing.get_context("fork")
VERSION_1 = """
CREATE TABLE collbench_schema (version INTEGER PRIMARY KEY);
CREATE TABLE runs (id TEXT PRIMARY KEY, machine TEXT NOT NULL, night TEXT NOT NULL, started TEXT NOT NULL,
  fingerprint TEXT NOT NULL, tag TEXT NOT NULL, file TEXT NOT NULL);
CREATE TABLE cases (key TEXT PRIMARY KEY, spec TEXT NOT NULL);
CREATE TABLE rows (run TEXT REFERENCES runs (id), key TEXT REFERENCES cases (key), launch INTEGER,
  median DOUBLE PRECISION NOT NULL, samples INTEGER NOT NULL, PRIMARY KEY (run, key, launch));
CREATE TABLE environments (fingerprint TEXT PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE baselines (id TEXT PRIMARY KEY, machine TEXT NOT NULL, made TEXT NOT NULL, content TEXT NOT NULL);
INSERT INTO collbench_schema VALUES (1)"""  # noqa: E501


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'h.sqlite'}"


def raw(url: str, *statements: str) -> list[Any]:
    """What the last of some statements answers, without any of our code."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as to, to:
        for statement in statements:
            rows = to.execute(statement).fetchall()
    return rows


def begun(work: Callable[..., None], *args: Any) -> Any:
    process = FORK.Process(target=work, args=args)
    process.start()
    return process


def test_a_run_is_kept_once_however_often_it_is_added(url: str) -> None:
    cases = swept("all_reduce", "broadcast")
    with history.open_book(url) as kept:
        assert [kept.add(file) for file in nights(cases, 3) for _ in range(2)] == [True, False] * 3
        assert kept.machines() == ["node1"]
    with history.open_book(url) as kept:
        rows = kept.series("node1")
        assert [(row.case.collective, row.case.nbytes) for row in rows] == [
            (c.collective, c.nbytes) for c in cases
        ]
        assert [[night.day for night in row.nights] for row in rows] == [
            ["2026-01-01", "2026-01-02", "2026-01-03"]
        ] * len(cases)
        assert all(
            night.valid and night.launches == 3 and night.samples == 21
            for row in rows
            for night in row.nights
        )
        direct = next(nights(cases, 3))
        assert {row.key: row.nights[0] for row in rows} == nights_.nights_of([direct])
        part = sweep.Part(collectives=("broadcast",), min_size=1 << 20, max_size=2 << 20)
        assert [row.case.nbytes for row in kept.series("node1", part)] == [1 << 20, 2 << 20]
    assert raw(url, "SELECT count(*) FROM rows") == [(3 * 3 * len(cases),)]


def test_what_a_resumed_run_adds_is_kept_too(url: str) -> None:
    one, two = case(1 << 20), case(2 << 20)
    with history.open_book(url) as kept:
        assert kept.add(dated(0, {one: 1e6})) and kept.add(dated(0, {one: 1e6, two: 2e6}))
        assert not kept.add(dated(0, {one: 1e6, two: 2e6}))
        assert [len(row.nights) for row in kept.series("node1")] == [1, 1]


def _adds(url: str, files: list[RunFile], ready: Any) -> None:
    ready.wait()
    with history.open_book(url) as kept:
        for file in files:
            kept.add(file)
    os._exit(0)


def test_many_processes_make_the_tables_and_add_the_same_and_other_runs_at_once(url: str) -> None:
    files, ready = list(nights(swept("all_reduce"), 12)), FORK.Event()
    shares = [files[:8], files[4:], files[::-1], files[::2]]
    writers = [begun(_adds, url, share, ready) for share in shares]
    ready.set()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * 4
    with history.open_book(url) as kept:
        assert [len(row.nights) for row in kept.series("node1")] == [12] * 9
    assert raw(url, "SELECT count(*) FROM rows") == [(12 * 9 * 3,)]
    assert raw(url, "SELECT version FROM collbench_schema") == [(storage.SCHEMA,)]


def _stops_midway(url: str, file: RunFile, there: Any) -> None:
    """Adds a run, but comes no farther than having written some of it."""
    with history.open_book(url) as kept:
        seen = []

        def stop(statement: str) -> None:
            seen.append(statement.startswith("INSERT INTO rows"))
            if seen.count(True) == 3:  # two lines are written
                there.set()
                time.sleep(60)

        kept._connection.set_trace_callback(stop)
        kept.add(file)


def test_a_writer_killed_midway_loses_nothing_and_leaves_nothing_half(url: str) -> None:
    first, second = nights(swept("all_reduce"), 2)
    with history.open_book(url) as kept:
        kept.add(first)
    there = FORK.Event()
    writer = begun(_stops_midway, url, second, there)
    assert there.wait(30)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join(30)
    assert raw(url, "SELECT id FROM runs") == [(first.run.id,)]
    with history.open_book(url) as kept:
        assert [len(row.nights) for row in kept.series("node1")] == [1] * 9
        assert kept.add(second)
        assert [len(row.nights) for row in kept.series("node1")] == [2] * 9


def test_a_database_of_version_1_is_migrated_and_goes_on(url: str) -> None:
    first, second = nights(swept("all_reduce", sizes=[1 << 20]), 2)
    with history.open_book(url) as kept:  # what the fingerprint and the case are written as
        kept.add(first)
    old = {table: raw(url, f"SELECT * FROM {table}") for table in ("runs", "cases")}
    tables = raw(url, "SELECT name FROM sqlite_master WHERE type = 'table'")
    raw(url, *(f"DROP TABLE {name}" for (name,) in tables))
    raw(url, *VERSION_1.split(";"))
    for table, lines in old.items():
        raw(url, *(f"INSERT INTO {table} VALUES ({', '.join(map(repr, line))})" for line in lines))
    key = old["cases"][0][0]
    raw(
        url,
        *(f"INSERT INTO rows VALUES ('{first.run.id}', '{key}', {n}, 1e6, 7)" for n in range(3)),
    )
    for _ in range(2):
        with history.open_book(url) as kept:
            kept.add(second)
            (row,) = kept.series("node1")
            assert [(n.day, n.launches, n.valid) for n in row.nights] == [
                ("2026-01-01", 3, True),
                ("2026-01-02", 3, True),
            ]
            assert (
                len(row.segments) == 1
            )  # how old nights were measured is not known, and no difference
    assert raw(url, "SELECT version FROM collbench_schema") == [(storage.SCHEMA,)]


def test_segments_of_what_was_kept_before_go_by_the_libraries_of_a_rows_backend(url: str) -> None:
    newer = ENVIRONMENT | {"libraries": {"torch": "2.6.0", "mpi4py": "4.1.2"}}
    rows = dict.fromkeys((case(), case(backend="mpi")), 1e6)
    with history.open_book(url) as kept:
        kept.add(dated(0, rows))
        kept.add(dated(1, rows, environment=newer | {"host": "node1"}))
    stored = raw(url, "SELECT fingerprint FROM runs ORDER BY night")
    assert stored == [(environment.make_fingerprint(facts),) for facts in (ENVIRONMENT, newer)]
    with history.open_book(url) as kept:
        gloo, mpi = kept.series("node1")
        assert [part.why for part in gloo.segments] == ["first night"]
        assert [part.why for part in mpi.segments][1:] == ["libraries.mpi4py absent -> 4.1.2"]
        tonight = nights_.nights_of([dated(2, rows)])
        # without mpi4py as at first: that history goes on
        assert [len(ways.find_past(row, tonight[row.key]).values) for row in (gloo, mpi)] == [2, 1]


def test_a_fingerprint_that_the_kept_facts_do_not_make_stands(url: str) -> None:
    """Of several hosts, databases of before hold the facts of one."""
    with history.open_book(url) as kept:
        for n in range(2):
            kept.add(dated(n, {case(): 1e6}))
        (row,) = kept.series("node1")
        facts = raw(url, "SELECT facts FROM environments")[0][0]
        raw(
            url,
            "UPDATE runs SET fingerprint = 'several' WHERE id = 'night-001'",
            f"INSERT INTO environments VALUES ('several', '{facts}')",
        )
        (after,) = kept.series("node1")
    assert len(row.segments) == 1
    (_, second) = after.segments
    assert second.why == f"fingerprint {row.nights[0].fingerprint} -> several"


def test_a_newer_database_is_refused_and_left_alone(url: str) -> None:
    history.open_book(url).close()
    raw(url, "UPDATE collbench_schema SET version = 99")
    with pytest.raises(CannotRun, match="version 99, and this collbench knows") as refused:
        history.open_book(url)
    assert "newer" in refused.value.hint
    assert raw(url, "SELECT version FROM collbench_schema") == [(99,)]


def test_accepted_levels_begin_segments_of_their_rows_and_are_anchors(url: str) -> None:
    with history.open_book(url) as kept:
        for file in nights(swept("all_reduce", sizes=[1 << 20, 2 << 20]), 12):
            kept.add(file)
        rows = kept.series("node1")
        learned = baselines.learn_baseline(rows, "as delivered", "")
        taken = baselines.accept_baseline(rows[:1], "2026-01-08", "new switch", "abc")
        assert [kept.accept(one) for one in (learned, taken, taken)] == [True, True, False]
        first, second = kept.series("node1")
        assert [part.why for part in first.segments] == ["first night", "accepted: new switch"]
        assert [len(part.nights) for part in first.segments] == [7, 5] and len(second.segments) == 1
        assert [len(row.reviews) for row in (first, second)] == [2, 1]
        assert sorted(one.reason for one in kept.baselines("node1")) == [
            "as delivered",
            "new switch",
        ]


@pytest.mark.parametrize(
    "content", ["{", "[1]", '{"schema": 1, "rows": {"a": {"median": 0, "nights": 3}}}']
)
def test_a_kept_level_that_cannot_be_read_is_told_with_its_line(url: str, content: str) -> None:
    with history.open_book(url) as kept:
        for file in nights(swept("all_reduce", sizes=[1 << 20]), 5):
            kept.add(file)
        kept.accept(baselines.learn_baseline(kept.series("node1"), "as delivered", ""))
        (line,) = raw(
            url, f"UPDATE baselines SET content = '{content}'", "SELECT id FROM baselines"
        )[0]
        for ask in (kept.baselines, kept.series):
            with pytest.raises(CannotRun, match=f"line {line} of baselines: ") as refused:
                ask("node1")
            assert "delete that line" in refused.value.hint


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (f"postgresql://me:{SECRET}@127.0.0.1:1/db", UsageError),
        (f"postgresql://me@127.0.0.1:1/db?password={SECRET}", UsageError),
        (f"nothing at all://me:{SECRET}@", UsageError),
        ("sqlite:////proc/none/h.sqlite", CannotRun),
        ("{file}", CannotRun),
        ("{file}/below.sqlite", CannotRun),
    ],
)
def test_what_cannot_be_opened_says_so_in_a_line_without_a_secret(
    given: str, error: type[Exception], tmp_path: Path, bare: Any
) -> None:
    (tmp_path / "f").write_text(
        "this is no database, and long enough to be seen not to be one" * 20
    )
    given = given.format(file=tmp_path / "f")
    with pytest.raises(error) as refused:
        history.open_book(given)
    said = f"{refused.value} {refused.value.hint}"
    assert SECRET not in said and "\n" not in said and refused.value.hint
    if "127.0.0.1:1/db?" in given:
        done = bare("history", "list", "--history", given, "--debug")
        assert SECRET not in done.stdout + done.stderr and done.returncode


@pytest.mark.parametrize("url", ["sqlite:///{file}?mode=ro", "file:{file}?mode=ro&password=x"])
def test_options_of_a_url_are_refused_and_make_no_file(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes no options") as refused:
        history.open_book(url.format(file=tmp_path / "h.sqlite"))
    assert "leave them out" in refused.value.hint
    assert not [*tmp_path.iterdir()]


def test_a_file_may_have_a_question_mark_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "h?mode=ro"
    with history.open_book(str(path)) as kept:
        assert kept.add(dated(0, {case(): 1e6}))
    with history.open_book(str(path), reading=True) as kept:
        assert kept.machines() == ["node1"]
    assert [*tmp_path.iterdir()] == [path]


def test_a_history_that_is_too_large_says_how_to_begin_another(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    with path.open("wb") as file:
        file.truncate((4 << 30) + 1)  # sparse
    with pytest.raises(UsageError, match="larger than 4 GiB") as refused:
        history.open_book(str(path))
    assert "collbench history add RUNS --history" in refused.value.hint


def test_a_history_in_memory_is_gone_when_it_is_closed() -> None:
    with history.open_book("sqlite://") as kept:
        assert kept.add(dated(0, {case(): 1e6})) and kept.machines() == ["node1"]
    with history.open_book("sqlite://") as kept:
        assert kept.machines() == []


def test_the_file_is_beside_the_runs_or_where_the_variable_says_and_private(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.open_book().close()
    assert stat.S_IMODE((home / "history.sqlite").stat().st_mode) == 0o600
    monkeypatch.setenv("COLLBENCH_HISTORY", str(tmp_path / "other.sqlite"))
    assert isinstance(Book(), Book) and (tmp_path / "other.sqlite").is_file()
