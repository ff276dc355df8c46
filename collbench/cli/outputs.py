"""What --format and -o ask for: checked before time is spent, then one document printed and
written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

if TYPE_CHECKING:
    from collbench.show.document import Document


# By what a file of each format that collbench wrote is known as one, which may be replaced.
MARKS = {
    "md": "<!-- collbench",
    "json": '{"schema":',
    "html": "<!-- collbench",
    "junit": '<testsuite name="collbench',
    "prometheus": "# HELP collbench_",
}


SUFFIXES = {".md": "md", ".json": "json", ".html": "html", ".xml": "junit", ".prom": "prometheus"}


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


def check_file(path: Path, name: str, plotlyjs: str = "inline") -> None:
    """Whether ``write_file`` may write there. Raises UsageError and CannotRun."""
    from collbench.core.files import refuse_foreign_file

    refuse_foreign_file(path, MARKS[name])
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
    or not at all. A document that depends on the format is made by a function of its name."""
    make = document if callable(document) else lambda _: document
    print_text(render_text(make(printed), printed))
    for path in files:
        name = SUFFIXES[path.suffix]
        write_file(make(name), path, name, plotlyjs)


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
    for file, text, mark in files:
        save_text(file, text, mark, shared=True)
    return [(file, len(text.encode())) for file, text, _ in files]


def render_text(document: Document, name: str, plotlyjs: str = "inline") -> str:
    """The document in one format."""
    from collbench.show import html, markdown, programs, terminal

    renderers: Mapping[str, Callable[[Any], str]] = {  # the last three take a Judgement
        "table": terminal.render_text,
        "md": markdown.render_markdown,
        "html": partial(html.render_page, plotlyjs=cast(html.Plotlyjs, plotlyjs)),
        "json": programs.as_json,
        "csv": programs.as_csv,
        "junit": programs.render_junit,
        "prometheus": programs.render_prometheus,
        "line": programs.render_line,
    }
    return renderers[name](document)


def print_text(text: str) -> None:
    """Prints text to standard output."""
    typer.echo(text.rstrip("\n"))
