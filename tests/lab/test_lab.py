"""Ranks on hosts of their own: one command line under every launcher, what they send, and hosts and
links that fail."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import launching
import psutil
import pytest
from marks import long
from network import SKEW, Host, Lab
from waiting import wait_for

from collbench.core import algorithms, simulate
from collbench.core.network import FatTree, Link
from collbench.records import run_file
from collbench.records.types import RunFile

pytestmark = pytest.mark.usefixtures("possible")
ARGS = [
    "all_reduce",
    "--sizes",
    "64K,1M",
    "-n",
    "6",
    "-w",
    "1",
    "--place",
    "out",
    "--cache",
    "hot",
    "--mode",
    "isolated",
    "--algo",
    "native,ring",
]
# what only worlds of several hosts, or only those of one clock, have to say
SEVERAL = {
    "hosts",
    "same_clock",
    "clock_error_ns",
    "clock_hidden_ns",
    "glob_ns",
    "skew_ns",
    "starts_ns",
    "note",
    "counters",
}
ENDLESS = [
    "sendrecv",
    "--place",
    "out",
    "--sizes",
    "4K",
    "-n",
    "100",
    "-w",
    "0",
    "-N",
    "1000",
    "-T",
    "5",
]


def said(host: Host, *command: str) -> str:
    return subprocess.run(
        host.enter(command), capture_output=True, text=True, check=True, timeout=20
    ).stdout.strip()


def test_hosts_have_their_own_of_everything() -> None:
    before = said_here("ip", "-o", "link")
    already = psutil.Process().children(recursive=True)
    with Lab(hosts=3) as lab:
        for place, host in enumerate(lab.hosts):
            assert said(host, "hostname") == host.name
            assert said(host, "ls", "/sys/class/net", "/dev/shm").split() == [
                "/dev/shm:",
                "/sys/class/net:",
                "eth0",
                "lo",
            ]
            assert (
                said(host, "ip", "route")
                == f"10.77.0.0/24 dev eth0 proto kernel scope link src {host.address}"
            )
            ahead = (
                float(said(host, sys.executable, "-c", "import time; print(time.monotonic())"))
                - time.monotonic()
            )
            assert place * SKEW - 60 < ahead < place * SKEW + 60
        others = [
            process.pid
            for process in psutil.Process().children(recursive=True)
            if process not in already
        ]
        assert set(others) >= {host.pid for host in lab.hosts}
    assert not any(map(psutil.pid_exists, others))
    assert said_here("ip", "-o", "link") == before


def said_here(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_nothing_outlives_whoever_made_it() -> None:
    code = (
        "import time; from network import Lab\nwith Lab() as lab: print(*(h.pid for h in"
        " lab.hosts)); time.sleep(60)"
    )
    maker = subprocess.Popen(
        [sys.executable, "-uc", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
    )
    pids = list(map(int, maker.stdout.readline().split()))
    assert len(pids) == 4
    maker.send_signal(signal.SIGKILL)
    maker.communicate()
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), 10)


@pytest.fixture
def alone(warm, hosts: int, per_host: int, tmp_path: Path) -> RunFile:
    """What the command line records without a launcher."""
    path = tmp_path / "alone.jsonl"
    done = warm(*ARGS, "-g", str(hosts * per_host), "--output", str(path))
    assert done.returncode == 0, done.stderr
    return run_file.read_file(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "hosts", "per_host"),
    [
        (launching.by_environment, 2, 1),
        *(long(launching.torchrun, 2, 2), long(launching.mpirun, 4, 1)),
    ],
)
def test_one_command_line_under_every_launcher(
    start, hosts: int, per_host: int, alone: RunFile, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    with Lab(hosts=hosts) as lab:
        meet = {"MASTER_ADDR": lab.hosts[0].address} if start is launching.mpirun else {}
        done = launching.run(
            lab,
            start,
            *ARGS,
            "--format",
            "csv",
            "--output",
            str(path),
            per_host=per_host,
            seconds=240,
            **meet,
        )
        least = lab.counted("h1")
    assert [one.returncode for one in done] == [0] * len(done), done[0].stderr
    assert [len(one.stdout.splitlines()) for one in done] == [5] + [0] * (len(done) - 1)
    run = run_file.read_file(path)
    (world,) = run.worlds
    assert [rank.host for rank in world.ranks] == [
        f"h{i}" for i in range(hosts) for _ in range(per_host)
    ]
    assert not world.same_clock
    assert [(host.host, host.differs) for host in world.hosts] == [
        (f"h{i}", {}) for i in range(hosts)
    ]
    assert world.oversubscribed == alone.worlds[0].oversubscribed
    assert [(r.case, r.status, r.wrong) for r in run.records] == [
        (r.case, "ok", 0) for r in alone.records
    ]
    late = {"invalid"}  # samples for whose start a rank came late, as on a busy machine
    assert keys(path) ^ keys(alone.path) <= SEVERAL | late
    # a rank takes in 2 (n - 1) / n of the buffer in each of six samples, a check and more
    n = hosts * per_host
    assert least > 7 * 2 * 2 * (n - 1) / n * ((64 << 10) + (1 << 20))


def keys(path: Path) -> set[str]:
    """Names of all fields that stand in worlds and records."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {name for line in lines if line["line"] in ("world", "record") for name in line}


