"""The database of nights, in SQLite: a file beside the runs.

Everything is added in one transaction or not at all, as often as one likes, by as many processes as
like.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import shlex
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from collbench.core import files
from collbench.core.errors import CannotRun, NoVerdict, UsageError
from collbench.core.text import print_message, readable_text
from collbench.features.health.history import nights
from collbench.features.health.history.baselines import Baseline
from collbench.features.health.history.nights import (
    Night,
    NightLaunch,
    Review,
    Series,
    find_night_before,
    launches_of,
    merge_nights,
    narrow_fingerprint,
    night_of,
    run_fingerprint,
)
from collbench.machine import environment, variables
from collbench.machine.sysfs import hash_identity
from collbench.records.machines import name_machine
from collbench.records.types import RunFile
from collbench.suite.case import Case
from collbench.suite.sweep import Part
from collbench.survive.encoding import encode_json

T = TypeVar("T")

SCHEMA = 2

WAIT = 60  # seconds for another process to end its transaction
SAY_SECONDS = 2.0  # of them until that is said

NO_ACCESS_HINT = "run this as its owner, or choose another file with --history"

MEMORY = ":memory:"  # SQLite's name of a database that is gone when it is closed

TABLES = (
    "collbench_schema (version INTEGER NOT NULL PRIMARY KEY)",
    "runs (id TEXT NOT NULL PRIMARY KEY, machine TEXT NOT NULL, night TEXT NOT NULL,"
    " started TEXT NOT NULL, fingerprint TEXT NOT NULL, tag TEXT NOT NULL, file TEXT NOT NULL)",
    "cases (key TEXT NOT NULL PRIMARY KEY, spec TEXT NOT NULL)",
    # a row of a run: one line for each launch
    "rows (run TEXT NOT NULL REFERENCES runs (id), key TEXT NOT NULL REFERENCES cases (key),"
    " launch INTEGER NOT NULL, median DOUBLE NOT NULL, samples INTEGER NOT NULL,"
    " manner TEXT NOT NULL, unfit TEXT NOT NULL, PRIMARY KEY (run, key, launch))",
    "environments (fingerprint TEXT NOT NULL PRIMARY KEY, facts TEXT NOT NULL)",
    "baselines (id TEXT NOT NULL PRIMARY KEY, machine TEXT NOT NULL, made TEXT NOT NULL,"
    " content TEXT NOT NULL)",
)

CREATION = (
    *(f"CREATE TABLE IF NOT EXISTS {table}" for table in TABLES),
    *(
        f"CREATE INDEX IF NOT EXISTS ix_{table}_machine ON {table} (machine)"
        for table in ("runs", "baselines")
    ),
)

MIGRATIONS = {  # to the version after
    1: tuple(
        f"ALTER TABLE rows ADD COLUMN {name} TEXT NOT NULL DEFAULT ''"
        for name in ("manner", "unfit")
    ),
}

# the fields of nights.NightLaunch behind the row's key
LAUNCHES = """SELECT rows.key, runs.id, launch, night, fingerprint, median, samples, manner,
  unfit, started
  FROM rows JOIN runs ON runs.id = rows.run WHERE machine = ? ORDER BY started, runs.id, launch"""

CASES = """SELECT key, spec FROM cases
  WHERE key IN (SELECT rows.key FROM rows JOIN runs ON runs.id = rows.run WHERE machine = ?)"""


class Book:
    """An open history, in the file that is named, also as in ``sqlite:///FILE``. ``option`` names
    it in hints: a command without it would find another. A file that this user may only read is
    opened for reading: what needs to write raises CannotRun."""

    def __init__(self, url: str = "", reading: bool = False) -> None:
        file = _find_file(url or os.environ.get("COLLBENCH_HISTORY", ""))
        self.name = variables.mask_text(f"sqlite:///{file}")
        self.option = f" --history {shlex.quote(variables.mask_text(url))}" if url else ""
        self._read_only, where = False, file
        if file != MEMORY:
            if not _is_there(Path(file), self.name):
                if reading:
                    raise UsageError(
                        f"no night is kept: there is no {file}",
                        f"collbench history add @last{self.option} begins one",
                    )
                _make_file(Path(file), self.name)
            _refuse_large_file(file)
            self._read_only = not os.access(file, os.W_OK)
            where = f"{Path(file).absolute().as_uri()}?mode={'ro' if self._read_only else 'rw'}"
        with self._refuse_failures():
            self._connection = sqlite3.connect(
                where, timeout=WAIT, isolation_level=None, uri=file != MEMORY
            )
        try:
            self._ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Book:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def add(self, file: RunFile, machine: str = "") -> bool:
        """A run's rows, all or none; False where they were all there. ``machine`` names the place
        it ran, if the names of its hosts do not, since they are others each night. Raises
        NoVerdict for a run without times, and UsageError."""
        launches, run, where = launches_of(file), file.run, machine or name_machine(file)
        if not launches:
            raise NoVerdict(f"{run.id} measured nothing", "add runs that have times")
        facts = nights.run_facts(file)
        name = run_fingerprint(facts)
        lines: dict[str, list[dict[str, Any]]] = {
            "runs": [
                {
                    "id": run.id,
                    "machine": where,
                    "night": night_of(run.started),
                    "started": run.started,
                    "tag": run.tag,
                    "fingerprint": name,
                    "file": str(file.path),
                }
            ],
            "environments": [{"fingerprint": name, "facts": _encode_text(facts)}],
            "cases": [{"key": case.key, "spec": _encode_text(case)} for case in launches],
            "rows": [
                {
                    "run": run.id,
                    "key": case.key,
                    "launch": number.number,
                    "median": number.median,
                    "samples": number.samples,
                    "manner": number.manner,
                    "unfit": number.unfit,
                }
                for case, launch in launches.items()
                for number in launch
            ],
        }
        with self._transaction() as to:
            query = "SELECT key, launch FROM rows WHERE run = ?"
            saved_rows = {*to.execute(query, [run.id]).fetchall()}
        if saved_rows.issuperset((row["key"], row["launch"]) for row in lines["rows"]):
            return False
        with self._transaction("BEGIN IMMEDIATE") as to:
            return [_insert(to, table, rows) for table, rows in lines.items()][-1] > 0

    def holds(self, run: str) -> bool:
        """Whether the run of this id is kept."""
        return bool(self._machines_of(run))

    def find_machine(self, run: str) -> str:
        """The machine under which the run of this id is kept. Raises UsageError if it is not."""
        machines = self._machines_of(run)
        if not machines:
            raise UsageError(
                f"{run} is not kept", f"collbench history add {run}{self.option} keeps it"
            )
        return machines[0]

    def accept(self, baseline: Baseline) -> bool:
        """Keeps a reviewed baseline; False where it was there."""
        content = _encode_text(baseline)
        line = {
            "id": hash_identity(content),
            "machine": baseline.machine,
            "made": baseline.when,
            "content": content,
        }
        with self._transaction("BEGIN IMMEDIATE") as to:
            return _insert(to, "baselines", [line]) > 0

    def machines(self) -> list[str]:
        """Machines of which the book has runs. Raises CannotRun."""
        with self._transaction() as to:
            lines = to.execute("SELECT DISTINCT machine FROM runs ORDER BY machine").fetchall()
        return [machine for (machine,) in lines]

    def default_machines(self) -> list[str]:
        """Machines that are meant where none is named: this one, or all where it has no runs."""
        machines, host = self.machines(), environment.host_name()
        return [host] if host in machines else machines

    def select(self, machine: str) -> str:
        """The options by which a command finds this book and the machine, for hints."""
        is_meant = self.default_machines() == [machine]
        return self.option + ("" if is_meant else f" --machine {shlex.quote(machine)}")

    def baselines(self, machine: str) -> list[Baseline]:
        """Oldest first."""
        query = "SELECT id, content FROM baselines WHERE machine = ? ORDER BY made, id"
        with self._transaction() as to:
            lines = to.execute(query, [machine]).fetchall()
        return [self._decoded(Baseline, "baselines", *line) for line in lines]

    def series(self, machine: str, part: Part | None = None) -> list[Series]:
        """The machine's rows that are in ``part``, each over all its nights; in order of line and
        size."""
        with self._transaction() as to:
            cases = {
                key: case
                for key, spec in to.execute(CASES, [machine])
                if (case := _decode_case(key, spec)) and (part is None or case in part)
            }
            launches: dict[str, list[NightLaunch]] = {key: [] for key in cases}
            for key, *fields in to.execute(LAUNCHES, [machine]):
                if key in launches:
                    launches[key].append(NightLaunch(*fields))
            facts = to.execute("SELECT fingerprint, facts FROM environments").fetchall()
        environments = {
            name: self._decoded(dict[str, Any], "environments", name, text) for name, text in facts
        }
        prints = {
            backend: {
                name: narrow_fingerprint(name, facts, backend)
                for name, facts in environments.items()
            }
            for backend in {case.backend for case in cases.values()}
        }
        merged = {
            key: merge_nights(launches[key], prints[case.backend]) for key, case in cases.items()
        }
        baselines = self.baselines(machine)
        return [
            Series(
                machine=machine,
                case=case,
                nights=merged[key],
                environments={
                    prints[case.backend][name]: facts for name, facts in environments.items()
                },
                reviews=[
                    _make_review(baseline, key, merged[key])
                    for baseline in baselines
                    if key in baseline.rows
                ],
            )
            for key, case in sorted(
                cases.items(), key=lambda item: (_line_key(item[1]), item[1].nbytes)
            )
        ]

    def _machines_of(self, run: str) -> list[str]:
        with self._transaction() as to:
            lines = to.execute("SELECT machine FROM runs WHERE id = ?", [run]).fetchall()
        return [machine for (machine,) in lines]

    def _ready(self) -> None:
        """Tables as this version knows them: made where there are none, migrated where they are
        older."""
        with self._transaction() as to:
            version = _read_version(to)
        if version == SCHEMA:
            return
        if self._read_only and 0 < version < SCHEMA:
            raise CannotRun(
                f"{self.name} is of version {version} and has to be migrated to {SCHEMA}, which"
                " needs permission to write it",
                f"collbench history list{self.option}, run by its owner, migrates it",
            )
        with self._transaction("BEGIN IMMEDIATE") as to:
            version = _read_version(to)
            if version > SCHEMA:
                raise CannotRun(
                    f"{self.name} is of version {version}, and this collbench knows {SCHEMA}",
                    "use the collbench that wrote it, or a newer one",
                )
            migrations = (MIGRATIONS[old] for old in range(version or SCHEMA, SCHEMA))
            for statement in itertools.chain(CREATION, *migrations):
                to.execute(statement)
            to.execute("DELETE FROM collbench_schema")
            to.execute("INSERT INTO collbench_schema VALUES (?)", [SCHEMA])

    def _decoded(self, kind: type[T], table: str, name: str, text: str) -> T:
        """The value in JSON of a line of ``table``. Raises CannotRun."""
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, RecursionError) as e:
            hint = "delete that line from the database; levels can be loaded again from their files"
            raise CannotRun(f"history at {self.name}: line {name} of {table}: {e}", hint) from e

    @contextmanager
    def _transaction(self, begin: str = "BEGIN") -> Iterator[sqlite3.Connection]:
        """A transaction that ``begin`` begins: all that is done in it, or nothing. Who reads first
        and then writes would have to fail, so writers begin with BEGIN IMMEDIATE."""
        connection = self._connection
        with self._refuse_failures():
            try:
                with self._announce_wait():
                    connection.execute(begin)
                    # BEGIN alone takes no lock: the first statement does
                    connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
                yield connection
                with self._announce_wait():
                    connection.commit()  # waits for those that read
            except BaseException:
                connection.rollback()
                raise

    @contextmanager
    def _refuse_failures(self) -> Iterator[None]:
        """Raises errors of SQLite as CannotRun, in one line."""
        try:
            yield
        except sqlite3.Error as e:
            complaint = str(e)
            hint = "is it a history, and may you write there?"
            if "readonly" in complaint:
                complaint = "this user may not write it"
                hint = NO_ACCESS_HINT
            if "locked" in complaint:
                hint = "another process holds it (fuser names it): wait for it or end it"
            raise CannotRun(f"history at {self.name}: {complaint}", hint) from None

    @contextmanager
    def _announce_wait(self) -> Iterator[None]:
        """Print that the history does not answer yet, where a statement waits for a lock. No
        work on the rows may be in it: that can take long, too."""
        waiting = f"history at {self.name} does not answer yet: does another process hold it?"
        patience = threading.Timer(
            SAY_SECONDS, print_message, [f"{waiting} waiting up to {WAIT} s"]
        )
        patience.daemon = True
        patience.start()
        try:
            yield
        finally:
            patience.cancel()


class FullHistory(UsageError):
    """A file has no room for further nights."""


def _refuse_large_file(file: str) -> None:
    """Raises FullHistory for a file of over 4 GiB, which is full or no history."""
    if os.path.isfile(file) and os.path.getsize(file) > 4 << 30:  # noqa: PTH113, PTH202
        raise FullHistory(
            f"{file} is larger than 4 GiB, the limit of a history",
            "begin another: collbench history add RUNS --history NEW.sqlite; the levels kept in"
            " files go there by collbench history baseline load FILE --history NEW.sqlite",
        )


def _find_file(text: str) -> str:
    """The file of a database, given as its path or as in ``sqlite:///FILE``; of ``sqlite://`` it is
    MEMORY. A path may have a question mark, behind which a URL has options. Raises UsageError,
    without repeating what may hold a password."""
    if text == "sqlite://":
        return MEMORY
    path = text.removeprefix("sqlite:///")
    if "?" in path and (path != text or text.startswith("file:")):
        raise UsageError(
            "a history's URL takes no options, which begin at its question mark",
            "leave them out; a file that has a question mark in its name is given by its path"
            " alone, as in --history 'a?.sqlite'",
        )
    scheme, is_url, _ = path.partition("://")
    if is_url:
        other = scheme if scheme.isalnum() else "another database"
        raise UsageError(
            f"a history is an SQLite file, and the URL of {other} is given",
            "name a file, as in --history nights.sqlite; collbench history add RUNS fills it",
        )
    return str(files.expand_path(path) if path else files.home_folder() / "history.sqlite")


def _is_there(path: Path, name: str) -> bool:
    """Whether there is such a file. Raises CannotRun where this user may not read it."""
    try:
        path.stat()
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except FileNotFoundError:
        return False
    except OSError as e:
        raise CannotRun(
            f"cannot read {name}: {e.strerror}",
            NO_ACCESS_HINT,
        ) from e
    return True


def _make_file(path: Path, name: str) -> None:
    """Make the file, which only its user may read. Raises CannotRun."""
    try:
        if path.parent == files.home_folder():  # a folder that somebody names may be a slip
            files.make_folder(path.parent)
        path.touch(mode=0o600)
    except OSError as e:
        raise CannotRun(
            f"cannot write {name}: {e.strerror}", "choose another place with --history"
        ) from e


def _read_version(to: sqlite3.Connection) -> int:
    """The version of the tables there are; 0 without any."""
    if not to.execute("SELECT 1 FROM sqlite_master WHERE name = 'collbench_schema'").fetchall():
        return 0
    lines = to.execute("SELECT version FROM collbench_schema").fetchall()
    return lines[0][0] if lines else 0


def _insert(to: sqlite3.Connection, table: str, lines: list[dict[str, Any]]) -> int:
    """Add the lines that are not there yet, all with the same columns; how many were added."""
    columns = lines[0].keys()
    places = ", ".join(f":{column}" for column in columns)
    statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"
    texts = [
        {
            name: readable_text(value) if isinstance(value, str) else value
            for name, value in line.items()
        }
        for line in lines
    ]
    return to.executemany(f"{statement} ON CONFLICT DO NOTHING", texts).rowcount


def _encode_text(value: Any) -> str:
    return encode_json(value).decode()


def _decode_case(key: str, spec: str) -> Case | None:
    """The case in JSON ``spec``; None if another version wrote it, as this version cannot measure
    it. A key of 0.1 does not tell how blocks are aligned, so that its nights may be of any."""
    try:
        case = msgspec.json.decode(spec, type=Case)
    except msgspec.DecodeError:
        return None
    return case if case.key == key else msgspec.structs.replace(case, align=1)


def _make_review(baseline: Baseline, key: str, row: Sequence[Night]) -> Review:
    """What ``baseline`` says of the row of this key, of which these are the nights."""
    return Review(
        baseline.begins,
        baseline.reason,
        baseline.accepted,
        math.log(baseline.rows[key].median),
        find_night_before(row, baseline.when),
    )


def _line_key(case: Case) -> str:
    return msgspec.structs.replace(case, nbytes=0).key
