"""Two things at once: how much slower a collective is for what ranks do in its background, and how
much slower that is for the collective, over rounds in which the collective was measured alone,
too."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from collbench.records import stats
from collbench.records.origins import select_counting
from collbench.records.paired import Shift, estimate_shift
from collbench.records.types import Background, Record, RunFile
from collbench.suite.case import Case

HIDDEN = 1.8  # of 2, which is all that can get done of two things: nine tenths of it
LEAST_DONE = 0.01  # of what a background gets done alone: less cannot be told from nothing
ALPHA = 0.05  # over all rows of a run together
NO_VERDICT = "no verdict"  # of an interval that is on both sides of 1


class Overlapped(NamedTuple):
    """A case with a background, over ``rounds``. ``slower`` is what the collective takes with it
    over what it takes alone, ``other`` the same of the background; ``both`` is how much gets done
    in a given time, of both together, where 1 is what gets done of one after the other: 1 /
    ``slower`` + 1 / ``other``, up to 2. Intervals of each hold for all rows together at 95 %."""

    case: Case
    rounds: int
    slower: Shift
    other: Shift
    both: Shift

    @property
    def verdict(self) -> str:
        """Whether the two share, hide or hinder each other, by the interval of ``both``;
        NO_VERDICT where that tells none of it."""
        if self.both.lo >= HIDDEN:
            return "hides"
        if self.both.lo > 1:
            return "shares"
        return "hinders" if self.both.hi < 1 else NO_VERDICT


def judge_overlaps(file: RunFile) -> list[Overlapped]:
    """An Overlapped for each case that was measured with a background and without, by size and then
    in the suite's order of backgrounds."""
    if not any(record.background for record in file.records):
        return []
    timed = {(r.case, r.world): r for r in select_counting(file) if r.status == "ok" and r.times_ns}
    pairs: dict[Case, list[tuple[Record, Record]]] = {}
    for (case, world), record in timed.items():
        alone = timed.get((replace(case, background=""), world))
        background = record.background  # which may have taken longer than all of the calls
        if alone and background and background.alone_ns and background.during_ns:
            pairs.setdefault(replace(case, cycle=0), []).append((record, alone))
    level = 1 - ALPHA / max(1, len(pairs))
    names = [*file.run.suite.axes.backgrounds, *(case.background for case in pairs)]
    order = sorted(pairs, key=lambda case: (case.nbytes, names.index(case.background)))
    return [_judge_case(case, pairs[case], level) for case in order]


def _judge_case(case: Case, pairs: list[tuple[Record, Record]], level: float) -> Overlapped:
    slower = np.array([_call_time(record) / _call_time(alone) for record, alone in pairs])
    other = np.array([_slow_background(record, record.background) for record, _ in pairs])
    return Overlapped(
        case,
        len(pairs),
        _estimate_ratio(slower, level),
        _estimate_ratio(other, level),
        estimate_shift(1 / slower + 1 / other, level),
    )


def _call_time(record: Record) -> float:
    return stats.median(record.times_ns) / record.inner


def _slow_background(record: Record, background: Background | None) -> float:
    """How much longer the background took during calls than alone. It went on between them, too,
    for a wait for a common start, and there got as much done as alone."""
    assert background, "pairs have one"
    done = np.mean(background.alone_ns) / np.mean(background.during_ns)  # of what it does alone
    share = 1.0  # of that time, in which calls were under way
    if background.went_ns:
        tried = 1 + sum(record.invalid.values()) / len(record.times_ns)
        share = min(1.0, sum(record.times_ns) * tried / background.went_ns)
    return 1 / max(float(done - (1 - share)) / share, LEAST_DONE)


def _estimate_ratio(ratios: np.ndarray, level: float) -> Shift:
    """The middle of ratios, which scatter in proportion: by their logarithms."""
    shift = estimate_shift(np.log(ratios), level)
    estimate, lo, hi = (float(np.exp(end)) for end in shift[:3])
    return Shift(estimate, lo, hi, shift.coverage)
