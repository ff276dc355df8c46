"""A comparison as people read it: its rows in words, the table on a terminal, the section of a report."""

from __future__ import annotations

import html
import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from collbench import console as terminal
from collbench.compare import Aggregate, Comparison, Judged, Side, Verdict
from collbench.document import Figure, Line, Meta, Section, Table, Weight
from collbench.errors import Exit
from collbench.formats import AXES, PLACES, along, axes, counted, duration, plain, size, worded
from collbench.records import Run
from collbench.suite import Case

WIDE = 120  # columns of output that goes to no terminal, and the most on one
WHY = 20  # columns that reasons, and names of aggregates, need at least
FOREST = 60  # rows of a plot that can still be told apart
GAP = 2

ORDER: tuple[Verdict, ...] = (
    "REGRESSED", "GONE", "SUSPECT", "INVALID", "INCOMPARABLE", "INCONCLUSIVE", "IMPROVED", "SMALL", "NEW", "SAME",
)  # fmt: skip
WEIGHTS: dict[Verdict, Weight] = {
    "REGRESSED": "bad", "GONE": "bad", "SUSPECT": "notice", "INVALID": "notice", "INCOMPARABLE": "notice",
    "INCONCLUSIVE": "notice", "IMPROVED": "good", "SMALL": "", "NEW": "", "SAME": "",
}  # fmt: skip
COLOURS: dict[Weight, str] = {"bad": "#d62728", "notice": "#e69f00", "good": "#2ca02c", "": "#7f7f7f"}
SYMBOLS: dict[Weight, str] = {"bad": "triangle-right", "notice": "diamond", "good": "triangle-left", "": "circle"}
STYLES = {**terminal.STYLES, "good": "green"}
HEADS = ("row", "base", "head", "change [interval]", "MDE", "verdict", "why")
LEGEND = (
    "Times are medians over launches ± the larger half of their 95 % interval; change is head / base - 1, ~ where zero "
    "is inside its interval; MDE is the smallest change that would have been found 4 times in 5."
)


class Shown(NamedTuple):
    """A row as people read it, in the order of HEADS; ``judged`` is what it was made from."""

    row: str
    base: str
    head: str
    change: str
    mde: str
    verdict: str
    why: str
    judged: Judged | None = None


def shown(comparison: Comparison) -> list[Shown]:
    """Every row, the gravest verdict and the largest change first."""
    names = labels(comparison)
    rows = sorted(comparison.rows, key=lambda row: (ORDER.index(row.verdict), -abs(row.delta or 0.0)))
    return [
        Shown(
            names[row.key], _side(row.base), _side(row.head), change(row), percent(row.mde), row.verdict,
            _why(row), row,
        )
        for row in rows
    ]  # fmt: skip


def labels(comparison: Comparison) -> dict[str, str]:
    """What to call each row, by its key: what is not common to all of them, and the size."""
    cases = {row.key: _undivided(comparison, row.case) for row in comparison.rows}
    lines = [along(case) for case in cases.values()]
    owned = ("op", "root", "splits")  # that only some collectives have, and so do not set rows apart by being absent
    varying = [name for name in AXES if len({line[name] for line in lines} - {"" if name in owned else None}) > 1]
    several = len({case.mode for case in cases.values()}) > 1
    found = {}
    for key, case in cases.items():
        words = worded(case) | {"place": PLACES["in"] * case.in_place}
        parts = [words[name].rstrip("@") for name in AXES if name in varying]
        parts += [size(case.size) if case.size else case.collective * ("collective" not in varying)]
        found[key] = short(" ".join(filter(None, [*parts, case.mode * several])), 120)
    return found


def _undivided(comparison: Comparison, case: Case) -> Case:
    """``case`` without what the two sides differ in by design."""
    plain_values = {"backend": "", "algorithm": "native", "env": ()}
    differs = {name for run in (comparison.base, comparison.head) if run.pairing for name in run.pairing.differs}
    return msgspec.structs.replace(case, **{name: plain_values[name] for name in differs if name in plain_values})


def headline(comparison: Comparison) -> str:
    """How many rows have which verdict: 1 regressed · 2 improved · 91 same."""
    counts = Counter(row.verdict for row in comparison.rows)
    return " · ".join(f"{counts[v]:,} {v.lower()}" for v in ORDER if counts[v]) or "no rows"


