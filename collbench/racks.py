"""Which rack each host is in, as a file says: TOML or JSON with a table ``hosts`` from a host's name to its rack's.

[hosts]
node01 = "rack1"
node02 = "rack1"
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from collbench.errors import UsageError

MOST_BYTES = 4 << 20
HINT = 'a table [hosts] with lines such as node01 = "rack1", or the same as JSON'


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hosts: dict[str, str]


def read(path: Path, option: str = "--topology") -> dict[str, str]:
    """Raises UsageError where the file is none, too large, or says something else."""
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it is no file, or one of more than {MOST_BYTES >> 20} MiB")
        text = path.read_text(encoding="utf-8")
        found = msgspec.convert(msgspec.json.decode(text) if path.suffix == ".json" else tomllib.loads(text), _File)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as e:
        raise UsageError(f"{option}: cannot read {path}: {e}", HINT) from e
    if not found.hosts or not all(name.strip() and name.isprintable() for pair in found.hosts.items() for name in pair):
        raise UsageError(f"{option}: {path} names no hosts, or one without a name", HINT)
    return found.hosts


def missing(racks: dict[str, str], hosts: Iterable[str]) -> list[str]:
    """Hosts of which the file says nothing; without a file none is missed."""
    return sorted(set(hosts) - racks.keys()) if racks else []
