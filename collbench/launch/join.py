"""Joining ranks that torchrun, srun, mpirun or another launcher started: the same command line, run once per rank.

Every process runs the whole command; rank 0 plans, prints and records, and the others follow the plan it sends.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import psutil

from collbench import environment
from collbench.errors import CannotRun, CollbenchError, Exit, RunBroken, first_line, says_peer_is_gone
from collbench.launch import doors, environments, told
from collbench.launch.board import Board
from collbench.launch.environments import Membership
from collbench.launch.meeting import Host, listener, who
from collbench.records import HostInfo, World

if TYPE_CHECKING:
    from collbench.control import Control
    from collbench.launch.guest import Guest
    from collbench.plan import Job, Plan
    from collbench.records import Record
    from collbench.worker import Place

# who starts processes on a host: Open MPI 5 and 4, MPICH and Intel MPI, PBS, Cray, Flux
DAEMONS = ("mpirun", "mpiexec", "prterun", "prted", "orterun", "orted", "mpiexec.hydra", "hydra_pmi_proxy",
           "hydra_bstrap_proxy", "pbs_attach", "aprun", "palsd", "flux-shell")  # fmt: skip
_MOMENT = 0.05
_SILENT = 0.6  # of the time without progress; whoever is there says so three times in it

OnLine = Callable[["World | Record"], None]
OnLost = Callable[["Plan", RunBroken], None]
OnHang = Callable[[RunBroken], None]


def detect(wanted: str = "auto") -> Membership | None:
    """The launcher this process was started by, or None when it should start its own ranks.

    Raises UsageError where ``wanted`` is not it, CannotRun where processes started together each believe to be alone.
    """
    member = environments.detect(wanted)
    if wanted == "auto" and (member is None or member.n == 1):
        _refuse_strangers()
    return member


def _refuse_strangers() -> None:
    """A launcher whose variables nobody here knows leaves as many worlds as it has started processes."""
    me = psutil.Process()
    with suppress(psutil.Error):
        parent = me.parent()
        if parent is None or parent.name() not in DAEMONS:
            return
        alike = sum(process.cmdline() == me.cmdline() for process in parent.children())
        if alike > 1:
            raise CannotRun(
                f"{parent.name()} started {alike} processes like this one on {environment.host()}, but each believes "
                "that it is alone",
                "is it another MPI's? set RANK, WORLD_SIZE and MASTER_ADDR, or --launcher local for a world each",
            )


class Meeting(NamedTuple):
    """Ranks that have come together: this one's connection to rank 0, and at rank 0 who keeps them all."""

    guest: Guest
    host: Host | None

    def gone(self) -> str:
        """At rank 0, ranks that left without saying so, and their hosts; those first that left first."""
        return ", ".join(map(who, self.host.gone if self.host else []))

    def silent(self, seconds: float) -> str:
        """At rank 0, ranks of which nothing has been heard for so long, and their hosts."""
        return ", ".join(map(who, self.host.silent(seconds) if self.host else []))


@contextmanager
def rendezvous(member: Membership, seconds: float) -> Iterator[Meeting]:
    """All ranks of the launch, met within ``seconds``; libraries then keep to the interface that they met on.

    Raises RunBroken or CannotRun, with who came and who did not.
    """
    from collbench.launch.guest import Guest

    host = None
    try:
        with doors.of(member) as (places, key):
            if member.rank == 0:
                host = Host(listener(places), member.n, key, seconds)
            guest = Guest(member, places, key, seconds)
        keep_to(doors.interface(guest.address))
        yield Meeting(guest, host)
        guest.close()
    finally:
        if host:
            host.close()


