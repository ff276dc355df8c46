"""The commands `collbench history …`: nights kept, shown, and their levels reviewed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from collbench.cli import command as commands
from collbench.core.errors import CannotRun, UsageError

if TYPE_CHECKING:
    from collbench.features.health.history.baselines import Baseline
    from collbench.features.health.history.storage import Book
    from collbench.suite.sweep import Part


REVIEWED = "Keep reviewed levels, as files and in the history."


def add(runs: list[str], history: str = "", machine: str = "", debug: bool = False) -> None:
    """Keep runs: what each row took, launch by launch. A run that is there already is left as it
    is."""
    from collbench.core.text import format_count, plain_line
    from collbench.features.health.history import open_book
    from collbench.features.health.history.nights import machine_name, nights_of
    from collbench.records import store

    files = [store.read_digest(store.find_run(name)) for name in runs]
    with open_book(history) as book:
        for file in files:
            new, nights = book.add(file, machine), nights_of([file])
            night = next(iter(nights.values()))
            launches = max(night.launches for night in nights.values())
            what = (
                f"{format_count(len(nights), 'row')}, {format_count(launches, 'launch')}"
                if new
                else "was there already"
            )
            typer.echo(
                plain_line(
                    f"{file.run.id}: {what}; night {night.day} of {machine or machine_name(file)}"
                )
            )


def list_(history: str = "", machine: str = "", last: int = 20, debug: bool = False) -> None:
    """List a machine's nights: what was measured, and what may be judged."""
    from collbench.cli import outputs
    from collbench.features.health.history import view as views

    with _open_existing(history) as book:
        name = _choose_machine(book, machine)
        others, series = book.machines(), book.series(name)
        outputs.deliver_document(
            views.list_kept(name, others, series, book.baselines(name), last), "table"
        )


def trend(
    history: str = "",
    machine: str = "",
    only: list[str] | None = None,
    minbytes: str = "",
    maxbytes: str = "",
    backend: str = "",
    ranks: str = "",
    tau: str = "3%",
    everything: bool = False,
    output_format: str = "table",
    page: Path | None = None,
    debug: bool = False,
) -> None:
    """Show what changed since when, and by how much.

    Change points count where two neighbouring sizes agree on them.
    """
    from collbench.cli import outputs
    from collbench.core import files
    from collbench.features.health.history import view as views
    from collbench.features.health.history.outlook import make_outlook
    from collbench.show import html, terminal
    from collbench.suite import grammar

    outputs.check_outputs(output_format, (), ("table", "json"))
    if page:
        files.refuse_foreign_file(page, outputs.MARKS["html"], "--html")
    share = grammar.parse_share(tau, "--tau")
    part = _select_part(only, minbytes, maxbytes, backend, ranks)
    with _open_existing(history) as book:
        name = _choose_machine(book, machine)
        series = book.series(name, part)
        if not series:
            raise UsageError(
                f"no row of {name} is as asked for", "collbench history list shows what there is"
            )
        outlook = make_outlook(name, series, book.anchors(name), share)
    document = views.make_document(outlook, everything, terminal.text_width())
    if page:
        files.save_text(
            page, html.render_page(document), outputs.MARKS["html"], "--html", shared=True
        )
    outputs.deliver_document(document, output_format)


def learn(
    history: str = "",
    machine: str = "",
    only: list[str] | None = None,
    minbytes: str = "",
    maxbytes: str = "",
    backend: str = "",
    ranks: str = "",
    reason: str = "as measured",
    commit: str = "",
    output: Path | None = None,
    debug: bool = False,
) -> None:
    """Take the last nights for the level that rows are held against from now on."""
    from collbench.features.health.history import baselines

    with _open_existing(history) as book:
        series = book.series(
            _choose_machine(book, machine), _select_part(only, minbytes, maxbytes, backend, ranks)
        )
        _keep_baseline(book, baselines.learn_baseline(series, reason, commit), output)


