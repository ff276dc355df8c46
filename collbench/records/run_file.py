"""The file of a run: its lines, written one by one as the run goes on, and read again."""

from __future__ import annotations

import errno
import fcntl
import gc
import hashlib
import math
import os
import shlex
import signal
import stat
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, count, islice
from multiprocessing import get_context
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

import msgspec

from collbench.core import files
from collbench.core.errors import CannotRun, CollbenchError, NoVerdict, UsageError
from collbench.records.derive import Digested, derive_row, digest_record
from collbench.records.types import End, Record, Run, RunFile, World
from collbench.survive.encoding import encode_json

Line = Run | World | Record | End

Digest = Run | World | Digested | End


class _Part(NamedTuple):
    """Some lines of a file: the offset where they begin, the number of the first, how many."""

    begin: int
    number: int
    lines: int


class Outline(NamedTuple):
    """A run, the number of its records, how it ended, None where it was cut short or is
    ``running``, whether it was measured on fake GPUs, and the bytes of its file."""

    run: Run
    cases: int
    end: End | None
    fake: bool = False
    running: bool = False
    nbytes: int = 0


class _Read(msgspec.Struct, frozen=True, tag_field="line", tag="record"):
    """What says whether a record stands."""

    case: msgspec.Raw
    status: str
    world: int = -1
    again: bool = False
    stop: str = ""


class _Brief(NamedTuple):
    """The fields of a record by which a reader decides whether it stands; ``case`` is the hash of
    the case's JSON."""

    case: int
    status: str
    world: int
    again: bool
    stop: str


class _Standing(Protocol):
    """What says of a record whether it stands."""

    @property
    def case(self) -> Hashable: ...
    @property
    def status(self) -> str: ...
    @property
    def world(self) -> int: ...
    @property
    def again(self) -> bool: ...
    @property
    def stop(self) -> str: ...


R = TypeVar("R", bound=_Standing)

WHOLE = _Part(0, 1, sys.maxsize)

PART_BYTES = 1 << 22  # a process reads so much at a time

RECORD = b'{"line":"record",'  # how Writer begins a record's line
WORLD = b'{"line":"world"'

MOST_LINE = 256 << 20  # bytes, as ranks may send: a million samples of a case take 20 MB

MOST_LINES = 300_000  # nearly six attempts at each case of the largest suite

SYNC_S = 1.0  # between two syncs, which take milliseconds each
SYNC_UNSUPPORTED = (errno.EINVAL, errno.EROFS, errno.ENOSYS, errno.ENOTSUP)  # of what is on no disk

NOTHING: dict[str, object] = {  # one of each for all records: millions take their room else
    field.name: field.default_factory()
    for field in msgspec.structs.fields(Record)
    if field.default_factory in (list, dict)
}

EDITED = "the file was written by another version, or edited"


