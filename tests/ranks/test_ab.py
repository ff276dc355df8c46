"""Interleaved experiments on real ranks: what is planted is found and nothing else; what breaks
keeps the rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from experiments import ended, sides, small
from marks import long
from paths import before
from warm import Started, Warm

from collbench.core.errors import Exit, UsageError
from collbench.records import run_file, store
from collbench.records.types import RunFile

PLUGINS = str(Path(__file__).parent / "plugins")


@pytest.fixture
def suite(tmp_path: Path):
    def write(
        sizes: str = '"64K"', backend: str = "shm", algorithm: str = "ring", iters: int = 10
    ) -> str:
        own = {"sizes": sizes, "backends": f'"{backend}"', "algorithm": algorithm}
        return small(tmp_path, **own, iters=iters, warmup=2)

    return write


def launches(file: RunFile, stage: int) -> list[int]:
    return [world.round for world in file.worlds if world.stage == stage]


@pytest.mark.slow
def test_both_sides_run_the_same_rows_in_the_same_order_with_the_same_counts_in_turns(
    cli, suite
) -> None:
    done = cli(
        "ab",
        "--suite",
        suite('"1K", "64K"'),
        "--base",
        "X=1",
        "--head",
        "X=2",
        "--rounds",
        "6,6",
        "--budget",
        "0",
        "--tag",
        "t",
        "--tau",
        "99%",
        "--format",
        "json",
        timeout=200,
    )
    assert done.returncode in (Exit.OK, Exit.NO_VERDICT), done.stderr  # 3 on a busy machine
    base, head = sides()
    assert launches(base, 1) == launches(head, 1) == list(range(6))
    assert {world.together for file in (base, head) for world in file.worlds} == {"turns"}
    assert base.run.pairing.experiment == head.run.pairing.experiment
    assert (base.run.pairing.variant, head.run.pairing.variant) == ("X=1", "X=2")
    for one, other in zip(base.records, head.records, strict=True):
        assert (one.case, one.world, len(one.times_ns), one.warmup) == (
            other.case,
            other.world,
            len(other.times_ns),
            other.warmup,
        )
        assert (one.status, other.status) == ("ok", "ok") and len(one.times_ns) == 10
    orders = {tuple(r.case.nbytes for r in base.records if r.world == w) for w in range(6)}
    assert len(orders) > 1  # shuffled anew each round
    seen = [record.calibration for file in (base, head) for record in file.records]
    assert all(each and each.copy_ns > 0 < each.arithmetic_ns for each in seen)
    assert any(each.round_trip_ns > 0 for each in seen)
    turns = sorted(
        (r.started, side, r.world)
        for side, f in (("base", base), ("head", head))
        for r in f.records
    )
    assert {world for _, _, world in turns} == set(range(6))
    assert [world for _, _, world in turns] == sorted(
        world for _, _, world in turns
    )  # a round ends before the next
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 2
    assert all(0 < row["pairs"] <= 6 for row in rows)  # a disturbed launch decides nothing
    assert base.end and base.end.exit == done.returncode


@pytest.mark.slow
def test_a_planted_slowdown_is_found_where_it_is_and_nowhere_else(cli, suite) -> None:
    """By a clock that is made up, with 1 % of scatter; what a real one sees of 15 % is recorded in
    reports/."""
    sizes = '"4K", "16K", "64K"'
    done = cli(
        *("ab", "--suite", suite(sizes, "timed", "ring"), "--head", "SLOWER=16384:15,65536:20"),
        *("--rounds", "8,8", "--budget", "0", "--format", "json"),
        PYTHONPATH=before(PLUGINS),
        timeout=200,
    )
    rows = {row["case"]["nbytes"]: row for row in json.loads(done.stdout)["rows"]}
    assert {size: row["verdict"] for size, row in rows.items() if size > 4096} == {
        16384: "REGRESSED",
        65536: "REGRESSED",
    }, done.stdout
    assert rows[4096]["verdict"] not in ("REGRESSED", "SUSPECT") and done.returncode == Exit.BAD
    for size, share in ((16384, 0.15), (65536, 0.2)):
        row = rows[size]
        assert (row["stage"], row["pairs"]) == (2, 8)
        assert (
            row["delta"] == pytest.approx(share, abs=0.03)
            and 0 < row["lo"] < share + 0.01 < row["hi"] + 0.02
        )
    assert "slower than base" in done.stderr and " 4 KiB" not in done.stderr
    base, head = sides()
    assert {r.case.nbytes for r in base.records if base.worlds[r.world].stage == 2} >= {
        16384,
        65536,
    }
    assert head.end and head.end.exit == Exit.BAD


def test_sides_may_be_two_algorithms(cli, suite) -> None:
    done = cli(
        "ab",
        "--suite",
        suite('"1K"', "model", "native"),
        "--base",
        "algo:native",
        "--head",
        "algo:ring",
        "--format",
        "json",
    )
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["pairs"], row["verdict"], done.returncode) == (
        12,
        "REGRESSED",
        Exit.BAD,
    ), done.stderr
    base, head = sides()
    assert {r.case.label for r in base.records} == {"model"}
    assert {r.case.label for r in head.records} == {"ring@model"}


def aa(cli, suite: str, *args: str, **env: str):
    """An A/A experiment of 6 rounds, in JSON."""
    options = ("--suite", suite, "--aa", "--rounds", "6,6", "--format", "json", *args)
    return cli("ab", *options, timeout=200, **env)


@pytest.mark.long
def test_both_sides_of_a_round_are_alive_at_once_and_take_turns(cli, suite) -> None:
    done = aa(cli, suite(iters=150), "--budget", "0")
    base, head = sides()
    assert {world.together for file in (base, head) for world in file.worlds} == {"turns"}
    assert all(
        a.ranks[0].pid != b.ranks[0].pid for a, b in zip(base.worlds, head.worlds, strict=True)
    )
    pairs = list(zip(base.records, head.records, strict=True))
    assert len(pairs) == 6, done.stderr
    for one, other in pairs:
        assert max(one.started, other.started) < min(ended(one), ended(other)).isoformat()


@pytest.mark.slow
def test_sides_that_differ_in_the_algorithm_alone_share_a_world(cli, suite) -> None:
    algorithms = ("--base", "algo:ring", "--head", "algo:recursive_doubling")
    path = suite('"4K"', iters=150)
    cli("ab", "--suite", path, *algorithms, "--rounds", "6,6", "--budget", "0", timeout=200)
    base, head = sides()
    assert {world.together for world in base.worlds} == {"world"}
    assert all(record.calibration for file in (base, head) for record in file.records)
    assert [w.ranks[1].pid for w in base.worlds] == [w.ranks[1].pid for w in head.worlds]
    assert {r.case.algorithm for r in base.records} == {"ring"}
    assert {r.case.algorithm for r in head.records} == {"recursive_doubling"}
    assert len(base.records) == len(head.records) >= 6
    for one, other in zip(base.records, head.records, strict=True):
        assert max(one.started, other.started) < min(ended(one), ended(other)).isoformat()
        assert one.load == other.load  # of the time that both took


@pytest.mark.slow
def test_who_breaks_a_shared_world_fails_both_sides(warm, suite) -> None:
    algorithms = ("--base", "algo:ring", "--head", "algo:recursive_doubling")
    path = suite('"4M"', "gloo", "ring", 60)
    with started(warm, "--suite", path, *algorithms, "--rounds", "30,6") as process:
        os.kill(head_after(process, 3).worlds[-1].ranks[1].pid, signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert "both sides: rank 1" in err, err
    assert [file.records[-1].status for file in sides()] == ["failed"] * 2


@pytest.mark.long
def test_rows_without_a_verdict_get_further_rounds(cli, suite) -> None:
    """By a made-up clock: of six differences hardly all are within what scatters."""
    aa(cli, suite('"64K"', "timed"), "--tau", "1%", "--budget", "600s", PYTHONPATH=before(PLUGINS))
    base, _ = sides()
    rounds = launches(base, 1)
    assert rounds == list(range(len(rounds))) and len(rounds) > 6


@pytest.mark.slow
def test_a_budget_that_suffices_for_no_row_gives_no_verdict_after_the_pilot(cli, suite) -> None:
    done = aa(cli, suite('"1K"'), "--budget", "0.1s")
    assert done.returncode == Exit.NO_VERDICT
    assert "dropped for --budget 0.1s: too short for 6 pairs" in done.stderr
    assert "a longer --budget" in done.stderr
    assert {record.status for file in sides() for record in file.records} == {"skipped"}


@pytest.mark.slow
def test_what_one_side_cannot_run_is_told_not_dropped(cli, suite) -> None:
    done = cli("ab", "--suite", suite(), "--head", "backend:shm algo:native", "--rounds", "6,6")
    assert done.returncode == Exit.CANNOT_RUN
    assert "head: shm has no choice" in done.stderr
    assert store.list_saved() == []


def test_a_run_of_one_side_alone_looks_at_nothing_beside_its_blocks(cli, suite) -> None:
    done = cli("run", suite('"1K"'))
    assert done.returncode == 0, done.stderr
    (record,) = run_file.read_file(store.list_saved()[-1]).records
    assert record.times_ns
    assert record.calibration is None


@pytest.mark.long
def test_a_planted_slowdown_of_one_operation_of_a_step_is_named(cli, tmp_path: Path) -> None:
    """On cores that others use launches are set aside, and too few may be left to tell."""
    ops = [f"0;1,all_reduce,{65536 + 1024 * at},float,,bucket {at}" for at in range(3)]
    lines = ["#name x", "#world 2", "ranks,op,bytes,dtype,group,source", *ops]
    (tmp_path / "x.csv").write_text("\n".join([*lines, "0;1,wait,0,bfloat16,,", ""]))
    axes = 'backends = "dragging"\nalgorithms = "ring"\nranks = 2'
    step = '[[workload]]\nname = "x.csv"\ncompute = "none"'
    policy = "[policy]\niters = 6\nwarmup = 1"
    (tmp_path / "steps.toml").write_text(f"[axes]\n{axes}\n{policy}\n{step}\n")
    done = cli(
        *("ab", "--suite", str(tmp_path / "steps.toml"), "--head", "DRAG=66560:3000"),
        *("--rounds", "10,12", "--budget", "0", "--format", "json"),
        PYTHONPATH=before(PLUGINS),
        timeout=200,
    )
    (row,) = [row for row in json.loads(done.stdout)["rows"] if row["operations"]]
    first = row["operations"][0]  # what differs by most; after it, ranks are more alike
    assert (first["at"], first["of"], first["confirmed"]) == (1, "bucket 1", True), done.stdout
    assert first["delta"] > 1


@contextmanager
def started(warm: Warm, *args: str) -> Iterator[Started]:
    """``collbench ab`` under way."""
    process = warm.start("ab", *args)
    yield process
    process.kill()


def head_after(process: Started, launches: int) -> RunFile:
    """The head's file once it has begun that many launches."""
    until = time.monotonic() + 100
    while True:
        assert time.monotonic() < until and process.poll() is None, process.communicate()
        with suppress(UsageError):  # not yet there, or a line being written
            if (
                len(store.list_saved()) > 1
                and len((file := run_file.read_file(store.list_saved()[-1])).worlds) >= launches
            ):
                return file
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [long(0), 1])  # waiting for its turn, or not
def test_a_rank_that_dies_names_its_side_and_keeps_the_rounds_before(
    warm, suite, rank: int
) -> None:
    with started(
        warm, "--suite", suite('"4M"', "gloo", "native", 200), "--aa", "--rounds", "30,6"
    ) as process:
        victim = head_after(process, 3).worlds[-1].ranks[rank].pid
        os.kill(victim, signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode == Exit.TIMEOUT, err
    assert f"head: rank {rank}" in err and "SIGKILL" in err, err
    base, head = sides()
    assert head.records[-1].status == "failed" and f"head: rank {rank}" in head.end.note
    assert head.end.exit == base.end.exit == Exit.TIMEOUT
    assert [r.status for r in head.records[:2]] == ["ok"] * 2


@pytest.fixture
def sabotaged(tmp_path: Path) -> Callable[[str], tuple[str, ...]]:
    """Options of an experiment whose head is sabotaged."""

    def write(sabotage: str) -> tuple[str, ...]:
        for side, what in (("base", "none:0:0"), ("head", sabotage)):
            (tmp_path / side).write_text(what)
        planted = [f"SABOTAGE_FILE={tmp_path / side}" for side in ("base", "head")]
        return ("--base", planted[0], "--head", planted[1])

    return write


@pytest.mark.slow
def test_what_breaks_in_the_pilot_is_told_with_its_side(cli, suite, sabotaged) -> None:
    path = suite('"4K"', "saboteur", "native")
    done = cli("ab", "--suite", path, *sabotaged("kill:1:3"), PYTHONPATH=before(PLUGINS))
    assert done.returncode == Exit.TIMEOUT, done.stderr
    assert "head: rank 1" in done.stderr
    ends = [file.end for file in sides()]
    assert [end and end.exit for end in ends] == [Exit.TIMEOUT] * 2
    assert all(end and "head: rank 1" in end.note for end in ends)


@pytest.mark.long
def test_a_side_may_join_what_the_other_keeps_apart(cli, suite) -> None:
    """all_reduce on gloo and broadcast in shared memory, against both in shared memory."""
    path = Path(suite('"1K"', "gloo", "ring"))
    text = (
        path.read_text()
        + '[[include]]\ncollectives = ["broadcast"]\nbackends = ["shm"]\nalgorithms ='
        ' ["binomial"]\n'
    )
    path.write_text(text)
    done = cli(
        "ab",
        "--suite",
        str(path),
        "--head",
        "backend:shm",
        "--rounds",
        "6,6",
        "--budget",
        "0",
        "--tau",
        "99%",
        "--format",
        "json",
        timeout=200,
    )
    rows = {row["case"]["collective"]: row["pairs"] for row in json.loads(done.stdout)["rows"]}
    assert rows.keys() == {"all_reduce", "broadcast"} and min(rows.values()) >= 6, done.stderr
    assert {r.case.backend for r in sides()[1].records} == {"shm"}


@pytest.mark.slow
def test_a_setting_that_the_suite_sweeps_is_no_sides(cli, suite) -> None:
    path = Path(suite())
    path.write_text(path.read_text().replace("[policy]", 'env = ["X=1,2"]\n[policy]'))
    done = cli("ab", "--suite", str(path), "--head", "X=3")
    assert done.returncode == Exit.USAGE and "the suite sweeps X" in done.stderr


@pytest.mark.slow
def test_wrong_data_on_head_is_said_and_exits_7(cli, suite, sabotaged) -> None:
    done = cli(
        *("ab", "--suite", suite('"4K"', "saboteur", "native"), *sabotaged("corrupt:1:1")),
        *("--rounds", "6,6", "--budget", "0"),
        PYTHONPATH=before(PLUGINS),
        timeout=200,
    )
    assert done.returncode == Exit.WRONG_DATA, done.stderr
    assert "wrong" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, long(signal.SIGTERM)])
