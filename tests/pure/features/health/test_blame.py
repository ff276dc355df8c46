"""The hosts that may be taken out of service: those that a verdict names with certainty, alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from collbench.features.health.blame import SYMPTOMS, list_blamed
from collbench.features.health.checks import table
from collbench.features.health.findings import Finding, Kind, Severity, Subject, Verdict
from collbench.features.health.views import health

replace = msgspec.structs.replace


def finding(
    severity: Severity = "critical",
    name: str = "node1",
    kind: Kind = "host",
    sure: float | None = 0.999,
    check: str = "gpus",
) -> Finding:
    return Finding(
        check=check,
        severity=severity,
        subject=Subject(kind, name),
        what="is wrong",
        advice="look",
        sure=sure,
    )


def verdict(*findings: Finding, **fields: Any) -> Verdict:
    given: dict[str, Any] = {"state": "unhealthy", "summary": "", "checks": (), "runs": ("a",)}
    given |= {"hosts": ("node1", "node2"), "findings": findings, **fields}
    return Verdict(**given)


def blamed(*findings: Finding, **fields: Any) -> list[str]:
    return [host for host, _ in list_blamed(verdict(*findings, **fields))]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("host", "node1"),
        ("rank", "node1:3"),
        ("gpu", "node1:cuda:3 (rank 3)"),
        ("link", "node1: mlx5_0"),
    ],
)
def test_a_critical_finding_blames_the_one_host_of_its_subject(kind: Kind, name: str) -> None:
    assert blamed(finding(name=name, kind=kind)) == ["node1"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("link", "node1 -> node2"),
        ("cluster", "node1"),
        ("collective", "node1"),
        ("setting", "node1"),
        ("rank", "rank 3"),
        ("gpu", "GPU 0, NVIDIA H200"),
        ("host", "another"),
    ],
)
def test_a_subject_that_is_no_one_host_of_the_night_blames_none(kind: Kind, name: str) -> None:
    assert blamed(finding(name=name, kind=kind)) == []


@pytest.mark.parametrize(
    ("severity", "sure", "is_blamed"),
    [
        ("critical", None, True),
        ("critical", 0.5, False),
        ("warning", 0.999, True),
        ("warning", 0.98, False),
        ("warning", None, False),
        ("hint", 1.0, False),
    ],
)
def test_a_finding_must_be_sure(severity: Severity, sure: float | None, is_blamed: bool) -> None:
    assert blamed(finding(severity, sure=sure)) == ["node1"] * is_blamed


@pytest.mark.parametrize("check", SYMPTOMS)
def test_where_a_fault_shows_is_blamed_only_where_there_is_no_other_host(check: str) -> None:
    assert blamed(finding(check=check)) == []
    assert blamed(finding(check=check), hosts=("node1",)) == ["node1"]


@pytest.mark.parametrize("check", SYMPTOMS)
def test_where_a_fault_shows_in_a_run_of_one_host_this_is_blamed(check: str) -> None:
    assert blamed(replace(finding(check=check), alone=True)) == ["node1"]


def test_symptoms_are_checks_that_there_are() -> None:
    assert {*SYMPTOMS} <= {check.name for check in table.CHECKS}


def test_on_a_busy_machine_a_warning_blames_nobody_and_wrong_data_does() -> None:
    assert blamed(finding("warning"), busy="others ran") == []
    assert blamed(finding("critical"), busy="others ran") == ["node1"]


@pytest.mark.parametrize(
    "fields",
    [{"state": "no verdict"}, {"state": "healthy"}, {"injected": "drop:3"}, {"fake": True}],
)
def test_nobody_is_blamed_without_a_verdict_or_by_a_test(fields: dict[str, Any]) -> None:
    assert blamed(finding(), **fields) == []


def test_a_host_is_named_once_with_the_gravest_reason_first() -> None:
    (entry,) = list_blamed(
        verdict(finding("warning"), replace(finding("critical"), what="has wrong data"))
    )
    assert entry == ("node1", ("node1 has wrong data", "node1 is wrong"))


def test_the_json_and_the_gauges_have_the_blamed_hosts() -> None:
    made = verdict(finding())
    assert health.plain_values(made)["blamed"] == [
        {"host": "node1", "reasons": ("node1 is wrong",)}
    ]
    values = {gauge.name: gauge.values for gauge in health.list_gauges(made)}
    assert values["collbench_health_host_blamed"] == [
        ({"host": "node1"}, True),
        ({"host": "node2"}, False),
    ]
