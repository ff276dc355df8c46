"""What a trial makes of the reports of its ranks: wrong data go before everything else."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import case
from steps import without_pause

from collbench.core.errors import CannotRun
from collbench.features.lifecycle import torch_life, watching
from collbench.features.lifecycle import trial as trials
from collbench.features.lifecycle.request import Life, Loss
from collbench.features.lifecycle.trial import LifeTrial, LossTrial
from collbench.run.rank.control import Control
from collbench.run.rank.outcome import AboutCase, FailedCase, WrongData, record_of


def judge_loss(reports: list[dict[str, Any]]) -> Any:
    trial = object.__new__(LossTrial)
    trial._loss = Loss(world=len(reports), victim=1)
    return trial._make_outcomes(reports)


def survived(wrong: int) -> dict[str, Any]:
    return {"last": "calls", "ended": True, "complaint": "", "wrong_before": wrong}


def test_wrong_data_that_end_the_victim_before_its_kill_are_wrong_data() -> None:
    gone = {"trouble": "rank 1 ended before it was killed: ", "wrong_before": 2}
    for outcome in judge_loss([survived(3), gone, survived(0)]):
        assert isinstance(outcome, WrongData) and outcome.wrong == 5


def test_a_victim_that_ends_without_wrong_data_is_a_failure() -> None:
    gone = {"trouble": "rank 1 ended before it was killed: no port", "wrong_before": 0}
    for outcome in judge_loss([survived(0), gone, survived(0)]):
        assert isinstance(outcome, FailedCase) and "no port" in outcome.reason


def test_wrong_data_of_a_survivor_are_no_silence() -> None:
    killed = {"killed": 10, "at": 5, "doing": "calls", "wrong_before": 0}
    for outcome in judge_loss([survived(3), killed, survived(0)]):
        assert isinstance(outcome, WrongData) and outcome.wrong == 3


def test_wrong_data_of_a_life_are_found_though_another_rank_hangs() -> None:
    trial = object.__new__(LifeTrial)
    trial._life, trial._case = Life(world=2), SimpleNamespace(n=2)  # type: ignore[assignment]
    checked = {"name": "checked", "ns": 1, "wrong": 4, "verified": 8}
    reports = {
        "0": {"events": [checked], "trouble": ""},
        "1": {"events": [], "trouble": "silence: rank 1 hangs"},
    }
    for outcome in trial._make_outcomes(reports):
        assert isinstance(outcome, WrongData) and outcome.wrong == 4
        assert "silence: rank 1 hangs" in outcome.note


def test_an_error_before_the_kill_is_no_detection() -> None:
    killed = {"killed": 10, "at": 5, "doing": "calls"}
    early = {**survived(0), "knows": {"how": "error", "ns": 9, "text": "no route"}}
    for outcome in judge_loss([early, killed, survived(0)]):
        assert isinstance(outcome, FailedCase)
        assert outcome.reason == "rank 0 failed before the kill: no route"


def test_who_is_told_of_a_kill_knows_at_once() -> None:
    killed = {"killed": 10, "at": 5, "doing": "calls"}
    reports: list[dict[str, Any]] = [
        {**survived(0), "knows": {"how": "told", "ns": 9}, "recovered": {"ns": 20}}
        for _ in range(2)
    ]
    known, _ = judge_loss([reports[0], killed, reports[1]])
    assert known.timing.times == [1]


def test_ranks_that_do_not_come_back_are_among_the_findings() -> None:
    killed = {"killed": 10, "at": 5, "doing": "calls"}
    knew = {**survived(0), "knows": {"how": "error", "ns": 20, "text": "reset"}}
    known, back = judge_loss([knew, killed, survived(0)])
    for outcome in (known, back):
        assert isinstance(outcome, FailedCase) and outcome.findings["doing"] == "calls"
        assert [rank.get("how", "") for rank in outcome.findings["ranks"]] == ["error", ""]
        record = record_of(case(4, n=3), outcome, ABOUT)
        assert (record.status, record.findings) == ("failed", outcome.findings)


ABOUT = AboutCase(world=0, started="")


def test_what_collbench_imports_is_no_part_of_the_library() -> None:
    events = [("started", 110), ("importing", 150), ("imported", 400)]
    report = {"began": 100, "events": [{"name": name, "ns": ns} for name, ns in events]}
    measured = trials._measure_start([report])
    parts = {"interpreter": 10, "collbench": 40, "library": 250}
    assert (measured.timing.times, measured.findings["parts_ns"]) == ([300], parts)


class SecondOfTwo(Control):
    """Rank 1's control, whose rank 0 has answered."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__(1, 2)
        self._answers = answers

    def collect(self, value: Any) -> list[Any]:
        return [self._answers.pop(0), value]


