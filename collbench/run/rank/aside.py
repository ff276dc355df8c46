"""A short control beside the samples of a case: some calls in the cadence that it is not measured
in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from collbench.records.flags import FEWEST_SAMPLES
from collbench.run.rank.control import Control
from collbench.run.rank.measure import SETTLED, Measured, Sampler, Samples, Sync

CALLS, SHARE = 20, 0.05  # in the other cadence, and of the samples taken
SETTLES = 3  # calls of it that are not counted
MOST = 0.25  # of the time a case took: where it does not suffice for a few, there is none
Make = Callable[[int], Sampler]


class Aside(NamedTuple):
    """Samples in the cadence that the case is not measured in, and how many calls make one, where
    that is not the case's number."""

    samples: Samples
    inner: int | None = None


class Cadence(NamedTuple):
    """How ranks start in a control; ``make`` makes the sampler of so many calls a sample where it
    is not that of the case."""

    sync: Sync
    make: Make | None = None

    def sample(
        self,
        sampler: Sampler,
        measured: Measured | None,
        control: Control,
        iters: int | None,
        seconds: float,
    ) -> Aside | None:
        """The control of a case whose samples ``sampler`` took, once all has been checked that
        they left behind; at rank 0, and None where there is no time for a few. ``iters`` is how
        many samples the case was to have, ``seconds`` what they might take, if need be without
        end."""
        count = 0
        if measured is not None and measured.samples.durations.size:
            typical = np.median(measured.samples.times)
            least = CALLS if iters is None else min(CALLS, iters)
            most = MOST * seconds * 1e9 / max(typical, 1)
            count = int(min(max(least, SHARE * len(measured.samples.late)), most))
            count = count + SETTLES if count >= min(FEWEST_SAMPLES, least) else 0
        (count,) = control.decide([count])
        if not count:
            return None
        sampler.dirty = sorted(sampler.used)
        if self.make:
            sampler = _settle_sampler(self.make, self.sync, sampler.dirty, control)
        samples = sampler.take(count, self.sync)
        if samples is None:
            return None
        is_kept = ~samples.late.astype(bool)
        is_kept[:SETTLES] = False
        return Aside(samples.only(is_kept), sampler.inner if self.make else None)


def _settle_sampler(make: Make, sync: Sync, dirty: Sequence[int], control: Control) -> Sampler:
    """A sampler of as many calls a sample as its clock needs, which knows how far ahead they must
    be issued. The slots of ``dirty`` hold what other calls have left."""
    first = make(1)
    first.dirty = dirty
    samples = first.take(SETTLES, sync)
    call_ns = 0.0 if samples is None else float(np.median(samples.times))
    (repeats,) = control.decide([first.repeats(call_ns)])
    sampler = make(repeats)
    sampler.dirty = first.dirty
    sampler.take(SETTLED, sync)
    return sampler
