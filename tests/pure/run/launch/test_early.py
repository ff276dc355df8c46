"""The process that loads torch before the options of a sweep are read."""

from __future__ import annotations

import os
from typing import Any

import pytest

from collbench.run.launch import early
from collbench.run.launch.early import LoadingServer, make_environment, start_early
from collbench.run.launch.local import ForkServer

TYPED: dict[str, Any] = {
    "dry_run": False,
    "envs": None,
    "paths": "",
    "backends": "",
    "launcher": "auto",
}


@pytest.fixture(autouse=True)
def _servers_are_made_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(early, "LoadingServer", lambda env: ("server", env["GLOO_SOCKET_IFNAME"]))


@pytest.mark.parametrize(
    "changes", [{}, {"backends": "gloo"}, {"backends": "model,shm"}, {"launcher": "local"}]
)
def test_ranks_of_this_machine_get_a_server(changes: dict[str, Any]) -> None:
    assert start_early(TYPED | changes) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"dry_run": True},
        {"envs": ["A=1"]},
        {"paths": "a"},
        {"backends": "model"},
        {"launcher": "ray"},
        {"launcher": "unheard"},
    ],
)
def test_what_needs_no_such_ranks_starts_nothing(changes: dict[str, Any]) -> None:
    assert start_early(TYPED | changes) is None


def test_ranks_of_a_launcher_start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    more = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"}
    for name, value in (variables | more).items():
        monkeypatch.setenv(name, value)
    assert start_early(TYPED) is None


def test_a_server_is_taken_over_once_and_only_as_it_is() -> None:
    settings = make_environment(os.environ)
    server = LoadingServer(settings)
    try:
        assert not server.take_over({**settings, "A": "1"}, server.python)
        assert not server.take_over(settings, "/another/python")
        with_it = ForkServer(settings, early=server)
        assert with_it.process is server.process
        assert not server.take_over(settings, server.python)
        server.close()  # which is another's by now
        assert server.process.poll() is None
    finally:
        with_it.close()


def test_a_server_that_nobody_wants_is_killed() -> None:
    server = LoadingServer(make_environment(os.environ))
    server.close()
    assert server.process.returncode is not None
    server.close()
