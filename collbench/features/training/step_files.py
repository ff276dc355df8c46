"""Steps of one's own, in TOML, and in CSV, which is written, too.

TOML has the world, groups by name, and phases of operations with loops. CSV has a row for each
operation of some ranks, in their order; its columns go by their names, and lines that begin with #
declare groups (``#group tp 0-3;4-7``) and else are comments. Whatever a file says wrongly is a
UsageError that names file, line or table, key, and what is allowed there.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from collbench.core import files, text
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError, first_line
from collbench.features.training.operation_lines import (
    HINT,
    MOST_OPS,
    Held,
    Line,
    Names,
    Row,
    Word,
    build_step,
    convert_struct,
    line_of,
    parse_whole,
)
from collbench.features.training.step import MOST_RANKS, Groups, Op, Step, parse_order

MOST_BYTES = {".toml": 1 << 20, ".csv": 64 << 20}
COLUMNS = ("ranks", "op", "bytes", "dtype", "group")
FURTHER = ("reduce", "root", "peer", "phase", "lane", "after", "gap_us", "splits")
OURS = ("wait", "tag", "flops", "touched", "source")  # what an Op has beside
LISTS = ("after", "splits")
FIELDS = {"op": "kind", "splits": "sends"}  # where a column has another name


class _Phase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Word
    ops: list[Row]
    repeat: Annotated[int, Meta(ge=1, le=MOST_OPS)] = 1
    ranks: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    world: Annotated[int, Meta(ge=1, le=MOST_RANKS)]
    phase: list[_Phase]
    version: Literal[1] = 1
    name: str = ""
    groups: dict[Word, str | list[list[Annotated[int, Meta(ge=0, lt=MOST_RANKS)]]]] = {}
    holds: dict[Word, int | str] = {}
    assumptions: list[str] = []


KEYS = [key for field in (_File, _Phase, Row) for key in field.__struct_fields__]


def is_step_file(name: str) -> bool:
    """Whether the name is that of a step in a file, by its ending."""
    return Path(name).suffix.lower() in MOST_BYTES


def read_step(path: Path) -> Step:
    """The step in a file. Raises UsageError."""
    ending = path.suffix.lower()
    if ending not in MOST_BYTES:
        raise UsageError(f"{path}: its name ends neither in .toml nor in .csv", HINT)
    try:
        if ending == ".csv":
            content = files.read_bytes(path, MOST_BYTES[ending]).decode("utf-8-sig")
        else:
            _, document = files.read_toml(path, MOST_BYTES[ending])
    except (ValueError, RecursionError, OSError) as e:
        raise UsageError(f"{path}: {first_line(e)}", HINT) from e
    return _read_csv(path, content) if ending == ".csv" else _read_toml(path, document)


def _read_toml(path: Path, document: dict[str, Any]) -> Step:
    content = convert_struct(document, _File, str(path), KEYS)
    names = Names()
    groups: dict[str, Groups] = {}
    for name, given in content.groups.items():
        at = f"{path}: [groups], {name}"
        if not isinstance(given, str):
            groups[name] = tuple(map(tuple, given))
        elif given.startswith("order:"):
            groups[name] = _known_order(given, content.world, at)
        else:
            groups[name] = names.groups(given, at)
    if sum(len(phase.ops) * phase.repeat for phase in content.phase) > MOST_OPS:
        raise UsageError(
            f"{path}: more than {MOST_OPS:,} operations", "take fewer, or a smaller repeat"
        )
    lines = []
    for number, phase in enumerate(content.phase, 1):
        at = f"{path}: [[phase]] {number}"
        once = [
            line_of(row, phase.ranks, phase.name, f"{at}, op {index}")
            for index, row in enumerate(phase.ops, 1)
        ]
        lines += once * phase.repeat
    holds = [
        Held("", name, parse_whole(n, f"{path}: [holds], {name}"))
        for name, n in content.holds.items()
    ]
    bare = Step(content.name or path.stem, content.world, (), groups, tuple(content.assumptions))
    return build_step(path, bare, names, lines, holds)


def _known_order(given: str, world: int, where: str) -> Groups:
    try:
        return parse_order(given, world)
    except UsageError as e:
        raise UsageError(f"{where}: {e.message}", e.hint) from e


class _Declared(msgspec.Struct):
    """What the lines with # declare."""

    name: str
    world: int = 0
    groups: dict[str, Groups] = {}
    holds: list[Held] = []
    assumptions: list[str] = []

    def take(self, line: str, names: Names, where: str) -> None:
        """Read a line that begins with #: a declaration, or a comment."""
        word, _, rest = line[1:].partition(" ")
        rest = rest.strip()
        if word == "name":
            self.name = rest
        elif word == "assumption":
            self.assumptions.append(rest)
        elif word == "world":
            self.world = parse_whole(rest, f"{where}, #world")
        elif word == "group":
            name, _, ranks = rest.rpartition(" ")
            self.groups[name.strip()] = names.groups(ranks, f"{where}, #group")
        elif word == "holds":
            ranks, _, what = rest.partition(" ")
            name, _, nbytes = what.rpartition(" ")
            self.holds.append(Held(ranks, name.strip(), parse_whole(nbytes, f"{where}, #holds")))


