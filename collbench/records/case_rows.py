"""A case with all its rows of one side: the launches that judge it, how its calls were timed, and
the smallest change that matters to it.

A launch, not a sample, is what claims rest on: samples of one launch share its address layout,
placement and clocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from collbench.records import origins, rows
from collbench.records.derive import NO_SAMPLE, NO_TIME_LEFT
from collbench.records.flags import EXCLUDED, FEW
from collbench.records.rows import Row
from collbench.records.types import Record, Run, RunFile
from collbench.suite.case import BATCH_MODES, Case

TAU_LARGE, TAU_DEDICATED, TAU_SHARED = 0.03, 0.05, 0.10

LARGE = 16 << 20  # bytes from which a GPU's times scatter little

GPU_BACKENDS = ("nccl", "rccl")  # of runs that name no device, as imported ones

VIRTUAL = re.compile(
    r"virtual|kvm|qemu|vmware|hvm|xen|bochs|standard pc|compute engine|openstack|droplet",
    re.IGNORECASE,
)

MANNER = (
    "agg_iters",
    "blocking",
    "unalign",
    "pin",
    "register",
)  # fields of a policy that change what a call is timed with

TORCH = re.compile(r"\(torch (\d+)\.(\d+)")  # in what a world of NCCL or RCCL calls its library

# Since 2.8 torch runs a collective on the current stream; before, on a stream of its own, which had
# to wait for that and that for it (PyTorch's pull request 150398): some us of every call.
CURRENT_STREAM = 2, 8

Place = tuple[
    int, int
]  # (stage, round) in an interleaved experiment, elsewhere (number of the run, world)

MOST_LOST = 0.25  # of launches, that may have no valid sample

TOO_BROKEN = {
    FEW: "fewer than 6 samples",
    **EXCLUDED,
}


class CaseRows(NamedTuple):
    """A case on one side: all its rows, and by place those that judge it (rows.select_deciding).

    ``manner`` is by what sides must agree to be compared: a name, and the values that occurred.
    """

    case: Case
    rows: Sequence[Row]
    launches: dict[Place, Row]
    manner: dict[str, set[str]]

    @property
    def timed(self) -> list[Row]:
        """Rows that have samples."""
        return [row for row in self.rows if row.ran]

    @property
    def ran(self) -> bool:
        """Whether any row has samples."""
        return bool(self.timed)

    @property
    def oversubscribed(self) -> bool:
        """Whether any row with samples had more ranks than cores."""
        return any(row.world and row.world.oversubscribed for row in self.timed)

    @property
    def on_gpu(self) -> bool:
        """Whether ranks used GPUs in any row with samples, or the backend runs on GPUs only."""
        if self.case.backend in GPU_BACKENDS:
            return True
        worlds = {id(row.world): row.world for row in self.timed if row.world}
        return any(rank.gpu for world in worlds.values() for rank in world.ranks)

    @property
    def broken(self) -> str:
        """Why most launches are of no use to any verdict, or an empty string."""
        for flag, reason in EXCLUDED.items():
            if 2 * sum(flag in row.unfit for row in self.timed) > len(self.timed):
                return reason
        few = sum(FEW in row.own_flags for row in self.launches.values())
        imported = any(row.run.imported for row in self.rows)  # whose samples are means of many
        return TOO_BROKEN[FEW] if 2 * few > len(self.launches) and not imported else ""

    @property
    def fake(self) -> bool:
        """Whether it was measured on a fake GPU."""
        return any(origins.FAKE in row.unfit for row in self.timed)

    @property
    def dropped(self) -> str:
        """The reason why --budget left no time for the case, or for a second stage; empty where
        there was time."""
        note = self.reason_of("skipped")
        return note if note.startswith(NO_TIME_LEFT) else ""

    @property
    def dropped_launch_count(self) -> int:
        """The number of launches of the case that --budget left no time for."""
        fresh = [row for row in self.rows if row.run.policy.fresh]
        notes = [cycle.record.note for row in fresh for cycle in row.left_out]
        return sum(note.startswith(NO_TIME_LEFT) for note in notes)

    def reason_of(self, status: str) -> str:
        """The reason that records of this status give; empty if there are none."""
        return next(iter(self._reasons_of(status)), "")

    @property
    def failure(self) -> str:
        """The reason why a launch failed, or an empty string. Without a valid sample a launch
        failed where more than MOST_LOST of all were so; else it is left out."""
        reasons = self._reasons_of("failed")
        faults = [reason for reason in reasons if not reason.startswith(NO_SAMPLE)]
        lost = sum("failed" in row.unfit and not row.ran for row in self.rows)
        too_many = lost > MOST_LOST * (lost + len(self.timed))
        return next(iter(faults or (reasons if too_many else [])), "")

    @property
    def without_sample(self) -> str:
        """Why there is no time, where launches ran and none had a valid sample; else empty."""
        reasons = self._reasons_of("failed")
        lost = not self.ran and reasons and all(why.startswith(NO_SAMPLE) for why in reasons)
        return reasons[0] if lost else ""

    def _reasons_of(self, status: str) -> list[str]:
        records = [cycle.record for row in self.rows for cycle in row.left_out]
        return [record.note or status for record in records if record.status == status]


def gather_case_rows(
    files: Sequence[RunFile], paired: bool, key: Callable[[Run, Case], str]
) -> dict[str, CaseRows]:
    """The cases of one side by ``key``, which says what they are joined on."""
    table = rows.group_rows(rows.make_rows(files), lambda row: key(row.run, row.case))
    return {name: _case_rows(case_list, paired) for name, case_list in table.items()}


def _case_rows(case_list: Sequence[Row], paired: bool) -> CaseRows:
    """The CaseRows of one case: its launches, for pairs only those with a world, and how they were
    measured."""
    placed = [row for row in case_list if row.world] if paired else case_list
    launches: dict[Place, Row] = {}
    for stage in rows.group_rows(placed, lambda row: row.launch.stage).values():
        launches |= {_launch_index(row, paired): row for row in rows.select_deciding(stage)}
    return CaseRows(case_list[0].case, case_list, launches, describe_manners(case_list))


def describe_manners(case_list: Sequence[Row]) -> dict[str, set[str]]:
    """How the calls of a case's fit rows were timed: values by name."""
    manner: dict[str, set[str]] = {}
    for row in rows.select_fit(case_list):
        for cycle in row.fit:
            for name, value in _describe_manner(row, cycle.record).items():
                manner.setdefault(name, set()).add(value)
    return manner


