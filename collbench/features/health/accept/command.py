"""The command `accept`: a suite measured, or recorded runs, and the certificate of acceptance."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from collbench.cli.families import Debug, Inject, Plotlyjs, list_changed
from collbench.cli.parameters import make_option
from collbench.core.errors import Exit, NoVerdict, UsageError
from collbench.core.text import print_message

if TYPE_CHECKING:
    from collbench.records.types import RunFile
    from collbench.show.document import Document

FORMATS = ("table", "md", "json", "html")

LAUNCHES = 6  # from which on an interval takes no distribution for granted


@dataclass(frozen=True, kw_only=True)
class AcceptOptions:
    """What is measured or judged, the limits, and the certificate."""

    names: Annotated[
        list[str] | None,
        Argument(
            metavar="SUITE",
            help="A built-in name (see `collbench list`) or a TOML file; with --verify: runs.",
        ),
    ] = None
    runs: Annotated[
        list[str] | None,
        Option(
            "--run",
            metavar="RUN",
            help="Judge this recorded run and measure nothing. May be repeated.",
        ),
    ] = None
    expect: Annotated[
        Path | None,
        Option(
            "--expect",
            metavar="PATH",
            help="Limits: a table of expected bandwidths (TOML), or a folder of them. The suite's"
            " own min_busbw count, too.",
        ),
    ] = None
    ranks: Annotated[str, make_option("ranks", "Number of ranks, instead of the suite's.")] = ""
    launches: Annotated[
        int | None,
        make_option("launches", "Measure so often, by ranks newly started. Default: 6."),
    ] = None
    budget: Annotated[str, make_option("budget", "Fit the suite into this time: 10m.")] = ""
    inject: Inject = ""
    by: Annotated[
        str, Option("--by", metavar="NAME", help="Who accepts. Default: this user and host.")
    ] = ""
    output_format: Annotated[str, Option("--format", help="Print table, md, json or html.")] = (
        "table"
    )
    output: Annotated[
        list[Path] | None,
        Option(
            "-o",
            "--output",
            help="Also write this certificate: .html, .md or .json. May be repeated.",
        ),
    ] = None
    plotlyjs: Plotlyjs = "inline"
    title: Annotated[str, Option("--title", help="Heading of the certificate.")] = ""
    verify: Annotated[
        Path | None,
        Option(
            "--verify",
            metavar="CERTIFICATE",
            help="Say if runs are those that this certificate was made of, by their digests.",
        ),
    ] = None
    debug: Debug = False


def accept(options: AcceptOptions) -> None:
    """Measure machines for acceptance, and write the certificate.

    Each row is held against its limits, with its interval; what was not tested is listed. Exit
    codes: 0 accepted; 1 a row surely failed, or data were wrong; 3 not decided.
    """
    refuse_conflicts(options)
    if options.verify:
        raise typer.Exit(verify_runs(options.verify, options.names or []))
    from collbench.cli import outputs
    from collbench.features.health.accept import certificate, judgement, view
    from collbench.features.health.checks.curves import load_tables

    outputs.check_outputs(options.output_format, options.output or [], FORMATS, options.plotlyjs)
    curves = load_tables(options.expect) if options.expect else []
    files = read_runs(options.runs) if options.runs else measure_suite(options)
    if not files:  # another rank than 0
        return
    provenance = certificate.trace_provenance(
        [file.path for file in files], options.expect, options.by
    )
    acceptance = judgement.judge_acceptance(files, curves)

    def make(name: str) -> Document:
        return view.make_certificate(
            acceptance, provenance, files, options.title, whole=name == "html"
        )

    outputs.deliver_document(make, options.output_format, options.output or [], options.plotlyjs)
    raise typer.Exit(acceptance.exit)


def refuse_conflicts(options: AcceptOptions) -> None:
    """Whether options go together. Raises UsageError."""
    measured = (options.ranks, options.launches, options.budget, options.inject)
    if options.verify:
        if not options.names or list_changed(options, "verify", "names", "debug"):
            raise UsageError(
                "--verify takes runs and nothing else",
                "collbench accept --verify certificate.html RUN",
            )
        return
    if bool(options.names) == bool(options.runs) or len(options.names or []) > 1:
        raise UsageError(
            "give one suite to measure, or recorded runs",
            "collbench accept nightly, or collbench accept --run @last",
        )
    if options.runs and any(measured):
        raise UsageError(
            "--run measures nothing, which -g, --launches, --budget and --inject are about",
            "leave them out, or give a suite",
        )


def verify_runs(path: Path, names: Sequence[str]) -> Exit:
    """Say of each run if a certificate names the digest of its file; 1 where it does not."""
    from collbench.core.text import plain_line
    from collbench.features.health.accept import certificate
    from collbench.records import store

    digests = certificate.read_digests(path)
    code = Exit.OK
    for name in names:
        file = certificate.digest_file(store.find_run(name))
        if file.digest in digests:
            typer.echo(plain_line(f"{file.name}: the data of {path.name}, {file.digest}"))
        else:
            typer.echo(plain_line(f"{file.name}: not the data of {path.name}: {file.digest}"))
            code = Exit.BAD
    return code


def read_runs(names: Sequence[str]) -> list[RunFile]:
    """The recorded runs, each once. Raises UsageError and NoVerdict."""
    from collbench.records import run_file, store

    paths = list(dict.fromkeys(map(store.find_run, names)))
    for path in filter(run_file.is_running, paths):
        raise NoVerdict(run_file.describe_running(path), "judge it once it has ended")
    return [run_file.read_digest(path) for path in paths]


def measure_suite(options: AcceptOptions) -> list[RunFile]:
    """Measure the suite, in LAUNCHES launches unless told otherwise, and read the run back;
    nothing on other ranks than 0. A run that a fault ends counts as far as it came. Raises what a
    run raises."""
    from collbench.cli.measure import and_tell
    from collbench.cli.options import add_budget, change_suite
    from collbench.core.errors import CollbenchError
    from collbench.records import run_file
    from collbench.run.launch import join
    from collbench.run.order import Order
    from collbench.suite import toml

    (name,) = options.names or [""]
    suite = toml.load_suite(name)
    launches = options.launches
    if launches is None and not join.detect_launcher("auto"):
        cycles = max(axes.cycles for axes in (suite.axes, *suite.includes))
        launches = LAUNCHES if cycles == 1 or suite.policy.fresh else None
    suite = change_suite(
        suite, ngpus=options.ranks, inject=options.inject, launches=launches, launcher="auto"
    )
    order = add_budget(Order(suite=suite, command=sys.argv, tag="accept"), options.budget)
    paths: list[Path] = []
    try:
        code = and_tell(order, lambda file: paths.append(file.path))
    except CollbenchError as e:
        if isinstance(e, UsageError) or not paths:
            raise
        print_message(e.message, e.hint)
    else:
        if code == Exit.INTERRUPTED:
            raise typer.Exit(code)
    return [run_file.read_digest(path) for path in paths]
