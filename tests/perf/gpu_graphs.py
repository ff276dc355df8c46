"""What tests/perf/gpu.py learns from a process with a GPU of its own: how fast memory is copied,
and what the harness adds to a CUDA graph. Prints one line of JSON; times in ns a call, rates in
bytes/ns.

Graphs hold the same calls on the same buffers, replayed in turns: collbench's by its sampler, the
hand-written one between two events, both behind a busy wait, so that neither time has the launch in
it.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from collbench.core.errors import CollbenchError, first_line
from collbench.run import backends
from collbench.run.backends import do_nothing
from collbench.run.rank.calls import allocate_slots, prepare_call
from collbench.run.rank.control import Control
from collbench.run.rank.device_clock import GraphSampler
from collbench.run.rank.measure import Sync
from collbench.run.rank.stream import Cuda
from collbench.suite.case import Case
from collbench.suite.policy import Policy

N, SLOTS, ROUNDS, SAMPLES = 2, 2, 12, 20
LARGEST = int(os.environ.get("GPU_CHECK_LARGEST") or 1 << 30)
CASES = (
    (8, 400),
    (min(64 << 20, LARGEST), 8),
)  # bytes, and so many calls in a graph that it takes over a millisecond
COPIED, COPIES = min(1 << 30, LARGEST), 10
BUSY_CYCLES = 4_000_000  # about 2 ms, in which a graph is launched


def copy_rate(device: torch.device) -> float:
    """Bytes read and written by copies within device memory, at best a third of what is free."""
    free, _ = torch.cuda.mem_get_info(device)
    nbytes = min(COPIED, free // 3)
    source, target = (torch.zeros(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
    times = [timed(lambda: target.copy_(source), COPIES) for _ in range(ROUNDS)]
    return 2 * nbytes / statistics.median(times[2:])


def timed(call: Callable[[], object], repeats: int) -> float:
    """Nanoseconds a call, by a pair of events around ``repeats`` of them that are issued while the
    GPU is busy."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(BUSY_CYCLES)
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e6 / repeats


def graphs(nbytes: int, inner: int) -> dict[str, Any]:
    """Medians of rounds of both, and of the hand-written graph a second time, which shows the
    noise."""
    case = Case(
        collective="all_reduce",
        backend="symm",
        algorithm="one_shot",
        n=N,
        nbytes=nbytes,
        op="sum",
        mode="graph",
    )
    backend = backends.find_backend("symm")
    backend.policy = Policy(virtual=True)
    backend.open(0, N, 0)
    slots = allocate_slots(backend, [case] * SLOTS, range(N))
    for buffers in (buffers for slot in slots for buffers in slot):
        buffers.send.zero_()
    calls = [prepare_call(backend, case, slot, True).run for slot in slots]
    for call in calls:
        call()
    backend.finish()
    control = Control(0, 1)
    stream = Cuda(torch.device("cuda", 0))
    sampler = GraphSampler(
        stream, [(call, (slot,)) for slot, call in enumerate(calls)], inner, control, do_nothing
    )
    bare = torch.cuda.CUDAGraph()
    with torch.cuda.graph(bare):
        for turn in range(sampler.inner):
            calls[turn % SLOTS]()
    sync = Sync("none", control, None)

    def ours() -> float:
        samples = sampler.take(SAMPLES, sync)
        assert samples is not None
        return float(statistics.median(samples.durations[0])) / sampler.inner

    def by_hand() -> float:
        return statistics.median(timed(bare.replay, 1) for _ in range(SAMPLES)) / sampler.inner

    sides: dict[str, list[float]] = {"ours": [], "bare": [], "again": []}
    for turn in range(3 * ROUNDS):
        side = ("ours", "bare", "again")[(turn + turn // 3) % 3]
        sides[side].append(ours() if side == "ours" else by_hand())
    backend.close()
    what = f"one_shot of {nbytes} B, {N} virtual ranks, {sampler.inner} calls"
    return {"what": what, **{side: statistics.median(times[2:]) for side, times in sides.items()}}


def main() -> None:
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device),
        "gpus": torch.cuda.device_count(),
        "software": f"torch {torch.__version__}, NCCL {version}",
        "copy_rate": copy_rate(device),
        "graphs": [],
        "why_not": "",
        "failure": "",
    }
    torch.cuda.empty_cache()
    try:
        found["graphs"] = [graphs(nbytes, inner) for nbytes, inner in CASES]
    except (CollbenchError, ImportError) as e:
        found["why_not"] = first_line(e)
    except RuntimeError as e:
        found["failure"] = first_line(e)
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()
