"""What recording a training job costs its steps.

``python tests/perf/recording.py --output reports/recording.md`` (make perf). Two ranks of Gloo on
this machine train with torch's DDP and FSDP2; blocks of steps that are recorded, and two of steps
that are not, take turns in an order that is shuffled for each round. A block is one step, in which
a recording settles, and then, when its ranks have met, the steps that are timed; its time is that
of the slower rank. What is compared are recorded blocks to one kind of unrecorded ones, and, as a
control, these to the others.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import collbench
from collbench.features.traces.formats import own
from collbench.machine import cpus, environment
from collbench.records.paired import estimate_shift

RANKS, STEPS, WIDTH, LAYERS, SETTLED, GOAL = 2, 4, 1024, 8, 6, 0.02
BLOCKS = ("plain", "control", "recorded")
HEADS, TOKENS = 8, (4, 128, 512)  # of the transformer: sequences, their length, width


class Job(NamedTuple):
    """A model's way of being parallel, with the shape of what it is given."""

    words: str
    cap_mb: float = 0  # of DDP's buckets; FSDP2 without
    shape: tuple[int, ...] = (64, WIDTH)
    sleeps: float = 0  # seconds of each layer's backward pass
    steps: int = STEPS  # of a block


JOBS = {
    "ddp": Job("DDP, buckets of 25 MiB", 25),
    "small": Job("DDP, a bucket for each parameter", 0.001),
    "fsdp2": Job("FSDP2, layer by layer"),
    "sleeping": Job("DDP, a bucket for each parameter, sleeps", 0.001, (1, WIDTH), 0.012),
    "transformer-ddp": Job("DDP of a transformer, buckets of 25 MiB", 25, TOKENS, steps=1),
    "transformer-fsdp2": Job("FSDP2 of a transformer, block by block", 0, TOKENS, steps=1),
}
HEAD = (
    "| job | step | calls | recorded [95 %] | control [95 %] | CPU [95 %] | a call [95 %] | within"
    " | begin | first | end |"
)
PAGE = f"""# What recording costs

`collbench.record` around steps of torch's own data parallelism on {RANKS} ranks of Gloo, each rank
on a core of its own with all its threads; {{machine}}. Made by
`python tests/perf/recording.py`. Models are {LAYERS} linear layers of {WIDTH} x {WIDTH} (32 MiB of
gradients), with so little to compute that a step is mostly calls, and, as jobs go, {LAYERS} blocks
of a transformer of width {TOKENS[-1]} (96 MiB of gradients; {TOKENS[0]} sequences of {TOKENS[1]} a
rank). In each of {{rounds}} rounds three blocks of {STEPS} steps (of the transformer, 1) take
turns in an order that is shuffled: one is recorded, two are not. *calls* are of
a step; *recorded* is the ratio of a
recorded block to the plain one of its round alone, *control* that of the other block that is not
recorded to the same plain one, each the estimate of Hodges and Lehmann over rounds with its 95 %
interval (signed ranks). *CPU* is the ratio of *recorded* in
CPU time of both ranks, with all threads; *a call* is the CPU time that a rank spends more, by the
calls it makes. The goal is less than {GOAL:.0%} of a step.

What is once a recording is not in these: `begin` puts the hooks in place, *first* is what the step
after that takes longer than that of a plain block, and `end` waits for the disk.

The job that *sleeps* has a sleep of 12 ms in each layer's backward pass in place of most of its
computing, as a rank with a GPU, whose core is free meanwhile; the others' cores never are.

{HEAD}
|---|--:|--:|--:|--:|--:|--:|---|--:|--:|--:|
{{rows}}

*within* says `met` where the whole interval of *recorded* lies below {1 + GOAL:.2f}, `not met`
where it lies above, and else that these rounds do not tell. `control apart`: the interval of
*control* excludes 1, so that blocks differ by more than recording, and *recorded* may, too.
"""


