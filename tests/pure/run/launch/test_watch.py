"""How ranks are judged, whatever launcher they have: progress, limit, who is accused, what is
said."""

from __future__ import annotations

import os
from types import SimpleNamespace

import msgspec
import pytest
from factories import case

from collbench.core.errors import RunBroken
from collbench.run.jobs import Job, Plan
from collbench.run.launch import awake
from collbench.run.launch import watch as watches
from collbench.run.launch.board import LEAVE_SECONDS, Board, Phase
from collbench.run.launch.watch import Death, RankWatch
from collbench.run.launch.world import Listener
from collbench.suite.policy import Policy

LIMIT = 30.0
HANG = "all 3 ranks hang in the same call for 31 s while measuring"


class Watched(RankWatch):
    """A watch over three ranks on two hosts that a test moves; it tells what it answered."""

    def __init__(self, grace: float = 0.0) -> None:
        self.board, fd = Board.create(3)
        os.close(fd)
        plan = Plan(0, "gloo", 3, (), Policy(), [Job(case(), 1, "cold")], LIMIT)
        super().__init__(plan, Listener(lambda line: None), ("a", "a", "b"), self.board, grace)
        self.obstacle: RunBroken | None = None
        self.answers: list[tuple[int, bytes]] = []
        for rank in range(3):
            self.board.enter(rank, Phase.MEASURING, 0)

    def move(self, seconds: float) -> None:
        self.check_progress()

    def answer(self, rank: int, text: bytes) -> None:
        self.answers.append((rank, text))

    def find_obstacle(self, seconds: float) -> RunBroken | None:
        return self.obstacle