def keep_to(interface: str) -> None:
    """Gloo listens there alone, unless the user has said where; NCCL keeps off the network where no rank needs it."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if interface == doors.LOOPBACK:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)


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

    def __init__(
        self, board: Board, member: Membership, meeting: Meeting, plan: Plan, on_lost: OnLost, on_hang: OnHang
    ) -> None:
        super().__init__(daemon=True, name="collbench-watchdog")
        self._board, self._member, self._meeting, self._plan = board, member, meeting, plan
        self._on_lost, self._on_hang = on_lost, on_hang
        self._stop = threading.Event()

    def run(self) -> None:
        beats, moved = self._board.beats(), time.monotonic()
        due, pause = moved, self._plan.timeout * _SILENT / 3
        while not self._stop.wait(1.0):
            if time.monotonic() >= due:
                due = time.monotonic() + pause
                self._meeting.guest.beat()
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
        """Of a rank that rank 0 has not heard of as long, stopped or cut off, else of one that it can see."""
        silent = self._meeting.silent(self._plan.timeout * _SILENT)
        if silent and self._member.n != self._member.local_n:
            doing = self._plan.doing(self._board.where(0)[0].words, self._board.job(0))
            hint = "is the host up, its network, and the rank not stopped?"
            return RunBroken(f"nothing is heard of {silent} while {doing}", hint, self._board.job(0))
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
    where = f"GLOO_SOCKET_IFNAME={os.environ.get('GLOO_SOCKET_IFNAME', '')}"
    try:
        on_hang(RunBroken(f"{who}: ranks met, but not all reached each other within {seconds:g} s more; {where}"))
    finally:
        os._exit(Exit.TIMEOUT)


def run(
    member: Membership, make_plans: Callable[[], list[Plan]], on_line: OnLine,
    on_lost: OnLost, on_hang: OnHang, seconds: float, further: Callable[[], list[Job]] = list,
) -> None:  # fmt: skip
    """This rank's part of a whole run: ``make_plans`` is asked at rank 0 only, and its plans followed by all; so is
    ``further`` where a plan is open.

    ``seconds`` limit how long ranks may take to come together. Raises RunBroken when a rank fails, this or another;
    ``on_lost`` is told before, and ``on_hang`` from another thread when nothing moves, just before the process ends.
    """
    from collbench import worker
    from collbench.launch.guest import Store
    from collbench.plan import Plan

    with rendezvous(member, seconds) as meeting:
        timer = threading.Timer(seconds, _gave_up, (member, seconds, on_hang))
        timer.daemon = True
        timer.start()
        hosts = meeting.guest.hosts
        here = hosts[member.rank]
        place = worker.Place(
            member.rank, member.n, hosts[: member.rank].count(here), hosts.count(here), member.launcher
        )
        store = Store(meeting.guest)
        control = worker.connect(place, store)
        member = member._replace(local_rank=place.local_rank, local_n=place.local_n)
        board = shared_board(member, control)
        on_line = _with(_hosts(control, place, hosts), on_line)
        plans = msgspec.convert(
            control.broadcast(msgspec.to_builtins(make_plans()) if member.rank == 0 else None), list[Plan]
        )
        timer.cancel()
        for plan in plans:
            os.environ.update(plan.env)
            watchdog = Watchdog(board, member, meeting, plan, on_lost, on_hang)
            watchdog.start()
            try:
                worker.Worker(place, plan, control, board, on_line, further).run()
            except Exception as e:
                if isinstance(e, CollbenchError):
                    raise
                error = _broken(_blame(e, meeting), member.rank, board, plan)
                on_lost(plan, error)
                raise error from e
            finally:
                watchdog.end()
    told.leave()


def follow(member: Membership, seconds: float) -> None:
    """The part of a rank that has nothing to plan, print or keep. Where ``run`` raises, so does this."""
    nothing = lambda *_: None  # noqa: E731
    try:
        run(member, list, nothing, nothing, lambda e: print(e.message, file=sys.stderr), seconds)
    except KeyboardInterrupt:
        os._exit(Exit.INTERRUPTED)  # libraries under a collective abort when Python takes itself down around them


def _hosts(control: Control, place: Place, names: list[str]) -> list[HostInfo]:
    """Each host and by what it differs, as its first rank finds; nothing where there is but one host."""
    if len(set(names)) == 1:
        return []
    found = control.collect(environment.host_facts() if place.local_rank == 0 else None)
    facts = {name: of_host for name, of_host in zip(names, found, strict=True) if of_host}
    return [
        HostInfo(host=name, fingerprint=environment.digest(facts[name]), differs=apart)
        for name, apart in zip(facts, environment.apart(list(facts.values())), strict=True)
    ]


def _with(hosts: list[HostInfo], on_line: OnLine) -> OnLine:
    """``on_line``, told also of the hosts of each world."""
    return lambda line: on_line(msgspec.structs.replace(line, hosts=hosts) if isinstance(line, World) else line)


def _blame(error: Exception, meeting: Meeting) -> str:
    """What happened to a rank. That another is gone may be known a moment later only; more than that and the launcher
    ends this one, too, before it could tell."""
    if not says_peer_is_gone(first_line(error)):
        return f"raised {type(error).__name__}: {first_line(error)}"
    until = time.monotonic() + _MOMENT
    while meeting.host and not meeting.host.gone and time.monotonic() < until:
        time.sleep(0.001)
    return f"lost {meeting.gone() or 'another rank'} (the launcher says why)"


def _broken(what: str, rank: int, board: Board, plan: Plan) -> RunBroken:
    phase, job = board.where(rank)[0], board.job(rank)
    return RunBroken(f"rank {rank} on {environment.host()} {what} while {plan.doing(phase.words, job)}", job=job)
