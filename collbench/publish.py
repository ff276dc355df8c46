"""The command `report`: runs as a page, as Markdown, as images."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from collbench.errors import CannotRun, UsageError

if TYPE_CHECKING:
    from collbench.compare import Comparison
    from collbench.records import RunFile

Option, Argument = typer.Option, typer.Argument
DEFAULT = Path("collbench-report.html")


def report(
    runs: Annotated[list[str] | None, Argument(metavar="RUN…", help="@last, @last~1, an id, a tag or a file.")] = None,
    output: Annotated[Path | None, Option("-o", "--output", help="Write to this file. Default: "
                                          f"{DEFAULT}; Markdown: the terminal.")] = None,
    output_format: Annotated[str, Option("--format", help="html or md. Default: as -o ends, else html.")] = "",
    plotlyjs: Annotated[str, Option("--plotlyjs", help="inline: the page needs nothing else; directory: plotly.min.js "
                                    "beside it, for several reports; cdn: from the network.")] = "inline",
    png: Annotated[Path | None, Option("--png", help="Also write the figures to this folder, as "
                                  "collbench-*.png.")] = None,
    title: Annotated[str, Option("--title", help="Heading of the report.")] = "",
    compare: Annotated[bool, Option("--compare", help="Compare BASE and HEAD, as two runs of one `ab` are.")] = False,
    debug: Annotated[bool, Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:  # fmt: skip
    """Make one offline page of runs: figures, tables, comparison, raw data."""
    import msgspec

    from collbench import options, sections, store
    from collbench import report as reports
    from collbench.formats import counted

    options.choice("--plotlyjs", plotlyjs, ("inline", "cdn", "directory"))
    guessed = "md" if output and output.suffix in (".md", ".markdown") else "html"
    options.choice("--format", output_format or guessed, ("html", "md"))
    as_page = (output_format or guessed) == "html"
    path = output or (DEFAULT if as_page else None)
    if path:
        _overwritable(path, reports.MARKER, "collbench report")
        if as_page and plotlyjs == "directory":
            _overwritable(path.with_name(reports.LIBRARY), reports.BANNER, "plotly.js")
    files = [store.digest(path) for path in _paths(runs or ["@last"])]
    gc.freeze()  # what was read stays: to look through it again and again takes seconds
    document = sections.document(files, _comparison(files, compare))
    if title:
        document = msgspec.structs.replace(document, title=title)
    text = reports.page(document, cast(Any, plotlyjs)) if as_page else reports.markdown(document)
    if path:
        _write(path, text)
        if as_page and plotlyjs == "directory":
            _write(path.with_name(reports.LIBRARY), reports.library())
    else:
        typer.echo(text, nl=False)
    if png:
        drawn = reports.images(document, png)
        typer.echo(f"wrote {counted(len(drawn), 'image')} to {png}", err=path is None)


def _paths(names: Sequence[str]) -> list[Path]:
    """The runs of these names, each once; beside a side of an experiment given alone, the other, if it is there."""
    from collbench import judge, store

    paths = list(dict.fromkeys(map(store.find, names)))
    with suppress(UsageError):
        other = judge.other_side(paths[0]) if len(paths) == 1 else None
        paths += [other] if other else []
    return paths


def _comparison(files: Sequence[RunFile], wanted: bool) -> Comparison | None:
    """Of two runs that were asked to be compared, or that were interleaved; then base is the one measured as base."""
    from collbench import compare

    pairings = [file.run.pairing for file in files]
    together = len(files) == 2 and len({pairing and pairing.experiment for pairing in pairings}) == 1
    if wanted and len(files) != 2:
        raise UsageError(f"--compare needs two runs, not {len(files)}", "collbench report --compare BASE HEAD")
    if not wanted and not (together and pairings[0]):
        return None
    base, head = sorted(files, key=lambda file: bool(file.run.pairing and together and file.run.pairing.side == "head"))
    return compare.compare(base, head, compare.Rules())


def _overwritable(path: Path, marker: str, what: str) -> None:
    """Refuses a file that is something else, before minutes are spent on what would replace it."""
    try:
        if not path.is_file() or path.stat().st_size == 0:
            return
        with path.open("rb") as f:
            start = f.read(len(marker) + 100)
    except OSError as e:
        raise CannotRun(f"cannot read {path}: {e.strerror}", "choose another file with -o") from e
    if marker.encode() not in start:
        raise UsageError(f"{path} exists and is no {what}", "choose another file with -o, or remove it")


def _write(path: Path, text: str) -> None:
    from collbench.formats import size
    from collbench.store import save

    save(path, text)
    typer.echo(f"wrote {path} ({size(len(text.encode()))})")