class Asleep(torch.autograd.Function):
    """A part of a backward pass that takes its time and no core, as a GPU's does."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return given.view_as(given)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class Layer(nn.Linear):
    """A linear layer whose backward pass may sleep."""

    def __init__(self, sleeps: float) -> None:
        super().__init__(WIDTH, WIDTH)
        self.sleeps = sleeps

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        out = super().forward(given)
        return Asleep.apply(out, self.sleeps) if self.sleeps else out


def made(job: Job) -> nn.Module:
    if job.shape == TOKENS:
        blocks = [
            nn.TransformerEncoderLayer(TOKENS[-1], HEADS, batch_first=True, dropout=0.0)
            for _ in range(LAYERS)
        ]
    else:
        blocks = [Layer(job.sleeps) for _ in range(LAYERS)]
    model = nn.Sequential(*blocks)
    if job.cap_mb:
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=job.cap_mb)
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


class Rank:
    """One rank of a job, whose blocks are timed."""

    def __init__(self, job: Job) -> None:
        self.model, self.job = made(job), job
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.once: dict[str, list[float]] = {"begin": [], "recorded": [], "plain": [], "end": []}

    def step(self) -> None:
        self.model(torch.ones(self.job.shape)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def steps(self, count: int, recording: Any, kind: str) -> float:
        """The seconds of steps."""
        start = time.perf_counter()
        for _ in range(count):
            self.step()
            if kind == "recorded":
                recording.step()
        return time.perf_counter() - start

    def block(self, kind: str, folder: str) -> list[float]:
        """The seconds of a block's steps, of the slower rank, and of both ranks' CPUs."""
        began = time.perf_counter()
        recording: Any = nullcontext()
        if kind == "recorded":
            recording = collbench.record(folder, steps=self.job.steps + 2, optimizer=False)
            self.once["begin"].append(time.perf_counter() - began)
        dist.barrier()
        first = self.steps(1, recording, kind)
        if kind in self.once:
            self.once[kind].append(first)
        dist.barrier()
        used = time.process_time()
        timed = self.steps(self.job.steps, recording, kind)
        end, used = time.perf_counter(), time.process_time() - used
        if kind == "recorded":
            recording.close()
            self.once["end"].append(time.perf_counter() - end)
        took, cpu = (torch.tensor([each], dtype=torch.float64) for each in (timed, used))
        dist.all_reduce(took, dist.ReduceOp.MAX)
        dist.all_reduce(cpu)
        return [took.item(), cpu.item()]


def rank(name: str, folder: str, rounds: int, store: str, number: int) -> None:
    """What a rank does; the first writes the row."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[number]})
    where = f"file://{store}"
    dist.init_process_group("gloo", init_method=where, rank=number, world_size=RANKS)
    one = Rank(JOBS[name])
    for _ in range(SETTLED):
        one.step()
    order = random.Random(1)
    blocks: dict[str, list[list[float]]] = {kind: [] for kind in BLOCKS}
    for _ in range(rounds):
        for kind in order.sample(BLOCKS, len(BLOCKS)):
            blocks[kind].append(one.block(kind, folder))
    if number == 0:
        trace = own.read_rank(Path(folder) / own.file_name(0))
        calls = sum(call.kind not in ("wait", "barrier") for call in trace.calls) / (
            JOBS[name].steps + 1
        )
        print(row(name, blocks, calls, one.once), flush=True)
    dist.barrier()
    os._exit(0)


def ratios(blocks: dict[str, list[list[float]]], kind: str, which: int) -> list[float]:
    """Blocks of a kind over plain ones: the ratio and its interval."""
    pairs = zip(blocks[kind], blocks["plain"], strict=True)
    found = estimate_shift([math.log(a[which] / b[which]) for a, b in pairs])
    return [math.exp(each) for each in (found.estimate, found.lo, found.hi)]


def row(
    name: str, blocks: dict[str, list[list[float]]], calls: float, once: dict[str, list[float]]
) -> str:
    """A line of the table."""
    steps = JOBS[name].steps
    step = statistics.median(took for took, _ in blocks["plain"]) / steps
    which = {"recorded": ("recorded", 0), "control": ("control", 0), "CPU": ("recorded", 1)}
    ratio = {words: ratios(blocks, *each) for words, each in which.items()}
    _, low, high = ratio["recorded"]
    more = [
        (a[1] - b[1]) / RANKS / steps / calls
        for a, b in zip(blocks["recorded"], blocks["plain"], strict=True)
    ]
    cost = estimate_shift(more)
    met = "met" if high < 1 + GOAL else "not met" if low > 1 + GOAL else "not told"
    _, low, high = ratio["control"]
    met += "" if low <= 1 <= high else ", control apart"
    told = [f"{r[0]:.4f} [{r[1]:.4f}, {r[2]:.4f}]" for r in ratio.values()]
    told.append(f"{1e6 * cost.estimate:.0f} us [{1e6 * cost.lo:.0f}, {1e6 * cost.hi:.0f}]")
    spans = {which: statistics.median(found) for which, found in once.items()}
    spans["first"] = spans["recorded"] - spans["plain"]
    spent = [f"{1e3 * spans[which]:.1f} ms" for which in ("begin", "first", "end")]
    cells = [JOBS[name].words, f"{1e3 * step:.0f} ms", f"{calls:.0f}", *told, met, *spent]
    return f"| {' | '.join(cells)} |"


def measured(name: str, rounds: int) -> str:
    """The row of a job."""
    folder = tempfile.mkdtemp()
    try:
        words = [sys.executable, __file__, "--job", name, "--rounds", str(rounds)]
        environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        started = [
            subprocess.Popen(
                [*words, "--output", folder, "--rank", str(number)],
                env=environ,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(RANKS)
        ]
        told = [process.communicate()[0] for process in started]
    finally:
        shutil.rmtree(folder)
    if any(process.returncode for process in started):
        raise SystemExit(f"{name}: a rank failed")
    return told[0].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--job", choices=JOBS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank is not None:
        folder = str(asked.output)
        return rank(asked.job, f"{folder}/trace", asked.rounds, f"{folder}/store", asked.rank)
    rows = [measured(name, asked.rounds) for name in JOBS if asked.job in (None, name)]
    about = environment.gather_facts()
    machine = (
        f"{about['cpu'].get('model')}, {cpus.core_count()} cores, Linux {about['kernel']},"
        f" torch {about['libraries'].get('torch')}, {datetime.now(UTC):%Y-%m-%d}"
    )
    page = PAGE.format(machine=machine, rounds=asked.rounds, rows="\n".join(rows))
    asked.output.write_text(page)


if __name__ == "__main__":
    main()
