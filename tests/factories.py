"""The one place that makes cases, records, worlds, runs and nights for tests.

Every builder has a default for each field, so that a test names only what it is about. A file of
tests with defaults of its own states them once: ``small = partial(case, 1024, n=2)``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from collbench.core.collectives import COLLECTIVES
from collbench.features.health.night import Timing
from collbench.features.order.findings import (
    Neighbours,
    OrderFindings,
    Piece,
    Proof,
    RankPieces,
    Repeats,
    SizeOrder,
)
from collbench.features.order.request import SumOrder
from collbench.features.order.rows import name_row
from collbench.features.traces.types import Call, RankTrace, Trace
from collbench.records import run_file
from collbench.records.derive import Derived
from collbench.records.time_summary import Modes, TimeSummary
from collbench.records.types import End, Pairing, RankInfo, Record, Run, RunFile, World
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

ENVIRONMENT = {  # a machine that nobody else uses, so that 5 % matter
    "kernel": "6.1.0",
    "product": "PowerEdge R750",
    "cpu": {"model": "Xeon", "cores": 8, "physical": 8},
    "container": {"cpu_quota": None},
    "libraries": {"torch": "2.6.0"},
    "python": "3.11.9",
}
ENDED = End(exit=0, ended="2026-01-02T03:09:05+00:00")
SIZES = (64, 16 << 10, 1 << 20, 64 << 20)
ALPHA, BETA = 20_000.0, 0.5  # ns, ns a byte
# alpha, and beta over the lower bound's: a library that is neither the best nor bad
ROUNDS = {
    "all_reduce": (4, 1.2),
    "all_gather": (3, 1.2),
    "reduce_scatter": (3, 1.2),
    "all_to_all": (3, 1.3),
    "broadcast": (2, 1.3),
    "reduce": (2, 1.3),
    "gather": (2.2, 1.1),
    "scatter": (2, 1.1),
    "sendrecv": (1, 1.0),
    "barrier": (2, 0.0),
}
STEP = 5e7  # ns that each part of a training step takes
FIRST = datetime(2026, 1, 2, 1, 0, tzinfo=UTC)  # the night of 2026-01-01
ODD = 0.05  # share of nights on which a row takes 5 to 25 % longer

Rounds = Sequence[tuple[float | None, float | None]]
"""(base, head) of each round in ns; None where that side has no such launch."""
SideChange = Callable[[str, World, Record], Record | None]
Change = Callable[[Record], Record | None]
Level = Callable[[Case, int], float]
"""How much longer than at first a row takes in a night, as a share."""


# cases


def case(nbytes: int = 1 << 20, collective: str = "all_reduce", **fields: Any) -> Case:
    """A case of 4 ranks on Gloo, with a sum where its collective reduces and root 0 where it has
    one."""
    row = COLLECTIVES.get(collective)
    own = {
        "op": "sum" if row and row.reduces else "none",
        "root": 0 if row and row.rooted else -1,
    }
    given = {"backend": "gloo", "n": 4, **own, **fields}
    return Case(collective=collective, nbytes=nbytes, **given)


def sized(number: int) -> list[Case]:
    """All-reduces of 4, 8, 12 ... bytes."""
    return [case(4 * (i + 1)) for i in range(number)]


def swept(
    *collectives: str, sizes: Sequence[int] = tuple(1 << power for power in range(16, 25))
) -> list[Case]:
    """A case of each collective and size."""
    return [case(nbytes, name) for name in collectives for nbytes in sizes]


def nightly(n: int = 4, sizes: Sequence[int] = SIZES, **fields: Any) -> list[Case]:
    """The cases of the built-in suite ``nightly``."""
    return [
        case(size, name, n=n, **fields)
        for name in ROUNDS
        for size in (sizes if name != "barrier" else (0,))
    ]


# lines of a run's file


def record(what: Case, median: float = 1e6, **fields: Any) -> Record:
    """Seven samples around the median, in ns."""
    times = [round(median * (1 + 0.004 * step)) for step in range(-3, 4)]
    given = {"status": "ok", "times_ns": times, "sync": "window", "cache": "cold", **fields}
    return Record(case=what, **given)


def ranks(hosts: Sequence[str], device: str = "cpu") -> list[RankInfo]:
    """A rank on each of the hosts, which may come several times; devices other than CPUs are
    numbered within a host."""
    found = []
    for rank, host in enumerate(hosts):
        own = device if device == "cpu" else f"{device}:{hosts[:rank].count(host)}"
        found.append(RankInfo(rank=rank, host=host, pid=rank, cpus=[rank], device=own))
    return found


def hosted(n: int = 4, per_host: int = 1, device: str = "cpu") -> list[RankInfo]:
    """Ranks on hosts node0, node1 ..."""
    return ranks([f"node{rank // per_host}" for rank in range(n)], device)


def world(index: int = 0, **fields: Any) -> World:
    """A world; ranks are processes of its own."""
    given = {"backend": "gloo", "n": 4, "env": (), "launcher": "local", "ranks": []}
    given |= {"oversubscribed": False, "same_clock": True, **fields}
    own = [msgspec.structs.replace(rank, pid=rank.pid + 10_000 * index) for rank in given["ranks"]]
    return World(index=index, **{**given, "ranks": own})


def suite(
    name: str = "pr",
    collectives: Sequence[str] = ("all_reduce",),
    sizes: Sequence[int] = (1 << 20,),
    n: int = 4,
    **axes: Any,
) -> Suite:
    axes = {"collectives": tuple(collectives), "sizes": tuple(sizes), "ranks": (n,), **axes}
    return Suite(name=name, axes=Axes(**axes))


SUITE = suite()
NIGHTLY = msgspec.structs.replace(SUITE, tags=("health",))


def run(name: str = "run", **fields: Any) -> Run:
    given = {"started": "2026-01-02T03:04:05+00:00", "command": ["collbench"], "suite": SUITE}
    given |= {"policy": Policy(), "environment": ENVIRONMENT, **fields}
    return Run(id=name, **given)


def make_file(
    records: Sequence[Record],
    worlds: Sequence[World] | None = None,
    end: End | None = ENDED,
    name: str = "run",
    **fields: Any,
) -> RunFile:
    """A run as it is read back, with one world unless told otherwise; ``end`` is None where it was
    cut short, ``fields`` are its Run's."""
    lines = [world()] if worlds is None else list(worlds)
    about = run(name, **fields)
    return RunFile(run=about, worlds=lines, records=[*records], end=end, path=Path(name))


