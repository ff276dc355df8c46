"""The commands `collbench backends …`: list, show, check, write and unpack backends."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from collbench.cli import command as commands
from collbench.cli.families import Debug
from collbench.core.errors import CannotRun, UsageError

Name = Annotated[str, Argument(metavar="NAME|FILE.py", help="As `--backend` takes it.")]


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """How the backends are listed."""

    output_format: Annotated[str, Option("--format", help="table or json.")] = "table"
    debug: Debug = False


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """The backend to show."""

    backend: Name
    output_format: Annotated[str, Option("--format", help="table or json.")] = "table"
    debug: Debug = False


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The backend to check, and how thoroughly."""

    backend: Name
    quick: Annotated[
        bool, Option("--quick", help="Fewer cases and calls: about half a minute.")
    ] = False
    output_format: Annotated[str, Option("--format", help="table, md or json.")] = "table"
    debug: Debug = False


@dataclass(frozen=True, kw_only=True)
class NewOptions:
    """Where the new backend is written."""

    path: Annotated[Path, Argument(metavar="FILE.py", help="A file that is not there yet.")]
    debug: Debug = False


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """The backend whose library is to be unpacked, and where its wheels are."""

    backend: Name
    wheels: Annotated[Path, Option("--wheels", help="The folder with downloaded wheels.")]
    debug: Debug = False


def make_group() -> typer.Typer:
    """List backends, check that one keeps its contract, start your own."""
    app = commands.make_app(
        {"list": list_, "show": show, "check": check, "new": new, "fetch": fetch}
    )
    app.info.help, app.info.no_args_is_help = make_group.__doc__, True
    return app


def list_(options: ListOptions) -> None:
    """List all backends: what each is, where it comes from, and why it cannot run here."""
    from collbench.cli import outputs
    from collbench.features.backends.listing import make_list

    outputs.check_outputs(options.output_format, (), ("table", "json"))
    outputs.deliver_document(make_list(), options.output_format)


def show(options: ShowOptions) -> None:
    """Show what one backend says of itself."""
    from collbench.cli import outputs
    from collbench.features.backends.listing import make_description
    from collbench.run.refusal import refuse_unknown_backends

    outputs.check_outputs(options.output_format, (), ("table", "json"))
    refuse_unknown_backends([options.backend])
    outputs.deliver_document(make_description(options.backend), options.output_format)


def check(options: CheckOptions) -> None:
    """Check that a backend does what its INFO says and its calls promise.

    Every collective, datatype, reduction and root is run, in place and out of place, and compared
    bit for bit; results that are stale or come too early, changed inputs, leaks, threads, planted
    faults and groups are looked for. Exit code 1 if a check failed, 3 if nothing could be checked.
    """
    from collbench.cli import outputs
    from collbench.core.text import print_message
    from collbench.features.backends.check import check_backend, describe_origin
    from collbench.features.backends.view import judge_rows, make_document
    from collbench.machine.load import measure_load
    from collbench.run.refusal import refuse_unknown_backends
    from collbench.show.busy import describe_now

    outputs.check_outputs(options.output_format, (), ("table", "md", "json"))
    name = options.backend
    refuse_unknown_backends([name])
    if noise := describe_now(measure_load()):
        print_message(noise)
    rows = list(
        check_backend(name, options.quick, lambda check: print_message(f"{name}: {check} …"))
    )
    document = make_document(name, describe_origin(name), rows, options.quick)
    outputs.deliver_document(document, options.output_format)
    raise typer.Exit(judge_rows(rows)[0])


def new(options: NewOptions) -> None:
    """Write an example backend to start from, which passes `check`."""
    from collbench.core.text import readable_text
    from collbench.run.backends import _skeleton

    path = options.path
    if path.suffix != ".py":
        raise UsageError(f"{path} is no Python file", "name it FILE.py")
    if path.exists():
        raise UsageError(f"{path} exists already", "name another file")
    text = Path(_skeleton.__file__).read_text()
    try:
        path.write_text(text.replace("FILE.py", readable_text(path.name)), encoding="utf-8")
    except OSError as e:
        raise CannotRun(f"{path} cannot be written: {e.strerror}", "name another place") from e
    shown = path if path.is_absolute() else f"./{path}"
    typer.echo(f"{path}: try it: collbench backends check {shlex.quote(str(shown))} --quick")


def fetch(options: FetchOptions) -> None:
    """Unpack downloaded wheels of a library that pip cannot install as a whole."""
    from collbench.core.backend_info import find_module
    from collbench.run.refusal import refuse_unknown_backends

    refuse_unknown_backends([options.backend])
    lay_out = getattr(find_module(options.backend), "fetch", None)
    if lay_out is None:
        raise UsageError(f"{options.backend} has nothing to fetch", "pip installs all of it")
    typer.echo(lay_out(options.wheels))
