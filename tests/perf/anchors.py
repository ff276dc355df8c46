"""The mpi backend beside IMB-MPI1, which comes with Intel MPI's wheel and needs no compiler.

``python tests/perf/anchors.py --output reports/anchors.md``, with the Python of an environment that
has the extra impi (tests/backends/build.py makes one). IMB and collbench take turns, each of them
first in every other turn; in a turn each starts two ranks of the same library and goes through all
collectives and sizes in one pair of buffers, out of place, but for broadcast, which has one buffer.

Like is compared with like: IMB with ``-sync off``, so that calls follow each other without the
barrier that it has between them by default, and collbench in mode streaming, a sample being 100
calls. Both times are the mean over ranks of each rank's time per call; collbench's is the median of
that over samples. IMB reads the clock twice a call, collbench twice a sample; but
Sendrecv, where IMB reads it twice a loop. Nothing here is asserted in CI.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import sections

from collbench.core.collectives import COLLECTIVES
from collbench.features.interop import importers
from collbench.records import run_file, stats
from collbench.run.launch import mpirun
from collbench.show import imb
from collbench.suite import grammar

BIN = Path(sys.executable).parent
N = 2
SHARE, SMALL_US, SMALL_BYTES = 0.05, 0.1, 4096  # wanted: within a share from so many bytes on,
# below within so many us
BATCH = 100  # calls to a sample of ours
IN_PLACE = ("broadcast",)  # of which an out-of-place call begins with a copy, and IMB's does not
Point = tuple[str, int]  # collective, and bytes as IMB counts them
Times = dict[Point, float]  # microseconds


def count_bytes(collective: str, nbytes: int) -> int:
    """The size that collbench has for ``nbytes`` of IMB's, which counts one of n blocks."""
    return nbytes * (N if collective in imb.BLOCKS else 1)


