"""Traces replayed on real ranks: every operation's data is right, computing takes the time that it
took, and what came of it stands beside what was recorded."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import jobs
import pytest
from msgspec.structs import replace

from collbench.features.traces.formats import own
from collbench.features.traces.formats import recognise as reading
from collbench.features.traces.replay import Asked, step_of
from collbench.features.traces.types import Call, RankTrace, Trace
from collbench.features.training import reshape
from collbench.features.training.step import LOCAL
from collbench.records import run_file
from collbench.records.types import Record

Play = Callable[..., list[Record]]
MS = 1_000_000
ROWS = ((100, 300), (50, 200))  # elements that each rank sends to each


def calls(rank: int) -> tuple[Call, ...]:
    """A step of two ranks: a message, collectives that are waited for later and at once, unequal
    blocks, and 2 + 3 ms of computing."""
    other = 1 - rank
    receives = tuple(row[rank] for row in ROWS)
    talk = ("send", "recv")[rank]
    return (
        Call(talk, nbytes=4096, dtype="float", peer=other, issued_ns=2 * MS),
        Call("all_reduce", group="dp", nbytes=4096, dtype="float", op="max", issued_ns=2 * MS),
        Call("wait", issued_ns=2 * MS, ends_ns=4 * MS, after=(0, 1)),
        Call(
            "all_to_allv",
            nbytes=1600,
            dtype="float",
            sends=ROWS[rank],
            receives=receives,
            issued_ns=7 * MS,
            ends_ns=9 * MS,
            waits=True,
        ),
        Call("broadcast", nbytes=2048, dtype="double", root=1, issued_ns=9 * MS, ends_ns=9 * MS),
    )


def trace() -> Trace:
    marks = ((0, 9 * MS + 1),)
    ranks = (RankTrace(rank, 2, calls(rank), {"dp": (0, 1)}, steps=marks) for rank in (0, 1))
    return Trace("test", tuple(ranks))


@pytest.mark.parametrize("backend", ["gloo", pytest.param("mpi", marks=pytest.mark.slow)])
def test_the_data_of_a_replay_is_right(backend: str, play: Play) -> None:
    records = play(step_of(trace(), Asked(gaps="none")), backend)
    assert [(record.status, record.note) for record in records] == [("ok", "")] * 3
    received = 1024 + 2 * 1024 + sum(map(sum, ROWS)) + 2 * 256  # by all ranks
    assert records[-1].checked == 2 * received


def test_an_operation_of_a_replay_with_wrong_data_is_named(play: Play) -> None:
    step = step_of(trace(), Asked(gaps="none"))
    whole = play(step, "muddler", sabotage="stale:0:0")[-1]
    assert whole.status == "wrong"
    assert "first in op 3 (all_to_allv of 2000 B float)" in whole.note
    assert "on rank 0" in whole.note


def test_computing_between_calls_takes_as_long_as_it_did(play: Play) -> None:
    step = reshape.set_computation(step_of(trace()), "sleep", 0)
    *_, computation, whole = play(step)
    assert min(computation.times_ns) >= 5 * MS
    assert min(whole.times_ns) >= 5 * MS


@pytest.mark.slow
def test_a_trace_is_replayed_from_the_command_line(cli, tmp_path: Path) -> None:
    call = Call("all_reduce", nbytes=1 << 16, dtype="float", op="sum")
    (tmp_path / "job").mkdir()
    for rank in range(2):
        writer = own.Writer(tmp_path / "job" / own.file_name(rank), RankTrace(rank, 2))
        writer.write(replace(call, issued_ns=2 * MS * at) for at in range(4))
        writer.write([own.Note(ended=8 * MS)])
        writer.close()
    path = tmp_path / "run.jsonl"
    words = ("--backend", "gloo", "-n", "6", "--output", str(path), "--format", "json")
    done = cli("replay", str(tmp_path / "job"), *words)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["steps"]
    assert row["recorded"]["median_ns"] == 2 * MS
    assert row["step_ns"] >= 2 * MS
    (step,) = run_file.read_file(path).run.suite.subjects
    assert step.recorded is not None
    again = cli("report", str(path), "--format", "md")
    assert "replayed / recorded" in again.stdout


WIDTH, LAYERS = 64, 4
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH)
ROOT = 4 * PARAMETERS  # bytes


def asked_of(name: str, ranks: int) -> dict[str, int]:
    """What a step of a job asks for, in bytes or, of unequal blocks, in elements of rank 0."""
    places = range(ranks)
    tokens = [[8 * (1 + (3 * a + 5 * b) % 4) for b in places] for a in places]
    exchanged = sum(tokens[0]) + sum(row[0] for row in tokens)
    return {
        "ddp": {"all_reduce": ROOT},
        "fsdp2": {"all_gather": 2 * ROOT, "reduce_scatter": ROOT},
        "moe": {"all_to_allv": LAYERS * WIDTH * exchanged, "all_reduce": 4 * WIDTH * WIDTH},
    }[name]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["ddp", "fsdp2", "moe"])
def test_a_job_is_recorded_and_replayed_as_it_was(
    warm, name: str, ranks: int, tmp_path: Path
) -> None:
    folder, path = tmp_path / name, tmp_path / "run.jsonl"
    shape = ["--ranks", str(ranks), "--width", str(WIDTH), "--layers", str(LAYERS), "--steps", "3"]
    recorded = warm.join(ranks, name, str(tmp_path), *shape, script=jobs.__file__)
    assert recorded.returncode == 0, recorded.stderr
    done = warm("replay", str(folder), "--backend", "gloo", "-n", "2", "--output", str(path))
    assert done.returncode == 0, done.stderr
    (step,) = run_file.read_file(path).run.suite.subjects
    asked: Counter[str] = Counter()
    for op in step.program(0).ops:
        asked[op.kind] += (sum(op.sends) or op.nbytes) * op.communicates
    assert +asked == asked_of(name, ranks)
    found = reading.read_trace([folder])
    assert len(found.ranks) == ranks
    for rank in found.ranks:
        (begin, end) = rank.steps[int(_iteration(step.assumptions))]
        calls = [
            (call.kind, call.sends or call.nbytes, call.dtype)
            for call in rank.calls
            if call.kind not in LOCAL and begin <= call.issued_ns < end
        ]
        ops = step.program(rank.rank).ops
        replayed = [(op.kind, op.sends or op.nbytes, op.dtype) for op in ops if op.communicates]
        assert replayed == calls


def _iteration(assumptions: Sequence[str]) -> str:
    return next(found[1] for each in assumptions if (found := re.match(r"iteration (\d+) ", each)))
