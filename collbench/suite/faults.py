"""Faults that are planted on purpose, so that whoever relies on an alarm can see it ring: what may
be asked for.

``slow-rank:3:20%`` makes each call on rank 3 take a fifth longer, ``jitter:3:50%`` up to so much,
at random; with ``late:3:5ms`` it comes so late to each call. ``corrupt:3`` flips a bit in what it
receives first of each case. ``hang:3`` and ``drop:3``: it takes part no more, or ends, from a call
of the first case on that it has a part in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from collbench.core.errors import UsageError
from collbench.suite import grammar
from collbench.suite.case import Case
from collbench.suite.policy import Policy

KINDS = {
    "slow-rank": "%",
    "jitter": "%",
    "late": "s",
    "corrupt": "",
    "hang": "",
    "drop": "",
}  # and what they are told in

HINT = "slow-rank:3:20%, jitter:3:50%, late:3:5ms, corrupt:3, hang:3 or drop:3; several with commas"

MOST = 1000  # times the call's own time


class Fault(NamedTuple):
    """``amount`` is a share of the call's own time, or seconds."""

    kind: str
    rank: int
    amount: float = 0.0


def parse_faults(text: str) -> list[Fault]:
    """The faults that ``text`` plants. Raises UsageError."""
    return [_parse_fault(part.strip()) for part in text.split(",")] if text.strip() else []


def describe_planted(text: str) -> str:
    """A sentence that must stand with a run in which so much was planted; "" where nothing was."""
    printable = "".join(c for c in text if c.isprintable())
    return (
        f"PLANTED: {printable} (--inject), so that nothing here is the machine's"
        if printable
        else ""
    )


def _parse_fault(text: str) -> Fault:
    kind, rank, amount = [*text.split(":", 2), "", ""][:3]
    unit = KINDS.get(kind)
    if unit is None or not rank.isdecimal() or bool(amount) is not bool(unit):
        raise UsageError(f"--inject: '{text}' is not a fault", HINT)
    if unit == "%":
        share = re.fullmatch(r"(\d+(?:\.\d+)?)%", amount)
        if not share or not 0 < float(share[1]) <= MOST * 100:
            raise UsageError(
                f"--inject: '{amount}' is not a share of a call's time", "for example 20%"
            )
        return Fault(kind, int(rank), float(share[1]) / 100)
    return Fault(kind, int(rank), grammar.parse_duration(amount, "--inject") if unit else 0.0)


def refuse_faults(cases: Sequence[Case], policy: Policy) -> None:
    """Raises UsageError where a policy's faults cannot be planted among the ranks of a case, or in
    calls so made."""
    ranks = min((case.world for case in cases), default=0)
    for fault in parse_faults(policy.inject) if cases else ():
        if fault.rank >= ranks:
            raise UsageError(
                f"--inject: there is no rank {fault.rank} among {ranks}",
                f"choose a rank below {ranks}: ranks count from 0",
            )
    conflicts = {
        "-m": policy.agg_iters > 1,
        "-C": policy.cpu_time,
        "--virtual-ranks": policy.virtual,
    }
    for option in (option for option, holds in conflicts.items() if policy.inject and holds):
        raise UsageError(
            f"--inject and {option} exclude each other",
            f"leave {option} out: faults are planted in calls made one by one",
        )
