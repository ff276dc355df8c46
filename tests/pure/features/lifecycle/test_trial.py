"""What a trial makes of the reports of its ranks: wrong data go before everything else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.features.lifecycle import trial as trials
from collbench.features.lifecycle.request import Life, Loss
from collbench.features.lifecycle.trial import LifeTrial, LossTrial
from collbench.run.rank.outcome import FailedCase, WrongData


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