def accept(
    reason: str,
    history: str = "",
    machine: str = "",
    only: list[str] | None = None,
    minbytes: str = "",
    maxbytes: str = "",
    backend: str = "",
    ranks: str = "",
    since: str = "",
    commit: str = "",
    output: Path | None = None,
    debug: bool = False,
) -> None:
    """Accept a change: a new segment begins, and the level since is what rows are held against."""
    from datetime import date

    from collbench.features.health.history import baselines

    if not reason.strip():
        raise UsageError(
            "--reason is empty", "say why the change is right; it is kept with the level"
        )
    try:
        day = since and date.fromisoformat(since).isoformat()
    except ValueError as e:
        raise UsageError(f"--since: '{since}' is not a date", "as in 2026-03-01") from e
    with _open_existing(history) as book:
        series = book.series(
            _choose_machine(book, machine), _select_part(only, minbytes, maxbytes, backend, ranks)
        )
        last = max((night.day for row in series for night in row.nights), default="")
        _keep_baseline(book, baselines.accept_baseline(series, day or last, reason, commit), output)


def load(files: list[Path], history: str = "", debug: bool = False) -> None:
    """Bring reviewed baselines from files into the history."""
    from collbench.features.health.history import baselines, open_book

    baselines_read = [baselines.read_baseline(path) for path in files]
    with open_book(history) as book:
        for path, baseline in zip(files, baselines_read, strict=True):
            typer.echo(
                f"{path}: {'kept' if book.accept(baseline) else 'was there already'};"
                f" {_summarise_baseline(baseline)}"
            )


def make_group() -> typer.Typer:
    """Keep nights of runs, show what changed since when, review levels."""
    nights: dict[str, Callable[..., None]] = {
        "history add": add,
        "history list": list_,
        "history trend": trend,
    }
    levels: dict[str, Callable[..., None]] = {
        "history baseline learn": learn,
        "history baseline accept": accept,
        "history baseline load": load,
    }
    app = commands.make_app(nights)
    app.info.help, app.info.no_args_is_help = make_group.__doc__, True
    app.add_typer(commands.make_app(levels), name="baseline", help=REVIEWED, no_args_is_help=True)
    return app


def _open_existing(url: str) -> Book:
    from collbench.features.health.history import open_book

    return open_book(url, reading=True)


def _choose_machine(book: Book, name: str) -> str:
    """The machine asked for, this one, or the only one. Raises UsageError."""
    from collbench.machine import environment

    machines = book.machines()
    candidates = (
        [name]
        if name
        else [environment.host_name()]
        if environment.host_name() in machines
        else machines
    )
    if not machines:
        raise UsageError(f"no night is kept at {book.name}", "collbench history add @last")
    if len(candidates) != 1 or candidates[0] not in machines:
        what = (
            f"no night of {name} is kept"
            if name
            else f"nights of {len(machines)} machines are kept"
        )
        raise UsageError(
            what,
            f"--machine is one of {', '.join(machines[:9])}{', …' if len(machines) > 9 else ''}",
        )
    return candidates[0]


def _select_part(
    only: list[str] | None, minbytes: str, maxbytes: str, backend: str, ranks: str
) -> Part:
    from collbench.core.collectives import find_collective
    from collbench.suite import grammar, sweep

    return sweep.Part(
        collectives=tuple(
            find_collective(word).name for word in grammar.split_words(",".join(only or []))
        ),
        backends=tuple(grammar.split_words(backend)),
        ranks=tuple(grammar.parse_integer("-g", word, 1) for word in grammar.split_words(ranks)),
        min_size=grammar.parse_size(minbytes, "-b") if minbytes else 0,
        max_size=grammar.parse_size(maxbytes, "-e") if maxbytes else None,
    )


def _keep_baseline(book: Book, baseline: Baseline, output: Path | None) -> None:
    """Writes the file for the repository and keeps its content; never in place of another one."""
    from collbench.core import files
    from collbench.features.health.history import baselines

    name = re.sub(r"[^\w.-]+", "-", baseline.machine).strip("-.")
    path = output or Path("baselines") / f"{name}-{baseline.begins}.json"
    if path.exists():
        raise UsageError(
            f"{path} exists",
            "a level that was reviewed is never replaced: choose another name with -o",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise CannotRun(
            f"cannot write {path.parent}: {e.strerror}", "choose another place with -o"
        ) from e
    files.save_text(path, baselines.render_baseline(baseline), shared=True)
    book.accept(baseline)
    typer.echo(f"wrote {path}: {_summarise_baseline(baseline)}; commit it")


def _summarise_baseline(baseline: Baseline) -> str:
    from collbench.core.text import format_count, plain_line

    kind = "accepted" if baseline.accepted else "learned"
    rows = format_count(len(baseline.rows), "row")
    return plain_line(
        f"{rows} of {baseline.machine} {kind} since {baseline.begins}: {baseline.reason}"
    )
