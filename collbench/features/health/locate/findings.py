"""The result of a search, as findings and as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from collbench.features.health.findings import Evidence, Finding, Subject
from collbench.features.health.locate.search import Located
from collbench.features.health.pairs import judgement as uniformity

ADVICE = {
    1: (
        "slow with every partner: look at its NIC, cable, PCIe link, GPUs, clocks and load, and"
        f" take it out of service{uniformity.WHICH_WAY}"
    ),
    2: (
        "both are fine with others: look at cables, switch ports and routes between"
        f" them{uniformity.WHICH_WAY}"
    ),
}


def make_findings(
    located: Located,
    hosts: Sequence[str],
    kind: Literal["host", "rank"] = "host",
    crowded: bool = False,
) -> Iterator[Finding]:
    """Culprits as findings; ``hosts`` are the names of what was searched, which may be a host's
    ranks. Where they were ``crowded`` (more ranks than cores) tests err together, and nobody can
    say how sure a culprit is.
    """
    for culprit in located.culprits:
        name = " -> ".join(hosts[host] for host in culprit.members)
        alone = len(culprit.members) == 1
        yield Finding(
            check="locate",
            severity="warning",
            subject=Subject(kind if alone else "link", name),
            what=(
                f"{name} reaches {culprit.share:.0%} of what others do, in {culprit.tests} of"
                f" {culprit.tests} tests"
            ),
            advice=ADVICE[len(culprit.members)],
            sure=None if crowded else located.sure,
            evidence=[
                Evidence(
                    what="bandwidth of its tests",
                    value=culprit.share * located.reference,
                    expected=located.reference,
                    unit="GB/s",
                )
            ],
        )


def describe_outcome(
    located: Located,
    hosts: Sequence[str],
    kind: Literal["host", "rank"] = "host",
    crowded: bool = False,
) -> str:
    """The outcome in a sentence or two."""
    names = [" -> ".join(hosts[host] for host in culprit.members) for culprit in located.culprits]
    who = f"at fault: {', '.join(names)}" if names else f"no slow {kind} found"
    cost = f"{located.tests} tests in {located.rounds} rounds"
    again = f" (suspects tested again: {located.confirmed:,})" if located.confirmed else ""
    errs = (
        f"a test takes a good {kind} for slow in at most {located.alpha:.1%} of cases, and a slow"
        f" one for good in {located.beta:.1%}; so a good {kind} is named with a chance of at most"
        f" {1 - located.sure:.2%}{again}, and one that is cleared is faulty with"
        f" {located.missed:.2%}"
    )
    if crowded:
        errs = "confidence unknown: ranks share cores, so tests are not independent"
    open_hosts = [hosts[host] for host in located.open]
    unknown = (
        f"; not ruled out: {', '.join(open_hosts[:8])}"
        f"{f' and {len(open_hosts) - 8} more' if len(open_hosts) > 8 else ''}"
        if open_hosts
        else ""
    )
    return f"{who}; {cost}{unknown}; {errs}"
