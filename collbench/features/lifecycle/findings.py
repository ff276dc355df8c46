"""What is found in a life besides times: memory, and how ranks came to know of a loss."""

from __future__ import annotations

import msgspec


class PhaseFindings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A phase of a life: the bytes of memory that each rank took in it, of its process and of its
    GPU (of which none are listed on CPUs), and each rank's own time in ns."""

    resident: list[int] = []
    device: list[int] = []
    ranks_ns: list[int] = []
    parts_ns: dict[str, int] = {}  # of a process's start: what of it took how long


class RankLoss(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a rank came to know that another was killed: ``how`` is "error" (a call failed), "told"
    or "" (it never did). ns after the kill; None: never."""

    rank: int
    how: str = ""
    text: str = ""
    known_ns: int | None = None
    recovered_ns: int | None = None
    last: str = ""  # what it did last
    trouble: str = ""  # why it did not come back


class LossFindings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A loss: how long after all had loaded their library the victim was killed, in ns, what it did
    then, and what became of the others."""

    victim: int
    at_ns: int
    doing: str = ""
    ranks: list[RankLoss] = []
