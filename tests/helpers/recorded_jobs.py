"""Training jobs of torch's own on Gloo that record themselves, for tests of recording.

``start(warm, names, folder, compiler)`` runs some, one after the other, on ranks of their own, each
with a folder of its name there, and returns what each rank told of each.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import collbench

WIDTH, LAYERS, CAP_MB = 64, 4, 0.01  # each layer's weight fills a bucket
ITEMS = {"one": torch.arange(3), "two": "words"}


class Layers(nn.Module):
    """Linear layers, the last with a dimension that 2 does not divide, and a norm with buffers."""

    def __init__(self, buffers: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.norm = nn.BatchNorm1d(WIDTH) if buffers else nn.Identity()
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(self.norm(x))


def train(model: nn.Module, iterations: int, each: Callable[[], None] = lambda: None) -> float:
    """The sum of the parameters after so many iterations."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(iterations):
        model(torch.randn(5, WIDTH).requires_grad_()).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        each()
    return sum(float(p.detach().double().sum()) for p in model.parameters())


def distributed() -> DistributedDataParallel:
    torch.manual_seed(1)
    return DistributedDataParallel(Layers(buffers=True), bucket_cap_mb=CAP_MB)


def ddp(folder: str) -> Any:
    """Iterations that end with the optimizer's steps: the one line that users add."""
    model = distributed()
    recorder = collbench.record(folder, steps=2, after=2)
    train(model, 5)
    recorder.close()
    return left()


def fsdp2(folder: str) -> Any:
    from torch.distributed.fsdp import fully_shard

    model = Layers()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    train(model, 1)
    with collbench.record(folder, steps=1) as recorder:
        train(model, 1, recorder.step)


def experts(folder: str) -> Any:
    """Tokens that are sent to experts and come back, in unequal numbers."""
    n, rank = dist.get_world_size(), dist.get_rank()
    tokens = [[1 + (3 * a + 5 * b) % 4 for b in range(n)] for a in range(n)]
    sends, receives = tokens[rank], [row[rank] for row in tokens]
    with collbench.record(folder) as recorder:
        for _ in range(2):
            data = torch.ones(sum(sends), WIDTH)
            there = torch.empty(sum(receives), WIDTH)
            dist.all_to_all_single(there, data, receives, sends)
            dist.all_to_all_single(data, there, sends, receives)
            recorder.step()
    return tokens


def calls(folder: str) -> Any:
    """One of each that Gloo has, in a group of its own, waited for in all ways."""
    functional = torch.ops._c10d_functional
    rank, n = dist.get_rank(), dist.get_world_size()
    group = dist.new_group([1, 0], group_desc="turned")
    other = 1 - rank
    with collbench.record(folder) as recorder:
        x = torch.ones(8)
        works = [dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True), dist.barrier(async_op=True)]
        for work in reversed(works):
            work.wait()
        dist.broadcast(torch.ones(3, dtype=torch.int64), src=0, group=group)
        dist.reduce(torch.ones(4, dtype=torch.float64), dst=1, op=dist.ReduceOp.PRODUCT)
        dist.all_gather([torch.empty(2) for _ in range(n)], torch.ones(2))
        dist.all_gather_into_tensor(torch.empty(6), torch.ones(3))
        dist.reduce_scatter_tensor(torch.empty(3), torch.ones(6))
        dist.gather(torch.ones(5), [torch.empty(5) for _ in range(n)] if rank == 0 else None, 0)
        dist.scatter(torch.empty(7), [torch.ones(7) for _ in range(n)] if rank == 1 else None, 1)
        dist.all_to_all_single(torch.empty(4), torch.ones(4))
        if rank == 0:
            dist.send(torch.ones(9), 1, tag=5)
            dist.send(torch.ones(10), 1, tag=6)
        else:
            dist.recv(torch.empty(9), 0, tag=5)
            dist.recv(torch.empty(10), tag=6)  # from anybody
        ops = [dist.P2POp(dist.isend, torch.ones(2), other)]
        ops += [dist.P2POp(dist.irecv, torch.empty(2), other)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        functional.wait_tensor(functional.all_reduce(torch.ones(10), "sum", "0"))
        with torch.inference_mode():
            dist.all_reduce(torch.ones(11))
        dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)])
        dist.monitored_barrier()
        dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.MAX)
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(12),))
        thread.start()
        thread.join()
        objects = [ITEMS]
        dist.broadcast_object_list(objects, src=0)
        recorder.step()
    return left()


def threads(folder: str) -> Any:
    """Threads with a group each that communicate at the same time, for long."""
    groups = [dist.new_group() for _ in range(3)]

    def talk(group: Any) -> None:
        for _ in range(300):
            dist.all_reduce(torch.ones(1000), group=group, async_op=True).wait()

    with collbench.record(folder):
        talking = [threading.Thread(target=talk, args=(group,)) for group in groups]
        for thread in talking:
            thread.start()
        for thread in talking:
            thread.join()
    return left()


