"""Statistics of times alone: of the samples of one record, or of several together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from collbench.records import stats


class Modes(msgspec.Struct, frozen=True):
    """Two times around which samples gather. A sample belongs to the one that is nearer by its
    logarithm."""

    times: tuple[float, float]  # medians of the samples around each, ns
    share: float  # of samples around the first
    in_stretches: bool  # samples stay around one of them for long


class TimeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What is derived of times alone, in ns a call. A time that a tool gave in place of samples has
    nan where the tool said nothing."""

    samples: int
    n_eff: float  # independent samples that would say as much
    median: float
    lo: float  # 95 % interval of the median; infinite where too few samples bound it
    hi: float
    min: float
    mean: float
    max: float
    mad: float  # median absolute deviation
    p95: float | None = None  # None: too few independent samples to bound it, or not known
    p99: float | None = None
    severe_outliers: int  # samples farther than 3 interquartile ranges out
    modes: Modes | None  # None: samples do not clearly gather around two times

    @classmethod
    def of(cls, times: stats.Floats) -> TimeSummary:
        """The summary of samples in the order measured."""
        ordered = np.sort(times)
        outliers = stats.count_outliers(ordered)[1]
        return _summarize_sorted(ordered, stats.n_eff(times), outliers, _find_modes(times, ordered))

    @property
    def half_width(self) -> float:
        """The larger half of the median's interval, as a share of the median."""
        return stats.half_width(self.median, self.lo, self.hi)


def pool_summaries(summaries: Sequence[TimeSummary], times: stats.Floats | None) -> TimeSummary:
    """The summary of ``times``, which are the samples of all ``summaries``; None if some have none.

    Samples of one that differ from the others' are not independent, which ``n_eff`` sees. Where it
    leaves too little to bound the median, and without samples, the interval is what those of the
    summaries cover together.
    """
    first = summaries[0]
    n_eff = sum(summary.n_eff for summary in summaries)
    outliers = sum(summary.severe_outliers for summary in summaries)
    modes = next((summary.modes for summary in summaries if summary.modes), None)
    if times is None:
        return msgspec.structs.replace(
            first,
            samples=sum(summary.samples for summary in summaries),
            n_eff=n_eff,
            median=stats.median([summary.median for summary in summaries]),
            lo=min(summary.lo for summary in summaries),
            hi=max(summary.hi for summary in summaries),
            min=min(summary.min for summary in summaries),
            max=max(summary.max for summary in summaries),
            mean=float(np.mean([summary.mean for summary in summaries])),
            mad=math.nan,
            p95=None,
            p99=None,
            severe_outliers=outliers,
            modes=modes,
        )
    pooled = _summarize_sorted(np.sort(times), min(n_eff, stats.n_eff(times)), outliers, modes)
    if math.isfinite(pooled.hi - pooled.lo):
        return pooled
    lo, hi = min(summary.lo for summary in summaries), max(summary.hi for summary in summaries)
    return msgspec.structs.replace(pooled, lo=lo, hi=hi)


def _summarize_sorted(
    ordered: stats.Floats, n_eff: float, outliers: int, modes: Modes | None
) -> TimeSummary:
    """The summary of sorted times of which the rest is known."""
    median, lo, hi = stats.median_interval(ordered, n_eff)
    return TimeSummary(
        samples=len(ordered),
        n_eff=n_eff,
        median=median,
        lo=lo,
        hi=hi,
        min=ordered.item(0),
        mean=ordered.sum().item() / len(ordered),
        max=ordered.item(-1),
        mad=stats.mad(ordered),
        p95=stats.quantile(ordered, n_eff, 0.95),
        p99=stats.quantile(ordered, n_eff, 0.99),
        severe_outliers=outliers,
        modes=modes,
    )


def _find_modes(times: stats.Floats, ordered: stats.Floats) -> Modes | None:
    """The modes of times, in the order measured and sorted."""
    modes = stats.find_modes(ordered)
    if modes is None:
        return None
    is_second = times > math.sqrt(modes[0] * modes[1])
    return Modes(modes, float(np.mean(~is_second)), stats.in_stretches(is_second))
