"""MPI is loaded and started in one place; without it that is said, or another way taken. No MPI."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.core.errors import CannotRun
from collbench.run import mpi_library
from collbench.run.launch import rendezvous
from collbench.run.launch.environments import Membership


class Mpi:
    """The module mpi4py.MPI, and what it was asked."""

    THREAD_FUNNELED = 1

    def __init__(self, started: bool) -> None:
        self.started = started
        self.levels: list[int] = []
        self.calls: list[str] = []
        self.COMM_WORLD = self
        self.absent = 2  # looks until every rank is there

    def Is_initialized(self) -> bool:
        return self.started

    def Init_thread(self, level: int) -> None:
        self.levels.append(level)

    def Ibarrier(self) -> Mpi:
        self.calls.append("Ibarrier")
        return self

    def Test(self) -> bool:
        self.absent -= 1
        return self.absent < 0

    def Finalize(self) -> None:
        self.calls.append(f"Finalize, {max(self.absent, 0)} looks too early")


def plant(monkeypatch: pytest.MonkeyPatch, started: bool) -> tuple[Mpi, Any]:
    """A fake mpi4py."""
    mpi = Mpi(started)
    package = SimpleNamespace(MPI=mpi, rc=SimpleNamespace(initialize=True, finalize=True))
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    return mpi, package.rc


def test_where_mpi_cannot_be_loaded_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(CannotRun, match="MPI cannot be loaded") as caught:
        mpi_library.initialise_mpi()
    assert "pip install" in caught.value.hint


def test_without_mpi_a_launcher_has_no_means_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.delenv("PMI_FD", raising=False)
    assert rendezvous.tell_address(Membership("mpirun", 0, 2, 0, 1), "10.0.0.1", 20) is None


@pytest.mark.parametrize("started", [True, False])
def test_mpi_is_started_once_and_never_by_mpi4py(
    monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    mpi, settings = plant(monkeypatch, started)
    assert mpi_library.initialise_mpi() is mpi
    assert mpi.levels == ([] if started else [Mpi.THREAD_FUNNELED])
    assert not settings.initialize
    assert not settings.finalize


@pytest.mark.parametrize("started", [True, False])
def test_mpi_ends_with_the_process_where_it_was_started(
    monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    mpi, _ = plant(monkeypatch, started)
    actions: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", actions.append)
    mpi_library.finalise_at_exit()
    for action in actions:
        action()
    assert mpi.calls == ["Ibarrier", "Finalize, 0 looks too early"] * started
