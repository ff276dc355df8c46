"""What an advice is made of: settings, the cells in which they compete, and rows of advice.

Times are in ns, sizes in bytes of a call, as collbench counts them for a collective (Case.size). A
gain is the share of the default's time that a setting saves: 0.14 is 14 % less time, -0.1 is 10 %
more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from collbench.records.types import Choice

Variables = tuple[tuple[str, str], ...]  # of the environment


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run a collective: a backend, an algorithm of it, and variables, only those that
    bear on the collective and say something (libraries.Library.reduce). The default has none."""

    backend: str
    algorithm: str = "native"
    env: Variables = ()


class Series(NamedTuple):
    """Everything of a cell but its size: what settings compete for. ``nodes`` is the number of
    hosts."""

    collective: str
    n: int
    nodes: int


class Cell(NamedTuple):
    """One size of a series."""

    series: Series
    nbytes: int


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What a setting saves in a cell, with the ends of its 95 % interval: shares of the default's
    time. ``p`` is of the exact test, adjusted by Holm over all that was tested; ``launches`` are
    those of the side with fewer; 0 where short launches propose it, each as many as it took, or
    none were made: such a gain has no interval. ``default`` and ``setting`` are medians over
    launches, in ns. ``doubt``: why no setting may be advised by it, without a full stop."""

    nbytes: int
    gain: float
    lo: float
    hi: float
    p: float
    launches: int
    is_paired: bool
    default: float
    setting: float
    doubt: str = ""  # "flagged throttled", "gave wrong data (64 KiB)"

    @property
    def has_interval(self) -> bool:
        """Whether launches bound the gain."""
        return math.isfinite(self.lo) and math.isfinite(self.hi)


def describe_gain(gain: Gain) -> str:
    """A gain with its interval in words: 14% less time [9%, 18%]; without where it has none."""
    way = "less" if gain.gain >= 0 else "more"
    if not gain.has_interval:
        return f"{abs(gain.gain):.0%} {way} time"
    ends = (gain.lo, gain.hi) if gain.gain >= 0 else (-gain.hi, -gain.lo)
    return f"{abs(gain.gain):.0%} {way} time [{ends[0]:.0%}, {ends[1]:.0%}]"


class Crossing(NamedTuple):
    """Where two settings are equally fast: between ``lo`` and ``hi`` bytes, 95 % sure."""

    lo: float
    hi: float


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a file: from ``low`` to ``high`` bytes, both inclusive, the setting is surely
    faster than the library's choice. Bounds between measured sizes are their geometric mean;
    nothing is extrapolated beyond the smallest and the largest measured size. ``gains`` has the
    measured sizes in between, at least two. ``below`` and ``above`` are the
    cross-overs at both ends, None where the row ends with the measured sizes, or they cannot be
    told."""

    series: Series
    setting: Setting
    name: str  # of the setting, in the library's words: "recursive_doubling"
    low: int
    high: int
    gains: tuple[Gain, ...]
    below: Crossing | None = None
    above: Crossing | None = None
    default_ran: Choice | None = None  # what the library said that it chose, where it was heard
    ran: Choice | None = None  # what it said that it ran by the setting
    default_rans: tuple[Choice | None, ...] = ()  # both for each of the gains; empty: unknown
    rans: tuple[Choice | None, ...] = ()
    verified: str = ""  # the day on which fresh launches confirmed it
    remark: str = ""  # what else to know of it, without a full stop: "its ranks share cores"

    @property
    def gain(self) -> tuple[float, float, float]:
        """The least gain of the measured sizes, with the interval of that size."""
        least = min(self.gains, key=lambda gain: gain.gain)
        return least.gain, least.lo, least.hi


class Unadvised(NamedTuple):
    """A cell in which the library's choice stays, and why: a sentence without a full stop.
    ``decided``: a setting was tested there with launches enough for an answer. ``best`` is the
    fastest setting's gain, None where nothing competed. ``default_ran`` as of Advice."""

    cell: Cell
    why: str
    decided: bool
    best: Gain | None = None
    best_name: str = ""
    default_ran: Choice | None = None


class Advised(msgspec.Struct, frozen=True, kw_only=True):
    """All advice from some runs, for one library. ``library`` is a key of LIBRARIES, ``version`` as
    its worlds say it. ``rivals`` has all that was tested, for the map: by cell and the setting's
    name, the gain there. ``backend`` is the default's; empty where only one was measured. ``fills``
    are for formats that have to say something for all sizes (Format.covers_all): as Advice, but
    each for one measured size or more."""

    library: str
    version: str
    runs: tuple[str, ...]
    day: str  # of the last run, as 2026-11-28
    taus: tuple[float, float]  # least and largest effect that matters, over cells
    rows: tuple[Advice, ...] = ()
    unadvised: tuple[Unadvised, ...] = ()
    rivals: dict[Cell, dict[str, Gain]] = {}
    is_same_order: bool = False
    notes: tuple[str, ...] = ()
    backend: str = ""
    device: str = ""  # the GPUs' model, "NVIDIA H200"; empty for CPUs, and where models differ
    fills: tuple[Advice, ...] = ()  # settings as fast as the library's own choice (formats.fills)
    hosts: tuple[str, ...] = ()  # on which it was measured
    forms: str = ""  # datatypes and placement: "float32, out of place"
    dtypes: tuple[str, ...] = ()  # of all_reduce as measured
    command: str = ""  # that made it, as typed: "collbench tune all_reduce --budget 10m"
    is_undecided: bool = False  # nothing could be decided, which is not that nothing is faster
    checked: str = ""  # of a verification: "checked: 22 sizes, slowest change +1 %"
