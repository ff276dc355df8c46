"""Where a launch's ranks meet, and the key they share: a private folder on one host, else rank 0's
address.

Over several hosts the key is COLLBENCH_TOKEN or what the launcher carries from rank 0 to the others
in private. Where there is neither it is the launch's name: that keeps others' runs, scanners and
accidents out, and nobody who knows the name and can reach rank 0 while ranks come together.

Launchers carry it by PMI-1 or by MPI. PMI-1 is the protocol of MPICH's, Intel's and Flux's: lines
of ``key=value`` on a descriptor that is this process's alone (Balaji et al., "PMI: A Scalable
Parallel Process-Management Interface", 2010). It needs no library, and leaves MPI free to start
later. Open MPI has no such thing; there MPI itself has to tell, by mpi4py.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import os
import re
import secrets
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from collbench.core.errors import CannotRun, RunBroken
from collbench.core.text import print_message
from collbench.machine import environment
from collbench.machine.routes import (
    find_default_interface,
    find_named_interface,
    is_inner_bridge,
)
from collbench.run.launch import environments, folders
from collbench.run.launch.children import killed_after
from collbench.run.launch.environments import Membership
from collbench.run.launch.meeting import Door
from collbench.run.mpi_library import initialise_mpi, load_mpi

PORTS = 8  # tried one after the other, at rank 0 and by who looks for it

FIRST_PORT, LAST_PORT = 20_000, 32_000  # below those that Linux hands out to anybody

LOOPBACK = "lo"

EVERYWHERE = "::", "0.0.0.0"  # all addresses of a host: with IPv6, and without it

# who starts processes on a host: Open MPI 5 and 4, MPICH and Intel MPI, PBS, Cray, Flux
DAEMONS = (
    "mpirun",
    "mpiexec",
    "prterun",
    "prted",
    "orterun",
    "orted",
    "mpiexec.hydra",
    "hydra_pmi_proxy",
    "hydra_bstrap_proxy",
    "pbs_attach",
    "aprun",
    "palsd",
    "flux-shell",
)

_NAME = "collbench-meeting"  # of what PMI keeps

_LINE = 4096


def on_one_host(member: Membership) -> bool:
    """Whether all ranks are, as far as the launcher says. Who sets variables by hand may do
    so in processes that share nothing else."""
    return member.n == member.local_n and member.launcher != "environment"


@contextmanager
def agree_on_doors(member: Membership, seconds: float) -> Iterator[tuple[list[Door], bytes]]:
    """Doors to try in turn, and the key. Raises CannotRun where nothing says where rank 0 is,
    RunBroken where ranks that are to say it do not come within ``seconds``."""
    if on_one_host(member):
        with _private_folder(member) as folder:
            yield [folder / "meeting"], _derive_key(member)
        return
    host = environments.place_of_rank0(member)
    if host:
        yield _list_doors(member, host), _derive_key(member)
        return
    door = chosen_address() if member.rank == 0 else ""
    agreed = None
    if member.launcher.startswith(("mpirun", "flux")):
        agreed = tell_address(member, door, seconds)
    if agreed is None:
        raise CannotRun(
            f"{member.launcher} started ranks on several hosts and rank 0's host is unknown",
            "set MASTER_ADDR to rank 0's host for every rank (mpirun -x MASTER_ADDR=host1 …), or"
            " install mpi4py",
        )
    host, token = agreed
    if not host:
        raise _no_address("rank 0")
    yield _list_doors(member, host, token), (os.environ.get("COLLBENCH_TOKEN") or token).encode()


@contextmanager
def _private_folder(member: Membership) -> Iterator[Path]:
    """A folder that only ranks of this launch on this host, of this user, know and may open; by a
    short name.

    Raises CannotRun where somebody else has made it.
    """
    name = f"{folders.make_prefix()}{os.getuid()}-{_local_name(member)}"
    folder, opened = folders.find_temporary_folder() / name, None
    while opened is None:
        folder.mkdir(mode=0o700, exist_ok=True)
        opened = folders.hold_folder(folder)
    is_over = member.rank == 0
    try:
        status = os.fstat(opened)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise CannotRun(
                f"{folder} is not this user's alone", "remove it, or set TMPDIR to a private folder"
            )
        yield Path(f"/proc/self/fd/{opened}")  # a socket's path may have 107 characters only
    except RunBroken:  # the time is over for all, and rank 0 may be stopped
        is_over = True
        raise
    finally:
        os.close(opened)
        if is_over:
            with suppress(OSError):
                (folder / "meeting").unlink(missing_ok=True)
                folder.rmdir()


def _local_name(member: Membership) -> str:
    """A name that all ranks of this launch on this host agree on: the launcher's job, else its
    process that started them, of which each may be a script's child, else their parent process."""
    if job := environments.job_name(member):
        return hashlib.sha256(job.encode()).hexdigest()[:16]
    me = psutil.Process()
    above = me.parents() or [me]
    starter = next((process for process in above if process.name() in DAEMONS), above[0])
    return f"{starter.pid}-{int(starter.create_time() * 100)}"


