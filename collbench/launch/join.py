"""Joining ranks that torchrun, srun or mpirun started: the same command line, run once per rank.

Every process runs the whole command; rank 0 plans, prints and records, and the others follow the plan it sends.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from collbench import environment
from collbench.errors import CannotRun, CollbenchError, Exit, RunBroken, UsageError, first_line, says_peer_is_gone
from collbench.launch.board import Board

if TYPE_CHECKING:
    from collbench.control import Control
    from collbench.plan import Plan
    from collbench.records import Record, World


OnLost = Callable[["Plan", RunBroken], None]
OnHang = Callable[[RunBroken], None]


class Membership(NamedTuple):
    """What a launcher's environment says of this process; ``local_n`` 0 where it does not say who shares the host."""

    launcher: str
    rank: int
    n: int
    local_rank: int
    local_n: int


# launcher, a variable that only it sets, then rank, world size, rank on the host, ranks on the host
_LAUNCHERS = (
    ("torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("mpirun (MPICH)", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("srun", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE"),
    ("environment", "MASTER_ADDR", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)  # fmt: skip


def detect(variables: Mapping[str, str] = os.environ) -> Membership | None:
    """The launcher this process was started by, or None when it should start its own ranks."""
    for launcher, sign, *names in _LAUNCHERS:
        if sign not in variables or not all(name in variables for name in names[:2]):
            continue
        rank, n = (_number(variables, name) for name in names[:2])
        local_rank, local_n = (
            _number(variables, name) if name in variables else default
            for name, default in zip(names[2:], (0, 0), strict=True)
        )
        if launcher == "srun" and n == 1:
            continue  # one task is an interactive step: it starts ranks of its own
        return Membership(launcher, rank, n, local_rank, local_n)
    return None


def _number(variables: Mapping[str, str], name: str) -> int:
    digits = variables[name].split("(")[0].split(",")[0]  # SLURM_TASKS_PER_NODE reads 4(x2)
    try:
        return int(digits)
    except ValueError:
        raise UsageError(
            f"{name}={variables[name]} is not a number", "is this shell inside a job that set it?"
        ) from None


@contextmanager
def rendezvous(member: Membership) -> Iterator[Any]:
    """A store all ranks of the world reach; None where torch finds it by MASTER_ADDR itself.

    Ranks of one host meet in a private folder named after the launcher's process, so that nothing listens; elsewhere
    MASTER_ADDR and MASTER_PORT must name a place.
    """
    import torch.distributed as dist

    if member.launcher in ("torchrun", "environment"):
        yield None
    elif member.n == member.local_n:
        with _private_folder(member) as folder:
            yield dist.FileStore(str(folder / "store"), member.n)  # type: ignore[attr-defined]
    elif "MASTER_ADDR" in os.environ:
        os.environ.setdefault("MASTER_PORT", "29511")
        os.environ.update(RANK=str(member.rank), WORLD_SIZE=str(member.n))
        yield None
    else:
        raise CannotRun(
            f"{member.launcher} started ranks on several hosts and nothing says where they meet",
            "set MASTER_ADDR to the first host's name for every rank (mpirun -x MASTER_ADDR=host1 …)",
        )


@contextmanager
def _private_folder(member: Membership) -> Iterator[Path]:
    """A folder that only ranks of this launch on this host, of this user, know and may open."""
    folder = Path(tempfile.gettempdir()) / f"collbench-{os.getuid()}-{_job()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise CannotRun(f"{folder} is not a folder of this user alone", "remove it, or set TMPDIR to a private folder")
    try:
        yield folder
    finally:
        if member.rank == 0:
            (folder / "store").unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()


def _job() -> str:
    """A name that all ranks of this launch on this host agree on: the launcher's job, else their parent process."""
    for names in (("PMIX_NAMESPACE",), ("SLURM_JOB_ID", "SLURM_STEP_ID"), ("PMI_JOBID",)):
        if all(name in os.environ for name in names):
            return re.sub(r"\W", "-", "-".join(os.environ[name] for name in names))
    parent = psutil.Process(os.getppid())
    return f"{parent.pid}-{int(parent.create_time() * 100)}"


def only_loopback(member: Membership) -> None:
    """Keep libraries off the network when all ranks share this host and nobody asked for an interface."""
    if member.n == member.local_n:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, "lo")


