"""What a process whose life is measured is told, and what it says of itself."""

from __future__ import annotations

import msgspec


class Instructions(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of a life is to do. Its events go to ``folder``. ``rank`` is -1 where the
    launcher says it; ``parent`` the process it is to end with, 0 for none. ``way`` is empty for a
    life; ``limit`` and ``patience`` are seconds: of all of it, and of a library's own waiting."""

    rank: int
    world: int
    local_rank: int
    backend: str
    folder: str
    parent: int
    address: tuple[str, int]  # of the store where ranks meet
    one_clock: bool  # all ranks read one clock, being on one host
    collective: str = "all_reduce"
    nbytes: int = 1 << 20
    calls: int = 20
    groups: int = 1
    delay: float = 0.0  # planted in the making of the communicator, s
    way: str = ""
    limit: float = 30.0
    patience: float = 10.0
    imports: tuple[str, ...] = ()


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened in the process, at ``ns`` of the host's monotonic clock; a phase
    from ``begin`` on. Memory is in bytes, before and after."""

    name: str
    ns: int
    phase: str = ""
    begin: int = 0
    resident: tuple[int, int] = (0, 0)
    device: tuple[int, int] = (0, 0)
    how: str = ""
    text: str = ""
    wrong: int = 0
    verified: int = 0
    pid: int = 0
