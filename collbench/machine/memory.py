"""Memory that this process may still take, and what limits it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from collbench.machine.sysfs import ROOT, list_cgroups, read_integer, read_kib

# limit, what is used of it, what of that is page cache the kernel can drop (a line of memory.stat)
CGROUP_MEMORY = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.high", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def memory_limit(root: Path = ROOT) -> tuple[int, str]:
    """Bytes this process tree may still take without swapping or being killed, less a reserve, and
    what limits it."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [
        (
            read_kib(root / "proc/meminfo", "MemAvailable") or free,
            "memory available on this machine",
        )
    ]
    limits += [(free, name) for _, free, name in list_memory_limits(root)]
    space = read_integer(root / "proc/self/limits", r"^Max address space\s+(\d+)")
    if space is not None:
        limits.append(
            (
                space - (read_kib(root / "proc/self/status", "VmSize") or 0),
                "address space limit (ulimit -v)",
            )
        )
    bytes_left, why = min(limits)
    return max(0, bytes_left - max(512 << 20, bytes_left * 3 // 100)), why


def list_memory_limits(root: Path) -> Iterator[tuple[int, int, str]]:
    """(limit, bytes left under it, name) of every memory limit that holds for this process, its own
    and inherited."""
    for group, (limit_file, used_file, cache) in itertools.product(
        list_cgroups("memory", root), CGROUP_MEMORY
    ):
        limit, used = read_integer(group / limit_file), read_integer(group / used_file) or 0
        if (
            limit is not None and limit < 1 << 60
        ):  # version 1 writes "no limit" as the largest multiple of a page
            droppable = min(used, read_integer(group / "memory.stat", rf"^{cache} (\d+)") or 0)
            yield limit, limit - used + droppable, f"{limit_file} of /{group.relative_to(root)}"
