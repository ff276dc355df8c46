"""Thousands of single-node runs, read one after the other: of each its medians, what kind of
machine it is of, why it may not be judged, and what checks of a night find. No samples are kept."""

from __future__ import annotations

import gc
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from collbench.core.errors import CannotRun, CollbenchError, Exit
from collbench.core.text import format_count, plain_line
from collbench.features.health.checks.data import check_completeness
from collbench.features.health.checks.hosts import CheckResult, check_gpus
from collbench.features.health.checks.ports import check_counters
from collbench.features.health.findings import Finding, Subject
from collbench.features.health.history.nights import night_of
from collbench.features.health.night import Night, NightRecord, host_of
from collbench.machine import environment
from collbench.records import run_file
from collbench.records.case_rows import MANNER
from collbench.records.derive import is_without_samples
from collbench.records.flags import INJECTED
from collbench.records.medians import MOST_CASES, MedianReader, RunMedians
from collbench.records.origins import FAKE, ORIGINS
from collbench.records.types import Record
from collbench.show import busy
from collbench.suite.case import Case

CHUNK = 32  # files that a process reads at a time

SINGLE = 4 * CHUNK  # files up to which no process is started

CHECKS: Mapping[str, Callable[[Night], CheckResult]] = {  # checks of a night that need no samples
    "completeness": check_completeness,
    "gpus": check_gpus,
    "counters": check_counters,
}

WATCHED = ("gpus", "counters")  # of CHECKS those that a verdict can do without


class Blind(NamedTuple):
    """Why a check had nothing to look at; ``idle``: nothing there is its business."""

    why: str
    idle: bool


