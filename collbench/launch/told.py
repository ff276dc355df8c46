"""Rank 0's address and the launch's key, carried to all ranks by the launcher's own means.

PMI-1 is the protocol of MPICH's, Intel's and Flux's launchers: lines of ``key=value`` on a descriptor that is this
process's alone (Balaji et al., "PMI: A Scalable Parallel Process-Management Interface", 2010). It needs no library,
and leaves MPI free to start later. Open MPI has no such thing; there MPI itself has to tell, by mpi4py.
"""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import sys

from collbench.errors import CannotRun
from collbench.launch.environments import Membership

_NAME = "collbench-meeting"
_LINE = 4096


def tell(member: Membership, address: str) -> tuple[str, str] | None:
    """(address, token) as rank 0 has them, at every rank; None where the launcher has no means.

    All ranks must call. ``address`` counts at rank 0, which makes up the token.
    """
    mine = f"{address} {secrets.token_hex(16)}" if member.rank == 0 else ""
    told = _by_pmi(mine) if "PMI_FD" in os.environ else _by_mpi(member, mine)
    if told is None:
        return None
    host, _, token = told.partition(" ")
    return host, token


def _by_pmi(mine: str) -> str:
    """Raises CannotRun when the launcher does not speak PMI-1, or has ended."""
    try:
        with socket.socket(fileno=os.dup(int(os.environ["PMI_FD"]))) as channel, channel.makefile("rb") as lines:

            def ask(command: str) -> dict[str, str]:
                channel.sendall(f"cmd={command}\n".encode())
                answer = dict(word.partition("=")[::2] for word in lines.readline(_LINE).decode().split())
                if answer.get("rc", "0") != "0" or not answer:
                    raise ValueError(f"{command.split(maxsplit=1)[0]}: {answer.get('msg', 'no answer')}")
                return answer

            ask("init pmi_version=1 pmi_subversion=1")
            space = ask("get_my_kvsname")["kvsname"]
            if mine:
                ask(f"put kvsname={space} key={_NAME} value={mine.replace(' ', '/')}")
            ask("barrier_in")
            return ask(f"get kvsname={space} key={_NAME}")["value"].replace("/", " ")
    except (OSError, ValueError, KeyError) as e:
        raise CannotRun(
            f"the launcher does not tell where rank 0 is (PMI: {e})", "set MASTER_ADDR to its host for every rank"
        ) from e


def _by_mpi(member: Membership, mine: str) -> str | None:
    """None without mpi4py. Raises CannotRun when MPI knows of other ranks than the launcher."""
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_FUNNELED)
    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (member.rank, member.n):
        raise CannotRun(
            f"mpi4py sees rank {world.rank} of {world.size}, {member.launcher} says {member.rank} of {member.n}",
            "use the mpirun of mpi4py's MPI, or set MASTER_ADDR to rank 0's host for every rank",
        )
    told = bytearray(_LINE)
    told[: len(mine)] = mine.encode()
    world.Bcast(told, root=0)
    return told.rstrip(b"\0").decode()


def leave() -> None:
    """All went well: MPI, if it told, ends with the process. Else it must not, since it would wait for stuck ranks."""
    if (MPI := getattr(sys.modules.get("mpi4py"), "MPI", None)) and MPI.Is_initialized():
        atexit.unregister(MPI.Finalize)
        atexit.register(MPI.Finalize)
