"""Every output of a verdict: what it says, that other programs read it, and that no name can break
it."""

from __future__ import annotations

import csv
import io
import json
import re
from xml.etree import ElementTree

import factories
import junit
import msgspec
import pytest
from factories import night, nightly

from collbench.core.errors import Exit
from collbench.features.health.checks import table as checks
from collbench.features.health.findings import (
    Checked,
    Evidence,
    Finding,
    Severity,
    State,
    Subject,
    Verdict,
)
from collbench.features.health.views import health
from collbench.features.health.views.health import make_document
from collbench.records.types import End
from collbench.show import html as report
from collbench.show import markdown, programs, terminal

EVIL = 'no"de<script>alert(1)</script>|`*\\\nEND # HELP'
replace = msgspec.structs.replace


def finding(severity: Severity = "warning", host: str = "node1", check: str = "data") -> Finding:
    proof = Evidence(
        what=f"time of {host}",
        value=1.5,
        expected=1.0,
        unit="ms",
        run="run1",
        case="all_reduce/gloo",
    )
    return Finding(
        check=check,
        severity=severity,
        subject=Subject("host", host),
        what=f"is slow, says {host}",
        advice=f"look at {host}",
        since="2026-11-01",
        sure=0.9995,
        evidence=[proof],
    )


def verdict(
    *findings: Finding, state: State = "unhealthy", injected: str = "", host: str = "node1"
) -> Verdict:
    data = Checked("data", "found" if findings else "passed", "10 elements")
    told = [
        data,
        Checked("times", "no data", f"of {host}"),
        Checked("gpus", "not applicable", "no GPU took part"),
    ]
    return health.clean_verdict(
        Verdict(
            state=state,
            summary=f"{host} is slow",
            findings=findings,
            checks=told,
            runs=["run1"],
            injected=injected,
            hosts=[host, "node2"],
            ended="2026-11-21T04:00:00+00:00",
        )
    )


ILL = verdict(finding("critical"), finding("hint"))
HEALTHY = verdict(state="healthy")
HOSTILE = verdict(finding(host=EVIL), injected=EVIL, host=EVIL)


def brief(of: Verdict) -> str:
    return terminal.render_text(make_document(of))


def test_json_has_everything() -> None:
    said = json.loads(programs.as_json(make_document(ILL)))
    assert said["schema"] == 1 and said["exit"] == Exit.BAD and said["state"] == "unhealthy"
    assert said["findings"][0]["subject"] == {"kind": "host", "name": "node1"}
    assert [check["outcome"] for check in said["checks"]] == ["found", "no data", "not applicable"]


def test_junit_fails_what_was_found_and_skips_what_had_no_data() -> None:
    suite = ElementTree.fromstring(programs.render_junit(make_document(ILL)))[0]
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "errors": "0",
        "skipped": "2",
    }
    assert [[child.tag for child in case] for case in suite.findall("testcase")] == [
        ["failure"],
        ["skipped"],
        ["skipped"],
        [],
    ]
    assert (suite.findtext("system-out") or "").startswith("verdict: ")
    unclear = ElementTree.fromstring(
        programs.render_junit(make_document(verdict(state="no verdict")))
    )[0]
    assert unclear.get("errors") == "1"


def test_junit_is_what_its_schemas_want() -> None:
    for one in (ILL, HEALTHY, HOSTILE, verdict(state="no verdict")):
        assert junit.faults(programs.render_junit(make_document(one))) == []


def test_prometheus_is_read_by_its_own_parser() -> None:
    parser = pytest.importorskip(
        "prometheus_client.parser", reason="pip install 'collbench[test]' has it"
    )
    for one in (ILL, HEALTHY, HOSTILE):
        families = {
            f.name: f
            for f in parser.text_string_to_metric_families(
                programs.render_prometheus(make_document(one))
            )
        }
        states = {s.labels["state"]: s.value for s in families["collbench_health_state"].samples}
        assert states == {state: float(state == one.state) for state in health.STATES}
        assert all(f.type == "gauge" and f.documentation for f in families.values())
    (blamed,) = families["collbench_health_findings"].samples
    assert (
        blamed.labels["subject"] == HOSTILE.findings[0].subject.name
        and "<script>" in blamed.labels["subject"]
    )
    assert families["collbench_health_injected"].samples[0].value == 1
    assert families["collbench_health_run_end_timestamp_seconds"].samples[0].value == 1795233600


@pytest.mark.parametrize(
    ("one", "code", "word"),
    [
        (HEALTHY, 0, "OK"),
        (verdict(finding("warning")), 1, "WARNING"),
        (ILL, 2, "CRITICAL"),
        (verdict(state="no verdict"), 3, "UNKNOWN"),
        (verdict(finding("hint"), state="healthy"), 0, "OK"),
        (HOSTILE, 1, "WARNING"),
    ],
)
def test_nagios_line_and_code(one: Verdict, code: int, word: str) -> None:
    said, line = health.make_nagios(one)
    assert said == code and line.startswith(f"COLLBENCH {word} - ")
    assert line.count("|") == 1 and "\n" not in line
    assert re.fullmatch(r"(\w+=\d+ ?)+", line.split("| ")[1])


