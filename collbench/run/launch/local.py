"""Ranks on this machine: started from a fork server, watched until they are gone, whatever becomes
of them."""

from __future__ import annotations

import itertools
import os
import selectors
import signal
import socket
import sys
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

import msgspec
import psutil

from collbench.core.backend_info import backend_info
from collbench.core.errors import CannotRun, RunBroken, UsageError, says_peer_is_gone
from collbench.core.files import keep_traceback
from collbench.core.text import print_message
from collbench.machine import descriptors, environment
from collbench.run.backends import _model
from collbench.run.jobs import Plan
from collbench.run.launch import folders
from collbench.run.launch.board import LEAVE_SECONDS, Board, Phase, process_state
from collbench.run.launch.early import LoadingServer, make_environment
from collbench.run.launch.environments import hint_limit
from collbench.run.launch.forkserver import Adopt, Note, Parent, Spawn
from collbench.run.launch.mpirun import Mpirun
from collbench.run.launch.takeover import PRIVATE, read_request, refuse_unlike, select_shared
from collbench.run.launch.watch import STOPPED, Death, RankWatch, report_late
from collbench.run.launch.world import LINE_LIMIT, Asked, Env, Failure, Listener, World
from collbench.survive.signals import interrupts

TICK = 0.25

LOOK_SECONDS = 1.0  # between looks for processes that are stopped

ORPHANED = Death("ended with its parent process, which was killed or had no memory", signal.SIGKILL)

LOAD_SECONDS = 120.0  # loading torch from a cold or remote disk

_LITTLE = 32 << 20  # bytes: below, no library starts a thread or maps a buffer

_BOTH = selectors.EVENT_READ | selectors.EVENT_WRITE


class ForkServer(Parent):
    """A process with torch loaded, under a given interpreter and environment; ``spawn`` makes
    worlds of ranks. One that was started ``early`` is taken over where it suits."""

    name = "the fork server"

    def __init__(
        self,
        env: Mapping[str, str] | Mapping[bytes, bytes],
        python: str = sys.executable,
        early: LoadingServer | None = None,
    ) -> None:
        if early is None or not early.take_over(env, python):
            early = LoadingServer(env, python)
            early.take_over(env, python)
        self._ours, self.process = early.socket, early.process
        self._up = False
        self.hint = f"{python} -c 'import torch' tells why"

    def spawn(self, n: int, board: int, fresh: bool = False) -> None:
        """Have n ranks made, around the board of a descriptor; or, if ``fresh``, ranks of
        a world that is here in part (fresh.py)."""
        with suppress(OSError):  # it has ended, as is found when its notes are read
            socket.send_fds(self._ours, [msgspec.json.encode(Spawn(n, fresh))], [board])

    def adopt(self, orders: Adopt, fds: list[int]) -> None:
        """Have a rank made for a warden of mpirun's, which is told of it, with descriptors as
        forkserver.Adopt has them."""
        with suppress(OSError):
            socket.send_fds(self._ours, [msgspec.json.encode(orders)], fds)

    def fileno(self) -> int:
        """The descriptor that is readable where there is a note."""
        return self._ours.fileno()

    def note(self) -> tuple[Note, list[int]]:
        """The next note about a rank (wait for the descriptor to be readable first). EOFError if
        the server itself died, CannotRun where it cannot fork the rank."""
        try:
            data, fds, _, _ = socket.recv_fds(self._ours, 65536, 1)
        except ConnectionResetError:
            data, fds = b"", []
        if not data:
            raise EOFError
        self._up = True
        note = msgspec.json.decode(data, type=Note)
        self.refuse_unforked(note, fds)
        return note, fds

    def close(self) -> None:
        """End the server, and with it every rank it still has."""
        self._ours.close()
        if not self._up:  # it may be loading torch yet, and has no ranks
            self.process.kill()
        self.end()


