"""False alarms: how often experiments on two alike sides (A/A) that are stored on this machine
called a row changed, which none of theirs can be."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import msgspec

from collbench.core.errors import CollbenchError
from collbench.features.compare.comparison import Comparison, Rules, compare_runs
from collbench.machine.environment import make_fingerprint
from collbench.records import run_file, store
from collbench.records.origins import is_fake

# judged at most: the newest experiments, until there are so many rows; a dozen rows take 0.2 s
MOST, ROWS = 20, 300


class Alarms(msgspec.Struct, frozen=True, kw_only=True):
    """``experiments`` on two alike sides that were judged, their ``rows`` with a verdict or a
    suspicion, and how many of these were called changed too ``small`` to matter, suspected or
    confirmed to have changed; ``undecided`` are the rows without. ``last`` is the day of the
    newest; ``older`` ones were not judged."""

    experiments: int = 0
    rows: int = 0
    small: int = 0
    suspected: int = 0
    confirmed: int = 0
    undecided: int = 0
    last: str = ""
    older: int = 0


def find_alarms(comparison: Comparison) -> Alarms | None:
    """False alarms by the store's runs of the machine of either side, by the tau of ``comparison``;
    None where that machine is unknown."""
    runs = (comparison.base, comparison.head)
    if any(run.imported or not run.environment for run in runs):
        return None
    backends = {row.case.backend for row in comparison.rows}
    machines = {make_fingerprint(run.environment, backends) for run in runs}
    days: list[str] = []
    total, older, undecided = Counter[str](), 0, 0
    for base in (path for path in reversed(store.list_saved()) if path.stem.endswith("-base")):
        with suppress(CollbenchError, OSError):  # what cannot be read or compared is passed over
            run = run_file.read_run(base)
            is_aa = run.pairing and run.pairing.aa and not run.policy.inject
            if not is_aa or make_fingerprint(run.environment, backends) not in machines:
                continue
            head = base.with_name(f"{base.stem.removesuffix('base')}head.jsonl")
            run_file.read_run(head)  # a side without the other is no experiment
            if len(days) == MOST or total.total() + undecided >= ROWS:
                older += 1
                continue
            sides = run_file.read_file(base), run_file.read_file(head)
            if any(map(is_fake, sides)):
                continue
            rules = Rules(tau=comparison.rules.tau)
            rows = compare_runs(*sides, rules).rows
            decided = [row.verdict for row in rows if row.decided or row.verdict == "SUSPECT"]
            undecided += len(rows) - len(decided)
            total.update(decided)
            days.append(run.started[:10])
    return Alarms(
        experiments=len(days),
        rows=total.total(),
        small=total["SMALL"],
        suspected=total["SUSPECT"],
        confirmed=total["REGRESSED"] + total["IMPROVED"],
        undecided=undecided,
        last=max(days, default=""),
        older=older,
    )
