"""Small things that a newcomer meets: one meaning of an option, titles that are whole, tables of
any width."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import msgspec
import pytest
import typer
from factories import night, saved

from collbench.cli.run import _measure_each
from collbench.core.errors import Exit
from collbench.features.health.history import command as history
from collbench.features.health.locate import search as locate
from collbench.features.health.locate.search import Rules
from collbench.records import run_file, store
from collbench.run.order import Order
from collbench.suite.sweep import Axes, Suite

AXES = Axes(collectives=("all_reduce",), sizes=(8,), ranks=(2,))
MODEL = ("all_reduce", "--sizes", "8", "-g", "4", "--backend", "model")


@pytest.mark.parametrize(
    ("word", "way"),
    [
        ("page.html", "collbench report @last -o page.html writes it after a run"),
        ("out/x", "omit -o and redirect: > out/x"),
        ("results.csv", "--format csv > results.csv writes it"),
        ("results.xml", "omit -o and redirect: > results.xml"),
        ("run.jsonl", "--output run.jsonl saves the run there"),
        ("old.json", "-J old.json writes nccl-tests' JSON"),
    ],
)
def test_a_file_given_as_a_reduction_is_told_apart(bare, word: str, way: str) -> None:
    done = bare(*MODEL, "-o", word)
    assert done.returncode == 2
    assert f"-o {word}: a file is given, but -o is the reduction" in done.stderr
    assert f"hint: {way}" in done.stderr


def test_a_page_given_as_the_folder_of_both_sides_is_told_apart(bare, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = bare("ab", "--aa", "--suite", "pr", "--output", str(page))
    assert (done.returncode, f"hint: name a folder; -o {page} writes" in done.stderr) == (2, True)
    assert not page.exists()


def test_of_a_list_that_is_given_twice_the_last_counts_as_in_nccl_tests(bare) -> None:
    done = bare(*MODEL, "-d", "float", "-d", "half", "--dry-run")
    assert "half" in done.stdout
    assert "float" not in done.stdout


def test_what_is_only_wanted_of_a_history_adds_up() -> None:
    part = history.PartOptions(only=["all_reduce", "all_gather,scan"]).select()
    assert part.collectives == ("all_reduce", "all_gather", "scan")


@pytest.mark.parametrize("backend", ["mpi", "shm"])
def test_locate_refuses_a_backend_without_groups_of_some_ranks(bare, backend: str) -> None:
    done = bare("locate", "-g", "4", "--backend", backend, "--dry-run")
    assert done.returncode == 5 and "measures no groups of only some ranks" in done.stderr


def test_locate_counts_tests(bare) -> None:
    done = bare("locate", "-g", "4", "--tests", "33", "--dry-run")
    assert (done.returncode, "at most 33 tests" in done.stderr) == (0, True)


@pytest.mark.parametrize("said", ["inf", "nan", "1e8"])
@pytest.mark.parametrize("command", [("p2p", "-g", "2"), ("pairs", "-g", "2"), ("locate",)])
def test_a_limit_is_a_time_as_everywhere(bare, command: tuple[str, ...], said: str) -> None:
    done = bare(*command, "-T", said, "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"-T {said}: must be at most 10000000" in done.stderr


@pytest.fixture
def two_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of two saved runs, of which the names of those that may be read begin with 2."""
    for name in ("1-x", "2-x"):
        saved(night(name=name), home)
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name.startswith("2"))
    return home / "runs"


def test_runs_that_may_not_be_read_are_not_said_to_be_more(inside, two_runs: Path) -> None:
    done = inside("runs")
    assert done.returncode == 0 and "shows all" not in done.stdout
    assert f"1 of 2 saved runs cannot be read: {two_runs}/1-x.jsonl: Perm" in done.stderr


def test_where_no_run_may_be_read_that_is_an_error(inside, two_runs: Path) -> None:
    (two_runs / "2-x.jsonl").unlink()
    done = inside("runs")
    assert (done.returncode, done.stdout) == (Exit.CANNOT_RUN, "")
    assert "1 of 1 saved run cannot be read: " in done.stderr


def test_a_damaged_run_is_none_that_another_list_shows(inside, home: Path) -> None:
    saved(night(name="1-x"), home)
    (home / "runs" / "2-x.jsonl").write_text("{}")
    done = inside("runs")
    assert "left out: " in done.stderr and "shows all" not in done.stdout


