"""Each library measured by collbench beside a plain loop around the library's own call, in turns.

``python tests/perf/libraries.py gloo jax mlx tests/backends/xgboost_file.py --output FILE.md``

Ranks are torchrun's; for ``mpi`` they are mpirun's. In each rank the backend is opened, which
starts the library; then blocks of collbench's sampler, of the plain loop, and of that loop again
follow each other, of all_reduce (sum of floats, out of place). Nothing is asserted: machines
differ. "cannot tell" stands where the plain loop differs from itself by more than is allowed.
``--repeat .1`` takes a tenth of the blocks.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from collbench.core.backend_info import backend_info, resolve_backend
from collbench.machine import cpus, environment
from collbench.run import backends
from collbench.run.launch import join
from collbench.run.launch.mpirun import find_mpirun
from collbench.suite.sweep import Axes, expand_axes

RANKS = 2
SIZES = {8: 300, 4096: 200, 65536: 100, 1 << 20: 40}  # bytes of a call, and blocks of each side
BLOCK = 20  # calls
SHARE, SPARE_NS = 0.05, 1000.0  # by how much times may differ
SIDES = ("ours", "bare", "again")
Action = Callable[[], object]


class Opened(NamedTuple):
    """A rank with a backend that is open, and where it stands."""

    backend: Any
    rank: int
    n: int


# the plainest call of each library: all_reduce of so many floats, sums, on this rank


def call_gloo(opened: Opened, count: int) -> Action:
    import torch
    import torch.distributed as dist

    send, recv = torch.ones(count), torch.empty(count)
    group = opened.backend._at.group

    def call() -> None:
        recv.copy_(send)
        dist.all_reduce(recv, group=group)

    return call


def call_mpi(opened: Opened, count: int) -> Action:
    from mpi4py import MPI

    send, recv = np.ones(count, np.float32), np.empty(count, np.float32)
    return lambda: MPI.COMM_WORLD.Allreduce(send, recv)


def call_jax(opened: Opened, count: int) -> Action:
    import jax

    mesh = jax.make_mesh((opened.n,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    over = jax.sharding.NamedSharding(mesh, spec)
    local = jax.device_put(np.ones(count, np.float32), jax.local_devices()[0])
    whole = jax.make_array_from_single_device_arrays((count * opened.n,), over, [local])
    add = jax.shard_map(
        lambda x: jax.lax.psum(x, "i"), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    program = jax.jit(add).lower(whole).compile()
    return lambda: program(whole).block_until_ready()


def call_mlx(opened: Opened, count: int) -> Action:
    import mlx.core as mx

    array = mx.ones(count)
    mx.eval(array)
    return lambda: mx.eval(mx.distributed.all_sum(array))


def call_oneccl(opened: Opened, count: int) -> Action:
    """oneCCL has no Python: the function of the shim that calls it, by ctypes."""
    import torch

    send, recv = torch.ones(count), torch.empty(count)
    case = make_case("oneccl", 4 * count)
    prepared = opened.backend.prepare(case, send, recv).run
    function, argument = prepared.func, prepared.args[0]
    return lambda: (function(argument), send, recv, prepared)


def call_xgboost(opened: Opened, count: int) -> Action:
    from xgboost import collective

    array = np.ones(count, np.float32)
    return lambda: collective.allreduce(array, collective.Op.SUM)


def call_paddle(opened: Opened, count: int) -> Action:
    import paddle

    tensor = paddle.zeros([count], dtype="float32")
    source = paddle.ones([count], dtype="float32")

    def call() -> None:
        paddle.assign(source, tensor)
        paddle.distributed.all_reduce(tensor)

    return call


def call_tensorflow(opened: Opened, count: int) -> Action:
    import tensorflow as tf

    @tf.function
    def add(x: Any) -> Any:
        keys = {"group_size": opened.n, "group_key": 1000, "instance_key": 900_000 + count}
        return tf.raw_ops.CollectiveReduceV2(
            input=x, ordering_token=[], merge_op="Add", final_op="Id", **keys
        )

    source = tf.ones([count], tf.float32)
    concrete = add.get_concrete_function(tf.TensorSpec([count], tf.float32))
    return lambda: concrete(source)


BARE: dict[str, Callable[[Opened, int], Action]] = {
    "gloo": call_gloo,
    "mpi": call_mpi,
    "jax": call_jax,
    "mlx": call_mlx,
    "oneccl": call_oneccl,
    "xgboost": call_xgboost,
    "paddle": call_paddle,
    "tensorflow": call_tensorflow,
}


def make_case(name: str, nbytes: int) -> Any:
    axes = Axes(
        collectives=("all_reduce",),
        sizes=(nbytes,),
        ranks=(RANKS,),
        backends=(name,),
        modes=("host",),
        in_place=(False,),
    )
    cases, _ = expand_axes(axes)
    return cases[0]


# one rank


def measure_rank(word: str, repeat: float) -> None:
    """Take the blocks of one library in this rank's process; rank 0 prints a JSON line."""
    from collbench.run.rank import cores, worker
    from collbench.run.rank.control import Store

    name = resolve_backend(word)
    member = join.detect_launcher()
    assert member is not None, "ranks are a launcher's"
    with join.hold_meeting(member, 60) as meeting:
        place = worker.Place(*member[1:], launcher=member.launcher)
        store = Store(meeting.connection)  # which must live as long as any group
        control = worker.connect_control(place, store)
        board = join.shared_board(member, control)
        info = backend_info(name)
        cores.settle_cores(place.rank, control, info.threads or 1, info.binds)
        backend = backends.find_backend(name)
        backend.hosts = control.collect(environment.host_name())
        backend.open(place.rank, place.n, place.local_rank)
        opened = Opened(backend, place.rank, place.n)
        found = {
            "library": backend.library,
            "rows": [
                measure_size(opened, name, nbytes, math.ceil(repeat * blocks), control, board)
                for nbytes, blocks in SIZES.items()
            ],
        }
        if place.rank == 0:
            print("FOUND " + msgspec.json.encode(found).decode(), flush=True)
        control.barrier()
        sys.stdout.flush()
        os._exit(0)  # libraries take leave in ways of their own


