"""`--launches` on real ranks: each launch has ranks of its own, with other addresses, and is a row
of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from marks import long

import collbench
from collbench.records import run_file
from collbench.records.types import RunFile

PLUGINS = str(Path(__file__).parent / "plugins")
SWEEP = ("all_reduce", "-b", "8", "-e", "8", "-g", "2", "--place", "in", "-n", "6", "-w", "1")


def measured(cli, path: Path, *args: str, **env: str) -> RunFile:
    done = cli(*SWEEP, *args, "--output", str(path), "--format", "csv", **env)
    assert done.returncode == 0, done.stderr
    return run_file.read_file(path)


def test_each_launch_is_a_row_of_ranks_of_its_own(cli, tmp_path: Path) -> None:
    run = measured(cli, tmp_path / "run.jsonl", "--launches", "2")
    assert len({rank.pid for world in run.worlds for rank in world.ranks}) == 4
    assert list(collbench.frame(run.path)["cycles"]) == [1, 1]
    other = tmp_path / "other.jsonl"
    other.write_text(run.path.read_text().replace(run.run.id, "another"))
    told = " ".join(cli("compare", str(run.path), str(other)).stdout.split())
    assert "2 and 2 launches, and a verdict needs at least 10 a side" in told
    assert "measure each side with --launches 10" in told


@pytest.mark.slow
@pytest.mark.parametrize(("option", "places"), [("--launches", 2), long("-N", 1)])
def test_launches_have_other_addresses_in_memory(
    cold, tmp_path: Path, option: str, places: int
) -> None:
    """A server that is forked from a process has the addresses of that."""
    path = os.pathsep.join(filter(None, [PLUGINS, os.environ.get("PYTHONPATH")]))
    words = ("--backend", "placed", "--algo", "ring", option, "2")
    run = measured(cold, tmp_path / "run.jsonl", *words, PYTHONPATH=path)
    assert len({world.library for world in run.worlds}) == places
