"""A comparison as a Document: table and notes for a terminal, a comment for a pull request, the
section of a report, values and test cases for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from collbench.core.errors import Exit
from collbench.core.text import format_count, format_settings, format_size, plain_line
from collbench.features.compare.comparison import Comparison
from collbench.features.compare.false_alarms import Alarms
from collbench.features.compare.verdict import Judged, Side, Verdict
from collbench.features.compare.views import forest
from collbench.features.compare.views.verdicts import (
    FIGURES,
    LEGEND,
    ORDER,
    UNDECIDED,
    WEIGHTS,
    Readable,
    Shown,
    describe_alarms,
    describe_decided,
    describe_operations,
    first_names,
    left_out,
    list_differences,
    list_facts,
    list_reasons,
    make_readable,
    name_undecided,
    names_by_reason,
    names_of,
    skipped_names,
    strip_repeated,
)
from collbench.records.types import ONE_SIDED
from collbench.show.document import (
    Block,
    Column,
    Comment,
    Heading,
    Judgement,
    JunitCase,
    Line,
    Points,
    Section,
    Table,
    Weight,
    code_text,
    make_columns,
    tone_text,
)
from collbench.show.figure_style import round_finite
from collbench.show.views.plan_table import MOST_PLANNED
from collbench.show.words import axis_values, shorten_text, split_axes, word_axes
from collbench.suite.case import Case, Skip

Outcome = Literal["passed", "failed", "error", "warned", "skipped"]  # of JunitCase

SCHEMA = 1  # of the JSON

# in a comment at most: with all of them full, more than half is left for rows
FACTS, GEOMEANS, NOTES = 10, 20, 5  # there are as many reasons as notes

MARKS: dict[Weight, str] = {"bad": "❌", "notice": "⚠️", "good": "✅", "": "✅"}

ALWAYS = 20  # rows that a terminal shows at least, whatever their verdicts

# of rows that fail nothing, but are to be looked at
WARNED: tuple[Verdict, ...] = ("REGRESSED", "GONE", "SUSPECT")


def make_document(
    comparison: Comparison,
    everything: bool = False,
    title: str = "collbench",
    marker: str = "compare",
    alarms: Alarms | None = None,
    again: str = "",
) -> Judgement:
    """A comparison for every medium; on a terminal more than ALWAYS rows that need no look only if
    ``everything``, as the command ``again`` shows them. ``title`` begins the heading of a comment,
    and ``marker`` names it; ``alarms`` are what is known of this machine."""
    base, head = names_of(comparison)
    runs = {f"base: {base}": comparison.base, f"head: {head}": comparison.head}
    view = make_readable(comparison, alarms)
    return Judgement(
        title=f"{base} → {head}",
        verdict=view.headline,
        weight=view.weight,
        runs=[f"{side}, run {run.id} of {run.started}" for side, run in runs.items()],
        sections=[make_section(view), make_method(view)],
        data=_flatten_rows(view),
        brief=_make_brief(view, everything, again),
        comment=Comment(
            _make_comment(view, title),
            f"collbench:{marker}",
            elsewhere="the comparison as HTML or JSON has them all",
        ),
        values=_plain_values(view),
        suite=f"collbench {base} to {head}",
        cases=_junit_cases(view),
    )


def describe_plan(
    rows: Sequence[tuple[Case, Case]],
    left_out: Sequence[tuple[str, Skip]],
    dropped: Sequence[Case] = (),
    reason: str = "",
) -> list[Block]:
    """Blocks of --dry-run: what all rows share; each row as base and head, by all in which they
    differ; what is left out of which side, by reason; and which rows of base's are expected to be
    ``dropped`` for --budget."""
    cases = [case for row in rows for case in row] + [skip.case for _, skip in left_out]
    if not cases:
        return []
    varying, constant = split_axes(cases)
    modes = {case.mode for case in cases}
    differing = {
        name for name in varying for b, h in rows if axis_values(b)[name] != axis_values(h)[name]
    }
    common, differing_names = (
        [n for n in varying if n not in differing],
        [n for n in varying if n in differing],
    )
    lines = [
        Line(
            (
                format_size(b.nbytes),
                *(_name_case(b, [name]) for name in common),
                *[b.mode] * (len(modes) > 1),
                *(_name_case(case, differing_names) for case in (b, h) if differing_names),
            )
        )
        for b, h in rows[:MOST_PLANNED]
    ]
    heads = (
        "size",
        *common,
        *["mode"] * (len(modes) > 1),
        *["base", "head"] * bool(differing_names),
    )
    names = [f"{format_size(case.nbytes)} {_name_case(case, common)}".strip() for case in dropped]
    without = f"{format_count(len(names), 'row')} {reason} ({first_names(names)})" if names else ""
    return [
        tone_text(
            plain_line(", ".join([constant, *(modes if len(modes) == 1 else ())])), strong=True
        ),
        *([Table(columns=make_columns(heads, "r", rest="w"), lines=lines)] if lines else []),
        *([f"and {len(rows) - MOST_PLANNED:,} more"] if rows[MOST_PLANNED:] else []),
        *(
            tone_text(plain_line(sentence), "notice")
            for sentence in _left_out_by_reason(left_out, common)
        ),
        *([tone_text(plain_line(without), "notice")] if without else []),
    ]


def _left_out_by_reason(left_out: Sequence[tuple[str, Skip]], axes: Sequence[str]) -> list[str]:
    """A line for each reason for which cases are left out of a side, or of both, with the first of
    them; what the other side cannot run is told of that side alone."""
    sides: dict[tuple[str, str], set[str]] = {}
    cases: dict[tuple[str, str], Case] = {}
    for side, skip in left_out:
        if skip.reason != ONE_SIDED:
            key = (
                skip.reason,
                f"{format_size(skip.case.nbytes)} {_name_case(skip.case, axes)}".strip(),
            )
            sides.setdefault(key, set()).add(side)
            cases[key] = skip.case
    lines = []
    for side_name in dict.fromkeys(" and ".join(sorted(names)) for names in sides.values()):
        rows = [
            (cases[key], *key) for key in sides if " and ".join(sorted(sides[key])) == side_name
        ]
        lines += [
            f"left out of {side_name}, {format_count(len(names), 'case')}: {reason}"
            f" ({first_names(names)})"
            for reason, names in names_by_reason(rows).items()
        ]
    return lines


def _name_case(case: Case, names: Sequence[str]) -> str:
    axis_words = word_axes(case)
    return plain_line(", ".join(axis_words[name] for name in names if axis_words[name]))


def _describe_sides(comparison: Comparison) -> str:
    base, head = names_of(comparison)
    return f"base {base} → head {head}"


def _make_brief(view: Readable, everything: bool, again: str) -> list[Block]:
    """The verdict, what it is about, fingerprint differences, then rows, aggregates, reasons and
    notes."""
    comparison = view.comparison
    listed = view.rows if everything else _select_loud(view)
    hidden = Counter(row.verdict for row in view.rows if row not in listed)
    parts: list[Block] = [
        tone_text(view.headline, view.weight, strong=True),
        tone_text("collbench compare  ", strong=True) + _describe_sides(comparison),
        tone_text(" · ".join(list_facts(comparison)), "quiet"),
        *(tone_text(line, "quiet") for line in describe_alarms(view)),
    ]
    parts += [
        tone_text(f"differs: {name}: {a} → {b}", "notice")
        for name, a, b in list_differences(comparison)
    ]
    parts += [
        describe_decided(view),
        *(tone_text(line, "notice") for line in left_out(view, dropped=True)),
    ]
    if listed:
        parts += ["", _listed_table(listed), ""]
    parts += [_name_mean(row) for row in view.means]
    parts += [tone_text(line, "notice") for line in describe_operations(view)]
    parts += list_reasons(view, listed=not hidden)
    if hidden:
        number = ", ".join(f"{number:,} {verdict}" for verdict, number in hidden.items())
        command = code_text(again or "--all", "quiet")
        parts += [
            tone_text(f"not shown: {number}; ", "quiet")
            + command
            + tone_text(" shows them", "quiet")
        ]
    return [*parts, *left_out(view, dropped=False), *comparison.notes]


def _select_loud(view: Readable) -> list[Shown]:
    """The rows that need a look, and of the others as many as make ALWAYS."""
    folded = ("SAME", *UNDECIDED) if view.comparison.paired else ("SAME",)
    quiet = [row for row in view.rows if row.verdict in folded]
    spare = max(0, ALWAYS - (len(view.rows) - len(quiet)))
    quiet_keys = {row.row_verdict.key for row in quiet[spare:] if row.row_verdict}
    return [row for row in view.rows if row.row_verdict and row.row_verdict.key not in quiet_keys]


def _listed_table(rows: Sequence[Shown]) -> Table:
    """The rows on a terminal, sizes below each other."""
    wide = max(len(row.name.size) for row in rows)
    name_heads = _place_heads(rows)
    lines = []
    for row in strip_repeated(rows):
        tone = WEIGHTS[row.row_verdict.verdict] if row.row_verdict else ""
        first = f"{row.name.size:>{wide}} {row.name.rest}".rstrip()
        places = (row.name.place,) * len(name_heads)
        lines.append(Line((first, *places, *row.figures, tone_text(row.verdict, tone), row.why)))
    columns = [
        Column("size" if wide else "row", "wrap"),
        *(Column(head, "left") for head in name_heads),
        *(Column(head) for head in FIGURES),
        Column("verdict", "left"),
        Column("why", "wrap", dim=True),
    ]
    return Table(columns=columns, lines=lines, overflow="stack", note=LEGEND)


def _place_heads(rows: Sequence[Shown]) -> tuple[str, ...]:
    """The head of the column of places, if rows differ in it."""
    return ("place",) * any(row.name.place for row in rows)


def _first_cell(row: Shown) -> str:
    """The first cell of a row where columns align by themselves."""
    return " ".join(filter(None, [row.name.size, row.name.rest]))


def _name_mean(row: Shown) -> str:
    return "; ".join(filter(None, [f"{row.row}: {row.change}", row.why]))


def _make_comment(view: Readable, title: str) -> list[Block]:
    """What a pull request is told: the verdict, what was decided, and rows that have one and are
    not SAME; the others are folded."""
    comparison = view.comparison
    facts = [f"{name}: {a} → {b}" for name, a, b in list_differences(comparison)]
    if len(facts) > FACTS:
        facts[FACTS:] = [f"{len(facts) - FACTS:,} more differences"]
    why = [
        shorten_text(line, 500)
        for line in (*describe_operations(view), *list_reasons(view))[:NOTES]
    ]
    dropped, absent = (
        [shorten_text(line, 500) for line in left_out(view, dropped=kind)[:NOTES]]
        for kind in (True, False)
    )
    rest, means = view.having(*UNDECIDED, "SAME"), view.means[:GEOMEANS]
    loud = [row for row in view.rows if row.verdict not in (*UNDECIDED, "SAME")]
    same = len(view.having("SAME"))
    others = f"{len(rest):,} other rows: {same:,} same, {len(rest) - same:,} without a verdict"
    return [
        Heading(f"{shorten_text(title, 100)}: {MARKS[view.weight]} {view.headline}"),
        describe_decided(view),
        *dropped,
        " · ".join([_describe_sides(comparison), *list_facts(comparison)]),
        *describe_alarms(view),
        *([Points(facts)] if facts else []),
        *([_rows_table(loud, means[-1:] if rest else means)] if loud else []),
        *([Points(why)] if why else []),
        *([_rows_table(rest, means[:-1] if loud else means, others)] if rest else []),
        *absent,
        *(shorten_text(note, 300) for note in comparison.notes[:NOTES]),
        LEGEND,
    ]


def _rows_table(rows: Sequence[Shown], means: Sequence[Shown], title: str = "") -> Table:
    """A comment's table; one with a title is folded."""
    name_heads = _place_heads(rows)

    def line(row: Shown) -> Line:
        verdict = tone_text(row.verdict, strong=True) + " " if row.verdict else tone_text("")
        places = (row.name.place,) * len(name_heads)
        return Line((_first_cell(row) or row.row, *places, *row.figures, verdict + row.why))

    heads = ("row", *name_heads, *FIGURES, "verdict")
    return Table(
        title=title,
        folded=bool(title),
        columns=make_columns(heads, "l" + "l" * len(name_heads) + "rrrr", rest="l"),
        lines=list(map(line, rows)),
        closing=list(map(line, means)),
    )


