"""Transfers among real ranks: every pattern's data verified, planted faults found, a rank that ends
named, and comparisons of what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from experiments import sides
from needs import needs_mpi

from collbench.core.errors import Exit, RunBroken
from collbench.features.p2p.measurable import TRANSFERS, TransferRequest
from collbench.features.p2p.patterns import PATTERNS
from collbench.features.p2p.results import list_results
from collbench.records import run_file
from collbench.records.types import Record, World
from collbench.run.jobs import Job, Plan
from collbench.run.launch.local import Launcher
from collbench.run.launch.world import Listener
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

EVERY = (*PATTERNS, "both-ways:3")
SUITE = """
[axes]
ranks = [2]
backends = ["gloo"]
[policy]
iters = 6
warmup = 1
sync = "barrier"
[[p2p]]
patterns = ["ping-pong", "window:4"]
sizes = ["4K"]
"""


def transfer(
    launcher: Launcher,
    *patterns: str,
    ranks: int = 2,
    sizes: tuple[int, ...] = (8,),
    inner: int | None = None,
    **policy: object,
) -> list[Record]:
    """The records of patterns at sizes, pairs being all, in one world."""
    subjects = [
        TRANSFERS.resolve(
            TransferRequest(pattern=pattern, nbytes=nbytes, pairs="all"), ranks, True, ["gloo"]
        )
        for pattern in patterns
        for nbytes in sizes
    ]
    given = {"iters": 3, "warmup": 1, "timeout": 60.0, "sync": "barrier", **policy}
    settings = Policy(**given)  # type: ignore[arg-type]
    axes = Axes(collectives=(), sizes=(), ranks=(ranks,), backends=("gloo",))
    suite = Suite(name="", axes=axes, subjects=tuple(subjects))
    jobs = [
        Job(case, 1, "hot", inner=inner, subject=suite.subject_finder(case))
        for case in suite.expand()[0]
    ]
    lines: list[World | Record] = []
    launcher.run([Plan(0, "gloo", ranks, (), settings, jobs, 60.0)], Listener(lines.append))
    return [line for line in lines if isinstance(line, Record)]


def test_every_pattern_of_two_ranks_is_measured_and_verified(launcher: Launcher) -> None:
    records = transfer(launcher, *EVERY, sizes=(1, 5000))
    assert len(records) == 2 * len(EVERY)
    assert {(record.status, record.wrong, record.note) for record in records} == {("ok", 0, "")}
    assert all(len(record.times_ns) == 3 and min(record.times_ns) > 0 for record in records)
    assert all(len(record.per_rank) == 2 for record in records)


def test_a_records_calls_are_messages(launcher: Launcher) -> None:
    """Of 31 calls in a sample that it may have, it has whole rounds."""
    records = transfer(launcher, "ping-pong", "window:5", "both-ways:4", "incast", inner=31)
    inner = {record.case.collective: record.inner for record in records}
    assert inner == {"p2p_ping_pong": 30, "p2p_window": 30, "p2p_both_ways": 28, "p2p_incast": 31}


def test_every_byte_is_compared_before_after_and_on_fresh_buffers(launcher: Launcher) -> None:
    for record, nbytes in zip(
        transfer(launcher, "ping-pong", "window:3", "both-ways"),
        (8 + 8, 3 * 8 + 4, 8 + 8),  # of a round, acknowledgements and all
        strict=True,
    ):
        assert record.checked == 3 * nbytes


def test_four_ranks_in_two_pairs_and_all_to_one(launcher: Launcher) -> None:
    records = transfer(launcher, "both-ways:2", "incast", "outcast", "rate:4", ranks=4)
    assert {(record.status, record.wrong) for record in records} == {("ok", 0)}
    by_row = {record.case.collective: record for record in records}
    assert by_row["p2p_incast"].checked == 3 * (3 * 8 + 3 * 4)


def test_ranks_without_a_partner_wait_for_the_others(launcher: Launcher) -> None:
    request = TransferRequest(pattern="ping-pong", nbytes=8, pairs="2-0")
    subject = TRANSFERS.resolve(request, 3, True, ["gloo"])
    axes = Axes(collectives=(), sizes=(), ranks=(3,), backends=("gloo",))
    (case,), _ = Suite(name="", axes=axes, subjects=(subject,)).expand()
    lines: list[World | Record] = []
    policy = Policy(iters=3, warmup=1, sync="barrier")
    plan = Plan(0, "gloo", 3, (), policy, [Job(case, 1, "hot", subject=subject)], 60.0)
    launcher.run([plan], Listener(lines.append))
    (record,) = (line for line in lines if isinstance(line, Record))
    assert (record.status, record.wrong) == ("ok", 0)
    times = [max(*samples) for samples in zip(*record.per_rank, strict=True)]
    assert record.times_ns == record.per_rank[2] and record.times_ns <= times


def test_a_flipped_bit_is_found_in_every_pattern(launcher: Launcher) -> None:
    records = transfer(launcher, *EVERY, inject="corrupt:1")
    assert len(records) == len(EVERY)
    for record in records:
        assert (record.status, record.wrong, record.times_ns) == ("wrong", 1, [])
        assert record.first_wrong and record.first_wrong.rank == 1
        assert "rank 1 at 0" in record.note


def test_a_flipped_bit_of_an_acknowledgement_is_found(launcher: Launcher) -> None:
    (record,) = transfer(launcher, "window:2", inject="corrupt:0")
    assert (record.status, record.wrong) == ("wrong", 1)


def test_data_is_not_compared_where_nobody_asks_for_it(launcher: Launcher) -> None:
    (record,) = transfer(launcher, "ping-pong", check=0)
    assert (record.status, record.wrong, record.checked) == ("ok", None, 0)


def test_a_rank_that_ends_is_named(launcher: Launcher) -> None:
    with pytest.raises(RunBroken, match="rank 1"):
        transfer(launcher, "ping-pong", iters=50, inject="drop:1")


@pytest.mark.slow
def test_wrong_data_is_told_on_the_command_line(cli) -> None:
    words = ("-b", "8", "-e", "8", "--backend", "gloo", "-n", "5", "--no-save")
    done = cli("p2p", *words, "--inject", "corrupt:1", "--format", "json")
    assert done.returncode == Exit.WRONG_DATA, done.stderr
    values = json.loads(done.stdout)
    assert values["injected"] == "corrupt:1"
    assert [row["status"] for row in values["rows"]] == ["wrong"]


@pytest.mark.slow
def test_shm_and_the_model_are_refused_with_a_reason(cli) -> None:
    words = ("-b", "8", "-e", "8", "--backend", "shm,model", "-n", "5", "--no-save")
    done = cli("p2p", *words)
    assert done.returncode == Exit.CANNOT_RUN, done.stderr
    assert "shm has no messages from rank to rank" in done.stderr + done.stdout


@pytest.mark.slow
def test_a_run_is_reported_shown_again_and_compared(cli, tmp_path: Path) -> None:
    path = tmp_path / "transfers.toml"
    path.write_text(SUITE)
    for name in ("a.jsonl", "b.jsonl"):
        done = cli("run", str(path), "--output", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
    again = cli("p2p", str(tmp_path / "a.jsonl"), "--format", "csv")
    assert again.returncode == 0 and again.stdout.count("\n") == 3, again.stderr
    page = tmp_path / "page.html"
    assert cli("report", str(tmp_path / "a.jsonl"), "-o", str(page)).returncode == 0
    assert "Messages from rank to rank" in page.read_text()
    done = cli("compare", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), "--format", "json")
    assert done.returncode == Exit.NO_VERDICT  # one launch a side
    rows = json.loads(done.stdout)["rows"]
    assert {row["case"]["step"] for row in rows} == {"ping-pong of 4096 B", "window:4 of 4096 B"}


@pytest.mark.slow
@pytest.mark.long
def test_ab_measures_the_same_messages_on_both_sides(cli, tmp_path: Path) -> None:
    path = tmp_path / "transfers.toml"
    path.write_text(SUITE)
    rounds = ("--rounds", "6,6", "--budget", "0", "--tau", "99%", "--format", "json")
    done = cli("ab", "--suite", str(path), "--base", "X=1", "--head", "X=2", *rounds, timeout=200)
    assert done.returncode in (Exit.OK, Exit.NO_VERDICT), done.stderr  # 3 on a busy machine
    base, head = sides()
    for one, other in zip(base.records, head.records, strict=True):
        assert (one.status, one.wrong, one.inner) == ("ok", 0, other.inner)
    assert len(json.loads(done.stdout)["rows"]) == 2
    assert {result.rows[0].record.status for result in list_results(base)} == {"ok"}


@pytest.mark.slow
@needs_mpi
def test_mpi_has_every_pattern_by_its_own_functions(cli, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    words = ("-b", "8", "-e", "64K", "-f", "8192", "--backend", "mpi", "-n", "5")
    done = cli("p2p", "--pattern", ",".join(EVERY), *words, "--output", str(path), timeout=200)
    assert done.returncode == 0, done.stderr
    records = run_file.read_file(path).records
    measured = [record for record in records if record.status != "skipped"]
    assert len(measured) == 2 * len(EVERY) - 1  # rate has the small size alone
    assert {(record.status, record.wrong) for record in measured} == {("ok", 0)}
    assert [r.note for r in records if r.status == "skipped" and "8192 B at most" in r.note]


@pytest.mark.slow
@needs_mpi
def test_a_flipped_bit_is_found_on_mpi(cli) -> None:
    words = ("--pattern", "ping-pong,window:4", "-b", "8", "-e", "8", "--backend", "mpi")
    done = cli("p2p", *words, "-n", "5", "--no-save", "--inject", "corrupt:1", "--format", "csv")
    assert done.returncode == Exit.WRONG_DATA, done.stderr
    assert done.stdout.count("wrong") >= 2