class Writer:
    """Appends lines to a run's file, each whole or not at all, and synced to the disk once a second
    at most, and at the end. The file is private (0600) to its owner, and locked as long as this
    process lives.

    When the disk is full, lines wait in memory for the next ``write`` to try again, and ``trouble``
    says so; also where that shows only when they are synced, as on file servers. Where somebody
    removes or renames the file, it is written anew with all that it held: at its path, or beside it
    where another file is there now, and ``moved`` says so. Where somebody cuts the file or writes
    into it, it is written anew with what is still to come, and ``lost`` says so.
    """

    def __init__(self, path: Path, run: Run | None = None) -> None:
        """A new file that begins with ``run``; or an old one to go on with, less a line torn off at
        its end."""
        self.path = path
        self.trouble = self.lost = self.moved = ""
        self._heads: list[bytes] = []  # without which no record can be read
        self._waiting: list[bytes] = []
        self._good = 0
        self._written, self._changed = hashlib.blake2b(), -1  # what is written, and when
        self._unsynced: list[bytes] = []
        self._synced = 0, hashlib.blake2b()  # _good and _written at the last sync
        self._next_sync = -math.inf
        try:
            files.make_folder(path.parent)
            self._fd = os.open(path, os.O_RDWR | (os.O_CREAT if run else 0), 0o600)
        except OSError as e:
            raise CannotRun(
                f"cannot write {path}: {e.strerror}",
                "choose another place with --output, or --no-save",
            ) from e
        self._lock()
        self.found_bytes = os.fstat(self._fd).st_size
        if run is None:
            self._mend()
            return
        if self.found_bytes:
            raise UsageError(f"{path} exists", NEVER_OVERWRITTEN)
        self.write(run)
        if self.trouble:
            self._remove_file()
            raise CannotRun(
                self.trouble, "free some space, choose another place with --output, or --no-save"
            )

    def _lock(self) -> None:
        """Lock the file. Raises UsageError where another process writes it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                return  # /dev/null takes what any number of processes write
            raise UsageError(
                f"{self.path} is being written by another process", "wait for it, or stop it"
            ) from None
        except OSError:
            pass  # a file system without locks

    def _mend(self) -> None:
        """Cut off what was torn off; a last line that lacks nothing but its end gets it."""
        kinds = b'{"line":"run"', WORLD
        last = b""
        with self.path.open("rb") as f:
            for _, last in read_bounded(self.path, f):
                self._heads += [last] if last.startswith(kinds) else []
                if last.endswith(b"\n"):
                    self._good += len(last)
                    self._written.update(last)
        with suppress(msgspec.DecodeError, RecursionError):
            if not last.endswith(b"\n"):
                msgspec.json.decode(last, type=Line)
                self._good += len(last)
                self._written.update(last)
                self._append(b"\n")
        os.ftruncate(self._fd, self._good)
        self._synced = self._good, self._written.copy()

    def write(self, line: Run | World | Record | End) -> None:
        """Append a line, and what could not be written before it. Raises OSError where a head
        cannot be written; records wait for room."""
        text = encode_json(line) + b"\n"
        self._waiting.append(text)
        try:
            self._still_there()
            if isinstance(line, Run | World):
                self._heads.append(text)
            while self._waiting:
                self._append(self._waiting[0])
                self._unsynced.append(self._waiting.pop(0))
            if time.monotonic() >= self._next_sync:
                self._sync()
            self.trouble = ""
        except OSError as e:
            self._cut_back(e)

    def _cut_back(self, e: OSError) -> None:
        """Cut the file back to what is good, and say why the rest is not in it."""
        with suppress(OSError):  # no regular file (a pipe, /dev/full) can be cut back
            os.ftruncate(self._fd, self._good)
        self.trouble = f"cannot write {self.path}: {e.strerror}; {len(self._waiting)} lines wait"

    def _sync(self) -> None:
        """Have what is written on the disk. Raises OSError where it is not: then all lines since
        the last sync wait."""
        try:
            os.fdatasync(self._fd)
        except OSError as e:
            if e.errno not in SYNC_UNSUPPORTED:
                self._good, self._written = self._synced[0], self._synced[1].copy()
                self._waiting[:0] = self._unsynced
                self._unsynced.clear()
                raise
        self._unsynced.clear()
        self._synced = self._good, self._written.copy()
        self._next_sync = time.monotonic() + SYNC_S

    def _still_there(self) -> None:
        """Mends what others did to the file meanwhile."""
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            return
        is_touched = (status.st_size, status.st_mtime_ns) != (self._good, self._changed)
        if self._unsynced and is_touched:
            self._sync()  # what the disk had no room for is nobody's doing
            status = os.fstat(self._fd)
        if status.st_size < self._good:
            os.ftruncate(self._fd, 0)
            self.lost = f"{self.path} was cut while it was written: what it held is lost"
            self._begin_anew(b"".join(self._heads))
        elif status.st_mtime_ns != self._changed and self._is_of_others():
            self.lost = f"{self.path} was overwritten while it was written: what it held is lost"
            self._go_on_elsewhere(b"".join(self._heads))
        elif status.st_size > self._good:
            content = b"".join(self._read_written())
            before = self.path
            self._go_on_elsewhere(content)
            self.moved = f"another process wrote to {before}: the run is in {self.path}"
        elif not self._is_at_its_path(status):
            before = self.path
            self._go_on_elsewhere(b"".join(self._read_written()))
            if self.path != before:
                self.moved = f"{before} is another file now: the run is in {self.path}"

    def _is_at_its_path(self, status: os.stat_result) -> bool:
        try:
            return os.path.samestat(self.path.stat(), status)
        except FileNotFoundError:
            return False
        except OSError:  # nobody can tell
            return status.st_nlink > 0

    def _is_of_others(self) -> bool:
        """Whether what was written is no longer in the file as it was."""
        content = hashlib.blake2b()
        for part in self._read_written():
            content.update(part)
        return content.digest() != self._written.digest()

    def _read_written(self) -> Iterator[bytes]:
        """What is written, in parts: Linux reads less than 2 GiB at once."""
        at = 0
        while part := os.pread(self._fd, min(PART_BYTES, self._good - at), at):
            yield part
            at += len(part)

    def _go_on_elsewhere(self, content: bytes) -> None:
        """Begin a new file with what the run holds, at the path of the old one if that is free,
        else beside it."""
        files.make_folder(self.path.parent)
        old, names = self._fd, (f"{self.path.stem}-{i}{self.path.suffix}" for i in count(1))
        for path in chain([self.path], map(self.path.with_name, names)):
            with suppress(FileExistsError):
                self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                self.path = path
                break
        os.close(old)
        self._lock()
        self._begin_anew(content)

    def _begin_anew(self, content: bytes) -> None:
        self._good, self._written = 0, hashlib.blake2b()
        self._synced, self._next_sync = (0, hashlib.blake2b()), -math.inf
        self._unsynced.clear()
        self._waiting.insert(0, content)

    def _append(self, line: bytes) -> None:
        at = self._good
        while at < self._good + len(line):
            at += os.pwrite(self._fd, line[at - self._good :], at)
        self._good = at
        self._written.update(line)
        self._changed = os.fstat(self._fd).st_mtime_ns

    def close(self) -> None:
        """Close the file, synced; what a file system tells only now is ``trouble``."""
        try:
            if self._unsynced:
                self._sync()
        except OSError as e:
            self._cut_back(e)
        try:
            os.close(self._fd)
        except OSError as e:
            self.trouble = self.trouble or f"cannot write {self.path}: {e.strerror}"

    def _remove_file(self) -> None:
        """Remove a file that was begun and holds nothing."""
        is_file = stat.S_ISREG(os.fstat(self._fd).st_mode)
        self.close()
        if is_file:
            with suppress(OSError):
                self.path.unlink()


@contextmanager
def guard_reading() -> Iterator[None]:
    """Raise errors of reading as CannotRun. Garbage collection is off meanwhile: reading makes
    millions of objects and no cycles."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    except OSError as e:
        raise CannotRun(
            f"cannot read {e.filename or 'a run'}: {e.strerror}", "collbench runs lists runs"
        ) from e
    finally:
        if was:
            gc.enable()


