"""Files of every kind that is read, changed at random places, and given to what reads them.

A reader takes bytes and says what became of them: "read", or "refused" by an error for people.
Anything else it raises. Each mutation is made of a seed of its own.
"""

from __future__ import annotations

import json
import pickle
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import factories
import msgspec
import traced
from factories import case, record, world
from typer.testing import CliRunner

from collbench.cli import main
from collbench.core.errors import CollbenchError
from collbench.features.health.checks import curves
from collbench.features.interop import assemble, importers
from collbench.features.interop.importers.text import decode_log
from collbench.features.traces.formats import recognise as reading
from collbench.features.traces.types import RankTrace
from collbench.machine import topology
from collbench.machine.load import Load
from collbench.records import run_file
from collbench.records.types import (
    Choice,
    End,
    FirstWrong,
    GpuState,
    HostInfo,
    Record,
    Run,
    Sent,
    ToolTime,
    World,
)
from collbench.suite import toml
from collbench.suite.sweep import Axes, Exclude, Override, Part, Threshold

NUMBERS = ("0", "1", "-1", "2", "7", "255", "4096", "65537", "1048576", "1048577", "2147483648")
NUMBERS += (str(1 << 61), str(1 << 62), str(1 << 63), str(1 << 64), "9" * 40, "9" * 5000)
NUMBERS += ("0.5", "-0.0", "1e-320", "1e17", "1e308", "1e999", "-1e999", "NaN", "Infinity")
EVIL = ["", " ", "x", "all", "native", "ring", "nccl", "x" * 5000, "\0", "\x1b]0;x\x07\x1b[2J"]
EVIL += ["\u202e", "\ud800", "../../etc/passwd", "matrix:/dev/zero", "zipf:1e308", "spread:nan"]
EVIL += ["mod:3", "pairs 0/2", "pairs 1/4096", "ranks 0,1;2,3/4", "and:0xff", "<script>", "=1+1"]
EVIL += ["chain:segments=9999", "2026-13-45T99:00:00", "0001-01-01T00:00:00", "one-late:1s", "%s"]
OTHERS = ("null", "true", "false", "[]", "{}", "[[]]", "[null]", '{"a":1}', "[1,2]", '[["A","b"]]')
POOL = (*NUMBERS, *OTHERS, *(json.dumps(text) for text in EVIL), "[" * 2000, '{"a":' * 2000)
ALLOWED = (0, 1, 2, 3, 5)
ANY = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s\[\]{},:=|]+')  # a word of whatever text


class Kind(NamedTuple):
    """What is mutated, and how it is read; ``command`` are arguments that read the file, too."""

    changed: Callable[[random.Random], bytes]
    read: Callable[[bytes, Path], None]
    command: Callable[[random.Random, Path], list[str]] | None = None


def tried(kind: Kind, seed: int, path: Path, command: bool = False) -> str:
    """What becomes of one mutation. Raises what a person must not see."""
    rng = random.Random(seed)
    data = kind.changed(rng)
    try:
        kind.read(data, path)
    except CollbenchError as e:
        if e.exit not in ALLOWED:
            raise
        return "refused"
    if command and kind.command:
        path.write_bytes(data)
        done = CliRunner().invoke(main.app, kind.command(rng, path))
        if isinstance(done.exception, CollbenchError) and done.exception.exit in ALLOWED:
            return "refused by the command"
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code in ALLOWED, done.output
        return "read, and by the command"
    return "read"


# runs


