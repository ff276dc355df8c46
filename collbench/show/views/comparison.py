"""A comparison as a Document: table and notes for a terminal, a comment for a pull request, the
section of a report, values and test cases for programs."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from collbench.core.errors import Exit
from collbench.core.text import plain, settings
from collbench.judge.comparison import Comparison
from collbench.judge.verdict import Judged, Side, Verdict
from collbench.show.document import (
    Block,
    Cell,
    Document,
    Figure,
    Heading,
    JunitCase,
    Line,
    Meta,
    Points,
    Section,
    Table,
    Weight,
    toned,
)
from collbench.show.figures import Trace
from collbench.show.views.series import meta
from collbench.show.views.verdicts import (
    HEADS,
    LEGEND,
    ORDER,
    WEIGHTS,
    Readable,
    Shown,
    differences,
    facts,
    headline,
    name_of,
    readable,
    undivided,
    weight,
)
from collbench.show.words import short
from collbench.suite.case import Case

SCHEMA = 1  # of the JSON


FOREST = 60  # rows of a plot that can still be told apart


FACTS, GEOMEANS, NOTES = (
    10,
    20,
    5,
)  # in a comment at most: with all of them full, more than half is left for rows


MARKS: dict[Weight, str] = {"bad": "❌", "notice": "⚠️", "good": "✅", "": "✅"}


COLOURS: dict[Weight, str] = {
    "bad": "#d62728",
    "notice": "#e69f00",
    "good": "#2ca02c",
    "": "#7f7f7f",
}


SYMBOLS: dict[Weight, str] = {
    "bad": "triangle-right",
    "notice": "diamond",
    "good": "triangle-left",
    "": "circle",
}


# of rows that fail nothing; others have passed
OUTCOMES: dict[Verdict, Literal["warned", "skipped"]] = {
    "REGRESSED": "warned",
    "GONE": "warned",
    "SUSPECT": "warned",
    "INVALID": "skipped",
    "INCOMPARABLE": "skipped",
    "INCONCLUSIVE": "skipped",
}


def document(
    comparison: Comparison,
    everything: bool = False,
    title: str = "collbench",
    marker: str = "compare",
) -> Document:
    """A comparison for every medium; on a terminal rows that are SAME only if ``everything``.
    ``title`` begins the heading of a comment, and ``marker`` names it."""
    base, head = name_of(comparison.base), name_of(comparison.head)
    runs = {"base": comparison.base, "head": comparison.head}
    view = readable(comparison)
    return Document(
        title=f"{base} → {head}",
        verdict=headline(comparison),
        weight=weight(comparison),
        runs=[
            f"{side}: {name_of(run)}, run {run.id} of {run.started}" for side, run in runs.items()
        ],
        sections=[section(view)],
        data=_flat(view),
        brief=_brief(view, everything),
        marker=f"collbench:{marker}",
        comment=_comment(view, title),
        values=_values(view),
        suite=f"collbench {base} to {head}",
        cases=_cases(view),
    )


def _sides(comparison: Comparison) -> str:
    return f"base {name_of(comparison.base)} → head {name_of(comparison.head)}"


def _brief(view: Readable, everything: bool) -> list[Block]:
    """Fingerprint differences, the verdict, then rows, aggregates and notes."""
    comparison = view.comparison
    listed = [row for row in view.rows if everything or row.verdict != "SAME"]
    parts: list[Block] = [
        toned("collbench compare  ", strong=True) + _sides(comparison),
        toned(" · ".join(facts(comparison)), "quiet"),
    ]
    parts += [
        toned(f"differs: {name}: {a} → {b}", "notice") for name, a, b in differences(comparison)
    ]
    parts += [toned(headline(comparison), weight(comparison))]
    if not comparison.exit:  # else it is said on standard error, after the table
        parts += [comparison.reason]
    if listed or view.means:
        table = Table(
            heads=HEADS,
            lines=[Line(_cells(row)) for row in listed],
            closing=[Line(_cells(row)) for row in view.means],
            align="wrrrrlw",
            quiet=("why",),
            stacked=True,
        )
        parts += ["", table, ""]
    if hidden := len(view.rows) - len(listed):
        parts += [toned(f"not shown: {hidden:,} SAME (--all shows them too)", "quiet")]
    return [*parts, *comparison.notes]


def _cells(row: Shown) -> tuple[Cell, ...]:
    tone = WEIGHTS[row.judged.verdict] if row.judged else ""
    return (*row[:5], toned(row.verdict, tone), row.why)


def _comment(view: Readable, title: str) -> list[Block]:
    """What a pull request is told: rows that are SAME are folded."""
    comparison = view.comparison
    verdict = f"{MARKS[weight(comparison)]} {headline(comparison)}"
    parts: list[Block] = [
        Heading(f"{short(title, 100)}: {verdict}  {_sides(comparison)}"),
        " · ".join(facts(comparison)),
    ]
    if comparison.reason:
        parts += [toned(short(comparison.reason, 500), strong=bool(comparison.exit))]
    apart = [f"{name}: {a} → {b}" for name, a, b in differences(comparison)]
    if len(apart) > FACTS:
        apart[FACTS:] = [f"{len(apart) - FACTS:,} more differences"]
    parts += [Points(apart)] if apart else []
    loud = [row for row in view.rows if row.verdict != "SAME"]
    same = [row for row in view.rows if row.verdict == "SAME"]
    parts += [_rows(loud, view.means[:GEOMEANS])] if loud or view.means else []
    parts += [_rows(same, title=f"{len(same):,} same")] if same else []
    return [*parts, *(short(note, 300) for note in comparison.notes[:NOTES]), LEGEND]


def _rows(rows: Sequence[Shown], means: Sequence[Shown] = (), title: str = "") -> Table:
    """A comment's table; one with a title is folded."""
    return Table(
        title=title,
        folded=bool(title),
        heads=HEADS[:-1],
        lines=[_in_comment(row) for row in rows],
        closing=[_in_comment(row) for row in means],
        align="lrrrrl",
        elsewhere="the comparison as HTML or JSON has them all",
    )


