"""What nccl-tests says of a run before its rows, made from our records: its settings and devices,
for its text and its JSON."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from collbench.core import groups
from collbench.core.groups import Groups
from collbench.core.text import plain_line
from collbench.records.types import RankInfo, Run, World
from collbench.suite.case import Case

DEVICE = re.compile(r"\w+:(?P<index>\d+)(?: \[(?P<bus>[0-9a-fA-F:.]+)\])?(?: (?P<name>.+))?")


def list_devices(
    ranks: Sequence[RankInfo], product: str = "", divided: Groups = ()
) -> list[dict[str, Any]]:
    """A rank each, with its number among the groups they are ``divided`` into. Reads ``device`` as
    "cpu", or as "cuda:3 [0000:0f:00] NVIDIA H200" of which the end may lack."""
    numbers = {rank: number for number, members in enumerate(divided) for rank in members}
    devices = []
    for info in ranks:
        match = DEVICE.fullmatch(plain_line(info.device))
        index, bus, name = match.groups() if match else (info.rank, None, None)
        name = (
            f"CPU cores {_format_spans(info.cpus)}"
            if info.device == "cpu"
            else name or product or info.device
        )
        devices.append(
            {
                "rank": info.rank,
                "group": numbers.get(info.rank, 0),
                "pid": info.pid,
                "hostname": plain_line(info.host).split(".")[0],
                "device": int(index),
                "device_hex": bus or "0000:00:00",
                "device_info": plain_line(name),
            }
        )
    return devices


def _format_spans(cpus: Sequence[int]) -> str:
    """0-3,8 for 0, 1, 2, 3, 8."""
    runs = [
        list(g)
        for _, g in itertools.groupby(enumerate(sorted(cpus)), key=lambda pair: pair[1] - pair[0])
    ]
    return ",".join(str(r[0][1]) if len(r) == 1 else f"{r[0][1]}-{r[-1][1]}" for r in runs) or "any"


def describe_configuration(run: Run, cases: Sequence[Case], world: World | None) -> dict[str, Any]:
    """nccl-tests' settings, under its JSON names. With adaptive sampling the iterations are lower
    bounds.

    ``ngpus`` is what -g means here, ranks on a machine; a step of 0 bytes says that the sizes
    follow no one step.
    """
    policy, sizes = run.policy, sorted({case.nbytes for case in cases}) or [0]
    hosts = (
        Counter(info.host for info in world.ranks)
        if world
        else {"": max((case.world for case in cases), default=0)}
    )
    factors = {b / a if a else 0.0 for a, b in itertools.pairwise(sizes)}
    steps = {b - a for a, b in itertools.pairwise(sizes)}
    by_factor = len(factors) == 1 and min(factors).is_integer()
    divided = groups.list_members(cases[0].groups, cases[0].world) if cases else ()
    kinds = {
        str(gpu.get("name") or "") for gpu in (run.environment.get("gpus") or {}).get("devices", [])
    }
    step = (
        {"step_factor": int(min(factors))}
        if by_factor
        else {"step_bytes": min(steps) if len(steps) == 1 else 0}
    )
    return {
        "nthreads": 1,
        "ngpus": max(hosts.values(), default=0),
        "minimum_bytes": sizes[0],
        "maximum_bytes": sizes[-1],
        **step,
        "warmup_iters": 1 if policy.warmup is None else policy.warmup,
        "iterations": policy.min_iters if policy.iters is None else policy.iters,
        "aggregated_iterations": policy.agg_iters,
        "validation": policy.check,
        "unalign": policy.unalign,
        "graph": policy.graph if any(case.mode == "graph" for case in cases) else 0,
        "blocking_collectives": describe_truth(policy.blocking != 0),
        "per_iter_timing": "true",
        "per_iter_skip": 0,
        "parallel_init": "false",
        "devices": list_devices(
            world.ranks if world else [], kinds.pop() if len(kinds) == 1 else "", divided
        ),
    }


def describe_truth(truth: bool) -> str:
    """A truth value as nccl-tests' JSON has it."""
    return "true" if truth else "false"


def library_number(worlds: Iterable[World]) -> int:
    """NCCL's version as it encodes it (23004 for 2.30.4); 0 for another library."""
    return _version_number(worlds, r"(\d+)\.(\d+)\.(\d+)")


def headers_number(worlds: Iterable[World]) -> int:
    """The version of NCCL that torch was built with, encoded alike; 0 where no world tells it."""
    return _version_number(worlds, r"built with (\d+)\.(\d+)\.(\d+)")


def _version_number(worlds: Iterable[World], pattern: str) -> int:
    versions = (re.search(pattern, w.library) for w in worlds if w.backend == "nccl")
    return next((int(v[1]) * 10000 + int(v[2]) * 100 + int(v[3]) for v in versions if v), 0)


def local_time(stamp: str) -> str:
    """An ISO time as nccl-tests prints times: local, without a zone; now for an empty one."""
    return (
        (datetime.fromisoformat(stamp) if stamp else datetime.now())
        .astimezone()
        .strftime("%Y-%m-%d %H:%M:%S")
    )
