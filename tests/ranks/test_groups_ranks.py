"""Groups of real ranks, measured at once: data, records, faults, and runs that go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from marks import long, slow
from needs import needs_mpi
from paths import before
from warm import Warm

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import Exit
from collbench.records import derive, run_file
from collbench.records.types import Record, World
from collbench.run import plan
from collbench.run.jobs import Job
from collbench.run.launch.local import Launcher
from collbench.run.launch.world import Listener
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, expand_axes

PLUGINS = Path(__file__).parent / "plugins"
Lines = tuple[World, list[Record]]
Divided = Callable[..., Lines]


@pytest.fixture
def divided(launcher: Launcher) -> Divided:
    """``divided(cases, **policy)``: the world and the records of cases, of which the first groups'
    stand for all."""

    def run(cases: Sequence[Case], **policy: object) -> Lines:
        settings = Policy(**{"iters": 2, "warmup": 0, "timeout": 60.0, "sync": "barrier", **policy})  # type: ignore[arg-type]
        (planned,) = plan.plan_worlds(
            [Job(case, 2, "small") for case in cases if case.group == 0], settings
        )
        lines: list[World | Record] = []
        launcher.run([planned], Listener(lines.append))
        (world,) = (line for line in lines if isinstance(line, World))
        return world, [line for line in lines if isinstance(line, Record)]

    return run


def swept(**axes: object) -> list[Case]:
    given = {
        "collectives": ("all_reduce",),
        "sizes": (4096,),
        "ranks": (4,),
        "groups": "mod:2",
        "in_place": (False,),
    }
    return expand_axes(Axes(**{**given, **axes}))[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("backend", "rule", "algorithms"),
    [
        slow("gloo", "mod:2", ("native",)),
        slow("gloo", "div:2", ("ring", "binomial", "pairwise")),
        ("shm", "mod:2", ("ring", "binomial")),
    ],
)
def test_every_group_has_its_own_data(
    divided: Divided, backend: str, rule: str, algorithms: tuple[str, ...]
) -> None:
    """Roots are all ranks of a group, and a rank's number in it is seldom that in the world."""
    asked = {"backends": (backend,), "algorithms": algorithms, "groups": rule, "roots": (-1,)}
    places = (False, True) if algorithms == ("native",) else (False,)
    cases = (
        swept(collectives=tuple(COLLECTIVES), in_place=places, **asked)
        if backend != "shm"
        else swept(collectives=("all_reduce", "broadcast"), **asked)
    )
    world, found = divided(cases)
    assert world.n == 4 and sorted(info.rank for info in world.ranks) == [0, 1, 2, 3]
    assert sorted(record.case.key for record in found) == sorted(case.key for case in cases)
    ran = [record for record in found if record.status != "skipped"]
    assert {record.status for record in ran} == {"ok"}
    assert all(record.wrong == 0 and record.checked for record in ran if record.case.size)
    assert {(record.case.group, record.case.root) for record in ran} >= {
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    }


@pytest.mark.slow
@needs_mpi
def test_groups_of_mpi(divided: Divided) -> None:
    cases = swept(
        collectives=("all_reduce", "gather"), backends=("mpi",), algorithms=("native",), roots=(1,)
    )
    _, found = divided([*cases, *swept(backends=("mpi",), algorithms=("ring",))])
    assert [record.status for record in found] == ["ok"] * 6


def test_groups_are_measured_at_once(divided: Divided) -> None:
    cases = swept(sizes=(64, 4096))
    world, found = divided(cases, iters=7)
    assert [(record.case.nbytes, record.case.group) for record in found[:2]] in (
        [(64, 1), (64, 0)],
        [(4096, 1), (4096, 0)],
    )
    for second, first in zip(found[::2], found[1::2], strict=True):
        assert (second.case.group, first.case.group) == (1, 0)
        assert (second.started, second.seconds) == (first.started, first.seconds)
        assert len(second.times_ns) == len(first.times_ns) == 7
        assert second.times_ns != first.times_ns
    for record in found:
        row = derive.derive_row(record, world)
        assert (
            row is not None and len(record.per_rank) == len(record.starts_ns) == record.case.n == 2
        )
        assert [max(times) for times in zip(*record.per_rank, strict=True)] == record.times_ns
        assert all(
            min(starts) == 0 for starts in zip(*record.starts_ns, strict=True)
        )  # within the group


@pytest.mark.parametrize("policy", [{"blocking": 1, "cpu_time": True}, {"agg_iters": 2}])
def test_groups_however_calls_are_made(divided: Divided, policy: dict[str, object]) -> None:
    _, found = divided(swept(backends=("gloo",)), **policy)
    assert [(record.status, record.case.group) for record in found] == [("ok", 1), ("ok", 0)]
    assert all(bool(record.submit_ns) is bool(policy.get("cpu_time")) for record in found)


@pytest.mark.parametrize("call", [1, 10])  # before timing, and the last one timed
def test_wrong_data_is_told_of_its_group_and_rank(divided: Divided, fault: Path, call: int) -> None:
    fault.write_text(f"corrupt:3:{call}")
    _, (second, first) = divided(swept(backends=("saboteur",)), warmup=5, iters=4)
    assert (second.case.group, second.status, second.times_ns) == (1, "wrong", [])
    assert second.wrong == 1 and second.first_wrong is not None and second.first_wrong.rank == 3
    assert "first on rank 3 of group 1 at" in second.note
    assert (first.case.group, first.status, first.times_ns) == (0, "skipped", [])
    assert first.note.startswith("group 1 had wrong data")


