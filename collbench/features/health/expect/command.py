"""The commands `collbench expect …`: tables of expected bandwidths, learned, shown, and their
power."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from collbench.cli import command as commands
from collbench.cli.families import RUN_NAMES, Debug
from collbench.core.errors import UsageError

if TYPE_CHECKING:
    from collbench.show.document import Document

FORMATS = ("table", "json", "md")

TablePath = Annotated[Path, Argument(metavar="PATH", help="A table (TOML), or a folder of tables.")]
Printed = Annotated[str, Option("--format", help="table, json or md.")]


@dataclass(frozen=True, kw_only=True)
class LearnOptions:
    """The runs to learn from, and the table that is written."""

    runs: Annotated[list[str], RUN_NAMES]
    output: Annotated[
        Path | None,
        Option("-o", "--output", help="Write this file (.toml). Default: the terminal."),
    ] = None
    severity: Annotated[
        str,
        Option(
            "--severity",
            help="Of a row below its limit: hint, warning or critical. Default: hint, until"
            " somebody has reviewed the table.",
        ),
    ] = "hint"
    machine: Annotated[
        str,
        Option(
            "--machine",
            metavar="PATTERN",
            help="Hosts that the table is about, a regular expression. Default: how the names of"
            " the nodes begin; for GPUs any host.",
        ),
    ] = ""
    debug: Debug = False


def learn(options: LearnOptions) -> None:
    """Write a table of what nodes that should be equal reach, from one run of each.

    Nodes that are unlike the others are named and left out. Exit code 3: too few nodes.
    """
    from typing import cast

    from collbench.cli import outputs
    from collbench.core import files
    from collbench.core.text import format_count, print_message
    from collbench.features.health.expect import learning
    from collbench.features.health.expect.nodes import read_nodes
    from collbench.features.health.findings import Severity
    from collbench.suite import grammar

    grammar.parse_choice("--severity", options.severity, ("hint", "warning", "critical"))
    _check_pattern(options.machine)
    path = options.output
    if path:
        if path.suffix != ".toml":
            raise UsageError(f"-o {path}: a table's name ends in .toml", f"-o {path.name}.toml")
        files.refuse_no_folder(path, "-o")
        if path.exists():
            raise UsageError(
                f"{path} exists",
                "choose another name with -o: a table that was reviewed is never replaced",
            )
    learned = learning.learn_table(read_nodes(options.runs))
    text = learning.render_table(learned, cast("Severity", options.severity), options.machine)
    for line in learning.describe_left_out(learned):
        print_message(f"left out: {line}")
    for note in learned.notes:
        print_message(note)
    if path is None:
        typer.echo(text.rstrip("\n"))
        return
    nbytes = files.save_text(path, text, shared=True)
    rows = format_count(sum(map(len, learned.curves.values())), "row")
    nodes = format_count(len(learned.nodes), "node")
    outputs.announce_file(path, nbytes, f"{rows} of {nodes}; review it")


def _check_pattern(text: str) -> None:
    import re

    try:
        re.compile(text)
    except (re.error, OverflowError) as e:
        raise UsageError(
            f"--machine {text}: not a regular expression: {e}", "--machine '^node'"
        ) from e


@dataclass(frozen=True, kw_only=True)
class PowerOptions:
    """The tables, and the runs whose scatter is known."""

    path: TablePath
    runs: Annotated[list[str], RUN_NAMES]
    launches: Annotated[
        int | None,
        Option(
            "--launches",
            min=3,
            help="Of a night that is to be judged. Default: as many as the smallest run has.",
        ),
    ] = None
    output_format: Printed = "table"
    debug: Debug = False


def power(options: PowerOptions) -> None:
    """Estimate which loss of busbw the tables would detect, and how often. Give one run per node.

    Exit code 3: no row of the runs has a limit.
    """
    from collbench.features.health.checks.curves import load_tables
    from collbench.features.health.expect import power, view
    from collbench.features.health.expect.nodes import read_nodes
    from collbench.suite import grammar

    grammar.parse_choice("--format", options.output_format, FORMATS)
    curves = load_tables(options.path)
    found = power.find_power(curves, read_nodes(options.runs), options.launches)
    _deliver(view.make_power_document(found), options.output_format)


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """The tables to show."""

    path: TablePath
    output_format: Printed = "table"
    debug: Debug = False


def show(options: ShowOptions) -> None:
    """Show tables: each curve with its limits, source and day, and where tables contradict each
    other."""
    from datetime import date

    from collbench.features.health.checks.curves import load_tables
    from collbench.features.health.expect import view
    from collbench.features.health.expect.tables import find_disagreements
    from collbench.suite import grammar

    grammar.parse_choice("--format", options.output_format, FORMATS)
    curves = load_tables(options.path)
    document = view.make_tables_document(curves, find_disagreements(curves), date.today())
    _deliver(document, options.output_format)


def _deliver(document: Document, printed: str) -> None:
    from collbench.cli import outputs

    outputs.deliver_document(document, printed)


def make_group() -> typer.Typer:
    """Learn tables of expected bandwidths, show them, and what they would find."""
    app = commands.make_app({"learn": learn, "power": power, "show": show})
    app.info.help, app.info.no_args_is_help = make_group.__doc__, True
    return app
