"""A link that is slower than the others is named, with its direction, and nobody else."""

from __future__ import annotations

import json

import launching
import pytest
from network import Lab

pytestmark = pytest.mark.usefixtures("possible")
RATE = 10**8


@pytest.mark.long
def test_a_slow_link_is_named() -> None:
    """By pairs at first, and by what confirms them, which is asked for as the search goes on. No
    other work on this machine makes a host so slow."""
    with Lab(hosts=4, rate=RATE) as lab:
        lab.throttle(lab.hosts[2], RATE // 6)
        command = [
            "locate",
            "--size",
            "128K",
            "-n",
            "6",
            "--tau",
            "60%",
            "--no-save",
            "--format",
            "json",
            "-T",
            "30",
        ]
        done = launching.run(lab, launching.by_environment, *command, seconds=120)
    found = json.loads(done[0].stdout)
    assert [finding["subject"] for finding in found["findings"]] == [
        {"kind": "host", "name": "h2"}
    ], found["words"]
    assert (
        found["located"]["culprits"][0]["share"] < 0.4
        and found["located"]["tests"] >= 8
        and not found["located"]["open"]
    )
    assert [each.returncode for each in done] == [1, 0, 0, 0]


@pytest.mark.long
def test_slow_directions_of_links_are_named() -> None:
    """One end of a host's link at half the rate, and the other end of another's: measured both ways
    at once, the hosts alone would be known."""
    with Lab(hosts=4, rate=RATE) as lab:
        lab.throttle(lab.hosts[1], RATE // 2, ("sends",))
        lab.throttle(lab.hosts[3], RATE // 2, ("receives",))
        command = ["pairs", "--one-way", "--large", "1M", "--small", "0", "-n", "6", "-w", "1"]
        command += ["--no-save", "--format", "json", "-T", "30"]
        done = launching.run(lab, launching.by_environment, *command, seconds=120)
    findings = json.loads(done[0].stdout)["findings"]
    assert {finding["what"].partition(" at ")[0] for finding in findings} == {
        "h1 sends",
        "h3 receives",
    }
    assert {finding["subject"]["name"] for finding in findings} == {"h1", "h3"}
    assert all(0.4 < finding["evidence"][0]["value"] < 0.65 for finding in findings)
    assert [each.returncode for each in done] == [1, 0, 0, 0]