def saved(file: RunFile, folder: Path) -> Path:
    """The run as a file of its own, where ``collbench runs`` looks if ``folder`` is
    COLLBENCH_HOME."""
    return write(file, folder / "runs")


def write(file: RunFile, folder: Path) -> Path:
    """The run as a file of its own in ``folder``."""
    path = folder / f"{file.run.id}.jsonl"
    path.unlink(missing_ok=True)
    writer = run_file.Writer(path, file.run)
    for line in (*file.worlds, *file.records, *([file.end] if file.end else [])):
        writer.write(line)
    writer.close()
    return writer.path


def stored(
    rows: Mapping[Case, float | Record], name: str = "run", end: int | None = 0, **fields: Any
) -> RunFile:
    """A run of one launch, whose rows are given by their median in ns or whole; ``end`` is how it
    ended, None where it was cut short."""
    records = [
        row if isinstance(row, Record) else record(what, row, world=0) for what, row in rows.items()
    ]
    last = None if end is None else End(exit=end, ended="")
    return make_file(records, end=last, name=name, **fields)


# orders of additions

LINEAR, DOUBLING, CHAIN = "((0+1)+2)+3", "(0+1)+(2+3)", "0+(1+(2+3))"
RING = (CHAIN, "((0+3)+2)+1", "((0+1)+3)+2", "(0+(1+2))+3")  # of its pieces, as Gloo has them
PROVED = Proof(right=320, of=320, buffers=8, worst_ulp=0.9, mean_ulp=0.3)


