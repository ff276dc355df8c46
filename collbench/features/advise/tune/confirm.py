"""A verification of an advice: its file against everything as it is, in turns, in fresh launches.

The best of many settings seems faster than it is, so that what proposed it never decides. The
experiment is that of `collbench ab`: base is the library's own choice, head the same with the
file, over the sizes that the file covers and those next to them, which must not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from collbench.core.errors import Exit
from collbench.features.advise.formats import Format
from collbench.features.advise.tune.keeping import Removed
from collbench.features.advise.types import Advised
from collbench.features.compare.comparison import Comparison, Rules
from collbench.run.launch.places import PlaceSource
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes

ROUNDS = (8, 12)  # the fewest paired launches of both stages


class VerifyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How an advice is verified. ``axes`` is the sweep that it comes from (make_axes makes it of
    cases): its sizes are those among which two are neighbours, and each case is measured with its
    backend, datatype, placement and mode. ``budget`` is in seconds. ``command`` is what a run
    keeps as its command line. ``folder`` is where the file lies while ranks read it, a private one
    where it is None: name one that all hosts see where ``source`` gives places on several."""

    format: Any  # Format
    axes: Axes
    command: Sequence[str]
    policy: Policy = Policy()
    budget: float = 300.0
    rounds: tuple[int, int] = ROUNDS
    rules: Rules = Rules()
    despite_oversubscription: bool = False
    output: Path | None = None
    tag: str = ""
    source: PlaceSource | None = None
    folder: Path | None = None


class Verified(NamedTuple):
    """What a verification comes to. ``advised`` has only rows that fresh launches confirm, with
    gains from these alone, and ``verified`` set; what went is among its ``unadvised`` as well.
    ``code`` is 0 where fresh launches decided something, 3 where nothing, 130 where it was
    interrupted (what was confirmed until then is in ``advised``). ``paths`` are the saved runs."""

    advised: Advised
    removed: tuple[Removed, ...]
    comparisons: tuple[Comparison, ...]
    paths: tuple[Path, ...]
    code: Exit


def make_axes(cases: Iterable[Case]) -> Axes:
    """The sweep of measured cases that differ in collective, ranks and size."""
    raise NotImplementedError


def verify_advice(advised: Advised, request: VerifyRequest) -> Verified:
    """Measure the advice's file against the library's own choice, with progress on standard error,
    and keep what holds. Raises CannotRun and RunBroken, as `collbench ab` does."""
    raise NotImplementedError
