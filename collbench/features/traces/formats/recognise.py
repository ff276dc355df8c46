"""Traces of any format, which is recognised by what a file has, not by its name alone."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from collbench.core.errors import UsageError
from collbench.core.files import recognise_archive
from collbench.core.text import format_count
from collbench.features.traces import from_steps as steps
from collbench.features.traces.formats import aicb, chakra, execution, kineto, protobuf
from collbench.features.traces.formats import flight_recorder as flight
from collbench.features.traces.formats.bounded import Limits, Stream, read_head
from collbench.features.traces.formats.call_names import EVEN, NO_RANK, number_files
from collbench.features.traces.types import STALE_NS, Call, Lost, RankTrace, Trace, Unread
from collbench.features.training.step import POINT_TO_POINT, WORLD

MOST_FILES = 1 << 16
UNKNOWN = "unknown trace format"
HOW = "collbench help traces says how one is made"
MOST_CALLS = 8_000_000  # of all ranks
EPOCH_NS = 10**17  # less is no time of day
Told = tuple[RankTrace, tuple[str, ...]]


class _Asked(NamedTuple):
    """How files are to be read, and the ranks that their names tell."""

    limits: Limits
    from_ops: bool
    ranks: Mapping[Path, int]


class Form(NamedTuple):
    """A format: what its files begin with, and how one of them is read."""

    title: str
    begins: Callable[[bytes, Path], bool]
    read: Callable[[Path, _Asked], Told]
    read_together: Callable[[Sequence[Path], _Asked], Trace] | None = None  # of all files at once


def _make_object_test(*names: str) -> Callable[[bytes, Path], bool]:
    """A test whether the first bytes of a file begin a JSON object that has a key among
    ``names``."""
    pattern = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*\{")
    keys = re.compile("|".join(rf'"{name}"\s*:' for name in names).encode())
    return lambda start, path: bool(pattern.match(start) and keys.search(start))


def _make_stream_reader(
    read: Callable[[Stream], Told],
) -> Callable[[Path, _Asked], Told]:
    """A function that opens a file as a stream and has ``read`` read it."""

    def opened(path: Path, request: _Asked) -> Told:
        with Stream(path, request.limits, request.ranks.get(path, -1)) as stream:
            return read(stream)

    return opened


def _read_flight(path: Path, request: _Asked) -> Told:
    with Stream(path, request.limits, request.ranks.get(path, -1)) as stream:
        share = MOST_CALLS // len(request.ranks)
        return flight.read_rank(stream, read_head(path, 1) == b"\x80", share)


def _read_execution(path: Path, request: _Asked) -> Told:
    with Stream(path, request.limits, request.ranks.get(path, -1)) as stream:
        return execution.read_rank(stream, request.from_ops)


def _read_own(paths: Sequence[Path], request: _Asked) -> Trace:
    """Read the files that collbench recorded, one a rank."""
    from collbench.features.traces.formats import own

    trace: Trace = own.read_job(paths)
    return trace


def _read_step(paths: Sequence[Path], request: _Asked) -> Trace:
    """The step in one file. Raises UsageError for more."""
    if len(paths) > 1:
        raise UsageError(
            f"{paths[1]}: a second step is given", "give one file: it has the whole step"
        )
    return steps.read_step_file(paths[0])


def _refuse_always(path: Path, request: _Asked) -> Told:
    raise AssertionError(path)


def _is_pickle(start: bytes) -> bool:
    return start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def _is_chakra(start: bytes, path: Path) -> bool:
    """Whether a file begins with metadata as Chakra's do: attributes, and a version."""
    try:
        length, begins = protobuf.read_varint(start, 0)
        fields = dict(protobuf.read_fields(start[begins : begins + length]))
    except protobuf.Broken:
        return False
    is_named = ".et" in path.suffixes
    return (is_named or length > 1) and {*fields} <= {1, 2} and begins + length <= len(start)


def _has_columns(start: bytes, *columns: bytes) -> bool:
    """Whether the first lines, but for comments, have these columns."""
    lines = (line for line in start.splitlines() if line.strip() and line[:1] not in b"#[")
    return {*columns} <= {*next(lines, b"").removeprefix(b"\xef\xbb\xbf").split(b",")}


