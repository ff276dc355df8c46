"""`collbench compare`: two runs, their comparison, and everything made of it. Heavy imports stay inside."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from collbench.errors import CannotRun, UsageError

if TYPE_CHECKING:
    from collbench.compare import Comparison
    from collbench.records import RunFile

Option, Argument = typer.Option, typer.Argument
FORMATS = ("table", "md", "json", "html", "junit")
SUFFIXES = {".md": "md", ".json": "json", ".html": "html", ".xml": "junit"}


def compare(
    base: Annotated[str, Argument(metavar="BASE", help="@last~1, an id, tag or file; several, with commas, "
                                           "count as one; alone: a run of an `ab`.")],
    head: Annotated[str, Argument(metavar="HEAD", help="The run to judge against BASE.")] = "",
    everything: Annotated[bool, Option("--all", help="List rows that are SAME too.")] = False,
    tau: Annotated[str, Option("--tau", help="Smallest change that matters: 5%. Default: 3 to 10 %, by row.")] = "",
    strict: Annotated[bool, Option("--strict", help="Rows without a verdict fail too.")] = False,
    gate_unpaired: Annotated[bool, Option("--gate-unpaired", help="Runs not measured in turns may fail too.")] = False,
    across_machines: Annotated[bool, Option("--across-machines", help="Judge in spite of another machine.")] = False,
    output_format: Annotated[str, Option("--format", help="Print table, md, json, html or junit.")] = "table",
    out: Annotated[list[Path] | None, Option("-o", "--output", help="Also write this file: .md, .json, .html or .xml "
                                             "(JUnit). May be repeated.")] = None,
    title: Annotated[str, Option("--title", help="What the Markdown's heading begins with.")] = "collbench",
    marker: Annotated[str, Option("--marker", help="Name in the Markdown's hidden first line.")] = "compare",
    debug: Annotated[bool, Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:  # fmt: skip
    """Judge a run against another: which rows are slower, beyond noise."""
    from collbench import annotate, grammar
    from collbench import compare as judging

    rules = judging.Rules(
        tau=grammar.parse_share(tau, "--tau") if tau else None,
        strict=strict, gate_unpaired=gate_unpaired, across_machines=across_machines,
    )  # fmt: skip
    check(output_format, out or [], marker)
    bases, heads = (_runs(base), _runs(head)) if head else ([file] for file in _both_sides(base))
    ids = Counter(file.run.id for file in (*bases, *heads))
    if len(ids) < ids.total():
        raise UsageError(f"run {ids.most_common(1)[0][0]} is named twice", "collbench runs lists the others")
    comparison = judging.compare(bases, heads, rules)
    tell(comparison, output_format, out or [], everything=everything, title=title, marker=marker)
    annotate.in_github(comparison, os.environ, title, marker)
    raise typer.Exit(comparison.exit)


def _runs(names: str) -> list[RunFile]:
    """One run, or several separated by commas."""
    from collbench import store

    several = [] if Path(names).is_file() else [name for name in names.split(",") if name]
    return [store.read(store.find(name)) for name in several or [names]]


def _both_sides(name: str) -> tuple[RunFile, RunFile]:
    """Base and head of the experiment to which the run called ``name`` belongs. Raises UsageError."""
    from collbench import store

    path = store.find(name)
    other = other_side(path)
    if other is None:
        raise UsageError(f"{name} is one run, not a side of an experiment", "compare needs two: BASE HEAD")
    base, head = sorted(map(store.read, (path, other)), key=lambda file: file.run.pairing.side)  # type: ignore[union-attr]
    return base, head


def other_side(path: Path) -> Path | None:
    """The other run of the experiment that the run in ``path`` is a side of; None where it is of none. Raises
    UsageError where it is not beside it."""
    from collbench import store

    pairing = store.read_run(path).pairing
    if pairing is None:
        return None
    name: Literal["base", "head"] = "head" if pairing.side == "base" else "base"
    beside = path.with_name(f"{Path(pairing.experiment).name}-{name}.jsonl")
    there = store.read_run(beside).pairing if beside.is_file() else None
    if there is None or (there.experiment, there.side) != (pairing.experiment, name):
        raise UsageError(f"{path} is the {pairing.side} of an experiment whose {name} is not at {beside}",
                         "name both runs: BASE HEAD")  # fmt: skip
    return beside


def check(output_format: str, out: Sequence[Path], marker: str = "compare") -> None:
    """Whether ``tell`` can make all this, before any time is spent. Raises UsageError."""
    from collbench import options

    options.choice("--format", output_format, FORMATS)
    for path in out:
        options.choice(f"-o {path}: its ending", path.suffix, SUFFIXES)
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise CannotRun(f"-o {path}: {path.parent} is no folder to write to", "make it, or choose another place")
    if not re.fullmatch(r"\w+([.-]\w+)*", marker, re.ASCII):
        raise UsageError(f"--marker '{marker}' is no name", "letters and digits, with . or - between: pr-gloo")


def tell(
    comparison: Comparison, output_format: str = "table", out: Sequence[Path] = (), *,
    everything: bool = False, title: str = "collbench", marker: str = "compare",
) -> None:  # fmt: skip
    """Prints the comparison, writes it to every file of ``out``, and says on standard error why it fails."""
    from collbench import store, verdicts

    for path in out:
        store.save(path, _text(comparison, SUFFIXES[path.suffix], title, marker))
    try:
        if output_format == "table":
            verdicts.show(comparison, everything)
        else:
            typer.echo(_text(comparison, output_format, title, marker).rstrip("\n"))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough; the verdict stands
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    if comparison.exit:
        typer.echo(f"collbench: {verdicts.short(comparison.reason, 500)}", err=True)


def _text(comparison: Comparison, output_format: str, title: str, marker: str) -> str:
    """The comparison in one of FORMATS but the table."""
    from collbench import annotate

    match output_format:
        case "md":
            return annotate.markdown(comparison, title, marker)
        case "json":
            return annotate.as_json(comparison)
        case "junit":
            return annotate.junit(comparison)
        case _:
            return _page(comparison)


def _page(comparison: Comparison) -> str:
    from collbench import annotate, report, verdicts
    from collbench.document import Document

    runs = {"base": comparison.base, "head": comparison.head}
    document = Document(
        title=f"{verdicts.name_of(comparison.base)} → {verdicts.name_of(comparison.head)}",
        verdict=verdicts.headline(comparison),
        weight=verdicts.weight(comparison),
        runs=[f"{side}: {verdicts.name_of(run)}, run {run.id} of {run.started}" for side, run in runs.items()],
        sections=[verdicts.section(comparison)],
        data=annotate.flat(comparison),
    )
    return report.page(document)
