"""What commands do with a run that was measured on a fake GPU, and where this machine has one."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from factories import NIGHTLY, hosted, make_file, record, saved, swept, world, write

from collbench.core.errors import Exit
from collbench.features.training.step import Op, Program, Step
from collbench.suite.sweep import Axes, Suite

WORD = "measured on a fake GPU"
FAKE = {"backend": "nccl", "fake": True, "ranks": hosted(4, 4, "cuda")}


def keep(home: Path, name: str, fake: bool = True) -> str:
    """A night of sweeps and of pairs, saved; its name."""
    fields = FAKE if fake else {**FAKE, "fake": False}
    made = [
        record(what, 1e4 * (1 + what.nbytes / 1e5), world=at, checked=400)
        for at in range(3)
        for what in swept("all_reduce", "sendrecv")
    ]
    worlds = [world(index=at, **fields) for at in range(3)]
    saved(make_file(made, worlds, name=name, suite=NIGHTLY), home)
    return name


@pytest.fixture
def fake(home: Path) -> str:
    return keep(home, "fake1")


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "fake1", "fake2", "--across-machines"],
        ["health", "fake1"],
        ["health", "fake1", "--no-history"],
        ["history", "add", "fake1"],
        ["fit", "fake1"],
        ["predict", "all_reduce", "--from", "fake1"],
        ["pairs", "fake1"],
        ["overlap", "fake1"],
    ],
)
def test_nothing_is_made_of_a_run_on_a_fake_gpu(
    inside, home: Path, fake: str, command: list[str]
) -> None:
    keep(home, "fake2")
    done = inside(*command)
    assert done.returncode == Exit.NO_VERDICT, (done.stdout, done.stderr)
    assert WORD in done.stdout + done.stderr


@pytest.mark.parametrize(
    "command",
    [["health", "real", "--no-history"], ["history", "add", "real"], ["fit", "real"]],
)
def test_the_same_run_of_a_gpu_is_judged(inside, home: Path, command: list[str]) -> None:
    keep(home, "real", fake=False)
    done = inside(*command)
    assert done.returncode in (Exit.OK, Exit.BAD), done.stderr
    assert WORD not in done.stdout + done.stderr


def test_no_history_holds_a_night_of_a_fake_gpu(inside, home: Path, fake: str) -> None:
    real = keep(home, "real", fake=False)
    assert inside("history", "add", real).returncode == 0
    before = inside("history", "list").stdout
    inside("history", "add", fake)
    inside("health", fake)
    assert inside("history", "list").stdout == before


def test_runs_lists_which_were_on_a_fake_gpu(inside, home: Path, fake: str) -> None:
    keep(home, "real", fake=False)
    lines = {
        line.split()[1]: line for line in inside("runs").stdout.splitlines() if "@last" in line
    }
    assert "fake GPU" in lines["fake1"] and "fake GPU" not in lines["real"]
    rows = json.loads(inside("runs", "--format", "json").stdout)["runs"]
    assert {row["id"]: row["fake"] for row in rows} == {"fake1": True, "real": False}
    rows = list(csv.DictReader(io.StringIO(inside("runs", "--format", "csv").stdout)))
    assert {row["id"]: row["fake"] for row in rows} == {"fake1": "True", "real": "False"}


@pytest.mark.parametrize("suffix", ["md", "html"])
def test_a_report_has_the_word(inside, fake: str, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out.{suffix}"
    done = inside("report", fake, "-o", str(path))
    assert done.returncode == 0, done.stderr
    assert WORD in path.read_text()


PLANS = [
    ["all_reduce", "--backend", "nccl", "-g", "2", "-b", "8", "-e", "8"],
    ["pairs", "--backend", "nccl", "-g", "2"],
    ["locate", "--backend", "nccl", "-g", "4"],
]


def test_an_experiments_plan_says_so_by_the_backends_of_its_sides(
    inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collbench.machine import topology

    monkeypatch.setattr(
        topology, "gpu_facts", lambda root: {"devices": [{"name": "Fake H100"}] * 2}
    )
    command = ("ab", "--base", "backend:nccl", "--head", "backend:gloo", "--dry-run")
    told = "a fake GPU: what it measures means nothing"
    assert told in inside(*command).stdout
    assert told not in inside("ab", "--head", "NCCL_DEBUG=INFO", "--dry-run").stdout


@pytest.mark.parametrize("fake", [True, False])
def test_a_step_of_a_run_is_counted_and_its_times_on_a_fake_gpu_stand_beside_no_prediction(
    inside, tmp_path: Path, fake: bool
) -> None:
    ops = (Op(kind="compute", flops=1e9), Op(kind="all_reduce", nbytes=8, dtype="float", op="sum"))
    suite = Suite(
        name="",
        axes=Axes(collectives=(), sizes=(), ranks=(2,)),
        subjects=(Step("x", 2, (Program((0, 1), ops),)),),
    )
    records = [
        record(each, 1e6, world=0, times_ns=[ns * 10**6] * 8)
        for each, ns in zip(suite.resolve().expand()[0], (12, 10, 4), strict=True)
    ]
    path = write(make_file(records, [world(n=2, fake=fake)], suite=suite.resolve()), tmp_path)
    done = inside("workload", str(path), "--link", "ib200", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert ("measured" in json.loads(done.stdout)) != fake
    assert (WORD in done.stderr) == fake


@pytest.mark.parametrize("command", PLANS)
@pytest.mark.parametrize("name", ["Fake H100 80GB", "NVIDIA H100 80GB HBM3"])
def test_a_plan_says_that_the_gpus_here_are_fake(
    inside, monkeypatch: pytest.MonkeyPatch, command: list[str], name: str
) -> None:
    from collbench.machine import topology

    monkeypatch.setattr(topology, "gpu_facts", lambda root: {"devices": [{"name": name}] * 2})
    done = inside(*command, "--dry-run")
    told = "a fake GPU: what it measures means nothing" in done.stdout
    assert told == name.startswith("Fake"), (done.stdout, done.stderr)
