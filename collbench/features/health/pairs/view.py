"""The pairs of a run as a document: the rate of each pair, the slowest of them, and which ranks,
hosts and links stand out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import Any, NamedTuple

from collbench.core.groups import Pair
from collbench.core.text import format_bandwidth, format_count, format_duration, plain_line
from collbench.features.health.findings import Finding
from collbench.features.health.pairs import judgement as pairs
from collbench.features.health.pairs.judgement import WORDS, Matrix
from collbench.records.types import RunFile
from collbench.show.document import Block, Comment, Document, Line, Table, make_columns
from collbench.show.words import list_caveats

SHOWN = 16  # ranks up to which the matrix is shown

WORST = 8

COLUMNS = ("a", "b", "host_a", "host_b", "apart", "busbw", "time_ns", "share", "injected")


class Pairs(NamedTuple):
    """A run's pairs and the verdict on them."""

    file: RunFile
    matrix: Matrix
    racks: Mapping[str, str]
    findings: list[Finding]


def pair_shares(measured: Pairs) -> dict[Pair, tuple[str, float]]:
    """How far apart each pair is, and its share of the median rate of such pairs."""
    shares = {}
    for kind, rates in pairs.class_rates(measured.matrix, measured.racks).items():
        middle = median(rates.values())
        shares.update(
            {pair: (kind, rate / middle if middle else 1.0) for pair, rate in rates.items()}
        )
    return shares


def list_rows(measured: Pairs) -> list[dict[str, Any]]:
    """A pair each, by COLUMNS: GB/s each way, nanoseconds at the smallest size."""
    matrix, shares = measured.matrix, pair_shares(measured)
    return [
        dict(
            zip(
                COLUMNS,
                (
                    a,
                    b,
                    matrix.hosts[a],
                    matrix.hosts[b],
                    WORDS[shares[a, b][0]],
                    rate,
                    matrix.times.get((a, b)),
                    shares[a, b][1],
                    measured.file.run.policy.inject,
                ),
                strict=True,
            )
        )
        for (a, b), rate in matrix.rates.items()
    ]


def list_scores(measured: Pairs) -> list[dict[str, Any]]:
    """The best and the median rate of each host's pairs with other hosts (of each rank's, where all
    are on one host), slowest first."""
    several = len(set(measured.matrix.hosts)) > 1
    rates_of_name: dict[str, list[float]] = defaultdict(list)
    for pair, rate in measured.matrix.rates.items():
        names = [measured.matrix.hosts[end] if several else f"rank {end}" for end in pair]
        if not several or names[0] != names[1]:
            if measured.matrix.one_way:
                names = [f"{names[0]} sends", f"{names[1]} receives"]
            for name in names:
                rates_of_name[name].append(rate)
    best = {
        name: sorted(rates)[-2 if len(rates) > 3 else -1] for name, rates in rates_of_name.items()
    }
    usual = median(best.values()) if best else 1.0
    scores = [
        {
            "name": name,
            "pairs": len(rates),
            "best": best[name],
            "median": median(rates),
            "share": best[name] / usual if usual else 1.0,
        }
        for name, rates in rates_of_name.items()
    ]
    return sorted(scores, key=lambda score: score["best"])


def make_document(measured: Pairs) -> Document:
    """The pairs for every medium: a matrix of few ranks, the slowest pairs, what each reaches."""
    run = measured.file.run
    head = [
        *list_caveats(run, measured.file.worlds),
        *pairs.summarise_pairs(measured.matrix, measured.racks),
    ]
    tables = [_square_table(measured.matrix)] if len(measured.matrix.hosts) <= SHOWN else []
    tables += [_worst_table(measured), _scores_table(measured)]
    brief: list[Block] = [*head, ""]
    for table in tables:
        brief += [table, ""]
    return Document(
        title=f"Pairs of {run.id}",
        brief=[*brief, *list_verdicts(measured)],
        comment=Comment([*head, *tables, *list_verdicts(measured)]),
        rows=list_rows(measured),
        values={
            "run": run.id,
            "injected": run.policy.inject,
            "racks": measured.racks,
            "one_way": measured.matrix.one_way,
            "pairs": list_rows(measured),
            "scores": list_scores(measured),
            "findings": measured.findings,
        },
    )


def _square_table(matrix: Matrix) -> Table:
    ranks = range(len(matrix.hosts))
    lines = []
    for a in ranks:
        rates = [matrix.rates.get((a, b), matrix.rates.get((b, a))) for b in ranks]
        lines.append(
            Line((str(a), *("" if rate is None else format_bandwidth(rate) for rate in rates)))
        )
    columns = make_columns(("", *map(str, ranks)))
    way = "from line to column" if matrix.one_way else "between ranks"
    title = f"busbw {way}, GB/s"
    return Table(title=title, columns=columns, lines=lines, overflow="split")


def _worst_table(measured: Pairs) -> Table:
    shares, hosts = pair_shares(measured), measured.matrix.hosts
    to = "->" if measured.matrix.one_way else "-"
    worst = sorted(measured.matrix.rates, key=lambda pair: shares[pair][1])[:WORST]
    lines = [
        Line(
            (
                f"{a} {to} {b}",
                plain_line(f"{hosts[a]} {to} {hosts[b]}"),
                WORDS[shares[a, b][0]],
                format_bandwidth(measured.matrix.rates[a, b]),
                f"{shares[a, b][1]:.0%}",
                format_duration(measured.matrix.times.get((a, b))),
            )
        )
        for a, b in worst
    ]
    title = f"The slowest {format_count(len(worst), 'pair')}"
    heads = ("pair", "hosts", "apart", "busbw", "of the median", "smallest size")
    return Table(title=title, columns=make_columns(heads, "lww"), lines=lines)


def _scores_table(measured: Pairs) -> Table:
    """The best and the median bandwidth that each rank, host or link has over its pairs."""
    lines = [
        Line(
            (
                plain_line(score["name"]),
                str(score["pairs"]),
                format_bandwidth(score["best"]),
                format_bandwidth(score["median"]),
                f"{score['share']:.0%}",
            )
        )
        for score in list_scores(measured)[:SHOWN]
    ]
    heads = ("", "pairs", "best", "median", "best of the others'")
    return Table(title="What each reaches", columns=make_columns(heads, "w"), lines=lines)


def list_verdicts(measured: Pairs) -> list[str]:
    """Sentences: what stands out, or that nothing does, or why that cannot be said."""
    unrated = pairs.explain_unrated(measured.matrix)
    if not measured.findings:
        if not pairs.is_comparable(measured.matrix, measured.racks):
            number = format_count(len(measured.matrix.rates), "pair")
            return [f"no verdict: {number}, too few for one to stand out"]
        if unrated:
            return [f"no verdict: {unrated}"]
        return ["no pair, rank, host or link stands out"]
    crowded = any(world.oversubscribed for world in measured.file.worlds)
    sentences = [
        f"{finding.subject.kind} {finding.what}: {finding.advice}" for finding in measured.findings
    ]
    sentences += [unrated] if unrated else []
    caution = "oversubscribed: who stands out may have had less of a core"
    return [caution, *sentences] if crowded else sentences
