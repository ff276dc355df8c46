"""Ranks on a Ray cluster of two nodes, both of this machine: table, records, and what is left of
the cluster."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from experiments import small
from marks import long
from needs import need_ray
from warm import Warm

from collbench.core.errors import Exit
from collbench.records import run_file, store
from collbench.run.launch.ray import Cluster, Where
from collbench.suite.sweep import Axes, Suite

PLUGINS = Path(__file__).parent / "plugins"
ONCE = (
    "all_reduce",
    "-n",
    "5",
    "-w",
    "1",
    "--place",
    "out",
    "--order",
    "size",
    "--sync",
    "barrier",
    "-T",
    "60",
)
SWEEP = (*ONCE, "--sizes", "4K,8K,16K", "-g", "2")
ROW = re.compile(r"^ +(\d+) +(\d+) +(\w+) +(\w+) +(-?\d+) ", re.MULTILINE)
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of two nodes with two CPUs each, which have the planted backends."""
    need_ray()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(PLUGINS), prepend=os.pathsep)
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # sockets need a short path
        patched.setenv("RAY_TMPDIR", folder := tempfile.mkdtemp(prefix="ray-"))
        from ray.cluster_utils import Cluster as LocalCluster

        node = {"num_cpus": 2, "object_store_memory": 100 << 20}
        made = LocalCluster(
            initialize_head=True, head_node_args={**node, "include_dashboard": False}
        )
        made.add_node(**node)
        made.wait_for_nodes()
        yield made.address
        made.shutdown()
        shutil.rmtree(folder)


def on_ray(address: str, *args: str) -> list[str]:
    return [*args, "--launcher", "ray", "--address", address]


@contextmanager
def connected(address: str) -> Iterator[None]:
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="error")
    try:
        yield
    finally:
        ray.shutdown()


def find_left() -> dict[str, Any]:
    """What is in use on the cluster to which this process is connected: resources, placement
    groups, processes of ranks."""
    import ray

    every, free = ray.cluster_resources(), ray.available_resources()
    table = ray.util.placement_group_table().values()
    groups = [group for group in table if group["state"] != "REMOVED"]
    taken = {
        name: every[name] - free.get(name, 0)
        for name in ("CPU",)
        if every[name] != free.get(name, 0)
    }
    ranks = [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if "collbench.run.launch.keeper" in (process.info["cmdline"] or [])
    ]
    return {
        name: what
        for name, what in {"taken": taken, "groups": groups, "ranks": ranks}.items()
        if what
    }


def assert_clean(address: str) -> None:
    until = time.monotonic() + 20  # Ray takes a moment to notice that a driver was killed
    with connected(address):
        while (found := find_left()) and time.monotonic() < until:
            time.sleep(0.2)
    assert found == {}


@pytest.mark.slow
def test_the_same_table_and_records_as_alone(cluster: str, cli: Cli, tmp_path: Path) -> None:
    """On two nodes, whose ranks meet at an address, as on several machines."""
    sweep = (
        *ONCE,
        "-b",
        "8",
        "-e",
        "64K",
        "-f",
        "8",
        "-g",
        "2",
        "--algo",
        "native,ring",
        "--mode",
        "host",  # by default that of the nodes' CPUs, of which Ray was told other numbers
        "--format",
        "nccl",
    )
    runs, tables = [], []
    for name, command in (
        ("alone", list(sweep)),
        ("ray", on_ray(cluster, *sweep, "--placement", "spread")),
    ):
        done = cli(*command, "--output", str(tmp_path / f"{name}.jsonl"))
        assert done.returncode == 0
        known = ("collbench: other processes use", "saved: ")  # as tests side by side do
        assert all(line.startswith(known) for line in done.stderr.splitlines()), done.stderr
        tables.append(ROW.findall(done.stdout))
        runs.append(run_file.read_file(tmp_path / f"{name}.jsonl"))
    assert tables[0] == tables[1] and len(tables[0]) == 10
    alone, on = runs
    # what is measured again, and how much is checked, depends on the load
    assert {record.case for record in on.records} == {record.case for record in alone.records}
    for record in on.records:
        assert (record.status, record.wrong, len(record.times_ns)) == ("ok", 0, 5)
        assert record.checked
    (world,) = on.worlds
    assert (world.launcher, world.n, world.backend) == ("ray", 2, "gloo")
    assert len({info.pid for info in world.ranks}) == 2 and all(info.host for info in world.ranks)
    assert set(on.run.environment) == set(alone.run.environment)
    assert_clean(cluster)


