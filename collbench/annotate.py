"""A comparison as other programs take it: pull-request comment, JSON, JUnit's XML, GitHub's annotations and summary."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec

from collbench.compare import Comparison, Judged, Side
from collbench.errors import Exit
from collbench.formats import escaped, plain, settings
from collbench.verdicts import (
    HEADS,
    LEGEND,
    ORDER,
    Shown,
    differences,
    facts,
    geomeans,
    headline,
    labels,
    name_of,
    short,
    shown,
    weight,
)

SCHEMA = 1
COMMENT = 59_000  # GitHub refuses comments of more than 65,536 characters
SUMMARY = (1 << 20) - 1000  # and summaries of a step of more than 1 MiB
FACTS, GEOMEANS, NOTES = 10, 20, 5  # in a comment at most: with all of them full, more than half is left for rows
ANNOTATIONS = 10  # of errors and of warnings that GitHub shows for a step
MARKS = {"bad": "❌", "notice": "⚠️", "good": "✅", "": "✅"}
UNDECIDED = ("INVALID", "INCOMPARABLE", "INCONCLUSIVE")
WORRYING = ("REGRESSED", "GONE", "SUSPECT")


def markdown(comparison: Comparison, title: str = "collbench", marker: str = "compare", most: int = COMMENT) -> str:
    """A comment for a pull request of at most ``most`` bytes, hence characters; what is left out is said."""
    base, head = (escaped(name_of(run)) for run in (comparison.base, comparison.head))
    verdict = f"{escaped(short(title, 100))}: {MARKS[weight(comparison)]} {headline(comparison)}"
    top = [f"<!-- collbench:{marker} -->", f"### {verdict}  base {base} → head {head}", ""]
    top += [" · ".join(map(escaped, facts(comparison))), ""]
    bold = "**" * bool(comparison.exit)
    top += [f"{bold}{escaped(short(comparison.reason, 500))}{bold}", ""] if comparison.reason else []
    apart = [f"- {escaped(name)}: {escaped(a)} → {escaped(b)}" for name, a, b in differences(comparison)]
    top += [*apart[:FACTS], *[f"- {len(apart) - FACTS:,} more differences"] * (len(apart) > FACTS), ""]
    closing = [_line(row) for row in geomeans(comparison)[:GEOMEANS]]
    end = [*(f"{escaped(short(note, 300))}\n" for note in comparison.notes[:NOTES]), LEGEND, ""]
    rows = shown(comparison)
    loud, same = ([row for row in rows if (row.verdict == "SAME") == quiet] for quiet in (False, True))
    inline, room = _table(loud, closing, most - _bytes([*top, *closing, *end]))
    folded: list[str] = []
    if same:
        opening, ending = ["", f"<details><summary>{len(same):,} same</summary>", ""], ["", "</details>"]
        folded = [*opening, *_table(same, [], room - _bytes([*opening, *ending]))[0], *ending]
    return "\n".join([*top, *inline, *folded, "", *end])


def _table(rows: Sequence[Shown], closing: Sequence[str], room: int) -> tuple[list[str], int]:
    """As many rows as ``room`` bytes hold, and how many bytes are left; ``closing`` lines are already paid for."""
    if not rows and not closing:
        return [], room
    top = [f"| {' | '.join(HEADS[:-1])} |", "|---|--:|--:|--:|--:|---|"]
    room -= _bytes(top) + 150  # for the sentence on what is left out
    lines = [_line(row) for row in rows]
    ends = list(itertools.takewhile(lambda end: end <= room, itertools.accumulate(_bytes([line]) for line in lines)))
    left = len(lines) - len(ends)
    more = ["", f"{left:,} more of these rows do not fit here; the comparison as HTML or JSON has them all."]
    return [*top, *lines[: len(ends)], *closing, *(more if left else [])], room - (ends[-1] if ends else 0)


def _line(row: Shown) -> str:
    verdict = " ".join(filter(None, [f"**{row.verdict}**" * bool(row.verdict), escaped(row.why)]))
    return f"| {' | '.join([*map(escaped, (row.row, row.base, row.head, row.change, row.mde)), verdict])} |"


def _bytes(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def as_json(comparison: Comparison) -> str:
    """An object: ``schema``, ``exit``, ``reason``, ``counts`` by verdict, ``paired``, ``stages``, ``rules``, ``notes``,
    ``differences`` (fact, base, head), ``base`` and ``head`` as their files begin, ``aggregates``, and ``rows`` with
    ``label`` and all that Judged has, times in nanoseconds. Infinite numbers are null."""
    names = labels(comparison)
    whole = {
        "schema": SCHEMA,
        "counts": {v: n for v in ORDER if (n := sum(row.verdict == v for row in comparison.rows))},
        **msgspec.structs.asdict(comparison),
        "differences": [{"fact": name, "base": a, "head": b} for name, a, b in comparison.differences],
        "rows": [{"label": names[row.key], **msgspec.structs.asdict(row)} for row in comparison.rows],
    }
    return msgspec.json.encode(whole).decode()


def flat(comparison: Comparison) -> list[dict[str, Any]]:
    """The rows with plain values only, for a table: ``label``, Case's fields, Judged's, ``base_median`` and so on."""
    names, found = labels(comparison), []
    for row in comparison.rows:
        fields = {"label": names[row.key], **msgspec.structs.asdict(row.case), **msgspec.structs.asdict(row)}
        for side in ("base", "head"):
            values = fields.pop(side)
            fields |= {f"{side}_{name}": getattr(values, name, None) for name in Side.__struct_fields__}
        fields.pop("case")
        found.append({name: settings(v) if name == "env" else " ".join(v) if isinstance(v, tuple) else v
                      for name, v in fields.items()})  # fmt: skip
    return found


def fails(row: Judged) -> bool:
    """Whether this row makes the comparison fail, as slower or gone."""
    return row.gates and row.verdict in ("REGRESSED", "GONE")


def junit(comparison: Comparison) -> str:
    """A test case per row: failed where the row fails the comparison, skipped where it has no verdict that counts.

    What else makes the exit code other than 0 is an error of a test case called comparison.
    """
    rows = shown(comparison)
    name = f"collbench {name_of(comparison.base)} to {name_of(comparison.head)}"
    suite = ElementTree.Element("testsuite", name=plain(name))
    counts = {"tests": len(rows), "failures": 0, "errors": 0, "skipped": 0}
    for row in rows:
        judged = row.judged
        assert judged is not None
        seconds = f"{judged.head.median / 1e9:.9f}" if judged.head else "0"
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"collbench.{plain(judged.case.collective)}", name=plain(judged.key),
            time=seconds,
        )  # fmt: skip
        words = _words(row)
        if fails(judged):
            counts["failures"] += 1
            ElementTree.SubElement(case, "failure", type=row.verdict, message=words).text = words
        elif judged.verdict in UNDECIDED + WORRYING:
            counts["skipped"] += 1
            ElementTree.SubElement(case, "skipped", message=words)
        else:
            ElementTree.SubElement(case, "system-out").text = words
    if why := _otherwise(comparison):
        counts |= {"tests": len(rows) + 1, "errors": 1}
        case = ElementTree.SubElement(suite, "testcase", classname="collbench", name="comparison", time="0")
        ElementTree.SubElement(case, "error", type=comparison.exit.name, message=why)
    suite.attrib |= {key: str(count) for key, count in counts.items()}
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _otherwise(comparison: Comparison) -> str:
    """Why the exit code is not 0, where that is not because of rows that are slower or gone."""
    return plain(comparison.reason) if comparison.exit not in (Exit.OK, Exit.BAD) else ""


def _words(row: Shown) -> str:
    figures = f"{row.base} → {row.head}, {row.change}" if row.change != "-" else ""
    return f"{row.verdict}: {'; '.join(filter(None, [figures, row.why]))}"


def in_github(comparison: Comparison, environ: Mapping[str, str], title: str, marker: str) -> None:
    """What a step of GitHub Actions leaves: annotations (on standard error, which is read too) and its summary."""
    if environ.get("GITHUB_ACTIONS") == "true":
        for line in commands(comparison):
            print(line, file=sys.stderr)
    summary = environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    try:
        with Path(summary).open("a", encoding="utf-8") as file:
            room = SUMMARY - file.tell()
            if room < COMMENT:
                print(f"collbench: {summary} is full, nothing added to it", file=sys.stderr)
            else:
                file.write(markdown(comparison, title, marker, room) + "\n")
    except OSError as e:  # the verdict matters more than where it is shown
        print(f"collbench: cannot write {summary}: {e.strerror}", file=sys.stderr)


def commands(comparison: Comparison) -> list[str]:
    """GitHub's commands for rows that fail and rows to look at, as many as it shows."""
    grave = {True: list[Shown](), False: list[Shown]()}
    for row in shown(comparison):
        if row.judged and row.verdict in WORRYING:
            grave[fails(row.judged)].append(row)
    why = _otherwise(comparison)
    first = [_command("error", "collbench", why)] if why else []
    return [*first, *_commands("error", grave[True], ANNOTATIONS - len(first)), *_commands("warning", grave[False])]


def _commands(level: str, rows: Sequence[Shown], most: int = ANNOTATIONS) -> list[str]:
    most -= len(rows) > most
    lines = [_command(level, f"collbench: {row.row}", _words(row)) for row in rows[:most]]
    return lines + [_command(level, "collbench", f"{len(rows) - most:,} more rows like these")] * (len(rows) > most)


def _command(level: str, title: str, message: str) -> str:
    """A workflow command, with GitHub's escapes; ``plain`` has left no line ends to escape."""
    title, message = (plain(text).replace("%", "%25") for text in (title, message))
    return f"::{level} title={title.replace(':', '%3A').replace(',', '%2C')}::{message}"
