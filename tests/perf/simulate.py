"""How fast large worlds are simulated: seconds and peak memory of a process each, schedule and
imports included.

``python tests/perf/simulate.py`` prints a table; ``--only ring`` has only its rows. Nothing
here is asserted in CI: machines differ.
"""

from __future__ import annotations

import argparse
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
    seconds = simulate.cost_schedule(schedule, model).seconds(1 << 30)
    taken = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
    print(f"{seconds * 1e3:.1f} ms for 1 GiB | {taken:.2f} s | {peak:.0f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows of algorithms whose names begin so")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)  # one row, in this process
    given = parser.parse_args()
    if given.one:
        collective, algorithm, n, network = given.one
        return one(collective, algorithm, int(n), network)
    print("| schedule | ranks | network | predicted | simulated in | peak memory | aim |")
    print("|---|--:|---|--:|--:|--:|---|")
    for collective, algorithm, n, network, aim in CASES:
        if not algorithm.startswith(given.only):
            continue
        done = subprocess.run(
            [sys.executable, __file__, "--one", collective, algorithm, str(n), network],
            capture_output=True,
            text=True,
            check=True,
        )
        print(
            f"| {collective} {algorithm} | {n:,} | {network} | {done.stdout.strip()} | {aim} |",
            flush=True,
        )
    return None


if __name__ == "__main__":
    main()