def weight(comparison: Comparison) -> Weight:
    """The whole comparison's: good only where nothing asks to be looked at."""
    if comparison.exit in (Exit.BAD, Exit.WRONG_DATA):
        return "bad"
    doubtful = comparison.exit or any(WEIGHTS[row.verdict] in ("bad", "notice") for row in comparison.rows)
    return "notice" if doubtful else "good"


def facts(comparison: Comparison) -> list[str]:
    """What the verdicts rest on, in a few words each."""
    first, second = comparison.stages
    design = f"{first}+{second} paired launches" if second else counted(first, "paired launch")
    cases = [_undivided(comparison, row.case) for row in comparison.rows]
    apart = len(comparison.differences)
    same = counted(apart, "fingerprint difference") if apart else "fingerprints identical"
    rules = comparison.rules
    return [
        design if comparison.paired else "unpaired",
        *([short(axes(cases)[1].rstrip("@"), 200)] if cases else []),
        same + ", compared all the same" * (bool(apart) and rules.across_machines),
        *([f"τ {percent(rules.tau)}"] if rules.tau is not None else []),
        *(["strict"] if rules.strict else []),
    ]


def name_of(run: Run) -> str:
    """What to call a side: the variant it was given as, else its tag or id."""
    return short((run.pairing.variant or "as it is") if run.pairing else run.tag or run.id, 60)


