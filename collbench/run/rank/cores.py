"""Which CPUs a rank keeps to: cores of its own where a machine has enough, and where its work is on
a GPU those that are nearest to that."""

from __future__ import annotations

import functools
import os
from collections import Counter, defaultdict
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from collbench.machine import cpus, environment
from collbench.run.rank.control import Control

GPU_CORES = 4  # of a GPU's rank: itself, two threads of NCCL's for a network, and torch's watchdog


class Cores(NamedTuple):
    """Whether any machine has more ranks than cores for them (``oversubscribed``), or fewer than
    threads of theirs that must run (``cramped``); and whether any rank's launcher has bound it to
    fewer cores than GPU_CORES (``bound``)."""

    oversubscribed: bool
    cramped: bool
    bound: bool = False


@functools.cache
def _list_given_cpus() -> list[int]:
    """The CPUs that this process might use when it was first asked: before it was bound here."""
    return cpus.list_affinity()


def is_bound_to_few() -> bool:
    """Whether this process was given fewer cores than a GPU's rank needs, and fewer than its
    machine has."""
    given = len(cpus.by_core(_list_given_cpus()))
    return given < min(GPU_CORES, cpus.machine_core_count())


def settle_cores(rank: int, control: Control, threads: int, bind: bool) -> Cores:
    """Give each rank of a machine cores of its own if there are enough for the ``threads`` of each
    that must run and nobody has bound it yet: one bound to a single core waits there for the
    library's thread, up to a timer tick, while other cores are idle.

    Containers of one kernel share its cores, whatever hosts they take themselves for.
    """
    cores = cpus.usable_cpus()[: cpus.core_count()]
    own_host = environment.boot_id() or environment.host_name()
    # ranks may be bound each to a thread of the same core
    physical = sorted(map(cpus.core_of, cores))
    collected = control.collect([own_host, cores, is_bound_to_few(), physical])
    shared: dict[str, set[int]] = defaultdict(set)  # by machine
    shared_physical: dict[str, set[int]] = defaultdict(set)
    for machine, rank_cores, _, rank_physical in collected:
        shared[machine] |= {*rank_cores}
        shared_physical[machine] |= {*rank_physical}
    counts = Counter(machine for machine, *_ in collected)
    share = len(cores) // counts[own_host]
    if bind and threads <= share and len(shared[own_host]) == len(cores):
        at = sum(machine == own_host for machine, *_ in collected[:rank]) * share
        os.sched_setaffinity(0, cores[at : at + share])
    ranks = [(counts[machine], len(shared_physical[machine])) for machine in counts]
    return Cores(
        oversubscribed=any(count > core_count for count, core_count in ranks),
        cramped=any(count * threads > core_count for count, core_count in ranks),
        bound=any(is_bound for _, _, is_bound, _ in collected),
    )


def near_gpu(control: Control, near: Collection[int]) -> None:
    """Keep this rank to the CPUs ``near`` its GPU, of those that it may use (all ranks call this
    together): to whole cores of its own where ranks near the same CPUs get four or more each, else
    to all of them, which these ranks share. From a farther CPU each launch takes microseconds more.

    Ranks that their launcher has bound, each to CPUs of its own, are left as they are, as are those
    that may use none of the CPUs near their GPU.
    """
    allowed = cpus.list_affinity()
    near_cpus = sorted({*near} & {*allowed})
    own_host = environment.boot_id() or environment.host_name()
    everyone = control.collect([own_host, allowed, near_cpus])
    bound = any(machine == own_host and may_use != allowed for machine, may_use, _ in everyone)
    if bound or not near_cpus:
        return
    sharers = [
        rank for rank, answer in enumerate(everyone) if answer == [own_host, allowed, near_cpus]
    ]
    cores = cpus.by_core(near_cpus)
    share = len(cores) // len(sharers)
    if share >= GPU_CORES:
        at = sharers.index(control.rank) * share
        near_cpus = [cpu for core in cores[at : at + share] for cpu in core]
    with suppress(OSError):  # a container may forbid it; the record says where the rank was
        os.sched_setaffinity(0, near_cpus)
