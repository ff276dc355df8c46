"""Experiments over two hosts: both sides' worlds at the places that a launcher's processes hold."""

from __future__ import annotations

from pathlib import Path

import launching
import pytest
from experiments import sides, small
from network import Lab

from collbench.core.errors import Exit
from collbench.records.types import RunFile

pytestmark = pytest.mark.usefixtures("possible")


def on_two_hosts(folder: Path, *named: str) -> tuple[RunFile, RunFile, str]:
    path = small(folder, ranks="2, 3")
    with Lab(hosts=2) as lab:
        command = (
            "ab",
            "--suite",
            path,
            *named,
            "--rounds",
            "6,6",
            "--budget",
            "0",
            "--tau",
            "99%",
        )
        done = launching.run(lab, launching.torchrun, *command, seconds=300)
    base, head = sides()
    ends = [file.end.exit for file in (base, head) if file.end]
    assert ends in ([Exit.OK] * 2, [Exit.NO_VERDICT] * 2), done[0].stderr + done[1].stderr
    assert done[1].stdout == ""
    return base, head, done[0].stdout


@pytest.mark.long  # test_ab_launchers.py has both sides' worlds on one host
def test_a_setting_is_compared_by_two_worlds_of_both_hosts(tmp_path: Path) -> None:
    base, head, out = on_two_hosts(tmp_path, "--head", "X=1")
    for file in (base, head):
        assert [world.round for world in file.worlds] == list(range(6))
        assert {tuple(rank.host for rank in world.ranks) for world in file.worlds} == {("h0", "h1")}
        assert {(w.launcher, w.together, w.same_clock) for w in file.worlds} == {
            ("torchrun", "turns", False)
        }
        assert [host.host for host in file.worlds[0].hosts] == ["h0", "h1"]
        assert [r.status for r in file.records] == ["skipped"] + ["ok"] * 6
    assert "3 ranks are more than the 2 places there are" in head.records[0].note
    assert "2 ranks" in out and " pairs · " in out


@pytest.mark.long
def test_algorithms_are_compared_in_one_world_of_both_hosts(tmp_path: Path) -> None:
    base, head, _ = on_two_hosts(
        tmp_path, "--base", "algo:ring", "--head", "algo:recursive_doubling"
    )
    assert {world.together for world in base.worlds} == {"world"}
    assert [w.ranks[1].pid for w in base.worlds] == [w.ranks[1].pid for w in head.worlds]
    assert {w.ranks[1].host for w in head.worlds} == {"h1"}
    assert {r.case.algorithm for r in head.records if r.status == "ok"} == {"recursive_doubling"}
