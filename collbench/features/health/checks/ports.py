"""What a night's runs say of network ports: their state, and the errors that they counted between
launches."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from collbench.core.text import format_count, plain_line
from collbench.features.health.checks.hosts import CheckResult
from collbench.features.health.checks.lost import HAD
from collbench.features.health.findings import Evidence, Finding, Subject
from collbench.features.health.history.gates import RECENT
from collbench.features.health.night import Night
from collbench.machine.topology import RDMA_ERRORS, RETRIES
from collbench.records.types import RunFile

CONGESTED = (
    "port_xmit_discards",
    "rx_missed_errors",
    *RETRIES,
)  # rise where nothing is broken, too

PORT_ADVICE = "ibstat; look at cable, transceiver and switch port"

MEANT = f"if this is intended, it is the port's usual rate after {RECENT - HAD + 1} nights"


def check_ports(night: Night) -> CheckResult:
    """State and rate of the first host's InfiniBand and RoCE ports. A rate below that of other
    ports is a hint: ports of storage may be like those of computation and slower
    (find_degraded_ports)."""
    environments = [file.run.environment for file in night.files]
    ports = [(file, port) for file in night.files for port in list_ports(file.run.environment)]
    if not ports:
        return CheckResult(
            missing="no InfiniBand or RoCE port is recorded" if environments else "no run"
        )
    findings = {}
    for file, port in ports:
        rates = [
            _parse_rate(other["rate"])
            for other_file, other in ports
            if other_file is file and _is_active(other) and _port_kind(other) == _port_kind(port)
        ]
        down, usual = not _is_active(port), max(rates, default=0.0)
        slow = 0 < _parse_rate(port["rate"]) < usual
        if down or slow:
            subject = Subject("link", f"{file.run.environment.get('host')}: {port['name']}")
            evidence = [_make_evidence(file, port, usual)]
            findings[subject] = Finding(
                check="ports",
                severity="hint",
                subject=subject,
                evidence=evidence,
                what=(
                    "is down"
                    if down
                    else "runs below the rate of other ports of its kind on this host"
                ),
                advice=PORT_ADVICE,
            )
    return CheckResult(
        f"{format_count(len({port['name'] for _, port in ports}), 'port')} of one host",
        list(findings.values()),
    )


def find_degraded_ports(
    files: Sequence[RunFile], earlier: Iterable[Mapping[str, Any]]
) -> list[Finding]:
    """A finding for each port of the first host that was up in HAD of the ``earlier`` nights, given
    as environments, and is down or slower than the rate it reached in HAD of them. These name no
    host: nodes that are alike share one in a history."""
    rates: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for facts in earlier:
        for port in filter(_is_active, list_ports(facts)):
            rates[port["name"], *_port_kind(port)].append(_parse_rate(port["rate"]))
    findings = {}
    for file in files:
        for port in list_ports(file.run.environment):
            host, rate = file.run.environment.get("host"), _parse_rate(port["rate"])
            highest = sorted(rates[port["name"], *_port_kind(port)])[-HAD:]
            usual = highest[0] if len(highest) == HAD else 0.0
            down = not _is_active(port)
            if usual and (down or 0 < rate < usual):
                subject = Subject("link", f"{host}: {port['name']}")
                findings[subject] = Finding(
                    check="history",
                    severity="warning",
                    subject=subject,
                    what=(
                        "is down, and was up in earlier nights"
                        if down
                        else f"runs at {rate:g} Gb/s, and ran at {usual:g} Gb/s in earlier nights"
                    ),
                    advice=f"{PORT_ADVICE}; {MEANT}",
                    evidence=[
                        _make_evidence(file, port, usual)
                        if down
                        else Evidence(
                            what="rate", value=rate, expected=usual, unit="Gb/s", run=file.run.id
                        )
                    ],
                )
    return list(findings.values())


def _make_evidence(file: RunFile, port: Mapping[str, Any], usual: float) -> Evidence:
    """A port's state and rate, beside those of a port that is up; ``usual`` is a rate in Gb/s, 0
    where none is known."""
    return Evidence(
        what="port",
        value=f"{port.get('state')}, {port.get('rate')}",
        run=file.run.id,
        expected=f"ACTIVE, {usual:g} Gb/s" if usual else "ACTIVE",
    )


def check_counters(night: Night) -> CheckResult:
    """Errors that network ports counted from the first launch's start to the last one's, by host
    and port."""
    files = sorted(night.files, key=lambda file: file.run.started)
    errors: dict[tuple[str, str], list[int]] = defaultdict(list)
    for host, counts in (
        of_host for file in files for world in file.worlds for of_host in world.counters.items()
    ):
        for name, value in counts.items():
            errors[host, name].append(value)
    if not errors:
        return CheckResult(
            missing="hosts have no network port that counts errors, or these runs do not tell"
        )
    if max(map(len, errors.values())) < 2:
        return CheckResult(missing="needs a second launch, to see whether error counters rose")
    by_port: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    full = []
    for (host, name), values in errors.items():
        port, counter = name.rsplit(" ", 1)
        if rise := _counter_rise(values):
            by_port[host, port][counter] = rise
        elif values[-1] == RDMA_ERRORS.get(counter):
            full.append(_find_full(f"{plain_line(host)}: {plain_line(port)}", counter, values[-1]))
    findings = [
        _find_counted(": ".join(map(plain_line, port)), rises, files[-1].run.id)
        for port, rises in by_port.items()
    ]
    hosts = {host for host, _ in errors}
    return CheckResult(
        f"{format_count(len(errors), 'counter')} of {format_count(len(hosts), 'host')}",
        [*findings, *full],
    )


def _find_full(port: str, counter: str, most: int) -> Finding:
    """The finding for a port's counter that stands at its maximum, ``most``."""
    return Finding(
        check="counters",
        severity="hint",
        subject=Subject("link", port),
        sure=1.0,
        what=f"has {counter} at {most:,}, where it stops counting: what came since, nobody knows",
        advice="perfquery -R sets the port's counters to 0",
    )


