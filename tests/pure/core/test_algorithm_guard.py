"""Broken algorithms of users: errors name the line of the file and the ranks."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from collbench.cli import main
from collbench.core import algorithm_files, algorithms
from collbench.core.errors import AlgorithmError, Exit, UsageError
from collbench.core.program import compile_program
from collbench.core.schedule import Schedule, prove_schedule
from collbench.core.simulate import count_costs
from collbench.core.sums.symbolic import find_orders
from collbench.features.study.drawing import example_values, make_frames

MINE = """\
import sys
import numpy as np
from collbench.core import algorithms
from collbench.core.schedule import Later, Moves

def boom(n, cells):
    yield Moves(0, 1, reduce=True)
    raise KeyError("x")

def inner():
    yield 3

def outer(n, cells):
    yield from inner()

def halves(n, cells):
    yield Moves(0.5, 1)

def words(n, cells):
    yield Moves("a", 1)

def nothing(n, cells):
    yield Moves(None, 1)

def shapes(n, cells):
    yield Moves(np.arange(3), np.arange(2))

def leaves(n, cells):
    sys.exit(0)
    yield

def stops(n, cells):
    yield Moves(0, 1)
    raise StopIteration

def later(n, cells):
    yield Moves([0], [1], Later((1,), lambda: 1 // 0))

def no_arguments():
    yield Moves(0, 1)

def no_cells(n, cells=0):
    yield Moves(0, 1)

def stray(n, cells):
    yield Moves(0, n)

def empty(n, cells):
    yield Moves(1, 0, 1, reduce=True)

def parts(n, cells, parts=3):
    yield Moves(1, 0, 1, reduce=True)

def short(n, cells):
    yield Moves(0, 1, [], reduce=True)

def line(n, cells):
    for rank in reversed(range(1, n)):
        yield Moves([rank], np.array([rank - 1], np.uint8), reduce=True)
    for rank in range(1, n):
        yield Moves(rank - 1, rank)

ROW = algorithms.Algorithm("row", "all_reduce", line, "me")
CELLS = ROW._replace(cells=lambda n: n // 0)
TEXT = ROW._replace(cells=lambda n: "4")
REASON = ROW._replace(why_not=lambda n: {}["n"])
NUMBER = ROW._replace(why_not=lambda n: n > 3)
DEFAULT = ROW._replace(parameters={"k": lambda n, ratio: [][1]})
NO_GENERATOR = ROW._replace(steps=lambda n, cells: 3)
STEPS = ROW._replace(steps=3)
PAPER = ROW._replace(paper=3)
FIVE = ROW._replace(cells=5)
PARAMETERS = ROW._replace(parameters=["k"])
ALIASES = ROW._replace(aliases="row")
NODES = ROW._replace(node_parameter="k")
COLLECTIVE = ROW._replace(collective=3)
"""

MakeSchedule = Callable[..., Schedule]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of broken algorithms."""
    monkeypatch.setenv(algorithm_files.VARIABLE, "")
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    yield path
    algorithm_files._run_file.cache_clear()
    algorithms.list_catalogue.cache_clear()


def make_schedule(path: Path, name: str, n: int = 4, root: int = 0, owner: str = "") -> Schedule:
    """The schedule of an algorithm of the file."""
    owner = owner or "all_reduce"
    label = algorithms.add_file(f"{path}:{name}", owner)
    return algorithms.find_variant(owner, label).schedule(n, root)


def find_line(text: str) -> int:
    """The number of the line of the file that has a text."""
    return next(number for number, line in enumerate(MINE.split("\n"), 1) if text in line)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("boom", "raise KeyError", "KeyError: 'x'"),
        ("outer", "yield 3", "step 0 is 3, not Moves"),
        ("halves", "Moves(0.5", "step 0: src is 0.5, no whole number"),
        ("words", 'Moves("a"', "step 0: src is 'a', no whole number"),
        ("nothing", "Moves(None", "step 0: src is None, no whole number"),
        ("shapes", "np.arange(3)", "ValueError: shape mismatch"),
        ("leaves", "sys.exit", "SystemExit: 0"),
        ("stops", "def stops", "RuntimeError: generator raised StopIteration"),
        ("later", "1 // 0", "ZeroDivisionError"),
        ("no_arguments", "def no_arguments", "TypeError"),
        ("CELLS", "n // 0", "ZeroDivisionError"),
        ("TEXT", '"4"', "returned '4'"),
        ("REASON", '["n"]', "KeyError: 'n'"),
        ("NUMBER", "n > 3", "returned True"),
        ("DEFAULT", "[][1]", "IndexError"),
        ("NO_GENERATOR", "cells: 3", "TypeError: 'int' object is not iterable"),
    ],
)
def test_an_error_names_the_line_and_the_ranks(path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(AlgorithmError) as told:
        prove_schedule(make_schedule(path, name))
    assert f"{path}, line {find_line(text)}: mine.py:{name} for 4 ranks: " in told.value.message
    assert said in told.value.message
    assert told.value.hint == f"fix it, then run: collbench prove all_reduce {path}:{name}"


def test_an_algorithm_has_at_least_one_cell(path: Path) -> None:
    with pytest.raises(UsageError, match="returned 0"):
        make_schedule(path, "no_cells")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("STEPS", "steps is 3, but must be a generator function"),
        ("PAPER", "paper is 3, but must be a string"),
        ("FIVE", "cells is 5, but must be a function"),
        ("PARAMETERS", "parameters is ['k'], but must be a dict of names and functions"),
        ("ALIASES", "aliases is 'row', but must be a tuple of strings"),
        ("NODES", "node_parameter is 'k', but must be the name of a parameter"),
        ("COLLECTIVE", "collective is 3, but must be a string"),
    ],
)
def test_the_error_on_a_field_of_a_row_names_its_type(path: Path, name: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_schedule(path, name)
    assert caught.value.message == f"mine.py:{name}: {text}"


@pytest.mark.parametrize("use", [compile_program, find_orders, count_costs])
def test_a_move_to_no_rank_is_refused(path: Path, use: Callable[..., object]) -> None:
    arguments = [False] if use is compile_program else []
    with pytest.raises(UsageError, match="wrong for 4 ranks: out of range: rank 4 cell 0"):
        use(make_schedule(path, "stray"), *arguments)


def test_a_move_to_no_rank_is_a_fault(path: Path) -> None:
    (fault,) = prove_schedule(make_schedule(path, "stray"))
    assert (fault.kind, fault.step, fault.rank) == ("out of range", 0, 4)


@pytest.mark.parametrize("use", [compile_program, find_orders])
def test_a_read_of_an_empty_cell_is_refused(path: Path, use: Callable[..., object]) -> None:
    arguments = [False] if use is compile_program else []
    with pytest.raises(UsageError, match="missing: rank 0 cell 1 in step 0"):
        use(make_schedule(path, "empty", owner="gather"), *arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("stray", {"owner": "all_reduce"}, "-n 4"),
        ("stray", {"owner": "all_reduce", "n": 4097}, "mine.py:stray"),
        ("empty", {"owner": "gather", "root": 2}, "-n 4 -r 2"),
        ("parts", {"owner": "gather"}, "-n 4"),
    ],
)
def test_the_hint_on_a_wrong_algorithm_is_a_command_that_finds_it_wrong(
    path: Path, name: str, arguments: dict[str, Any], options: str
) -> None:
    with pytest.raises(UsageError) as caught:
        compile_program(make_schedule(path, name, **arguments), False)
    command, _, rest = caught.value.hint.partition(" lists")
    assert rest == " its faults" and command.endswith(options)
    assert command.startswith(f"collbench prove {arguments['owner']} {path}:{name}")
    result = CliRunner().invoke(main.app, shlex.split(command)[1:])
    assert result.exit_code == Exit.WRONG_DATA, result.output


