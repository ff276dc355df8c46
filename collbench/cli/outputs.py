"""What --format and -o ask for: checked before time is spent, then one document printed and
written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

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


def check(
    printed: str, files: Sequence[Path], formats: Collection[str], plotlyjs: str = "inline"
) -> None:
    """Whether ``deliver`` can make all this, ``formats`` being those of the command. Raises
    UsageError and CannotRun."""
    from collbench.core.files import refuse
    from collbench.suite import grammar

    grammar.choice("--format", printed, formats)
    grammar.choice("--plotlyjs", plotlyjs, PLOTLYJS)
    endings = [suffix for suffix, name in SUFFIXES.items() if name in formats]
    for path in files:
        grammar.choice(f"-o {path}: its ending", path.suffix, endings)
        refuse(path, MARKS[SUFFIXES[path.suffix]])
        if SUFFIXES[path.suffix] == "html" and plotlyjs == "directory":
            from collbench.show import html

            refuse(path.with_name(html.LIBRARY), html.BANNER)


def deliver(
    document: Document | Callable[[str], Document],
    printed: str,
    files: Sequence[Path] = (),
    plotlyjs: str = "inline",
) -> None:
    """Prints the document in the format ``printed``, then writes every one of ``files``, each whole
    or not at all. A document that depends on the format is made by a function of its name."""
    make = document if callable(document) else lambda _: document
    show(text(make(printed), printed))
    write(make, files, plotlyjs)


def write(make: Callable[[str], Document], files: Sequence[Path], plotlyjs: str = "inline") -> None:
    """Writes ``files`` in the formats that their endings name, and plotly.js beside pages that load
    it from there. The umask decides who may read them. Raises CannotRun."""
    from collbench.core.files import save

    for path in files:
        name = SUFFIXES[path.suffix]
        save(path, text(make(name), name, plotlyjs), MARKS[name], shared=True)
        if name == "html" and plotlyjs == "directory":
            from collbench.show import html

            save(path.with_name(html.LIBRARY), html.library(), html.BANNER, shared=True)


def text(document: Document, name: str, plotlyjs: str = "inline") -> str:
    """The document in one format."""
    from collbench.show import html, markdown, programs, terminal

    renderers: Mapping[str, Callable[[Document], str]] = {
        "table": terminal.text,
        "md": markdown.text,
        "html": partial(html.page, plotlyjs=cast(html.Plotlyjs, plotlyjs)),
        "json": programs.as_json,
        "csv": programs.as_csv,
        "junit": programs.junit,
        "prometheus": programs.prometheus,
        "line": programs.line,
    }
    return renderers[name](document)


def show(words: str) -> None:
    """Prints text to standard output."""
    typer.echo(words.rstrip("\n"))