@pytest.mark.long
def test_backends_worlds_and_a_setting_for_each(cluster: str, cli: Cli, tmp_path: Path) -> None:
    """On one node, whose ranks share memory."""
    path = tmp_path / "run.jsonl"
    done = cli(
        *on_ray(
            cluster,
            *ONCE,
            "--sizes",
            "4K",
            "-g",
            "1,2",
            "--backend",
            "shm,mpi",
            "--algo",
            "ring",
            "--env",
            "GLOO_LEVEL=1,2",
            "--output",
            str(path),
        )
    )
    assert done.returncode == 0, done.stderr
    run = run_file.read_file(path)
    ok = {
        (r.case.label, r.case.n, dict(r.case.env)["GLOO_LEVEL"])
        for r in run.records
        if r.status == "ok"
    }
    assert ok == {("ring@shm", n, level) for n in (1, 2) for level in "12"}
    notes = {record.note for record in run.records if record.case.backend == "mpi"}
    assert notes == {"mpi needs ranks that mpirun has started, not Ray"}
    assert (
        len(run.worlds) == 4
        and len({info.pid for world in run.worlds for info in world.ranks}) == 6
    )


@pytest.mark.long
def test_an_experiments_sides_take_turns(cluster: str, cli: Cli, tmp_path: Path) -> None:
    sides = ("ab", "--suite", small(tmp_path), "--head", "X=1", "--rounds", "6,6", "--budget", "0")
    done = cli(*sides, "--launcher", "ray", RAY_ADDRESS=cluster, timeout=300)
    assert done.returncode in (0, 3), done.stderr
    for file in map(run_file.read_file, store.list_saved()):
        told = {(world.launcher, world.together) for world in file.worlds}
        assert told == {("ray", "turns")}
        assert [record.status for record in file.records] == ["ok"] * 6
    assert_clean(cluster)


@pytest.mark.slow
def test_placement(cluster: str) -> None:
    import ray

    suite = Suite(name="x", axes=Axes(collectives=("all_reduce",), sizes=(8,), ranks=(2,)))
    for placement, nodes in (("pack", 1), ("spread", 2)):
        assert_clean(cluster)  # Ray spreads as far as nodes are free, to its knowledge
        placed = Cluster(Where(cluster, placement), suite, 60)
        (group,) = [g for g in ray.util.placement_group_table().values() if g["state"] == "CREATED"]
        placed.close()
        assert len(set(group["bundles_to_node_id"].values())) == nodes


@pytest.mark.long
def test_a_search_goes_on_with_what_the_command_names(
    cluster: str, cli: Cli, tmp_path: Path
) -> None:
    """The planted rank of three, of whose search the command is no part."""
    path, searching = (
        tmp_path / "run.jsonl",
        ("locate", "--launcher", "ray", "-g", "3", "--size", "256K", "-n", "6"),
    )
    done = cli(
        *searching,
        "--inject",
        "slow-rank:1:3000%",
        "--format",
        "json",
        "--output",
        str(path),
        RAY_ADDRESS=cluster,
    )
    assert done.returncode == Exit.BAD, done.stderr
    assert (
        "if Ray places each rank on a host of its own: 3 hosts: all 3 pairs in 3 rounds"
        in done.stderr
    )
    whole = json.loads(done.stdout)
    assert [1] in [culprit["members"] for culprit in whole["located"]["culprits"]], whole
    run = run_file.read_file(path)
    assert whole["located"]["tests"] == len(run.records) - 1 >= 5  # the first is among all
    assert {world.launcher for world in run.worlds} == {"ray"}
    assert_clean(cluster)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("kill", "was killed by SIGKILL while at work on"),
        long("stop", "is stopped (SIGSTOP) while at work on"),
    ],
)
def test_a_broken_rank_is_named_and_what_was_finished_is_kept(
    cluster: str, cli: Cli, tmp_path: Path, what: str, words: str
) -> None:
    path = tmp_path / "run.jsonl"
    done = cli(
        *on_ray(
            cluster,
            *SWEEP,
            "--backend",
            "saboteur",
            "--env",
            f"SABOTAGE={what}:1:28",
            "-T",
            "3",
            "--output",
            str(path),
        )
    )
    assert done.returncode == Exit.TIMEOUT, done.stderr
    assert words in done.stderr and "rank 1 on" in done.stderr
    assert "all_reduce 8192 B float out of place on saboteur (case 2 of 3)" in done.stderr
    run = run_file.read_file(path)
    assert [record.status for record in run.records] == ["ok", "failed"]
    assert run.end and run.end.note in done.stderr
    assert_clean(cluster)


