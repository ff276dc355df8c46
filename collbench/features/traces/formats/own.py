"""collbench's own format of traces, which ``collbench.record`` writes: a file of JSON lines a rank.

The first line is ``{"collbench_trace":2, ...}`` with what is known of the rank from the start
(``RankTrace`` without calls). Each line after it is a call, in the order of the program, or a note:
an iteration, a group that was made later, a call that was begun, calls that are lost, the end. What
is there is whole: a job that was interrupted leaves what it had, without an end, which the reader
tells as lost.
"""

from __future__ import annotations

import errno
import gzip
import os
import re
import stat
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from collbench.core import files
from collbench.core.dtypes import DTYPES, OPS
from collbench.core.errors import UsageError, first_line
from collbench.core.text import printable_text
from collbench.features.traces.formats.call_names import rank_in
from collbench.features.traces.types import (
    HOST,
    STALE_NS,
    Call,
    Interval,
    Known,
    Lost,
    RankTrace,
    Trace,
    Unread,
)
from collbench.features.training.step import KINDS, MOST_RANKS, POINT_TO_POINT, Whole
from collbench.survive.encoding import encode_json

FORM = "collbench"  # whose operations are numbered from where a rank's recording begins
MARK = '"collbench_trace"'  # in the first line
VERSION = 2  # of the format, in the first line; the reader takes earlier ones, too
MOST_CALLS = 2_000_000  # of a rank
LONGEST = 1000  # characters of a string
ONE_JOB = "give files of one job; an earlier one may have left its own in the folder"
HINT = "give a file that collbench.record wrote, as it wrote it"
INTERRUPTED = "the recording was interrupted: what came later is not in it"
HANDED_OVER = (
    "on CPUs a call begins when it is handed over: its time has what it waited in the library's"
    " queue"
)
ON_DEVICE = "the trace has no times of the device: how long calls on it took is unknown"
UNSEEN = "nobody saw the end of some calls: how long they took is unknown"
MESSAGES = (
    "the end of a message is seen when it is waited for: the time of some has what was computed"
    " before that (≤ in the table of operations)"
)


class Limits(NamedTuple):
    """How much of a file is read: bytes, unpacked, lines, and bytes of a line."""

    nbytes: int = 4 << 30
    lines: int = 2 * MOST_CALLS
    line: int = 16 << 20


