"""Under torchrun: blocks of collbench's sampler, of a hand-written loop, and of that loop again, in
turns.

Both loops start from the same alignment and use the same buffers and library call; what may differ
is what the measuring adds. The result, one JSON line, holds medians over blocks of the blocks'
medians of the slowest rank, in ns. ``--repeat .1`` takes a tenth of the blocks.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from functools import partial

import msgspec
import numpy as np
import torch.distributed as dist

from collbench.machine import environment
from collbench.run import backends
from collbench.run.backends import _torchdist
from collbench.run.launch import join
from collbench.run.launch.environments import Membership
from collbench.run.rank import cores, worker
from collbench.run.rank.calls import allocate_slots
from collbench.run.rank.control import Store
from collbench.run.rank.measure import Sampler, Sync
from collbench.suite.case import Case

# collective, bytes, alignment, blocks: without alignment, small calls on a small machine are steady
# enough to compare
CASES = [
    ("all_reduce", 8, "none", 200),
    ("all_gather", 8, "none", 200),
    ("all_reduce", 4096, "none", 200),
    ("all_to_all", 1 << 20, "none", 100),
    ("all_reduce", 16 << 20, "window", 60),
]
SIZE = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=float, default=1.0)
    repeat = parser.parse_args().repeat
    member = join.detect_launcher()
    assert member is not None
    with join.hold_meeting(member, 60) as meeting:
        measure(member, Store(meeting.connection), repeat)


def measure(member: Membership, store: Store, repeat: float) -> None:
    place = worker.Place(*member[1:], launcher=member.launcher)
    control = worker.connect_control(place, store)
    board = join.shared_board(member, control)
    cores.settle_cores(place.rank, control, 1, True)
    backend = backends.find_backend("gloo")
    backend.hosts = control.collect(environment.host_name())
    backend.open(place.rank, place.n, place.local_rank)
    found = []
    for collective, nbytes, scheme, blocks in CASES:
        sync = Sync(scheme, control, board)
        op = "max" if collective == "all_reduce" else "none"
        case = Case(
            collective=collective,
            backend="gloo",
            n=place.n,
            nbytes=nbytes,
            in_place=collective == "all_reduce",
            op=op,
            root=0,
        )
        ((buffers,),) = allocate_slots(backend, [case], [place.rank])
        buffers.recv.zero_()
        prepared = backend.prepare(case, buffers.send, buffers.recv)
        sampler = Sampler([(prepared.run, (0,))], 1, control, lambda: board.count_calls(place.rank))
        group = backend._at.group  # type: ignore[attr-defined]
        recv, send = buffers.recv, buffers.send
        bare = {
            "all_reduce": partial(dist.all_reduce, recv, dist.ReduceOp.MAX, group),
            "all_gather": partial(_torchdist.all_gather, recv, send, group),
            "all_to_all": partial(dist.all_to_all_single, recv, send, group=group),
        }[collective]
        sides: dict[str, list[float]] = {"ours": [], "bare": [], "again": []}
        for turn in range(3 * math.ceil(repeat * blocks) + 3):
            side = ("ours", "bare", "again")[(turn + turn // 3) % 3]
            if side == "ours":
                samples = sampler.take(SIZE, sync)
                times = samples.durations if samples is not None else None
            else:
                times = hand_written(bare, sync, control)
            if times is not None and turn >= 3:
                sides[side].append(float(np.median(times.max(axis=0))))
        what = f"{collective} {nbytes} B" + (", aligned" if scheme == "window" else "")
        found.append(
            {"what": what, **{s: statistics.median(t) if t else 0 for s, t in sides.items()}}
        )
    if place.rank == 0:
        print(msgspec.json.encode(found).decode(), flush=True)
    control.barrier()


def hand_written(call, sync, control):  # type: ignore[no-untyped-def]
    times = np.zeros(SIZE, dtype=np.int64)
    for i in range(SIZE):
        sync()
        begin = time.perf_counter_ns()
        call()
        times[i] = time.perf_counter_ns() - begin
    return control.gather(times)


if __name__ == "__main__":
    main()