class MpiServer:
    """The fork server of ranks that mpirun starts, if there is one: it has the environment that
    mpirun gives them, as the first warden tells it, but for variables that MPI alone reads. Another
    such environment gets a new server in its place."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._server: ForkServer | None = None
        self._settings: dict[bytes, bytes] = {}

    def find_server(self, request: int, is_first: bool) -> ForkServer | None:
        """The server for what a warden requests, started where there is none, unless that is not
        the first of its world; else None. None, too, where a child of this process cannot be as
        the warden wants it."""
        try:
            wanted = read_request(request)
            refuse_unlike(wanted)
        except (CannotRun, ValueError, OSError):
            return None
        settings = select_shared(wanted["environ"])
        if is_first and (
            self._server is None
            or settings != self._settings
            or self._server.process.poll() is not None
        ):
            self.close()
            own = {name: os.environb[name] for name in (PRIVATE,) if name in os.environb}
            try:
                with interrupts.shielded():  # also where no process can be had
                    self._server = ForkServer({**settings, **own}, self._python)
            except OSError:  # no process can be had for it; ranks come up as they can
                return None
            self._settings = settings
        return self._server if settings == self._settings else None

    def close(self) -> None:
        """End it, and with it every rank it still has."""
        server, self._server = self._server, None
        if server:
            server.close()


class FreshRanks(World):
    """A world whose plans get ranks of their own each, and predicted ones none."""

    def run(self, plans: Sequence[Plan], listener: Listener) -> None:
        """Run plans one after the other, each with ranks of its own. Raises RunBroken where a world
        breaks at a case."""
        for index, plan in enumerate(plans):
            if backend_info(plan.backend).predicts:
                _model.Predicted().run([plan], listener)
                continue
            try:
                self.measure(plan, listener)
            except CannotRun as e:
                listener.unopened(plan, e)
            except RunBroken as e:
                if e.job is not None:
                    listener.lost(plan, e)
                    raise
                listener.unopened(plan, e)
            later = plans[index + 1 :]
            if later and all(other.env != plan.env for other in later):
                self.release(plan.env)

    def measure(self, plan: Plan, listener: Listener) -> None:
        """One plan, from the start of its ranks to their end."""
        with self.started(plan, listener) as watch:
            while watch.busy():
                watch.move(TICK)

    @abstractmethod
    def started(self, plan: Plan, listener: Listener) -> AbstractContextManager[RankWatch]:
        """The plan's ranks, until all is done and they are gone, or their world breaks."""

    def release(self, env: Env) -> None:
        """Give back what only plans with this environment need."""
        return


class Launcher(FreshRanks):
    """Runs plans on this machine; one fork server per environment setting, kept for the next plan.

    ``python`` and ``settings``, the whole environment, are this process's own unless told
    otherwise. A server that was started ``early`` becomes one of these, if it suits the first.
    """

    def __init__(
        self,
        python: str = sys.executable,
        settings: Mapping[str, str] = os.environ,
        early: LoadingServer | None = None,
    ) -> None:
        descriptors.raise_limit()  # two for each rank, and mpirun gets the limit from here
        self._python, self._settings, self._early = python, settings, early
        self._servers: dict[Env, ForkServer] = {}
        self._mpi_server = MpiServer(python)

    def warm(self, backends: Sequence[str], env: Env = ()) -> None:
        """Start loading torch under ``env``, if any of the backends has forked ranks."""
        if any(backend_info(name).launch == "fork" for name in backends):
            self._server(env)

    def _server(self, env: Env) -> ForkServer:
        if env not in self._servers:
            with interrupts.uninterrupted():
                early, self._early = self._early, None
                settings = self._environment(env)
                self._servers[env] = ForkServer(settings, self._python, early)
                if early:
                    early.close()
        return self._servers[env]

    def _environment(self, env: Env) -> dict[str, str]:
        return make_environment(self._settings, env)

    @contextmanager
    def started(self, plan: Plan, listener: Listener) -> Iterator[LocalWatch]:
        """Within its ``with`` block ranks of a plan run, and are watched."""
        board, fd = Board.create(plan.processes)
        try:
            with folders.make_private() as folder, self._parent(plan, folder) as parent:
                parent.spawn(plan.processes, fd)
                watch = LocalWatch(plan, listener, parent, board, str(folder / "store"))
                yield watch
                watch.check(last=True)
                if watch.report_late_ranks():
                    self._end_server(plan)
        finally:
            os.close(fd)

    @contextmanager
    def _parent(self, plan: Plan, folder: Path) -> Iterator[ForkServer | Mpirun]:
        """The process that starts the plan's ranks and tells of their ends: an mpirun for them
        alone, else a fork server. The server that has forked them is closed when the world
        breaks."""
        try:
            if backend_info(plan.backend).launch == "mpirun":
                env, find = self._environment(plan.env), self._mpi_server.find_server
                with closing(Mpirun(env, self._python, folder, find)) as mpirun:
                    yield mpirun
            else:
                yield self._server(plan.env)
        except BaseException:
            self._end_server(plan)
            raise

    def _end_server(self, plan: Plan) -> None:
        """End the fork server that has made ranks of a plan."""
        if backend_info(plan.backend).launch == "mpirun":
            self._mpi_server.close()
        else:
            self.release(plan.env)

    def release(self, env: Env) -> None:
        """End the fork server of this environment, if there is one."""
        if env in self._servers:
            self._servers.pop(env).close()

    def close(self) -> None:
        """End all fork servers."""
        for env in list(self._servers):
            self.release(env)
        self._mpi_server.close()