class Note(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A line that is no call: an iteration's begin and end, a ``group`` with its ``ranks`` and what
    people call it, calls that are lost, the end of a call that was written before it ended
    (``late``, with its place, -1 where it was only begun to be waited for, and the ``peer`` of a
    message), a call that is ``begun``, with its place, which is written before the library has it
    and counts where the job crashed before the call was written, one that was taken ``back`` as it
    raised an error, with its place and when it was issued as begun, ``until`` when all calls are in
    the file, or when the recording ``ended``; ``broken``: because the job did, or by an error;
    ``fake``: the rank's GPU is one."""

    step: Interval | None = None
    group: str | None = None
    ranks: tuple[Whole, ...] = ()
    described: str = ""
    lost: Lost | None = None
    late: tuple[Whole, Known] | None = None
    peer: Known = -1
    begun: tuple[Whole, Call] | None = None
    back: tuple[Whole, Known] | None = None
    until: Known | None = None
    ended: Known | None = None
    broken: bool = False
    fake: bool = False


class _Head(RankTrace, frozen=True, kw_only=True, forbid_unknown_fields=True):
    collbench_trace: Literal[1, 2]


class _Version(msgspec.Struct):
    collbench_trace: int = 0


def file_name(rank: int) -> str:
    """The name of a rank's file."""
    return f"rank-{rank:05}.jsonl"


def remove_file(folder: Path, rank: int) -> None:
    """Remove the file that an earlier recording of the rank left. Raises OSError, and UsageError
    for a file of somebody else's."""
    files.refuse_foreign_file(path := folder / file_name(rank), MARK, "another folder")
    if path.is_file() and not path.is_symlink():
        path.unlink()


class Writer:
    """A rank's file, line by line. Where the file is removed or renamed, it is written anew with
    all that it held. Raises OSError, also where another file is in its place, and UsageError for a
    file of somebody else's."""

    def __init__(self, path: Path, about: RankTrace) -> None:
        files.refuse_foreign_file(path, MARK, "another folder")
        self._lock = threading.RLock()
        self._path = path.absolute()  # the job may go to another folder
        self._file = files.open_private(path)
        head = encode_json(replace(about, calls=())).decode()
        self._file.write(f"{{{MARK}:{VERSION},{head[1:]}\n")
        self._file.flush()

    def write(self, lines: Iterable[Call | Note]) -> None:
        """Write these lines and hand them to the operating system. One thread does."""
        if self._is_removed():  # asked without the lock: others append while the look stalls
            with self._lock:
                self._write_anew()
        self.append(lines)

    def append(self, lines: Iterable[Call | Note]) -> None:
        """As ``write``, without a look at whether the file is still at its path."""
        text = "".join(encode_json(line).decode() + "\n" for line in lines)
        with self._lock:
            self._file.write(text)
            self._file.flush()

    def _is_removed(self) -> bool:
        """Whether the file is at its path no more. Raises FileExistsError where another file is in
        its place."""
        opened = os.fstat(self._file.fileno())
        try:
            if not stat.S_ISREG(opened.st_mode) or os.path.samestat(self._path.stat(), opened):
                return False
        except FileNotFoundError:
            return True
        raise FileExistsError(errno.EEXIST, "another file is there now", str(self._path))

    def _write_anew(self) -> None:
        """Write what was recorded so far to the path again."""
        content = Path(f"/proc/self/fd/{self._file.fileno()}").read_text(encoding="utf-8")
        files.make_folder(self._path.parent)
        self._file.close()
        self._file = files.open_private(self._path, os.O_EXCL)
        self._file.write(content)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()


def read_job(paths: Sequence[Path]) -> Trace:
    """The trace of one job, by files of one rank each. Raises UsageError."""
    ranks_found: dict[int, RankTrace] = {}
    spans: dict[str, list[tuple[Interval, RankTrace]]] = {}  # by host
    unread: list[Unread] = []
    refused: UsageError | None = None
    for path in paths:
        try:
            reader = _read_file(path, Limits())
            rank_trace = reader.trace()
        except UsageError as e:
            refused = refused or e
            why = e.message.removeprefix(f"{path}, ").removeprefix(f"{path}: ")
            unread.append(Unread(str(path), why, rank_in(path.name)))
            continue
        if span := reader.span:
            spans.setdefault(rank_trace.host, []).append((span, rank_trace))
        other = ranks_found.setdefault(rank_trace.rank, rank_trace)
        if other is not rank_trace:
            raise UsageError(f"{other.source} and {path} are both of rank {rank_trace.rank}", HINT)
        first = next(iter(ranks_found.values()))
        if rank_trace.world != first.world:
            raise UsageError(
                f"{path} is of a job of {rank_trace.world} ranks, {first.source} of one of"
                f" {first.world}",
                ONE_JOB,
            )
    if refused and not ranks_found:
        raise refused
    for timed_ranks in spans.values():
        _refuse_another_jobs(timed_ranks, 0)
    if spans:  # clocks of hosts differ
        _refuse_another_jobs([*chain(*spans.values())], STALE_NS)
    ranks = tuple(ranks_found[rank] for rank in sorted(ranks_found))
    return Trace(FORM, ranks, list_assumptions(ranks), tuple(unread))


def _refuse_another_jobs(timed_ranks: Sequence[tuple[Interval, RankTrace]], slack: int) -> None:
    """Raises UsageError where one recording ended more than ``slack`` ns before another one's first
    call."""
    (_, ended), before = min(timed_ranks, key=lambda timed: timed[0][1])
    (begins, _), after = max(timed_ranks, key=lambda timed: timed[0][0])
    if ended + slack < begins:
        raise UsageError(f"{before.source} ends before {after.source} begins", ONE_JOB)


def list_assumptions(ranks: Sequence[RankTrace]) -> tuple[str, ...]:
    """Assumptions about what these traces leave open."""
    assumptions: dict[str, None] = {}
    for rank in ranks:
        calls = [call for call in rank.calls if call.kind != "wait"]
        if any(call.took_ns > 0 for call in calls):
            assumptions[HANDED_OVER] = None
        if any(call.ends_ns < 0 <= call.issued_ns and not call.state for call in calls):
            assumptions[UNSEEN if rank.backend in HOST else ON_DEVICE] = None
        if any(call.seen_late for call in rank.calls):
            assumptions[MESSAGES] = None
    return tuple(assumptions)


def _seen_late(calls: Sequence[Call]) -> Iterator[int]:
    """Messages, by their places, that may have ended long before they were waited for."""
    for wait in calls:
        waited = wait.ends_ns - wait.issued_ns
        for at in wait.after if wait.kind == "wait" else ():
            call = calls[at]
            is_known = call.kind in POINT_TO_POINT and 0 <= call.ends_ns == wait.ends_ns
            if is_known and waited < wait.issued_ns - call.issued_ns:
                yield at


def read_rank(path: Path, limits: Limits = Limits()) -> RankTrace:  # noqa: B008 - immutable
    """The trace of a rank, by its file. Raises UsageError, with the line."""
    return _read_file(path, limits).trace()


def _read_file(path: Path, limits: Limits) -> _Reader:
    reader = _Reader(path)
    try:
        for number, raw in _read_lines(path, limits):
            reader.take(number, raw)
    except (OSError, EOFError, zlib.error) as e:
        cut = isinstance(e, EOFError) or "end-of-stream" in str(e)
        if not cut or reader.head is None:
            raise UsageError(f"cannot read {path}: {first_line(e)}", HINT) from e
        reader.cut = "the end of its packed data"
    return reader


def _read_lines(path: Path, limits: Limits) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, packed or not, with their numbers. Raises UsageError."""
    given = 0
    with _open_packed(path) as file:
        for number in range(1, limits.lines + 2):
            raw = file.readline(limits.line + 1)
            given += len(raw)
            if not raw:
                return
            where = f"{path}, line {number}"
            if len(raw) > limits.line:
                raise UsageError(f"{where}: it has more than {limits.line:,} B", HINT)
            if given > limits.nbytes:
                raise UsageError(f"{where}: more than {limits.nbytes:,} B", "record fewer steps")
            if number > limits.lines:
                raise UsageError(f"{where}: more than {limits.lines:,} lines", "record fewer steps")
            yield number, raw


def _open_packed(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if packed else path.open("rb")  # type: ignore[return-value]


class _Reader:
    """A file as it is read, line by line."""

    CALL = re.compile(rb'\s*\{\s*"kind"')

    def __init__(self, path: Path) -> None:
        self._path = path
        self._call = msgspec.json.Decoder(Call)
        self._note = msgspec.json.Decoder(Note)
        self._calls: list[Call] = []
        self._notes: list[Note] = []
        self._unwritten: dict[int, tuple[str, Call]] = {}  # by place, with the line's
        self._lost: list[Lost] = []  # calls of unknown kinds, as one, and why of the first
        self._lost_numbers: dict[str, list[int]] = {}
        self.head: _Head | None = None
        self.cut = ""

    def take(self, number: int, raw: bytes) -> None:
        """A line. Raises UsageError. The last one of a job that was interrupted may be cut."""
        where = f"{self._path}, line {number}"
        try:
            if self.head is None:
                self.head = self._begun(where, raw)
            elif self.CALL.match(raw):
                self._unwritten.pop(len(self._calls), None)
                self._calls.append(self._checked(where, self._call.decode(raw)))
            else:
                self._take_note(where, self._note.decode(raw))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            if self.head is not None and not raw.endswith(b"\n"):
                self.cut = f"line {number:,}"
                return
            raise UsageError(f"{where}: {printable_text(first_line(e))[:200]}", HINT) from e
        if len(self._calls) > MOST_CALLS:
            raise UsageError(f"{where}: more than {MOST_CALLS:,} calls", "record fewer steps")

    def _take_note(self, where: str, note: Note) -> None:
        if note.begun:
            self._unwritten[note.begun[0]] = where, note.begun[1]
        elif note.back:
            place, issued = note.back
            if place in self._unwritten and self._unwritten[place][1].issued_ns == issued:
                del self._unwritten[place]  # else another thread's call has the place by now
        else:
            self._notes.append(note)

    @staticmethod
    def _begun(where: str, raw: bytes) -> _Head:
        """The first line of a file, checked. Raises UsageError."""
        version = msgspec.json.decode(raw, type=_Version).collbench_trace
        if version > VERSION:
            raise UsageError(
                f"{where}: recorded in format {version} by a newer collbench: this one reads"
                f" formats up to {VERSION}",
                "read it with the collbench that recorded it, or a newer one",
            )
        head = msgspec.json.decode(raw, type=_Head)
        if not head.rank < head.world <= MOST_RANKS:
            rank_phrase = f"rank {head.rank} of {head.world} is not possible"
            raise UsageError(
                f"{where}: {rank_phrase}", f"give a trace of 1 to {MOST_RANKS:,} ranks"
            )
        if head.calls:
            raise UsageError(f"{where}: its first line has calls", HINT)
        return head

    def _checked(self, where: str, call: Call) -> Call:
        """The call of a line, checked. Raises UsageError."""
        texts = (call.kind, call.group, call.dtype, call.op, call.phase, call.source)
        if max(map(len, texts)) > LONGEST:
            start = printable_text(max(texts, key=len)[:40])
            raise UsageError(f"{where}: '{start}…' has more than {LONGEST:,} characters", HINT)
        for what, name, names in (
            ("datatype", call.dtype, DTYPES),
            ("reduction", call.op, ("none", *OPS)),
        ):
            if name not in names:
                hint = "one of " + ", ".join(names) + "; a newer collbench may read it"
                raise UsageError(f"{where}: {what} '{printable_text(name)}' is unknown", hint)
        if call.after and max(call.after) >= len(self._calls):
            complaint = f"it waits for call {max(call.after)}, which is not before it"
            raise UsageError(f"{where}: {complaint}", HINT)
        return call if call.kind in KINDS else self._note_lost(call)

    def _note_lost(self, call: Call) -> Call:
        """Note that a call of an unknown kind is lost. Returns a mark, which keeps its place."""
        why = f"there is no operation '{printable_text(call.kind)[:40]}' in this version"
        before = self._lost[-1] if self._lost else Lost(why)
        nbytes = min(before.nbytes + call.nbytes, (1 << 62) - 1)
        self._lost = [Lost(before.why, before.calls + 1, nbytes)]
        self._lost_numbers.setdefault(call.group, []).append(call.number)
        return Call("mark", issued_ns=call.issued_ns, phase=call.phase, source=call.source)

    def _add_begun(self) -> None:
        """Add the calls that a job had begun when it crashed, and of which nothing else was
        written, with marks where waits were. Raises UsageError."""
        for place, (where, call) in sorted(self._unwritten.items()):
            if place >= MOST_CALLS:
                raise UsageError(f"{where}: more than {MOST_CALLS:,} calls", "record fewer steps")
            mark = Call("mark", issued_ns=call.issued_ns)
            self._calls += [mark] * (place - len(self._calls))
            self._calls.append(self._checked(where, call))
        self._unwritten.clear()

    @property
    def span(self) -> Interval | None:
        """The interval from the first call to the end of the recording, as far as the file goes;
        None without either."""
        begins = [call.issued_ns for call in self._calls if call.issued_ns >= 0]
        ends = [max(call.issued_ns, call.ends_ns) for call in self._calls]
        ends += [max(note.until or 0, note.ended or 0) for note in self._notes]
        return (min(begins), max(ends)) if begins else None

    def trace(self) -> RankTrace:
        """The rank's trace of all lines that were read. Raises UsageError where there are none."""
        if self.head is None:
            raise UsageError(f"{self._path}: the file is empty", HINT)
        about = {name: getattr(self.head, name) for name in RankTrace.__struct_fields__}
        group_notes = {note.group: note for note in self._notes if note.group is not None}
        end = next((note for note in self._notes if note.ended is not None), None)
        if end is None:
            self._add_begun()
        lost = [*self._lost, *(note.lost for note in self._notes if note.lost)]
        lost += [Lost(INTERRUPTED)] * (end is None)
        went_on = end is not None and not end.broken
        until = -1 if end else max((note.until or 0 for note in self._notes), default=0)
        until = 0 if went_on or any(loss.calls for loss in lost) else until
        groups = {name: note.ranks for name, note in group_notes.items()}
        described = {name: note.described for name, note in group_notes.items() if note.described}
        about |= {
            "calls": self._ended(went_on),
            "until": until,
            "groups": self.head.groups | groups,
            "described": self.head.described | described,
            "steps": (*self.head.steps, *(note.step for note in self._notes if note.step)),
            "lost": (*self.head.lost, *lost),
            "lost_numbers": self.head.lost_numbers
            | {name: tuple(numbers) for name, numbers in self._lost_numbers.items()},
            "source": str(self._path),
            "cut": self.cut,
            "fake": self.head.fake or any(note.fake for note in self._notes),
            "complete_until_ns": max(
                (note.until or note.ended or -1 for note in self._notes), default=-1
            ),
        }
        return RankTrace(**about)

    def _ended(self, went_on: bool) -> tuple[Call, ...]:
        """The calls, with ends, senders and waits for them that were written later. Where the job
        ``went_on`` after the recording, nobody knows whether those under way then have ended."""
        calls = list(self._calls)
        for note in self._notes:
            at, ends = note.late or (len(calls), -1)
            if at < len(calls) and calls[at].kind != "mark":
                call = calls[at]
                state, begins = ("", call.issued_ns) if ends >= 0 else ("started", -1)
                is_named = note.peer >= 0 and call.kind in POINT_TO_POINT
                peer = note.peer if is_named else call.peer
                calls[at] = replace(call, state=state, begins_ns=begins, ends_ns=ends, peer=peer)
        if went_on:
            calls = [replace(call, state="") if call.state else call for call in calls]
        for at in list(_seen_late(calls)):
            calls[at] = replace(calls[at], seen_late=True)
        return tuple(calls)
