"""Who is to blame among the ranks of this machine, by the errors that they tell of."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from collbench.core.errors import AlgorithmError, CannotRun, CollbenchError, Exit, RunBroken
from collbench.machine import descriptors
from collbench.run.backends import _memory
from collbench.run.jobs import Plan
from collbench.run.launch import local, ssh
from collbench.run.launch.board import Board, Phase
from collbench.run.launch.forkserver import Note, Parent, Server, Spawn
from collbench.run.launch.local import ForkServer, LocalWatch
from collbench.run.launch.watch import Death
from collbench.run.launch.world import Failure, Listener
from collbench.suite.policy import Policy

FORESEEN = Failure("no such thing here", "take another")
STARVED = Failure("ran out of memory (MemoryError: planted)", "free some", own=True)
FAULTY = Failure("raised KeyError: 'planted'", traceback="Traceback of rank 1\n", own=True)

TERMINATED = Death.by(-signal.SIGTERM, "")


def blamed(*errors: Failure, **deaths: Death) -> Any:
    """What is raised when ranks have told of these errors, in their order, and ended like this."""
    plan = Plan(0, "shm", 2, (), Policy(), [], 30.0)
    board, fd = Board.create(2)
    reads, writes = os.pipe()
    watch = LocalWatch(
        plan, Listener(lambda line: None), SimpleNamespace(fileno=lambda: reads), board, ""
    )  # type: ignore[arg-type]
    watch.pids = {0: 70, 1: 71}
    watch.errors = dict(enumerate(errors))
    watch.deaths = {int(name[-1]): death for name, death in deaths.items()}
    for each in (fd, reads, writes):
        os.close(each)
    return watch.blame_trouble()


def lost_memory() -> Failure:
    """What a rank says whose peer is gone when it maps its memory."""
    gone = os.open("/dev/null", os.O_RDONLY)
    os.close(gone)
    with pytest.raises(ConnectionResetError) as caught:
        _memory._open_memory(os.getpid(), gone, 8)
    return Failure.of(caught.value)


def test_who_ran_out_of_memory_is_to_blame_and_not_who_misses_its_memory() -> None:
    error = blamed(lost_memory(), STARVED)
    assert isinstance(error, RunBroken)
    assert "rank 1 on " in error.message and "MemoryError: planted" in error.message


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate"
            " memory: you tried to allocate 67108864 bytes. Error code 12"
        ),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        RuntimeError("std::bad_alloc"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    ],
)
def test_a_rank_without_memory_is_no_fault_to_report(error: Exception, home: Path) -> None:
    """It is named, with what to do, and no traceback is kept."""
    told = blamed(lost_memory(), Failure.of(error))
    assert "rank 1 on " in told.message and "out of memory" in told.message
    assert "ulimit -v" in told.hint and not home.exists()


def test_the_traceback_of_what_was_not_foreseen_is_kept(home: Path) -> None:
    told = blamed(FORESEEN, FAULTY)
    assert "rank 1 on " in told.message
    assert [path.read_text() for path in (home / "crashes").iterdir()] == [FAULTY.traceback]


def test_a_user_error_on_a_rank_at_work_stays_one() -> None:
    told = Failure.of(AlgorithmError("mine.py, line 3", "mend it")).as_error(job=0)
    assert (told.exit, told.message, told.hint) == (Exit.USAGE, "mine.py, line 3", "mend it")


def test_a_user_error_before_any_case_leaves_the_world_out() -> None:
    assert Failure.of(AlgorithmError("mine.py, line 3")).as_error().exit == Exit.CANNOT_RUN


def test_what_was_not_foreseen_comes_before_what_was() -> None:
    assert "rank 1 on " in blamed(FORESEEN, STARVED).message


def test_what_all_foresaw_cannot_run_here() -> None:
    error = blamed(FORESEEN, FORESEEN)
    assert isinstance(error, CannotRun)
    assert error.message == FORESEEN.message


REMOTE = """NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a network error
ncclRemoteError: A call failed possibly due to a network error.
Last error:
socketProgress: Connection closed by remote peer node1<41670>"""


def test_a_rank_on_nccl_that_only_noticed_is_not_to_blame() -> None:
    noticed = Failure.of(torch.distributed.DistBackendError(REMOTE))
    failed = Failure.of(RuntimeError("planted"))
    assert "rank 1 on " in (told := blamed(noticed, failed).message) and "planted" in told


def test_whom_mpirun_terminates_is_not_to_blame() -> None:
    assert "rank 1 on " in blamed(lost_memory(), STARVED, rank0=TERMINATED).message
    exited = Death.by(1, "exited with status")
    assert "rank 1 on " in blamed(rank0=TERMINATED, rank1=exited).message


def test_who_was_terminated_is_to_blame_where_nobody_says_why() -> None:
    assert "rank 1 on " in blamed(lost_memory(), rank1=TERMINATED).message


class Silent:
    """What starts ranks, of which nothing is heard but what a test says."""

    name = "mpirun"
    process = SimpleNamespace(pid=os.getpid())

    def __init__(self, *notes: Note | None, unheard: Sequence[int] = ()) -> None:
        self._notes, self._unheard = list(notes), list(unheard)
        self._reads, self._writes = os.pipe()
        os.write(self._writes, b"x")

    def fileno(self) -> int:
        return self._reads

    def note(self) -> tuple[Note | None, list[int]]:
        if not self._notes:
            raise EOFError
        return self._notes.pop(0), []

    def unheard(self, n: int) -> list[int]:
        return self._unheard

    def list_ranks(self) -> list[tuple[int, int]]:
        return []

    def makers(self) -> list[tuple[str, int]]:
        return [(self.name, self.process.pid)]

    def end(self) -> int:
        return 137

    def ended(self, born: int) -> CannotRun:
        return CannotRun("mpirun ended")


def watched(parent: Silent, timeout: float = 30.0, backend: str = "mpi") -> LocalWatch:
    plan = Plan(0, backend, 4, (), Policy(), [], timeout)
    board, fd = Board.create(4)
    os.close(fd)
    return LocalWatch(plan, Listener(lambda line: None), parent, board, "")  # type: ignore[arg-type]


def verdict(watch: LocalWatch) -> CollbenchError:
    with pytest.raises(CollbenchError) as caught:
        while True:
            watch.move(0.01)
    return caught.value


def test_the_rank_whose_warden_was_lost_is_to_blame_and_not_who_was_terminated() -> None:
    notes = [Note(rank, warden=1) for rank in range(4)]
    ends = [Note(rank, status=signal.SIGTERM) for rank in (0, 1, 3)]
    error = verdict(watched(Silent(*notes, *ends, Note(2, alone=True))))
    assert isinstance(error, RunBroken) and "rank 2 on " in error.message


def test_a_rank_that_was_never_heard_of_is_to_blame_and_not_who_was_terminated() -> None:
    ends = [Note(rank, status=signal.SIGTERM) for rank in (0, 1, 2)]
    error = verdict(watched(Silent(*ends, unheard=[3])))
    assert isinstance(error, RunBroken) and "rank 3 on " in error.message


def test_a_rank_that_was_never_heard_of_comes_before_one_that_was_ended_for_it() -> None:
    error = verdict(watched(Silent(Note(0, alone=True), unheard=[1])))
    assert "rank 1 on " in error.message


@pytest.mark.parametrize("first", ["exit", "warden"])
def test_of_a_rank_that_exits_and_a_warden_that_is_killed_the_first_is_to_blame(first: str) -> None:
    """MPICH's mpirun kills the wardens of all other ranks where one exits."""
    notes = [Note(2, status=66 << 8), Note(0, alone=True)]
    error = verdict(watched(Silent(*(notes if first == "exit" else notes[::-1]))))
    assert f"rank {2 if first == 'exit' else 0} on " in error.message


