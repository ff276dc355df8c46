"""What people see: numbers in words, tables at every width, closing lines; and the formats for
programs."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import factories
import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from collbench.core import text as text_
from collbench.core.text import format_clock, format_size
from collbench.features.training.parts import PARTS
from collbench.machine.load import Load
from collbench.records.derive import Derived
from collbench.records.flags import FLAGS_BY_NAME as FLAGS
from collbench.records.run_file import Outline
from collbench.records.types import End, FirstWrong, Pairing, Record, World
from collbench.run import reporter as reporter_
from collbench.run.reporter import PlanRow, Several
from collbench.show import flags, imb, live
from collbench.show import terminal as console
from collbench.show import words as words_
from collbench.show.document import Column, Document, Line, Table, make_columns
from collbench.show.live import LiveTable, Status
from collbench.show.programs import Csv, Json, Markdown, as_csv
from collbench.show.views import plan_table, saved_runs
from collbench.show.views import run_table as cases_
from collbench.suite.case import Case, Mode, Skip
from collbench.suite.policy import Policy

EVIL = "[red]x[/] |`*_\x1b[31m\n# y"

a_case = partial(factories.case, nbytes=1024)

a_run = partial(factories.run, name="r1", environment={}, command=["collbench", "all_reduce"])


def a_row(case: Case, median: float = 10_000, **changes) -> Derived:
    base = {
        "samples": 20,
        "n_eff": 20,
        "median": median,
        "lo": 0.99 * median,
        "hi": 1.015 * median,
        "min": 0.9 * median,
        "mean": median,
        "max": 1.2 * median,
        "mad": 1,
        "skew": 300,
        "algbw": case.size / median,
        "busbw": case.size / median * 1.5,
    }
    return factories.derived(**{**base, **changes})


def measured(case: Case, median: float = 10_000, row=None, **changes) -> tuple[Record, Derived]:
    base = {
        "case": case,
        "status": "ok",
        "world": 0,
        "times_ns": [int(median)],
        "wrong": 0,
        "checked": 500,
    }
    return Record(**{**base, **changes}), a_row(case, median, **(row or {}))


def a_world(host: str = "node01", **changes) -> World:
    given = {"ranks": factories.ranks([host] * 4), "library": "gloo (torch 2.13)", **changes}
    return factories.world(**given)


SWEEP = [
    a_case(nbytes=size, algorithm=a, in_place=p)
    for a in ("native", "ring")
    for size in (8, 1 << 20)
    for p in (False, True)
]
OK = End(exit=0, ended="")


def table_of(mode: Mode, outcomes, cases: Sequence[Case], live: bool = False) -> Table:
    return cases_.make_table(mode, outcomes, words_.split_modes(cases), live)


def told(reporter, outcomes, cases=None, skips=(), world=None, end=OK, path=None, run=None) -> None:
    reporter.begin(
        run or a_run(),
        [record.case for record, _ in outcomes] if cases is None else cases,
        list(skips),
    )
    reporter.world(world or a_world())
    for record, row in outcomes:
        reporter.phase(record.case, "measuring", 0.5)
        reporter.record(record, row)
    reporter.end(end, path)


def shown(outcomes, width: int = 100, terminal: bool = False, **more) -> str:
    out = io.StringIO()
    told(
        LiveTable(
            Console(file=out, width=width, height=30, force_terminal=terminal, highlight=False)
        ),
        outcomes,
        **more,
    )
    return out.getvalue()


def as_text(reporter, *arguments, **more) -> str:
    out = io.StringIO()
    told(reporter(out), *arguments, **more)
    return out.getvalue()


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (8, "8 B"),
        (1000, "1000 B"),
        (1536, "1.5 KiB"),
        (64 << 20, "64 MiB"),
        (3 << 40, "3 TiB"),
    ],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert text_.format_size(nbytes) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (940, "940 ns"),
        (999.6, "1.00 µs"),
        (28_410, "28.4 µs"),
        (812_000, "812 µs"),
        (999_600, "1.00 ms"),
        (9_996_000, "10.0 ms"),
        (1.5e9, "1.50 s"),
        (99.96e9, "100 s"),
        (1234.5e9, "1234 s"),
        (None, "-"),
        (math.inf, "-"),
        (math.nan, "-"),
    ],
)
def test_durations(ns: float | None, text: str) -> None:
    assert text_.format_duration(ns) == text


@pytest.mark.parametrize(
    ("lo", "hi", "text"),
    [
        (99, 102, "±2.0%"),
        (97, 101, "±3.0%"),
        (85, 101, "±15%"),
        (-math.inf, math.inf, "±∞"),
        (100, 100, "±0.0%"),
    ],
)
def test_intervals_show_the_larger_half(lo: float, hi: float, text: str) -> None:
    assert words_.format_interval(a_row(a_case(), 100, lo=lo, hi=hi).half_width) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0, "0"),
        (0.000003, "0.000003"),
        (0.00002, "0.00002"),
        (0.00028, "0.0003"),
        (0.0123, "0.012"),
        (0.4767, "0.48"),
        (9.999, "10.0"),
        (462.81, "462.8"),
        (1234.5, "1234"),
    ],
)
def test_bandwidths(value: float | None, text: str) -> None:
    assert text_.format_bandwidth(value) == text


def test_the_tail_is_named_after_what_the_samples_allow() -> None:
    assert words_.format_tail(a_row(a_case(), p95=11e3, p99=12e3)) == "p99 12.0 µs"
    assert words_.format_tail(a_row(a_case(), p95=11e3)) == "p95 11.0 µs"
    assert words_.format_tail(a_row(a_case())) == "max 12.0 µs"


def test_clock() -> None:
    assert [format_clock(s) for s in (0, 65, 3599.6, 7322)] == [
        "0:00",
        "1:05",
        "1:00:00",
        "2:02:02",
    ]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("width", [40, 80, 100, 120, 160])
def test_tables_fit_and_keep_what_matters(width: int, live: bool) -> None:
    flags = {"flags": ("oversubscribed", "unconverged", "unsteady", "bimodal", "late:3")}
    outcomes = [measured(case, 1e4 + i, row=flags if i % 2 else {}) for i, case in enumerate(SWEEP)]
    table = console.make_grid(table_of("isolated", outcomes, SWEEP, live), width)
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    lines = out.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width
    heads = " ".join(lines[:2]).split()
    assert {"size", "median", "±", "busbw"} <= set(heads) or width < 80
    assert ("skew" in heads, "tail" in heads) == (width >= 100, width >= 80)
    if width >= 80:
        assert "…" not in out.getvalue()
        assert sum("µs" in line for line in lines) == len(SWEEP)


def test_a_count_of_wrong_elements_is_never_dropped() -> None:
    outcomes = [measured(case, row={"flags": ("unconverged", "unsteady")}) for case in SWEEP]
    bad = (msgspec.structs.replace(outcomes[0][0], wrong=7, status="wrong"), None)
    for outcomes_, there in ((outcomes, False), ([bad, *outcomes[1:]], True)):
        names = [
            str(column.header)
            for column in console.make_grid(table_of("isolated", outcomes_, SWEEP), 70).columns
        ]
        assert ("wrong" in names) is there


def test_the_page_on_measuring_has_all_columns() -> None:
    page = (resources.files("collbench.cli") / "pages" / "measuring.md").read_text()
    table = page.partition("## The table")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    heads = {str(column.head).split("\n")[0] for column in cases_.COLUMNS.values()} - {""}
    assert {name for row in rows for name in re.findall("`([^`]+)`", row)} >= {*heads, "launch"}


def test_columns_only_for_what_varies_and_rows_in_plan_order() -> None:
    text = shown([measured(case) for case in reversed(SWEEP)], cases=SWEEP)
    body = text[text.index("───") :].splitlines()[1:]
    rows = [
        line.split()[:4] for line in body if line.startswith(("gloo", "ring@gloo")) and "µs" in line
    ]
    assert rows[:4] == [
        ["gloo", "8", "B", "out"],
        ["gloo", "8", "B", "in"],
        ["gloo", "1", "MiB", "out"],
        ["gloo", "1", "MiB", "in"],
    ]
    assert [row[0] for row in rows] == ["gloo"] * 4 + ["ring@gloo"] * 4
    head = text[: text.index("───")]
    assert "impl" in head and "type" not in head.split() and "4 ranks, float, sum" in head


def test_modes_never_share_a_table() -> None:
    cases = [
        a_case(nbytes=size, mode=mode) for size in (8, 64) for mode in ("isolated", "streaming")
    ]
    text = shown([measured(case) for case in cases])
    first, second = text.index("isolated: all_reduce"), text.index("streaming: all_reduce")
    assert text.count("median") == 2 and first < second
    assert text[first:second].count("10.0 µs") == 2
    markdown = as_text(Markdown, [measured(case) for case in cases])
    assert markdown.count("### ") == 2


def test_nothing_shown_of_wrong_data_but_the_count() -> None:
    text = shown(
        [measured(a_case(), 77_000, status="wrong", wrong=3), measured(a_case(nbytes=2048))]
    )
    assert "77" not in text
    assert "WRONG DATA in 1 of 2 cases" in text


def test_an_infinite_interval_is_shown_as_such() -> None:
    assert "±∞" in shown(
        [measured(a_case(), row={"lo": -math.inf, "hi": math.inf, "flags": ("n<6",)})]
    )


def test_a_prediction_has_no_interval() -> None:
    row = {"lo": -math.inf, "hi": math.inf, "flags": ("predicted",)}
    text = shown([measured(case, row=row, status="predicted") for case in SWEEP])
    assert "∞" not in text and "latency floor 10.0 µs at 8 B" in text


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("terminal", [False, True])
def test_hostile_names_are_shown_literally(width: int, terminal: bool) -> None:
    outcomes = [
        measured(a_case(), row={"late_rank": 2, "flags": ("late:2",)}),
        (Record(case=a_case(nbytes=8), status="failed", note=EVIL), None),
    ]
    skips = [Skip(a_case(nbytes=0), EVIL)]
    text = shown(
        outcomes, width, terminal, skips=skips, world=a_world(EVIL, library=EVIL), path=Path(EVIL)
    )
    assert text.count("[red]x[/]") >= 4
    assert "\x1b[31m\n" not in text and "[31m # y" in text


def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [measured(a_case(), row={"flags": ("skewed!",)})]
    assert "\x1b[1;33mskewed!" in shown(outcomes, terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;33m" not in shown(outcomes, terminal=True) and "33m" not in shown(
        outcomes, terminal=True
    )
    assert "\x1b" not in shown(outcomes)


def test_the_live_view_shows_only_what_fits() -> None:
    cases = [a_case(nbytes=8 * (i + 1)) for i in range(100)]
    out = io.StringIO()
    live = LiveTable(Console(file=out, width=80, height=24, force_terminal=True))
    live.begin(a_run(), cases, [])
    try:
        live.world(a_world())
        for case in reversed(cases):
            live.record(*measured(case))
        live.phase(cases[0], "checking", 0.25)
        sheet = Console(file=io.StringIO(), width=80, height=24)
        lines = sheet.render_lines(live._view())
        words = ["".join(segment.text for segment in line).strip() for line in lines]
        assert len(words) <= 24
        assert (
            words[-1]
            == "pass 2 of 2, checking 25%: 8 B, all_reduce, 4 ranks, gloo, float, sum, out of p…"
        )
        assert "100/100" in words[-2]
        sizes = [int(word.split()[0]) for word in words if " B  " in word and "µs" in word]
        assert sizes == [8 * (i + 1) for i in range(len(sizes))] and len(sizes) > 10
    finally:
        live.close()
        live.close()


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"TERM": "tmux-256color"}, 5),
        ({"TERM": "screen-256color", "TMUX": "/tmp/t"}, 5),
        ({"TERM": "xterm-256color", "VTE_VERSION": "7600"}, 5),
        ({"TERM": "xterm-256color"}, 2),
        ({"TERM": "st-256color", "VTE_VERSION": "7600"}, 2),
        ({"TERM": "screen", "STY": "1.x", "TMUX": "/tmp/t"}, 2),
        ({"TERM": "xterm", "VTE_VERSION": "7600", "XTERM_VERSION": "XTerm(390)"}, 2),
    ],
)
def test_a_frame_is_erased_as_a_narrower_terminal_shows_it(
    settings: dict[str, str], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of 90 and 50 letters stand in three and two rows of 40, or are cut."""
    monkeypatch.setattr(live.os, "environ", settings)
    out = io.StringIO()
    terminal = Console(file=out, width=100, height=30, force_terminal=True, _environ=settings)
    frame = live.Frame(Text(f"{'x' * 90}\n{'y' * 50}"), console=terminal, auto_refresh=False)
    frame.start(refresh=True)
    try:
        for width, up in ((100, 1), (40, rows - 1), (40, 4)):  # at last it was written for 40
            terminal.width = width
            out.seek(0), out.truncate()
            frame.refresh()
            assert out.getvalue().count("\x1b[1A") == up
    finally:
        frame.stop()