class NodeRun(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """What is kept of one node's run. ``trouble`` is a word for why it may not be judged, empty
    where it may, and ``why`` says it in full. ``medians`` are logarithms of nanoseconds by the name
    of their row, one for each launch that is fit. ``facts`` are of what decides times there.
    ``findings`` are what CHECKS found, but for hints, which are too many in a fleet; ``blind`` says
    of those of WATCHED that had nothing to look at why."""

    path: str
    run: str = ""
    host: str = ""
    started: str = ""
    ended: str = ""
    night: str = ""
    suite: str = ""
    trouble: str = ""
    why: str = ""
    facts: dict[str, Any] = {}
    medians: dict[str, list[float]] = {}
    launches: int = 0
    wrong: int = 0  # elements
    wrong_cases: list[str] = []
    checked: int = 0  # elements that were compared
    findings: list[Finding] = []
    blind: dict[str, Blind] = {}
    injected: str = ""
    fake: bool = False


class Batch(msgspec.Struct, array_like=True):
    """The runs of some files, and the cases behind the names of their rows."""

    runs: list[NodeRun]
    cases: dict[str, Case]


def read_runs(paths: Sequence[Path]) -> Iterator[Batch]:
    """Batches of what these files hold, in their order: by several processes where that is worth
    starting them for. A file that cannot be read is a NodeRun that says so."""
    chunks = [paths[begin : begin + CHUNK] for begin in range(0, len(paths), CHUNK)]
    workers = min(len(chunks), len(os.sched_getaffinity(0)))
    if len(paths) <= SINGLE or workers < 2:
        yield from map(_read_chunk, chunks)
        return
    decoder = msgspec.msgpack.Decoder(Batch)
    try:
        with ProcessPoolExecutor(workers, get_context("fork"), _begin_worker) as pool:
            yield from map(decoder.decode, pool.map(_pack_chunk, chunks))
    except BrokenProcessPool as e:
        raise CannotRun(
            "a process that read runs was killed", "it may have lacked memory; try again"
        ) from e


def _begin_worker() -> None:
    """Leaves Ctrl-C to the process that asks, and looks for no circles in what is read: it has
    none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()


def _pack_chunk(paths: Sequence[Path]) -> bytes:
    return msgspec.msgpack.encode(_read_chunk(paths))


def _read_chunk(paths: Sequence[Path]) -> Batch:
    reader, cases = MedianReader(), dict[str, Case]()
    return Batch([_read_node(reader, path, cases) for path in paths], cases)


def _read_node(reader: MedianReader, path: Path, cases: dict[str, Case]) -> NodeRun:
    """What a file holds of a node; the ``cases`` behind the names of its rows are added."""
    try:
        if run_file.is_running(path):
            return NodeRun(path=str(path), trouble="running", why=run_file.describe_running(path))
        medians = reader.read(path)
        return _summarise_run(medians, cases)
    except CollbenchError as e:
        return NodeRun(path=str(path), trouble="unreadable", why=plain_line(e.message))


def _summarise_run(file: RunMedians, cases: dict[str, Case]) -> NodeRun:
    run = file.run
    hosts = sorted({rank.host for world in file.worlds for rank in world.ranks})
    wrong = [record for record in file.records if record.status == "wrong"]
    by_row: dict[str, list[float]] = {}
    for row in file.rows:
        if not row.unfit and not set(row.ungated) - {INJECTED}:
            name = _name_row(row.case, row.start)
            cases.setdefault(name, row.case)
            by_row.setdefault(name, []).append(math.log(row.median))
    fit = {row.launch for row in file.rows if not row.unfit}
    trouble, why = _find_trouble(file, hosts, sum(map(len, by_row.values())))
    findings, blind = _look_for_findings(file, hosts[0]) if len(hosts) == 1 else ([], {})
    return NodeRun(
        path=str(file.path),
        run=run.id,
        host=plain_line(hosts[0]) if len(hosts) == 1 else "",
        started=run.started,
        ended=file.end.ended if file.end else "",
        night=night_of(run.started),
        suite=run.suite.name,
        trouble=trouble,
        why=plain_line(why),
        facts=_list_facts(file),
        medians=by_row,
        launches=len(fit),
        wrong=sum(record.wrong or 0 for record in wrong),
        wrong_cases=list(dict.fromkeys(record.case.key for record in wrong)),
        checked=sum(record.checked for record in file.records),
        findings=findings,
        blind=blind,
        injected=run.policy.inject,
        fake=any(world.fake for world in file.worlds),
    )


class _NodeNight(NamedTuple):
    """A node's run as far as CHECKS look at a night."""

    files: Sequence[RunMedians]
    records: Sequence[NightRecord]


def _look_for_findings(file: RunMedians, host: str) -> tuple[list[Finding], dict[str, Blind]]:
    """What CHECKS find at the one ``host`` of a run, and by check of WATCHED why one saw
    nothing."""
    worlds = {world.index: world for world in file.worlds}
    records = [
        NightRecord(cast(Any, file), cast(Record, record), None, worlds.get(record.world))
        for record in file.records
    ]
    night = cast(Night, _NodeNight([file], records))
    results = {name: check(night) for name, check in CHECKS.items()}
    is_busy = bool(busy.describe_run_load(file.run, file.records, file.end))
    findings = [
        _place_finding(finding, host, is_busy)
        for result in results.values()
        for finding in result.findings
        if finding.severity != "hint"
    ]
    blind = {
        name: Blind(why, bool(results[name].idle))
        for name in WATCHED
        if (why := results[name].idle or results[name].missing)
    }
    return findings, blind


def _place_finding(finding: Finding, host: str, is_busy: bool) -> Finding:
    """A finding about the one host of a run, which no other can have caused. Where others used the
    host, nobody can say how sure a warning is."""
    kind, name = finding.subject.kind, finding.subject.name
    if host not in host_of(finding.subject):
        kind, name = ("host", host) if kind == "cluster" else (kind, f"{host}: {name}")
    sure = None if is_busy and finding.severity == "warning" else finding.sure
    return msgspec.structs.replace(finding, subject=Subject(kind, name), alone=True, sure=sure)


@lru_cache(maxsize=MOST_CASES)
def _name_row(case: Case, start: str) -> str:
    """The name by which rows of several nodes are held against each other: the case, and what its
    key leaves out of how it was timed."""
    return f"{case.key}/{start}"


def _list_facts(file: RunMedians) -> dict[str, Any]:
    """What decides times of this run, by key path: the machine, its software, its settings, and the
    manner of measuring."""
    backends = {row.case.backend for row in file.rows}
    policy = file.run.policy
    devices = sorted({_device_name(rank.device) for world in file.worlds for rank in world.ranks})
    return {
        **environment.select_relevant(file.run.environment, backends),
        "devices": ", ".join(devices),
        **{f"measured.{name}": getattr(policy, name) for name in ("cache", *MANNER)},
    }


def _device_name(device: str) -> str:
    """The name of a rank's device without its number and address."""
    return device.partition("] ")[2] if device.startswith("cuda") else device


def _find_trouble(file: RunMedians, hosts: Sequence[str], usable: int) -> tuple[str, str]:
    """Why a run's times may not be judged: a word and a sentence, both empty where they may."""
    name, records = file.run.id, file.records
    failed = [
        record
        for record in records
        if record.status == "failed" and not is_without_samples(cast(Record, record))
    ]
    code = file.end.exit if file.end else Exit.OK
    trouble, why = "", ""
    if len(hosts) != 1:
        which = format_count(len(hosts), "host") if hosts else "no host that it names"
        trouble, why = "not of one node", f"{name} is of {which}"
    elif any(record.status == "predicted" for record in records):
        trouble, why = "not measured", f"{name} was predicted by a model"
    elif file.end is None:
        trouble, why = "unfinished", f"{name} was cut short: its file has no end"
    elif failed:
        first = f"{failed[0].case.collective}: {failed[0].note}"
        trouble = "unfinished"
        why = f"{format_count(len(failed), 'case')} failed in {name}; {first}"
    elif code not in (Exit.OK, Exit.WRONG_DATA):
        trouble, why = "unfinished", f"{name} ended with {code}: {file.end.note}"
    elif described := busy.describe_run_load(file.run, records, file.end):
        trouble, why = "disturbed", described
    elif 2 * usable < len(file.rows) or not usable:
        trouble, why = _explain_unusable(file)
    return trouble, why


def _explain_unusable(file: RunMedians) -> tuple[str, str]:
    reasons = [
        reason.rstrip("!")
        for row in file.rows
        for reason in (*row.unfit, *(flag for flag in row.ungated if flag != INJECTED))[:1]
    ]
    if not reasons:
        return "unfinished", f"{file.run.id} measured nothing"
    common = max(dict.fromkeys(reasons), key=reasons.count)
    if common == FAKE:
        return "not measured", f"{file.run.id} was {ORIGINS[FAKE].reason}"
    what = f"{len(reasons)} of {format_count(len(file.rows), 'row')}"
    return "disturbed", f"{what} of {file.run.id} may not be judged, most for: {common}"