def order_pieces(count: int, *trees: str, **fields: Any) -> list[Piece]:
    """Pieces of a buffer of ``count`` elements, as long as each other, with an order each."""
    step = -(-count // len(trees))
    ends = [min(count, step * (place + 1)) - 1 for place in range(len(trees))]
    return [
        Piece(first=place * step, last=end, **{"tree": tree, "adder": 24, **fields})
        for place, (tree, end) in enumerate(zip(trees, ends, strict=True))
    ]


def size_order(nbytes: int, *trees: str, n: int = 4, **fields: Any) -> SizeOrder:
    """The proved order of floats at one size, alike on n ranks, repeated 200 times without a
    change; its pieces have these trees, by default one piece that adds in order of ranks."""
    count = nbytes // 4
    pieces = order_pieces(count, *(trees or (LINEAR,)))
    given = {
        "count": count,
        "calls": 12,
        "ranks": [RankPieces(ranks=tuple(range(n)), pieces=pieces)],
        "proof": PROVED,
        "repeats": Repeats(calls=200),
        "neighbours": Neighbours(calls=4),
        "digest": "d",
        **fields,
    }
    return SizeOrder(nbytes=nbytes, **given)


def way_of(nbytes: int, in_place: bool = True, shift: int = 0) -> SizeOrder:
    """The order of a size in another way to place buffers, which is the usual one's."""
    unasked = {"repeats": Repeats(), "neighbours": Neighbours(), "digest": "", "calls": 0}
    how = {"in_place": in_place, "shift": shift, "varied": True, "like": True}
    return size_order(nbytes, ranks=[], **unasked, **how)


def order_record(
    *sizes: SizeOrder, subject: SumOrder | None = None, dropped: Sequence[str] = (), **fields: Any
) -> Record:
    """A record of what was found; ``fields`` are those of Case, and ``status`` and ``note``."""
    about = subject or order_subject()
    found = OrderFindings(sizes=[*sizes], dropped=[*dropped])
    own = {name: fields.pop(name) for name in ("status", "note", "world") if name in fields}
    what = case(
        1024,
        name_row(about.collective),
        **{"subject": about.title, "dtype": "uint8", "n": about.world, **fields},
    )
    findings = msgspec.to_builtins(found) if sizes or dropped else {}
    return Record(case=what, **{"status": "ok", "world": 0, "findings": findings, **own})


def order_subject(collective: str = "all_reduce", **fields: Any) -> SumOrder:
    given = {"sizes": (64, 1024), "world": 4, **fields}
    return SumOrder(collective=collective, **given)


def order_file(*records: Record, subjects: Sequence[SumOrder] = (), **fields: Any) -> RunFile:
    """A run of orders; ``subjects`` are those of its records, by default order_subject() of the
    sizes that were found."""
    if not subjects:
        found = [size for one in records for size in one.findings.get("sizes", ())]
        sizes = sorted({size["nbytes"] for size in found if not size.get("bisected")})
        subjects = [order_subject(**({"sizes": tuple(sizes)} if sizes else {}))]
        records = tuple(_of_subject(one, subjects[0]) for one in records)
    about = msgspec.structs.replace(SUITE, subjects=tuple(subjects))
    worlds = [world(library="Gloo 1.0", ranks=hosted(4, per_host=4))]
    return make_file(records, worlds, suite=about, **fields)


def _of_subject(made: Record, subject: SumOrder) -> Record:
    own = msgspec.structs.replace(made.case, subject=subject.title)
    return msgspec.structs.replace(made, case=own)


# both sides of `collbench ab`


def ratios(*changes: float, base: float = 1e6) -> Rounds:
    """A round for each head / base - 1."""
    return [(base, base * (1 + change)) for change in changes]


def noisy(change: float, number: int, seed: int, sigma: float = 0.01, base: float = 1e6) -> Rounds:
    """Rounds whose launches scatter by ``sigma`` on each side, with a true change of head."""
    logs = np.random.default_rng(seed).normal((0, np.log1p(change)), sigma, (number, 2))
    return [(base * float(b), base * float(h)) for b, h in np.exp(logs)]


def experiment(
    first: Mapping[Case, Rounds],
    second: Mapping[Case, Rounds] = {},
    change: SideChange = lambda side, world, record: record,
    aa: bool = False,
    differs: tuple[str, ...] = (),
    sides: Mapping[str, Mapping[str, Any]] = {},
) -> tuple[RunFile, RunFile]:
    """Base and head: each row's rounds of stage 1, and of stage 2 where it has any. ``change`` may
    replace or drop (None) any record; ``sides`` are fields of each side's Run."""
    files = []
    for place, side in enumerate(("base", "head")):
        worlds: list[World] = []
        records: list[Record] = []
        for stage, rows in ((1, first), (2, second)):
            for number in range(max(map(len, rows.values()), default=0)):
                here = world(index=len(worlds), stage=stage, round=number)
                worlds.append(here)
                medians = {
                    what: rounds[number][place]
                    for what, rounds in rows.items()
                    if number < len(rounds)
                }
                for what, median in medians.items():
                    if median is None:
                        continue
                    made = change(side, here, record(what, median, world=here.index))
                    records += [made] if made else []
        pairing = Pairing(experiment="e", side=side, variant=side, differs=differs, aa=aa)  # type: ignore[arg-type]
        given = {"pairing": pairing, **sides.get(side, {})}
        about = run(f"e-{side}", **given)
        end = End(exit=0, ended="")
        files.append(RunFile(run=about, worlds=worlds, records=records, end=end, path=Path(side)))
    return files[0], files[1]


# traces


def call(kind: str = "all_reduce", nbytes: int = 1 << 20, span: Any = (), **fields: Any) -> Call:
    """A call of floats, with a sum where it reduces and root 0 where it has one, under way from
    begin to end of ``span`` in ns."""
    row = COLLECTIVES.get(kind)
    own = {"op": "sum" if row and row.reduces else "none", "root": 0 if row and row.rooted else -1}
    own |= {"begins_ns": span[0], "issued_ns": span[0], "ends_ns": span[1]} if span else {}
    return Call(**{"kind": kind, "nbytes": nbytes, "dtype": "float", **own, **fields})


def calls_of(*names: Any, group: str = "", first: int = 1, **fields: Any) -> list[Call]:
    """Calls of these kinds on a group, numbered; a kind may come with fields of its own."""
    found = []
    for number, name in enumerate(names, first):
        kind, own = name if isinstance(name, tuple) else (name, {})
        found.append(call(kind, **{"group": group, "number": number, **fields, **own}))
    return found


def trace(*programs: Sequence[Call] | None, form: str = "made up", **fields: Any) -> Trace:
    """A trace of a rank for each program, in their order, None for one that is missing; ``fields``
    are those of every rank. Ranks without a host are on one."""
    given = {"host": "node0", "world": len(programs), **fields}
    found = [
        RankTrace(rank=rank, calls=tuple(calls), **given)
        for rank, calls in enumerate(programs)
        if calls is not None
    ]
    return Trace(form, tuple(found))


# nights


def expected(what: Case) -> float:
    """Nanoseconds a call of a healthy night: ``alpha + beta n``; 50 ms for a step's parts."""
    if what.subject:
        return STEP
    rounds, share = ROUNDS[what.collective]
    return rounds * ALPHA + share * what.row.bound(what.n).beta * what.moved * BETA


def night(
    slower: Mapping[Case, float] = {},
    *,
    rows: Sequence[Case] = (),
    launches: int = 3,
    sigma: float = 0.01,
    seed: int = 1,
    change: Change = lambda record: record,
    worlds: Mapping[str, Any] = {},
    end: int | None = 0,
    **fields: Any,
) -> RunFile:
    """A run of so many launches over ``rows``, by default nightly(), whose times are as expected
    and scatter from launch to launch. Each launch is a cycle, with a world of its own for each
    setting of the environment, as a plan has them. ``slower`` multiplies the times of the cases it
    names; ``change`` may replace or drop (None) any record, whose case has no cycle yet."""
    rng = np.random.default_rng(seed)
    made: list[World] = []
    records: list[Record] = []
    chosen = rows or nightly()
    for cycle, env in product(range(launches), dict.fromkeys(what.env for what in chosen)):
        index = len(made)
        made.append(world(index=index, **{"env": env, "ranks": hosted(), **worlds}))
        for what in (one for one in chosen if one.env == env):
            middle = expected(what) * slower.get(what, 1.0) * float(np.exp(rng.normal(0, sigma)))
            kept = change(record(what, middle, world=index, checked=what.n * 100))
            if kept:
                own = msgspec.structs.replace(kept.case, cycle=cycle)
                records.append(msgspec.structs.replace(kept, case=own))
    last = None if end is None else End(exit=end, ended=ENDED.ended)
    return make_file(records, made, last, **{"name": "night", "suite": NIGHTLY, **fields})


def dated(number: int, medians: Mapping[Case, float], launches: int = 3, **fields: Any) -> RunFile:
    """The run of night ``number``: each row's launches within 2 ppm of its median."""
    given = {
        "name": f"night-{number:03d}",
        "started": (FIRST + timedelta(days=number)).isoformat(),
        "environment": ENVIRONMENT | {"host": "node1"},
        "suite": NIGHTLY,
        **fields,
    }
    records = [
        record(what, median * (1 + 1e-6 * (place - 1)), world=place)
        for place in range(launches)
        for what, median in medians.items()
    ]
    worlds = [world(index=place) for place in range(launches)]
    return make_file(records, worlds, End(exit=0, ended=""), **given)


def timings(
    rng: np.random.Generator,
    rows: Sequence[Case],
    launches: int,
    sigmas: Sequence[float],
    median: Callable[[Case], float] = expected,
) -> SimpleNamespace:
    """What guidelines ask of a Night, without records: each row with a scatter of its own, in
    logarithms."""
    found = []
    for what, sigma in zip(rows, sigmas, strict=True):
        values = median(what) * np.exp(rng.normal(0, sigma, launches))
        medians = {(0, launch): float(value) for launch, value in enumerate(values)}
        found.append(Timing(what, "night", float(what.moved), medians, Counter()))
    return SimpleNamespace(fit=found)


def scatter(rng: np.random.Generator, nights: int, sigma: float) -> np.ndarray:
    """Logarithms about 0: normal, with odd nights."""
    odd = rng.random(nights) < ODD
    late = np.log1p(rng.uniform(0.05, 0.25, nights))
    return rng.normal(0, sigma, nights) + np.where(odd, late, 0)


def nights(
    rows: Sequence[Case],
    number: int,
    level: Level = lambda *_: 0.0,
    sigma: float = 0.01,
    seed: int = 1,
) -> Iterator[RunFile]:
    """So many dated nights of the same rows, each around 1 ms with its own scatter."""
    rng = np.random.default_rng(seed)
    logs = {what: scatter(rng, number, sigma) for what in rows}
    for place in range(number):
        medians = {
            what: 1e6 * float(np.exp(logs[what][place])) * (1 + level(what, place)) for what in rows
        }
        yield dated(place, medians)


def replace_derived(row: Derived, **changes: Any) -> Derived:
    """The row with other values, by the names that they have in tables."""
    if pair := changes.pop("modes", None):
        own = Modes(pair, changes.pop("mode_share", 0.5), changes.pop("in_stretches", False))
        changes["modes"] = own
    own_times = {name: changes.pop(name) for name in {*changes} & {*TimeSummary.__struct_fields__}}
    times = msgspec.structs.replace(row.times, **own_times)
    return msgspec.structs.replace(row, times=times, **changes)


def derived(median: float, **changes: Any) -> Derived:
    """What is derived of a record whose samples all took ``median``."""
    times = TimeSummary(
        **dict.fromkeys(("median", "lo", "hi", "min", "mean", "max"), median),
        **dict.fromkeys(("p95", "p99", "modes")),
        **dict.fromkeys(("mad", "severe_outliers"), 0),
        samples=1,
        n_eff=1,
    )
    row = Derived(
        times=times,
        **dict.fromkeys(("t_glob", "skew", "busbw", "late_rank")),
        overhead=0,
        algbw=0,
        flags=(),
        gateable=True,
    )
    return replace_derived(row, **changes)
