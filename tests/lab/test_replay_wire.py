"""Bytes on a network's links: those of a job of torch's own, and of the replay of its trace."""

from __future__ import annotations

import json
from pathlib import Path

import counting
import jobs
import pytest
from marks import long
from warm import Warm

from collbench.features.training.traffic import count_traffic
from collbench.records import run_file

pytestmark = pytest.mark.usefixtures("possible")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, long(4)])
@pytest.mark.parametrize("name", [long("ddp"), long("fsdp2"), "moe"])
def test_a_replay_sends_what_the_job_sent(
    warm: Warm, name: str, ranks: int, tmp_path: Path
) -> None:
    """Within 1 %."""
    folder, path = tmp_path / "trace", tmp_path / "run.jsonl"
    shape = ["--ranks", str(ranks), "--steps", "4", "--width", "512", "--layers", "6"]
    words = ["--gaps", "none", "--backend", "gloo", "-n", "2", "--output", str(path)]
    with counting.Network(warm) as network:
        job = warm.join(
            *(ranks, name, str(folder), *shape), script=jobs.__file__, network=network.pid
        )
        replayed = warm.start("replay", str(folder / name), *words, network=network.pid)
        _, err = replayed.communicate(120)
    assert (job.returncode, replayed.returncode) == (0, 0), job.stderr + err
    sent = json.loads(job.stdout.splitlines()[-1])[name]["sent"]
    file = run_file.read_file(path)
    (record,) = [each for each in file.records if each.sent]
    (step,) = file.run.suite.subjects
    found = count_traffic(step, record.case, record.sent, file.worlds[0].library)
    assert found is not None
    assert found.counted_bytes == pytest.approx(sent, rel=0.01)
