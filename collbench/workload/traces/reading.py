"""Traces of any format, which is recognised by what a file has, not by its name alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from collbench.core.errors import UsageError
from collbench.core.text import counted
from collbench.workload.traces import execution, flight, kineto, param
from collbench.workload.traces.bounded import Limits, Stream, head
from collbench.workload.traces.types import RankTrace, Trace

MOST_FILES = 1 << 16
MOST_CALLS = 8_000_000  # of all ranks
ONE_FILE = "the file does not tell its rank, which is taken for 0"
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


def _flight(path: Path, asked: _Asked) -> Told:
    with Stream(path, asked.limits) as stream:
        return flight.read(stream, head(path, 1) == b"\x80")


def _execution(path: Path, asked: _Asked) -> Told:
    with Stream(path, asked.limits) as stream:
        return execution.read(stream, asked.from_ops)


def _kineto(path: Path, asked: _Asked) -> Told:
    with Stream(path, asked.limits) as stream:
        return kineto.read(stream)


def _param(path: Path, asked: _Asked) -> Told:
    with Stream(path, asked.limits) as stream:
        return param.read(stream)


def _is_pickle(start: bytes, path: Path) -> bool:
    return start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


FLIGHT_JSON = _object("pg_config", "entries", "nccl_comm_state")
# in the order in which a file is held against them
FORMS = {
    "flight": Form(
        "PyTorch's flight recorder",
        lambda start, path: _is_pickle(start, path) or FLIGHT_JSON(start, path),
        _flight,
    ),
    "kineto": Form("Kineto", _object("traceEvents", "deviceProperties"), _kineto),
    "et": Form("PyTorch's execution trace", _object("nodes", "schema"), _execution),
    "param": Form("PARAM's communication trace", _list("comms", "compute"), _param),
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
        raise UsageError(f"--form '{form}' is unknown", f"one of {', '.join(FORMS)}")
    found = _recognised(paths, form)
    asked = _Asked(limits, from_ops)
    forms = {name for _, name in found}
    if len(forms) > 1:
        first = {name: path for path, name in reversed(found)}
        told = ", ".join(f"{path} is {FORMS[name].title}" for name, path in first.items())
        raise UsageError(f"these are of several formats: {told}", "--form chooses one")
    (form,) = forms
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
                raise UsageError(f"{path}: there is no such file", "a trace, or a folder of them")
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
    return tuple(replace(from_file[rank], world=world) for rank in sorted(from_file)), assumptions
