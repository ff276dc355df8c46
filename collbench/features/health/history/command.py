"""The commands `collbench history …`: nights kept, shown, and their levels reviewed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from collbench.cli import command as commands
from collbench.cli.families import RUN_NAMES, Debug
from collbench.cli.parameters import make_option
from collbench.core.errors import CannotRun, UsageError

if TYPE_CHECKING:
    from collbench.features.health.history.baselines import Baseline
    from collbench.features.health.history.storage import Book
    from collbench.suite.sweep import Part


REVIEWED = "Keep reviewed levels, as files and in the history."

HistoryUrl = Annotated[
    str,
    Option(
        "--history",
        metavar="FILE",
        help="An SQLite file. Default: $COLLBENCH_HISTORY, else history.sqlite beside the runs.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class HistoryOptions:
    """The history to read, and the machine."""

    history: HistoryUrl = ""
    machine: Annotated[
        str,
        Option("--machine", help="Of which machine. Default: this one, or the only one there is."),
    ] = ""

    def open(self) -> Book:
        """The history, which must be there already. Raises UsageError and CannotRun."""
        from collbench.features.health.history import open_book

        return open_book(self.history, reading=True)


@dataclass(frozen=True, kw_only=True)
class PartOptions:
    """The rows that are meant, of all that a machine has."""

    only: Annotated[
        list[str] | None,
        Option(
            "--only",
            metavar="COLLECTIVE,…",
            help="Only these collectives (or transfers, steps …, as `history list` names them). May"
            " be repeated.",
        ),
    ] = None
    minbytes: Annotated[
        str, make_option("minbytes", "Only sizes from this: bytes, or with K, M, G.")
    ] = ""
    maxbytes: Annotated[str, make_option("maxbytes", "Only sizes up to this.")] = ""
    backend: Annotated[str, Option("--backend", help="Only these backends; a list.")] = ""
    ranks: Annotated[str, make_option("ranks", "Only so many ranks; a list.")] = ""

    def select(self) -> Part:
        """The part of a machine's rows. Raises UsageError."""
        from collbench.core.collectives import UNKNOWN, find_collective, find_row_table
        from collbench.suite import grammar, sweep

        names = grammar.split_words(",".join(self.only or []))
        tables = [find_row_table(name) for name in names]
        ranks = grammar.split_words(self.ranks)
        return sweep.Part(
            collectives=tuple(
                name if table is not UNKNOWN else find_collective(name).name
                for name, table in zip(names, tables, strict=True)
            ),
            backends=tuple(grammar.split_words(self.backend)),
            ranks=tuple(grammar.parse_integer("-g", word, 1) for word in ranks),
            min_size=grammar.parse_size(self.minbytes, "-b") if self.minbytes else 0,
            max_size=grammar.parse_size(self.maxbytes, "-e") if self.maxbytes else None,
        )


@dataclass(frozen=True, kw_only=True)
class KeepOptions:
    """The commit that is kept with a level, and the level's file."""

    commit: Annotated[
        str, Option("--commit", metavar="SHA", help="The commit that changed the level.")
    ] = ""
    output: Annotated[
        Path | None,
        Option(
            "-o",
            "--output",
            help="Write this file. Default: baselines/MACHINE-NIGHT.json, for a repository; a"
            " second one of a night is MACHINE-NIGHT-2.json.",
        ),
    ] = None
    debug: Debug = False


@dataclass(frozen=True, kw_only=True)
class AddOptions:
    """The runs to keep, and their machine."""

    runs: Annotated[list[str], RUN_NAMES]
    history: HistoryUrl = ""
    machine: Annotated[
        str,
        Option(
            "--machine",
            help="Where it ran. Default: the name of its host, or of all its hosts together; for"
            " hosts whose names change.",
        ),
    ] = ""
    debug: Debug = False


