"""The two sides of a comparison: what each measured, and which of it may be held against the
other's."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from collbench.core.text import format_settings, plain_line
from collbench.machine import environment
from collbench.machine.environment import Difference
from collbench.records.case_rows import CaseRows, Place
from collbench.records.choice import describe_adding
from collbench.records.rows import Row, group_rows
from collbench.records.types import ONE_SIDED, Run, RunFile
from collbench.show.words import PLACES
from collbench.suite.case import Case

DEVICE = re.compile(r"^(?:cpu$|cuda:\d+ ?(?:\[[^]]*\] ?)?)")  # less which, a device is its name

SUBJECTS = ("variables.", "libraries.", "python")  # facts that the variants of an experiment change

STREAMS_APART = (
    "torch before 2.8 runs NCCL's collectives on a stream of its own, newer ones on the current"
    " stream: some us of every call are not NCCL's, so that rows of nccl do not compare"
)


class Pair(NamedTuple):
    """A row with what each side measured of it."""

    key: str
    base: CaseRows | None
    head: CaseRows | None

    @property
    def sides(self) -> dict[str, CaseRows]:
        """The sides that there are, by ``base`` and ``head``."""
        return {name: side for name, side in (("base", self.base), ("head", self.head)) if side}

    @property
    def case(self) -> Case:
        """The case, of base where it has it."""
        return next(iter(self.sides.values())).case

    @property
    def backends(self) -> set[str]:
        """Backends of the sides that there are."""
        return {side.case.backend for side in self.sides.values()}

    @property
    def fake(self) -> bool:
        """Whether a side was measured on a fake GPU."""
        return any(side.fake for side in self.sides.values())

    def changes(self, stage: int) -> dict[Place, float]:
        """Logarithms of head's time over base's, by the places that both have at this stage."""
        return log_changes(self.base, self.head, stage) if self.base and self.head else {}

    @property
    def dropped(self) -> str:
        """The reason why --budget left no time to measure the row on a side; empty where there was
        time."""
        sides = list(self.sides.values())
        if any(side.reason_of("wrong") or side.reason_of("failed") for side in sides):
            return ""
        return next((side.dropped for side in sides if side.dropped and not side.ran), "")

    def left_out(self, paired: bool, last: Place) -> str:
        """Why it is no row of the comparison, or an empty string. ``last`` is an experiment's last
        round: rounds begin when the one before is complete, so that only that one can lack a side
        because of an interruption.
        """
        if self.dropped:
            return self.dropped
        sides = self.sides
        if not any(
            side.ran or side.reason_of("wrong") or side.reason_of("failed")
            for side in sides.values()
        ):
            reasons = {name: side.reason_of("skipped") for name, side in sides.items()}
            own_reasons = [f"{name}: {why}" for name, why in reasons.items() if why != ONE_SIDED]
            if ONE_SIDED in reasons.values():
                reason = own_reasons[0] if own_reasons else "no reason is recorded"
                return f"only one side can run; {reason}"
            return (
                f"skipped on both sides; {next(iter(reasons.values())) or 'no reason is recorded'}"
            )
        if paired and len(sides) == 1 and next(iter(sides.values())).launches.keys() == {last}:
            return "left out: the experiment ended before both sides had a launch"
        return ""


AXES = {  # fields of Case that tell rows apart: their values in words, and the option for them
    "collective": ("{}", ""),
    "subject": ("about {}", ""),
    "backend": ("{}", "--backend"),
    "algorithm": ("{}", "--algo"),
    "n": ("{} ranks", "-g"),
    "nbytes": ("{} B", "--sizes"),
    "dtype": ("{}", "-d"),
    "op": ("{}", "-o"),
    "root": ("root {}", "-r"),
    "in_place": ("{}", "--place"),
    "mode": ("{}", "--mode"),
    "env": ("environment {}", "--env"),
    "splits": ("splits {}", "--splits"),
    "align": ("align {}", "--align"),
    "groups": ("groups {}", "--split"),
    "arrival": ("arrival {}", "--arrival"),
    "background": ("background {}", "--background"),
}

MAX_VALUES = 3  # values of an axis that a sentence names


def describe_unlike(base_rows: Mapping[str, CaseRows], right: Mapping[str, CaseRows]) -> str:
    """The axes in which no case of either side is like any of the other, as in 8 ranks, nccl on
    base, 2 ranks, gloo on head."""
    values = {"base": _axis_values(base_rows), "head": _axis_values(right)}
    names = _disjoint_axes(*values.values())
    return (
        ", ".join(
            f"{', '.join(_describe_values(name, of_side[name]) for name in names)} on {side}"
            for side, of_side in values.items()
        )
        if names
        else "no combination is the same"
    )


def _describe_values(name: str, values: Collection[Any]) -> str:
    """The first values of an axis in words: 2/4/8 ranks."""
    first, more = sorted(values)[:MAX_VALUES], "/…" * (len(values) > MAX_VALUES)
    return AXES[name][0].format("/".join(_format_value(value) for value in first) + more)


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return PLACES["in" if value else "out"]
    text = format_settings(value) if isinstance(value, tuple) else plain_line(str(value))
    return "none" if text in ("", "-1") else text


def describe_remedy(base_rows: Mapping[str, CaseRows], right: Mapping[str, CaseRows]) -> str:
    """A sentence on how to measure both sides so that they have rows in common."""
    names = _disjoint_axes(_axis_values(base_rows), _axis_values(right))
    options = [AXES[name][1] for name in names]
    if not all(options) or not options:
        return "compare runs of the same suite and ranks"
    return f"measure both with the same {' and '.join(options)}"


def _axis_values(rows: Mapping[str, CaseRows]) -> dict[str, set[Any]]:
    """The values that the cases of a side have, by axis."""
    return {name: {getattr(row.case, name) for row in rows.values()} for name in AXES}


def _disjoint_axes(base_values: Mapping[str, set[Any]], right: Mapping[str, set[Any]]) -> list[str]:
    """The axes on which no case of one side is as any of the other."""
    return [name for name in AXES if not base_values[name] & right[name]]


def is_interleaved(bases: Sequence[RunFile], heads: Sequence[RunFile]) -> bool:
    """Whether these are the two sides of one experiment, whose launches form pairs."""
    if len(bases) != 1 or len(heads) != 1:
        return False
    base, head = bases[0].run.pairing, heads[0].run.pairing
    return bool(base and head and base.experiment == head.experiment and base.side != head.side)


def explain_unknown_machine(runs: Sequence[Run]) -> str:
    """The reason why nothing is known of a run's machine, or an empty string."""
    for run in runs:
        if run.policy.inject:
            return f"{run.id} is of faults planted on purpose: --inject {run.policy.inject}"
        if run.imported or not run.environment:
            what = (
                f"imported from {run.imported}"
                if run.imported
                else "recorded without its environment"
            )
            return f"the machine is unknown: {run.tag or run.id} was {what}"
    return ""