def test_progress_stays_silent_where_nobody_watches() -> None:
    out = io.StringIO()
    told(Status(Console(file=out)), [measured(a_case())])
    told(Status(Console(file=out, force_terminal=True), watched=False), [measured(a_case())])
    assert out.getvalue() == ""
    told(
        Status(Console(file=out, force_terminal=True, width=80), watched=True), [measured(a_case())]
    )
    assert "1/1" in out.getvalue() and "median" not in out.getvalue()


def piped(monkeypatch: pytest.MonkeyPatch, after: float) -> tuple[LiveTable, io.StringIO]:
    monkeypatch.setattr(live, "SO_FAR_AFTER", after)
    out = io.StringIO()
    return LiveTable(Console(file=out, width=100, highlight=False)), out


def test_a_pipe_gets_the_header_when_ranks_have_met_and_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, out = piped(monkeypatch, math.inf)
    outcome = measured(a_case())
    table.begin(a_run(), [outcome[0].case], [])
    assert out.getvalue() == ""
    table.world(a_world())
    head = out.getvalue()
    assert head.startswith("collbench ") and len(head.splitlines()) == 3
    table.record(*outcome)
    assert out.getvalue() == head
    table.end(OK, None)
    assert out.getvalue().startswith(head) and out.getvalue().count("collbench ") == 1
    assert "so far" not in out.getvalue()


def test_a_pipe_is_told_what_is_known_of_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    table, out = piped(monkeypatch, 0.0)
    first, called = measured(a_case()), measured(a_case(nbytes=1 << 30), 2_000_000)
    table.begin(a_run(), [first[0].case, called[0].case], [])
    table.world(a_world())
    table.show_coarse(*called)
    table.record(*first)
    table.record(*first)  # by its second pass
    lines = [line for line in out.getvalue().splitlines() if line.startswith("so far: ")]
    assert lines[0] == f"so far: {live.SO_FAR}" and len(lines) == 3
    assert lines[1].startswith("so far: 1 GiB") and lines[1].endswith(
        ", one call, data not verified"
    )
    assert "one call" not in lines[2] and "µs" in lines[2]
    table.record(*called)
    table.end(OK, None)
    ending = out.getvalue().split(lines[2])[1]
    assert "so far" not in ending and "1 GiB" in ending


