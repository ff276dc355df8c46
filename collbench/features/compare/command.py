"""`collbench compare`: two runs, their comparison, and everything made of it. Heavy imports stay
inside."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from collbench.cli.families import Debug
from collbench.core.errors import UsageError

if TYPE_CHECKING:
    from collbench.features.compare.comparison import Comparison, Rules
    from collbench.records.types import RunFile
    from collbench.show.document import Document


FORMATS = ("table", "md", "json", "html", "junit")

Strict = Annotated[bool, Option("--strict", help="Exit with 3 unless every row is decided.")]


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The runs to compare, the rules, and the outputs."""

    base: Annotated[
        str,
        Argument(
            metavar="BASE",
            help="@last~1, an id, tag or file; several, with commas or as a folder, count as one;"
            " alone: a run of an `ab`.",
        ),
    ]
    head: Annotated[str, Argument(metavar="HEAD", help="The run to judge against BASE.")] = ""
    everything: Annotated[
        bool,
        Option("--all", help="List every row, however many there are."),
    ] = False
    tau: Annotated[
        str, Option("--tau", help="Smallest change that matters: 5%. Default: 3 to 10 %, by row.")
    ] = ""
    strict: Strict = False
    gate_unpaired: Annotated[
        bool, Option("--gate-unpaired", help="Runs not measured in turns may fail too.")
    ] = False
    across_machines: Annotated[
        bool, Option("--across-machines", help="Judge in spite of another machine.")
    ] = False
    output_format: Annotated[
        str, Option("--format", help="Print table, md, json, html or junit.")
    ] = "table"
    out: Annotated[
        list[Path] | None,
        Option(
            "-o",
            "--output",
            help="Also write this file: .md, .json, .html or .xml (JUnit). May be repeated.",
        ),
    ] = None
    title: Annotated[
        str,
        Option("--title", help="What the Markdown's heading begins with."),
    ] = "collbench"
    marker: Annotated[
        str,
        Option("--marker", help="Name in the Markdown's hidden first line."),
    ] = "compare"
    debug: Debug = False


def compare(options: CompareOptions) -> None:
    """Judge a run against another: which rows are slower, beyond noise."""
    from collbench.features.compare import comparison as judging
    from collbench.features.compare import false_alarms as alarms
    from collbench.features.compare.views import comparison as views
    from collbench.show import programs
    from collbench.suite import grammar

    base, head, tau = options.base, options.head, options.tau
    printed, out = options.output_format, options.out or []
    rules = judging.Rules(
        tau=grammar.parse_share(tau, "--tau") if tau else None,
        strict=options.strict,
        gate_unpaired=options.gate_unpaired,
        across_machines=options.across_machines,
    )
    check_outputs(printed, out, options.marker)
    bases, heads = (
        (_find_runs(base), _find_runs(head)) if head else ([file] for file in _both_sides(base))
    )
    ids = Counter(file.run.id for file in (*bases, *heads))
    if len(ids) < ids.total():
        raise UsageError(
            f"run {ids.most_common(1)[0][0]} is named twice", "collbench runs lists the others"
        )
    comparison = judging.compare_runs(bases, heads, rules)
    again = command_for_all([name for name in (base, head) if name], rules)
    known_alarms = alarms.find_alarms(comparison)
    document = views.make_document(
        comparison, options.everything, options.title, options.marker, known_alarms, again
    )
    deliver_comparison(comparison, document, printed, out)
    programs.in_github(document, os.environ)
    raise typer.Exit(comparison.exit)


def command_for_all(names: Sequence[str], rules: Rules) -> str:
    """The command that lists every row of a comparison of these runs by these rules."""
    given = {
        f"--tau {100 * rules.tau:g}%" if rules.tau else "": rules.tau is not None,
        "--strict": rules.strict,
        "--gate-unpaired": rules.gate_unpaired,
        "--across-machines": rules.across_machines,
    }
    options = [option for option, is_given in given.items() if is_given]
    return " ".join(["collbench compare", shlex.join(names), *options, "--all"])


def _find_runs(names: str) -> list[RunFile]:
    """Read the run called ``names``, all runs of the folder of this path, or several runs separated
    by commas."""
    from collbench.records import run_file, store

    if os.path.isdir(names):  # noqa: PTH112 - Path's raises for a name that is too long
        files = (path for path in Path(names).glob("*.jsonl") if path.is_file())
        several = [str(path) for path in sorted(files)]
    else:
        file = os.path.isfile(names)  # noqa: PTH113 - Path's raises for a name that is too long
        several = [] if file else [name for name in names.split(",") if name]
    return [run_file.read_digest(store.find_run(name)) for name in several or [names]]


def _both_sides(name: str) -> tuple[RunFile, RunFile]:
    """Base and head of the experiment to which the run called ``name`` belongs. Raises
    UsageError."""
    from collbench.records import run_file, store

    path = store.find_run(name)
    other = store.find_companion(path)
    if other is None:
        raise UsageError(
            f"{name} is one run, not a side of an experiment",
            "name two runs: collbench compare BASE HEAD",
        )
    sides = map(run_file.read_digest, (path, other))
    base, head = sorted(sides, key=lambda file: file.run.pairing.side)  # type: ignore[union-attr]
    return base, head


def check_outputs(output_format: str, out: Sequence[Path], marker: str = "compare") -> None:
    """Whether ``deliver_comparison`` can make all this, before any time is spent. Raises UsageError
    and CannotRun."""
    from collbench.cli import outputs

    outputs.check_outputs(output_format, out, FORMATS)
    if not re.fullmatch(r"\w+([.-]\w+)*", marker, re.ASCII):
        raise UsageError(
            f"--marker '{marker}' is not a name",
            "use letters and digits, with . or - between: pr-gloo",
        )


def deliver_comparison(
    comparison: Comparison, document: Document, output_format: str, out: Sequence[Path]
) -> None:
    """Prints the comparison, writes it to every file of ``out``, and says on standard error why it
    fails."""
    from collbench.cli import outputs
    from collbench.show.words import shorten_text

    outputs.deliver_document(document, output_format, out)
    if comparison.exit:
        typer.echo(f"collbench: {shorten_text(comparison.reason, 500)}", err=True)