def differences(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Facts in which the machines differ, with what base and head have."""
    return [
        (short(name, 60), *(short("-" if value is None else str(value), 60) for value in values))  # type: ignore[misc]
        for name, *values in comparison.differences
    ]


def geomeans(comparison: Comparison) -> list[Shown]:
    """A line per aggregate, each beside its worst row."""
    names, rows = labels(comparison), {row.key: row for row in comparison.rows}
    found = []
    for one in comparison.aggregates:
        of = short(" ".join(filter(None, ["geomean", one.collective, one.sizes])), 60)
        worst = rows.get(one.worst)
        words = f"worst: {names[one.worst]} {signed(worst.delta)}" if worst else ""
        found.append(Shown(f"{of} ({counted(one.rows, 'row')})", "", "", change(one), "", "", words))
    return found


def change(row: Judged | Aggregate) -> str:
    """+11.4% [+9.8, +13.1], or ~ [-2.1, +1.6] where it cannot be told from none."""
    if row.delta is None:
        return "-"
    if row.lo is None or row.hi is None:
        return signed(row.delta)
    middle = "~" if row.lo <= 0 <= row.hi else signed(row.delta)
    return f"{middle} [{signed(row.lo).rstrip('%')}, {signed(row.hi).rstrip('%')}]"


def signed(share: float | None) -> str:
    if share is None or math.isnan(share):
        return "-"
    return f"{share:+.1%}" if math.isfinite(share) else ("-∞" if share < 0 else "+∞")


def percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{share:.{1 if share < 0.0995 else 0}%}" if math.isfinite(share) else "∞"


def _side(side: Side | None) -> str:
    return f"{duration(side.median)} ±{percent(side.half)}" if side else "-"


def _why(row: Judged) -> str:
    """What the verdict rests on, the reason where the figures do not say it, and the flags."""
    sides = [side for side in (row.base, row.head) if side]
    launches = str(row.pairs) if row.pairs else "+".join(str(side.launches) for side in sides if len(sides) == 2)
    flags = dict.fromkeys(flag for side in sides for flag in side.flags if flag not in row.why)
    parts = [
        " ".join([*([f"p={row.p:.2g}"] if row.p is not None else []), *([f"n={launches}"] if launches else [])]),
        row.why,
        " ".join(flags),
    ]
    return short("; ".join(filter(None, parts)), 300)


def short(text: str, most: int) -> str:
    return plain(text) if len(text) <= most else plain(text[: most - 1]) + "…"


def show(comparison: Comparison, everything: bool = False) -> None:
    """Prints the comparison, to a pipe as to a terminal of WIDE columns; rows that are SAME only if ``everything``."""
    view = Console(highlight=False)
    view.width = min(WIDE, view.width) if view.is_terminal or "COLUMNS" in os.environ else WIDE
    view.print(*in_terminal(comparison, everything, view.width), sep="\n")


def in_terminal(comparison: Comparison, everything: bool, width: int) -> list[RenderableType]:
    """Fingerprint differences, the verdict, then rows, aggregates and notes."""
    rows = shown(comparison)
    listed = [row for row in rows if everything or row.verdict != "SAME"]
    sides = f"base {name_of(comparison.base)} → head {name_of(comparison.head)}"
    parts: list[RenderableType] = [
        Text("collbench compare  ", "bold").append(sides, "not bold"),
        Text(plain(" · ".join(facts(comparison))), "dim"),
    ]
    parts += [Text(f"differs: {name}: {a} → {b}", "yellow") for name, a, b in differences(comparison)]
    parts += [Text(headline(comparison), STYLES[weight(comparison)])]
    parts += [Text(plain(comparison.reason))] if not comparison.exit else []  # else `tell` says it after the table
    if listed or comparison.aggregates:
        parts += ["", _grid(listed, geomeans(comparison), width), ""]
    hidden = len(rows) - len(listed)
    parts += [Text(f"not shown: {hidden:,} SAME (--all shows them too)", "dim")] if hidden else []
    return parts + [Text(plain(note)) for note in comparison.notes]


def _grid(rows: Sequence[Shown], closing: Sequence[Shown], width: int) -> Grid:
    """One line a row where ``width`` allows it; else figures in two lines and reasons below the row's name."""
    cells = [[*map(str, row[:-1])] for row in (Shown(*HEADS), *rows, *(one._replace(row="") for one in closing))]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    widths[0] = max(widths[0], WHY)
    wide = sum(widths[:-1]) + GAP * len(widths[:-1]) + WHY <= width
    view = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0), border_style="dim")
    for name in HEADS if wide else HEADS[:-1]:
        left = name in ("row", "verdict", "why")
        view.add_column(
            Text(name if wide else name.replace(" [", "\n["), "bold"), justify="left" if left else "right",
            overflow="fold", no_wrap=name not in ("row", "why"),
        )  # fmt: skip
    view.columns[0].width = widths[0] if wide else None
    for place, row in enumerate((*rows, *closing)):
        if place == len(rows) and rows:
            view.add_section()
        style = STYLES[WEIGHTS[row.judged.verdict]] if row.judged else ""
        figures = (row.base, row.head, row.change, row.mde)
        last = Text(row.verdict, style)
        if wide:
            view.add_row(Text(row.row), *map(Text, figures), last, Text(row.why, "dim"))
        else:
            label = Text(row.row).append(f"\n{row.why}" if row.why else "", "dim")
            view.add_row(label, *(Text(re.sub(r" (?=[±\[])", "\n", cell)) for cell in figures), last)
    return view


def section(comparison: Comparison) -> Section:
    """The part of a report on a comparison: changes with their intervals, and the table of verdicts."""
    rows = shown(comparison)
    words = [f"{headline(comparison)}: {' · '.join(facts(comparison))}."]
    words += [short(text, 500) for text in (comparison.reason, *comparison.notes) if text]
    lines = [
        Line(
            (row.row, row.verdict, row.why, *row[1:5]), _meta(comparison, row.judged.case), WEIGHTS[row.judged.verdict]
        )
        for row in rows
        if row.judged
    ]
    apart = [Line(line, {}, "notice") for line in differences(comparison)]
    means = [
        Line((row.row, row.why, row.change), {"collective": one.collective} if one.collective else {})
        for row, one in zip(geomeans(comparison), comparison.aggregates, strict=True)
    ]
    heads = (HEADS[0], *HEADS[5:], *HEADS[1:5])
    tables = [
        Table(name="differences", title="Machines differ in", heads=("fact", "base", "head"), lines=apart, align="lll"),
        Table(name="verdicts", title="Verdicts", heads=heads, lines=lines, align="lll", note=LEGEND),
        Table(name="geomeans", title="Geometric means", heads=("rows", "worst row", HEADS[3]), lines=means, align="ll"),
    ]
    figures = [_forest(comparison, rows)] if any(row.delta is not None for row in comparison.rows) else []
    return Section(
        name="comparison", title="Comparison", words=words, figures=figures,
        tables=[table for table in tables if table.lines],
    )  # fmt: skip


