"""The address at which a rank is reached."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from collbench.run.rank import clock_links

V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.mark.parametrize(
    ("addresses", "chosen"),
    [
        ([(V6, "fe80::1%eth0"), (V6, "fd00::2"), (V4, "10.0.0.1"), (V4, "10.0.0.2")], "10.0.0.1"),
        ([(V6, "fd00::2"), (V6, "fe80::1%eth0")], "fd00::2"),
    ],
)
def test_an_interface_is_reached_by_its_first_address_but_a_link_local_one(
    addresses: list[tuple[int, str]], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [SimpleNamespace(family=family, address=at) for family, at in addresses]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    monkeypatch.setattr(clock_links.psutil, "net_if_addrs", lambda: {"eth0": found})
    assert clock_links.control_address() == chosen


def test_an_interface_that_no_other_host_reaches_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [SimpleNamespace(family=V6, address="fe80::1%eth0")]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    monkeypatch.setattr(clock_links.psutil, "net_if_addrs", lambda: {"eth0": found})
    with pytest.raises(OSError, match="interface eth0 has no address that other hosts reach"):
        clock_links.control_address()
