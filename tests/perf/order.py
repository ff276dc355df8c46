"""Orders of additions that are planted, and looked for by `collbench order`'s own code; what it
claims of reductions that do not change; and what an order of real ranks takes on this machine.

``python tests/perf/order.py --output reports/order.md``

Planted: ranks are threads, and a reduction adds ((0+1)+2)+3 but for what is planted, at a place
drawn by lot. Times are of `collbench order` on real ranks.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from factories import order_file
from threaded import find_among_threads, read

from collbench.features.order.calls import count_calls
from collbench.features.order.findings import OrderFindings, SizeOrder, read_findings
from collbench.features.order.judgement import JudgedOrder, judge_orders
from collbench.features.order.request import SumOrder
from collbench.features.order.rows import name_row
from collbench.records import run_file
from collbench.records.types import Record
from collbench.suite.case import Case

UP, DOWN = "((0+1)+2)+3", "0+(1+(2+3))"
CLAIMS = ("call", "launch", "rank", "neighbours")
MEASURED = ("gloo", "native"), ("shm", "ring")


def make_order(*sizes: int, **values: object) -> SumOrder:
    plain = {"places": ("out",), "shifts": (0,), "repeats": 0, "bisect": False}
    about = {"collective": "all_reduce", "world": 4, "sizes": sizes or (256,), **plain, **values}
    return SumOrder(**about)  # type: ignore[arg-type]


def judge(subject: SumOrder, words: list[str], seed: int) -> JudgedOrder:
    """What the product says of launches by these words."""
    records = []
    for cycle, word in enumerate(words):
        outcome = find_among_threads(subject, word, cycle, seed)
        case = Case(
            collective=name_row(subject.collective),
            subject=subject.title,
            backend="gloo",
            n=subject.world,
            nbytes=subject.sizes[-1],
            dtype="uint8",
            cycle=cycle,
        )
        records.append(Record(case=case, status="ok", world=0, findings=outcome.findings))
    (order,) = judge_orders(order_file(*records, subjects=(subject,))).orders
    return order


def find_size(word: str, subject: SumOrder, seed: int) -> SizeOrder:
    found: OrderFindings = read(find_among_threads(subject, word, 0, seed))
    return found.sizes[-1]


def list_pieces(size: SizeOrder) -> list[tuple[int, str]]:
    return [(piece.first, piece.tree) for piece in size.ranks[0].pieces]


def plant_call(rng: random.Random, seed: int) -> bool:
    order = judge(make_order(repeats=200), ["every:50"], seed)
    (change,) = order.depends["call"].calls
    gaps = {after - before for before, after in itertools.pairwise(change.odd)}
    return gaps == {50} and change.trees == (DOWN,) and order.is_proved


def plant_chunk(rng: random.Random, seed: int) -> bool:
    first = rng.randint(1, 30)
    size = find_size(f"chunk:{first}", make_order(), seed)
    return list_pieces(size) == [(0, UP), (first, DOWN), (2 * first, UP)]


def plant_element(rng: random.Random, seed: int) -> bool:
    at = rng.randint(1, 16382)
    size = find_size(f"element:{at}", make_order(1 << 16), seed)
    return list_pieces(size) == [(0, UP), (at, DOWN), (at + 1, UP)]


def plant_size(rng: random.Random, seed: int) -> bool:
    least = 4 * rng.randint(20, 200)
    order = judge(make_order(64, 1024, bisect=True), [f"from:{least}"], seed)
    sizes = [change.nbytes for change in order.depends["size"].sizes]
    return order.depends["size"].value == "differs" and sizes == [least]


def plant_launch(rng: random.Random, seed: int) -> bool:
    launch = rng.randint(1, 2)
    order = judge(make_order(repeats=5), [f"launch:{launch}"] * 3, seed)
    spots = order.depends["launch"].spots
    return order.depends["launch"].value == "differs" and spots[0].now == DOWN


def plant_rank(rng: random.Random, seed: int) -> bool:
    rank = rng.randint(1, 3)
    order = judge(make_order(), [f"rank:{rank}"], seed)
    spots = order.depends["rank"].spots
    return order.depends["rank"].value == "differs" and spots[0].rank == rank


def plant_neighbours(rng: random.Random, seed: int) -> bool:
    order = judge(make_order(repeats=5), ["neighbours"], seed)
    return order.depends["neighbours"].value == "differs"


def plant_in_place(rng: random.Random, seed: int) -> bool:
    order = judge(make_order(places=("out", "in")), ["in_place"], seed)
    spots = order.depends["place"].spots
    return order.depends["place"].value == "differs" and spots[0].now == DOWN


PLANTED: dict[str, Callable[[random.Random, int], bool]] = {
    "another order at every 50th call: the calls and their order": plant_call,
    "in one chunk: where it begins and ends": plant_chunk,
    "in one of 16,384 elements: which": plant_element,
    "from a size on: which, to the element": plant_size,
    "in one of three launches: the order there": plant_launch,
    "on one rank: which": plant_rank,
    "where other elements change: that it does": plant_neighbours,
    "in place alone: the order there": plant_in_place,
}


def count_claims(runs: int) -> tuple[int, int]:
    """Runs of a reduction that does not change in which a change is claimed, and in which bits
    were not predicted."""
    claimed = unproved = 0
    for seed in range(1, runs + 1):
        subject = make_order(4, 256, places=("out", "in"), shifts=(0, 1), repeats=50)
        order = judge(subject, ["plain", "plain"], seed)
        claimed += any(order.depends[name].value == "differs" for name in CLAIMS)
        unproved += not order.is_proved
    return claimed, unproved


def time_order(backend: str, algorithm: str, n: int, most: str) -> str:
    """A line of the table of times: sizes to ``most`` on real ranks."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        command = [sys.executable, "-m", "collbench", "order", "all_reduce", "-b", "8", "-e", most]
        command += ["-f", "8", "-g", str(n), "--backend", backend, "--algo", algorithm]
        began = time.monotonic()
        done = subprocess.run(
            [*command, "--output", str(path)], capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - began
        file = run_file.read_file(path)
    (record,) = file.records
    found = read_findings(record)
    if found is None:
        raise RuntimeError(done.stderr)
    subject = file.run.suite.subjects[0]
    sizes = [size for size in found.sizes if not size.varied]
    asked = max(size.calls for size in sizes)
    right, total = (sum(getattr(s.proof, name) for s in found.sizes) for name in ("right", "of"))
    repeats = min(size.repeats.calls for size in sizes if not size.bisected)
    bound = count_calls(subject)[1]
    label = backend if algorithm == "native" else f"{algorithm}@{backend}"
    return (
        f"| {label} | {len(sizes)} | {asked} of {bound} | {repeats} | {right:,} of {total:,} |"
        f" {found.seconds:.0f} s | {seconds:.0f} s |"
    )


PAGE = """# Orders of additions: planted changes, and what an order takes

{day}, {machine} (`python tests/perf/order.py`).

Four ranks are threads, whose reduction adds {up}, but for what is planted, by lot: {down}. Found:
trials in which `collbench order`'s code says what is named after the colon, and nothing else.

| planted | found |
|---|--:|
{planted}

Nothing planted: in {claimed} of {runs} runs of two launches, four ways to place buffers, two sizes
and 50 repeats was a change of call, launch, rank or neighbours claimed; in {unproved} some bit was
not predicted.

{ranks} ranks on two cores, all_reduce of floats, 8 B to {most}, factor 8, out of place and in
place, aligned and one element off, 200 repeats a size or as many as 10 s hold. Calls are those that
ask at one size, of the bound that `--dry-run` prints; predicted are the elements of all proofs.

| implementation | sizes | calls | fewest repeats | bits predicted | orders | command |
|---|--:|--:|--:|--:|--:|--:|
{times}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--most", default="64M")
    parser.add_argument("--ranks", type=int, default=8, help="of the orders that are timed")
    chosen = parser.parse_args()
    planted = []
    for name, plant in PLANTED.items():
        rng = random.Random(name)
        number = sum(plant(rng, seed) for seed in range(1, chosen.trials + 1))
        planted.append(f"| {name} | {number} of {chosen.trials} |")
        print(planted[-1], file=sys.stderr, flush=True)
    claimed, unproved = count_claims(chosen.runs)
    print(claimed, unproved, file=sys.stderr, flush=True)
    times = []
    for backend, algorithm in MEASURED:
        times.append(time_order(backend, algorithm, chosen.ranks, chosen.most))
        print(times[-1], file=sys.stderr, flush=True)
    chosen.output.write_text(
        PAGE.format(
            day=datetime.date.today().isoformat(),
            machine=f"2-core {platform.machine()} virtual machine",
            up=UP,
            down=DOWN,
            planted="\n".join(planted),
            claimed=claimed,
            unproved=unproved,
            runs=chosen.runs,
            ranks=chosen.ranks,
            most=chosen.most,
            times="\n".join(times),
        )
    )


if __name__ == "__main__":
    main()