@pytest.mark.parametrize("has_told", [False, True], ids=["silent", "has told that a peer is gone"])
def test_whose_warden_mpirun_kills_after_another_failed_is_not_to_blame(has_told: bool) -> None:
    """Open MPI's, too, where a rank ends without MPI_Finalize."""
    notes = [Note(2, status=1 << 8), Note(0, alone=True)]
    watch = watched(Silent(*notes))
    watch.errors = {2: STARVED} | ({0: lost_memory()} if has_told else {})
    error = verdict(watch)
    assert "rank 2 on " in error.message and "MemoryError: planted" in error.message


def test_where_mpirun_was_killed_no_rank_is_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Silent, "end", lambda parent: -9)
    notes = [Note(rank, alone=True) for rank in (2, 1)]
    assert verdict(watched(Silent(*notes))).message == "mpirun ended"


def test_where_all_wardens_have_ended_the_end_of_mpirun_is_waited_for() -> None:
    watch = watched(Silent(*(Note(rank, alone=True) for rank in range(4))))
    for _ in range(4):
        watch.move(0.01)
    assert watch.ended == {0, 1, 2, 3} and watch.busy()


@pytest.mark.parametrize("has_told", [False, True], ids=["silent", "another lost its peer"])
def test_the_end_of_mpirun_may_be_heard_of_after_those_of_wardens(
    monkeypatch: pytest.MonkeyPatch, has_told: bool
) -> None:
    monkeypatch.setattr(Silent, "end", lambda parent: -9)
    watch = watched(Silent(Note(2, alone=True), None, None))
    watch.errors = {0: lost_memory()} if has_told else {}
    watch._grace = 0.0
    assert verdict(watch).message == "mpirun ended"


def test_who_was_terminated_alone_is_to_blame() -> None:
    error = verdict(watched(Silent(Note(1, status=signal.SIGTERM))))
    assert isinstance(error, RunBroken) and "rank 1 on " in error.message