FLIGHT_JSON = _make_object_test("pg_config", "entries", "nccl_comm_state")
SCHEMA = re.compile(rb'\s*\{.{0,400}?"schema"\s*:\s*"\d+\.\d+\.\d+', re.DOTALL)
PHASES = re.compile(rb"^\s*\[\[phase\]\]", re.MULTILINE)
SIMAI = re.compile(rf"(?:{'|'.join(aicb.HEADERS)})\b[^\n]*\n\s*\d+\s*\n".encode())
# in the order in which a file is held against them
FORMS = {
    "collbench": Form(
        "collbench recording", _make_object_test("collbench_trace"), _refuse_always, _read_own
    ),
    "kineto": Form(
        "Kineto trace",
        _make_object_test("traceEvents", "deviceProperties"),
        _make_stream_reader(kineto.read_rank),
    ),
    "flight": Form(
        "PyTorch flight recorder dump",
        lambda start, path: _is_pickle(start) or FLIGHT_JSON(start, path),
        _read_flight,
    ),
    "et": Form(
        "PyTorch execution trace", lambda start, path: bool(SCHEMA.match(start)), _read_execution
    ),
    "aicb": Form(
        "AICB workload",
        lambda start, path: _has_columns(start, *map(str.encode, aicb.COLUMNS)),
        _make_stream_reader(aicb.read_rank),
    ),
    "simai": Form(
        "SimAI workload",
        lambda start, path: bool(SIMAI.match(start)),
        _make_stream_reader(aicb.read_simai),
    ),
    "step": Form(
        "step file",
        lambda start, path: (
            _has_columns(start, b"ranks", b"op", b"bytes")
            or (path.suffix == ".toml" and bool(PHASES.search(start)))
        ),
        _refuse_always,
        _read_step,
    ),
    "chakra": Form("Chakra trace", _is_chakra, _make_stream_reader(chakra.read_rank)),
}


def read_trace(
    paths: Sequence[Path],
    form: str = "",
    *,
    from_ops: bool = False,
    limits: Limits = Limits(),  # noqa: B008 - immutable
) -> Trace:
    """The trace of one job, by files, or files of folders, each of one of its ranks.

    ``form`` is the name of a format, else it is recognised. ``from_ops`` reads an execution trace's
    c10d operators. Raises UsageError.
    """
    if form and form not in FORMS:
        raise UsageError(f"--from '{form}' is unknown", f"one of {', '.join(FORMS)}")
    recognised, unread = _recognise_files(paths, form)
    files = [path for path, _ in recognised]
    forms = {name for _, name in recognised}
    if len(forms) > 1:
        first = {name: path for path, name in reversed(recognised)}
        formats = ", ".join(f"{path} is a {FORMS[name].title}" for name, path in first.items())
        raise UsageError(f"these are of several formats: {formats}", "choose one with --from")
    (form,) = forms
    if from_ops and form != "et":
        raise UsageError(
            f"--from-ops: {files[0]} is a {FORMS[form].title}, of which no c10d operators are read",
            "leave it out: it is for PyTorch's execution traces",
        )
    all_paths = [*files, *(Path(entry.source) for entry in unread)]
    by_name = dict(
        zip(all_paths, number_files([path.name for path in all_paths], form), strict=True)
    )
    unread = [replace(entry, rank=by_name[Path(entry.source)]) for entry in unread]
    request = _Asked(limits, from_ops, by_name)
    if read_together := FORMS[form].read_together:
        trace = read_together(files, request)
        return replace(trace, unread=(*trace.unread, *_other_files(unread, trace.ranks)))
    return _read_ranks(form, files, request, unread)


def _other_files(unread: Sequence[Unread], ranks: Sequence[RankTrace]) -> Iterator[Unread]:
    """Files that are not used, without the number of a rank of which another file is used."""
    readable = {rank.rank for rank in ranks}
    return (replace(entry, rank=-1) if entry.rank in readable else entry for entry in unread)


def _recognise_files(
    paths: Sequence[Path], form: str
) -> tuple[list[tuple[Path, str]], list[Unread]]:
    """The files that are asked for, each with its format; of a folder those that have one, and
    those named alike that are broken. Raises UsageError."""
    recognised: list[tuple[Path, str]] = []
    broken: dict[Path, str] = {}
    for path in paths:
        if path.is_dir():
            traces, lame = _in_folder(path, form)
            recognised += traces
            broken |= lame
        elif why := _refuse_file(path):
            broken[path] = why
        elif name := form or recognise_file(path):
            recognised.append((path, name))
        else:
            broken[path] = UNKNOWN
    if not recognised and broken:
        path, why = next(iter(broken.items()))
        raise UsageError(f"{path}: {why}", _suggest_formats(path) if why == UNKNOWN else HOW)
    if not recognised or len(recognised) > MOST_FILES:
        raise UsageError(
            f"{len(recognised):,} files of a trace are given", f"give from 1 to {MOST_FILES:,}"
        )
    return recognised, [Unread(str(path), why) for path, why in broken.items()]


