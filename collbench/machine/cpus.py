"""CPUs that this process may use, their cores and NUMA nodes, and the time it is granted."""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from collbench.machine.sysfs import (
    ROOT,
    cpu_list,
    find_in_file,
    list_cgroups,
    read_integer,
    read_text,
)

CPUS = "sys/devices/system/cpu"


def usable_cpus(root: Path = ROOT) -> list[int]:
    """CPUs to place ranks on, best first: one of each physical core, then second threads; as many
    as the quota."""
    ordered = [
        c
        for thread in itertools.zip_longest(*by_core(list_affinity(root), root))
        for c in thread
        if c is not None
    ]
    return ordered[: math.ceil(cpu_quota(root) or len(ordered))]


def core_count(root: Path = ROOT) -> int:
    """Physical cores that can be busy at once: those in the affinity mask, or the CPU quota rounded
    up if less."""
    allowed = frozenset(os.sched_getaffinity(0))
    return _core_count(allowed) if root == ROOT else len(by_core(usable_cpus(root), root))


def machine_core_count(root: Path = ROOT) -> int:
    """Physical cores of the machine, whichever of them this process may use; 0 where the kernel
    does not tell."""
    return len(by_core(cpu_list(root / CPUS / "online"), root))


def launched_core_count(ranks: int) -> int:
    """Physical cores that ``ranks`` ranks, which a launcher started on this host, can use together.

    If the launcher (the parent process) may use more CPUs than this rank, it has bound each rank to
    cores of its own: the result is this rank's cores times ``ranks``, at most the launcher's cores.
    Else all ranks share this rank's cores (``core_count``)."""
    rank_cores = core_count()
    try:
        launcher = os.sched_getaffinity(os.getppid())
    except OSError:
        return rank_cores
    bound = launcher > os.sched_getaffinity(0)
    return min(rank_cores * ranks, len(by_core(sorted(launcher), ROOT))) if bound else rank_cores


@functools.lru_cache(maxsize=8)
def _core_count(_: frozenset[int]) -> int:
    """Kept for each mask: it takes milliseconds, and planning asks of every case."""
    return len(by_core(usable_cpus(ROOT), ROOT))


def find_numa(cpus: Iterable[int], root: Path = ROOT) -> int:
    """The NUMA node of all these CPUs, -1 where they are of several or the kernel does not tell."""
    nodes = {node.name for cpu in cpus for node in (root / CPUS / f"cpu{cpu}").glob("node[0-9]*")}
    return int(nodes.pop()[4:]) if len(nodes) == 1 else -1


def llc_bytes(root: Path = ROOT) -> int | None:
    """Sum of the last-level caches that CPUs of the affinity mask can reach, each counted once."""
    covered, total = set[int](), 0
    for cpu in list_affinity(root):
        indices = () if cpu in covered else (root / CPUS / f"cpu{cpu}/cache").glob("index*")
        for _, last in sorted((read_integer(index / "level") or 0, index) for index in indices)[
            -1:
        ]:
            total += (read_integer(last / "size", r"(\d+)K") or 0) << 10
            covered |= {cpu, *cpu_list(last / "shared_cpu_list")}
    return total or None


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time the tightest cgroup grants, None for no limit."""
    files = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    texts = (
        " ".join(read_text(group / file) or "" for file in files)
        for group in list_cgroups("cpu", root)
    )
    grants = (re.fullmatch(r" ?(\d+) (\d+) *", text) for text in texts)
    return min((int(grant[1]) / int(grant[2]) for grant in grants if grant), default=None)


def cpu_facts(root: Path) -> dict[str, Any]:
    """``cores`` may be busy at once, ``affinity`` is where this thread may run; the rest is
    the whole machine's."""
    at, allowed = root / CPUS, list_affinity(root)
    cpus = cpu_list(at / "online") or allowed
    cores = by_core(cpus, root)
    governors = {read_text(at / f"cpu{cpu}/cpufreq/scaling_governor") or "" for cpu in allowed} - {
        ""
    }
    turbo = (
        (at / file, on) for file, on in (("intel_pstate/no_turbo", "0"), ("cpufreq/boost", "1"))
    )
    return {
        "model": find_in_file(
            root / "proc/cpuinfo",
            r"^(?:(?:model name|cpu|uarch|machine)\s*: (?=.*[A-Za-z])|(?=CPU part))(.+)",
        ),  # Arm's have but a number
        "sockets": (
            len(
                {read_integer(at / f"cpu{core[0]}/topology/physical_package_id") for core in cores}
                - {None}
            )
            or None
        ),
        "physical": len(cores),
        "logical": len(cpus),
        "smt": len(cpus) > len(cores),
        "affinity": allowed,
        "cores": core_count(root),
        "llc_bytes": llc_bytes(root),
        "governor": ",".join(sorted(governors)) or None,
        "max_mhz": (
            (read_integer(at / f"cpu{allowed[0]}/cpufreq/cpuinfo_max_freq") or 0) // 1000 or None
        ),
        "turbo": next((read_text(file) == on for file, on in turbo if file.exists()), None),
    }


def list_affinity(root: Path = ROOT) -> list[int]:
    """CPUs the calling thread may run on, ascending."""
    allowed = set(
        cpu_list(root / "proc/thread-self/status", r"^Cpus_allowed_list:\s*(.*)")
    ) or os.sched_getaffinity(0)
    return sorted(allowed & set(cpu_list(root / CPUS / "online")) or allowed)


@contextmanager
def keep_affinity() -> Iterator[None]:
    """Restore at the end the CPUs that this thread may use."""
    allowed = os.sched_getaffinity(0)
    try:
        yield
    finally:
        if os.sched_getaffinity(0) != allowed:
            with suppress(OSError):  # CPUs may have gone offline
                os.sched_setaffinity(0, allowed)


def core_of(cpu: int, root: Path = ROOT) -> int:
    """The first thread of the physical core that ``cpu`` is one of; itself where that is not
    known."""
    return min(cpu_list(root / CPUS / f"cpu{cpu}/topology/thread_siblings_list"), default=cpu)


def by_core(cpus: Iterable[int], root: Path = ROOT) -> list[list[int]]:
    """``cpus`` grouped by the physical core they are threads of, in their order; of unknown
    siblings, a core each."""
    cores: dict[tuple[int, ...], list[int]] = {}
    for cpu in cpus:
        siblings = cpu_list(root / CPUS / f"cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(tuple(siblings) or (cpu,), []).append(cpu)
    return list(cores.values())
