"""Joining ranks that torchrun, srun, mpirun or another launcher started: the same command line, run
once per rank.

Every process runs the whole command; rank 0 plans, prints and records, and the others follow the
plan it sends.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import psutil

from collbench.core.errors import (
    CannotRun,
    CollbenchError,
    Exit,
    RunBroken,
    first_line,
    says_peer_is_gone,
)
from collbench.core.text import plain_line, print_message
from collbench.machine import cpus, environment, variables
from collbench.machine.load import Load
from collbench.records import types
from collbench.records.types import HostInfo
from collbench.run import memory, mpi_library
from collbench.run.launch import environments, folders, rendezvous
from collbench.run.launch.board import LEAVE_SECONDS, Board
from collbench.run.launch.connection import Connection
from collbench.run.launch.environments import Membership
from collbench.run.launch.host import Host
from collbench.run.launch.meeting import (
    SILENT_SHARE,
    Request,
    name_hello,
    open_listener,
    say_silent,
)
from collbench.run.launch.watch import RankWatch
from collbench.run.launch.world import Hear, Listener, World
from collbench.suite.policy import Policy
from collbench.survive.crash import describe_error
from collbench.survive.signals import interrupts

if TYPE_CHECKING:
    from collbench.run.jobs import Plan
    from collbench.run.rank.control import Control, Store
    from collbench.run.rank.worker import Place, Worker


SECONDS = 120.0  # for ranks to come together, or places for them to be free

_REACH_SECONDS = 0.25  # for each rank of a world to reach the others, where that is more

_REFUSAL = "collbench-refusal"  # of what ranks that have met share: rank 0's exit code, or nothing

_MOMENT = 0.05

# settings that may have another value on each host, as they name its devices
_OF_DEVICES = re.compile(
    r"\w+(IFNAME|IF_INCLUDE|IF_EXCLUDE|VISIBLE_DEVICES|NET_DEVICES|IB_HCA|GID_INDEX)", re.IGNORECASE
)

_OF_PROTOCOLS = ("NCCL_", "RCCL_", "UCX_")  # in which ranks have to agree

_OF_LAUNCHER = re.compile(r"I_MPI_(HYDRA|INFO)_\w+")  # what Intel's tells its own processes

_NAMED = 3  # settings that one note names

_WORD_SECONDS = 3.0  # for rank 0 to say why, before a launcher ends all as another has failed

# for the launcher to forward this rank's stderr, which it discards when it kills all ranks
_RELAY_SECONDS = 0.25

_ANOTHER = "another rank (it or the launcher says why)"


def meeting_seconds(timeout: float | None, member: Membership | None = None) -> float:
    """Seconds that ranks have to come together, by -T. A small one shortens them only if they are
    joined on one host: else each first loads torch, from a cold or remote disk."""
    if member and rendezvous.on_one_host(member):
        return timeout or SECONDS
    return max(timeout or 0.0, SECONDS)


def connecting_seconds(seconds: float, n: int) -> float:
    """Seconds that n ranks have to reach each other once they have come together, which they had
    ``seconds`` for: more in a large world, in which each connects to all others."""
    return max(seconds, _REACH_SECONDS * n)


def detect_launcher(launcher: str = "auto") -> Membership | None:
    """The launcher this process was started by, or None when it should start its own ranks.

    Raises UsageError where it was another than ``launcher``, CannotRun where processes that were
    started together would each be a world of its own.
    """
    member = environments.detect_variables(launcher)
    if launcher == "auto" and (member is None or member.n == 1):
        _refuse_strangers()
    return member


def _refuse_strangers() -> None:
    """Raise CannotRun where this process's parent is one of DAEMONS and has started others with the
    same command line: none of its variables is known here, so each would be a world of its own."""
    me = psutil.Process()
    with suppress(psutil.Error):
        parent = me.parent()
        if parent is None or parent.name() not in rendezvous.DAEMONS:
            return
        siblings = sum(process.cmdline() == me.cmdline() for process in parent.children())
        if siblings > 1:
            raise CannotRun(
                f"{parent.name()} started {siblings} processes like this one on"
                f" {environment.host_name()},"
                " but each believes that it is alone",
                "is it another MPI's? set RANK, WORLD_SIZE and MASTER_ADDR, or --launcher local for"
                " a world each",
            )


class Meeting(NamedTuple):
    """Ranks that have come together: this one's connection, and at rank 0 the process that it is
    to."""

    connection: Connection
    host: Host | None

    def gone(self) -> str:
        """At rank 0, ranks that left without saying so, and their hosts; those first that left
        first."""
        return ", ".join(map(name_hello, self.host.gone if self.host else []))

    def lost(self, seconds: float) -> str:
        """The ranks that rank 0 has lost, silent for so long or stopped, and their hosts; at others
        rank 0 itself, where it does not say."""
        if self.host:
            return self.host.lost(seconds)
        return self.connection.lost(seconds, max(1.0, seconds / 3))

    def find_behind(self, limit: float) -> list[int]:
        """The ranks that are not as far as the foremost, by what all have told; none where rank 0,
        which has ``limit`` seconds, does not answer."""
        return self.host.find_behind() if self.host else self.connection.find_behind(limit)

    def awake(self, limit: float) -> float:
        """Seconds since the world's turn began, as rank 0 knows; rank 0 has ``limit`` seconds to
        answer."""
        return self.host.awake() if self.host else self.connection.awake(limit)

    def rest_during(self, wait: Callable[[int], object]) -> Callable[[int], object]:
        """``wait``, by which rank 0 waits for its world's turn at a job, such that no rank's watch
        takes it for a hang."""

        def wait_at_rest(job: int) -> None:
            assert self.host
            self.host.rest()
            wait(job)
            self.host.resume()

        return wait_at_rest


_connections: list[Connection] = []  # of this process, one for each meeting


def divert_stdout() -> None:
    """Send what libraries write to standard output to standard error from now on. The command
    itself prints at a descriptor of its own (cli.main)."""
    if sys.__stdout__ and sys.__stderr__:  # else these descriptors are other files'
        os.dup2(2, 1)


def meet_ranks(member: Membership, seconds: float) -> Meeting:
    """All ranks of the launch, met within ``seconds``. Raises RunBroken or CannotRun, with who came
    and who did not."""
    host = None
    try:
        with rendezvous.agree_on_doors(member, seconds) as (places, key):
            if member.rank == 0:
                listener = open_listener(rendezvous.find_listening_doors(member, places))
                host = Host(listener, member.n, key, seconds)
            return Meeting(Connection(member, places, key, seconds), host)
    except BaseException:
        if host:
            host.close()
        raise


@contextmanager
def hold_meeting(member: Membership, seconds: float) -> Iterator[Meeting]:
    """The meeting that ``meet_ranks`` makes; libraries then keep to the interface that ranks met
    on, and who does not leave at the end is named."""
    connection, host = meeting = meet_ranks(member, seconds)
    _connections.append(connection)
    try:
        keep_to(rendezvous.find_interface(connection.address))
        yield meeting
        connection.close()
        if host:
            host.see_off(LEAVE_SECONDS)
    finally:
        if host:
            host.close()


def describe_stopped() -> str:
    """The ranks of this process's meetings that are stopped on this host, in words; "" for none."""
    return next(filter(None, (connection.stopped() for connection in _connections)), "")


