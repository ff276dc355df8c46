"""Limits on busbw from the command line to the exit code: on the model, and on a run whose times
are given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import factories
import pytest

from collbench.core.errors import Exit
from collbench.records import derive
from collbench.records.types import Record
from collbench.run import session
from collbench.run.order import Order
from collbench.run.reporter import Reporter

FORMATS = ("table", "nccl", "nccl-filled", "imb", "json", "csv", "md")
ARGS = ("all_reduce", "--sizes", "1M,64M", "--place", "out", "-g", "4", "--backend", "gloo")


@pytest.fixture
def reaching(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has every case reach this busbw in GB/s, whatever runs; ``code`` is how that ends."""

    def plant(busbw: float, code: Exit = Exit.OK) -> None:
        def execute(order: Order, make: Callable[[], Reporter], _early: object) -> Exit:
            cases, skips = order.suite.expand()
            reporter = make()
            reporter.begin(factories.run(suite=order.suite), cases, skips)
            for case in cases:
                ns = round(case.size * case.row.busbw(case.n) / busbw)
                record = Record(case=case, status="ok", times_ns=[ns] * 40, checked=1, wrong=0)
                reporter.record(record, derive.derive_row(record))
            reporter.end(factories.ENDED, None)
            return code

        monkeypatch.setattr(session, "execute_order", execute)

    return plant


@pytest.mark.parametrize(("busbw", "code"), [(11.0, 0), (9.0, 1)])
@pytest.mark.parametrize("name", FORMATS)
def test_a_row_that_falls_short_is_exit_1_and_a_line(
    inside, reaching, name: str, busbw: float, code: int
) -> None:
    reaching(busbw)
    done = inside(*ARGS, "--format", name, "--min-busbw", "10@64M")
    assert done.returncode == code
    lines = [line for line in done.stderr.splitlines() if "wanted" in line]
    assert len(lines) == code
    assert all("64 MiB on 4 ranks, gloo: 9.00 GB/s" in line for line in lines)


def test_json_has_the_answers_as_data(inside, reaching, tmp_path: Path) -> None:
    reaching(9.0)
    path = tmp_path / "out.json"
    done = inside(*ARGS, "--format", "json", "-J", str(path), "--min-busbw", "8,10@1M")
    found = json.loads(done.stdout)["limits"]
    assert [(one["answer"], one["wanted"]) for one in found] == [("met", 8.0), ("short", 10.0)]
    assert found[1]["busbw"] == pytest.approx(9.0, rel=1e-3)
    assert json.loads(path.read_text())["collbench"]["limits"] == found


@pytest.mark.parametrize(
    ("said", "code", "word", "okay"),
    [("9.9", 0, "OK", "true"), ("10.1", 1, "FAILED", "false"), ("", 0, "", "unchecked")],
)
def test_the_variable_of_nccl_tests_wants_nine_tenths_of_the_average(
    inside, reaching, monkeypatch, tmp_path: Path, said: str, code: int, word: str, okay: str
) -> None:
    monkeypatch.setenv("NCCL_TESTS_MIN_BW", said)
    reaching(9.0)
    path = tmp_path / "out.json"
    done = inside(*ARGS, "--format", "nccl", "-J", str(path))
    assert done.returncode == code
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("# Avg bus")]
    assert line.split(":")[1].split()[1:] == ([word] if word else [])
    assert json.loads(path.read_text())["average_bus_bandwidth"]["okay"] == okay


def test_a_limit_that_is_given_takes_the_place_of_the_variable(
    inside, reaching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_TESTS_MIN_BW", "100")
    reaching(9.0)
    assert inside(*ARGS, "--min-busbw", "8").returncode == 0
    done = inside(*ARGS)
    assert done.returncode == 1 and "90 (90 % of NCCL_TESTS_MIN_BW) wanted" in done.stderr


@pytest.mark.parametrize("text", ["400@1G", "fast"])
def test_the_variable_of_nccl_tests_has_no_size(
    inside, reaching, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("NCCL_TESTS_MIN_BW", text)
    reaching(9.0)
    done = inside(*ARGS)
    assert done.returncode == 2
    assert f"NCCL_TESTS_MIN_BW: '{text}': expected GB/s as a number\n" in done.stderr
    assert "--min-busbw 400@1G" in done.stderr


def test_a_limit_without_a_size_is_said_to_be_on_the_largest(inside) -> None:
    """test_limits.py of tests/pure has that it is."""
    for words in (("all_reduce", "--help"), ("help", "ci"), ("help", "suites")):
        assert "the largest size" in " ".join(inside(*words).stdout.split())


def test_wrong_data_weighs_more_than_a_limit(inside, reaching) -> None:
    reaching(9.0, Exit.WRONG_DATA)
    assert inside(*ARGS, "--min-busbw", "10").returncode == 7


@pytest.mark.parametrize("name", FORMATS)
def test_a_prediction_is_no_pass(bare, name: str) -> None:
    args = ("all_reduce", "--sizes", "1K", "--backend", "model", "-g", "4", "--format", name)
    done = bare(*args, "--min-busbw", "0.001")
    assert done.returncode == 3
    assert "cannot be relied on (predicted)" in done.stderr


def test_a_suite_may_want_busbw(bare, tmp_path: Path) -> None:
    suite = tmp_path / "mine.toml"
    suite.write_text(
        "description = 'x'\n[axes]\ncollectives = 'all_reduce'\nsizes = '1K'\nranks = 4\n"
        "backends = 'model'\n[[threshold]]\nmin_busbw = '1@1G'\n"
    )
    assert bare("run", str(suite), "--dry-run").returncode == 0
    done = bare("run", str(suite))
    assert done.returncode == 3 and "1 GiB" in done.stderr


@pytest.mark.parametrize("name", ["NCCL_TESTS_MIN_BW", "NCCL_TESTS_DEVICE", "NCCL_TESTS_SPLIT"])
def test_a_suite_says_that_it_takes_no_variable_of_nccl_tests(
    bare, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    args = ("run", "pr", "--backend", "model", "--dry-run")
    assert name not in bare(*args).stderr
    monkeypatch.setenv(name, "4")
    done = bare(*args)
    assert (done.returncode, done.stderr.count(f"{name}: no variable")) == (0, 1)


@pytest.mark.parametrize(
    ("limits", "code"),
    [(("8", "8"), 0), (("8", "8@1G"), 3), (("10", "8@1G"), 1), (("8@1G", "10"), 1)],
)
def test_of_several_suites_the_gravest_answer_counts(
    inside, reaching, tmp_path: Path, limits: tuple[str, str], code: int
) -> None:
    reaching(9.0)
    paths = [tmp_path / f"{name}.toml" for name in ("one", "other")]
    for path, limit in zip(paths, limits, strict=True):
        path.write_text(
            "description = 'x'\n[axes]\ncollectives = 'all_reduce'\nsizes = '64M'\nranks = 4\n"
            f"backends = 'gloo'\nin_place = false\n[[threshold]]\nmin_busbw = '{limit}'\n"
        )
    assert inside("run", *map(str, paths), "--format", "csv").returncode == code


def test_a_limit_is_checked_before_anything_runs(bare) -> None:
    done = bare("all_reduce", "--backend", "model", "-g", "4", "--dry-run", "--min-busbw", "fast")
    assert done.returncode == 2 and "--min-busbw: 'fast'" in done.stderr
    done = bare("barrier", "--backend", "model", "-g", "4", "--min-busbw", "1")
    assert done.returncode == 2 and "no busbw" in done.stderr
