"""The database of nights: SQLite beside the runs, or PostgreSQL for a fleet; the same tables, by
SQLAlchemy.

Everything is added in one transaction or not at all, as often as one likes, by as many processes as
like.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sql
from sqlalchemy.dialects import postgresql, sqlite

from collbench.core import files
from collbench.core.errors import CannotRun, UsageError
from collbench.core.text import print_message
from collbench.features.health.history import nights
from collbench.features.health.history.baselines import Baseline
from collbench.features.health.history.nights import (
    NightLaunch,
    Series,
    launches_of,
    merge_nights,
    narrow_fingerprint,
    night_of,
    run_fingerprint,
)
from collbench.machine import variables
from collbench.machine.sysfs import hash_identity
from collbench.records import store
from collbench.records.machines import name_machine
from collbench.records.types import RunFile
from collbench.suite.case import Case
from collbench.suite.sweep import Part

T = TypeVar("T")


SCHEMA = 2


LOCK = 7_265_637  # PostgreSQL's number for: somebody makes or migrates these tables


WAIT = 60  # seconds for another process to end its transaction
SAY_SECONDS = 2.0  # of them until that is said


MEASURED = (
    "median",
    "samples",
    "manner",
    "unfit",
)  # columns of a row, in the order of nights.NightLaunch


DIALECTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


TABLES = sql.MetaData()


VERSION = sql.Table(
    "collbench_schema", TABLES, sql.Column("version", sql.Integer, primary_key=True)
)


RUNS = sql.Table(
    "runs",
    TABLES,
    sql.Column("id", sql.Text, primary_key=True),
    sql.Column("machine", sql.Text, nullable=False, index=True),
    sql.Column("night", sql.Text, nullable=False),
    sql.Column("started", sql.Text, nullable=False),
    sql.Column("fingerprint", sql.Text, nullable=False),
    sql.Column("tag", sql.Text, nullable=False),
    sql.Column("file", sql.Text, nullable=False),
)


CASES = sql.Table(
    "cases",
    TABLES,
    sql.Column("key", sql.Text, primary_key=True),
    sql.Column("spec", sql.Text, nullable=False),
)


ROWS = sql.Table(  # a row of a run: one line for each launch
    "rows",
    TABLES,
    sql.Column("run", sql.Text, sql.ForeignKey("runs.id"), primary_key=True),
    sql.Column("key", sql.Text, sql.ForeignKey("cases.key"), primary_key=True),
    sql.Column("launch", sql.Integer, primary_key=True),
    sql.Column("median", sql.Double, nullable=False),
    sql.Column("samples", sql.Integer, nullable=False),
    sql.Column("manner", sql.Text, nullable=False),
    sql.Column("unfit", sql.Text, nullable=False),
)


ENVIRONMENTS = sql.Table(
    "environments",
    TABLES,
    sql.Column("fingerprint", sql.Text, primary_key=True),
    sql.Column("facts", sql.Text, nullable=False),
)


BASELINES = sql.Table(
    "baselines",
    TABLES,
    sql.Column("id", sql.Text, primary_key=True),
    sql.Column("machine", sql.Text, nullable=False, index=True),
    sql.Column("made", sql.Text, nullable=False),
    sql.Column("content", sql.Text, nullable=False),
)


MIGRATIONS = {  # to the version after
    1: tuple(
        f"ALTER TABLE rows ADD COLUMN {name} TEXT NOT NULL DEFAULT ''"
        for name in ("manner", "unfit")
    ),
}


class Book:
    """An open history. Its errors name the database without its password."""

    def __init__(self, url: str = "", reading: bool = False) -> None:
        address = _parse_url(url or os.environ.get("COLLBENCH_HISTORY", ""))
        self.name = variables.mask_text(address.render_as_string(hide_password=True))
        file = address.database if address.get_backend_name() == "sqlite" else None
        if reading and file and not Path(file).exists():
            raise UsageError(
                f"no night is kept: there is no {file}", "collbench history add @last begins one"
            )
        if file and os.path.isfile(file) and os.path.getsize(file) > 4 << 30:  # noqa: PTH113, PTH202
            hint = "is it a history? PostgreSQL is for one of a fleet: --history postgresql://..."
            raise UsageError(f"{file} is larger than 4 GiB", hint)
        self._insert = DIALECTS[address.get_backend_name()]
        self._engine = _make_engine(address, self.name)
        self._writer = self._engine.execution_options(writes=True)
        with self._refuse_failures():
            self._ready()

    def __enter__(self) -> Book:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def add(self, file: RunFile, machine: str = "") -> bool:
        """A run's rows, all or none; False where they were all there. ``machine`` names the place
        it ran, if the names of its hosts do not, since they are others each night. Raises
        UsageError."""
        launches, run, where = launches_of(file), file.run, machine or name_machine(file)
        if not launches:
            raise UsageError(f"{run.id} measured nothing", "add runs that have times")
        facts = nights.run_facts(file)
        name = run_fingerprint(facts)
        lines: dict[
            sql.Table, list[dict[str, Any]]
        ] = {  # in an order that all writers keep: none waits in a ring
            RUNS: [
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
            ENVIRONMENTS: [{"fingerprint": name, "facts": _encode_text(facts)}],
            CASES: sorted(
                ({"key": case.key, "spec": _encode_text(case)} for case in launches),
                key=lambda line: line["key"],
            ),
            ROWS: [
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
        count = sql.select(sql.func.count()).where(ROWS.c.run == run.id)
        with self._refuse_failures(), self._writer.begin() as to:
            before = to.scalar(count)
            for table, rows in lines.items():
                to.execute(self._insert(table).on_conflict_do_nothing(), rows)
            return to.scalar(count) != before

    def holds(self, run: str) -> bool:
        """Whether the run of this id is kept."""
        with self._refuse_failures(), self._engine.begin() as to:
            return to.scalar(sql.select(RUNS.c.id).where(RUNS.c.id == run)) is not None

    def accept(self, baseline: Baseline) -> bool:
        """Keeps a reviewed baseline; False where it was there."""
        content = _encode_text(baseline)
        line = {
            "id": hash_identity(content),
            "machine": baseline.machine,
            "made": baseline.when,
            "content": content,
        }
        with self._refuse_failures(), self._writer.begin() as to:
            existing = to.scalar(sql.select(BASELINES.c.id).where(BASELINES.c.id == line["id"]))
            to.execute(self._insert(BASELINES).on_conflict_do_nothing(), [line])
            return existing is None

    def machines(self) -> list[str]:
        """Machines of which the book has runs. Raises CannotRun."""
        with self._refuse_failures(), self._engine.begin() as to:
            return list(to.scalars(sql.select(RUNS.c.machine).distinct().order_by(RUNS.c.machine)))

    def baselines(self, machine: str) -> list[Baseline]:
        """Oldest first."""
        query = sql.select(BASELINES.c.id, BASELINES.c.content).where(
            BASELINES.c.machine == machine
        )
        with self._refuse_failures(), self._engine.begin() as to:
            lines = to.execute(query.order_by(BASELINES.c.made, BASELINES.c.id)).all()
        return [self._decoded(Baseline, "baselines", *line) for line in lines]

    def anchors(self, machine: str, last: str = "") -> dict[str, float]:
        """Logarithms by key: of the median in the latest baseline that has the row; of those
        only that begin by the night ``last``, if it is given."""
        reviewed = [
            baseline for baseline in self.baselines(machine) if not last or baseline.begins <= last
        ]
        return {
            key: math.log(row.median) for baseline in reviewed for key, row in baseline.rows.items()
        }

    def reviewed(self, machine: str, last: str = "") -> dict[str, str]:
        """The days on which the ``anchors`` were reviewed, by key."""
        return {
            key: baseline.when[:10]
            for baseline in self.baselines(machine)
            if not last or baseline.begins <= last
            for key in baseline.rows
        }

    def series(self, machine: str, part: Part | None = None) -> list[Series]:
        """The machine's rows that are in ``part``, each over all its nights; in order of line and
        size."""
        with self._refuse_failures(), self._engine.begin() as to:
            cases = _select_cases(to, machine, part)
            columns = (
                ROWS.c.key,
                RUNS.c.id,
                ROWS.c.launch,
                RUNS.c.night,
                RUNS.c.fingerprint,
                *ROWS.c[*MEASURED],
            )
            chosen = (
                sql.select(*columns)
                .join(RUNS)
                .where(RUNS.c.machine == machine)
                .order_by(RUNS.c.started, RUNS.c.id, ROWS.c.launch)
            )
            launches: dict[str, list[NightLaunch]] = {key: [] for key in cases}
            for key, *fields in to.execute(chosen):
                if key in launches:
                    launches[key].append(NightLaunch(*fields))
            facts = to.execute(sql.select(ENVIRONMENTS)).all()
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
        accepted = [baseline for baseline in self.baselines(machine) if baseline.accepted]
        return [
            Series(
                machine=machine,
                case=case,
                nights=merge_nights(launches[key], prints[case.backend]),
                environments={
                    prints[case.backend][name]: facts for name, facts in environments.items()
                },
                accepted=[
                    (baseline.begins, baseline.reason)
                    for baseline in accepted
                    if key in baseline.rows
                ],
            )
            for key, case in sorted(
                cases.items(), key=lambda item: (_line_key(item[1]), item[1].nbytes)
            )
        ]

    def _ready(self) -> None:
        """Tables as this version knows them: made where there are none, migrated where they are
        older."""
        with self._engine.begin() as to:
            if _read_version(to) == SCHEMA:
                return
        with self._writer.begin() as to:
            if to.dialect.name == "postgresql":
                to.execute(sql.select(sql.func.pg_advisory_xact_lock(LOCK)))
            version = _read_version(to)
            if version > SCHEMA:
                raise CannotRun(
                    f"{self.name} is of version {version}, and this collbench knows {SCHEMA}",
                    "use the collbench that wrote it, or a newer one",
                )
            TABLES.create_all(to)
            for old in range(version or SCHEMA, SCHEMA):
                for statement in MIGRATIONS[old]:
                    to.exec_driver_sql(statement)
            to.execute(sql.delete(VERSION))
            to.execute(sql.insert(VERSION), [{"version": SCHEMA}])

    def _decoded(self, kind: type[T], table: str, name: str, text: str) -> T:
        """The value in JSON of a line of ``table``. Raises CannotRun."""
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, RecursionError) as e:
            hint = "delete that line from the database; levels can be loaded again from their files"
            raise CannotRun(f"history at {self.name}: line {name} of {table}: {e}", hint) from e

    @contextmanager
    def _refuse_failures(self) -> Iterator[None]:
        """What the database says is raised as CannotRun, in one line and without secrets. Where it
        takes long, that is said."""
        waiting = f"history at {self.name} does not answer yet: does another process hold it?"
        patience = threading.Timer(
            SAY_SECONDS, print_message, [f"{waiting} waiting up to {WAIT} s"]
        )
        patience.daemon = True
        patience.start()
        try:
            yield
        except sql.exc.SQLAlchemyError as e:
            complaint = str(getattr(e, "orig", None) or e).strip().partition("\n")[0]
            hint = "does it run, is the address right, and may you write there?"
            if "locked" in complaint:
                hint = "another process holds it (fuser names it): wait for it or end it"
            raise CannotRun(
                f"history at {self.name}: {variables.mask_text(complaint)}", hint
            ) from None
        finally:
            patience.cancel()


def _parse_url(text: str) -> sql.URL:
    """The URL of a database, given as such or as the path of a file. Raises UsageError, without
    repeating what may hold a password."""
    if "://" not in text:
        path = files.expand_path(text) if text else store.home_folder() / "history.sqlite"
        return sql.URL.create("sqlite", database=str(path))
    try:
        url = sql.make_url(text)
    except (sql.exc.ArgumentError, ValueError):
        raise UsageError(
            "the history's URL cannot be read", "as in postgresql://user@host/database"
        ) from None
    if url.get_backend_name() not in DIALECTS:
        raise UsageError(
            f"a history in {url.get_backend_name()} is not supported",
            f"one of {', '.join(DIALECTS)}",
        )
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _make_engine(url: sql.URL, name: str) -> sql.Engine:
    try:
        if url.get_backend_name() == "postgresql":
            return sql.create_engine(url, connect_args={"connect_timeout": WAIT})
        if url.database and url.database != ":memory:":
            path = Path(url.database)
            if path.parent == store.home_folder():  # a folder that somebody names may be a slip
                files.make_folder(path.parent)
            path.touch(mode=0o600)
        engine = sql.create_engine(url, connect_args={"timeout": WAIT})
    except ModuleNotFoundError as e:
        raise CannotRun(
            f"history at {name} needs {e.name}", "pip install 'collbench[postgresql]'"
        ) from e
    except OSError as e:
        raise CannotRun(
            f"cannot write {name}: {e.strerror}", "choose another place with --history"
        ) from e

    @sql.event.listens_for(engine, "connect")
    def _(connection: Any, _: Any) -> None:
        connection.isolation_level = (
            None  # else Python's module begins transactions when it thinks best
        )

    @sql.event.listens_for(engine, "begin")
    def _(connection: sql.Connection) -> None:
        # who reads first and then writes would have to fail
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _read_version(to: sql.Connection) -> int:
    """The version of the tables there are; 0 without any."""
    if not sql.inspect(to).has_table(VERSION.name):
        return 0
    return to.scalar(sql.select(VERSION.c.version)) or 0


def _encode_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _select_cases(to: sql.Connection, machine: str, part: Part | None) -> dict[str, Case]:
    """The machine's cases that are in ``part``, by their keys."""
    keys = sql.select(ROWS.c.key).join(RUNS).where(RUNS.c.machine == machine)
    specs = to.execute(sql.select(CASES).where(CASES.c.key.in_(keys))).all()
    return {
        key: case
        for key, spec in specs
        if (case := _decode_case(spec)) and (part is None or case in part)
    }


def _decode_case(spec: str) -> Case | None:
    """The case in JSON ``spec``; None if another version wrote it, as this version cannot measure
    it."""
    try:
        return msgspec.json.decode(spec, type=Case)
    except msgspec.DecodeError:
        return None


def _line_key(case: Case) -> str:
    return msgspec.structs.replace(case, nbytes=0).key
