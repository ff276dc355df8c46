"""Bytes that leave hosts while a case's calls are made once more, outside all timing.

Counters are those of the network interfaces (loopback and veth too), of InfiniBand's ports and of
NVLink. All ranks meet, read them, meet again, make their calls, meet and read: the difference is
what all of them sent, and what the barriers and everything else on these hosts did, of which the
same without calls tells how much that is. Ranks of one network read the same counters, which count
once.

An interface counts an Ethernet header of 14 bytes, an IP header of 20 and TCP's of 32 (with its
timestamps) for each packet, on loopback too, and for what it will cut up later (GSO) once, as for
one packet: 66 bytes a packet are taken off, which leaves nothing of bare acknowledgements. What
libraries put around their messages stays.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from collbench.machine import environment, sysfs
from collbench.records.traffic import needed_bytes, settle_counts
from collbench.records.types import Sent
from collbench.run.rank.control import Control
from collbench.run.rank.gpu import Watch
from collbench.run.rank.measure import clock
from collbench.suite.case import Case

HEADERS = 14 + 20 + 32  # bytes a packet
SMALLEST = 16 << 10  # bytes a rank has of the size, below which what surrounds messages counts
ENOUGH = 64 << 10  # bytes a rank, beside which barriers are little
MOST_CALLS, MOST_COUNTS = 16, 3
LARGE = 1 << 30  # bytes that all ranks send in a call, from which on it is not made once more
LONGEST = 0.1  # seconds without calls
INFINIBAND = 32  # ARPHRD_INFINIBAND: such an interface's bytes are its port's, too
WORD = 4  # bytes that port_xmit_data counts as one

Counters = dict[str, int]  # "tcp", "ib" or "nvlink", then whose it is


def count_sent(
    control: Control, watch: Watch | None, case: Case, call: Callable[[], object]
) -> list[Sent]:
    """The bytes that left all hosts in calls of all ranks, at every rank: nothing for cases too
    small to tell, and again where the first count is not what is needed, so that what comes only
    once is known for that. ``call`` returns when this rank is done."""
    calls = _choose_calls(case) if control.n == case.world else 0  # virtual ranks are one process
    counts: list[Sent] = []
    while calls and len(counts) < MOST_COUNTS and settle_counts(case, counts) is None:
        counts.append(count_once(control, watch, call, calls))
    return counts


def count_once(
    control: Control, watch: Watch | None, call: Callable[[], object], calls: int = 1
) -> Sent:
    """The bytes that left all hosts in so many calls of all ranks, and in as long a time
    without."""
    ns, sent, loopback = _count_during(control, watch, lambda: [call() for _ in range(calls)])
    pause = min(ns * 1e-9, LONGEST)
    idle_ns, idle, idle_loopback = _count_during(control, watch, partial(time.sleep, pause))
    return Sent(
        calls=calls,
        ns=ns,
        idle_ns=idle_ns,
        bytes=sent,
        idle=idle,
        loopback=loopback,
        idle_loopback=idle_loopback,
    )


def _choose_calls(case: Case) -> int:
    """How many calls tell what they send: 0 where too little of it is data, or where another call
    would take long, as smaller sizes tell the same."""
    if case.n < 2 or case.size < case.n * SMALLEST:
        return 0
    needed = needed_bytes(case)
    return min(MOST_CALLS, math.ceil(ENOUGH * case.n / needed)) if 0 < needed < LARGE else 0


def _count_during(
    control: Control, watch: Watch | None, action: Callable[[], object]
) -> tuple[int, dict[str, int], int]:
    """How long it took the slowest rank, the bytes that left all hosts, by what counted them, and
    those that loopback counted."""
    control.barrier()
    before = _read_counters(watch)
    control.barrier()
    began = clock()
    action()
    took = clock() - began
    control.barrier()
    after = _read_counters(watch)
    risen = {name: value - before.get(name, value) for name, value in after.items()}
    moved = {name: by for name, by in risen.items() if by and _ask_carries(name, sysfs.ROOT)}
    everyone = control.collect([took, moved])
    once: Counters = {}
    for _, counters in reversed(everyone):
        once |= counters
    sums: dict[str, int] = {}
    for name, by in once.items():
        kind = name.partition(" ")[0]
        sums[kind] = sums.get(kind, 0) + by
    loopback = sum(by for name, by in once.items() if _is_loopback(name))
    slowest = max(took for took, _ in everyone)
    return slowest, {k: by for k, by in sums.items() if by > 0}, max(0, loopback)


def _read_counters(watch: Watch | None) -> Counters:
    root = sysfs.ROOT
    machine = environment.boot_id() or environment.host_name()
    network = f"{machine} {Path('/proc/self/ns/net').stat().st_ino}"
    counters = {f"tcp {network} {name}": by for name, by in read_interfaces(root).items()}
    counters |= {f"ib {machine} {name}": by for name, by in read_ports(root).items()}
    sent = watch.read_sent() if watch else {}
    return counters | {f"nvlink {machine} {gpu}": by for gpu, by in sent.items()}


def read_interfaces(root: Path) -> Counters:
    """Bytes that left by each interface of this process's network, without their headers."""
    counters = {}
    for line in (sysfs.read_text(root / "proc/net/dev") or "").splitlines()[2:]:
        name, _, rest = line.rpartition(":")
        numbers = [int(word) for word in rest.split()]
        counters[name.strip()] = numbers[8] - HEADERS * numbers[9]
    return counters


def read_ports(root: Path) -> Counters:
    """Bytes that left by each InfiniBand or RoCE port as RDMA, with their headers."""
    files = (root / "sys/class/infiniband").glob("*/ports/*/counters/port_xmit_data")
    counters = {f"{path.parts[-5]}:{path.parts[-3]}": sysfs.read_integer(path) for path in files}
    return {name: WORD * count for name, count in counters.items() if count is not None}


def _is_loopback(name: str) -> bool:
    """Whether a counter is that of a network's loopback interface."""
    return name.startswith("tcp ") and name.endswith(" lo")


def _ask_carries(name: str, root: Path) -> bool:
    return not name.startswith("tcp ") or is_counted(name.rpartition(" ")[2], root)


def is_counted(name: str, root: Path) -> bool:
    """Whether bytes of this interface are counted by no other: it is loopback, a device's, or one
    end of a pair or child of an interface of another network; not what lies on others that count
    them as well (bridges, bonds, VLANs, tunnels)."""
    interface = root / "sys/class/net" / name
    if name == "lo" or not interface.exists():
        return True
    kind, above = sysfs.read_integer(interface / "type"), any(interface.glob("lower_*"))
    if kind == INFINIBAND and read_ports(root):
        return False
    linked = sysfs.read_integer(interface / "iflink") != sysfs.read_integer(interface / "ifindex")
    return (interface / "device").exists() or (linked and not above)