def _derive_key(member: Membership) -> bytes:
    return (os.environ.get("COLLBENCH_TOKEN") or _name_launch(member)).encode()


def _name_launch(member: Membership) -> str:
    meeting = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    return f"{member.launcher} {environments.job_name(member) or meeting}"


def _list_doors(member: Membership, host: str, launch: str = "") -> list[Door]:
    """Rank 0's, at ``host``, as all ranks find them: MASTER_PORT first, which torchrun needs
    itself; then some that follow from the launch's name."""
    given = os.environ.get("MASTER_PORT", "") if member.launcher != "torchrun" else ""
    if given and not (re.fullmatch(r"\d{1,5}", given) and 0 < int(given) < 1 << 16):
        raise CannotRun(
            f"MASTER_PORT={given} is not a port",
            "unset MASTER_PORT, or give one that is free on rank 0's host",
        )
    digest = hashlib.sha256((launch or _name_launch(member)).encode()).digest()
    spread = (int.from_bytes(digest[2 * i : 2 * i + 2], "big") for i in range(PORTS))
    ports = [
        *([int(given)] if given else []),
        *(FIRST_PORT + at % (LAST_PORT - FIRST_PORT) for at in spread),
    ]
    address = own_address(host) if member.rank == 0 else _address_from_here(host)
    return [(address, port) for port in ports]


def _address_from_here(host: str) -> str:
    """Where a rank looks for rank 0, whose host may be this one, or be unknown for a while yet."""
    try:
        is_here = _is_own_name(host, _resolve_host(host))
    except OSError:
        is_here = _is_called(host)
    return chosen_address() or host if is_here else host


def own_address(host: str) -> str:
    """Rank 0's address: what ``host`` leads to, else the chosen one where that leads to this host
    from here alone, or from elsewhere alone. Raises CannotRun where there is none, or ``host`` is
    unknown, but as this machine's own name, which a pod knows before the cluster's DNS does."""
    try:
        address = _resolve_host(host)
    except OSError as e:
        if _is_called(host):
            return _require_address()
        raise CannotRun(
            f"rank 0 on {environment.host_name()} does not know the host {host} it is said to be"
            f" on: {e}",
            "set MASTER_ADDR to an address of rank 0's host",
        ) from e
    if not _can_bind(address):
        return _require_address()
    return chosen_address() or address if _is_own_name(host, address) else address


def find_listening_doors(member: Membership, doors: list[Door]) -> list[Door]:
    """Where rank 0 listens for those who come to ``doors``: there, but at all addresses of this
    host where other hosts may know it by another one than its own. Says so where the host that the
    launcher names has none of them."""
    host = environments.place_of_rank0(member)
    if not host or isinstance(doors[0], Path) or find_named_interface():
        return doors  # who names an interface wants no other used
    with suppress(OSError):
        address = _resolve_host(host)
        if not _can_bind(address):
            print_message(
                f"rank 0 on {environment.host_name()} listens at all its addresses, as none of them"
                f" is that of {host} ({address})",
                f"does something forward {host} to it? else set MASTER_ADDR to rank 0's host",
            )
        elif not _is_own_name(host, address):
            return doors
    everywhere = EVERYWHERE[not socket.has_dualstack_ipv6()]
    return [(everywhere, door[1]) for door in doors if not isinstance(door, Path)]


def _is_called(host: str) -> bool:
    """Whether the first part of a name is that of this machine's."""
    return host.partition(".")[0] == environment.host_name().partition(".")[0]


def _resolve_host(host: str) -> str:
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


def _can_bind(address: str) -> bool:
    """Whether an address is this host's own, not that of a gateway or service before it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((address, 0))
    except OSError as e:
        return e.errno != errno.EADDRNOTAVAIL
    return True


def _require_address() -> str:
    """The chosen address. Raises CannotRun where there is none."""
    if address := chosen_address():
        return address
    raise _no_address(f"rank 0 on {environment.host_name()}")


def _no_address(subject: str) -> CannotRun:
    interface = find_named_interface()
    where = f" on {interface} (GLOO_SOCKET_IFNAME)" if interface else ""
    return CannotRun(
        f"{subject} has no address{where} that other hosts could reach",
        "set GLOO_SOCKET_IFNAME to an interface of rank 0's host that is up, or MASTER_ADDR to an"
        " address of it",
    )


def _is_own_name(host: str, address: str) -> bool:
    """Whether ``host`` is a name that leads back to this machine alone: many a machine has its own
    at 127.0.1.1."""
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return False
    return host != "localhost" and ipaddress.ip_address(address).is_loopback


def chosen_address() -> str:
    """This host's address for other hosts: on the interface that GLOO_SOCKET_IFNAME names first,
    else on the default route's, else on the first that leads outside. IPv4 before IPv6; "" where
    there is none."""
    interface, addresses = find_named_interface(), psutil.net_if_addrs()
    names = [interface] if interface else _list_outward_interfaces(addresses)
    candidates = [address for name in names for address in addresses.get(name, ())]
    for family in (socket.AF_INET, socket.AF_INET6):
        for address in candidates:
            if address.family == family and _is_for_others(address.address, bool(interface)):
                return address.address
    return ""


def _list_outward_interfaces(names: Iterable[str]) -> list[str]:
    """The interfaces that are up, neither loopback nor a bridge inside this host; that of the
    default route first."""
    default = find_default_interface()
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup} - {LOOPBACK}
    outward = [
        name
        for name in names
        if (card := name.partition(":")[0]) in up  # an address may have a label: lo:0
        and (card == default or not is_inner_bridge(card))
    ]
    return sorted(outward, key=lambda name: name != default)


def _is_for_others(text: str, is_named: bool) -> bool:
    """Whether an address may lead other hosts here. One of a link alone, as a BMC's USB device has,
    does so in IPv4 where the user names its interface."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if address.is_link_local:
        return is_named and address.version == 4
    return not address.is_loopback