class Store:
    """A store as torch has it, in which another rank comes to each point after some looks."""

    def __init__(self, looks: int = 0) -> None:
        self.keys: list[str] = []
        self._looks = looks

    def add(self, key: str, number: int) -> int:
        return 1 + number

    def set(self, key: str, value: str) -> None:
        self.keys.append(key)

    def check(self, keys: list[str]) -> bool:
        self._looks -= 1
        return self._looks < 0


def run_life(backend: str, hosts: list[str], answers: list[Any], **fields: Any) -> Any:
    trial: Any = object.__new__(LifeTrial)
    trial._case = SimpleNamespace(n=2, backend=backend)
    trial._store, trial._beat = fields.pop("store", Store()), fields.pop("beat", int)
    policy = SimpleNamespace(inject=fields.pop("inject", ""))
    vars(trial).update(fields)
    trial._life, trial._one_host = Life(world=2), len(set(hosts)) == 1
    board = SimpleNamespace(enter=lambda *_: None)
    control, faults = SecondOfTwo(answers), list[Any]
    trial._bench = SimpleNamespace(
        rank=1, control=control, board=board, policy=policy, list_faults=faults
    )
    trial._instruct = lambda *_, **__: None
    return without_pause(trial.run())


def test_mpi_is_not_started_by_an_mpirun_of_one_host_for_ranks_of_two() -> None:
    with pytest.raises(CannotRun, match="these ranks are on several"):
        run_life("mpi", ["a", "b"], [None, {}])


def test_a_suite_plants_no_fault_in_a_life_but_a_late_rank() -> None:
    with pytest.raises(CannotRun, match="--inject corrupt: lifecycle plants only late faults"):
        run_life("gloo", ["a", "a"], [None, {}], inject="corrupt:1")


def test_all_ranks_hear_that_rank_0_has_no_mpirun() -> None:
    with pytest.raises(CannotRun, match="needs an mpirun"):
        run_life("mpi", ["a", "a"], [["--backend mpi needs an mpirun", "install one"], {}])


def test_a_rank_that_is_done_shows_that_it_lives_until_all_are() -> None:
    """Else it would be taken for silent where ranks of several hosts wait longer."""
    beats: list[int] = []
    life: dict[str, Any] = {"store": Store(3), "beat": lambda: beats.append(1)}
    ended = run_life("gloo", ["a", "b"], [None, {}], _watch=lambda given: {}, **life)
    assert len(beats) >= 3 and ended == []


def test_a_store_that_lives_use_is_rarely_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked, beats = [0.0], list[float](), list[float]()

    class Late(Store):
        def check(self, keys: list[str]) -> bool:
            asked.append(now[0])
            return now[0] >= 10.0

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    for module in (trials, watching):
        monkeypatch.setattr(module, "time", clock)
    trial: Any = object.__new__(LifeTrial)
    trial._store, trial._beat = Late(), lambda: beats.append(now[0])
    trial._wait_for("the end", 60.0)
    assert 10.0 <= now[0] <= 11.0 + watching.LOOK
    assert len(asked) < 50 and len(beats) > 1000


def test_a_rank_that_cannot_start_a_life_keeps_none_waiting() -> None:
    def fail(given: object) -> None:
        raise CannotRun("no process")

    store = Store()
    with pytest.raises(CannotRun, match="no process"):
        run_life("gloo", ["a", "b"], [None, {}], _watch=fail, store=store)
    assert store.keys == [torch_life.LOADED, "the end"]


