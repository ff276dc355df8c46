"""What collbench measures on links of known rates, and what the model makes of them: the
instrument's truth.

``python tests/perf/lab.py --output reports/lab.md --runs reports/lab`` (make lab). Needs root, ip
and tc, and a machine that is otherwise idle; ``--repeat .1`` makes a tenth of the calls. Nothing
here is asserted in CI: the tables say what was met.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psutil

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "lab"))

import launching
import network
from network import ETHERNET, MTU, PAYLOAD, Lab

from collbench.core import algorithms, simulate
from collbench.core import network as networks
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import CannotRun
from collbench.core.text import format_size
from collbench.features.predict import fit
from collbench.machine import cpus, environment
from collbench.records import derive, run_file
from collbench.records.derive import Derived
from collbench.records.types import RunFile

HOSTS, RACKS, UPLINK = 4, 2, 10**8
WHOLE = 4 << 20  # bytes that keep a link busy for longer than what messages cost
LARGE = {
    10**8: 8 << 20,
    10**9: 64 << 20,
}  # bits a second, and a size that keeps such links busy for a second
PIECES = 128
# what should fill every link both ways, and how often the buffer passes one by it, over what busbw
# assumes
TRUTH = {
    "sendrecv": ("native", 1.0),
    "all_reduce": ("ring", 1.0),
    "all_to_all": ("pairwise", 1.0),
    "broadcast": (f"chain:segments={PIECES}", 1 + (HOSTS - 2) / PIECES),
}
MODELLED = ("ring", "halving_doubling", "recursive_doubling", "reduce_broadcast", "central")
OPTIMAL = ("ring", "halving_doubling")
RACKED = ("ring", "hierarchical:group=2")
GOAL, MODEL_GOAL = 0.05, 0.15
TIE = 0.05  # of predictions that differ by less, neither is the first
ITERS = 10
WARMUP = 8  # connections that no case before has used carry less at first
# short enough to show what a message costs, and long enough that a bucket's burst is nothing beside
# it
PAIRS = ["sendrecv", "--sizes", "64,256,1K,2K,1M,2M,4M", "--place", "out", "--max-time"]
PAIR_SECONDS = 8
SUITE = """description = "What a lab of hosts measures of its links, and of the model."
[axes]
collectives = "sendrecv"
sizes = {large}
in_place = false
[policy]
iters = {iters}
warmup = {warmup}
timeout = "120s"
[[include]]
collectives = "all_reduce"
algorithms = {modelled}
sizes = {whole}
in_place = true
[[include]]
collectives = "all_reduce"
algorithms = {optimal}
sizes = {large}
in_place = true
[[include]]
collectives = "broadcast"
algorithms = "{broadcast}"
sizes = {large}
in_place = true
[[include]]
collectives = "all_to_all"
algorithms = "{all_to_all}"
sizes = {large}
in_place = false
"""
RACK_SUITE = """description = "What a thin uplink does to algorithms."
[axes]
collectives = "all_reduce"
algorithms = {racked}
sizes = {large}
in_place = true
[policy]
iters = {iters}
warmup = {warmup}
timeout = "120s"
"""


@contextmanager
def watched(found: list[float]) -> Iterator[None]:
    """Adds how many cores were busy meanwhile, with whatever else this machine did."""
    before, began = psutil.cpu_times(), time.monotonic()
    yield
    after, took = psutil.cpu_times(), time.monotonic() - began
    idle = after.idle + after.iowait - before.idle - before.iowait
    found.append((psutil.cpu_count() or 1) - idle / took)


def stream(rate: int, nbytes: int) -> list[str]:
    """One plain TCP stream between two hosts: what the link itself carries, and what its bucket
    counts."""
    script = str(HERE / "stream.py")
    with Lab(hosts=2, rate=rate) as lab:
        source, target = lab.hosts
        receiver = subprocess.Popen(
            target.enter([sys.executable, script, "recv", "5000", str(nbytes)]),
            text=True,
            stdout=subprocess.PIPE,
        )
        assert receiver.stdout and receiver.stdout.readline() == "open\n"
        subprocess.run(
            source.enter([sys.executable, script, "send", target.address, "5000", str(nbytes)]),
            check=True,
        )
        reached = float(receiver.communicate()[0])
        counted = lab.counted(target.name)
    can = PAYLOAD * rate / 8
    return [
        f"| {bits(rate)} | {can / 1e6:.2f} MB/s | {reached / 1e6:.2f} MB/s | {reached / can:.3f} "
        f"| {counted / nbytes:.4f} | {1 / PAYLOAD:.4f} |"
    ]


def measured(lab: Lab, path: Path, backend: str, *command: str) -> tuple[RunFile, float]:
    """A run, and how many cores it kept busy."""
    busy = list[float]()
    path.unlink(missing_ok=True)
    start = launching.mpirun if backend == "mpi" else launching.by_environment
    first = {"MASTER_ADDR": lab.hosts[0].address} if backend == "mpi" else {}
    with watched(busy):
        saved = ["--backend", backend, "--output", str(path)]
        done = launching.run(lab, start, *command, *saved, seconds=580, **first)
    if done[0].returncode:
        raise SystemExit(f"{path.name}: {done[0].stderr}")
    return run_file.read_file(path), busy[0]


def suite(path: Path, text: str, repeat: float, **values: object) -> list[str]:
    """The command that runs a suite kept beside its run, with that share of the calls."""
    iters, warmup = (math.ceil(count * repeat) for count in (ITERS, WARMUP))
    path.with_suffix(".toml").write_text(text.format(iters=iters, warmup=warmup, **values))
    return ["run", str(path.with_suffix(".toml"))]


def rows(run: RunFile) -> dict[tuple[str, str, int], Derived]:
    """By collective, algorithm and size."""
    derived = [(record.case, derive.derive_row(record, run.worlds[0])) for record in run.records]
    return {(case.collective, case.algorithm, case.nbytes): row for case, row in derived if row}


def truth(run: RunFile, backend: str, rate: int, busy: float) -> list[str]:
    found, lines = rows(run), []
    for name, (algorithm, times) in TRUTH.items():
        row, can = found[name, algorithm, LARGE[rate]], PAYLOAD * rate / 8e9
        label = backend if algorithm == "native" else f"{algorithm}@{backend}"
        assert row.busbw is not None
        half = row.half_width
        lines.append(
            f"| {bits(rate)} | {name} | {label} | {format_size(LARGE[rate])} | {can * 1e3:.2f} |"
            f" {row.busbw * 1e3:.2f} ±{half:.1%} | {row.busbw / can:.3f} | {1 / times:.3f} |"
            f" {verdict(row, row.busbw / can)} | {busy:.1f} |"
        )
    return lines


def verdict(row: Derived, share: float) -> str:
    """Whether the whole interval of a share of the payload rate lies within GOAL of it."""
    if not (math.isfinite(row.times.lo) and math.isfinite(row.times.hi)):
        return "not told"
    low, high = share * row.times.median / row.times.hi, share * row.times.median / row.times.lo
    if abs(low - 1) <= GOAL and abs(high - 1) <= GOAL:
        return "met"
    return "not met" if high < 1 - GOAL or low > 1 + GOAL else "not told"


def model(
    run: RunFile, on: networks.Network, where: str, names: Sequence[str], nbytes: int
) -> list[str]:
    """Measured and predicted times of all_reduce, in the model's order."""
    found, lines, earlier = rows(run), [], list[tuple[float, float]]()
    variants = [algorithms.find_variant("all_reduce", name) for name in names]
    view = simulate.forecast_variants(COLLECTIVES["all_reduce"], HOSTS, on, variants, [nbytes])
    for name, said in sorted(view.seconds(nbytes).items(), key=lambda pair: pair[1]):
        took = found["all_reduce", name, nbytes].times.median / 1e9
        met = "met" if abs(took / said - 1) <= MODEL_GOAL else "not met"
        order = all(took > before for least, before in earlier if said > least * (1 + TIE))
        lines.append(
            f"| {where} | {format_size(nbytes)} | {name} | {said * 1e3:.1f} ms |"
            f" {took * 1e3:.1f} ms "
            f"| {took / said:.3f} | {met} | {'met' if order else 'not met'} |"
        )
        earlier.append((said, took))
    return lines