def add(options: AddOptions) -> None:
    """Keep runs: what each row took, launch by launch. A run that is there already is left as it
    is."""
    from collbench.core.text import format_count, plain_line
    from collbench.features.health.history import open_book
    from collbench.features.health.history.nights import nights_of
    from collbench.records import run_file, store

    files = [run_file.read_digest(store.find_run(name)) for name in options.runs]
    with open_book(options.history) as book:
        for file in files:
            new, nights = book.add(file, options.machine), nights_of([file])
            night = next(iter(nights.values()))
            launches = max(night.launches for night in nights.values())
            what = (
                f"{format_count(len(nights), 'row')}, {format_count(launches, 'launch')}"
                if new
                else "was there already"
            )
            name = book.find_machine(file.run.id)
            if options.machine not in ("", name):
                what += f"; --machine has no effect, as it was added as a run of {name} before"
            typer.echo(plain_line(f"{file.run.id}: {what}; night {night.day} of {name}"))


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """The nights to list."""

    history: HistoryOptions
    last: Annotated[int, Option("--last", min=1, help="Show so many nights, newest last.")] = 20
    debug: Debug = False


def list_(options: ListOptions) -> None:
    """List a machine's nights: what was measured, and what may be judged."""
    from collbench.cli import outputs
    from collbench.features.health.history import view as views

    with options.history.open() as book:
        name = _choose_machine(book, options.history.machine)
        others, series = book.machines(), book.series(name)
        outputs.deliver_document(
            views.list_kept(name, others, series, book.baselines(name), options.last), "table"
        )


@dataclass(frozen=True, kw_only=True)
class TrendOptions:
    """The rows whose changes are shown, the smallest change, and the outputs."""

    history: HistoryOptions
    part: PartOptions
    tau: Annotated[str, Option("--tau", help="Smallest change that matters.")] = "3%"
    everything: Annotated[bool, Option("--all", help="List rows without a change too.")] = False
    output_format: Annotated[str, Option("--format", help="Print table or json.")] = "table"
    page: Annotated[
        Path | None, Option("--html", metavar="FILE", help="Also write this offline page.")
    ] = None
    debug: Debug = False


def trend(options: TrendOptions) -> None:
    """Show what changed since when, and by how much.

    Change points count where two neighbouring sizes agree on them.
    """
    from collbench.cli import outputs
    from collbench.core import files
    from collbench.features.health.history import view as views
    from collbench.features.health.history.outlook import make_outlook
    from collbench.show import html, terminal
    from collbench.suite import grammar

    outputs.check_outputs(options.output_format, (), ("table", "json"))
    page = options.page
    if page:
        files.refuse_foreign_file(page, outputs.MARKS["html"], "--html")
    share = grammar.parse_share(options.tau, "--tau")
    part = options.part.select()
    with options.history.open() as book:
        name = _choose_machine(book, options.history.machine)
        series = book.series(name, part)
        if not series:
            raise UsageError(
                f"no row of {name} matches these options",
                f"collbench history list{book.select(name)} shows what there is",
            )
        outlook = make_outlook(name, series, share)
    document = views.make_document(outlook, options.everything, terminal.text_width())
    if page:
        nbytes = files.save_text(
            page, html.render_page(document), outputs.MARKS["html"], "--html", shared=True
        )
        outputs.announce_file(page, nbytes, to_stderr=True)
    outputs.deliver_document(document, options.output_format)


@dataclass(frozen=True, kw_only=True)
class LearnOptions:
    """The rows whose level is learned, and what is kept with it."""

    history: HistoryOptions
    part: PartOptions
    reason: Annotated[str, Option("--reason", help="Why this is how it should be.")] = "as measured"
    keep: KeepOptions


def learn(options: LearnOptions) -> None:
    """Take the last nights for the level that rows are held against from now on."""
    from collbench.features.health.history import baselines

    keep = options.keep
    with options.history.open() as book:
        name = _choose_machine(book, options.history.machine)
        series = book.series(name, options.part.select())
        selection = book.select(name)
        baseline = baselines.learn_baseline(series, options.reason, keep.commit, selection)
        _keep_baseline(book, baseline, keep.output)


@dataclass(frozen=True, kw_only=True)
class AcceptOptions:
    """The rows whose change is accepted, and what is kept with it."""

    reason: Annotated[str, Option("--reason", help="Why the level changed, and why that is right.")]
    history: HistoryOptions
    part: PartOptions
    since: Annotated[
        str,
        Option(
            "--since",
            metavar="NIGHT",
            help="The first night of the new level, as 2026-03-01. Default: the last one.",
        ),
    ] = ""
    keep: KeepOptions