def make_section(view: Readable) -> Section:
    """The part of a report on a comparison: how much was decided, changes with their intervals, and
    the table of verdicts."""
    drawn = forest.draw_forest(view)
    return Section(
        name="comparison",
        title="Comparison",
        sentences=_make_sentences([describe_decided(view), *left_out(view, dropped=True)]),
        figures=[drawn] if drawn else [],
        tables=[table for table in _make_tables(view) if table.lines],
    )


def make_method(view: Readable) -> Section:
    """The grounds of the verdicts, and why rows have none."""
    comparison = view.comparison
    sentences = [
        " · ".join(list_facts(comparison)),
        *describe_alarms(view),
        *describe_operations(view),
        *list_reasons(view),
    ]
    sentences += [*left_out(view, dropped=False), *comparison.notes]
    return Section(
        name="method",
        title="How it was measured",
        sentences=_make_sentences(sentences),
        folded=True,
    )


def _make_sentences(sentences: Sequence[str]) -> list[str]:
    return [f"{shorten_text(text, 500)}." for text in sentences]


def _make_tables(view: Readable) -> list[Table]:
    comparison = view.comparison
    name_heads = _place_heads(view.rows)
    lines = [
        Line(
            (
                _first_cell(row),
                *[row.name.place] * len(name_heads),
                row.verdict,
                row.why,
                *row.figures,
            ),
            forest.filter_row(comparison, row.row_verdict.case),
            WEIGHTS[row.row_verdict.verdict],
        )
        for row in view.rows
        if row.row_verdict
    ]
    means = [
        Line(
            (row.row, row.why, row.change),
            {"collective": mean.collective} if mean.collective else {},
        )
        for row, mean in zip(view.means, comparison.aggregates, strict=True)
    ]
    return [
        Table(
            name="differences",
            title="Machines differ in",
            columns=make_columns(("fact", "base", "head"), "lll"),
            lines=[Line(line, {}, "notice") for line in list_differences(comparison)],
        ),
        Table(
            name="verdicts",
            title="Verdicts",
            columns=make_columns(
                ("row", *name_heads, "verdict", "why", *FIGURES), "lll" + "l" * len(name_heads)
            ),
            lines=lines,
            note=LEGEND,
        ),
        Table(
            name="geomeans",
            title="Geometric means",
            columns=make_columns(("rows", "worst row", FIGURES[2]), "ll"),
            lines=means,
        ),
    ]


