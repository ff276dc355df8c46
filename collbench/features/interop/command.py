"""The command ``import``: logs of other tools become runs like any other."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from collbench.cli.families import Debug, RunsTag
from collbench.core.errors import CannotRun, Exit, UsageError

if TYPE_CHECKING:
    from collbench.features.interop.importers import Reading
    from collbench.records.types import End, Record, Run, World


SHOWN = 5  # warnings and lines not understood, of each as many


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """The logs to read, facts that they do not say, and the place of their runs."""

    files: Annotated[
        list[str], Argument(metavar="FILE…", help="Logs, gzipped or not; - reads standard input.")
    ]
    kind: Annotated[
        str, Option("--from", help="auto, nccl-tests, rccl-tests, nccl-inspector, osu or imb.")
    ] = "auto"
    collective: Annotated[
        str, Option("--collective", help="What was run, where no table of the log says it.")
    ] = ""
    ranks: Annotated[
        int | None,
        Option(
            *("-g", "--ranks"),
            min=1,
            help="Ranks, where a log does not say (OSU), or says the same wrong number everywhere.",
        ),
    ] = None
    tag: RunsTag = ""
    output: Annotated[
        Path | None, Option("-o", "--output", help="Save runs to this folder (one log: or file).")
    ] = None
    host: Annotated[str, Option("--host", help="Where it ran, where the log does not say.")] = ""
    debug: Debug = False


def import_(options: ImportOptions) -> None:
    """Read logs of nccl-tests, rccl-tests, Inspector, OSU and IMB."""
    from collbench.features.interop import assemble, importers
    from collbench.features.interop.importers.text import decode_log
    from collbench.suite import grammar

    grammar.refuse_tag(options.tag)
    grammar.parse_choice("--from", options.kind, ("auto", *importers.FORMATS))
    if options.output and len(options.files) > 1 and not options.output.is_dir():
        raise UsageError(
            f"--output {options.output}: {len(options.files)} logs make as many runs",
            "give a folder that exists",
        )
    readings, paths = [], []
    for file in options.files:
        request = importers.Asked(
            name=file, collective=options.collective, ranks=options.ranks, host=options.host
        )
        readings.append(
            importers.read_log(decode_log(_read_bytes(file), file), request, options.kind)
        )
    for index, (file, reading) in enumerate(zip(options.files, readings, strict=True)):
        lines = assemble.assemble_runs(reading, options.tag, index)
        paths.append(_save_lines(lines, options.output))
        _print_reading(file, reading, paths[-1])
    if any([*map(_tell_wrong, options.files, readings, paths)]):
        raise typer.Exit(Exit.WRONG_DATA)
    _print_next(paths)


def _print_next(paths: Sequence[Path]) -> None:
    """Prints the command that shows the last of these runs, or that compares them where they are
    two."""
    from collbench.core.text import plain_line
    from collbench.records import store

    names = [store.quote_run_name(path) for path in paths]
    command = f"compare {' '.join(names)}" if len(names) == 2 else f"report {names[-1]}"
    typer.echo(f"next: collbench {plain_line(command)}")


def _read_bytes(file: str) -> bytes:
    from collbench.features.interop.importers.text import bound_log

    try:
        if file == "-":
            return bound_log(sys.stdin.buffer)
        with Path(file).open("rb") as f:
            return bound_log(f)
    except OSError as e:
        raise UsageError(
            f"cannot read {file}: {e.strerror}", "give the file that the tool's output went to"
        ) from e


def _save_lines(lines: list[Run | World | Record | End], output: Path | None) -> Path:
    from collbench.records import store
    from collbench.records.types import Run

    (run,) = (line for line in lines if isinstance(line, Run))
    writer = store.open_writer(run, output)
    for line in lines:
        if line is not run:
            writer.write(line)
    writer.close()
    if writer.trouble:
        raise CannotRun(writer.trouble, "free some space, or choose another place with --output")
    return writer.path


def _print_reading(file: str, reading: Reading, path: Path) -> None:
    """Prints what was read and where it is to standard output, and what gives cause for doubt to
    standard error."""
    from collbench.core.text import format_count, plain_line
    from collbench.features.interop import assemble

    present = [record for record in reading.records if record.status != "skipped"]
    names = ", ".join(dict.fromkeys(record.case.collective for record in present))
    ranks = ", ".join(map(str, dict.fromkeys(record.case.n for record in present)))
    text = f"{file}: {format_count(len(present), 'record')} of {names}, "
    text += f"{ranks} rank{'s' * (ranks != '1')} ({reading.tool})"
    if reading.lost:
        places = "; ".join(f"{where}: {reason}" for where, reason in reading.lost[:SHOWN])
        text += f"; {format_count(len(reading.lost), 'line')} not understood: {places}"
        text += "; …" * (len(reading.lost) > SHOWN)
    typer.echo(plain_line(text))
    skipped = Counter(record.note for record in reading.records if record.status == "skipped")
    for reason, number in (skipped + reading.omitted).most_common():
        typer.echo(f"  left out: {plain_line(reason)} ({number})")
    if average := assemble.describe_average(reading):
        typer.echo(f"  {plain_line(average)}")
    if not reading.closed:
        typer.echo("  the log ends before the tool did")
    typer.echo(f"  saved: {plain_line(str(path))}")
    for warning in reading.warnings[:SHOWN]:
        typer.echo(f"collbench: {plain_line(file)}: {plain_line(warning)}", err=True)
    if len(reading.warnings) > SHOWN:
        typer.echo(
            f"collbench: {plain_line(file)}: and {len(reading.warnings) - SHOWN} more such"
            " warnings",
            err=True,
        )
    if any("ranks make of" in warning for warning in reading.warnings):
        typer.echo(
            "  hint: is the number of ranks right?"
            " --ranks N corrects it if all tables say the same",
            err=True,
        )


def _tell_wrong(file: str, reading: Reading, path: Path) -> bool:
    """Tells which records hold wrong data, and how many elements; whether there was any."""
    from collbench.core.text import format_count, format_size, plain_line, print_message
    from collbench.records.store import quote_run_name

    records = [record for record in reading.records if record.status == "wrong"]
    elements = sum(record.wrong or 0 for record in records)
    if records:
        count = (
            f"{format_count(len(records), 'record')} {'is' if len(records) == 1 else 'are'} wrong"
        )
        count += f" ({format_count(elements, 'element')})" if elements else ""
        rows = [
            f"{case.collective} of {format_size(case.size)}"
            f" {'in' if case.in_place else 'out of'} place"
            for case in (record.case for record in records[:SHOWN])
        ]
        rows += ["…"] * (len(records) > SHOWN)
        hint = f"collbench report {plain_line(quote_run_name(path))} shows them"
        print_message(f"{file}: {count}: {', '.join(rows)}", hint)
    elif reading.failures:
        failed = f"{format_count(reading.failures, 'check')} of the data failed"
        print_message(f"{file}: {failed}, but no row says where")
    return bool(records or reading.failures)
