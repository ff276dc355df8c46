"""Output for other programs: a Document as JSON, CSV, JUnit's XML, Prometheus' text, and what a
step of GitHub Actions leaves; a run, as it goes, as CSV, JSON and Markdown."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from xml.etree import ElementTree

from collbench.core.text import (
    clear_unknown,
    format_settings,
    inert_cell,
    plain_line,
    print_message,
)
from collbench.core.version import __version__
from collbench.machine import environment
from collbench.records import limits
from collbench.records.origins import FAKE, is_fake
from collbench.records.types import End
from collbench.run.reporter import Gathered
from collbench.show import markdown
from collbench.show.document import (
    Block,
    Comment,
    Document,
    Gauge,
    Heading,
    Judgement,
    JunitCase,
    Line,
    Points,
    Table,
    tone_text,
)
from collbench.show.views import run_table as views
from collbench.show.words import (
    COLUMNS,
    by_mode,
    choose_columns,
    count_reasons,
    flatten_record,
    format_cells,
    list_caveats,
    split_axes,
)
from collbench.survive.encoding import encode_json

SUMMARY = (1 << 20) - 1000  # bytes; GitHub refuses summaries of a step of more than 1 MiB

ANNOTATIONS = 10  # of errors and of warnings that GitHub shows for a step


def as_json(document: Document) -> str:
    """The document's values; infinite numbers are null."""
    return encode_json(document.values).decode()


def as_csv(document: Document) -> str:
    """The document's rows below a heading of the columns of any of them; no cell is a formula to a
    spreadsheet, and what is not finite is empty."""
    out = io.StringIO()
    columns = dict.fromkeys(name for row in document.rows for name in row)
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: inert_cell(_flatten_value(value)) for name, value in clear_unknown(row).items()}
        for row in document.rows
    )
    return out.getvalue()


def _flatten_value(value: Any) -> Any:
    """A value of a cell: named values and lists in words, without those that are unknown."""
    if isinstance(value, Mapping):
        known = {name: part for name, part in value.items() if part is not None}
        return ", ".join(f"{name}: {_flatten_value(part)}" for name, part in known.items())
    if isinstance(value, list | tuple):
        return "; ".join(str(_flatten_value(part)) for part in value)
    return value


def render_line(document: Judgement) -> str:
    """The document's line for a chat or a plugin."""
    return document.line


def render_junit(document: Judgement) -> str:
    """The document's cases as one suite of JUnit's XML, valid for Ant's and Jenkins' schemas; the
    verdict is a property of the suite, and messages of passed cases are its output."""
    outcomes = [case.outcome for case in document.cases]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    suite = ElementTree.Element("testsuite", name=plain_line(document.suite), package="collbench")
    suite.attrib |= {
        "id": "0",
        "timestamp": now,
        "hostname": environment.host_name() or "localhost",
    }
    properties = ElementTree.SubElement(suite, "properties")
    about = {"verdict": plain_line(document.verdict), "collbench": __version__}
    for name, value in about.items():
        ElementTree.SubElement(properties, "property", name=name, value=value)
    for case in document.cases:
        attributes = {"classname": plain_line(case.group), "name": plain_line(case.name)}
        element = ElementTree.SubElement(suite, "testcase", attributes, time=f"{case.seconds:.9f}")
        if case.outcome != "passed":
            _add_outcome(element, case)
    passed = [case for case in document.cases if case.outcome == "passed"]
    messages = "\n".join(plain_line(f"{case.name}: {case.message}") for case in passed)
    ElementTree.SubElement(suite, "system-out").text = messages
    ElementTree.SubElement(suite, "system-err")
    counts = {
        "tests": len(outcomes),
        "failures": outcomes.count("failed"),
        "errors": outcomes.count("error"),
        "skipped": outcomes.count("skipped") + outcomes.count("warned"),
    }
    suite.attrib |= {key: str(count) for key, count in counts.items()}
    suite.set("time", f"{sum(case.seconds for case in document.cases):.9f}")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_outcome(element: ElementTree.Element, case: JunitCase) -> None:
    """Adds why a test case did not pass."""
    tag = {"failed": "failure", "error": "error"}.get(case.outcome, "skipped")
    kind = {"type": case.kind or tag} if case.kind or tag != "skipped" else {}
    inside = ElementTree.SubElement(element, tag, {**kind, "message": plain_line(case.message)})
    inside.text = "\n".join(map(plain_line, case.text.splitlines())) or None


def render_prometheus(document: Document) -> str:
    """The document's gauges in Prometheus' text format 0.0.4, for node_exporter's textfile
    collector."""
    return render_gauges(document.gauges)


def render_gauges(gauges: Iterable[Gauge]) -> str:
    """Gauges in that format: each metric once, each set of labels once."""
    by_name: dict[str, list[Gauge]] = {}
    for gauge in sorted(gauges, key=lambda gauge: gauge.seconds or 0.0):
        by_name.setdefault(gauge.name, []).append(gauge)
    names = dict.fromkeys(gauge.name for gauge in gauges)
    return "".join(_metric_family(by_name[name]) for name in names)


