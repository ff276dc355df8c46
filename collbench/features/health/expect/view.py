"""Tables of expected bandwidths and their power, as documents."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from collbench.core.text import format_bandwidth, format_count, format_size, plain_line
from collbench.features.health.checks.curves import Curve
from collbench.features.health.checks.expectations import describe_origin
from collbench.features.health.expect.power import DETECTED, Power
from collbench.features.health.expect.tables import Disagreement
from collbench.show.document import Block, Document, Line, Section, Table, make_columns
from collbench.suite.case_words import describe_case

SCHEMA = 1  # of the JSON

CHANCES = make_columns(
    ("loss of busbw", "found", "95 %", "if scatter is normal", "95 % of that"), rest="r"
)

ROWS = make_columns(
    ("row", "least GB/s", "usual GB/s", "scatter", "fails at 0 %", "loss found 9 in 10"), "lr"
)


def make_power_document(power: Power) -> Document:
    """What a table finds how often, by itself."""
    section = make_power_section(power)
    return Document(
        title="What loss the gate finds",
        verdict=summarise_power(power),
        sections=[section],
        brief=list_power_blocks(power),
        values={"schema": SCHEMA, **plain_power(power)},
    )


def make_power_section(power: Power) -> Section:
    """A report's section."""
    return Section(
        name="gate-power",
        title="What loss the gate finds",
        sentences=[summarise_power(power), *describe_power(power)],
        tables=[_chance_table(power), _row_table(power)],
    )


def list_power_blocks(power: Power) -> list[Block]:
    """The same for a terminal."""
    sentences: list[Block] = [summarise_power(power), *describe_power(power)]
    return [*sentences, "", _chance_table(power), "", _row_table(power)]


def summarise_power(power: Power) -> str:
    """The false alarms, and the first loss that is nearly always found."""
    figures = [
        (c.loss, c.counted, c.lo, c.hi)
        if power.has_nodes
        else (c.loss, c.normal, c.normal_lo, c.normal_hi)
        for c in power.chances
    ]
    sure = next((figure for figure in figures if figure[1] >= DETECTED), None)
    found = (
        f"a loss of {sure[0]:.0%} in all rows is found in {_describe_chance(*sure[1:])}"
        if sure
        else f"no loss up to {figures[-1][0]:.0%} is found in {DETECTED:.0%}"
    )
    who = "of healthy nodes" if power.has_nodes else "of the nights of this node"
    return f"Without a loss the gate fails {_describe_chance(*figures[0][1:])} {who}; {found}."


def _describe_chance(chance: float, lo: float, hi: float) -> str:
    return f"{_format_chance(chance)} ({_format_chance(lo)} to {_format_chance(hi)})"


def describe_power(power: Power) -> list[str]:
    """What the figures rest on."""
    launches = format_count(power.launches, "launch")
    sentences = [
        f"Counted over {format_count(power.nodes, 'node')}, and sets of {launches} of each."
        if power.has_nodes
        else f"By the scatter between {launches} of one node. Scatter between nodes is not in it:"
        " collbench expect power takes a run of each of several nodes."
    ]
    if "hint" in power.severities:
        sentences.append(
            "All curves are hints, which make nobody unhealthy: found means that a hint is given."
        )
    sentences += [
        plain_line(f"{o.node} is left out as an outlier: {o.off:+.1%}, robust z {o.z:.1f}.")
        for o in power.outliers
    ]
    return sentences


def _chance_table(power: Power) -> Table:
    lines = [
        Line(
            (
                f"{c.loss:.0%}",
                _format_chance(c.counted),
                f"{_format_chance(c.lo)} to {_format_chance(c.hi)}",
                _format_tail(c.normal),
                f"{_format_tail(c.normal_lo)} to {_format_tail(c.normal_hi)}",
            )
        )
        for c in power.chances
    ]
    note = "Found: the chance that a node whose busbw is lower by so much in all rows fails."
    return Table(
        name="gate-power",
        title="Chance that a loss is found",
        columns=CHANCES,
        lines=lines,
        note=note,
    )


def _row_table(power: Power) -> Table:
    lines = [
        Line(
            (
                describe_case(row.case),
                f"{row.limit:.4g}",
                f"{row.busbw:.4g}",
                f"{row.scatter:.1%}",
                _format_tail(row.alarms),
                f"{row.detected:.1%}",
            )
        )
        for row in power.rows
    ]
    return Table(
        name="gate-power-rows",
        title="Each row alone, if scatter is normal",
        columns=ROWS,
        lines=lines,
    )


def _format_chance(chance: float) -> str:
    percent = 100 * chance
    if 0 < percent < 0.1:
        return "< 0.1%"
    if 99.9 < percent < 100:
        return "> 99.9%"
    return f"{percent:.1f}%" if 0 < percent < 100 else f"{percent:.0f}%"


def _format_tail(chance: float) -> str:
    """A chance by a model, which is never quite 0 or 1."""
    return _format_chance(min(max(chance, 1e-9), 1 - 1e-9))


def plain_power(power: Power) -> dict[str, Any]:
    """The figures for programs: shares, and GB/s."""
    return {
        "nodes": power.nodes,
        "launches": power.launches,
        "severities": power.severities,
        "outliers": [outlier._asdict() for outlier in power.outliers],
        "chances": [chance._asdict() for chance in power.chances],
        "rows": [
            {
                "row": describe_case(row.case),
                "case": row.case.key,
                "limit": row.limit,
                "busbw": row.busbw,
                "scatter": row.scatter,
                "alarms": row.alarms,
                "detected": row.detected,
            }
            for row in power.rows
        ],
    }


def make_tables_document(
    curves: Sequence[Curve], differing: Sequence[Disagreement], today: date
) -> Document:
    """Tables as they were read: each curve, and where tables differ."""
    lines = [
        Line(
            (
                curve.file,
                curve.name + f", {curve.backend}" * bool(curve.backend),
                curve.severity,
                ", ".join(
                    f"{format_size(size)} {format_bandwidth(curve.limit_at(size))}"
                    for size, _ in curve.sizes
                ),
                describe_origin(curve, today),
            )
        )
        for curve in curves
    ]
    columns = make_columns(("file", "curve", "severity", "least GB/s", "from"), "lllww")
    tables = Table(name="curves", title="Curves", columns=columns, lines=lines)
    sentences = [d.sentence for d in differing]
    files = {curve.file for curve in curves}
    verdict = f"{format_count(len(curves), 'curve')} of {format_count(len(files), 'table')}"
    verdict += f"; {format_count(len(differing), 'disagreement')}" if len(files) > 1 else ""
    return Document(
        title="Expected bandwidths",
        verdict=f"{verdict}.",
        brief=[f"{verdict}.", *sentences, "", tables],
        sections=[Section(name="curves", title="Curves", sentences=sentences, tables=[tables])],
        values={
            "schema": SCHEMA,
            "curves": [
                {
                    "file": curve.file,
                    "name": curve.name,
                    "backend": curve.backend,
                    "severity": curve.severity,
                    "source": curve.source,
                    "day": curve.day.isoformat(),
                    "expired": curve.expires < today,
                    "points": {
                        size: {"busbw": rate, "limit": curve.limit_at(size)}
                        for size, rate in curve.sizes
                    },
                }
                for curve in curves
            ],
            "disagreements": [d._asdict() for d in differing],
        },
    )
