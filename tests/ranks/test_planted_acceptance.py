"""A rank made slow on purpose is not accepted: measured, and held against an earlier run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.core.errors import Exit

Cli = Callable[..., subprocess.CompletedProcess[str]]
SUITE = """
[axes]
collectives = ["all_reduce"]
sizes = ["256K"]
in_place = false
ranks = [2]
backends = ["gloo"]

[policy]
iters = 30
"""
TABLE = """
[[curve]]
machine = "."
backend = "gloo"
gpus = 2
points = {{ "256K" = {busbw} }}
share = 1.0
severity = "critical"
source = "the run before"
day = 2026-01-01
"""


@pytest.mark.long
def test_a_slow_rank_is_not_accepted(cli: Cli, tmp_path: Path) -> None:
    """A third of what was reached is wanted, and a rank takes ten times as long."""
    suite, table = tmp_path / "acceptance.toml", tmp_path / "table.toml"
    suite.write_text(SUITE)
    table.write_text(TABLE.format(busbw=1e-6))
    options = ("--expect", str(table), "--launches", "3", "--format", "json")
    healthy = cli("accept", str(suite), *options)
    (row,) = json.loads(healthy.stdout)["rows"]
    assert healthy.returncode == Exit.OK, healthy.stderr
    table.write_text(TABLE.format(busbw=row["busbw"] / 3))
    planted = cli("accept", str(suite), "--inject", "slow-rank:1:900%", *options)
    verdict = json.loads(planted.stdout)
    assert (planted.returncode, verdict["state"]) == (Exit.BAD, "not accepted"), planted.stdout
    assert verdict["injected"] == "slow-rank:1:900%"
