from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from collbench.core import groups, splits
from collbench.core.collectives import (
    COLLECTIVE,
    COLLECTIVES,
    UNKNOWN,
    Collective,
    RowTable,
    find_row_table,
    reading_place,
)
from collbench.core.dtypes import DTYPES, OPS, DType
from collbench.core.errors import UsageError

if TYPE_CHECKING:
    import numpy as np


Mode = Literal["isolated", "streaming", "graph", "host"]

MODES: tuple[Mode, ...] = ("isolated", "streaming", "graph", "host")

# in which -n is the number of calls that make a sample, and time decides how many samples there are
BATCH_MODES: frozenset[Mode] = frozenset({"streaming", "graph"})

MOST_RANKS = 1 << 20

Setting = tuple[tuple[str, str], ...]  # of the environment

# What a file may say, checked as it is read.
Whole = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]

Positive = Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]

Ranks = Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One point of a sweep: ``n`` ranks are group ``group`` of the ``of`` that ``groups`` makes of
    a world, all measured at once, each a case with ranks and roots of its own. Raises ValueError
    for names that are none of ours, as a file of another version or hand may have."""

    collective: str  # or a row of the table of its kind
    backend: str
    n: Ranks
    nbytes: Whole  # size asked for; of a subject: what the busiest rank sends
    algorithm: str = "native"
    dtype: str = "float"
    op: str = "none"  # none: nothing is reduced
    root: int = -1  # -1: there is none; both as nccl-tests prints them
    in_place: bool = False
    mode: Mode = "isolated"  # cadence of calls
    env: Setting = ()
    splits: str = ""  # how blocks of an all_to_allv differ (splits.py)
    align: Positive = 1  # bytes to which blocks are rounded
    cycle: Whole = 0  # repetition, from 0
    groups: str = ""  # rule that makes them (groups.py)
    group: Whole = 0  # number of this one
    of: Ranks = 1  # groups in all
    arrival: str = ""  # how ranks come apart that the mode has aligned (arrivals.py)
    # what a case of another kind is about, as a training step; "step" in files
    subject: Annotated[str, msgspec.Meta(max_length=200)] = msgspec.field(name="step", default="")
    background: Annotated[str, msgspec.Meta(max_length=80)] = ""  # what ranks do besides

    def __post_init__(self) -> None:
        if (
            not self._has_row
            or self.dtype not in DTYPES
            or (self.op != "none" and self.op not in OPS)
        ):
            names = " ".join(repr(name[:40]) for name in (self.collective, self.dtype, self.op))
            raise ValueError(f"no collective, datatype and reduction {names}")
        if (
            self.group >= self.of
            or self.n * self.of > MOST_RANKS
            or (self.groups and len(groups.list_members(self.groups, self.world)) != self.of)
        ):
            raise ValueError(
                f"group {self.group} of {self.of} is none of {self.world} ranks by"
                f" {self.groups[:40]!r}"
            )

    @property
    def _has_row(self) -> bool:
        if not self.subject:
            return self.collective in COLLECTIVES
        return self.table is not UNKNOWN or self.collective.isidentifier()

    @property
    def row(self) -> Collective:
        """The table's row for this collective, or for the part of its subject."""
        if not self.subject:
            return COLLECTIVES[self.collective]
        return self.table.find_row(self.collective)

    @property
    def table(self) -> RowTable:
        """The table of rows that cases of this kind have."""
        return find_row_table(self.collective) if self.subject else COLLECTIVE

    @property
    def kind(self) -> str:
        """The kind of case, by the name of its table of rows: "collective", or a feature's."""
        return self.table.kind

    @property
    def type(self) -> DType:
        """The datatype of its buffers."""
        return DTYPES[self.dtype]

    @property
    def count(self) -> int:
        """Elements named in the library call: per rank for the divided collectives, else the whole
        buffer."""
        elements = self.nbytes // self.type.size
        if not self.row.total:
            return elements
        return elements // self.n // self.block_step * self.block_step

    @property
    def block_step(self) -> int:
        """Elements that the blocks of ranks are rounded down to a multiple of (``align``); 1 where
        there are no such blocks."""
        return max(1, self.align // self.type.size) if self.row.has_equal_blocks else 1

    @property
    def matrix(self) -> np.ndarray:
        """Elements that each rank sends to each, where blocks are uneven (``splits``)."""
        return splits.split_matrix(self.splits, self.n, self.nbytes, self.type.size)

    @property
    def counts(self) -> tuple[int, int]:
        """Largest number of elements any rank sends and receives."""
        if self.splits:
            return splits.measure_extent(self.splits, self.n, self.nbytes, self.type.size)[:2]
        return self.row.counts(self.n, self.count)

    @property
    def size(self) -> int:
        """Bytes in the larger buffer: the ``size`` column, and what algbw is computed from (but see
        ``moved``). Where the file that says how it is split cannot be read, what was asked for."""
        try:
            return max(self.counts) * self.type.size
        except UsageError:
            return self.nbytes

    @property
    def moved(self) -> int:
        """The S of busbw = factor * S / t: the size, or for all_to_allv the bytes through the
        busiest port."""
        if not self.splits:
            return self.size
        return (
            splits.measure_extent(self.splits, self.n, self.nbytes, self.type.size)[2]
            * self.type.size
        )

    @property
    def world(self) -> int:
        """Ranks of all groups, and those in none."""
        return groups.count_placed_ranks(self.groups) or self.n * self.of

    @property
    def members(self) -> Sequence[int]:
        """The group's ranks, as the world counts them."""
        return groups.list_members(self.groups, self.world)[self.group]

    @property
    def pair(self) -> tuple[int, int]:
        """The two ranks of a group of two, as the world counts them; the root, if there is one,
        first."""
        a, b = self.members
        return (b, a) if self.root == 1 else (a, b)

    @property
    def siblings(self) -> list[Case]:
        """The cases that one job measures, by their ``index``: of all groups, or of all rows of a
        table that is measured together. The leader, which stands for them, is last."""
        varying: list[dict[str, Any]] = [{"group": group} for group in range(self.of)]
        if self.table.together:
            varying = [{"collective": row} for row in self.table.rows]
        return [msgspec.structs.replace(self, **fields) for fields in reversed(varying)]

    @property
    def leader(self) -> Case:
        """The sibling that stands for all: of the first group, or of the first row."""
        if self.table.together:
            return msgspec.structs.replace(self, collective=next(iter(self.table.rows)))
        return msgspec.structs.replace(self, group=0)

    @property
    def index(self) -> int:
        """The case's index among its siblings, 0 for the leader."""
        return [*self.table.rows].index(self.collective) if self.table.together else self.group

    @property
    def is_leader(self) -> bool:
        """Whether this case stands for all its siblings, which are measured together."""
        return self.index == 0

    @property
    def is_part(self) -> bool:
        """Whether the case is one of several rows of a table that are measured together, but not
        the leader."""
        return self.table.together and self.index > 0

    @property
    def key(self) -> str:
        """The key by which two runs are joined: everything that says what was measured, nothing of
        how it came out."""
        parts = [
            self.collective,
            self.subject,
            self.label,
            f"n{self.n}",
            str(self.nbytes),
            self.dtype,
            self.op,
            f"r{self.root}",
        ]
        parts += [
            "in" if self.in_place else "out",
            self.mode,
            self.splits,
            *(f"{k}={v}" for k, v in self.env),
        ]
        parts += [f"{self.groups} {self.group}"] if self.groups else []
        parts += [self.arrival, self.background and f"beside {self.background}"]
        parts += [f"align {self.align}"] if self.block_step > 1 else []
        return "/".join(p for p in parts if p)

    @property
    def values_by_key(self) -> dict[str, Any]:
        """The case's fields by the keys that files and tables for programs have."""
        return dict(zip(KEYS, msgspec.structs.astuple(self), strict=True))

    @property
    def reading_order(self) -> tuple[Any, ...]:
        """The key by which tables for programs are sorted: the collective, who ran it and how, the
        size."""
        return (
            reading_place(self.collective),
            *(
                self.subject,
                self.index,
                self.label,
                self.n,
                self.mode,
                self.env,
                self.dtype,
                self.op,
            ),
            *(self.root, self.splits, self.groups, self.group, self.background, self.arrival),
            *(self.nbytes, self.in_place, self.cycle),
        )

    @property
    def label(self) -> str:
        """Implementation: ``gloo`` for a library's own choice, ``ring@gloo`` for a reference
        algorithm."""
        return self.backend if self.algorithm == "native" else f"{self.algorithm}@{self.backend}"


KEYS = tuple(field.encode_name for field in msgspec.structs.fields(Case))


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The busbw in GB/s that is wanted of every row of a ``size`` asked for, None being the largest
    of the sweep; or of the ``average`` over all rows of a table, as nccl-tests has it."""

    busbw: Annotated[float, msgspec.Meta(gt=0, lt=1e9)]
    size: Whole | None = None
    average: bool = False


class Skip(msgspec.Struct, frozen=True):
    """A combination that will not run, and why, in words a person can act on."""

    case: Case
    reason: str
