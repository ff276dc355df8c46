"""The list of saved runs, and how each ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collbench.core.errors import Exit
from collbench.core.text import format_size, plain_line
from collbench.records.origins import FAKE
from collbench.records.run_file import Outline
from collbench.records.types import End
from collbench.show.document import Cell, Column, Document, Line, Table, Tone, tone_text

SAVED = (  # columns of saved runs
    Column("name", "left", never_cut=True),
    Column("id", "left", never_cut=True),
    Column("tag", "cut"),
    Column("cases", never_cut=True),
    Column("size", priority=1),
    Column("ended", "left", never_cut=True),
    Column("arguments", "cut"),
)

ENDED = {Exit.TIMEOUT: "hung or killed"}  # how runs end, where an exit's name does not say it


def list_saved(files: Sequence[tuple[str, Outline]], total: int = 0, damaged: int = 0) -> Document:
    """Saved runs, oldest first: the name by which each is found (none while it is running), and how
    it ended. ``total`` counts those that are not listed, too, and ``damaged`` those that cannot
    be read."""
    heads = tuple(column.head for column in SAVED)
    lines, rows = [], list[dict[str, Any]]()
    for name, file in files:
        ended = "running" if file.running else _describe_end(file.end)
        arguments = plain_line(" ".join(file.run.command[1:]))
        names = [plain_line(text) for text in (name, file.run.id, file.run.tag)]
        values = (*names, file.cases, file.nbytes, ended, arguments, file.run.started, file.fake)
        rows.append(dict(zip((*heads, "started", FAKE), values, strict=True)))
        tone: Tone = "quiet" if ended == "ok" else "bad" if file.end else "notice"
        fake = tone_text(", fake GPU" if file.fake else "", "bad")
        details = (
            str(file.cases),
            format_size(file.nbytes),
            tone_text(ended, tone) + fake,
            arguments,
        )
        cells: list[Cell] = [*names, *details]
        lines.append(Line(cells, single=True))
    more = (
        f"{len(files):,} of {total:,} runs; --last {total} shows all"
        if total > len(files) + damaged
        else ""
    )
    table = Table(columns=SAVED, lines=lines, note=more)
    return Document(
        title="Saved runs", brief=[table], rows=rows, values={"runs": rows, "of": total}
    )


def _describe_end(end: End | None) -> str:
    if end is None:
        return "cut short"
    if end.exit not in [*Exit]:
        return f"exit {end.exit}"
    return ENDED.get(Exit(end.exit)) or Exit(end.exit).name.lower().replace("_", " ")
