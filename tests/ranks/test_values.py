"""A real library on given numbers, by the command line."""

from __future__ import annotations

import os
from typing import Any

import pytest
from typer.testing import CliRunner

from collbench.cli import main
from collbench.core.errors import CannotRun, Exit, UsageError
from collbench.run import refusal, values
from collbench.run.values import build_case, run_collective
from collbench.survive.signals import interrupts


def test_gloos_reduce_leaves_partial_sums_on_the_others() -> None:
    found = run_collective("reduce", "native", "gloo", [[1, 2], [3, 4], [5, 6], [7, 8]], root=3)
    assert [buffers.send for buffers in found] == [[16, 20], [15, 18], [12, 14], [16, 20]]
    assert all(buffers.recv is None for buffers in found)


def test_a_reference_algorithm_runs_on_numbers_that_are_not_whole() -> None:
    before = dict(os.environ)
    found = run_collective("all_reduce", "ring", "shm", [[1.5, 2], [3, 4]])
    assert [buffers.send for buffers in found] == [[4.5, 6], [4.5, 6]]
    assert os.environ == before


def test_sums_beyond_32_bits_and_infinite_ones_are_shown() -> None:
    found = run_collective("all_reduce", "native", "gloo", [[2_000_000_000], [2_000_000_000]])
    assert found[1].send == [4_000_000_000]
    found = run_collective("all_reduce", "native", "gloo", [[1e308], [1e308]])
    assert found[0].send == [float("inf")]


def test_a_backend_that_does_nothing_in_place_is_shown_out_of_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refusal, "refuse_anywhere", lambda case: "not in place" * case.in_place)
    found = run_collective("all_reduce", "ring", "shm", [[1, 2], [3, 4]])
    assert found == [([1, 2], [4, 6]), ([3, 4], [4, 6])]


def test_what_the_backend_cannot_do_is_refused() -> None:
    with pytest.raises(CannotRun):
        run_collective("scan", "native", "gloo", [[1], [2]])


def test_a_rank_that_fails_ends_those_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a command, whose own handlers its forked ranks begin with."""
    call = values._call_on_rank

    def fail(rank: int, *more: Any) -> values.Buffers:
        if rank == 1:
            raise LookupError("planted")
        return call(rank, *more)

    monkeypatch.setattr(values, "_call_on_rank", fail)
    with interrupts, pytest.raises(CannotRun, match="planted"):
        run_collective("all_reduce", "native", "gloo", [[1], [2]])


def test_the_command_shows_what_was_promised_beside_what_is_there() -> None:
    shown = CliRunner().invoke(
        main.app, ["show", "gather", "native", "--on", "gloo", "--values", "1;2", "-r", "1"]
    )
    assert shown.exit_code == Exit.OK, shown.output
    rows = [line.split("  ") for line in shown.output.splitlines() if line[:1] in "01"]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        ["0", "[1]", "[1, 0]", "-"],
        ["1 (root)", "[2]", "[1, 2]", "[1, 2]"],
    ]


@pytest.mark.parametrize(
    "options",
    [
        ["reduce", "native"],
        ["reduce", "native", "--on", "mpi"],
        ["reduce", "native", "--on", "gloo", "--step", "1"],
        ["reduce", "native", "--on", "gloo", "-r", "9"],
        ["reduce", "native", "--on", "gloo", "-n", "3", "--values", "1;2"],
        ["barrier", "native", "--on", "gloo"],
    ],
)
def test_what_has_no_sense_is_refused(options: list[str]) -> None:
    with pytest.raises(UsageError):
        CliRunner().invoke(main.app, ["show", *options], catch_exceptions=False)


@pytest.mark.parametrize(
    ("collective", "length", "sent"),
    [("all_gather", 2, 2), ("reduce_scatter", 6, 6), ("scatter", 3, 3), ("gather", 4, 4)],
)
def test_ranks_send_as_many_elements_as_they_are_given(
    collective: str, length: int, sent: int
) -> None:
    case = build_case(collective, "native", "gloo", [[1] * length] * 3)
    assert case.counts[0] == sent


def test_numbers_that_cannot_be_divided_over_the_ranks_are_refused() -> None:
    with pytest.raises(UsageError):
        build_case("reduce_scatter", "native", "gloo", [[1, 2]] * 3)