def rich() -> list[Any]:
    """A run's lines with something in every field."""
    part = Part(collectives=("all_reduce",), sizes=(1024,))
    suite = msgspec.structs.replace(
        factories.suite(sizes=(1024, 4096)),
        includes=(Axes(collectives=("broadcast",), sizes=(8,), ranks=(4,)),),
        overrides=(Override(match=part, axes=Part(dtypes=("half",))),),
        excludes=(Exclude(match=part, reason="x"),),
        thresholds=(Threshold(match=part, tau=0.1),),
        tags=("a",),
    )
    load = {"node0": Load(others=0.5, cpus=8)}
    worlds = [
        world(i, ranks=factories.hosted(), hosts=[HostInfo(host="node0", fingerprint="f")])
        for i in range(3)
    ]
    gpu = GpuState(index=0, name="H100", throttle=("hw",), sm_mhz=100)
    fields: dict[str, Any] = {
        "per_rank": [[1000 + r, 2000, 3000] for r in range(4)],
        "starts_ns": [[r, 5, 6] for r in range(4)],
        "glob_ns": [3000, 3001, 3002],
        "skew_ns": [5, 6, 7],
        "host_ns": [9000],
        "control_ns": [8000, 8001],
        "invalid": {"late": 1},
        "bits": ["a"],
        "gpus": [gpu],
        "chose": Choice(algorithm="RING", protocol="LL"),
        "first_wrong": FirstWrong(rank=0, index=1, got="1", expected="2"),
        "sent": [Sent(calls=3, ns=5, idle_ns=2, bytes={"tcp": 5000000}, idle={"tcp": 5})],
        "load": load,
    }
    rows = [case(4096 << i) for i in range(2)]
    rows += [case(1 << 20, groups="mod:2", n=2, of=2, group=1)]
    rows += [case(1 << 16, "all_to_allv", splits="zipf:1"), case(8, arrival="natural", mode="host")]
    records = [record(what, 1e6, world=i, **fields) for i in range(3) for what in rows[:2]]
    records += [record(what, 1e6, world=0) for what in rows[2:]]
    told = ToolTime(time=5.0, samples=3, min=1.0, by_rank=(1.0, 2.0, 3.0))
    records += [Record(case=rows[0], status="ok", world=1, told=told)]
    run = factories.run("run", suite=suite, load=load)
    return [run, *worlds, *records, End(exit=0, ended=factories.ENDED.ended, note="x")]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path within JSON."""
    yield at
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(each, (*at, key))


LINES = [json.loads(msgspec.json.encode(line)) for line in rich()]
PLACES = [[at for at in places(line) if at] for line in LINES]
TEXTS = [json.dumps(line).encode() for line in LINES]
HOLE = "\x00hole"


def changed_run(rng: random.Random, kind: str) -> bytes:
    """The run with one or two values of a line of this kind replaced, left out or added."""
    number = rng.choice([i for i, line in enumerate(LINES) if line["line"] == kind])
    line, filled = json.loads(TEXTS[number]), []
    for at in rng.sample(PLACES[number], rng.choice((1, 1, 1, 2))):
        inner = line
        try:
            for key in at[:-1]:
                inner = inner[key]
            how = rng.random()
            if how < 0.1:
                del inner[at[-1]]
            elif how < 0.15 and isinstance(inner, dict):
                inner["".join(rng.sample("abcxyz", 3))] = 1
            elif how < 0.2 and isinstance(inner, list):
                inner.append(inner[at[-1]])
            else:
                inner[at[-1]] = HOLE
                filled.append(rng.choice(POOL))
        except (KeyError, IndexError, TypeError):
            continue  # the first change took the place of the second
    text = json.dumps(line)
    for value in filled:
        text = text.replace(json.dumps(HOLE), value, 1)
    return b"\n".join([*TEXTS[:number], text.encode(), *TEXTS[number + 1 :], b""])


def read_run(data: bytes, path: Path) -> None:
    """As commands do, and every line that is read can be written."""
    path.write_bytes(data)
    file = run_file.read_digest(path)
    run_file.read_outline(path)
    for line in (file.run, *file.worlds):
        msgspec.json.encode(line)


def run_command(rng: random.Random, path: Path) -> list[str]:
    folder = path.parent
    return rng.choice(
        [
            ["report", str(path), "-o", str(folder / "x.html")],
            ["report", str(path), "--format", "md"],
            ["compare", str(path), str(folder / "good.jsonl")],
            ["compare", str(folder / "good.jsonl"), str(path)],
            ["health", str(path), "--no-history"],
            ["health", str(path), "--history", str(folder / "h.sqlite")],
            ["history", "add", str(path), "--history", str(folder / "h.sqlite")],
            ["fit", str(path)],
        ]
    )


# texts


def changed_text(rng: random.Random, text: str, json_like: bool = False) -> bytes:
    """A text with some words, lines or bytes replaced."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        how = rng.random()
        lines = text.split("\n")
        if how < 0.6 and (found := list(ANY.finditer(text))):
            word = rng.choice(found)
            pool = POOL if json_like or rng.random() < 0.3 else (*NUMBERS, *EVIL)
            text = text[: word.start()] + rng.choice(pool) + text[word.end() :]
        elif how < 0.8:
            at, to = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[at : at + rng.choice((0, 1))] = [lines[to]]
            text = "\n".join(lines)
        elif how < 0.9:
            text = text[: rng.randrange(len(text) + 1)]
        else:
            at = rng.randrange(len(text) + 1)
            text = (
                text[:at] + rng.choice(['"', "\0", "[", "]]", "\r", "é", "{", ",", "#"]) + text[at:]
            )
    return text.encode("utf-8", errors="surrogatepass")