def measure_size(
    opened: Opened, name: str, nbytes: int, blocks: int, control: Any, board: Any
) -> Any:
    from collbench.run.rank.calls import allocate_slots
    from collbench.run.rank.measure import Sampler, Sync

    case = make_case(name, nbytes)
    ((buffers,),) = allocate_slots(opened.backend, [case], [opened.rank])
    buffers.send.fill_(1)
    prepared = opened.backend.prepare(case, buffers.send, buffers.recv)
    prepared.load()
    bare = BARE[name](opened, nbytes // 4)
    sampler = Sampler([(prepared.run, (0,))], 1, control, lambda: board.count_calls(opened.rank))
    sync = Sync("none", control, board)
    sides: dict[str, list[float]] = {side: [] for side in SIDES}
    for turn in range(3 * blocks + 3):
        side = SIDES[(turn + turn // 3) % 3]
        control.barrier()
        if side == "ours":
            samples = sampler.take(BLOCK, sync)
            times = samples.durations if samples is not None else None
        else:
            times = control.gather(time_calls(bare))
        if times is not None and turn >= 3:
            sides[side].append(float(np.median(times.max(axis=0))))
    return {"nbytes": nbytes, **{s: statistics.median(t) if t else 0.0 for s, t in sides.items()}}


def time_calls(call: Action) -> np.ndarray:
    times = np.zeros(BLOCK, dtype=np.int64)
    for index in range(BLOCK):
        begin = time.perf_counter_ns()
        call()
        times[index] = time.perf_counter_ns() - begin
    return times


# all libraries


def run_library(word: str, repeat: float) -> dict[str, Any]:
    """What ranks of a launcher say of one library."""
    script = [str(Path(__file__).resolve()), "--rank", word, "--repeat", str(repeat)]
    if word == "mpi":
        command = [find_mpirun(), "-n", str(RANKS), sys.executable, *script]
    else:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
        command = [*torchrun, *script]
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    lines = [line for line in done.stdout.splitlines() if "FOUND " in line]
    if not lines:
        raise RuntimeError(f"{word}: {done.stderr[-2000:]}")
    told: dict[str, Any] = msgspec.json.decode(lines[-1].partition("FOUND ")[2])
    return told


def judge(row: dict[str, Any]) -> str:
    """Whether collbench's time lies near the loop's, above or below it; nothing can be told where
    the loop does not lie near itself."""
    ours, bare, again = (row[side] for side in SIDES)
    allowed = max(SHARE * bare, SPARE_NS)
    if abs(again - bare) > allowed:
        return "cannot tell"
    return "yes" if abs(ours - bare) <= allowed else "no"


def make_report(words: list[str], repeat: float) -> str:
    facts = environment.gather_facts()
    head = (
        f"{facts['cpu'].get('model')}, {cpus.core_count()} cores, {datetime.now(UTC):%Y-%m-%d};"
        f" all_reduce, sum of floats, {RANKS} ranks, slowest rank of each call."
    )
    lines = [
        "# Libraries beside their own plain loops",
        "",
        head,
        "Blocks of 20 calls by collbench, by a plain loop around the library's own call, and by"
        " that loop again, in turns; medians over blocks. The last column: `cannot tell` where"
        " the loop differs from itself by more, else whether collbench lies within that of the"
        " loop, above or below. Made by `python tests/perf/libraries.py"
        f" {' '.join(words)}`.",
        "",
        "| library | size | collbench | plain loop | itself again | within 5 % or 1 us |",
        "|---|---|---|---|---|---|",
    ]
    for word in words:
        told = run_library(word, repeat)
        for row in told["rows"]:
            times = " | ".join(f"{row[side] / 1e3:.2f} us" for side in SIDES)
            lines.append(f"| {told['library']} | {row['nbytes']} B | {times} | {judge(row)} |")
        print(lines[-len(told["rows"]) :], file=sys.stderr)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backends", nargs="*", default=["gloo"])
    parser.add_argument("--rank", help="be a rank, of this backend")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--repeat", type=float, default=1.0)
    asked = parser.parse_args()
    if asked.rank:
        return measure_rank(asked.rank, asked.repeat)
    report = make_report(asked.backends, asked.repeat)
    if asked.output:
        asked.output.write_text(report)
    print(report)


if __name__ == "__main__":
    main()
