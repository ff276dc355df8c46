"""The verdict on one row: what its launches say of the change from base to head, by a fixed table.

A change counts as confirmed only by launches other than those that raised the suspicion, at a level that accounts for
all rows tested so; elsewhere it is a suspicion. Evidence of no change is an interval within what matters, never the
mere absence of evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal, NamedTuple

from collbench import launches, paired
from collbench.formats import counted
from collbench.launches import Launch, Measured
from collbench.paired import Shift

Verdict = Literal[
    "REGRESSED", "IMPROVED", "SUSPECT", "SMALL", "SAME", "INCONCLUSIVE", "INVALID", "INCOMPARABLE", "NEW", "GONE"
]
CHANGED: tuple[Verdict, ...] = ("REGRESSED", "IMPROVED")
UNTIMED: tuple[Verdict, ...] = ("INVALID", "INCOMPARABLE", "NEW", "GONE")
FEWEST_UNPAIRED = 10  # launches a side
TOO_BROKEN = {"n<6": "fewer than 6 samples", "invalid!": "more than a quarter of the samples had to be repeated"}


class Ruling(NamedTuple):
    """A verdict and what it rests on: launches of base and head, the shift in log time with its interval at ``level``,
    the smallest change that their scatter lets be found, and the p of the exact test."""

    verdict: Verdict
    why: str = ""
    base: Sequence[Launch] = ()
    head: Sequence[Launch] = ()
    shift: Shift | None = None
    level: float = 0.95
    mde: float | None = None
    p: float | None = None
    pairs: int = 0
    stage: int = 0

    @property
    def bounded(self) -> bool:
        return self.shift is not None and math.isfinite(self.shift.lo)

    @property
    def way(self) -> str:
        return "slower" if self.shift and self.shift.estimate > 0 else "faster"


def absent(base: Measured | None, head: Measured | None, cut: Sequence[str]) -> Ruling | None:
    """The ruling on a row that one side lacks, or of which one side's data is wrong; None for any other. ``cut`` are
    the sides that ended early."""
    sides = {"head": head, "base": base}
    for name, side in sides.items():
        if side and side.said("wrong"):
            return Ruling("INVALID", f"wrong results on {name}: {side.said('wrong')}")
    lacking = [name for name, side in sides.items() if not (side and side.ran)]
    if len(lacking) == 2:
        return Ruling("INVALID", f"no times on both sides: {_cause(base or head)}")
    for name in lacking:
        side = sides[name]
        if side is None and name in cut:
            return Ruling("INVALID", f"{name} ended before it came to this row")
        verdict: Verdict = "GONE" if name == "head" else "NEW"
        mine, theirs = (list(s.launches.values()) if s else [] for s in (base, head))
        return Ruling(verdict, _cause(side) if side else f"not among the rows of {name}", mine, theirs)
    for name, side in sides.items():
        if side and side.said("failed"):
            return Ruling("INVALID", f"failed in a launch of {name}: {side.said('failed')}")
    return None


def _cause(side: Measured | None) -> str:
    causes = [f"{status}: {side.said(status)}" for status in ("failed", "skipped") if side and side.said(status)]
    return causes[0] if causes else "no times"


def by_pairs(base: Measured, head: Measured, tau: float, tests: int) -> Ruling:
    """From the paired launches of an experiment. ``tests`` is how many rows its second stage measured.

    What stage 2 clears (SAME, SMALL) is cleared; a suspicion that it neither clears nor confirms stays one.
    """
    first = _paired(base, head, tau, 1, 0.95)
    second = _paired(base, head, tau, 2, paired.bonferroni(tests))
    few = f"stage 2 has too few paired launches ({second.pairs}) for the {second.level:.2%} it needs" if second else ""
    if second and second.bounded:
        if second.verdict == "INCONCLUSIVE" and first and first.verdict in CHANGED:
            return second._replace(verdict="SUSPECT", why=f"{first.way} in stage 1, not confirmed in stage 2")
        return second
    if first is None:
        return Ruling("INCONCLUSIVE", few or "there is no round in which both sides were timed alike")
    if not first.bounded:
        return first._replace(why=f"{first.pairs} paired launches: {paired.FEWEST} are the fewest that tell")
    if first.verdict in CHANGED:
        return first._replace(verdict="SUSPECT", why=f"{first.way} in stage 1, {few or 'not measured again'}")
    return first._replace(why=few)


def _paired(base: Measured, head: Measured, tau: float, stage: int, level: float) -> Ruling | None:
    changes = launches.changes(base, head, stage)
    if not changes:
        return None
    values, sides = list(changes.values()), [[side.launches[place] for place in changes] for side in (base, head)]
    shift = paired.shift(values, level)
    return Ruling(
        _classed(shift, tau), "", sides[0], sides[1], shift,
        level, paired.mde(values), paired.signed_rank_p(values), len(values), stage,
    )  # fmt: skip


def by_launches(base: Measured, head: Measured, tau: float, tests: int) -> Ruling:
    """From launches that form no pairs. All ``tests`` rows with enough of them are tested once, so that the level
    which confirms a change accounts for all; one that holds at 95 % only is a suspicion."""
    sides = [list(side.launches.values()) for side in (base, head)]
    logs = [[math.log(launch.median) for launch in side] for side in sides]
    fewest, most = sorted(map(len, sides))
    if fewest < FEWEST_UNPAIRED:
        number = "one launch each" if most == 1 else f"{len(sides[0])} and {counted(len(sides[1]), 'launch')}"
        why = f"{number}: a difference between launches is no evidence; use collbench ab"
        if most > 1:
            why = f"{number}, not in pairs: {FEWEST_UNPAIRED} a side are the fewest that tell"
        plain = median(logs[1]) - median(logs[0]) if fewest else None
        shift = None if plain is None else Shift(plain, -math.inf, math.inf, 1.0)
        return Ruling("INCONCLUSIVE", why, sides[0], sides[1], shift)
    base_logs, head_logs = logs
    figures = 0.95, paired.unpaired_mde(base_logs, head_logs), paired.mann_whitney_p(base_logs, head_logs)
    shift, level = paired.unpaired_shift(base_logs, head_logs), paired.bonferroni(tests)
    ruling = Ruling(_classed(shift, tau), "", sides[0], sides[1], shift, *figures)
    if ruling.verdict not in CHANGED:
        return ruling
    stricter = paired.unpaired_shift(base_logs, head_logs, level)
    if _classed(stricter, tau) == ruling.verdict:
        return ruling._replace(shift=stricter, level=level)
    why = f"{ruling.way}, but not at the {level:.2%} that counts for {counted(tests, 'row')}"
    return ruling._replace(verdict="SUSPECT", why=why)


def _classed(shift: Shift, tau: float) -> Verdict:
    """What an interval says, taken as confirmed."""
    estimate, lo, hi = (math.expm1(value) for value in shift[:3])
    if lo > 0 or hi < 0:
        return "SMALL" if abs(estimate) < tau else "REGRESSED" if lo > 0 else "IMPROVED"
    return "SAME" if -tau < lo and hi < tau else "INCONCLUSIVE"
