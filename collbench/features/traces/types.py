"""What every reader makes of a trace: the calls of each rank in the order of its program, and what
the trace has lost.

Times are nanoseconds since the epoch where ranks share a clock, else on a clock of the rank's own;
-1 is unknown. Sizes are bytes as everywhere in collbench: the whole of what an all_gather gives, a
reduce_scatter takes and an all_to_all exchanges, and one rank's buffer for the rest.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from collbench.features.training.step import WORLD, Whole

Known = Annotated[int, Meta(ge=-1, lt=1 << 62)]  # -1 is unknown
Interval = tuple[Known, Known]  # begin, end
HOST = ("gloo", "mpi")  # backends whose programs wait themselves, not a device's stream for them
OVERFLOWED = "its buffer kept the last calls only (TORCH_NCCL_TRACE_BUFFER_SIZE)"
SKIPPED = "only the last calls of so long a dump are read"
EARLIER = (OVERFLOWED, SKIPPED)  # why calls before all others are lost
FAKE_GPU = "recorded on a fake GPU, whose times mean nothing"
UNDESCRIBED = "undefined"  # torch's description of a group that was given none
STALE_NS = 3600 * 10**9  # between calls that ranks of one job, or of one operation, issue
State = Literal["", "scheduled", "started", "completed"]


class Call(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One call of one rank: a collective, a message, a wait, or computation.

    ``kind``, ``group``, ``nbytes``, ``dtype``, ``op``, ``root``, ``peer``, ``tag``, ``sends`` and
    ``phase`` are those of ``step.Op``; ``root`` and ``peer`` are places in the group. ``number``
    counts the calls of a group as the library did, or collbench's own recording from its begin on.
    The program ``issued`` a call; its data began to move and was there, or computation began and
    ended, at ``begins`` and ``ends``; ``length`` is how long that took where the trace does not
    tell when it was. A ``wait`` names the calls before it that it waited
    ``after``, by their places in the rank's list; a call that
    ``waits`` held up the program until it ended. ``state`` is what a recorder of a hung job says.
    ``ends`` of a message that was ``seen_late`` is when it was waited for, which may be long after.
    Computation has ``flops``, and bytes of memory that it ``touched``. What is called ``by_lists``
    of tensors may have blocks of unequal sizes, of which the trace tells the rank's own.
    """

    kind: str
    group: str = WORLD
    nbytes: Whole = 0
    dtype: str = "bfloat16"
    op: str = "none"
    root: int = -1
    peer: int = -1
    tag: Whole = 0
    sends: tuple[Whole, ...] = ()
    receives: tuple[Whole, ...] = ()
    number: Known = -1
    issued_ns: Known = -1
    begins_ns: Known = -1
    ends_ns: Known = -1
    length_ns: Known = -1
    after: tuple[Whole, ...] = ()
    waits: bool = False
    state: State = ""
    seen_late: bool = False
    by_lists: bool = False
    flops: float = 0
    touched: Whole = 0
    phase: str = ""
    source: str = ""

    @property
    def took_ns(self) -> int:
        """The time in ns in which the call's data moved or its computation took; -1 where the trace
        does not tell."""
        return self.ends_ns - self.begins_ns if self.is_placed else self.length_ns

    @property
    def is_placed(self) -> bool:
        """Whether the trace tells when that time was."""
        return 0 <= self.begins_ns <= self.ends_ns


class Lost(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Calls that a trace has but does not tell enough of, and why."""

    why: str
    calls: Whole = 0
    nbytes: Whole = 0


class RankTrace(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one rank did. ``groups`` are those it is in, by their name in the trace, with the ranks
    of their members in order; the group of all has the empty name. ``described`` are names that
    people gave them. ``steps`` are iterations that were marked, ``busy`` when the rank computed;
    where there are no times, ``marked`` are the iterations' first call and the one after their
    last; with both, ``marked`` has the calls of each of ``steps``. ``unnamed`` is when it
    communicated and the trace does not tell what. It has all calls that were issued ``until`` then:
    -1 where that is all there were, 0 where the job went on after it, or calls are lost. ``cut`` is
    where the file ends before its end. ``lost_numbers`` are those of lost calls by group, as far as
    they are told, -1 for a message. ``reached`` are the numbers of the last collectives of a
    group that were called, begun and completed. ``only_active``: calls that completed are not in
    it. ``fake``: the rank's GPU was a fake, whose times mean nothing. The recording is complete
    until ``complete_until_ns``, which may be before it was last written: nobody had seen the end of
    calls without one by then."""

    rank: Whole
    world: Whole
    calls: tuple[Call, ...] = ()
    groups: dict[str, tuple[Whole, ...]] = {}
    described: dict[str, str] = {}
    steps: tuple[Interval, ...] = ()
    busy: tuple[Interval, ...] = ()
    marked: tuple[Interval, ...] = ()
    lost: tuple[Lost, ...] = ()
    lost_numbers: dict[str, tuple[Known, ...]] = {}
    host: str = ""
    backend: str = ""
    source: str = ""
    until: Known = -1
    unnamed: tuple[Interval, ...] = ()
    cut: str = ""
    reached: dict[str, tuple[Known, Known, Known]] = {}
    only_active: bool = False
    fake: bool = False
    complete_until_ns: Known = -1


class Unread(msgspec.Struct, frozen=True):
    """A file of a trace that is not used, why, and the rank that it is of, -1 where its name does
    not tell."""

    source: str
    why: str
    rank: int = -1


class Trace(msgspec.Struct, frozen=True):
    """What the files of one job say: of some or all of its ranks, in the order of their numbers.
    ``assumptions`` are what the format leaves open and was taken for granted. ``unread`` are files
    that are not used."""

    form: str
    ranks: tuple[RankTrace, ...]
    assumptions: tuple[str, ...] = ()
    unread: tuple[Unread, ...] = ()

    @property
    def fake(self) -> bool:
        """Whether any rank's GPU was a fake."""
        return any(rank.fake for rank in self.ranks)

    @property
    def world(self) -> int:
        """Ranks of the job, of which not all need be here."""
        worlds = [rank.world for rank in self.ranks]
        return max([*worlds, *(entry.rank + 1 for entry in self.unread)], default=0)
