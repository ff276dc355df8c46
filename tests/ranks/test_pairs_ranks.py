"""Pairs and groups among real ranks, searches that go on, and faults planted in them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from collbench.core.errors import Exit
from collbench.records import run_file
from collbench.records.types import Record, World
from collbench.run.jobs import Job, Plan
from collbench.run.launch.local import Launcher
from collbench.run.launch.world import Listener
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, expand_axes

SHORT = ["-n", "12", "--no-save", "-T", "30"]


def measured(
    launcher: Launcher, cases: list[Case], n: int, more: Sequence[Case] = ()
) -> tuple[World, list[Record]]:
    """The records of cases of one world, and of those that an open plan goes on with, one a
    time."""
    lines: list[World | Record] = []
    left = iter([[Job(case, 2, "small")] for case in more])
    jobs = [Job(case, 2, "small") for case in cases if case.group == 0]
    plan = Plan(
        0, "gloo", n, (), Policy(iters=3, warmup=1, sync="barrier"), jobs, 30.0, open=bool(more)
    )
    launcher.run([plan], Listener(lines.append, next_jobs=lambda: next(left, [])))
    (world,) = (line for line in lines if isinstance(line, World))
    return world, [line for line in lines if isinstance(line, Record)]


@pytest.mark.slow
def test_every_pair_of_five_has_its_own_data_and_the_fifth_idles(launcher: Launcher) -> None:
    asked = {"sizes": (65536,), "ranks": (5,), "in_place": (False,), "groups": "pairs"}
    cases = expand_axes(Axes(collectives=("sendrecv",), **asked))[0]  # type: ignore[arg-type]
    cases += expand_axes(Axes(collectives=("all_reduce",), algorithms=("ring",), **asked))[0]  # type: ignore[arg-type]
    whole = Case(collective="all_reduce", backend="gloo", n=5, nbytes=64, op="sum")
    world, found = measured(launcher, [*cases, whole], 5)
    assert sorted(info.rank for info in world.ranks) == list(range(5))
    assert sorted(record.case.key for record in found) == sorted(
        case.key for case in [*cases, whole]
    )
    assert {(record.status, record.wrong) for record in found} == {("ok", 0)}
    assert all(
        record.checked and len(record.times_ns) == 3 and len(record.per_rank) == record.case.n
        for record in found
    )


def test_one_way_at_a_time_every_pair_has_its_own_data(launcher: Launcher) -> None:
    asked = {"sizes": (8,), "ranks": (3,), "in_place": (True,), "groups": "pairs"}
    way = {"algorithms": ("binomial",), "roots": (0, 1)}
    cases = expand_axes(Axes(collectives=("broadcast",), **asked, **way))[0]  # type: ignore[arg-type]
    _, found = measured(launcher, cases, 3)
    every = {(a, b) for a in range(3) for b in range(3) if a != b}
    assert sorted(record.case.pair for record in found) == sorted(every)
    assert {(record.status, record.wrong) for record in found} == {("ok", 0)}
    assert all(record.checked for record in found)


def test_an_open_plan_goes_on_with_what_it_is_told(launcher: Launcher) -> None:
    first = Case(collective="sendrecv", backend="gloo", n=4, nbytes=4096)
    rules = ["ranks 3,0;2,1/4", "ranks 2,0,3/4", "ranks 1,2/4"]
    more = [
        Case(collective="sendrecv", backend="gloo", n=n, nbytes=4096, groups=rule, of=of, cycle=at)
        for at, (rule, n, of) in enumerate(zip(rules, (2, 3, 2), (2, 1, 1), strict=True))
    ]
    _, found = measured(launcher, [first], 4, more)
    assert [tuple(record.case.members) for record in found] == [
        (0, 1, 2, 3),
        (2, 1),
        (3, 0),
        (2, 0, 3),
        (1, 2),
    ]
    assert {(record.status, record.wrong) for record in found} == {("ok", 0)}


@pytest.mark.slow
def test_pairs_name_the_planted_rank(cli, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    done = cli(
        "pairs",
        "-g",
        "3",
        "--large",
        "256K",
        "-n",
        "6",
        "--format",
        "json",
        "--output",
        str(path),
        "--inject",
        "slow-rank:2:3000%",
    )
    assert done.returncode == Exit.BAD, done.stderr
    whole = json.loads(done.stdout)
    host = whole["pairs"][0]["host_a"]  # of a busy machine's cores others may have had less, too
    assert {"kind": "rank", "name": f"{host}:2"} in [
        finding["subject"] for finding in whole["findings"]
    ]
    assert len(whole["pairs"]) == 3 and whole["injected"] == "slow-rank:2:3000%"
    file = run_file.read_file(path)
    assert {record.injected for record in file.records} == {"slow-rank:2:3000%"} and len(
        file.worlds
    ) == 1
    again = cli("pairs", str(path), "--format", "json")
    assert json.loads(again.stdout) == whole and again.returncode == Exit.BAD
    assert "PLANTED" in cli("pairs", str(path)).stdout
    torn = "".join(path.read_text().splitlines(keepends=True)[:5])
    path.write_text(torn)
    resumed = cli("pairs", "--resume", str(path), "--format", "json")
    assert len(json.loads(resumed.stdout)["pairs"]) == 3, resumed.stderr
    assert len(run_file.read_file(path).records) == len(
        file.records
    ) and path.read_text().startswith(torn)


@pytest.mark.long
def test_a_search_names_the_planted_rank(cli) -> None:
    done = cli(
        "locate",
        "-g",
        "3",
        "--size",
        "256K",
        *SHORT,
        "--inject",
        "slow-rank:1:3000%",
        "--format",
        "json",
    )
    assert done.returncode == Exit.BAD, done.stderr
    assert "all 3 pairs in 3 rounds" in done.stderr
    whole = json.loads(done.stdout)
    names = {finding["subject"]["name"].rpartition(":")[2] for finding in whole["findings"]}
    assert "1" in names and {finding["subject"]["kind"] for finding in whole["findings"]} <= {
        "rank",
        "link",
    }
    assert whole["located"]["tests"] >= 5 and whole["injected"] == "slow-rank:1:3000%"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("corrupt:1", Exit.WRONG_DATA, r"first on rank 1 "),
        ("hang:1", Exit.TIMEOUT, r"has not moved|hang in the same call"),
        ("drop:1", Exit.TIMEOUT, r"rank 1 .*exited with status 70"),
    ],
)
def test_planted_faults_ring_the_alarm(cli, fault: str, code: Exit, words: str) -> None:
    done = cli(
        "all_reduce",
        "--sizes",
        "4K",
        "-g",
        "2",
        "-n",
        "6",
        "-w",
        "1",
        "--place",
        "out",
        "--no-save",
        "-T",
        "3",
        "--inject",
        fault,
        "--format",
        "md",
    )
    assert done.returncode == code, done.stderr
    assert (
        re.search(words, done.stdout + done.stderr)
        and "PLANTED" in done.stdout
        and fault in done.stdout
    )


@pytest.mark.slow
def test_a_planted_late_rank_is_flagged(cli) -> None:
    done = cli(
        "all_reduce",
        "--sizes",
        "4K",
        "-g",
        "2",
        "-n",
        "30",
        "--sync",
        "barrier",
        "--place",
        "out",
        "--no-save",
        "--inject",
        "late:1:3ms",
        "--format",
        "json",
    )
    (record,) = json.loads(done.stdout)["records"]
    assert "injected" in record["flags"] and not record["gateable"]
    lateness = record["lateness"]
    assert lateness[1] > 2e6 > lateness[0], record
