"""The command `runs`: what has been saved, and what of it goes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from collbench.cli.families import PlainTable
from collbench.core.errors import CannotRun, CollbenchError, UsageError
from collbench.core.text import format_count, format_size, print_message, readable_text

SHOWN = 20  # runs are listed unless --last says how many


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """The saved runs to list or delete."""

    words: Annotated[
        list[str] | None,
        Argument(metavar="WORD…", help="Parts of the id, tag or arguments: all of them."),
    ] = None
    last: Annotated[
        int | None,
        Option(
            "--last",
            min=1,
            show_default=False,
            help=f"Show this many, newest last (default {SHOWN}); --delete: only these.",
        ),
    ] = None
    output_format: PlainTable = "table"
    delete: Annotated[
        bool, Option("--delete", help="Delete the runs that the words name; asks first.")
    ] = False
    yes: Annotated[bool, Option("--yes", help="Delete without asking.")] = False


def runs(options: RunsOptions) -> None:
    """List saved runs."""
    from collbench.cli import outputs
    from collbench.core import files
    from collbench.records import run_file, store
    from collbench.show import terminal
    from collbench.show.document import code_text
    from collbench.show.views import saved_runs

    outputs.check_outputs(options.output_format, (), ("table", "json", "csv"))
    refuse_deleting_all(options.words or [], options.delete, options.yes)
    names = name_by_age(store.list_saved())
    unreadable = store.report_unreadable([*names])
    readable = [path for path in names if path not in unreadable]
    every = [path for path in readable if matches_words(path, options.words or [])]
    outlines, damaged = {}, {}
    count = options.last or (len(every) if options.delete else SHOWN)
    selected = every[-count:]
    for path in selected:
        try:
            outlines[path] = names[path], run_file.read_outline(path)
        except CollbenchError as e:
            damaged[path] = e.message
    document = saved_runs.list_saved([*outlines.values()], len(every), len(damaged))
    if options.output_format != "table":
        outputs.deliver_document(document, options.output_format)
    elif selected:
        terminal.print_blocks(*document.brief)
    elif readable:
        saved = format_count(len(readable), "saved run")
        terminal.print_blocks(f"none of {saved} has {' '.join(options.words or [])}")
    else:
        terminal.print_blocks("no run is saved yet under " + code_text(str(files.home_folder())))
    for path, message in damaged.items():
        if options.delete:
            print_message(f"not deleted: {message}", f"{shlex.join(['rm', str(path)])} deletes it")
        else:
            print_message(f"left out: {message}")
    if options.delete and outlines:
        delete_runs([*outlines], options.yes)


def name_by_age(paths: Sequence[Path]) -> dict[Path, str]:
    """@last, @last~1 … of runs, oldest first; "" of one that is running."""
    from collbench.records import run_file

    names, back = {}, 0
    for path in reversed(paths):
        running = run_file.is_running(path)
        names[path] = "" if running else f"@last~{back}" if back else "@last"
        back += not running
    return dict(reversed(names.items()))


def matches_words(path: Path, patterns: Sequence[str]) -> bool:
    """Whether each word is in the run's id, tag or arguments, in letters of either size."""
    from collbench.records import run_file

    if not patterns:
        return True
    try:
        run = run_file.read_run(path)
    except CollbenchError:
        return False
    text = " ".join([run.id, run.tag, *run.command]).lower()
    return all(readable_text(word).lower() in text for word in patterns)


def refuse_deleting_all(patterns: Sequence[str], delete: bool, yes: bool) -> None:
    """Raises UsageError for --delete without a word that says what, and --yes without --delete."""
    if yes and not delete:
        raise UsageError("--yes is given without --delete", "add --delete, or leave --yes out")
    if delete and not patterns:
        raise UsageError(
            "--delete does not say which runs",
            "name them by a part of the id, tag or arguments: collbench runs 20261121 --delete",
        )


def delete_runs(paths: Sequence[Path], yes: bool) -> None:
    """Remove runs once that is confirmed, but for one that is being measured. Raises UsageError
    where nobody can be asked, CannotRun where one cannot be removed."""
    import typer

    from collbench.records import run_file

    going = [path for path in paths if not run_file.is_running(path)]
    nbytes = sum(path.stat().st_size for path in going)
    what = f"{format_count(len(going), 'run')}, {format_size(nbytes)}"
    if not yes and not sys.stdin.isatty():
        raise UsageError(
            f"cannot ask whether to delete {what}: standard input is no terminal", "add --yes"
        )
    if not yes and not typer.confirm(f"delete {what}?"):
        print_message("nothing was deleted")
        return
    for path in going:
        try:
            path.unlink()
        except OSError as e:
            raise CannotRun(f"cannot delete {path}: {e.strerror}", "delete it as its owner") from e
    going_on = len(paths) - len(going)
    print_message(
        f"deleted {what}" + f"; {format_count(going_on, 'run')} still running left" * (going_on > 0)
    )
