"""What is asked of processes beside the board."""

from __future__ import annotations

import os

import psutil
import pytest

from collbench.run.launch import board
from collbench.run.launch.board import Board, Phase


@pytest.mark.parametrize(
    ("status", "doing"),
    [
        (psutil.STATUS_SLEEPING, "running"),
        (psutil.STATUS_STOPPED, "stopped"),
        (psutil.STATUS_TRACING_STOP, "stopped"),
        (psutil.STATUS_ZOMBIE, "ended"),
    ],
)
def test_what_a_process_does_is_told_in_one_word(
    monkeypatch: pytest.MonkeyPatch, status: str, doing: str
) -> None:
    monkeypatch.setattr(psutil.Process, "status", lambda self: status)
    assert board.process_state(os.getpid()) == doing


def test_a_rank_that_has_not_left_a_world_is_behind_those_that_connect_for_the_next() -> None:
    ranks, fd = Board.create(2)
    os.close(fd)
    for rank in range(2):
        ranks.enter(rank, Phase.CONNECTING)
        ranks.enter(rank, Phase.PREPARING, 3)
        ranks.enter(rank, Phase.DONE)
    assert ranks.find_behind() == []
    ranks.enter(0, Phase.CONNECTING)
    assert ranks.find_behind() == [1]


class Counted(int):
    comparisons = 0

    def __gt__(self, other: object) -> bool:
        Counted.comparisons += 1
        return int(self) > int(other)  # type: ignore[call-overload]

    def __lt__(self, other: object) -> bool:
        Counted.comparisons += 1
        return int(self) < int(other)  # type: ignore[call-overload]


def test_who_is_behind_is_found_in_few_comparisons_among_many_ranks() -> None:
    n = 500
    places = [(0, 0, 0, Counted(calls)) for calls in range(n)]
    assert len(board.select_behind(places)) == n - 1
    assert Counted.comparisons <= 2 * n


def test_a_process_that_is_not_there_has_ended() -> None:
    assert board.process_state(2**22 + 1) == "ended"  # more than any kernel gives
