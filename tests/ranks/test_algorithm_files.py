"""Algorithms in files of the user's own, from the command line to ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from collbench.cli import main
from collbench.core import algorithm_files, algorithms
from collbench.core.errors import Exit, UsageError
from collbench.records import store

MANUAL = (files("collbench.cli") / "pages/algorithms.md").read_text()
OTHERS = """

def short(n, cells):
    for rank in range(1, n):
        yield Moves(rank, 0, reduce=True)


def cut(n, cells=3, skip=1):
    for moves in line(n, cells):
        yield Moves(moves.src, moves.dst, [0, 1, 2], reduce=moves.reduce)


def no_generator(n, cells):
    return []


from collbench.core.algorithms import Algorithm

ROW = Algorithm("row", "all_reduce", line, "who described it")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with the manual's own file in it, and more below."""
    own = re.search(r"## Your own.*?```python\n(.*?)```", MANUAL, re.DOTALL)
    assert own
    (tmp_path / "line.py").write_text(own[1] + OTHERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(algorithm_files.VARIABLE, "")
    yield tmp_path
    algorithm_files._run_file.cache_clear()
    algorithms.catalogue.cache_clear()


def collbench(*args: str) -> Result:
    return CliRunner().invoke(main.app, args)


@pytest.mark.parametrize("name", ["line", "cut", "cut:skip=2", "ROW"])
def test_it_is_proved_and_drawn(folder: Path, name: str) -> None:
    proved = collbench("prove", "all_reduce", f"./line.py:{name}", "-n", "1..9")
    assert proved.exit_code == Exit.OK, proved.output
    assert f"line.py:{name}" in proved.output
    drawn = collbench("show", "all_reduce", f"./line.py:{name}", "-n", "3")
    assert drawn.exit_code == Exit.OK and "step 4" in drawn.output


def test_a_wrong_one_is_found(folder: Path) -> None:
    assert collbench("prove", "all_reduce", "./line.py:short").exit_code == Exit.WRONG_DATA


def test_it_is_predicted_and_exported(folder: Path) -> None:
    options = ["-n", "4", "-e", "1K", "--format", "csv"]
    predicted = collbench("predict", "all_reduce", "--algo", "./line.py:line,ring", *options)
    assert predicted.exit_code == Exit.OK and "line.py:line" in predicted.output
    exported = collbench("export", "all_reduce", "./line.py:line", "-n", "4", "--to", "json")
    assert exported.exit_code == Exit.OK, exported.output


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_ranks_run_it(folder: Path, backend: str) -> None:
    path = folder / "run.jsonl"
    options = ["--backend", backend, "--sizes", "1K", "-g", "2", "-n", "3", "--place", "in"]
    named = ["all_reduce", "--algo", "./line.py:line", *options, "--output", str(path)]
    done = CliRunner().invoke(main.app, named)
    assert done.exit_code == Exit.OK, done.output
    (record,) = store.read(path).records
    assert record.case.algorithm == "line.py:line" and record.status == "ok"


def test_reading_a_run_loads_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "line.py").write_text("open('ran', 'w')")
    with pytest.raises(UsageError):
        algorithms.find("all_reduce", "line.py:line")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    "word",
    ["./gone.py:line", "./line.py:lin", "./line.py:no_generator", "./line.py:line:speed=3"],
)
def test_what_is_no_algorithm_is_refused(folder: Path, word: str) -> None:
    with pytest.raises(UsageError):
        CliRunner().invoke(
            main.app, ["all_reduce", "--algo", word, "-g", "2"], catch_exceptions=False
        )


def test_a_file_that_raises_is_refused(folder: Path) -> None:
    (folder / "broken.py").write_text("1 / 0")
    with pytest.raises(UsageError, match="ZeroDivisionError"):
        algorithms.add_file("./broken.py:line", "all_reduce")


def test_a_file_that_ends_the_process_is_refused(folder: Path) -> None:
    (folder / "ends.py").write_text("raise SystemExit(0)")
    with pytest.raises(UsageError):
        algorithms.add_file("./ends.py:line", "all_reduce")


def test_a_file_may_have_dataclasses_and_a_hyphen_in_its_name(folder: Path) -> None:
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    text += "@dataclass\nclass Place:\n    rank: int\n" + (folder / "line.py").read_text()
    (folder / "my-line.py").write_text(text)
    options = ["--backend", "shm", "--sizes", "1K", "-g", "2", "--dry-run"]
    named = ["all_reduce", "--algo", "./my-line.py:line", *options]
    done = CliRunner().invoke(main.app, named)
    assert done.exit_code == Exit.OK, done.output
    assert "1 case" in done.output or "2 cases" in done.output


def test_two_files_of_one_name_are_refused(folder: Path) -> None:
    algorithms.add_file("./line.py:line", "all_reduce")
    (folder / "other").mkdir()
    (folder / "other/line.py").write_text((folder / "line.py").read_text())
    with pytest.raises(UsageError):
        algorithms.add_file("other/line.py:line", "all_reduce")


def test_a_generator_needs_a_collective_that_the_command_names(folder: Path) -> None:
    with pytest.raises(UsageError):
        algorithms.add_file("./line.py:line")
    assert algorithms.add_file("./line.py:ROW") == "line.py:ROW"