def _plain_values(view: Readable) -> dict[str, Any]:
    """An object: ``schema``, ``verdict`` and ``describe_decided`` in words, ``exit``, ``reason``,
    ``rows_decided`` of ``rows_total``, ``name_undecided`` (reason, rows), ``alarms`` of this
    machine, ``counts`` by verdict, ``paired``, ``stages``, ``rules``, ``notes``,
    ``list_differences`` (fact, base, head), ``base`` and ``head`` as their files begin,
    ``aggregates``, ``rows`` with ``label``, ``describe_decided`` and all that Judged has, times in
    nanoseconds, and ``skipped``, rows that were not measured on both sides (label, key, case,
    reason, dropped)."""
    comparison, names = view.comparison, _name_rows(view)
    skipped = skipped_names(comparison)
    counts = Counter(row.verdict for row in comparison.rows)
    return {
        "schema": SCHEMA,
        "verdict": view.headline,
        "decided": describe_decided(view),
        "rows_decided": comparison.decided,
        "rows_total": comparison.total,
        "counts": {verdict: counts[verdict] for verdict in ORDER if counts[verdict]},
        **msgspec.structs.asdict(comparison),
        "undecided": [
            {"reason": why, "rows": names} for why, names in name_undecided(view).items()
        ],
        "alarms": view.alarms,
        "differences": [
            {"fact": name, "base": a, "head": b} for name, a, b in comparison.differences
        ],
        "rows": [
            {"label": names[row.key], "decided": row.decided, **msgspec.structs.asdict(row)}
            for row in comparison.rows
        ],
        "skipped": [
            {"label": skipped[row.key], **msgspec.structs.asdict(row)} for row in comparison.skipped
        ],
    }


