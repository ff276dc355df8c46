"""Training steps on a link of known rate: what they take against what their programs say.

``python tests/perf/steps.py --output reports/steps.md`` (make lab). Needs root, ip and tc, and a
machine that is otherwise idle. Computation sleeps, so that nothing but the link is shared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "lab"))

import launching
import network
from network import PAYLOAD, Lab

from collbench.features.training import overlap as steps
from collbench.features.training.views.steps import describe_overlap
from collbench.machine import cpus, environment
from collbench.records import run_file

RATE, MIB, TIMES, GOAL = 10**9, 16, 4, 0.05
ALPHA_US = 100  # of a message, which is nothing beside a tenth of a second
LINK = f"alpha={ALPHA_US}us,bandwidth={PAYLOAD * RATE / 8e6:.2f}MB"
PROGRAM = """version = 1
world = 2
name = "{name}"
[[phase]]
name = "backward"
repeat = {times}
ops = [
  {gap}
  {{kind = "all_reduce", bytes = {nbytes}, dtype = "float", reduce = "sum", wait = "{wait}"}},
]
[[phase]]
name = "optimizer"
ops = [{{kind = "wait"}}]
"""


class Program(NamedTuple):
    """Milliseconds of computation before each all_reduce, and whether that is waited for there."""

    gap: int
    wait: str = "later"


PROGRAMS = {
    "no computation": Program(0),
    "computation shorter than communication": Program(40),
    "computation longer than communication": Program(250),
    "each all_reduce waited for where it is made": Program(40, "call"),
}
PAGE = f"""# Steps on a link of known rate

Two hosts of one rank each that are namespaces of one kernel ([tests/lab](../tests/lab)), on a link
of 1 Gb/s, of which {PAYLOAD:.2%} are data; Gloo; {{machine}}. Made by
`python tests/perf/steps.py`. A step is {TIMES} times a computation, which sleeps, and an all_reduce
of {MIB} MiB, whose data is on the link for {{wire:.0f}} ms; what is not waited for at once is at
the end. `says` is what `collbench workload --link {LINK}` predicts of the same file: what the link
and the program's order leave, with nothing that was measured here. {{rounds}} rounds.

| step | says | takes | ratio | within {GOAL:.0%} | exposed, says | exposed [95 %] | |
|---|--:|--:|--:|---|--:|--:|---|
{{rows}}
"""


def row(lab: Lab, folder: Path, name: str, program: Program, rounds: int) -> str:
    """A line of the table: one step, predicted and run."""
    gap = f'{{kind = "compute", gap_us = {1000 * program.gap}}},' if program.gap else ""
    file, output = folder / "step.toml", folder / "run.jsonl"
    values = {"times": TIMES, "nbytes": MIB << 20, "wait": program.wait, "gap": gap}
    file.write_text(PROGRAM.format(name=name, **values))
    asked = [sys.executable, "-m", "collbench", "workload", str(file), "--link", LINK]
    said = subprocess.run([*asked, "--format", "json"], check=True, capture_output=True, text=True)
    expected = json.loads(said.stdout)["forecast"]
    output.unlink(missing_ok=True)
    options = ["--compute", "sleep", "-n", str(rounds), "--output", str(output)]
    done = launching.run(lab, launching.by_environment, "workload", str(file), *options)
    if done[0].returncode:
        raise SystemExit(f"{name}: {done[0].stderr}")
    (one,) = steps.find_overlaps(run_file.read_file(output).records)
    took = statistics.median(one.step_record.times_ns)
    ratio = took / expected["step_ns"]
    _, hidden = describe_overlap(one)
    lo, hi = (1e-6 * end for end in (one.exposed.lo, one.exposed.hi))
    return (
        f"| {name} | {expected['step_ns'] / 1e6:.1f} ms | {took / 1e6:.1f} ms | {ratio:.3f} |"
        f" {'met' if abs(ratio - 1) <= GOAL else 'not met'} | {expected['exposed_ns'] / 1e6:.1f} ms"
        f" | {one.exposed.estimate / 1e6:.1f} ms [{lo:.1f}, {hi:.1f}] | {hidden} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=16)
    chosen = parser.parse_args()
    if reason := network.why_not():
        raise SystemExit(reason)
    with Lab(hosts=2, rate=RATE) as lab, tempfile.TemporaryDirectory() as folder:
        at, rounds = Path(folder), chosen.rounds
        rows = [row(lab, at, name, each, rounds) for name, each in PROGRAMS.items()]
    about = environment.gather_facts()
    machine = (
        f"{about['cpu'].get('model')}, {cpus.core_count()} cores, Linux {about['kernel']},"
        f" torch {about['libraries'].get('torch')}, {datetime.now(UTC):%Y-%m-%d}"
    )
    wire = 1000 * (MIB << 20) * 8 / (PAYLOAD * RATE)
    lines = "\n".join(rows)
    chosen.output.write_text(PAGE.format(machine=machine, wire=wire, rounds=rounds, rows=lines))


if __name__ == "__main__":
    main()