def flat(
    rate: int, backend: str, folder: Path, repeat: float, tries: int
) -> tuple[list[str], list[str], str]:
    """Rows of the table of truth, and of the model's, and how often the fit was refused, in words
    or ""."""
    large, path = LARGE[rate], folder / f"{backend}-{rate // 10**6}.jsonl"
    pairs = path.with_stem(f"{path.stem}-pairs")
    whole = suite(
        path,
        SUITE,
        repeat,
        large=large,
        whole=WHOLE,
        modelled=list(MODELLED),
        optimal=list(OPTIMAL),
        broadcast=TRUTH["broadcast"][0],
        all_to_all=TRUTH["all_to_all"][0],
    )
    with Lab(HOSTS, rate) as lab:
        run, busy = measured(lab, path, backend, *whole)
        link, refused = fitted(lab, pairs, backend, repeat, tries)
    anew = f"{refused} of {backend} at {bits(rate)}" if refused else ""
    if link is None:
        return truth(run, backend, rate, busy), [unfitted(f"{backend}, {bits(rate)}")], anew
    on, where = networks.Network(link), f"{backend}, {bits(rate)}: {networks.describe_link(link)}"
    predicted = [*model(run, on, where, MODELLED, WHOLE), *model(run, on, where, OPTIMAL, large)]
    return truth(run, backend, rate, busy), predicted, anew


