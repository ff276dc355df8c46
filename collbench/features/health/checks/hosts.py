"""What a night's records say of data, ranks, GPUs and hosts: each check looks at all of them, and
says what it saw."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from collbench.core.text import format_count, plain_line
from collbench.features.health.findings import Evidence, Finding, Severity, Subject
from collbench.features.health.night import (
    Change,
    Night,
    NightRecord,
    find_broken,
    find_changes,
    list_several,
    locate_rank,
    make_evidence,
)
from collbench.features.health.pairs import judgement as uniformity
from collbench.machine import environment
from collbench.records.derive import names_ranks
from collbench.records.stats import NAMING
from collbench.records.types import PROGRAM_XIDS, GpuState

SHOWN = 10  # pieces of evidence of one finding

LATE_ROWS, LATE_SHARE = (
    3,
    0.25,
)  # records that name a rank (each errs once in a thousand) before the night does

BY_LATENESS = ("skewed!", "invalid!")  # flags that a late rank itself brings about

CLOCK = 0.90  # of the median of its kind: a GPU below was held back

RANK = re.compile(r"\branks? (\d+)\b(?!, \d| and)")


class CheckResult(NamedTuple):
    """What a check saw. ``missing`` says why it had nothing to look at; ``idle``: that nothing here
    is its business. ``lacks`` names what no verdict can do without and this check should have
    seen, whatever others saw; ``missing`` says why then."""

    note: str = ""
    findings: Sequence[Finding] = ()
    missing: str = ""
    idle: str = ""
    lacks: str = ""


class Rising(NamedTuple):
    """A field of GpuState that should not rise while collectives run."""

    field: str
    severity: Severity
    what: str
    advice: str


COUNTERS = (
    Rising(
        "xid",
        "critical",
        "Xid",
        "look the number up in NVIDIA's Xid table and dmesg; drain the host",
    ),
    Rising("ecc", "critical", "uncorrected ECC errors", "drain the host; reset or replace the GPU"),
    Rising(
        "nvlink_errors",
        "warning",
        "NVLink or xGMI errors",
        "nvidia-smi nvlink -e, or amd-smi metric --ecc-blocks; reseat or replace baseboard or GPU",
    ),
    Rising(
        "pcie_replays",
        "hint",
        "PCIe replays",
        "nvidia-smi -q -d PCIE, amd-smi metric --pcie; see riser, cable and slot if they go on",
    ),
)


def check_stragglers(night: Night) -> CheckResult:
    """Ranks that come late to what all wait for, and ranks that come in time and leave last, which
    are two faults."""
    telling = [
        t
        for t in night.records
        if t.row
        and not find_broken(t.row.flags, BY_LATENESS)
        and names_ranks(t.record, t.world, t.row.lateness)
    ]
    if not telling:
        return CheckResult(
            missing=(
                "no record says when each rank came (ranks on cores of their own, collectives that "
                f"synchronise, {NAMING} samples)"
            )
        )
    late = _find_named(
        telling, "stragglers", lambda entry: entry.row.late_rank if entry.row else None, *LATE
    )
    timed = [t for t in telling if t.row and t.row.t_glob is not None]  # on one clock
    slow = _find_named(
        timed, "stragglers", lambda entry: entry.row.slow_rank if entry.row else None, *SLOW
    )
    return CheckResult(
        f"when each rank came: {format_count(len(telling), 'record')}", [*late, *slow]
    )


LATE = (
    "comes late: others wait for it before the collective begins",
    (
        "look at what else runs on its cores, at its clocks and at its NUMA placement; its links"
        " are not at fault"
    ),
)

SLOW = (
    "comes in time and leaves last: its transfers take longer",
    "look at its link: rate and errors of NIC, cable and port; collbench pairs measures it alone",
)


def _find_named(
    telling: Sequence[NightRecord],
    check: str,
    ask: Callable[[NightRecord], int | None],
    what: str,
    advice: str,
) -> list[Finding]:
    """The ranks that enough records name: by chance each names one in a thousand."""
    by_rank: dict[Subject, list[NightRecord]] = defaultdict(list)
    for entry in telling:
        rank = ask(entry)
        if rank is not None:
            by_rank[locate_rank(entry.world, rank)].append(entry)
    return [
        Finding(
            check=check,
            severity="warning",
            subject=subject,
            advice=advice,
            what=f"{what}, in {len(members):,} of {format_count(len(telling), 'record')}",
            sure=_name_certainty(len(members), len(telling)),
            evidence=[
                make_evidence(
                    entry,
                    f"median lateness of rank {ask(entry)}",
                    _find_lateness(entry, ask(entry)),
                    "0",
                    "µs",
                )
                for entry in members[:SHOWN]
            ],
        )
        for subject, members in by_rank.items()
        if len(members) >= max(LATE_ROWS, LATE_SHARE * len(telling))
    ]


def _name_certainty(times: int, among: int) -> float:
    """That it is not chance which named a rank so often, one record in a thousand at most being
    wrong: a bound, as of k things in n there are at most (e n / k)^k choices."""
    return max(0.0, 1 - (math.e * among / times * 0.001) ** times)


def _find_lateness(entry: NightRecord, rank: int | None) -> float | str:
    members = list(entry.record.case.members)
    late = entry.row.lateness if entry.row else ()
    index = members.index(rank) if rank in members else len(late)
    return round(late[index] / 1000, 1) if index < len(late) else "unknown"


def check_pairs(night: Night) -> CheckResult:
    """Hosts, ranks and links that stand out among pairs of ranks measured alike."""
    matrices = [(file, uniformity.make_matrix(file)) for file in night.files]
    measured = [file for file, matrix in matrices if matrix]
    found = [matrix for _, matrix in matrices if matrix]
    if not measured:
        return CheckResult(missing="no run measured pairs of ranks: collbench pairs does")
    few = not any(uniformity.is_comparable(matrix, {}) for matrix in found)
    findings = []
    for file in measured:
        # then pairs disturb each other
        crowded = any(world.oversubscribed for world in file.worlds)
        findings += [
            msgspec.structs.replace(
                finding, check="pairs", severity="hint" if crowded else finding.severity
            )
            for finding in uniformity.judge_pairs(file)
        ]
    missing = "too few pairs of ranks for one to stand out" if few else ""
    missing = missing or "; ".join(filter(None, map(uniformity.explain_unrated, found)))
    note = f"pairs of {format_count(len(measured), 'run')} held against each other"
    return CheckResult(note, findings, missing)


def check_gpus(night: Night) -> CheckResult:
    """Clocks, what held them back, and errors that came while cases ran, of every GPU."""
    entries = [entry for entry in night.records if entry.record.gpus]
    if not any(info.gpu for file in night.files for w in file.worlds for info in w.ranks):
        return CheckResult(idle="no GPU took part")
    if not entries:
        return CheckResult(missing="no record holds a GPU's state: is nvidia-ml-py installed?")
    by_gpu: dict[Subject, list[tuple[NightRecord, GpuState]]] = defaultdict(list)
    subjects_by_key: dict[tuple[object, ...], list[Subject]] = {}  # of a fleet's million readings
    for entry in entries:
        case, states = entry.record.case, entry.record.gpus
        names = [(state.index, state.name) for state in states]
        key = (id(entry.world), case.groups, case.group, case.n, *names)
        if key not in subjects_by_key:
            subjects = [_find_gpu(entry, rank, state) for rank, state in enumerate(states)]
            subjects_by_key[key] = subjects
        for subject, state in zip(subjects_by_key[key], states, strict=True):
            by_gpu[subject].append((entry, state))
    count = sum(len(readings) for readings in by_gpu.values())
    findings = [
        finding
        for subject, readings in by_gpu.items()
        for finding in (*_find_risen(subject, readings), *_find_held_back(subject, readings))
    ]
    return CheckResult(
        f"{format_count(len(by_gpu), 'GPU')} watched in {format_count(count, 'reading')}",
        [*findings, *_slow_clocks(by_gpu)],
    )


def _find_gpu(entry: NightRecord, index: int, state: GpuState) -> Subject:
    """States stand in the order of ranks, unless some rank's GPU says nothing."""
    members = entry.record.case.members
    covers_all = entry.world is not None and len(entry.record.gpus) == len(members)
    subject = locate_rank(entry.world, members[index]) if covers_all else None
    return (
        subject
        if subject and subject.kind == "gpu"
        else Subject("gpu", f"GPU {state.index}, {plain_line(state.name)}")
    )


