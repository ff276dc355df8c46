"""Predictions as people read them: times by size and algorithm, who wins where, counts as fractions."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from collbench.formats import bandwidth, duration, plain, size
from collbench.networks import Link
from collbench.simulate import Forecast, best, count

GAP = 2  # between columns


class Column(NamedTuple):
    """Heading, of several lines maybe, and a cell for each size."""

    head: str
    cells: list[Text]

    @property
    def width(self) -> int:
        return max(*map(len, self.head.split("\n")), *(len(cell) for cell in self.cells))


def rows(view: Forecast, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """One for each size and algorithm, times in nanoseconds; bandwidths in GB/s are None where there is no data."""
    found = []
    for nbytes in sizes:
        seconds, bound, moved = view.seconds(nbytes), view.bound(nbytes), view.moved(nbytes)
        for name, taken in seconds.items():
            found.append({
                "collective": view.row.name, "n": view.n, "size": nbytes, "status": "predicted",
                "algorithm": view.predictors[name].schedule(nbytes).name, "time_ns": taken * 1e9,
                "algbw": nbytes / taken / 1e9 if nbytes else None,
                "busbw": view.row.busbw(view.n) * moved / taken / 1e9 if nbytes else None,
                "bound_ns": bound * 1e9, "best": name == best(seconds),
            })  # fmt: skip
    return found


def table(view: Forecast, sizes: Sequence[int], title: str, width: int | None = None) -> list[RenderableType]:
    """A line per size with the best algorithm, then each algorithm's time, in as many tables as ``width`` asks for."""
    found = rows(view, sizes)
    winners = [row for row in found if row["best"]]
    labels = [Text(size(nbytes)) for nbytes in sizes]
    first = [
        Column("best", [Text(row["algorithm"], "bold green") for row in winners]),
        Column("time", [Text(duration(row["time_ns"]), "bold green") for row in winners]),
        Column("algbw\nGB/s", [Text(bandwidth(row["algbw"])) for row in winners]),
        Column("busbw\nGB/s", [Text(bandwidth(row["busbw"])) for row in winners]),
        Column("bound", [Text(duration(row["bound_ns"]), "dim") for row in winners]),
        Column("time /\nbound", [Text(f"{row['time_ns'] / row['bound_ns']:.2f}", "dim") for row in winners]),
    ]
    for place, name in enumerate(view.predictors):
        mine = found[place :: len(view.predictors)]
        cells = [Text(duration(row["time_ns"]), "bold green" if row["best"] else "") for row in mine]
        first.append(Column(name.replace("_", "_\n").replace(":", ":\n"), cells))
    blocks = _packed(first, max(map(len, labels)), width or Console().width)
    tables = [_grid([Column("size", labels), *block]) for block in blocks]
    return [Text(plain(title), "bold"), *tables, *notes(view, sizes)]


def _packed(columns: Sequence[Column], labels: int, width: int) -> list[list[Column]]:
    """Columns that fit beside their labels, block after block, each with one column at least."""
    blocks: list[list[Column]] = [[]]
    for column in columns:
        taken = labels + sum(GAP + shown.width for shown in [*blocks[-1], column])
        if blocks[-1] and taken > width:
            blocks.append([])
        blocks[-1].append(column)
    return blocks


def _grid(columns: Sequence[Column]) -> Table:
    view = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), border_style="dim")
    for column in columns:
        view.add_column(Text(column.head, "bold"), justify="left" if column.head == "best" else "right", no_wrap=True)
    for line in zip(*(column.cells for column in columns), strict=True):
        view.add_row(*line)
    return view


def notes(view: Forecast, sizes: Sequence[int]) -> list[Text]:
    """In words: which algorithm wins where, and what is left out why."""
    changes = view.crossovers(sizes)
    words = [f"{before} beats {after} below {size(nbytes)}" for nbytes, before, after in changes]
    if not words and len(sizes) > 1 and len(view.predictors) > 1:
        words = [f"{best(view.seconds(sizes[0]))} is the fastest at all these sizes"]
    return [Text(plain(line)) for line in (*words, *(f"left out: {n}: {why}" for n, why in view.left_out.items()))]


def counts_table(view: Forecast, sizes: Sequence[int], title: str) -> list[RenderableType]:
    """A, B, G and sent of each algorithm as fractions, with the segments for the largest size."""
    columns: list[list[str]] = []
    for predictor in view.predictors.values():
        schedule = predictor.schedule(sizes[-1])
        columns.append([schedule.name, *(str(value) for value in count(schedule))])
    bound = view.row.bound(view.n)
    columns.append(["(lower bound)", *(str(Fraction(value).limit_denominator(1 << 20)) for value in bound), ""])
    heads = ["algorithm", "rounds A", "bytes B", "reduced G", "sent"]
    cells = [[Text(cell) for cell in cells] for cells in zip(*columns, strict=True)]
    shown = _grid([Column(head, column) for head, column in zip(heads, cells, strict=True)])
    shown.columns[0].justify = "left"
    legend = (
        "B, G and sent (by the busiest rank) are multiples of the size; T = A alpha + size (B beta + G gamma) at most"
    )
    return [Text(plain(title), "bold"), shown, Text(legend, "dim")]


def as_json(view: Forecast, sizes: Sequence[int], title: str) -> str:
    """An object: what was assumed, ``predictions`` as in ``rows``, ``crossovers``, ``left_out``."""
    changes = [{"size": nbytes, "below": before, "from": after} for nbytes, before, after in view.crossovers(sizes)]
    whole = {"about": title, "link": view.network.link._asdict(), "predictions": rows(view, sizes),
             "crossovers": changes, "left_out": view.left_out}  # fmt: skip
    return json.dumps(whole, indent=1)


def as_csv(view: Forecast, sizes: Sequence[int], title: str) -> str:
    """``rows`` with a heading; the title is not part of it."""
    found = rows(view, sizes)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue().rstrip("\n")


def in_words(link: Link) -> str:
    """A link's three numbers, with units."""
    rates = [("GB/s on the wire", link.beta), ("GB/s added", link.gamma)]
    parts = [f"{1e-9 / seconds:.4g} {what}" for what, seconds in rates if seconds]
    return ", ".join([f"{duration(link.alpha * 1e9)} a message", *parts])


TEXTS: dict[str, Callable[[Forecast, Sequence[int], str], str]] = {"json": as_json, "csv": as_csv}
