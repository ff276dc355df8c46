"""Training steps as collbench plays them beside the frameworks' own, on Gloo, in turns.

    python tests/perf/workload.py --rounds 10 --output reports/workload.md

DDP's step of GPT-2 (its parameters, their buckets, no computation to speak of) and FSDP2's of two
layers of Llama 3 8B at 1/64 (as many elements in as many groups) are run by torch itself;
`collbench workload ... --compute none` runs what it takes them for. Each of a round starts its own
ranks. What is compared is the time of communication: of torch's step, less the same step in which
DDP's hook and FSDP2's collectives do nothing, copies around them and all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from collbench.features.training import models
from collbench.records import run_file
from collbench.records.paired import estimate_shift

RANKS, SETTLED = 2, 2
LAYERS, PART = 2, 64
STEP = {
    "ddp": ["ddp:gpt2-124m"],
    "fsdp2": ["fsdp2:llama3-8b", "--layers", str(LAYERS), "--scale", f"1/{PART}"],
}


class Held(nn.Module):
    """Parameters of so many elements, of which all get a gradient and none costs a product."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.held = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in sizes])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.held:
            x = x + each[0] + each[-1]
        return x


class Talks:
    """Whether communication is done, or skipped with all that is around it as it is."""

    on = True

    def wait(self) -> None:
        return


def ddp(talks: Talks) -> nn.Module:
    model = nn.parallel.DistributedDataParallel(
        Held([tensor.numel for tensor in models.find_model("gpt2-124m").tensors])
    )

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP wants types, not their names
        if state.on:
            work = dist.all_reduce(bucket.buffer(), async_op=True)
            return work.get_future().then(lambda done: done.value()[0])
        skipped: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        skipped.set_result(bucket.buffer())
        return skipped

    model.register_comm_hook(talks, hook)
    return model


def fsdp2(talks: Talks) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as own

    class Gather(own.DefaultAllGather):
        def __call__(self, *given: object, **more: object) -> object:
            return super().__call__(*given, **more) if talks.on else None

    class Scatter(own.DefaultReduceScatter):
        def __call__(self, *given: object, **more: object) -> object:
            return super().__call__(*given, **more) if talks.on else talks

    shape = models.find_model("llama3-8b").cut(LAYERS)
    layers: dict[int, int] = {}
    for tensor in shape.tensors:
        layers[tensor.layer] = layers.get(tensor.layer, 0) + tensor.numel
    outside = layers.pop(models.OUTSIDE)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    whole = nn.Sequential(*(Held([n // PART]) for n in layers.values()))
    whole.append(Held([outside // PART]))
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in list(whole)[:-1]:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(whole, mesh=mesh, mp_policy=policy)
    for module in whole.modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)
            module.set_custom_all_gather(Gather())
            module.set_custom_reduce_scatter(Scatter())
    return whole


def rank(kind: str, steps: int) -> None:
    """A rank of torch's: the times of steps with and without communication, at rank 0."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    talks = Talks()
    model = {"ddp": ddp, "fsdp2": fsdp2}[kind](talks)
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(steps + SETTLED):
        for talks.on in (True, False)[:: -1 if number % 2 else 1]:
            dist.barrier()
            began = time.perf_counter()
            model(torch.ones(1)).sum().backward()
            took = time.perf_counter() - began
            slowest = torch.tensor([took])
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if number >= SETTLED:
                times[talks.on].append(slowest.item())
    if dist.get_rank() == 0:
        found = {"step": statistics.median(times[True]), "silent": statistics.median(times[False])}
        print(json.dumps(found), flush=True)
    os._exit(0)  # FSDP2's threads would abort


def theirs(kind: str, steps: int) -> float:
    """Seconds of communication in torch's own step."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    command += [
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
        __file__,
        "--rank",
        kind,
        "--steps",
        str(steps),
    ]
    done = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return found["step"] - found["silent"]


def ours(kind: str, steps: int) -> float:
    """Seconds of communication in the step that collbench plays."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        command = [sys.executable, "-m", "collbench", "workload", *STEP[kind], "-g", str(RANKS)]
        command += ["--backend", "gloo", "--compute", "none", "-n", str(steps)]
        subprocess.run([*command, "--output", str(path)], check=True, stdout=subprocess.DEVNULL)
        (record,) = [r for r in run_file.read_file(path).records if r.case.collective == "step"]
    return statistics.median(record.times_ns) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", choices=STEP)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=8, help="of a round")
    parser.add_argument("--only", choices=STEP, nargs="+", default=[*STEP])
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    if asked.rank:
        return rank(asked.rank, asked.steps)
    lines = [
        "# Steps as collbench plays them beside torch's own",
        "",
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, torch"
        f" {torch.__version__}, Gloo on loopback, {RANKS} ranks. `python tests/perf/workload.py"
        f" --rounds {asked.rounds}`: {asked.rounds} rounds of both in turns, each with its own"
        f" ranks; medians of {asked.steps} steps each; communication alone, whose time is the"
        " median of torch's steps less the median of as many with their collectives left out, each"
        " of the two first in turns. The ratio is ours over torch's, round by round (Hodges and"
        " Lehmann, signed ranks, 95 %).",
        "",
        "| step | torch, ms | collbench, ms | ratio | interval |",
        "|---|--:|--:|--:|---|",
    ]
    for kind in asked.only:
        pairs = []
        for number in range(asked.rounds):
            both = [theirs, ours][:: 1 if number % 2 else -1]
            found = {one: one(kind, asked.steps) for one in both}
            pairs.append((found[theirs], found[ours]))
            print(kind, number, *pairs[-1], file=sys.stderr, flush=True)
        ratios = [mine / other for other, mine in pairs]
        centre = estimate_shift(ratios)
        torchs, mine = (1e3 * statistics.median(side) for side in zip(*pairs, strict=True))
        lines.append(
            f"| `{' '.join(STEP[kind])}` | {torchs:.1f} | {mine:.1f} | {centre.estimate:.3f} |"
            f" [{centre.lo:.3f}, {centre.hi:.3f}] |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    if asked.output:
        asked.output.write_text(text)


if __name__ == "__main__":
    main()