def _launch_index(row: Row, paired: bool) -> Place:
    return (row.launch.stage, row.launch.round) if paired else (row.file, row.launch.world)


def _describe_manner(row: Row, record: Record) -> dict[str, str]:
    """The manner in which a record was measured, by name; what an imported run does not tell is
    left out and counts as no difference."""
    run = row.run
    manner = {
        "times": "predicted" if record.status == "predicted" else "measured",
        "start": record.sync,
        "stream": _find_stream(row),
    }
    if record.note.startswith("ran ") and not (run.pairing and run.pairing.differs):
        manner["algorithm"] = record.note.removeprefix("ran ").partition("; ")[0]
    manner["cache"] = {"": "", "hot": "hot"}.get(record.cache, "cold")
    if not run.imported:
        manner |= {name: str(getattr(run.policy, name)) for name in MANNER}
        if row.case.mode in BATCH_MODES:
            calls = run.policy.count_calls(row.case.mode) // run.policy.agg_iters
            manner["calls a sample"] = str(calls)
        manner["launches of -m"] = "one a call" if "-m: " in record.note else "one"
    return {name: value for name, value in manner.items() if value}


def _find_stream(row: Row) -> str:
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
    return TAU_SHARED if row.oversubscribed or is_shared_machine(facts) else TAU_DEDICATED


def is_shared_machine(facts: Mapping[str, Any]) -> bool:
    """Whether others may use the same CPUs: in a virtual machine, under a quota, or with fewer
    cores than there are.

    A machine that gives no product name counts as virtual: small virtual machines do not, and most
    others do.
    """
    cpu, container = facts.get("cpu") or {}, facts.get("container") or {}
    product = str(facts.get("product") or "virtual")
    fewer = (cpu.get("cores") or 0) < (cpu.get("physical") or 0)
    return bool(container.get("cpu_quota")) or fewer or VIRTUAL.search(product) is not None
