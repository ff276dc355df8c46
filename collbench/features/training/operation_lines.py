"""Operations as lines of a file, some ranks each, made into the programs of a step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from collbench.core import text
from collbench.core.collectives import COLLECTIVES, find_collective
from collbench.core.dtypes import DTYPES, OPS, find_dtype, find_reduction
from collbench.core.errors import UsageError
from collbench.core.text import UNITS
from collbench.features.training.step import (
    KINDS,
    MOST_RANKS,
    WORLD,
    Groups,
    Misplaced,
    Op,
    Program,
    Step,
    refuse_step,
)

MOST_OPS = 1 << 20  # of all programs together
MOST_NAMED = 1 << 22  # ranks, in all that a file names
HINT = (
    "the smallest step is TOML of world = 2 and [[phase]] with name, repeat and ops = [{"
    ' kind = "all_reduce", count = "8192*4096", wait = "call" }]'
)
TYPES = [name for dtype in DTYPES.values() for name in (dtype.name, *dtype.aliases)]
NUMBER = r"\s*[0-9]{1,19}\s*[kmgtKMGT]?\s*"
RANKS = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([0-9]{1,7}))?)?")

Into = TypeVar("Into")
Word = Annotated[str, Meta(max_length=40)]
Place = Annotated[int, Meta(ge=-1, lt=MOST_RANKS)]
Whole = Annotated[int, Meta(ge=0, lt=1 << 62)]
Amount = Annotated[float, Meta(ge=0, le=1e30)]


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operation as files have it."""

    kind: str
    ranks: str = ""
    id: Word = ""
    phase: Word = ""
    group: Word = WORLD
    count: int | str = ""
    bytes: int | str = ""
    dtype: str = "bfloat16"
    reduce: str = ""
    root: Place = -1
    peer: Place = -1
    tag: Whole = 0
    sends: tuple[Whole, ...] = ()
    after: tuple[str, ...] = ()
    lane: Word = ""
    wait: Literal["call", "later"] = "later"
    gap_us: Annotated[float, Meta(ge=0, le=1e12)] = 0
    flops: Amount = 0
    touched: Whole = 0
    source: Annotated[str, Meta(max_length=1000)] = ""


def parse_whole(given: int | str, where: str) -> int:
    """The number that is meant: itself, or products and quotients, and sums of these, of whole
    numbers that may end in K, M, G or T (1024-based). Raises UsageError."""
    expression, terms = str(given), [0]
    if len(expression) > 200 or not re.fullmatch(rf"{NUMBER}(?:[-+*/]{NUMBER})*", expression):
        raise UsageError(
            f"{where}: '{expression[:40]}' is not a whole number",
            'write it as 4096, "64K" or "8192*4096"',
        )
    for sign, digits, unit in re.findall(r"([-+*/]?)\s*([0-9]+)\s*([kmgtKMGT]?)", expression):
        number = int(digits) * UNITS[unit.lower()]
        if sign == "*":
            terms[-1] *= number
        elif sign == "/":
            if not number or terms[-1] % number:
                raise UsageError(
                    f"{where}: '{expression[:40]}' leaves a remainder",
                    "choose numbers whose quotient is whole",
                )
            terms[-1] //= number
        else:
            terms.append(-number if sign == "-" else number)
    if not 0 <= sum(terms) < 1 << 62:
        raise UsageError(
            f"{where}: '{expression[:40]}' is out of range",
            "give a number from 0 to 2^62",
        )
    return sum(terms)


class Names:
    """Sets of ranks as they are written, each read once, and all together within bounds."""

    def __init__(self) -> None:
        self.ranks_by_text: dict[str, tuple[int, ...]] = {}
        self.names_left = MOST_NAMED

    def ranks(self, spelling: str, where: str) -> tuple[int, ...]:
        """``0-3;8``, ``0-14:2``. Raises UsageError."""
        if spelling not in self.ranks_by_text:
            listed: list[int] = []
            for part in re.split("[,;]", spelling):
                match = RANKS.fullmatch(part.strip())
                first, last, step = (
                    (int(n) if n else 0 for n in match.groups()) if match else (1, 0, 0)
                )
                last = last if match and match[2] else first
                if not match or last < first or last >= MOST_RANKS or (match[3] and not step):
                    raise UsageError(
                        f"{where}: '{spelling[:40]}' is not a set of ranks",
                        "write it as 0-3;8 or 0-14:2",
                    )
                self.names_left -= (last - first) // (step or 1) + 1
                if self.names_left < 0:
                    raise UsageError(
                        f"{where}: too many ranks are listed", f"list at most {MOST_NAMED:,} in all"
                    )
                listed += range(first, last + 1, step or 1)
            if len({*listed}) < len(listed):
                raise UsageError(f"{where}: '{spelling[:40]}' has a rank twice", "list each once")
            self.ranks_by_text[spelling] = tuple(listed)
        return self.ranks_by_text[spelling]

    def groups(self, spelling: str, where: str) -> Groups:
        """``0-3;4-7``, of which each part is a group. Raises UsageError."""
        return tuple(self.ranks(part, where) for part in spelling.split(";"))


