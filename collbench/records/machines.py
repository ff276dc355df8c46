"""The name of the machine that a run was measured on."""

from __future__ import annotations

from collbench.machine.sysfs import hash_identity
from collbench.records.types import RunFile


def name_machine(file: RunFile) -> str:
    """The name of the machine of a run: its host's name, or the number of hosts and a digest of
    their names."""
    hosts = sorted({rank.host for world in file.worlds for rank in world.ranks})
    if len(hosts) > 1:
        return f"{len(hosts)} hosts {hash_identity(' '.join(hosts))[:8]}"
    return hosts[0] if hosts else str(file.run.environment.get("host") or "unknown")