@pytest.mark.long
def test_a_world_that_has_finished_ends_though_a_rank_does_not(
    cli: Cli, cluster: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    stops = ("--backend", "saboteur", "--env", "SABOTAGE=never-leave:1:0", "-T", "5")
    done = cli(*on_ray(cluster, *SWEEP, *stops, "--output", str(path)))
    assert done.returncode == Exit.OK, done.stderr
    assert re.search(r"rank 1 on .* did not (end|leave) within", done.stderr)
    assert_clean(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("number", [long(signal.SIGINT), signal.SIGKILL])
def test_whatever_ends_the_driver_the_cluster_is_left_clean(
    cluster: str, warm: Warm, tmp_path: Path, number: int
) -> None:
    path = tmp_path / "run.jsonl"
    command = warm.start(*on_ray(cluster, *SWEEP, "-N", "500", "--output", str(path)))
    until = time.monotonic() + 60
    while (
        not (path.exists() and '"line":"record"' in path.read_text()) and time.monotonic() < until
    ):
        time.sleep(0.05)
    with connected(cluster):
        assert find_left().keys() == {"taken", "groups", "ranks"}
    command.send_signal(number)
    command.communicate(timeout=60)
    assert command.returncode == (-number if number == signal.SIGKILL else Exit.INTERRUPTED)
    run = run_file.read_file(path)
    assert run.records and (run.end is None) == (number == signal.SIGKILL)
    assert_clean(cluster)


@pytest.mark.slow
def test_what_the_cluster_has_not_is_said(cluster: str, cli: Cli) -> None:
    one = (*ONCE[:-2], "--sizes", "8", "-T", "1")
    done = cli(*on_ray(cluster, *one, "-g", "64"))
    assert done.returncode == Exit.CANNOT_RUN
    assert (
        "no places for 64 ranks within 1 s: a rank takes 1 CPU, and free are 4 of 4 CPU"
        in done.stderr
    )
    done = cli(*on_ray(cluster, *one, "--backend", "nccl", "-g", "2"))
    assert done.returncode == Exit.CANNOT_RUN
    assert "a rank takes 1 CPU and 1 GPU, and free are 4 of 4 CPU, 0 of 0 GPU" in done.stderr
    assert_clean(cluster)


@pytest.mark.slow
def test_without_g_there_is_a_rank_for_each_cpu_of_the_cluster(cluster: str, cli: Cli) -> None:
    done = cli(*on_ray(cluster, *ONCE, "-b", "8", "-e", "8", "--dry-run", "--format", "nccl"))
    assert done.returncode == 0, done.stderr
    assert re.search(r"\b4\b", done.stdout), done.stdout


def test_no_cluster(cli: Cli) -> None:
    need_ray()
    done = cli(*on_ray("127.0.0.1:1", *ONCE, "-g", "2"))
    assert (done.returncode, "no Ray cluster at 127.0.0.1:1: " in done.stderr) == (
        Exit.CANNOT_RUN,
        True,
    ), done.stderr
    assert "hint: ray start --head" in done.stderr
