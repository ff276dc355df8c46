"""The dashboard and the alerting rules: they ask for metrics and labels that are written, and for
no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml
from factories import case, night, nightly
from monitoring import lint_metrics, read_samples

from collbench.features.health.checks import table as checks
from collbench.features.health.findings import Finding, Subject
from collbench.features.health.views import health
from collbench.features.recipes.command import read_recipe
from collbench.show import programs
from collbench.show.views import gauges

SCRAPED = {"instance", "job"}  # labels that Prometheus adds
WORDS = {
    *("sum", "max", "count", "by", "on", "and", "or", "unless", "vector", "time", "offset"),
    *("max_over_time", "quantile_over_time"),
}


def written() -> dict[str, set[str]]:
    """The labels of each metric that a night and its verdict write."""
    file = night(launches=6, rows=[*nightly(), case(64, env=(("A", "1"),))])
    verdict = checks.judge_night([file])
    finding = Finding(
        check="data",
        severity="critical",
        subject=Subject("host", "node1"),
        what="is wrong",
        advice="look",
    )
    verdict = msgspec.structs.replace(
        verdict, state="unhealthy", findings=[finding], hosts=["node1"]
    )
    text = programs.render_prometheus(health.make_document(verdict))
    text += programs.render_prometheus(gauges.make_document([file]))
    assert lint_metrics(text) == []
    return {
        name: {label for labels in by_labels for label, _ in labels}
        for name, by_labels in read_samples(text).items()
    }


WRITTEN = written()
DASHBOARD: dict[str, Any] = json.loads(read_recipe("grafana"))
RULES: dict[str, Any] = yaml.safe_load(read_recipe("rules"))
VARIABLES = {variable["name"] for variable in DASHBOARD["templating"]["list"]}


def list_expressions() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for group in RULES["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert match, variable["name"]
            yield f"${variable['name']}", f"sum by ({match[2]}) ({match[1]})"


def find_faults(expression: str) -> list[str]:
    """Metrics, labels and variables of a PromQL expression that are not there."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    metrics = {*re.findall(r"collbench_\w+", expression)}
    faults = [f"metric {name}" for name in metrics - WRITTEN.keys()]
    known = SCRAPED.union(*(WRITTEN.get(name, set()) for name in metrics))
    matchers = {
        label for part in re.findall(r"\{(.*?)\}", bare) for label in re.findall(r"(\w+)[=!]", part)
    }
    grouped = {
        label.strip()
        for part in re.findall(r"(?:by|on) \(([^)]*)\)", bare)
        for label in part.split(",")
    }
    faults += [f"label {name}" for name in (matchers | grouped) - known - {"__name__"}]
    faults += [
        f"variable {name}"
        for name in {*re.findall(r"\$(\w+)", expression)} - VARIABLES - {"__range"}
    ]
    rest = re.sub(r"\{.*?\}|\[.*?\]|(?:by|on) \([^)]*\)|collbench_\w+|offset \d+d", " ", bare)
    faults += [f"word {word}" for word in {*re.findall(r"[a-z_]+", rest)} - WORDS]
    return faults + ["brackets"] * any(
        bare.count(a) != bare.count(b) for a, b in ("()", "{}", "[]")
    )


@pytest.mark.parametrize(("title", "expression"), list(list_expressions()))
def test_what_is_asked_for_is_written(title: str, expression: str) -> None:
    assert find_faults(expression) == []


@pytest.mark.parametrize(
    "expression",
    [
        "collbench_case_time_ms",
        'collbench_case_time_seconds{sise="1"}',
        "sum by (nobody) (collbench_case_time_seconds)",
        'collbench_case_time_seconds{size=~"$length"}',
        "rat(collbench_case_time_seconds)",
        "sum(collbench_case_time_seconds",
        'collbench_health_state{size="1"}',
    ],
)
def test_what_is_not_written_is_found(expression: str) -> None:
    assert find_faults(expression)


def test_panels_are_numbered_once_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        own = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not own & cells and max(x for x, _ in own) < 24, panel["title"]
        cells |= own


def test_panels_read_the_source_that_is_chosen_and_say_what_they_show() -> None:
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            continue
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert {source["uid"] for source in sources} == {"${datasource}"}
        assert panel["title"] and panel["description"] and panel["targets"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_each_variable_is_used() -> None:
    text = json.dumps(DASHBOARD["panels"])
    assert [
        name for name in VARIABLES if f"${name}" not in text and f"${{{name}}}" not in text
    ] == []


def test_legends_name_labels_that_are_there() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            metrics = re.findall(r"collbench_\w+", target["expr"])
            known = SCRAPED.union(*(WRITTEN[name] for name in metrics))
            assert {*re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])} <= known, panel["title"]


def test_each_rule_has_a_severity_and_a_summary_with_labels_that_its_alert_keeps() -> None:
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        metric = re.findall(r"collbench_\w+", rule["expr"])[0]
        kept = re.match(r"sum by \(([^)]*)\)", rule["expr"])
        labels = {*kept[1].split(", ")} if kept else WRITTEN[metric] | SCRAPED
        used = {*re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))}
        assert used and used <= labels, rule["alert"]


def test_a_planted_fault_raises_no_alarm_of_hosts_or_data() -> None:
    """As verdicts of a test are no reason to wake anybody."""
    expressions = {rule["alert"]: rule["expr"] for rule in RULES["groups"][0]["rules"]}
    for name in ("CollbenchUnhealthy", "CollbenchCritical"):
        assert expressions[name].endswith("unless on (instance) collbench_health_injected == 1")
    assert expressions["CollbenchWrongData"].endswith("collbench_run_injected == 1")