SUITE = """description = "d"
tags = ["a"]
[axes]
collectives = ["all_reduce", "broadcast", "all_to_allv"]
sizes = { min = "1K", max = "64K", factor = 4 }
ranks = [2, 4]
backends = "model"
dtypes = ["float", "half"]
ops = "sum"
roots = [0, 1]
algorithms = ["native", "ring"]
splits = ["uniform", "zipf:1"]
groups = "mod:2"
env = ["NCCL_ALGO=Ring,Tree"]
cycles = 2
align = 16
modes = ["isolated", "streaming"]
[policy]
iters = 20
warmup = 2
precision = "2%"
timeout = "10s"
seed = 3
sync = "auto"
[[include]]
collectives = ["all_gather"]
sizes = ["1M"]
[[override]]
match = { collectives = ["broadcast"], min_size = "4K" }
sizes = [8]
[[exclude]]
sizes = [1024]
reason = "x"
[[threshold]]
match = { dtypes = "half" }
tau = "15%"
"""
HEAD = "#       size         count      type   redop    root" + 2 * (
    "     time   algbw   busbw  #wrong"
)
ROW = "  12.5    0.08    0.08       0"
NCCL = f"""# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 1 iters: 20
# Using devices
#  Rank  0 Group  0 Pid    100 on     node00 device  0 [0000:00:00] NVIDIA H200
#  Rank  1 Group  0 Pid    101 on     node00 device  1 [0000:01:00] NVIDIA H200
{HEAD}
        1024           256     float     sum      -1{ROW}{ROW}
        2048           512     float     sum      -1  12.5    0.16    0.16       0  N/A 0.1 0.1 0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.1
"""
HALF = {"time": 12.5, "alg_bw": 0.08, "bus_bw": 0.08, "nwrong": 0}
TIMES = {"skipped_iterations": 1, "times_us": [1.0, 2.0], "per_process_max_times_us": [[1.0, 2.0]]}
NCCL_JSON = json.dumps(
    {
        "version": 3,
        "args": ["./all_reduce_perf", "-a", "1"],
        "env": ["NCCL_ALGO=Ring"],
        "nccl_version": 22809,
        "start_time": "2026-01-02T03:04:05",
        "end_time": "2026-01-02T03:05:05",
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "iterations": 20,
            "devices": [{"hostname": "a", "device": i, "pid": 5} for i in range(2)],
        },
        "results": [
            {
                "size": 1024,
                "count": 256,
                "type": "float",
                "redop": "sum",
                "root": -1,
                "out_of_place": HALF,
                "in_place": HALF,
                "out_of_place_per_iter": TIMES,
            }
        ],
        "out_of_bounds": {"count": 0},
    },
    indent=1,
)
OSU = """# OSU MPI Allreduce Latency Test v7.4
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                       1.20              1.00              1.40        1000
1024                    2.20              2.00              2.40        1000
"""
IMB = """# Intel(R) MPI Benchmarks 2021.7, MPI-1 part
# Date                  : Mon Jan 05 03:04:05 2026
# MPI Version           : 3.1
# MPI_Datatype                   :   MPI_BYTE
# Calling sequence was:

# ./IMB-MPI1 Allreduce -sync 1

# Benchmarking Allreduce
# #processes = 4
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            4         1000         1.00         1.40         1.20
         1024         1000         2.00         2.40         2.20
"""
FLAT = {"numCycle": "1", "name": "AllReduce", "nodes": 1, "ranks": 2, "gpusPerRank": 1}
FLAT |= {"size": 1024, "type": "float", "redop": "sum", "inPlace": 0, "time": 12.5}
FLAT |= {"algBw": 0.08, "busBw": 0.08, "wrong": "0"}
RCCL_CSV = f"{','.join(FLAT)}\n" + 3 * f"{','.join(map(str, FLAT.values()))}\n"
RCCL_JSON = json.dumps([FLAT, FLAT], indent=1)
INSPECTED = "".join(
    json.dumps(
        {
            "header": {"id": "0x7f", "comm_name": "DP", "rank": rank, "n_ranks": 2, "nnodes": 1},
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "dump_timestamp_us": 1748030377748202,
                "hostname": "node0",
                "pid": 100 + rank,
            },
            "coll_perf": {
                "coll": "AllReduce",
                "coll_sn": call,
                "coll_msg_size_bytes": 65536,
                "coll_exec_time_us": 61 + call,
                "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": 1.07,
                "coll_busbw_gbs": 1.07,
            },
        }
    )
    + "\n"
    for call in range(3)
    for rank in range(2)
)
TOPOLOGY = '[hosts]\nnode0 = "rack1"\nnode1 = "rack2"\n'


def log_reader(name: str) -> Callable[[bytes, Path], None]:
    """Reads a log, and the run that is made of it again."""

    def read(data: bytes, path: Path) -> None:
        asked = importers.Asked(name=name, collective="all_reduce", ranks=None)
        asked = msgspec.structs.replace(asked, ranks=2 if "osu" in name else None)
        reading = importers.read_log(decode_log(data, name), asked)
        for line in assemble.assemble_runs(reading):
            msgspec.json.decode(msgspec.json.encode(line), type=Run | World | Record | End)

    return read


