"""The command `report`: runs as a page, as Markdown, as images."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from collbench.cli.families import Debug, Plotlyjs, Runs
from collbench.core.errors import UsageError

if TYPE_CHECKING:
    from collbench.records.types import RunFile
    from collbench.show.views.series import Conclusion


DEFAULT = Path("collbench-report.html")

PAGES = ("html", "md")


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The runs to report, the format, and the files."""

    runs: Runs = None
    output: Annotated[
        Path | None,
        Option(
            "-o",
            "--output",
            help="Write to this file. Default: collbench-report.html; another format than html:"
            " the terminal.",
        ),
    ] = None
    output_format: Annotated[
        str,
        Option(
            "--format",
            help="html, md, prometheus, otlp (OpenTelemetry) or parquet. Default: as -o ends"
            " (.html, .md, .prom, .otlp, .parquet), else html.",
        ),
    ] = ""
    plotlyjs: Plotlyjs = "inline"
    png: Annotated[
        Path | None,
        Option("--png", help="Also write the figures to this folder, as collbench-*.png."),
    ] = None
    image_format: Annotated[
        str, Option("--image-format", help="What --png writes: png, svg or pdf.")
    ] = "png"
    title: Annotated[str, Option("--title", help="Heading of the report.")] = ""
    compare: Annotated[
        bool, Option("--compare", help="Compare BASE and HEAD, as two runs of one `ab` are.")
    ] = False
    debug: Debug = False


def report(options: ReportOptions) -> None:
    """Make one offline page of runs: figures, tables, raw data.

    With -o x.prom, x.otlp or x.parquet: what was measured, for Prometheus, OpenTelemetry and tables
    (collbench help outputs).
    """
    import msgspec

    from collbench.cli import outputs
    from collbench.core.text import format_count
    from collbench.records import run_file
    from collbench.show import html
    from collbench.show.views import run
    from collbench.suite import grammar

    grammar.parse_choice("--plotlyjs", options.plotlyjs, outputs.PLOTLYJS)
    output_format = options.output_format
    formats = tuple(dict.fromkeys(outputs.REPORTS.values()))
    grammar.parse_choice("--format", output_format or "html", formats)
    if options.output and options.output.suffix and not output_format:
        ending = f"-o {options.output}: its ending"
        suffix = grammar.parse_choice(ending, options.output.suffix, outputs.REPORTS)
        output_format = outputs.REPORTS[suffix]
    output_format = output_format or "html"
    if output_format not in PAGES:
        return _deliver_runs(options, output_format)
    path = options.output or (DEFAULT if output_format == "html" else None)
    if path:
        outputs.check_file(path, output_format, options.plotlyjs)
    grammar.parse_choice("--image-format", options.image_format, html.IMAGE_FORMATS)
    if options.png:
        html.find_browser()
    elif options.image_format != "png":
        raise UsageError("--image-format is given without --png", "name a folder: --png figures")
    files = [run_file.read_digest(path) for path in _find_runs(options.runs or ["@last"])]
    gc.disable()  # what was read and is made of it stays: looking through it takes seconds
    document = run.make_document(files, _conclude_from(files, options.compare))
    if options.title:
        document = msgspec.structs.replace(document, title=options.title)
    if path:
        for file, nbytes in outputs.write_file(document, path, output_format, options.plotlyjs):
            outputs.announce_file(file, nbytes)
    else:
        outputs.deliver_document(document, output_format)
    if options.png:
        drawn = html.render_images(document, options.png, options.image_format)
        typer.echo(f"wrote {format_count(len(drawn), 'image')} to {options.png}", err=path is None)


def _deliver_runs(options: ReportOptions, output_format: str) -> None:
    """Write runs for other programs, or print them. Raises UsageError and CannotRun."""
    from collbench.cli import outputs
    from collbench.records import run_file
    from collbench.show.views import gauges

    for_pages = {
        "--png": options.png,
        "--image-format": options.image_format != "png",
        "--title": options.title,
        "--compare": options.compare,
        "--plotlyjs": options.plotlyjs != "inline",
    }
    if given := [name for name, value in for_pages.items() if value]:
        raise UsageError(
            f"{given[0]} is given with {output_format}, which is no page",
            f"leave {given[0]} out, or write a page: -o x.html",
        )
    path = options.output
    if output_format == "parquet" and path is None:
        raise UsageError("--format parquet cannot be printed", "name a file: -o x.parquet")
    if path:
        outputs.check_file(path, output_format)
    files = [run_file.read_digest(path) for path in _find_runs(options.runs or ["@last"])]
    if path:
        nbytes = outputs.write_runs(files, path, output_format)
        outputs.announce_file(path, nbytes)
    else:
        outputs.deliver_document(gauges.make_document(files), output_format)


def _find_runs(names: Sequence[str]) -> list[Path]:
    """The runs of these names, each once; beside a side of an experiment given alone, the other, if
    it is there."""
    from collbench.records import store

    paths = list(dict.fromkeys(map(store.find_run, names)))
    with suppress(UsageError):
        other = store.find_companion(paths[0]) if len(paths) == 1 else None
        paths += [other] if other else []
    return paths


def _conclude_from(files: Sequence[RunFile], compared: bool) -> Conclusion | None:
    """The conclusion that a feature draws from these runs, or from runs that are to be
    ``compared``."""
    from collbench.core.feature import load_entries

    makers = load_entries("conclusions").values()
    return next((readable for make in makers if (readable := make(files, compared))), None)
