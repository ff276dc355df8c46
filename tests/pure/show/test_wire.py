"""What was counted of bytes, where people and programs see it."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import factories
import pytest
from factories import case, record
from rich.console import Console

from collbench import frame
from collbench.records import traffic
from collbench.records.derive import derive_row
from collbench.records.types import End, Record, Sent
from collbench.run.reporter import Reporter
from collbench.show import figures, nccl, nccl_json
from collbench.show.live import LiveTable
from collbench.show.programs import Csv
from collbench.show.views import run as sections
from collbench.show.views import series

WORLD = factories.world(library="torch 2.13.0+cpu gloo")
ODD = "gloo, 4 ranks: sends 2.00x what reduce_scatter needs: the library seems to run"


def counted(name: str, share: float, **fields: object) -> Record:
    what = case(1 << 20, name, **fields)
    whole = round(share * traffic.needed_bytes(what))
    one = Sent(calls=1, ns=1, idle_ns=1, bytes={"tcp": whole})
    return record(what, world=0, sent=[one, one])


TWICE, ONCE = counted("reduce_scatter", 2.0), counted("reduce_scatter", 1.0, algorithm="ring")


def told(reporter: Reporter, *records: Record) -> None:
    reporter.begin(factories.run("r"), [each.case for each in records], [])
    reporter.world(WORLD)
    for each in records:
        reporter.record(each, derive_row(each, WORLD))
    reporter.end(End(exit=0, ended=""), None)


def screen(*records: Record) -> str:
    out = io.StringIO()
    told(LiveTable(Console(file=out, width=200, highlight=False)), *records)
    return out.getvalue()


def test_the_table_says_it_only_where_it_is_odd() -> None:
    odd = screen(TWICE, ONCE)
    assert " wire " in odd and "wire:2.00x" in odd and ODD in " ".join(odd.split())
    assert not re.search(r"1\.00 (?!ms)", odd)
    assert "wire" not in screen(ONCE)


def test_nccl_tests_text_says_it_below_the_table() -> None:
    out = io.StringIO()
    told(nccl.Text(out), TWICE)
    assert f"# counted: {ODD}" in out.getvalue() and "# flagged: wire (1):" in out.getvalue()
    quiet = io.StringIO()
    told(nccl.Text(quiet), ONCE)
    assert "counted" not in quiet.getvalue()


def test_programs_get_numbers_in_any_case(tmp_path: Path) -> None:
    out = io.StringIO()
    told(Csv(out), TWICE, ONCE)
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert [float(row["wire"]) for row in rows] == pytest.approx([2.0, 1.0])
    outcomes = [(one, derive_row(one, WORLD)) for one in (TWICE, ONCE)]
    extra = nccl_json.make_json(factories.run("r"), [WORLD], outcomes, None)["collbench"]
    assert [one["wire"] for one in extra["results"]] == [[2.0, None], [1.0, None]]
    json.dumps(extra)
    file = factories.make_file([TWICE, ONCE], [WORLD])
    table = frame(factories.saved(file, tmp_path))
    assert table["wire"].tolist() == pytest.approx([2.0, 1.0])
    assert "all_reduce" in table["moves"][0] and table["moves"][1] == ""


def test_the_report_says_it_beside_bandwidths_and_of_each_point() -> None:
    file = factories.make_file([TWICE, ONCE], [WORLD])
    words = [word for found in sections.make_document([file]).sections for word in found.closing]
    (line,) = [word for word in words if "sends" in word]
    assert line.startswith("reduce_scatter of gloo, 4 ranks: sends 2.00x")
    points = series.make_view([file]).points
    assert [any("sends" in word for word in figures.hover_lines(p)) for p in points] == [
        True,
        False,
    ]