def _in_folder(folder: Path, form: str) -> tuple[list[tuple[Path, str]], dict[Path, str]]:
    """A folder's traces, and its files that are broken and named as these are. Raises UsageError
    where it has neither."""
    files = sorted(file for file in folder.iterdir() if file.is_file())[: MOST_FILES + 1]
    file_formats = [(file, name) for file in files if (name := recognise_file(file))]
    file_formats = [(file, name) for file, name in file_formats if form in ("", name)]
    patterns = {_name_pattern(file) for file, _ in file_formats}
    traces = {file for file, _ in file_formats}
    rest = [file for file in files if file not in traces]
    broken = {
        file: why
        for file in rest
        if not recognise_file(file)
        and (why := _refuse_file(file) or UNKNOWN * bool(patterns))
        and (not patterns or _name_pattern(file) in patterns)
    }
    if not file_formats and not broken:
        raise UsageError(f"{folder}: no file in it is a trace", _suggest_formats(folder))
    return file_formats, broken


def _name_pattern(path: Path) -> str:
    """A file's name without its numbers and without what says how it is packed."""
    return re.sub(r"\d+", "#", path.name.removesuffix(".gz"))


def _refuse_file(path: Path) -> str:
    """Why a file cannot be a trace, nothing where it may be one. Raises UsageError for none."""
    if not path.exists():
        raise UsageError(f"{path}: there is no such file", HOW)
    if not path.is_file():
        return "it is a pipe or a device, and traces are read twice: write it to a file first"
    start = read_head(path)
    if not start and not path.stat().st_size:
        return "the file is empty"
    if not start:
        return "it cannot be read: it is not yours to read, or a packed file that is cut"
    what, unpack = recognise_archive(start)
    return f"it is {what}: unpack it first ({unpack})" if what else ""


def _suggest_formats(path: Path) -> str:
    if path.suffix == ".py":
        return "a script records its calls by collbench.record: collbench help traces"
    return f"formats are {', '.join(FORMS)}"


def recognise_file(path: Path) -> str:
    """The name of a file's format; nothing where it has none."""
    start = read_head(path)
    return next((name for name, form in FORMS.items() if form.begins(start, path)), "")


def _read_ranks(
    form: str, paths: Sequence[Path], request: _Asked, unread: Sequence[Unread]
) -> Trace:
    """The trace in these files, each of one rank. Files that cannot be read are left out. Raises
    UsageError where that is all of them."""
    from_file: dict[int, RankTrace] = {}
    assumptions: dict[str, None] = {}
    unreadable = [*unread]
    calls = 0
    refused: UsageError | None = None
    for path in paths:
        try:
            rank_trace, assumed = FORMS[form].read(path, request)
        except UsageError as e:
            refused = refused or e
            why = e.message.removeprefix(f"{path}: ")
            unreadable.append(Unread(str(path), why, request.ranks.get(path, -1)))
            continue
        assumptions |= dict.fromkeys(assumed)
        if rank_trace.rank in from_file:
            raise _same_rank(from_file[rank_trace.rank], rank_trace, assumed)
        from_file[rank_trace.rank] = rank_trace
        calls += len(rank_trace.calls)
        if calls > MOST_CALLS:
            raise UsageError(
                f"{format_count(len(from_file), 'file')} have more than {MOST_CALLS:,} calls",
                "take fewer ranks or steps",
            )
    if refused and not from_file:
        raise refused
    stale = _find_stale([from_file[rank] for rank in sorted(from_file)])
    unreadable += stale
    ranks = [from_file[rank] for rank in sorted(from_file) if rank not in {s.rank for s in stale}]
    trace = Trace(form, tuple(ranks), (), tuple(_other_files(unreadable, ranks)))
    ranks = [replace(rank, world=trace.world) for rank in ranks]
    if any(
        call.group == WORLD and WORLD not in rank.groups for rank in ranks for call in rank.calls
    ):
        told_of = f"the group of all has {format_count(trace.world, 'rank')}"
        assumptions[f"{told_of}, as far as these files tell"] = None
    everyone = {WORLD: tuple(range(trace.world))}
    ranks = [replace(rank, groups=everyone | rank.groups) for rank in ranks]
    ranks = [*_doubt_even(ranks)] if EVEN in assumptions else ranks
    by_lists = any(call.by_lists for rank in ranks for call in rank.calls)
    ranks = [*_lose_unequal(ranks)] if by_lists else ranks
    return replace(trace, ranks=tuple(ranks), assumptions=tuple(assumptions))


