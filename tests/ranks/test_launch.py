"""The same command line alone, under torchrun and under mpirun; worlds, environments and
pinning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from marks import long
from needs import need_mpi
from paths import before
from relay import Relay
from warm import Warm

from collbench.records import run_file, store
from collbench.run.launch.mpirun import find_mpirun

CPUS = len(os.sched_getaffinity(0))
PLUGINS = Path(__file__).parent / "plugins"
PATHS = before(PLUGINS)
Launched = Callable[..., subprocess.CompletedProcess[str]]
ARGS = [
    "all_reduce",
    "-b",
    "1K",
    "-e",
    "1M",
    "-f",
    "32",
    "-n",
    "5",
    "-w",
    "2",
    "--cache",
    "hot",
    "--format",
    "nccl",
]


def rows(text: str) -> list[list[str]]:
    return [
        line.split()
        for line in text.splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]


@pytest.fixture
def mpirun(relay: Relay) -> Launched:
    """``mpirun(*words)``: ``collbench WORDS`` on two ranks, under mpirun."""
    need_mpi()

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        options = ["--allow-run-as-root", "--oversubscribe", "-n", "2"]
        command = [find_mpirun(), *options, *relay.command, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_a_launcher_gives_one_table(
    launcher: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path = tmp_path / "joined.jsonl"
    done = request.getfixturevalue(launcher)(*ARGS, "--output", str(path))
    assert done.returncode == 0, done.stderr
    table = rows(done.stdout)
    assert [int(row[0]) for row in table] == [1024, 32768, 1 << 20]
    assert all(len(row) == 13 for row in table)
    run = run_file.read_file(path)
    assert [r.status for r in run.records] == ["ok"] * 6
    assert run.worlds[0].launcher != "local"
    assert len({r.pid for r in run.worlds[0].ranks}) == 2
    assert run.end is not None and run.end.exit == 0
    assert not run.run.load and not run.end.load  # the launcher's other ranks are at work then
    assert {load.cpus for r in run.records for load in r.load.values()} == {CPUS}


@pytest.mark.long
def test_torchrun_gives_one_table_of_ranks_that_load_all_themselves(tmp_path: Path) -> None:
    path = tmp_path / "joined.jsonl"
    agent = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command = [*agent, *meeting, "-m", "collbench", *ARGS, "--output", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(rows(done.stdout)) == 3
    assert run_file.read_file(path).worlds[0].launcher == "torchrun"


def test_others_load_is_recorded_before_during_and_after(cli) -> None:
    cli("all_reduce", "--sizes", "64", "-g", "2", "-n", "5", "-w", "0", "--place", "in")
    run = run_file.read_file(store.find_run("@last"))
    assert run.end is not None and run.records
    for load in (run.run.load, run.end.load, *(record.load for record in run.records)):
        assert [one.cpus for one in load.values()] == [CPUS]


def test_a_launcher_decides_the_number_of_ranks(mpirun) -> None:
    done = mpirun(*ARGS, "-g", "3")
    assert done.returncode == 2
    assert "started 2 ranks" in done.stderr


@pytest.mark.slow
def test_each_environment_setting_has_its_own_world(cli) -> None:
    sweep = ("all_reduce", "--sizes", "64", "--place", "in", "-n", "3", "-w", "0", "--cache", "hot")
    done = cli(*sweep, "-g", "1,2", "--env", "COLLBENCH_X=a,b")
    assert done.returncode == 0, done.stderr
    run = run_file.read_file(store.find_run("@last"))
    assert [(w.n, dict(w.env)["COLLBENCH_X"]) for w in run.worlds] == [
        (1, "a"),
        (1, "b"),
        (2, "a"),
        (2, "b"),
    ]
    assert run.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_ranks_get_cores_of_their_own_where_there_are_enough(cli) -> None:
    cores = len(os.sched_getaffinity(0))
    ring = ("all_reduce", "--sizes", "1K", "--algo", "ring", "-n", "3", "-w", "0")
    cli(*ring, "--backend", "shm", "-g", f"{cores},{4 * cores}")
    few, many = run_file.read_file(store.find_run("@last")).worlds
    assert sorted(cpu for rank in few.ranks for cpu in rank.cpus) == sorted(os.sched_getaffinity(0))
    assert many.oversubscribed and many.cramped and not few.cramped
    cli(*ring, "--backend", "gloo", "-g", f"{cores}")  # whose ranks have a thread more each
    (world,) = run_file.read_file(store.find_run("@last")).worlds
    assert world.cramped and not world.oversubscribed
    assert {len(rank.cpus) for rank in world.ranks} == {cores}
    cli("barrier", "-g", "1", "-n", "3", "-w", "0", "--no-pin")
    assert len(run_file.read_file(store.find_run("@last")).worlds[0].ranks[0].cpus) == cores


THREADS = """
import os, sys
from pathlib import Path
import torch.distributed as dist
from collbench.run.rank.worker import Place, connect_control
rank = int(sys.argv[1])
connect_control(Place(rank, 2, rank, 2, "local"), dist.FileStore(sys.argv[2], 2))
dist.barrier(dist.new_group(backend="gloo"))
tasks = Path("/proc/self/task").iterdir()
print(sorted(os.sched_getscheduler(int(t.name)) for t in tasks if "gloo_tcp" in (t / "comm").read_text()))
dist.barrier()
"""  # noqa: E501


def test_only_the_thread_of_the_control_group_stands_back(warm: Warm, tmp_path: Path) -> None:
    """What is measured has its group's thread as the library made it."""
    (script := tmp_path / "threads.py").write_text(THREADS)
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    meeting = str(tmp_path / "store")
    ranks = [warm.start(str(rank), meeting, env=env, script=str(script)) for rank in range(2)]
    said = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert said == [f"{sorted([os.SCHED_OTHER, os.SCHED_BATCH])}\n"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("what", [long("kill"), "raise", "stop"])
def test_a_broken_rank_under_a_launcher_leaves_what_is_finished(
    torchrun: Launched, what: str, tmp_path: Path
) -> None:
    """Rank 1 breaks in the second case: rank 0 records it as failed, unless the launcher is
    quicker, and ends the run; nobody waits for ever."""
    path = tmp_path / "joined.jsonl"
    patience = "6" if what == "stop" else "30"
    options = ("--backend", "saboteur", "--order", "size", "--place", "out", "-T", patience)
    env = {"PYTHONPATH": PATHS, "SABOTAGE": f"{what}:1:24"}
    done = torchrun(*ARGS, *options, "--output", str(path), **env)
    assert done.returncode != 0
    assert what != "stop" or re.search(r"rank 1 on \S+ is stopped \(SIGSTOP\)", done.stderr)
    run = run_file.read_file(path)
    assert run.end is not None and run.end.exit in (4, 130)
    statuses = [r.status for r in run.records]
    if what == "kill" and run.end.exit == 130 and statuses == ["ok"]:
        return  # torchrun, which names the rank, has ended rank 0 before this heard of the death
    assert statuses == ["ok", "failed"]
    assert "all_reduce 32768 B" in run.records[1].note


@pytest.mark.slow
def test_ranks_that_never_meet_give_up(warm: Warm) -> None:
    """One of two ranks is never started."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533", "RANK": "0", "WORLD_SIZE": "2"}
    done = warm(*ARGS, "-T", "2", MEETING_SECONDS="2", PYTHONPATH=PATHS, **place)
    assert done.returncode == 4
    assert (
        "not all ranks came together within 2 s: rank 1 never came; rank 0 came from" in done.stderr
    )


TOUCHED = """
import sys
import torch
for name in list(sys.modules):  # what is warm has these, and torch, loaded
    if name.partition(".")[0] in ("collbench", "triton", "pynvml", "mpi4py"):
        del sys.modules[name]
touched = []
for name in ("is_available", "device_count", "init", "_lazy_init", "set_device"):
    setattr(torch.cuda, name, lambda *_, name=name: touched.append(name))
import collbench.run.launch.fresh, collbench.run.rank.worker
print([*touched, *sorted({"triton", "pynvml", "mpi4py"} & {*sys.modules})])
"""


def test_what_ranks_are_forked_from_has_not_touched_a_gpu(warm: Warm, tmp_path: Path) -> None:
    """A process that has used CUDA cannot be forked; and each rank has yet to choose its GPU."""
    (script := tmp_path / "touched.py").write_text(TOUCHED)
    done = warm(script=str(script))
    assert (done.stdout, done.stderr) == ("[]\n", "")
