"""Ratios of collbench against the plainest thing that does the same, each pair interleaved in one
session.

``python tests/perf/run.py --output reports/perf.md`` (make perf); ``--repeat .1`` takes a tenth of
the rounds, blocks and cases. Nothing here is asserted in CI:
machines differ.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from collbench.machine import cpus, environment
from collbench.records import derive, run_file
from collbench.records.types import Record, Run
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

HELP_GOAL, START_GOAL, LOOP_GOAL = 1.3, 0.4, 0.02  # ratios, and a share
HERE = Path(__file__).parent
PYTHON = sys.executable


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def first_row(command: list[str]) -> float:
    """Seconds until a line that is no comment appears."""
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if line.strip() and not line.startswith("#"):
                taken = time.perf_counter() - began
                process.stdout.read()
                return taken
    raise RuntimeError("no row appeared")


def interleaved(
    rounds: int, ours: Callable[[], float], theirs: Callable[[], float]
) -> tuple[float, float]:
    """Medians of both, taken in turns after one round that does not count."""
    pairs = [(ours(), theirs()) for _ in range(rounds + 1)][1:]
    return tuple(statistics.median(side) for side in zip(*pairs, strict=True))  # type: ignore[return-value]


def at_most(goal: float, ratio: float) -> str:
    return f"<= {goal:g} x: {'yes' if ratio <= goal else 'no'}"


def help_page(repeat: float) -> list[str]:
    script = str(Path(PYTHON).parent / "collbench")
    ours, bare = interleaved(
        math.ceil(20 * repeat),
        lambda: seconds([script, "--help"]),
        lambda: seconds([PYTHON, "-c", "import typer, rich"]),
    )
    return [
        f"| `collbench --help` | {ours * 1e3:.0f} ms | `import typer, rich`: {bare * 1e3:.0f} ms "
        f"| {ours / bare:.2f} x | {at_most(HELP_GOAL, ours / bare)} |"
    ]


def start(repeat: float) -> list[str]:
    options = (  # as many calls as the script makes
        "--sizes 1K -g 8 --place out -n 20 -w 1 --no-save"
    )
    sweep = [PYTHON, "-m", "collbench", "all_reduce", *options.split()]
    script = [
        PYTHON,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "8",
        str(HERE / "minimal.py"),
    ]
    ours, bare = interleaved(
        math.ceil(3 * repeat), lambda: first_row(sweep), lambda: first_row(script)
    )
    against = f"minimal all-reduce under `torchrun --nproc-per-node 8`: {bare:.1f} s"
    goal = at_most(START_GOAL, ours / bare)
    return [f"| first row, `-g 8` | {ours:.1f} s | {against} | {ours / bare:.2f} x | {goal} |"]


def loops(repeat: float) -> list[str]:
    """The timed loop against a hand-written one on the same buffers, and the hand-written one
    against itself."""
    script = [
        PYTHON,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        str(HERE / "loops.py"),
        "--repeat",
        str(repeat),
    ]
    done = subprocess.run(script, check=True, capture_output=True, text=True)
    lines = []
    for found in msgspec.json.decode(done.stdout.strip().splitlines()[-1]):
        ours, bare, again = (found[side] / 1e3 for side in ("ours", "bare", "again"))
        within = "yes" if abs(ours - bare) <= LOOP_GOAL * bare + 1 else "no"
        if abs(again - bare) > LOOP_GOAL * bare:
            within = "cannot tell"
        against = f"hand-written loop: {bare:.1f} us (itself again: {again:.1f} us)"
        goal = f"within 2 % + 1 us: {within}"
        lines.append(
            f"| median, {found['what']} | {ours:.1f} us | {against} | {ours / bare:.3f} x |"
            f" {goal} |"
        )
    return lines


def recording(repeat: float) -> list[str]:
    cases, samples, ranks = math.ceil(10_000 * repeat), 200, 8
    case = Case(collective="all_reduce", backend="gloo", n=ranks, nbytes=1 << 20, op="sum")
    times = list(range(1_000_000, 1_000_000 + samples))
    record = Record(case=case, status="ok", times_ns=times, per_rank=[times] * ranks, skew_ns=times)
    suite = Suite(name="perf", axes=Axes(collectives=("all_reduce",), sizes=(8,), ranks=(ranks,)))
    run = Run(id="perf", started="", command=[], suite=suite, policy=Policy(), environment={})
    with tempfile.TemporaryDirectory() as folder:
        writer = run_file.Writer(Path(folder) / "run.jsonl", run)
        began = time.perf_counter()
        for _ in range(cases):
            writer.write(record)
        written = (time.perf_counter() - began) / cases
        began = time.perf_counter()
        for _ in range(200):
            derive.derive_row(record)
        derived = (time.perf_counter() - began) / 200
    what = f"{cases:,} cases of {samples} samples x {ranks} ranks"
    against = f"deriving its columns: {derived * 1e3:.2f} ms"
    goal = f"< 1 ms: {'yes' if written < 1e-3 else 'no'}"
    return [f"| recording {what} | {written * 1e3:.2f} ms a case | {against} | | {goal} |"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", default="help_page,start,loops,recording")
    parser.add_argument("--repeat", type=float, default=1.0)
    chosen = parser.parse_args()
    about = environment.gather_facts()
    lines = [
        "# Speed of collbench itself",
        "",
        (
            f"{about['cpu'].get('model')}, {cpus.core_count()} cores, Python"
            f" {about['python']}, torch {about['libraries'].get('torch')},"
            f" {datetime.now(UTC):%Y-%m-%d}. Made by `make perf`; medians of interleaved rounds."
            " Where a loop's own repetition differs from it by more than"
            f" {100 * LOOP_GOAL:g} %, the machine cannot tell."
        ),
        "",
        "| what | collbench | against | ratio | goal |",
        "|---|---|---|---|---|",
    ]
    for name in chosen.only.split(","):
        lines += globals()[name](chosen.repeat)
        print(lines[-1], file=sys.stderr)
    chosen.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
