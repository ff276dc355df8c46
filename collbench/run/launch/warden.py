"""A warden: the small process that mpirun starts for each rank, run as a script.

Loading torch takes some two seconds of a core, and mpirun starts each process anew, so that ranks
which mpirun starts itself load it once each. A warden therefore asks for a rank that is forked from
a process which has torch loaded already (forkserver.py) and knows no MPI: it tells the launching
process of itself, with a socket and what it was given by mpirun (``gather_request``). The launching
process hands both on to a fork server that it has started with the very environment that mpirun
gives to ranks (local.MpiServer), and the forked process takes over all that mpirun gave to its
warden (takeover.py). For mpirun the warden is the rank's process: it hands SIGTERM on, it dies with
mpirun, its death is its rank's, and it ends when its rank has ended.

What a process is given only at its birth cannot be taken over: another environment than the
server's but for variables of mpirun's own, another user, namespace or control group. The launching
process, whose server would have its own marks of birth, compares these before it starts one. Where
they differ, and wherever the server or the launching process does not answer, the warden becomes
the process that forks a fresh rank (mpirun.py), which loads torch itself.

Only the standard library is imported, and little of that: each rank pays for it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import socket
import sys
from contextlib import suppress

TYPE_CHECKING = False  # typing's own would be loaded by each warden
if TYPE_CHECKING:
    from typing import Any

    Request = dict[str, Any]

_PR_SET_PDEATHSIG = 1
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
_FIXED = (
    "Uid Gid Groups CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Seccomp_filters"
    " Mems_allowed_list THP_enabled"
)  # fields of /proc/self/status
DESCRIPTORS_MAX = 240  # of what a message may carry, 253
READY = b"ready"  # the server can make a rank at once
BORN = b"born "  # then the rank's pid; comes with a descriptor of its process
ENDED = b"ended "  # then its wait status
REFUSED = b"fresh: "  # then why the rank is to be a fresh process


def read_status() -> dict[str, str]:
    """The fields of /proc/self/status by name."""
    with open("/proc/self/status", errors="replace") as file:  # noqa: PTH123
        pairs = (line.partition(":") for line in file)
        return {name: value.strip() for name, _, value in pairs}


def gather_birthmarks(status: dict[str, str]) -> dict[str, str]:
    """The marks that a process has from its birth and cannot take over: its user and rights, the
    label of a security module (AppArmor, SELinux), namespaces, control groups, memory policy,
    scheduling. ``status`` has the fields of /proc/self/status. The I/O priority is not among them:
    no file of /proc has it, and ranks use no disk while they are measured."""
    marks = {name: status.get(name, "") for name in _FIXED.split()}
    for name in _NAMESPACES:
        marks[name] = _read_link(f"/proc/self/ns/{name}")
    marks["root"] = _read_link("/proc/self/root")
    for name in ("cgroup", "personality", "oom_score_adj", "attr/current"):
        marks[f"{name} file"] = _read_text(f"/proc/self/{name}")
    # the second word of any line is the policy, unless a mapping has one of its own
    marks["memory policy"] = " ".join(_read_text("/proc/self/numa_maps", 256).split()[1:2])
    marks["scheduler"] = f"{os.sched_getscheduler(0)} {os.sched_getparam(0).sched_priority}"
    return marks


def gather_request() -> Request:
    """What this process was given by who started it, and a process that stands in for it is to
    have, too: environment, numbers of the open descriptors, cores, limits, signals."""
    status = read_status()
    numbers = sorted(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208
    limits = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    umask = os.umask(0o77)
    os.umask(umask)
    return {
        "environ": dict(os.environb),
        "descriptors": [number for number in numbers if _is_inherited(number)],
        "cores": sorted(os.sched_getaffinity(0)),
        "limits": {limit: resource.getrlimit(limit) for limit in limits},
        "umask": umask,
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "ignored": status.get("SigIgn", "0"),
        "blocked": status.get("SigBlk", "0"),
        "birthmarks": gather_birthmarks(status),
    }


def _is_inherited(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:  # the folder of all, which was open while it was read
        return False


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""


def _read_text(path: str, size: int = -1) -> str:
    try:
        with open(path, errors="replace") as file:  # noqa: PTH123
            return file.read(size)
    except OSError:
        return ""


def open_standard_streams() -> None:
    """Open those of descriptors 0 to 2 that are closed, so that nothing else gets their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)