@pytest.mark.parametrize("terminal", [False, True])
def test_a_line_or_a_redraw_does_not_look_through_the_plan(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(live, "SO_FAR_AFTER", 0.0)
    console_ = Console(file=io.StringIO(), width=100, height=30, force_terminal=terminal)
    table = LiveTable(console_)
    outcomes = [measured(a_case(nbytes=8 * (i + 1), in_place=i % 2 > 0)) for i in range(200)]
    table.begin(a_run(), [record.case for record, _ in outcomes], [])
    table.world(a_world())
    looked, axis_values = [], words_.axis_values
    monkeypatch.setattr(
        words_, "axis_values", lambda case: [looked.append(case), axis_values(case)][1]
    )
    for outcome in outcomes[:2]:
        table.record(*outcome)
        console_.render_lines(table._view())
    table.close()
    assert 0 < len(looked) < 50


def test_records_may_come_while_the_table_is_drawn() -> None:
    """As it is drawn in another thread, here whenever a status is looked at."""
    table = LiveTable(Console(file=io.StringIO(), width=100, height=30, force_terminal=True))
    late = [measured(a_case(nbytes=8 << i)) for i in range(6)]

    class Looked:
        """A record that another one follows when it is looked at."""

        def __init__(self, record: Record) -> None:
            self._record = record

        def __getattr__(self, name: str) -> Any:
            if name == "status" and late:
                table.show_coarse(*late[-1])
                table.record(*late.pop())
            return getattr(self._record, name)

    table.begin(a_run(), [record.case for record, _ in late], [])
    table.world(a_world())
    for _ in range(2):
        record, row = late.pop()
        table.record(Looked(record), row)  # type: ignore[arg-type]
    table._view()
    table.close()
    assert len(table.arrived) > 2


def test_a_record_of_a_second_pass_takes_the_place_of_the_first_and_comes_last() -> None:
    cases = [a_case(nbytes=8 << i) for i in range(3)]
    gathered = reporter_.Gathered()
    gathered.begin(a_run(), cases, [])
    arrived = gathered.arrived
    for case, again in ((0, False), (1, False), (2, False), (1, True), (1, False)):
        gathered.record(*measured(cases[case], again=again))
    assert [record.case for record, _ in arrived] == [cases[i] for i in (0, 2, 1, 1)]
    assert gathered.arrived is arrived  # nothing was copied for a record
    gathered.record(*measured(cases[1], again=True))
    assert [record.case for record, _ in arrived] == [cases[i] for i in (0, 2, 1)]


def test_programs_get_nothing_of_a_first_pass() -> None:
    outcome = measured(a_case())
    for make in (Json, Csv, Markdown):
        texts = []
        for coarse in ([], [measured(a_case(), 5)]):
            reporter = make(out := io.StringIO())
            reporter.begin(a_run(), [outcome[0].case], [])
            reporter.world(a_world())
            for called in coarse:
                reporter.show_coarse(*called)
            reporter.record(*outcome)
            reporter.end(OK, None)
            texts.append(out.getvalue())
        assert texts[0] == texts[1] != ""


def lines_of(outcomes, **more) -> dict[str, str]:
    gathered = reporter_.Gathered()
    told(gathered, outcomes, **more)
    return {str(line): line.spans[0].tone for line in cases_.summarise_run(gathered)}


def test_summary_names_peak_and_floor_per_collective_and_mode() -> None:
    outcomes = [
        measured(case, median)
        for case, median in zip(SWEEP, (900, 800, 9000, 8000, 700, 950, 7500, 9900), strict=True)
    ]
    outcomes += [
        measured(a_case(mode="streaming", nbytes=8), 10),
        measured(a_case(nbytes=64), 1, status="wrong", wrong=1),
    ]
    found = lines_of(outcomes)
    assert (
        "all_reduce, isolated: latency floor 700 ns ±1.5% at 8 B (ring@gloo, out of place); "
        "peak busbw 209.7 GB/s ±1.5% at 1 MiB (ring@gloo, out of place)" in found
    )
    together = "all_reduce, streaming: 10.0 ns ±1.5% at 8 B, busbw 1.20 GB/s"
    assert together in found  # calls one behind the other have no latency, as in a report
    barrier = lines_of(
        [measured(a_case(collective="barrier", op="none", nbytes=0), row={"busbw": None})]
    )
    assert "barrier, isolated: 10.0 µs ±1.5% at 0 B" in barrier


@pytest.mark.parametrize(
    ("mode", "column", "words"),
    [("isolated", "as called", "--mode host"), ("host", "aligned", "start together")],
)
def test_what_depends_on_arrival_is_told_with_factor_and_reason(
    mode: str, column: str, words: str
) -> None:
    sensitive = {"control": 25_000.0, "sensitive": True}
    outcomes = [
        measured(a_case(nbytes=8, mode=mode), row=sensitive),
        measured(a_case(nbytes=1 << 20, mode=mode)),
    ]
    table = shown(outcomes, width=160, world=a_world(cramped=True))
    assert column in table and table.count("25.0 µs") == 2  # in its row and in the sentence
    told_ = " ".join(table.split())
    called, together = ("25.0", "10.0") if mode == "isolated" else ("10.0", "25.0")
    assert f"1 of 2 rows in mode {mode} depend on when ranks arrive" in told_
    assert f"{called} µs as called, {together} µs if all ranks start together (2.5x)" in told_
    assert "too few cores for 4 ranks of gloo" in told_ and words in told_
    assert "depend on when" not in shown([measured(a_case(mode=mode))], width=160)


def test_a_cause_of_what_depends_on_arrival_is_told_only_where_there_is_evidence() -> None:
    def told_(*flags: str) -> str:
        row = {"control": 25_000.0, "sensitive": True, "flags": flags}
        return " ".join(shown([measured(a_case(mode="host"), row=row)], width=160).split())

    assert "(2.5x) " in told_() and "other processes" not in told_()
    assert "(2.5x) (other processes were at work)" in told_("preempted")


def test_launches_of_the_same_ranks_are_told_of_a_late_rank_together() -> None:
    gathered = reporter_.Gathered()
    outcomes = [
        measured(a_case(nbytes=8 << index), world=index, row={"late_rank": 3})
        for index in (0, 1, 2)
    ]
    told(gathered, outcomes)
    gathered.world(a_world(index=1))
    gathered.world(a_world(index=2, backend="shm"))
    lines = [str(line) for line in cases_.summarise_run(gathered)]
    assert [line for line in lines if line.startswith("late: ")] == [
        "late: rank 3 of 4 (gloo) (node01) in 2 of 2 rows",
        "late: rank 3 of 4 (shm) (node01) in 1 of 1 row",
    ]


def test_beside_a_stream_stands_what_the_device_takes_alone() -> None:
    small = measured(a_case(nbytes=8, mode="streaming"), row={"control": 5210.0})
    large = measured(a_case(nbytes=1 << 20, mode="streaming"))
    table = shown([small, large], width=160)
    (head,) = (line.split() for line in table.splitlines() if "median" in line)
    (first,) = (line.split() for line in table.splitlines() if line.strip().startswith("8 B"))
    assert head.index("isolated") > head.index("median") and "5.21" in first
    assert table.count("5.21") == 1
    assert "depend on when" not in table
    assert "isolated" not in shown([large], width=160)


def test_what_a_budget_left_no_time_for_is_named() -> None:
    note = "dropped for --budget 10s: not enough for all cases"
    left_out = [
        Record(case=a_case(nbytes=8 << 20, cycle=c), status="skipped", note=note) for c in (0, 1)
    ]
    left_out.append(Record(case=a_case(nbytes=1 << 20), status="skipped", note=note))
    outcomes = [measured(a_case()), *((record, None) for record in left_out)]
    table, text = shown(outcomes, width=160), as_text(Markdown, outcomes)
    assert "dropped: 8 MiB (x2), 1 MiB" in table and f"3 skipped: {note}" in table
    assert "dropped: 8 MiB (x2), 1 MiB" in text and "3 skipped: dropped for" in text


def test_what_was_dropped_is_told_from_what_ran() -> None:
    dropped = Record(
        case=a_case(dtype="bfloat16"),
        status="skipped",
        note="dropped for --budget 10s: not enough of it left",
    )
    outcomes = [measured(a_case()), (dropped, None)]
    name = f"dropped: {format_size(dropped.case.size)} bfloat16"
    assert name in shown(outcomes, width=160) and name in as_text(Markdown, outcomes)
    assert name in as_text(imb.Text, outcomes)


def test_a_case_measured_again_keeps_its_line() -> None:
    first = measured(a_case(nbytes=8), 10_000)
    second = measured(a_case(nbytes=8), 20_000, again=True)
    table = shown([first, second], cases=[first[0].case])
    assert "20.0 µs" in table and "10.0 µs" not in table


def test_summary_explains_flags_that_occurred_and_no_others() -> None:
    flags = ("late:3", "skewed!")
    found = lines_of(
        [
            measured(a_case(), row={"flags": flags, "late_rank": 3, "late_share": 0.3}),
            measured(a_case(nbytes=8), row={"flags": ("skewed",)}),
        ]
    )
    assert f"skewed (2): {FLAGS['skewed'].meaning}; {FLAGS['skewed'].remedy}" in found
    assert f"late (1): {FLAGS['late'].meaning}; {FLAGS['late'].remedy}" in found
    assert not any(
        line.startswith(flag) for line in found for flag in FLAGS if flag not in ("late", "skewed")
    )
    assert found["late: rank 3 (node01) in 1 of 2 rows"] == "notice"


@pytest.mark.parametrize(
    ("policy", "stop", "says"),
    [
        (
            {"max_seconds": 3.0},
            "budget",
            "ran out of --max-time 3s before reaching ±2 %; allow more (--max-time 10s) or ask for"
            " less (--precision 5%)",
        ),
        (
            {"max_seconds": 0.765342, "precision": 0.01},
            "budget",
            "ran out of --max-time 0.77s before reaching ±1 %; allow more (--max-time 2s) or ask"
            " for less (--precision 2%)",
        ),
        (
            {},
            "max_n",
            "reached the limit of 2,000 samples before reaching ±2 %; allow more (max_iters = 5000"
            " in a suite) or ask for less (--precision 5%)",
        ),
    ],
)
def test_the_remedy_has_the_runs_own_numbers(policy: dict, stop: str, says: str) -> None:
    slow = measured(a_case(), stop=stop, row={"flags": ("unconverged",)})
    assert f"· unconverged (1): {says}" in lines_of([slow], run=a_run(policy=Policy(**policy)))


def test_the_remedy_knows_that_ranks_shared_cores() -> None:
    slow = measured(a_case(), stop="budget", row={"flags": ("unconverged",)})
    (told,) = (
        line
        for line in lines_of([slow], world=a_world(cramped=True))
        if line.startswith("· unconverged")
    )
    assert "ran out of --max-time 2s before reaching ±5 %" in told
    assert told.endswith("more busy threads than cores")


@pytest.mark.parametrize(
    ("policy", "stop", "flags", "ways"),
    [
        ({}, "budget", (), "allow more time (--max-time 5s) or ask for more samples (-n 20)"),
        ({"iters": 4}, "fixed", (), "ask for more samples (-n 20)"),
        (
            {"iters": 4},
            "budget",
            ("unconverged",),
            "allow more time (--max-time 5s)",
        ),
    ],
)
def test_too_few_samples_are_mended_by_what_is_taken_together(
    policy: dict, stop: str, flags: tuple[str, ...], ways: str
) -> None:
    few = measured(a_case(), stop=stop, row={"flags": ("n<6", *flags)})
    lines = lines_of([few], run=a_run(policy=Policy(**policy)))
    assert f"n<6 (1): fewer than 6 samples: too few for an interval; {ways}" in lines


@pytest.mark.parametrize("budget", [["--budget", "9s"], ["--budget=9s"]])
def test_the_remedy_within_a_budget_is_a_longer_one(budget: list[str]) -> None:
    slow = measured(a_case(), stop="budget", row={"flags": ("unconverged",)})
    asked = a_run(command=["collbench", "all_reduce", *budget])
    (told,) = (line for line in lines_of([slow], run=asked) if line.startswith("· unconverged"))
    assert "ran out of --budget before reaching ±2 %; allow more (--budget)" in told


def told_floor(outcomes) -> str:
    (line,) = (line for line in lines_of(outcomes) if "latency floor" in line)
    return line


LARGE = [measured(a_case(nbytes=size), median) for size, median in ((64, 300), (4096, 800))]


@pytest.mark.parametrize("flag", ["bimodal", "invalid", "skewed"])
def test_a_floor_is_of_a_row_without_doubt_unless_one_with_a_doubt_took_surely_less(
    flag: str,
) -> None:
    sure = measured(a_case(nbytes=8, in_place=True), 900)

    def doubted(hi: float):
        return measured(a_case(nbytes=8), 850, row={"flags": (flag,), "lo": 800.0, "hi": hi})

    assert "latency floor 900 ns ±1.5% at 8 B (in place)" in told_floor(
        [doubted(920), sure, *LARGE]
    )
    told_ = told_floor([doubted(880), sure, *LARGE])
    assert "latency floor 850 ns ±5.9% at 8 B (out of place) (" in told_ and flag in told_


@pytest.mark.parametrize("half", [0.14, 0.4])
@pytest.mark.parametrize("flags", [(), ("unconverged",), ("unconverged", "+copy", "preempted")])
def test_a_floor_is_given_with_its_interval_however_wide(half: float, flags) -> None:
    wide = {"flags": flags, "lo": 100 * (1 - half), "hi": 100.0}
    told_ = told_floor([measured(a_case(nbytes=8), 100, row=wide), *LARGE])
    assert f"latency floor 100 ns ±{half:.0%} at 8 B" in told_ and "not known" not in told_


@pytest.mark.parametrize(
    "row",
    [
        {"flags": ("n<6",), "samples": 5},
        {"flags": ("invalid!",)},
        {"lo": 40.0},
        {"lo": -math.inf, "hi": math.inf},
    ],
)
def test_a_floor_is_not_known_of_a_row_that_says_too_little(row: dict) -> None:
    told_ = told_floor([measured(a_case(nbytes=8), 100, row=row), *LARGE])
    assert "latency floor not known at 8 B" in told_ and "∞" not in told_


@pytest.mark.parametrize("policy", [{"agg_iters": 4}, {"blocking": 1}])
def test_there_is_no_floor_where_a_time_is_not_of_one_call_alone(policy: dict) -> None:
    text = "\n".join(lines_of(LARGE, run=a_run(policy=Policy(**policy))))
    assert "busbw" in text and "latency floor" not in text


def test_of_one_size_its_row_is_the_answer() -> None:
    wide = {"lo": 8_600.0, "hi": 11_400.0, "flags": ("unconverged",)}
    rows = [measured(a_case(), row=wide), measured(a_case(in_place=True), 20_000)]
    (told_,) = (line for line in lines_of(rows) if line.startswith("all_reduce, isolated"))
    assert "10.0 µs ±14% at 1 KiB (out of place)" in told_
    assert told_.endswith(": less precise than the ±2 % asked for")
    assert "floor" not in told_ and "peak" not in told_
    (told_,) = (line for line in lines_of([rows[1]]) if line.startswith("all_reduce, isolated"))
    assert "less precise" not in told_
    few = measured(a_case(), row={"flags": ("n<6",), "lo": -math.inf, "hi": math.inf})
    (told_,) = (line for line in lines_of([few]) if line.startswith("all_reduce, isolated"))
    assert "not known" in told_ and "∞" not in told_


def last_cells(outcomes, width: int = 120) -> list[str]:
    """The last column as a terminal of this width shows it."""
    table = console.make_grid(table_of("isolated", outcomes, [r.case for r, _ in outcomes]), width)
    return [str(cell) for cell in table.columns[-1]._cells]


TWO_SPEEDS = {"modes": (1e4, 2e4), "mode_share": 0.5}
FLAGGED = [
    measured(a_case(nbytes=8 << number), row={**TWO_SPEEDS, "flags": flags})
    for number, flags in enumerate(
        [
            ("preempted",),
            ("bimodal", "preempted"),
            ("invalid", "preempted", "+copy"),
            ("preempted", "unconverged"),
            ("preempted", "+copy"),
            ("preempted",),
        ]
    )
]


def test_a_row_shows_doubts_and_a_mark_for_remarks_of_its_own() -> None:
    assert last_cells(FLAGGED) == ["", "bimodal:10.0µs|20.0µs", "invalid ·", "", "·", ""]
    assert last_cells(FLAGGED, 40) == ["", "B", "I ·", "", "·", ""]
    legend = printed(table_of("isolated", FLAGGED, [r.case for r, _ in FLAGGED]), width=40)
    assert "B bimodal, I invalid" in legend


@pytest.mark.parametrize("flag", ["bimodal", "invalid", "invalid!"])
def test_a_bimodal_or_invalid_row_always_says_so(flag: str) -> None:
    rows = [measured(a_case(nbytes=8 << n), row={"flags": (flag,)}) for n in range(10)]
    assert all(cell.startswith(flag) for cell in last_cells(rows))
    assert all(cell[0] in "BI" for cell in last_cells(rows, 30))


@pytest.mark.parametrize(
    ("path", "pairing", "remedy"),
    [
        (Path("r1.jsonl"), None, "collbench run --resume r1.jsonl measures it again"),
        (None, None, "start a new run"),
        (Path("r1.jsonl"), Pairing(experiment="e", side="base", variant="v"), "start a new run"),
    ],
)
def test_what_was_cut_short_names_the_run_that_goes_on(
    path: Path | None, pairing: Pairing | None, remedy: str
) -> None:
    run = msgspec.structs.replace(a_run(), pairing=pairing)
    outcomes = [measured(a_case(), row={"flags": ("cut-short",)}, stop="cut")]
    (line,) = cases_.explain_flags(gathered(outcomes, run=run, path=path))
    assert line.startswith("cut-short (1): ") and line.endswith(f"; {remedy}")


def test_what_most_rows_have_is_said_once_above_them() -> None:
    text = shown(FLAGGED, width=120)
    assert text.count("preempted") == 1
    assert text.index("all rows: preempted") < text.index("median")
    assert cases_.explain_flags(gathered(FLAGGED))[-1].startswith("· remarks, no doubts: +copy (2)")


def test_a_remark_that_is_a_doubt_of_other_rows_says_so() -> None:
    flags = ({"flags": ("late:1",), "late_share": 0.5}, {"flags": ("late:1", "+copy")})
    outcomes = [measured(a_case(nbytes=8 << n), row=row) for n, row in enumerate(flags)]
    *doubts, remarks = cases_.explain_flags(gathered(outcomes))
    assert [line.partition(":")[0] for line in doubts] == ["late (1)"]
    assert "late (1 more, too small for a doubt)" in remarks and "+copy (1)" in remarks


def test_a_flag_of_all_rows_out_of_place_is_said_once() -> None:
    cases = [a_case(nbytes=8 << n, in_place=place) for n in range(6) for place in (False, True)]
    rows = [measured(case, row={"flags": ("+copy",) * (not case.in_place)}) for case in cases]
    assert "rows out of place: +copy" in shown(rows) and set(last_cells(rows)) == {""}


def test_of_few_rows_each_has_its_own_flags() -> None:
    rows = [measured(a_case(nbytes=8 << n), row={"flags": ("skewed",)}) for n in range(3)]
    assert last_cells(rows) == ["skewed"] * 3
    group = [measured(a_case(nbytes=8 << n), row={"flags": ("oversubscribed",)}) for n in range(2)]
    assert last_cells(group) == ["", ""] and "all rows: oversubscribed" in shown(group)


def test_a_wide_interval_has_a_colour_and_no_word() -> None:
    wide = {"lo": 8_000.0, "flags": ("unconverged",)}
    rows = [measured(a_case(), row=wide), measured(a_case(nbytes=8))]
    table = table_of("isolated", rows, SWEEP)
    index = table.heads.index("±")
    cell, other = (line.cells[index] for line in table.lines)
    assert str(cell) == "±20%" and cell.spans[0].tone == "notice" and other == "±1.5%"
    assert "unconverged" not in "".join(str(line.cells[-1]) for line in table.lines)


def test_the_column_of_the_other_cadence_is_there_from_the_first_row() -> None:
    rows = [measured(a_case(nbytes=8, mode="host"), row={"control": 9_000.0})]
    assert "aligned" in table_of("host", rows, [rows[0][0].case], live=True).heads
    assert "aligned" not in table_of("host", LARGE, SWEEP).heads


def gathered(outcomes, **more):
    reporter = reporter_.Gathered()
    told(reporter, outcomes, **more)
    return reporter


@pytest.mark.parametrize(
    ("mode", "cramped", "words"),
    [
        ("host", True, "host (few cores) · "),
        ("host", False, "host · "),
        ("isolated", True, "isolated · "),
    ],
)
def test_the_header_says_why_a_mode_was_chosen(mode: Mode, cramped: bool, words: str) -> None:
    world = a_world(cramped=cramped)
    line = str(cases_.make_header(a_run(), [a_case(mode=mode)], {world.index: world})[2])
    assert line.startswith(words) and len(line) <= 80


def test_a_run_of_cramped_and_other_ranks_has_both_precisions() -> None:
    told = flags.fill_limits(Policy(), {True, False})
    assert told.keys() == flags.GENERAL.keys()
    assert (told["precision"], told["why"]) == ("±2 % or ±5 %", "")
    cramped = flags.fill_limits(Policy(), {True})
    assert cramped["precision"] == "±5 %" and "more busy threads" in cramped["why"]


BIMODAL = {"flags": ("bimodal",), **TWO_SPEEDS}


def test_a_floor_is_no_more_than_another_row_surely_took_however_unsure() -> None:
    sure = measured(a_case(nbytes=8, algorithm="ring"), 3_760_000)
    unsure = measured(a_case(nbytes=8), 389_000, row={"lo": 300_000.0, "hi": 1_110_000.0})
    assert "latency floor 389 µs ±185%" in told_floor([sure, unsure, *LARGE])
    wider = measured(a_case(nbytes=8), 389_000, row={"lo": 300_000.0, "hi": 5_000_000.0})
    assert "latency floor 3.76 ms" in told_floor([sure, wider, *LARGE])


def told_peak(outcomes) -> str:
    (line,) = (line for line in lines_of(outcomes) if "peak" in line)
    return line


def test_a_peak_is_of_a_row_without_doubt_unless_one_with_a_doubt_is_surely_higher() -> None:
    slow = measured(a_case(nbytes=2048), 20_000)
    fast = measured(a_case(), 1, row={**BIMODAL, "modes": (1.0, 2.0)})
    near = measured(a_case(nbytes=2048, in_place=True), 19_900, row=BIMODAL)
    assert "peak busbw 1536 GB/s ±1.5% at 1 KiB (bimodal" in told_peak([slow, fast])
    assert "peak busbw 0.15 GB/s ±1.5% at 2 KiB (out of place)" in told_peak(
        [slow, near, measured(a_case(), 20_000)]
    )
    too_few = {"flags": ("n<6",), "samples": 5}
    few = measured(a_case(), 1, row=too_few)
    assert "peak busbw 0.15 GB/s" in told_peak([slow, few])
    unknown = measured(a_case(nbytes=2048), 1, row=too_few)
    assert "peak busbw not known" in told_peak([few, unknown])


def test_the_interval_of_a_peak_is_that_of_the_bandwidth() -> None:
    """Half the time is twice the bandwidth."""
    wide = {"lo": 14_000, "hi": 21_000}
    told = told_peak([measured(a_case(nbytes=size), 20_000, row=wide) for size in (1024, 2048)])
    assert "latency floor 20.0 µs ±30% at 1 KiB" in told
    assert "peak busbw 0.15 GB/s ±43% at 2 KiB" in told


def two_modes(nbytes: int, low: float, high: float, share: float, stretches: bool = False):
    modal = {"modes": (low, high), "mode_share": share, "in_stretches": stretches}
    return measured(a_case(nbytes=nbytes), row={"flags": ("bimodal",), **modal})


def test_the_summary_says_which_mode_a_program_will_see_and_how_often() -> None:
    rows = [
        two_modes(65536, 250_000, 3_700_000, 0.71),
        two_modes(8, 1000, 2000, 0.2, stretches=True),
        two_modes(64, 1000, 1500, 0.5),
        two_modes(128, 1000, 1200, 0.9),
        two_modes(256, 1000, 1100, 0.9),
    ]
    found = [line for line in lines_of(rows) if "two speeds" in line or "two modes" in line]
    assert found == [
        "64 KiB all_reduce: two speeds: 250 µs (71% of calls) and 3.70 ms (29%)",
        "8 B all_reduce: two speeds: 1.00 µs (20% of calls) and 2.00 µs (80%), in stretches",
        "64 B all_reduce: two speeds: 1.00 µs (50% of calls) and 1.50 µs (50%)",
        "… and 2 more rows with two modes",
    ]


def test_rows_with_two_modes_are_told_apart() -> None:
    record, row = two_modes(8, 1000, 2000, 0.7)
    there = msgspec.structs.replace(record, case=a_case(nbytes=8, in_place=True)), row
    found = [line for line in lines_of([(record, row), there]) if "two speeds" in line]
    assert [line.split(":")[0] for line in found] == [
        "8 B all_reduce, out of place",
        "8 B all_reduce, in place",
    ]


def test_samples_of_several_calls_are_called_so() -> None:
    record, row = two_modes(8, 1000, 2000, 0.7)
    outcome = msgspec.structs.replace(record, inner=20), row
    assert any("(70% of samples of 20 calls)" in line for line in lines_of([outcome]))


BUSY = {"h": Load(1.26, 2)}
WARNING = "other processes use 1.3 of 2 CPUs: expect noisy results"


def busy(case: Case) -> tuple[Record, Derived]:
    return measured(case, seconds=1.0, load=BUSY)


def test_the_footer_says_that_others_used_the_machine() -> None:
    found = lines_of([busy(a_case())], run=a_run(load=BUSY), end=End(exit=0, ended="", load=BUSY))
    (told,) = (line for line in found if line.startswith("other processes"))
    assert told.startswith("other processes used 1.3 of 2 CPUs while measuring (1.3 before, 1.3")
    assert found[told] == "notice"
    assert not any("other processes" in line for line in lines_of([measured(a_case())]))


def test_a_terminal_is_warned_in_its_header_while_the_run_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown([measured(a_case())], terminal=True, width=120, run=a_run(load=BUSY))
    assert text.count(WARNING) >= 1 and WARNING not in text[text.rindex("collbench 0") :]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("format_", [Csv, Json, Markdown])
def test_whoever_reads_a_pipe_is_warned_before_and_told_after(
    format_, capsys: pytest.CaptureFixture[str]
) -> None:
    told(Several(format_(io.StringIO()), Status()), [busy(a_case())], run=a_run(load=BUSY))
    before, after = capsys.readouterr().err.splitlines()
    assert before.startswith(f"collbench: {WARNING}")
    assert after.startswith("collbench: other processes used 1.3 of 2 CPUs while measuring")


def test_a_quiet_machine_is_not_spoken_of(capsys: pytest.CaptureFixture[str]) -> None:
    told(Several(Csv(io.StringIO()), Status()), [measured(a_case())])
    assert capsys.readouterr().err == ""


def test_markdown_explains_its_flags() -> None:
    slow = measured(a_case(), stop="budget", row={"flags": ("unconverged",)})
    text = as_text(Markdown, [slow, busy(a_case(nbytes=8))], run=a_run(load=BUSY))
    assert "- · unconverged (1): ran out of" in text
    assert "other processes used 1.3 of 2 CPUs while measuring" in text


def test_summary_is_loud_about_wrong_data_and_tells_the_first() -> None:
    first = FirstWrong(rank=2, index=17, got="3.0", expected="10.0", when="after")
    found = lines_of(
        [measured(a_case(), status="wrong", wrong=1200, checked=4000, first_wrong=first)]
    )
    assert found["WRONG DATA in 1 of 1 case"] == "bad"
    (story,) = [line for line in found if "1,200 of 4,000 elements wrong" in line]
    assert story.endswith("first at rank 2, element 17 (after): got 3.0, expected 10.0")
    assert not any("none wrong" in line for line in found)


def test_how_to_go_on_names_the_files_of_algorithms() -> None:
    asked = msgspec.structs.replace(
        a_run(), command=["collbench", "all_reduce", "--algo=ring,./a b/line.py:line:skip=2"]
    )
    end = End(exit=130, ended="", note="interrupted")
    cases = [a_case(), a_case(nbytes=16)]
    path = Path("/runs/r1.jsonl")
    found = lines_of([measured(cases[0])], run=asked, cases=cases, end=end, path=path)
    words = "continue with: collbench run --resume /runs/r1.jsonl --algo './a b/line.py:line'"
    assert words in found


def test_how_to_go_on_names_the_hosts_the_modules_and_the_backend_of_a_file() -> None:
    words = "all_reduce --backend gloo,./my.py --launcher ssh --hosts=a:2,b:2 --import mine"
    asked = msgspec.structs.replace(a_run(), command=["collbench", *words.split()])
    end = End(exit=130, ended="", note="interrupted")
    cases, path = [a_case(), a_case(nbytes=16)], Path("/runs/r1.jsonl")
    found = lines_of([measured(cases[0])], run=asked, cases=cases, end=end, path=path)
    more = "--backend ./my.py --launcher ssh --hosts a:2,b:2 --import mine"
    assert f"continue with: collbench run --resume /runs/r1.jsonl {more}" in found


@pytest.mark.parametrize(
    ("launcher", "how"),
    [("local", "with"), ("ssh", "with"), ("srun", "under srun")],
)
def test_how_to_go_on_names_the_launcher_that_has_to_start_it(launcher: str, how: str) -> None:
    end = End(exit=4, ended="", note="rank 1 died")
    cases, world = [a_case(), a_case(nbytes=16)], a_world(launcher=launcher)
    found = lines_of([measured(cases[0])], cases=cases, world=world, end=end, path=Path("r.jsonl"))
    assert f"continue {how}: collbench run --resume r.jsonl" in found


def test_a_search_that_was_cut_short_is_not_gone_on_with() -> None:
    searched = msgspec.structs.replace(a_run(), command=["collbench", "locate"])
    end = End(exit=130, ended="", note="interrupted")
    found = lines_of([], run=searched, cases=[a_case()], end=end, path=Path("r.jsonl"))
    assert "saved: r.jsonl" in found and "resume" not in "".join(found)


def test_summary_has_what_is_noted_of_good_cases_once() -> None:
    note = "-m: calls are launched one after the other"
    found = [measured(case, note=note) for case in SWEEP]
    assert shown(found, width=200).count(note) == 1
    assert f"note: {note} ({len(SWEEP)} cases)" in shown(found, width=200)


def test_summary_counts_what_was_verified_skipped_failed_and_left() -> None:
    cases = [a_case(nbytes=8 * (i + 1)) for i in range(9)]
    outcomes = [
        measured(cases[0]),
        *((Record(case=case, status="failed", note="rank 1 died"), None) for case in cases[1:8]),
    ]
    skips = [Skip(a_case(), "no such thing")] * 3
    end = End(exit=130, ended="", note="interrupted")
    found = lines_of(outcomes, cases=cases, skips=skips, end=end, path=Path("/runs/r1.jsonl"))
    assert {
        "500 elements verified, none wrong",
        "3 skipped: no such thing",
        "FAILED in 7 of 8 cases",
        "  … and 2 more",
        "ended early, after 8 of 9 cases: interrupted",
        "saved: /runs/r1.jsonl",
        "continue with: collbench run --resume /runs/r1.jsonl",
    } <= set(found)
    assert sum("rank 1 died" in line for line in found) == 5
    assert "data was not verified" in lines_of([measured(a_case(), checked=0, wrong=None)])
    assert "not saved" in lines_of([])


def test_skips_found_on_the_way_count_too_and_have_no_line() -> None:
    late = (Record(case=a_case(nbytes=8), status="skipped", note="needs 9 MiB"), None)
    text = shown([late, measured(a_case())])
    assert "1 skipped: needs 9 MiB" in text and "8 B  " not in text


def test_json_is_one_object_with_derived_columns_in_plan_order() -> None:
    outcomes = [
        measured(case, row={"lo": -math.inf, "hi": math.inf, "flags": ("n<6",)})
        for case in reversed(SWEEP)
    ]
    whole = json.loads(
        as_text(Json, outcomes, cases=SWEEP, skips=[Skip(a_case(), "why")]),
        parse_constant=pytest.fail,
    )
    assert whole["run"]["id"] == "r1"
    assert [r["nbytes"] for r in whole["records"]] == [c.nbytes for c in SWEEP]
    first = whole["records"][0]
    assert (
        first["implementation"],
        first["median"],
        first["lo"],
        first["flags"],
        first["wrong"],
    ) == (
        "gloo",
        1e4,
        None,
        ["n<6"],
        0,
    )
    assert (whole["skips"][0]["reason"], whole["end"]["exit"]) == ("why", 0)


def test_csv_has_a_line_per_record() -> None:
    out = io.StringIO()
    reporter = Csv(out)
    case = a_case(env=(("A", "1"), ("B", "2,3")))
    reporter.begin(a_run(), [case], [])
    reporter.record(
        *measured(case, row={"flags": ("+copy", "late:1"), "late_rank": 1, "busbw": 0.1536})
    )
    reporter.record(Record(case=a_case(), status="failed", note="=a\nb;+c"), None)
    reporter.end(End(exit=0, ended=""), None)
    assert out.getvalue().count("\n") == 3
    rows = csv.DictReader(io.StringIO(out.getvalue()))
    ok, failed = sorted(rows, key=lambda row: int(row["order"]))
    assert (ok["env"], ok["flags"], ok["busbw"], ok["implementation"]) == (
        "A=1 B=2,3",
        "'+copy late:1",
        "0.1536",
        "gloo",
    )
    assert (failed["status"], failed["note"], failed["median"]) == ("failed", "'=a b;'+c", "")


def test_csv_has_nothing_where_a_number_is_not_finite() -> None:
    out = io.StringIO()
    told(Csv(out), [measured(a_case(), row={"lo": -math.inf, "hi": math.inf})])
    (row,) = csv.DictReader(io.StringIO(out.getvalue()))
    assert (row["lo"], row["hi"]) == ("", "") and float(row["median"]) > 0
    document = Document(title="", brief=(), rows=[{"a": math.inf, "b": 1.5}])
    assert as_csv(document) == "a,b\n,1.5\n"


def test_markdown_is_a_table_that_text_cannot_break() -> None:
    outcomes = [
        measured(SWEEP[0]),
        measured(SWEEP[1]),
        (Record(case=SWEEP[4], status="failed", note=EVIL), None),
    ]
    text = as_text(Markdown, outcomes)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    unescaped = {line.replace("\\|", "").count("|") for line in rows}
    assert len(rows) == 5 and len(unescaped) == 1
    assert "\\[red\\]x\\[/\\] \\|\\`\\*\\_" in rows[-1]


def test_bimodal_rows_show_both_modes() -> None:
    row = a_row(a_case(), modes=(10_000.0, 20_000.0), flags=("bimodal",))
    assert words_.format_cells(measured(a_case())[0], row)["flags"] == "bimodal:10.0µs|20.0µs"


def test_several_reporters_hear_the_same() -> None:
    one, two = reporter_.Gathered(), reporter_.Gathered()
    told(Several(one, two), [measured(a_case())], path=Path("x"))
    assert (one.outcomes, one.worlds, one.path, one.ended) == (
        two.outcomes,
        two.worlds,
        two.path,
        two.ended,
    )
    assert len(one.outcomes) == 1 and one.path == Path("x")


def printed(*blocks, width: int = 100) -> str:
    return console.render_text(Document(title="", brief=blocks), width)


def test_runs_are_listed_with_the_names_they_answer_to_and_how_they_ended() -> None:
    def file(end: End | None, **changes) -> Outline:
        return Outline(a_run(**changes), 1, end)

    ends = [None, End(exit=7, ended=""), End(exit=99, ended=""), OK]
    long = file(OK, name="20260709-100000-all_reduce-ab12", command=["collbench", *["--gpus"] * 20])
    narrow = printed(*saved_runs.list_saved([("@last", long)]).brief, width=80).splitlines()[-1]
    assert narrow.startswith("@last  20260709-100000-all_reduce-ab12") and narrow.endswith("…")
    names = ("@last~3", "@last~2", "@last~1", "@last")
    files = [
        (n, file(end, name=f"r{i}", tag="[red]t[/]"))
        for i, (n, end) in enumerate(zip(names, ends, strict=True))
    ]
    rows = [line.split() for line in printed(*saved_runs.list_saved(files).brief).splitlines()[2:]]
    assert [row[0] for row in rows] == list(names)
    assert rows[0] == ["@last~3", "r0", "[red]t[/]", "1", "0", "B", "cut", "short", "all_reduce"]
    assert [" ".join(row[6:-1]) for row in rows] == ["cut short", "wrong data", "exit 99", "ok"]
    killed = saved_runs.list_saved([("@last", file(End(exit=4, ended="")))])
    assert killed.rows[0]["ended"] == "hung or killed"


def test_of_runs_that_are_not_listed_the_number_is_told() -> None:
    one = ("@last", Outline(a_run(), 1, OK))
    assert printed(*saved_runs.list_saved([one], 143).brief).endswith(
        "1 of 143 runs; --last 143 shows all\n"
    )
    assert "runs;" not in printed(*saved_runs.list_saved([one], 1).brief)


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, table, columns: int) -> list[str]:
    """What ``show`` prints to a terminal of so many columns."""
    out = io.StringIO()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(out, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout", out)
    console.print_blocks(table)
    return re.sub(r"\x1b\[[\d;]*m", "", out.getvalue()).splitlines()


@pytest.mark.parametrize("columns", [20, 80, 120])
def test_a_runs_name_and_id_are_never_cut(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    ident = "20260709-100000000-a-suite-with-a-rather-long-name-ab12"
    run = a_run(name=ident, tag="t" * 200, command=["collbench", "y" * 90])
    (table,) = saved_runs.list_saved([("@last~12", Outline(run, 3, OK))]).brief
    line = on_a_terminal(monkeypatch, table, columns)[2]
    assert line.startswith(f"@last~12  {ident}  ") and " ok " in line
    assert "…" in line


def test_nothing_is_cut_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tag="t" * 200, command=["collbench", "y" * 190])
    console.print_blocks(*saved_runs.list_saved([("@last", Outline(run, 3, OK))]).brief)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "@last" in line]
    assert "t" * 200 in line and "y" * 190 in line


