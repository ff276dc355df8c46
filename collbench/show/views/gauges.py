"""Cases of runs as gauges for monitoring: the time of each with its interval, its busbw, and how
the runs ended.

A case is one set of labels, none of which changes from night to night, so that its gauges are the
same time series each time. Runs of one suite, machine and night (noon to noon, UTC) are launches of
one measurement, as under a launcher, where each run is a launch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from datetime import datetime
from typing import Any, get_args

from collbench.core.text import format_settings, plain_line
from collbench.machine import environment
from collbench.records.machines import name_machine
from collbench.records.origins import is_fake
from collbench.records.points import Point, over_launches
from collbench.records.rows import group_rows, make_rows, select_fit
from collbench.records.types import RunFile, Status
from collbench.show.document import Document, Gauge
from collbench.suite.case import Case

NOON, DAY = 43_200.0, 86_400.0  # seconds

CASE_GAUGES = {  # by what a case has
    "time_seconds": "Time of a call: the median over launches.",
    "time_low_seconds": "Lower end of its 95 % interval (of one launch: of samples) if known.",
    "time_high_seconds": "Upper end of its 95 % interval (of one launch: of samples) if known.",
    "bus_bandwidth_bytes_per_second": "busbw, as nccl-tests defines it; absent where it has none.",
    "launches": "Launches, each of fresh ranks, behind the time.",
    "doubts": "Flags for which the case decides no verdict.",
}
RUN_GAUGES = {
    "info": "1, with the run's id, its tag and the version of collbench that measured it.",
    "cases": "Records of the run, by how they ended.",
    "start_timestamp_seconds": "When the run began.",
    "end_timestamp_seconds": "When the run ended; absent where it was cut short.",
    "exit_code": "How measuring ended, before limits were judged; absent where it was cut short.",
    "injected": "1 where faults were planted on purpose.",
    "fake": "1 where the run was measured on a fake GPU.",
}


def make_document(files: Sequence[RunFile]) -> Document:
    """The runs for monitoring alone: gauges."""
    return Document(title="", brief=(), gauges=list_run_gauges(files))


def list_run_gauges(files: Sequence[RunFile]) -> list[Gauge]:
    """The gauges of every run and of its cases, metric by metric."""
    gauges = [gauge for file in files for gauge in _describe_run(file)]
    gauges += [gauge for night in _group_by_night(files) for gauge in _describe_cases(night)]
    order = [f"collbench_run_{name}" for name in RUN_GAUGES]
    order += [f"collbench_case_{name}" for name in CASE_GAUGES]
    return sorted(gauges, key=lambda gauge: order.index(gauge.name))


def _describe_run(file: RunFile) -> list[Gauge]:
    """The gauges of a run, whose labels are suite and machine."""
    run, labels = file.run, _label_run(file)
    statuses = [record.status for record in file.records]
    started = parse_time(run.started)
    ended = parse_time(file.end.ended) if file.end else None
    values: dict[str, list[tuple[dict[str, str], float]]] = {
        "info": [
            (
                {
                    **labels,
                    "run": plain_line(run.id),
                    "tag": plain_line(run.tag),
                    "version": _find_version(file),
                },
                1,
            )
        ],
        "cases": [
            ({**labels, "status": status}, statuses.count(status)) for status in get_args(Status)
        ],
        "start_timestamp_seconds": [] if started is None else [(labels, started)],
        "end_timestamp_seconds": [] if ended is None else [(labels, ended)],
        "exit_code": [(labels, file.end.exit)] if file.end else [],
        "injected": [(labels, bool(run.policy.inject))],
        "fake": [(labels, is_fake(file))],
    }
    return [
        Gauge(f"collbench_run_{name}", about, values[name], _find_time(file))
        for name, about in RUN_GAUGES.items()
    ]


def _group_by_night(files: Sequence[RunFile]) -> list[list[RunFile]]:
    """Runs that were measured alike in one night; an imported log is a measurement of its own."""
    groups: dict[Hashable, list[RunFile]] = {}
    for file in files:
        run, started = file.run, parse_time(file.run.started)
        night = run.id if started is None or run.imported else (started - NOON) // DAY
        settings = environment.make_fingerprint(run.environment, file.backends)
        key = (*_label_run(file).values(), run.policy, settings, night)
        groups.setdefault(key, []).append(file)
    return [*groups.values()]


def _describe_cases(files: Sequence[RunFile]) -> list[Gauge]:
    """The gauges of the cases that have a time, over all launches of runs that were measured
    alike."""
    labels = _label_run(files[0])
    if fault := files[0].run.policy.inject:
        labels["fault"] = plain_line(fault)
    values: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name in CASE_GAUGES}
    rows = group_rows(make_rows(files), lambda row: (row.case, row.predicted))
    points = [over_launches(launches) for launches in rows.values() if select_fit(launches)]
    for point in sorted(points, key=lambda point: point.case.reading_order):
        for name, value in _measure_point(point).items():
            values[name].append(({**labels, **label_case(point.case), "over": point.over}, value))
    ended = max((time for time in map(_find_time, files) if time is not None), default=None)
    return [
        Gauge(f"collbench_case_{name}", about, values[name], ended)
        for name, about in CASE_GAUGES.items()
    ]


def _measure_point(point: Point) -> dict[str, float]:
    """The values of a case by CASE_GAUGES, in seconds and bytes a second."""
    low, high = point.bounds
    bandwidth = {} if point.busbw is None else {"bus_bandwidth_bytes_per_second": point.busbw * 1e9}
    return {
        "time_seconds": point.median / 1e9,
        "time_low_seconds": low / 1e9,
        "time_high_seconds": high / 1e9,
        **bandwidth,
        "launches": point.launches,
        "doubts": len(point.ungated),
    }


def _label_run(file: RunFile) -> dict[str, str]:
    """The labels that all gauges of a run have."""
    return {"suite": plain_line(file.run.suite.name), "machine": plain_line(name_machine(file))}


def label_case(case: Case) -> dict[str, str]:
    """The labels of a case: all that says what was measured. Those that few cases have are left out
    where they are as usual."""
    unusual: dict[str, Any] = {
        "subject": case.subject,
        "root": "" if case.root < 0 else case.root,
        "settings": format_settings(case.env),
        "splits": case.splits,
        "align": "" if case.align == 1 else case.align,
        "groups": case.groups,
        "group": f"{case.group}/{case.of}" if case.of > 1 else "",
        "arrival": case.arrival,
        "background": case.background,
    }
    usual = {
        "collective": case.collective,
        "size": case.nbytes,
        "ranks": case.n,
        "backend": case.backend,
        "algorithm": case.algorithm,
        "dtype": case.dtype,
        "op": case.op,
        "in_place": "yes" if case.in_place else "no",
        "mode": case.mode,
    }
    return {
        name: plain_line(str(value)) for name, value in (usual | unusual).items() if value != ""
    }


def parse_time(text: str) -> float | None:
    """Seconds since 1970 of an ISO time; None where the text is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _find_version(file: RunFile) -> str:
    """The collbench that measured a run; empty where that was not recorded."""
    libraries = file.run.environment.get("libraries")
    return plain_line(str(libraries.get("collbench", ""))) if isinstance(libraries, dict) else ""


def _find_time(file: RunFile) -> float | None:
    """When a run ended, or began where it was cut short."""
    ended = parse_time(file.end.ended) if file.end else None
    return parse_time(file.run.started) if ended is None else ended