def _metric_family(gauges: Sequence[Gauge]) -> str:
    """The text of one metric; empty where no value is finite. An empty label is none."""
    values: dict[tuple[tuple[str, str], ...], float] = {}
    for labels, value in (item for gauge in gauges for item in gauge.values):
        if math.isfinite(value):
            values[tuple((name, text) for name, text in labels.items() if text)] = float(value)
    if not values:
        return ""
    name = gauges[0].name
    about = gauges[0].about.replace("\\", r"\\").replace("\n", r"\n")
    lines = [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
    for pairs, value in values.items():
        labels_text = ",".join(f'{label}="{_escape_label(text)}"' for label, text in pairs)
        lines.append(f"{name}{f'{{{labels_text}}}' if labels_text else ''} {value:.15g}")
    return "\n".join(lines) + "\n"


def _escape_label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def in_github(document: Judgement, environ: Mapping[str, str]) -> None:
    """Leaves what a step of GitHub Actions shows: annotations (on standard error, which is read
    too) and a summary."""
    if environ.get("GITHUB_ACTIONS") == "true":
        for command in list_commands(document.cases):
            print(command, file=sys.stderr)
    summary = environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    try:
        with Path(summary).open("a", encoding="utf-8", errors="replace") as file:
            room = SUMMARY - file.tell()
            if room < markdown.COMMENT:
                print_message(f"{summary} is full, nothing added to it")
            else:
                file.write(markdown.render_markdown(document, room) + "\n")
    except OSError as e:  # the verdict matters more than where it is shown
        print_message(f"cannot write {summary}: {e.strerror}")


def list_commands(cases: Iterable[JunitCase]) -> list[str]:
    """GitHub's commands for failed, broken and warned cases, at most as many as GitHub shows."""
    levels: dict[str, list[JunitCase]] = {"error": [], "failed": [], "warned": []}
    for case in cases:
        levels.get(case.outcome, []).append(case)
    broken = [_format_command("error", "collbench", case.message) for case in levels["error"]]
    return [
        *broken,
        *_list_level_commands("error", levels["failed"], ANNOTATIONS - len(broken)),
        *_list_level_commands("warning", levels["warned"], ANNOTATIONS),
    ]


def _list_level_commands(level: str, cases: Sequence[JunitCase], most: int) -> list[str]:
    most -= len(cases) > most
    lines = [
        _format_command(level, f"collbench: {case.label}", case.message) for case in cases[:most]
    ]
    more = [_format_command(level, "collbench", f"{len(cases) - most:,} more rows like these")]
    return lines + (more if len(cases) > most else [])


def _format_command(level: str, title: str, message: str) -> str:
    """A workflow command, with GitHub's escapes; ``plain_line`` has left no line ends to escape."""
    title, message = (plain_line(text).replace("%", "%25") for text in (title, message))
    return f"::{level} title={title.replace(':', '%3A').replace(',', '%2C')}::{message}"


class Csv(Gathered):
    """A header, then one line per record when the run ends, sorted. Nanoseconds, bytes, GB/s; empty
    where undefined. No cell is a formula to a spreadsheet, as in the CSV of a page."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def end(self, end: End, path: Path | None) -> None:
        super().end(end, path)
        writer = csv.DictWriter(self._out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for values in flat_records(self):
            values |= {"env": format_settings(values["env"]), "note": plain_line(values["note"])}
            writer.writerow(
                {
                    k: inert_cell(" ".join(map(str, v)) if isinstance(v, tuple) else v)
                    for k, v in clear_unknown(values).items()
                }
            )
        self._out.flush()


def flat_records(run: Gathered) -> list[dict[str, Any]]:
    """Records under the names of COLUMNS, sorted by collective, implementation and size."""
    numbered = sorted(enumerate(run.arrived), key=lambda item: item[1][0].case.reading_order)
    return [flatten_record(record, row, order) for order, (record, row) in numbered]


class Json(Gathered):
    """One object when the run ends: the run, and per record its case with everything derived."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def end(self, end: End, path: Path | None) -> None:
        document = {
            "run": self.run,
            **({FAKE: True} if is_fake(self.file) else {}),
            "records": flat_records(self),
            "skips": self.skips,
            "limits": limits.judge_limits(self.file),
            "end": end,
        }
        # msgspec writes infinities as null
        self._out.write(encode_json(document).decode() + "\n")
        self._out.flush()


class Markdown(Gathered):
    """Tables for a pull request when the run ends, one per mode."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def end(self, end: End, path: Path | None) -> None:
        blocks: list[Block] = [
            tone_text(text, strong=True) for text in list_caveats(self.run, self.worlds.values())
        ]
        for mode, outcomes in by_mode(self.outcomes):
            varying, constant = split_axes([record.case for record, _ in outcomes])
            rows = [format_cells(*outcome) for outcome in outcomes]
            names = choose_columns(rows, varying)
            heads = {name: f"{name} GB/s" if name.endswith("bw") else name for name in names}
            columns = [views.COLUMNS[name]._replace(head=head) for name, head in heads.items()]
            lines = [Line([row[name] for name in names]) for row in rows]
            blocks += [Heading(f"{constant}, {mode}"), Table(columns=columns, lines=lines)]
        left_out = count_reasons(self.skips, self.arrived)
        blocks += [f"{number} skipped: {reason}" for reason, number in left_out]
        blocks += views.describe_dropped(self)
        blocks += [Points(explained)] if (explained := views.explain_flags(self)) else []
        blocks += [busy] if (busy := views.describe_busy(self)) else []
        blocks += [f"Ended early: {end.note}"] if end.note else []
        document = Document(title="", brief=(), comment=Comment(blocks))
        self._out.write(markdown.render_markdown(document, sys.maxsize))
        self._out.flush()
