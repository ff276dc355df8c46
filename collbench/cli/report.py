"""The command `report`: runs as a page, as Markdown, as images."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from collbench.core.errors import UsageError

if TYPE_CHECKING:
    from collbench.records.types import RunFile
    from collbench.show.views.verdicts import Readable


DEFAULT = Path("collbench-report.html")


ENDINGS = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md"}


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
    """Make one offline page of runs: figures, tables, raw data."""
    import msgspec

    from collbench.cli import outputs
    from collbench.core.files import refuse
    from collbench.core.text import counted
    from collbench.records import store
    from collbench.show import html as reports
    from collbench.show import markdown
    from collbench.show.views import run
    from collbench.suite import grammar

    grammar.choice("--plotlyjs", plotlyjs, outputs.PLOTLYJS)
    grammar.choice("--format", output_format or "html", ("html", "md"))
    if output and output.suffix and not output_format:
        output_format = ENDINGS[grammar.choice(f"-o {output}: its ending", output.suffix, ENDINGS)]
    as_page = output_format in ("", "html")
    path = output or (DEFAULT if as_page else None)
    if path:
        refuse(path, outputs.MARKS["html"])
        if as_page and plotlyjs == "directory":
            refuse(path.with_name(reports.LIBRARY), reports.BANNER)
    if png:
        reports.find_browser()
    files = [store.digest(path) for path in _paths(runs or ["@last"])]
    gc.freeze()  # what was read stays: to look through it again and again takes seconds
    document = run.document(files, _comparison(files, compare))
    if title:
        document = msgspec.structs.replace(document, title=title)
    text = reports.page(document, cast(Any, plotlyjs)) if as_page else markdown.text(document)
    if path:
        _write(path, text, outputs.MARKS["html"])
        if as_page and plotlyjs == "directory":
            _write(path.with_name(reports.LIBRARY), reports.library(), reports.BANNER)
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


def _comparison(files: Sequence[RunFile], wanted: bool) -> Readable | None:
    """The comparison of two runs that were interleaved, or that the command asks to compare. Of
    interleaved runs the one measured as base is base."""
    from collbench.judge import alarms, comparison
    from collbench.show.views.verdicts import readable

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
    judged = comparison.compare(base, head, comparison.Rules())
    return readable(judged, alarms.stored(judged))


def _write(path: Path, text: str, mark: str) -> None:
    from collbench.core.files import save
    from collbench.core.text import size

    save(path, text, mark, shared=True)
    typer.echo(f"wrote {path} ({size(len(text.encode()))})")
