"""Programs of algorithms in a user's file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from factories import case

from collbench.core import algorithm_files, algorithms
from collbench.run.backends._compiled import Compiled

SOURCE = """
from collbench.core.schedule import Moves


def shifted(n, cells, start=0, chunk=65536, before=-1, both=True):
    assert (start, chunk, before) == (0, 65536, -1)
    for rank in range(1, n):
        yield Moves(rank, 0, reduce=True)
    for rank in range(1, n):
        yield Moves(0, rank)
"""


@pytest.fixture
def label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The label of an algorithm whose defaults are no values that an option takes."""
    monkeypatch.setenv(algorithm_files.VARIABLE, "")
    (tmp_path / "own.py").write_text(SOURCE)
    yield algorithms.add_file(f"{tmp_path}/own.py:shifted", "all_reduce")
    algorithms.list_catalogue.cache_clear()


def test_any_integer_default_compiles(label: str) -> None:
    compiled = Compiled(case(1024, algorithm=label, n=3), 64.0, waits=True)
    assert compiled.name == "own.py:shifted:start=0:chunk=65536:before=-1"


def test_a_truth_value_is_no_parameter(label: str) -> None:
    variant = algorithms.find_variant("all_reduce", label)
    assert [*variant.algorithm.parameters] == ["start", "chunk", "before"]