def _in_comment(row: Shown) -> Line:
    verdict = toned(row.verdict, strong=True) + " " if row.verdict else toned("")
    return Line((*row[:5], verdict + row.why))


def section(view: Readable) -> Section:
    """The part of a report on a comparison: changes with their intervals, and the table of
    verdicts."""
    comparison = view.comparison
    words = [f"{headline(comparison)}: {' · '.join(facts(comparison))}."]
    words += [short(text, 500) for text in (comparison.reason, *comparison.notes) if text]
    drawn = any(row.delta is not None for row in comparison.rows)
    return Section(
        name="comparison",
        title="Comparison",
        words=words,
        figures=[_forest(view)] if drawn else [],
        tables=[table for table in _tables(view) if table.lines],
    )


def _tables(view: Readable) -> list[Table]:
    comparison = view.comparison
    lines = [
        Line(
            (row.row, row.verdict, row.why, *row[1:5]),
            _meta(comparison, row.judged.case),
            WEIGHTS[row.judged.verdict],
        )
        for row in view.rows
        if row.judged
    ]
    means = [
        Line(
            (row.row, row.why, row.change), {"collective": one.collective} if one.collective else {}
        )
        for row, one in zip(view.means, comparison.aggregates, strict=True)
    ]
    return [
        Table(
            name="differences",
            title="Machines differ in",
            heads=("fact", "base", "head"),
            lines=[Line(line, {}, "notice") for line in differences(comparison)],
            align="lll",
        ),
        Table(
            name="verdicts",
            title="Verdicts",
            heads=(HEADS[0], *HEADS[5:], *HEADS[1:5]),
            lines=lines,
            align="lll",
            note=LEGEND,
        ),
        Table(
            name="geomeans",
            title="Geometric means",
            heads=("rows", "worst row", HEADS[3]),
            lines=means,
            align="ll",
        ),
    ]


def _meta(comparison: Comparison, case: Case) -> Meta:
    known = meta(case)
    if not undivided(comparison, case).backend:
        known.pop("backend")
    return known


def _forest(view: Readable) -> Figure:
    """A line per row: its change, the interval, and as a grey bar the changes too small to
    matter."""
    known = [row for row in view.rows if row.judged and row.judged.delta is not None]
    drawn = known[:FOREST]
    worst = max(known, key=lambda row: (row.judged and row.judged.delta) or 0.0)
    left = f", {len(drawn)} of {len(known):,} rows" if len(drawn) < len(known) else ""
    return Figure(
        name="changes",
        title=f"Change from base to head{left}",
        words=(
            "Per row, how much longer head takes than base, with its interval; within the grey bar"
            f" a change is too small to matter. Farthest to the right: {worst.row}, {worst.change}."
        ),
        data=_data(view.comparison, drawn),
        height=150 + 24 * len(drawn),
        layout={
            "xaxis": {
                "title": {"text": "head / base - 1, % (to the right: slower)"},
                "zeroline": True,
            },
            "yaxis": {
                "type": "category",
                "autorange": "reversed",
                "automargin": True,
                "categoryorder": "array",
                "categoryarray": [html.escape(row.row) for row in drawn],
            },
            "hovermode": "closest",
        },
    )


def _data(comparison: Comparison, rows: Sequence[Shown]) -> list[Trace]:
    """Traces of rows that are about the same together, since a reader can narrow the page down to
    them; then a legend for each colour."""
    groups: dict[str, list[Shown]] = {}
    verdicts: dict[Weight, list[str]] = {}
    for row in rows:
        if row.judged:
            groups.setdefault(str(_meta(comparison, row.judged.case)), []).append(row)
            verdicts.setdefault(WEIGHTS[row.judged.verdict], []).append(row.verdict.lower())
    data = [trace for members in groups.values() for trace in _traces(comparison, members)]
    return data + [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [None],
            "y": [None],
            "name": ", ".join(dict.fromkeys(names)),
            "marker": {"color": COLOURS[kind], "symbol": SYMBOLS[kind], "size": 9},
            "meta": {},
        }
        for kind, names in verdicts.items()
    ]


