"""What a report over a very large run costs: seconds, processor time and peak memory of reading,
deriving, reporting.

``python tests/perf/report.py`` makes a run of 100,000 invented cases and prints a table;
``--cases`` makes a smaller one, ``--keep PATH`` leaves it behind, ``--only-make`` stops there.
Nothing here is asserted in CI: machines differ.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import psutil

from collbench.core.collectives import COLLECTIVES
from collbench.machine import environment
from collbench.records import run_file
from collbench.records.types import End, FirstWrong, RankInfo, Record, Run, World
from collbench.suite.case import Case
from collbench.suite.grammar import sweep_sizes
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite, expand_axes

COMMANDS = {
    "read, nothing left out": (
        "import sys; from collbench.records import run_file; from pathlib import Path\n"
        "run_file.read_file(Path(sys.argv[1]))"
    ),
    "read and derive, as shown": (
        "import sys; from collbench.records import run_file; from pathlib import Path\n"
        "run_file.read_digest(Path(sys.argv[1]))"
    ),
}


def axes() -> Axes:
    """More than 100,000 cases of ten collectives: every algorithm that some numbers of ranks
    allow."""
    names = tuple(name for name in COLLECTIVES if name not in ("barrier", "all_to_allv"))[:10]
    algorithms = (
        "native",
        "ring",
        "recursive_doubling",
        "binomial",
        "bruck",
        "pairwise",
        "chain",
        "direct",
    )
    types = ("float", "half", "bfloat16", "double", "int32", "int8", "uint8", "int64")
    return Axes(
        collectives=names,
        sizes=sweep_sizes(64, 1 << 30),
        ranks=(2, 3, 4, 8),
        backends=("gloo", "shm"),
        dtypes=types,
        algorithms=algorithms,
        ops=("sum", "max"),
    )


def make(path: Path, number: int, seed: int = 1) -> None:
    """A run of ``number`` cases. Times follow latency and bandwidth of their case, with noise,
    spikes, a few pairs of modes and late ranks; some cases are skipped, failed or wrong. The same
    numbers give the same file.
    """
    rng = np.random.default_rng(seed)
    suite = Suite(name="perf-report", axes=axes())
    cases: list[Case] = []
    for dtype in suite.axes.dtypes:  # a suite may have half as many cases as all of them
        if len(cases) < 2 * number:
            cases += expand_axes(msgspec.structs.replace(suite.axes, dtypes=(dtype,)))[0]
    if number > len(cases):
        raise SystemExit(f"at most {len(cases)} cases")
    chosen = [cases[i] for i in np.sort(rng.permutation(len(cases))[:number])]
    worlds = {
        (backend, n): i
        for i, (backend, n) in enumerate(dict.fromkeys((c.backend, c.n) for c in chosen))
    }
    run = Run(
        id="20260101-000000-perf",
        started="2026-01-01T00:00:00+00:00",
        command=["collbench"],
        suite=suite,
        policy=Policy(),
        environment=environment.gather_facts(),
        tag="perf",
    )
    writer = run_file.Writer(path, run)
    for (backend, n), index in worlds.items():
        ranks = [
            RankInfo(rank=r, host=f"node{r // 4}", pid=1000 + r, cpus=[r % 4]) for r in range(n)
        ]
        world = World(
            index=index,
            backend=backend,
            n=n,
            env=(),
            launcher="local",
            ranks=ranks,
            oversubscribed=False,
            same_clock=backend == "shm" or n < 8,
            library="gloo (torch 2.9)",
        )
        writer.write(world)
    for case in chosen:
        writer.write(outcome(case, worlds[case.backend, case.n], rng))
    writer.write(End(exit=0, ended="2026-01-01T12:00:00+00:00"))
    writer.close()


def outcome(case: Case, world: int, rng: np.random.Generator) -> Record:
    luck = rng.random()
    if luck < 0.02:
        return Record(
            case=case,
            status="skipped",
            world=world,
            note=f"{case.dtype} is not supported by {case.backend}",
        )
    if luck < 0.03:
        return Record(
            case=case,
            status="failed",
            world=world,
            note=f"rank 1: no answer after {rng.integers(60)} s",
        )
    wrong = luck < 0.035
    n = int(rng.integers(20, 51))
    typical = (
        8_000 + 3_000 * case.n + case.moved / (4 if case.backend == "shm" else 1.5)
    ) * rng.lognormal(0, 0.1)
    inner = max(1, int(25_000 / typical))
    work = inner * typical * rng.lognormal(0, 0.02, n) * np.where(rng.random(n) < 0.02, 3, 1)
    if rng.random() < 0.05:
        work *= np.where(rng.random(n) < 0.35, 1.4, 1)
    starts = rng.exponential(0.01, (case.n, n)) * work
    if rng.random() < 0.05:
        starts[int(rng.integers(case.n))] += 0.2 * work
    starts -= starts.min(axis=0)
    durations = (work + starts.max(axis=0) - starts).astype(int)
    clock = (
        {
            "starts_ns": starts.astype(int).tolist(),
            "glob_ns": (durations + starts).max(axis=0).astype(int).tolist(),
            "skew_ns": starts.max(axis=0).astype(int).tolist(),
        }
        if case.backend == "shm" or case.n < 8
        else {}
    )
    return Record(
        case=case,
        status="wrong" if wrong else "ok",
        world=world,
        started="2026-01-01T00:00:00+00:00",
        times_ns=durations.max(axis=0).tolist(),
        per_rank=durations.tolist(),
        inner=inner,
        setup_ns=100_000,
        warmup=30,
        steady=bool(rng.random() < 0.98),
        stop="converged" if rng.random() < 0.9 else "budget",
        sync="window",
        overhead_ns=80,
        rotation=4,
        cache="cold",
        checked=2,
        seconds=0.5,
        wrong=3 if wrong else 0,
        first_wrong=(
            FirstWrong(rank=1, index=7, got="1 (0x1)", expected="2 (0x2)") if wrong else None
        ),
        **clock,
    )


def watched(command: list[str]) -> tuple[float, float, float, int]:
    """Wall and processor seconds, peak MiB (PSS: shared pages count once) of a command and its
    children; exit."""
    before, began, peak = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter(), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, memory(psutil.Process(process.pid)))
            time.sleep(0.05)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, spent, peak / 2**20, process.returncode


def memory(root: psutil.Process) -> int:
    total = 0
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # it has just ended
            total += process.memory_full_info().pss
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument(
        "--keep", type=Path, help="leave the run in this file (an existing one is used as it is)"
    )
    parser.add_argument("--only-make", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "run.jsonl"
        if not path.exists():
            make(path, options.cases)
        if options.only_make:
            return
        page = Path(folder) / "report.html"
        steps = {name: [sys.executable, "-c", code, str(path)] for name, code in COMMANDS.items()}
        steps["collbench report"] = [
            sys.executable,
            "-m",
            "collbench",
            "report",
            str(path),
            "-o",
            str(page),
        ]
        print(f"{options.cases:,} cases, {path.stat().st_size / 1e6:.0f} MB\n")
        print("| step | wall | processor | peak memory | exit |\n|---|--:|--:|--:|--:|")
        for name, command in steps.items():
            wall, spent, peak, code = watched(command)
            print(
                f"| {name} | {wall:.1f} s | {spent:.1f} s | {peak:.0f} MiB | {code} |", flush=True
            )
        if page.exists():
            print(f"\nreport: {page.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