@pytest.mark.parametrize("whose", ["warden", "warden that has told nothing", "rank"])
def test_a_stopped_process_is_named_though_others_load(
    monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    monkeypatch.setattr(local, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(LocalWatch, "_loading", lambda watch: [time.monotonic()])  # goes on
    with subprocess.Popen(["sleep", "600"]) as process:
        watch = watched(Silent(), timeout=0.1)
        watch._take_note = lambda: None  # type: ignore[method-assign]
        at = (2, process.pid)
        below = [at] if whose == "warden that has told nothing" else []
        monkeypatch.setattr(Silent, "list_ranks", lambda parent: below)
        if not below:
            (watch._wardens if whose == "warden" else watch.pids).update([at])
        process.send_signal(signal.SIGSTOP)
        error = verdict(watch)
        process.kill()
    assert isinstance(error, RunBroken) and "rank 2 on " in error.message
    assert "is stopped (SIGSTOP)" in error.message


def test_wardens_that_load_are_no_standstill_of_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    """mpirun waits while they do."""
    watch = watched(Silent())
    monkeypatch.setattr(local, "_cpu_seconds", {Silent.process.pid: 1.0, 70: 2.0, 71: 3.0}.get)
    assert watch._loading() == [1.0]
    watch._wardens.update({0: 70, 1: 71})
    assert watch._loading() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.EAGAIN, "ulimit -u"), (errno.ENOMEM, "ulimit -v")]
)
def test_a_rank_that_cannot_be_forked_is_told_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, number: int, hint: str
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server, parent = Server.__new__(Server), ForkServer.__new__(ForkServer)
    server._control, server._ranks, parent._ours = theirs, {}, ours
    _, fd = Board.create(2)

    def fork() -> int:
        raise OSError(number, os.strerror(number))

    with ours, theirs:
        monkeypatch.setattr(os, "fork", fork)
        server._spawn(Spawn(2), fd)
        with pytest.raises(CannotRun) as caught:
            parent.note()
    assert caught.value.message.startswith("the fork server cannot start rank 0: ")
    assert os.strerror(number) in caught.value.message
    assert hint in caught.value.hint


def test_a_rank_whose_channel_finds_no_descriptor_is_told_with_a_remedy() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = ForkServer.__new__(ForkServer)
    parent._ours = ours
    with ours, theirs:
        theirs.send(msgspec.json.encode(Note(490, pid=1)))  # what the kernel passed on was cut
        with pytest.raises(CannotRun, match="cannot start rank 490: Too many open files") as caught:
            parent.note()
    assert "ulimit -n" in caught.value.hint


def test_ranks_that_a_fork_server_kills_leave_no_zombies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    server = Server.__new__(Server)
    server._ranks = {rank.pid: number for number, rank in enumerate(ranks)}

    def lose_parent() -> None:
        raise BrokenPipeError

    monkeypatch.setattr(server, "_serve_parent", lose_parent)
    with pytest.raises(BrokenPipeError):
        server.serve()
    for rank in ranks:
        with pytest.raises(ChildProcessError):
            os.waitpid(rank.pid, os.WNOHANG)
        rank.wait()


def test_who_starts_ranks_raises_its_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[str] = []
    monkeypatch.setattr(descriptors, "raise_limit", lambda: raised.append("raised"))
    local.Launcher()
    assert raised == ["raised"]
    assert ssh.SshHosts(()).connect((), 1.0, 1.0) == []
    assert raised == ["raised"] * 2


@pytest.mark.parametrize("there", [True, False])
def test_a_removed_store_is_told_from_a_hang(tmp_path: Path, there: bool) -> None:
    plan = Plan(0, "gloo", 4, (), Policy(), [], 0.05)
    board, fd = Board.create(4)
    os.close(fd)
    store = tmp_path / "store"
    if there:
        store.touch()
    watch = LocalWatch(plan, Listener(lambda line: None), Silent(), board, str(store))  # type: ignore[arg-type]
    watch.pids = dict.fromkeys(range(4), os.getpid())
    watch._take_note = lambda: None  # type: ignore[method-assign]
    for rank in range(4):
        board.enter(rank, Phase.CONNECTING)
    error = verdict(watch)
    assert ("was removed" in error.message) is not there


def test_the_one_rank_that_mpirun_did_not_make_is_named() -> None:
    watch = watched(Silent(), timeout=0.05)
    watch._take_note = lambda: None  # type: ignore[method-assign]
    watch._loading = lambda: []  # type: ignore[method-assign]
    watch.pids = dict.fromkeys((0, 1, 3), os.getpid())
    assert "rank 2 on " in verdict(watch).message


@pytest.mark.parametrize(("code", "kind"), [(137, RunBroken), (1, CannotRun)])
def test_a_killed_process_of_mpirun_is_no_mpirun_that_cannot_start(
    monkeypatch: pytest.MonkeyPatch, code: int, kind: type[CollbenchError]
) -> None:
    parent = Parent()
    parent.name, parent.hint = "mpirun", ""
    monkeypatch.setattr(Parent, "end", lambda self: code)
    assert type(parent.ended(0)) is kind