@pytest.mark.long
def test_racks_carry_between_them_what_the_model_says() -> None:
    """Of an all_reduce on 2 x 2 hosts, ring sends 3/2 of the buffer over the uplink, hierarchical
    once the buffer."""
    found, names = [], ("ring", "hierarchical:group=2")
    for name in names:
        with Lab(hosts=4, racks=2, uplink=10**9) as lab:
            options = (
                "--sizes",
                "1M",
                "-n",
                "12",
                "-w",
                "0",
                "--place",
                "in",
                "--cache",
                "hot",
                "--no-save",
            )
            done = launching.run(
                lab, launching.by_environment, "all_reduce", "--algo", name, *options
            )
            assert done[0].returncode == 0, done[0].stderr
            found.append(lab.counted("rack1up"))
    tree = FatTree(Link(1e-6, 1.0, 0.0), 2, 2.0)
    model = []
    for name in names:
        schedule = algorithms.find_variant("all_reduce", name).schedule(4)
        model.append(
            sum(
                times * tree.wires(messages).max(initial=0)
                for messages, times in simulate.list_step_messages(schedule)
            )
        )
    assert model[0] / model[1] == 1.5
    assert found[0] / found[1] == pytest.approx(1.5, rel=0.05)


@pytest.mark.slow
def test_rank_0_is_reached_though_it_does_not_have_the_address_that_it_is_told() -> None:
    """As behind a Kubernetes service or NAT, which others' messages come by."""
    with Lab(hosts=2) as lab:
        known = {"WORLD_SIZE": "2", "MASTER_PORT": launching.PORT, "COLLBENCH_TOKEN": "of-the-test"}
        started = [
            launching.start_on(
                host,
                ["-m", "collbench", *ARGS, "--no-save"],
                {**known, "RANK": str(rank), "MASTER_ADDR": address},
            )
            for rank, (host, address) in enumerate(
                zip(lab.hosts, ("10.77.0.99", lab.hosts[0].address), strict=True)
            )
        ]
        done = [launching.ended(process, 120) for process in started]
    assert [one.returncode for one in done] == [0, 0], done
    assert "rank 0 on h0 listens at all its addresses, as none of them is that of" in done[0].stderr


@pytest.mark.long  # test_clock_hosts.py has ranks that only believe it
def test_shared_memory_does_not_reach_other_hosts() -> None:
    with Lab(hosts=2) as lab:
        done = launching.run(
            lab, launching.by_environment, *ARGS[:-1], "ring", "--backend", "shm", "--no-save"
        )
    assert [one.returncode for one in done] == [5, 5]
    assert "shm needs all ranks on one host" in done[0].stderr


@pytest.mark.slow
@pytest.mark.parametrize(("what", "hosts"), [("kill", 2), long("kill", 3), long("cut", 3)])
def test_a_host_that_is_lost_ends_the_run(what: str, hosts: int, tmp_path: Path) -> None:
    """Its power fails, or its link: the rest says so and ends, and what was measured is kept."""
    path = tmp_path / "run.jsonl"
    last = hosts - 1
    with Lab(hosts=hosts) as lab:
        started = launching.by_environment(
            lab, ["-m", "collbench", *ENDLESS, "--output", str(path)], 1, {}
        )
        wait_for(lambda: path.exists() and path.read_text().count('"line":"record"') > 3)
        getattr(lab, what)(lab.hosts[last])
        codes = [launching.ended(process, 60).returncode for process in started]
        assert "python" not in said(lab.hosts[0], "ps", "-A", "-o", "comm=")
    run = run_file.read_file(path)
    assert codes[:last] == [4] * last
    assert run.end is not None and run.end.exit == 4
    assert {r.status for r in run.records[:-1]} == {"ok"}
    assert run.records[-1].status == "failed"
    assert f"rank {last} on h{last}" in run.records[-1].note
    assert "sendrecv 4096 B" in run.records[-1].note
