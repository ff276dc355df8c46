"""What --format and -o ask for: checked before time is spent, then one document printed and
written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

if TYPE_CHECKING:
    from collbench.records.types import RunFile
    from collbench.show.document import Document


# By what a file of each format that collbench wrote is known as one, which may be replaced.
MARKS = {
    "md": "<!-- collbench",
    "json": '{"schema":',
    "html": "<!-- collbench",
    "junit": '<testsuite name="collbench',
    "prometheus": "# HELP collbench_",
    "otlp": '"service.name","value":{"stringValue":"collbench"',
    "parquet": "collbench.schema",
}

SUFFIXES = {
    ".md": "md",
    ".json": "json",
    ".html": "html",
    ".xml": "junit",
    ".prom": "prometheus",
    ".otlp": "otlp",
    ".parquet": "parquet",
}

RUN_FORMATS = ("prometheus", "otlp", "parquet")  # that a run has, besides pages

RUN_ENDINGS = tuple(suffix for suffix, name in SUFFIXES.items() if name in RUN_FORMATS)

REPORTS = {  # formats of `report` by endings of files
    ".html": "html",
    ".htm": "html",
    ".md": "md",
    ".markdown": "md",
    ".prom": "prometheus",
    ".otlp": "otlp",
    ".parquet": "parquet",
}

PLOTLYJS = ("inline", "cdn", "directory")  # how a page comes by plotly.js


def check_outputs(
    printed: str, files: Sequence[Path], formats: Collection[str], plotlyjs: str = "inline"
) -> None:
    """Whether ``deliver_document`` can make all this, ``formats`` being those of the command.
    Raises UsageError and CannotRun."""
    from collbench.suite import grammar

    grammar.parse_choice("--format", printed, formats)
    grammar.parse_choice("--plotlyjs", plotlyjs, PLOTLYJS)
    endings = [suffix for suffix, name in SUFFIXES.items() if name in formats]
    for path in files:
        grammar.parse_choice(f"-o {path}: its ending", path.suffix, endings)
        check_file(path, SUFFIXES[path.suffix], plotlyjs)


def check_file(path: Path, name: str, plotlyjs: str = "inline", option: str = "-o") -> None:
    """Whether ``write_file`` or ``write_runs`` may write there. Raises UsageError and CannotRun."""
    from collbench.core.files import refuse_foreign_file

    if name == "parquet":
        from collbench.show.parquet import find_pyarrow

        find_pyarrow()
    refuse_foreign_file(path, MARKS[name], option, at_end=name == "parquet")
    if name == "html" and plotlyjs == "directory":
        from collbench.show import html

        refuse_foreign_file(path.with_name(html.LIBRARY), html.BANNER)


def deliver_document(
    document: Document | Callable[[str], Document],
    printed: str,
    files: Sequence[Path] = (),
    plotlyjs: str = "inline",
) -> None:
    """Prints the document in the format ``printed``, then writes every one of ``files``, each whole
    or not at all, and announces it on standard error. A document that depends on the format is made
    by a function of its name."""
    make = document if callable(document) else lambda _: document
    print_text(render_text(make(printed), printed))
    for path in files:
        name = SUFFIXES[path.suffix]
        for file, nbytes in write_file(make(name), path, name, plotlyjs):
            announce_file(file, nbytes, to_stderr=True)


def write_file(
    document: Document, path: Path, name: str, plotlyjs: str = "inline"
) -> list[tuple[Path, int]]:
    """Writes the document in the format ``name``, and plotly.js beside a page that loads it from
    there; each file with its bytes. The umask decides who may read them. Raises CannotRun."""
    from collbench.core.files import save_text

    files = [(path, render_text(document, name, plotlyjs), MARKS[name])]
    if name == "html" and plotlyjs == "directory":
        from collbench.show import html

        files.append((path.with_name(html.LIBRARY), html.load_plotly(), html.BANNER))
    return [(file, save_text(file, text, mark, shared=True)) for file, text, mark in files]


def write_runs(files: Sequence[RunFile], path: Path, name: str, option: str = "-o") -> int:
    """Writes runs in the format ``name`` of RUN_FORMATS; the file's bytes. Raises UsageError and
    CannotRun."""
    from collbench.core.files import replace_file
    from collbench.show.parquet import render_parquet
    from collbench.show.views import gauges

    check_file(path, name, option=option)
    if name == "parquet":
        data = render_parquet(files)
    else:
        data = render_text(gauges.make_document(files), name).encode()
    replace_file(path, data, option, shared=True)
    return len(data)


def announce_file(path: Path, nbytes: int, remark: str = "", to_stderr: bool = False) -> None:
    """Say that a file was written; on standard error where standard output has something else."""
    from collbench.core.text import format_size, plain_line

    text = f"wrote {path} ({format_size(nbytes)})" + f": {remark}" * bool(remark)
    typer.echo(plain_line(text), err=to_stderr)


def render_text(document: Document, name: str, plotlyjs: str = "inline") -> str:
    """The document in one format."""
    from collbench.show import html, markdown, otlp, programs, terminal

    renderers: Mapping[str, Callable[[Any], str]] = {  # the last two take a Judgement
        "table": terminal.render_text,
        "md": markdown.render_markdown,
        "html": partial(html.render_page, plotlyjs=cast(html.Plotlyjs, plotlyjs)),
        "json": programs.as_json,
        "csv": programs.as_csv,
        "prometheus": programs.render_prometheus,
        "otlp": otlp.render_otlp,
        "junit": programs.render_junit,
        "line": programs.render_line,
    }
    return renderers[name](document)


def print_text(text: str) -> None:
    """Prints text to standard output."""
    typer.echo(text.rstrip("\n"))