def unwaited(folder: str) -> Any:
    """A call to be waited for at once that nobody in Python waits for, as some of C++'s, then
    another: whether its tensor is still held."""
    at_once = dist.AllreduceOptions()
    at_once.asyncOp = False
    with collbench.record(folder):
        held = weakref.ref(x := torch.ones(1000))
        dist.group.WORLD.allreduce([x], at_once)  # type: ignore[union-attr]
        del x
        dist.barrier()
        until = time.monotonic() + 5  # Gloo's threads let go of it when they come to it
        while held() is not None and time.monotonic() < until:
            time.sleep(0.01)
        return {"held": held() is not None}


def broken(folder: str) -> Any:
    """A recorder that fails in the middle: what is trained, with it and without."""
    from collbench.features.traces.recording import recorder as recording

    plain = train(distributed(), 4)
    model = distributed()
    told = recording.read_call
    made = 0

    def fails(*given: Any) -> Any:
        nonlocal made
        made += 1
        if made > 5:
            raise RuntimeError("planted")
        return told(*given)

    with (
        mock.patch.object(recording, "read_call", fails),
        warnings.catch_warnings(record=True) as seen,
    ):
        warnings.simplefilter("always")
        with collbench.record(folder, steps=3) as recorder:
            trained = train(model, 4, recorder.step)
    return {"same": trained == plain, "warned": warned(seen), **left()}


def full(folder: str) -> Any:
    """A disk that is full."""
    from collbench.features.traces.formats import own

    with mock.patch.object(own, "file_name", lambda rank: "/dev/full"):
        return unwritable(folder)


def unwritable(folder: str) -> Any:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with collbench.record(folder, steps=3) as recorder:
            train(distributed(), 4, recorder.step)
    return {"warned": warned(seen), **left()}


def twice(folder: str) -> Any:
    """A recording within another: the second is none."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with collbench.record(folder), collbench.record(f"{folder}-second"):
            dist.all_reduce(torch.ones(4))
    return {"warned": warned(seen), **left()}


def strict(folder: str) -> Any:
    """Where warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorder = collbench.record(folder)
        recorder.close()
    return left()


def killed(folder: str) -> Any:
    """A job that ends in the middle of an iteration, without a word."""
    collbench.record(folder)
    for _ in range(5):
        dist.all_reduce(torch.ones(4))
    path = Path(folder) / f"rank-{dist.get_rank():05}.jsonl"
    while not path.exists() or path.read_text().count("\n") < 6:
        time.sleep(0.01)
    dist.barrier()
    tell()
    os._exit(0)


def warned(seen: list[warnings.WarningMessage]) -> list[str]:
    return [str(each.message) for each in seen if "collbench" in str(each.message)]


def left() -> dict[str, Any]:
    """What recording left behind."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    hooked = [name for name in ("allreduce_", "barrier") if has(f"c10d::{name}", "BackendSelect")]
    owners = {dist.Work: "wait", dist.ProcessGroup: "_end_coalescing"}
    return {
        "hooks": hooked + ["wait_tensor"] * has("_c10d_functional::wait_tensor", "BackendSelect"),
        "wrapped": [
            n for owner, n in owners.items() if "instancemethod" not in str(type(owner.__dict__[n]))
        ],
        "threads": [t.name for t in threading.enumerate() if t.name.startswith("collbench")],
    }


TOLD: dict[str, Any] = {}  # so far, by job
JOBS: tuple[Callable[[str], Any], ...] = (
    ddp,
    fsdp2,
    experts,
    calls,
    threads,
    unwaited,
    broken,
    full,
    unwritable,
    twice,
    strict,
    killed,
)


def start(
    warm: Any, names: str, folder: Path, compiler: bool, ranks: int = 2, limit: float = 200
) -> list[dict[str, Any]]:
    """What each rank of some jobs told of each. ``compiler``: they need torch's."""
    words = names, str(folder), str(ranks), "compiler" if compiler else ""
    process = warm.start(*words, script=__file__)
    try:
        out, err = process.communicate(limit)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return [told for _, told in sorted(json.loads(line) for line in out.splitlines())]


def tell() -> None:
    """Print this rank and what it told so far, by turns, as ranks share standard output."""
    for rank in range(dist.get_world_size()):
        if rank == dist.get_rank():
            os.write(1, (json.dumps([rank, TOLD]) + "\n").encode())
        dist.barrier()


def run(names: str, folder: str, ranks: int, rank: int) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    where = f"file://{folder}/store-of-{names.replace(' ', '-')}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks)
    for job in JOBS:
        if job.__name__ in names.split():
            if job is unwritable and rank == 0:
                Path(folder, "unwritable").write_text("no folder")
            dist.barrier()
            TOLD[job.__name__] = job(f"{folder}/{job.__name__}")
            dist.barrier()
    tell()
    dist.destroy_process_group()


def main() -> None:
    """Fork the ranks once what takes seconds to load is there."""
    names, folder, ranks, compiler = sys.argv[1:]
    if compiler:
        import torch._dynamo  # noqa: F401
    children = []
    for rank in range(int(ranks)):
        pid = os.fork()
        if pid == 0:
            run(names, folder, int(ranks), rank)
            os._exit(0)
        children.append(pid)
    sys.exit(any(os.waitpid(pid, 0)[1] for pid in children))


if __name__ == "__main__":
    main()
