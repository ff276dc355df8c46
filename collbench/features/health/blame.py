"""The hosts that a verdict blames with certainty: those that may be taken out of service by a
program, without a person who reads the findings."""

from __future__ import annotations

from typing import NamedTuple

from collbench.features.health.findings import Finding, Verdict
from collbench.features.health.night import host_of

SURE = 0.99  # from which on a finding is certain, where it is known how sure it is

# Checks that name the rank or port at which a fault shows. It may come from another host: a rank
# receives what another has sent, fails as its peer did, is late after another; a port counts what
# its cable, its switch or its peer has spoiled.
SYMPTOMS = ("data", "completeness", "stragglers", "counters")


class BlamedHost(NamedTuple):
    """A host, and what was found of it, the gravest first."""

    host: str
    reasons: tuple[str, ...]


def list_blamed(verdict: Verdict) -> list[BlamedHost]:
    """The hosts that findings blame with certainty, in their order. None where the verdict is not
    "unhealthy", a fault was planted or GPUs were fake."""
    if verdict.state != "unhealthy" or verdict.injected or verdict.fake:
        return []
    reasons: dict[str, list[str]] = {}
    for finding in sorted(verdict.findings, key=lambda finding: finding.severity != "critical"):
        if host := _find_host(finding, verdict):
            reasons.setdefault(host, []).append(finding.sentence)
    return [BlamedHost(host, tuple(texts)) for host, texts in reasons.items()]


def _find_host(finding: Finding, verdict: Verdict) -> str:
    """The one host of the night that a finding blames: by a critical finding that is not known to
    be unsure; or by a warning that is known to be sure, where nobody else used the machines. An
    empty string for hints, where the subject is no host, several, or a link between two, and for
    SYMPTOMS where there were other hosts in the run that shows it."""
    hosts = host_of(finding.subject)
    if len(hosts) != 1 or hosts[0] not in verdict.hosts:
        return ""
    if finding.severity == "hint" or (finding.severity == "warning" and verdict.busy):
        return ""
    is_symptom = finding.check in SYMPTOMS or (
        finding.check == "locate" and finding.severity == "critical"  # wrong data in its tests
    )
    if is_symptom and len(verdict.hosts) > 1 and not finding.alone:
        return ""
    default = 1.0 if finding.severity == "critical" else 0.0
    return hosts[0] if (default if finding.sure is None else finding.sure) >= SURE else ""