def unfitted(where: str) -> str:
    """The row of the model's table where no link was found."""
    return f"| {where}: no link found | - | - | - | - | - | not told | not told |"


def fitted(
    lab: Lab, path: Path, backend: str, repeat: float, tries: int
) -> tuple[networks.Link | None, int]:
    """The link by which times are predicted, and how many runs were refused before. Ranks without
    cores of their own may wait for the kernel's next tick, with Gloo in a whole run: then the fit
    refuses, and the run is made anew; None after so many tries.
    """
    turn = 0
    while True:
        measured(lab, path, backend, *PAIRS, f"{PAIR_SECONDS * repeat:g}s")
        try:
            link, note = fit.link_from(str(path))
        except CannotRun as e:
            turn += 1
            if turn == tries:
                print(f"not found: {e.message}", file=sys.stderr, flush=True)
                return None, turn
            print(f"measured anew: {e.message}", file=sys.stderr, flush=True)
        else:
            print(note, file=sys.stderr, flush=True)
            return link, turn


def racks(folder: Path, repeat: float) -> list[str]:
    """Hosts of 1 Gb/s with an uplink of a tenth for two, by the link that flat() found."""
    rate, large = 10**9, LARGE[UPLINK]
    where = f"gloo, 2 racks, uplink {bits(UPLINK)}"
    try:
        link, _ = fit.link_from(str(folder / f"gloo-{rate // 10**6}-pairs.jsonl"))
    except CannotRun:
        return [unfitted(where)]
    share = HOSTS // RACKS
    with Lab(HOSTS, rate, RACKS, UPLINK) as lab:
        path = folder / "racks.jsonl"
        run, _ = measured(
            lab, path, "gloo", *suite(path, RACK_SUITE, repeat, large=large, racked=list(RACKED))
        )
    tree = networks.FatTree(link, share, share * rate / UPLINK)
    return model(run, tree, where, RACKED, large)


def bits(rate: int) -> str:
    return f"{rate / 1e9:g} Gb/s" if rate >= 10**9 else f"{rate / 1e6:g} Mb/s"