SWEEP = (
    "all_reduce",
    "--sizes",
    "64,4K",
    "-g",
    "4",
    "-n",
    "3",
    "-w",
    "0",
    "--place",
    "out",
    "--backend",
    "gloo",
    "--mode",
    "isolated",
)


@pytest.fixture(scope="module")
def whole_run(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """What a run of two groups printed, and its file."""
    path = tmp_path_factory.mktemp("whole") / "run.jsonl"
    done = warm(*SWEEP, "--split", "div:2", "--output", str(path), "--format", "nccl")
    assert done.returncode == 0, done.stderr
    return done.stdout, path.read_bytes()


def test_each_group_has_a_table(whole_run: tuple[str, bytes]) -> None:
    text, _ = whole_run
    assert text.count("# Collective test starting: all_reduce_perf") == 2
    for group in (0, 1):
        assert f"ranks 2, mode isolated, group {group} of 2 by div:2" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept", [2, 4, 5]
)  # the world alone; a case of both groups; of one group only
def test_a_run_of_groups_goes_on(
    cli, whole_run: tuple[str, bytes], tmp_path: Path, kept: int
) -> None:
    path, lines = tmp_path / "run.jsonl", whole_run[1].splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:kept]))
    went_on = cli("run", "--resume", str(path), "--format", "csv")
    assert went_on.returncode == 0, went_on.stderr
    assert path.read_bytes().startswith(b"".join(lines[:kept]))
    found = run_file.read_file(path).records
    assert sorted((r.case.nbytes, r.case.group, r.status) for r in found) == [
        (64, 0, "ok"),
        (64, 1, "ok"),
        (4096, 0, "ok"),
        (4096, 1, "ok"),
    ]
    assert len(went_on.stdout.splitlines()) == 1 + 4


@pytest.mark.slow
def test_nccl_tests_variable_is_understood_and_said(cli) -> None:
    done = cli(*SWEEP, "--no-save", "--format", "json", NCCL_TESTS_SPLIT="MOD 2")
    assert done.returncode == 0, done.stderr
    assert "NCCL_TESTS_SPLIT=MOD 2 is set: --split mod:2" in done.stderr
    found = json.loads(done.stdout)["records"]
    assert sorted((r["size"], r["groups"], r["group"]) for r in found) == [
        (64, "mod:2", 0),
        (64, "mod:2", 1),
        (4096, "mod:2", 0),
        (4096, "mod:2", 1),
    ]


def test_dry_run_shows_all_groups_and_their_time_once(cli) -> None:
    done = cli(*SWEEP, "--split", "rail", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "1 rank, 4 groups by rail" in done.stdout and "8 cases, about" in done.stdout
    assert [
        line.split()[-1]
        for line in done.stdout.splitlines()
        if line.startswith(("group 1,", "group 2,", "group 3,"))
    ] == ["-"] * 6


@pytest.mark.parametrize(
    ("backend", "env"),
    [("symm", ["--env", "TRITON_INTERPRET=1"]), ("model", [])],  # which needs no GPU
    ids=["symm", "model"],
)
def test_what_measures_no_groups_says_so(cli, backend: str, env: list[str]) -> None:
    done = cli(
        "all_reduce",
        "-g",
        "4",
        "--backend",
        backend,
        "--algo",
        "ring",
        "--split",
        "mod:2",
        "--no-save",
        *env,
    )
    assert done.returncode == Exit.CANNOT_RUN
    assert f"{backend} measures no groups" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "fits"),
    [long("node", False), ("rail:2", False), ("node:1", True), long("rail:1", True)],
)
def test_groups_by_host_go_by_the_real_hosts(
    warm: Warm, tmp_path: Path, rule: str, fits: bool
) -> None:
    """torchrun says that two ranks share a host; they believe to be on a host each."""
    path = tmp_path / "run.jsonl"
    command = [
        "all_reduce",
        "-b",
        "4K",
        "-e",
        "4K",
        "-n",
        "3",
        "--place",
        "out",
        "--output",
        str(path),
        "--split",
        rule,
    ]
    seen = {"CLOCKS": "one", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": before(PLUGINS)}
    done = warm.join(2, *command, **seen)
    if fits:
        assert done.returncode == 0, done.stderr
        found = run_file.read_file(path).records
        assert sorted((r.case.n, r.case.group, r.status) for r in found) == (
            [(1, 0, "ok"), (1, 1, "ok")] if rule == "node:1" else [(2, 0, "ok")]
        )
    else:
        assert (
            "needs 2 consecutive ranks on each host; there are 1 on host0, 1 on host1"
            in done.stderr
        )


@pytest.mark.slow
def test_one_rank_of_each_group_is_late_in_every_sample(divided: Divided) -> None:
    """Not one of the world, or half of a group's samples would have nobody late."""
    _, records = divided(swept(arrivals=("one-late:5ms",)), iters=8)
    assert len(records) == 2
    for record in records:
        assert min(record.skew_ns) > 2_500_000