class Line(NamedTuple):
    """An operation, what it comes after, the ranks that have it as they are written (none for all),
    and where it stands."""

    op: Op
    ranks: str
    where: str
    id: str = ""
    after: tuple[str, ...] = ()
    gap_ns: int = 0


class Held(NamedTuple):
    """Bytes that some ranks hold."""

    ranks: str
    name: str
    nbytes: int


class _Class:
    """Ranks that have the same lines: their operations so far, where each stands, and by what
    ``after`` may call them."""

    def __init__(self, ranks: list[int]) -> None:
        self.ranks = ranks
        self.ops: list[Op] = []
        self.where: list[str] = []
        self.called: dict[str, int] = {}
        self.rows = 0
        self.holds: dict[str, int] = {}

    def add(self, line: Line) -> None:
        """Add the operation of a line. Raises UsageError where the line waits for an operation that
        does not stand before it."""
        op = line.op
        for name in line.after:
            if name not in self.called:
                raise UsageError(
                    f"{line.where}, after: no operation before is '{name[:40]}' on rank"
                    f" {self.ranks[0]}",
                    "give an id, or the number of one of the rank's operations in the file, from 0",
                )
        if line.after:
            op = msgspec.structs.replace(op, after=tuple(self.called[n] for n in line.after))
        if line.gap_ns:
            gap = Op("compute", op.phase, lane="compute", compute_ns=line.gap_ns)
            self._put(gap, line.where)
        for name in filter(None, (str(self.rows), line.id)):
            self.called[name] = len(self.ops)
        self.rows += 1
        self._put(op, line.where)

    def _put(self, op: Op, where: str) -> None:
        self.ops.append(op)
        self.where.append(where)


def line_of(row: Row, ranks: str, phase: str, where: str) -> Line:
    """The operation that a row means. Raises UsageError."""
    kind = row.kind
    if kind not in KINDS:
        kind = _find_known(lambda name: find_collective(name).name, kind, f"{where}, kind", KINDS)
    type_ = _find_known(lambda name: find_dtype(name).name, row.dtype, f"{where}, dtype", TYPES)
    if row.count != "" and row.bytes != "":
        raise UsageError(
            f"{where}: count and bytes are both given", "leave out count (elements) or bytes"
        )
    nbytes = parse_whole(row.bytes, f"{where}, bytes") if row.bytes != "" else 0
    if row.count != "":
        nbytes = parse_whole(row.count, f"{where}, count") * DTYPES[type_].size
    if nbytes >= 1 << 62:
        raise UsageError(f"{where}, count: {nbytes} B are too many", "give less than 2^62 B")
    if row.id.isdigit():
        raise UsageError(
            f"{where}, id: '{row.id}' is a number, not a name",
            "give a word, so that the key 'after' can name it",
        )
    for key in ("phase", "group", "lane", "source", "id"):
        if not str(getattr(row, key)).isprintable():
            raise UsageError(
                f"{where}, {key}: it has characters that cannot be printed",
                "use letters and digits",
            )
    reduces, rooted = (
        kind in COLLECTIVES and getattr(COLLECTIVES[kind], attribute)
        for attribute in ("reduces", "rooted")
    )
    if reduces and row.reduce == "none":
        raise UsageError(
            f"{where}, reduce: {kind} needs a reduction; 'none' is not one",
            f"leave reduce out for sum, or name one of {', '.join(OPS)}",
        )
    gap = round(row.gap_us * 1000)
    op = Op(
        kind=kind,
        phase=row.phase or phase,
        group=row.group,
        nbytes=nbytes,
        dtype=type_,
        op=_find_known(
            find_reduction, row.reduce or ("sum" if reduces else "none"), f"{where}, reduce", OPS
        ),
        root=0 if rooted and row.root < 0 else row.root,
        peer=row.peer,
        tag=row.tag,
        sends=row.sends,
        lane=row.lane or ("compute" if kind == "compute" else "comm"),
        wait=row.wait,
        compute_ns=gap if kind == "compute" else 0,
        flops=row.flops,
        touched=row.touched,
        source=row.source,
    )
    ahead = 0 if kind == "compute" else gap
    return Line(op, row.ranks or ranks, where, row.id, row.after, ahead)