def test_one_rank_is_not_one_ranks(path: Path) -> None:
    with pytest.raises(UsageError, match=r"all_reduce mine\.py:stray is wrong for 1 rank: "):
        compile_program(make_schedule(path, "stray", n=1), False)


def test_an_output_that_stays_empty_has_no_order(path: Path) -> None:
    with pytest.raises(UsageError, match="missing: rank 0 cell 1: nothing has arrived"):
        find_orders(make_schedule(path, "short", owner="all_gather"))


def test_a_read_of_an_empty_cell_is_drawn(path: Path) -> None:
    schedule = make_schedule(path, "empty", owner="gather")
    assert len(list(make_frames(schedule, example_values(schedule)))) == 2


def test_lists_and_small_integers_are_taken(path: Path) -> None:
    assert prove_schedule(make_schedule(path, "line")) == []


def test_lists_are_taken_at_another_root(path: Path) -> None:
    assert prove_schedule(make_schedule(path, "line", root=2, owner="reduce")) == []


def test_the_hint_of_a_generator_for_several_collectives_can_be_copied(path: Path) -> None:
    with pytest.raises(UsageError) as told:
        algorithms.add_file(f"{path}:line", "")
    path.write_text(f"{MINE}\n{told.value.hint.removeprefix('name a row: ')}\n")
    algorithm_files._run_file.cache_clear()
    assert prove_schedule(make_schedule(path, "LINE")) == []