def accept(options: AcceptOptions) -> None:
    """Accept a change: a new segment begins, and the level since is what rows are held against."""
    from datetime import date

    from collbench.features.health.history import baselines

    reason, since, keep = options.reason, options.since, options.keep
    if not reason.strip():
        raise UsageError(
            "--reason is empty", "say why the change is right; it is kept with the level"
        )
    try:
        day = since and date.fromisoformat(since).isoformat()
    except ValueError as e:
        raise UsageError(f"--since: '{since}' is not a date", "as in 2026-03-01") from e
    with options.history.open() as book:
        name = _choose_machine(book, options.history.machine)
        series = book.series(name, options.part.select())
        last = max((night.day for row in series for night in row.nights), default="")
        selection = book.select(name)
        baseline = baselines.accept_baseline(series, day or last, reason, keep.commit, selection)
        _keep_baseline(book, baseline, keep.output)


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """The baselines to bring into a history."""

    files: Annotated[
        list[Path], Argument(metavar="FILE…", help="Baselines, as kept in a repository.")
    ]
    history: HistoryUrl = ""
    debug: Debug = False


def load(options: LoadOptions) -> None:
    """Bring reviewed baselines from files into the history."""
    from collbench.features.health.history import baselines, open_book

    baselines_read = [baselines.read_baseline(path) for path in options.files]
    with open_book(options.history) as book:
        for path, baseline in zip(options.files, baselines_read, strict=True):
            typer.echo(
                f"{path}: {'kept' if book.accept(baseline) else 'was there already'};"
                f" {_summarise_baseline(baseline)}"
            )


def make_group() -> typer.Typer:
    """Keep nights of runs, show what changed since when, review levels."""
    app = commands.make_app({"add": add, "list": list_, "trend": trend})
    app.info.help, app.info.no_args_is_help = make_group.__doc__, True
    levels = commands.make_app({"learn": learn, "accept": accept, "load": load})
    app.add_typer(levels, name="baseline", help=REVIEWED, no_args_is_help=True)
    return app


def _choose_machine(book: Book, name: str) -> str:
    """The machine asked for, this one, or the only one. Raises UsageError."""
    machines = book.machines()
    candidates = [name] if name else book.default_machines()
    if not machines:
        raise UsageError(
            f"no night is kept at {book.name}", f"collbench history add @last{book.option}"
        )
    if len(candidates) != 1 or candidates[0] not in machines:
        what = (
            f"no night of {name} is kept"
            if name
            else f"nights of {len(machines)} machines are kept"
        )
        raise UsageError(
            what,
            f"choose --machine from {', '.join(machines[:9])}{', …' if len(machines) > 9 else ''}",
        )
    return candidates[0]


def _keep_baseline(book: Book, baseline: Baseline, output: Path | None) -> None:
    """Writes the file for the repository, never in place of another one, and keeps its content.
    Removes it again if the history refuses the baseline."""
    from collbench.cli import outputs
    from collbench.core import files
    from collbench.features.health.history import baselines

    path = output or _choose_path(baseline)
    if path.exists():
        raise UsageError(
            f"{path} exists",
            "choose another name with -o: a level that was reviewed is never replaced",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise CannotRun(
            f"cannot write {path.parent}: {e.strerror}", "choose another place with -o"
        ) from e
    nbytes = files.save_text(path, baselines.render_baseline(baseline), shared=True)
    try:
        book.accept(baseline)
    except BaseException:
        path.unlink()
        raise
    outputs.announce_file(path, nbytes, f"{_summarise_baseline(baseline)}; commit it")


def _choose_path(baseline: Baseline) -> Path:
    """A file that is not there yet, named after machine and night; numbered from the second on."""
    from collbench.core import files

    machine = re.sub(r"[^\w.-]+", "-", baseline.machine).strip("-.")
    names = files.number_names(f"{machine}-{baseline.begins}", ".json")
    paths = (Path("baselines") / name for name in names)
    return next(path for path in paths if not path.exists())


def _summarise_baseline(baseline: Baseline) -> str:
    from collbench.core.text import format_count, plain_line

    kind = "accepted" if baseline.accepted else "learned"
    rows = format_count(len(baseline.rows), "row")
    return plain_line(
        f"{rows} of {baseline.machine} {kind} since {baseline.begins}: {baseline.reason}"
    )
