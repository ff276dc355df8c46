"""Lives over launches: a launch counts once, an interval is of launches, and what failed is
named."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from factories import SUITE, make_file, night, world

from collbench.core.errors import Exit, UsageError
from collbench.features.lifecycle import command, rows
from collbench.features.lifecycle.findings import LossFindings, PhaseFindings, RankLoss
from collbench.features.lifecycle.request import SILENT, Life, Loss
from collbench.features.lifecycle.summary import (
    find_silence,
    judge_lives,
    spread_launches,
    summarize_lives,
)
from collbench.features.lifecycle.view import make_document, make_section
from collbench.records.derive import derive_row
from collbench.records.rows import make_rows
from collbench.records.types import Record, RunFile
from collbench.run.reporter import PlanRow
from collbench.show import markdown, programs, terminal
from collbench.show.document import Document
from collbench.show.views.plan_table import describe_plan
from collbench.show.views.series import make_view
from collbench.suite.case import Case

SMALL = Life(world=2, nbytes=1 << 10)
MANY = Life(world=2, nbytes=1 << 10, groups=16)
LOSS = Loss(world=3, victim=1)


def lived(life: Life, phase: str, ns: int, cycle: int = 0, **fields: Any) -> Record:
    """A record of a phase, whose ranks' memory grew by 1 and 2 KiB."""
    found = PhaseFindings(resident=[1024, 2048], ranks_ns=[ns, ns // 2])
    what = Case(
        collective=phase,
        subject=life.title,
        backend="gloo",
        n=life.world,
        nbytes=life.nbytes,
        dtype="uint8",
        cycle=cycle,
    )
    given = {"status": "ok", "times_ns": [ns], "stop": "fixed", "world": cycle, **fields}
    return Record(case=what, findings=msgspec.to_builtins(found), **given)


def run_of(records: Sequence[Record], launches: int = 1) -> RunFile:
    suite = msgspec.structs.replace(SUITE, subjects=(SMALL, MANY, LOSS))
    worlds = [world(number, n=2) for number in range(launches)]
    return make_file(records, worlds, suite=suite)


def lost(ns: int | None, note: str = "", phase: str = rows.RECOVERED, cycle: int = 0) -> Record:
    ranks = [
        RankLoss(rank=0, how="error", known_ns=5, recovered_ns=ns),
        RankLoss(rank=2, how="told", known_ns=7, recovered_ns=ns),
    ]
    found = LossFindings(victim=1, at_ns=10**9, doing="calls", ranks=ranks)
    what = Case(
        collective=phase,
        subject=LOSS.title,
        backend="gloo",
        n=3,
        nbytes=LOSS.nbytes,
        dtype="uint8",
        cycle=cycle,
    )
    if ns is None:
        return Record(case=what, status="failed", note=note, world=cycle)
    findings = msgspec.to_builtins(found)
    return Record(case=what, status="ok", times_ns=[ns], findings=findings, world=cycle)


def test_one_sample_a_launch_is_no_doubt() -> None:
    row = derive_row(lived(SMALL, rows.INIT, 1000), world(n=2))
    assert row is not None and "n<6" not in row.flags


def test_rows_of_one_sample_decide() -> None:
    file = run_of([lived(SMALL, rows.INIT, 1000 + c, c) for c in range(6)], 6)
    assert [row.ungated for row in make_rows([file])] == [()] * 6


def test_two_launches_have_a_wide_interval_and_one_has_none() -> None:
    assert math.isinf(spread_launches([100.0]).hi)
    two = spread_launches([100.0, 101.0])
    assert two.lo < 95 and two.hi > 106
    six = spread_launches([100.0, 101.0, 102.0, 103.0, 104.0, 105.0])
    assert 100.0 <= six.lo <= six.median <= six.hi <= 105.0


def test_lives_of_one_launch_count_once() -> None:
    records = [
        lived(life, rows.INIT, ns, cycle)
        for cycle in range(6)
        for life, ns in ((SMALL, 1000), (MANY, 3000))
    ]
    (phase,) = summarize_lives(run_of(records, 6)).phases
    assert (phase.time.launches, phase.time.median) == (6, 2000.0)


def test_markdown_has_each_table_once() -> None:
    text = markdown.render_markdown(make_document(run_of([lived(SMALL, rows.INIT, 1000)])))
    assert "****" not in text and text.count("### gloo, 2 ranks") == 1
    assert "median over launches" in text and "one launch has no interval" in text


def test_how_ranks_learned_of_a_loss_is_said_in_the_words_of_the_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    text = terminal.render_text(make_document(run_of([lost(9)])))
    assert "1 an error, 1 notification" in text and "told" not in text
    assert "a rank may see an error before" in " ".join(text.split())


def test_a_plan_has_one_line_for_each_life() -> None:
    cases = [lived(life, phase, 1).case for life in (SMALL, MANY) for phase in rows.TABLE.rows]
    for planned in (
        [PlanRow(case=case) for case in cases],
        [PlanRow(case=case, skipped="no such library") for case in cases],
    ):
        text = terminal.render_text(Document(title="", brief=describe_plan(planned)))
        assert text.count("life with") == 2 and "communicator_init" not in text
        assert "each life: 7 cases, measured together" in text


def test_groups_are_told_apart_and_calls_are_pooled() -> None:
    records = [
        lived(life, row, 1000) for life in (SMALL, MANY) for row in (rows.GROUPS, rows.FIRST)
    ]
    found = [(phase.phase, phase.of) for phase in summarize_lives(run_of(records)).phases]
    first = (rows.FIRST, "all_reduce of 1 KiB")
    assert found == [first, (rows.GROUPS, "1"), (rows.GROUPS, "16")]


def test_memory_is_of_the_rank_that_grew_most() -> None:
    (phase,) = summarize_lives(run_of([lived(SMALL, rows.INIT, 1000)])).phases
    assert (phase.resident, phase.device) == (2048, None)


def test_a_loss_counts_kills_and_returns() -> None:
    records = [lost(50, cycle=0), lost(70, cycle=1), lost(None, "silence: rank 2 …", cycle=2)]
    (loss,) = summarize_lives(run_of(records, 3)).losses
    assert (loss.kills, loss.recovered, loss.failures) == (3, 2, ["silence: rank 2 …"])
    assert loss.how == {"error": 2, "told": 2}


def test_a_kill_without_a_return_counts_how_it_was_detected() -> None:
    """Of a file whose failed records have no findings."""
    records = [lost(9, phase=rows.KNOWN), lost(None, f"{SILENT}: rank 2 did not come back")]
    (loss,) = summarize_lives(run_of(records)).losses
    assert (loss.kills, loss.recovered) == (1, 0)
    assert (loss.how, loss.doing) == ({"error": 1, "told": 1}, {"calls": 1})


def test_a_kill_counts_once_whichever_records_have_its_findings() -> None:
    (loss,) = summarize_lives(run_of([lost(9, phase=rows.KNOWN), lost(50)])).losses
    assert (loss.how, loss.doing) == ({"error": 1, "told": 1}, {"calls": 1})


def test_a_rank_that_never_knew_is_counted() -> None:
    ranks = [RankLoss(rank=0, how="error", known_ns=5), RankLoss(rank=2)]
    found = LossFindings(victim=1, at_ns=10**9, doing="calls", ranks=ranks)
    records = [
        msgspec.structs.replace(
            lost(None, f"{SILENT}: rank 2", phase), findings=msgspec.to_builtins(found)
        )
        for phase in (rows.KNOWN, rows.RECOVERED)
    ]
    (loss,) = summarize_lives(run_of(records)).losses
    assert (loss.how, loss.doing) == ({"error": 1, "never": 1}, {"calls": 1})


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (lost(50), ""),
        (lost(None, "rank 1 did not start"), "rank 1 did not start"),
        (lived(SMALL, rows.INIT, 1, status="failed", note=f"{SILENT}: rank 1"), "silence: rank 1"),
        (lived(SMALL, rows.INIT, 1, status="failed", note="no port"), ""),
    ],
)
def test_what_must_not_pass_unseen_is_found(record: Record, expected: str) -> None:
    assert find_silence([record], SILENT) == expected


