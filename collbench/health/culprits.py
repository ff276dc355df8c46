"""What a search for culprits has come to, as findings and in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from collbench.health.findings import Evidence, Finding, Subject
from collbench.health.locate import Located

ADVICE = {
    1: "slow with every partner: look at its NIC, cable, PCIe link, GPUs, clocks and load, and take it out of service",
    2: "both are fine with others: look at cables, switch ports and routes between them",
}


def findings(
    found: Located, hosts: Sequence[str], kind: Literal["host", "rank"] = "host", crowded: bool = False
) -> Iterator[Finding]:
    """Culprits as findings; ``hosts`` are the names of what was searched, which may be a host's ranks. Where they were
    ``crowded`` (more ranks than cores) tests err together, and nobody can say how sure a culprit is."""
    for culprit in found.culprits:
        name = " -> ".join(hosts[host] for host in culprit.members)
        alone = len(culprit.members) == 1
        yield Finding(
            check="locate", severity="warning", subject=Subject(kind if alone else "link", name),
            what=f"{name} reaches {culprit.share:.0%} of what others do, in {culprit.tests} of {culprit.tests} tests",
            advice=ADVICE[len(culprit.members)], sure=None if crowded else found.sure,
            evidence=[Evidence(what="bandwidth of its tests", value=culprit.share * found.reference,
                               expected=found.reference, unit="GB/s")],
        )  # fmt: skip


def words(found: Located, hosts: Sequence[str], crowded: bool = False) -> str:
    """The outcome in a sentence or two."""
    names = [" -> ".join(hosts[host] for host in culprit.members) for culprit in found.culprits]
    who = f"at fault: {', '.join(names)}" if names else "nobody is at fault"
    cost = f"{found.tests} tests in {found.rounds} rounds"
    errs = (
        f"a test errs with {found.alpha:.1%} at most (well taken for slow) and {found.beta:.1%} (slow taken for well), "
        f"so that anybody well is named has a chance of {1 - found.sure:.2%} at most, and who is cleared "
        f"is faulty with {found.missed:.2%}"
    )
    if crowded:
        errs = "ranks share cores, so that tests err together: how sure this is cannot be said"
    left = [hosts[host] for host in found.open]
    unknown = f"; open: {', '.join(left[:8])}{f' and {len(left) - 8} more' if len(left) > 8 else ''}" if left else ""
    return f"{who}; {cost}{unknown}; {errs}"