@pytest.mark.parametrize("key", [EOFError, KeyboardInterrupt])
def test_who_answers_no_question_deletes_nothing(
    inside, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: type[BaseException]
) -> None:
    """By Ctrl-D or Ctrl-C."""
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path))
    inside(*MODEL)

    def press(prompt: str) -> str:
        raise key

    monkeypatch.setattr(sys.modules[typer.confirm.__module__], "visible_prompt_func", press)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    done = inside("runs", "all_reduce", "--delete")
    assert done.returncode == Exit.INTERRUPTED
    assert "fault" not in done.stderr
    assert len(store.list_saved()) == 1


def test_a_suite_that_ends_by_the_machine_leaves_the_others_to_be_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    orders = [Order(suite=Suite(name=name, axes=AXES), command=()) for name in ("first", "second")]
    measured = []

    def measure(order: Order) -> Exit:
        measured.append(order.suite.name)
        if order.suite.name == "first":
            raise OSError(errno.ENOSPC, "No space left on device", "/scratch/x")
        return Exit.OK

    assert _measure_each(orders, measure) == [Exit.CANNOT_RUN, Exit.OK]
    assert measured == ["first", "second"]
    assert "first: /scratch/x: No space left on device" in capsys.readouterr().err
    with pytest.raises(OSError, match="No space"):
        _measure_each(orders[:1], measure)


@pytest.mark.parametrize(("said", "code"), [("3m", 0), ("90s", 0), ("1.5h", 0), ("3x", 2)])
def test_a_budget_of_locate_is_a_time_as_everywhere(bare, said: str, code: int) -> None:
    done = bare("locate", "-g", "4", "--budget", said, "--dry-run")
    assert done.returncode == code
    assert ("--budget: '3x' is not a duration" in done.stderr) == bool(code)


def test_on_one_machine_locate_speaks_of_ranks(bare) -> None:
    assert bare("locate", "-g", "4", "--dry-run").stderr.startswith("4 ranks: all 6 pairs")
    assert locate.describe_plan(64, Rules()).startswith("64 hosts: ")


@pytest.mark.parametrize("columns", ["0", "00", ""])
def test_no_width_is_no_reason_to_print_nothing(bare, columns: str) -> None:
    bare(*MODEL)
    for words in (("runs",), ("list",), (*MODEL, "--format", "table")):
        assert len(bare(*words, COLUMNS=columns).stdout.split()) > 10


def test_health_names_the_hosts_without_a_verdict_too(inside) -> None:
    inside(*MODEL)
    done = inside("health", "@last", "--no-history")
    host = run_file.read_file(store.find_run("@last")).worlds[0].ranks[0].host
    assert done.stdout.startswith(f"collbench health  {host}\n")


def test_health_of_unknown_hosts_says_so(inside, tmp_path: Path) -> None:
    log = tmp_path / "osu.log"
    log.write_text("# OSU MPI Allreduce Latency Test v7.4\n# Size   Avg Latency(us)\n4   3.25\n")
    inside("import", str(log), "--ranks", "2")
    done = inside("health", "@last", "--no-history")
    assert done.stdout.startswith("collbench health  of hosts that no run names\n")
    assert "no verdict" in done.stdout and "health judges runs that" in done.stdout


def test_a_complete_run_without_a_measurement_is_told_as_such(inside) -> None:
    inside(*MODEL)
    path = store.find_run("@last")
    lines = path.read_text().splitlines()
    left_out = []
    for line in lines:
        told = msgspec.json.decode(line)
        if told["line"] == "record":
            told = {k: told[k] for k in ("line", "case")} | {"status": "skipped", "note": "no"}
        left_out.append(msgspec.json.encode(told).decode())
    path.write_text("\n".join(left_out) + "\n")
    done = inside("run", "--resume", str(path))
    assert "is complete: all its cases were left out" in done.stderr
    assert done.returncode == 5


@pytest.mark.parametrize(
    ("ranks", "told"), [("64", "nodes (the last has 1 rank)"), ("63", "nodes,"), ("4", "nodes,")]
)
def test_a_prediction_says_that_the_last_node_is_smaller(bare, ranks: str, told: str) -> None:
    words = ("--sizes", "1M", "--algo", "ring", "--network", "two-level:7")
    text = bare("predict", "all_reduce", "-n", ranks, *words).stdout
    assert f"nvlink inside {told}" in " ".join(text.split())