def _meta(comparison: Comparison, case: Case) -> Meta:
    meta = {"collective": case.collective, "backend": case.backend, "dtype": case.dtype, "ranks": str(case.n)}
    return {name: value for name, value in meta.items() if name != "backend" or _undivided(comparison, case).backend}


def _forest(comparison: Comparison, rows: Sequence[Shown]) -> Figure:
    """A line per row: its change, the interval, and as a grey bar the changes too small to matter."""
    known = [row for row in rows if row.judged and row.judged.delta is not None]
    drawn = known[:FOREST]
    groups: dict[str, list[Shown]] = {}
    for row in drawn:
        groups.setdefault(str(_meta(comparison, row.judged.case)), []).append(row)  # type: ignore[union-attr]
    data = [trace for members in groups.values() for trace in _traces(comparison, members)]
    for kind in dict.fromkeys(WEIGHTS[row.judged.verdict] for row in drawn if row.judged):
        verdicts = dict.fromkeys(
            row.verdict.lower() for row in drawn if row.judged and WEIGHTS[row.judged.verdict] == kind
        )
        marker = {"color": COLOURS[kind], "symbol": SYMBOLS[kind], "size": 9}
        data.append({"type": "scatter", "mode": "markers", "x": [None], "y": [None], "name": ", ".join(verdicts),
                     "marker": marker, "meta": {}})  # fmt: skip
    worst = max(known, key=lambda row: (row.judged and row.judged.delta) or 0.0)
    left = f", {len(drawn)} of {len(known):,} rows" if len(drawn) < len(known) else ""
    return Figure(
        name="changes", title=f"Change from base to head{left}",
        words="Per row, how much longer head takes than base, with its interval; within the grey bar a change is too "
        f"small to matter. Farthest to the right: {worst.row}, {worst.change}.",
        data=data, height=150 + 24 * len(drawn),
        layout={
            "xaxis": {"title": {"text": "head / base - 1, % (to the right: slower)"}, "zeroline": True},
            "yaxis": {"type": "category", "autorange": "reversed", "automargin": True,
                      "categoryorder": "array", "categoryarray": [html.escape(row.row) for row in drawn]},
            "hovermode": "closest",
        },
    )  # fmt: skip


def _traces(comparison: Comparison, rows: Sequence[Shown]) -> list[dict[str, Any]]:
    """The grey bars and the changes of rows that are about the same."""
    judged = [row.judged for row in rows if row.judged]
    names = [html.escape(row.row) for row in rows]
    kinds = [WEIGHTS[row.verdict] for row in judged]
    middles = [100 * (row.delta or 0.0) for row in judged]
    shared = {"type": "scatter", "mode": "markers", "y": names, "showlegend": False,
              "meta": _meta(comparison, judged[0].case)}  # fmt: skip
    bars = {"type": "data", "array": [100 * row.tau for row in judged], "thickness": 14, "width": 0,
            "color": "rgba(128,128,128,0.25)"}  # fmt: skip
    reach = {"type": "data", "symmetric": False, "thickness": 1.5, "width": 4, "color": "#7f7f7f",
             "array": [_reach(row.hi, row.delta) for row in judged],
             "arrayminus": [_reach(row.delta, row.lo) for row in judged]}  # fmt: skip
    texts = ["<br>".join(map(html.escape, [row.row, f"base {row.base}, head {row.head}", *row[3:-1]])) for row in rows]
    marker = {"color": [COLOURS[kind] for kind in kinds], "symbol": [SYMBOLS[kind] for kind in kinds], "size": 9}
    return [
        {**shared, "x": [0.0] * len(rows), "marker": {"opacity": 0}, "error_x": bars, "hoverinfo": "skip"},
        {**shared, "x": middles, "marker": marker, "error_x": reach, "hovertext": texts, "hoverinfo": "text"},
    ]


def _reach(above: float | None, below: float | None) -> float | None:
    """Percent between two shares; None where one of them is unknown or infinite, which draws no bar."""
    distance = math.inf if above is None or below is None else above - below
    return 100 * distance if math.isfinite(distance) else None