def test_who_came_least_far_is_named() -> None:
    """Others waited for it in vain."""
    trial = object.__new__(LifeTrial)
    trial._life, trial._case = Life(world=2), SimpleNamespace(n=2)  # type: ignore[assignment]
    begun = [{"name": "at", "ns": 1, "phase": "rendezvous"}]
    reports = {
        "0": {"events": begun, "trouble": "rank 0, rendezvous: a rank has not come"},
        "1": {"events": [], "trouble": "rank 1, starting: no such library"},
    }
    for outcome in trial._make_outcomes(reports):
        assert isinstance(outcome, FailedCase) and outcome.reason.startswith("rank 1")


@pytest.mark.parametrize("looks", [0, 5])
def test_ranks_that_load_their_library_for_long_are_waited_for(
    looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patience of a library begins once all have loaded it."""
    now = [0.0]

    def wait(keys: list[str], limit: timedelta) -> None:
        now[0] += limit.total_seconds()
        raise RuntimeError("wait timeout")

    given = SimpleNamespace(patience=3.0)
    life: Any = object.__new__(torch_life.Torch)
    life._given, life.world, store = given, 3, Store(looks)
    store.wait = wait  # type: ignore[attr-defined]
    life._connect = lambda: store
    monkeypatch.setattr(torch_life, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with pytest.raises(RuntimeError, match="a rank has not come within 3 s"):
        life.join()
    assert now[0] == 1.0 + looks + given.patience + 1.0


@pytest.mark.parametrize(("has_loaded", "seconds"), [(True, 7), (False, trials.STARTING)])
def test_the_limit_of_a_life_counts_from_when_its_library_is_loaded(
    has_loaded: bool, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def wait_while(is_open: Callable[[], bool], limit: float, beat: object) -> bool:
        limits.append(limit)
        return not is_open()

    watched = SimpleNamespace(
        ranks=[0],
        events={0: []},
        ended=False,
        look=lambda: None,
        last_phase=lambda rank: "first call",
        last_complaint=lambda: "a warning",
        find=lambda rank, name: has_loaded if name == "imported" else None,
    )
    monkeypatch.setattr(trials, "wait_while", wait_while)
    monkeypatch.setattr(trials, "watch_life", lambda given: nullcontext((watched, 0)))
    trial: Any = object.__new__(LifeTrial)
    trial._beat, trial._case, trial._store = None, SimpleNamespace(n=2), Store()
    report = trial._watch(SimpleNamespace(limit=7.0))["0"]
    assert limits == [trials.STARTING, *[trials.STARTING, 7.0] * has_loaded]
    assert trial._store.keys == [torch_life.LOADED]
    hung = f"silence: rank 0 has not come past first call in {seconds:g} s"
    assert report["trouble"] == hung


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_store_is_served_at_an_address_of_either_family(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(address: str, port: int, **settings: Any) -> str:
        os.close(settings["master_listen_fd"])
        return address

    if ":" in address and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    monkeypatch.setattr(trials, "make_store", make)
    assert trials._serve_any_store(address)[0] == address


NO_SOCKET = "The libuv TCPStore backend does not support initialization with an listen fd."  # 2.6
NO_LIBUV = "use_libuv was requested but PyTorch was build without libuv support"
OTHER = "The server socket has failed to listen on any local network address."


def make_failing_store(message: str, made: list[dict[str, Any]]) -> Callable[..., str]:
    """As torch makes a store, but that it fails so with libuv."""

    def make(address: str, port: int, **settings: Any) -> str:
        os.close(settings["master_listen_fd"])
        made.append(settings)
        if settings.get("use_libuv", True):
            raise RuntimeError(message)
        return "a store"

    return make


@pytest.mark.parametrize("message", [NO_SOCKET, NO_LIBUV])
def test_a_torch_whose_libuv_serves_no_store_serves_one_without(
    message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "make_store", make_failing_store(message, []))
    store, port = trials._serve_any_store("127.0.0.1")
    assert store == "a store" and port > 0


def test_a_store_that_fails_for_another_reason_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(trials, "make_store", make_failing_store(OTHER, made))
    with pytest.raises(RuntimeError, match="failed to listen"):
        trials._serve_any_store("127.0.0.1")
    assert len(made) == 1