@guard_reading()
def read_run(path: Path) -> Run:
    """The first line of a run's file."""
    with path.open("rb") as f:
        line = f.readline(MOST_LINE)
    try:
        return msgspec.json.decode(line, type=Run)
    except (msgspec.DecodeError, RecursionError) as e:
        raise unreadable_error(path, 1, line, e) from e


@guard_reading()
def read_worlds(path: Path, ranks: int) -> list[World]:
    """The process groups of a run's file up to the first of so many ``ranks``, after which nothing
    is read. Raises UsageError."""
    worlds: list[World] = []
    with path.open("rb") as f:
        for number, line in read_bounded(path, f):
            if line.startswith(WORLD) and line.endswith(b"\n"):
                try:
                    worlds.append(msgspec.json.decode(line, type=World))
                except (msgspec.DecodeError, RecursionError) as e:
                    raise unreadable_error(path, number, line, e) from e
                if worlds[-1].n >= ranks:
                    break
    return worlds


def unreadable_error(path: Path, number: int, line: bytes, e: Exception) -> UsageError:
    """The error on a line that cannot be read; on a file's first line it says what the file may
    be."""
    if number > 1 or line.startswith(b'{"line":'):
        return UsageError(f"{path}, line {number}: {e}", EDITED)
    if line.startswith(b"\x1f\x8b"):
        return UsageError(
            f"{path} is packed", "gunzip it, or give a packed log to collbench import"
        )
    hint = f"a log of another tool? collbench import {shlex.quote(str(path))} makes a run of it"
    return UsageError(f"{path} is not a run of collbench", hint)


@guard_reading()
def read_file(path: Path) -> RunFile:
    """A whole run. A torn last line (a crash while writing) is left out; anything else malformed is
    a UsageError. Of a resumed run only the last attempt at a case is left, and an End is the end
    only where nothing follows. A file of too much is refused before any record is in memory.
    """
    nbytes = path.stat().st_size
    _survey_file(path)
    return msgspec.structs.replace(_sort_lines(path, _decode_lines(path)), nbytes=nbytes)