def keep_to(interface: str) -> None:
    """Gloo listens there alone, unless the user has said where; NCCL keeps off the network where no
    rank needs it."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if interface == rendezvous.LOOPBACK:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)


def shared_board(member: Membership, control: Control) -> Board:
    """One board for all ranks where they share this host's memory, else one this rank alone looks
    at."""
    with ExitStack() as stack:
        path = None
        if member.rank == 0 and member.n == member.local_n and member.n > 1:
            path = stack.enter_context(folders.make_private()) / "board"
            _make_board(path, Board.size(member.n))
        where = control.broadcast(str(path) if path else None)
        if where is None:
            board, fd = Board.create(member.n, shared=member.n == 1)
            os.close(fd)
            return board
        board = Board.at(Path(where), member.n)
        control.barrier()
        return board


def _make_board(path: Path, nbytes: int) -> None:
    """Makes the file of a board, whose room on the disk is its own: a rank that wrote to one that
    is not there would be killed. Raises CannotRun where there is none."""
    try:
        with path.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)
    except OSError as e:
        hint = "free some space, or set TMPDIR to another folder"
        raise CannotRun(f"{path.parent}: {e.strerror}", hint) from e


class MemberWatch(RankWatch):
    """What a joined rank's process sees: the board of its host, or its own line of one, and by the
    meeting who is stopped or silent. A thread looks, and ends this process with exit code 4 where
    its world stands still."""

    def __init__(
        self, board: Board, member: Membership, meeting: Meeting, plan: Plan, listener: Listener
    ) -> None:
        super().__init__(plan, listener, meeting.connection.hosts, board)
        self.own_rank, self._alone = member.rank, member.n == member.local_n
        self._board, self._meeting = board, meeting
        self._silent = plan.timeout * SILENT_SHARE  # s
        self._due, self._stop = time.monotonic(), threading.Event()

    def start(self) -> None:
        """Watch, in a thread, until ``end``."""
        threading.Thread(target=self.run, daemon=True, name="collbench-watchdog").start()

    def end(self) -> None:
        """Stop watching."""
        self._stop.set()

    def run(self) -> None:
        """Tell rank 0 of life, and end this process where no rank moves any more."""
        while not self._stop.wait(1.0):
            try:
                self.move(0)
            except RunBroken as error:
                try:
                    self.listener.lost(self.plan, error)
                    self.listener.hung(error)
                finally:
                    sys.stderr.flush()
                    if self._meeting.host:
                        self._meeting.host.end_stopped()
                    time.sleep(_RELAY_SECONDS)
                    os._exit(Exit.TIMEOUT)

    def move(self, seconds: float) -> None:
        """Tell rank 0 of life where that is due. Raises RunBroken where no rank moves any more."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._silent / 3
            self._meeting.connection.beat(self._board.place(self.own_rank))
        self.check_progress()

    def has_rested(self) -> bool:
        """Whether the world has waited for its turn, or has not had it for so long yet."""
        if not self.plan.in_turns:
            return False
        awake = self._meeting.awake(max(1.0, self._silent / 3))
        self.rest(awake)
        return awake < self.plan.timeout

    def find_obstacle(self, seconds: float) -> RunBroken | None:
        """A rank that is stopped or cut off. Another rank than 0 gives rank 0 the time to say it: a
        launcher accuses who ends first, and ends all the others."""
        lost, first = self._meeting.lost(self._silent), self.name_rank(0)
        if self.own_rank and first not in lost:
            ended = self._meeting.connection.ended(within=LEAVE_SECONDS)
            if ended and not lost:
                return self.accuse(self.own_rank, f"lost {_ANOTHER}")
            lost = lost or say_silent([first])
        hint = "is the host up, its network, and the rank not stopped?"
        return self.make_error(lost, self.own_rank, hint) if lost else None

    def find_behind(self) -> list[int]:
        """The ranks that are behind; where ranks are on several hosts, by what all have told the
        meeting."""
        if self._alone:
            return super().find_behind()
        return self._meeting.find_behind(max(1.0, self._silent / 3))

    def make_error(self, what: str, rank: int, hint: str = "") -> RunBroken:
        """An error that tells ``what`` happened while ``rank`` was doing what it does now; this
        rank where ranks are on several hosts, as it sees no other's line of a board."""
        return super().make_error(what, rank if self._alone else self.own_rank, hint)

    def blame_error(self, error: Exception) -> RunBroken:
        """What this rank has raised, with who is to blame for it."""
        return self.accuse(self.own_rank, _blame_rank(error, self._meeting))