def _find_program_xids(subject: Subject, xids: Sequence[tuple[NightRecord, int]]) -> Finding:
    """A hint on Xids that are all of programs."""
    return Finding(
        check="gpus",
        severity="hint",
        subject=subject,
        what=f"Xid {xids[-1][1]} while collectives ran, which is a program's fault or its end",
        advice="the program may be another's: dmesg names it",
        evidence=[make_evidence(entry, "Xid", xid, "0") for entry, xid in xids[:SHOWN]],
    )


def _find_risen(
    subject: Subject, readings: Sequence[tuple[NightRecord, GpuState]]
) -> list[Finding]:
    """A finding for each error counter of a GPU that rose."""
    findings = []
    for counter in COUNTERS:
        values = [
            (entry, value) for entry, state in readings if (value := getattr(state, counter.field))
        ]
        if counter.field == "xid" and values:
            grave = [(entry, xid) for entry, xid in values if xid not in PROGRAM_XIDS]
            if not grave:
                findings.append(_find_program_xids(subject, values))
            values = grave
        if values:
            total = (
                f"Xid {values[-1][1]}"
                if counter.field == "xid"
                else f"{sum(v for _, v in values):,} {counter.what}"
            )
            findings.append(
                Finding(
                    check="gpus",
                    severity=counter.severity,
                    subject=subject,
                    what=f"{total} while collectives ran",
                    advice=counter.advice,
                    # errors of links may be the other end's
                    sure=1.0 if counter.severity == "critical" else None,
                    evidence=[
                        make_evidence(entry, counter.what, value, "0")
                        for entry, value in values[:SHOWN]
                    ],
                )
            )
    return findings