def find_differences(files: Sequence[RunFile], backends: Collection[str]) -> list[Difference]:
    """Facts by which any run's fingerprint for ``backends`` differs from the first one's; where one
    of the two was imported, or lacks its environment, among the facts that both have."""
    differences = [
        fact for file in files[1:] for fact in _find_differences(files[0], file, backends)
    ]
    return [fact for index, fact in enumerate(differences) if fact not in differences[:index]]


def _find_differences(a: RunFile, b: RunFile, backends: Collection[str]) -> list[Difference]:
    """The facts by which the machines of two runs differ, of those that decide for ``backends``.
    Imported logs are compared by the facts that both tell."""
    facts = environment.find_differences(a.run.environment, b.run.environment, backends)
    if not any(file.run.imported or not file.run.environment for file in (a, b)):
        return facts
    ours, theirs = (_of_worlds(file, backends) for file in (a, b))
    common = [(name, ours[name], theirs[name]) for name in sorted(ours.keys() & theirs.keys())]
    return [(name, old, new) for name, old, new in common if old != new] + [
        fact for fact in facts if None not in fact and not fact[0].startswith("gpus.devices.")
    ]


def _of_worlds(file: RunFile, backends: Collection[str]) -> dict[str, str]:
    """Facts of the machine from a run's worlds, by name: hosts, devices, and libraries by
    backend."""
    worlds = [world for world in file.worlds if world.backend in backends]
    facts = [("hosts", rank.host) for world in worlds for rank in world.ranks]
    facts += [("devices", DEVICE.sub("", r.device)) for world in worlds for r in world.ranks]
    facts += [(f"libraries.{world.backend}", world.library) for world in worlds]
    facts = sorted(set(facts))
    return {
        name: ", ".join(value for other, value in facts if other == name)
        for name, value in facts
        if value
    }


def log_changes(base: CaseRows, head: CaseRows, stage: int) -> dict[Place, float]:
    """Log ratio of head to base in every round of a stage that both have, where both were timed in
    the same way."""
    pairs = {
        launch_key: (base.launches[launch_key], head.launches[launch_key])
        for launch_key in common_places(base, head)
        if launch_key[0] == stage
    }
    return {
        launch_key: math.log(after.median / before.median)
        for launch_key, (before, after) in pairs.items()
        if (before.record.sync, before.record.inner) == (after.record.sync, after.record.inner)
    }


def select_started_alike(base: CaseRows, head: CaseRows) -> list[list[Row]]:
    """The launches of base and of head in which ranks started in one way, of those that both sides
    have the one that leaves the shorter side longest; all launches where they have none in
    common."""
    sides = [list(side.launches.values()) for side in (base, head)]
    ours, theirs = (group_rows(side, lambda launch: launch.record.sync) for side in sides)
    shortest = {
        start: min(len(ours[start]), len(theirs[start])) for start in ours if start in theirs
    }
    if not shortest:
        return sides
    start = max(shortest, key=shortest.__getitem__)
    return [ours[start], theirs[start]]


def common_places(base: CaseRows, head: CaseRows) -> list[Place]:
    """Rounds and launches that both sides have."""
    return sorted(base.launches.keys() & head.launches.keys())


def describe_orders(base: CaseRows, head: CaseRows) -> str:
    """A note that the sides add in different orders, with the algorithms that add as each does;
    empty where they add alike, or a side does not tell."""
    known = [
        {describe_adding(row.record.chose): None for row in side.timed if _has_order(row)}
        for side in (base, head)
    ]
    if not all(known) or known[0].keys() == known[1].keys():
        return ""
    was, now = (" or ".join(map(plain_line, orders)) for orders in known)
    return f"adds in another order: {was} → {now}"


def _has_order(row: Row) -> bool:
    return bool(describe_adding(row.record.chose))


def describe_disagreement(base: CaseRows, head: CaseRows, name: str = "") -> str:
    """The settings in which the two sides of a row differ throughout, so that their times do not
    compare; only whether they differ in ``name``, where that is given."""
    differences = []
    for fact in [name] if name else sorted(base.manner.keys() & head.manner.keys()):
        base_values, other = (side.manner.get(fact, set[str]()) for side in (base, head))
        if base_values and other and not base_values & other:
            ours, theirs = (" or ".join(sorted(values)) for values in (base_values, other))
            differences.append(f"{fact}: {ours} on base, {theirs} on head")
    return "; ".join(differences)