@pytest.mark.parametrize(("columns", "gone"), [(60, True), (300, False)])
def test_columns_that_find_no_room_are_named(columns: int, gone: bool) -> None:
    table = table_of("isolated", [measured(c) for c in SWEEP], SWEEP)
    assert bool(re.search("hidden at 60 columns: .*min", printed(table, width=columns))) == gone


def test_plans_show_memory_time_and_what_will_not_run() -> None:
    rows = [
        PlanRow(
            case=a_case(nbytes=1 << 20),
            moved=3 << 19,
            bytes_per_rank=3 << 20,
            rotation=5,
            seconds=61.0,
        ),
        PlanRow(case=a_case(nbytes=1 << 30), skipped="needs [b]9[/] GiB"),
    ]
    text = printed(*plan_table.describe_plan(rows), width=80)
    (line,) = [x for x in text.splitlines() if "61.0 s" in x]
    figures = ["1", "MiB", "1.5", "MiB", "3", "MiB", "5", "61.0", "s"]
    assert line.split() == ["isolated", *figures]
    assert text.splitlines()[0] == "all_reduce, 4 ranks, gloo, float, sum, out of place"
    assert "needs [b]9[/] GiB" in text
    assert text.splitlines()[-1] == "1 case, about 1:01, at most 3 MiB a rank; 1 skipped"


