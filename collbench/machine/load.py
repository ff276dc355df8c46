"""CPU time that processes other than a run's own use on its machines: numbers scatter with it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil

from collbench.machine import environment, sysfs
from collbench.machine.sysfs import read_text

LOOK_SECONDS = 0.2  # of a look while nothing of ours runs: 20 of the kernel's ticks for each CPU

# A machine is busy from a quarter of a CPU on, which a desktop or monitoring agents stay below, and
# of more CPUs from a tenth of them: the scheduler long finds others' processes a free one there.
LEAST, SHARE = 0.25, 0.1


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CPUs that others kept busy, on average, of the ``cpus`` that the run's own processes may use.
    A raw difference of two of the kernel's counts, which in short times may be a little below 0."""

    others: float
    cpus: int

    @property
    def busy(self) -> bool:
        """Whether others use so much of the CPUs that times suffer."""
        return self.others > max(LEAST, SHARE * self.cpus)


def cpu_seconds(cpus: Collection[int], root: Path = sysfs.ROOT) -> float:
    """Seconds that these CPUs have worked since they were started: for any process or the kernel,
    and for other virtual machines (stolen); without interrupts, which a run's own messages raise.
    nan where the kernel does not tell."""
    return _sum_columns(cpus, (*range(1, 4), 8), root) or math.nan  # user nice system, steal


def delayed_seconds(root: Path = sysfs.ROOT) -> float:
    """Seconds for which this thread was ready to run and had no CPU; nan where nobody can tell."""
    return float((read_text(root / "proc/thread-self/schedstat") or "0 nan").split()[1]) / 1e9


def _sum_columns(cpus: Collection[int], columns: Collection[int], root: Path) -> float:
    """The sum of these columns of the kernel's table; nan where it has none of these CPUs."""
    names = {f"cpu{cpu}" for cpu in cpus}
    ticks = [
        sum(int(fields[column]) for column in columns if column < len(fields))
        for line in (read_text(root / "proc/stat") or "").splitlines()
        if (fields := line.split()) and fields[0] in names
    ]
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else math.nan


def children_seconds(root: Path = sysfs.ROOT) -> float:
    """Seconds that the processes which this one has started have worked, and all below them that
    have ended."""
    ended = os.times()
    seconds = ended.children_user + ended.children_system
    for path in (root / "proc/self/task").glob("*/children"):
        for pid in (read_text(path) or "").split():
            with suppress(psutil.Error):  # it has ended
                times = psutil.Process(int(pid)).cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def measure_load(seconds: float = LOOK_SECONDS, root: Path = sysfs.ROOT) -> dict[str, Load]:
    """Others' load on this host, while this process waits; empty where it cannot be told."""
    others = Others(0, lambda value: [value], root)
    time.sleep(seconds)
    return others.since()


class Others:
    """Others' load on all machines of a group of processes, which all make one and call ``since``
    together. ``rank`` is this one's place in what ``collect`` gathers from all. To be made before
    processes bind themselves to cores of their own.

    Containers of one kernel are one machine, whatever hosts they take themselves for. Our own are
    the group's processes with all their threads, those that they have started, and those that they
    descend from: what launched them, and shows how far they are.
    """

    def __init__(
        self,
        rank: int,
        collect: Callable[[Any], list[Any]],
        root: Path = sysfs.ROOT,
    ) -> None:
        self._collect, self._root = collect, root
        cpus_here = sorted(os.sched_getaffinity(0))
        answers = collect(
            [
                environment.boot_id(root) or environment.host_name(),
                environment.host_name(),
                cpus_here,
            ]
        )
        self._machines = [machine for machine, _, _ in answers]
        self._cpus: dict[str, set[int]] = {}
        self._hosts: dict[str, str] = {}
        for machine, host, cpus in answers:
            self._cpus.setdefault(machine, set()).update(cpus)
            self._hosts.setdefault(machine, host)
        self._machine = self._machines[rank]
        self._leads = self._machines.index(self._machine) == rank
        self._parents = psutil.Process().parents() if self._leads else []
        self._before = self._now()
        self._paused = self._before

    def pause(self) -> None:
        """Count nothing that is used from here on, until ``resume``."""
        self._paused = self._now()

    def resume(self) -> None:
        """Count again what is used, as before ``pause``."""
        now = zip(self._before, self._paused, self._now(), strict=True)
        wall, busy, own_seconds = (before + after - paused for before, paused, after in now)
        self._before = wall, busy, own_seconds

    def since(self) -> dict[str, Load]:
        """Load by host since this was last asked, or since there is this object."""
        before, self._before = self._before, self._now()
        wall, all_of_them, own_seconds = (b - a for a, b in zip(before, self._before, strict=True))
        rank_load = [wall, None if math.isnan(all_of_them) else all_of_them, own_seconds]
        rank_loads = list(zip(self._machines, self._collect(rank_load), strict=True))
        loads = {}
        for machine, host in self._hosts.items():
            on_machine = [values for machine_of, values in rank_loads if machine_of == machine]
            (wall, busy, _), ours = on_machine[0], sum(rank_own for _, _, rank_own in on_machine)
            if busy is not None:
                loads[host] = Load(round((busy - ours) / wall, 3), len(self._cpus[machine]))
        return loads

    def stolen(self) -> float:
        """Seconds so far for which the hypervisor gave a CPU of this machine to others, on average;
        nan at all but the machine's first rank, and where nobody can tell."""
        return (
            _sum_columns(self._cpus[self._machine], (8,), self._root)
            / len(self._cpus[self._machine])
            if self._leads
            else math.nan
        )

    def _now(self) -> tuple[float, float, float]:
        """Seconds: the clock, what all the machine's CPUs have worked (at the first of its ranks),
        and what this process has, those it has started and those it descends from."""
        own_seconds = time.process_time() + children_seconds(self._root)
        for parent in self._parents:
            with suppress(psutil.Error):  # it has ended, or belongs to another user
                times = parent.cpu_times()
                own_seconds += times.user + times.system
        cpus = self._cpus[self._machine] if self._leads else ()
        return time.perf_counter(), cpu_seconds(cpus, self._root), own_seconds
