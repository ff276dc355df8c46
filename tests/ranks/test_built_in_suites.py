"""Every built-in suite on real ranks, shrunk; and real runs that are cut short and go on."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import msgspec
import pytest
from marks import long
from warm import Warm

from collbench.cli import options
from collbench.features.order.measurable import OrderRequest
from collbench.records import run_file
from collbench.records.types import Record, World
from collbench.run import plan
from collbench.run.launch.local import Launcher
from collbench.run.launch.world import Listener
from collbench.run.order import Order, prepare_order
from collbench.suite import toml
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

MARKS = {"nightly": [], "smoke": []}  # others are slow
MARKS |= {"lifecycle": [pytest.mark.long]}  # test_lifecycle.py runs its rows in small
BRIEF = Policy(iters=2, warmup=0, timeout=60.0)
ROWS = 12
SUITE = """
description = "twelve rows in two worlds"
[axes]
collectives = ["all_reduce", "all_gather"]
backends = ["gloo", "shm"]
algorithms = "ring"
sizes = ["1K", "4K", "16K"]
ranks = 2
in_place = false
[policy]
iters = 10
"""


def shrunk(suite: Suite) -> Suite:
    """The same product with a short size, measured for a moment; of what it asks for beside
    collectives, the first of each kind."""

    def short(axes: Axes) -> Axes:
        return msgspec.structs.replace(axes, sizes=(4096,)[: len(axes.sizes)], cycles=1)

    includes = tuple(map(short, suite.includes))
    requests = tuple(
        msgspec.structs.replace(request, sizes=request.sizes[1:2], repeats=5, proof=1)
        if isinstance(request, OrderRequest)
        else request
        for request in {type(request): request for request in suite.requests[::-1]}.values()
    )
    return msgspec.structs.replace(
        suite, axes=short(suite.axes), includes=includes, policy=BRIEF, requests=requests
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=MARKS.get(name, [pytest.mark.slow]))
        for name in sorted(toml.built_in())
    ],
)
def test_every_built_in_suite_runs_and_its_data_is_right(name: str, launcher: Launcher) -> None:
    backend = "" if name in ("pr", "algorithms") else "gloo"
    suite = options.change_suite(shrunk(toml.load_suite(name)), ngpus="2", backend=backend)
    prepared = prepare_order(Order(suite=suite, command=[], save=False))
    assert all(skip.reason for skip in prepared.skips)
    lines: list[World | Record] = []
    for world in plan.plan_worlds(prepared.jobs, suite.policy):
        launcher.run([world], Listener(lines.append))
    records = [line for line in lines if isinstance(line, Record)]
    assert {record.case for record in records} == set(prepared.cases) and len(records) == len(
        prepared.cases
    )
    bad = [
        (record.case.key, record.status, record.note)
        for record in records
        if record.status not in ("ok", "skipped")
    ]
    assert bad == []
    assert all(record.note for record in records if record.status == "skipped")
    done = {record.case.collective for record in records if record.status == "ok"}
    assert done == {case.collective for case in prepared.cases}


def go_on(warm: Warm, path: Path, launched: bool) -> str:
    """Resumes a run, alone or as two ranks of a launcher; what it said."""
    words = ("run", "--resume", str(path))
    done = warm.join(2, *words) if launched else warm(*words)
    assert done.returncode == 0, done.stderr
    return done.stderr


def wait_for_records(path: Path, number: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if path.exists() and path.read_bytes().count(b'{"line":"record"') >= number:
            return
        time.sleep(0.01)
    raise AssertionError("too few records in time")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "launched"), [(signal.SIGINT, False), long(signal.SIGKILL, True)]
)
def test_a_run_that_was_cut_short_goes_on_with_what_is_missing(
    warm: Warm, tmp_path: Path, number: signal.Signals, launched: bool
) -> None:
    path, suite = tmp_path / "run.jsonl", tmp_path / "rows.toml"
    suite.write_text(SUITE)
    begun = warm.start("run", str(suite), "--output", str(path))
    wait_for_records(path, 3)
    begun.send_signal(number)
    assert begun.wait(30) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    kept = path.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    if number == signal.SIGKILL:
        path.write_bytes(kept + b'{"line":"record","case":{"collective":"all_red')
    first = run_file.read_file(path)
    assert 3 <= len(first.records) < ROWS and (first.end is None) == (number == signal.SIGKILL)

    go_on(warm, path, launched)
    assert path.read_bytes().startswith(kept)
    added = [json.loads(line)["line"] for line in path.read_bytes()[len(kept) :].splitlines()]
    assert added.count("record") == ROWS - len(first.records)
    last = run_file.read_file(path)
    assert last.records[: len(first.records)] == first.records
    assert len({record.case for record in last.records}) == len(last.records) == ROWS
    assert {record.status for record in last.records} == {"ok"}
    assert [world.index for world in last.worlds] == list(range(len(last.worlds)))
    assert {record.world for record in last.records} <= {world.index for world in last.worlds}
    assert last.end is not None and last.end.exit == 0

    complete = path.read_bytes()
    assert go_on(warm, path, launched).count("nothing is left to measure") == 1
    assert path.read_bytes() == complete
