"""An mpirun of one world, from its start to its end."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from collbench.core.errors import CannotRun
from collbench.run.launch import mpirun
from collbench.run.launch.forkserver import Note


def test_one_that_a_signal_kept_from_being_started_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*of: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mpirun, "find_mpirun", lambda python: "mpirun")
    monkeypatch.setattr(mpirun.subprocess, "Popen", interrupted)
    world = mpirun.Mpirun({}, sys.executable, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        world.spawn(2, 0)
    world.close()
    with pytest.raises(ValueError, match="closed"):
        world.fileno()


def test_the_folder_of_mpirun_comes_first_on_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Intel's mpirun is a script that calls an mpiexec.hydra beside it by its name alone."""
    for folder in ("other", "environment"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mpiexec.hydra").write_text(f"#!/bin/sh\necho {folder} > $TMPDIR/by\n")
        (tmp_path / folder / "mpiexec.hydra").chmod(0o755)
    script = tmp_path / "environment" / "mpirun"
    script.write_text('#!/bin/sh\nexec mpiexec.hydra "$@"\n')
    script.chmod(0o755)
    path = f"{tmp_path / 'other'}:/usr/bin:/bin"
    monkeypatch.setattr(mpirun, "find_mpirun", lambda python: str(script))
    world = mpirun.Mpirun({"PATH": path}, sys.executable, tmp_path)
    world.spawn(1, 0)
    assert world.end() == 0
    assert (tmp_path / "by").read_text() == "environment\n"
    world.close()


def test_an_mpirun_of_this_host_knows_of_no_allocation() -> None:
    allocation = {"SLURM_JOB_ID": "7", "PBS_NODEFILE": "/nodes", "PE_HOSTFILE": "/nodes"}
    made = mpirun.make_environment("/opt/mpi/bin/mpirun", {"UCX_TLS": "tcp", **allocation}, "/tmp")
    assert not allocation.keys() & made.keys()
    assert made["UCX_TLS"] == "tcp"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[mpirun.Mpirun]:
    """A world whose mpirun is a process that waits."""
    monkeypatch.setattr(mpirun, "find_mpirun", lambda python: "mpirun")
    waiting = subprocess.Popen(["sleep", "600"])
    made = mpirun.Mpirun({}, sys.executable, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(mpirun.subprocess, "Popen", lambda *of, **named: waiting)
        made.spawn(4, 0)
    yield made
    made.close()


@contextmanager
def told(world: mpirun.Mpirun, folder: Path) -> Iterator[Callable[[Note], Note]]:
    """Tells a world a note as a warden does, and what comes of it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notes:

        def tell(note: Note) -> Note:
            notes.sendto(msgspec.json.encode(note), str(folder / "notes"))
            return world.note()[0]

        yield tell


def test_a_rank_whose_warden_ends_before_it_is_named(world: mpirun.Mpirun, tmp_path: Path) -> None:
    with told(world, tmp_path) as tell, subprocess.Popen(["sleep", "600"]) as warden:
        assert tell(Note(2, warden=warden.pid)) == Note(2, warden=warden.pid)
        assert world.unheard(4) == [0, 1, 3]
        warden.kill()
        warden.wait()
        assert world.note()[0] == Note(2, alone=True)
        assert tell(Note(1, warden=warden.pid)) == Note(1, alone=True)


def test_a_warden_that_cannot_fork_its_rank_is_told_with_a_remedy(
    world: mpirun.Mpirun, tmp_path: Path
) -> None:
    with told(world, tmp_path) as tell, pytest.raises(CannotRun) as caught:
        tell(Note(2, errno=errno.EAGAIN))
    assert caught.value.message == "mpirun cannot start rank 2: Resource temporarily unavailable"
    assert "ulimit -u" in caught.value.hint


def test_a_killed_mpirun_is_the_news_and_not_the_wardens_that_end_with_it(
    world: mpirun.Mpirun, tmp_path: Path
) -> None:
    with told(world, tmp_path) as tell, subprocess.Popen(["sleep", "600"]) as warden:
        tell(Note(2, warden=warden.pid))
        for process in (world.process, warden):
            process.kill()
            process.wait()
        with pytest.raises(EOFError):
            world.note()


def test_a_warden_that_has_told_of_its_ranks_end_may_go(
    world: mpirun.Mpirun, tmp_path: Path
) -> None:
    with told(world, tmp_path) as tell, subprocess.Popen(["sleep", "600"]) as warden:
        tell(Note(2, warden=warden.pid))
        assert tell(Note(2, status=9)) == Note(2, status=9)
        warden.kill()
    with pytest.raises(EOFError):
        world.note()


def test_where_no_warden_has_begun_none_is_missing(world: mpirun.Mpirun) -> None:
    assert world.unheard(4) == []
