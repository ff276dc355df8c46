"""Training jobs of torch's own on Gloo, to be recorded and replayed: DDP, FSDP2, and a mixture of
experts whose exchanges have unequal blocks.

    python tests/helpers/jobs.py ddp,moe FOLDER --ranks 2 --steps 4

starts the ranks, records the steps of each job into a folder of its name there, and prints as JSON
what it told at rank 0: the seconds of steps that were not recorded, and of those that were, each
the median over steps of the slowest rank's, and the bytes that a step sent by this network's
loopback. ``--recorded-first`` changes their order.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HEADERS = 66  # bytes a packet
SETTLED = 2  # steps before all others
Step = Callable[[], None]


def ddp(width: int, layers: int, views: bool = False) -> Step:
    """A step of linear layers whose gradients go in several buckets: they are copied there and
    back, or are ``views`` of them."""
    import torch
    from torch import nn

    model = nn.parallel.DistributedDataParallel(
        _layers(width, layers), bucket_cap_mb=1, gradient_as_bucket_view=views
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.ones(32, width)

    def step() -> None:
        model(data).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not views)

    return step


def views(width: int, layers: int) -> Step:
    return ddp(width, layers, views=True)


def fsdp2(width: int, layers: int) -> Step:
    """A step of the same layers, gathered one by one, and their gradients scattered."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = _layers(width, layers)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.ones(32, width)

    def step() -> None:
        model(data).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def moe(width: int, layers: int) -> Step:
    """A step in which each rank sends other numbers of tokens to the experts of each, and has them
    back; gradients of what all ranks share are summed."""
    import torch
    import torch.distributed as dist

    n, rank = dist.get_world_size(), dist.get_rank()
    tokens = [[8 * (1 + (3 * a + 5 * b) % 4) for b in range(n)] for a in range(n)]
    sends, receives = tokens[rank], [row[rank] for row in tokens]
    shared, expert = (torch.full((width, width), 1e-3) for _ in range(2))

    def step() -> None:
        data = torch.ones(sum(sends), width)
        for _ in range(layers):
            there = torch.empty(sum(receives), width)
            dist.all_to_all_single(there, data @ shared, receives, sends)
            back = torch.empty(sum(sends), width)
            dist.all_to_all_single(back, there @ expert, sends, receives)
            data = back
        work = dist.all_reduce(shared.clone(), async_op=True)
        data @ shared
        work.wait()

    return step


def _layers(width: int, layers: int):  # type: ignore[no-untyped-def]
    from torch import nn

    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


JOBS = {"ddp": ddp, "views": views, "fsdp2": fsdp2, "moe": moe}


def _sent() -> int:
    """Bytes that have passed loopback, less headers."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    numbers = next(line for line in lines if line.strip().startswith("lo:")).split()
    return int(numbers[9]) - HEADERS * int(numbers[10])


def rank(asked: argparse.Namespace) -> None:
    """One rank of these jobs, one after the other."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    told = {
        name: _told(JOBS[name](asked.width, asked.layers), asked.folder / name, asked)
        for name in asked.names.split(",")
    }
    if dist.get_rank() == 0:
        print(json.dumps(told), flush=True)
    dist.barrier()
    os._exit(0)  # FSDP2's threads would abort


def _told(step: Step, folder: Path, asked: argparse.Namespace) -> dict[str, float]:
    """So many steps without recording, and as many with it."""
    for _ in range(SETTLED):
        step()
    if asked.recorded_first:
        return _recorded(step, folder, asked.steps) | _plain(step, asked.steps)
    return _plain(step, asked.steps) | _recorded(step, folder, asked.steps)


def _plain(step: Step, steps: int) -> dict[str, float]:
    import torch.distributed as dist

    dist.barrier()
    before = _sent()
    times = _times(step, steps)
    dist.barrier()
    sent = (_sent() - before) / steps
    return {"seconds": _slowest(times), "sent": sent}


def _recorded(step: Step, folder: Path, steps: int) -> dict[str, float]:
    import torch.distributed as dist

    import collbench

    dist.barrier()
    with collbench.record(folder, steps=steps) as recorder:

        def both() -> None:
            step()
            recorder.step()

        times = _times(both, steps)
    return {"recorded": _slowest(times)}


def _times(step: Step, steps: int) -> list[float]:
    """Seconds of each step at this rank."""
    marks = [time.perf_counter()]
    for _ in range(steps):
        step()
        marks.append(time.perf_counter())
    return [end - begin for begin, end in itertools.pairwise(marks)]


def _slowest(times: list[float]) -> float:
    """The median over steps of what each took its slowest rank."""
    import torch
    import torch.distributed as dist

    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return statistics.median(slowest.tolist())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--recorded-first", action="store_true")
    asked = parser.parse_args()
    if "RANK" in os.environ:
        return rank(asked)
    start = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={asked.ranks}"]
    start += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", *sys.argv]
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    sys.exit(subprocess.run(start, env=environ, check=False).returncode)


if __name__ == "__main__":
    main()
