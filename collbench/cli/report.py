"""The command `report`: runs as a page, as Markdown, as images."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from collbench.core.errors import CannotRun, UsageError

if TYPE_CHECKING:
    from collbench.judge.comparison import Comparison
    from collbench.records.types import RunFile


DEFAULT = Path("collbench-report.html")


def report(
    runs: list[str] | None = None,
    output: Path | None = None,
    output_format: str = "",
    plotlyjs: str = "inline",
    png: Path | None = None,
    title: str = "",
    compare: bool = False,
    debug: bool = False,
) -> None:
    """Make one offline page of runs: figures, tables, comparison, raw data."""
    import msgspec

    from collbench.core.text import counted
    from collbench.records import store
    from collbench.show import html as reports
    from collbench.show import markdown
    from collbench.show.document import MARKER
    from collbench.show.views import run
    from collbench.suite import grammar

    grammar.choice("--plotlyjs", plotlyjs, ("inline", "cdn", "directory"))
    guessed = "md" if output and output.suffix in (".md", ".markdown") else "html"
    grammar.choice("--format", output_format or guessed, ("html", "md"))
    as_page = (output_format or guessed) == "html"
    path = output or (DEFAULT if as_page else None)
    if path:
        _overwritable(path, MARKER, "collbench report")
        if as_page and plotlyjs == "directory":
            _overwritable(path.with_name(reports.LIBRARY), reports.BANNER, "plotly.js")
    files = [store.digest(path) for path in _paths(runs or ["@last"])]
    gc.freeze()  # what was read stays: to look through it again and again takes seconds
    document = run.document(files, _comparison(files, compare))
    if title:
        document = msgspec.structs.replace(document, title=title)
    text = reports.page(document, cast(Any, plotlyjs)) if as_page else markdown.text(document)
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
    """The runs of these names, each once; beside a side of an experiment given alone, the other, if
    it is there."""
    from collbench.cli import compare as judge
    from collbench.records import store

    paths = list(dict.fromkeys(map(store.find, names)))
    with suppress(UsageError):
        other = judge.other_side(paths[0]) if len(paths) == 1 else None
        paths += [other] if other else []
    return paths


def _comparison(files: Sequence[RunFile], wanted: bool) -> Comparison | None:
    """The comparison of two runs that were interleaved, or that the command asks to compare. Of
    interleaved runs the one measured as base is base."""
    from collbench.judge import comparison

    pairings = [file.run.pairing for file in files]
    together = (
        len(files) == 2 and len({pairing and pairing.experiment for pairing in pairings}) == 1
    )
    if wanted and len(files) != 2:
        raise UsageError(
            f"--compare needs two runs, not {len(files)}", "collbench report --compare BASE HEAD"
        )
    if not wanted and not (together and pairings[0]):
        return None
    base, head = sorted(
        files,
        key=lambda file: bool(file.run.pairing and together and file.run.pairing.side == "head"),
    )
    return comparison.compare(base, head, comparison.Rules())


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
        raise UsageError(
            f"{path} exists and is no {what}", "choose another file with -o, or remove it"
        )


def _write(path: Path, text: str) -> None:
    from collbench.core.text import size
    from collbench.records.store import save

    save(path, text)
    typer.echo(f"wrote {path} ({size(len(text.encode()))})")
