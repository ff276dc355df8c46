"""Which counters count, of machines made of files, and which cases are worth counting."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import case

from collbench.run.rank import counted

DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo:  500000 10 0 0 0 0 0 0 500660 10 0 0 0 0 0 0
  eth0: 9 9 0 0 0 0 0 0 132 2 0 0 0 0 0 0
"""
ETHERNET, INFINIBAND = 1, 32


def interface(
    root: Path, name: str, index: int, link: int, kind: int = ETHERNET, *others: str
) -> None:
    place = root / "sys/class/net" / name
    place.mkdir(parents=True)
    for file, value in {"type": kind, "ifindex": index, "iflink": link}.items():
        (place / file).write_text(f"{value}\n")
    for other in others:
        (place / other).mkdir()


def port(root: Path, name: str, words: int) -> None:
    place = root / f"sys/class/infiniband/{name}/ports/1/counters"
    place.mkdir(parents=True)
    (place / "port_xmit_data").write_text(f"{words}\n")


def test_headers_come_off_each_packet(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/dev").write_text(DEV)
    assert counted.read_interfaces(tmp_path) == {"lo": 500_000, "eth0": 0}
    assert counted.read_interfaces(tmp_path / "nothing") == {}


def test_ports_count_words(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", 250)
    assert counted.read_ports(tmp_path) == {"mlx5_0:1": 1000}


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("lo", True),
        ("eth0", True),  # a device's
        ("veth1", True),  # its other end is elsewhere
        ("docker0", False),
        ("bond0", False),
        ("eth0.7", False),  # on eth0, which counts the same
        ("ifb0", False),
        ("of another network", True),  # sysfs shows the one it was mounted in
    ],
)
def test_each_byte_counts_once(name: str, counts: bool, tmp_path: Path) -> None:
    interface(tmp_path, "eth0", 2, 2, ETHERNET, "device", "upper_bond0")
    interface(tmp_path, "veth1", 3, 9)
    interface(tmp_path, "docker0", 4, 4, ETHERNET, "lower_veth1")
    interface(tmp_path, "bond0", 5, 5, ETHERNET, "lower_eth0")
    interface(tmp_path, "eth0.7", 6, 2, ETHERNET, "lower_eth0")
    interface(tmp_path, "ifb0", 7, 7)
    assert counted.is_counted(name, tmp_path) is counts


def test_ip_over_infiniband_is_counted_by_the_port(tmp_path: Path) -> None:
    interface(tmp_path, "ib0", 2, 2, INFINIBAND, "device")
    assert counted.is_counted("ib0", tmp_path)
    port(tmp_path, "mlx5_0", 250)
    assert not counted.is_counted("ib0", tmp_path)


class Alone:
    """The control group of ranks that all read the same, and of which one is here."""

    def __init__(self, n: int) -> None:
        self.n = n

    def barrier(self) -> None:
        pass

    def collect(self, value: object) -> list[object]:
        return [value] * self.n


def machine(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "proc/net").mkdir(parents=True)
    write(root, 0)
    monkeypatch.setattr(counted.sysfs, "ROOT", root)


def write(root: Path, nbytes: int) -> None:
    (root / "proc/net/dev").write_text(f"-\n-\n  lo: 0 0 0 0 0 0 0 0 {nbytes} 0 0 0 0 0 0 0\n")


@pytest.mark.parametrize(("factor", "counts"), [(1.0, 1), (2.0, 2), (0.0, 1)])
def test_ranks_of_one_network_count_once_and_what_is_odd_is_counted_again(
    factor: float, counts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(tmp_path, monkeypatch)
    total, size = 0.0, 1 << 20

    def call() -> None:
        nonlocal total
        total += factor * 6 * size
        write(tmp_path, round(total))

    found = counted.count_sent(Alone(4), None, case(size), call)  # type: ignore[arg-type]
    assert [one.bytes for one in found] == [{"tcp": 6 * size * factor} if factor else {}] * counts
    assert all(one.calls == 1 and not one.idle for one in found)


class Gpu:
    """The watch of a container's only GPU, whose NVLinks send 1 KiB between two readings."""

    def __init__(self, pci: str | None) -> None:
        self._address, self._kib = pci or "0", 0

    def read_sent(self) -> dict[str, int]:
        self._kib += 1
        return {self._address: self._kib << 10}


class Containers(Alone):
    """Of two ranks, each in a container with a GPU of the machine, that one is here and another
    has had the same."""

    def __init__(self, other: Gpu) -> None:
        super().__init__(2)
        self._other, self._before = other, counted._read_counters(other)  # type: ignore[arg-type]

    def collect(self, value: object) -> list[object]:
        took, moved = value  # type: ignore[misc]
        after = counted._read_counters(self._other)  # type: ignore[arg-type]
        rises = {name: by - self._before[name] for name, by in after.items() if "nvlink" in name}
        return [value, [took, {**moved, **rises}]]


@pytest.mark.parametrize(
    ("own", "other", "sent"),
    [
        ("0000:1b:00.0", "0000:1c:00.0", 2048),
        ("0000:1b:00.0", "0000:1b:00.0", 1024),  # instances (MIG) of one GPU
        (None, None, 1024),
    ],
)
def test_gpus_count_by_their_address_and_not_by_their_number_in_a_container(
    own: str | None, other: str | None, sent: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(tmp_path, monkeypatch)
    _, moved, _ = counted._count_during(Containers(Gpu(other)), Gpu(own), lambda: None)  # type: ignore[arg-type]
    assert moved == {"nvlink": sent}


@pytest.mark.parametrize(
    ("size", "n", "calls"), [(32 << 10, 4, 0), (64 << 10, 4, 1), (1 << 20, 1, 0), (32 << 10, 2, 2)]
)
def test_small_cases_are_headers_and_are_not_counted(
    size: int, n: int, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(tmp_path, monkeypatch)
    made = []
    counted.count_sent(Alone(n), None, case(size, n=n), lambda: made.append(1))  # type: ignore[arg-type]
    assert len(made) == calls
    made.clear()
    counted.count_sent(Alone(1), None, case(size, n=n), lambda: made.append(1))  # type: ignore[arg-type]
    assert made == []  # ranks are virtual ones
