"""The page of a verdict on health."""

from __future__ import annotations

from collbench.features.health.findings import Checked, Finding, Subject, Verdict
from collbench.features.health.views import health


def verdict(*findings: Finding) -> Verdict:
    checks = [Checked("data", "passed", "seen"), Checked("ports", "no data", "none recorded")]
    return Verdict(
        state="unhealthy" if findings else "healthy",
        summary="x",
        findings=findings,
        checks=checks,
        runs=["a"],
        hosts=["one"],
    )


def test_missing_data_is_no_alarm() -> None:
    (table,) = [
        table
        for section in health.make_document(verdict()).sections
        for table in section.tables
        if table.name == "checks"
    ]
    assert table.tiled
    assert [line.weight for line in table.lines] == ["good", ""]


def test_columns_that_say_nothing_are_left_out() -> None:
    found = Finding(
        check="data",
        severity="warning",
        subject=Subject("host", "one"),
        what="is late",
        advice="look",
    )
    (table,) = health.make_document(verdict(found)).sections[0].tables
    assert table.carded
    assert table.heads == ("severity", "who", "check", "what", "what to do")
    assert [len(line.cells) for line in table.lines] == [5]
