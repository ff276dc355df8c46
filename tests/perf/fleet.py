"""Whether `collbench health --fleet` finds slow nodes and accuses nobody else, and how long it
takes to read thousands of runs.

``python tests/perf/fleet.py SEED.jsonl… --output reports/fleet.md`` takes some minutes: the seeds
are real runs of a few launches, as of the suite that it prints with ``--suite``. Fleets are made of
their records (tests/helpers/fleets.py).
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from fleets import (
    Scatter,
    Seeds,
    draw_logs,
    name_node,
    node_lines,
    plain_batch,
    read_seeds,
    write_node,
)

from collbench.features.health.fleet.judgement import Fleet, judge_batches
from collbench.records.types import Record

PLANTED = {13: 0.05, 111: 0.06, 222: 0.08, 377: 0.10, 505: 0.12, 701: 0.15, 940: 0.20}
NODES, LAUNCHES = 1000, 3
BLOCKS = 40  # launches that the runs which are only read are drawn from
RACK = r"^(r\d+)"
SUITE = """description = "A node of a fleet."
tags = ["health"]
[axes]
collectives = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "sendrecv"]
sizes = [64, "16K", "1M", "16M"]
backends = ["gloo"]
ranks = [2]
in_place = false
cycles = 6
[policy]
fresh = true
max_seconds = "0.4s"
"""
# nodes apart by 0.3 %, launches by 0.3 %, rows of a launch as below
SCATTERS = {
    "rows 2 %": Scatter(),
    "rows 2 %, t with 3 degrees": Scatter(heavy=3),
    "nodes 2 %, t with 3 degrees": Scatter(node=0.02, heavy=3),
}


class Reading(NamedTuple):
    """What a command took: seconds, those of CPUs, the most memory in MiB of one of its processes;
    its exit code, and what it printed."""

    seconds: float
    cpu: float
    mib: float
    exit: int
    values: Mapping[str, object]


def run_health(*args: str) -> Reading:
    """`collbench health --fleet` in a process of its own, its children's memory added."""
    command = [sys.executable, "-m", "collbench", "health", "--fleet", "--format", "json", *args]
    watcher = (
        "import json,resource,subprocess,sys,time\n"
        "begin=time.perf_counter()\n"
        "done=subprocess.run(sys.argv[1:],stdout=subprocess.PIPE)\n"
        "used=resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(json.dumps([time.perf_counter()-begin,used.ru_utime+used.ru_stime,"
        "used.ru_maxrss/1024,done.returncode,"
        "json.loads(done.stdout)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", watcher, *command], stdout=subprocess.PIPE, check=True, text=True
    )
    return Reading(*json.loads(done.stdout))


def write_fleet(
    folder: Path, seeds: Seeds, nodes: int, slower: Mapping[int, float], seed: int
) -> int:
    """A folder of runs; the bytes of all."""
    rng = np.random.default_rng(seed)
    cases = list(seeds.records)
    logs = draw_logs(rng, nodes, LAUNCHES, cases, Scatter(), seeds.offsets)
    total = 0
    for number in range(nodes):
        lines = node_lines(
            number,
            logs[number],
            cases,
            slower=slower.get(number, 0.0),
            seeds=seeds,
            rng=rng,
            environment={},
        )
        total += write_node(folder / f"{number:05}.jsonl", lines).stat().st_size
    return total


def write_many(folder: Path, seeds: Seeds, nodes: int, seed: int) -> int:
    """A folder of runs to read; the bytes of all. Their launches are drawn from BLOCKS of each, so
    that ten thousand are written in a minute."""
    rng = np.random.default_rng(seed)
    cases = list(seeds.records)
    logs = draw_logs(rng, BLOCKS, LAUNCHES, cases, Scatter(), seeds.offsets)
    blocks: list[list[bytes]] = [[] for _ in range(LAUNCHES)]
    encode = msgspec.json.encode
    for number in range(BLOCKS):
        lines = node_lines(number, logs[number], cases, seeds=seeds, rng=rng, environment={})
        records = [line for line in lines if isinstance(line, Record)]
        for launch in range(LAUNCHES):
            own = [encode(record) for record in records if record.world == launch]
            blocks[launch].append(b"\n".join(own) + b"\n")
    total = 0
    for number in range(nodes):
        lines = node_lines(number, logs[0], (), seeds=seeds, rng=rng, environment={})
        head, *worlds, end = [encode(line) + b"\n" for line in lines]
        pairs = zip(worlds, blocks, strict=True)
        body = b"".join(own + block[int(rng.integers(BLOCKS))] for own, block in pairs)
        total += (folder / f"{number:05}.jsonl").write_bytes(head + body + end)
    return total


