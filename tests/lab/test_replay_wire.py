"""Bytes on a network's links: those of a job of torch's own, and of the replay of its trace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import counting
import jobs
import pytest

from collbench.features.training.traffic import count_traffic
from collbench.records import run_file

pytestmark = pytest.mark.usefixtures("possible")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["ddp", "fsdp2", "moe"])
def test_a_replay_sends_what_the_job_sent(name: str, ranks: int, tmp_path: Path) -> None:
    """Within 1 %."""
    folder, path = tmp_path / "trace", tmp_path / "run.jsonl"
    shape = ["--ranks", str(ranks), "--steps", "4", "--width", "512", "--layers", "6"]
    words = ["--gaps", "none", "--backend", "gloo", "-n", "2", "--output", str(path)]
    with counting.Network() as network:
        told = [
            _done(network, [sys.executable, *command])
            for command in (
                [jobs.__file__, name, str(folder), *shape],
                ["-m", "collbench", "replay", str(folder / name), *words],
            )
        ]
    sent = json.loads(told[0].splitlines()[-1])[name]["sent"]
    file = run_file.read_file(path)
    (record,) = [each for each in file.records if each.sent]
    (step,) = file.run.suite.subjects
    found = count_traffic(step, record.case, record.sent, file.worlds[0].library)
    assert found is not None
    assert found.counted_bytes == pytest.approx(sent, rel=0.01)


def _done(network: counting.Network, command: list[str]) -> str:
    process = network.inside(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err + out
    return str(out)