def test_plans_say_what_their_columns_and_numbers_are() -> None:
    cases = [a_case(collective="broadcast", op="none", root=root, cycle=1) for root in (0, 3)]
    rows = [PlanRow(case=case, seconds=1.0, most=3.0) for case in [*cases, a_case()]]
    text = printed(*plan_table.describe_plan(rows, 20.0, fresh=True))
    for words in ("root 3, launch 2, ", "moved/call: ", "memory/rank: ", "buffers: "):
        assert words in text
    assert "about 0:23 (up to 0:29 if noisy), of which 0:20 to start ranks" in text


@pytest.mark.parametrize(("fresh", "words"), [(True, "2 launches"), (False, "2 cycles")])
def test_plans_list_alike_cycles_once(fresh: bool, words: str) -> None:
    rows = [PlanRow(case=a_case(cycle=cycle), seconds=1.0) for cycle in (0, 1)]
    lines = printed(*plan_table.describe_plan(rows, fresh=fresh)).splitlines()
    assert lines[0].endswith(f"; each of {words}")
    assert sum(line.startswith("isolated") for line in lines) == 1
    assert lines[-1].startswith("2 cases, about 0:02")


def test_a_header_counts_launches_and_names_roots() -> None:
    swept = [
        a_case(collective="broadcast", op="none", root=root, cycle=cycle)
        for root in (0, 1)
        for cycle in (0, 1, 2)
    ]
    first = str(cases_.make_header(a_run(policy=Policy(fresh=True)), swept, {})[0])
    assert "roots 0, 1" in first and "3 launches" in first


