"""Gauges for OpenTelemetry: lines of OTLP's JSON, as the Collector's file exporter writes them and
its otlpjsonfile receiver reads them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

from collbench.core.version import __version__
from collbench.machine import environment
from collbench.show.document import Document, Gauge
from collbench.survive.encoding import encode_json

LINE_POINTS = 200  # data points of a line; the Collector reads lines of at most 1 MiB

UNITS = {  # by how Prometheus' names end; what ends otherwise is a plain number
    "_bytes_per_second": "By/s",
    "_seconds": "s",
}


def render_otlp(document: Document) -> str:
    """The document's gauges, in a line each or, with many values, several."""
    now = time.time()
    host = environment.host_name()
    resource = {"service.name": "collbench", "service.version": __version__, "host.name": host}
    lines = []
    for gauge in document.gauges:
        for points in _split_points(_list_points(gauge, now)):
            scope = {"name": "collbench", "version": __version__}
            metrics = {"scope": scope, "metrics": [_describe_metric(gauge, points)]}
            attributes = {"attributes": _list_attributes(resource)}
            resources = [{"resource": attributes, "scopeMetrics": [metrics]}]
            lines.append(encode_json({"resourceMetrics": resources}).decode() + "\n")
    return "".join(lines)


def name_metric(name: str) -> tuple[str, str]:
    """OpenTelemetry's name and unit of a metric by Prometheus' name: collbench_case_time_seconds is
    collbench.case.time in s."""
    suffix = next((suffix for suffix in UNITS if name.endswith(suffix)), "")
    return ".".join(name.removesuffix(suffix).split("_", 2)), UNITS.get(suffix, "1")


def _describe_metric(gauge: Gauge, points: list[dict[str, Any]]) -> dict[str, Any]:
    name, unit = name_metric(gauge.name)
    return {
        "name": name,
        "description": gauge.about,
        "unit": unit,
        "gauge": {"dataPoints": points},
    }


def _list_points(gauge: Gauge, now: float) -> Iterator[dict[str, Any]]:
    """The data points of a gauge; what is not finite is absent."""
    when = str(round((now if gauge.seconds is None else gauge.seconds) * 1e9))
    for labels, value in gauge.values:
        if math.isfinite(value):
            attributes = {f"collbench.{name}": text for name, text in labels.items()}
            yield {
                "attributes": _list_attributes(attributes),
                "timeUnixNano": when,
                "asDouble": float(value),
            }


def _list_attributes(texts: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": text}} for key, text in texts.items() if text]


def _split_points(points: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The points of one line after another."""
    rest = [*points]
    for start in range(0, len(rest), LINE_POINTS):
        yield rest[start : start + LINE_POINTS]
