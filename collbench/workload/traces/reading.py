"""Traces of any format, which is recognised by what a file has, not by its name alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from collbench.core.errors import UsageError
from collbench.core.text import counted
from collbench.workload.step import WORLD
from collbench.workload.traces import (
    aicb,
    chakra,
    execution,
    flight,
    kineto,
    param,
    protobuf,
    steps,
)
from collbench.workload.traces.bounded import Limits, Stream, head
from collbench.workload.traces.types import RankTrace, Trace

MOST_FILES = 1 << 16
MOST_CALLS = 8_000_000  # of all ranks
Told = tuple[RankTrace, tuple[str, ...]]


class _Asked(NamedTuple):
    """How files are to be read."""

    limits: Limits
    from_ops: bool


class Form(NamedTuple):
    """A format: what its files begin with, and how one of them is read."""

    title: str
    begins: Callable[[bytes, Path], bool]
    read: Callable[[Path, _Asked], Told]
    whole: Callable[[Sequence[Path], _Asked], Trace] | None = None  # of all files at once


def _object(*names: str) -> Callable[[bytes, Path], bool]:
    """Whether a file begins as an object that has one of these names early."""
    pattern = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*\{")
    wanted = re.compile("|".join(rf'"{name}"\s*:' for name in names).encode())
    return lambda start, path: bool(pattern.match(start) and wanted.search(start))


def _list(*names: str) -> Callable[[bytes, Path], bool]:
    """The same of a list of such objects."""
    pattern = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*\[\s*\{")
    wanted = re.compile("|".join(rf'"{name}"\s*:' for name in names).encode())
    return lambda start, path: bool(pattern.match(start) and wanted.search(start))


def _streamed(
    read: Callable[[Stream], Told],
) -> Callable[[Path, _Asked], Told]:
    """How a file is read by what takes a stream of its bytes."""

    def opened(path: Path, asked: _Asked) -> Told:
        with Stream(path, asked.limits) as stream:
            return read(stream)

    return opened


def _flight(path: Path, asked: _Asked) -> Told:
    with Stream(path, asked.limits) as stream:
        return flight.read(stream, head(path, 1) == b"\x80")


def _execution(path: Path, asked: _Asked) -> Told:
    with Stream(path, asked.limits) as stream:
        return execution.read(stream, asked.from_ops)


def _own(paths: Sequence[Path], asked: _Asked) -> Trace:
    """What collbench recorded."""
    from collbench.workload.traces import own

    trace: Trace = own.read(paths)
    return trace


def _step(paths: Sequence[Path], asked: _Asked) -> Trace:
    """The step in one file. Raises UsageError for more."""
    if len(paths) > 1:
        raise UsageError(f"{paths[1]}: a second step", "a step is in one file")
    return steps.read(paths[0])


def _never(path: Path, asked: _Asked) -> Told:
    raise AssertionError(path)


def _is_pickle(start: bytes, path: Path) -> bool:
    return start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def _is_chakra(start: bytes, path: Path) -> bool:
    """Whether a file begins with metadata as Chakra's do: attributes, and a version."""
    try:
        length, begins = protobuf.varint(start, 0)
        fields = dict(protobuf.fields(start[begins : begins + length]))
    except protobuf.Broken:
        return False
    named = ".et" in path.suffixes
    return (named or length > 1) and {*fields} <= {1, 2} and begins + length <= len(start)


def _has_columns(start: bytes, *columns: bytes) -> bool:
    """Whether the first lines, but for comments, have these columns."""
    lines = (line for line in start.splitlines() if line.strip() and line[:1] not in b"#[")
    return {*columns} <= {*next(lines, b"").removeprefix(b"\xef\xbb\xbf").split(b",")}


FLIGHT_JSON = _object("pg_config", "entries", "nccl_comm_state")
SCHEMA = re.compile(rb'\s*\{.{0,400}?"schema"\s*:\s*"\d+\.\d+\.\d+', re.DOTALL)
PHASES = re.compile(rb"^\s*\[\[phase\]\]", re.MULTILINE)
SIMAI = re.compile(rf"(?:{'|'.join(aicb.HEADERS)})\b[^\n]*\n\s*\d+\s*\n".encode())
# in the order in which a file is held against them
FORMS = {
    "collbench": Form("collbench's own recording", _object("collbench_trace"), _never, _own),
    "kineto": Form("Kineto's", _object("traceEvents", "deviceProperties"), _streamed(kineto.read)),
    "flight": Form(
        "PyTorch's flight recorder",
        lambda start, path: _is_pickle(start, path) or FLIGHT_JSON(start, path),
        _flight,
    ),
    "et": Form(
        "PyTorch's execution trace", lambda start, path: bool(SCHEMA.match(start)), _execution
    ),
    "param": Form("PARAM's", _list("comms", "compute"), _streamed(param.read)),
    "aicb": Form(
        "AICB's",
        lambda start, path: _has_columns(start, *map(str.encode, aicb.COLUMNS)),
        _streamed(aicb.read),
    ),
    "simai": Form(
        "SimAI's", lambda start, path: bool(SIMAI.match(start)), _streamed(aicb.read_simai)
    ),
    "step": Form(
        "a step of one's own",
        lambda start, path: (
            _has_columns(start, b"ranks", b"op", b"bytes")
            or (path.suffix == ".toml" and bool(PHASES.search(start)))
        ),
        _never,
        _step,
    ),
    "chakra": Form("Chakra's", _is_chakra, _streamed(chakra.read)),
}


