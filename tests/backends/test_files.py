"""Backends in files for libraries of others, run as a user would: the data of all that they do is
checked bit by bit, and all that they do not do has a reason."""

from __future__ import annotations

import importlib.util
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import Exit
from collbench.records import run_file, store
from collbench.records.types import RunFile
from tests.helpers.needs import stop_without

HERE = Path(__file__).parent
NAMES = ("xgboost", "paddle", "tensorflow", "mindspore", "pygloo")
# what is right on all of a library's datatypes, reductions and roots
DOES = {
    "xgboost": {"all_reduce", "broadcast"},
    "paddle": {"all_reduce", "all_gather", "broadcast", "reduce", "scatter", "barrier"},
    "tensorflow": {"all_reduce", "all_gather", "broadcast"},
    "mindspore": {"all_reduce", "all_gather", "broadcast"},
    "pygloo": {"all_reduce", "all_gather", "broadcast", "reduce", "gather", "scatter", "barrier"},
}
SUITE = """
description = "All that a library may do."
[axes]
collectives = {collectives}
sizes = ["12K"]
ranks = [3]
dtypes = ["all"]
ops = ["all"]
roots = [1]
in_place = [false, true]
[policy]
iters = 2
warmup = 1
timeout = 300
cache = "hot"
"""
ROW = ("all_reduce", "-g", "2", "--sizes", "1K", "-n", "3", "--place", "out", "-T", "120")

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def skip_unless_here(name: str) -> str:
    """The path of a backend's file. Skips, with its reason, where the library is not here; fails
    where COLLBENCH_NEED has its name."""
    path = HERE / f"{name}_file.py"
    if reason := load_module(path).INFO.here():
        stop_without(name, reason)
    return str(path)


def last_run() -> RunFile:
    return run_file.read_file(store.list_saved()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_all_that_a_library_does_is_right(cli, tmp_path: Path, name: str) -> None:
    path = skip_unless_here(name)
    suite = tmp_path / "all.toml"
    suite.write_text(SUITE.format(collectives=list(COLLECTIVES)))
    done = cli("run", str(suite), "--backend", path, timeout=1000)
    records = last_run().records
    faults = [record for record in records if record.status not in ("ok", "skipped")]
    assert not faults, faults[0]
    assert done.returncode == Exit.OK, done.stderr
    measured = [record for record in records if record.status == "ok"]
    assert {record.case.collective for record in measured} == DOES[name]
    assert all(record.wrong == 0 for record in measured)
    assert all(record.checked or not record.case.row.moves_data for record in measured)
    assert all(record.note for record in records if record.status == "skipped")


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_wrong_result_is_found(cli, name: str) -> None:
    path = skip_unless_here(name)
    done = cli(*ROW, "--backend", path, "--inject", "corrupt:1", timeout=300)
    assert done.returncode == Exit.WRONG_DATA, done.stderr
    assert [record.status for record in last_run().records] == ["wrong"]


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_that_dies_is_named(cli, name: str) -> None:
    path = skip_unless_here(name)
    done = cli(*ROW, "--backend", path, "--inject", "drop:1", timeout=300)
    assert done.returncode == Exit.TIMEOUT, done.stderr
    assert "rank 1 on" in done.stderr and "exited with status 70" in done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_its_groups_are_measured_at_once(cli, name: str) -> None:
    path = skip_unless_here(name)
    options = ("-g", "4", "--split", "mod:2", "--sizes", "1K", "-n", "3", "--place", "out")
    done = cli("all_reduce", *options, "-T", "200", "--backend", path, timeout=300)
    assert done.returncode == Exit.OK, done.stderr
    assert [(record.status, record.wrong) for record in last_run().records] == [("ok", 0)] * 2


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_described_without_its_library(name: str) -> None:
    info = load_module(HERE / f"{name}_file.py").INFO
    assert info.name == name and info.contract == 1 and info.about and info.packages


def test_the_package_has_none_of_these_names() -> None:
    shipped = {path.name for path in files("collbench.run.backends").iterdir()}
    assert not shipped & {f"{name}.py" for name in NAMES}