class LocalWatch(RankWatch):
    """Follows ranks of this machine by their channels, their board, and their parent."""

    def __init__(
        self, plan: Plan, listener: Listener, parent: ForkServer | Mpirun, board: Board, store: str
    ) -> None:
        hosts = [environment.host_name()] * plan.processes
        super().__init__(plan, listener, hosts, board, grace=2 * TICK)
        self.limit_hint = (
            f"-T sets the limit, now {round(plan.timeout, 1):g} s without any progress;"
            f" {hint_limit(plan.timeout, 4)}"
        )
        self._parent, self._board, self._begun = parent, board, time.monotonic()
        self._by_mpirun = backend_info(plan.backend).launch == "mpirun"
        self._store = Path(store)
        self._request = msgspec.json.encode(Asked(plan, store)) + b"\n"
        self._wardens: dict[int, int] = {}
        self._idle: dict[int, float] = {}  # seconds that processes were seen stopped
        self._last_look = self._begun
        self._channels: dict[int, socket.socket] = {}
        self._unsent: dict[int, memoryview] = {}
        self._partial = [b""] * plan.processes
        self._selector = selectors.DefaultSelector()
        self._selector.register(parent, selectors.EVENT_READ, -1)

    def fileno(self) -> int:
        """The descriptor that is readable where a rank or its parent has said something."""
        return self._selector.fileno()

    def move(self, seconds: float) -> None:
        """Hear ranks and their parent within so many seconds. Raises RunBroken and CannotRun."""
        for key, _ in self._selector.select(seconds):
            if key.data < 0:
                self._take_note()
            elif not self._exchange(key.data):
                self._selector.unregister(key.fileobj)
        phase, job, _ = self._board.where(0)
        if Phase.CONNECTING < phase < Phase.DONE:
            self.listener.tick(self.plan.jobs[job].case, phase)
        self.check()
        self._refuse_stopped()
        self.check_progress()

    def busy(self) -> bool:
        """Whether to go on listening, as before; also to mpirun, whose end may explain theirs."""
        return super().busy() or self._waits_for_mpirun()

    def check(self, last: bool = False) -> None:
        """Raise what broke the world, as before; of what breaks once all ranks have nothing left
        to measure, tell."""
        if (self.errors or self.deaths) and self._measured():
            own_errors = {rank: error.clause for rank, error in self._own_errors().items()}
            for rank, message in (
                own_errors | {r: end.description for r, end in self.deaths.items()}
            ).items():
                print_message(
                    f"{self.name_rank(rank)} {message} while leaving; all had been measured"
                )
            self.errors.clear()
            self.deaths.clear()
            self._over = min(self._over, self.clock.read() + LEAVE_SECONDS)
        if last or not self._waits_for_mpirun():
            super().check(last)

    def _waits_for_mpirun(self) -> bool:
        """Whether all that is known is what mpirun did to ranks because of another one, or what its
        own end did to them, of which is heard when it ends at the latest."""
        ends = set(self.deaths.values())
        terminated = {end.signal for end in ends} == {signal.SIGTERM}
        if self._own_errors() or not (ORPHANED in ends or terminated) or not self._by_mpirun:
            return False
        self._since = self._since or time.monotonic()
        return time.monotonic() - self._since < LEAVE_SECONDS

    def _measured(self) -> bool:
        ranks = range(self.plan.processes)
        return all(self._board.where(rank)[0] is Phase.DONE for rank in ranks)

    def report_late_ranks(self) -> bool:
        """Say on the terminal which ranks did not end in time, or that nothing is heard of their
        ends; whether there are any."""
        if not self._over:
            return True
        late = [rank for rank in self.pids if rank not in self.ended]
        still = [rank for rank in late if process_state(self.pids[rank]) != "ended"]
        stopped = [rank for rank in still if process_state(self.pids[rank]) == "stopped"]
        who = ", ".join(self.name_rank(rank) for rank in stopped or still) or self._name_parent()
        if late:
            report_late(who, "did not end" if still else "did not tell of its ranks' ends")
        return bool(late)

    def _name_parent(self) -> str:
        """The name of what tells of ranks' ends: of the processes between them and this one the
        first that is stopped, if one is."""
        makers = self._parent.makers()
        stopped = [maker for maker in makers if process_state(maker[1]) == "stopped"]
        if not stopped:
            return self._parent.name
        name, pid = stopped[0]
        return f"{name} (pid {pid}), which {STOPPED.description},"

    def _refuse_stopped(self) -> None:
        """Raises RunBroken for a rank that is stopped while others load, which passes for
        progress."""
        now = time.monotonic()
        if now - self._last_look < LOOK_SECONDS or self._has_loaded():
            return
        seconds, self._last_look = min(now - self._last_look, 2 * LOOK_SECONDS), now
        rank_of_pid = {pid: rank for rank, pid in self._processes()}
        if len(self._wardens) < self.plan.processes:  # one may be stopped before it tells of itself
            rank_of_pid = {pid: rank for rank, pid in self._parent.list_ranks()} | rank_of_pid
        stopped = [
            (rank, pid) for pid, rank in rank_of_pid.items() if process_state(pid) == "stopped"
        ]
        self._idle = {pid: self._idle.get(pid, 0.0) + seconds for _, pid in stopped}
        for rank, pid in stopped:
            if self._idle[pid] > self.plan.timeout:
                raise self._stopped(rank, pid)

    def _has_loaded(self) -> bool:
        ranks = range(self.plan.processes)
        return all(self._board.where(rank)[0] > Phase.STARTING for rank in ranks)

    def _processes(self) -> list[tuple[int, int]]:
        """Ranks and their wardens (rank, pid), as far as they are known and have not ended."""
        processes = [*self.pids.items(), *self._wardens.items()]
        return [(rank, pid) for rank, pid in processes if rank not in self.ended]

    def _stopped(self, rank: int, pid: int) -> RunBroken:
        phrase = STOPPED.description
        if pid != self.pids.get(rank):
            phrase = f"cannot go on: its parent process (pid {pid}) {phrase}"
        return self.accuse(rank, phrase, self.limit_hint)

    def beats(self) -> object:
        """A value that changes whenever a rank enters a phase, issues a call, or loads torch."""
        return self._board.beats(), self._loading()

    def _loading(self) -> list[float]:
        """CPU time of who is yet to come up, LOAD_SECONDS long."""
        if time.monotonic() - self._begun > LOAD_SECONDS:
            return []
        pids = [pid for rank, pid in self.pids.items() if not self._board.where(rank)[0]]
        if len(self.pids) < self.plan.processes:
            pids += [*(pid for _, pid in self._parent.makers()), *self._wardens.values()]
        return [_cpu_seconds(pid) for pid in pids]

    def _take_note(self) -> None:
        try:
            note, fds = self._parent.note()
        except EOFError:
            if self.finished:
                self._over = 0.0
                message = self._parent.ended(len(self.pids)).message
                print_message(f"{message}; all had been measured")
                return
            if self._parent.end() < 0:  # it was killed, and with it all
                self.deaths = {r: end for r, end in self.deaths.items() if end is not ORPHANED}
                self.errors = self._own_errors()
            else:
                unheard = self._parent.unheard(self.plan.processes)
                self.deaths = dict.fromkeys(unheard, ORPHANED) | self.deaths  # these were first
            self.check(last=True)  # mpirun took notice of it too
            error = self._parent.ended(len(self.pids))
            if isinstance(error, RunBroken):
                error = self.make_error(error.message, 0, error.hint)
            raise error from None
        if note is None:
            return
        rank = note.rank
        if note.pid:
            self.pids[rank], self._unsent[rank] = note.pid, memoryview(self._request)
            channel = self._channels[rank] = socket.socket(fileno=fds[0])
            channel.setblocking(False)
            self._selector.register(channel, _BOTH, rank)
            return
        if note.warden:
            self._wardens[rank] = note.warden
            return
        code = os.waitstatus_to_exitcode(note.status)
        self.note_end(rank, None if note.alone else Death.by(code, "exited with status"))
        if note.alone and rank not in self.done and not self._is_end_explained(rank):
            self.deaths.setdefault(rank, ORPHANED)

    def _own_errors(self) -> dict[int, Failure]:
        """The errors by rank that say more than that another rank is gone."""
        return {
            rank: error
            for rank, error in self.errors.items()
            if not says_peer_is_gone(error.message)
        }

    def _is_end_explained(self, rank: int) -> bool:
        """Whether an error was reported that explains the end of this rank: its own, or that of
        another rank, after which mpirun kills the rest."""
        return rank in self.errors or not self.ended.isdisjoint(self._own_errors())

    def _exchange(self, rank: int) -> bool:
        """Send what a rank is yet to be told, and take in what it has written; False at the end of
        its channel."""
        channel, unsent = self._channels[rank], self._unsent[rank]
        with suppress(OSError):  # it is dead, as a note says in a moment, or has yet to read
            self._unsent[rank] = unsent[channel.send(unsent) :]
        if not self._unsent[rank]:
            self._selector.modify(channel, selectors.EVENT_READ, rank)
        return self._read(rank)

    def _read(self, rank: int) -> bool:
        """Take in what a rank has written; False at the end of its channel."""
        try:
            data = self._channels[rank].recv(1 << 20)
        except BlockingIOError:
            return True
        except OSError:
            return False
        *lines, rest = (self._partial[rank] + data).split(b"\n")
        self._partial[rank] = rest
        if len(rest) > LINE_LIMIT:
            raise self.accuse(rank, f"sent a line of over {LINE_LIMIT >> 20} MiB")
        with interrupts.uninterrupted():  # what a rank has finished is kept
            for line in lines:
                self.handle_line(rank, line)
        return bool(data)

    def answer(self, rank: int, text: bytes) -> None:
        """Have a line sent to a rank as soon as it reads."""
        if self._channels[rank] not in self._selector.get_map():
            return  # it has ended, as is told in a moment
        self._unsent[rank] = memoryview(bytes(self._unsent[rank]) + text + b"\n")
        self._selector.modify(self._channels[rank], _BOTH, rank)

    def precedence(self, rank: int, end: Death) -> tuple[bool, int]:
        """Ranks that were killed, then those that exited, then those that mpirun ended because of
        another; of equals the first that was heard of."""
        followed = end.signal == signal.SIGTERM or (end is ORPHANED and self._exited_before(rank))
        return end.signal in (0, signal.SIGTERM) or followed, int(followed)

    def _exited_before(self, rank: int) -> bool:
        """Whether another rank had exited before this one ended: MPICH's and Intel's mpirun then
        kill the wardens of all others."""
        earlier = itertools.takewhile(lambda other: other != rank, self.deaths)
        return any(self.deaths[other].signal == 0 for other in earlier)

    def choose_error(self) -> CannotRun | RunBroken | UsageError:
        """The error of a rank that raised one of its own, where there is any, with its traceback
        kept. CannotRun or UsageError where all that is told was foreseen."""
        own_errors = [*self._own_errors().values()]
        if own_errors and not self.deaths and not any(error.own for error in own_errors):
            return own_errors[0].as_error(self._board.job(0))
        rank, error = min(
            self.errors.items(),
            key=lambda at: (says_peer_is_gone(at[1].message), not at[1].own),
        )
        hint = keep_traceback(error.traceback) if error.traceback else error.hint
        return self.accuse(rank, error.clause, hint)

    def find_obstacle(self, seconds: float) -> RunBroken | None:
        """A store that was removed, a process that is stopped or out of memory, or unmade ranks."""
        if self._board.where(0)[0] is Phase.CONNECTING and not self._store.exists():
            gone = f"{self._store} was removed, by which ranks find each other"
            return self.make_error(gone, 0, "keep TMPDIR from being cleaned, or set another")
        for rank, pid in [*self._processes(), *self._parent.list_ranks()]:
            if process_state(pid) == "stopped":
                return self._stopped(rank, pid)
            if (room := _mappable_bytes(pid)) < _LITTLE:
                what = f"has {room >> 20} MiB of memory left (ulimit -v)"
                return self.accuse(rank, what, self.limit_hint)
        return self._unmade(seconds) if len(self.pids) < self.plan.processes else None

    def _unmade(self, seconds: float) -> RunBroken:
        """Not all ranks were made. Where mpirun lacks one, that is named."""
        parent, born, n = self._parent, len(self.pids), self.plan.processes
        makers = [at for at in parent.makers() if process_state(at[1]) == "stopped"]
        name, pid = (makers or parent.makers())[0]
        stopped = bool(makers)
        what = STOPPED.description if stopped else f"has not moved for {seconds:.0f} s"
        missing = [rank for rank in range(n) if rank not in self.pids]
        if born and len(missing) == 1 and not stopped and self._by_mpirun:
            return self.accuse(missing[0], f"did not start for {seconds:.0f} s", self.limit_hint)
        phrase = f"{name} (pid {pid}) {what}, with {born} of {n} ranks made"
        return self.make_error(phrase, 0, self.limit_hint)


def _mappable_bytes(pid: int) -> int:
    """Bytes that a process may still map."""
    try:
        limit, _ = (process := psutil.Process(pid)).rlimit(psutil.RLIMIT_AS)
        return sys.maxsize if limit < 0 else int(limit - process.memory_info().vms)
    except psutil.Error:
        return sys.maxsize


def _cpu_seconds(pid: int) -> float:
    try:
        return sum(psutil.Process(pid).cpu_times()[:2])
    except psutil.Error:
        return 0.0
