"""The JSON that nccl-tests and rccl-tests write with ``-J`` (schemas 1 to 3), and collbench's own
in their schema.

It is not always JSON: infinity is written bare, and a run that broke off leaves a torn file, of
which whole results are still read. It names neither collective nor ranks; ``devices`` lists the
first GPU of each process.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, Literal

import msgspec

from collbench.core.errors import UsageError
from collbench.features.interop.importers import Line, Reading, Table, parse_number
from collbench.features.interop.importers.commands import find_test
from collbench.features.interop.importers.nccltests import (
    RANKS,
    SPELLED,
    describe_averaging,
    from_bandwidth,
    library_name,
    mode_of,
    parse_iterations,
    why_foreign,
)
from collbench.features.interop.importers.text import refuse_too_many_values
from collbench.records.types import PER_RANK_SAMPLES, RankInfo, ToolTime
from collbench.suite.case import Mode, Ranks, Whole
from collbench.suite.policy import Policy

BARE = re.compile(r"(?<=[:\[,])\s*(-?)(inf|nan)(?=\s*[,}\]])")


class _Half(msgspec.Struct):
    time: float | str | None = None
    cpu_time: float | str | None = None
    alg_bw: float | str | None = None
    bus_bw: float | str | None = None
    nwrong: float | str | None = None


class _Iterations(msgspec.Struct):
    skipped_iterations: int = 0
    times_us: list[float] = []
    per_process_max_times_us: list[list[float]] = []


class _Result(msgspec.Struct):
    size: int
    count: int
    type: str
    redop: str = ""
    root: str | int = 0
    out_of_place: _Half | None = None
    in_place: _Half | None = None
    out_of_place_per_iter: _Iterations | None = None
    in_place_per_iter: _Iterations | None = None


class _Device(msgspec.Struct):
    hostname: str
    device_info: str = ""
    group: int = 0
    pid: int = 0
    device: int = 0
    device_hex: str = ""


class _Config(msgspec.Struct):
    nthreads: int = 1
    ngpus: int = 1
    warmup_iters: int | None = None
    iterations: int | None = None
    aggregated_iterations: int = 1
    validation: int = 1
    graph: int = 0
    blocking_collectives: str = "false"
    devices: list[_Device] = []


class _Extra(msgspec.Struct):
    """What collbench adds to each result of its own JSON, as fields of Table."""

    collective: str
    backend: str
    algorithm: str
    n: int
    mode: Mode
    env: tuple[tuple[str, str], ...] = ()
    splits: str = ""
    arrival: str = ""
    background: str = ""
    groups: str = ""
    group: Whole = 0
    of: Ranks = 1


class _Ours(msgspec.Struct):
    time: str = ""
    results: list[_Extra] = []


class _Document(msgspec.Struct):
    results: list[Any]
    args: list[str] = []
    env: list[str] = []
    version: int = 0
    start_time: str = ""
    end_time: str = ""
    nccl_version: int = 0
    rccl_version: int = 0
    config: _Config = msgspec.field(default_factory=_Config)
    average_bus_bandwidth: dict[str, Any] = {}
    out_of_bounds: dict[str, Any] = {}
    errors: list[Any] = []
    collbench: _Ours | None = None


def read_log(text: str, reading: Reading) -> None:
    """Tells ``reading`` all results in ``text``. Raises UsageError where it lacks what a person
    must add."""
    document = _read_document(text, reading)
    tables, printed = _read_head(document, reading)
    for at, (item, table) in enumerate(zip(document.results, tables, strict=False), 1):
        try:
            result = msgspec.convert(item, _Result, strict=False)
            root = int(result.root)
        except (msgspec.ValidationError, ValueError) as e:
            reading.lost.append((f"result {at}", str(e)))
            continue
        if isinstance(table, str):
            reading.omitted[table] += 1
            continue
        for in_place, half, series in (
            (False, result.out_of_place, result.out_of_place_per_iter),
            (True, result.in_place, result.in_place_per_iter),
        ):
            line = Line(
                where=f"result {at}",
                size=result.size,
                count=result.count,
                in_place=in_place,
                root=root,
                dtype=SPELLED.get(result.type, result.type),
                op=SPELLED.get(result.redop, result.redop),
            )
            if half:
                _take_half(reading, table, line, half, series or _Iterations(), printed)


def _read_head(document: _Document, reading: Reading) -> tuple[list[Table | str], dict[str, Any]]:
    """What stands before the results, told to ``reading``: the table of each (see _tables), and
    the fields of ToolTime that all have."""
    config, ours = document.config, document.collbench
    tool = "rccl-tests" if document.rccl_version else "collbench" if ours else "nccl-tests"
    reading.tool = f"{tool} JSON, schema {document.version}"
    reading.command, reading.started = document.args, _format_iso(document.start_time)
    reading.averages += filter(parse_number, [str(document.average_bus_bandwidth.get("bandwidth"))])
    failures = _parse_number(document.out_of_bounds.get("count")) or 0
    reading.failures = int(max(failures, document.out_of_bounds.get("okay") == "false"))
    for error in document.errors:
        reading.warn(f"the log has an error: {error}")
    reading.ended, reading.closed = _format_iso(document.end_time), bool(document.end_time)
    reading.settings = dict(setting.split("=", 1) for setting in document.env if "=" in setting)
    given = re.search(r" (?:-z ?|--blocking[ =])([0-3])", " ".join(document.args))
    blocking = int(given[1]) if given else int(config.blocking_collectives == "true")
    reading.policy = Policy(
        iters=parse_iterations(config.iterations),
        warmup=config.warmup_iters,
        agg_iters=max(1, config.aggregated_iterations),
        check=config.validation,
        blocking=blocking,
    )
    library = library_name(document.nccl_version or document.rccl_version, tool)
    mode: Mode = "graph" if config.graph else mode_of(blocking)
    tables = _list_tables(document, reading, mode, library)
    printed: dict[str, Any] = {"ranks": describe_averaging(document.args)}
    if ours:
        printed = {
            "over": "median",
            "ranks": next((v for k, v in RANKS.items() if ours.time.endswith(k)), "mean"),
        }
    return tables, printed


def _read_document(text: str, reading: Reading) -> _Document:
    """The whole of it; of a torn file what comes before the results, and those that are whole."""
    text = refuse_too_many_values(text, reading.request.name)
    text = BARE.sub(lambda bare: bare[1] + {"inf": "Infinity", "nan": "NaN"}[bare[2]], text)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = _salvage_document(text)
        reading.warnings.append(
            f"the JSON is torn: only {len(document['results'])} results are whole"
        )
    try:
        return msgspec.convert(document, _Document, strict=False)
    except ValueError as e:  # of another type, or no text
        raise UsageError(
            f"{reading.request.name}: {e}", "give the JSON that nccl-tests writes with -J"
        ) from e


def _salvage_document(text: str) -> dict[str, Any]:
    head, results, tail = text.partition('"results":[')
    try:
        document: dict[str, Any] = json.loads(f"{head}{results}]}}") if results else {}
    except (ValueError, RecursionError):
        document = {}
    document["results"] = []
    decoder = json.JSONDecoder()
    at = 0
    while tail[at : at + 1] == "{":
        try:
            result, at = decoder.raw_decode(tail, at)
        except (ValueError, RecursionError):
            break
        document["results"].append(result)
        at += tail[at : at + 1] == ","
    return document


def _list_tables(
    document: _Document, reading: Reading, mode: Mode, library: str
) -> list[Table | str]:
    """The table each result belongs to, or why it belongs to none."""
    if document.collbench:
        extras = document.collbench.results
        fields = [
            {name: getattr(extra, name) for name in extra.__struct_fields__} for extra in extras
        ]
        return [Table(library=library, **values) for values in fields]
    config, count = document.config, len(document.results)
    if not count:
        return []
    program = find_test(document.args)
    name = reading.collective("", program)
    reason = why_foreign(name, program)
    group = [device for device in config.devices if device.group == config.devices[0].group]
    per_process = config.nthreads * config.ngpus
    n = 0 if reason else reading.ranks(len(group) * per_process)
    ranks = [
        RankInfo(
            rank=p * per_process + i, host=d.hostname, pid=d.pid, cpus=[], device=_name_device(d, i)
        )
        for p, d in enumerate(group if n == len(group) * per_process else [])
        for i in range(per_process)
    ]
    sync: Literal["", "barrier"] = (
        "barrier" if reading.policy.blocking == 1 and mode == "streaming" else ""
    )
    table = Table(collective=name, n=n, mode=mode, sync=sync, library=library, ranks=ranks)
    return [reason or table] * count


def _take_half(
    reading: Reading,
    table: Table,
    line: Line,
    half: _Half,
    series: _Iterations,
    printed: dict[str, Any],
) -> None:
    """A half of a result, with its samples where it has any."""
    time, size = _parse_number(half.time), line.size
    wrong, note = _parse_number(half.nwrong), ""
    if half.cpu_time is not None:
        time = from_bandwidth(size, f"{_parse_number(half.alg_bw) or 0:f}") or None
        note = reading.rebuilt() if time else ""
    line = msgspec.structs.replace(line, wrong=None if wrong is None else int(wrong), note=note)
    if time is None and wrong:  # by us, who show no time of wrong data
        reading.add(table, line)
        return
    if time is None:
        unread = half.time if half.cpu_time is None else half.alg_bw
        if unread is not None:
            place_name = "in place" if line.in_place else "out of place"
            reading.lost.append((f"{line.where}, {place_name}", f"a time of {unread}"))
        return
    skip = max(0, series.skipped_iterations)
    try:
        times = _parse_nanoseconds(series.times_us[skip:])
        rows = [
            _parse_nanoseconds(row[skip:][:PER_RANK_SAMPLES])
            for row in series.per_process_max_times_us
        ]
    except ValueError as e:
        reading.lost.append((line.where, str(e)))
        return
    per_rank = len(rows) == table.n and {len(row) for row in rows} == {
        min(len(times), PER_RANK_SAMPLES)
    }
    reading.add(
        table,
        msgspec.structs.replace(
            line,
            tool_time=ToolTime(time=time * 1e3, samples=0 if "over" in printed else 1, **printed),
            times_ns=times,
            per_rank=rows if times and per_rank else [],
            printed=_format_printed(half, time),
        ),
    )


def _format_printed(half: _Half, time: float) -> tuple[str, str, str] | None:
    """Time (µs), algbw and busbw as texts; None where they are not of the same calls, or no
    numbers."""
    algbw, busbw = _parse_number(half.alg_bw), _parse_number(half.bus_bw)
    if half.cpu_time is not None or algbw is None or busbw is None:
        return None
    return f"{time:f}", f"{algbw:f}", f"{busbw:f}"


def _name_device(first: _Device, behind: int) -> str:
    """The GPU so many behind a process's first, of which alone the bus address is known."""
    address = "" if behind else f" [{first.device_hex}]"
    return f"cuda:{first.device + behind}{address} {first.device_info}"


def _parse_nanoseconds(times: list[float]) -> list[int]:
    """Raises ValueError where one is no time."""
    if not all(0 <= t < 1e12 for t in times):
        raise ValueError("a time of an iteration is not a number of microseconds")
    return [round(t * 1e3) for t in times]


def _parse_number(value: float | str | None) -> float | None:
    return None if value is None else parse_number(str(value))


def _format_iso(stamp: str) -> str:
    """The local time that a tool wrote, in ISO form and as it is without a zone; "" where it is
    none."""
    try:
        return datetime.fromisoformat(stamp).isoformat()
    except ValueError:
        return ""