def judge(
    seeds: Seeds, seed: int, scatter: Scatter, nodes: int, slower: Mapping[int, float]
) -> Fleet:
    """A fleet in memory, whose rows scatter as real launches do, brought to the scatter asked for;
    with heavy tails as drawn."""
    cases = list(seeds.records)
    offsets = None if scatter.heavy else seeds.offsets
    logs = draw_logs(np.random.default_rng(seed), nodes, LAUNCHES, cases, scatter, offsets)
    return judge_batches([plain_batch(logs, cases, slower)])


def _judge_healthy(
    seeds: Seeds, scatter: Scatter, nodes: int, seed: int
) -> tuple[bool, float, bool]:
    """Whether anybody is accused, from which deviation on, and whether nobody has a verdict."""
    fleet = judge(seeds, seed, scatter, nodes, {})
    return bool(fleet.odd), fleet.groups[0].limit or 0.0, not fleet.judged


def healthy_lines(seeds: Seeds, fleets: int) -> Iterator[str]:
    """How often anybody is accused, by how nodes scatter and how many there are."""
    yield "| nodes | scatter | fleets | with an accused node | odd from (median) | no verdict |"
    yield "|---|---|---|---|---|---|"
    for nodes in (8, 64, NODES):
        for name, scatter in SCATTERS.items():
            number = max(1, fleets // 10) if nodes == NODES and scatter.heavy else fleets
            work = partial(_judge_healthy, seeds, scatter, nodes)
            with ProcessPoolExecutor(2) as pool:
                found = list(pool.map(work, range(1000, 1000 + number), chunksize=5))
            accused = sum(is_accused for is_accused, _, _ in found)
            limits = [limit for _, limit, _ in found]
            blind = sum(is_blind for _, _, is_blind in found)
            yield (
                f"| {nodes:,} | {name} | {number} | {accused} | {np.median(limits):.1%} | {blind} |"
            )
            print(f"{nodes} {name}: {accused} of {number}", file=sys.stderr)


def power_lines(seeds: Seeds, fleets: int) -> Iterator[str]:
    """How often a planted node is found, by how slow it is."""
    yield "| nodes | slower by | found | accused wrongly |"
    yield "|---|---|---|---|"
    for nodes in (16, 64, NODES):
        slower = dict(zip(range(1, nodes, max(1, nodes // 7)), PLANTED.values(), strict=False))
        if nodes < 100:
            number = max(1, fleets // 10)
            counts = dict.fromkeys(PLANTED.values(), 0)
            wrong = 0
            for share in counts:
                for seed in range(number):
                    odd = [n.host for n in judge(seeds, seed, Scatter(), nodes, {3: share}).odd]
                    counts[share] += name_node(3) in odd
                    wrong += bool(set(odd) - {name_node(3)})
        else:
            number = max(1, fleets // 10)
            counts, wrong = dict.fromkeys(slower.values(), 0), 0
            for seed in range(number):
                odd = {n.host for n in judge(seeds, seed, Scatter(), nodes, slower).odd}
                for node, share in slower.items():
                    counts[share] += name_node(node) in odd
                wrong += bool(odd - {name_node(node) for node in slower})
        for share, count in counts.items():
            yield f"| {nodes:,} | {share:.0%} | {count} of {number} | {wrong} |"


def file_lines(
    seeds: Seeds, folder: Path, many: int, page: Path | None, keep: Path | None
) -> Iterator[str]:
    """The command on files: seven planted nodes among a thousand, and reading ten thousand."""
    small = folder / "thousand"
    small.mkdir()
    nbytes = write_fleet(small, seeds, NODES, PLANTED, 7)
    args = ["--rack", RACK]
    args += ["-o", str(page), "--plotlyjs", "directory"] if page else []
    reading = run_health(str(small), *args)
    odd = [n for n in reading.values["fleet"]["nodes"] if n["state"] == "odd"]  # type: ignore[index]
    names = {name_node(number): share for number, share in PLANTED.items()}
    missed, wrong = set(names) - {n["node"] for n in odd}, {n["node"] for n in odd} - set(names)
    yield f"Of seven planted nodes among {NODES:,}, {len(odd) - len(wrong)} were found, exit"
    yield f"{reading.exit}; missed: {', '.join(sorted(missed)) or 'none'}; accused wrongly:"
    yield f"{', '.join(sorted(wrong)) or 'none'}. {describe_reading(reading, NODES, nbytes)}"
    yield ""
    yield "| node | planted | found |"
    yield "|---|---|---|"
    for node in sorted(odd, key=lambda node: -node["deviation"]):
        yield f"| {node['node']} | {names.get(node['node'], 0):.0%} | {node['deviation']:+.1%} |"
    shutil.rmtree(small)
    if many:
        large = keep or folder / "many"
        large.mkdir()
        nbytes = write_many(large, seeds, many, 8)
        reading = run_health(str(large), "--rack", RACK)
        yield ""
        yield f"{describe_reading(reading, many, nbytes)} Exit {reading.exit}."
        if not keep:
            shutil.rmtree(large)


def describe_reading(reading: Reading, runs: int, nbytes: int) -> str:
    return (
        f"{runs:,} runs ({nbytes / runs / 1024:.0f} KiB each, {nbytes / 2**30:.1f} GiB) took"
        f" {reading.seconds:.1f} s ({reading.cpu:.1f} s of CPU) and at most {reading.mib:.0f} MiB"
        " in a process."
    )


def make_report(args: argparse.Namespace) -> list[str]:
    """The lines of the report."""
    seeds = read_seeds(args.seeds)
    rows = len(seeds.records)
    launches = [len(records) for records in seeds.records.values()]
    real = [
        1.4826 * float(np.median(np.abs(np.array(seeds.offsets[case])))) for case in seeds.records
    ]
    lines = [
        "# A fleet of nodes against each other",
        "",
        "`python tests/perf/fleet.py SEED.jsonl… --output reports/fleet.md`; see `collbench help"
        " fleet` for the rules.",
        "",
        f"Seeds are real runs on one virtual machine of 2 cores: {rows} rows of"
        f" {min(launches)} to {max(launches)} usable launches. A synthetic node's launch takes a"
        " real launch's record of each row, with all its times multiplied. There, launches of a"
        f" row lie apart by {np.median(real):.0%} (median of rows, 1.4826 MAD), as nodes of a"
        " cluster do not; so their offsets are brought to 2 %, and keep their tails. To that come"
        " 0.3 % between nodes and 0.3 % between a node's launches, in all rows. Others' load is"
        " left out of the records.",
        "",
        "## By files",
        "",
    ]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        lines += file_lines(seeds, Path(folder), args.many, args.page, args.keep)
    lines += ["", "## Healthy fleets", ""]
    lines += healthy_lines(seeds, args.fleets)
    lines += ["", "## Planted nodes", "", *power_lines(seeds, args.fleets)]
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--page", type=Path, help="also write the page of the thousand nodes")
    parser.add_argument("--folder", type=Path, help="where files are made for the time being")
    parser.add_argument("--fleets", type=int, default=200)
    parser.add_argument("--many", type=int, default=10_000, help="runs to read; 0: none")
    parser.add_argument(
        "--keep", type=Path, help="make the many runs in this folder, and leave them"
    )
    parser.add_argument("--read", type=Path, help="only read the runs of this folder")
    parser.add_argument("--suite", action="store_true", help="print the suite of the seeds")
    args = parser.parse_args()
    if args.folder:
        args.folder.mkdir(parents=True, exist_ok=True)
    if args.suite:
        print(SUITE, end="")
        return
    if args.read:
        files = list(args.read.glob("*.jsonl"))
        nbytes = sum(file.stat().st_size for file in files)
        reading = run_health(str(args.read), "--rack", RACK)
        print(f"{describe_reading(reading, len(files), nbytes)} Exit {reading.exit}.")
        return
    begin = time.perf_counter()
    text = "\n".join(make_report(args))
    if args.output:
        args.output.write_text(text)
    print(text)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    print(f"{time.perf_counter() - begin:.0f} s, {used:.0f} s of CPU", file=sys.stderr)


if __name__ == "__main__":
    main()