@guard_reading()
def read_outline(path: Path) -> Outline:
    """The line of one run in a list, without reading what its records hold. Raises UsageError."""
    run, last, fake = read_run(path), None, False
    briefs: list[_Brief] = []
    decoder = msgspec.json.Decoder(Run | World | _Read | End)
    with path.open("rb") as f:
        for number, line in read_bounded(path, f):
            try:
                last = decoder.decode(line)
            except (msgspec.DecodeError, RecursionError) as e:
                if line == b"\n" or not line.endswith(b"\n"):
                    continue
                raise unreadable_error(path, number, line, e) from e
            if isinstance(last, Run) and number > 1:
                raise several_runs_error(path, run, last)
            fake = fake or (isinstance(last, World) and last.fake)
            if isinstance(last, _Read):
                briefs.append(_Brief(hash(bytes(last.case)), *msgspec.structs.astuple(last)[1:]))
    end = last if isinstance(last, End) else None
    cases, nbytes = len(select_standing(run, briefs)), path.stat().st_size
    return Outline(run, cases, end, fake, is_running(path), nbytes)


@guard_reading()
def read_digest(path: Path) -> RunFile:
    """A run for showing it: as ``read_file``, but its records are Digested, of which 100,000 take
    some hundred MiB; a file may hold three times as many. Several processes read large files."""
    worlds, parts = _survey_file(path)
    return _sort_lines(
        path, chain.from_iterable(_map_parts(parts, partial(_digest_part, path, worlds)))
    )


def _sort_lines(path: Path, lines: Iterable[Line]) -> RunFile:
    """The lines of a run's file by kind."""
    worlds: list[World] = []
    records: list[Record] = []
    run: Run | None = None
    end: End | None = None
    ended_worlds = 0
    for line in lines:
        end = None
        match line:
            case Run() if run is not None:
                raise several_runs_error(path, run, line)
            case Run():
                run = line
            case World():
                worlds.append(line)
            case Record():
                for name, nothing in NOTHING.items():
                    if not getattr(line, name):
                        msgspec.structs.force_setattr(line, name, nothing)
                records.append(line)
            case End():
                end, ended_worlds = line, len(worlds)
    if run is None:
        raise UsageError(
            f"{path} is not a collbench run",
            "name a run that collbench runs lists, or its file",
        )
    return RunFile(
        run=run,
        worlds=worlds,
        records=select_standing(run, records),
        end=end,
        path=path,
        ended_worlds=ended_worlds,
    )


def several_runs_error(path: Path, first: Run, second: Run) -> UsageError:
    return UsageError(
        f"{path} holds several runs, {first.id} and {second.id}",
        'cut it before the second line that begins with {"line":"run"',
    )


def is_unfinished(record: _Standing) -> bool:
    """Whether its case is measured again where the run is resumed: it failed, or was cut short."""
    return record.status == "failed" or record.stop == "cut"


def select_standing(run: Run, records: list[R]) -> list[R]:
    """All but unfinished and skipped records whose case was measured again, and those in whose
    place another stands; of an interleaved comparison, where every launch counts, all."""

    def gives_way(record: R) -> bool:
        return is_unfinished(record) or record.status == "skipped"

    open_ = {record.case for record in records if gives_way(record) and run.pairing is None}
    latest = {record.case: record for record in records if record.case in open_}
    instead = {(r.case, r.world): r for r in records if r.again}
    if instead:
        records = [r for r in records if instead.get((r.case, r.world), r) is r]
    return [r for r in records if not gives_way(r) or latest.get(r.case, r) is r]


def _decode_lines(path: Path, part: _Part = WHOLE) -> Iterator[Line]:
    """The lines of a part of a file, up to the first that is cut off. Raises CannotRun for a line
    that cannot be read."""
    decoder = msgspec.json.Decoder(Line)
    with path.open("rb") as f:
        f.seek(part.begin)
        for number, line in islice(read_bounded(path, f, part.number), part.lines):
            if line == b"\n":
                continue
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, RecursionError) as e:
                ours = number > 1 or line.startswith(b'{"line":')
                if ours and not line.endswith(b"\n"):
                    return
                raise unreadable_error(path, number, line, e) from e


