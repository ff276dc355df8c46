"""Hosts that are namespaces of one kernel, wired to switches by links of known rates. Needs root.

Each host has its own network, name, processes, mounts, ``/dev/shm`` and monotonic clock; switches
are bridges in a network of their own. All of it hangs on one process a host, which ends when this
one does, however it does: the kernel then takes away namespaces, links and whatever ran there. The
machine's own network is not touched.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import psutil

TOOLS = ("ip", "tc", "unshare", "nsenter")
NAMESPACES = (
    "--net",
    "--uts",
    "--ipc",
    "--mount",
    "--pid",
    "--time",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
# What a host's first process does: take a name and a table of names, say that it is there, wait for
# the pipe to close Of congestion controls, every kernel has reno and lets a namespace choose it
BOOT = """set -e
echo "$1" > /proc/sys/kernel/hostname
mount -t tmpfs lab /run; echo "$2" > /run/hosts; mount --bind /run/hosts /etc/hosts
: > /run/resolv.conf; mount --bind /run/resolv.conf /etc/resolv.conf
mount -t tmpfs lab /dev/shm
mkdir /run/cgroup; mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs lab /sys; mount --rbind /run/cgroup /sys/fs/cgroup
echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6
echo reno > /proc/sys/net/ipv4/tcp_congestion_control
echo up
cat"""
SKEW = 1000  # seconds between the clocks of neighbouring hosts
MTU, ETHERNET, IP, TCP = 1500, 14, 20, 32  # bytes; TCP's header with its timestamps
# of a link's rate, what is left for data: tbf counts whole frames, without what surrounds them on a
# wire
PAYLOAD = (MTU - IP - TCP) / (MTU + ETHERNET)
PIECES = (4 << 10, 32 << 10)  # bytes of frames that TCP hands to a link together: least and most
# of these, what a connection may have before a link: acknowledgements the other way wait behind it
QUEUED = 4


class Host(NamedTuple):
    """``pid`` is its first process as seen from outside: when that ends, all of the host does."""

    name: str
    address: str
    pid: int

    def enter(self, command: Sequence[str]) -> list[str]:
        """A command line that runs ``command`` on this host, in the root folder."""
        return ["nsenter", "--all", f"--target={self.pid}", *command]


class Lab:
    """``hosts`` h0, h1 … with links of ``rate`` bits a second each way, in ``racks`` of as many
    neighbours.

    With several racks each has a switch of its own, joined to the others by a link of ``uplink``
    bits a second. Another host, ``login``, has a link without limit.
    """

    def __init__(self, hosts: int = 4, rate: int = 10**9, racks: int = 1, uplink: int = 0) -> None:
        self._rate, self._racks, self._uplink = rate, racks, uplink
        self._names = {f"h{i}": f"10.77.0.{i + 1}" for i in range(hosts)}
        self._processes: list[subprocess.Popen[str]] = []
        self.hosts: list[Host] = []

    def __enter__(self) -> Lab:
        try:
            booted = [self._boot(place, name) for place, name in enumerate([*self._names, "login"])]
            pids = [_first_process(process) for process in booted]
            self.hosts = [
                Host(name, at, pid)
                for (name, at), pid in zip(self._names.items(), pids, strict=False)
            ]
            self.login = Host("login", "10.77.0.254", pids[-1])
            self._wire()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def counted(self, device: str) -> int:
        """Bytes, as tbf counts them, that have left the switches by this link; ``rack1up`` is the
        second rack's."""
        (found,) = json.loads(self._at(self.login, f"tc -s -j qdisc show dev {device}"))
        return int(found["bytes"])

    def throttle(self, host: Host, rate: int, ways: Sequence[str] = ("sends", "receives")) -> None:
        """Its link lets only so many bits a second through, both ways or what it sends or
        receives."""
        if "receives" in ways:
            self._at(self.login, f"tc qdisc replace dev {host.name} root {tbf(rate)}")
        if "sends" in ways:
            self._at(host, f"tc qdisc replace dev eth0 root {tbf(rate)}")

    def detour(self, one: Host, other: Host, rate: int) -> None:
        """What these two send each other goes by a link of its own, of so many bits a second each
        way."""
        name = f"{one.name}{other.name}"
        self._at(one, f"ip link add {name} type veth peer name {name} netns {other.pid}")
        for here, there in ((one, other), (other, one)):
            self._at(
                here,
                f"ip link set {name} gso_max_size {piece(rate)} up",
                f"tc qdisc add dev {name} root {tbf(rate)}",
                f"ip route add {there.address}/32 dev {name} src {here.address}",
            )

    def straight(self, one: Host, other: Host) -> None:
        """Ends a detour."""
        self._at(one, f"ip link delete {one.name}{other.name}")

    def cut(self, host: Host) -> None:
        """Its link goes down: frames are lost, and nobody is told."""
        self._at(self.login, f"ip link set {host.name} down")

    def mend(self, host: Host) -> None:
        self._at(self.login, f"ip link set {host.name} up")

    def kill(self, host: Host) -> None:
        """All its processes end at once, and its network with them."""
        os.kill(host.pid, signal.SIGKILL)

    def _boot(self, place: int, name: str) -> subprocess.Popen[str]:
        table = "\n".join(
            f"{at} {name}" for name, at in {"localhost": "127.0.0.1", **self._names}.items()
        )
        command = [
            "unshare",
            *NAMESPACES,
            "--monotonic",
            str(SKEW * place),
            "sh",
            "-c",
            BOOT,
            "boot",
            name,
            table,
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
        self._processes.append(process)
        return process

    def _wire(self) -> None:
        """The login host's network holds the switches, as those need no processes of their own."""
        racks = [f"rack{k}" for k in range(self._racks)]
        share = -(-len(self.hosts) // self._racks)
        switches = [f"ip link add {name} type bridge stp_state 0 forward_delay 0" for name in racks]
        links, shapes = [], []
        for place, host in enumerate(self.hosts):
            links += [
                f"ip link add {host.name} type veth peer name eth0 netns {host.pid}",
                f"ip link set {host.name} master {racks[place // share]} up",
            ]
            shapes.append(f"tc qdisc add dev {host.name} root {tbf(self._rate)}")
        for name in racks[1:]:
            links += [
                f"ip link add {name}up type veth peer name {name}down",
                f"ip link set {name}up master {name} up",
                f"ip link set {name}down master rack0 up",
            ]
            shapes += [
                f"tc qdisc add dev {name}{end} root {tbf(self._uplink)}" for end in ("up", "down")
            ]
        up = [f"ip link set {name} up" for name in ("lo", *racks)]
        self._at(
            self.login,
            *switches,
            *links,
            *shapes,
            *up,
            f"ip address add {self.login.address}/24 dev rack0",
        )
        for host in self.hosts:
            self._at(
                host,
                "ip link set lo up",
                f"ip address add {host.address}/24 dev eth0",
                f"ip link set eth0 gso_max_size {piece(self._rate)} up",
                f"echo {QUEUED * piece(self._rate)} > /proc/sys/net/ipv4/tcp_limit_output_bytes",
                f"tc qdisc add dev eth0 root {tbf(self._rate)}",
            )

    def _at(self, host: Host, *commands: str) -> str:
        """What commands print in a host's network, where all processes are seen, by which other
        networks are named."""
        script = "\n".join(["set -e", *commands])
        command = ["nsenter", "--net", f"--target={host.pid}", "sh", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the lab's {host.name}: {done.stderr.strip()}")
        return done.stdout

    def _end(self) -> None:
        for process in self._processes:
            with suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
        for process in self._processes:
            process.wait(10)
            for pipe in (process.stdout, process.stderr):
                pipe.close()  # type: ignore[union-attr]


def why_not() -> str:
    """Why there can be no lab here, or an empty string."""
    if os.geteuid():
        return "a lab of network namespaces needs root"
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        return f"a lab of network namespaces needs {', '.join(missing)}"
    try:
        with Lab(hosts=2, racks=2, uplink=10**6):
            return ""
    except RuntimeError as e:
        return str(e)


def piece(rate: int) -> int:
    """What a link of ``rate`` sends in some 0.25 ms: short beside a message's latency here, long
    beside a frame's."""
    return min(max(rate // 32_000, PIECES[0]), PIECES[1])


def burst(rate: int) -> int:
    """Bytes that pass an idle link at once: a piece at least, or tbf has to cut it up."""
    return 2 * piece(rate)


def tbf(rate: int) -> str:
    """A token bucket that lets so many bits a second through."""
    return f"tbf rate {rate}bit burst {burst(rate)} latency 50ms"


def _first_process(process: subprocess.Popen[str]) -> int:
    """The one in the new namespaces, once it is there. Raises RuntimeError if there is none."""
    if process.stdout.readline() != "up\n":  # type: ignore[union-attr]
        raise RuntimeError(f"no lab of network namespaces: {process.communicate()[1].strip()}")
    return psutil.Process(process.pid).children()[0].pid