def shared_board(member: Membership, control: Control) -> Board:
    """One board for all ranks where they share this host's memory, else one this rank alone looks at."""
    path = None
    if member.rank == 0 and member.n == member.local_n and member.n > 1:
        fd, name = tempfile.mkstemp(prefix="collbench-board-")
        os.ftruncate(fd, Board.size(member.n))
        os.close(fd)
        path = Path(name)
    where = control.broadcast(str(path) if path else None)
    if where is None:
        board, fd = Board.create(member.n, shared=member.n == 1)
        os.close(fd)
        return board
    board = Board.at(Path(where), member.n)
    control.barrier()
    if path:
        path.unlink()
    return board


class Watchdog(threading.Thread):
    """Ends this process with exit code 4 when no rank that it can see has moved for ``limit`` seconds."""

    def __init__(self, board: Board, member: Membership, plan: Plan, on_lost: OnLost, on_hang: OnHang) -> None:
        super().__init__(daemon=True, name="collbench-watchdog")
        self._board, self._member, self._plan = board, member, plan
        self._on_lost, self._on_hang = on_lost, on_hang
        self._stop = threading.Event()

    def run(self) -> None:
        beats, moved = self._board.beats(), time.monotonic()
        while not self._stop.wait(1.0):
            latest = self._board.beats()
            if latest != beats:
                beats, moved = latest, time.monotonic()
            elif time.monotonic() - moved > self._plan.timeout:
                error = self._verdict(beats)
                try:
                    self._on_lost(self._plan, error)
                    self._on_hang(error)
                finally:
                    sys.stderr.flush()
                    os._exit(Exit.TIMEOUT)

    def _verdict(self, beats: list[int]) -> RunBroken:
        rank = (
            min(range(len(beats)), key=beats.__getitem__)
            if self._member.n == self._member.local_n
            else self._member.rank
        )
        return _broken(f"has not moved for {self._plan.timeout:g} s", rank, self._board, self._plan)

    def end(self) -> None:
        self._stop.set()


def _gave_up(member: Membership, seconds: float, on_hang: OnHang) -> None:
    who = f"rank {member.rank} of {member.n} on {environment.host()}"
    hint = "did all ranks start, with the same command line? -T sets the limit"
    try:
        on_hang(RunBroken(f"{who}: not all ranks came together within {seconds:g} s ({member.launcher}); {hint}"))
    finally:
        os._exit(Exit.TIMEOUT)


def run(
    member: Membership, make_plans: Callable[[], list[Plan]], on_line: Callable[[World | Record], None],
    on_lost: OnLost, on_hang: OnHang, seconds: float,
) -> None:  # fmt: skip
    """This rank's part of a whole run: ``make_plans`` is asked at rank 0 only, and its plans followed by all.

    ``seconds`` limit how long ranks may take to come together. Raises RunBroken when a rank fails, this or another;
    ``on_lost`` is told before, and ``on_hang`` from another thread when nothing moves, just before the process ends.
    """
    import msgspec

    from collbench import worker
    from collbench.plan import Plan

    only_loopback(member)
    timer = threading.Timer(seconds, _gave_up, (member, seconds, on_hang))
    timer.daemon = True
    timer.start()
    with rendezvous(member) as store:
        control = worker.connect(worker.Place(*member[1:], launcher=member.launcher), store)
        hosts = control.collect(environment.host())
        member = member._replace(
            local_rank=hosts[: member.rank].count(environment.host()), local_n=hosts.count(environment.host())
        )
        board = shared_board(member, control)
        plans = msgspec.convert(
            control.broadcast(msgspec.to_builtins(make_plans()) if member.rank == 0 else None), list[Plan]
        )
        timer.cancel()
        place = worker.Place(*member[1:], launcher=member.launcher)
        for plan in plans:
            os.environ.update(plan.env)
            watchdog = Watchdog(board, member, plan, on_lost, on_hang)
            watchdog.start()
            try:
                worker.Worker(place, plan, control, board, on_line).run()
            except Exception as e:
                if isinstance(e, CollbenchError):
                    raise
                lost = says_peer_is_gone(first_line(e))
                what = (
                    "lost another rank (the launcher says which)"
                    if lost
                    else f"raised {type(e).__name__}: {first_line(e)}"
                )
                error = _broken(what, member.rank, board, plan)
                on_lost(plan, error)
                raise error from e
            finally:
                watchdog.end()


def _broken(what: str, rank: int, board: Board, plan: Plan) -> RunBroken:
    phase, job = board.where(rank)[0], board.job(rank)
    return RunBroken(f"rank {rank} on {environment.host()} {what} while {plan.doing(phase.words, job)}", job=job)