def run_imb(names: Sequence[str], sizes: Sequence[int], calls: int, folder: Path) -> Times:
    """IMB's t_avg in one start of its ranks."""
    lengths = folder / "lengths"
    lengths.write_text("\n".join(map(str, sizes)) + "\n")
    settings = {name: os.environ.get(name, "") for name in ("LD_LIBRARY_PATH", "PATH")}
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{sys.prefix}/lib:{settings['LD_LIBRARY_PATH']}",
        "PATH": mpirun.put_folder_first(str(BIN / "mpirun"), settings["PATH"]),
    }
    options = ["-sync", "off", "-msglen", str(lengths), "-iter_policy", "off"]
    options += ["-iter", f"{calls},{1 + (calls * max(sizes) >> 20)}"]  # calls, and MiB at most
    benchmarks = [imb.NAMES.get(name, name) for name in names]
    done = subprocess.run(
        [BIN / "mpirun", "-n", str(N), BIN / "IMB-MPI1", *options, *benchmarks],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    reading = importers.read_log(done.stdout, importers.Asked(name="imb"))
    found: Times = {}
    for record in reading.records:
        case, told = record.case, record.told
        block = N if case.collective in imb.BLOCKS else 1
        if told and told.by_rank and case.size // block in sizes:
            found[case.collective, case.size // block] = told.by_rank[1] / 1e3
    return found


def run_collbench(names: Sequence[str], sizes: Sequence[int], folder: Path) -> Times:
    """The same by collbench, in one start of its ranks."""
    suite, path = folder / "suite.toml", folder / "run.jsonl"
    path.unlink(missing_ok=True)
    sweeps = [
        f'collectives = "{name}"\nsizes = {[count_bytes(name, size) for size in sizes]}'
        f"\nin_place = {str(name in IN_PLACE).lower()}"
        for name in names
    ]
    suite.write_text(
        f'[axes]\n{sweeps[0]}\nranks = {N}\nbackends = "mpi"\n'
        f'modes = "streaming"\n\n[policy]\nbatch = {BATCH}\ncache = "hot"\nmax_seconds = "0.5s"\n'
        + "".join(f"\n[[include]]\n{sweep}\n" for sweep in sweeps[1:])
    )
    command = [sys.executable, "-m", "collbench", "run", suite, "--output", path]
    subprocess.run([*command, "--format", "csv"], stdout=subprocess.DEVNULL, check=True)
    found: Times = {}
    for record in run_file.read_file(path).records:
        if not record.per_rank:
            raise SystemExit(f"{record.case.key}: {record.status}: {record.note}")
        size = record.case.size // (N if record.case.collective in imb.BLOCKS else 1)
        samples = np.mean(record.per_rank, axis=0) / record.inner / 1e3
        found[record.case.collective, size] = float(np.median(samples))
    return found


def judge_difference(most: float, low: float, high: float) -> str:
    """Whether a difference whose interval is given is within what is wanted."""
    if -most <= low and high <= most:
        return "yes"
    return "no" if low > most or high < -most else "not shown"


def format_cells(
    point: Point,
    ours: Sequence[float],
    theirs: Sequence[float],
    allow: Callable[[int, float], float],
) -> list[str]:
    """The cells of a line of the table, of the times in us of all turns; ``allow`` says what
    difference is wanted at most, by bytes and the other's time."""
    differences = sorted(a - b for a, b in zip(ours, theirs, strict=True))
    middle, low, high = stats.median_interval(differences, len(differences))
    mine, others = statistics.median(ours), statistics.median(theirs)
    return [
        point[0],
        f"{point[1]}",
        f"{mine:.3f}",
        f"{others:.3f}",
        f"{mine / others:.2f}",
        f"{middle:+.3f} [{low:+.3f}, {high:+.3f}]",
        judge_difference(allow(point[1], others), low, high),
        f"{min(ours):.3f}, {min(theirs):.3f}",
    ]


def format_row(point: Point, ours: Sequence[float], theirs: Sequence[float]) -> str:
    """A line of the table, of the times of all turns."""
    return f"| {' | '.join(format_cells(point, ours, theirs, allow_difference))} |"


def allow_difference(nbytes: int, theirs: float) -> float:
    """The difference in us that is wanted at most."""
    return SHARE * theirs if nbytes >= SMALL_BYTES else SMALL_US


def measure_turns(chosen: argparse.Namespace) -> dict[Point, tuple[list[float], list[float]]]:
    """Times of all turns: collbench's and IMB's."""
    names = chosen.collectives.split(",")
    sizes = [grammar.parse_size(size, "--sizes") for size in chosen.sizes.split(",")]
    took: dict[Point, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for turn in range(chosen.turns):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            sides = (
                lambda at=folder: run_collbench(names, sizes, at),
                lambda at=folder: run_imb(names, sizes, chosen.calls, at),
            )
            times = {side: sides[side]() for side in ((0, 1) if turn % 2 else (1, 0))}
        for point in times[0]:
            for side in (0, 1):
                took[point][side].append(times[side][point])
        print(f"turn {turn + 1} of {chosen.turns}", file=sys.stderr)
    return dict(sorted(took.items()))


def main() -> None:
    """Measure, and print the section, which also goes to a file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--turns", type=int, default=11, help="6 at least for an interval")
    parser.add_argument("--sizes", default="8,64,512,4K,32K,256K,1M,4M")
    parser.add_argument("--calls", type=int, default=1000, help="of a loop of IMB's")
    parser.add_argument(
        "--collectives", default="all_reduce,all_gather,all_to_all,broadcast,sendrecv"
    )
    chosen = parser.parse_args()
    if not (BIN / "IMB-MPI1").exists():
        raise SystemExit(f"no IMB-MPI1 beside {sys.executable}: pip install 'collbench[impi]'")
    unknown = [name for name in chosen.collectives.split(",") if name not in COLLECTIVES]
    if unknown:
        raise SystemExit(f"--collectives: no collective {unknown[0]}")
    took = measure_turns(chosen)
    section = [
        f"## Beside IMB-MPI1, {N} ranks",
        "",
        sections.machine("anchors.py"),
        f"Medians of {chosen.turns} turns, us a call; {chosen.calls} calls to a loop of IMB's,"
        f" {BATCH} to a sample of ours, back to back, hot buffers, out of place (broadcast: in",
        "place). IMB's calls have no barrier between them (`-sync off`).",
        "Difference: the median of the turns' and its 95 % interval; wanted is within"
        f" {SHARE:.0%} from {SMALL_BYTES} bytes on, within {SMALL_US} us below.",
        f"At the end the machine's load was {os.getloadavg()[1]:.1f}.",
        "",
        "| collective | #bytes | collbench | IMB | ratio | difference | within | least of each |",
        "|---|--:|--:|--:|--:|--:|---|--:|",
        *(format_row(point, *sides) for point, sides in took.items()),
    ]
    print("\n".join(section))
    if chosen.output:
        sections.write(chosen.output, "Anchors: other tools on the same library", [section])


if __name__ == "__main__":
    main()
