"""Bytes that calls send, counted from outside: ranks in a network of their own that is nothing but
loopback, told by pipes when to call, while whoever tells them reads the network's counter.

Nothing else passes there, and no rank says anything to another but what the calls do.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from collbench.core.collectives import COLLECTIVES
from collbench.suite.case import Case

if TYPE_CHECKING:
    from warm import Started, Warm

SIZE, CALLS, TIMES = 1 << 20, 2, 3
HEADERS = 66  # bytes a packet: Ethernet 14, IP 20, TCP 32
# the reference algorithm of each collective that is asked beside the library's choice
REFERENCE = {
    "all_reduce": "ring",
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "all_to_all": "pairwise",
    "all_to_allv": "pairwise",
    "broadcast": "chain:segments=4",
    "reduce": "chain:segments=4",
    "gather": "binomial",
    "scatter": "binomial",
    "sendrecv": "direct",
    "scan": "chain:segments=4",
}
# Open MPI by TCP, over loopback, which it leaves out by itself; ranks without cores of their own
SETTINGS = {
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def cases(backend: str, n: int) -> list[Case]:
    """Every collective as the library has it, where it has, and by a reference algorithm."""
    found = []
    for name, algorithm in REFERENCE.items():
        row = COLLECTIVES[name]
        common = {
            "op": "sum" if row.reduces else "none",
            "root": 0 if row.rooted else -1,
            "splits": "uniform" if row.uneven else "",
        }
        found += [
            Case(collective=name, backend=backend, n=n, nbytes=SIZE, algorithm=one, **common)  # type: ignore[arg-type]
            for one in ("native", algorithm)
            if (name, backend, one) != ("scan", "gloo", "native")
        ]
    return found


def suite(path: Path, backend: str, n: int) -> Path:
    """A suite of the same cases, of larger size and few calls each."""
    parts = [
        f'[[include]]\ncollectives = "{name}"\nalgorithms = ["native", "{algorithm}"]\n'
        for name, algorithm in REFERENCE.items()
    ]
    head = f"""description = "Counted bytes."
[axes]
backends = "{backend}"
ranks = {n}
sizes = {4 * SIZE}
in_place = false
[policy]
iters = 6
warmup = 1
cache = "hot"
"""
    first, *others = parts
    named = first.removeprefix("[[include]]\n")
    path.write_text(head.replace("[axes]\n", f"[axes]\n{named}") + "".join(others))
    return path


class Network:
    """A network of its own, with loopback and nothing else. What runs ``inside`` is forked from a
    ``warm`` process, if there is one."""

    def __init__(self, warm: Warm | None = None) -> None:
        self._warm = warm

    def __enter__(self) -> Network:
        # a core that is long in coming is no reason to send what is under way again
        boot = (
            "ip link set lo up && echo 0 > /proc/sys/net/ipv4/tcp_early_retrans && echo up && cat"
        )
        self._process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", boot],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._process.stdout.readline() != "up\n":  # type: ignore[union-attr]
            raise RuntimeError("no network of its own")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def inside(self, command: Sequence[str], **options: object) -> subprocess.Popen[str] | Started:
        """A command under way; a Python's is ``-m collbench ARGS`` or a script's."""
        environ, pid = {**os.environ, **SETTINGS}, self.pid
        program, *words = command
        if self._warm and program == sys.executable:
            if words[:2] == ["-m", "collbench"]:
                return self._warm.start(*words[2:], env=environ, network=pid)
            return self._warm.start(*words[1:], env=environ, script=words[0], network=pid)
        enter = ["nsenter", "--net", f"--target={pid}", *command]
        return subprocess.Popen(enter, env=environ, text=True, **options)  # type: ignore[call-overload, no-any-return]

    @property
    def pid(self) -> int:
        """Of a process in it."""
        return self._process.pid

    def sent(self) -> int:
        """Bytes that have passed, less headers: those of bare acknowledgements are all headers."""
        lines = Path(f"/proc/{self._process.pid}/net/dev").read_text().splitlines()
        numbers = next(line for line in lines if line.strip().startswith("lo:")).split()
        return int(numbers[9]) - HEADERS * int(numbers[10])


def outside(network: Network, backend: str, n: int, folder: Path) -> Iterator[tuple[Case, float]]:
    """Each case with the bytes that all ranks send in one call of it: the least of TIMES counts, as
    TCP sends again what is long in coming, where ranks share cores."""
    with _ranks(network, backend, n, folder) as ranks:
        for case in cases(backend, n):
            _tell(ranks, [case])
            _tell(ranks, 1)  # which connects ranks
            counts = []
            for _ in range(TIMES):
                before = network.sent()
                _tell(ranks, CALLS)
                counts.append(network.sent() - before)
            yield case, min(counts) / CALLS


def _tell(ranks: list[socket.SocketIO], what: object) -> None:
    for rank in ranks:
        rank.write(msgspec.json.encode(what) + b"\n")
    for rank in ranks:
        if rank.readline() != b"done\n":
            raise RuntimeError(f"a rank ended when told {what}")


@contextmanager
def _ranks(network: Network, backend: str, n: int, folder: Path) -> Iterator[list[socket.SocketIO]]:
    """What speaks with each rank."""
    at, store = folder / "ranks", folder / "store"
    command = [sys.executable, __file__, str(at), str(store), backend, str(n)]
    at.unlink(missing_ok=True), store.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(at))
        server.listen(n)
        server.settimeout(60)
        if backend == "mpi":
            mpirun = [str(Path(sys.executable).with_name("mpirun")), "--oversubscribe"]
            started = [network.inside([*mpirun, "--bind-to", "none", "-np", str(n), *command])]
        else:
            started = [network.inside([*command, str(rank)]) for rank in range(n)]
        try:
            connections = [server.accept()[0] for _ in range(n)]
            yield [connection.makefile("rwb", buffering=0) for connection in connections]
            for connection in connections:
                connection.shutdown(socket.SHUT_RDWR)
        finally:
            for process in started:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()
                process.wait()


def rank(at: str, store: str, name: str, n: int, place: int) -> None:
    """One rank: takes a case or a number of calls to make, line by line, and says when it is
    done."""
    import torch.distributed as dist

    from collbench.run import backends
    from collbench.run.rank.calls import allocate_slots, prepare_call
    from collbench.run.rank.worker import Place, connect_control

    stream = socket.socket(socket.AF_UNIX)
    stream.connect(at)
    lines = stream.makefile("rb")
    if name != "mpi":
        connect_control(Place(place, n, place, n, "local"), dist.FileStore(store, n))
    backend = backends.find_backend(name)
    backend.open(place, n, place)
    for line in lines:
        told = msgspec.json.decode(line, type=list[Case] | int)
        if isinstance(told, list):
            (slot,) = allocate_slots(backend, [told[0]], [place])
            for buffers in slot:
                buffers.send.zero_()
            call = prepare_call(backend, told[0], slot, False)
        else:
            for _ in range(told):
                call.run()
        stream.sendall(b"done\n")
    backend.close()


if __name__ == "__main__":
    at, store, name, n, *place = sys.argv[1:]
    mine = int(place[0] if place else os.environ["OMPI_COMM_WORLD_RANK"])
    rank(at, store, name, int(n), mine)
