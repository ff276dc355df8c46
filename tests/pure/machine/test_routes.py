"""The interface of the default route, by the kernel's tables."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from collbench.machine.routes import (
    find_default_interface,
    is_inner_bridge,
    resolve_host_name,
)

HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
NEAR = "eth1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
DEFAULT = "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
REJECTED = "*\t00000000\t00000000\t0200\t0\t0\t0\t00000000\t0\t0\t0\n"
ZERO = "0" * 32
LOST = f"{ZERO} 00 {ZERO} 00 {ZERO} ffffffff 00000001 00000000 00200200       lo\n"
SIX = f"{ZERO} 00 {ZERO} 00 {ZERO} 00000400 00000001 00000000 00000003     ens3\n"


@pytest.mark.parametrize(
    ("four", "six", "name"),
    [
        (HEAD + NEAR + DEFAULT, "", "eth0"),
        (HEAD + REJECTED + DEFAULT, "", "eth0"),
        (HEAD + NEAR, LOST + SIX, "ens3"),
        (HEAD + NEAR, LOST, ""),
        ("", "", ""),
        ("garbage\nmore", "\x00", ""),
    ],
)
def test_the_default_route_is_found(tmp_path: Path, four: str, six: str, name: str) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/route").write_text(four)
    (tmp_path / "proc/net/ipv6_route").write_text(six)
    assert find_default_interface(tmp_path) == name


def test_a_host_without_tables_has_none(tmp_path: Path) -> None:
    assert find_default_interface(tmp_path) == ""


@pytest.mark.parametrize(
    ("ports", "is_inner"),
    [
        ({}, True),
        ({"veth1": "upper_br0"}, True),
        ({"veth1": "upper_br0", "eth0": "device"}, False),
        ({"bond0": "lower_eth0"}, False),
    ],
)
def test_a_bridge_without_a_card_is_inside_the_host(
    tmp_path: Path, ports: dict[str, str], is_inner: bool
) -> None:
    interfaces = tmp_path / "sys/class/net"
    for folder in ("bridge", "brif"):
        (interfaces / "br0" / folder).mkdir(parents=True)
    for name, mark in ports.items():
        (interfaces / "br0" / "brif" / name).mkdir()
        (interfaces / name / mark).mkdir(parents=True)
    (interfaces / "eth9").mkdir()
    assert is_inner_bridge("br0", tmp_path) is is_inner
    assert not is_inner_bridge("eth9", tmp_path)
    assert not is_inner_bridge("absent", tmp_path)


@pytest.mark.parametrize(
    ("known", "address"),
    [
        ([("inet6", "2001:db8::1"), ("inet", "10.0.0.7")], "10.0.0.7"),
        ([("inet6", "fe80::1%eth0")], "fe80::1"),
    ],
)
def test_the_hosts_name_resolves_to_ipv4_if_it_can(
    known: list[tuple[str, str]], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    families = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
    found = [(families[name], socket.SOCK_STREAM, 6, "", (at, 0)) for name, at in known]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    assert resolve_host_name() == address