class Joined(World):
    """The ranks of a launcher, of which this process is one: they meet once, and all plans run in
    the same processes. Rank 0's plans are followed by all, and its listener is told.

    ``seconds`` limit how long ranks may take to come together.
    """

    def __init__(self, member: Membership, seconds: float) -> None:
        self._member, self._seconds = member, seconds
        self.launcher = member.launcher
        self.opened = 0  # worlds so far
        self.has_begun = False  # to meet
        self.refused = Exit.OK  # rank 0's exit code, where it ends instead of saying what to run

    def list_hosts(self, n: int) -> list[str]:
        """This host for each of n ranks, where the launcher says that all are here; else empty."""
        return super().list_hosts(n) if self._member.local_n == self._member.n else []

    def count_sharers(self, n: int) -> int:
        """As many of n ranks as the launcher says that this host has, or under Slurm the one that
        has most; n where it does not say."""
        return min(n, environments.count_most_local(self._member) or n)

    def load(self) -> dict[str, Load]:
        """Empty: ranks that the launcher has started run already."""
        return {}

    def room(self, backend: str, n: int, policy: Policy) -> memory.Room:
        """The memory that those of n ranks share that are on this host; all of them where the
        launcher does not say how many these are."""
        return memory.measure_room(backend, min(n, self._member.local_n or n), policy)

    def run(self, plans: Sequence[Plan], listener: Listener) -> None:
        """Raises RunBroken when a rank fails, this or another; ``listener.lost`` is told before.
        Ranks that agree that a world does not open go on with the next."""
        self.has_begun = True
        divert_stdout()
        from collbench.run.rank import worker
        from collbench.run.rank.control import Store

        with hold_meeting(self._member, self._seconds) as meeting:
            listener.met(meeting.connection.hosts)
            store = Store(meeting.connection)  # which lives as long as any process group
            try:
                if self._share_refusal(meeting):
                    return mpi_library.finalise_at_exit()
                setup, control, board, line, agreed = self._agree_on_plans(
                    meeting, store, plans, listener
                )
            except Exception as e:
                if isinstance(e, CollbenchError) or not says_peer_is_gone(first_line(e)):
                    raise
                who = f"rank {self._member.rank} of {self._member.n} on {environment.host_name()}"
                raise RunBroken(f"{who} {_blame_rank(e, meeting)}") from e
            member = self._member._replace(local_rank=setup.local_rank, local_n=setup.local_n)
            turn = meeting.rest_during(listener.turn)
            for number, plan in enumerate(agreed, 1):
                is_last = all(later.backend != plan.backend for later in agreed[number:])
                given = setup, plan, control, board, line, listener.next_jobs, turn
                make_worker = partial(worker.Worker, *given, is_last=is_last)
                watch = MemberWatch(board, member, meeting, plan, listener)
                # each plan finds the process as the first one did
                with cpus.keep_affinity(), variables.keep_environment():
                    os.environ.update(plan.env)
                    self._run_plan(plan, make_worker, watch, listener)
        mpi_library.finalise_at_exit()

    def _run_plan(
        self, plan: Plan, make_worker: Callable[[], Worker], watch: MemberWatch, listener: Listener
    ) -> None:
        """Run a plan under ``watch``. Raises as ``run``."""
        rank_worker: Worker | None = None
        watch.start()
        try:
            rank_worker = make_worker()
            rank_worker.run()
            self.opened += 1
        except CollbenchError as e:
            if rank_worker is None or rank_worker.is_open:
                raise
            listener.unopened(plan, e)  # as all ranks do
        except Exception as e:
            error = watch.blame_error(e)
            listener.lost(plan, error)
            raise error from e
        finally:
            watch.end()

    def end_followers(self, code: Exit) -> None:
        """At rank 0, which ends with this code: have the others come and end with it, too, unless
        they have met before."""
        if not self.has_begun and self._member.n > 1:
            self.refused = code
            with suppress(Exception):  # what rank 0 ends for is the reason that is told
                self.run([], Listener(lambda line: None))

    def _share_refusal(self, meeting: Meeting) -> bool:
        """Whether rank 0 refuses to go on."""
        ask, code = meeting.connection.ask, str(int(self.refused)).encode()
        if self._member.rank == 0:
            ask(Request("set", [_REFUSAL], code))
        else:
            self.refused = Exit(int(ask(Request("get", [_REFUSAL])).value))
        return self.refused != Exit.OK

    def _agree_on_plans(
        self, meeting: Meeting, store: Store, plans: Sequence[Plan], listener: Listener
    ) -> tuple[Place, Control, Board, Hear, list[Plan]]:
        """The plans of rank 0, once all ranks have reached each other in time, and with what they
        are run: setup, control group, board, and who hears a line."""
        from collbench.run.jobs import Plan
        from collbench.run.rank import worker

        seconds = connecting_seconds(self._seconds, self._member.n)
        timer = threading.Timer(seconds, self._gave_up, (listener.hung, seconds))
        timer.daemon = True
        timer.start()
        hosts = meeting.connection.hosts
        setup = self._make_setup(hosts)
        control = worker.connect_control(setup, store)
        member = self._member._replace(local_rank=setup.local_rank, local_n=setup.local_n)
        board = shared_board(member, control)
        facts = _collect_hosts(control, setup, hosts)
        if member.rank == 0 and "COLLBENCH_WORLD" not in os.environ:  # else one of many launches
            note_unlike_settings(facts, member.launcher)
        line = _add_facts(facts, listener.accept)
        agreed = control.broadcast(msgspec.to_builtins(plans) if member.rank == 0 else None)
        timer.cancel()
        return setup, control, board, line, msgspec.convert(agreed, list[Plan])

    def _make_setup(self, hosts: list[str]) -> Place:
        from collbench.run.rank import worker

        rank, n = self._member.rank, self._member.n
        own_host = hosts[rank]
        local_n, before = hosts.count(own_host), hosts[:rank].count(own_host)
        return worker.Place(rank, n, before, local_n, self._member.launcher)

    def _gave_up(self, hung: Callable[[RunBroken], None], seconds: float) -> None:
        who = f"rank {self._member.rank} of {self._member.n} on {environment.host_name()}"
        where = f"GLOO_SOCKET_IFNAME={os.environ.get('GLOO_SOCKET_IFNAME', '')}"
        late = f"some could not connect to each other within another {seconds:g} s"
        try:
            hung(
                RunBroken(
                    f"{who}: all ranks started, but {late}; {where}",
                    "set GLOO_SOCKET_IFNAME to an interface by which all hosts reach each other, or"
                    f" {environments.hint_limit(seconds)}",
                )
            )
        finally:
            os._exit(Exit.TIMEOUT)