def _counter_rise(values: Sequence[int]) -> int:
    """Increase of a counter; what it counts now where it was reset."""
    return sum(
        later - earlier if later >= earlier else later for earlier, later in pairwise(values)
    )


def _find_counted(port: str, rises: Mapping[str, int], run: str) -> Finding:
    """The finding for a port whose counters rose, by counter."""
    grave = any(counter not in CONGESTED for counter in rises)
    return Finding(
        check="counters",
        severity="warning" if grave else "hint",
        subject=Subject("link", port),
        what="counted "
        + ", ".join(f"{rise:,} {plain_line(counter)}" for counter, rise in rises.items()),
        advice=(
            "ethtool -S or perfquery; reseat or replace cable and transceiver, then look at the"
            " switch's port"
            if grave
            else "congestion does that, too: look at routes, flow control and what else ran"
        ),
        evidence=[
            Evidence(what=plain_line(counter), value=float(rise), expected=0.0, run=run)
            for counter, rise in rises.items()
        ],
    )


def list_ports(facts: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The InfiniBand and RoCE ports of an environment that have a rate, each with its name."""
    rdma = facts.get("rdma")
    for name, port in rdma.items() if isinstance(rdma, Mapping) else ():
        if isinstance(port, Mapping) and port.get("rate"):
            yield {"name": plain_line(str(name)), **port}


def _port_kind(port: Mapping[str, Any]) -> tuple[object, object]:
    """Ports of one link layer and firmware are of one kind of adapter; a storage network's may be
    slower."""
    return port.get("link"), port.get("firmware")


def _is_active(port: Mapping[str, Any]) -> bool:
    return "ACTIVE" in str(port.get("state"))


def _parse_rate(text: object) -> float:
    """Gb/s in a text such as "400 Gb/sec (4X NDR)"."""
    match = re.match(r"\s*([\d.]+)", str(text))
    return float(match[1]) if match else 0.0
