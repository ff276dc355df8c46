"""Calls as other tools name and count them, made collbench's: kinds, datatypes, sizes, splits,
groups; and what of them is lost.

Tools of PyTorch count elements that a call takes in and gives out: an all_gather's input and a
reduce_scatter's output are one rank's part, as are a gather's input and a scatter's output.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.core.text import printable_text
from collbench.features.traces.types import Call, Interval, Lost, RankTrace
from collbench.features.training.step import MOST_RANKS, POINT_TO_POINT, WORLD

# by their letters alone, in lower case: PyTorch's and NCCL's spellings
KINDS = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgatherintotensor": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "allgathercoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_allv",
    "alltoallbase": "all_to_allv",
    "alltoallsingle": "all_to_allv",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "allreducebarrier": "barrier",
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
    "recvanysource": "recv",
}
# torch's names, of types and of C++, in lower case and without c10::
TYPES = {
    "float": "float",
    "half": "half",
    "bfloat16": "bfloat16",
    "double": "double",
    "long": "int64",
    "long int": "int64",
    "int": "int32",
    "byte": "uint8",
    "unsigned char": "uint8",
    "char": "int8",
    "signed char": "int8",
    "bool": "uint8",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    **{dtype.torch: dtype.name for dtype in DTYPES.values()},
}
LISTS = ("allgather", "reducescatter")  # of tensors that may be of unequal sizes
SUMS = "reductions are taken for sums: the trace does not say which they are"
EVEN = "an all_to_all without splits is taken for an even one, unless ranks differ in its size"
NO_RANK = "the file does not name its rank: taken for rank 0"
UNREADABLE = "calls have a value that cannot be read"
MOST = 1 << 62
MOST_LOSSES = 100  # of reasons that are told
MOST_CALLS = 2_000_000  # of a rank
MOST_MEMBERS = 1 << 23  # of all groups


class Said(NamedTuple):
    """A call as a tool tells of it: elements that it takes in (``given``) and gives out (``got``),
    blocks of an exchange by member, members of the group, and where that stands (``at``)."""

    name: str
    dtype: str
    given: int
    got: int
    at: str
    group: str = WORLD
    n: int = 0
    sends: tuple[int, ...] | None = ()  # None where their list is cut
    receives: tuple[int, ...] | None = ()
    root: int = -1
    peer: int = -1


def kind_of(name: str) -> str:
    """collbench's kind of an operation that a tool names so; "" where there is none."""
    return KINDS.get("".join(c for c in name.lower() if c.isalpha()), "")


def is_by_lists(name: str) -> bool:
    """Whether an operation that a tool names so has a list of tensors, a block each."""
    return "".join(c for c in name.lower() if c.isalpha()) in LISTS


def type_of(name: str) -> str:
    """collbench's datatype that a tool names so; "" where there is none."""
    return TYPES.get(name.lower().removeprefix("c10::").removeprefix("torch."), "")