def follow_rank_0(
    member: Membership, seconds: float, met: Callable[[list[str]], None] = lambda hosts: None
) -> Exit:
    """Take part as a rank that has nothing to plan, print or keep. Returns the exit code, which
    tells as rank 0's whether no world opened, or one broke. Raises as Joined.run, and what ``met``
    raises (Listener)."""
    interrupts.leave_to_the_system()
    first = f"rank {member.rank - member.local_rank} on "  # of this host, and its voice

    def hung(error: RunBroken) -> None:
        if member.local_rank == 0 or first in error.message:
            print_message(error.message, error.hint)

    unopened: list[CollbenchError] = []
    listener = Listener(
        lambda line: None, hung=hung, unopened=lambda plan, error: unopened.append(error), met=met
    )
    joined_ranks = Joined(member, seconds)
    try:
        joined_ranks.run([], listener)
    except KeyboardInterrupt:
        # libraries under a collective abort when Python takes itself down around them
        os._exit(Exit.INTERRUPTED)
    if joined_ranks.refused:
        time.sleep(_WORD_SECONDS)  # rank 0 says why, before a launcher ends it
        return joined_ranks.refused
    broken = any(isinstance(error, RunBroken) for error in unopened)
    if not broken and (joined_ranks.opened or not unopened):
        return Exit.OK
    time.sleep(_WORD_SECONDS)
    return Exit.TIMEOUT if broken else Exit.CANNOT_RUN


