"""The commands `collbench history …`: nights kept, shown, and their levels reviewed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collbench.errors import CannotRun, UsageError

if TYPE_CHECKING:
    from collbench.history.baselines import Baseline
    from collbench.history.storage import Book
    from collbench.selection import Part

Option, Argument = typer.Option, typer.Argument
REVIEWED = "Levels that were reviewed, as files for a repository and in the history."
Where = Annotated[str, Option("--history", metavar="URL", help="postgresql://user@host/database, or an SQLite file. "
                              "Default: $COLLBENCH_HISTORY, else history.sqlite beside the runs.")]  # fmt: skip
Machine = Annotated[str, Option("--machine", help="Of which machine. Default: this one, or the only one there is.")]
Only = Annotated[str, Option("--only", metavar="COLLECTIVE,…", help="Only these collectives.")]
Smallest = Annotated[str, Option("-b", "--minbytes", help="Only sizes from this: bytes, or with K, M, G.")]
Largest = Annotated[str, Option("-e", "--maxbytes", help="Only sizes up to this.")]
Backends = Annotated[str, Option("--backend", help="Only these backends; a list.")]
Ranks = Annotated[str, Option("-g", "--ngpus", "--ranks", help="Only so many ranks; a list.")]
Commit = Annotated[str, Option("--commit", metavar="SHA", help="The commit that changed the level.")]
Output = Annotated[Path | None, Option("-o", "--output", help="Write this file. Default: baselines/MACHINE-NIGHT.json, "
                                       "for a repository.")]  # fmt: skip
Debug = Annotated[bool, Option("--debug", help="Show a traceback with an error.")]


def add(
    runs: Annotated[list[str], Argument(metavar="RUN…", help="@last, @last~1, an id, a tag or a file.")],
    history: Where = "",
    machine: Annotated[str, Option("--machine", help="Where it ran. Default: the name of its host, or of all its hosts "
                                   "together; for hosts whose names change.")] = "",
    debug: Debug = False,
) -> None:  # fmt: skip
    """Keep runs: what each row took, launch by launch. A run that is there already is left as it is."""
    from collbench import store
    from collbench.formats import counted, plain
    from collbench.history import book, nights_of
    from collbench.history import machine as place

    files = [store.digest(store.find(name)) for name in runs]
    with book(history) as kept:
        for file in files:
            new, nights = kept.add(file, machine), nights_of([file])
            night = next(iter(nights.values()))
            launches = max(one.launches for one in nights.values())
            what = f"{counted(len(nights), 'row')}, {counted(launches, 'launch')}" if new else "was there already"
            typer.echo(plain(f"{file.run.id}: {what}; night {night.day} of {machine or place(file)}"))


def listing(
    history: Where = "", machine: Machine = "",
    last: Annotated[int, Option("--last", min=1, help="Show so many nights, newest last.")] = 20, debug: Debug = False,
) -> None:  # fmt: skip
    """List the nights of a machine: what was measured, and what of it may be judged."""
    from collbench import console, trends

    with _open(history) as kept:
        name = _machine(kept, machine)
        console.show(*trends.listing(name, kept.machines(), kept.series(name), kept.baselines(name), last))


def trend(
    history: Where = "", machine: Machine = "", only: Only = "", minbytes: Smallest = "", maxbytes: Largest = "",
    backend: Backends = "", ranks: Ranks = "",
    tau: Annotated[str, Option("--tau", help="Smallest change that matters.")] = "3%",
    everything: Annotated[bool, Option("--all", help="List rows without a change too.")] = False,
    output_format: Annotated[str, Option("--format", help="Print table or json.")] = "table",
    page: Annotated[Path | None, Option("--html", metavar="FILE", help="Also write this offline page.")] = None,
    debug: Debug = False,
) -> None:  # fmt: skip
    """Show what changed since when, and by how much: change points on which neighbouring sizes agree."""
    import msgspec

    from collbench import grammar, options, report, store, trends
    from collbench.history.outlook import outlook

    options.choice("--format", output_format, ("table", "json"))
    share = grammar.parse_share(tau, "--tau")
    part = _part(only, minbytes, maxbytes, backend, ranks)
    with _open(history) as kept:
        name = _machine(kept, machine)
        series = kept.series(name, part)
        if not series:
            raise UsageError(f"no row of {name} is as asked for", "collbench history list shows what there is")
        found = outlook(name, series, kept.anchors(name), share)
    if page:
        store.save(page, report.page(trends.document(found)), "--html")
    if output_format == "json":
        typer.echo(msgspec.json.encode(trends.flat(found)).decode())
    else:
        trends.show(found, everything)


def learn(
    history: Where = "", machine: Machine = "", only: Only = "", minbytes: Smallest = "", maxbytes: Largest = "",
    backend: Backends = "", ranks: Ranks = "",
    reason: Annotated[str, Option("--reason", help="Why this is how it should be.")] = "as measured",
    commit: Commit = "", output: Output = None, debug: Debug = False,
) -> None:  # fmt: skip
    """Take the last nights for the level that rows are held against from now on."""
    from collbench.history import baselines

    with _open(history) as kept:
        series = kept.series(_machine(kept, machine), _part(only, minbytes, maxbytes, backend, ranks))
        _keep(kept, baselines.learned(series, reason, commit), output)


def accept(
    reason: Annotated[str, Option("--reason", help="Why the level changed, and why that is right.")],
    history: Where = "", machine: Machine = "", only: Only = "", minbytes: Smallest = "", maxbytes: Largest = "",
    backend: Backends = "", ranks: Ranks = "",
    since: Annotated[str, Option("--since", metavar="NIGHT", help="The first night of the new level, as "
                                 "2026-03-01. Default: the last one.")] = "",
    commit: Commit = "", output: Output = None, debug: Debug = False,
) -> None:  # fmt: skip
    """Accept a change: a new segment begins, and the level since is what rows are held against."""
    from datetime import date

    from collbench.history import baselines

    if not reason.strip():
        raise UsageError("--reason is empty", "say why the change is right; it is kept with the level")
    try:
        asked = since and date.fromisoformat(since).isoformat()
    except ValueError as e:
        raise UsageError(f"--since: '{since}' is no date", "as in 2026-03-01") from e
    with _open(history) as kept:
        series = kept.series(_machine(kept, machine), _part(only, minbytes, maxbytes, backend, ranks))
        last = max((night.day for one in series for night in one.nights), default="")
        _keep(kept, baselines.accepted(series, asked or last, reason, commit), output)


def load(
    files: Annotated[list[Path], Argument(metavar="FILE…", help="Baselines, as kept in a repository.")],
    history: Where = "", debug: Debug = False,
) -> None:  # fmt: skip
    """Bring reviewed baselines from files into the history."""
    from collbench.history import baselines

    found = [baselines.read(path) for path in files]
    with _open(history) as kept:
        for path, baseline in zip(files, found, strict=True):
            typer.echo(f"{path}: {'kept' if kept.accept(baseline) else 'was there already'}; {_told(baseline)}")


def group() -> typer.Typer:
    """Keep nights of runs, show what changed since when, review levels."""
    app = _app(group.__doc__, {"add": add, "list": listing, "trend": trend})
    app.add_typer(_app(REVIEWED, {"learn": learn, "accept": accept, "load": load}), name="baseline")
    return app


def _app(text: str | None, commands: dict[str, Callable[..., None]]) -> typer.Typer:
    app = typer.Typer(help=text, no_args_is_help=True, add_completion=False, rich_markup_mode=None,
                      pretty_exceptions_enable=False)  # fmt: skip
    for name, command in commands.items():
        app.command(name)(command)
    return app


def _open(url: str) -> Book:
    from collbench.history import book

    return book(url)


def _machine(kept: Book, asked: str) -> str:
    """The machine asked for, this one, or the only one. Raises UsageError."""
    from collbench import environment

    known = kept.machines()
    found = [asked] if asked else [environment.host()] if environment.host() in known else known
    if not known:
        raise UsageError(f"no night is kept at {kept.name}", "collbench history add @last")
    if len(found) != 1 or found[0] not in known:
        what = f"no night of {asked} is kept" if asked else f"nights of {len(known)} machines are kept"
        raise UsageError(what, f"--machine is one of {', '.join(known[:9])}{', …' * (len(known) > 9)}")
    return found[0]


def _part(only: str, minbytes: str, maxbytes: str, backend: str, ranks: str) -> Part:
    from collbench import grammar, options, selection
    from collbench.collectives import collective

    return selection.Part(
        collectives=tuple(collective(word).name for word in options.words(only)),
        backends=tuple(options.words(backend)),
        ranks=tuple(options.integer("-g", word, 1) for word in options.words(ranks)),
        min_size=grammar.parse_size(minbytes, "-b") if minbytes else 0,
        max_size=grammar.parse_size(maxbytes, "-e") if maxbytes else None,
    )


def _keep(kept: Book, baseline: Baseline, output: Path | None) -> None:
    """Writes the file for the repository and keeps its content; never in place of another one."""
    from collbench import store
    from collbench.history import baselines

    name = re.sub(r"[^\w.-]+", "-", baseline.machine).strip("-.")
    path = output or Path("baselines") / f"{name}-{baseline.begins}.json"
    if path.exists():
        raise UsageError(f"{path} exists", "a level that was reviewed is never replaced: choose another name with -o")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise CannotRun(f"cannot write {path.parent}: {e.strerror}", "choose another place with -o") from e
    store.save(path, baselines.text(baseline))
    kept.accept(baseline)
    typer.echo(f"wrote {path}: {_told(baseline)}; commit it")


def _told(baseline: Baseline) -> str:
    from collbench.formats import counted, plain

    kind = "accepted" if baseline.accepted else "learned"
    rows = counted(len(baseline.rows), "row")
    return plain(f"{rows} of {baseline.machine} {kind} since {baseline.begins}: {baseline.reason}")