class Warden:
    """The life of a warden; ``notes`` is connected to the launching process."""

    def __init__(self, rank: int, notes: socket.socket, above: int, request: Request) -> None:
        self._rank, self._notes, self._above = rank, notes, above
        self._numbers = request["descriptors"]
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = socket.socketpair()
        written = os.memfd_create("collbench-request")
        with open(written, "wb") as file:  # noqa: PTH123
            file.write(repr(request).encode())
            file.flush()
            note = '{"rank":%d,"warden":%d}' % (rank, os.getpid())  # noqa: UP031
            given = [theirs.fileno(), written] if len(self._numbers) < DESCRIPTORS_MAX else []
            socket.send_fds(notes, [note.encode()], given)
        theirs.close()

    def ask_for_rank(self) -> bool:
        """Have a rank forked, and tell the launching process of it; whether there is one."""
        try:
            # until the server has loaded, what mpirun gave is this process's alone: it may end
            if self._receive_answer()[0] != READY:
                return False
            folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
            fds = [self._channel[1].fileno(), folder, *self._numbers]
            socket.send_fds(self._socket, [b"take over"], fds)
            os.close(folder)
            answer, process = self._receive_answer()
        except OSError:
            return False
        if not answer.startswith(BORN):
            return False
        self._process = process[0]
        signal.signal(signal.SIGTERM, lambda *_: self._signal_rank(signal.SIGTERM))
        note = '{"rank":%d,"pid":%d,"forked":true}' % (self._rank, int(answer[len(BORN) :]))  # noqa: UP031
        socket.send_fds(self._notes, [note.encode()], [self._channel[0].fileno()])
        self._channel[0].close()
        return True

    def _receive_answer(self) -> tuple[bytes, list[int]]:
        """The server's next message, with descriptors; empty where it or mpirun has ended."""
        if self._socket.fileno() not in self._wait_for(self._socket.fileno()):
            return b"", []
        data, fds, _, _ = socket.recv_fds(self._socket, 4096, 1)
        return data, fds

    def _wait_for(self, *fds: int) -> set[int]:
        """Wait for one of these, or for the end of mpirun or of the launching process's channel,
        and return those that are ready."""
        events = select.poll()
        for fd in (*fds, self._above):
            events.register(fd, select.POLLIN)
        events.register(self._channel[1], 0)
        return {fd for fd, _ in events.poll()}

    def _signal_rank(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, number)

    def watch_rank(self) -> int:
        """Watch the rank to its end, and tell of that; the status to exit with. The death of who
        forked it, and with it of the rank, is told by this one's own."""
        ready = self._wait_for(self._socket.fileno())
        if self._socket.fileno() not in ready:
            self._signal_rank(signal.SIGKILL)
        if self._above in ready:
            return 0  # mpirun's end is the news, and not what it made of this rank
        with suppress(OSError):
            answer = self._socket.recv(4096)
            if not answer.startswith(ENDED):
                return 1
            note = '{"rank":%d,"status":%d}' % (self._rank, int(answer[len(ENDED) :]))  # noqa: UP031
            self._notes.send(note.encode())
        return 0


def main() -> None:
    """A warden's process: ``RANK_VARIABLES NOTES MPIRUN COMMAND...``, of which the last is what it
    becomes where no rank is forked for it."""
    names, notes_path, mpirun, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    open_standard_streams()
    request = gather_request()
    # mpirun sends it to all when one of them ends, and that must not end the others' wardens
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ranks = [os.environ[name] for name in names.split() if name in os.environ]
    with suppress(IndexError, ValueError, OSError):
        notes = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notes.connect(notes_path)
        warden = Warden(int(ranks[0]), notes, os.pidfd_open(int(mpirun)), request)
        if warden.ask_for_rank():
            os._exit(warden.watch_rank())
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
