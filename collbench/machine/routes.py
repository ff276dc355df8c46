"""Where this host's packets go."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from collbench.machine import sysfs

IPV4, IPV6 = "proc/net/route", "proc/net/ipv6_route"
UP, REJECT = 0x1, 0x200  # flags of a route


def find_default_interface(root: Path = sysfs.ROOT) -> str:
    """The interface that the default route goes by; empty where there is none."""
    for line in (sysfs.read_text(root / IPV4) or "").splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and words[1] == words[7] == "00000000" and _is_usable(words[3]):
            return words[0]
    for line in (sysfs.read_text(root / IPV6) or "").splitlines():
        words = line.split()
        if len(words) == 10 and set(words[0]) == {"0"} and words[1] == "00" and words[9] != "lo":
            return words[9]
    return ""


def _is_usable(flags: str) -> bool:
    """Whether packets may go by a route with these flags, in hexadecimal."""
    try:
        return int(flags, 16) & (UP | REJECT) == UP
    except ValueError:
        return False


def find_named_interface() -> str:
    """The first interface that GLOO_SOCKET_IFNAME names, at which ranks of several hosts meet; ""
    where it names none."""
    return os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0].strip()


def resolve_host_name() -> str:
    """The address that this host's name has, of IPv4 if it has any such. Raises OSError."""
    addresses = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    *_, address = min(addresses, key=lambda entry: entry[0] != socket.AF_INET)
    return str(address[0]).partition("%")[0]


def is_inner_bridge(name: str, root: Path = sysfs.ROOT) -> bool:
    """Whether an interface is a bridge that no network card is a port of, as Docker's and libvirt's
    are: other hosts have one of the same address."""
    interfaces = root / "sys/class/net"
    ports = [interfaces / port.name for port in (interfaces / name / "brif").glob("*")]
    return (interfaces / name / "bridge").is_dir() and not any(map(_has_card, ports))


def _has_card(interface: Path) -> bool:
    """Whether an interface is a device, or is over another one, as a bond or a VLAN is; one of a
    container or of a guest is neither."""
    return (interface / "device").exists() or any(interface.glob("lower_*"))