def test_lists_and_findings_are_literal_and_not_broken_in_a_pipe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console.print_finding("gloo [red]", "no", "x" * 200)
    console.print_blocks(console.make_listing("Things", ("name", "meaning"), [("a[b]", "c")]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"gloo [red]          no    {'x' * 200}"
    assert [line.split() for line in lines if "[b]" in line] == [["a[b]", "c"]]


def test_a_wide_column_that_may_be_broken_leaves_room_for_the_others() -> None:
    both = "all_reduce of 4 MiB float; all_reduce of 8 MiB float"
    table = Table(
        columns=[
            *make_columns(("#", "operation", "called by"), "rwl"),
            Column("from", "left", priority=1),
        ],
        lines=[Line(("> 2", both, "ranks 0,2", "-"))],
    )
    shown = console.render_text(Document(title="", brief=[table]), 50).splitlines()
    assert shown[0].split() == ["#", "operation", "called", "by"]
    assert [line for line in shown if "> 2" in line and line.rstrip().endswith("ranks 0,2")]
    assert max(map(len, shown)) <= 50


def test_a_run_of_nothing_ends_quietly() -> None:
    assert "nothing to run" in shown([])


def test_time_left_counts_only_what_was_measured_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 cases, 2 were there when the run was resumed and 1 took the minute since."""
    now = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    cases = [a_case(nbytes=8 << i) for i in range(4)]
    out = io.StringIO()
    status = Status(Console(file=out, width=120), watched=False)
    status.begin(a_run(), cases, [])
    for case in cases[:2]:
        status.record(*measured(case))
    status.phase(cases[2], "timing", 0.0)
    status.record(*measured(cases[2]))
    now[0] = 60.0
    Console(file=out, width=120).print(status._view())
    assert (
        "3/4" in out.getvalue()
        and "1:00 elapsed" in out.getvalue()
        and "1:00 left" in out.getvalue()
    )


@pytest.mark.parametrize("later", [0, 1])  # cases of a world that follows
def test_no_time_left_is_said_in_the_second_pass(
    later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    status = Status(Console(file=out, width=120), watched=False)
    status.begin(a_run(), [a_case(), a_case(backend="shm")][: 1 + later], [])
    status.record(*measured(a_case()))
    status.phase(a_case(), "measuring", 0.4)
    now[0] = 14.0
    Console(file=out, width=120).print(status._view())
    assert "0:14 elapsed" in out.getvalue() and "left" not in out.getvalue()
    assert "pass 2 of 2, measuring 40%" in out.getvalue()


def test_no_time_left_is_said_between_two_cases_of_the_second_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    status = Status(Console(file=out, width=120), watched=False)
    status.begin(a_run(), [a_case(), a_case(backend="shm")], [])
    status.record(*measured(a_case()))
    status.phase(a_case(), "measuring", 0.4)
    status.record(*measured(a_case()))
    now[0] = 14.0
    Console(file=out, width=120).print(status._view())
    assert "pass 2 of 2, done: " in out.getvalue() and "left" not in out.getvalue()


def test_the_bar_of_a_run_never_falls_back() -> None:
    """The first world's second pass and the start of the next world add nothing to the bar."""
    cases = [a_case(nbytes=8 << power) for power in range(4)]
    status = Status(Console(file=io.StringIO(), width=120), watched=False)
    status.begin(a_run(), cases, [])
    seen, counts = [], []

    def look() -> None:
        out = io.StringIO()
        Console(file=out, width=120).print(status._view())
        filled = re.match(r"[━╸]*", out.getvalue())
        seen.append(len(filled[0]) if filled else 0)
        counts.extend(map(int, re.findall(r"(\d+)/4", out.getvalue())))

    def visit(case: Case, again: bool = False) -> None:
        for phase, fraction in (("starting up", -0.25), ("measuring", 0.4), ("leaving", 0.6)):
            status.phase(case, phase, fraction)
            look()
        record, row = measured(case)
        status.record(msgspec.structs.replace(record, again=again), row)
        look()

    for case, again in ((0, False), (1, False), (0, True), (1, True), (2, False), (3, False)):
        visit(cases[case], again)
    assert seen == sorted(seen) and seen[-1] == 24
    assert counts == sorted(counts) and counts[-1] == 4
    assert seen[8:16] == seen[7:8] * 8  # the second pass of the first world


def test_the_share_of_a_case_whose_ranks_start_is_not_negative() -> None:
    out = io.StringIO()
    status = Status(Console(file=out, width=120), watched=False)
    status.begin(a_run(), [a_case()], [])
    status.phase(a_case(), "starting up", -0.25)
    Console(file=out, width=120).print(status._view())
    assert "starting up: 1 KiB" in out.getvalue()


def test_the_bar_of_an_experiment_counts_the_rounds_of_a_stage() -> None:
    watch, seen = live.Watch(), []
    for step in (reporter_.Step(1, at, 3, "", launch, 2) for at in range(3) for launch in (0, 1)):
        watch.step(step)
        (task,) = watch._bar.tasks
        seen.append((task.description, task.completed, task.total))
    assert seen == [("stage 1, rounds", done / 2, 3) for done in range(6)]
    watch.step(reporter_.Step(1, 2, 3, "", 1, 2, a_case(algorithm="ring")))
    assert watch._bar.tasks[0].fields["doing"] == "all_reduce ring@gloo 1 KiB"


def foretold(
    capsys: pytest.CaptureFixture[str], seconds: float, launches: int = 1, **policy: object
) -> tuple[Status, str]:
    """A run of a step that takes so long and hides nothing, and what is said of it before any
    sample."""
    cases = [
        a_case(collective=part, subject="ddp #12ab", cycle=cycle)
        for cycle in range(launches)
        for part in PARTS
    ]
    status = Status(Console(file=io.StringIO()), watched=False)
    status.begin(a_run(policy=Policy(**policy)), cases, [])
    status.world(a_world())
    for times in ([], [5]):  # at first without a sample
        for case in cases[0].siblings:
            ns = round(seconds * 1e9 / (1 if case.is_leader else 2))
            status.show_interim(
                Record(case=case, status="ok", world=0, setup_ns=ns, times_ns=times)
            )
    return status, capsys.readouterr().err


def test_a_step_that_takes_long_is_said_to_once(capsys: pytest.CaptureFixture[str]) -> None:
    _, told = foretold(capsys, 5.85)
    assert told == (
        "collbench: a step takes 5.85 s: 6 rounds of its 3 parts and each operation by itself take"
        " about 2:10 min\n  hint: with a smaller --scale it takes less\n"
    )


def test_a_step_that_takes_little_is_not_foretold(capsys: pytest.CaptureFixture[str]) -> None:
    assert foretold(capsys, 0.2)[1] == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_seconds": 60.0}, "with a smaller --scale or -n 6 it takes less"),
        ({"blame": True}, "without --blame it takes less"),
        ({"max_seconds": 60.0}, ": up to 15 rounds of"),
        ({"iters": 50}, ": 50 rounds of"),
        ({"launches": 4}, " in 4 launches"),
    ],
)
def test_what_makes_a_step_take_long_is_told(
    given: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in foretold(capsys, 5.85, **given)[1]


def test_the_time_that_a_step_has_left_is_the_one_foretold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    status, _ = foretold(capsys, 5.85)
    now[0] = 60.0
    out = io.StringIO()
    Console(file=out, width=120).print(status._view())
    assert "1:00 elapsed" in out.getvalue() and "1:15 left" in out.getvalue()


def test_a_page_has_comments_above_lines_that_are_too_long_with_them() -> None:
    page = "a    # said\n```\nrun --all   # of every kind\nrun  # one\n```\nb    # said of it\n"
    assert console.narrow_comments(page, 16) == (
        "a    # said\n```\n# of every kind\nrun --all\nrun  # one\n```\nb    # said of it\n"
    )
    assert console.narrow_comments(page, 80) == page


def test_a_page_breaks_no_line_of_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "collbench all_reduce --backend mpi --env NAME=VALUE --output a-long-name.jsonl"
    monkeypatch.setattr(console, "Console", partial(Console, force_terminal=True, width=30))
    monkeypatch.setenv("PAGER", "cat")
    monkeypatch.setenv("NO_COLOR", "1")
    console.print_page(f"some words that take more than a line\n```\n$ {command}\nb\n```\nc\n")
    lines = [
        line.rstrip() for line in re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
    ]
    assert lines == ["some words that take more than", "a line", "", f"$ {command}", "b", "", "c"]
