"""The two sides of a comparison: what each measured, which of it may be held against the other's,
and the smallest change that matters on such a machine.

A launch, not a sample, is what claims rest on: samples of one launch share its address layout,
placement and clocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from collbench.machine import environment
from collbench.machine.environment import Difference
from collbench.records import origins, rows
from collbench.records.derive import NO_TIME_LEFT
from collbench.records.flags import EXCLUDED, FEW
from collbench.records.rows import Row
from collbench.records.types import ONE_SIDED, Record, Run, RunFile
from collbench.suite.case import Case

TAU_LARGE, TAU_DEDICATED, TAU_SHARED = 0.03, 0.05, 0.10

LARGE = 16 << 20  # bytes from which a GPU's times scatter little

GPU_BACKENDS = ("nccl", "rccl")  # of runs that name no device, as imported ones

DEVICE = re.compile(r"^(?:cpu$|cuda:\d+ ?(?:\[[^]]*\] ?)?)")  # less which, a device is its name

VIRTUAL = re.compile(
    r"virtual|kvm|qemu|vmware|hvm|xen|bochs|standard pc|compute engine|openstack|droplet",
    re.IGNORECASE,
)

SUBJECTS = ("variables.", "libraries.", "python")  # facts that the variants of an experiment change

MANNER = (
    "agg_iters",
    "blocking",
    "unalign",
    "pin",
)  # fields of a policy that change what a call is timed with


TORCH = re.compile(r"\(torch (\d+)\.(\d+)")  # in what a world of NCCL or RCCL calls its library

# Since 2.8 torch runs a collective on the current stream; before, on a stream of its own, which had
# to wait for that and that for it (PyTorch's pull request 150398): some us of every call.
CURRENT_STREAM = 2, 8

STREAMS_APART = (
    "torch before 2.8 runs NCCL's collectives on a stream of its own, newer ones on the current"
    " stream: some us of every call are not NCCL's, so that rows of nccl do not compare"
)


Place = tuple[
    int, int
]  # (stage, round) in an interleaved experiment, elsewhere (number of the run, world)


TOO_BROKEN = {
    FEW: "fewer than 6 samples",
    **EXCLUDED,
}


class CaseRows(NamedTuple):
    """A case on one side: all its rows, and by place those that judge it (rows.deciding).

    ``manner`` is by what sides must agree to be compared: a name, and the values that occurred.
    """

    case: Case
    rows: Sequence[Row]
    launches: dict[Place, Row]
    manner: dict[str, set[str]]

    @property
    def timed(self) -> list[Row]:
        return [row for row in self.rows if row.ran]

    @property
    def ran(self) -> bool:
        return bool(self.timed)

    @property
    def oversubscribed(self) -> bool:
        return any(row.world and row.world.oversubscribed for row in self.timed)

    @property
    def on_gpu(self) -> bool:
        ranks = [rank for row in self.timed if row.world for rank in row.world.ranks]
        return any(rank.gpu for rank in ranks) or self.case.backend in GPU_BACKENDS

    @property
    def broken(self) -> str:
        """Why most launches are of no use to any verdict, or an empty string."""
        for flag, reason in EXCLUDED.items():
            if 2 * sum(flag in row.unfit for row in self.timed) > len(self.timed):
                return reason
        few = sum(FEW in row.ungated for row in self.launches.values())
        imported = any(row.run.imported for row in self.rows)  # whose samples are means of many
        return TOO_BROKEN[FEW] if 2 * few > len(self.launches) and not imported else ""

    @property
    def fake(self) -> bool:
        """Whether it was measured on a fake GPU."""
        return any(origins.FAKE in row.unfit for row in self.timed)

    @property
    def dropped(self) -> str:
        """Why --budget left no time for it, or for a second stage; empty where it did not."""
        note = self.said("skipped")
        return note if note.startswith(NO_TIME_LEFT) else ""

    def said(self, status: str) -> str:
        """Why records of this status came to nothing; empty if there are none."""
        records = [cycle.record for row in self.rows for cycle in row.left_out]
        return next((r.note or status for r in records if r.status == status), "")


def gather(
    files: Sequence[RunFile], paired: bool, key: Callable[[Run, Case], str]
) -> dict[str, CaseRows]:
    """The cases of one side by ``key``, which says what they are joined on."""
    table = rows.by(rows.table(files), lambda row: key(row.run, row.case))
    return {name: _case_rows(found, paired) for name, found in table.items()}


def _case_rows(found: Sequence[Row], paired: bool) -> CaseRows:
    placed = [row for row in found if row.world] if paired else found
    manner: dict[str, set[str]] = {}
    for row in rows.fit(found):
        for cycle in row.fit:
            for name, value in _manner(row, cycle.record).items():
                manner.setdefault(name, set()).add(value)
    launches: dict[Place, Row] = {}
    for stage in rows.by(placed, lambda row: row.launch.stage).values():
        launches |= {_place(row, paired): row for row in rows.deciding(stage)}
    return CaseRows(found[0].case, found, launches, manner)


def _place(row: Row, paired: bool) -> Place:
    return (row.launch.stage, row.launch.round) if paired else (row.file, row.launch.world)


def _manner(row: Row, record: Record) -> dict[str, str]:
    """How a record was made; what an imported run does not tell is left out, and then is no
    difference."""
    run = row.run
    manner = {
        "times": "predicted" if record.status == "predicted" else "measured",
        "start": record.sync,
        "stream": _stream(row),
    }
    if record.note.startswith("ran ") and not (run.pairing and run.pairing.differs):
        manner["algorithm"] = record.note.removeprefix("ran ").partition("; ")[0]
    manner["cache"] = {"": "", "hot": "hot"}.get(record.cache, "cold")
    if not run.imported:
        manner |= {name: str(getattr(run.policy, name)) for name in MANNER}
        manner["launches of -m"] = "one a call" if "-m: " in record.note else "one"
    return {name: value for name, value in manner.items() if value}


def _stream(row: Row) -> str:
    """The stream that torch runs NCCL's collectives on; empty for others, and where no torch is
    named."""
    version = TORCH.search(row.world.library) if row.world else None
    if not version or row.case.backend != "nccl":
        return ""
    return "current" if (int(version[1]), int(version[2])) >= CURRENT_STREAM else "torch's own"


def smallest_change(row: CaseRows, facts: Mapping[str, Any]) -> float:
    """The relative change from which on a row matters: 3 % for large data on GPUs, 5 % for less and
    on CPUs that nobody else uses, 10 % elsewhere."""
    if row.on_gpu:
        return TAU_LARGE if row.case.size >= LARGE else TAU_DEDICATED
    return TAU_SHARED if row.oversubscribed or shared(facts) else TAU_DEDICATED


def shared(facts: Mapping[str, Any]) -> bool:
    """Whether others may use the same CPUs: in a virtual machine, under a quota, or with fewer
    cores than there are.

    A machine that gives no product name counts as virtual: small virtual machines do not, and most
    others do.
    """
    cpu, container = facts.get("cpu") or {}, facts.get("container") or {}
    product = str(facts.get("product") or "virtual")
    fewer = (cpu.get("cores") or 0) < (cpu.get("physical") or 0)
    return bool(container.get("cpu_quota")) or fewer or VIRTUAL.search(product) is not None


class Pair(NamedTuple):
    """A row with what each side measured of it."""

    key: str
    base: CaseRows | None
    head: CaseRows | None

    @property
    def sides(self) -> dict[str, CaseRows]:
        return {name: side for name, side in (("base", self.base), ("head", self.head)) if side}

    @property
    def case(self) -> Case:
        return next(iter(self.sides.values())).case

    @property
    def backends(self) -> set[str]:
        return {side.case.backend for side in self.sides.values()}

    @property
    def fake(self) -> bool:
        """Whether a side was measured on a fake GPU."""
        return any(side.fake for side in self.sides.values())

    def changes(self, stage: int) -> dict[Place, float]:
        return changes(self.base, self.head, stage) if self.base and self.head else {}

    @property
    def dropped(self) -> str:
        """Why --budget left no time to measure it on a side; empty where it did not."""
        sides = list(self.sides.values())
        if any(side.said("wrong") or side.said("failed") for side in sides):
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
            side.ran or side.said("wrong") or side.said("failed") for side in sides.values()
        ):
            reasons = {name: side.said("skipped") for name, side in sides.items()}
            own = [f"{name}: {why}" for name, why in reasons.items() if why != ONE_SIDED]
            if ONE_SIDED in reasons.values():
                return f"only one side can run; {own[0] if own else 'no reason is recorded'}"
            return (
                f"skipped on both sides; {next(iter(reasons.values())) or 'no reason is recorded'}"
            )
        if paired and len(sides) == 1 and next(iter(sides.values())).launches.keys() == {last}:
            return "left out: the experiment ended before both sides had a launch"
        return ""


AXES = {
    "collective": "",
    "backend": "",
    "algorithm": "",
    "n": " ranks",
    "nbytes": " B",
    "dtype": "",
    "op": "",
    "mode": "",
}


def unlike(left: Mapping[str, CaseRows], right: Mapping[str, CaseRows]) -> str:
    """What no case of either side has in common with any of the other, as in 8 ranks, nccl on base,
    2 ranks, gloo on head."""
    values = [_values(left), _values(right)]
    names = _apart(*values)
    told = [
        ", ".join(
            f"{'/'.join(map(str, sorted(one[name])[:3])) or 'no'}{AXES[name]}" for name in names
        )
        for one in values
    ]
    return f"{told[0]} on base, {told[1]} on head" if names else "no combination is the same"


OPTIONS = {
    "backend": "--backend",
    "algorithm": "--algo",
    "n": "-g",
    "nbytes": "--sizes",
    "dtype": "-d",
    "op": "-o",
    "mode": "--mode",
}  # that set an axis


def describe_remedy(left: Mapping[str, CaseRows], right: Mapping[str, CaseRows]) -> str:
    """How to measure both sides so that they have rows in common."""
    names = _apart(_values(left), _values(right))
    given = [OPTIONS[name] for name in names if name in OPTIONS]
    if not given or "collective" in names:
        return "compare runs of the same suite and ranks"
    return f"measure both with the same {' and '.join(given)}"


def _values(rows: Mapping[str, CaseRows]) -> dict[str, set[Any]]:
    """What the cases of a side have, by axis."""
    return {name: {getattr(row.case, name) for row in rows.values()} for name in AXES}


def _apart(left: Mapping[str, set[Any]], right: Mapping[str, set[Any]]) -> list[str]:
    """The axes on which no case of one side is as any of the other."""
    return [name for name in AXES if not left[name] & right[name]]


def interleaved(bases: Sequence[RunFile], heads: Sequence[RunFile]) -> bool:
    """Whether these are the two sides of one experiment, whose launches form pairs."""
    if len(bases) != 1 or len(heads) != 1:
        return False
    base, head = bases[0].run.pairing, heads[0].run.pairing
    return bool(base and head and base.experiment == head.experiment and base.side != head.side)


def unknown(runs: Sequence[Run]) -> str:
    """Why nothing is known of a run's machine as it is, or an empty string."""
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