def read_bounded(path: Path, file: BinaryIO, first: int = 1) -> Iterator[tuple[int, bytes]]:
    """The lines from here on with their numbers. Raises UsageError where one is longer, or they are
    more, than any run's."""
    for number, line in enumerate(iter(partial(file.readline, MOST_LINE + 1), b""), first):
        if len(line) > MOST_LINE or number > MOST_LINES:
            what = f"of more than {MOST_LINE >> 20} MiB" if number <= MOST_LINES else "too many"
            raise UsageError(
                f"{path}, line {number}: a line {what}",
                f"check the file for damage: lines are shorter, and a run that was resumed so often"
                f" that it has more than {MOST_LINES:,} is measured anew",
            )
        yield number, line


def _survey_file(path: Path) -> tuple[dict[int, World], list[_Part]]:
    """The worlds of a file by index, and the file's parts of some MiB each."""
    worlds: dict[int, World] = {}
    begins: list[tuple[int, int]] = []
    at, number = 0, 0
    with path.open("rb") as f:
        for number, line in read_bounded(path, f):
            if not begins or at - begins[-1][0] > PART_BYTES:
                begins.append((at, number))
            if not line.startswith(RECORD):
                for found_line in _decode_lines(path, _Part(at, number, 1)):
                    if isinstance(found_line, World):
                        worlds[found_line.index] = found_line
            at += len(line)
    ends = [*begins[1:], (at, number + 1)]
    return worlds, [
        _Part(*begin, end[1] - begin[1]) for begin, end in zip(begins, ends, strict=False)
    ]


def _digest_part(path: Path, worlds: dict[int, World], part: _Part) -> list[Digest]:
    """The lines of a part of the file."""
    return [
        (
            digest_record(line, derive_row(line, worlds.get(line.world)))
            if isinstance(line, Record)
            else line
        )
        for line in _decode_lines(path, part)
    ]


def _map_parts(parts: list[_Part], work: Callable[[_Part], list[Digest]]) -> Iterator[list[Digest]]:
    """``work`` on each of the parts, in their order: on all cores if that is worth starting
    processes for."""
    workers = min(len(parts) // 4, len(os.sched_getaffinity(0)))
    if workers < 2:
        yield from map(work, parts)
        return
    decoder = msgspec.msgpack.Decoder(list[Digest])
    quiet = (signal.SIGINT, signal.SIG_IGN)  # whoever interrupts wants to hear it once
    try:
        with ProcessPoolExecutor(workers, get_context("fork"), signal.signal, quiet) as pool:
            yield from map(decoder.decode, pool.map(partial(_pack_digest, work), parts))
    except BrokenProcessPool as e:
        raise CannotRun(
            "a process that read the run was killed", "it may have lacked memory; try again"
        ) from e


def _pack_digest(work: Callable[[_Part], list[Digest]], part: _Part) -> bytes:
    """The digest as MessagePack, which takes a tenth of the time of pickling."""
    return msgspec.msgpack.encode(work(part))


NEVER_OVERWRITTEN = "choose another name, or a folder: runs are never overwritten"


def is_running(path: Path) -> bool:
    """Whether some process is writing the run: its Writer holds a lock. Never where the file system
    has none."""
    try:
        with path.open("rb") as f:
            fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def describe_running(path: Path) -> str:
    """A sentence that a run is still running, in which process, and since when."""
    facts = [f"pid {pid}"] if (pid := _lock_holder(path)) else []
    with suppress(CollbenchError):
        facts.append(f"since {read_run(path).started}")
    return f"{path.stem} is still running ({', '.join(facts)})"


def refuse_empty(file: RunFile) -> None:
    """Raises NoVerdict for a run without a case: it ended before its first one, or still runs."""
    if file.records:
        return
    if is_running(file.path):
        raise NoVerdict(describe_running(file.path), "name it once it has ended")
    raise NoVerdict(f"{file.run.id} measured nothing", "collbench runs says how it ended")


def _lock_holder(path: Path) -> int:
    """The process that holds the lock of a file, as Linux says; 0 where it does not."""
    with suppress(OSError):
        status = path.stat()
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == f"{device}:{status.st_ino}":
                return max(0, int(fields[4]))
    return 0