def _read_csv(path: Path, content: str) -> Step:
    names, declared, lines = Names(), _Declared(path.stem), []
    columns: list[str] = []
    for number, line in enumerate(content.split("\n"), 1):
        where = f"{path}: line {number}"
        if line.startswith("#"):
            declared.take(line, names, where)
        elif line.strip():
            cells = _split_cells(line.rstrip("\r"), where)
            if columns:
                lines.append(_from_cells(columns, cells, where))
            else:
                columns = _read_header(cells, where)
    if not columns:
        raise UsageError(f"{path}: it has no header", f"begin with {','.join(COLUMNS)}")
    rank_texts = [line.ranks for line in lines] + [hold.ranks for hold in declared.holds]
    ranks = (names.ranks(rank_text, f"{path}: ranks") for rank_text in dict.fromkeys(rank_texts))
    in_groups = (rank for family in declared.groups.values() for group in family for rank in group)
    world = declared.world or 1 + max(max(map(max, ranks), default=0), max(in_groups, default=0))
    if world > MOST_RANKS:
        raise UsageError(f"{path}: #world {world} is too large", f"take at most {MOST_RANKS:,}")
    bare = Step(declared.name, world, (), declared.groups, tuple(declared.assumptions))
    return build_step(path, bare, names, lines, declared.holds)


def _split_cells(line: str, where: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], strict=True))]
    except csv.Error as e:
        raise UsageError(f"{where}: {first_line(e)}", "put cells with commas in quotes") from e


def _read_header(cells: list[str], where: str) -> list[str]:
    """The header. Raises UsageError."""
    every = (*COLUMNS, *FURTHER, *OURS)
    for name in cells:
        if name not in every or cells.count(name) > 1:
            what = "twice the column" if name in every else "unknown column"
            hint = text.suggest_name(name, every) or f"use {', '.join(every)}"
            raise UsageError(f"{where}: {what} '{name[:40]}'", hint)
    if missing := [name for name in COLUMNS if name not in cells]:
        raise UsageError(
            f"{where}: the header lacks {', '.join(missing)}", f"write {','.join(COLUMNS)}"
        )
    return cells


def _from_cells(columns: list[str], cells: list[str], where: str) -> Line:
    """The operation of a CSV line. Raises UsageError."""
    if len(cells) != len(columns):
        raise UsageError(
            f"{where}: {len(cells)} cells for {len(columns)} columns", "write one for each"
        )
    values: dict[str, Any] = {
        FIELDS.get(name, name): re.split("[ ;]+", cell) if name in LISTS else cell
        for name, cell in zip(columns, cells, strict=True)
        if cell
    }
    if "ranks" not in values or "kind" not in values:
        raise UsageError(
            f"{where}: the ranks or the op are missing", "write it as 0-7,all_reduce,4096,float,tp"
        )
    row = convert_struct(values, Row, where, KEYS, strict=False)
    return line_of(row, row.ranks, "", where)


def write_step(step: Step) -> str:
    """The step as CSV."""
    out = io.StringIO()
    out.write(f"#name {text.printable_text(step.name)}\n#world {step.world}\n")
    for assumption in step.assumptions:
        out.write(f"#assumption {text.printable_text(assumption)}\n")
    for name, family in step.groups.items():
        ranks = ";".join(map(format_ranks, family))
        out.write(f"#group {text.printable_text(name)} {ranks}\n" if family else "")
    for program in step.programs:
        for name, nbytes in program.holds.items():
            out.write(
                f"#holds {format_ranks(program.ranks)} {text.printable_text(name)} {nbytes}\n"
            )
    rows = [_to_cells(op) for program in step.programs for op in program.ops]
    used = [name for name in (*FURTHER, *OURS) if any(row.get(name) for row in rows)]
    writer = csv.DictWriter(out, (*COLUMNS, *used), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    row_iterator = iter(rows)
    for program in step.programs:
        ranks = format_ranks(program.ranks, ";")
        writer.writerows({"ranks": ranks, **next(row_iterator)} for _ in program.ops)
    return out.getvalue()


def _to_cells(op: Op) -> dict[str, str]:
    """An operation as cells by column; what is as it is without is left empty."""
    reduces = op.kind in COLLECTIVES and COLLECTIVES[op.kind].reduces
    usual = "compute" if op.kind == "compute" else "comm"
    cells = {
        "op": op.kind,
        "bytes": str(op.nbytes),
        "dtype": op.dtype,
        "group": op.group,
        "reduce": "" if op.op == ("sum" if reduces else "none") else op.op,
        "root": "" if op.root < 0 else str(op.root),
        "peer": "" if op.peer < 0 else str(op.peer),
        "phase": op.phase,
        "lane": "" if op.lane == usual else op.lane,
        "after": " ".join(map(str, op.after)),
        "gap_us": f"{op.compute_ns // 1000}.{op.compute_ns % 1000:03}" if op.compute_ns else "",
        "splits": " ".join(map(str, op.sends)),
        "wait": "" if op.wait == "later" else op.wait,
        "tag": str(op.tag or ""),
        "flops": repr(op.flops) if op.flops else "",
        "touched": str(op.touched or ""),
        "source": op.source,
    }
    return {name: str(text.inert_cell(text.printable_text(cell))) for name, cell in cells.items()}


def format_ranks(ranks: Sequence[int], between: str = ",") -> str:
    """Ranks as ``0-3,8-14:2``, in their order."""
    spans = []
    at = 0
    while at < len(ranks):
        step = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 0
        end = at
        while step > 0 and end + 1 < len(ranks) and ranks[end + 1] - ranks[end] == step:
            end += 1
        if end - at < 2:
            end = at
        first, last = ranks[at], ranks[end]
        spans.append(f"{first}" if end == at else f"{first}-{last}{f':{step}' * (step > 1)}")
        at = end + 1
    return between.join(spans)
