"""Shows that JAX's psum_scatter over Gloo returns wrong data now and then, without collbench.

    python tests/backends/jax_reduce_scatter.py [SHAPES]

Two processes make calls of new shapes around 16 MiB, four of each on fresh data, and count the
elements that are not the sum. Seen with jax 0.10.2: 4 of 192 calls, most of them first calls of a
shape, on rank 0, in the last 20,000 to 40,000 elements of the block; a busy machine helps. It exits
with 1 where any call was wrong.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

AROUND = 4 << 20  # floats
CALLS = 4  # of a shape


def main() -> int:
    """Start two processes that measure; the worse of their exit statuses."""
    shapes = sys.argv[1] if len(sys.argv) > 1 else "20"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, __file__, shapes, address]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    ranks = [subprocess.Popen([*command, str(rank)], env=environment) for rank in range(2)]
    return max(rank.wait() for rank in ranks)


def call_as_rank(shapes: int, address: str, rank: int) -> int:
    """Make all calls as one of two ranks; 1 where any result was wrong."""
    import jax
    import numpy as np

    jax.distributed.initialize(address, 2, rank, coordinator_bind_address=address)
    mesh = jax.make_mesh((2,), ("ranks",))
    spec = jax.sharding.PartitionSpec("ranks")
    over = jax.sharding.NamedSharding(mesh, spec)

    def scatter(values: Any) -> Any:
        return jax.lax.psum_scatter(values, "ranks", tiled=True)

    program = jax.jit(jax.shard_map(scatter, mesh=mesh, in_specs=spec, out_specs=spec))
    wrong_calls = 0
    for shape in range(shapes):
        count = AROUND + 2 * shape
        for call in range(CALLS):
            inputs = [make_input(count, call, sender) for sender in range(2)]
            own = jax.device_put(inputs[rank], jax.local_devices()[0])
            given = jax.make_array_from_single_device_arrays((2 * count,), over, [own])
            made = np.asarray(program(given).block_until_ready().addressable_shards[0].data)
            half = slice(rank * count // 2, (rank + 1) * count // 2)
            (where,) = np.nonzero(made != inputs[0][half] + inputs[1][half])
            if len(where):
                wrong_calls += 1
                print(
                    f"rank {rank}: {count} floats, call {call}: {len(where)} of {len(made)} wrong,"
                    f" from element {where[0]} to {where[-1]}"
                )
    print(f"rank {rank}: {wrong_calls} of {shapes * CALLS} calls wrong, jax {jax.__version__}")
    jax.distributed.shutdown()
    return int(wrong_calls > 0)


def make_input(count: int, call: int, rank: int) -> Any:
    """Small whole numbers that differ by call and rank, so that sums are exact."""
    import numpy as np

    return (np.arange(count) * (2 * rank + 3) + 7 * call).astype(np.float32) % 1000


if __name__ == "__main__":
    if len(sys.argv) > 3:
        sys.exit(call_as_rank(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
    sys.exit(main())
