"""Gauges as OTLP's JSON lines: the fields that OpenTelemetry's protocol has, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import math
from typing import Any

import pytest
from factories import case, make_file, record, sized
from needs import stop_without

from collbench.features.health.checks import table as checks
from collbench.features.health.views import health
from collbench.show import otlp
from collbench.show.document import Document, Gauge
from collbench.show.views import gauges

# By message of opentelemetry/proto/metrics/v1/metrics.proto and what it names: its fields in JSON,
# of what kind; a list holds the message named.
MESSAGES: dict[str, dict[str, Any]] = {
    "data": {"resourceMetrics": ["resource metrics"]},
    "resource metrics": {"resource": "resource", "scopeMetrics": ["scope metrics"]},
    "resource": {"attributes": ["attribute"]},
    "scope metrics": {"scope": "scope", "metrics": ["metric"]},
    "scope": {"name": str, "version": str},
    "metric": {"name": str, "description": str, "unit": str, "gauge": "gauge"},
    "gauge": {"dataPoints": ["point"]},
    "point": {"attributes": ["attribute"], "timeUnixNano": str, "asDouble": float},
    "attribute": {"key": str, "value": "value"},
    "value": {"stringValue": str},
}


def find_faults(value: Any, kind: Any) -> list[str]:
    """Where JSON is not of a kind, as OTLP has it."""
    if isinstance(kind, list):
        if not isinstance(value, list) or not (value or kind == ["attribute"]):
            return [f"{kind} is {value!r}"]
        return [fault for item in value for fault in find_faults(item, kind[0])]
    if not isinstance(kind, str):
        return [] if isinstance(value, kind) else [f"{kind} is {value!r}"]
    if not isinstance(value, dict) or value.keys() != MESSAGES[kind].keys():
        return [f"{kind} is {value!r}"]
    return [
        fault for key, inner in MESSAGES[kind].items() for fault in find_faults(value[key], inner)
    ]


def lines(*made: Gauge) -> list[dict[str, Any]]:
    text = otlp.render_otlp(Document(title="", brief=(), gauges=[*made]))
    found = [json.loads(line) for line in text.splitlines()]
    assert [fault for line in found for fault in find_faults(line, "data")] == []
    return found


def metrics(*made: Gauge) -> list[dict[str, Any]]:
    return [
        metric
        for line in lines(*made)
        for metric in line["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    ]


def test_a_case_is_a_point_with_attributes_time_and_unit() -> None:
    file = make_file([record(case(64), 2e6)])
    found = {metric["name"]: metric for metric in metrics(*gauges.list_run_gauges([file]))}
    time = found["collbench.case.time"]
    assert time["unit"] == "s" and time["description"].startswith("Time of a call")
    (point,) = time["gauge"]["dataPoints"]
    assert point["asDouble"] == pytest.approx(2e-3)
    assert point["timeUnixNano"] == "1767323345000000000"  # when the run ended
    attributes = {item["key"]: item["value"]["stringValue"] for item in point["attributes"]}
    assert attributes["collbench.collective"] == "all_reduce"
    assert attributes["collbench.size"] == "64"
    assert found["collbench.case.bus_bandwidth"]["unit"] == "By/s"
    assert found["collbench.run.end_timestamp"]["unit"] == "s"
    assert found["collbench.case.launches"]["unit"] == "1"


def test_a_line_begins_with_the_resource_by_which_a_file_is_known() -> None:
    (line,) = lines(Gauge("collbench_a", "A.", [({}, 1)]))
    attributes = line["resourceMetrics"][0]["resource"]["attributes"]
    assert attributes[0] == {"key": "service.name", "value": {"stringValue": "collbench"}}


def test_every_run_keeps_its_own_time() -> None:
    late = "2026-01-03T00:00:00+00:00"
    files = [
        make_file([record(case(64))], end=None, name="early"),
        make_file([record(case(64))], end=None, name="late", started=late),
    ]
    points = [
        point
        for metric in metrics(*gauges.list_run_gauges(files))
        if metric["name"] == "collbench.case.time"
        for point in metric["gauge"]["dataPoints"]
    ]
    assert len({point["timeUnixNano"] for point in points}) == len(points) == 2


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_absent(value: float) -> None:
    assert lines(Gauge("collbench_a", "A.", [({}, value)])) == []


def test_many_values_take_several_lines_which_the_collector_can_read() -> None:
    count = 3 * otlp.LINE_POINTS
    labels = gauges.label_case(case(64, env=(("A", "x" * 500),)))
    made = Gauge("collbench_a", "A.", [({**labels, "n": str(n)}, n) for n in range(count)])
    text = otlp.render_otlp(Document(title="", brief=(), gauges=[made]))
    assert max(map(len, text.splitlines())) < 1 << 20
    points = [point for metric in metrics(made) for point in metric["gauge"]["dataPoints"]]
    assert [point["asDouble"] for point in points] == list(range(count))


def test_a_verdict_is_written_too() -> None:
    made = health.make_document(checks.judge_night([make_file([record(case(64))])]))
    assert {metric["name"] for metric in metrics(*made.gauges)} >= {"collbench.health.state"}


def test_the_faults_of_a_line_are_found() -> None:
    (line,) = lines(Gauge("collbench_a", "A.", [({}, 1)]))
    line["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["gauge"]["dataPoints"][0].pop(
        "timeUnixNano"
    )
    assert find_faults(line, "data")


def test_opentelemetrys_own_messages_take_every_line() -> None:
    if importlib.util.find_spec("opentelemetry") is None:
        way = "pip install opentelemetry-proto, beside which Ray starts no more"
        stop_without("opentelemetry", way)
    from google.protobuf import json_format
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    file = make_file([record(what) for what in sized(5)])
    for line in otlp.render_otlp(gauges.make_document([file])).splitlines():
        message = json_format.Parse(line, MetricsData(), ignore_unknown_fields=False)
        assert json.loads(json_format.MessageToJson(message)) == json.loads(line)