class Clock:
    """Time as the watch reads it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def advance(self, watch: RankWatch, seconds: float) -> None:
        """Let so many seconds pass, at the beginning of each of which the watch looks."""
        for _ in range(int(seconds)):
            watch.move(0)
            self.now += 1.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (watches, awake):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def verdict(watch: RankWatch) -> RunBroken:
    with pytest.raises(RunBroken) as caught:
        watch.move(0)
    return caught.value


def test_ranks_that_all_hang_are_no_ones_fault_once_the_limit_is_over(clock: Clock) -> None:
    watch = Watched()
    clock.advance(watch, LIMIT + 1)
    error = verdict(watch)
    assert error.message.startswith(HANG)
    assert error.job == 0


def test_one_rank_that_moves_is_progress_of_all(clock: Clock) -> None:
    watch = Watched()
    for _ in range(3):
        clock.advance(watch, LIMIT - 1)
        watch.board.count_calls(2)
        watch.move(0)
    clock.advance(watch, LIMIT + 1)
    assert verdict(watch).message.startswith("rank 0 on a has not moved for 31 s while measuring")


def test_who_is_behind_is_named_with_host_and_process(clock: Clock) -> None:
    watch = Watched()
    watch.pids[2] = 70
    for rank in (0, 1):
        watch.board.count_calls(rank)
    clock.advance(watch, LIMIT + 1)
    assert verdict(watch).message.startswith("rank 2 on b (pid 70) has not moved for 31 s while")


def test_nobody_is_behind_for_fewer_signs_of_life(clock: Clock) -> None:
    """As the root of a gather gives, which looks at more data than others."""
    watch = Watched()
    for _ in range(5):
        watch.board.beat(0)
    clock.advance(watch, LIMIT + 1)
    assert verdict(watch).message.startswith(HANG)


def test_calls_of_an_earlier_case_are_no_lead_in_the_next(clock: Clock) -> None:
    watch = Watched()
    watch.board.count_calls(0, 7)
    for rank in range(3):
        watch.board.enter(rank, Phase.MEASURING, 0)
    watch.board.count_calls(1)
    watch.board.count_calls(2)
    clock.advance(watch, LIMIT + 1)
    assert verdict(watch).message.startswith("rank 0 on a has not moved for 31 s")


def test_a_rank_that_has_not_begun_is_behind_those_that_have(clock: Clock) -> None:
    watch = Watched()
    for rank in range(3):
        watch.board.enter(rank, Phase.CONNECTING)
        watch.board.count_calls(rank, 9)
    for rank in (0, 2):
        watch.board.enter(rank, Phase.PREPARING, 0)
    clock.advance(watch, LIMIT + 1)
    assert verdict(watch).message.startswith("rank 1 on a has not moved for 31 s")


def test_what_a_launcher_sees_to_be_wrong_comes_before_who_is_behind(clock: Clock) -> None:
    watch = Watched()
    watch.board.count_calls(0)
    watch.obstacle = watch.accuse(1, "is stopped")
    clock.advance(watch, LIMIT + 1)
    assert verdict(watch) is watch.obstacle


@pytest.mark.parametrize("text", ["{", "[1]", "7", '{"line": 3}', "loaded a plug-in"])
def test_what_is_no_record_is_a_print(text: str) -> None:
    assert Watched().handle_line(0, text).says == text


def test_a_record_that_cannot_be_kept_is_told_with_its_rank() -> None:
    """Its times by rank are not of all ranks."""
    what = msgspec.to_builtins(case())
    line = {"line": {"line": "record", "case": what, "status": "ok", "per_rank": [[1]]}}
    text = msgspec.json.encode(line)
    for sent in (text, text.decode(), text[:-9]):
        with pytest.raises(RunBroken, match="rank 1 on a sent a line that cannot be kept"):
            Watched().handle_line(1, sent)


def test_a_world_that_waits_for_its_turn_rests_until_it_has_it(clock: Clock) -> None:
    watch = Watched()
    watch.handle_line(0, '{"turn": 0}')
    clock.advance(watch, 3 * LIMIT)
    watch.go()
    assert watch.answers == [(0, b"null")]
    clock.advance(watch, LIMIT)
    assert verdict(watch).message.startswith(HANG)


def test_ranks_that_are_done_hang_no_more_but_have_a_limit_to_leave(clock: Clock) -> None:
    watch = Watched()
    for rank in range(3):
        watch.handle_line(rank, '{"done": true}')
    for _ in range(int(LEAVE_SECONDS)):
        assert watch.busy()
        clock.now += 1.0
    assert watch.busy()
    clock.now += 1.0
    assert not watch.busy()


def test_time_in_which_all_were_suspended_is_no_hang(clock: Clock) -> None:
    """As by Ctrl-Z and fg, after which ranks have yet to move."""
    watch = Watched()
    clock.advance(watch, LIMIT / 2)
    clock.now += 100 * LIMIT
    watch.move(0)
    with pytest.raises(RunBroken, match="all 3 ranks hang in the same call"):
        clock.advance(watch, LIMIT)


def test_time_in_which_all_were_suspended_is_none_to_leave_in(clock: Clock) -> None:
    watch = Watched()
    for rank in range(3):
        watch.handle_line(rank, '{"done": true}')
    clock.now += 100 * LIMIT
    assert watch.busy()


def test_ranks_whose_process_has_ended_are_listened_to_no_more() -> None:
    watch = Watched()
    for rank in range(3):
        assert watch.busy()
        watch.note_end(rank, None)
    assert not watch.busy()


def test_the_end_of_a_rank_that_has_said_why_is_no_death() -> None:
    watch, death = Watched(), Death.by(1, "exited with")
    watch.handle_line(0, '{"error": {"message": "no such thing"}}')
    watch.handle_line(1, '{"done": true}')
    for rank in range(3):
        watch.note_end(rank, death)
    assert watch.deaths == {2: death}


def test_who_is_to_blame_has_its_grace_to_be_heard_of(clock: Clock) -> None:
    watch = Watched(grace=1.0)
    watch.note_end(1, Death.by(-9, ""))
    watch.check()
    clock.now += 0.9
    watch.check()
    clock.now += 0.2
    with pytest.raises(RunBroken, match="rank 1 on a was killed by SIGKILL while measuring"):
        watch.check()


def test_those_who_are_late_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    watch = Watched()
    watch.note_end(1, None)
    assert watch.report_late_ranks()
    assert "rank 0 on a, rank 2 on b did not end within 5 s" in capsys.readouterr().err
    watch.ended.update(range(3))
    assert not watch.report_late_ranks()