def test_the_line_for_a_chat_is_short() -> None:
    assert (
        health.make_line(ILL) == "❌ collbench (node1, node2): unhealthy, 1 finding: node1 is slow"
    )
    assert len(health.make_line(replace(ILL, summary="x" * 2000))) <= health.LINE


@pytest.mark.parametrize("state", ["healthy", "unhealthy", "no verdict"])
def test_the_verdict_stands_in_every_output(state: State) -> None:
    one = verdict(state=state)
    texts = [
        programs.as_json(make_document(one)),
        programs.render_junit(make_document(one)),
        health.make_line(one),
        brief(one),
        markdown.render_markdown(make_document(one)),
        report.render_page(make_document(one), "cdn"),
    ]
    assert all(state in text and "node1 is slow" in text for text in texts)


def test_a_planted_fault_marks_every_output() -> None:
    one = verdict(finding(), injected="slow-rank:3:20%")
    texts = [
        programs.as_json(make_document(one)),
        programs.render_junit(make_document(one)),
        health.make_line(one),
        health.make_nagios(one)[1],
        programs.render_prometheus(make_document(one)),
        brief(one),
        markdown.render_markdown(make_document(one)),
        report.render_page(make_document(one), "cdn"),
    ]
    assert all("slow-rank:3:20%" in text for text in texts)


def test_no_name_breaks_an_output() -> None:
    """Tags, quotes and line ends in hosts, notes and faults stay text."""
    html = report.render_page(make_document(HOSTILE), "cdn")
    assert "<script>alert" not in html and "&lt;script&gt;alert(1)" in html
    text = markdown.render_markdown(make_document(HOSTILE))
    assert "<script>" not in text and not re.search(r"^END # HELP", text, re.MULTILINE)
    ElementTree.fromstring(programs.render_junit(make_document(HOSTILE)))
    json.loads(programs.as_json(make_document(HOSTILE)))
    lines = programs.render_prometheus(make_document(HOSTILE)).splitlines()
    assert all(
        re.match(r"# (HELP|TYPE) collbench_|collbench_\w+(\{.*\})? [\d.e+]+$", line)
        for line in lines
    )
    assert (
        "\nEND" not in brief(HOSTILE) + health.make_line(HOSTILE) + health.make_nagios(HOSTILE)[1]
    )


def test_the_grid_has_every_host_and_what_was_found_of_it() -> None:
    one = verdict(
        finding("hint"),
        finding("critical"),
        finding("warning", "node9", "gpus"),
        replace(finding(check="gpus"), subject=Subject("link", "node2:1 -> node3:0")),
    )
    heads, lines = health.make_grid(one)
    table = {line.cells[0]: dict(zip(heads, line.cells, strict=True)) for line in lines}
    assert [*table] == ["cluster", "node1", "node2", "node3", "node9"]
    assert table["node1"]["data"] == "critical" and table["node1"]["times"] == "?"
    assert table["node3"]["gpus"] == table["node2"]["gpus"] == table["node9"]["gpus"] == "warning"
    assert table["cluster"] == {"host": "cluster", "data": "✓", "times": "?", "gpus": "-"}


def test_findings_lead_to_their_evidence_and_that_to_the_report() -> None:
    row = nightly()[2]
    files = [night({row: 20.0})]
    made = make_document(health.clean_verdict(checks.judge_night(files)), files)
    html = report.render_page(made, "cdn")
    links = re.findall(r'<a href="#((?:evidence|bandwidth)[^"]*)"', html)
    assert "evidence-0" in links and "bandwidth" in links
    assert all(f'id="{name}"' in html for name in links)
    assert html.count(row.key) >= 1


def test_a_healthy_page_says_so_and_has_no_links_astray() -> None:
    html = report.render_page(make_document(HEALTHY), "cdn")
    assert (
        'data-weight="good"' in html
        and "Nothing was found." in html
        and 'href="#evidence' not in html
    )


def test_records_are_sorted_for_programs_and_say_when_each_was_measured() -> None:
    cases = [
        factories.case(nbytes=nbytes, backend=backend)
        for nbytes, backend in ((64, "shm"), (8, "shm"), (64, "gloo"), (1024, "gloo"))
    ]
    for kind in (programs.Csv, programs.Json):
        reporter = kind(out := io.StringIO())
        reporter.begin(factories.run(), cases, [])
        for case in cases:
            reporter.record(factories.record(case), None)
        reporter.end(End(exit=0, ended=""), None)
        text = out.getvalue()
        rows = (
            json.loads(text)["records"]
            if kind is programs.Json
            else list(csv.DictReader(io.StringIO(text)))
        )
        keys = [(row["backend"], int(row["nbytes"]), int(row["order"])) for row in rows]
        assert keys == [("gloo", 64, 2), ("gloo", 1024, 3), ("shm", 8, 1), ("shm", 64, 0)]
