"""Algorithms of users that raise or are wrong, in the commands that take them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from collbench.cli import main
from collbench.core import algorithm_files, algorithms
from collbench.core.errors import CollbenchError, Exit

MINE = """\
from collbench.core.schedule import Moves


def boom(n, cells):
    yield Moves(0, 1, reduce=True)
    raise KeyError("x")


def four(n, cells):
    if n != 4:
        raise ValueError("only 4")
    yield Moves(0, 1, reduce=True)


def line(n, cells):
    for rank in reversed(range(1, n)):
        yield Moves(rank, rank - 1, reduce=True)
    for rank in range(1, n):
        yield Moves(rank - 1, rank)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with mine.py in it."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(algorithm_files.VARIABLE, "")
    yield tmp_path
    algorithm_files._run_file.cache_clear()
    algorithms.list_catalogue.cache_clear()


def collbench(command: str) -> Result:
    return CliRunner().invoke(main.app, command.split())


@pytest.mark.parametrize(
    "command",
    [
        "prove all_reduce ./mine.py:boom -n 4,7",
        "prove all_reduce ./mine.py:boom --orders",
        "show all_reduce ./mine.py:boom",
        "predict all_reduce -n 4 -b 4K -e 4K --algo ./mine.py:boom",
        "export all_reduce ./mine.py:boom -n 4",
        "all_reduce -b 1K -e 1K -g 4 --backend model --algo ./mine.py:boom",
        "all_reduce -b 1K -e 1K -g 4 --backend shm --algo ./mine.py:boom",
        "order all_reduce -b 1K -e 1K -g 4 --backend shm --algo ./mine.py:boom",
    ],
)
def test_an_algorithm_that_raises_exits_2_with_its_line(command: str) -> None:
    error = collbench(command).exception
    assert isinstance(error, CollbenchError) and error.exit == Exit.USAGE
    assert "mine.py, line 6: mine.py:boom for 4 ranks: KeyError: 'x'" in error.message


def test_an_algorithm_that_raises_at_other_ranks_is_shown() -> None:
    assert collbench("show all_reduce ./mine.py:four").exit_code == Exit.OK


def test_show_says_that_an_algorithm_is_wrong() -> None:
    result = collbench("show all_reduce ./mine.py:four")
    assert "wrong algorithm: missing: rank 0 cell 0: lacks the contribution" in result.output


def test_show_says_nothing_of_a_right_one() -> None:
    assert "wrong algorithm" not in collbench("show all_reduce ./mine.py:line").output


def test_order_takes_a_generator_for_its_collective() -> None:
    result = collbench("order all_reduce -g 3 --backend shm --algo ./mine.py:line,ring --dry-run")
    assert result.exit_code == Exit.OK, result.output