def find_interface(address: str) -> str:
    """The one that has this address; loopback for none."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(own_address.address.partition("%")[0] == address for own_address in addresses):
            return name
    return LOOPBACK


def tell_address(member: Membership, address: str, seconds: float) -> tuple[str, str] | None:
    """(address, token) as rank 0 has them, at every rank; None where the launcher has no means.

    All ranks must call, within ``seconds``: else RunBroken is raised, or this process is killed,
    which has said why. ``address`` counts at rank 0, which makes up the token.
    """
    own_text = f"{address} {secrets.token_hex(16)}" if member.rank == 0 else ""
    if "PMI_FD" in os.environ:
        answer: str | None = _by_pmi(member, own_text, seconds)
    else:
        answer = _by_mpi(member, own_text, seconds)
    if answer is None:
        return None
    host, _, token = answer.partition(" ")
    return host, token


def _hint_absence(seconds: float) -> str:
    return f"{environments.STARTED_ALIKE}, or {environments.hint_limit(seconds)}"


def _describe_absence(member: Membership, seconds: float) -> str:
    return (
        f"rank {member.rank} of {member.n} on {environment.host_name()} ({member.launcher}) did"
        f" not learn rank 0's address within {seconds:g} s: that takes all ranks"
    )


def _by_pmi(member: Membership, own_text: str, seconds: float) -> str:
    """Raises CannotRun when the launcher does not speak PMI-1, or has ended."""
    try:
        with (
            socket.socket(fileno=os.dup(int(os.environ["PMI_FD"]))) as channel,
            channel.makefile("rb") as lines,
            _limit_waiting(channel, seconds),
        ):

            def ask(command: str) -> dict[str, str]:
                channel.sendall(f"cmd={command}\n".encode())
                answer = dict(
                    word.partition("=")[::2] for word in lines.readline(_LINE).decode().split()
                )
                if answer.get("rc", "0") != "0" or not answer:
                    raise ValueError(
                        f"{command.split(maxsplit=1)[0]}: {answer.get('msg', 'no answer')}"
                    )
                return answer

            ask("init pmi_version=1 pmi_subversion=1")
            space = ask("get_my_kvsname")["kvsname"]
            if own_text:
                ask(f"put kvsname={space} key={_NAME} value={own_text.replace(' ', '/')}")
            ask("barrier_in")
            return ask(f"get kvsname={space} key={_NAME}")["value"].replace("/", " ")
    except TimeoutError as e:
        raise RunBroken(_describe_absence(member, seconds), _hint_absence(seconds)) from e
    except (OSError, ValueError, KeyError) as e:
        raise CannotRun(
            f"the launcher does not say where rank 0 is (PMI: {e})",
            "set MASTER_ADDR to its host for every rank",
        ) from e


@contextmanager
def _limit_waiting(channel: socket.socket, seconds: float) -> Iterator[None]:
    """Raises TimeoutError where nothing comes for so long. MPI reads from the channel later, and
    is to find it as it was."""
    channel.settimeout(seconds)
    try:
        yield
    finally:
        channel.setblocking(True)


def _by_mpi(member: Membership, own_text: str, seconds: float) -> str | None:
    """None where MPI cannot be loaded. Raises CannotRun when MPI knows of other ranks than the
    launcher."""
    why = f"collbench: {_describe_absence(member, seconds)}\n  hint: {_hint_absence(seconds)}\n"
    try:
        load_mpi()
        # the launcher ends a host's other ranks with its first, so that one tells
        with killed_after(seconds + member.local_rank, why):
            world = initialise_mpi().COMM_WORLD
    except CannotRun:
        return None
    if (world.rank, world.size) != (member.rank, member.n):
        raise CannotRun(
            f"mpi4py sees rank {world.rank} of {world.size}, {member.launcher} says {member.rank}"
            f" of {member.n}",
            "use the mpirun of mpi4py's MPI, or set MASTER_ADDR to rank 0's host for every rank",
        )
    buffer = bytearray(_LINE)
    buffer[: len(own_text)] = own_text.encode()
    world.Bcast(buffer, root=0)
    return buffer.rstrip(b"\0").decode()