def _find_known(find: Callable[[str], str], word: str, where: str, names: Iterable[str]) -> str:
    """The proper name of what ``find`` knows."""
    try:
        return find(word)
    except UsageError as e:
        one_of = f"one of {', '.join(names)}"
        raise UsageError(
            f"{where}: unknown '{word[:40]}'", text.suggest_name(word, names) or one_of
        ) from e


def build_step(
    path: Path, bare: Step, names: Names, lines: Sequence[Line], holds: Sequence[Held]
) -> Step:
    """The step with the programs that lines make. Raises UsageError."""
    where = {line.ranks: f"{path}: #holds" for line in holds} | {
        line.ranks: line.where for line in lines
    }
    marks: list[list[str]] = [[] for _ in range(bare.world)]
    for ranks_text in where:
        ranks = (
            names.ranks(ranks_text, f"{where[ranks_text]}, ranks")
            if ranks_text
            else range(bare.world)
        )
        if max(ranks) >= bare.world:
            raise UsageError(
                f"{where[ranks_text]}, ranks: there is no rank {max(ranks)} of {bare.world}",
                "list fewer ranks, or raise world",
            )
        for rank in ranks:
            marks[rank].append(ranks_text)
    classes: dict[tuple[str, ...], _Class] = {}
    for rank, mark in enumerate(marks):
        classes.setdefault(tuple(mark), _Class([])).ranks.append(rank)
    by_ranks: dict[str, list[_Class]] = {text: [] for text in where}
    for said_by, rank_class in classes.items():
        for ranks_text in said_by:
            by_ranks[ranks_text].append(rank_class)
    room = MOST_OPS
    for line in lines:
        room -= len(by_ranks[line.ranks]) * (2 if line.gap_ns else 1)
        if room < 0:
            raise UsageError(
                f"{line.where}: more than {MOST_OPS:,} operations",
                "take fewer, or a smaller repeat",
            )
        for rank_class in by_ranks[line.ranks]:
            rank_class.add(line)
    for hold in holds:
        for rank_class in by_ranks[hold.ranks]:
            rank_class.holds[hold.name] = hold.nbytes
    return _check_step(path, bare, list(classes.values()))


def _check_step(path: Path, bare: Step, classes: list[_Class]) -> Step:
    """The step, if it says what can be. Raises UsageError."""
    merged: dict[tuple[tuple[Op, ...], tuple[tuple[str, int], ...]], list[int]] = {}
    for rank_class in classes:
        merged.setdefault((tuple(rank_class.ops), tuple(rank_class.holds.items())), []).extend(
            rank_class.ranks
        )
    programs = tuple(
        Program(tuple(sorted(ranks)), ops, dict(holds)) for (ops, holds), ranks in merged.items()
    )
    step = msgspec.structs.replace(bare, programs=programs)
    try:
        refuse_step(step)
    except Misplaced as e:
        owner = next(other for other in classes if e.rank in other.ranks)
        raise UsageError(f"{owner.where[e.op]}: {e.message.partition(': ')[2]}", e.hint) from e
    except UsageError as e:
        raise UsageError(f"{path}: {e.message}", e.hint) from e
    return step


def convert_struct(
    given: Any,
    into: type[Into],
    where: str,
    keys: Sequence[str],
    strict: bool = True,
    otherwise: str = HINT,
) -> Into:
    """A file's values as a struct. Raises UsageError with the key; ``otherwise`` is its hint where
    that is known."""
    try:
        return msgspec.convert(given, into, strict=strict)
    except msgspec.ValidationError as e:
        message, _, location = str(e).partition(" - at `")
        parts = [
            re.sub(r"(\w+)\[(\d+)\]", _number_place, part)
            for part in location.strip("$`").split(".")
            if part
        ]
        unknown = re.search("unknown field `(.*?)`", message)
        hint = (
            text.suggest_name(unknown[1], keys) or f"one of {', '.join(keys)}"
            if unknown
            else otherwise
        )
        raise UsageError(
            f"{', '.join([where, *parts])}: {message[:1].lower()}{message[1:200]}", hint
        ) from e


def _number_place(match: re.Match[str]) -> str:
    """phase[0] as [[phase]] 1, ops[2] as op 3."""
    number = int(match[2]) + 1
    return {"phase": f"[[phase]] {number}", "ops": f"op {number}"}.get(match[1], match[0])