class Calls:
    """What is read of one file, call by call; then a rank's trace."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Call] = []
        self.groups: dict[str, tuple[int, ...]] = {}
        self.described: dict[str, str] = {}
        self.assumptions: dict[str, None] = {}
        self._lost: dict[str, Lost] = {}
        self._lost_numbers: dict[str, list[int]] = {}
        self._members = 0

    def add(self, call: Said, **fields: object) -> int:
        """Add a call, or note that it is lost where it cannot be interpreted. Returns its index, -1
        for a lost one."""
        kind, dtype = kind_of(call.name), type_of(call.dtype)
        reduces = kind in COLLECTIVES and COLLECTIVES[kind].reduces
        if not dtype and not reduces and "float8" in call.dtype.lower():
            dtype = "uint8"  # which moves the same bytes
        if not kind or not (dtype or kind == "barrier"):
            what = f"operation '{call.name}'" if not kind else f"datatype '{call.dtype}'"
            size = DTYPES[dtype].size if dtype else 1
            return self.lose(f"{what} is unknown", call.at, max(call.given, call.got) * size)
        size = DTYPES[dtype or "uint8"].size
        n = call.n or len(self.groups.get(call.group, ()))
        try:
            fields_of_call = _interpret_call(kind, call, n, size)
        except ValueError as e:
            return self.lose(f"{kind}: {e}", call.at, max(call.given, call.got) * size)
        if fields_of_call["kind"] == "all_to_all":
            self.assumptions[EVEN] = None
        if reduces:
            fields_of_call["op"] = "sum"
            self.assumptions[SUMS] = None
        fields_of_call |= {"group": call.group, "dtype": dtype or "uint8", "source": call.at}
        return self.append(Call(**(fields_of_call | fields)))  # type: ignore[arg-type]

    def group(self, name: str, ranks: Sequence[int], described: str = "") -> None:
        """The members of a group, in order. Raises UsageError where groups have too many."""
        self._members += len(ranks)
        if self._members > MOST_MEMBERS or len(self.groups) > MOST_RANKS:
            raise UsageError(
                f"{self.path}: its groups have too many members", "check that it is a trace"
            )
        self.groups[name] = tuple(ranks)
        self.described[name] = described

    def append(self, call: Call) -> int:
        """Add a call and return its index. Raises UsageError beyond MOST_CALLS calls."""
        if len(self.entries) >= MOST_CALLS:
            raise UsageError(f"{self.path}: more than {MOST_CALLS:,} calls", "take fewer steps")
        self.entries.append(call)
        return len(self.entries) - 1

    def lose(self, why: str, at: str = "", nbytes: int = 0, calls: int = 1) -> int:
        """Note that ``calls`` calls of ``nbytes`` are lost; losses are counted by the reason, with
        the place of the first. Returns -1."""
        why = printable_text(why)[:200]
        if why not in self._lost and len(self._lost) >= MOST_LOSSES:
            why = "for further reasons"
        before = self._lost.get(why, Lost(f"{why} ({self.path.name}: {at})" if at else why))
        total = min(before.nbytes + nbytes, MOST - 1)
        self._lost[why] = Lost(before.why, before.calls + calls, total)
        return -1

    def locate_lost(self, group: str, number: int, is_message: bool) -> None:
        """Note which call of a group a lost one is, where its number is told, or that it is a
        message."""
        if is_message or number >= 0:
            own = self._lost_numbers.setdefault(group, [])
            own.append(-1 if is_message else number)

    @property
    def empty(self) -> bool:
        """Whether nothing was there, or lost."""
        return not self.entries and not self._lost

    def name_world(self, name: str) -> None:
        """Gives a group that is there, that of all, the empty name."""
        self.groups[WORLD] = self.groups.pop(name)
        self.described[WORLD] = self.described.pop(name, "")

    def trace(
        self,
        rank: int,
        world: int = 0,
        steps: Sequence[Interval] = (),
        busy: Sequence[Interval] = (),
        marked: Sequence[Interval] = (),
        backend: str = "",
    ) -> RankTrace:
        """The rank's trace; its groups are those that it is in. Raises UsageError."""
        if rank < 0:
            rank = 0
            self.assumptions[NO_RANK] = None
        members = [max(ranks) for ranks in self.groups.values() if ranks]
        world = max(world, rank + 1, 1 + max(members, default=-1))
        if world > MOST_RANKS:
            raise UsageError(
                f"{self.path}: {world:,} ranks are too many", f"take at most {MOST_RANKS:,} ranks"
            )
        self.groups = {name: ranks for name, ranks in self.groups.items() if rank in ranks}
        moved, dropped = self._drop_unknown()
        return RankTrace(
            rank=rank,
            world=world,
            calls=tuple(self.entries),
            groups=self.groups,
            described={
                name: printable_text(description)[:200]
                for name, description in self.described.items()
                if description and name in self.groups
            },
            steps=tuple(steps),
            busy=tuple(busy),
            marked=tuple((moved[first], moved[end]) for first, end in marked),
            lost=tuple(self._lost.values()),
            lost_numbers={group: tuple(own) for group, own in self._lost_numbers.items()},
            source=str(self.path),
            unnamed=tuple((call.begins_ns, call.ends_ns) for call in dropped if call.is_placed),
            backend=backend,
        )

    def _drop_unknown(self) -> tuple[list[int], list[Call]]:
        """Loses the calls of groups of which the rank is not known to be one, but of that of all,
        and waits for them: how many are left before each place, and the calls that are lost."""
        unknown = {call.group for call in self.entries} - {WORLD, *self.groups}
        if not unknown:
            return [*range(len(self.entries) + 1)], []
        places: dict[int, int] = {}
        calls: list[Call] = []
        dropped: list[Call] = []
        moved: list[int] = []
        for index, call in enumerate(self.entries):
            moved.append(len(calls))
            after = tuple(places[before] for before in call.after if before in places)
            if call.group in unknown:
                dropped.append(call)
                why = f"the file does not say that the rank is in group '{call.group[:40]}'"
                self.lose(why, call.source, call.nbytes)
                self.locate_lost(call.group, call.number, call.kind in POINT_TO_POINT)
            elif call.kind != "wait" or after or not call.after:
                places[index] = len(calls)
                calls.append(replace(call, after=after))
        self.entries = calls
        return [*moved, len(calls)], dropped