def _find_held_back(
    subject: Subject, readings: Sequence[tuple[NightRecord, GpuState]]
) -> list[Finding]:
    """The finding for a GPU whose clocks were limited, in a list; empty where they were not."""
    reasons = Counter(reason for _, state in readings for reason in state.throttle)
    if not reasons:
        return []
    spoils = any(state.is_held_back for _, state in readings)
    severity: Severity = "warning" if spoils else "hint"
    hot = max((state.celsius for _, state in readings if state.celsius is not None), default=None)
    evidence = [
        make_evidence(entry, "held back by", ", ".join(state.throttle))
        for entry, state in readings
        if state.throttle
    ]
    causes = list_several(
        f"{plain_line(reason)} in {times:,} readings" for reason, times in reasons.most_common()
    )
    return [
        Finding(
            check="gpus",
            severity=severity,
            subject=subject,
            sure=1.0,
            evidence=evidence[:SHOWN],
            what=f"was held back: {causes}" + (f", at most {hot} °C" if hot is not None else ""),
            advice="look at cooling, power supply and power limits: nvidia-smi -q -d PERFORMANCE",
        )
    ]


def _slow_clocks(by_gpu: Mapping[Subject, Sequence[tuple[NightRecord, GpuState]]]) -> list[Finding]:
    """GPUs whose clock stays below 90 % of the median of their kind."""
    clocks = {
        (subject, readings[0][1].name): statistics.median(clock_rates)
        for subject, readings in by_gpu.items()
        if (clock_rates := [state.sm_mhz for _, state in readings if state.sm_mhz])
    }
    findings = []
    for (subject, name), mhz in clocks.items():
        usual = statistics.median(other for (_, kind), other in clocks.items() if kind == name)
        if mhz < CLOCK * usual:
            run = by_gpu[subject][0][0].file.run.id
            evidence = Evidence(
                what="median SM clock", value=mhz, expected=usual, unit="MHz", run=run
            )
            findings.append(
                Finding(
                    check="gpus",
                    severity="warning",
                    subject=subject,
                    evidence=[evidence],
                    what=f"runs at {mhz / usual:.0%} of the clock of other {plain_line(name)}",
                    advice=(
                        "compare its clock and power limits with another's: nvidia-smi -q -d CLOCK"
                    ),
                )
            )
    return findings


def check_alike(night: Night) -> CheckResult:
    """Whether the hosts of a world agree in all that decides performance, and whether each is as it
    was in the night's runs before."""
    several_hosts = [(file, world) for file in night.files for world in file.worlds if world.hosts]
    changed = [
        msgspec.structs.replace(finding, advice=f"{finding.advice}. {APART}")
        for finding in find_changed(night)
    ]
    if not several_hosts:
        return CheckResult("one host", changed) if changed else CheckResult(idle="one host")
    findings: dict[Subject, Finding] = {}
    for file, world in several_hosts:
        usual = Counter(info.fingerprint for info in world.hosts).most_common(1)[0][0]
        model = next(info for info in world.hosts if info.fingerprint == usual)
        for info in world.hosts:
            differing = [
                key for key in info.differs if info.differs.get(key) != model.differs.get(key)
            ]
            if info.fingerprint != usual and differing:
                evidence = [
                    Evidence(
                        what=plain_line(key),
                        value=plain_line(str(info.differs[key])),
                        run=file.run.id,
                        expected=plain_line(str(model.differs.get(key))),
                    )
                    for key in differing[:SHOWN]
                ]
                subject = Subject("host", info.host)
                findings.setdefault(
                    subject,
                    Finding(
                        check="alike",
                        severity="hint",
                        subject=subject,
                        evidence=evidence,
                        sure=1.0,
                        what=f"is not like most hosts: {list_several(map(plain_line, differing))}",
                        advice="bring it to the state of the others, or expect its speed to differ",
                    ),
                )
    hosts = {info.host for _, world in several_hosts for info in world.hosts}
    return CheckResult(
        f"{format_count(len(hosts), 'host')} compared", [*changed, *findings.values()]
    )


APART = "Rows of before and after are not held against earlier nights together"


def find_changed(night: Night) -> list[Finding]:
    """A finding for each host whose GPUs, network cards or ports changed from run to run."""
    by_host: dict[str, list[Change]] = defaultdict(list)
    for change in find_changes(night.files):
        by_host[change.host].append(change)
    return [
        Finding(
            check="alike",
            severity="warning",
            subject=Subject("host", host),
            what=(
                "changed from run to run:"
                f" {environment.list_facts([change.difference for change in changes])}"
            ),
            advice="look at its GPUs, cards, cables and ports, and at dmesg",
            evidence=[
                Evidence(
                    what=plain_line(fact),
                    value=plain_line("absent" if new is None else str(new)),
                    expected=plain_line("absent" if old is None else str(old)),
                    run=change.run,
                )
                for change in changes[:SHOWN]
                for fact, old, new in [change.difference]
            ],
        )
        for host, changes in by_host.items()
    ]
