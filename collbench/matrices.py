"""A run's pairs for people and programs: who reaches what with whom, the worst of it, and what stands out."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import msgspec

from collbench import uniformity
from collbench.formats import bandwidth, counted, duration, escaped, inert, plain
from collbench.groups import Pair
from collbench.health.findings import Finding
from collbench.inject import planted
from collbench.records import RunFile
from collbench.uniformity import WORDS, Matrix

SHOWN = 16  # ranks up to which the matrix is shown
WORST = 8
COLUMNS = ("a", "b", "host_a", "host_b", "apart", "busbw", "time_ns", "share", "injected")
Lines = list[Sequence[str]]


class Told(NamedTuple):
    """A run's pairs and what they come to."""

    file: RunFile
    matrix: Matrix
    racks: Mapping[str, str]
    findings: list[Finding]


def shares(told: Told) -> dict[Pair, tuple[str, float]]:
    """Of each pair how far apart it is, and what it reaches of what such pairs do in the median."""
    found = {}
    for kind, rates in uniformity.classes(told.matrix, told.racks).items():
        middle = median(rates.values())
        found.update({pair: (kind, rate / middle if middle else 1.0) for pair, rate in rates.items()})
    return found


def rows(told: Told) -> list[dict[str, Any]]:
    """A pair each, by COLUMNS: GB/s each way, nanoseconds at the smallest size."""
    found, apart = told.matrix, shares(told)
    return [
        dict(zip(COLUMNS, (a, b, found.hosts[a], found.hosts[b], WORDS[apart[a, b][0]], rate, found.times.get((a, b)),
                           apart[a, b][1], told.file.run.policy.inject), strict=True))
        for (a, b), rate in found.rates.items()
    ]  # fmt: skip


def scores(told: Told) -> list[dict[str, Any]]:
    """Of each host what its ranks reach at best and in the median of their pairs with others, slowest first."""
    several = len(set(told.matrix.hosts)) > 1
    mine: dict[str, list[float]] = defaultdict(list)
    for pair, rate in told.matrix.rates.items():
        names = [told.matrix.hosts[end] if several else f"rank {end}" for end in pair]
        if not several or names[0] != names[1]:
            for name in names:
                mine[name].append(rate)
    best = {name: sorted(rates)[-2 if len(rates) > 3 else -1] for name, rates in mine.items()}
    usual = median(best.values()) if best else 1.0
    found = [
        {"name": name, "pairs": len(rates), "best": best[name], "median": median(rates),
         "share": best[name] / usual if usual else 1.0}
        for name, rates in mine.items()
    ]  # fmt: skip
    return sorted(found, key=lambda score: score["best"])


def as_json(told: Told) -> str:
    run = told.file.run
    whole = {"run": run.id, "injected": run.policy.inject, "racks": told.racks, "pairs": rows(told),
             "scores": scores(told), "findings": told.findings}  # fmt: skip
    return msgspec.json.encode(whole).decode() + "\n"


def as_csv(told: Told) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: inert(value) for name, value in row.items()} for row in rows(told))
    return out.getvalue()


def markdown(told: Told) -> str:
    def table(title: str, lines: Lines) -> list[str]:
        head, *rest = [f"| {' | '.join(map(escaped, line))} |" for line in lines]
        return [f"### {title}", "", head, "|" + "---|" * len(lines[0]), *rest, ""]

    return "\n".join(_whole(told, table, escaped)) + "\n"


def text(told: Told) -> str:
    """For a terminal."""

    def table(title: str, lines: Lines) -> list[str]:
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        return [f"{title}", *(f"  {line}" for line in shown), ""]

    return "\n".join(_whole(told, table, plain)) + "\n"


FORMATS: dict[str, Callable[[Told], str]] = {"table": text, "md": markdown, "csv": as_csv, "json": as_json}


def _whole(told: Told, table: Callable[[str, Lines], list[str]], safe: Callable[[str], str]) -> list[str]:
    run, apart = told.file.run, shares(told)
    lines = [safe(planted(run.policy.inject)), ""] if planted(run.policy.inject) else []
    lines += [safe(line) + "  " for line in uniformity.summary(told.matrix, told.racks)] + [""]
    if len(told.matrix.hosts) <= SHOWN:
        lines += table("busbw between ranks, GB/s", _square(told.matrix))
    worst = sorted(told.matrix.rates, key=lambda pair: apart[pair][1])[:WORST]
    lines += table(f"The slowest {counted(len(worst), 'pair')}", [
        ("pair", "hosts", "apart", "busbw", "of the median", "smallest size"),
        *((f"{a} - {b}", plain(f"{told.matrix.hosts[a]} - {told.matrix.hosts[b]}"), WORDS[apart[a, b][0]],
           bandwidth(told.matrix.rates[a, b]), f"{apart[a, b][1]:.0%}", duration(told.matrix.times.get((a, b))))
          for a, b in worst),
    ])  # fmt: skip
    lines += table("What each reaches", [
        ("", "pairs", "best", "median", "best of the others'"),
        *((plain(score["name"]), str(score["pairs"]), bandwidth(score["best"]), bandwidth(score["median"]),
           f"{score['share']:.0%}") for score in scores(told)[:SHOWN]),
    ])  # fmt: skip
    return lines + verdict(told, safe)


def verdict(told: Told, safe: Callable[[str], str] = plain) -> list[str]:
    """What stands out, or that nothing does, or that it cannot be told."""
    if len(told.matrix.rates) < 3:
        return [f"{counted(len(told.matrix.rates), 'pair')}: too few for one to stand out"]
    if not told.findings:
        return ["no pair, rank, host or link stands out"]
    crowded = any(world.oversubscribed for world in told.file.worlds)
    return ["oversubscribed: who stands out may have had less of a core"] * crowded + [
        safe(f"{finding.subject.kind} {finding.what}: {finding.advice}") for finding in told.findings
    ]


def _square(found: Matrix) -> Lines:
    ranks = range(len(found.hosts))
    lines: Lines = [("", *map(str, ranks))]
    for a in ranks:
        cells = [found.rates.get((min(a, b), max(a, b))) for b in ranks]
        lines.append((str(a), *("" if rate is None else bandwidth(rate) for rate in cells)))
    return lines
