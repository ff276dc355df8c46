"""The command `trace`: what is in traces of a job, what is lost, where its time goes, and who hung
it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from collbench.cli.families import Debug, Plotlyjs
from collbench.core.errors import Exit

FORMATS = ("table", "md", "json", "html")

Files = Annotated[
    list[Path],
    Argument(metavar="FILE…", help="A trace: a folder, or the file of each rank."),
]
Form = Annotated[
    str,
    Option(
        "--from",
        help="The format, if it is not recognised: collbench, kineto, flight, et, chakra, aicb,"
        " simai, step.",
    ),
]
Ops = Annotated[
    bool, Option("--from-ops", help="Read c10d operators of a trace that names no collectives.")
]


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """The trace to read, and the outputs made of it."""

    files: Files
    form: Form = ""
    from_ops: Ops = False
    output_format: Annotated[
        str,
        Option("--format", help="Print table, md, json or html."),
    ] = "table"
    out: Annotated[
        list[Path] | None,
        Option(
            "-o", "--output", help="Also write this file: .html, .md or .json. May be repeated."
        ),
    ] = None
    plotlyjs: Plotlyjs = "inline"
    debug: Debug = False


def trace(options: TraceOptions) -> None:
    """Say what is in a job's trace, who comes late, and who hung it.

    A rank that hung the job is named, and so are ranks that do not agree on what they do together:
    exit code 1. Where something hangs and nobody can be named, dumps of a hung job lack calls that
    other ranks made, nothing was recorded, or a file is cut or cannot be read, it is 3. `collbench
    help traces` says how a trace is made, and what the columns are.
    """
    from collbench.cli import outputs
    from collbench.features.traces.analysis.judgement import judge_trace
    from collbench.features.traces.formats import recognise as reading
    from collbench.features.traces.views import trace as view

    printed, out, plotlyjs = options.output_format, options.out or [], options.plotlyjs
    outputs.check_outputs(printed, out, FORMATS, plotlyjs)
    verdict = judge_trace(
        reading.read_trace(options.files, options.form, from_ops=options.from_ops)
    )
    outputs.deliver_document(view.make_document(verdict), printed, out, plotlyjs)
    if verdict.disagree or (verdict.hang and verdict.hang.is_blamed):
        raise typer.Exit(Exit.BAD)
    is_open = verdict.is_undecided or not (verdict.communicates and verdict.is_complete)
    if verdict.disagreements or verdict.hang or is_open:
        raise typer.Exit(Exit.NO_VERDICT)