def suite_reader(data: bytes, path: Path) -> None:
    path = path.with_suffix(".toml")
    path.write_bytes(data)
    toml.load_suite(str(path))


def file_reader(read: Callable[[Path], Any]) -> Callable[[bytes, Path], None]:
    def given(data: bytes, path: Path) -> None:
        path.write_bytes(data)
        read(path)

    return given


def _text(text: str, read: Callable[[bytes, Path], None], *command: str) -> Kind:
    json_like = text[:1] in "{[d" or "[[" in text

    def run(rng: random.Random, path: Path) -> list[str]:
        if command[0] == "run":
            path.rename(path := path.with_suffix(".toml"))
        return [str(path) if word == "FILE" else word for word in command]

    return Kind(lambda rng: changed_text(rng, text, json_like), read, run if command else None)


def _lines(kind: str) -> Kind:
    return Kind(lambda rng: changed_run(rng, kind), read_run, run_command)


# traces


def changed_bytes(rng: random.Random, data: bytes) -> bytes:
    """Some bytes changed, left out, put in or said again."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        to = min(to, at + rng.choice((1, 4, 40)))
        how = rng.random()
        if how < 0.6:
            new = rng.choice((b"\0", b"\xff" * 9, b"\x80", b"\x7f", b"(", b"c", b"t.", b"\x95"))
            new = new if how < 0.2 else rng.randbytes(1)
            data = data[:at] + new + data[at + 1 if how > 0.2 else to :]
        elif how < 0.75:
            data = data[:at]
        else:
            data = data[:to] + data[at:to] * rng.choice((1, 2, 100)) + data[to:]
    return data


def read_trace(form: str, name: str) -> Callable[[bytes, Path], None]:
    """As commands do; whatever is read has its numbers within bounds."""

    def given(data: bytes, path: Path) -> None:
        path = path.with_name(name)
        path.write_bytes(data)
        for rank in reading.read_trace([path], form).ranks:
            msgspec.convert(msgspec.to_builtins(rank), RankTrace)

    return given


def _trace(form: str, name: str, content: str | bytes) -> Kind:
    read = read_trace(form, name)
    if isinstance(content, bytes):
        return Kind(lambda rng: changed_bytes(rng, content), read)
    return Kind(lambda rng: changed_text(rng, content, content[:1] in "{["), read)


def changed_pickle(rng: random.Random) -> bytes:
    """A pickle with bytes changed, or of values that are."""
    if rng.random() < 0.4:
        return changed_bytes(rng, traced.flight_pickle())
    while True:
        try:
            text = changed_text(rng, json.dumps(traced.FLIGHT), True)
            return pickle.dumps(json.loads(text), protocol=rng.choice((2, 4)))
        except (ValueError, RecursionError):
            continue


TRACES = {
    "flight pickle": Kind(changed_pickle, read_trace("flight", "nccl_trace_rank_0")),
    "flight JSON": _trace("flight", "nccl_trace_rank_0", json.dumps(traced.FLIGHT)),
    "execution": _trace("et", "rank1.json", json.dumps(traced.EXECUTION)),
    "kineto": _trace("kineto", "rank1.json", json.dumps(traced.KINETO)),
    "aicb": _trace("aicb", "x.csv", traced.AICB),
    "simai": _trace("simai", "x.txt", traced.SIMAI),
    "chakra": _trace("chakra", "x.0.et", traced.chakra()),
    "recording": _trace("collbench", "rank-00001.jsonl", traced.RECORDING),
}
KINDS = {
    **TRACES,
    **{name: _lines(name) for name in ("run", "world", "record", "end")},
    "suite": _text(SUITE, suite_reader, "run", "FILE", "--dry-run"),
    "expectations": _text(
        "[[curve]]".join(curves.FILE.read_text().split("[[curve]]")[:3]),
        file_reader(curves.load_curves),
    ),
    "topology": _text(TOPOLOGY, file_reader(topology.read_racks)),
    "nccl text": _text(NCCL, log_reader("nccl"), "import", "FILE"),
    "nccl JSON": _text(NCCL_JSON, log_reader("nccl"), "import", "FILE"),
    "osu": _text(OSU, log_reader("osu"), "import", "FILE", "--ranks", "2"),
    "imb": _text(IMB, log_reader("imb"), "import", "FILE"),
    "rccl CSV": _text(RCCL_CSV, log_reader("rccl"), "import", "FILE"),
    "inspector": _text(INSPECTED, log_reader("inspector"), "import", "FILE"),
    "rccl JSON": _text(RCCL_JSON, log_reader("rccl"), "import", "FILE"),
}