def _traces(comparison: Comparison, rows: Sequence[Shown]) -> list[Trace]:
    """The grey bars and the changes of rows that are about the same."""
    judged = [row.judged for row in rows if row.judged]
    kinds = [WEIGHTS[row.verdict] for row in judged]
    shared = {
        "type": "scatter",
        "mode": "markers",
        "y": [html.escape(row.row) for row in rows],
        "showlegend": False,
        "meta": _meta(comparison, judged[0].case),
    }
    marker = {
        "color": [COLOURS[kind] for kind in kinds],
        "symbol": [SYMBOLS[kind] for kind in kinds],
        "size": 9,
    }
    texts = [
        "<br>".join(map(html.escape, [row.row, f"base {row.base}, head {row.head}", *row[3:-1]]))
        for row in rows
    ]
    changes = {
        "x": [100 * (row.delta or 0.0) for row in judged],
        "marker": marker,
        "error_x": _interval(judged),
        "hovertext": texts,
        "hoverinfo": "text",
    }
    small = {
        "type": "data",
        "array": [100 * row.tau for row in judged],
        "thickness": 14,
        "width": 0,
        "color": "rgba(128,128,128,0.25)",
    }
    bars = {"marker": {"opacity": 0}, "error_x": small, "hoverinfo": "skip"}
    return [{**shared, "x": [0.0] * len(rows), **bars}, {**shared, **changes}]


def _interval(rows: Sequence[Judged]) -> Trace:
    return {
        "type": "data",
        "symmetric": False,
        "thickness": 1.5,
        "width": 4,
        "color": "#7f7f7f",
        "array": [_reach(row.hi, row.delta) for row in rows],
        "arrayminus": [_reach(row.delta, row.lo) for row in rows],
    }


def _reach(above: float | None, below: float | None) -> float | None:
    """Percent between two shares; None where one of them is unknown or infinite, which draws no
    bar."""
    distance = math.inf if above is None or below is None else above - below
    return 100 * distance if math.isfinite(distance) else None


def _values(view: Readable) -> dict[str, Any]:
    """An object: ``schema``, ``exit``, ``reason``, ``counts`` by verdict, ``paired``, ``stages``,
    ``rules``, ``notes``, ``differences`` (fact, base, head), ``base`` and ``head`` as their files
    begin, ``aggregates``, and ``rows`` with ``label`` and all that Judged has, times in
    nanoseconds."""
    comparison, names = view.comparison, _names(view)
    counts = Counter(row.verdict for row in comparison.rows)
    return {
        "schema": SCHEMA,
        "counts": {verdict: counts[verdict] for verdict in ORDER if counts[verdict]},
        **msgspec.structs.asdict(comparison),
        "differences": [
            {"fact": name, "base": a, "head": b} for name, a, b in comparison.differences
        ],
        "rows": [
            {"label": names[row.key], **msgspec.structs.asdict(row)} for row in comparison.rows
        ],
    }


def _flat(view: Readable) -> list[dict[str, Any]]:
    """The rows with plain values only, for a table: ``label``, Case's fields, Judged's,
    ``base_median`` and so on."""
    names, found = _names(view), []
    for row in view.comparison.rows:
        fields = {
            "label": names[row.key],
            **msgspec.structs.asdict(row.case),
            **msgspec.structs.asdict(row),
        }
        for side in ("base", "head"):
            values = fields.pop(side)
            fields |= {
                f"{side}_{name}": getattr(values, name, None) for name in Side.__struct_fields__
            }
        fields.pop("case")
        found.append(
            {
                name: settings(v) if name == "env" else " ".join(v) if isinstance(v, tuple) else v
                for name, v in fields.items()
            }
        )
    return found


def _names(view: Readable) -> dict[str, str]:
    return {row.judged.key: row.row for row in view.rows if row.judged}


def _cases(view: Readable) -> list[JunitCase]:
    """A test case per row: failed where the row fails the comparison, as slower or gone. What else
    makes the exit code other than 0 is an error of a test case called comparison."""
    comparison = view.comparison
    found = [_case(row, row.judged) for row in view.rows if row.judged]
    if comparison.exit in (Exit.OK, Exit.BAD):
        return found
    why = JunitCase(
        group="collbench",
        name="comparison",
        outcome="error",
        message=plain(comparison.reason),
        kind=comparison.exit.name,
    )
    return [*found, why]


def _case(row: Shown, judged: Judged) -> JunitCase:
    figures = f"{row.base} → {row.head}, {row.change}" if row.change != "-" else ""
    words = f"{row.verdict}: {'; '.join(filter(None, [figures, row.why]))}"
    fails = judged.gates and judged.verdict in ("REGRESSED", "GONE")
    return JunitCase(
        group=f"collbench.{judged.case.collective}",
        name=judged.key,
        outcome="failed" if fails else OUTCOMES.get(judged.verdict, "passed"),
        message=words,
        kind=row.verdict if fails else "",
        text=words if fails else "",
        label=row.row,
        seconds=judged.head.median / 1e9 if judged.head else 0.0,
    )