def read(
    paths: Sequence[Path],
    form: str = "",
    *,
    from_ops: bool = False,
    limits: Limits = Limits(),  # noqa: B008 - immutable
) -> Trace:
    """What files, or the files of folders, tell of one job, each of one of its ranks.

    ``form`` is the name of a format, else it is recognised. ``from_ops`` reads an execution trace's
    c10d operators. Raises UsageError.
    """
    if form and form not in FORMS:
        raise UsageError(f"--from '{form}' is unknown", f"one of {', '.join(FORMS)}")
    found = _recognised(paths, form)
    asked = _Asked(limits, from_ops)
    forms = {name for _, name in found}
    if len(forms) > 1:
        first = {name: path for path, name in reversed(found)}
        told = ", ".join(f"{path} is {FORMS[name].title}" for name, path in first.items())
        raise UsageError(f"these are of several formats: {told}", "--from chooses one")
    (form,) = forms
    if whole := FORMS[form].whole:
        return whole([path for path, _ in found], asked)
    ranks, assumptions = _ranks([path for path, _ in found], FORMS[form], asked)
    return Trace(form, ranks, tuple(assumptions))


def _recognised(paths: Sequence[Path], form: str) -> list[tuple[Path, str]]:
    """The files that are asked for, each with its format; of a folder those that have one. Raises
    UsageError."""
    found: list[tuple[Path, str]] = []
    for path in paths:
        if path.is_dir():
            files = sorted(each for each in path.iterdir() if each.is_file())[: MOST_FILES + 1]
            named = [(each, name) for each in files if (name := recognise(each))]
            named = [(each, name) for each, name in named if form in ("", name)]
            if not named:
                raise UsageError(f"{path}: no file in it is a trace", _hint())
            found += named
        else:
            if not path.exists():
                raise UsageError(
                    f"{path}: there is no such file", "collbench help traces: how one is made"
                )
            name = form or recognise(path)
            if not name:
                raise UsageError(f"{path}: it is of no format that is known here", _hint())
            found.append((path, name))
    if not found or len(found) > MOST_FILES:
        raise UsageError(f"{len(found)} files of a trace", f"from 1 to {MOST_FILES:,}")
    return found


def _hint() -> str:
    return f"formats are {', '.join(FORMS)}"


def recognise(path: Path) -> str:
    """The name of a file's format; nothing where it has none."""
    start = head(path)
    return next((name for name, form in FORMS.items() if form.begins(start, path)), "")


def _ranks(
    paths: Sequence[Path], form: Form, asked: _Asked
) -> tuple[tuple[RankTrace, ...], dict[str, None]]:
    """What each file tells, in the order of ranks, all of one world. Raises UsageError."""
    from_file: dict[int, RankTrace] = {}
    assumptions: dict[str, None] = {}
    calls = 0
    for path in paths:
        told, taken = form.read(path, asked)
        assumptions |= dict.fromkeys(taken)
        if told.rank in from_file:
            other = from_file[told.rank].source
            raise UsageError(
                f"both {other} and {path} are of rank {told.rank}", "one file a rank, named by it"
            )
        from_file[told.rank] = told
        calls += len(told.calls)
        if calls > MOST_CALLS:
            raise UsageError(
                f"{counted(len(from_file), 'file')} have more than {MOST_CALLS:,} calls",
                "take fewer ranks or steps",
            )
    world = max(each.world for each in from_file.values())
    ranks = [replace(from_file[rank], world=world) for rank in sorted(from_file)]
    if any(
        call.group == WORLD and WORLD not in each.groups for each in ranks for call in each.calls
    ):
        assumptions[
            f"the group of all has {counted(world, 'rank')}, as far as these files tell"
        ] = None
    everyone = {WORLD: tuple(range(world))}
    return tuple(replace(each, groups=everyone | each.groups) for each in ranks), assumptions
