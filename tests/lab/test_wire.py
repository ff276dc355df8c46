"""Bytes on a network's links against what tables say, for every collective, by libraries and by
reference algorithms; and what collbench itself counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import counting
import launching
import pytest
from marks import long
from network import Lab

from collbench.core import algorithms, simulate
from collbench.core.collectives import COLLECTIVES
from collbench.features.training.traffic import count_traffic
from collbench.records import derive, run_file
from collbench.suite.case import Case

pytestmark = pytest.mark.usefixtures("possible")

# Libraries' own choices that send more than the collective takes, and what they do instead: Gloo's
# reduce_scatter is an all_reduce, its reduce a reduce_scatter whose blocks are gathered; Open MPI's
# reduce_scatter of two ranks is a reduce whose result is scattered.
INSTEAD = {
    ("gloo", "reduce_scatter", 2): ("all_reduce",),
    ("gloo", "reduce_scatter", 4): ("all_reduce",),
    ("gloo", "reduce", 2): ("reduce_scatter", "gather"),
    ("gloo", "reduce", 4): ("reduce_scatter", "gather"),
    ("mpi", "reduce_scatter", 2): ("reduce", "scatter"),
}
SHARE = {  # of the size: what all ranks together send at least
    "all_reduce": lambda n: 2 * (n - 1),
    "all_gather": lambda n: n - 1,
    "reduce_scatter": lambda n: n - 1,
    "all_to_all": lambda n: n - 1,
    "all_to_allv": lambda n: n - 1,
    "broadcast": lambda n: n - 1,
    "reduce": lambda n: n - 1,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "sendrecv": lambda n: n,
    "scan": lambda n: n - 1,
}


def table(case: Case) -> float:
    """Bytes that all ranks send in a call."""
    if case.algorithm != "native":
        schedule = algorithms.find_variant(case.collective, case.algorithm).schedule(
            case.n, case.root
        )
        return float(simulate.count_traffic(schedule)) * case.size
    parts = INSTEAD.get((case.backend, case.collective, case.n), (case.collective,))
    return sum(SHARE[part](case.n) for part in parts) * case.size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "n"), [("gloo", 4), ("mpi", 2), long("gloo", 2), long("mpi", 4)]
)
def test_links_carry_what_the_table_says(warm, backend: str, n: int, tmp_path: Path) -> None:
    """Within 2 %, read from outside."""
    with counting.Network(warm) as network:
        found = {
            f"{case.collective} {case.label}": by / table(case)
            for case, by in counting.outside(network, backend, n, tmp_path)
        }
    assert len(found) == 2 * len(COLLECTIVES) - 2 - (backend == "gloo")  # all but barrier
    assert found == pytest.approx(dict.fromkeys(found, 1.0), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_a_run_counts_what_its_links_carried(warm, backend: str, tmp_path: Path) -> None:
    """Within 10 %, as what TCP sends again is on the links, too."""
    path = tmp_path / "run.jsonl"
    with counting.Network(warm) as network:
        suite = counting.suite(tmp_path / "suite.toml", backend, 2)
        command = [sys.executable, "-m", "collbench", "run", str(suite), "--output", str(path)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = network.inside(command, **pipes)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err + out
    file = run_file.read_file(path)
    wire, expected, flagged = {}, {}, set()
    for record in file.records:
        case, row = record.case, derive.derive_row(record, file.worlds[0])
        if row:  # torch.distributed has no scan
            name = f"{case.collective} {case.label}"
            native = case.algorithm == "native"
            least = SHARE[case.collective](2) * case.size if native else table(case)
            wire[name], expected[name] = row.wire, table(case) / least
            flagged |= {name} if "wire" in row.flags else set()
    assert len(expected) == 2 * len(COLLECTIVES) - 2 - (backend == "gloo")
    assert wire == pytest.approx(expected, rel=0.1)
    instead = {f"{name} {owner}" for owner, name, n in INSTEAD if (owner, n) == (backend, 2)}
    assert flagged == instead


STEPS = {
    "ddp": ["ddp:gpt2-124m", "--scale", "1/64"],
    "fsdp2": ["fsdp2:llama3-8b", "--layers", "2", "--scale", "1/512"],
    "zero3": ["zero3:llama3-8b", "--layers", "2", "--scale", "1/512"],
    "powersgd": ["powersgd:gpt2-124m"],
    "int8": ["int8:gpt2-124m", "--scale", "1/64"],
    "tensor": ["megatron:llama3-8b", "--layout", "tp=2", "--layers", "2", "--scale", "1/512"],
    "pipeline": [
        *("megatron:llama3-8b", "--layout", "tp=1,pp=2,dp=1,micro_batches=4"),
        *("--layers", "2", "--scale", "1/64"),
    ],
    "experts": [
        *("moe:deepseek-v3", "--layout", "ep=2,dp=2,tp=1,pp=1,micro_batches=1", "--layers", "4"),
        *("--scale", "1/1024"),
    ],
    "tokens": ["deepep:ll", "--layout", "dp=2", "--scale", "1/16"],
    "weights": ["m2n:dp.None->tp.None", "--layout", "dp=1", "--scale", "1/64"],
    "layouts": ["redistribute:tp.None->None.tp", "--layout", "tp=2"],
    "zero1": ["zero1:llama3-8b", "--layers", "1", "--scale", "1/512"],
    "zero2": ["zero2:llama3-8b", "--layers", "1", "--scale", "1/512"],
    "averaging": ["averaging:gpt2-124m", "--scale", "1/64"],
    "hsdp": [
        *("fsdp2:llama3-8b", "-g", "4", "--options", "replicas=2", "--layers", "1"),
        *("--scale", "1/512"),
    ],
    "encoded": ["encoded:gpt2-124m", "--scale", "1/64"],
    "dalle": [
        *("dalle:12b", "-g", "4", "--layout", "dp=4", "--options", "shards=2", "--layers", "1"),
        *("--scale", "1/512"),
    ],
    "context": ["megatron:llama3-8b", "--layout", "tp=1,cp=2", "--layers", "2", "--scale", "1/512"],
}

QUICK = ("ddp", "fsdp2", "pipeline", "tokens")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name if name in QUICK else long(name) for name in STEPS])
def test_links_carry_what_the_operations_of_a_step_send(warm, name: str, tmp_path: Path) -> None:
    """Within 1 %, but for what the library is known to run instead of one of them."""
    path = tmp_path / "run.jsonl"
    more = ["--backend", "gloo", "--compute", "none", "-n", "2", "--output", str(path)]
    more += [] if "-g" in STEPS[name] else ["-g", "2"]
    with counting.Network(warm) as network:
        command = [sys.executable, "-m", "collbench", "workload", *STEPS[name], *more]
        process = network.inside(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err + out
    file = run_file.read_file(path)
    (record,) = [each for each in file.records if each.sent]
    (step,) = file.run.suite.subjects
    found = count_traffic(step, record.case, record.sent, file.worlds[0].library)
    assert found is not None
    assert found.counted_bytes == pytest.approx(found.known_bytes, rel=0.01)


@pytest.mark.slow
def test_hosts_are_added_up_and_counted_once_each(tmp_path: Path) -> None:
    """Two ranks on each of two hosts: half of what they send stays on loopback."""
    path = tmp_path / "run.jsonl"
    fast = ["--sizes", "1M", "-n", "6", "-w", "1", "--place", "out", "--cache", "hot"]
    words = ["reduce_scatter", *fast, "--algo", "native,ring", "--output", str(path)]
    with Lab(hosts=2) as lab:
        done = launching.run(lab, launching.by_environment, *words, per_host=2)
    assert [one.returncode for one in done] == [0] * 4, done[0].stderr
    file = run_file.read_file(path)
    rows = {each.case.label: derive.derive_row(each, file.worlds[0]) for each in file.records}
    wire = {label: row.wire for label, row in rows.items() if row}
    assert wire == pytest.approx({"gloo": 2.0, "ring@gloo": 1.0}, rel=0.05)
