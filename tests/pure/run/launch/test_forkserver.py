"""The end of a process that is a rank, where its exit handlers take too long."""

from __future__ import annotations

import os

import pytest

from collbench.run.launch import forkserver


class Ended(Exception):
    """os._exit was called."""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is written to standard error; a process that ends raises Ended."""
    lines: list[str] = []

    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(os, "write", lambda fd, text: lines.append(text.decode()))
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(forkserver, "ALONE_SECONDS", 0.001)
    monkeypatch.setattr(forkserver, "LONGEST_SECONDS", 0.05)
    return lines


def test_a_rank_that_waits_for_one_that_is_stopped_says_so_and_ends(said: list[str]) -> None:
    causes = iter(["", "", "rank 0 on vm is stopped (SIGSTOP)"])
    with pytest.raises(Ended):
        forkserver._limit_exit(0, "rank 1 on vm", lambda: next(causes))
    (line,) = said
    assert line.startswith("collbench: rank 0 on vm is stopped (SIGSTOP) while leaving")
    assert list(causes) == []


def test_a_rank_whose_exit_handlers_wait_for_nobody_known_has_longer(said: list[str]) -> None:
    looks: list[str] = []
    with pytest.raises(Ended):
        forkserver._limit_exit(0, "rank 1 on vm", lambda: looks.append("") or "")
    (line,) = said
    assert "rank 1 on vm did not end within 0.05 s of its last work" in line
    assert len(looks) > 5
