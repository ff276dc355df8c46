"""Logs of nccl-tests and rccl-tests: which of their forms one has; and rccl-tests' own flat one
(``-X``, ``-Z``).

The flat form is CSV or JSON with a record for each row and placement. Built with MPI, the version
read writes a CSV header without the column ``nodes`` that its lines have.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from collbench.core.errors import UsageError
from collbench.records.importers import JSON, Line, Reading, Table, nccljson, nccltests, number
from collbench.records.importers.text import lines, sane
from collbench.records.types import ToolTime

NAMES = {"collective": "name", "#wrong": "wrong"}  # the CSV's, where the JSON has others


def read(text: str, reading: Reading) -> None:
    """Tells ``reading`` all results in ``text``. Raises UsageError where it lacks what a person
    must add."""
    if "numCycle" not in text[:200]:
        (nccljson if JSON.match(text) else nccltests).read(text, reading)
        return
    flat_json = text.lstrip()[:1] == "["
    reading.tool = f"rccl-tests {'JSON' if flat_json else 'CSV'}"
    text = sane(text, reading.asked.name)
    for where, fields in (_json if flat_json else _csv)(text, reading):
        try:
            _take(reading, where, fields)
        except (KeyError, ValueError) as e:
            reading.lost.append((where, f"no {e}" if isinstance(e, KeyError) else str(e)))


def _csv(text: str, reading: Reading) -> list[tuple[str, Mapping[str, str]]]:
    try:
        head, *rows = csv.reader(lines(text.strip()))
    except csv.Error as e:
        raise UsageError(f"{reading.asked.name}: {e}", "is it whole?") from e
    names = [NAMES.get(name, name.lower()) for name in head]
    found: list[tuple[str, Mapping[str, str]]] = []
    for at, row in enumerate(rows, 2):
        if len(row) == len(names) + 1 and "ranks" in names:
            here = [*names[: names.index("ranks")], "nodes", *names[names.index("ranks") :]]
        else:
            here = names
        if len(row) == len(here):
            found.append((f"line {at}", dict(zip(here, row, strict=True))))
        elif row:
            reading.lost.append((f"line {at}", f"{len(row)} fields under a header of {len(names)}"))
    return found


def _json(text: str, reading: Reading) -> list[tuple[str, Mapping[str, str]]]:
    try:
        found = msgspec.convert(json.loads(text), list[dict[str, Any]])
    except (ValueError, RecursionError) as e:
        raise UsageError(f"{reading.asked.name}: {e}", "is it whole?") from e
    return [
        (f"result {at}", {NAMES.get(name, name.lower()): str(value) for name, value in one.items()})
        for at, one in enumerate(found, 1)
    ]


def _take(reading: Reading, where: str, fields: Mapping[str, str]) -> None:
    """One record. Raises KeyError for a missing field, ValueError for one that is no number."""
    name = reading.collective(fields["name"])
    if reason := nccltests.why_foreign(name, fields["name"]):
        reading.omitted[reason] += 1
        return
    told = fields.get("gpus", fields.get("ranks", "0"))
    n = int(told) * (1 if "gpus" in fields else int(fields.get("gpusperrank", "1")))
    time, wrong = float(fields["time"]), number(fields["wrong"])
    line = Line(
        where=where,
        size=int(fields["size"]),
        dtype=fields["type"],
        in_place=fields["inplace"] == "1",
        op=nccltests.SPELLED.get(fields["redop"], fields["redop"]),
        told=ToolTime(time=time * 1e3, samples=1),
        wrong=None if wrong is None else int(wrong),
        printed=(fields["time"], fields["algbw"], fields["busbw"]),
    )
    reading.add(Table(collective=name, n=reading.ranks(n), library="RCCL"), line)
