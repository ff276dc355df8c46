"""Others' load: what the kernel counts, less what is ours, on every machine of a group."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from collbench.machine import environment, load
from collbench.machine.load import Load, Others, cpu_seconds, delayed_seconds, measure_load

TICKS = os.sysconf("SC_CLK_TCK")
Stat = Callable[..., None]


@pytest.fixture
def stat(tmp_path: Path) -> Stat:
    """Writes what each CPU has done, in seconds: user nice system idle iowait irq softirq steal."""

    def write(**cpus: list[float]) -> None:
        (tmp_path / "proc").mkdir(exist_ok=True)
        lines = {name: " ".join(str(round(s * TICKS)) for s in done) for name, done in cpus.items()}
        text = "\n".join(f"{name} {done} 0 0" for name, done in lines.items())
        (tmp_path / "proc/stat").write_text(f"{text}\nintr 1 2 3\n")

    return write


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A wall clock and this process's CPU time, in seconds, set by hand; CPUs 0 and 1 are usable,
    and this process descends from one that has used none."""
    now = SimpleNamespace(wall=0.0, own=0.0, parent=0.0, children=0.0)
    parent = SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=now.parent, system=0.0))
    monkeypatch.setattr(time, "perf_counter", lambda: now.wall)
    monkeypatch.setattr(time, "process_time", lambda: now.own)
    monkeypatch.setattr(load, "children_seconds", lambda _: now.children)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(environment, "boot_id", lambda *_: "machine")
    monkeypatch.setattr(environment, "host_name", lambda: "node0")
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(parents=lambda: [parent]))
    return now


def test_work_is_that_of_processes_and_of_other_machines_on_the_cpus_named(
    stat: Stat, tmp_path: Path
) -> None:
    stat(cpu=[99] * 8, cpu0=[1, 2, 4, 100, 100, 100, 100, 8], cpu1=[16, 0, 0, 0, 0, 0, 0, 0])
    assert cpu_seconds([0], tmp_path) == 15
    assert cpu_seconds([0, 1], tmp_path) == 31


def test_nobody_can_tell_without_the_kernels_counts(tmp_path: Path) -> None:
    assert math.isnan(cpu_seconds([0], tmp_path))
    assert measure_load(0, tmp_path) == {}


def test_what_the_hypervisor_gave_to_others_is_told_by_a_machines_first_rank(
    stat: Stat, tmp_path: Path, clock: Any
) -> None:
    stat(cpu=[9] * 8, cpu0=[1] * 7 + [4], cpu1=[1] * 7 + [2])
    assert Others(0, lambda mine: [mine], tmp_path).stolen() == 3  # a CPU
    assert math.isnan(Others(1, lambda mine: [mine, mine], tmp_path).stolen())


def test_how_long_a_thread_has_waited_for_a_cpu_is_the_kernels_word(tmp_path: Path) -> None:
    assert math.isnan(delayed_seconds(tmp_path))
    (tmp_path / "proc/thread-self").mkdir(parents=True)
    (tmp_path / "proc/thread-self/schedstat").write_text("8000000000 2500000000 17\n")
    assert delayed_seconds(tmp_path) == 2.5


def test_what_is_ours_is_not_others(stat: Stat, tmp_path: Path, clock: Any) -> None:
    stat(cpu0=[0] * 8, cpu1=[1] + [0] * 7)
    others = Others(0, lambda mine: [mine], tmp_path)
    clock.wall, clock.own, clock.parent, clock.children = 10.0, 6.0, 1.0, 2.0
    stat(cpu0=[10] + [0] * 7, cpu1=[5] + [0] * 7)
    assert others.since() == {"node0": Load(0.5, 2)}  # 14 s in all, 9 s of them ours
    clock.wall = 12.0
    stat(cpu0=[11] + [0] * 7, cpu1=[5] + [0] * 7)
    assert others.since() == {"node0": Load(0.5, 2)}  # from then on: 1 s in 2


WORK = "sum(range(2_000_000))"  # more than a tick


def test_what_a_process_has_started_works_for_it_alive_or_not() -> None:
    before = load.children_seconds()
    command = [sys.executable, "-c", f"{WORK}; print(1, flush=True); input()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.readline()
    alive = load.children_seconds()
    child.communicate(b"\n")
    ended = load.children_seconds()
    rounding = 1e-6  # seconds in whole ticks, added in another order
    assert before < alive <= ended + rounding


def test_an_idle_machine_has_no_load(stat: Stat, tmp_path: Path, clock: Any) -> None:
    stat(cpu0=[1] * 8, cpu1=[1] * 8)
    others = Others(0, lambda mine: [mine], tmp_path)
    clock.wall = 1.0
    assert others.since() == {"node0": Load(0.0, 2)}


def test_each_machine_is_told_of_by_its_first_rank(stat: Stat, tmp_path: Path, clock: Any) -> None:
    """Rank 1 is in another container of rank 0's machine, bound to a CPU of its own; rank 2 is on
    another machine."""
    told: list[Any] = [
        [["machine", "pod1", [2]], ["other", "node2", [0, 1, 2, 3]]],
        [[4.0, None, 3.0], [4.0, 12.0, 4.0]],
    ]
    stat(**{f"cpu{i}": [0.01] + [0] * 7 for i in range(3)})
    others = Others(0, lambda mine: [mine, *told.pop(0)], tmp_path)
    clock.wall, clock.own = 4.0, 1.0
    stat(**{f"cpu{i}": [2.01] + [0] * 7 for i in range(3)})
    assert others.since() == {"node0": Load(0.5, 3), "node2": Load(2.0, 4)}


def test_another_rank_of_a_machine_leaves_its_counts_to_the_first(
    stat: Stat, tmp_path: Path, clock: Any
) -> None:
    said = []

    def collect(mine: Any) -> list[Any]:
        said.append(mine)
        return [["machine", "node0", [0, 1]] if len(said) == 1 else [1.0, 1.5, 0.5], mine]

    stat(cpu0=[1] * 8, cpu1=[1] * 8)
    others = Others(1, collect, tmp_path)
    clock.wall, clock.own, clock.parent = 1.0, 0.5, 0.5
    assert others.since() == {"node0": Load(0.5, 2)}
    assert said[1] == [1.0, None, 0.5]  # what launched both is the first's to tell, too


@pytest.mark.parametrize(
    ("others", "cpus", "busy"),
    [
        (0.25, 1, False),
        (0.3, 2, True),
        (0.5, 4, True),
        (0.5, 8, False),
        (6.4, 64, False),
        (6.5, 64, True),
        (-0.1, 2, False),
    ],
)
def test_busy_is_more_than_a_quarter_of_a_cpu_and_a_tenth_of_all(
    others: float, cpus: int, busy: bool
) -> None:
    assert Load(others, cpus).busy is busy


def test_a_look_at_this_machine_counts_its_cpus() -> None:
    (seen,) = load.measure_load(0.01).values()
    assert seen.cpus == len(os.sched_getaffinity(0))
