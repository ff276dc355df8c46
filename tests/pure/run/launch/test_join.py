"""What differs between the hosts of a run: found, and told before all else of the machines."""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from factories import case, record, run, world

from collbench.machine import environment
from collbench.records.types import HostInfo, RunFile, World
from collbench.run.launch import join
from collbench.run.launch.board import Board
from collbench.run.launch.environments import Membership
from collbench.run.launch.world import Listener
from collbench.run.plan import Plan
from collbench.show.document import Section
from collbench.show.views import run as sections
from collbench.suite.policy import Policy


def of(*worlds: World) -> RunFile:
    return RunFile(
        run=run("r"), worlds=list(worlds), records=[record(case(), 1e6)], end=None, path=Path("r")
    )


def told(*files: RunFile) -> tuple[Section, Section]:
    found = {section.name: section for section in sections.document(files).sections}
    return found["summary"], found["environment"]


def test_only_what_differs_is_kept_of_each_host() -> None:
    alike = {"kernel": "6.1", "cpu.governor": "performance", "numa.0.cpus": "0-7"}
    other = {
        "kernel": "6.8",
        "cpu.governor": "performance",
        "nics.eth0.mbps": 100_000,
        "numa.0.cpus": "0-7",
    }
    assert environment.apart([alike, alike]) == [{}, {}]
    assert environment.apart([alike, other, alike]) == [
        {"kernel": "6.1", "nics.eth0.mbps": None},
        {"kernel": "6.8", "nics.eth0.mbps": 100_000},
        {"kernel": "6.1", "nics.eth0.mbps": None},
    ]
    assert environment.digest(alike) != environment.digest(other)


def test_hosts_are_compared_by_what_a_worlds_backend_uses() -> None:
    facts = {"a": {"kernel": "6.1"}, "b": {"kernel": "6.1", "libraries.mpi4py": "4.1.2"}}
    for backend, same in (("gloo", True), ("mpi", False)):
        one, other = join.alike(facts, backend)
        assert (one.host, other.host) == ("a", "b")
        assert (one.fingerprint == other.fingerprint) == same
        assert other.differs == ({} if same else {"libraries.mpi4py": "4.1.2"})


def test_hosts_are_compared_by_their_clock_source_too(tmp_path: Path) -> None:
    at = tmp_path / "sys/devices/system/clocksource/clocksource0"
    at.mkdir(parents=True)
    (at / "current_clocksource").write_text("hpet\n")
    facts = environment.host_facts(tmp_path)
    assert facts["clock_source"] == "hpet"
    assert "libraries.torch" in facts
    assert not {"host", "boot_id"} & set(facts)


def test_hosts_that_differ_come_first() -> None:
    slow, fast = {"kernel": "6.1", "driver": None}, {"kernel": "6.8", "driver": "570"}
    hosts = [
        HostInfo(host=f"n{i}", fingerprint="0", differs=slow if i == 5 else fast) for i in range(7)
    ]
    summary, machines = told(of(world(hosts=hosts)))
    assert "The hosts are not alike, see Environment: kernel, driver." in summary.words
    first = machines.tables[0]
    assert (first.title, first.heads) == (
        "What differs between hosts",
        ("", "n0, n1, n2 and 3 more", "n5"),
    )
    assert [line.cells for line in first.lines] == [
        ("kernel", "6.8", "6.1"),
        ("driver", "570", "unknown"),
    ]


def test_hosts_that_are_alike_are_no_news() -> None:
    alike = [HostInfo(host=name, fingerprint="0") for name in "ab"]
    for worlds in ([world()], [world(hosts=alike)]):
        summary, machines = told(of(*worlds))
        assert not any("not alike" in words for words in summary.words)
        assert "hosts" not in " ".join(table.name for table in machines.tables)


@pytest.mark.parametrize(
    ("in_turns", "awake", "rests"),
    [
        (True, 0.0, True),  # it waits for its turn
        (True, 29.0, True),
        (True, 31.0, False),  # hung in its turn
        (True, math.inf, False),  # it had one and all, or rank 0 does not say
        (False, 0.0, False),
    ],
)
def test_a_world_that_waits_for_its_turn_is_not_hung(
    in_turns: bool, awake: float, rests: bool
) -> None:
    plan = Plan(0, "gloo", 1, (), Policy(), [], 30.0, in_turns=in_turns)
    board, fd = Board.create(1)
    meeting = SimpleNamespace(awake=lambda limit: awake)
    member = Membership("torchrun", 0, 1, 0, 1)
    watchdog = join.Watchdog(board, member, meeting, plan, Listener(lambda line: None))  # type: ignore[arg-type]
    assert watchdog._rests() is rests
    os.close(fd)