def _doubt_even(ranks: Sequence[RankTrace]) -> Iterator[RankTrace]:
    """The ranks, with exchanges whose sizes differ between ranks as all_to_allv of unknown blocks:
    where no rank tells splits, one that sends as much as it receives was taken for an even one."""
    doubted: dict[int, list[int]] = defaultdict(list)
    for calls in _join_operations(ranks, lambda call: call.kind in ("all_to_all", "all_to_allv")):
        is_told = any(call.sends or call.receives for call in calls.values())
        if not is_told and len({(call.kind, call.nbytes) for call in calls.values()}) > 1:
            for rank_number, at in calls:
                doubted[rank_number].append(at)
    for rank in ranks:
        calls_of_rank = [*rank.calls]
        for at in doubted[rank.rank]:
            calls_of_rank[at] = replace(calls_of_rank[at], kind="all_to_allv")
        yield replace(rank, calls=tuple(calls_of_rank)) if doubted[rank.rank] else rank


def _lose_unequal(ranks: Sequence[RankTrace]) -> Iterator[RankTrace]:
    """The ranks without what is called by lists and differs in size between ranks: its blocks are
    unequal, and torch tells of each rank its own block times the members. Calls without a number
    stay: which of them are one operation is not known."""
    unequal: dict[int, list[int]] = defaultdict(list)
    for calls in _join_operations(ranks, lambda call: call.by_lists and call.number >= 0):
        if len({call.nbytes for call in calls.values()}) > 1:
            for rank_number, at in calls:
                unequal[rank_number].append(at)
    for rank in ranks:
        calls_of_rank = [*rank.calls]
        lost: list[Lost] = []
        unnamed = [*rank.unnamed]
        numbers = {name: [*located] for name, located in rank.lost_numbers.items()}
        for at in unequal[rank.rank]:
            call = calls_of_rank[at]
            lost.append(Lost(f"{call.kind} of unequal blocks", 1, call.nbytes))
            numbers.setdefault(call.group, []).append(call.number)
            unnamed += [(call.begins_ns, call.ends_ns)] * call.is_placed
            calls_of_rank[at] = Call("mark", issued_ns=call.issued_ns, phase=call.phase)
        yield replace(
            rank,
            calls=tuple(calls_of_rank),
            lost=(*rank.lost, *lost),
            lost_numbers={name: tuple(every) for name, every in numbers.items()},
            unnamed=tuple(unnamed),
        )


def _join_operations(
    ranks: Sequence[RankTrace], is_member: Callable[[Call], bool]
) -> Iterable[Mapping[tuple[int, int], Call]]:
    """Those calls of ranks that are one operation, by rank and place."""
    operations: dict[object, dict[tuple[int, int], Call]] = defaultdict(dict)
    for rank in ranks:
        repeats: Counter[tuple[str, int]] = Counter()
        for at, call in enumerate(rank.calls):
            if is_member(call):
                repeats[operation := (call.group, call.number)] += 1
                first = rank.groups.get(call.group, ())[:1]  # member: all take long to hash
                operations[first, operation, repeats[operation]][rank.rank, at] = call
    return operations.values()


def _same_rank(first: RankTrace, second: RankTrace, assumed: Sequence[str]) -> UsageError:
    """The error for two files of one rank, by what tells it."""
    complaint = f"both {first.source} and {second.source} are of rank {second.rank}"
    if NO_RANK in assumed:
        return UsageError(
            f"{complaint}, as neither the file nor its name tells a rank",
            "name files by their ranks: rank0.json, rank1.json",
        )
    return UsageError(
        f"{complaint}, by what they or their names tell",
        "give one file a rank: of several profiles of a job, those of one cycle",
    )


def _find_stale(ranks: Sequence[RankTrace]) -> list[Unread]:
    """Dumps of another time than the newest: their calls were issued an hour or more before those
    of the same number on other ranks; where there are none, all of them before all others'."""
    if not any(call.state for rank in ranks for call in rank.calls):
        return []
    issued = {rank.rank: _issue_times(rank) for rank in ranks}
    times = {
        rank: [*times_of_rank.values()] for rank, times_of_rank in issued.items() if times_of_rank
    }
    if len(times) < 2:
        return []
    newest = max(times, key=lambda rank: max(times[rank]))
    stale = []
    for rank in ranks:
        if rank.rank == newest or rank.rank not in times:
            continue
        common = issued[rank.rank].keys() & issued[newest].keys()
        delays = [issued[newest][key] - issued[rank.rank][key] for key in common]
        before = median(delays) if delays else min(times[newest]) - max(times[rank.rank])
        if before > STALE_NS:
            old = timedelta(seconds=before // 10**9)
            why = f"its calls are older than rank {newest}'s by {old}: a dump of another time"
            stale.append(Unread(rank.source, why, rank.rank))
    return stale


def _issue_times(rank: RankTrace) -> dict[tuple[str, int], int]:
    """When a rank issued each numbered collective of a group."""
    return {
        (call.group, call.number): call.issued_ns
        for call in rank.calls
        if call.number >= 0 and call.issued_ns > EPOCH_NS and call.kind not in POINT_TO_POINT
    }
