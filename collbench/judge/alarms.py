"""False alarms: how often experiments on two alike sides (A/A) that are stored on this machine
called a row changed, which none of theirs can be."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec

from collbench.core.errors import CollbenchError
from collbench.judge.comparison import Comparison, Rules, compare
from collbench.machine.environment import fingerprint
from collbench.records import store

MOST = 20  # experiments judged, the newest: of a dozen rows each takes some tenths of a second


class Alarms(msgspec.Struct, frozen=True, kw_only=True):
    """``experiments`` on two alike sides that were judged, their ``rows``, and how many of these
    were suspected or confirmed to have changed. ``last`` is the day of the newest; ``older`` ones
    were not judged."""

    experiments: int = 0
    rows: int = 0
    suspected: int = 0
    confirmed: int = 0
    last: str = ""
    older: int = 0


def stored(comparison: Comparison) -> Alarms | None:
    """What the store holds of the machine of either side, by the rules of ``comparison``; None
    where that machine is unknown."""
    runs = (comparison.base, comparison.head)
    if any(run.imported or not run.environment for run in runs):
        return None
    backends = {row.case.backend for row in comparison.rows}
    machines = {fingerprint(run.environment, backends) for run in runs}
    days: dict[Path, str] = {}
    for path in reversed(store.saved()):
        with suppress(CollbenchError):  # a file that cannot be read is none
            run = store.read_run(path) if path.stem.endswith("-base") else None
            alike = run and run.pairing and run.pairing.aa and not run.policy.inject
            if run and alike and fingerprint(run.environment, backends) in machines:
                days[path] = run.started[:10]
    judged: dict[Path, Counter[str]] = {}
    for base in [*days][:MOST]:
        with suppress(CollbenchError):
            head = base.with_name(f"{base.stem.removesuffix('base')}head.jsonl")
            rules = Rules(tau=comparison.rules.tau)
            rows = compare(store.read(base), store.read(head), rules).rows
            judged[base] = Counter(row.verdict for row in rows)
    total = sum(judged.values(), Counter[str]())
    return Alarms(
        experiments=len(judged),
        rows=total.total(),
        suspected=total["SUSPECT"],
        confirmed=total["REGRESSED"] + total["IMPROVED"],
        last=next((days[path] for path in judged), ""),
        older=max(0, len(days) - MOST),
    )
