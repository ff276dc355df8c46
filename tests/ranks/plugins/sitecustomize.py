"""On a test's PYTHONPATH: collbench finds this folder's backends and algorithms.

SABOTAGE=slow-start:RANK:0 delays a rank; SABOTAGE=straggle:RANK:0 has it come 2 ms late to every
call, outside the clock. never-leave:RANK:0 stops a forked rank
that has said that it is done, killed-leaving:RANK:0 kills one once all have measured everything;
linger:RANK:0 keeps a rank of MPI's from its end. kill-start:RANK:0, stop-start:RANK:0 and
starve:RANK:0 end a rank of MPI's while it is young, stop it, or leave it no memory for torch;
then no such rank is forked by a server, as it is with kill-forked:RANK:0 and stop-forked:RANK:0.
signalled:NUMBER:0 sends collbench a signal while it imports. CLOCKS=LIMIT gives every rank of a
launcher a host of its own, whose clock started a quarter of an hour after the last one's and drifts
30 ppm more; hosts' clocks are then relied upon below an error of LIMIT ns, whatever a sample takes.
CLOCKS=one gives them hosts only. MEETING_SECONDS are those that ranks of several hosts have
at least to come together. TRITON_INTERPRET loads Triton's interpreter, quickened."""

import atexit
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rank_faults

import collbench.core.algorithms
import collbench.run.backends
from collbench.core.errors import CannotRun
from collbench.run.launch import takeover
from collbench.run.launch.board import Board

if os.environ.get("TRITON_INTERPRET"):
    from quick_interpreter import quicken

    quicken()
collbench.run.backends.__path__.append(str(Path(__file__).parent / "backends"))
collbench.core.algorithms.__path__.append(str(Path(__file__).parent / "algorithms"))

READS = ("CLOCKS", "MEETING_SECONDS", "SABOTAGE")  # variables on which it depends what this does

what, _, rest = os.environ.get("SABOTAGE", "").partition(":")
if what == "straggle":
    rank_faults.straggle(int(rest.partition(":")[0]))
if what == "killed-leaving":
    enter = Board.enter

    def enter_and_die(self: Board, rank: int, phase: int, case: int | None = None) -> None:
        enter(self, rank, phase, case)
        if phase == 7 and rank == int(rest.partition(":")[0]):
            while any(self.where(other)[0] < 7 for other in range(self.n)):
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)

    Board.enter = enter_and_die  # type: ignore[method-assign]
if "MEETING_SECONDS" in os.environ:
    from collbench.run.launch import join

    join.SECONDS = float(os.environ["MEETING_SECONDS"])
if "CLOCKS" in os.environ and "RANK" in os.environ:
    from collbench.machine import environment
    from collbench.run.rank import global_clock as clocks

    rank, true = int(os.environ["RANK"]), time.perf_counter_ns
    began = true()
    socket.gethostname = environment.host_name = lambda: f"host{rank}"
    clocks.WINDOW_NS = (
        20_000_000  # ranks that share cores with other tests come to an earlier start late
    )
if os.environ.get("CLOCKS", "one") != "one" and "RANK" in os.environ:
    from collbench.run.launch import folders

    prefix = folders.make_prefix()  # of the one machine, by which these ranks meet
    folders.make_prefix = lambda: prefix
    time.perf_counter_ns = lambda: true() + rank * (900 * 10**9 + (true() - began) * 30 // 10**6)
    environment.same_clock_domain_key = environment.boot_id = lambda root=None: f"clock{rank}"
    clocks.ERROR_NS, clocks.ERROR_SHARE = int(os.environ["CLOCKS"]), float("inf")
at, forks = rest.partition(":")[0], []  # type: ignore[var-annotated]


def in_nth_fork(act: Callable[[], object]) -> None:
    """Have what a fork server forks for the rank act so."""

    def count() -> None:
        if sys.argv[0].endswith("forkserver.py"):
            forks.append(1)

    os.register_at_fork(
        before=count, after_in_child=lambda: act() if len(forks) == int(at) + 1 else None
    )


def never_leave() -> None:
    from collbench.run.launch.world import Channel, Said

    say = Channel.send

    def last_words(self: Channel, said: Said) -> None:
        say(self, said)
        if said.done:
            os.kill(os.getpid(), signal.SIGSTOP)

    Channel.send = last_words  # type: ignore[method-assign]


def starve() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)


if what == "signalled":

    class Early:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "typer":
                os.kill(os.getpid(), int(at))

    sys.meta_path.insert(0, Early())  # type: ignore[arg-type]
if what == "slow-start":
    in_nth_fork(lambda: time.sleep(3600))
if what == "never-leave":
    in_nth_fork(never_leave)
young = {
    "kill-start": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop-start": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "starve": starve,
}


def is_rank_of_mpi() -> bool:
    return os.environ.get("OMPI_COMM_WORLD_RANK") == at


if what in young:
    if is_rank_of_mpi():
        os.register_at_fork(after_in_child=young[what])

    def refuse(request: object) -> None:  # these load torch themselves
        raise CannotRun("planted")

    takeover.refuse_unlike = refuse  # type: ignore[assignment]
if what in ("kill-forked", "stop-forked"):
    enter_forked = Board.enter

    def stop_and_enter(self: Board, rank: int, phase: int, case: int | None = None) -> None:
        if phase == 1 and is_rank_of_mpi():
            young[what.replace("forked", "start")]()
        enter_forked(self, rank, phase, case)

    Board.enter = stop_and_enter  # type: ignore[method-assign,assignment]
if what == "linger":
    take_over = takeover.take_over

    def take_over_for_long(*given: Any) -> None:
        take_over(*given)
        if is_rank_of_mpi():
            atexit.register(lambda: time.sleep(3600))

    takeover.take_over = take_over_for_long
