"""The command ``import``: logs of other tools become runs like any other."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from collbench.core.errors import CannotRun, Exit, UsageError

if TYPE_CHECKING:
    from collbench.features.interop.importers import Reading
    from collbench.records.types import End, Record, Run, World


SHOWN = 5  # warnings and lines not understood, of each as many


def import_(
    files: list[str],
    kind: str = "auto",
    collective: str = "",
    ranks: int | None = None,
    tag: str = "",
    output: Path | None = None,
    host: str = "",
    debug: bool = False,
) -> None:
    """Read logs of nccl-tests, rccl-tests, Inspector, OSU and IMB."""
    from collbench.features.interop import importers
    from collbench.features.interop.importers.text import decode
    from collbench.suite import grammar

    grammar.refuse_tag(tag)
    grammar.choice("--from", kind, ("auto", *importers.FORMATS))
    if output and len(files) > 1 and not output.is_dir():
        raise UsageError(
            f"--output {output}: {len(files)} logs make as many runs", "give a folder that exists"
        )
    readings = []
    for file in files:
        asked = importers.Asked(name=file, collective=collective, ranks=ranks, host=host)
        readings.append(importers.read(decode(_bytes(file), file), asked, kind))
    for place, (file, reading) in enumerate(zip(files, readings, strict=True)):
        lines = importers.assemble(reading, tag, place)
        path = _save(lines, output)
        _tell(file, reading, path)
    wrong = [_tell_wrong(file, reading) for file, reading in zip(files, readings, strict=True)]
    if any(wrong):
        raise typer.Exit(Exit.WRONG_DATA)


def _bytes(file: str) -> bytes:
    from collbench.features.interop.importers.text import bounded

    try:
        if file == "-":
            return bounded(sys.stdin.buffer)
        with Path(file).open("rb") as f:
            return bounded(f)
    except OSError as e:
        raise UsageError(
            f"cannot read {file}: {e.strerror}", "give the file that the tool's output went to"
        ) from e


def _save(lines: list[Run | World | Record | End], output: Path | None) -> Path:
    from collbench.records import store
    from collbench.records.types import Run

    (run,) = (line for line in lines if isinstance(line, Run))
    writer = store.opened(run, output)
    for line in lines:
        if line is not run:
            writer.write(line)
    writer.close()
    if writer.trouble:
        raise CannotRun(writer.trouble, "free some space, or choose another place with --output")
    return writer.path


def _tell(file: str, reading: Reading, path: Path) -> None:
    """Prints what was read and where it is to standard output, and what gives cause for doubt to
    standard error."""
    from collbench.core.text import counted, plain
    from collbench.features.interop import importers

    told = [record for record in reading.records if record.status != "skipped"]
    names = ", ".join(dict.fromkeys(record.case.collective for record in told))
    ranks = ", ".join(map(str, dict.fromkeys(record.case.n for record in told)))
    text = f"{file}: {counted(len(told), 'record')} of {names}, "
    text += f"{ranks} rank{'s' * (ranks != '1')} ({reading.tool})"
    if reading.lost:
        places = "; ".join(f"{where}: {reason}" for where, reason in reading.lost[:SHOWN])
        text += f"; {counted(len(reading.lost), 'line')} not understood: {places}"
        text += "; …" * (len(reading.lost) > SHOWN)
    typer.echo(plain(text))
    skipped = Counter(record.note for record in reading.records if record.status == "skipped")
    for reason, number in (skipped + reading.omitted).most_common():
        typer.echo(f"  left out: {plain(reason)} ({number})")
    if average := importers.average(reading):
        typer.echo(f"  {plain(average)}")
    if not reading.closed:
        typer.echo("  the log ends before the tool did")
    typer.echo(f"  saved: {plain(str(path))}")
    for warning in reading.warnings[:SHOWN]:
        typer.echo(f"collbench: {plain(file)}: {plain(warning)}", err=True)
    if len(reading.warnings) > SHOWN:
        typer.echo(
            f"collbench: {plain(file)}: and {len(reading.warnings) - SHOWN} more such warnings",
            err=True,
        )
    if any("ranks make of" in warning for warning in reading.warnings):
        typer.echo(
            "  hint: is the number of ranks right? --ranks N sets it",
            err=True,
        )


def _tell_wrong(file: str, reading: Reading) -> bool:
    """Tells which records hold wrong data, and how many elements; whether there was any."""
    from collbench.core.text import counted, size, tell

    records = [record for record in reading.records if record.status == "wrong"]
    elements = sum(record.wrong or 0 for record in records)
    if records:
        count = f"{counted(len(records), 'record')} {'is' if len(records) == 1 else 'are'} wrong"
        count += f" ({counted(elements, 'element')})" if elements else ""
        rows = [
            f"{case.collective} of {size(case.size)} {'in' if case.in_place else 'out of'} place"
            for case in (record.case for record in records[:SHOWN])
        ]
        rows += ["…"] * (len(records) > SHOWN)
        tell(f"{file}: {count}: {', '.join(rows)}", "collbench report @last shows them")
    elif reading.failures:
        failed = f"{counted(reading.failures, 'check')} of the data failed"
        tell(f"{file}: {failed}, but no row says where")
    return bool(records or reading.failures)
