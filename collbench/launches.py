"""What the runs of one side measured, launch by launch, and by which small changes such a machine is not to be judged.

A launch, not a sample, is what claims rest on: samples of one launch share its address layout, placement and clocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import median, median_low
from typing import Any, NamedTuple

from collbench import environment
from collbench.records import Record, Run, RunFile, World
from collbench.suite import Case

TAU_LARGE, TAU_DEDICATED, TAU_SHARED = 0.03, 0.05, 0.10
LARGE = 16 << 20  # bytes from which a GPU's times scatter little
GPU_BACKENDS = ("nccl", "rccl")  # of runs that name no device, as imported ones
VIRTUAL = re.compile(
    r"virtual|kvm|qemu|vmware|hvm|xen|bochs|standard pc|compute engine|openstack|droplet", re.IGNORECASE
)
SUBJECTS = ("variables.", "libraries.", "python")  # facts that the variants of an experiment change
ONE_SIDED = "the other side cannot run it"  # a skip's reason in an experiment, on the side that could
MANNER = ("agg_iters", "blocking", "unalign", "pin")  # fields of a policy that change what a call is timed with

Place = tuple[int, int]  # (stage, round) in an interleaved experiment, elsewhere (number of the run, world)


class Launch(NamedTuple):
    """A row in one launch: median in ns a call over its records (cycles), and the record in the middle of them."""

    median: float
    samples: int
    record: Record
    world: World | None


class Measured(NamedTuple):
    """A row on one side. ``ran`` also where no launch counts, as in a pilot; ``trouble`` are records without times.

    ``manner`` is by what rows must agree to be compared: a name, and the values that occurred.
    """

    case: Case
    launches: dict[Place, Launch]
    ran: bool
    trouble: list[Record]
    manner: dict[str, set[str]]

    @property
    def oversubscribed(self) -> bool:
        return any(launch.world and launch.world.oversubscribed for launch in self.launches.values())

    @property
    def on_gpu(self) -> bool:
        ranks = [rank for launch in self.launches.values() if launch.world for rank in launch.world.ranks]
        return any(rank.device.startswith("cuda") for rank in ranks) or self.case.backend in GPU_BACKENDS

    def said(self, status: str) -> str:
        """Why records of this status came to nothing; empty if there are none."""
        return next((record.note or status for record in self.trouble if record.status == status), "")


def gather(files: Sequence[RunFile], paired: bool, key: Callable[[Run, Case], str]) -> dict[str, Measured]:
    """All rows of one side by ``key``, which says what they are joined on."""
    rows: dict[str, list[tuple[Run, Place | None, Record, World | None]]] = {}
    for number, file in enumerate(files):
        worlds = {world.index: world for world in file.worlds}
        for record in file.records:
            world = worlds.get(record.world)
            place = ((world.stage, world.round) if world else None) if paired else (number, record.world)
            rows.setdefault(key(file.run, record.case), []).append((file.run, place, record, world))
    return {name: _measured(found) for name, found in rows.items()}


def _measured(found: Sequence[tuple[Run, Place | None, Record, World | None]]) -> Measured:
    by_place: dict[Place, list[tuple[float, Record, World | None]]] = {}
    manner: dict[str, set[str]] = {}
    trouble, ran = [], False
    for run, place, record, world in found:
        time = median(record.times_ns or [0]) / record.inner
        if record.status not in ("ok", "predicted") or time <= 0:
            trouble.append(record)
            continue
        ran = True
        for name, value in _manner(run, record).items():
            manner.setdefault(name, set()).add(value)
        if place is not None:
            by_place.setdefault(place, []).append((time, record, world))
    launches = {place: _launch(records) for place, records in by_place.items()}
    return Measured(found[0][2].case, launches, ran, trouble, manner)


def _launch(records: Sequence[tuple[float, Record, World | None]]) -> Launch:
    times = [time for time, _, _ in records]
    _, record, world = records[times.index(median_low(times))]
    return Launch(median(times), sum(len(record.times_ns) for _, record, _ in records), record, world)


def _manner(run: Run, record: Record) -> dict[str, str]:
    """How a record was made; what an imported run does not tell is left out, and then is no difference."""
    manner = {"times": "predicted" if record.status == "predicted" else "measured", "start": record.sync}
    if record.note.startswith("ran ") and not (run.pairing and run.pairing.differs):
        manner["algorithm"] = record.note.removeprefix("ran ")
    manner["cache"] = {"": "", "hot": "hot"}.get(record.cache, "cold")
    if not run.imported:
        manner |= {name: str(getattr(run.policy, name)) for name in MANNER}
    return {name: value for name, value in manner.items() if value}


def smallest_change(row: Measured, facts: Mapping[str, Any]) -> float:
    """The relative change from which on a row matters: 3 % for large data on GPUs, 5 % for less and on CPUs that
    nobody else uses, 10 % elsewhere."""
    if row.on_gpu:
        return TAU_LARGE if row.case.size >= LARGE else TAU_DEDICATED
    return TAU_SHARED if row.oversubscribed or shared(facts) else TAU_DEDICATED


def shared(facts: Mapping[str, Any]) -> bool:
    """Whether others may use the same CPUs: in a virtual machine, under a quota, or with fewer cores than there are.

    A machine that gives no product name counts as virtual: small virtual machines do not, and most others do.
    """
    cpu, container = facts.get("cpu") or {}, facts.get("container") or {}
    product = str(facts.get("product") or "virtual")
    fewer = (cpu.get("cores") or 0) < (cpu.get("physical") or 0)
    return bool(container.get("cpu_quota")) or fewer or VIRTUAL.search(product) is not None


class Pair(NamedTuple):
    """A row with what each side measured of it."""

    key: str
    base: Measured | None
    head: Measured | None

    @property
    def sides(self) -> dict[str, Measured]:
        return {name: side for name, side in (("base", self.base), ("head", self.head)) if side}

    @property
    def case(self) -> Case:
        return next(iter(self.sides.values())).case

    def changes(self, stage: int) -> dict[Place, float]:
        return changes(self.base, self.head, stage) if self.base and self.head else {}

    def left_out(self, paired: bool, last: Place) -> str:
        """Why it is no row of the comparison, or an empty string. ``last`` is an experiment's last round: rounds begin
        when the one before is complete, so that only that one can lack a side because of an interruption."""
        sides = list(self.sides.values())
        if not any(side.ran or side.said("wrong") or side.said("failed") for side in sides):
            return (
                "only one side can run"
                if any(s.said("skipped") == ONE_SIDED for s in sides)
                else "skipped on both sides"
            )
        if paired and len(sides) == 1 and sides[0].launches.keys() == {last}:
            return "left out: the experiment ended before both sides had a launch"
        return ""


def interleaved(bases: Sequence[RunFile], heads: Sequence[RunFile]) -> bool:
    """Whether these are the two sides of one experiment, whose launches form pairs."""
    if len(bases) != 1 or len(heads) != 1:
        return False
    base, head = bases[0].run.pairing, heads[0].run.pairing
    return bool(base and head and base.experiment == head.experiment and base.side != head.side)


def machines(
    bases: Sequence[RunFile], heads: Sequence[RunFile], paired: bool
) -> tuple[list[tuple[str, Any, Any]], str]:
    """Facts by which the fingerprints of any runs differ from the first one's, and why that forbids comparing, or an
    empty string; so do planted faults. What the variants of an experiment are about does not."""
    runs = [file.run for file in (*bases, *heads)]
    for run in runs:
        if run.policy.inject:
            return [], f"{run.id} is of faults planted on purpose: --inject {run.policy.inject}"
        if run.imported or not run.environment:
            what = f"imported from {run.imported}" if run.imported else "recorded without its environment"
            return [], f"the machine is unknown: {run.id} was {what}"
    found = [fact for run in runs[1:] for fact in environment.differences(runs[0].environment, run.environment)]
    differences = [fact for place, fact in enumerate(found) if fact not in found[:place]]
    others = [key for key, _, _ in differences if not (paired and key.startswith(SUBJECTS))]
    if not others:
        return differences, ""
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return differences, f"the machines differ: {others[0]}{more}"


def changes(base: Measured, head: Measured, stage: int) -> dict[Place, float]:
    """Log ratio of head to base in every round of a stage that both have, where both were timed in the same way."""
    pairs = {place: (base.launches[place], head.launches[place]) for place in common(base, head) if place[0] == stage}
    return {
        place: math.log(after.median / before.median)
        for place, (before, after) in pairs.items()
        if (before.record.sync, before.record.inner) == (after.record.sync, after.record.inner)
    }


def common(base: Measured, head: Measured) -> list[Place]:
    return sorted(base.launches.keys() & head.launches.keys())


def disagreement(base: Measured, head: Measured) -> str:
    """In what the two sides of a row were measured differently throughout, so that their times do not compare."""
    for name in sorted(base.manner.keys() & head.manner.keys()):
        if not base.manner[name] & head.manner[name]:
            ours, theirs = (" or ".join(sorted(side.manner[name])) for side in (base, head))
            return f"{name}: {ours} on base, {theirs} on head"
    return ""