def _flatten_rows(view: Readable) -> list[dict[str, Any]]:
    """The rows with plain values only, for a table: ``label``, Case's fields, Judged's,
    ``base_median`` and so on."""
    names, entries = _name_rows(view), []
    for row in view.comparison.rows:
        fields = {
            "label": names[row.key],
            **row.case.values_by_key,
            **msgspec.structs.asdict(row),
        }
        for side in ("base", "head"):
            values = fields.pop(side)
            fields |= {
                f"{side}_{name}": getattr(values, name, None) for name in Side.__struct_fields__
            }
        del fields["case"], fields["operations"]
        entries.append(
            {
                name: format_settings(v)
                if name == "env"
                else " ".join(v)
                if isinstance(v, tuple)
                else round_finite(v)
                if isinstance(v, float)
                else v
                for name, v in fields.items()
            }
        )
    return entries


def _name_rows(view: Readable) -> dict[str, str]:
    return {row.row_verdict.key: row.row for row in view.rows if row.row_verdict}


def _junit_cases(view: Readable) -> list[JunitCase]:
    """A test case per row: failed where the row fails the comparison, as slower or gone, and
    skipped where it was not judged. What else makes the exit code other than 0 is an error of a
    test case called comparison."""
    comparison, names = view.comparison, skipped_names(view.comparison)
    cases = [_junit_case(row, row.row_verdict) for row in view.rows if row.row_verdict]
    cases += [
        JunitCase(
            group=f"collbench.{row.case.collective}",
            name=row.key,
            outcome="skipped",
            message=plain_line(row.reason),
            label=names[row.key],
        )
        for row in comparison.skipped
    ]
    if comparison.exit in (Exit.OK, Exit.BAD):
        return cases
    why = JunitCase(
        group="collbench",
        name="comparison",
        outcome="error",
        message=plain_line(comparison.reason),
        kind=comparison.exit.name,
    )
    return [*cases, why]


def _junit_case(row: Shown, verdict: Judged) -> JunitCase:
    figures = f"{row.base} → {row.head}, {row.change}" if row.change != "-" else ""
    figures += f", MDE {row.mde}" if figures and row.mde not in ("", "-") else ""
    summary = f"{row.verdict}: {'; '.join(filter(None, [figures, row.why]))}"
    fails = verdict.gates and verdict.verdict in ("REGRESSED", "GONE")
    warned = verdict.verdict in WARNED
    passed: Outcome = "warned" if warned else "passed" if verdict.decided else "skipped"
    return JunitCase(
        group=f"collbench.{verdict.case.collective}",
        name=verdict.key,
        outcome="failed" if fails else passed,
        message=summary,
        kind=row.verdict if fails else "",
        text=summary if fails else "",
        label=row.row,
        seconds=verdict.head.median / 1e9 if verdict.head else 0.0,
    )