TIMED = lived(SMALL, rows.START, 1000)
HUNG = lived(SMALL, rows.INIT, 1, status="failed", note=f"{SILENT}: rank 1", times_ns=[])
WRONG = lived(SMALL, rows.FIRST, 1, status="wrong", note="3 wrong", times_ns=[])
SKIPPED = lived(SMALL, rows.INIT, 1, status="skipped", note="not here", times_ns=[])


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([TIMED], Exit.OK),
        ([lost(9)], Exit.OK),
        ([TIMED, SKIPPED], Exit.OK),
        ([SKIPPED], Exit.NO_VERDICT),
        ([TIMED, HUNG], Exit.TIMEOUT),
        ([TIMED, WRONG], Exit.WRONG_DATA),
        ([HUNG, WRONG], Exit.WRONG_DATA),
        ([lost(None, "it did not start")], Exit.TIMEOUT),
    ],
)
def test_a_recorded_runs_exit_code(
    records: list[Record], expected: Exit, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_of(records)
    assert judge_lives(file) == command._show_run(file, "table") == expected
    said = "no verdict, as no life and no loss has a time" in capsys.readouterr().out
    assert said == (expected == Exit.NO_VERDICT)


@pytest.mark.parametrize("status", ["failed", "wrong", "skipped"])
def test_what_has_no_time_is_named(status: str) -> None:
    record = lived(SMALL, rows.INIT, 1, status=status, note="a reason", times_ns=[])
    assert "a reason" in terminal.render_text(make_document(run_of([record])))


def test_a_planted_fault_is_in_what_programs_read() -> None:
    file, fault = run_of([lived(SMALL, rows.INIT, 1000), lost(9)]), "late:1:50ms"
    policy = msgspec.structs.replace(file.run.policy, inject=fault)
    run = msgspec.structs.replace(file.run, policy=policy)
    document = make_document(msgspec.structs.replace(file, run=run))
    values = msgspec.json.decode(programs.as_json(document))
    assert (values["run"], values["injected"]) == (file.run.id, fault)
    lines = [*csv.DictReader(programs.as_csv(document).splitlines())]
    assert [line["injected"] for line in lines] == [fault, fault]


def test_a_document_is_for_every_medium() -> None:
    records = [lived(SMALL, row, 10**6, c) for row in rows.PHASES for c in range(6)]
    document = make_document(run_of([*records, lost(10**7)], 6))
    assert "new groups" in terminal.render_text(document)
    assert "| first call |" in markdown.render_markdown(document)
    values = msgspec.json.decode(programs.as_json(document))
    assert len(values["phases"]) == len(rows.PHASES)
    assert values["losses"][0]["recovered_median_ns"] == 10**7
    assert programs.as_csv(document).startswith("phase,")


def test_reports_have_a_section_of_lives_only_where_there_are_some() -> None:
    assert make_section(make_view([run_of([lived(SMALL, rows.INIT, 1000)])])) is not None
    assert make_section(make_view([make_file([])])) is None


def test_a_run_of_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match="no life"):
        command._show_run(night(), "table")