PAGE = f"""# Accuracy on links of known rates

{HOSTS} hosts that are namespaces of one kernel ([tests/lab](../tests/lab)): {{machine}}. Made by
`make lab` of the runs in [lab/](lab/).

## Links

A host's link is a token bucket each way (`tc`'s tbf), which counts frames with their Ethernet
header; what the link sends in half a millisecond passes an idle one at once, and a connection may
have twice that waiting before it: what waits there holds up the acknowledgements of traffic the
other way. Of a frame's {MTU + ETHERNET} bytes {MTU - network.IP - network.TCP} are data, the rest
headers (Ethernet {ETHERNET}, IP {network.IP}, TCP with its timestamps {network.TCP}): the payload
rate is {PAYLOAD:.2%} of the link's. Where data flows both ways, acknowledgements take some
thousandths of it. A plain TCP stream between two hosts:

| link | payload rate | stream | of it | bytes counted for one of data | by the headers |
|---|--:|--:|--:|--:|--:|
{{links}}

## Bandwidth: within {GOAL:.0%} of the payload rate

{HOSTS} ranks on fewer cores are oversubscribed, by collbench's own rule, and flagged so. Whether
links or cores are the limit, the last column tells: how many cores were busy during the run, with
all that the machine did. `possible` is what the algorithm leaves: a broadcast in {PIECES} pieces
passes {HOSTS - 2} hosts before the last has its first. {WARMUP} calls go before the {ITERS}
measured: connections that no case before has used carry less at first.

| link | collective | implementation | size | payload MB/s | busbw MB/s | of it | possible | within {GOAL:.0%} | cores |
|---|---|---|--:|--:|--:|--:|--:|---|--:|
{{truths}}

`met` and `not met` are of the whole 95 % interval; where it has no bound, or reaches over the goal's
edge, this is not told.

Open MPI runs with `btl_tcp_flags=1`, by which it sends large messages without asking first. With
its default a receiver asks for each part, and where both of a pair send, its requests queue behind
its own data on their one connection: all_reduce by halving_doubling of 4 MiB at 100 Mb/s then took
0.88 s instead of 0.54 to 0.60 s (by hand, on this machine).

## The model: within {MODEL_GOAL:.0%}, in its order

all_reduce as `collbench predict --from` says it, with the alpha and beta that `collbench fit`
finds in `sendrecv` of 64 B to 4 MiB on the same hosts. The order is judged where predictions
differ by more than {TIE:.0%}. The two racks have two hosts with 1 Gb/s each, and are predicted as
`--network fat-tree:2:20`, with the link found at 1 Gb/s. Both are judged by medians. Measurements
for `collbench fit` that it refused, and that were made anew: {{refused}}.

| where | size | algorithm | predicted | measured | ratio | within {MODEL_GOAL:.0%} | order |
|---|--:|---|--:|--:|--:|---|---|
{{models}}
"""  # noqa: E501


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument(
        "--backends", default="gloo,mpi" if importlib.util.find_spec("mpi4py") else "gloo"
    )
    parser.add_argument("--repeat", type=float, default=1.0)
    parser.add_argument("--tries", type=int, default=5, help="for a link that can be fitted")
    chosen = parser.parse_args()
    if reason := network.why_not():
        raise SystemExit(reason)
    chosen.runs.mkdir(parents=True, exist_ok=True)
    links = [line for rate in LARGE for line in stream(rate, 4 * LARGE[rate])]
    found = [
        flat(rate, backend, chosen.runs, chosen.repeat, chosen.tries)
        for backend in chosen.backends.split(",")
        for rate in LARGE
    ]
    uplink = racks(chosen.runs, chosen.repeat)
    about = environment.gather_facts()
    page = PAGE.format(
        machine=(
            f"{about['cpu'].get('model')}, {cpus.core_count()} cores, Linux"
            f" {about['kernel']}, torch {about['libraries'].get('torch')},"
            f" {datetime.now(UTC):%Y-%m-%d}"
        ),
        links="\n".join(links),
        truths="\n".join(line for truths, *_ in found for line in truths),
        models="\n".join([*(line for _, models, _ in found for line in models), *uplink]),
        refused=", ".join(refused for *_, refused in found if refused) or "none",
    )
    chosen.output.write_text(page)


if __name__ == "__main__":
    main()
