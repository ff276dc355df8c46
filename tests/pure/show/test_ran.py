"""What the library said it ran, and times by the other clock, where people and programs see
them."""

from __future__ import annotations

import csv
import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import factories
import pytest
from rich.console import Console

from collbench.records.derive import derive_row
from collbench.records.types import Choice, End, Record, RunFile, World
from collbench.run.reporter import Reporter
from collbench.show import figures
from collbench.show.live import LiveTable
from collbench.show.programs import Csv, Json, Markdown
from collbench.show.views import run as sections
from collbench.show.views import series
from collbench.suite.case import Case

RING = Choice(algorithm="Ring", protocol="LL128", channels=24, transport="P2P")
NVLS = Choice(algorithm="NVLS", protocol="Simple", channels=16, transport="NVLS")


def record(nbytes: int = 1 << 30, chose: Choice | None = NVLS, **more: Any) -> Record:
    case = Case(collective="all_reduce", backend="nccl", n=8, nbytes=nbytes, op="sum", **more)
    return Record(case=case, status="ok", world=0, times_ns=[1 << 22] * 40, chose=chose)


def world(hosts: int = 1) -> World:
    names = [f"node{rank % hosts}" for rank in range(8)]
    return factories.world(backend="nccl", n=8, ranks=factories.ranks(names, "cuda"))


run = partial(factories.run, "r", environment={})


def file_of(*records: Record) -> RunFile:
    return RunFile(run=run(), worlds=[world()], records=[*records], end=None, path=Path("r"))


def told(reporter: Reporter, *records: Record) -> None:
    reporter.begin(run(), [record.case for record in records], [])
    reporter.world(world())
    for each in records:
        reporter.record(each, derive_row(each, world()))
    reporter.end(End(exit=0, ended=""), None)


def test_wirebw_stands_beside_busbw_where_a_switch_adds_up() -> None:
    row = derive_row(record(), world())
    assert (
        row is not None
        and row.wirebw == pytest.approx(row.algbw * 9 / 8)
        and row.busbw == row.algbw * 1.75
    )
    assert row.chose == "NVLS/Simple x16 NVLS"
    for one, where in ((record(chose=RING), world()), (record(), world(hosts=2)), (record(), None)):
        row = derive_row(one, where)
        assert row is not None and row.wirebw is None and row.chose


@pytest.mark.parametrize(
    ("asked", "flagged"), [("Tree", True), ("Ring", False), ("allgather:tree", False)]
)
def test_a_setting_without_effect_is_flagged(asked: str, flagged: bool) -> None:
    row = derive_row(record(chose=RING, env=(("NCCL_ALGO", asked),)), world())
    assert row is not None and ("no-effect" in row.flags) is flagged and row.gateable


def screen(*records: Record, width: int = 140) -> str:
    out = io.StringIO()
    told(LiveTable(Console(file=out, width=width, highlight=False)), *records)
    return out.getvalue()


def test_tables_have_the_columns_only_where_they_say_something() -> None:
    both = screen(record(1 << 20, RING), record())
    assert "Ring/LL128 x24 P2P" in both and "NVLS/Simple x16 NVLS" in both and "wirebw" in both
    assert "wirebw" not in screen(record(1 << 20, RING)) and "Ring/LL128" in screen(
        record(1 << 20, RING)
    )
    none = screen(record(chose=None))
    assert "wirebw" not in none and " ran " not in none
    assert "Ring/LL128" not in screen(record(1 << 20, RING), width=40)


def test_programs_and_pull_requests_get_it_too() -> None:
    as_csv, as_json, as_text = io.StringIO(), io.StringIO(), io.StringIO()
    told(Csv(as_csv), record(1 << 20, RING), record())
    first, second = csv.DictReader(io.StringIO(as_csv.getvalue()))
    assert first["chose"] == "Ring/LL128 x24 P2P" and first["wirebw"] == ""
    assert float(second["wirebw"]) == pytest.approx(float(second["algbw"]) * 9 / 8)
    told(Json(as_json), record())
    assert json.loads(as_json.getvalue())["records"][0]["chose"] == "NVLS/Simple x16 NVLS"
    told(Markdown(as_text), record(1 << 20, RING))
    head, rule, line = [
        line.split("|") for line in as_text.getvalue().splitlines() if line.startswith("|")
    ]
    assert (
        line[head.index(" ran ")] == " Ring/LL128 x24 P2P " and rule[head.index(" ran ")] == "---"
    )
    assert "wirebw" not in as_text.getvalue()


def test_the_report_says_it_of_each_point() -> None:
    file = file_of(record(1 << 20, RING), record())
    point = series.make_view([file]).points[-1]
    assert {"ran NVLS/Simple x16 NVLS", "wirebw 288.0 GB/s"} <= set(figures.hover_lines(point))
    (bandwidth,) = [
        one for one in sections.make_document([file]).sections if one.name == "bandwidth"
    ]
    (times,) = bandwidth.tables
    assert [line.cells[times.heads.index("ran")] for line in times.lines] == [
        "Ring/LL128 x24 P2P",
        "NVLS/Simple x16 NVLS",
    ]


@pytest.mark.parametrize(
    ("clocks", "other", "shown"),
    [
        ({"clock": "device", "host_ns": [5_000_000] * 9}, "host", "5.00 ms"),
        ({"clock": "host", "device_ns": [6_000_000] * 40, "inner": 3}, "device", "2.00 ms"),
        ({}, "", ""),
    ],
)
def test_the_time_by_the_other_clock_has_a_column_where_there_is_one(
    clocks: dict[str, Any], other: str, shown: str
) -> None:
    case = Case(collective="all_reduce", backend="nccl", n=8, nbytes=1 << 30, op="sum")
    timed = Record(case=case, status="ok", world=0, times_ns=[1 << 22] * 40, **clocks)
    row = derive_row(timed, world())
    assert row and {"host": row.host, "device": row.device}.get(other) == (
        {"host": 5e6, "device": 2e6}.get(other)
    )
    assert not clocks or row.times.median in (row.host, row.device)
    out = io.StringIO()
    told(Markdown(out), timed)
    heads, _, line = [
        line.split(" | ") for line in out.getvalue().splitlines() if line.startswith("|")
    ][:3]
    assert ([name for name in heads if name in ("host", "device")] or [""]) == [other]
    assert not other or line[heads.index(other)] == shown
    (section,) = [
        one for one in sections.make_document([file_of(timed)]).sections if one.name == "bandwidth"
    ]
    (times,) = section.tables
    assert [line.cells[times.heads.index(other)] for line in times.lines if other] == [
        shown
    ] * bool(other)