def _interpret_call(kind: str, call: Said, n: int, size: int) -> dict[str, object]:
    """Kind, size and members that a call as it is told means. Raises ValueError for what it does
    not tell, or what cannot be."""
    given, got = call.given, call.got
    if kind == "barrier":
        return {"kind": kind}
    if kind in POINT_TO_POINT:
        return {"kind": kind, "nbytes": _refuse_large(max(given, got) * size), "peer": call.peer}
    if kind.startswith("all_to"):
        return _interpret_exchange(call, n, size)
    part, total = (given, got) if kind in ("all_gather", "gather") else (got, given)
    if kind in WHOLES:
        elements = max(given, got)
    elif kind in ("all_gather", "reduce_scatter"):
        elements = total or part * n
    else:  # all but the root have a part alone
        elements = part * n or total
    if not elements and max(given, got):
        raise ValueError("the members of its group are not in the file")
    fields: dict[str, object] = {"kind": kind, "nbytes": _refuse_large(elements * size)}
    if COLLECTIVES[kind].rooted:
        fields["root"] = call.root
    return fields


WHOLES = ("all_reduce", "broadcast", "reduce")  # every rank has all of it


def _interpret_exchange(call: Said, n: int, size: int) -> dict[str, object]:
    """What an all_to_all sends to each member: as much, or as its splits say; where they are not
    told, blocks that cannot be equal are unknown."""
    most = max(call.given, call.got)
    if call.sends is None or call.receives is None:
        raise ValueError("its splits are cut")
    if not call.sends and not call.receives:
        unequal = (n and call.given % n) or call.got != call.given
        return {
            "kind": "all_to_allv" if unequal else "all_to_all",
            "nbytes": _refuse_large(most * size),
        }
    if not n:
        raise ValueError("the members of its group are not in the file")
    sends = _split_blocks(call.sends, call.given, n)
    receives = _split_blocks(call.receives, call.got, n)
    return {
        "kind": "all_to_allv",
        "nbytes": _refuse_large(most * size),
        "sends": sends,
        "receives": receives,
    }


def _split_blocks(splits: Sequence[int], total: int, n: int) -> tuple[int, ...]:
    """Elements to or from each member: of torch's splits, which count rows of the tensor."""
    if not splits:
        if total % n:
            raise ValueError("its blocks are unequal, and not all their sizes are told")
        return (total // n,) * n
    rows = sum(splits)
    if len(splits) != n or (total % rows if rows else total):
        raise ValueError(f"its splits do not divide {total} elements among {n} members")
    width = total // rows if rows else 0
    return tuple(rows * width for rows in splits)


def _refuse_large(nbytes: int) -> int:
    if not 0 <= nbytes < MOST:
        raise ValueError(f"a size of {nbytes:.3g} B")
    return nbytes


def parse_listed(text: str) -> tuple[int, ...] | None:
    """The numbers of a list as texts have it; None where it is cut, or none."""
    if not re.fullmatch(r"\s*\[[\s\d,]*\]\s*", text):
        return None
    numbers = tuple(int(word) for word in re.findall(r"\d{1,18}", text))
    return numbers if len(numbers) <= MOST_RANKS else None


def is_number(value: object) -> bool:
    """Whether a value of JSON is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


# what comes before a rank in a file's name; a pod's or host's name in it may number workers, too
RANK, WORKER = (
    re.compile(rf"{word}[-_.=]?(\d{{1,7}})(?!\d)", re.IGNORECASE) for word in ("rank", "worker")
)
# with what files of some formats end: their tools write the rank last, behind any host's name
ENDINGS = {
    "flight": re.compile(r"(?<!\d)(\d{1,6})(?:\.(?:json|gz|pickle|pkl))*$"),
    "chakra": re.compile(r"\.(\d{1,7})\.et"),
}
DIGITS = re.compile(r"\d+")


def rank_in(name: str, form: str = "") -> int:
    """The rank that the name of a format's file tells last behind the word rank, else at the name's
    end where the format's tool writes it there, else behind the word worker; -1 for none."""
    patterns = [RANK, *([ENDINGS[form]] if form in ENDINGS else []), WORKER]
    ranks = (int(numbers[-1]) for pattern in patterns if (numbers := pattern.findall(name)))
    return next((rank for rank in ranks if rank < MOST_RANKS), -1)


def number_files(names: Sequence[str], form: str = "") -> list[int]:
    """The rank of each of a job's files of a format by their names: as these tell it (rank_in), but
    no endings that several share, or by digits that number the files from 0 on; -1 for none."""
    ranks = [rank_in(name, form) for name in names]
    if form and len(set(ranks)) < len(ranks):
        others = number_files(names)
        ranks = others if -1 not in others and len(set(others)) == len(others) else ranks
    if any(rank >= 0 for rank in ranks):
        return ranks
    runs = [DIGITS.findall(name) for name in names]
    columns = zip(*runs, strict=True) if len({len(run) for run in runs}) == 1 else ()
    for column in columns:
        numbers = [int(digits[:9]) for digits in column]
        if sorted(numbers) == list(range(len(names))):
            return numbers
    return ranks


def parse_microseconds(us: float) -> int:
    """A time in microseconds as nanoseconds; -1 where it is none."""
    return round(us * 1e3) if 0 <= us < MOST / 1e3 else -1
