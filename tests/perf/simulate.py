"""How fast large worlds are simulated: seconds and peak memory of a process each, schedule and
imports included.

``python tests/perf/simulate.py`` prints a table. Nothing here is asserted in CI: machines differ.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

CASES = [
    ("all_reduce", "ring", 4096, "flat", "< 1 s"),
    ("all_reduce", "ring", 16384, "flat", "< 15 s"),
    ("all_reduce", "recursive_doubling", 65536, "flat", "< 1 s"),
    ("all_reduce", "ring", 16384, "fat-tree:32:2", "-"),
    ("all_reduce", "halving_doubling", 4096, "torus:64x64", "-"),
    ("all_to_all", "pairwise", 4096, "two-level:8", "-"),
    ("broadcast", "chain:segments=256", 4096, "flat", "-"),
    ("all_reduce", "double_tree:segments=256", 4096, "flat", "-"),
]


def one(collective: str, algorithm: str, n: int, network: str) -> None:
    from collbench.core import algorithms, simulate
    from collbench.core import network as networks

    began = time.perf_counter()
    schedule = algorithms.find_variant(collective, algorithm).schedule(n)
    model = networks.parse_network(network, n, networks.LINKS["ib200"], networks.LINKS["nvlink"])
    seconds = simulate.predict_seconds(schedule, model, 1 << 30)
    taken = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
    print(f"{seconds * 1e3:.1f} ms for 1 GiB | {taken:.2f} s | {peak:.0f} MiB", flush=True)


def main() -> None:
    print("| schedule | ranks | network | predicted | simulated in | peak memory | aim |")
    print("|---|--:|---|--:|--:|--:|---|")
    for collective, algorithm, n, network, aim in CASES:
        done = subprocess.run(
            [sys.executable, __file__, collective, algorithm, str(n), network],
            capture_output=True,
            text=True,
            check=True,
        )
        print(
            f"| {collective} {algorithm} | {n:,} | {network} | {done.stdout.strip()} | {aim} |",
            flush=True,
        )


if __name__ == "__main__":
    main() if len(sys.argv) == 1 else one(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
