"""A comparison as a Document: table and notes for a terminal, a comment for a pull request, the
section of a report, values and test cases for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from collbench.core.errors import Exit
from collbench.core.text import plain, settings, size
from collbench.judge.alarms import Alarms
from collbench.judge.comparison import Comparison
from collbench.judge.verdict import Judged, Side, Verdict
from collbench.show.document import (
    Block,
    Cell,
    Document,
    Heading,
    JunitCase,
    Line,
    Points,
    Section,
    Table,
    Weight,
    toned,
)
from collbench.show.views import forest
from collbench.show.views.cases import MOST_PLANNED
from collbench.show.views.verdicts import (
    HEADS,
    LEGEND,
    ORDER,
    UNDECIDED,
    WEIGHTS,
    Readable,
    Shown,
    decided,
    differences,
    facts,
    headline,
    history,
    names_of,
    operations,
    readable,
    reasons,
    undecided,
    unrepeated,
    weight,
)
from collbench.show.words import along, axes, short, worded
from collbench.suite.case import Case, Skip

SCHEMA = 1  # of the JSON


# in a comment at most: with all of them full, more than half is left for rows
FACTS, GEOMEANS, NOTES = 10, 20, 5  # there are as many reasons as notes


MARKS: dict[Weight, str] = {"bad": "❌", "notice": "⚠️", "good": "✅", "": "✅"}


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
    alarms: Alarms | None = None,
) -> Document:
    """A comparison for every medium; on a terminal rows that are SAME only if ``everything``.
    ``title`` begins the heading of a comment, and ``marker`` names it; ``alarms`` are what is
    known of this machine."""
    base, head = names_of(comparison)
    runs = {f"base: {base}": comparison.base, f"head: {head}": comparison.head}
    view = readable(comparison, alarms)
    return Document(
        title=f"{base} → {head}",
        verdict=headline(view),
        weight=weight(comparison),
        runs=[f"{side}, run {run.id} of {run.started}" for side, run in runs.items()],
        sections=[section(view)],
        data=_flat(view),
        brief=_brief(view, everything),
        marker=f"collbench:{marker}",
        comment=_comment(view, title),
        values=_values(view),
        suite=f"collbench {base} to {head}",
        cases=_cases(view),
    )


def plan(rows: Sequence[tuple[Case, Case]], left_out: Sequence[tuple[str, Skip]]) -> list[Block]:
    """Blocks of --dry-run: what all rows share; each row as base and head, by all in which they
    differ; what is left out of a side, which is named, and why."""
    cases = [case for row in rows for case in row] + [skip.case for _, skip in left_out]
    if not cases:
        return []
    varying, constant = axes(cases)
    modes = {case.mode for case in cases}
    apart = {name for name in varying for b, h in rows if along(b)[name] != along(h)[name]}
    alike, own = [n for n in varying if n not in apart], [n for n in varying if n in apart]
    lines = [
        Line(
            (
                size(b.nbytes),
                *(_named(b, [name]) for name in alike),
                *[b.mode] * (len(modes) > 1),
                *(_named(case, own) for case in (b, h) if own),
            )
        )
        for b, h in rows[:MOST_PLANNED]
    ]
    skipped = dict.fromkeys(
        f"left out of {side}: {size(skip.case.nbytes)} {_named(skip.case, varying)}: {skip.reason}"
        for side, skip in left_out
    )
    heads = ("size", *alike, *["mode"] * (len(modes) > 1), *["base", "head"] * bool(own))
    return [
        toned(plain(", ".join([constant, *(modes if len(modes) == 1 else ())])), strong=True),
        *([Table(heads=heads, lines=lines, align="r" + "w" * len(heads))] if lines else []),
        *([f"and {len(rows) - MOST_PLANNED:,} more"] if rows[MOST_PLANNED:] else []),
        *(toned(plain(words), "notice") for words in skipped),
    ]


def _named(case: Case, names: Sequence[str]) -> str:
    words = worded(case)
    return plain(", ".join(words[name] for name in names if words[name]))


def _sides(comparison: Comparison) -> str:
    base, head = names_of(comparison)
    return f"base {base} → head {head}"


def _brief(view: Readable, everything: bool) -> list[Block]:
    """Fingerprint differences, the verdict, then rows, aggregates, reasons and notes."""
    comparison = view.comparison
    folded = ("SAME", *UNDECIDED)[: 0 if everything else None if comparison.paired else 1]
    hidden = view.having(*folded)
    shown = [row for row in view.rows if row.verdict not in folded]
    parts: list[Block] = [
        toned("collbench compare  ", strong=True) + _sides(comparison),
        toned(" · ".join(facts(comparison)), "quiet"),
        *(toned(line, "quiet") for line in history(view)),
    ]
    parts += [
        toned(f"differs: {name}: {a} → {b}", "notice") for name, a, b in differences(comparison)
    ]
    parts += [toned(headline(view), weight(comparison), strong=True), decided(view)]
    if shown or view.means:
        table = Table(
            heads=HEADS,
            lines=[Line(_cells(row)) for row in unrepeated(shown)],
            closing=[Line(_cells(row)) for row in view.means],
            align="wrrrrlw",
            quiet=("why",),
            stacked=True,
            note=LEGEND,
        )
        parts += ["", table, ""]
    parts += [toned(line, "notice") for line in operations(view)]
    parts += reasons(view)
    if counts := Counter(row.verdict for row in hidden):
        number = ", ".join(f"{number:,} {verdict}" for verdict, number in counts.items())
        parts += [toned(f"not shown: {number} (--all shows them too)", "quiet")]
    return [*parts, *comparison.notes]


def _cells(row: Shown) -> tuple[Cell, ...]:
    tone = WEIGHTS[row.judged.verdict] if row.judged else ""
    return (*row[:5], toned(row.verdict, tone), row.why)


def _comment(view: Readable, title: str) -> list[Block]:
    """What a pull request is told: the verdict, what was decided, and rows that have one and are
    not SAME; the others are folded."""
    comparison = view.comparison
    apart = [f"{name}: {a} → {b}" for name, a, b in differences(comparison)]
    if len(apart) > FACTS:
        apart[FACTS:] = [f"{len(apart) - FACTS:,} more differences"]
    why = [short(line, 500) for line in (*operations(view), *reasons(view))[:NOTES]]
    rest, means = view.having(*UNDECIDED, "SAME"), view.means[:GEOMEANS]
    loud = [row for row in view.rows if row.verdict not in (*UNDECIDED, "SAME")]
    same = len(view.having("SAME"))
    others = f"{len(rest):,} other rows: {same:,} same, {len(rest) - same:,} without a verdict"
    return [
        Heading(f"{short(title, 100)}: {MARKS[weight(comparison)]} {headline(view)}"),
        decided(view),
        " · ".join([_sides(comparison), *facts(comparison)]),
        *history(view),
        *([Points(apart)] if apart else []),
        *([_rows(loud, means[-1:] if rest else means)] if loud else []),
        *([Points(why)] if why else []),
        *([_rows(rest, means[:-1] if loud else means, others)] if rest else []),
        *(short(note, 300) for note in comparison.notes[:NOTES]),
        LEGEND,
    ]


def _rows(rows: Sequence[Shown], means: Sequence[Shown], title: str = "") -> Table:
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
    """The part of a report on a comparison: verdict, changes with their intervals, and the table of
    verdicts."""
    comparison = view.comparison
    words = [headline(view), decided(view), " · ".join(facts(comparison)), *history(view)]
    words += [short(text, 500) for text in (*operations(view), *reasons(view), *comparison.notes)]
    drawn = forest.figure(view)
    return Section(
        name="comparison",
        title="Comparison",
        words=[f"{text}." for text in words],
        figures=[drawn] if drawn else [],
        tables=[table for table in _tables(view) if table.lines],
    )


def _tables(view: Readable) -> list[Table]:
    comparison = view.comparison
    lines = [
        Line(
            (row.row, row.verdict, row.why, *row[1:5]),
            forest.about(comparison, row.judged.case),
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


def _values(view: Readable) -> dict[str, Any]:
    """An object: ``schema``, ``exit``, ``reason``, ``verdict`` and ``decided`` in words,
    ``undecided`` (reason, rows), ``alarms`` of this machine, ``counts`` by verdict, ``paired``,
    ``stages``, ``rules``, ``notes``, ``differences`` (fact, base, head), ``base`` and ``head`` as
    their files begin, ``aggregates``, and ``rows`` with ``label`` and all that Judged has, times in
    nanoseconds."""
    comparison, names = view.comparison, _names(view)
    counts = Counter(row.verdict for row in comparison.rows)
    return {
        "schema": SCHEMA,
        "counts": {verdict: counts[verdict] for verdict in ORDER if counts[verdict]},
        **msgspec.structs.asdict(comparison),
        "verdict": headline(view),
        "decided": decided(view),
        "undecided": [{"reason": why, "rows": named} for why, named in undecided(view).items()],
        "alarms": view.alarms,
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
        del fields["case"], fields["operations"]
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