def _collect_hosts(control: Control, setup: Place, names: list[str]) -> dict[str, dict[str, Any]]:
    """The facts of each host, as its first rank finds them; nothing where there is but one host."""
    if len(set(names)) == 1:
        return {}
    collected = control.collect(environment.host_facts() if setup.local_rank == 0 else None)
    return {name: of_host for name, of_host in zip(names, collected, strict=True) if of_host}


def describe_unlike_settings(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Recorded settings in which hosts differ, each with what it is on which, but for what a
    launcher sets itself."""
    odd = dict(zip(facts, environment.find_odd_hosts(list(facts.values())), strict=True))
    settings: dict[str, str] = {}
    for fact in next(iter(odd.values()), {}):
        name = fact.removeprefix("variables.")
        hosts_by_value: dict[Any, list[str]] = {}
        for host, of_host in odd.items():
            hosts_by_value.setdefault(of_host[fact], []).append(host)
        is_of_devices = _OF_DEVICES.fullmatch(name) and None not in hosts_by_value
        if name != fact and not is_of_devices and not _OF_LAUNCHER.fullmatch(name):
            clauses = [
                ("not set" if value is None else plain_line(str(value))[:40] or "empty")
                + f" on {_join_hosts(hosts)}"
                for value, hosts in hosts_by_value.items()
            ]
            settings[name] = f"{name} is {', '.join(clauses)}"
    return settings


def _join_hosts(hosts: Sequence[str]) -> str:
    more = len(hosts) - _NAMED
    return ", ".join(hosts[:_NAMED]) + f" and {more} more" * (more > 0)


def note_unlike_settings(facts: Mapping[str, Mapping[str, Any]], launcher: str) -> None:
    """Say on standard error which settings differ between hosts, and how a launcher passes them
    on: Open MPI's mpirun does so only where it is told."""
    settings = describe_unlike_settings(facts)
    if not settings:
        return
    names, more = list(settings)[:_NAMED], len(settings) - _NAMED
    phrases = "; ".join(settings[name] for name in names) + f" and {more} more" * (more > 0)
    how = {
        "mpirun (Open MPI)": f": mpirun -x {' -x '.join(names)}",
        "srun": ": srun --export=ALL",
    }.get(launcher, "")
    matters = ", and ranks may hang or get wrong data" * any(map(_is_of_protocol, settings))
    print_message(
        f"settings differ between hosts{matters}: {phrases}",
        f"have all hosts get the same{how}",
    )


def _is_of_protocol(name: str) -> bool:
    return name.startswith(_OF_PROTOCOLS)


def describe_hosts(facts: Mapping[str, Mapping[str, Any]], backend: str) -> list[HostInfo]:
    """Each host and by what it differs, of the facts that decide how fast ``backend`` is."""
    used = [
        {key: value for key, value in of_host.items() if environment.fact_decides(key, {backend})}
        for of_host in facts.values()
    ]
    return [
        HostInfo(host=name, fingerprint=environment.digest_facts(of_host), differs=differing)
        for name, of_host, differing in zip(
            facts, used, environment.find_odd_hosts(used), strict=True
        )
    ]


def _add_facts(facts: Mapping[str, Mapping[str, Any]], on_line: Hear) -> Hear:
    return lambda line: on_line(
        msgspec.structs.replace(line, hosts=describe_hosts(facts, line.backend))
        if isinstance(line, types.World)
        else line
    )


def _blame_rank(error: Exception, meeting: Meeting) -> str:
    """What happened to the rank that raised the error. That another is gone may be known a moment
    later only; more than that and the launcher ends this one, too, before it could tell."""
    if not says_peer_is_gone(first_line(error)):
        return describe_error(error)
    until = time.monotonic() + _MOMENT
    while meeting.host and not meeting.host.gone and time.monotonic() < until:
        time.sleep(0.001)
    if meeting.host and meeting.host.ended:
        return f"lost {meeting.host.ended}"
    if stopped := meeting.connection.stopped():
        return f"lost others, as {stopped}"
    return (
        f"lost {meeting.gone()} (the launcher says why)"
        if meeting.gone()
        else f"lost {_ANOTHER}: {first_line(error)}"
    )