def differences(files: Sequence[RunFile], backends: Collection[str]) -> list[Difference]:
    """Facts by which any run's fingerprint for ``backends`` differs from the first one's; where one
    of the two was imported, or lacks its environment, among the facts that both have."""
    found = [fact for file in files[1:] for fact in _differences(files[0], file, backends)]
    return [fact for place, fact in enumerate(found) if fact not in found[:place]]


def _differences(a: RunFile, b: RunFile, backends: Collection[str]) -> list[Difference]:
    facts = environment.differences(a.run.environment, b.run.environment, backends)
    if not any(file.run.imported or not file.run.environment for file in (a, b)):
        return facts
    ours, theirs = (_of_worlds(file, backends) for file in (a, b))
    told = [(name, ours[name], theirs[name]) for name in sorted(ours.keys() & theirs.keys())]
    return [(name, old, new) for name, old, new in told if old != new] + [
        fact for fact in facts if None not in fact and not fact[0].startswith("gpus.devices.")
    ]


def _of_worlds(file: RunFile, backends: Collection[str]) -> dict[str, str]:
    """What heads of a log tell of the machine, by fact: hosts, devices, libraries by backend."""
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


def changes(base: CaseRows, head: CaseRows, stage: int) -> dict[Place, float]:
    """Log ratio of head to base in every round of a stage that both have, where both were timed in
    the same way."""
    pairs = {
        place: (base.launches[place], head.launches[place])
        for place in common(base, head)
        if place[0] == stage
    }
    return {
        place: math.log(after.median / before.median)
        for place, (before, after) in pairs.items()
        if (before.record.sync, before.record.inner) == (after.record.sync, after.record.inner)
    }


def common(base: CaseRows, head: CaseRows) -> list[Place]:
    return sorted(base.launches.keys() & head.launches.keys())


def disagreement(base: CaseRows, head: CaseRows, name: str = "") -> str:
    """What the two sides of a row differ in throughout, so that their times do not compare; only
    whether they differ in ``name``, where that is given."""
    for each in [name] if name else sorted(base.manner.keys() & head.manner.keys()):
        one, other = (side.manner.get(each, set[str]()) for side in (base, head))
        if one and other and not one & other:
            ours, theirs = (" or ".join(sorted(values)) for values in (one, other))
            return f"{each}: {ours} on base, {theirs} on head"
    return ""
