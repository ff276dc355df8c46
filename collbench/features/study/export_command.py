"""The command `export`: an algorithm's schedule for other tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from collbench.cli.families import Collective, Debug, Root
from collbench.core.errors import UsageError
from collbench.core.text import print_message


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The schedule to write, its format, and its file."""

    collective: Collective
    algorithm: Annotated[str, Argument(metavar="ALGORITHM", help="ring, chain:segments=64 …")]
    n: Annotated[int, Option("-n", "--ranks", min=1, help="Ranks.")] = 8
    root: Root = 0
    to: Annotated[
        str,
        Option(
            "--to",
            help="msccl-executor (XML, for RCCL, too), goal (LogGOPSim), dot (Graphviz), json or"
            " chakra (folder -o).",
        ),
    ] = "json"
    nbytes: Annotated[
        str, Option("--bytes", help="Size of the collective, for goal and chakra.")
    ] = "1M"
    output: Annotated[
        Path | None, Option("-o", "--output", help="Write to this file instead of the terminal.")
    ] = None
    debug: Debug = False


def export(options: ExportOptions) -> None:
    """Write an algorithm's schedule as MSCCL XML, GOAL, DOT, JSON or Chakra."""
    from collbench.cli import outputs
    from collbench.core import algorithms, files
    from collbench.core import export as exports
    from collbench.core.feature import load_entries
    from collbench.suite.grammar import parse_size

    writers = load_entries("writers")
    formats = (*exports.FORMATS, *writers)
    to, output = options.to, options.output
    if to not in formats:
        raise UsageError(f"--to '{to}' is unknown", f"one of {', '.join(formats)}")
    if to in writers and output is None:
        raise UsageError(
            f"--to {to} writes a file a rank, and no folder is given", "name one with -o FOLDER"
        )
    schedule = algorithms.find_variant(options.collective, options.algorithm).schedule(
        options.n, options.root
    )
    size = parse_size(options.nbytes, "--bytes")
    if to in writers and output is not None:
        name = options.algorithm.partition(":")[0]
        return typer.echo(writers[to].write_schedule(schedule, size, output, name))
    text = exports.FORMATS[to](schedule, size)
    if to == "msccl-executor" and schedule.row.rooted:
        what = "the result is always at" if schedule.row.reduces else "the data are always those of"
        print_message(
            f"the format names no root, so libraries run this for calls of any: {what} rank"
            f" {schedule.root}",
            f"load it only where all calls have root {schedule.root}",
        )
    if output is None:
        return typer.echo(text, nl=False)
    nbytes = files.save_text(output, text, exports.NAME if to == "json" else "", shared=True)
    outputs.announce_file(output, nbytes)
