"""Logs of nccl-tests and rccl-tests: which of their forms one has; and rccl-tests' own flat one
(``-X``, ``-Z``).

The flat form is CSV or JSON with a record for each row and placement. Built with MPI, the version
read writes a CSV header without the column ``nodes`` that its lines have.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from collbench.core.errors import UsageError, first_line
from collbench.features.interop.importers import (
    JSON,
    Line,
    Reading,
    Table,
    nccljson,
    nccltests,
    parse_number,
)
from collbench.features.interop.importers.text import refuse_too_many_values, split_lines
from collbench.records.types import ToolTime

NAMES = {"collective": "name", "#wrong": "wrong"}  # the CSV's, where the JSON has others

FLAT_CSV = re.compile(r'^[\s"]{0,9}(?:numCycle|collective)"? ?, ?"?\w', re.MULTILINE)

FLAT_JSON = re.compile(r'"(?:numCycle|inPlace|algBw)"\s*:')

LAYOUT = ("nodes", "ranks", "ranksPerNode", "gpusPerRank")  # of one number of ranks there are many


def read_log(text: str, reading: Reading) -> None:
    """Tells ``reading`` all results in ``text``. Raises UsageError where it lacks what a person
    must add."""
    is_json = JSON.match(text) is not None
    if not (FLAT_JSON if is_json else FLAT_CSV).search(text):
        (nccljson if is_json else nccltests).read_log(text, reading)
        return
    reading.tool = f"rccl-tests {'JSON' if is_json else 'CSV'}"
    text = refuse_too_many_values(text, reading.request.name)
    tables: dict[tuple[Any, ...], Table] = {}
    for where, fields in (_read_json if is_json else _read_csv)(text, reading):
        try:
            _take_record(reading, tables, where, fields)
        except (KeyError, ValueError) as e:
            reading.lost.append((where, f"no {e}" if isinstance(e, KeyError) else str(e)))


def _read_csv(text: str, reading: Reading) -> list[tuple[str, Mapping[str, str]]]:
    try:
        head, *rows = csv.reader(split_lines(text.strip()), skipinitialspace=True)
    except csv.Error as e:
        raise UsageError(f"{reading.request.name}: {e}", "check that the file is whole") from e
    names = [_normalise_field(name) for name in head]
    before = text[: len(text) - len(text.lstrip())].count("\n")  # empty lines
    entries: list[tuple[str, Mapping[str, str]]] = []
    for at, row in enumerate(rows, before + 2):
        if len(row) == len(names) + 1 and "ranks" in names:
            columns = [*names[: names.index("ranks")], "nodes", *names[names.index("ranks") :]]
        else:
            columns = names
        if len(row) == len(columns):
            cells = (cell.strip() for cell in row)
            entries.append((reading.locate_line(at), dict(zip(columns, cells, strict=True))))
        elif row:
            why = f"{len(row)} fields under a header of {len(names)}"
            reading.lost.append((reading.locate_line(at), why))
    return entries


def _read_json(text: str, reading: Reading) -> list[tuple[str, Mapping[str, str]]]:
    """The objects of an array, or those that lines hold."""
    try:
        if text.lstrip()[:1] == "[":
            objects = msgspec.convert(json.loads(text), list[dict[str, Any]])
            places = [(f"result {at}", fields) for at, fields in enumerate(objects, 1)]
        else:
            places = _json_lines(text, reading)
    except (ValueError, RecursionError) as e:
        raise UsageError(f"{reading.request.name}: {e}", "check that the file is whole") from e
    return [
        (where, {_normalise_field(name): str(value) for name, value in fields.items()})
        for where, fields in places
    ]


def _json_lines(text: str, reading: Reading) -> list[tuple[str, dict[str, Any]]]:
    entries = []
    for at, line in enumerate(split_lines(text), 1):
        if not line.strip(", "):
            continue
        try:
            fields = msgspec.convert(json.loads(line.strip(", ")), dict[str, Any])
            entries.append((reading.locate_line(at), fields))
        except (ValueError, RecursionError) as e:
            reading.lost.append((reading.locate_line(at), first_line(e)))
    return entries


def _normalise_field(name: str) -> str:
    name = name.strip()
    return NAMES.get(name.lower(), name.lower())


def _take_record(
    reading: Reading,
    tables: dict[tuple[Any, ...], Table],
    where: str,
    fields: Mapping[str, str],
) -> None:
    """Read one record. Raises KeyError for a missing field, ValueError for a field that is no
    number."""
    name = reading.collective(fields["name"])
    if reason := nccltests.why_foreign(name, fields["name"]):
        reading.omitted[reason] += 1
        return
    rank_text = fields.get("gpus", fields.get("ranks", "0"))
    n = int(rank_text) * (1 if "gpus" in fields else int(fields.get("gpusperrank", "1")))
    time, wrong = float(fields["time"]), parse_number(fields["wrong"])
    line = Line(
        where=where,
        size=int(fields["size"]),
        dtype=fields["type"],
        in_place=fields["inplace"] == "1",
        op=nccltests.SPELLED.get(fields["redop"], fields["redop"]),
        tool_time=ToolTime(time=time * 1e3, samples=1),
        wrong=None if wrong is None else int(wrong),
        printed=(fields["time"], fields["algbw"], fields["busbw"]),
    )
    key = (name, n, tuple((part, fields.get(part.lower(), "")) for part in LAYOUT))
    table = tables.setdefault(
        key, Table(collective=name, n=reading.ranks(n), library="RCCL", facts=key[2])
    )
    reading.add(table, line)
