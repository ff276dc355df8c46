"""A small night with real ranks: launches, verdict, history, and rows measured again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from collbench.features.health import command as health
from collbench.features.health.checks import data
from collbench.features.health.night import Night
from collbench.records import run_file, store

SUITE = """
description = "A night in small."
tags = ["health"]

[axes]
collectives = ["all_reduce", "all_gather"]
sizes = "1K"
in_place = false
backends = "gloo"
ranks = 2
cycles = 3

[policy]
fresh = true
iters = 20
warmup = 5
"""


@pytest.mark.long
def test_cycles_are_launches_and_a_row_is_measured_again(
    cli: Callable[..., CompletedProcess[str]], home: Path, tmp_path: Path
) -> None:
    suite = tmp_path / "small.toml"
    suite.write_text(SUITE)
    done = cli("run", str(suite), "--format", "csv")
    assert done.returncode == 0, done.stderr
    file = run_file.read_file(store.find_run("@last"))
    assert [world.index for world in file.worlds] == [0, 1, 2]
    assert {record.world: record.case.cycle for record in file.records} == {0: 0, 1: 1, 2: 2}
    judged = cli("health", "--format", "json", "-o", str(tmp_path / "night.html"))
    verdict = json.loads(judged.stdout)
    outcomes = {check["check"]: check["outcome"] for check in verdict["checks"]}
    assert (
        outcomes["data"] == outcomes["completeness"] == "passed"
        and outcomes["history"] == "no data"
    )
    assert judged.returncode == verdict["exit"] and (home / "history.sqlite").exists()
    assert "<!doctype html>" in (tmp_path / "night.html").read_text()[:99].lower()
    judged = cli(
        "health", "--no-history", "--locate", "-g", "3", "--tests", "9", "--format", "json"
    )
    (located,) = (
        check for check in json.loads(judged.stdout)["checks"] if check["check"] == "locate"
    )
    assert "tests in" in located["note"] and "all 3 pairs" in judged.stderr, (
        judged.stderr
    )  # whom it names is up to the machine
    again = tmp_path / "again.jsonl"
    case = file.records[0].case
    health.launch_cases(file.run, [case], again)
    fresh = Night([run_file.read_digest(again)])
    assert [each.record.case.key for each in fresh.records] == [case.key] * 3
    assert len(fresh.files[0].worlds) == 3 and data.check_data(fresh).note


def test_the_alarm_rings_for_a_planted_fault(
    cli: Callable[..., CompletedProcess[str]], home: Path, tmp_path: Path
) -> None:
    """A night of its own, which is neither the last run nor of any history."""
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ncat > {tmp_path}/heard\n")
    hook.chmod(0o755)
    done = cli(
        "health", "--inject", "drop:1", "-g", "2", "--format", "json", "--on-unhealthy", str(hook)
    )
    verdict = json.loads(done.stdout)
    assert (done.returncode, verdict["state"], verdict["injected"]) == (
        1,
        "unhealthy",
        "drop:1",
    ), done.stderr
    (finding,) = (one for one in verdict["findings"] if one["check"] == "completeness")
    assert finding["severity"] == "critical" and finding["subject"]["name"].endswith(":1")
    assert json.loads((tmp_path / "heard").read_text())["injected"] == "drop:1"
    assert not (home / "history.sqlite").exists() and not list((home / "runs").glob("*"))
