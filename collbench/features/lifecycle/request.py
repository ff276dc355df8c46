"""What is asked of a communicator's life, and of a rank's being killed."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from collbench.core.text import format_count, format_size
from collbench.features.lifecycle import KIND, LOSS_KIND
from collbench.suite.case import Ranks
from collbench.suite.faults import parse_faults

TOLD = "told"  # as files have it; people read and write NOTIFIED
NOTIFIED = "notified"
WAYS = ("rebuild", NOTIFIED, "shrink")
MAX_KILL_SECONDS = 3600  # after all have loaded their library
DEFAULT_CALLS, DEFAULT_LIMIT, WINDOW = 20, 30.0, 2.0
LATE_HINT = "late:RANK:50ms delays a rank's init; --kill RANK kills one"  # where faults are planted
SILENT = "silence"  # with which the reason of a failure begins that must not pass unseen

# collectives that a life can call
CalledCollective = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]
Way = Literal["rebuild", "told", "shrink"]
Count = Annotated[int, Meta(ge=1, le=1024)]
Bytes = Annotated[int, Meta(ge=4, le=1 << 30)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]


def refuse_faults(inject: str) -> str:
    """The reason why a life does not plant the faults of --inject, or "". Raises UsageError."""
    other = next((fault.kind for fault in parse_faults(inject) if fault.kind != "late"), "")
    return f"--inject {other}: lifecycle plants only late faults" if other else ""


class Life(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=KIND):
    """The life of a communicator of ``world`` ranks: its first call and ``calls`` more of a
    collective, ``groups`` further groups, its end. A rank that has not ended after ``limit``
    seconds hangs. A suite's subject."""

    world: Ranks
    groups: Count = 1
    collective: CalledCollective = "all_reduce"
    nbytes: Bytes = 1 << 20
    calls: Count = DEFAULT_CALLS
    limit: Seconds = DEFAULT_LIMIT

    @property
    def title(self) -> str:
        """What it is about, in words."""
        return (
            f"life with {format_count(self.groups, 'new group')}, {self.collective} of"
            f" {_describe_size(self.nbytes)}, {format_count(self.calls, 'call')}"
            f"{_describe_limit(self.limit)}"
        )


class Loss(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=LOSS_KIND):
    """The loss of rank ``victim`` of ``world``: it is killed ``at`` so many seconds after all
    have loaded their library, at random within WINDOW where that is negative. The others come back
    by ``way``, within ``limit`` seconds. A suite's subject."""

    world: Ranks
    victim: Annotated[int, Meta(ge=0)] = 0
    at: Annotated[float, Meta(ge=-1, le=MAX_KILL_SECONDS)] = -1.0
    way: Way = "rebuild"
    nbytes: Bytes = 1 << 20
    limit: Seconds = DEFAULT_LIMIT

    @property
    def way_name(self) -> str:
        """The way as people write it."""
        return NOTIFIED if self.way == TOLD else self.way

    @property
    def title(self) -> str:
        """What it is about, in words, by which files name it."""
        moment = "at random" if self.at < 0 else f"after {self.at:.12g} s"
        return (
            f"rank {self.victim} killed {moment}, {self.way}, all_reduce of"
            f" {_describe_size(self.nbytes)}{_describe_limit(self.limit)}"
        )


def _describe_size(nbytes: int) -> str:
    """The size in words, in bytes where the words would be those of another size, too."""
    short = format_size(nbytes)
    number, unit = short.split()
    is_exact = float(number) * 1024 ** ("B", "KiB", "MiB", "GiB").index(unit) == nbytes
    return short if is_exact else f"{nbytes} B"


def _describe_limit(limit: float) -> str:
    return f", within {limit:.12g} s" if limit != DEFAULT_LIMIT else ""