def test_an_interrupted_experiment_is_judged_as_far_as_it_came(
    warm, suite, how: signal.Signals
) -> None:
    with started(warm, "--suite", suite('"1K"'), "--aa", "--rounds", "300,6") as process:
        head_after(process, 4)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(how)
        out, err = process.communicate(timeout=60)
    assert process.returncode == Exit.INTERRUPTED, err
    assert "all_reduce" in out
    base, head = sides()
    assert min(len(launches(base, 1)), len(launches(head, 1))) >= 3
    assert base.end.note == "interrupted"
    assert not psutil.wait_procs(children, timeout=5)[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--aa", "--head", "X=1"), "leave --head out"),
        ((), "are the same"),
        (("--head", "X=1", "--rounds", "5,6"), "fewer than 6 pairs"),
        (("--head", "X=1", "--rounds", "8"), "two numbers"),
        (("--head", "X=1", "--suite", "none"), "no suite 'none'"),
        (("--head", "X=1", "--tau", "0"), "not a share"),
        (("--head", "X=1", "--format", "xml"), "not one of"),
        (("--head", "X=1", "-o", "x.txt"), "its ending"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(
    cli, args: tuple[str, ...], words: str
) -> None:
    done = cli("ab", *args)
    assert done.returncode == Exit.USAGE and words in done.stderr
    assert store.list_saved() == []


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder, of one commit on main."""
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main"], check=True)
    who = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", *who, "commit", "--quiet", "--allow-empty", "-m", "x"], check=True)


@pytest.mark.usefixtures("repository")
def test_a_dry_run_shows_sides_rows_and_time_and_runs_and_builds_nothing(cli, suite, home) -> None:
    side = "git:main X={tree}"
    done = cli("ab", "--suite", suite(), "--head", side, "--build", "false", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"head: {side}" in done.stdout and "\nall_reduce, 2 ranks, ring@shm, " in done.stdout
    assert store.list_saved() == [] and not (home / "builds").exists()


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    ("side", "words"),
    [
        ("git:mian X={tree}", "did you mean main?"),
        ("git:main", "nothing uses it"),
        ("python:nowhere", "there is no interpreter 'nowhere'"),
    ],
)
def test_a_dry_run_refuses_a_side_that_cannot_be(cli, suite, side: str, words: str) -> None:
    done = cli("ab", "--suite", suite(), "--head", side, "--dry-run")
    assert done.returncode == Exit.USAGE and words in done.stderr
    assert done.stdout == ""
