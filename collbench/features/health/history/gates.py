"""Is tonight slower than the nights before: at once, confirmed by fresh launches; and against a
fixed anchor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from collbench.core.errors import UsageError
from collbench.records import stats

PAST = 30  # nights that tonight is judged against

LEARNING = 5  # nights with which a segment begins and nothing is judged

RERUNS = 3  # launches that confirm

FLOOR = 0.005  # the least scatter assumed from night to night

ODD, STILL = (
    4.0,
    3.0,
)  # z from which tonight is a candidate, and with which fresh launches confirm it

ANCHOR, RECENT = (
    10,
    7,
)  # nights whose median is an anchor where none was reviewed, and is held against it


class Gate(NamedTuple):
    """``z`` and ``delta`` say how far tonight is above the median of so many ``nights``: in their
    scatter, and as a share. While ``learning`` they inform at most; a ``candidate`` waits for fresh
    launches."""

    state: Literal["learning", "quiet", "candidate", "alarm"]
    z: float
    delta: float
    nights: int


class Creep(NamedTuple):
    """How much longer a call takes, by the median of the last ``nights``, than at the anchor;
    ``found``: too much."""

    found: bool
    delta: float
    nights: int


def gate_night(past: Sequence[float], tonight: float, tau: float) -> Gate:
    """Tonight against the last PAST valid nights of its segment, oldest first; all are logarithms
    of times."""
    return _judge_value(past, tonight, tau, ODD, "candidate")


def confirm_reruns(past: Sequence[float], reruns: Sequence[float], tau: float) -> Gate:
    """The verdict of fresh launches, measured at once, on a candidate. Raises UsageError for fewer
    than RERUNS."""
    if len(reruns) < RERUNS:
        raise UsageError(
            f"{len(reruns)} launches are too few to confirm a change", f"take {RERUNS} or more"
        )
    return _judge_value(past, stats.median(reruns), tau, STILL, "alarm")


def _judge_value(
    past: Sequence[float],
    value: float,
    tau: float,
    limit: float,
    bad: Literal["candidate", "alarm"],
) -> Gate:
    """The gate for a value by the last PAST values, all logarithms of times: ``bad`` if it is above
    their median by more than ``limit`` deviations and by more than ``tau``."""
    recent = past[-PAST:]
    if len(recent) < LEARNING:
        off = value - stats.median(recent) if recent else 0.0
        return Gate("learning", 0.0, math.expm1(off), len(recent))
    off = value - stats.median(recent)
    z, delta = off / max(1.4826 * stats.mad(recent), FLOOR), math.expm1(off)
    return Gate(bad if z > limit and delta > tau else "quiet", z, delta, len(recent))


def find_creep(values: Sequence[float], anchor: float, tau: float) -> Creep:
    """The last valid nights against a fixed anchor: many steps, each too small to be seen, add up.
    Twice ``tau``, since an anchor is old; RECENT nights at least, since one proves nothing; and
    tonight is beyond ``tau``, since a slow spell that is over is no creep."""
    recent = values[-RECENT:]
    if len(recent) < RECENT:
        return Creep(False, 0.0, len(recent))
    delta, tonight = (math.expm1(v - anchor) for v in (stats.median(recent), recent[-1]))
    return Creep(delta > 2 * tau and tonight > tau, delta, len(recent))
